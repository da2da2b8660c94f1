//! Files of kernel databases that have something for every target, in one file with one name: of
//! what several machines built, each has its own targets' part.
//!
//! They are no device code of one target, so they are in generic artifacts. Copies of them are put
//! together entry by entry.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Seek};
use std::path::Path;

use kpack_format::offload_bundle::{self, Bundle};
use kpack_format::raw_map::{self, Key};

use super::databases::{self, Place};
use super::names;
use super::pairs::TENSILE;
use crate::Error;
use crate::inspect;

/// How such a file is made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shared {
    /// An offload bundle, or a code object alone: an entry for each target.
    Bundle,
    /// A MessagePack map with targets as keys.
    ByTarget,
    /// A text with a line for each file that was built.
    Lines,
}

/// How the file with this path in the prefix is made up; `None` for one that is not for all targets,
/// or that is the same whatever they are.
pub(crate) fn shared(path: &Path) -> Option<Shared> {
    let path = path.to_str()?;
    let mut parts = path.rsplit('/');
    if parts.next() == Some("TensileManifest.txt")
        && parts.next() == Some("library")
        && parts.next().is_some_and(|name| TENSILE.contains(&name))
    {
        return Some(Shared::Lines);
    }
    let (_, place) = databases::recognise(path)?;
    let name = path.rsplit('/').next()?;
    match (place, name) {
        (Place::Shared, "hipblasltExtOpLibrary.dat") => Some(Shared::ByTarget),
        (Place::Shared, _) if name.ends_with(".hsaco") || name.ends_with(".co") => {
            Some(Shared::Bundle)
        }
        _ => None,
    }
}

/// A file for all targets of which one build's copy is of no use to another's code objects, and that
/// cannot be put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whole {
    /// Which file has which kernels. A key is the number that a range of kernels begins with, and
    /// numbers begin with 0 in every build: another build's ranges cut through them.
    Mapping,
    /// A library file of kernels for GPUs without their own, which names them. It is the same for all
    /// targets, unless these name their kernels otherwise.
    Fallback,
}

/// Which such file this is, by its path in the prefix.
pub(crate) fn whole(path: &Path) -> Option<Whole> {
    let text = path.to_str()?;
    let (directory, name) = text.rsplit_once('/')?;
    let is_flat = directory.ends_with("hipblaslt/library");
    let is_mapping = matches!(
        name,
        "TensileLiteLibrary_lazy_Mapping.dat" | "TensileLiteLibrary_lazy_Mapping.dat.zlib"
    );
    if is_flat && is_mapping {
        return Some(Whole::Mapping);
    }
    let (_, place) = databases::recognise(text)?;
    (place == Place::Shared && shared(path).is_none()).then_some(Whole::Fallback)
}

/// The entries of a shared file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entries {
    kind: Shared,
    /// ID of the host's entry in a bundle.
    host: String,
    /// The name as it is written, a bundle's entry ID or a map's key, and what it has.
    entries: BTreeMap<Key, (Vec<u8>, Vec<u8>)>,
}

impl Entries {
    /// Reads the file at `path`; `Err` with the reason, where it is not made up so.
    pub(crate) fn read(path: &Path, kind: Shared) -> Result<Result<Self, String>, Error> {
        match kind {
            Shared::Bundle => bundle(path),
            Shared::ByTarget => {
                let bytes = fs::read(path).map_err(|e| Error::io(path, "read", e))?;
                Ok(map(&bytes))
            }
            Shared::Lines => {
                let bytes = fs::read(path).map_err(|e| Error::io(path, "read", e))?;
                Ok(lines(bytes))
            }
        }
    }

    /// Takes what only `other` has. Gives the keys whose entries are not the same in both, of which
    /// those of `self` stay.
    pub(crate) fn merge(&mut self, other: Self) -> Vec<String> {
        let mut differ = Vec::new();
        for (key, (name, content)) in other.entries {
            match self.entries.get(&key) {
                Some((_, own)) if *own != content => differ.push(text(&key)),
                Some(_) => {}
                None => {
                    self.entries.insert(key, (name, content));
                }
            }
        }
        differ
    }

