//! `kpack show`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::exit_codes::{Failed, exit_code};
use super::output::{self, Text, count, size};
use super::print::print;
use crate::trim;
use kpack_format::marker::of_another_build;
use kpack_format::offload_binary::OffloadImage;

use crate::inspect::{
    self, ArchiveDescription, BundleDescription, CodeObjectDescription, Content, FatDescription,
    Inspection, ManifestDescription, SplitDescription, UnlinkedDescription,
};
use kpack_artifact::sizes::debug_note;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_format::names::{is_archive, is_object};
use kpack_split::input::{Kpacks, LinkedBinary, walk, walk_error};

/// Show what a file is, or the files with device code in a directory
///
/// Prints the wrappers, bundles and targets of a fat binary, and the marker and archives of a split
/// binary. Also describes archives, manifests, offload bundles, code objects, objects and static
/// libraries, and names images for other offloading runtimes, such as OpenMP's.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// File or directory to describe
    file: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    output::note_ignored_variables();
    show(&arguments.file)
}

/// Shows a file or a directory.
pub(super) fn show(path: &Path) -> Result<ExitCode, Error> {
    if path.is_dir() {
        return directory(path);
    }
    file(&inspect::inspect(path)?)
}

/// Shows a file that was inspected.
pub(super) fn file(inspection: &Inspection) -> Result<ExitCode, Error> {
    if let Some(note) = note(inspection)? {
        output::complain_finding(&note);
    }
    if let Some(text) = trim::describe(inspection) {
        let trimmed = Finding::new(Severity::Note, ids::MISSING_TARGET, &inspection.path, text);
        output::complain_finding(&trimmed);
    }
    if print().json {
        output::json(inspection)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Content::Archive(_) = &inspection.content {
        match debug_note(&inspection.path) {
            Ok(Some(note)) => output::complain_finding(&note),
            Ok(None) => {}
            // The table of contents can be shown nevertheless.
            Err(error @ Error::Refused { .. }) => output::complain("warning", error.in_one_line()),
            Err(error) => return Err(error),
        }
    }
    let what = kind(&inspection.content);
    let mut text = Text::default();
    text.line(format_args!("{}: {what}, {}", inspection.path.display(), size(inspection.size)));
    match &inspection.content {
        Content::FatBinary(fat) | Content::JoinedBinary(fat) => fat_binary(fat, &mut text),
        Content::SplitBinary(split) => split_binary(split, &mut text),
        Content::HostBinary(host) => text.line(&host.explanation),
        Content::Unlinked(unlinked) => objects(unlinked, &mut text),
        Content::Archive(archive) => archive_text(archive, &mut text),
        Content::Manifest(manifest) => manifest_text(manifest, &mut text),
        Content::Bundle(bundle) => bundle_text(bundle, &mut text),
        Content::CodeObject(code_object) => code_object_text(code_object, &mut text),
        Content::OffloadBinary => {}
    }
    offload_images(inspection, &mut text);
    text.write()?;
    Ok(ExitCode::SUCCESS)
}

/// What is in the file besides its content.
fn note(inspection: &Inspection) -> Result<Option<Finding>, Error> {
    let note = |id, text: String| Finding::new(Severity::Note, id, &inspection.path, text);
    Ok(match &inspection.content {
        Content::FatBinary(_)
        | Content::JoinedBinary(_)
        | Content::SplitBinary(_)
        | Content::HostBinary(_) => {
            let text = LinkedBinary::open(&inspection.path)?.bundles_in_data()?;
            text.map(|text| note(ids::BUNDLES_IN_DATA, text))
        }
        Content::Unlinked(unlinked) if unlinked.thin => {
            let text = "a thin archive, which only lists its members; pass the members to see their device code";
            Some(note(ids::THIN_ARCHIVE, text.to_owned()))
        }
        _ => None,
    })
}

fn kind(content: &Content) -> &'static str {
    match content {
        Content::FatBinary(_) => "fat binary",
        Content::JoinedBinary(_) => "joined binary",
        Content::SplitBinary(_) => "split binary",
        Content::HostBinary(_) => "host binary",
        Content::Unlinked(unlinked) if unlinked.static_library => "static library",
        Content::Unlinked(_) => "relocatable object",
        Content::Archive(_) => "archive",
        Content::Manifest(_) => "manifest",
        Content::Bundle(_) => "offload bundle",
        Content::CodeObject(_) => "code object",
        Content::OffloadBinary => "offload binary",
    }
}

