//! What lists installed files with their digests: `RECORD` of Python, and `conda-meta`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use kpack_core::finding::Finding;
use kpack_core::publish::{StagedFile, replace};
use kpack_core::{Error, Severity, files, ids};
use kpack_format::digest::hex;
use kpack_wheel::{Environment, Listed, update_record, within};
use serde_json::Value;

use super::tree::Given;
use super::{Outcome, Report};

/// The largest list, in bytes.
const MAX_LIST: u64 = 256 << 20;

/// What a run changed of the files that lists name.
pub(super) struct Changes<'a> {
    given: &'a [Given],
    complete: &'a BTreeSet<PathBuf>,
    changed: &'a BTreeSet<PathBuf>,
    unfinished: BTreeSet<&'a PathBuf>,
    went: BTreeSet<PathBuf>,
    digests: BTreeMap<PathBuf, ([u8; 32], u64)>,
}

impl<'a> Changes<'a> {
    /// `complete` are the files with code for the chosen GPUs only, `changed` those that this run wrote, `unfinished`
    /// those that an earlier one may have written before it was killed.
    pub(super) fn new(
        given: &'a [Given],
        complete: &'a BTreeSet<PathBuf>,
        changed: &'a BTreeSet<PathBuf>,
        unfinished: BTreeSet<&'a PathBuf>,
    ) -> Self {
        let (went, digests) = (BTreeSet::new(), BTreeMap::new());
        Self { given, complete, changed, unfinished, went, digests }
    }

    /// Corrects the lists among `names` for the files that a run changed, and for complete ones whose lists still have a
    /// larger size: an earlier run was killed between.
    pub(super) fn update(
        mut self,
        names: &[Vec<PathBuf>],
        report: &mut Report,
    ) -> Result<(), Error> {
        let went = report.files.iter().filter(|file| file.outcome == Outcome::Removed);
        self.went = went.map(|file| file.path.clone()).collect();
        for path in names.iter().flatten() {
            let directory = path.parent().unwrap_or(path);
            let is_in = |name: &str| directory.file_name() == Some(OsStr::new(name));
            let is_dist_info = directory.extension().is_some_and(|end| end == "dist-info");
            let extension = path.extension();
            let new = if is_dist_info && path.file_name() == Some(OsStr::new("RECORD")) {
                self.record(path, directory, report)
            } else if is_in("conda-meta") && extension == Some(OsStr::new("json")) {
                self.conda(path, directory, report)
            } else {
                continue;
            };
            if let Some(new) = new? {
                write(path, &new)?;
            }
        }
        Ok(())
    }

    /// What a list should say of the file `name`, relative to a directory in the environment `root`; it says that it has
    /// `size` bytes.
    fn of(
        &mut self,
        root: &Path,
        directory: &Path,
        name: &str,
        size: Option<u64>,
    ) -> Result<Listed, Error> {
        let Some(path) = within(root, directory, Path::new(name)) else {
            return Ok(Listed::Outside);
        };
        if self.went.contains(&path) {
            return Ok(Listed::Gone);
        }
        let is_given = self.given.iter().any(|given| path.starts_with(&given.0));
        let is_unfinished = self.unfinished.contains(&path);
        if !is_given || !self.complete.contains(&path) && !is_unfinished {
            return Ok(Listed::Same);
        }
        let found = fs::metadata(&path).map_err(|e| Error::io(&path, "read", e))?.len();
        // One that an earlier run wrote has its digest, unless that was killed before it could write the list.
        if !self.changed.contains(&path) && !is_unfinished && size.is_some_and(|size| size <= found)
        {
            return Ok(Listed::Same);
        }
        if let Some((digest, size)) = self.digests.get(&path) {
            return Ok(Listed::Changed(*digest, *size));
        }
        let digest = kpack_wheel::sha256(&path)?;
        self.digests.insert(path, (digest, found));
        Ok(Listed::Changed(digest, found))
    }

