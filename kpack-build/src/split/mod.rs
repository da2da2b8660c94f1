//! One fat binary as data: the plan of its host binary, and its code objects by target.

mod compress;
mod padding;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::offload_bundle::{Bundle, BundleError, Entry};

use crate::Error;
use crate::elf::{self, DeviceCode, Image, Plan};
use crate::inspect::{self, FileKind};

pub(crate) use compress::{Compression, archive_error, compress};

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
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    fat: elf::FatBinary,
    bundles: Vec<LocatedBundle>,
}

/// A bundle, and the wrappers that point to it.
struct LocatedBundle {
    /// File offset.
    offset: u64,
    bundle: Bundle,
    wrappers: Vec<usize>,
}

impl LocatedBundle {
    fn device_entries(&self) -> impl Iterator<Item = (&TargetId, &Entry)> {
        let used = self.bundle.entries.iter().filter(|entry| entry.size > 0);
        used.filter_map(|entry| Some((entry.id.target()?, entry)))
    }
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
                "a relocatable object; its device code is split before the link".to_owned(),
            ));
        }
        Some(FileKind::StaticLibrary) => {
            return Ok(Input::LeftAlone(
                "a static library; its device code is split before the link".to_owned(),
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
        DeviceCode::Fat(fat) => fat,
        DeviceCode::Split(_) => return Ok(Input::Split),
        DeviceCode::None(reason) => {
            return Ok(Input::LeftAlone(
                inspect::no_device_code(reason).explanation,
            ));
        }
    };
    drop(image);
    let bundles = bundles(path, &file, &fat)?;
    let used = bundles.iter().map(|b| b.offset..b.offset + b.bundle.size);
    padding::check(path, &file, &fat, used)?;
    Ok(Input::Fat(FatFile {
        path: path.to_owned(),
        file,
        fat,
        bundles,
    }))
}

/// The table of each bundle, once for all wrappers that point to it.
fn bundles(path: &Path, file: &File, fat: &elf::FatBinary) -> Result<Vec<LocatedBundle>, Error> {
    let mut by_offset: BTreeMap<u64, LocatedBundle> = BTreeMap::new();
    let mut reader = BufReader::new(file);
    for (index, wrapper) in fat.wrappers.iter().enumerate() {
        if let Some(known) = by_offset.get_mut(&wrapper.bundle_offset) {
            known.wrappers.push(index);
            continue;
        }
        let bundle = inspect::open_bundle(&mut reader, wrapper)
            .map_err(|error| bundle_error(path, index, wrapper.bundle_offset, error))?;
        let located = LocatedBundle {
            offset: wrapper.bundle_offset,
            bundle,
            wrappers: vec![index],
        };
        by_offset.insert(wrapper.bundle_offset, located);
    }
    Ok(by_offset.into_values().collect())
}

fn bundle_error(path: &Path, wrapper: usize, offset: u64, error: BundleError) -> Error {
    match error {
        BundleError::Io(error) if error.raw_os_error().is_some() => Error::io(path, "read", error),
        error => Error::refused(
            path,
            format!("wrapper {wrapper}, bundle at file offset {offset:#x}: {error}"),
        ),
    }
}

impl FatFile {
    /// How many wrappers it has.
    pub(crate) fn wrapper_count(&self) -> usize {
        self.fat.wrappers.len()
    }

    /// The targets that it has device code for.
    pub(crate) fn targets(&self) -> BTreeSet<TargetId> {
        let entries = self.bundles.iter().flat_map(LocatedBundle::device_entries);
        entries.map(|(target, _)| target.clone()).collect()
    }

    /// Size in bytes of the code objects for the targets that are wanted.
    pub(crate) fn device_size(&self, wanted: &dyn Fn(&TargetId) -> bool) -> u64 {
        let entries = self.bundles.iter().flat_map(LocatedBundle::device_entries);
        let sizes = entries
            .filter(|(target, _)| wanted(target))
            .map(|(_, entry)| entry.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Plans its host binary, with `marker` in the device code's place.
    pub(crate) fn plan(&self, marker: &[u8]) -> Result<Plan, Error> {
        let plan = Image::read(&self.file).and_then(|image| Plan::new(&image, &self.fat, marker));
        plan.map_err(|error| inspect::elf_error(&self.path, error))
    }

    /// Hands each wanted code object to `take`, with the indices of the wrappers that it belongs
    /// to. Every bundle is read to its end, so that damage anywhere is found.
    fn code_objects(
        &self,
        wanted: &dyn Fn(&TargetId) -> bool,
        mut take: impl FnMut(&[usize], TargetId, Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for located in &self.bundles {
            let wrapper = located.wrappers.first().copied().unwrap_or_default();
            let failed = |error| bundle_error(&self.path, wrapper, located.offset, error);
            let mut source = &self.file;
            let start = source.seek(SeekFrom::Start(located.offset));
            start.map_err(|error| Error::io(&self.path, "read", error))?;
            for code in located
                .bundle
                .code_objects(source, wanted)
                .map_err(failed)?
            {
                let code = code.map_err(failed)?;
                take(&located.wrappers, code.target, code.bytes)?;
            }
        }
        Ok(())
    }
}
