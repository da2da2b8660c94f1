//! Compares a split tree with the unsplit one: nothing lost, nothing added, nothing changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_core::{Finding, Severity, ids};
use kpack_format::Selection;
use kpack_format::names::{is_archive, is_manifest};

use super::TreeContext;
use super::VerifyReport;
use super::artifact_sets::ArtifactSet;
use super::artifacts::{Member, ReadSet};
use super::original::artifacts;
use crate::compare::{Difference, entry_differences, same_bytes};
use crate::directories::is_artifact;
use crate::manifest_txt;
use crate::names::{Role, component};
use crate::shared::Entries;
use kpack_core::files::with_slashes;
use kpack_core::parallel;
use kpack_core::words::{counted, list_some};
use kpack_core::{Error, shown};
use kpack_split::input::{or_refused, walk};
use kpack_tree::databases::{for_all, recognise};
use kpack_tree::place::ForAll;
use kpack_tree::{Class, Entry, Node, Only, Walk};
use walkdir::WalkDir;

/// Maximum number of lost entries that a fault names.
const MOST_NAMES: usize = 5;
/// How many directories above may be too many, as `root/usr` for `root`.
const DEEPEST: usize = 3;

/// Compares the tree at `path` with `unsplit`: two install prefixes, or an artifact directory (or
/// directory of artifact directories) with what was split from it, as far as that was `read`.
pub(super) fn compare(
    path: &Path,
    unsplit: &Path,
    read: &[ReadSet<'_>],
    context: &TreeContext<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let sets = || context.artifacts.split_sets();
    if is_artifact(unsplit) {
        let name = unsplit.file_name().unwrap_or_default().to_string_lossy();
        let own = sets().find(|set| set.component == component(&name));
        let count = sets().count();
        let Some(set) = own.or(sets().next().filter(|_| count == 1)) else {
            let text = match count {
                0 => "there are no split artifacts to compare with it".to_owned(),
                _ => {
                    format!("none of the artifacts is called {name}_…; pass those of one component")
                }
            };
            report.fault(ids::MISSING_ARTIFACT, unsplit, text);
            return Ok(());
        };
        return artifact(unsplit, set, read, context, report);
    }
    let artifacts = &context.original.artifacts;
    if artifacts.is_empty() {
        let pair = Pair {
            unsplit: unsplit.to_owned(),
            roots: vec![SplitRoot {
                path: path.canonicalize().map_err(|e| Error::io(path, "find", e))?,
                read: None,
            }],
            has_groups: false,
        };
        if let Some(text) = pair.has_nothing_in_common(context) {
            report.fault(ids::FILES_DIFFER, unsplit, text);
            return Ok(());
        }
        return pair.compare(context, report);
    }
    let name = |unsplit: &Path| {
        component(&unsplit.file_name().unwrap_or_default().to_string_lossy()).to_owned()
    };
    let has_split = |unsplit: &PathBuf| sets().any(|set| set.component == name(unsplit));
    if !artifacts.iter().any(has_split) {
        report.fault(ids::MISSING_ARTIFACT, unsplit, no_artifact_in_common(path)?);
        return Ok(());
    }
    for unsplit in artifacts {
        let name = name(unsplit);
        match sets().find(|set| set.component == name) {
            Some(set) => artifact(unsplit, set, read, context, report)?,
            None => {
                let text = format!("there is no split artifact {name}_generic");
                report.fault(ids::MISSING_ARTIFACT, unsplit, text);
            }
        }
    }
    Ok(())
}

/// Says that no artifact at `path` was split from the original, and which directory below was probably meant.
fn no_artifact_in_common(path: &Path) -> Result<String, Error> {
    let mut text = format!("has no artifact in common with {}", shown(path));
    let below = walk(path)
        .min_depth(1)
        .max_depth(DEEPEST)
        .into_iter()
        .flatten()
        .filter(|entry| entry.file_type().is_dir());
    for directory in below {
        if !is_artifact(directory.path()) && !artifacts(directory.path())?.is_empty() {
            text += &format!("; did you mean {}?", shown(directory.path()));
            break;
        }
    }
    Ok(text)
}

fn artifact(
    unsplit: &Path,
    set: &ArtifactSet,
    read: &[ReadSet<'_>],
    context: &TreeContext<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let prefixes = manifest_txt::read(unsplit)?;
    let members = read.iter().find(|(own, _)| own.roots == set.roots).map(|(_, members)| members);
    let member = |root: &Path| {
        let root = context.artifacts.asked_for(root).unwrap_or(root);
        members?.iter().find(|member| member.tree.root == root)
    };
    let has_groups = set.roots.iter().any(|(_, role)| *role == Role::Group);
    for prefix in &prefixes {
        let root = |(root, _): &'_ (PathBuf, Role)| SplitRoot {
            path: root.join(prefix),
            // What an artifact does not list was not read.
            read: member(root)
                .filter(|member| member.tree.prefixes.contains(prefix))
                .map(|member| (member, &**prefix)),
        };
        let unsplit = unsplit.join(prefix);
        if unsplit.is_dir() {
            let roots = set.roots.iter().map(root).collect();
            Pair { unsplit, roots, has_groups }.compare(context, report)?;
        }
    }
    let root = |(root, _): &(PathBuf, Role)| SplitRoot { path: root.clone(), read: None };
    let roots = set.roots.iter().map(root).collect();
    let whole = Pair { unsplit: unsplit.to_owned(), roots, has_groups };
    whole.compare_outside(&prefixes, context, report)
}

/// An unsplit install prefix, and the roots that contain its files after the split.
struct Pair<'a> {
    unsplit: PathBuf,
    roots: Vec<SplitRoot<'a>>,
    /// Whether the roots are recombined artifacts.
    has_groups: bool,
}

