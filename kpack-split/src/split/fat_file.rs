//! A linked file, as the splitter reads it.

use std::path::Path;

use kpack_format::marker::Marker;

use super::{DeviceCode, code_ids, padding};
use crate::Error;
use crate::elf::{self, Image, Plan};
use crate::inspect::{self, FileKind};

/// What a file is to the splitter.
pub(crate) enum Input {
    /// It has device code.
    Fat(FatFile),
    /// Its device code is in kpacks already.
    Split,
    /// It is left alone; the text says why.
    LeftAlone(String),
}

/// A fat binary whose headers and tables were read.
pub(crate) struct FatFile {
    pub(crate) code: DeviceCode,
    fat: elf::FatBinary,
}

/// Reads what `path` is.
///
/// # Errors
/// [`Error::Refused`] for what is no binary, or is damaged.
pub(crate) fn read(path: &Path) -> Result<Input, Error> {
    let file = inspect::open(path)?;
    match inspect::identify(path, &file)? {
        Some(FileKind::Linked) => {}
        Some(FileKind::Object) => {
            return Ok(Input::LeftAlone(
                "a relocatable object; split it before the link, with `kpack object`".to_owned(),
            ));
        }
        Some(FileKind::StaticLibrary) => {
            return Ok(Input::LeftAlone(
                "a static library; split it before the link, with `kpack object`".to_owned(),
            ));
        }
        Some(_) | None => {
            return Err(Error::refused(
                path,
                "not an executable or shared object (ELF)",
            ));
        }
    }
    let image = Image::read(&file).map_err(|e| inspect::elf_error(path, e))?;
    let fat = match image
        .device_code()
        .map_err(|e| inspect::elf_error(path, e))?
    {
        elf::DeviceCode::Fat(fat) => fat,
        elf::DeviceCode::Split(_) => return Ok(Input::Split),
        elf::DeviceCode::None(reason) => {
            return Ok(Input::LeftAlone(
                inspect::no_device_code(reason).explanation,
            ));
        }
    };
    drop(image);
    let code = DeviceCode::read(path, &file, &fat.wrappers)?;
    let section = fat.offset..fat.offset + (fat.addresses.end - fat.addresses.start);
    padding::check(path, &file, section, code.ranges())?;
    Ok(Input::Fat(FatFile { code, fat }))
}

impl FatFile {
    /// How many of its wrappers belong to objects that were split before the link.
    pub(crate) fn split_before(&self) -> usize {
        self.fat.split_before.len()
    }

    /// Plans its host binary, with `marker` in the device code's place.
    ///
    /// # Errors
    /// Also for one with wrappers that were split before the link: what is built of it has to place
    /// them, as `kpack install` does.
    pub(crate) fn plan(&self, marker: &Marker) -> Result<Plan, Error> {
        match self.split_before() {
            0 => self.plan_with(marker, Vec::new()),
            count => Err(Error::refused(
                &self.code.path,
                format!(
                    "{count} of its {} wrappers were split before the link, the others were \
                     not; `kpack install` merges their device code",
                    count + self.fat.wrappers.len()
                ),
            )),
        }
    }

    /// Plans its host binary, with `marker` and room for another one in the device code's place, and other changes, by offset
    /// in the file.
    pub(crate) fn plan_with(
        &self,
        marker: &Marker,
        edits: Vec<(u64, Vec<u8>)>,
    ) -> Result<Plan, Error> {
        let file = self.code.open()?;
        let section = self.fat.addresses.end - self.fat.addresses.start;
        let mut bytes = code_ids::with_room(marker);
        // A few kernels for one target can take less.
        bytes.truncate((section as usize).max(marker.to_bytes().len()));
        let plan = Image::read(&file).and_then(|image| Plan::new(&image, &self.fat, &bytes));
        let mut plan = plan.map_err(|error| inspect::elf_error(&self.code.path, error))?;
        plan.add(edits);
        Ok(plan)
    }
}
