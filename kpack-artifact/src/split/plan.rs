//! The split artifacts as data: what goes where. Nothing is written yet, and everything is read that
//! could be a reason to refuse.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use kpack_format::manifest::Manifest;
use kpack_format::{Selection, TargetId};

use super::contents::{Contents, InputManifest};
use super::modules::{Module, ModuleBinary};
use super::report::SplitReport;
use super::{Options, Unknown};
use crate::code_ids;
use crate::names::{self, Role};
use crate::output::OutputTree;
use crate::rules::conflicts;
use crate::tree::ArtifactTree;
use kpack_core::files::with_slashes;
use kpack_core::report::{FileReport, Outcome};
use kpack_core::words::list;
use kpack_core::{Error, Severity, ids};
use kpack_split::split::{Unexpected, warn_of_names};
use kpack_tree::gaps::gaps_once_split;
use kpack_tree::place::Place;
use kpack_tree::{Class, Entry, Node, Parsed, databases};

/// How many files of one directory that look architecture-specific are named one by one.
const MOST_UNKNOWN: usize = 5;

/// The split artifacts, before they are written.
pub(super) struct ArtifactPlan {
    /// By processor; `None` is the generic one.
    pub(super) artifacts: BTreeMap<Option<TargetId>, OutputTree>,
    /// What is split.
    pub(super) modules: Vec<Module>,
    /// The targets that are kept.
    pub(super) targets: Targets,
    /// What is known of the result before anything is written.
    pub(super) report: SplitReport,
}

/// The targets that there is something for.
#[derive(Debug, Default)]
pub(super) struct Targets {
    kept: BTreeSet<TargetId>,
    left_out: BTreeSet<TargetId>,
}

impl ArtifactPlan {
    /// How many bytes are read, device code as it is unpacked.
    pub(super) fn bytes(&self) -> u64 {
        let copied = self.artifacts.values().map(|output| output.copied);
        let binaries = self.modules.iter().flat_map(|module| &module.binaries);
        let keeps = |target: &TargetId| self.targets.keeps(target);
        let device_code = binaries.map(|binary| binary.file.code.device_size(&keeps));
        copied.chain(device_code).fold(0, u64::saturating_add)
    }
}

/// Plans the artifacts.
pub(super) fn plan(options: &Options, mut contents: Contents) -> Result<ArtifactPlan, Error> {
    let mut report = std::mem::take(&mut contents.report);
    report.device_code = !contents.found.is_empty();
    report.prefixes = contents.prefixes();
    let found = std::mem::take(&mut contents.found);
    let targets = Targets::choose(options, found, &mut report)?;
    report_observations(&contents, &mut report);
    report_gaps(&contents, &mut report)?;
    // Only the search for gaps needs what library files name.
    for (_, tree) in &mut contents.trees {
        tree.forget_libraries();
    }
    for module in &contents.modules {
        report_module(module, &targets, options, &mut report);
    }
    let artifacts = Planner::new(options, &contents, &targets, &mut report)?.artifacts()?;
    let of_databases = contents.entries().filter_map(|(_, item)| match &*item.class {
        Class::Target { target, .. } if targets.keeps(target) => Some(&*item.path),
        _ => None,
    });
    let debug = &options.storage.debug;
    let note = databases::not_stripped(of_databases, debug, &options.artifact_dir);
    report.findings.extend(note);
    // What is planned is enough from here on, and conflicts take memory, too.
    let Contents { modules, trees, .. } = contents;
    drop(trees);
    // Files that are installed at one path and are not the same. Nobody knows yet what is installed together.
    let component = &options.artifact_prefix;
    let installed = artifacts.values().flat_map(|output| output.to_install(component, false));
    for conflict in conflicts(installed)? {
        let path = conflict.entry.artifact.join(conflict.entry.path);
        report.warn(ids::CONFLICTING_FILES, path, format!("it {}", conflict.text));
    }
    report.device_code |= report.already_split + report.left_generic > 0;
    Ok(ArtifactPlan { artifacts, modules, targets, report })
}

/// Reports what becomes of a module's binaries.
fn report_module(module: &Module, targets: &Targets, options: &Options, report: &mut SplitReport) {
    let all = module.found();
    let kept = all.iter().filter(|target| targets.keeps(target));
    let warning = warn_of_names(module.names, &options.artifact_dir, kept);
    report.findings.extend(warning);
    for binary in &module.binaries {
        let own = binary.file.code.targets();
        if !own.is_empty() && !own.iter().any(|target| targets.keeps(target)) {
            let text = format!("skipping all of its device code: {}", list(&own));
            report.warn(ids::UNEXPECTED_TARGET, &binary.file.code.path, text);
        }
        if let Some(note) = binary.file.code.note() {
            report.note(ids::SPIRV_KEPT, &binary.file.code.path, note);
        }
        report.binaries.push(file_report(binary, targets));
    }
}