    /// The keys that `other` has not, or with another content.
    pub(crate) fn not_in(&self, other: &Self) -> Vec<String> {
        let is_there = |key: &Key, content: &[u8]| {
            let there = other.entries.get(key);
            there.is_some_and(|(_, there)| there == content)
        };
        let missing = self.entries.iter();
        let missing = missing.filter(|(key, (_, content))| !is_there(key, content));
        missing.map(|(key, _)| text(key)).collect()
    }

    /// The keys, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = String> {
        self.entries.keys().map(text)
    }

    /// Whether the same keys have the same content.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.entries.len() == other.entries.len() && self.not_in(other).is_empty()
    }

    /// What an entry is of, for people.
    pub(crate) fn noun(&self) -> &'static str {
        match self.kind {
            Shared::Bundle | Shared::ByTarget => "for",
            Shared::Lines => "in the line",
        }
    }

    /// As a file: a plain bundle, a MessagePack map, or a text, in the order of the keys.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self.kind {
            Shared::Bundle => {
                let own = self.entries.values();
                // An ID was read as text.
                let own = own.filter_map(|(id, code)| Some((str::from_utf8(id).ok()?, &code[..])));
                offload_bundle::plain([(&self.host[..], &[][..])].into_iter().chain(own))
            }
            Shared::ByTarget => {
                let own = self.entries.values();
                raw_map::to_bytes(own.map(|(key, value)| (&key[..], &value[..])))
            }
            Shared::Lines => {
                let lines = self.entries.values();
                lines
                    .flat_map(|(line, _)| [line, &b"\n"[..]].concat())
                    .collect()
            }
        }
    }
}

fn text(key: &Key) -> String {
    match key {
        Key::Number(number) => number.to_string(),
        Key::Text(text) => text.clone(),
    }
}

/// What clang writes for the host where a bundle has no host code.
const HOST: &str = "host-x86_64-unknown-linux-gnu-";

fn bundle(path: &Path) -> Result<Result<Entries, String>, Error> {
    let mut file = BufReader::new(inspect::open(path)?);
    let size = file.get_ref().metadata();
    let size = size.map_err(|e| Error::io(path, "read", e))?.len();
    let read = match Bundle::read(&mut file, size) {
        Err(offload_bundle::BundleError::Io(error)) => return Err(Error::io(path, "read", error)),
        Err(error) => return Ok(Err(error.to_string())),
        Ok(read) => read,
    };
    file.rewind().map_err(|e| Error::io(path, "read", e))?;
    let host = read
        .entries
        .iter()
        .find(|entry| entry.id.target().is_none());
    if host.is_some_and(|host| host.size > 0) {
        return Ok(Err("it has code for the host".to_owned()));
    }
    let mut found = Entries {
        kind: Shared::Bundle,
        host: host.map_or(HOST, |host| host.id.as_str()).to_owned(),
        entries: BTreeMap::new(),
    };
    let damaged = |error: offload_bundle::BundleError| Error::refused(path, error.to_string());
    for code in read.code_objects(file, |_| true).map_err(damaged)? {
        let code = code.map_err(damaged)?;
        let mut ids = read.entries.iter().filter(|entry| entry.size > 0);
        let id = ids.find(|entry| entry.id.target() == Some(&code.target));
        let id = id.map_or_else(String::new, |entry| entry.id.to_string());
        let key = Key::Text(code.target.to_string());
        let entry = (id.into_bytes(), code.bytes);
        if found.entries.get(&key).is_some_and(|known| *known != entry) {
            let text = format!("it has two code objects for {}", code.target);
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
    Ok(Entries {
        kind: Shared::Lines,
        host: String::new(),
        entries: text.lines().map(entry).collect(),
    })
}

fn map(bytes: &[u8]) -> Result<Entries, String> {
    let read = raw_map::read(bytes).map_err(|error| error.to_string())?;
    let mut entries = BTreeMap::new();
    for entry in read {
        match &entry.key {
            Key::Text(text) if names::target(text).is_some() => {}
            key => return Err(format!("it has the key `{}`", text(key))),
        }
        let parts = (entry.key_bytes.to_vec(), entry.value_bytes.to_vec());
        if entries.insert(entry.key.clone(), parts).is_some() {
            return Err(format!("it has the key `{}` twice", text(&entry.key)));
        }
    }
    Ok(Entries {
        kind: Shared::ByTarget,
        host: String::new(),
        entries,
    })
}
