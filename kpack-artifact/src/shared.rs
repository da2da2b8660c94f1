//! Files of kernel databases with entries for every target. If several machines built them, each copy
//! has the entries of that machine's targets.
//!
//! They do not belong to one target, so they are in generic artifacts. Their copies are merged entry by
//! entry; [`databases`](kpack_tree::databases) says which files these are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufReader, Seek};
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::offload_bundle::{self, Bundle, HOST_ENTRY};
use kpack_format::unstable::raw_map::{self, Key};
use kpack_format::unstable::target_names;

use kpack_core::files::bundle_error;
use kpack_core::{Error, ids};
use kpack_split::input;
use kpack_tree::kernel_cache;
use kpack_tree::place::Merge;

/// The entries of a shared file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entries {
    kind: Merge,
    /// ID of the host's entry in a bundle.
    host: String,
    /// The name as it is written (a bundle's entry ID, a map's key, or a row without its code), and
    /// what it has.
    entries: BTreeMap<Key, (Vec<u8>, Vec<u8>)>,
}

impl Entries {
    /// Reads the file at `path`; `Err` with the reason if it does not have this form.
    pub(crate) fn read(path: &Path, kind: Merge) -> Result<Result<Self, String>, Error> {
        let bytes = || fs::read(path).map_err(|e| Error::io(path, "read", e));
        match kind {
            Merge::Bundle => bundle(path),
            Merge::ByTarget => Ok(map(&bytes()?)),
            Merge::Lines => Ok(lines(bytes()?)),
            Merge::KernelCache => rows(path),
        }
    }

    fn new(kind: Merge, entries: BTreeMap<Key, (Vec<u8>, Vec<u8>)>) -> Self {
        let host = HOST_ENTRY.to_owned();
        Self { kind, host, entries }
    }

    /// Adds the entries that only `other` has. Returns the keys whose entries differ; those of
    /// `self` stay.
    pub(crate) fn merge(&mut self, other: Self) -> Vec<String> {
        let mut differ = Vec::new();
        for (key, entry) in other.entries {
            let name = text(&key);
            if self.entries.entry(key).or_insert_with(|| entry.clone()).1 != entry.1 {
                differ.push(name);
            }
        }
        differ
    }

    /// The keys that `other` lacks, or has with another content.
    pub(crate) fn not_in(&self, other: &Self) -> Vec<String> {
        let is_there = |key: &Key, content: &[u8]| {
            let there = other.entries.get(key);
            there.is_some_and(|(_, there)| there == content)
        };
        let missing = self.entries.iter().filter(|(key, (_, content))| !is_there(key, content));
        missing.map(|(key, _)| text(key)).collect()
    }

    /// The targets that it has entries for. Keys begin with them.
    pub(crate) fn targets(&self) -> BTreeSet<TargetId> {
        let target = |key: &Key| target_names::exact(text(key).split(' ').next()?);
        self.entries.keys().filter_map(target).collect()
    }

    /// Whether the same keys have the same content.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.entries.len() == other.entries.len() && self.not_in(other).is_empty()
    }

    /// Describes an entry's key for people.
    pub(crate) fn noun(&self) -> &'static str {
        match self.kind {
            Merge::Bundle | Merge::ByTarget | Merge::KernelCache => "for",
            Merge::Lines => "in the line",
        }
    }

    /// As a file: a plain bundle, a MessagePack map, a text, or an SQLite database, in the order of
    /// the keys.
    pub(crate) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        Ok(match self.kind {
            Merge::Bundle => {
                let own = self.entries.values();
                // IDs are read as text, so this one is valid.
                let own = own.filter_map(|(id, code)| Some((str::from_utf8(id).ok()?, &code[..])));
                offload_bundle::plain([(&self.host[..], &[][..])].into_iter().chain(own))
            }
            Merge::ByTarget => {
                let own = self.entries.values();
                raw_map::to_bytes(own.map(|(key, value)| (&key[..], &value[..])))
            }
            Merge::Lines => {
                let lines = self.entries.values();
                lines.flat_map(|(line, _)| [line, &b"\n"[..]].concat()).collect()
            }
            Merge::KernelCache => {
                let rows = self
                    .entries
                    .values()
                    .map(|(row, code)| Ok((serde_json::from_slice(row)?, &code[..])));
                kernel_cache::to_bytes(rows)?
            }
        })
    }
}

