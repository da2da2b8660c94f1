//! Finds the code object for a split binary's wrapper and target through its marker.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kpack::internal::lookup::{Answer, Listing, Rule, Rules};
use kpack_format::archive::ArchiveError;
use kpack_format::digest::Blake3;
use kpack_format::marker::{Marker, without_checksums};
use kpack_format::names::{KernelName, SearchPath};
use kpack_format::offload_bundle::code_object_id;
use kpack_format::{CodeId, TargetId};

use super::archives::{Archives, check};
use super::kernel_names::KernelNames;
use crate::Error;
use crate::host::Image;
use crate::input::{Kpacks, Lookup, OpenArchive, or_refused, read_manifest, share_archive};
use crate::parallel::lock;
use kpack_core::Reason;
use kpack_core::words::list;

/// The opened archives of a split binary.
pub struct Resolver {
    rules: Rules,
    marker: Marker,
    kernel_name: String,
    /// By target, in the order of the search paths.
    archives: Vec<OpenedArchive>,
    /// The targets whose code at index 0 all wrappers share.
    shared: BTreeSet<String>,
    /// Archives that could not be opened, and why.
    pub damaged: Vec<(PathBuf, Reason)>,
    /// All archives that the marker refers to, existing or not.
    pub kpacks: Kpacks,
}

struct OpenedArchive {
    target: String,
    path: PathBuf,
    archive: OpenArchive,
    /// Of the binary's code for the target.
    code_id: Option<CodeId>,
}

impl Listing for OpenedArchive {
    fn has_target(&self, target: &str) -> bool {
        self.target == target
    }

    fn has_kernel(&self, kernel: &str, target: &str) -> bool {
        lock(&self.archive).toc().entry(kernel, target).is_ok()
    }

    fn code_id(&self, _binary: &str, _target: &str) -> Option<CodeId> {
        self.code_id
    }
}

/// Why there is no archive for a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle<'a> {
    /// An archive is damaged, for this reason.
    Damaged(&'a Path, &'a str),
    /// An archive is of another build.
    OtherBuild(&'a Path),
    /// There is none. Where it should be, if a manifest lists it.
    Missing(Option<&'a Path>),
}

/// The location of a code object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CodePlace {
    archive: usize,
    /// Its ordinal in the archive.
    pub ordinal: u32,
    /// Its size, decompressed, in bytes.
    pub size: u64,
}

impl Resolver {
    /// Opens the archives that `marker`, of the binary `image` that is loaded as `binary`, refers to. `kernel_name`
    /// is the marker's.
    pub fn open<S>(
        lookup: &Lookup,
        image: &Image<S>,
        binary: &Path,
        marker: &Marker,
        kernel_name: &str,
    ) -> Result<Self, Error> {
        let kpacks = lookup.find(binary, marker)?;
        let mut archives = Vec::new();
        let mut damaged = Vec::new();
        for kpack in kpacks.files.iter().filter(|kpack| kpack.size.is_some()) {
            let (target, path) = (kpack.target.clone(), kpack.path.clone());
            let archive = match or_refused(lookup.archives.open(&path))? {
                Ok(archive) => archive,
                Err(found) => {
                    damaged.push((path, found.reason()));
                    continue;
                }
            };
            let checks = lookup.rules.compares_code_ids && marker.code_ids.contains_key(&target);
            if checks && lock(&archive).toc().lacks_checksums(kernel_name, &target) {
                damaged.push((path, without_checksums(kernel_name).into()));
                continue;
            }
            let code_id = lock(&archive).toc().code_id(kernel_name, &target);
            archives.push(OpenedArchive { target, path, archive, code_id });
        }
        for path in &kpacks.unreadable {
            if let Err(found) = or_refused(lookup.archives.open(path))? {
                damaged.push((path.clone(), found.reason()));
            }
        }
        let mut resolver = Self {
            rules: lookup.rules,
            marker: marker.clone(),
            kernel_name: kernel_name.to_owned(),
            archives,
            shared: BTreeSet::new(),
            damaged,
            kpacks,
        };
        if image.has_one_handle() && marker.code_ids.is_empty() {
            resolver.shared = resolver.code_of_all();
        }
        Ok(resolver)
    }

