//! Changes files as planned, and reports what became of them. Whatever can be done is done: an error is kept for the
//! report, unless it says that the run is to stop.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::slice;

use kpack_core::files::same_bytes;
use kpack_core::finding::Finding;
use kpack_core::platform::{MetadataExt, file_id};
use kpack_core::publish::Identity;
use kpack_core::report::Progress;
use kpack_core::{Error, Severity, ids, interrupt};
use kpack_doctor::internal::note::NAME;
use kpack_split::input::{or_refused, until_unchanged};
use kpack_split::trim::{self, TrimDestination, WrittenFile};

use super::found::Found;
use super::held::Spot;
use super::ledger::Ledger;
use super::lists::{self, Fate, Places};
use super::note::Goes;
use super::plan::{
    Decision, FileJob, NewManifest, RemovedFile, SmallerFile, TreePlan, TrimPlanner, Whole,
};
use super::tree::Given;
use super::{TrimOutcome, TrimReport, TrimmedFile};

/// The most files that are planned before the note is written for all of them.
const BATCH: usize = 64;

/// As many bytes of code that is compressed again may wait for that.
const MAX_WAITING: u64 = 64 << 20;

/// The changes of a run, so far.
pub(super) struct Application<'a> {
    planner: &'a TrimPlanner<'a>,
    plan: &'a TreePlan<'a>,
    ledger: Ledger<'a>,
    report: TrimReport,
    /// What became of files, or would.
    fates: BTreeMap<PathBuf, Fate>,
    /// What the given paths have.
    found: Found,
    /// Whether some of the work failed that the note says was begun.
    is_unfinished: bool,
}

impl<'a> Application<'a> {
    pub(super) fn new(
        planner: &'a TrimPlanner<'a>,
        plan: &'a TreePlan<'a>,
        ledger: Ledger<'a>,
    ) -> Self {
        let report = TrimReport {
            gpus: planner.options.keep.gpus.iter().map(ToString::to_string).collect(),
            dry_run: planner.options.dry_run,
            ..TrimReport::default()
        };
        let found = Found::new(plan);
        Self { planner, plan, ledger, report, fates: BTreeMap::new(), found, is_unfinished: false }
    }

    /// Does all of it. `errors` say what could not be read for the plan.
    ///
    /// # Errors
    /// A signal asked the process to end; [`Error::Refused`] if only files are given of kinds that trim does not read.
    pub(super) fn run(
        mut self,
        errors: Vec<Error>,
        progress: &dyn Progress,
    ) -> Result<TrimReport, Error> {
        let plan = self.plan;
        for error in errors {
            self.keep_error(Err::<(), _>(error))?;
        }
        self.report.findings.extend(plan.findings.iter().cloned());
        if self.planner.options.dry_run {
            for whole in &plan.wholes {
                self.report.files.extend(whole.report());
            }
            self.rewrite_all(progress)?;
        } else {
            self.remove_leftovers()?;
            for whole in &plan.wholes {
                self.remove(whole)?;
            }
            self.rewrite_all(progress)?;
            self.link_unfinished()?;
            self.update_lists()?;
            if !self.is_unfinished {
                let finished = self.ledger.finish();
                self.keep_error(finished)?;
            }
        }
        let changed = self.fates.iter().filter(|(_, fate)| **fate != Fate::Complete);
        let reported = self.report.files.iter().map(|file| &file.path);
        let files = reported.chain(changed.map(|(path, _)| path)).map(PathBuf::as_path);
        let (packages, findings) = self.ledger.owners(files.collect());
        self.report.packages = packages;
        self.report.findings.extend(findings);
        let mut unknown = self.found.unknown(self.planner, plan);
        if !unknown.is_empty() && unknown.len() == plan.given.len() {
            return Err(unknown.swap_remove(0));
        }
        // What cannot be read may have code.
        if self.report.errors.is_empty() {
            self.report.findings.extend(self.found.findings(plan));
            self.report.errors.extend(self.found.none_for_gpus(self.planner, plan));
        }
        self.report.errors.extend(unknown);
        Ok(self.report)
    }

