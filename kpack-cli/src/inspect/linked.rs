//! Describes executables and shared objects with device code, fat or split.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::KernelName;
use kpack_format::offload_bundle::Bundle;
use serde::Serialize;

use super::small::BundleDescription;
use kpack_core::parallel::lock;
use kpack_core::{Error, lossy};
use kpack_split::elf::{FatBinary, SplitWrapper, Wrapper};
use kpack_split::input::{Archives, Kpack, Kpacks, LinkedBinary, Lookup, MarkerGroup, prefix_of};

/// A binary with its device code in it.
#[derive(Debug, Serialize)]
pub(crate) struct FatDescription {
    /// Size of `.hip_fatbin` in bytes.
    pub(crate) section_size: u64,
    pub(crate) wrappers: Vec<BundledWrapper>,
    /// Number of further wrappers, of objects that were split before the link.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) split_before: usize,
    /// The code objects for each target.
    pub(crate) targets: Vec<TargetTotal>,
    /// In a joined binary, the marker that says where the rest of its device code is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) joined: Option<JoinedMarker>,
}

/// A wrapper of a fat binary.
#[derive(Debug, Serialize)]
pub(crate) struct BundledWrapper {
    /// Its position among all wrappers.
    pub(crate) index: u32,
    pub(crate) bundle_offset: u64,
    pub(crate) bundle: BundleDescription,
}

/// The code objects for a target.
#[derive(Debug, Serialize)]
pub(crate) struct TargetTotal {
    pub(crate) target: String,
    /// Their number. Those of a bundle that wrappers share count once.
    pub(crate) code_objects: usize,
    pub(crate) size: u64,
}

/// The marker of a joined binary.
#[derive(Debug, Serialize)]
pub(crate) struct JoinedMarker {
    pub(crate) kernel_name: String,
    pub(crate) kpack_search_paths: Vec<String>,
}

/// A binary whose device code is in archives.
#[derive(Debug, Serialize)]
pub(crate) struct SplitDescription {
    /// Its path in the install prefix; `None` for the early plain-text marker, and for objects split
    /// before the link, which have their own names.
    pub(crate) kernel_name: Option<String>,
    /// The distinct search paths of its markers.
    #[serde(rename = "kpack_search_paths")]
    pub(crate) search_paths: Vec<String>,
    /// The objects that were split before the link, if it has several markers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) objects: Vec<SplitObject>,
    /// The install prefix, if the binary is at its kernels' name in one.
    #[serde(serialize_with = "lossy::optional_path")]
    pub(crate) prefix: Option<PathBuf>,
    pub(crate) wrappers: Vec<WrapperAddress>,
    /// The archives that its markers refer to.
    #[serde(flatten)]
    pub(crate) kpacks: Kpacks,
    /// The wrappers whose bundles stay in it because of their SPIR-V.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) kept: Vec<KeptWrapper>,
    /// The archives with device code of another build of this binary.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "lossy::paths")]
    pub(crate) other_builds: Vec<PathBuf>,
    /// Number of its code objects in each archive, in the order of the archives; 0 for a missing or
    /// unreadable archive.
    pub(crate) code_objects: Vec<usize>,
    /// Whether another tool than kpack split it.
    #[serde(skip)]
    pub(crate) is_of_other_tool: bool,
}

/// An object that was split before the link.
#[derive(Debug, Serialize)]
pub(crate) struct SplitObject {
    pub(crate) kernel_name: Option<String>,
    /// The positions of its wrappers.
    pub(crate) wrappers: Vec<u32>,
}

/// A split wrapper.
#[derive(Debug, Serialize)]
pub(crate) struct WrapperAddress {
    /// The number after `#` in the kernel name.
    pub(crate) index: u32,
    pub(crate) address: u64,
}

