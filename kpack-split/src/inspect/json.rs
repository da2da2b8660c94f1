//! The JSON of `kpack show` and `kpack list`. It is an interface; the types it is made from are
//! not.

use std::path::{Path, PathBuf};

use kpack_format::archive::TocEntry;
use kpack_format::code_object::CodeObject;
use kpack_format::digest::hex;
use kpack_format::manifest::Manifest;
use kpack_format::offload_bundle::Bundle;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{
    Archive, Content, FatBinary, Inspection, SplitBinary, code_object_version, format_of,
    is_present,
};
use crate::elf::{NoDeviceCode, SplitWrapper, Wrapper};
use crate::input::Kpack;
use crate::input::unlinked::Unlinked;
use kpack_format::TargetId;

/// An object whose keys keep their order.
struct Object(Vec<(&'static str, Json)>);

/// A value, with such objects in it.
#[derive(Serialize)]
#[serde(untagged)]
enum Json {
    Value(Value),
    Object(Object),
    List(Vec<Object>),
}

impl Object {
    fn add(&mut self, key: &'static str, value: impl Into<Json>) {
        self.0.push((key, value.into()));
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<T: Into<Value>> From<T> for Json {
    fn from(value: T) -> Self {
        Self::Value(value.into())
    }
}

impl From<Object> for Json {
    fn from(object: Object) -> Self {
        Self::Object(object)
    }
}

impl FromIterator<Object> for Json {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        Self::List(objects.into_iter().collect())
    }
}

macro_rules! object {
    ($($key:literal: $value:expr),* $(,)?) => { Object(vec![$(($key, Json::from($value))),*]) };
}

impl Serialize for Inspection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, content) = match &self.content {
            Content::FatBinary(fat) => ("fat-binary", fat_binary(fat)),
            Content::SplitBinary(split) => ("split-binary", split_binary(split)),
            Content::HostBinary(reason) => ("host-binary", no_device_code(*reason)),
            Content::Unlinked(objects) => ("unlinked", unlinked(objects)),
            Content::Archive(found) => ("archive", archive(found)),
            Content::Manifest(listed) => ("manifest", manifest(&self.path, listed)),
            Content::Bundle(found) => ("bundle", bundle(found)),
            Content::CodeObject(found) => ("code-object", code_object(found)),
        };
        let mut all = object! {
            "path": self.path.to_string_lossy(),
            "size": self.size,
            "kind": kind,
        };
        all.0.extend(content.0);
        all.serialize(serializer)
    }
}

impl Serialize for Archive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        archive(self).serialize(serializer)
    }
}

fn fat_binary(fat: &FatBinary) -> Object {
    let wrapper = |(wrapper, found): &(Wrapper, Bundle)| {
        object! {
            "index": wrapper.co_index,
            "bundle_offset": wrapper.bundle_offset,
            "bundle": bundle(found),
        }
    };
    let target = |(target, (code_objects, size)): (&TargetId, _)| {
        object! {"target": target.to_string(), "code_objects": code_objects, "size": size}
    };
    let mut json = object! {
        "section_size": fat.section_size,
        "wrappers": fat.wrappers.iter().map(wrapper).collect::<Json>(),
    };
    if fat.split_before > 0 {
        json.add("split_before", fat.split_before);
    }
    let targets: Json = fat.targets().into_iter().map(target).collect();
    json.add("targets", targets);
    if let Some(marker) = &fat.joined {
        let joined = object! {
            "kernel_name": marker.kernel_name.clone().unwrap_or_default(),
            "kpack_search_paths": marker.kpack_search_paths.clone(),
        };
        json.add("joined", joined);
    }
    json
}