    fn record(
        &mut self,
        path: &Path,
        dist_info: &Path,
        report: &mut Report,
    ) -> Result<Option<Vec<u8>>, Error> {
        let directory = dist_info.parent().unwrap_or(dist_info);
        let root = Environment::around(directory).unwrap_or_else(|| directory.to_owned());
        let Some(bytes) = read(path, report)? else {
            return Ok(None);
        };
        let mut outside = BTreeSet::new();
        let new = update_record(path, &bytes, &mut |name, size| {
            let listed = self.of(&root, directory, name, size)?;
            if listed == Listed::Outside {
                outside.insert(name.to_owned());
            }
            Ok(listed)
        });
        refuse_outside(path, outside, report);
        match new {
            Err(error @ Error::Refused { .. }) => {
                let text = error.without_id();
                report.findings.push(Finding::new(Severity::Warning, error.id(), path, text));
                Ok(None)
            }
            new => new,
        }
    }

    fn conda(
        &mut self,
        path: &Path,
        meta: &Path,
        report: &mut Report,
    ) -> Result<Option<Vec<u8>>, Error> {
        let prefix = meta.parent().unwrap_or(meta);
        let Some(bytes) = read(path, report)? else {
            return Ok(None);
        };
        let Ok(mut value) = serde_json::from_slice::<Value>(&bytes) else {
            return Ok(None);
        };
        let mut outside = BTreeSet::new();
        let mut gone = BTreeSet::new();
        let mut is_changed = false;
        let entries = value.pointer_mut("/paths_data/paths").and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            let Some(name) = entry["_path"].as_str().map(str::to_owned) else {
                continue;
            };
            match self.of(prefix, prefix, &name, entry["size_in_bytes"].as_u64())? {
                Listed::Same => {}
                Listed::Outside => _ = outside.insert(name),
                Listed::Gone => _ = gone.insert(name),
                Listed::Changed(digest, size) => {
                    entry["sha256_in_prefix"] = hex(&digest).into();
                    entry["size_in_bytes"] = size.into();
                    is_changed = true;
                }
            }
        }
        refuse_outside(path, outside, report);
        if !gone.is_empty() {
            let is_gone = |name: &Value| name.as_str().is_some_and(|name| gone.contains(name));
            if let Some(paths) =
                value.pointer_mut("/paths_data/paths").and_then(Value::as_array_mut)
            {
                paths.retain(|entry| !is_gone(&entry["_path"]));
            }
            if let Some(names) = value.get_mut("files").and_then(Value::as_array_mut) {
                names.retain(|name| !is_gone(name));
            }
            is_changed = true;
        }
        let text = serde_json::to_vec_pretty(&value);
        let text = text.map_err(|e| Error::io(path, "write", e.into()))?;
        Ok(is_changed.then_some(text))
    }
}

/// The content of a list that fits into memory.
fn read(path: &Path, report: &mut Report) -> Result<Option<Vec<u8>>, Error> {
    let size = fs::metadata(path).map_err(|e| Error::io(path, "read", e))?.len();
    if size > MAX_LIST {
        let text = format!("not changed: {size} bytes is too large for a list of files");
        report.findings.push(Finding::new(Severity::Warning, ids::DAMAGED_WHEEL, path, text));
        return Ok(None);
    }
    fs::read(path).map(Some).map_err(|e| Error::io(path, "read", e))
}

fn refuse_outside(path: &Path, outside: BTreeSet<String>, report: &mut Report) {
    if let Some(first) = outside.first() {
        let text =
            format!("lists `{first}`, which is outside of the environment; that stays as it is");
        report.findings.push(Finding::new(Severity::Warning, ids::DAMAGED_WHEEL, path, text));
    }
}

/// Replaces a list, with its owner, mode and attributes.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let old = files::open(path)?;
    let (staged, ()) = StagedFile::write(path, |staged| {
        staged.replaces(&old)?;
        let (written, _) = staged.fill(&old, |mut file| {
            file.write_all(bytes).map_err(|e| Error::io(path, "write", e))
        })?;
        Ok(written)
    })?;
    replace(staged)
}
