//! Reports where the bytes are: by module, target and binary, before and after a split.
//!
//! [`measure()`] reads trees of any kind, split or not: install prefixes, artifact directories, and
//! directories of artifact directories. Every byte of every file is in exactly one row, so the rows
//! add up to the size of the files.

mod debug;
mod measure;

use std::collections::BTreeMap;
use std::path::PathBuf;

use kpack_format::{Delivery, TargetId};
use serde::Serialize;

use kpack_core::{Error, Finding};
use kpack_tree::Tree;
use measure::{Measured, RowKey};

pub use debug::debug_note;

/// What the bytes of an archive are that are in no code object.
pub const ARCHIVE_INDEX: &str = "archive index";

/// The sizes of trees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Sizes {
    /// Whether `before` was measured on an unsplit tree. If not, `before` counts code objects in
    /// archives at their unpacked size, and everything else at its current size.
    pub before_was_measured: bool,
    /// Whether some device code is not in archives, so that [`machines`](Self::machines) tells what would be.
    pub has_fat_binaries: bool,
    /// Sorted by module, target (the host first), and `what`.
    pub rows: Vec<Row>,
    /// The bytes that a machine with one GPU needs, by target.
    pub machines: Vec<MachineSizes>,
    /// The latest modification time of any file, in seconds since 1970.
    pub newest: i64,
    /// Leftover directories of interrupted runs. They are in no row.
    #[serde(serialize_with = "kpack_core::lossy::paths")]
    pub leftovers: Vec<PathBuf>,
    /// What is worth saying about the archives.
    pub findings: Vec<Finding>,
}

/// The bytes of one binary for one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The module.
    pub module: String,
    /// Target ID; `None` for the host.
    pub target: Option<String>,
    /// A binary's path in the install prefix, or a description of other files.
    pub what: String,
    /// Bytes before the split.
    pub before: u64,
    /// Bytes after the split.
    pub after: u64,
}

/// The bytes that a machine with one GPU needs: the host's files, and those of its target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MachineSizes {
    /// The GPU's target.
    pub target: String,
    /// Bytes before the split, with the device code for all targets.
    pub before: u64,
    /// Bytes after the split.
    pub after: u64,
}

/// Level of detail of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Depth {
    /// A row for each module
    Module,
    /// A row for each target of a module
    Target,
    /// A row for each binary and target
    Binary,
}

