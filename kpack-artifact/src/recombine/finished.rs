//! Finds the components that an earlier run finished: from shards with the same contents, by the same
//! configuration, and unchanged since.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kpack_core::platform::{MetadataExt, OsStrExt, OsStringExt};
use kpack_format::Sha256;
use kpack_format::digest::{Hasher, hex, sha256};
use kpack_format::target_names;
use serde::{Deserialize, Serialize};
use serde_json::json;
use walkdir::WalkDir;

use super::artifact::Artifact;
use super::inputs::Inputs;
use super::options::Options;
use super::shards::Shards;
use crate::output::{EntrySource, Output};
use crate::{manifest_txt, mark};
use kpack_core::files::digest;
use kpack_core::platform::shared_inode;
use kpack_core::publish::{Directory, StagedFile};
use kpack_core::{Error, Finding, Severity, ids, parallel};
use kpack_split::input::walk_error;

/// What a run notes about a component when its artifacts have their names.
#[derive(Serialize, Deserialize)]
struct Note {
    format_version: u32,
    key: String,
    artifacts: Vec<NotedArtifact>,
    findings: Vec<NotedFinding>,
}

#[derive(Serialize, Deserialize)]
struct NotedArtifact {
    name: String,
    group: Option<String>,
    display_name: Option<String>,
    shards: BTreeSet<String>,
    targets: Vec<String>,
    files: u64,
    size: u64,
    contents: String,
}

/// A warning or a note; what has errors is not finished.
#[derive(Serialize, Deserialize)]
struct NotedFinding {
    id: String,
    is_warning: bool,
    path: Option<PathBuf>,
    text: String,
    help: Option<String>,
}

const VERSION: u32 = 2;

/// What a component is made of, and what was found about it.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) key: String,
    pub(super) findings: Vec<Finding>,
}

/// A component that is there, and what was found when it was made.
pub(super) struct Finished {
    pub(super) artifacts: Vec<Artifact>,
    pub(super) findings: Vec<Finding>,
}

