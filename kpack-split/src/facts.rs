//! What two host binaries have in common that were linked from the same code with device code of another size: facts
//! that stay the same wherever a linker places things.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kpack_core::elf::{BinaryError, refuse};

/// Names may share bytes in a file, but not without end.
const MOST_OVERLAP: u64 = 4;
/// Size of the smallest record of a symbol, in bytes.
const LEAST_SYMBOL: u64 = 8;

/// Facts about a host binary, each with a name and its values, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    of: BTreeMap<String, Vec<String>>,
    /// A name may have several versions. Symbols are in the order of a hash table, so that of their values means nothing.
    symbols: BTreeMap<String, Vec<String>>,
    /// How many more bytes names may have.
    room: u64,
}

/// A fact that differs between two binaries.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FactDifference {
    /// Its name.
    pub fact: String,
    /// The values in the first binary; none if it has no such fact.
    pub expected: Vec<String>,
    /// The values in the second one.
    pub found: Vec<String>,
}

impl fmt::Display for FactDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |values: &[String]| match values {
            [] => "none".to_owned(),
            values => values.join(", "),
        };
        let (expected, found) = (text(&self.expected), text(&self.found));
        write!(f, "{} (expected {expected}, found {found})", self.fact)
    }
}

/// Which symbols a name is among.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Linkage {
    Exported,
    Imported,
}

impl Facts {
    /// None yet, about a file of `size` bytes.
    pub(crate) fn of_file(size: u64) -> Self {
        let room = MOST_OVERLAP.saturating_mul(size);
        Self { of: BTreeMap::new(), symbols: BTreeMap::new(), room }
    }

    /// Adds the next value of a fact.
    pub(crate) fn add(&mut self, fact: impl Into<String>, value: impl Into<String>) {
        self.of.entry(fact.into()).or_default().push(value.into());
    }

    /// Adds the name of a library or a path.
    pub(crate) fn add_text(&mut self, fact: &str, text: &[u8]) -> Result<(), BinaryError> {
        self.take_room(text.len())?;
        self.add(fact, format!("`{}`", String::from_utf8_lossy(text).escape_debug()));
        Ok(())
    }

    /// Adds the size of a section that is loaded, if it has one.
    pub(crate) fn add_section(&mut self, name: &str, size: u64) {
        if size > 0 {
            self.add(format!("size of section `{name}`"), format!("{size} bytes"));
        }
    }

    /// Adds a symbol with what is known of it, such as its size. The value contains the name `about`. Those that are only an ID of a compilation unit count
    /// as one.
    pub(crate) fn add_symbol(
        &mut self,
        linkage: Linkage,
        name: &[u8],
        value: String,
        about: &[u8],
    ) -> Result<(), BinaryError> {
        self.take_room(name.len() + about.len())?;
        let name = if is_unit_id(name) { b"__hip_cuid_" } else { name };
        let kind = match linkage {
            Linkage::Exported => "exported",
            Linkage::Imported => "imported",
        };
        let fact = format!("{kind} symbol `{}`", String::from_utf8_lossy(name));
        self.symbols.entry(fact).or_default().push(value);
        Ok(())
    }

    /// Counts the bytes of a name against those of the file.
    fn take_room(&mut self, bytes: usize) -> Result<(), BinaryError> {
        let Some(room) = self.room.checked_sub(bytes as u64 + LEAST_SYMBOL) else {
            refuse!("the names in its tables overlap; is it damaged?");
        };
        self.room = room;
        Ok(())
    }

    /// The facts that differ in `found`.
    pub fn differences(&self, found: &Self) -> Vec<FactDifference> {
        let names: BTreeSet<&String> = [self, found]
            .into_iter()
            .flat_map(|facts| facts.of.keys().chain(facts.symbols.keys()))
            .collect();
        let values = |facts: &Self, name: &String| {
            let mut values = facts.symbols.get(name).cloned().unwrap_or_default();
            values.sort();
            facts.of.get(name).cloned().unwrap_or(values)
        };
        let pairs = names.into_iter().map(|name| (name, values(self, name), values(found, name)));
        let differ = pairs.filter(|(_, expected, found)| expected != found);
        differ
            .map(|(fact, expected, found)| FactDifference { fact: fact.clone(), expected, found })
            .collect()
    }
}

/// The most digits of an ID of a compilation unit.
const LONGEST_ID: usize = 16;

/// Whether a symbol exists only for its name, which contains the ID of a compilation unit: a hash of
/// the compiler's options, `--offload-arch` among them, and the source's path, without leading zeros (clang,
/// `-fuse-cuid=hash`, the default for HIP). Longer names with an ID do not count: with `-fgpu-rdc`, variables and
/// kernels must have the same names in host and device code.
fn is_unit_id(name: &[u8]) -> bool {
    let id = name.strip_prefix(b"__hip_cuid_").unwrap_or_default();
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(is_digit)
}
