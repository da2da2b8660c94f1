//! Trees with the code for chosen GPUs only: what `kpack trim` does.
//!
//! `kpack-split` trims one file, and `kpack-artifact` knows which files of kernel databases and which archives are for
//! other GPUs. Here are the trees: files with several names, links, what lists the files, and the note about what
//! went.

mod lists;
pub mod note;
mod place;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf, absolute};
use std::slice;

use kpack_artifact::kernel_files::KernelFiles;
use kpack_artifact::removal::{self, Removal};
use kpack_core::files::{open, same_bytes};
use kpack_core::finding::Finding;
use kpack_core::platform::{MetadataExt, file_id};
use kpack_core::report::Progress;
use kpack_core::{Error, Severity, ids};
use kpack_split::input::{or_refused, until_unchanged};
use kpack_split::trim::{self, Keep, Trim, TrimPlan};
use serde::Serialize;

use crate::doctor::{Owner, owners};
use lists::Fate;
use note::{Goes, Note};
use place::Root;
use tree::{Given, Tree};

/// The most files that are planned before the note is written for all of them.
const BATCH: usize = 64;

/// As many bytes of code that is compressed again may wait for that.
const MAX_WAITING: u64 = 64 << 20;

/// What to trim, and for what.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directories and files. In a root, they are paths in it.
    pub paths: Vec<PathBuf>,
    /// The root directory of an image.
    pub root: Option<PathBuf>,
    /// The code that stays.
    pub keep: Keep,
    /// Kernel files that kpack does not know.
    pub kernel_files: Vec<KernelFiles>,
    /// Whether to only say what would change.
    pub dry_run: bool,
}

/// What changed, or would.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The GPUs whose code stays.
    pub gpus: Vec<String>,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The files that changed or went.
    pub files: Vec<FileReport>,
    /// The packages of dpkg and RPM that these files are of.
    pub packages: Vec<Owner>,
    /// Their sizes in sum, in bytes: a file with several names counts once.
    pub size_before: u64,
    /// The same afterwards.
    pub size_after: u64,
    /// What else there is to say.
    pub findings: Vec<Finding>,
}

/// A file that changed or went.
#[derive(Debug, Clone, Serialize)]
pub struct FileReport {
    /// Where it is.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub path: PathBuf,
    /// What became of it.
    pub outcome: Outcome,
    /// Its size in bytes.
    pub size_before: u64,
    /// The same afterwards.
    pub size_after: u64,
    /// Bytes of code that went, by target, as it is decompressed.
    pub removed: BTreeMap<String, u64>,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Code went.
    Trimmed,
    /// It was a symbolic link to a file elsewhere, and is a file of its own now.
    Copied,
    /// It was for other GPUs, as a whole.
    Removed,
    /// It lists files that went.
    Updated,
}

/// Removes the code for other GPUs from what is in the given paths.
///
/// # Errors
/// [`Error::Io`], and [`Error::Refused`] if something other than a file has the name of the note. What cannot be trimmed
/// stays as it is, with a warning.
pub fn trim(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let root = Root::find(options.root.as_deref())?;
    let paths = options.paths.iter();
    let paths = paths.map(|path| match &options.root {
        Some(_) => Ok(path.clone()),
        None => absolute(path).map_err(|error| Error::io(path, "find", error)),
    });
    let given = Given::find(&root, &paths.collect::<Result<Vec<_>, Error>>()?)?;
    if !options.dry_run {
        given.iter().try_for_each(|given| Note::prepare(given.directory()))?;
    }
    let tree = Tree::read(&root, &given, !options.dry_run)?;
    let mut run = Run {
        options,
        root: &root,
        given: &given,
        tree: &tree,
        report: Report::default(),
        complete: BTreeSet::new(),
        changed: BTreeSet::new(),
        left: BTreeSet::new(),
        unfinished: Vec::new(),
    };
    run.find_unfinished();
    run.report.gpus = options.keep.gpus.iter().map(ToString::to_string).collect();
    run.report.dry_run = options.dry_run;
    let done = run.all(progress);
    // What went before an error is listed as well.
    if !options.dry_run {
        run.update_lists()?;
    }
    done?;
    if !options.dry_run {
        given.iter().try_for_each(|given| Note::finish(given.directory()))?;
    }
    run.find_owners();
    Ok(run.report)
}

