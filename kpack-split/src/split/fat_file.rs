//! A linked file, as the splitter reads it.

use std::path::Path;

use kpack_format::marker::Marker;

use super::{DeviceCode, code_ids, padding};
use crate::Error;
use crate::elf::{self, Image, Plan};
use crate::input::{self, FileKind, Linked};

/// What a file is to the splitter.
pub(crate) enum Input {
    /// It has device code.
    Fat(FatFile, Linked),
    /// Its device code is in archives already.
    Split(Linked),
    /// It is left alone; the text says why.
    LeftAlone(String),
}

/// A fat binary whose headers and tables were read. The file is closed: a thousand binaries would be
/// too many to hold open.
pub(crate) struct FatFile {
    pub(crate) code: DeviceCode,
    headers: Box<Image<()>>,
    fat: elf::FatBinary,
}

/// Reads what `path` is.
///
/// # Errors
/// [`Error::Refused`] for what is no binary, or is damaged.
pub(crate) fn read(path: &Path) -> Result<Input, Error> {
    let file = input::open(path)?;
    let unlinked = match input::identify(path, &file)? {
        Some(FileKind::Linked) => None,
        Some(FileKind::Object) => Some("a relocatable object"),
        Some(FileKind::StaticLibrary) => Some("a static library"),
        Some(_) | None => {
            let text = "not an executable or shared object (ELF)";
            return Err(Error::refused(path, text));
        }
    };
    if let Some(what) = unlinked {
        let advice = "split it before the link, with `kpack object`";
        return Ok(Input::LeftAlone(format!("{what}; {advice}")));
    }
    let linked = Linked::read(path, file)?;
    Ok(match &linked.code {
        elf::DeviceCode::Fat(fat) => Input::Fat(FatFile::read(&linked, fat)?, linked),
        elf::DeviceCode::Split(_) => Input::Split(linked),
        elf::DeviceCode::None(reason) => Input::LeftAlone(reason.to_string()),
    })
}

impl FatFile {
    fn read(linked: &Linked, fat: &elf::FatBinary) -> Result<Self, Error> {
        let (path, file) = (&linked.path, linked.image.source());
        let code = DeviceCode::read(path, file, &fat.wrappers)?;
        padding::check(path, file, fat.section(), code.ranges())?;
        Ok(Self {
            code,
            headers: Box::new(linked.image.over(())),
            fat: fat.clone(),
        })
    }

    /// How many of its wrappers belong to objects that were split before the link.
    pub(crate) fn split_before(&self) -> usize {
        self.fat.split_before.len()
    }

    /// Plans its host binary, with `marker` in the device code's place.
    ///
    /// # Errors
    /// Also for one with wrappers that were split before the link: `kpack install` relocates their
    /// device code.
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

    /// Plans its host binary, with `marker` and room for another one in the device code's place, and
    /// other changes, by offset in the file.
    pub(crate) fn plan_with(
        &self,
        marker: &Marker,
        edits: Vec<(u64, Vec<u8>)>,
    ) -> Result<Plan, Error> {
        let image = self.headers.over(self.code.open()?);
        let mut bytes = code_ids::with_room(marker);
        // A few kernels for one target can take less.
        bytes.truncate((self.fat.size() as usize).max(marker.to_bytes().len()));
        let plan = Plan::new(&image, &self.fat, &bytes);
        let mut plan = plan.map_err(|error| input::elf_error(&self.code.path, error))?;
        plan.add(edits);
        Ok(plan)
    }
}
