//! Inspects executables and shared objects: fat, split, or without device code.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kpack_format::TargetId;
use kpack_format::marker::Marker;
use kpack_format::names::KernelName;
use serde::Serialize;

use super::{Bundle, Content};
use crate::Error;
use crate::elf::{self, DeviceCode};
use crate::input::{Kpack, Kpacks, Linked, find_kpacks, open_archive, prefix_of};

/// A binary with its device code in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FatBinary {
    /// Size of `.hip_fatbin` in bytes.
    pub section_size: u64,
    /// Its wrappers, in order.
    pub wrappers: Vec<FatWrapper>,
    /// Number of further wrappers, of objects that were split before the link.
    #[serde(skip_serializing_if = "is_zero")]
    pub split_before: usize,
    /// Totals for each target.
    pub targets: Vec<TargetTotal>,
}

/// A wrapper and its bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FatWrapper {
    /// Code object index.
    pub index: usize,
    /// File offset of its bundle.
    pub bundle_offset: u64,
    /// Its bundle.
    pub bundle: Bundle,
}

/// The code objects for one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TargetTotal {
    /// Target ID.
    pub target: String,
    /// Number of code objects.
    pub code_objects: usize,
    /// Total size in bytes.
    pub size: u64,
}

/// A binary whose device code is in kpacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SplitBinary {
    /// Its path in the install prefix; `None` for the early plain-text marker, and for objects
    /// split before the link, which have their own names.
    pub kernel_name: Option<String>,
    /// The search paths of its markers.
    pub kpack_search_paths: Vec<String>,
    /// The objects that were split before the link, if it has several markers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<SplitObject>,
    /// The install prefix, if the binary is at its `kernel_name` in one.
    #[serde(serialize_with = "crate::lossy::option")]
    pub prefix: Option<PathBuf>,
    /// Its wrappers, in order.
    pub wrappers: Vec<SplitWrapper>,
    /// The archives that its marker refers to.
    #[serde(flatten)]
    pub kpacks: Kpacks,
    /// The archives with device code of another build of this binary.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "crate::lossy::list"
    )]
    pub other_builds: Vec<PathBuf>,
    /// Number of its code objects in each archive, in the order of the archives; 0 for a missing or
    /// unreadable archive.
    pub code_objects: Vec<usize>,
}

/// An object that was split before it was linked into a binary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SplitObject {
    /// Its kernels' name, without the code object index.
    pub kernel_name: Option<String>,
    /// Positions of its wrappers in the binary.
    pub wrappers: Vec<usize>,
}

/// A wrapper of a split binary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SplitWrapper {
    /// Code object index.
    pub index: u32,
    /// Address of the wrapper.
    pub address: u64,
}

/// Why a binary has no device code to split off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NoDeviceCode {
    /// The reason.
    pub reason: elf::NoDeviceCode,
    /// The reason in words.
    pub explanation: String,
}

pub(super) fn inspect(linked: Linked) -> Result<Content, Error> {
    Ok(match &linked.code {
        DeviceCode::Fat(fat) => Content::FatBinary(fat_binary(&linked, fat)?),
        DeviceCode::Split(wrappers) => Content::SplitBinary(split_binary(&linked, wrappers)?),
        DeviceCode::None(reason) => Content::HostBinary(NoDeviceCode {
            reason: *reason,
            explanation: reason.to_string(),
        }),
    })
}