struct Run<'a> {
    options: &'a Options,
    root: &'a Root,
    given: &'a [Given],
    tree: &'a Tree,
    report: Report,
    /// The files that have code for the chosen GPUs only.
    complete: BTreeSet<PathBuf>,
    /// Those of them that this run wrote.
    changed: BTreeSet<PathBuf>,
    /// Files of databases that stay as a whole. It is said once.
    left: BTreeSet<PathBuf>,
    /// The names of each file that an earlier run may have changed before it was killed.
    unfinished: Vec<Vec<PathBuf>>,
}

/// A file to trim.
#[derive(Clone)]
struct Job {
    /// What is read.
    from: PathBuf,
    /// All of its names in the given paths; or the link to it that becomes a file of its own.
    names: Vec<PathBuf>,
    is_link: bool,
}

impl Job {
    fn goes(&self, plan: &TrimPlan) -> Goes<'_> {
        Goes { names: &self.names, targets: plan.goes().into_keys().collect(), stays: true }
    }
}

impl<'a> Run<'a> {
    fn all(&mut self, progress: &dyn Progress) -> Result<(), Error> {
        let (root, given, tree) = (self.root, self.given, self.tree);
        let real = |path: &Path| root.resolve(root.inside(path)?).ok();
        for Given(path) in given.iter().filter(|given| given.0.is_dir()) {
            let rules = &self.options.kernel_files;
            self.remove(removal::plan(path, &self.options.keep, rules, &real)?)?;
        }
        let removed = self.report.files.iter();
        let removed = removed.filter(|file| file.outcome == Outcome::Removed);
        let removed: HashSet<PathBuf> = removed.map(|file| file.path.clone()).collect();
        let files = tree.files.iter().filter_map(|names| {
            let left = names.iter().filter(|name| !removed.contains(*name));
            let names = Vec::from_iter(left.cloned());
            Some(Job { from: names.first()?.clone(), names, is_link: false })
        });
        let links = tree.links.iter().map(|(link, to)| Job {
            from: to.clone(),
            names: vec![link.clone()],
            is_link: true,
        });
        progress.start(tree.files.len() as u64 + tree.links.len() as u64);
        let mut waiting = Vec::new();
        for job in files.chain(links) {
            progress.file(&job.names[0]);
            if let Some(plan) = until_unchanged(|| self.plan(&job))? {
                waiting.push((job, plan));
            }
            let bytes = waiting.iter().map(|(_, plan)| plan.scratch_size()).sum::<u64>();
            if waiting.len() >= BATCH || bytes >= MAX_WAITING {
                self.apply_all(std::mem::take(&mut waiting))?;
            }
            progress.advance(1);
        }
        self.apply_all(waiting)?;
        if self.options.dry_run { Ok(()) } else { self.link_unfinished() }
    }

    /// Plans what becomes of a file.
    fn plan(&mut self, job: &Job) -> Result<Option<Box<TrimPlan>>, Error> {
        let temporary = std::env::temp_dir();
        let near = kpack_core::files::directory_of(&job.names[0]);
        let scratch = if self.options.dry_run { &*temporary } else { near };
        match or_refused(trim::plan(&job.from, &self.options.keep, scratch))? {
            Ok(Trim::Planned(plan)) => return Ok(Some(plan)),
            Ok(Trim::Done) if !job.is_link => self.complete.extend(job.names.iter().cloned()),
            Ok(Trim::Nothing | Trim::Done) => {}
            Ok(Trim::LeftAlone(finding)) => {
                if finding.id != ids::MISSING_TARGET || !self.left.contains(&job.names[0]) {
                    self.report.findings.push(finding);
                }
            }
            Err(refused) => {
                let text = format!("stays as it is: {}", refused.text);
                self.warn(&refused, text);
            }
        }
        Ok(None)
    }

    /// Says that a file stays as it is.
    fn warn(&mut self, finding: &Finding, text: String) {
        let new = Finding::new(Severity::Warning, finding.id, finding.file(), text);
        self.report.findings.push(new);
    }

