//! Compares the primary shard's generic artifact, which is used, with the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::super::read::Inputs;
use super::super::tree_differences::{
    DifferenceKind, TreeDifference, target_files, tree_differences,
};
use super::super::{Finding, MOST_NAMES, Severity, worst_first};
use crate::compare::explain;
use crate::tree::ArtifactTree;
use kpack_core::parallel::lock;
use kpack_core::words::list_some;
use kpack_core::{Error, Id, Reason, ids};
use kpack_format::names::KernelName;
use kpack_split::input::{self, KernelNames, NameHash};
use kpack_tree::place::{ForAll, MustMatch};
use kpack_tree::{Class, Entry, Node};

/// How many bytes of a file are searched for NUL.
const HEAD: u64 = 1 << 13;

/// Maximum number of kernels to name.
const MOST_KERNELS: usize = 3;

/// Compares `tree` with the `first`, which is used. If host files are not compared, only those that
/// would be lost with device code and data count.
pub(super) fn check_host_files(
    inputs: &Inputs<'_>,
    first: &ArtifactTree,
    tree: &ArtifactTree,
) -> Result<Vec<Finding>, Error> {
    let compares = inputs.component.validation().verify_generic_artifacts_match;
    // Target-specific files are in one tree only, and so may their directories be.
    let own = [(first, tree), (tree, first)]
        .into_iter()
        .flat_map(|(tree, other)| target_files(inputs, tree, other))
        .flat_map(|(item, _)| item.path.ancestors());
    let shared: BTreeSet<&Path> =
        [first, tree].into_iter().flat_map(around_shared).chain(own).collect();
    let found = tree_differences(first, tree, inputs.component.archives, |item| {
        let counts = compares || matches!(item.node, Node::File { .. });
        counts && item.shared().is_none() && !shared.contains(&*item.path)
    })?;
    let mut said: Vec<Finding> = Vec::new();
    // By what is said of them.
    let mut same_code: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for mut difference in found {
        // The copy that is not taken, if there are two.
        let mut items = [tree, first].into_iter();
        let Some(item) = items.find_map(|tree| tree.entries.get(&*difference.path)) else {
            continue;
        };
        if difference.kind == DifferenceKind::Bytes
            && *item.class == Class::Split
            && let Some(text) = registered_differ(inputs, [first, tree], &difference.path)?
        {
            difference.kind = DifferenceKind::Content;
            difference.text = text;
        }
        let what = match (item.for_all(), compares) {
            (Some(ForAll::MustMatch(why)), _) => must_match(inputs, why, first, tree, &difference)?,
            (_, true) if difference.kind == DifferenceKind::Bytes => {
                same_code.entry(difference.text.text).or_default().push(item.full());
                continue;
            }
            (_, true) => {
                let text = host_file(first, tree, &difference.text.text);
                Some((Severity::Fault, ids::SHARDS_DIFFER, text))
            }
            (_, false) => {
                let text = left_out(first, item, &difference)?;
                text.map(|text| (Severity::Warning, ids::SHARDS_DIFFER, text))
            }
        };
        if let Some((severity, id, text)) = what {
            let text = Reason::new(text, difference.text.details);
            said.push(Finding::new(severity, id, item.full(), text));
        }
    }
    for (text, paths) in same_code {
        let text = format!("{text}; {}'s is taken", first.shard);
        let (path, text) = match &paths[..] {
            [path] => (*path, text),
            all => (&*tree.root, several(all.iter().copied(), &text)),
        };
        let text = host_file(first, tree, &text);
        said.push(Finding::new(Severity::Note, ids::SHARDS_DIFFER, path, text));
    }
    Ok(worst_first(said, &tree.root, &first.shard))
}

/// Compares the kernels that the two binaries at `path` register. Only kernels of their archives count.
/// Which of them each target has does not matter: the source may leave kernels out for some targets. Device code of both
/// is used with one of the binaries, so a kernel that only the other one registers could not be found.
pub(super) fn registered_differ(
    inputs: &Inputs<'_>,
    shards: [&ArtifactTree; 2],
    path: &Path,
) -> Result<Option<Reason>, Error> {
    let mut hosts = Vec::new();
    for item in shards.iter().filter_map(|tree| tree.entries.get(path)) {
        hosts.push(item.linked()?);
    }
    let [one, other] = &hosts[..] else {
        return Ok(None);
    };
    let mut binaries = BTreeSet::new();
    for host in &hosts {
        let markers = host.markers()?.into_iter();
        binaries.extend(markers.filter_map(|group| group.marker.kernel_name));
    }
    let device = inputs
        .device
        .values()
        .flatten()
        .filter(|own| shards.iter().any(|tree| tree.shard == own.shard));
    let archives = inputs.component.archives;
    let mut names: BTreeSet<NameHash> = BTreeSet::new();
    for item in device.flat_map(|tree| &tree.entries).filter(|item| item.is_kpack()) {
        let archive = archives.open(item.full())?;
        let mut kernels = Vec::new();
        for (kernel, targets) in &lock(&archive).toc().kernels {
            if KernelName::binary_of(kernel).is_some_and(|binary| binaries.contains(binary)) {
                kernels.extend(targets.keys().map(|target| (kernel.clone(), target.clone())));
            }
        }
        for (kernel, target) in kernels {
            let own = archives.kernels(item.full(), &kernel, &target)?;
            names.extend(own.iter().flat_map(KernelNames::iter));
        }
    }
    let is_one = |name| names.contains(&name);
    let (ours, theirs) = (one.registered(&is_one)?, other.registered(&is_one)?);
    let (expected, found) = (only(&ours, &theirs), only(&theirs, &ours));
    if expected == found {
        return Ok(None);
    }
    let text = format!(
        "registers other kernels than the primary shard's binary, although both shards have device code for them \
         (expected {expected}, found {found})"
    );
    Ok(Some(Reason::from(text).differs(expected, found)))
}

