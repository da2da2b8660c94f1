//! The JSON of `kpack show` and `kpack list`. It is an interface; the types it is made from are
//! not.

use std::path::{Path, PathBuf};

use kpack_format::archive::TocEntry;
use kpack_format::code_object::CodeObject;
use kpack_format::digest::hex;
use kpack_format::manifest::Manifest;
use kpack_format::offload_binary::OffloadImage;
use kpack_format::offload_bundle::Bundle;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{
    Archive, Content, FatBinary, Inspection, SplitBinary, code_object_version, is_present,
};
use kpack_build::internal::Unlinked;
use kpack_format::TargetId;
use kpack_split::elf::{NoDeviceCode, SplitWrapper, Wrapper};
use kpack_split::input::Kpack;

/// What is common to all files.
#[derive(Serialize)]
struct Common<'a> {
    #[serde(serialize_with = "kpack_core::lossy::path")]
    path: &'a Path,
    size: u64,
    kind: &'static str,
    #[serde(flatten)]
    content: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    offload_images: Vec<Value>,
}

impl Serialize for Inspection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, content) = match &self.content {
            Content::FatBinary(fat) if fat.joined.is_some() => ("joined-binary", fat_binary(fat)),
            Content::FatBinary(fat) => ("fat-binary", fat_binary(fat)),
            Content::SplitBinary(split) => ("split-binary", split_binary(split)),
            Content::HostBinary(reason) => ("host-binary", no_device_code(*reason)),
            Content::Unlinked(objects) => ("unlinked", unlinked(objects)),
            Content::Archive(found) => ("archive", archive(found)),
            Content::Manifest(listed) => ("manifest", manifest(&self.path, listed)),
            Content::Bundle(found) => ("bundle", bundle(found)),
            Content::CodeObject(found, kernels) => ("code-object", code_object(found, *kernels)),
            Content::OffloadBinary => ("offload-binary", json!({})),
        };
        let offload_images = self.images.iter().map(offload_image).collect();
        let all = Common { path: &self.path, size: self.size, kind, content, offload_images };
        all.serialize(serializer)
    }
}

impl Serialize for Archive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        archive(self).serialize(serializer)
    }
}

fn fat_binary(fat: &FatBinary) -> Value {
    let wrapper = |(wrapper, found): &(Wrapper, Bundle)| {
        json!({
            "index": wrapper.co_index,
            "bundle_offset": wrapper.bundle_offset,
            "bundle": bundle(found),
        })
    };
    let target = |(target, (code_objects, size)): (&TargetId, _)| json!({"target": target.to_string(), "code_objects": code_objects, "size": size});
    let mut json = json!({
        "section_size": fat.section_size,
        "wrappers": fat.wrappers.iter().map(wrapper).collect::<Vec<Value>>(),
    });
    if fat.split_before > 0 {
        json["split_before"] = fat.split_before.into();
    }
    json["targets"] = fat.targets().into_iter().map(target).collect();
    if let Some(marker) = &fat.joined {
        json["joined"] = json!({
            "kernel_name": marker.kernel_name.as_deref().unwrap_or_default(),
            "kpack_search_paths": marker.kpack_search_paths,
        });
    }
    json
}

fn split_binary(split: &SplitBinary) -> Value {
    let mut json = json!({
        "kernel_name": split.kernel_name(),
        "kpack_search_paths": split.search_paths(),
    });
    let objects = split.objects();
    if !objects.is_empty() {
        let object = |(name, wrappers)| json!({"kernel_name": name, "wrappers": wrappers});
        json["objects"] = objects.into_iter().map(object).collect();
    }
    let wrapper = |w: &SplitWrapper| json!({"index": w.co_index, "address": w.address});
    let file = |kpack: &Kpack| {
        json!({
            "target": kpack.target,
            "path": kpack.path.to_string_lossy(),
            "size": kpack.size,
            "listed": kpack.listed,
            "found_through": kpack.rule.name(),
        })
    };
    let text = |path: &PathBuf| Value::from(path.to_string_lossy());
    json["prefix"] = split.prefix.as_ref().map_or(Value::Null, text);
    json["wrappers"] = split.wrappers.iter().map(wrapper).collect();
    json["files"] = split.kpacks.files.iter().map(file).collect();
    json["manifests"] = split.kpacks.manifests.iter().map(text).collect();
    if !split.kept.is_empty() {
        let kept = |(wrapper, found): &(Wrapper, Bundle)| json!({"index": wrapper.co_index, "bundle": bundle(found)});
        json["kept"] = split.kept.iter().map(kept).collect();
    }
    if !split.other_builds.is_empty() {
        json["other_builds"] = split.other_builds.iter().map(text).collect();
    }
    json["code_objects"] = json!(split.code_objects);
    json
}