/// The files in a directory.
#[derive(Default)]
struct DirectoryInspection {
    /// Those with device code.
    files: Vec<Inspection>,
    /// Those that could not be read, and directories.
    failed: Vec<FailedFile>,
    /// The number of binaries for other hosts, or of a form that kpack does not read.
    unsupported: u64,
    /// The exit code.
    code: u8,
}

/// The output of `--json` for a file that could not be read.
#[derive(Serialize)]
struct FailedFile {
    #[serde(serialize_with = "kpack_core::lossy::path")]
    path: PathBuf,
    #[serde(flatten)]
    failed: Failed,
}

/// An entry of the list that `--json` prints.
#[derive(Serialize)]
#[serde(untagged)]
enum ListedFile<'a> {
    File(&'a Inspection),
    Failed(&'a FailedFile),
}

impl DirectoryInspection {
    /// Inspects all files, and complains of those that it cannot.
    fn read(path: &Path) -> Result<Self, Error> {
        let mut all = Self::default();
        for entry in walk(path) {
            match entry {
                Ok(entry) if entry.file_type().is_file() => all.add(entry.path())?,
                Ok(_) => {}
                Err(error) => {
                    let of = error.path().unwrap_or(path).to_owned();
                    let is_root = error.depth() == 0;
                    let error = walk_error(path, error);
                    if is_root {
                        return Err(error);
                    }
                    all.fail(&of, &error);
                }
            }
        }
        Ok(all)
    }

    fn add(&mut self, path: &Path) -> Result<(), Error> {
        match inspect::inspect(path) {
            Ok(file) if has_device_code(&file.content) || !file.images.is_empty() => {
                self.files.push(file);
            }
            Ok(_) => {}
            // The name says that it should be one; all other files may be anything.
            Err(error) if error.id() == ids::UNKNOWN_FILE && !is_archive(path) => {}
            Err(error) if error.id() == ids::UNSUPPORTED_BINARY => {
                self.unsupported += 1;
                if print().verbose {
                    output::complain("note", error.in_one_line());
                }
            }
            Err(error) if error.is_exhaustion() => return Err(error),
            Err(error) => self.fail(path, &error),
        }
        Ok(())
    }

    fn fail(&mut self, path: &Path, error: &Error) {
        output::complain_error(error);
        self.code = self.code.max(exit_code(error));
        self.failed.push(FailedFile { path: path.to_owned(), failed: Failed::from(error) });
    }

    /// The output of `--json`.
    fn json(&self) -> Vec<ListedFile<'_>> {
        let files = self.files.iter().map(ListedFile::File);
        files.chain(self.failed.iter().map(ListedFile::Failed)).collect()
    }
}

/// Prints a line for each file with device code in a directory, and what it has for each target.
fn directory(path: &Path) -> Result<ExitCode, Error> {
    let all = DirectoryInspection::read(path)?;
    if all.unsupported > 0 && !print().quiet && !print().verbose {
        let skipped = count(all.unsupported, "file");
        let text = "not 64-bit x86 or Arm binaries, or of a form that kpack does not read; --verbose lists them";
        output::complain("note", format_args!("skipped {skipped}: {text}"));
    }
    if print().json {
        output::json(&all.json())?;
    } else {
        directory_text(path, &all.files).write()?;
    }
    Ok(ExitCode::from(all.code))
}

fn directory_text(path: &Path, files: &[Inspection]) -> Text {
    let mut totals: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    let mut rows = Vec::new();
    for file in files {
        let targets = targets(file);
        let names = Vec::from_iter(targets.iter().map(|(target, _)| target.as_str())).join(" ");
        let shown = file.path.strip_prefix(path).unwrap_or(&file.path);
        let kind = kind(&file.content).to_owned();
        rows.push(vec![shown.display().to_string(), kind, size(file.size), names]);
        for (target, bytes) in targets {
            let total = totals.entry(target).or_default();
            *total = (total.0 + usize::from(bytes > 0), total.1 + bytes);
        }
    }
    let mut text = Text::default();
    text.line(format_args!(
        "{}: {} with device code",
        path.display(),
        count(files.len() as u64, "file")
    ));
    if !rows.is_empty() {
        text.table(2, &["file", "kind", ">size", "targets"], rows);
        let totals = totals
            .into_iter()
            .map(|(target, (files, bytes))| vec![target, files.to_string(), size(bytes)]);
        text.table(2, &["target", ">files", ">device code"], totals);
    }
    text
}

fn has_device_code(content: &Content) -> bool {
    match content {
        Content::HostBinary(_) => false,
        Content::Unlinked(unlinked) => !unlinked.device_objects.is_empty(),
        _ => true,
    }
}

