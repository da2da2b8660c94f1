//! A manifest against the archives beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

use kpack_format::TargetId;
use kpack_format::manifest::KpackFile;

use super::archive::counted;
use super::{Options, Outcome, Report, Subject};
use crate::Error;
use crate::inspect::{digest, is_for, open, open_archive, read_manifest};

pub(super) fn verify(path: &Path, options: &Options, report: &mut Report) -> Result<(), Error> {
    let faults = report.count(Outcome::Fault);
    let manifest = match read_manifest(path) {
        Ok(manifest) => manifest,
        Err(Error::Refused { reason, .. }) => {
            report.fault(Subject::Manifest, path, reason.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let mut fault = |text: String| report.fault(Subject::Manifest, path, text);

    if path
        .file_stem()
        .is_none_or(|stem| stem != manifest.component_name.as_str())
    {
        fault(format!(
            "its `component_name` is `{}`",
            manifest.component_name
        ));
    }
    if let Err(reason) = prefix_fits(path, &manifest.prefix) {
        fault(reason);
    }
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut checked = 0;
    let mut skipped = 0;
    for (target, file) in &manifest.kpack_files {
        if *target != file.architecture {
            fault(format!(
                "lists {target} with `architecture` {}",
                file.architecture
            ));
        }
        let plain_name = Path::new(&file.filename).file_name();
        if plain_name != Some(file.filename.as_ref()) {
            fault(format!("`{}` for {target} is no file name", file.filename));
            continue;
        }
        if !options.wants(target) {
            skipped += 1;
            continue;
        }
        let archive = directory.join(&file.filename);
        checked += 1;
        match file_holds(&archive, &manifest.component_name, file) {
            Ok(reasons) => {
                for reason in reasons {
                    fault(format!("`{}` for {target} {reason}", file.filename));
                }
            }
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                fault(format!(
                    "promises `{}` for {target}, which is not there",
                    file.filename
                ));
            }
            Err(error) => return Err(error),
        }
    }
    for wanted in &options.targets {
        if !manifest.kpack_files.contains_key(&wanted.to_string()) {
            let there: Vec<&str> = manifest.kpack_files.keys().map(String::as_str).collect();
            fault(format!(
                "does not list {wanted}; it lists {}",
                there.join(", ")
            ));
        }
    }
    let listed: BTreeMap<&str, &str> = manifest
        .kpack_files
        .iter()
        .map(|(t, f)| (f.filename.as_str(), t.as_str()))
        .collect();
    let start = format!("{}_", manifest.component_name);
    for entry in fs::read_dir(directory).map_err(|e| Error::io(directory, "list", e))? {
        let entry = entry.map_err(|e| Error::io(directory, "list", e))?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let target = name
            .strip_prefix(&start)
            .and_then(|rest| rest.strip_suffix(".kpack"));
        // Others belong to a module whose name starts like this one's.
        let target = target.and_then(|target| target.parse::<TargetId>().ok());
        let ours = target.is_some_and(|target| is_for(&directory.join(name), &target));
        if ours && !listed.contains_key(name) {
            fault(format!("does not list `{name}`, which is beside it"));
        }
    }

    if report.count(Outcome::Fault) == faults {
        let limited = if skipped > 0 {
            format!(", {skipped} not asked for")
        } else {
            String::new()
        };
        let text = format!("{} as listed{limited}", counted(checked, "archive"));
        report.ok(Subject::Manifest, path, text);
    }
    Ok(())
}

/// Whether `prefix` is the directory that holds the manifest's own directory, as it would be in an
/// install prefix.
fn prefix_fits(manifest: &Path, prefix: &str) -> Result<(), String> {
    let claimed = Path::new(prefix);
    if claimed.is_absolute() {
        return Err(format!(
            "its `prefix` is the absolute path `{prefix}`; expected a directory in the install prefix"
        ));
    }
    if claimed
        .components()
        .any(|part| part == Component::ParentDir)
    {
        return Err(format!("its `prefix` `{prefix}` leaves the install prefix"));
    }
    let claimed: std::path::PathBuf = claimed
        .components()
        .filter(|part| *part != Component::CurDir)
        .collect();
    let place = fs::canonicalize(manifest).unwrap_or_else(|_| manifest.to_owned());
    let holder = place
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("/"));
    if holder.ends_with(&claimed) {
        Ok(())
    } else {
        Err(format!(
            "its `prefix` is `{prefix}`, but its directory stands in `{}`",
            holder.display()
        ))
    }
}

/// In what the archive at `path` is not what the manifest says; empty where it is.
fn file_holds(path: &Path, component: &str, file: &KpackFile) -> Result<Vec<String>, Error> {
    let mut reasons = Vec::new();
    let size = open(path)?
        .metadata()
        .map_err(|e| Error::io(path, "read", e))?
        .len();
    if size != file.size {
        return Ok(vec![format!("has {size} bytes; expected {}", file.size)]);
    }
    if let Some(expected) = file.checksum
        && digest(path)? != expected
    {
        reasons.push("has another SHA-256 than is listed".to_owned());
    }
    match open_archive(path) {
        Ok(archive) => {
            let toc = archive.toc();
            let count: u64 = toc
                .kernels
                .values()
                .map(|targets| targets.len() as u64)
                .sum();
            if count != file.kernel_count {
                reasons.push(format!(
                    "has {count} kernels; expected {}",
                    file.kernel_count
                ));
            }
            if toc.gfx_arch_family != file.architecture {
                reasons.push(format!("is an archive for {}", toc.gfx_arch_family));
            }
            if toc.group_name != component {
                reasons.push(format!("is an archive of `{}`", toc.group_name));
            }
        }
        Err(Error::Refused { reason, .. }) => reasons.push(format!("is damaged: {reason}")),
        Err(error) => return Err(error),
    }
    Ok(reasons)
}
