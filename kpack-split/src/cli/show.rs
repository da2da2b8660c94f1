//! `kpack show`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::output::{self, Text, count, size};
use kpack_format::marker::of_another_build;

use crate::Error;
use crate::inspect::{
    self, Archive, Bundle, CodeObject, Content, FatBinary, Manifest, SplitBinary, Unlinked,
};
use crate::object_file::is_object;

/// Show what a file is
///
/// Prints the wrappers, bundles and targets of a fat binary, and the marker and archives of a split
/// binary. Also describes archives, manifests, offload bundles, code objects, objects and static
/// libraries.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// File
    file: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let inspection = inspect::inspect(&arguments.file)?;
    if arguments.json {
        output::json(&inspection)?;
        return Ok(ExitCode::SUCCESS);
    }
    let what = match &inspection.content {
        Content::FatBinary(_) => "fat binary",
        Content::SplitBinary(_) => "split binary",
        Content::HostBinary(_) => "host binary",
        Content::Unlinked(unlinked) if unlinked.static_library => "static library",
        Content::Unlinked(_) => "relocatable object",
        Content::Archive(_) => "archive",
        Content::Manifest(_) => "manifest",
        Content::Bundle(_) => "offload bundle",
        Content::CodeObject(_) => "code object",
    };
    let mut text = Text::default();
    text.line(format_args!(
        "{}: {what}, {}",
        inspection.path.display(),
        size(inspection.size)
    ));
    match &inspection.content {
        Content::FatBinary(fat) => fat_binary(fat, &mut text),
        Content::SplitBinary(split) => split_binary(split, &mut text),
        Content::HostBinary(host) => text.line(&host.explanation),
        Content::Unlinked(unlinked) => objects(unlinked, &mut text),
        Content::Archive(archive) => archive_text(archive, &mut text),
        Content::Manifest(manifest) => manifest_text(manifest, &mut text),
        Content::Bundle(bundle) => bundle_text(bundle, &mut text),
        Content::CodeObject(code_object) => code_object_text(code_object, &mut text),
    }
    text.write()?;
    Ok(ExitCode::SUCCESS)
}

fn fat_binary(fat: &FatBinary, text: &mut Text) {
    let totals = fat.targets.iter().map(|total| {
        vec![
            total.target.clone(),
            total.code_objects.to_string(),
            size(total.size),
        ]
    });
    let wrappers = fat.wrappers.iter().map(|wrapper| {
        let bundle = &wrapper.bundle;
        let targets = bundle
            .entries
            .iter()
            .filter_map(|entry| entry.target.as_deref());
        vec![
            wrapper.index.to_string(),
            format!("{:#x}", wrapper.bundle_offset),
            bundle.format.clone(),
            size(bundle.size),
            bundle.uncompressed_size.map_or_else(String::new, size),
            targets.collect::<Vec<_>>().join(" "),
        ]
    });
    text.line(format_args!(
        "{} of device code, {}",
        size(fat.section_size),
        match fat.split_before {
            0 => count(fat.wrappers.len() as u64, "wrapper"),
            more => format!(
                "{}, and {more} in objects that were split before the link",
                count(fat.wrappers.len() as u64, "wrapper")
            ),
        },
    ));
    text.table(2, &["target", ">code objects", ">size"], totals);
    let heading = [
        ">wrapper",
        ">file offset",
        "bundle",
        ">size",
        ">uncompressed",
        "targets",
    ];
    text.table(2, &heading, wrappers);
}