/// The targets of a file, or of the files in a directory; files that cannot be read have none.
pub(super) fn targets_of(path: &Path) -> BTreeSet<String> {
    let files = walk(path).into_iter().filter_map(Result::ok);
    let files = files.filter(|entry| entry.path().is_file());
    let read = files.filter_map(|entry| inspect::inspect(entry.path()).ok());
    read.flat_map(|file| targets(&file)).map(|(target, _)| target).collect()
}

/// The targets that a file names, and how many bytes of device code it has for each.
fn targets(file: &Inspection) -> Vec<(String, u64)> {
    match &file.content {
        Content::FatBinary(fat) | Content::JoinedBinary(fat) => {
            fat.targets.iter().map(|total| (total.target.clone(), total.size)).collect()
        }
        Content::SplitBinary(split) => {
            split.kpacks.targets().map(|target| (target.to_owned(), 0)).collect()
        }
        Content::Manifest(manifest) => {
            manifest.kpacks.iter().map(|kpack| (kpack.target.clone(), 0)).collect()
        }
        Content::Archive(archive) => match archive.targets.as_slice() {
            [only] => vec![(only.clone(), file.size)],
            several => several.iter().map(|target| (target.clone(), 0)).collect(),
        },
        Content::Bundle(bundle) => {
            let entries = bundle.entries.iter();
            entries.filter_map(|entry| Some((entry.target.clone()?, entry.size))).collect()
        }
        Content::CodeObject(code_object) => {
            code_object.target.iter().map(|target| (target.clone(), file.size)).collect()
        }
        Content::HostBinary(_) | Content::Unlinked(_) | Content::OffloadBinary => Vec::new(),
    }
}

/// The images for other offloading runtimes.
pub(super) fn offload_images(inspection: &Inspection, text: &mut Text) {
    let rows = inspection.images.iter().map(|image| {
        let OffloadImage { producer, kind, triple, arch, .. } = image;
        vec![producer.clone(), kind.clone(), triple.clone(), arch.clone(), size(image.size)]
    });
    if !inspection.images.is_empty() {
        text.line(count(inspection.images.len() as u64, "offload image"));
        text.table(2, &["producer", "kind", "triple", "target", ">size"], rows);
    }
}