    /// Changes files as planned. The note says first what goes from all of them: a killed run has then explained what
    /// is missing, and the next one knows what it may have changed.
    fn apply_all(&mut self, planned: Vec<(Job, Box<TrimPlan>)>) -> Result<(), Error> {
        let goes = planned.iter().map(|(job, plan)| job.goes(plan));
        self.note(&Vec::from_iter(goes))?;
        for (job, plan) in planned {
            let mut plan = Some(plan);
            until_unchanged(|| {
                let plan = match plan.take() {
                    Some(plan) => plan,
                    // It changed after it was planned.
                    None => match self.plan(&job)? {
                        Some(plan) => {
                            self.note(&[job.goes(&plan)])?;
                            plan
                        }
                        None => return Ok(()),
                    },
                };
                self.apply(&job, &plan)
            })?;
        }
        Ok(())
    }

    fn apply(&mut self, job: &Job, plan: &TrimPlan) -> Result<(), Error> {
        let (first, others) = (&job.names[0], &job.names[1..]);
        let link = job.is_link.then_some(&**first);
        if !self.options.dry_run && !self.write(plan, &job.from, link)? {
            return Ok(());
        }
        self.complete.extend(job.names.iter().cloned());
        self.changed.extend(job.names.iter().cloned());
        let outcome = if job.is_link { Outcome::Copied } else { Outcome::Trimmed };
        self.trimmed(first, plan, outcome);
        if self.options.dry_run {
            return Ok(());
        }
        for other in others {
            if !trim::link_again(first, other)? {
                self.write(plan, other, None)?;
            }
        }
        Ok(())
    }

    /// Writes a trimmed file. Whether it could.
    fn write(&mut self, plan: &TrimPlan, path: &Path, link: Option<&Path>) -> Result<bool, Error> {
        match or_refused(plan.apply(path, link))? {
            Ok(lost) => {
                let lost = lost.into_iter();
                self.report.findings.extend(
                    lost.map(|text| {
                        Finding::new(Severity::Warning, ids::ATTRIBUTE_LOST, path, text)
                    }),
                );
                Ok(true)
            }
            Err(refused) => {
                self.report.findings.push(refused);
                Ok(false)
            }
        }
    }

    /// Finds the files in the given paths that an earlier run may have changed before it was killed.
    fn find_unfinished(&mut self) {
        let mut there: Option<BTreeSet<&PathBuf>> = None;
        for given in self.given {
            for mut names in Note::unfinished(given.directory()) {
                let there = there.get_or_insert_with(|| self.tree.files.iter().flatten().collect());
                names.retain(|name| there.contains(name));
                self.unfinished.push(names);
            }
        }
    }

    /// Links files again that were one before a killed run replaced some of their names.
    fn link_unfinished(&self) -> Result<(), Error> {
        for names in &self.unfinished {
            let Some((first, others)) = names.split_first() else { continue };
            for other in others {
                if are_alike(first, other)? {
                    trim::link_again(first, other)?;
                }
            }
        }
        Ok(())
    }

    fn trimmed(&mut self, path: &Path, plan: &TrimPlan, outcome: Outcome) {
        let removed = plan.goes().into_iter();
        self.report.findings.extend(plan.left().cloned());
        // A link had no size of its own.
        let before = if outcome == Outcome::Copied { 0 } else { plan.size_before() };
        self.add(FileReport {
            path: path.to_owned(),
            outcome,
            size_before: before,
            size_after: plan.size_after(),
            removed: removed.map(|(target, size)| (target.to_string(), size)).collect(),
        });
    }

    fn add(&mut self, file: FileReport) {
        self.report.size_before += file.size_before;
        self.report.size_after += file.size_after;
        self.report.files.push(file);
    }