// serde requires this signature.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn fat_binary(linked: &Linked, fat: &elf::FatBinary) -> Result<FatBinary, Error> {
    let mut wrappers = Vec::new();
    let mut totals: BTreeMap<TargetId, (usize, u64)> = BTreeMap::new();
    for (wrapper, bundle) in fat.wrappers.iter().zip(linked.bundles(&fat.wrappers)) {
        let bundle = bundle?;
        for entry in &bundle.entries {
            if let Some(target) = entry.id.target() {
                let total = totals.entry(target.clone()).or_default();
                *total = (total.0 + 1, total.1.saturating_add(entry.size));
            }
        }
        wrappers.push(FatWrapper {
            index: wrapper.co_index as usize,
            bundle_offset: wrapper.bundle_offset,
            bundle: Bundle::from(&bundle),
        });
    }
    let total = |(target, (code_objects, size)): (TargetId, _)| TargetTotal {
        target: target.to_string(),
        code_objects,
        size,
    };
    Ok(FatBinary {
        section_size: fat.size(),
        wrappers,
        split_before: fat.split_before.len(),
        targets: totals.into_iter().map(total).collect(),
    })
}

fn split_binary(linked: &Linked, wrappers: &[elf::SplitWrapper]) -> Result<SplitBinary, Error> {
    let path = &linked.path;
    let groups = linked.markers()?;
    let mut kpacks = Kpacks::default();
    let mut code_objects: Vec<usize> = Vec::new();
    let mut other_builds: Vec<PathBuf> = Vec::new();
    let mut objects = Vec::new();
    for group in &groups {
        let of_group = find_kpacks(path, &group.marker)?;
        for kpack in of_group.files {
            let count = count_code_objects(&kpack, group.marker.kernel_name.as_deref());
            if is_of_another_build(&kpack, &group.marker) && !other_builds.contains(&kpack.path) {
                other_builds.push(kpack.path.clone());
            }
            match kpacks.files.iter().position(|known| *known == kpack) {
                Some(known) => code_objects[known] += count,
                None => {
                    kpacks.files.push(kpack);
                    code_objects.push(count);
                }
            }
        }
        for manifest in of_group.manifests {
            if !kpacks.manifests.contains(&manifest) {
                kpacks.manifests.push(manifest);
            }
        }
        if groups.len() > 1 {
            objects.push(SplitObject {
                kernel_name: group.marker.kernel_name.clone(),
                wrappers: group.wrappers.iter().map(|w| w.position as usize).collect(),
            });
        }
    }
    let mut names: Vec<&Option<String>> = groups.iter().map(|g| &g.marker.kernel_name).collect();
    names.dedup();
    let kernel_name = match names.as_slice() {
        [Some(name)] => Some(name.clone()),
        _ => None,
    };
    let mut kpack_search_paths: Vec<String> = Vec::new();
    for search_path in groups.iter().flat_map(|g| &g.marker.kpack_search_paths) {
        if !kpack_search_paths.contains(search_path) {
            kpack_search_paths.push(search_path.clone());
        }
    }
    let wrapper = |wrapper: &elf::SplitWrapper| SplitWrapper {
        index: wrapper.co_index,
        address: wrapper.address,
    };
    Ok(SplitBinary {
        prefix: kernel_name
            .as_deref()
            .and_then(|name| prefix_of(path, name)),
        kernel_name,
        kpack_search_paths,
        objects,
        wrappers: wrappers.iter().map(wrapper).collect(),
        kpacks,
        other_builds,
        code_objects,
    })
}

/// Whether an archive is readable, but from another build than the marker's binary.
fn is_of_another_build(kpack: &Kpack, marker: &Marker) -> bool {
    let (Ok(archive), Some(name)) = (open_archive(&kpack.path), &marker.kernel_name) else {
        return false;
    };
    !marker.accepts(&kpack.target, archive.toc().code_id(name, &kpack.target))
}

/// Number of code objects named `kernel_name` in an archive; 0 if it is unreadable.
fn count_code_objects(kpack: &Kpack, kernel_name: Option<&str>) -> usize {
    let Ok(archive) = open_archive(&kpack.path) else {
        return 0;
    };
    let kernels = archive.toc().kernels.iter();
    let own = kernels.filter(|(name, targets)| {
        Some(KernelName::parse(name).binary) == kernel_name && targets.contains_key(&kpack.target)
    });
    own.count()
}