/// The kernels that only the first of two binaries registers, for people.
fn only(own: &BTreeMap<NameHash, String>, other: &BTreeMap<NameHash, String>) -> String {
    let mut only: Vec<String> = own
        .iter()
        .filter(|(name, _)| !other.contains_key(name))
        .map(|(_, name)| format!("`{name}`"))
        .collect();
    only.sort();
    if only.is_empty() { "none".to_owned() } else { list_some(only, MOST_KERNELS) }
}

/// The finding about a file for all targets that cannot be merged; `None` if nothing breaks.
fn must_match(
    inputs: &Inputs<'_>,
    why: MustMatch,
    first: &ArtifactTree,
    tree: &ArtifactTree,
    difference: &TreeDifference,
) -> Result<Option<(Severity, Id, String)>, Error> {
    let validation = inputs.component.validation();
    let compares = validation.verify_generic_artifacts_match;
    // If only the taken tree has it, the device code of other shards does not need it.
    if difference.kind == DifferenceKind::OnlyFirst && !compares {
        return Ok(None);
    }
    let (a, b, text) = (&first.shard, &tree.shard, &difference.text.text);
    if same_bytes(first, tree, &difference.path)? {
        let text = host_file(first, tree, text);
        return Ok(compares.then_some((Severity::Fault, ids::SHARDS_DIFFER, text)));
    }
    Ok(Some(match why {
        MustMatch::Mapping => {
            let text = format!(
                "{a}'s and {b}'s cannot be merged: it maps ranges of kernel numbers to files, \
                 and every build numbers its kernels from 0; let one shard build this library \
                 for all targets, or build a version of it that writes a \
                 TensileLiteLibrary_lazy_<target>_Mapping.dat or a directory for each target \
                 ({text})"
            );
            (Severity::Fault, ids::UNMERGEABLE_FILE, text)
        }
        MustMatch::Fallback => {
            let (severity, end) = if compares || validation.error_on_duplicate_device_code {
                (Severity::Fault, String::new())
            } else {
                (Severity::Warning, format!("; {a}'s is taken"))
            };
            let text = format!(
                "{a}'s and {b}'s cannot be merged: they name different kernels, so with \
                 {a}'s, the GPUs that {b} built for would not find theirs; build with a \
                 directory for each target, or let one shard build for all targets \
                 ({text}{end})"
            );
            (severity, ids::UNMERGEABLE_FILE, text)
        }
    }))
}

fn host_file(first: &ArtifactTree, tree: &ArtifactTree, text: &str) -> String {
    format!("host file, {} against {}: {text}", first.shard, tree.shard)
}

/// One text for several binaries.
fn several<'p>(paths: impl ExactSizeIterator<Item = &'p Path>, text: &str) -> String {
    let count = paths.len();
    let names = paths.map(|path| path.file_name().unwrap_or_default().to_string_lossy());
    format!("each of {count} binaries {text}: {}", list_some(names, MOST_NAMES))
}

/// Whether both have the same file at `path`, whatever its mode.
fn same_bytes(first: &ArtifactTree, second: &ArtifactTree, path: &Path) -> Result<bool, Error> {
    let is_file = |item: &&Entry| matches!(item.node, Node::File { .. });
    let [one, other] = [first, second].map(|tree| tree.entries.get(path).filter(is_file));
    match (one, other) {
        (Some(a), Some(b)) => Ok(explain(a.full(), b.full())?.is_none()),
        _ => Ok(false),
    }
}

/// The text about a copy that is not taken and may differ from the `first` one: device code, host
/// binaries, and data.
fn left_out(
    first: &ArtifactTree,
    item: &Entry,
    difference: &TreeDifference,
) -> Result<Option<String>, Error> {
    let (shard, text) = (&item.origin.tree, &difference.text);
    let is_only = difference.kind == DifferenceKind::OnlySecond;
    if matches!(difference.kind, DifferenceKind::OnlyFirst | DifferenceKind::Bytes) {
        return Ok(None);
    }
    let taken = format!("{text}; {}'s is taken", first.shard);
    Ok(match &*item.class {
        Class::Split if is_only => Some(format!(
            "skipped: only shard {shard} has this host binary, so nothing will load its device code"
        )),
        Class::Unknown { reason, .. } if is_only => {
            Some(format!("skipped: {reason}, and only shard {shard} has it"))
        }
        Class::Unknown { reason, .. } => {
            Some(format!("{reason}, and is not the same as {}'s, which is used", first.shard))
        }
        Class::Split => Some(taken),
        Class::Host if is_text(item.full())? => None,
        Class::Host if is_only => Some(format!("skipped: {text}")),
        Class::Host => Some(taken),
        // An error already.
        Class::Fat | Class::Target { .. } => None,
    })
}

/// Whether a file begins without a NUL.
fn is_text(path: &Path) -> Result<bool, Error> {
    let mut head = Vec::new();
    let file: File = input::open(path)?;
    let read = file.take(HEAD).read_to_end(&mut head);
    read.map_err(|e| Error::io(path, "read", e))?;
    Ok(!head.contains(&0))
}

/// The directories of files for all targets.
fn around_shared(tree: &ArtifactTree) -> impl Iterator<Item = &Path> {
    let shared = tree.entries.iter().filter(|item| item.for_all().is_some());
    shared.flat_map(|item| item.path.ancestors().skip(1))
}
