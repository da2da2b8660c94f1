//! What is known of executables and shared objects with device code, fat or split.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::KernelName;
use kpack_format::offload_bundle::Bundle;

use kpack_core::Error;
use kpack_core::parallel::lock;
use kpack_split::elf::{self, SplitWrapper, Wrapper};
use kpack_split::input::{Archives, Kpack, Kpacks, LinkedBinary, Lookup, MarkerGroup, prefix_of};

/// A binary with its device code in it.
#[derive(Debug)]
pub struct FatBinary {
    /// Size of `.hip_fatbin` in bytes.
    pub section_size: u64,
    /// Its wrappers in order, each with its bundle.
    pub wrappers: Vec<(Wrapper, Bundle)>,
    /// Number of further wrappers, of objects that were split before the link.
    pub split_before: usize,
    /// The marker of a joined binary: where the rest of its device code is.
    pub joined: Option<Marker>,
}

impl FatBinary {
    pub(super) fn read(linked: &LinkedBinary, fat: &elf::FatBinary) -> Result<Self, Error> {
        let bundles: Result<Vec<_>, _> = linked.bundles(&fat.wrappers).collect();
        Ok(Self {
            section_size: fat.size(),
            wrappers: fat.wrappers.iter().cloned().zip(bundles?).collect(),
            split_before: fat.split_before.len(),
            joined: linked.kept_marker()?,
        })
    }

    /// Number and total size of the code objects for each target. A bundle that wrappers share counts once.
    pub fn targets(&self) -> BTreeMap<&TargetId, (usize, u64)> {
        let mut totals: BTreeMap<&TargetId, (usize, u64)> = BTreeMap::new();
        let bundles = self.wrappers.iter().map(|(w, bundle)| (w.bundle_offset, bundle));
        let bundles = BTreeMap::from_iter(bundles);
        for entry in bundles.values().flat_map(|bundle| &bundle.entries) {
            if let Some(target) = entry.id.target() {
                let total = totals.entry(target).or_default();
                *total = (total.0 + 1, total.1.saturating_add(entry.size));
            }
        }
        totals
    }
}

/// A binary whose device code is in archives.
#[derive(Debug)]
pub struct SplitBinary {
    /// Its markers: one, or one for each object that was split before the link.
    pub(crate) markers: Vec<MarkerGroup>,
    /// The install prefix, if the binary is at its kernels' name in one.
    pub prefix: Option<PathBuf>,
    /// Its wrappers, in order.
    pub wrappers: Vec<SplitWrapper>,
    /// The wrappers whose bundles stay in it because of their SPIR-V, each with its bundle.
    pub kept: Vec<(Wrapper, Bundle)>,
    /// The archives that its markers refer to.
    pub kpacks: Kpacks,
    /// The archives with device code of another build of this binary.
    pub other_builds: Vec<PathBuf>,
    /// Number of its code objects in each archive, in the order of the archives; 0 for a missing or
    /// unreadable archive.
    pub code_objects: Vec<usize>,
}

impl SplitBinary {
    /// Whether another tool than kpack split it.
    pub(crate) fn is_of_other_tool(&self) -> bool {
        self.markers.iter().any(MarkerGroup::is_of_other_tool)
    }

    pub(super) fn read(linked: &LinkedBinary, wrappers: Vec<SplitWrapper>) -> Result<Self, Error> {
        let mut kept = Vec::new();
        if let Some(fat) = &linked.kept {
            for (wrapper, bundle) in fat.wrappers.iter().zip(linked.bundles(&fat.wrappers)) {
                kept.push((wrapper.clone(), bundle?));
            }
        }
        let mut split = Self {
            markers: linked.markers()?,
            prefix: None,
            wrappers,
            kept,
            kpacks: Kpacks::default(),
            other_builds: Vec::new(),
            code_objects: Vec::new(),
        };
        let lookup = Lookup::default();
        let loaded_as = linked.loaded_as();
        for group in &split.markers {
            let of_group = lookup.find(&loaded_as, &group.marker)?;
            for kpack in of_group.files {
                let (count, is_of_other_build) = code_objects(&lookup.archives, &kpack, group);
                if is_of_other_build && !split.other_builds.contains(&kpack.path) {
                    split.other_builds.push(kpack.path.clone());
                }
                match split.kpacks.files.iter().position(|known| *known == kpack) {
                    Some(known) => split.code_objects[known] += count,
                    None => {
                        split.kpacks.files.push(kpack);
                        split.code_objects.push(count);
                    }
                }
            }
            for manifest in of_group.manifests {
                if !split.kpacks.manifests.contains(&manifest) {
                    split.kpacks.manifests.push(manifest);
                }
            }
        }
        let name = split.kernel_name();
        split.prefix = name.and_then(|name| prefix_of(&loaded_as, name));
        Ok(split)
    }

    /// Its path in the install prefix; `None` for the early plain-text marker, and for objects split
    /// before the link, which have their own names.
    pub fn kernel_name(&self) -> Option<&str> {
        let mut names = self.markers.iter().map(|group| &group.marker.kernel_name);
        let first = names.next()?;
        first.as_deref().filter(|_| names.all(|name| name == first))
    }

    /// The distinct search paths of its markers.
    pub fn search_paths(&self) -> Vec<&str> {
        let mut paths: Vec<&str> = Vec::new();
        for group in &self.markers {
            for path in &group.marker.kpack_search_paths {
                if !paths.contains(&path.as_str()) {
                    paths.push(path);
                }
            }
        }
        paths
    }

    /// The kernels' names of the objects that were split before the link, if there are several markers,
    /// each with the positions of its wrappers.
    pub fn objects(&self) -> Vec<(Option<&str>, Vec<u32>)> {
        let several = self.markers.iter().filter(|_| self.markers.len() > 1);
        let objects = several.map(|group| {
            let wrappers = group.wrappers.iter().map(|wrapper| wrapper.position);
            (group.marker.kernel_name.as_deref(), wrappers.collect())
        });
        objects.collect()
    }
}

/// Number of code objects of a marker's binary in an archive, and whether they are from another build;
/// none if it is missing or unreadable.
fn code_objects(archives: &Archives, kpack: &Kpack, group: &MarkerGroup) -> (usize, bool) {
    let (Ok(archive), Some(name)) = (archives.open(&kpack.path), &group.marker.kernel_name) else {
        return (0, false);
    };
    let archive = lock(&archive);
    let toc = archive.toc();
    let own = toc.kernels.iter().filter(|(kernel, targets)| {
        KernelName::parse(kernel).binary == name && targets.contains_key(&kpack.target)
    });
    let id = toc.code_id(name, &kpack.target);
    (own.count(), !group.marker.accepts(&kpack.target, id))
}