fn fat_binary(fat: &FatDescription, text: &mut Text) {
    let totals = fat
        .targets
        .iter()
        .map(|total| vec![total.target.clone(), total.code_objects.to_string(), size(total.size)]);
    let wrappers = fat.wrappers.iter().map(|wrapper| {
        let bundle = &wrapper.bundle;
        let targets = bundle.entries.iter().filter_map(|entry| entry.target.as_deref());
        vec![
            wrapper.index.to_string(),
            format!("{:#x}", wrapper.bundle_offset),
            bundle.format.clone(),
            bundle.size.map_or_else(String::new, size),
            bundle.uncompressed_size.map_or_else(String::new, size),
            Vec::from_iter(targets).join(" "),
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
    if let Some(joined) = &fat.joined {
        text.line(format_args!("split as: {}", joined.kernel_name));
        for path in &joined.kpack_search_paths {
            text.line(format_args!("other device code: {path}"));
        }
    }
    if !print().verbose {
        return;
    }
    let heading = [">wrapper", ">file offset", "bundle", ">size", ">uncompressed", "targets"];
    text.table(2, &heading, wrappers);
}

fn split_binary(split: &SplitDescription, text: &mut Text) {
    text.line(count(split.wrappers.len() as u64, "wrapper"));
    if !split.kept.is_empty() {
        let kept = split.kept.iter().filter_map(|wrapper| wrapper.bundle.size).sum();
        text.line(format_args!(
            "{} of SPIR-V and other device code, {}, stay in it",
            size(kept),
            count(split.kept.len() as u64, "wrapper")
        ));
    }
    let kernel_name = split.kernel_name.as_deref();
    match kernel_name {
        Some(name) => text.line(format_args!("kernels: {name}#0 onwards")),
        None if split.objects.is_empty() => {
            text.line("kernels: unnamed (early form of the marker)");
        }
        None => {
            text.line("kernels of objects that were split before the link:");
            let rows = split.objects.iter().map(|object| {
                let wrappers = object.wrappers.iter().map(u32::to_string);
                let name = object.kernel_name.clone().unwrap_or_default();
                vec![name, Vec::from_iter(wrappers).join(" ")]
            });
            text.table(2, &["object", "wrappers"], rows);
        }
    }
    if split.is_of_other_tool {
        text.line("split by another tool, such as ROCm's (rocm-kpack)");
    }
    for path in &split.search_paths {
        text.line(format_args!("searches: {path}"));
    }
    let of_object = kernel_name.is_none_or(is_object);
    match &split.prefix {
        Some(prefix) => text.line(format_args!("install prefix: {}", prefix.display())),
        None if of_object => {}
        None => text.line("install prefix: unknown (the file is not where it was installed)"),
    }
    let rows = split.kpacks.files.iter().zip(&split.code_objects).map(|(kpack, found)| {
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
    let through = Kpacks::found_through([&split.kpacks]);
    if let Some(through) = through.strip_prefix(", ") {
        text.line(through);
    }
    let binary = kernel_name.unwrap_or("this binary");
    for archive in &split.other_builds {
        let what = of_another_build(binary);
        text.line(format_args!("{}: {what}", archive.display()));
    }
}

fn objects(unlinked: &UnlinkedDescription, text: &mut Text) {
    // Images for other runtimes have a table of their own.
    let own =
        Vec::from_iter(unlinked.device_objects.iter().filter(|object| object.device_bytes > 0));
    let total: u64 = own.iter().map(|object| object.device_bytes).sum();
    let device = match own.len() {
        0 if unlinked.thin => "a thin archive, which only lists its members".to_owned(),
        0 => "no device code".to_owned(),
        _ if own.iter().all(|o| o.has_wrappers) => {
            format!("{} of device code, which is split before the link", size(total))
        }
        _ => format!(
            "{} of device code, some without wrappers (-fgpu-rdc), which is split in the linked binary",
            size(total)
        ),
    };
    if !unlinked.static_library {
        return text.line(device);
    }
    let members = count(unlinked.members as u64, "member");
    if own.is_empty() {
        return text.line(format_args!("{members}, {device}"));
    }
    let rows = own.iter().map(|object| {
        let member = object.member.clone();
        vec![member.unwrap_or_default(), size(object.device_bytes)]
    });
    text.line(format_args!("{members}, {device}"));
    text.table(2, &["member", ">device code"], rows);
}

fn archive_text(archive: &ArchiveDescription, text: &mut Text) {
    text.line(format_args!(
        "{} for {}, {}",
        archive.group_name,
        archive.targets.join(", "),
        archive.scheme
    ));
    text.line(totals(archive));
}

/// Describes the content of an archive.
pub(super) fn totals(archive: &ArchiveDescription) -> String {
    format!(
        "{}, {} stored: {} -> {}",
        count(archive.entries.len() as u64, "code object"),
        archive.stored_objects,
        size(archive.original_size),
        size(archive.stored_size)
    )
}

fn manifest_text(manifest: &ManifestDescription, text: &mut Text) {
    let rows = manifest.kpacks.iter().map(|file| {
        let state = if file.present { "present" } else { "missing" };
        vec![
            file.target.clone(),
            file.filename.clone(),
            size(file.size),
            file.kernel_count.to_string(),
            state.to_owned(),
        ]
    });
    let prefix = match manifest.prefix.as_str() {
        "" => ".",
        prefix => prefix,
    };
    text.line(format_args!("{}, in {prefix}", manifest.component_name));
    if let Some(hint) = &manifest.install_hint {
        text.line(format_args!("install hint: {hint}"));
    }
    let heading = ["target", "archive", ">size", ">code objects", "archive is"];
    text.table(2, &heading, rows);
}

fn bundle_text(bundle: &BundleDescription, text: &mut Text) {
    let rows = bundle.entries.iter().map(|entry| vec![entry.id.clone(), size(entry.size)]);
    let uncompressed = bundle
        .uncompressed_size
        .map_or_else(String::new, |bytes| format!(", {} uncompressed", size(bytes)));
    text.line(format_args!("{}{uncompressed}", bundle.format));
    text.table(2, &["entry", ">size"], rows);
}

fn code_object_text(code_object: &CodeObjectDescription, text: &mut Text) {
    let target = code_object.target.as_deref().unwrap_or("an unknown processor");
    let version = match code_object.code_object_version {
        Some(version) => format!("code object version {version}"),
        None => format!("ABI version {}", code_object.abi_version),
    };
    text.line(format_args!("for {target}, {version}, e_flags {:#x}", code_object.flags));
    if let Some(kernels) = code_object.kernel_count {
        text.line(count(kernels as u64, "kernel"));
    }
}