/// Reports what is worth saying about the files.
fn report_observations(contents: &Contents, report: &mut SplitReport) {
    for (_, tree) in &contents.trees {
        for found in &tree.observations {
            report.device_code |=
                found.id == ids::FILE_FOR_ALL_TARGETS || found.id == ids::SPIRV_KEPT;
            // Each is copied as it is.
            let mut found = found.clone();
            found.severity = found.severity.min(Severity::Warning);
            report.findings.push(found);
        }
    }
}

/// Reports what kernel databases lack.
fn report_gaps(contents: &Contents, report: &mut SplitReport) -> Result<(), Error> {
    let read =
        |generic: &PathBuf| ArtifactTree::read("", generic, &Role::Generic, Parsed::default());
    let beside = contents.generic_beside.as_ref().map(read).transpose()?;
    let own = || contents.trees.iter().map(|(_, tree)| tree);
    for gap in gaps_once_split(own().chain(&beside).flat_map(|tree| &tree.entries)) {
        let is_read = own().any(|tree| gap.from.starts_with(&tree.root));
        if is_read {
            report.warn(ids::INCOMPLETE_DATABASE, &gap.from, gap.text());
        }
    }
    Ok(())
}

/// Plans the artifacts entry by entry.
struct Planner<'a> {
    options: &'a Options,
    contents: &'a Contents,
    targets: &'a Targets,
    /// Manifests that list something that is left out.
    rewritten: HashMap<&'a Path, Vec<u8>>,
    /// The modules of fat binaries, and the sizes of their host binaries.
    hosts: HashMap<&'a Path, (usize, u64)>,
    /// Archives and manifests that are written with the new device code.
    written_anew: HashSet<&'a Path>,
    artifacts: BTreeMap<Option<TargetId>, OutputTree>,
    /// Files in no known place, by directory and by what becomes of them.
    unknown: BTreeMap<(PathBuf, Option<TargetId>), Vec<UnknownFile<'a>>>,
    report: &'a mut SplitReport,
}

/// A file that looks architecture-specific, in no known place.
struct UnknownFile<'a> {
    from: &'a Path,
    /// Why it looks so.
    reason: &'a str,
}

impl<'a> Planner<'a> {
    fn new(
        options: &'a Options,
        contents: &'a Contents,
        targets: &'a Targets,
        report: &'a mut SplitReport,
    ) -> Result<Self, Error> {
        let Contents { trees, modules, manifests, .. } = contents;
        let written_anew = modules.iter().flat_map(|module| written_anew(module, targets));
        let rewritten = manifests
            .iter()
            .filter_map(|listed| Some((listed.from.as_path(), rewritten(listed, targets)?)));
        let hosts = modules.iter().enumerate().flat_map(|(index, module)| {
            module.binaries.iter().flat_map(move |binary| {
                let host = (index, binary.plan.output_size());
                binary.files.iter().map(move |(_, from)| (from.as_path(), host))
            })
        });
        let prefixes = contents.prefixes();
        let output = |target: Option<&TargetId>| {
            let name = names::artifact(&options.artifact_prefix, target);
            let mut output = OutputTree::new(name, contents.model(target), &contents.databases)?;
            output.add_prefixes(&prefixes);
            Ok::<_, Error>(output)
        };
        let mut artifacts = BTreeMap::new();
        if contents.generic_beside.is_none() {
            let mut generic = output(None)?;
            for (_, tree) in trees.iter().filter(|(owner, _)| owner.is_none()) {
                generic.add_prefix_directories(tree);
            }
            artifacts.insert(None, generic);
        }
        for target in targets.kept.iter().map(TargetId::plain) {
            let output = output(Some(&target))?;
            artifacts.insert(Some(target), output);
        }
        Ok(Self {
            options,
            contents,
            targets,
            rewritten: rewritten.collect(),
            hosts: hosts.collect(),
            written_anew: written_anew.collect(),
            artifacts,
            unknown: BTreeMap::new(),
            report,
        })
    }