    /// The targets whose code at index 0 the wrappers share, which have one handle. They had one bundle, which ROCm's
    /// tool stores at index 0, although it numbers all wrappers. Start-up code registers only the first one.
    fn code_of_all(&self) -> BTreeSet<String> {
        // Archives with code IDs are kpack's, and of another split.
        let of_tool = self.archives.iter().filter(|opened| opened.code_id.is_none());
        let mut entries = of_tool.flat_map(|opened| self.entries_of(opened)).collect::<Vec<_>>();
        // Another index would be that of a wrapper with a bundle of its own.
        if entries.iter().any(|(index, _)| *index != 0) {
            entries.clear();
        }
        entries.into_iter().map(|(_, target)| target).collect()
    }

    /// Whether wrappers share the code of a target.
    pub(crate) fn is_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// Says so of this many wrappers.
    pub(crate) fn sharing_note(&self, wrappers: usize) -> Option<String> {
        (self.is_shared() && wrappers > 1).then(|| {
            format!(
                "the archives have code for {} only at index 0; the binary's {wrappers} wrappers share it, because they \
                 have one handle (`-fgpu-rdc`)",
                list(&self.shared)
            )
        })
    }

    /// The same for another thread: the archives are neither opened nor parsed again.
    pub(crate) fn share(&self) -> Self {
        let archives = self.archives.iter().map(|opened| OpenedArchive {
            target: opened.target.clone(),
            path: opened.path.clone(),
            archive: Arc::new(Mutex::new(share_archive(&lock(&opened.archive)))),
            code_id: opened.code_id,
        });
        Self {
            rules: self.rules,
            marker: self.marker.clone(),
            kernel_name: self.kernel_name.clone(),
            archives: archives.collect(),
            shared: self.shared.clone(),
            damaged: self.damaged.clone(),
            kpacks: self.kpacks.clone(),
        }
    }

    /// Archives with device code of another build of the binary, and their targets.
    pub fn other_builds(&self) -> impl Iterator<Item = (&str, &Path)> {
        let others = self.archives.iter().filter(|opened| {
            self.rules.compares_code_ids && !self.marker.accepts(&opened.target, opened.code_id)
        });
        others.map(|opened| (&*opened.target, &*opened.path))
    }

    /// Locates the code object of wrapper `index` for `target`, as the loader does.
    pub fn find(&self, index: u32, target: &str) -> Option<CodePlace> {
        self.find_first(index, &[target.to_owned()])
    }

    /// Locates the code object of wrapper `index` for the first of `targets`, as the loader does.
    pub fn find_first(&self, index: u32, targets: &[String]) -> Option<CodePlace> {
        self.find_first_by(self.rules, index, targets)
    }

    /// The same as a loader with other `rules` does, in the archives that were found by this resolver's.
    pub fn find_first_by(&self, rules: Rules, index: u32, targets: &[String]) -> Option<CodePlace> {
        let archives = self.archives.iter().enumerate();
        rules.first(targets, archives, |archive, target| {
            self.ask(rules, archive, &[self.kernel(index, target)], target)
        })
    }

    /// What a loader with these rules gets from an archive.
    fn ask(
        &self,
        rules: Rules,
        (archive, opened): (usize, &OpenedArchive),
        kernels: &[String],
        target: &str,
    ) -> Answer<CodePlace> {
        let answer = rules.ask(opened, &self.marker, kernels, target);
        let entry = |kernel: &str| {
            let open = lock(&opened.archive);
            open.toc().entry(kernel, target).map(|found| CodePlace {
                archive,
                ordinal: found.ordinal,
                size: found.original_size,
            })
        };
        match answer.map(entry) {
            Answer::Found(Ok(place)) => Answer::Found(place),
            Answer::Found(Err(_)) | Answer::NoKernel => Answer::NoKernel,
            Answer::OtherBuild => Answer::OtherBuild,
            Answer::NoChecksums => Answer::NoChecksums,
            Answer::NoTarget => Answer::NoTarget,
        }
    }

