//! `.kpack-trimmed`: what went from the files in a directory, so that others can say why there is no code for a GPU; and
//! while a run changes files, which ones, so that the next run can finish the work of a killed one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use kpack_core::files::with_slashes;
use kpack_core::publish::{Directory, write_output};
use kpack_core::words::list;
use kpack_core::{Error, Finding, ids};
use kpack_format::{Delivery, TargetId};
use serde::{Deserialize, Serialize};

/// The name of the note.
pub const NAME: &str = ".kpack-trimmed";

/// The largest note, in bytes.
const MAX_NOTE: u64 = 64 << 20;

/// What went. It has no times: trimming a tree twice gives the same bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The version of the format.
    format: u32,
    /// The GPUs whose code stayed, in the last run that changed something.
    kept: Vec<String>,
    /// The targets whose code went, and the files, relative to the note.
    removed: BTreeMap<String, BTreeSet<String>>,
    /// The names of each file that a run is changing. A complete run leaves none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    unfinished: BTreeSet<Vec<String>>,
}

/// What goes from a file.
#[derive(Debug, Clone)]
pub(super) struct Goes<'a> {
    /// All of its names.
    pub(super) names: &'a [PathBuf],
    pub(super) targets: BTreeSet<TargetId>,
    /// Whether the file itself stays.
    pub(super) stays: bool,
}

impl Note {
    /// The note in `directory`; `None` if there is none that can be read.
    fn read(directory: &Path) -> Option<Self> {
        let file = Directory::open(directory).ok()?.open_file(NAME.as_ref()).ok()??;
        let mut bytes = Vec::new();
        file.take(MAX_NOTE).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok().filter(|note: &Self| note.format == 1)
    }

    /// Removes what an interrupted run left of it.
    ///
    /// # Errors
    /// [`Error::Refused`] if something other than a file has its name.
    pub(super) fn prepare(directory: &Path) -> Result<(), Error> {
        let path = directory.join(NAME);
        if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let text = "not a regular file, but kpack writes what it trims here; remove it";
            return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, &path, text));
        }
        Directory::open(directory)?.remove_leftovers(&|stem| stem == NAME)
    }

    /// Adds what goes from files in `directory`; `kept` are the GPUs whose code stays.
    pub(super) fn add(directory: &Path, kept: &[String], goes: &[Goes<'_>]) -> Result<(), Error> {
        let names_in = |goes: &Goes<'_>| {
            let inside = |path: &PathBuf| path.strip_prefix(directory).ok().map(with_slashes);
            Vec::from_iter(goes.names.iter().filter_map(inside))
        };
        let goes = goes.iter().map(|goes| (goes, names_in(goes)));
        let goes = Vec::from_iter(goes.filter(|(_, names)| !names.is_empty()));
        if goes.is_empty() {
            return Ok(());
        }
        let before = Self::read(directory).unwrap_or_default();
        let mut note = Self { format: 1, kept: kept.to_owned(), ..before.clone() };
        for (goes, names) in goes {
            for target in &goes.targets {
                let files = note.removed.entry(target.to_string()).or_default();
                files.extend(names.iter().cloned());
            }
            if goes.stays {
                note.unfinished.insert(names);
            }
        }
        if note == before { Ok(()) } else { note.write(directory) }
    }

    /// The names of each file in `directory` that an earlier run may have changed before it was killed.
    pub(super) fn unfinished(directory: &Path) -> Vec<Vec<PathBuf>> {
        let files = Self::read(directory).unwrap_or_default().unfinished.into_iter();
        let below = |names: Vec<String>| names.iter().map(|name| directory.join(name)).collect();
        files.map(below).collect()
    }

    /// Notes that a run is complete.
    pub(super) fn finish(directory: &Path) -> Result<(), Error> {
        match Self::read(directory) {
            Some(note) if !note.unfinished.is_empty() => {
                Self { unfinished: BTreeSet::new(), ..note }.write(directory)
            }
            _ => Ok(()),
        }
    }

    fn write(&self, directory: &Path) -> Result<(), Error> {
        let path = directory.join(NAME);
        let text = serde_json::to_string_pretty(self);
        let text = text.map_err(|e| Error::io(&path, "write", e.into()))?;
        write_output(&path, |staged| {
            let written = staged.file().write_all(format!("{text}\n").as_bytes());
            written.map_err(|e| Error::io(&path, "write", e))
        })
    }
}

/// Adds to each finding of missing code for a target that it went, if it did. It remains a fault.
pub fn explain_all(findings: &mut [Finding]) {
    let missing = [ids::MISSING_TARGET, ids::MISSING_ARCHIVE];
    for finding in findings.iter_mut().filter(|finding| missing.contains(&finding.id)) {
        // The text may name other targets as well.
        let target = finding.details.target.as_deref().and_then(|target| target.parse().ok());
        let why = finding.path.as_deref().zip(target);
        if let Some(why) = why.and_then(|(path, target)| explain(path, &target)) {
            finding.text.push_str(&format!("; {why}"));
        }
    }
}

/// What went from the file at `path`: a sentence.
pub fn describe(path: &Path) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    let mut directories = path.ancestors().skip(1);
    directories.find_map(|directory| {
        let note = Note::read(directory)?;
        let inside = with_slashes(path.strip_prefix(directory).ok()?);
        let went = note.removed.iter().filter(|(_, files)| files.contains(&inside));
        let went = Vec::from_iter(went.map(|(target, _)| target));
        (!went.is_empty()).then(|| format!("`kpack trim` removed its code for {}", list(went)))
    })
}

/// Why the file at `path` has no code for `gpu`, if that went.
pub fn explain(path: &Path, gpu: &TargetId) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|directory| {
        let note = Note::read(directory)?;
        let inside = with_slashes(path.strip_prefix(directory).ok()?);
        let went = note.removed.iter().filter(|(target, files)| {
            let target = target.parse::<TargetId>();
            let is_for = target.is_ok_and(|target| target.may_be_taken_for(gpu, Delivery::AnyBundle));
            is_for && (inside.is_empty() || files.contains(&inside))
        });
        let went = Vec::from_iter(went.map(|(target, _)| target));
        (!went.is_empty()).then(|| {
            format!(
                "`kpack trim` removed the code for {} (it kept {}), says {}; installing the files again brings it back",
                list(went),
                list(&note.kept),
                directory.join(NAME).display()
            )
        })
    })
}