    /// Keeps an error for the report.
    fn keep_error<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                interrupt::check(&self.plan.given[0].0, "trim")?;
                self.report.errors.push(error);
                Ok(None)
            }
        }
    }

    /// The same, for work that the note says was begun.
    fn keep_failure<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        self.is_unfinished |= result.is_err();
        self.keep_error(result)
    }

    /// Removes what interrupted runs left.
    fn remove_leftovers(&mut self) -> Result<(), Error> {
        for path in &self.plan.tree.leftovers {
            let directory = self.planner.held.directory(path);
            let done = directory.and_then(|directory| directory.remove_all_leftovers());
            self.keep_error(done)?;
        }
        Ok(())
    }

    /// Removes what is for other GPUs as a whole.
    fn remove(&mut self, whole: &Whole<'a>) -> Result<(), Error> {
        if whole.files.is_empty() {
            return Ok(());
        }
        let goes = whole.files.iter().map(|removed| Goes {
            names: slice::from_ref(&removed.path),
            targets: BTreeSet::from([removed.target.clone()]),
            stays: false,
        });
        // Archives that come back without their manifest are not found.
        let manifests = whole.manifests.iter().map(|manifest| {
            let own = whole
                .files
                .iter()
                .filter(|removed| removed.path.parent() == manifest.path.parent());
            let targets = own.map(|removed| removed.target.clone()).collect();
            Goes { names: slice::from_ref(&manifest.path), targets, stays: true }
        });
        if self.note(&Vec::from_iter(goes.chain(manifests)))?.contains(&whole.given) {
            return Ok(());
        }
        let mut failed = HashSet::new();
        for manifest in &whole.manifests {
            let done = self.write_manifest(manifest);
            match self.keep_failure(done)? {
                Some(()) => _ = self.fates.insert(manifest.path.clone(), Fate::Changed),
                None => _ = failed.insert(&*manifest.path),
            }
        }
        // What a manifest still lists stays.
        let listing = HashSet::<_>::from_iter(failed.iter().map(|path| path.parent()));
        for removed in &whole.files {
            let path = &*removed.path;
            if listing.contains(&path.parent()) {
                failed.insert(path);
                continue;
            }
            let spot = self.planner.held.find(path);
            let done =
                spot.and_then(|spot| spot.directory.remove_same(spot.name, &removed.identity));
            match self.keep_failure(done)? {
                Some(()) => _ = self.fates.insert(path.to_owned(), Fate::Gone),
                None => _ = failed.insert(path),
            }
        }
        let done = whole.report().filter(|file| !failed.contains(&*file.path));
        self.report.files.extend(done);
        for directory in whole.directories.iter().rev() {
            // One with other files stays.
            if let Ok(spot) = self.planner.held.find(directory) {
                spot.directory.remove_empty(spot.name);
            }
        }
        Ok(())
    }

    fn write_manifest(&self, new: &NewManifest) -> Result<(), Error> {
        let spot = self.planner.held.find(&new.path)?;
        let old = spot.directory.open_same(spot.name, &new.identity)?;
        spot.rewrite(&old, &new.bytes)
    }

    /// Plans what becomes of each file that stays, and changes them, many at a time.
    fn rewrite_all(&mut self, progress: &dyn Progress) -> Result<(), Error> {
        let plan = self.plan;
        progress.start(plan.jobs.len() as u64);
        let mut waiting = Vec::new();
        for job in &plan.jobs {
            progress.file(&job.names[0]);
            let decision = self.planner.file(job);
            if let Some(decision) = self.keep_error(decision)? {
                self.found.add(plan, job, &decision);
                waiting.extend(self.decided(job, decision).map(|rewrite| (job, rewrite)));
            }
            let bytes = waiting.iter().map(|(_, rewrite)| rewrite.plan.scratch_size()).sum::<u64>();
            if waiting.len() >= BATCH || bytes >= MAX_WAITING {
                self.rewrite_batch(std::mem::take(&mut waiting))?;
            }
            progress.advance(1);
        }
        self.rewrite_batch(waiting)
    }

    /// Reports what was decided, unless the file is to be rewritten.
    fn decided(&mut self, job: &FileJob, decision: Decision) -> Option<SmallerFile> {
        match decision {
            Decision::Rewritten(rewrite) => return Some(rewrite),
            Decision::Complete => {
                self.fates.extend(job.names.iter().map(|name| (name.clone(), Fate::Complete)));
            }
            Decision::Nothing(_) | Decision::CompleteElsewhere => {}
            Decision::Stays(finding) => {
                if finding.id != ids::MISSING_TARGET || !self.plan.left.contains(&job.names[0]) {
                    self.report.findings.push(finding);
                }
            }
        }
        None
    }

    /// Changes files as planned. The note says first what goes from all of them: a killed run has then explained what
    /// is missing, and the next one knows what it may have changed.
    fn rewrite_batch(&mut self, planned: Vec<(&FileJob, SmallerFile)>) -> Result<(), Error> {
        let goes = planned.iter().map(|(job, rewrite)| job.goes(rewrite));
        let without = self.note(&Vec::from_iter(goes))?;
        let is_noted = |job: &FileJob| {
            let mut names = job.names.iter();
            names.all(|name| !without.iter().any(|given| name.starts_with(&given.0)))
        };
        for (job, rewrite) in planned.into_iter().filter(|(job, _)| is_noted(job)) {
            let done = self.rewrite(job, rewrite);
            self.keep_failure(done)?;
        }
        Ok(())
    }

    fn rewrite(&mut self, job: &FileJob, rewrite: SmallerFile) -> Result<(), Error> {
        let mut planned = Some(rewrite);
        until_unchanged(|| {
            if let Some(rewrite) = planned.take() {
                return self.rewrite_once(job, &rewrite);
            }
            // It changed after it was planned.
            let decision = self.planner.file(job)?;
            match self.decided(job, decision) {
                Some(rewrite) if self.note(&[job.goes(&rewrite)])?.is_empty() => {
                    self.rewrite_once(job, &rewrite)
                }
                _ => Ok(()),
            }
        })
    }

    fn rewrite_once(&mut self, job: &FileJob, rewrite: &SmallerFile) -> Result<(), Error> {
        let (first, others) = (&job.names[0], &job.names[1..]);
        if self.planner.options.dry_run {
            self.rewritten(job, rewrite, None);
            job.names.iter().for_each(|name| self.has_changed(name));
            return Ok(());
        }
        let spot = self.planner.held.find(first)?;
        let input = match rewrite.link {
            Some(_) => self.planner.root.open_file(&job.from)?,
            None => spot.directory.open_same(spot.name, rewrite.plan.identity())?,
        };
        let Some(written) = self.write(rewrite, &job.from, &input, &spot)? else {
            return Ok(());
        };
        self.rewritten(job, rewrite, Some(written.freed));
        self.has_changed(first);
        for other in others {
            let done = self.write_again(rewrite, &spot, &written.identity, other);
            if self.keep_failure(done)? == Some(true) {
                self.has_changed(other);
            }
        }
        Ok(())
    }

    fn has_changed(&mut self, path: &Path) {
        self.fates.insert(path.to_owned(), Fate::Changed);
    }

    /// Writes a trimmed file; `None` if it cannot be.
    fn write(
        &mut self,
        rewrite: &SmallerFile,
        from: &Path,
        input: &File,
        to: &Spot<'_>,
    ) -> Result<Option<WrittenFile>, Error> {
        let Spot { path, directory, name } = to;
        let to = TrimDestination { directory, name, link: rewrite.link };
        match or_refused(rewrite.plan.apply(from, input, &to))? {
            // That is no finding about the file.
            Err(refused) if refused.id == ids::UNSOUND_OUTPUT => {
                Err(Error::rejected(refused.id, path, refused.text))
            }
            Ok(mut written) => {
                let lost = std::mem::take(&mut written.lost)
                    .into_iter()
                    .map(|text| Finding::new(Severity::Warning, ids::ATTRIBUTE_LOST, *path, text));
                self.report.findings.extend(lost);
                Ok(Some(written))
            }
            Err(refused) => {
                self.report.findings.push(refused);
                Ok(None)
            }
        }
    }

    /// Makes another name of a file lead to what was `written` at its first one. Whether it could.
    fn write_again(
        &mut self,
        rewrite: &SmallerFile,
        first: &Spot<'_>,
        written: &Identity,
        other: &Path,
    ) -> Result<bool, Error> {
        let spot = self.planner.held.find(other)?;
        let old = spot.directory.open_same(spot.name, rewrite.plan.identity())?;
        let new = first.directory.open_same(first.name, written)?;
        if trim::link_again(&new, &spot.directory, spot.name, &old)? {
            return Ok(true);
        }
        Ok(self.write(rewrite, other, &old, &spot)?.is_some())
    }

    fn rewritten(
        &mut self,
        job: &FileJob,
        SmallerFile { plan, link }: &SmallerFile,
        freed: Option<u64>,
    ) {
        let removed = plan.goes().into_iter();
        self.report.findings.extend(plan.left().cloned());
        // In a directory, such as an environment whose files are links to a cache, nobody means the files in the cache.
        if link.is_some() && self.plan.given.iter().any(|given| given.0 == job.names[0]) {
            let text = format!(
                "a symbolic link to {}, which others may use, so only a copy in the place of the link is trimmed; to trim that file itself, run `{}`",
                job.from.display(),
                self.planner.command(&job.from)
            );
            let path = job.names[0].clone();
            self.report.findings.push(Finding::new(Severity::Note, ids::SHARED_LINK, path, text));
        }
        self.report.files.push(TrimmedFile {
            path: job.names[0].clone(),
            outcome: if link.is_some() { TrimOutcome::Copied } else { TrimOutcome::Trimmed },
            // A link had no size of its own.
            size_before: if link.is_some() { 0 } else { plan.size_before() },
            size_after: plan.size_after(),
            freed,
            removed: removed.map(|(target, size)| (target.to_string(), size)).collect(),
        });
    }

    /// Links files again that were one before a killed run replaced some of their names.
    fn link_unfinished(&mut self) -> Result<(), Error> {
        for names in &self.plan.unfinished {
            let Some((first, others)) = names.split_first() else { continue };
            for other in others {
                let done = self.link_if_alike(first, other);
                self.keep_failure(done)?;
            }
        }
        Ok(())
    }

    fn link_if_alike(&self, first: &Path, other: &Path) -> Result<(), Error> {
        let file = self.planner.held.find(first)?.open()?;
        let spot = self.planner.held.find(other)?;
        let old = spot.open()?;
        if are_alike(&file, &old).map_err(|error| Error::io(other, "read", error))? {
            trim::link_again(&file, &spot.directory, spot.name, &old)?;
        }
        Ok(())
    }

    /// Notes what goes from files. Returns the given paths whose notes cannot be written: nothing may change there.
    fn note(&mut self, goes: &[Goes<'_>]) -> Result<Vec<&'a Given>, Error> {
        if self.planner.options.dry_run || goes.is_empty() {
            return Ok(Vec::new());
        }
        let (without, errors) = self.ledger.add(&self.report.gpus, goes);
        for error in errors {
            self.keep_error(Err::<(), _>(error))?;
        }
        Ok(without)
    }

    /// Corrects the lists of the files that this run or an earlier one changed or removed.
    fn update_lists(&mut self) -> Result<(), Error> {
        let TrimPlanner { root, held, .. } = *self.planner;
        let TreePlan { tree, given, .. } = *self.plan;
        // Those of earlier runs are not reported again.
        let mut fates = self.fates.clone();
        let below = tree
            .files
            .iter()
            .flatten()
            .filter(|path| path.ends_with(NAME))
            .filter_map(|path| path.parent());
        let above = given
            .iter()
            .flat_map(|given| given.directory().ancestors())
            .filter(|directory| root.inside(directory).is_some());
        let is_given = |path: &PathBuf| given.iter().any(|given| path.starts_with(&given.0));
        let places = Places { root, given: held.directories() };
        for directory in BTreeSet::from_iter(below.chain(above)) {
            let noted = self.keep_failure(places.noted(directory))?.unwrap_or_default();
            for path in noted.into_iter().filter(is_given) {
                // What this run changed or removed is known.
                if fates.get(&path).is_some_and(|own| *own != Fate::Complete) {
                    continue;
                }
                let is_there = held.is_there(&path);
                if let Some(is_there) = self.keep_failure(is_there)? {
                    fates.insert(path, if is_there { Fate::Changed } else { Fate::Gone });
                }
            }
        }
        let corrected = lists::correct(places, &fates);
        self.report.findings.extend(corrected.findings);
        for error in corrected.errors {
            self.keep_failure(Err::<(), _>(error))?;
        }
        Ok(())
    }
}

impl Whole<'_> {
    fn report(&self) -> impl Iterator<Item = TrimmedFile> + '_ {
        let manifests = self.manifests.iter().map(NewManifest::report);
        manifests.chain(self.files.iter().map(RemovedFile::report))
    }
}

impl RemovedFile {
    fn report(&self) -> TrimmedFile {
        TrimmedFile {
            path: self.path.clone(),
            outcome: TrimOutcome::Removed,
            size_before: self.size,
            size_after: 0,
            freed: None,
            removed: BTreeMap::from([(self.target.to_string(), self.size)]),
        }
    }
}

impl NewManifest {
    fn report(&self) -> TrimmedFile {
        TrimmedFile {
            path: self.path.clone(),
            outcome: TrimOutcome::Updated,
            size_before: self.identity.size(),
            size_after: self.bytes.len() as u64,
            freed: None,
            removed: BTreeMap::new(),
        }
    }
}

/// Whether two files differ in their names only, and are not one file yet. Anybody may have written the note that names them,
/// so one of another owner is another file, whatever it contains.
fn are_alike(one: &File, other: &File) -> std::io::Result<bool> {
    let facts = |file: &File| {
        let metadata = file.metadata()?;
        let owner = (metadata.uid(), metadata.gid());
        std::io::Result::Ok((owner, metadata.mode(), metadata.len(), metadata.modified()?))
    };
    Ok(file_id(one)? != file_id(other)? && facts(one)? == facts(other)? && same_bytes(one, other)?)
}
