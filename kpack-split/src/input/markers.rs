//! The markers of a split binary: one, or one for each object that was split before the link.

use kpack_format::marker::{self, Marker};
use kpack_format::names::is_object;

use super::LinkedBinary;
use crate::device_code::{DeviceCode, FatBinary, SplitWrapper};
use crate::elf::ReadAt;
use crate::{Error, ids};

/// Wrappers with equal markers.
#[derive(Debug, PartialEq)]
pub struct MarkerGroup {
    /// The marker.
    pub marker: Marker,
    /// Those that point to it or to an equal one.
    pub wrappers: Vec<SplitWrapper>,
}

impl MarkerGroup {
    /// Whether another tool than kpack split it, such as ROCm's: kpack's markers have code IDs. Only for naming it.
    pub fn is_of_other_tool(&self) -> bool {
        let name = self.marker.kernel_name.as_deref();
        self.marker.code_ids.is_empty() && name.is_some_and(|name| !is_object(name))
    }
}

impl LinkedBinary {
    /// The distinct markers of the split wrappers, in the order of their first wrappers.
    ///
    /// # Errors
    /// [`Error::Refused`] if a wrapper does not point to a marker.
    pub fn markers(&self) -> Result<Vec<MarkerGroup>, Error> {
        let mut found: Vec<MarkerGroup> = Vec::new();
        // The last marker read and its position; the wrappers of one object are consecutive.
        let mut last: Option<(u64, usize)> = None;
        for wrapper in self.code.split_wrappers() {
            let at = wrapper.marker_offset;
            let group = match last {
                Some((offset, group)) if offset == at => group,
                _ => {
                    let marker = self.marker(wrapper)?;
                    let known = found.iter().position(|known| known.marker == marker);
                    known.unwrap_or_else(|| {
                        let wrappers = Vec::new();
                        found.push(MarkerGroup { marker, wrappers });
                        found.len() - 1
                    })
                }
            };
            found[group].wrappers.push(wrapper.clone());
            last = Some((at, group));
        }
        Ok(found)
    }

    /// Whether a marker leads to archives in the build tree.
    pub(crate) fn is_in_build_tree(&self) -> Result<bool, Error> {
        let markers = self.markers()?;
        let mut paths = markers.iter().flat_map(|m| &m.marker.kpack_search_paths);
        Ok(paths.any(|path| path.starts_with('/')))
    }

    /// The marker that a joined binary keeps; `None` for others.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is damaged.
    pub fn kept_marker(&self) -> Result<Option<Marker>, Error> {
        let DeviceCode::Fat(FatBinary { joined: Some(kept), .. }) = &self.code else {
            return Ok(None);
        };
        let marker = self.marker_at(kept.offset, kept.available, "marker");
        marker.map(Some)
    }

    fn marker(&self, wrapper: &SplitWrapper) -> Result<Marker, Error> {
        let what = format!("marker of wrapper {}", wrapper.co_index);
        self.marker_at(wrapper.marker_offset, wrapper.marker_available, &what)
    }

    fn marker_at(&self, at: u64, available: u64, what: &str) -> Result<Marker, Error> {
        let available = usize::try_from(available).unwrap_or(usize::MAX);
        let mut bytes = vec![0; available.min(marker::MAX_SIZE)];
        let read = self.image.source().read_exact_at(at, &mut bytes);
        read.map_err(|e| self.error(e.into()))?;
        let refused = |reason: String| {
            let text = format!("{what} at file offset {at:#x}: {reason}");
            Error::rejected(ids::DAMAGED_MARKER, &self.path, text)
        };
        let (marker, _) = Marker::read(&bytes).map_err(|e| refused(e.to_string()))?;
        if marker.kpack_search_paths.iter().any(|p| p.contains('\0')) {
            Err(refused("a search path has a NUL byte".to_owned()))
        } else {
            Ok(marker)
        }
    }
}