/// A wrapper whose bundle stays in a split binary.
#[derive(Debug, Serialize)]
pub(crate) struct KeptWrapper {
    /// Its position among all wrappers.
    pub(crate) index: u32,
    pub(crate) bundle: BundleDescription,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl FatDescription {
    pub(super) fn read(linked: &LinkedBinary, fat: &FatBinary) -> Result<Self, Error> {
        let bundles = linked.bundles(&fat.wrappers).collect::<Result<Vec<Bundle>, _>>()?;
        let wrappers = fat.wrappers.iter().zip(&bundles).map(|(wrapper, bundle)| BundledWrapper {
            index: wrapper.co_index,
            bundle_offset: wrapper.bundle_offset,
            bundle: bundle.into(),
        });
        let joined = linked.kept_marker()?.map(|marker| JoinedMarker {
            kernel_name: marker.kernel_name.unwrap_or_default(),
            kpack_search_paths: marker.kpack_search_paths,
        });
        Ok(Self {
            section_size: fat.size(),
            wrappers: wrappers.collect(),
            split_before: fat.split_before.len(),
            targets: target_totals(&fat.wrappers, &bundles),
            joined,
        })
    }
}

fn target_totals(wrappers: &[Wrapper], bundles: &[Bundle]) -> Vec<TargetTotal> {
    let distinct: BTreeMap<u64, &Bundle> =
        wrappers.iter().map(|wrapper| wrapper.bundle_offset).zip(bundles).collect();
    let mut totals: BTreeMap<&TargetId, (usize, u64)> = BTreeMap::new();
    for entry in distinct.values().flat_map(|bundle| &bundle.entries) {
        if let Some(target) = entry.id.target() {
            let (code_objects, size) = totals.entry(target).or_default();
            *code_objects += 1;
            *size = size.saturating_add(entry.size);
        }
    }
    let total = |(target, (code_objects, size)): (&TargetId, _)| TargetTotal {
        target: target.to_string(),
        code_objects,
        size,
    };
    totals.into_iter().map(total).collect()
}

impl SplitDescription {
    pub(super) fn read(linked: &LinkedBinary, wrappers: &[SplitWrapper]) -> Result<Self, Error> {
        let mut kept = Vec::new();
        if let Some(fat) = &linked.kept {
            for (wrapper, bundle) in fat.wrappers.iter().zip(linked.bundles(&fat.wrappers)) {
                kept.push(KeptWrapper { index: wrapper.co_index, bundle: (&bundle?).into() });
            }
        }
        let markers = linked.markers()?;
        let loaded_as = linked.loaded_as();
        let kernel_name = kernel_name(&markers);
        let address = |wrapper: &SplitWrapper| WrapperAddress {
            index: wrapper.co_index,
            address: wrapper.address,
        };
        let mut split = Self {
            search_paths: search_paths(&markers),
            objects: objects(&markers),
            prefix: kernel_name.and_then(|name| prefix_of(&loaded_as, name)),
            kernel_name: kernel_name.map(str::to_owned),
            wrappers: wrappers.iter().map(address).collect(),
            kpacks: Kpacks::default(),
            kept,
            other_builds: Vec::new(),
            code_objects: Vec::new(),
            is_of_other_tool: markers.iter().any(MarkerGroup::is_of_other_tool),
        };
        let lookup = Lookup::default();
        for group in &markers {
            let of_group = lookup.find(&loaded_as, &group.marker)?;
            for kpack in of_group.files {
                let (count, is_of_other_build) =
                    code_objects(&lookup.archives, &kpack, &group.marker);
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
        Ok(split)
    }
}

/// The kernels' name that all markers have.
fn kernel_name(markers: &[MarkerGroup]) -> Option<&str> {
    let mut names = markers.iter().map(|group| group.marker.kernel_name.as_deref());
    let first = names.next()?;
    first.filter(|_| names.all(|name| name == first))
}

fn search_paths(markers: &[MarkerGroup]) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for path in markers.iter().flat_map(|group| &group.marker.kpack_search_paths) {
        if !paths.contains(path) {
            paths.push(path.clone());
        }
    }
    paths
}

fn objects(markers: &[MarkerGroup]) -> Vec<SplitObject> {
    let several = markers.iter().filter(|_| markers.len() > 1);
    let object = |group: &MarkerGroup| SplitObject {
        kernel_name: group.marker.kernel_name.clone(),
        wrappers: group.wrappers.iter().map(|wrapper| wrapper.position).collect(),
    };
    several.map(object).collect()
}

/// Number of code objects of a marker's binary in an archive, and whether they are from another build;
/// none if it is missing or unreadable.
fn code_objects(archives: &Archives, kpack: &Kpack, marker: &Marker) -> (usize, bool) {
    let (Ok(archive), Some(name)) = (archives.open(&kpack.path), &marker.kernel_name) else {
        return (0, false);
    };
    let archive = lock(&archive);
    let toc = archive.toc();
    let own = toc.kernels.iter().filter(|(kernel, targets)| {
        KernelName::parse(kernel).binary == name && targets.contains_key(&kpack.target)
    });
    let id = toc.code_id(name, &kpack.target);
    (own.count(), !marker.accepts(&kpack.target, id))
}