fn split_binary(split: &SplitBinary, text: &mut Text) {
    text.line(count(split.wrappers.len() as u64, "wrapper"));
    match &split.kernel_name {
        Some(name) => text.line(format_args!("kernels: {name}#0 onwards")),
        None if split.objects.is_empty() => {
            text.line("kernels: unnamed (early form of the marker)");
        }
        None => {
            text.line("kernels of objects that were split before the link:");
            let rows = split.objects.iter().map(|object| {
                let name = object.kernel_name.clone();
                let wrappers = object.wrappers.iter().map(usize::to_string);
                vec![name.unwrap_or_default(), Vec::from_iter(wrappers).join(" ")]
            });
            text.table(2, &["object", "wrappers"], rows);
        }
    }
    for path in &split.kpack_search_paths {
        text.line(format_args!("searches: {path}"));
    }
    let of_object = split.kernel_name.as_deref().is_none_or(is_object);
    match &split.prefix {
        Some(prefix) => text.line(format_args!("install prefix: {}", prefix.display())),
        None if of_object => {}
        None => text.line("install prefix: unknown (the file is not where it was installed)"),
    }
    let rows = split
        .kpacks
        .files
        .iter()
        .zip(&split.code_objects)
        .map(|(kpack, found)| {
            vec![
                kpack.target.clone(),
                kpack.path.display().to_string(),
                kpack.size.map_or_else(|| "missing".to_owned(), size),
                found.to_string(),
            ]
        });
    if split.kpacks.files.is_empty() {
        return text.line("no archives found");
    }
    text.table(2, &["target", "archive", ">size", ">code objects"], rows);
    let binary = split.kernel_name.as_deref().unwrap_or("this binary");
    for archive in &split.other_builds {
        let what = of_another_build(binary);
        text.line(format_args!("{}: {what}", archive.display()));
    }
}

fn objects(unlinked: &Unlinked, text: &mut Text) {
    let total: u64 = unlinked
        .device_objects
        .iter()
        .map(|object| object.device_bytes)
        .sum();
    let device = match unlinked.device_objects.len() {
        0 => "no device code".to_owned(),
        _ if unlinked.device_objects.iter().all(|o| o.has_wrappers) => format!(
            "{} of device code, which is split before the link",
            size(total)
        ),
        _ => format!(
            "{} of device code, some without wrappers (-fgpu-rdc), which is split in the linked binary",
            size(total)
        ),
    };
    if !unlinked.static_library {
        return text.line(device);
    }
    let members = count(unlinked.members as u64, "member");
    if unlinked.device_objects.is_empty() {
        return text.line(format_args!("{members}, {device}"));
    }
    let rows = unlinked.device_objects.iter().map(|object| {
        let member = object.member.clone();
        vec![member.unwrap_or_default(), size(object.device_bytes)]
    });
    text.line(format_args!("{members}, {device}"));
    text.table(2, &["member", ">device code"], rows);
}

fn archive_text(archive: &Archive, text: &mut Text) {
    text.line(format_args!(
        "{} for {}, {}",
        archive.group_name,
        archive.targets.join(", "),
        archive.compression_scheme
    ));
    text.line(format_args!(
        "{}, {} stored: {} -> {}",
        count(archive.kernels.len() as u64, "kernel"),
        count(archive.stored_objects as u64, "code object"),
        size(archive.original_size),
        size(archive.stored_size)
    ));
}

fn manifest_text(manifest: &Manifest, text: &mut Text) {
    let rows = manifest.kpacks.iter().map(|kpack| {
        vec![
            kpack.target.clone(),
            kpack.filename.clone(),
            size(kpack.size),
            kpack.kernel_count.to_string(),
            if kpack.present { "present" } else { "missing" }.to_owned(),
        ]
    });
    text.line(format_args!(
        "{}, in {}",
        manifest.component_name,
        if manifest.prefix.is_empty() {
            "."
        } else {
            &manifest.prefix
        }
    ));
    if let Some(hint) = &manifest.install_hint {
        text.line(format_args!("install hint: {hint}"));
    }
    let heading = ["target", "archive", ">size", ">kernels", "archive is"];
    text.table(2, &heading, rows);
}

fn bundle_text(bundle: &Bundle, text: &mut Text) {
    let rows = bundle
        .entries
        .iter()
        .map(|entry| vec![entry.id.clone(), size(entry.size)]);
    let uncompressed = bundle.uncompressed_size;
    let uncompressed = uncompressed.map_or_else(String::new, |bytes| {
        format!(", {} uncompressed", size(bytes))
    });
    text.line(format_args!("{}{uncompressed}", bundle.format));
    text.table(2, &["entry", ">size"], rows);
}

fn code_object_text(code_object: &CodeObject, text: &mut Text) {
    let target = code_object
        .target
        .as_deref()
        .unwrap_or("an unknown processor");
    let version = match code_object.code_object_version {
        Some(version) => format!("code object version {version}"),
        None => format!("ABI version {}", code_object.abi_version),
    };
    text.line(format_args!(
        "for {target}, {version}, e_flags {:#x}",
        code_object.flags
    ));
}
