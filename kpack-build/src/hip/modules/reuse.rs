//! Code objects of earlier builds, which need not be compiled again.
//!
//! Beside each code object is a record of what it was made of: the version of the compiler, its arguments and variables, ROCm's device
//! libraries, and the content of all files that the compiler lists as read. Times of these files do not count, because
//! checkouts and caches change them. A new header that the compiler would find before one that it has read does not count
//! either.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use kpack_core::Error;
use kpack_core::parallel::lock;
use kpack_core::platform::{OsStrExt, changed_at};
use kpack_core::publish::{Directory, Stage};
use kpack_format::TargetId;
use kpack_format::digest::{Blake3, Hasher};

use super::names::Source;

/// The first line of a record. Its number changes with what decides on reuse.
const HEADER: &str = "kpack-build code object 1";

/// Endings of a code object and its record.
const CODE: &str = "co";
const RECORD: &str = "inputs";

/// A changed file may get a time this much before the clock's, because Linux takes it from its last tick.
const TICK: Duration = Duration::from_millis(10);

/// A source and a target, which make one code object.
pub(super) struct Pair<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) target: TargetId,
}

/// A code object, compiled now or before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) code: Vec<u8>,
    /// The files that the compiler read, as it lists them.
    pub(super) inputs: Vec<PathBuf>,
    /// The lines of its warnings.
    pub(super) warnings: Vec<String>,
}

/// The code objects of the modules of one name.
pub(super) struct ObjectCache {
    directory: Directory,
    /// The digest of each input when this build first read it; `None` if the input cannot be read.
    digests: Mutex<BTreeMap<PathBuf, Option<Blake3>>>,
}

impl ObjectCache {
    /// The code objects beside the directory `name` that `stage` publishes.
    pub(super) fn open(stage: &Stage, name: &str) -> Result<Self, Error> {
        let directory = stage.above().provide_below(format!(".{name}.objects").as_ref())?;
        Ok(Self { directory, digests: Mutex::default() })
    }

    /// The code object of `pair`, if `command` and all inputs are as they were. Relative paths of inputs are in
    /// `package`.
    pub(super) fn find(&self, pair: &Pair<'_>, command: &Blake3, package: &Path) -> Option<Object> {
        let read = |ending: &str| {
            let mut file = self.directory.open_file(file_name(pair, ending).as_ref()).ok()??;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).ok()?;
            Some(bytes)
        };
        let record = Record::read(&read(RECORD)?)?;
        let code = read(CODE)?;
        let is_same = record.command == *command
            && record.code == digest(&code)
            && record.inputs.iter().all(|(path, known)| {
                self.digest_of(&package.join(path)).is_some_and(|digest| digest == *known)
            });
        is_same.then(|| Object {
            code,
            inputs: record.inputs.into_keys().collect(),
            warnings: record.warnings,
        })
    }

    /// Keeps `object`, which the compiler has just written as [`file_name`] into the directory `from`. `begun` is when it
    /// started: inputs that changed since may not be those that it read.
    pub(super) fn add(
        &self,
        pair: &Pair<'_>,
        command: Blake3,
        object: &Object,
        package: &Path,
        begun: SystemTime,
        from: &Directory,
    ) -> Result<(), Error> {
        let publish = |ending| {
            let name = file_name(pair, ending);
            let renamed = from.rename_into(name.as_ref(), &self.directory, name.as_ref());
            renamed.map_err(|e| Error::io(&self.directory.path().join(&name), "write", e))
        };
        publish(CODE)?;
        let Some(inputs) = self.unchanged_since(&object.inputs, package, begun) else {
            return Ok(());
        };
        let warnings = object.warnings.clone();
        let record = Record { command, code: digest(&object.code), inputs, warnings };
        let name = file_name(pair, RECORD);
        let written = from.create(name.as_ref()).and_then(|mut file| {
            file.write_all(&record.text())?;
            Ok(())
        });
        written.map_err(|e| Error::io(&from.path().join(&name), "write", e))?;
        publish(RECORD)
    }

    /// The digests of these files as they are now. `None` if a file may have changed since `begun`, or since this build first
    /// read it, because the compiler may have read another version.
    fn unchanged_since(
        &self,
        inputs: &[PathBuf],
        package: &Path,
        begun: SystemTime,
    ) -> Option<BTreeMap<PathBuf, Blake3>> {
        let digests = inputs.iter().map(|input| {
            let path = package.join(input);
            let digest = read_digest(&path)?;
            // After reading, to notice a change between the two.
            let changed = changed_at(&fs::metadata(&path).ok()?).ok()?;
            let is_older = changed.checked_add(TICK)? < begun;
            let first = *lock(&self.digests).entry(path).or_insert(Some(digest));
            (is_older && first == Some(digest)).then(|| (input.clone(), digest))
        });
        digests.collect()
    }

    fn digest_of(&self, path: &Path) -> Option<Blake3> {
        let known = lock(&self.digests).get(path).copied();
        known.unwrap_or_else(|| {
            let digest = read_digest(path);
            *lock(&self.digests).entry(path.to_owned()).or_insert(digest)
        })
    }

    /// Removes the code objects and records of all other pairs.
    pub(super) fn remove_others(&self, pairs: &[Pair<'_>]) -> Result<(), Error> {
        let names = |pair| [CODE, RECORD].map(|ending| file_name(pair, ending));
        let own: BTreeSet<String> = pairs.iter().flat_map(names).collect();
        for name in self.directory.names()? {
            if name.to_str().is_none_or(|name| !own.contains(name)) {
                self.directory.remove(&name)?;
            }
        }
        Ok(())
    }
}