    /// The locations of the code object of wrapper `index` for `target`: one in each archive that has it.
    pub fn places(&self, index: u32, target: &str) -> Vec<CodePlace> {
        let kernels = [self.kernel(index, target)];
        let archives = self.archives.iter().enumerate();
        let places =
            archives.filter_map(|archive| match self.ask(self.rules, archive, &kernels, target) {
                Answer::Found(place) => Some(place),
                _ => None,
            });
        places.collect()
    }

    /// What led to the archive of `place`.
    pub fn rule(&self, place: CodePlace) -> Option<Rule> {
        let mut files = self.kpacks.files.iter();
        let file = files.find(|kpack| kpack.path == self.path(place));
        file.map(|kpack| kpack.rule)
    }

    /// The archive that it is in.
    pub fn path(&self, place: CodePlace) -> &Path {
        &self.archives[place.archive].path
    }

    /// Reads the code object of wrapper `index` for `target` at `place`.
    pub fn read(
        &mut self,
        place: CodePlace,
        index: u32,
        target: &str,
    ) -> Result<Vec<u8>, ArchiveError> {
        let kernel = self.kernel(index, target);
        lock(&self.archives[place.archive].archive).read(&kernel, target)
    }

    /// Reads the code object of wrapper `index` for `target` at `place`, holding only part of it, and passes it
    /// to `take`. It is verified when this returns its BLAKE3 digest.
    pub fn read_parts(
        &mut self,
        place: CodePlace,
        index: u32,
        target: &str,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Blake3, ArchiveError> {
        let kernel = self.kernel(index, target);
        lock(&self.archives[place.archive].archive).read_parts(&kernel, target, take)
    }

    /// Verifies the code object of wrapper `index` for `target` at `place`, holding only part of it; returns
    /// its size and BLAKE3 digest.
    pub fn digest(
        &mut self,
        place: CodePlace,
        index: u32,
        target: &str,
    ) -> Result<(u64, Blake3), ArchiveError> {
        let kernel = self.kernel(index, target);
        lock(&self.archives[place.archive].archive).read_digest(&kernel, target)
    }

    /// The target of the code object of wrapper `index` for `target` at `place`, if that is a less specific one: it is
    /// in the archive for that target as well.
    pub fn less_specific(&self, place: CodePlace, index: u32, target: &str) -> Option<TargetId> {
        let archive = lock(&self.archives[place.archive].archive);
        let entry = archive.toc().entry(&self.kernel(index, target), target);
        entry.ok()?.less_specific(target)
    }

    /// The ID of a bundle's entry for the code object of wrapper `index` for `target` at `place`.
    pub fn entry_id(&self, place: CodePlace, index: u32, target: &str) -> String {
        let archive = lock(&self.archives[place.archive].archive);
        let entry = archive.toc().entry(&self.kernel(index, target), target);
        let stored = entry.ok().and_then(|entry| entry.entry_id.as_deref());
        stored.map_or_else(|| code_object_id(target), str::to_owned)
    }

    /// The IDs of this binary's device code for `target`, one for each archive that has one.
    pub fn code_ids(&self, target: &str) -> Vec<CodeId> {
        let archives = self.archives.iter().filter(|a| a.target == target);
        archives.filter_map(|a| lock(&a.archive).toc().code_id(&self.kernel_name, target)).collect()
    }

    /// The paths of the open archives.
    pub fn archives(&self) -> impl Iterator<Item = &Path> {
        self.archives.iter().map(|opened| opened.path.as_path())
    }

    /// Checks the code object of wrapper `index` for `target` at `place`; returns the reason if it
    /// is damaged. `archives` remember its kernels.
    pub fn damage(
        &mut self,
        place: CodePlace,
        index: u32,
        target: &str,
        archives: &Archives,
    ) -> Result<Option<Reason>, Error> {
        let kernel = self.kernel(index, target);
        let OpenedArchive { path, archive, .. } = &mut self.archives[place.archive];
        let checked = check(path, &mut lock(archive), &[(&kernel, target)])?;
        archives.remember_kernels(path, [(place.ordinal, checked.kernels)]);
        Ok(checked.wrong.into_iter().next().map(|(_, _, reason)| reason))
    }

    /// The kernels of the code object of wrapper `index` for `target` at `place`.
    pub fn kernels(
        &self,
        place: CodePlace,
        index: u32,
        target: &str,
        archives: &Archives,
    ) -> Result<Option<KernelNames>, Error> {
        archives.kernels(self.path(place), &self.kernel(index, target), target)
    }

    /// Why there is no archive of this build for `target`; `None` if there is one.
    pub fn obstacle(&self, target: &str) -> Option<Obstacle<'_>> {
        let files: Vec<&Path> = self
            .kpacks
            .files
            .iter()
            .filter(|kpack| kpack.target == target)
            .map(|kpack| kpack.path.as_path())
            .collect();
        let mut damaged = self.damaged.iter();
        if let Some((path, reason)) = damaged.find(|(path, _)| {
            files.contains(&path.as_path()) || self.kpacks.unreadable.contains(path)
        }) {
            return Some(Obstacle::Damaged(path, &reason.text));
        }
        if let Some((_, path)) = self.other_builds().find(|(of, _)| *of == target) {
            return Some(Obstacle::OtherBuild(path));
        }
        let is_open = self.archives.iter().any(|opened| opened.target == target);
        (!is_open).then(|| Obstacle::Missing(files.first().copied()))
    }