/// Measures the trees `after`, and the unsplit ones in `before`, if any.
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`] for damaged files.
pub fn measure(after: &[PathBuf], before: &[PathBuf]) -> Result<Sizes, Error> {
    let mut leftovers = Vec::new();
    let split = measure::trees(after, &mut leftovers)?;
    let unsplit = measure::trees(before, &mut leftovers)?;
    Ok(Sizes { leftovers, ..sizes(split, unsplit, !before.is_empty()) })
}

/// Measures an install prefix, of which `tree` lists [what has bytes](kpack_tree::Only::WithBytes).
///
/// # Errors
/// [`Error::Io`]; [`Error::Refused`] for damaged files.
pub fn of_tree(tree: &Tree) -> Result<Sizes, Error> {
    Ok(sizes(measure::tree(tree)?, Measured::default(), false))
}

/// The sizes of what was measured, except for leftovers.
fn sizes(split: Measured, unsplit: Measured, before_was_measured: bool) -> Sizes {
    let mut rows: BTreeMap<RowKey, (u64, u64)> = BTreeMap::new();
    // Binaries of an unsplit install prefix do not name their modules.
    let mut modules: BTreeMap<String, String> = BTreeMap::new();
    let hosts = if before_was_measured {
        (unsplit.host(), split.host())
    } else {
        (split.host(), split.host())
    };
    let newest = split.newest.max(unsplit.newest);
    for (key, size) in split.sizes {
        if !key.module.is_empty() && key.is_file {
            modules.insert(key.what.clone(), key.module.clone());
        }
        let row = rows.entry(key).or_default();
        row.1 += size.stored;
        if !before_was_measured {
            row.0 += size.unpacked;
        }
    }
    for (mut key, size) in unsplit.sizes {
        if key.module.is_empty()
            && let Some(module) = modules.get(&key.what)
        {
            key.module.clone_from(module);
        }
        rows.entry(key).or_default().0 += size.stored;
    }
    let row = |(key, (before, after)): (RowKey, _)| Row {
        module: if key.module.is_empty() { "(no module)".to_owned() } else { key.module },
        target: key.target,
        what: key.what,
        before,
        after,
    };
    let rows: Vec<Row> = rows.into_iter().map(row).collect();
    Sizes {
        before_was_measured,
        has_fat_binaries: split.has_fat_binaries,
        machines: machines(&rows, hosts),
        rows,
        newest,
        leftovers: Vec::new(),
        findings: split.findings,
    }
}

/// An entry for each target that is a GPU; `hosts` are the host's bytes before and after.
fn machines(rows: &[Row], hosts: (u64, u64)) -> Vec<MachineSizes> {
    let device: BTreeMap<TargetId, (u64, u64)> = sums(rows, |row| target(row.target.as_ref()?));
    let before = hosts.0 + device.values().map(|sum| sum.0).sum::<u64>();
    // Machines take what is for families, generic or SPIR-V, but have no such GPU.
    let is_gpu = |target: &TargetId| {
        let number = target.processor().strip_prefix("gfx");
        let has_any_digit = number.is_some_and(|number| number.contains('x'));
        let is_family = has_any_digit || TargetId::family(target.processor()).is_some();
        !is_family && !target.is_generic() && !target.is_spirv()
    };
    let targets = device.keys().filter(|target| is_gpu(target));
    let machine = |target: &TargetId| {
        let own = device.iter().filter(|(found, _)| target.needs(found, Delivery::Archive));
        MachineSizes {
            target: target.to_string(),
            before,
            after: hosts.1 + own.map(|(_, sum)| sum.1).sum::<u64>(),
        }
    };
    targets.map(machine).collect()
}

/// The target, or the family of that name.
fn target(text: &str) -> Option<TargetId> {
    TargetId::family(text).or_else(|| text.parse().ok())
}

impl Sizes {
    /// Bytes before and after.
    pub fn total(&self) -> (u64, u64) {
        let add = |(before, after): (u64, u64), row: &Row| (before + row.before, after + row.after);
        self.rows.iter().fold((0, 0), add)
    }

    /// One row per target, summed over all modules, the host first: the size of its packages.
    pub fn by_target(&self) -> Vec<Row> {
        self.summed(|row| (String::new(), row.target.clone(), String::new()))
    }

    /// Sums rows that are equal down to `depth`. The fields below that are empty.
    pub fn by(&self, depth: Depth) -> Vec<Row> {
        self.summed(|row| {
            let what = (depth == Depth::Binary).then(|| row.what.clone());
            let target = (depth != Depth::Module).then(|| row.target.clone());
            (row.module.clone(), target.flatten(), what.unwrap_or_default())
        })
    }

    /// Sums rows with the same module, target and `what`, sorted by these.
    fn summed(&self, key: impl Fn(&Row) -> (String, Option<String>, String)) -> Vec<Row> {
        let row =
            |((module, target, what), (before, after))| Row { module, target, what, before, after };
        let sums = sums(&self.rows, |own| Some(key(own)));
        sums.into_iter().map(row).collect()
    }
}

/// The bytes before and after of the rows with the same key; those without one do not count.
fn sums<K: Ord>(rows: &[Row], key: impl Fn(&Row) -> Option<K>) -> BTreeMap<K, (u64, u64)> {
    let mut sums = BTreeMap::new();
    for row in rows {
        if let Some(key) = key(row) {
            let sum: &mut (u64, u64) = sums.entry(key).or_default();
            *sum = (sum.0 + row.before, sum.1 + row.after);
        }
    }
    sums
}
