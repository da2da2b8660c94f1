//! What a run decides, as data. Nothing here changes a file; compressed code that stays waits in nameless scratch files.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_artifact::removal::{self, Going, Removal};
use kpack_core::finding::Finding;
use kpack_core::publish::Identity;
use kpack_core::{Error, Severity, ids};
use kpack_doctor::internal::Root;
use kpack_format::TargetId;
use kpack_split::input::{or_refused, until_unchanged};
use kpack_split::trim::{self, NoCode, Scratch, Trim, TrimPlan};

use kpack_tree::DatabaseSelection;

use super::Options;
use super::held::Held;
use super::links;
use super::note::{Goes, OpenNote};
use super::tree::{Given, TrimTree};

/// What decides.
pub(super) struct TrimPlanner<'a> {
    pub(super) options: &'a Options,
    pub(super) root: &'a Root,
    pub(super) held: &'a Held,
    /// The kernel files that are recognised.
    pub(super) databases: &'a DatabaseSelection,
}

/// A file to look at.
#[derive(Debug, Clone)]
pub(super) struct FileJob {
    /// What is read.
    pub(super) from: PathBuf,
    /// All of its names in the given paths; or the link to it that becomes a file of its own.
    pub(super) names: Vec<PathBuf>,
    pub(super) is_link: bool,
}

/// What becomes of a file.
#[derive(Debug)]
pub(super) enum Decision {
    /// It has no code that kpack can remove.
    Nothing(NoCode),
    /// It has code for the chosen GPUs only.
    Complete,
    /// The file that a link leads to does.
    CompleteElsewhere,
    /// It stays as it is, for a reason to tell.
    Stays(Finding),
    /// Some of its code goes.
    Rewritten(SmallerFile),
}

/// How a file becomes smaller.
#[derive(Debug)]
pub(super) struct SmallerFile {
    pub(super) plan: Box<TrimPlan>,
    /// The symbolic link in whose place the smaller file goes.
    pub(super) link: Option<Identity>,
}

/// What a run does, decided before it changes anything; but how a file becomes smaller, which may take a scratch file, is
/// decided shortly before that.
pub(super) struct TreePlan<'a> {
    pub(super) given: &'a [Given],
    pub(super) tree: &'a TrimTree,
    pub(super) wholes: Vec<Whole<'a>>,
    /// The files to look at.
    pub(super) jobs: Vec<FileJob>,
    /// Files of databases that stay as a whole. It is said once.
    pub(super) left: BTreeSet<PathBuf>,
    /// Whether a file of a database or an archive that stays has code for the chosen GPUs, or may have.
    pub(super) may_serve: bool,
    /// Whether one stays because its code is for other GPUs.
    pub(super) lacks_code: bool,
    /// The names of each file that an earlier run may have changed before it was killed.
    pub(super) unfinished: Vec<Vec<PathBuf>>,
    /// What to say of all that.
    pub(super) findings: Vec<Finding>,
}

/// What goes or changes as a whole in a given path, because it is for other GPUs.
#[derive(Debug)]
pub(super) struct Whole<'a> {
    pub(super) given: &'a Given,
    pub(super) files: Vec<RemovedFile>,
    /// Directories to remove if they are empty then, each before those in it.
    pub(super) directories: Vec<PathBuf>,
    pub(super) manifests: Vec<NewManifest>,
}

/// A file or symbolic link that goes.
#[derive(Debug)]
pub(super) struct RemovedFile {
    pub(super) path: PathBuf,
    pub(super) target: TargetId,
    pub(super) identity: Identity,
    /// In bytes; nothing for a link.
    pub(super) size: u64,
}

/// A manifest that lists what goes, and what it becomes.
#[derive(Debug)]
pub(super) struct NewManifest {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) bytes: Vec<u8>,
}

impl FileJob {
    /// The files of a tree, but for what is `removed`, and the links that lead out of it.
    pub(super) fn all(tree: &TrimTree, removed: &HashSet<&Path>) -> Vec<Self> {
        let files = tree.files.iter().filter_map(|names| {
            let left = names.iter().filter(|name| !removed.contains(name.as_path()));
            let names = Vec::from_iter(left.cloned());
            Some(Self { from: names.first()?.clone(), names, is_link: false })
        });
        let links = tree.links.iter().map(|(link, to)| Self {
            from: to.clone(),
            names: vec![link.clone()],
            is_link: true,
        });
        files.chain(links).collect()
    }