fn no_device_code(reason: NoDeviceCode) -> Value {
    let name = match reason {
        NoDeviceCode::Absent => "absent",
        NoDeviceCode::DebugFile => "debug-file",
        NoDeviceCode::NoWrappers => "no-wrappers",
    };
    json!({"reason": name, "explanation": reason.to_string()})
}

fn unlinked(unlinked: &Unlinked) -> Value {
    let objects = unlinked
        .device_objects
        .iter()
        .map(|object| json!({"member": object.member, "device_bytes": object.device_bytes}));
    json!({
        "static_library": unlinked.static_library,
        "members": unlinked.members,
        "device_objects": objects.collect::<Vec<Value>>(),
    })
}

fn archive(archive: &Archive) -> Value {
    let kernel = |(kernel, target, entry): (&str, &str, &TocEntry)| {
        let (stored_size, shared_by) = archive.stored[&entry.ordinal];
        let mut json = json!({
            "name": kernel,
            "target": target,
            "original_size": entry.original_size,
            "stored_size": stored_size,
            "ordinal": entry.ordinal,
            "shared_by": shared_by,
        });
        if let Some(kind) = &entry.kind {
            json["type"] = json!(kind);
        }
        // JSON lacks some of MessagePack's types.
        let metadata = entry.metadata.as_deref().map(rmp_serde::from_slice);
        if let Some(Ok(metadata)) = metadata {
            json["metadata"] = metadata;
        }
        json
    };
    let toc = &archive.toc;
    json!({
        "group_name": toc.group_name,
        "target": toc.gfx_arch_family,
        "targets": toc.gfx_arches,
        "compression_scheme": toc.scheme.as_str(),
        "checksums": toc.checksums.is_some(),
        "stored_objects": archive.stored.len(),
        "stored_size": archive.stored_size(),
        "original_size": archive.original_size(),
        "kernels": archive.entries().into_iter().map(kernel).collect::<Vec<Value>>(),
    })
}

fn manifest(path: &Path, manifest: &Manifest) -> Value {
    let kpacks = manifest.kpack_files.iter().map(|(target, file)| {
        json!({
            "target": target,
            "filename": file.filename,
            "size": file.size,
            "kernel_count": file.kernel_count,
            "blake3": file.checksum.as_ref().map(|digest| hex(digest)),
            "present": is_present(path, file),
        })
    });
    let mut json = json!({
        "component_name": manifest.component_name,
        "prefix": manifest.prefix,
    });
    if let Some(hint) = &manifest.install_hint {
        json["install_hint"] = json!(hint);
    }
    json["kpacks"] = kpacks.collect();
    json
}

fn bundle(bundle: &Bundle) -> Value {
    let entries = bundle.entries.iter().map(|entry| {
        let target = entry.id.target().map(ToString::to_string);
        json!({"id": entry.id.to_string(), "target": target, "size": entry.size})
    });
    json!({
        "format": bundle.format.to_string(),
        "size": bundle.size,
        "uncompressed_size": bundle.format.uncompressed_size(),
        "entries": entries.collect::<Vec<Value>>(),
    })
}

fn offload_image(image: &OffloadImage) -> Value {
    json!({
        "producer": image.producer,
        "kind": image.kind,
        "triple": image.triple,
        "arch": image.arch,
        "size": image.size,
    })
}

fn code_object(found: &CodeObject, kernels: Option<usize>) -> Value {
    json!({
        "target": found.target.as_ref().map(ToString::to_string),
        "flags": found.flags,
        "abi_version": found.abi_version,
        "code_object_version": code_object_version(found),
        "size": found.size,
        "kernel_count": kernels,
    })
}
