//! A linked file, as the splitter reads it.

use std::path::Path;
use std::sync::Arc;

use super::{DeviceCode, padding};
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
                "a relocatable object; its device code is split before the link, by `kpack object`"
                    .to_owned(),
            ));
        }
        Some(FileKind::StaticLibrary) => {
            return Ok(Input::LeftAlone(
                "a static library; its device code is split before the link, by `kpack object`"
                    .to_owned(),
            ));
        }
        Some(_) | None => {
            return Err(Error::refused(
                path,
                "expected an executable or a shared object, which is an ELF file; it is something else",
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
    let code = DeviceCode::read(path, Arc::new(file), &fat.wrappers)?;
    let section = fat.offset..fat.offset + (fat.addresses.end - fat.addresses.start);
    padding::check(path, &code.file, section, code.ranges())?;
    Ok(Input::Fat(FatFile { code, fat }))
}

impl FatFile {
    /// Plans its host binary, with `marker` in the device code's place.
    pub(crate) fn plan(&self, marker: &[u8]) -> Result<Plan, Error> {
        let plan =
            Image::read(&*self.code.file).and_then(|image| Plan::new(&image, &self.fat, marker));
        plan.map_err(|error| inspect::elf_error(&self.code.path, error))
    }
}
