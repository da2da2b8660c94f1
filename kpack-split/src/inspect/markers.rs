//! The markers of a split binary: one, or one for each object that was split before the link.

use std::path::Path;

use kpack_format::marker::{self, Marker};

use super::elf_error;
use crate::Error;
use crate::elf::{self, Image, ReadAt};

/// Wrappers with equal markers.
#[derive(Debug, PartialEq)]
pub(crate) struct Marked {
    pub(crate) marker: Marker,
    /// Positions of the wrappers in the binary.
    pub(crate) wrappers: Vec<usize>,
}

impl Marked {
    /// The code object indices of its wrappers in `split`.
    pub(crate) fn indices<'a>(
        &'a self,
        split: &'a elf::SplitBinary,
    ) -> impl Iterator<Item = u32> + 'a {
        let wrappers = self.wrappers.iter();
        wrappers.filter_map(|position| Some(split.wrappers.get(*position)?.co_index))
    }
}

/// The distinct markers of a split binary's wrappers, in the order of their first wrappers.
///
/// # Errors
/// [`Error::Refused`] if a wrapper does not point to a marker.
pub(crate) fn read_markers<S: ReadAt>(
    path: &Path,
    image: &Image<S>,
    split: &elf::SplitBinary,
) -> Result<Vec<Marked>, Error> {
    let mut found: Vec<Marked> = Vec::new();
    // The last marker read and its position; the wrappers of one object are consecutive.
    let mut last: Option<(u64, usize)> = None;
    for (position, wrapper) in split.wrappers.iter().enumerate() {
        let at = wrapper.marker_offset;
        if let Some((_, group)) = last.filter(|(offset, _)| *offset == at) {
            found[group].wrappers.push(position);
            continue;
        }
        let marker = read(path, image, wrapper)?;
        let group = match found.iter().position(|known| known.marker == marker) {
            Some(group) => group,
            None => {
                let wrappers = Vec::new();
                found.push(Marked { marker, wrappers });
                found.len() - 1
            }
        };
        found[group].wrappers.push(position);
        last = Some((at, group));
    }
    Ok(found)
}

/// The markers of the binary at `path`; empty if it is not split.
pub(crate) fn markers_of(path: &Path) -> Result<Vec<Marker>, Error> {
    let image = Image::read(super::open(path)?).map_err(|e| elf_error(path, e))?;
    let code = image.device_code().map_err(|e| elf_error(path, e))?;
    let elf::DeviceCode::Split(split) = code else {
        return Ok(Vec::new());
    };
    let groups = read_markers(path, &image, &split)?;
    Ok(groups.into_iter().map(|group| group.marker).collect())
}

fn read<S: ReadAt>(
    path: &Path,
    image: &Image<S>,
    wrapper: &elf::SplitWrapper,
) -> Result<Marker, Error> {
    let at = wrapper.marker_offset;
    let available = usize::try_from(wrapper.marker_available).unwrap_or(usize::MAX);
    let mut bytes = vec![0; available.min(marker::MAX_SIZE)];
    image
        .source()
        .read_exact_at(at, &mut bytes)
        .map_err(|e| elf_error(path, e.into()))?;
    let marker = Marker::read(&bytes).map_err(|e| {
        let index = wrapper.co_index;
        Error::refused(
            path,
            format!("marker of wrapper {index} at file offset {at:#x}: {e}"),
        )
    });
    Ok(marker?.0)
}