fn text(key: &Key) -> String {
    match key {
        Key::Number(number) => number.to_string(),
        Key::Text(text) => text.clone(),
    }
}

fn bundle(path: &Path) -> Result<Result<Entries, String>, Error> {
    let mut file = BufReader::new(input::open(path)?);
    let size = file.get_ref().metadata().map_err(|e| Error::io(path, "read", e))?.len();
    let read = match Bundle::read(&mut file, size) {
        Err(offload_bundle::BundleError::Io(error)) => return Err(Error::io(path, "read", error)),
        Err(error) => return Ok(Err(error.to_string())),
        Ok(read) => read,
    };
    file.rewind().map_err(|e| Error::io(path, "read", e))?;
    let host = read.entries.iter().find(|entry| entry.id.target().is_none());
    if host.is_some_and(|host| host.size > 0) {
        return Ok(Err("has code for the host".to_owned()));
    }
    let mut found = Entries::new(Merge::Bundle, BTreeMap::new());
    if let Some(host) = host {
        found.host = host.id.as_str().to_owned();
    }
    let damaged = |error| bundle_error(path, "", error);
    for code in read.code_objects(file, |_| true).map_err(damaged)? {
        let code = code.map_err(damaged)?;
        let id = read
            .entries
            .iter()
            .find(|entry| entry.size > 0 && entry.id.target() == Some(&code.target))
            .map_or_else(String::new, |entry| entry.id.to_string());
        let key = Key::Text(code.target.to_string());
        let entry = (id.into_bytes(), code.bytes);
        if found.entries.get(&key).is_some_and(|known| *known != entry) {
            let text = format!("has two code objects for {}", code.target);
            return Ok(Err(text));
        }
        found.entries.insert(key, entry);
    }
    Ok(Ok(found))
}

fn lines(bytes: Vec<u8>) -> Result<Entries, String> {
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    let entry = |line: &str| {
        let name = line.as_bytes().to_vec();
        (Key::Text(line.to_owned()), (name, Vec::new()))
    };
    Ok(Entries::new(Merge::Lines, text.lines().map(entry).collect()))
}

fn rows(path: &Path) -> Result<Result<Entries, String>, Error> {
    let rows = match kernel_cache::rows(path)? {
        Ok(rows) => rows,
        Err(unreadable) => return Ok(Err(unreadable.reason)),
    };
    let mut entries = BTreeMap::new();
    for (row, code) in rows {
        let key = row.to_string();
        let columns = serde_json::to_vec(&row)
            .map_err(|e| Error::rejected(ids::DAMAGED_DATABASE_FILE, path, e.to_string()))?;
        if entries.insert(Key::Text(key.clone()), (columns, code)).is_some() {
            return Ok(Err(format!("has two rows for {key}")));
        }
    }
    Ok(Ok(Entries::new(Merge::KernelCache, entries)))
}

fn map(bytes: &[u8]) -> Result<Entries, String> {
    let read = raw_map::read(bytes).map_err(|error| error.to_string())?;
    let mut entries = BTreeMap::new();
    for entry in read {
        match &entry.key {
            Key::Text(text) if target_names::exact(text).is_some() => {}
            key => return Err(format!("has the key `{}`", text(key))),
        }
        let parts = (entry.key_bytes.to_vec(), entry.value_bytes.to_vec());
        if entries.insert(entry.key.clone(), parts).is_some() {
            return Err(format!("has the key `{}` twice", text(&entry.key)));
        }
    }
    Ok(Entries::new(Merge::ByTarget, entries))
}