    /// Plans the artifacts: the generic one, and those that have anything.
    fn artifacts(mut self) -> Result<BTreeMap<Option<TargetId>, OutputTree>, Error> {
        for (owner, item) in self.contents.entries() {
            self.add(owner, item)?;
        }
        self.report_unknown();
        let with_archives: HashSet<TargetId> = self
            .contents
            .modules
            .iter()
            .flat_map(Module::found)
            .map(|found| found.plain())
            .collect();
        let mut artifacts = self.artifacts;
        artifacts.retain(|target, output| {
            let has_archives = |target| with_archives.contains(target);
            output.has_files() || target.as_ref().is_none_or(has_archives)
        });
        Ok(artifacts)
    }

    /// Adds an entry, which is in the artifact of `owner` already, if in any.
    fn add(&mut self, owner: Option<&TargetId>, item: &'a Entry) -> Result<(), Error> {
        let own = match (owner, &*item.class) {
            (None, Class::Unknown { target, reason, .. }) => {
                let file = UnknownFile { from: item.full(), reason };
                self.unknown(file, target.as_ref())?
            }
            _ => item.target(owner),
        };
        let target = own.map(TargetId::plain).filter(|plain| {
            // An empty directory is no reason for an artifact, so it stays in the generic one.
            !item.is_directory() || self.targets.kept.iter().any(|kept| kept.plain() == *plain)
        });
        if own.is_some_and(|own| !item.is_directory() && !self.targets.keeps(own)) {
            return Ok(());
        }
        if self.written_anew.contains(item.full()) {
            return Ok(());
        }
        self.report.already_split += u64::from(*item.class == Class::Split);
        if target.is_none() && self.is_device_code(owner, item) {
            self.report.left_generic += 1;
        }
        let Some(output) = self.artifacts.get_mut(&target) else {
            return Ok(());
        };
        if let Some(other) = output.file_at(&item.path).filter(|_| !item.is_directory()) {
            let reason = format!("takes the place of {}", other.display());
            return Err(Error::rejected(ids::CONFLICTING_FILES, item.full(), reason));
        }
        match (self.rewritten.remove(item.full()), &*item.class) {
            (Some(bytes), _) => output.add_bytes(&item.path, bytes, item.full()),
            (None, Class::Split) => {
                let left_out = &self.targets.left_out;
                output.add_edited(item, code_ids::without(item, left_out)?);
            }
            (None, _) => match self.hosts.get(item.full()) {
                Some((module, size)) => output.add_host(item, *module, *size),
                None => output.add(item),
            },
        }
        Ok(())
    }

    /// The target to which a file in no known place is moved, if to any.
    fn unknown<'t>(
        &mut self,
        file: UnknownFile<'a>,
        target: Option<&'t TargetId>,
    ) -> Result<Option<&'t TargetId>, Error> {
        if self.options.unknown == Unknown::Error {
            let text = format!("{}; it is in no known kernel database", file.text());
            return Err(Error::rejected(ids::UNPLACED_FILE, file.from, text));
        }
        let target = target.filter(|_| self.options.unknown == Unknown::Move);
        if target.is_none_or(|target| self.targets.keeps(target)) {
            let directory = file.from.parent().unwrap_or(Path::new("")).to_owned();
            let same = self.unknown.entry((directory, target.cloned()));
            same.or_default().push(file);
        }
        Ok(target)
    }

    /// Reports the files in no known place, many in one directory by their number.
    fn report_unknown(&mut self) {
        let mut found: Vec<(PathBuf, String, bool)> = Vec::new();
        for ((directory, target), files) in std::mem::take(&mut self.unknown) {
            let moves = self.options.unknown == Unknown::Move;
            let is_moved = target.is_some();
            if files.len() <= MOST_UNKNOWN {
                let end = match &target {
                    Some(target) => format!("moved to {target}"),
                    None if moves => "it cannot be moved to one target, and stays generic".into(),
                    None => "it stays generic".into(),
                };
                found.extend(files.iter().map(|file| {
                    (file.from.to_owned(), format!("{}; {end}", file.text()), is_moved)
                }));
                continue;
            }
            let names = files.iter().filter_map(|file| file.from.file_name()?.to_str());
            let places: BTreeSet<String> = names.flat_map(databases::places_of).collect();
            let first = files[0].from.file_name().unwrap_or_default().display();
            let (count, reason) = (files.len(), files[0].reason);
            let mut text =
                format!("{count} files look architecture-specific, such as {first}: {reason}");
            if !places.is_empty() {
                let like = "like those of a kernel database, which kpack expects in";
                text += &format!("; named {like} {}", list(&places));
            }
            text += &match &target {
                Some(target) => format!("; moved to {target}"),
                None if moves => "; they have no single target, and stay generic".into(),
                None => "; they stay generic".into(),
            };
            found.push((directory, text, is_moved));
        }
        found.sort();
        for (path, text, is_moved) in found {
            if is_moved {
                self.report.note(ids::UNPLACED_FILE, path, text)
            } else {
                self.report.warn(ids::UNPLACED_FILE, path, text)
            }
        }
    }

    /// Whether an entry is device code, in a known place or not.
    fn is_device_code(&self, owner: Option<&TargetId>, item: &Entry) -> bool {
        let is_of_unselected_database = || {
            let path = with_slashes(item.installed().unwrap_or(&item.path));
            matches!(self.contents.databases.recognise(&path), Some((owner, place))
                if !owner.is_selected() && !matches!(place, Place::ForAll(_)))
        };
        match &*item.class {
            Class::Unknown { device_code, .. } => *device_code,
            Class::Host => {
                let is_listed = owner.is_none() && !item.origin.prefix.is_empty();
                let is_file = matches!(item.node, Node::File { .. });
                is_listed && is_file && is_of_unselected_database()
            }
            _ => false,
        }
    }
}