/// Identifies what a component is made of: what its artifacts contain, and the configuration. `None` if a shard that
/// has it has no index, so that no other run is expected, or cannot be read, which is reported where it is merged.
pub(super) fn key(
    component: &str,
    options: &Options,
    shards: &Shards,
    indexed: &BTreeSet<String>,
    inputs: &Inputs,
) -> Option<String> {
    let generic = shards.of(component);
    let generic = generic.filter_map(|(_, own)| own.generic.as_deref()).next();
    // Without a note it is not finished, so that it will be written.
    let will_write = !path(&options.output_dir, component).exists();
    let mut parts = Vec::new();
    for (shard, artifacts) in shards.of(component) {
        if !indexed.contains(shard) {
            return None;
        }
        let own = parallel::try_map(Vec::from_iter(artifacts.paths()), |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Of host files, those of one shard are taken.
            let is_output = artifacts.generic.as_deref() != Some(path) || generic == Some(path);
            let contents = contents(path, &|path| {
                if will_write && is_output {
                    inputs.digest_of_output(path)
                } else {
                    inputs.digest(path)
                }
            });
            Ok::<_, Error>((name, contents?))
        });
        parts.push((shard, own.ok()?));
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

/// Identifies what is in an artifact directory: the paths, kinds, modes and bytes of all entries, and which files are
/// one file with several names. `digest` reads a file.
pub(super) fn contents(
    root: &Path,
    digest: &(dyn Fn(&Path) -> Result<Sha256, Error> + Sync),
) -> Result<String, Error> {
    let mut first_names = HashMap::new();
    let mut entries = Vec::new();
    for entry in WalkDir::new(root).min_depth(1).sort_by_file_name() {
        let entry = entry.map_err(|e| walk_error(root, e))?;
        let metadata = entry.metadata().map_err(|e| walk_error(root, e))?;
        let path = entry.into_path();
        let first = match shared_inode(&metadata) {
            Some(inode) => first_names.entry(inode).or_insert(path.clone()).clone(),
            None => path.clone(),
        };
        entries.push((path, first, metadata));
    }
    let within = |path: &Path| {
        let path = path.strip_prefix(root).unwrap_or(path);
        path.as_os_str().as_bytes().to_owned()
    };
    let records = parallel::try_map(&entries, |(path, first, metadata)| {
        let content = if first != path {
            within(first)
        } else if metadata.is_file() {
            digest(path)?.to_vec()
        } else if metadata.is_symlink() {
            let target = fs::read_link(path).map_err(|e| Error::io(path, "read", e))?;
            target.into_os_string().into_vec()
        } else {
            Vec::new()
        };
        Ok::<_, Error>((within(path), metadata.mode(), first != path, content))
    })?;
    let mut hasher = Hasher::default();
    for (path, mode, is_further_name, content) in records {
        for bytes in [&path, &content] {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
        hasher.update(&mode.to_le_bytes());
        hasher.update(&[u8::from(is_further_name)]);
    }
    Ok(hex(&hasher.finish()))
}

fn path(output: &Path, component: &str) -> PathBuf {
    output.join(format!(".{component}.kpack-merged"))
}

/// The component, if it is finished. Whatever is wrong with the note or an artifact, the component is made again.
pub(super) fn read(options: &Options, component: &str, key: &str) -> Option<Finished> {
    let bytes = fs::read(path(&options.output_dir, component)).ok()?;
    let note: Note = serde_json::from_slice(&bytes).ok()?;
    if note.format_version != VERSION || note.key != key {
        return None;
    }
    let artifacts = note.artifacts.into_iter();
    let artifacts = artifacts.map(|noted| noted.read(options, component));
    let findings = note.findings.into_iter();
    let findings = findings.map(|noted| noted.read(&options.shards_dir));
    Some(Finished {
        artifacts: artifacts.collect::<Option<_>>()?,
        findings: findings.collect::<Option<_>>()?,
    })
}

impl NotedArtifact {
    /// `None` if it is not what was written.
    fn read(self, options: &Options, component: &str) -> Option<Artifact> {
        let root = options.output_dir.join(&self.name);
        if contents(&root, &digest).ok()? != self.contents {
            return None;
        }
        let targets = self.targets.iter().filter_map(|name| target_names::exact(name));
        Some(Artifact {
            component: component.to_owned(),
            targets: targets.collect(),
            name: self.name,
            group: self.group,
            display_name: self.display_name,
            shards: self.shards,
            files: self.files,
            size: self.size,
            output: output_of(&root).ok()?,
        })
    }
}

impl NotedFinding {
    /// Its path is noted relative to the shards, which may be somewhere else next time.
    fn new(finding: &Finding, shards: &Path) -> Self {
        let path = finding.path.as_deref();
        let path = path.map(|path| path.strip_prefix(shards).unwrap_or(path));
        Self {
            id: finding.id.to_string(),
            is_warning: finding.severity == Severity::Warning,
            path: path.map(|path| path.to_string_lossy().into_owned().into()),
            text: finding.text.clone(),
            help: finding.help.clone(),
        }
    }

    fn read(self, shards: &Path) -> Option<Finding> {
        let severity = if self.is_warning { Severity::Warning } else { Severity::Note };
        let mut finding = Finding::general(severity, ids::entry(&self.id)?.id, self.text);
        finding.path = self.path.map(|path| shards.join(path));
        finding.help = self.help;
        Some(finding)
    }
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
            let is_first = shared_inode(&metadata).is_none_or(|inode| known.insert(inode));
            if metadata.is_file() && is_first {
                output.size += metadata.len();
            }
            output.entries.insert(path, EntrySource::Copy(from, Vec::new()));
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

/// Notes that a component is finished: its artifacts, with what each contains.
pub(super) fn note<'a>(
    options: &Options,
    component: &str,
    made: &Made,
    artifacts: impl Iterator<Item = (&'a Artifact, String)>,
) -> Result<(), Error> {
    let artifacts = artifacts.map(|(artifact, contents)| NotedArtifact {
        name: artifact.name.clone(),
        group: artifact.group.clone(),
        display_name: artifact.display_name.clone(),
        shards: artifact.shards.clone(),
        targets: artifact.targets.iter().map(ToString::to_string).collect(),
        files: artifact.files,
        size: artifact.size,
        contents,
    });
    let findings = made.findings.iter();
    let note = Note {
        format_version: VERSION,
        key: made.key.clone(),
        artifacts: artifacts.collect(),
        findings: findings.map(|finding| NotedFinding::new(finding, &options.shards_dir)).collect(),
    };
    let path = path(&options.output_dir, component);
    let bytes = serde_json::to_vec(&note).unwrap_or_default();
    let (staged, ()) = StagedFile::write(&path, |staged| {
        let written = staged.file().write_all(&bytes);
        written.map_err(|e| Error::io(&path, "write", e))
    })?;
    staged.commit().map(drop)
}