    /// Removes what is for other GPUs as a whole.
    fn remove(&mut self, removal: Removal) -> Result<(), Error> {
        self.report.findings.extend(removal.findings);
        self.left.extend(removal.left);
        for (path, bytes) in &removal.manifests {
            let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
            self.add(FileReport {
                path: path.clone(),
                outcome: Outcome::Updated,
                size_before: size,
                size_after: bytes.len() as u64,
                removed: BTreeMap::new(),
            });
        }
        for (path, target) in &removal.files {
            let metadata = path.symlink_metadata().map_err(|e| Error::io(path, "read", e))?;
            let size = if metadata.is_file() { metadata.len() } else { 0 };
            self.add(FileReport {
                path: path.clone(),
                outcome: Outcome::Removed,
                size_before: size,
                size_after: 0,
                removed: BTreeMap::from([(target.to_string(), size)]),
            });
        }
        if self.options.dry_run || removal.files.is_empty() {
            return Ok(());
        }
        let goes = removal.files.iter().map(|(path, target)| Goes {
            names: slice::from_ref(path),
            targets: BTreeSet::from([target.clone()]),
            stays: false,
        });
        let targets = removal.files.iter().map(|(_, target)| target.clone());
        let targets = BTreeSet::from_iter(targets);
        let manifests = removal.manifests.iter().map(|(path, _)| Goes {
            names: slice::from_ref(path),
            targets: targets.clone(),
            stays: true,
        });
        self.note(&Vec::from_iter(goes.chain(manifests)))?;
        for (path, bytes) in &removal.manifests {
            removal::write_manifest(path, bytes)?;
            self.changed.insert(path.clone());
        }
        for (path, _) in &removal.files {
            fs::remove_file(path).map_err(|e| Error::io(path, "remove", e))?;
        }
        for directory in removal.directories.iter().rev() {
            // One with other files stays.
            let _ = fs::remove_dir(directory);
        }
        Ok(())
    }

    /// Notes what goes from files.
    fn note(&self, goes: &[Goes<'_>]) -> Result<(), Error> {
        if self.options.dry_run {
            return Ok(());
        }
        let mut given = self.given.iter();
        given.try_for_each(|given| Note::add(given.directory(), &self.report.gpus, goes))
    }

    /// Finds the packages of the files that changed or went: package managers report these.
    fn find_owners(&mut self) {
        let files = self.report.files.iter().map(|file| &file.path).chain(&self.changed);
        let files = BTreeSet::from_iter(files.map(PathBuf::as_path));
        if !files.is_empty() {
            let (packages, unread) = owners(self.root.directory(), files);
            self.report.packages = packages;
            self.report.findings.extend(unread);
        }
    }

    /// Corrects the lists of the files that this run or an earlier one changed or removed.
    fn update_lists(&mut self) -> Result<(), Error> {
        let mut fates = BTreeMap::new();
        fates.extend(self.complete.iter().map(|path| (path.clone(), Fate::Complete)));
        let tree = self.tree.files.iter().flatten().filter(|path| path.ends_with(note::NAME));
        let tree = tree.filter_map(|path| path.parent());
        let above = self.given.iter().flat_map(|given| given.directory().ancestors());
        let above = above.filter(|directory| self.root.inside(directory).is_some());
        let is_given = |path: &PathBuf| self.given.iter().any(|given| path.starts_with(&given.0));
        for directory in BTreeSet::from_iter(tree.chain(above)) {
            for path in Note::files(directory).into_iter().filter(is_given) {
                let fate = if is_missing(&path)? { Fate::Gone } else { Fate::Changed };
                fates.insert(path, fate);
            }
        }
        fates.extend(self.changed.iter().map(|path| (path.clone(), Fate::Changed)));
        let went = self.report.files.iter().filter(|file| file.outcome == Outcome::Removed);
        fates.extend(went.map(|file| (file.path.clone(), Fate::Gone)));
        let corrected = lists::correct(self.root, &fates);
        self.report.findings.extend(corrected.findings);
        corrected.errors.into_iter().next().map_or(Ok(()), Err)
    }
}

/// Whether nothing has this name.
fn is_missing(path: &Path) -> Result<bool, Error> {
    match path.symlink_metadata() {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Error::io(path, "read", error)),
    }
}

/// Whether two files differ in their names only, and are not one file yet.
fn are_alike(one: &Path, other: &Path) -> Result<bool, Error> {
    let facts = |path: &Path| {
        let failed = |error| Error::io(path, "read", error);
        let file = open(path)?;
        let (metadata, id) = (file.metadata().map_err(failed)?, file_id(&file).map_err(failed)?);
        let modified = metadata.modified().map_err(failed)?;
        Ok::<_, Error>((file, id, (metadata.mode(), metadata.len(), modified)))
    };
    let ((one, one_id, facts_of_one), (file, id, facts)) = (facts(one)?, facts(other)?);
    let same = || same_bytes(&one, &file).map_err(|error| Error::io(other, "read", error));
    Ok(one_id != id && facts_of_one == facts && same()?)
}