fn split_binary(split: &SplitBinary) -> Object {
    let mut json = object! {
        "kernel_name": split.kernel_name(),
        "kpack_search_paths": split.search_paths(),
    };
    let objects = split.objects();
    if !objects.is_empty() {
        let object = |(name, wrappers)| object! {"kernel_name": name, "wrappers": wrappers};
        let objects: Json = objects.into_iter().map(object).collect();
        json.add("objects", objects);
    }
    let wrapper = |w: &SplitWrapper| object! {"index": w.co_index, "address": w.address};
    let file = |kpack: &Kpack| {
        object! {
            "target": &*kpack.target,
            "path": kpack.path.to_string_lossy(),
            "size": kpack.size,
            "listed": kpack.listed,
        }
    };
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let list = |paths: &[PathBuf]| Vec::from_iter(paths.iter().map(text));
    json.0.extend(
        object! {
            "prefix": split.prefix.as_ref().map(text),
            "wrappers": split.wrappers.iter().map(wrapper).collect::<Json>(),
            "files": split.kpacks.files.iter().map(file).collect::<Json>(),
            "manifests": list(&split.kpacks.manifests),
        }
        .0,
    );
    if !split.other_builds.is_empty() {
        json.add("other_builds", list(&split.other_builds));
    }
    json.add("code_objects", &*split.code_objects);
    json
}

fn no_device_code(reason: NoDeviceCode) -> Object {
    let name = match reason {
        NoDeviceCode::Absent => "absent",
        NoDeviceCode::DebugFile => "debug-file",
        NoDeviceCode::NoWrappers => "no-wrappers",
    };
    object! {"reason": name, "explanation": reason.to_string()}
}

fn unlinked(unlinked: &Unlinked) -> Object {
    let objects = unlinked.device_objects.iter().map(|object| {
        object! {"member": object.member.as_deref(), "device_bytes": object.device_bytes}
    });
    object! {
        "static_library": unlinked.static_library,
        "members": unlinked.members,
        "device_objects": objects.collect::<Json>(),
    }
}

fn archive(archive: &Archive) -> Object {
    let kernel = |(kernel, target, entry): (&str, &str, &TocEntry)| {
        let (stored_size, shared_by) = archive.stored[&entry.ordinal];
        object! {
            "name": kernel,
            "target": target,
            "original_size": entry.original_size,
            "stored_size": stored_size,
            "ordinal": entry.ordinal,
            "shared_by": shared_by,
        }
    };
    let toc = &archive.toc;
    object! {
        "group_name": &*toc.group_name,
        "target": &*toc.gfx_arch_family,
        "targets": &*toc.gfx_arches,
        "compression_scheme": toc.scheme.as_str(),
        "checksums": toc.checksums.is_some(),
        "stored_objects": archive.stored.len(),
        "stored_size": archive.stored_size(),
        "original_size": archive.original_size(),
        "kernels": archive.entries().into_iter().map(kernel).collect::<Json>(),
    }
}

fn manifest(path: &Path, manifest: &Manifest) -> Object {
    let kpacks = manifest.kpack_files.iter().map(|(target, file)| {
        object! {
            "target": &**target,
            "filename": &*file.filename,
            "size": file.size,
            "kernel_count": file.kernel_count,
            "checksum": file.checksum.as_ref().map(|digest| hex(digest)),
            "present": is_present(path, file),
        }
    });
    let mut json = object! {
        "component_name": &*manifest.component_name,
        "prefix": &*manifest.prefix,
    };
    if let Some(hint) = &manifest.install_hint {
        json.add("install_hint", &**hint);
    }
    json.add("kpacks", kpacks.collect::<Json>());
    json
}

fn bundle(bundle: &Bundle) -> Object {
    let (format, uncompressed_size) = format_of(bundle);
    let entries = bundle.entries.iter().map(|entry| {
        let target = entry.id.target().map(ToString::to_string);
        object! {"id": entry.id.to_string(), "target": target, "size": entry.size}
    });
    object! {
        "format": format,
        "size": bundle.size,
        "uncompressed_size": uncompressed_size,
        "entries": entries.collect::<Json>(),
    }
}

fn code_object(found: &CodeObject) -> Object {
    object! {
        "target": found.target.as_ref().map(ToString::to_string),
        "flags": found.flags,
        "abi_version": found.abi_version,
        "code_object_version": code_object_version(found),
        "size": found.size,
    }
}