impl UnknownFile<'_> {
    fn text(&self) -> String {
        format!("looks architecture-specific: {}", self.reason)
    }
}

fn file_report(binary: &ModuleBinary, targets: &Targets) -> FileReport {
    let own = binary.file.code.targets().into_iter();
    let kept = own.filter(|target| targets.keeps(target));
    let outcome = Outcome::Split {
        wrappers: binary.file.code.wrapper_count(),
        targets: kept.map(|target| target.to_string()).collect(),
        size_before: binary.file.code.file_size(),
        size_after: binary.plan.output_size(),
    };
    FileReport::new(format!("{}/{}", binary.prefix, binary.name), outcome)
}

/// The files of the input that a module's new archives and manifest replace.
fn written_anew<'m>(module: &'m Module, targets: &Targets) -> impl Iterator<Item = &'m Path> {
    let found = module.found();
    let archives = module
        .present
        .iter()
        .filter(move |(target, _)| found.contains(*target) && targets.keeps(target))
        .map(|(_, path)| path);
    module.manifest.iter().chain(archives).map(PathBuf::as_path)
}

/// The new bytes of a manifest; `None` if everything in it is kept. An empty list is kept as well: it tells that
/// no archives are expected.
fn rewritten(listed: &InputManifest, targets: &Targets) -> Option<Vec<u8>> {
    let mut manifest = listed.manifest.clone();
    targets.retain(&mut manifest);
    let is_changed = manifest.kpack_files.len() != listed.manifest.kpack_files.len();
    is_changed.then(|| manifest.to_bytes())
}

impl Targets {
    /// Chooses from the targets that were `found`, each with a file that is for it.
    fn choose(
        options: &Options,
        found: BTreeMap<TargetId, PathBuf>,
        report: &mut SplitReport,
    ) -> Result<Self, Error> {
        let expected: Selection = options.targets.iter().collect();
        if expected.is_empty() || found.is_empty() {
            return Ok(Self { kept: found.into_keys().collect(), left_out: BTreeSet::new() });
        }
        let there = list(found.keys());
        let lacks = expected.unmatched(&Vec::from_iter(found.keys()));
        if !lacks.is_empty() {
            let text = format!("no device code for {} (found {there})", list(lacks));
            report.warn(ids::MISSING_TARGET, &options.artifact_dir, text);
        }
        let mut targets = Self::default();
        for (target, path) in found {
            if expected.matches(&target) {
                targets.kept.insert(target);
                continue;
            }
            match options.unexpected {
                Unexpected::Keep => {
                    targets.kept.insert(target);
                }
                Unexpected::Drop => {
                    report.warn(
                        ids::UNEXPECTED_TARGET,
                        path,
                        format!(
                            "skipping code for {target}, which --gpu-targets does not list (first found \
                             here)"
                        ),
                    );
                    report.left_out.push(target.to_string());
                    targets.left_out.insert(target);
                }
                Unexpected::Error => {
                    return Err(Error::rejected(
                        ids::UNEXPECTED_TARGET,
                        &path,
                        format!(
                            "is for {target}; expected only {}. Add it to --gpu-targets, or build without it",
                            list(expected.iter())
                        ),
                    ));
                }
            }
        }
        Ok(targets)
    }

    pub(super) fn keeps(&self, target: &TargetId) -> bool {
        self.kept.contains(target)
    }

    /// Removes skipped archives from a manifest.
    pub(super) fn retain(&self, manifest: &mut Manifest) {
        let kept = |name: &str| name.parse().is_ok_and(|target| self.keeps(&target));
        manifest.kpack_files.retain(|name, _| kept(name));
    }
}