    /// Where an archive for `gpu` would be, if nothing says which targets there are archives for: neither a
    /// manifest nor the marker. ROCm's tool writes neither. Empty otherwise.
    pub fn unlisted(&self, gpu: &TargetId) -> Vec<PathBuf> {
        if !self.kpacks.manifests.is_empty() || !self.marker.code_ids.is_empty() {
            return Vec::new();
        }
        let searched = self.kpacks.searched.iter();
        searched.map(|path| SearchPath::new(path).expand(gpu.processor())).collect()
    }

    /// The distinct targets of the open archives, sorted.
    pub fn targets(&self) -> Vec<String> {
        let mut targets: Vec<String> = Vec::new();
        for opened in &self.archives {
            if targets.last() != Some(&opened.target) {
                targets.push(opened.target.clone());
            }
        }
        targets
    }

    /// The index and target of every entry of this binary.
    pub fn entries(&self) -> BTreeSet<(u32, String)> {
        self.archives.iter().flat_map(|opened| self.entries_of(opened)).collect()
    }

    fn entries_of(&self, opened: &OpenedArchive) -> Vec<(u32, String)> {
        let mut found = Vec::new();
        for (name, targets) in &lock(&opened.archive).toc().kernels {
            if let KernelName { binary, index: Some(index) } = KernelName::parse(name)
                && binary == self.kernel_name
            {
                found.extend(targets.keys().map(|target| (index, target.clone())));
            }
        }
        found
    }

    /// The command that installs the archive for a target, if a manifest tells.
    pub fn install_command(&self, target: &str) -> Result<Option<String>, Error> {
        for path in &self.kpacks.manifests {
            match read_manifest(path) {
                Ok(manifest) if manifest.kpack_files.contains_key(target) => {
                    if let Some(command) = manifest.install_command(target) {
                        return Ok(Some(command));
                    }
                }
                Ok(_) | Err(Error::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn kernel(&self, index: u32, target: &str) -> String {
        let index = if self.shared.contains(target) { 0 } else { index };
        KernelName::new(&self.kernel_name, index).to_string()
    }
}