    pub(super) fn goes(&self, rewrite: &SmallerFile) -> Goes<'_> {
        let targets = rewrite.plan.goes().into_keys().collect();
        Goes { names: &self.names, targets, stays: true }
    }
}

impl TrimPlanner<'_> {
    /// Decides what becomes of a file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Changed`], and [`Error::Refused`] if it is not in its directory any more.
    pub(super) fn file(&self, job: &FileJob) -> Result<Decision, Error> {
        until_unchanged(|| self.file_once(job)).map_err(|error| match error {
            // Only the link says why that file was read.
            Error::Io { path, action, source, .. } if job.is_link && path == job.from => {
                Error::io(&job.names[0], action, source)
            }
            error => error,
        })
    }

    fn file_once(&self, job: &FileJob) -> Result<Decision, Error> {
        let spot = self.held.find(&job.names[0])?;
        let (file, link) = if job.is_link {
            let link = spot.identity()?;
            self.check_link(job)?;
            (self.root.open_file(&job.from)?, Some(link))
        } else {
            (spot.open()?, None)
        };
        let dry_run = self.options.dry_run;
        let directory = if dry_run { std::env::temp_dir() } else { spot.directory.anchor() };
        let scratch = Scratch { directory: &directory, only_measured: dry_run };
        let again = job
            .is_link
            .then(|| file.try_clone())
            .transpose()
            .map_err(|error| Error::io(&job.from, "read", error))?;
        Ok(match or_refused(trim::plan(&job.from, file, &self.options.keep, scratch))? {
            Ok(Trim::Planned(plan)) => match self.stays_a_link(job, &plan, again.as_ref())? {
                Some(finding) => Decision::Stays(finding),
                None => Decision::Rewritten(SmallerFile { plan, link }),
            },
            Ok(Trim::Done) if job.is_link => Decision::CompleteElsewhere,
            Ok(Trim::Done) => Decision::Complete,
            Ok(Trim::Nothing(why)) => Decision::Nothing(why),
            Ok(Trim::LeftAlone(finding)) => Decision::Stays(finding),
            Err(refused) => {
                let text = format!("stays as it is: {}", refused.text);
                let path = refused.file().to_owned();
                Decision::Stays(Finding::new(Severity::Warning, refused.id, path, text))
            }
        })
    }

    /// Opens the file.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub(super) fn open(&self, job: &FileJob) -> Result<File, Error> {
        match job.is_link {
            true => self.root.open_file(&job.from),
            false => self.held.find(&job.names[0])?.open(),
        }
    }

    /// Why a link to a file outside stays a link, if it does. That `file` is the planned one; there is none for what is no link.
    fn stays_a_link(
        &self,
        job: &FileJob,
        plan: &TrimPlan,
        file: Option<&File>,
    ) -> Result<Option<Finding>, Error> {
        let Some(file) = file else {
            return Ok(None);
        };
        let (link, real) = (&job.names[0], &job.from);
        let why = links::why_it_stays(self.root, link, real, file)?;
        if Identity::of(real, file)? != *plan.identity() {
            return Err(Error::changed(real));
        }
        Ok(why.map(|why| {
            let text = format!(
                "stays a symbolic link to {}, with all of its code: {why}; to trim that file, run `{}`",
                real.display(),
                self.command(real)
            );
            Finding::new(Severity::Warning, ids::SHARED_LINK, link.clone(), text)
        }))
    }

    /// The command that trims the file at `real`.
    pub(super) fn command(&self, real: &Path) -> String {
        let Options { root, keep, .. } = self.options;
        let gpus = Vec::from_iter(keep.gpus.iter().map(ToString::to_string)).join(",");
        let mut words = vec!["kpack".into(), "trim".into(), "--arch".into(), gpus];
        if keep.spirv {
            words.extend(["--spirv", "keep"].map(str::to_owned));
        }
        let mut path = real.to_owned();
        if let Some(root) = root {
            words.extend(["--root".to_owned(), root.display().to_string()]);
            path = Path::new("/").join(self.root.inside(real).unwrap_or(real));
        }
        words.push(path.display().to_string());
        // No path contains NUL.
        shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default()
    }

    /// Fails if a link leads to another file by now.
    fn check_link(&self, job: &FileJob) -> Result<(), Error> {
        let link = &job.names[0];
        let real = self.root.inside(link).and_then(|inside| self.root.resolve(inside).ok());
        if real.as_ref() == Some(&job.from) { Ok(()) } else { Err(Error::changed(link)) }
    }

    /// Plans a run that finds this `tree` in what is given, and these `notes` of earlier ones. What cannot be read is an error
    /// in the list, and stays as it is.
    ///
    /// # Errors
    /// A signal asked the process to end.
    pub(super) fn plan<'p>(
        &self,
        given: &'p [Given],
        tree: &'p TrimTree,
        notes: &[OpenNote],
        errors: &mut Vec<Error>,
    ) -> Result<TreePlan<'p>, Error> {
        let (mut wholes, mut left, mut findings) = (Vec::new(), BTreeSet::new(), Vec::new());
        let (mut may_serve, mut lacks_code) = (false, false);
        for (given, inventory) in given.iter().zip(&tree.inventories) {
            let real = |path: &Path| self.root.follow(path);
            let keep = &self.options.keep;
            let open = |path: &Path| self.held.find(path)?.open();
            let mut removal =
                removal::plan(&given.0, inventory, self.databases, keep, &real, &open)?;
            wholes.push(self.whole(given, &mut removal)?);
            left.append(&mut removal.left);
            findings.append(&mut removal.findings);
            errors.append(&mut removal.unread);
            may_serve |= removal.may_serve;
            lacks_code |= removal.lacks_code;
        }
        let removed = wholes.iter().flat_map(|whole| &whole.files);
        let jobs = FileJob::all(tree, &removed.map(|removed| &*removed.path).collect());
        let unfinished = unfinished(tree, notes);
        Ok(TreePlan {
            given,
            tree,
            wholes,
            jobs,
            left,
            may_serve,
            lacks_code,
            unfinished,
            findings,
        })
    }

    /// What goes as a whole from a given path. Adds to the removal what else there is to say.
    fn whole<'p>(&self, given: &'p Given, removal: &mut Removal) -> Result<Whole<'p>, Error> {
        let directories = std::mem::take(&mut removal.directories);
        let mut whole = Whole { given, files: Vec::new(), directories, manifests: Vec::new() };
        for going in std::mem::take(&mut removal.files) {
            whole.files.extend(removal.keep(self.removed(&going))?);
        }
        // What stays, a manifest still lists.
        let gone = BTreeSet::from_iter(whole.files.iter().map(|removed| &*removed.path));
        for path in std::mem::take(&mut removal.manifests) {
            whole.manifests.extend(removal.keep(self.manifest(&path, &gone))?.flatten());
        }
        Ok(whole)
    }

    fn removed(&self, going: &Going) -> Result<RemovedFile, Error> {
        let spot = self.held.find(&going.path)?;
        let identity = spot.identity()?;
        // Somebody else's file may be there by now, which nobody has read.
        let is_same = match &going.identity {
            Some(read) => identity == *read,
            None => spot.directory.open_file(spot.name)?.is_none(),
        };
        if !is_same {
            return Err(Error::changed(&going.path));
        }
        let size = going.identity.map_or(0, |read| read.size());
        Ok(RemovedFile { path: going.path.clone(), target: going.target.clone(), identity, size })
    }

    /// What becomes of a manifest without the archives that are `gone`; `None` if it lists none of them.
    fn manifest(&self, path: &Path, gone: &BTreeSet<&Path>) -> Result<Option<NewManifest>, Error> {
        let file = self.held.find(path)?.open()?;
        let identity = Identity::of(path, &file)?;
        let is_gone = |name: &str| gone.contains(&*path.with_file_name(name));
        let bytes = removal::without(path, file, &is_gone)?;
        Ok(bytes.map(|bytes| NewManifest { path: path.to_owned(), identity, bytes }))
    }
}

/// The names of each file in the given paths that an earlier run may have changed before it was killed.
fn unfinished(tree: &TrimTree, notes: &[OpenNote]) -> Vec<Vec<PathBuf>> {
    let mut unfinished = Vec::from_iter(notes.iter().flat_map(OpenNote::unfinished));
    if !unfinished.is_empty() {
        let there = HashSet::<&PathBuf>::from_iter(tree.files.iter().flatten());
        unfinished.iter_mut().for_each(|names| names.retain(|name| there.contains(name)));
    }
    unfinished
}
