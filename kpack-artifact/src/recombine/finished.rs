//! Finds the components that an earlier run finished: from shards with the same digests, by the same
//! configuration.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kpack_format::digest::{hex, sha256};
use serde::{Deserialize, Serialize};
use serde_json::json;
use walkdir::WalkDir;

use super::published::Indexes;
use super::shards::Shards;
use super::{Artifact, Options};
use crate::classify::walk_error;
use crate::output::{EntrySource, Output};
use crate::{manifest_txt, mark, names};
use kpack_core::Error;
use kpack_core::publish::{Directory, StagedFile};

/// What a run notes about a component when its artifacts have their names.
#[derive(Serialize, Deserialize)]
struct Note {
    format_version: u32,
    key: String,
    artifacts: Vec<Noted>,
}

#[derive(Serialize, Deserialize)]
struct Noted {
    name: String,
    group: Option<String>,
    display_name: Option<String>,
    shards: BTreeSet<String>,
    targets: Vec<String>,
    files: u64,
    size: u64,
}

const VERSION: u32 = 1;

/// Identifies what a component is made of. `None` if a shard that has it has no index: only that says what its
/// files are, without reading them.
pub(super) fn key(
    component: &str,
    options: &Options,
    shards: &Shards,
    indexes: &Indexes,
) -> Option<String> {
    let mut parts = Vec::new();
    for (shard, _) in shards.of(component) {
        let entries = indexes.get(shard)?.artifacts.iter();
        let own = entries.filter(|entry| entry.component == component);
        let own: Vec<_> = own
            .map(|entry| (entry.artifact(), &entry.sha256, &entry.databases))
            .collect();
        parts.push(json!([shard, own]));
    }
    let groups = options.configuration.groups_of(component).iter();
    let groups: Vec<_> = groups
        .map(|group| {
            let targets = group.architectures.iter().map(ToString::to_string);
            json!([group.name, group.display_name, Vec::from_iter(targets)])
        })
        .collect();
    // A later version may merge differently.
    let all = json!([
        env!("CARGO_PKG_VERSION"),
        component,
        format!("{:?}", options.configuration.validation),
        groups,
        parts
    ]);
    Some(hex(&sha256(all.to_string().as_bytes())))
}

fn path(output: &Path, component: &str) -> PathBuf {
    output.join(format!(".{component}.kpack-merged"))
}

/// The artifacts of a component that is finished; `None` if it has to be made.
pub(super) fn read(
    options: &Options,
    component: &str,
    key: &str,
) -> Result<Option<Vec<Artifact>>, Error> {
    let Ok(bytes) = fs::read(path(&options.output_dir, component)) else {
        return Ok(None);
    };
    // Whatever is wrong with it, the component is made again.
    let note: Option<Note> = serde_json::from_slice(&bytes).ok();
    let Some(note) = note.filter(|note| note.format_version == VERSION && note.key == key) else {
        return Ok(None);
    };
    let mut artifacts = Vec::new();
    for noted in note.artifacts {
        let root = options.output_dir.join(&noted.name);
        if !mark::is_marked(&root) {
            return Ok(None);
        }
        let output = output_of(&root)?;
        if (output.files, output.size) != (noted.files, noted.size) {
            return Ok(None);
        }
        let targets = noted.targets.iter().filter_map(|name| names::target(name));
        artifacts.push(Artifact {
            component: component.to_owned(),
            targets: targets.collect(),
            name: noted.name,
            group: noted.group,
            display_name: noted.display_name,
            shards: noted.shards,
            files: noted.files,
            size: noted.size,
            output,
        });
    }
    Ok(Some(artifacts))
}

/// An artifact that is there, as if it were to be written: other artifacts are compared with it.
fn output_of(root: &Path) -> Result<Output, Error> {
    let mut output = Output::new(root, mark::databases(root)?);
    let mut known = BTreeSet::new();
    output.prefixes = manifest_txt::read(root)?;
    for prefix in output.prefixes.clone() {
        for entry in WalkDir::new(root.join(prefix)) {
            let entry = entry.map_err(|e| walk_error(root, e))?;
            let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
            let (path, from) = (path.to_owned(), entry.path().to_owned());
            if entry.file_type().is_dir() {
                output.entries.insert(path, EntrySource::Directory(from));
                continue;
            }
            let metadata = entry.metadata().map_err(|e| walk_error(root, e))?;
            output.files += 1;
            let is_first = metadata.nlink() == 1 || known.insert((metadata.dev(), metadata.ino()));
            if metadata.is_file() && is_first {
                output.size += metadata.len();
            }
            output
                .entries
                .insert(path, EntrySource::Copy(from, Vec::new()));
        }
    }
    Ok(output)
}

/// Forgets that a component is finished, before its artifacts are replaced.
pub(super) fn forget(output: &Path, component: &str) -> Result<(), Error> {
    let path = path(output, component);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(&path, "remove", error))
        }
        Err(_) => Ok(()),
        Ok(()) => Directory::of(&path)?.sync(),
    }
}

/// Notes that a component is finished.
pub(super) fn note(
    output: &Path,
    component: &str,
    key: &str,
    artifacts: &[&Artifact],
) -> Result<(), Error> {
    let artifacts = artifacts.iter().map(|artifact| Noted {
        name: artifact.name.clone(),
        group: artifact.group.clone(),
        display_name: artifact.display_name.clone(),
        shards: artifact.shards.clone(),
        targets: artifact.targets.iter().map(ToString::to_string).collect(),
        files: artifact.files,
        size: artifact.size,
    });
    let note = Note {
        format_version: VERSION,
        key: key.to_owned(),
        artifacts: artifacts.collect(),
    };
    let path = path(output, component);
    let bytes = serde_json::to_vec(&note).unwrap_or_default();
    let (staged, ()) = StagedFile::write(&path, |staged| {
        let written = staged.file().write_all(&bytes);
        written.map_err(|e| Error::io(&path, "write", e))
    })?;
    staged.commit().map(drop)
}