/// A directory that contains files after the split.
struct SplitRoot<'a> {
    path: PathBuf,
    /// The artifact that was read, and the prefix in it that this is.
    read: Option<(&'a Member, &'a str)>,
}

impl Pair<'_> {
    /// Where `path` is after the split.
    fn places(&self, path: &Path) -> Vec<PathBuf> {
        let places = self.roots.iter().map(|root| root.path.join(path));
        places.filter(|place| place.symlink_metadata().is_ok()).collect()
    }

    fn compare(&self, context: &TreeContext<'_>, report: &mut VerifyReport) -> Result<(), Error> {
        let faults = report.count(Severity::Fault);
        let content = context.original.prefixes.get(&self.unsplit);
        let entries = content.map_or(&[][..], |content| &content.entries);
        let compared: Vec<&Entry> =
            entries.iter().filter(|entry| self.is_compared(entry, context)).collect();
        let left_out = entries.len() - compared.len();
        let mut files = 0;
        let compare =
            |entry: &Entry| self.entry((&entry.path, entry.node, &entry.class), true, context);
        for (own, is_file) in parallel::try_map(compared, compare)? {
            files += usize::from(is_file);
            report.extend([own]);
        }
        let expected = entries.iter().map(|entry| entry.path.to_path_buf()).collect();
        self.nothing_added(&expected, context, report)?;
        if report.count(Severity::Fault) == faults {
            let limited = match left_out {
                0 => String::new(),
                n => format!(", {n} of targets that were not asked for"),
            };
            let text = format!("{} as before, each in one place{limited}", counted(files, "file"));
            report.ok(ids::FILES_MATCH, &self.unsplit, text);
        }
        Ok(())
    }

    /// Says so if none of the original's files is in its place, and which directory was probably meant: one above
    /// or below one of the two.
    fn has_nothing_in_common(&self, context: &TreeContext<'_>) -> Option<String> {
        let content = context.original.prefixes.get(&self.unsplit)?;
        let files: Vec<_> = content
            .entries
            .iter()
            .filter(|entry| !entry.is_directory())
            .map(|entry| &entry.path)
            .collect();
        let is_there = |path: &Path| !self.places(path).is_empty();
        if files.is_empty() || files.iter().any(|file| is_there(file)) {
            return None;
        }
        let below_original = files.iter().find_map(|file| {
            let above =
                Vec::from_iter(file.ancestors().skip(1).filter(|a| !a.as_os_str().is_empty()));
            let is_meant = |above: &&Path| file.strip_prefix(above).is_ok_and(is_there);
            let meant = above.into_iter().rev().take(DEEPEST).find(is_meant)?;
            Some(self.unsplit.join(meant))
        });
        let below_root = || {
            let mut directories = self
                .roots
                .iter()
                .flat_map(|root| {
                    WalkDir::new(&root.path).min_depth(1).max_depth(DEEPEST).into_iter().flatten()
                })
                .filter(|entry| entry.file_type().is_dir());
            let found =
                directories.find(|entry| files.iter().any(|file| entry.path().join(file).exists()));
            found.map(|entry| entry.path().to_owned())
        };
        let meant = below_original
            .or_else(below_root)
            .map(|path| format!("; did you mean {}?", shown(&path)))
            .unwrap_or_default();
        let roots = self.roots.iter().map(|root| shown(&root.path).to_string());
        Some(format!("has no path in common with {}{meant}", Vec::from_iter(roots).join(", ")))
    }

    /// Whether an entry of the original must be there. What was moved to a target that was not asked for
    /// may have been left out.
    fn is_compared(&self, entry: &Entry, context: &TreeContext<'_>) -> bool {
        let is_unknown = matches!(*entry.class, Class::Unknown { .. });
        is_wanted(entry, context) || is_unknown && !self.places(&entry.path).is_empty()
    }

    /// Compares an entry with its counterpart; `is_listed` tells whether it is in a prefix. Also returns
    /// whether that is an existing file.
    fn entry(
        &self,
        (path, node, class): (&Path, Node, &Class),
        is_listed: bool,
        context: &TreeContext<'_>,
    ) -> Result<(VerifyReport, bool), Error> {
        let mut report = VerifyReport::default();
        let unsplit = self.unsplit.join(path);
        let places = self.places(path);
        let is_directory = matches!(node, Node::Directory { .. });
        // Groups may have targets in common.
        let may_share = !is_listed || self.has_groups && matches!(class, Class::Target { .. });
        match &places[..] {
            [] if matches!(node, Node::Directory { empty: false }) => {}
            [] if is_listed => {
                report.fault(ids::FILES_DIFFER, &unsplit, "is lost: no output has it")
            }
            [] if self.has_groups && is_directory => {}
            [] if self.has_groups => {
                let text = "is in no prefix; recombined artifacts do not have it";
                report.note(ids::FILES_DIFFER, &unsplit, text);
            }
            [] => {
                let text = "is lost: it is in no prefix, and no output has it";
                report.fault(ids::FILES_DIFFER, &unsplit, text);
            }
            [place, second, ..] if !is_directory && !may_share => {
                let text = format!("is in {} as well", second.display());
                report.fault(ids::CONFLICTING_FILES, place, text);
            }
            [place, ..] if is_directory => {
                if !place.is_dir() {
                    report.fault(ids::FILES_DIFFER, place, "was a directory");
                }
            }
            places => {
                for place in places {
                    self.same(place, path, class, context, &mut report)?;
                }
                return Ok((report, true));
            }
        }
        Ok((report, false))
    }

    /// Compares files outside of the prefixes. Splitting copies them to the generic artifact
    /// unchanged; recombining drops them.
    fn compare_outside(
        &self,
        prefixes: &[String],
        context: &TreeContext<'_>,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let faults = report.count(Severity::Fault);
        let mut expected = BTreeSet::new();
        let mut files = 0;
        for entry in manifest_txt::walk_outside(&self.unsplit, prefixes) {
            let entry = entry?;
            let path = entry.path().strip_prefix(&self.unsplit).unwrap_or(entry.path());
            let node = if entry.file_type().is_dir() {
                Node::Directory { empty: true }
            } else {
                Node::Symlink
            };
            let (own, is_file) = self.entry((path, node, &Class::Host), false, context)?;
            files += usize::from(is_file);
            report.extend([own]);
            expected.insert(path.to_owned());
        }
        for root in &self.roots {
            for entry in manifest_txt::walk_outside(&root.path, prefixes) {
                // What cannot be listed may have files that the unsplit tree lacks.
                let entry = entry?;
                let path = entry.path().strip_prefix(&root.path).unwrap_or(entry.path());
                if !entry.file_type().is_dir() && !expected.contains(path) {
                    let text = "is not in the unsplit tree";
                    report.fault(ids::FILES_DIFFER, entry.path(), text);
                }
            }
        }
        if files > 0 && report.count(Severity::Fault) == faults {
            let text = format!("{} in no prefix, as before", counted(files, "file"));
            report.ok(ids::FILES_MATCH, &self.unsplit, text);
        }
        Ok(())
    }

    fn same(
        &self,
        place: &Path,
        path: &Path,
        class: &Class,
        context: &TreeContext<'_>,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let unsplit = &self.unsplit.join(path);
        let is_fat = *class == Class::Fat;
        // A database file may have moved to its target's artifact unchanged.
        let may_be_same = !is_fat || recognise(&with_slashes(path)).is_some();
        for found in
            entry_differences(place, unsplit, || Ok(may_be_same && same_bytes(place, unsplit)?))?
        {
            match found? {
                Difference::Kind(_) => {
                    let text = "is of another kind than in the unsplit tree";
                    report.fault(ids::FILES_DIFFER, place, text);
                }
                Difference::Link([now, then]) => {
                    let text = format!("links to {} (before: {})", now.display(), then.display());
                    report.fault(ids::FILES_DIFFER, place, text);
                }
                Difference::Mode([now, then]) => {
                    let text = format!("has mode {now:o} (before: {then:o})");
                    report.fault(ids::FILES_DIFFER, place, text);
                }
                Difference::Names(_) if is_fat => {}
                Difference::Names(names) => {
                    let [now, then] = names.map(|names| counted(names as usize, "name"));
                    report.note(ids::FILES_DIFFER, place, format!("has {now} (before: {then})"));
                }
                Difference::Bytes if is_fat || self.has_only_spirv(path, context) => {
                    let place = context.files.parsed.open(place)?;
                    context.files.compare(&place, unsplit, report)?;
                }
                Difference::Bytes => {
                    if let Some(text) = lost_in_merge(place, unsplit, path)? {
                        report.fault(ids::FILES_DIFFER, place, text);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the binary at `path` is one of those that stay as they are because of their SPIR-V, unless that is
    /// dropped or archived.
    fn has_only_spirv(&self, path: &Path, context: &TreeContext<'_>) -> bool {
        let content = context.original.prefixes.get(&self.unsplit);
        let mut observed = content.into_iter().flat_map(|content| &content.observations);
        observed.any(|found| found.id == ids::SPIRV_KEPT && found.path.as_deref() == Some(path))
    }

    /// Checks that the outputs add nothing except archives and their manifests.
    fn nothing_added(
        &self,
        expected: &BTreeSet<PathBuf>,
        context: &TreeContext<'_>,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        for SplitRoot { path: root, read } in self.roots.iter().filter(|root| root.path.is_dir()) {
            let walked;
            let entries: Vec<&Entry> = if let Some((member, prefix)) = read {
                // Of an artifact that was asked for, this was reported.
                let is_new = |found: &&Finding| !member.asked_for && found.file().starts_with(root);
                report.findings.extend(member.tree.rejected.iter().filter(is_new).cloned());
                let entries = member.tree.entries.iter();
                entries.filter(|entry| *entry.origin.prefix == **prefix).collect()
            } else {
                let (databases, parsed) = (context.kernel_files, context.known());
                let walk = Walk { prefix: root, databases, parsed, only: Only::All };
                walked = match or_refused(walk.collect())? {
                    Ok(content) => content,
                    Err(found) => {
                        report.findings.push(found);
                        continue;
                    }
                };
                walked.entries.iter().collect()
            };
            for entry in entries.into_iter().filter(|entry| !entry.is_directory()) {
                let Some(path) = entry.installed() else { continue };
                let is_known = is_archive(path) || is_manifest(path) || expected.contains(path);
                if !is_known && is_wanted(entry, context) {
                    let text = "is not in the unsplit tree";
                    report.fault(ids::FILES_DIFFER, &root.join(path), text);
                }
            }
        }
        Ok(())
    }
}

/// Whether the caller did not leave out its target.
fn is_wanted(entry: &Entry, context: &TreeContext<'_>) -> bool {
    let named: Selection = context.files.options.targets.iter().collect();
    named.is_empty() || entry.class.target().is_none_or(|target| named.matches(target))
}

/// Describes what is missing from a file whose bytes changed. A file for all targets, at `within`
/// in the prefix, may have gained entries from other shards.
fn lost_in_merge(place: &Path, unsplit: &Path, within: &Path) -> Result<Option<String>, Error> {
    let other_bytes = || Some("has other bytes than in the unsplit tree".to_owned());
    let Some(ForAll::Merge(kind)) = for_all(within) else {
        return Ok(other_bytes());
    };
    let (now, then) = (Entries::read(place, kind)?, Entries::read(unsplit, kind)?);
    let (Ok(now), Ok(then)) = (now, then) else {
        return Ok(other_bytes());
    };
    let lost = list_some(then.not_in(&now), MOST_NAMES);
    let noun = then.noun();
    let text = || format!("lacks the entries {noun} {lost} that the unsplit file has");
    Ok((!lost.is_empty()).then(text))
}