/// The file name of what belongs to `pair`.
fn file_name(pair: &Pair<'_>, ending: &str) -> String {
    // Windows has no colons in file names.
    let target = pair.target.to_string().replace(':', "-");
    format!("{}.{target}.{ending}", pair.source.name.as_str())
}

/// The name of the code object of `pair`.
pub(super) fn code_name(pair: &Pair<'_>) -> String {
    file_name(pair, CODE)
}

/// The digest of a file as it is now; `None` if it cannot be read.
fn read_digest(path: &Path) -> Option<Blake3> {
    fs::read(path).ok().map(|bytes| digest(&bytes))
}

fn digest(bytes: &[u8]) -> Blake3 {
    let mut hasher = Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// What a code object was made of.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    /// The digest of the command, and of the code object.
    command: Blake3,
    code: Blake3,
    inputs: BTreeMap<PathBuf, Blake3>,
    warnings: Vec<String>,
}

impl Record {
    /// Each part begins with its kind and the length of its text, so that paths may have any bytes.
    fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut add = |kind: u8, digest: &[u8], bytes: &[u8]| {
            text.push(kind);
            text.extend((bytes.len() as u32).to_le_bytes());
            text.extend(digest);
            text.extend(bytes);
        };
        add(b'h', &[], HEADER.as_bytes());
        add(b'c', &self.command, &[]);
        add(b'o', &self.code, &[]);
        for (path, digest) in &self.inputs {
            add(b'i', digest, path.as_os_str().as_bytes());
        }
        for warning in &self.warnings {
            add(b'w', &[], warning.as_bytes());
        }
        add(b'e', &[], &[]);
        text
    }

    /// `None` if the record is truncated, damaged, or of another version.
    fn read(mut text: &[u8]) -> Option<Self> {
        let (mut command, mut code) = (None, None);
        let (mut inputs, mut warnings) = (BTreeMap::new(), Vec::new());
        let mut is_of_this_version = false;
        loop {
            let (kind, length) = (take(&mut text, 1)?[0], take(&mut text, 4)?);
            let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
            match kind {
                b'h' => is_of_this_version = take(&mut text, length)? == HEADER.as_bytes(),
                b'c' => command = Some(take_digest(&mut text)?),
                b'o' => code = Some(take_digest(&mut text)?),
                b'i' => {
                    let digest = take_digest(&mut text)?;
                    let path = OsStr::from_bytes(take(&mut text, length)?);
                    inputs.insert(PathBuf::from(path), digest);
                }
                b'w' => {
                    warnings.push(String::from_utf8(take(&mut text, length)?.to_owned()).ok()?);
                }
                b'e' if is_of_this_version && length == 0 && text.is_empty() => {
                    return Some(Self { command: command?, code: code?, inputs, warnings });
                }
                _ => return None,
            }
        }
    }
}

fn take<'a>(text: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = text.split_at_checked(length)?;
    *text = rest;
    Some(taken)
}

fn take_digest(text: &mut &[u8]) -> Option<Blake3> {
    take(text, size_of::<Blake3>())?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let record = Record {
            command: [1; 32],
            code: [2; 32],
            inputs: [("a\nb.h".into(), [3; 32]), ("ü c.h".into(), [4; 32])].into(),
            warnings: vec!["a warning".to_owned(), String::new()],
        };
        let text = record.text();
        assert_eq!(Record::read(&text), Some(record));
        for end in 0..text.len() {
            assert_eq!(Record::read(&text[..end]), None, "{end}");
        }
        let mut other = text.clone();
        let version = other.iter().position(|byte| *byte == b'1').unwrap();
        other[version] = b'2';
        assert_eq!(Record::read(&other), None);
        assert_eq!(Record::read(&[text, vec![0]].concat()), None);
    }
}
