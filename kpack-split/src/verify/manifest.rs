//! A manifest against the archives beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path};

use kpack_format::manifest::Manifest;
use kpack_format::names::Group;

use super::archive::counted;
use super::{Context, Outcome, Report, Subject};
use crate::Error;
use crate::artifact::rules::not_as_listed;
use crate::inspect::{is_for, manifest_parts, read_manifest};

pub(super) fn verify(path: &Path, context: &Context<'_>, report: &mut Report) -> Result<(), Error> {
    let options = context.options;
    let faults = report.count(Outcome::Fault);
    let manifest = match read_manifest(path) {
        Ok(manifest) => manifest,
        Err(Error::Refused { reason, .. }) => {
            report.fault(Subject::Manifest, path, reason.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let directories = context.artifacts.places(directory);
    let name = manifest.component_name.as_str();
    let group = Group::from(name);
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = group.part_of(&file_name);
    let mut fault = |text: String| report.fault(Subject::Manifest, path, text);
    if !group.has_manifest(&file_name) {
        fault(format!("its `component_name` is `{name}`"));
    }
    // What the packages that are here have of the module, where it is in several.
    let mut here = BTreeSet::new();
    if part.is_some() {
        for directory in &directories {
            let whole = directory.join(group.manifest());
            for reason in differs_from_whole(&whole, &manifest)? {
                fault(reason);
            }
        }
    } else {
        for directory in directories.iter().filter(|directory| directory.is_dir()) {
            for (_, part) in manifest_parts(directory, &group)? {
                here.extend(part.kpack_files.into_keys());
            }
        }
    }
    let fits = match context.artifacts.prefix_around(path) {
        Some(prefix) => is_installed_prefix(path, &prefix, &manifest.prefix),
        None => prefix_fits(path, &manifest.prefix),
    };
    if let Err(reason) = fits {
        fault(reason);
    }
    let mut checked = 0;
    let mut skipped = 0;
    let mut elsewhere = Vec::new();
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
        let places = directories
            .iter()
            .map(|directory| directory.join(&file.filename));
        let own = directory.join(&file.filename);
        let archive = places
            .into_iter()
            .find(|place| place.exists())
            .unwrap_or(own);
        if options.targets.is_empty()
            && !here.is_empty()
            && !here.contains(target)
            && !archive.exists()
        {
            elsewhere.push(target.as_str());
            continue;
        }
        checked += 1;
        match not_as_listed(&archive, &manifest.component_name, file) {
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
    for wanted in options.targets.iter().filter(|_| part.is_none()) {
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
    // A part lists what one package has, the whole one everything.
    for directory in directories.iter().filter(|d| part.is_none() && d.is_dir()) {
        for entry in fs::read_dir(directory).map_err(|e| Error::io(directory, "list", e))? {
            let entry = entry.map_err(|e| Error::io(directory, "list", e))?;
            let file = entry.file_name();
            let Some(file) = file.to_str() else { continue };
            // Others belong to a module whose name starts like this one's.
            let target = group.target_of(file);
            let ours = target.is_some_and(|target| is_for(&entry.path(), &target));
            if ours && !listed.contains_key(file) {
                fault(format!("does not list `{file}`, which is beside it"));
            }
        }
    }

    if report.count(Outcome::Fault) == faults {
        let mut limited = String::new();
        if skipped > 0 {
            limited += &format!(", {skipped} not asked for");
        }
        if !elsewhere.is_empty() {
            limited += &format!("; {} in packages that are not here", elsewhere.join(", "));
        }
        let text = format!("{} as listed{limited}", counted(checked, "archive"));
        report.ok(Subject::Manifest, path, text);
    }
    Ok(())
}

/// What a part of a manifest says that the whole one at `path` does not.
fn differs_from_whole(path: &Path, part: &Manifest) -> Result<Vec<String>, Error> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let whole = match read_manifest(path) {
        Ok(whole) => whole,
        // That is a fault of its own.
        Err(Error::Refused { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut reasons = Vec::new();
    if whole.prefix != part.prefix {
        let (own, other) = (&part.prefix, &whole.prefix);
        reasons.push(format!(
            "its `prefix` is `{own}`, and `{other}` in `{name}`"
        ));
    }
    for (target, file) in &part.kpack_files {
        match whole.kpack_files.get(target) {
            Some(other) if other == file => {}
            Some(_) => reasons.push(format!("says other things of {target} than `{name}`")),
            None => reasons.push(format!("lists {target}, which `{name}` does not")),
        }
    }
    Ok(reasons)
}

/// Whether `claimed` is the path, in the install prefix at `prefix`, of what holds the manifest's
/// own directory. Elsewhere in an artifact directory, it would be a path of the build.
fn is_installed_prefix(manifest: &Path, prefix: &Path, claimed: &str) -> Result<(), String> {
    let real = fs::canonicalize(manifest).unwrap_or_else(|_| manifest.to_owned());
    let holder = real.parent().and_then(Path::parent);
    let within = holder.and_then(|holder| holder.strip_prefix(prefix).ok());
    match within {
        Some(within) if within == Path::new(claimed) => Ok(()),
        Some(within) => Err(format!(
            "its `prefix` is `{claimed}`; as installed it is `{}`",
            within.display()
        )),
        None => Err(format!(
            "it is not in a directory of the install prefix {}",
            prefix.display()
        )),
    }
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
