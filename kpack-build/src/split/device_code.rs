//! The bundles that the wrappers of one file point to, and the code objects in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::offload_bundle::{Bundle, BundleError, Entry};

use crate::Error;
use crate::elf;
use crate::input;
use crate::store::Identity;

/// The device code of a file: a linked binary, a relocatable object, or a member of a static
/// library.
pub struct DeviceCode {
    /// Where the file is.
    pub path: PathBuf,
    identity: Identity,
    wrapper_count: usize,
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

/// The table of each bundle, once for all wrappers that point to it.
fn bundles(
    path: &Path,
    file: &File,
    wrappers: &[elf::Wrapper],
) -> Result<Vec<LocatedBundle>, Error> {
    let mut by_offset: BTreeMap<u64, LocatedBundle> = BTreeMap::new();
    let mut reader = BufReader::new(file);
    for wrapper in wrappers {
        let index = wrapper.co_index as usize;
        if let Some(known) = by_offset.get_mut(&wrapper.bundle_offset) {
            known.wrappers.push(index);
            continue;
        }
        let bundle = input::open_bundle(&mut reader, wrapper)
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

impl DeviceCode {
    /// Reads the tables of the bundles that `wrappers` of `file`, found at `path`, point to.
    pub fn read(path: &Path, file: &File, wrappers: &[elf::Wrapper]) -> Result<Self, Error> {
        let identity = Identity::of(path, file)?;
        let bundles = bundles(path, file, wrappers)?;
        Ok(Self {
            path: path.to_owned(),
            identity,
            wrapper_count: wrappers.len(),
            bundles,
        })
    }

    /// Opens the file again: one descriptor for each of a thousand binaries would be too many.
    ///
    /// # Errors
    /// [`Error::Changed`] where it is another file by now, or was written to.
    pub fn open(&self) -> Result<File, Error> {
        let file = input::open(&self.path)?;
        match Identity::of(&self.path, &file)? == self.identity {
            true => Ok(file),
            false => Err(Error::changed(&self.path)),
        }
    }

    /// Size of the file in bytes.
    pub fn file_size(&self) -> u64 {
        self.identity.size()
    }

    /// How many wrappers it has.
    pub fn wrapper_count(&self) -> usize {
        self.wrapper_count
    }

    /// Where the bundles are in the file, in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let bundles = self.bundles.iter();
        bundles.map(|located| located.offset..located.offset.saturating_add(located.bundle.size))
    }

    /// The targets that it has device code for.
    pub fn targets(&self) -> BTreeSet<TargetId> {
        let entries = self.bundles.iter().flat_map(LocatedBundle::device_entries);
        entries.map(|(target, _)| target.clone()).collect()
    }

    /// Size in bytes of the code objects for the targets that are wanted.
    pub fn device_size(&self, wanted: &dyn Fn(&TargetId) -> bool) -> u64 {
        let entries = self.bundles.iter().flat_map(LocatedBundle::device_entries);
        let sizes = entries
            .filter(|(target, _)| wanted(target))
            .map(|(_, entry)| entry.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Hands each wanted code object to `take`, with the indices of the wrappers that it belongs
    /// to. Every bundle is read to its end, so that damage anywhere is found.
    pub(super) fn code_objects(
        &self,
        wanted: &dyn Fn(&TargetId) -> bool,
        mut take: impl FnMut(&[usize], TargetId, Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let file = self.open()?;
        for located in &self.bundles {
            let wrapper = located.wrappers.first().copied().unwrap_or_default();
            let failed = |error| bundle_error(&self.path, wrapper, located.offset, error);
            let mut source = &file;
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
