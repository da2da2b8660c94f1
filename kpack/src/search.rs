//! Looks up a code object.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use kpack_format::Delivery;
use kpack_format::archive::TocEntry;
use kpack_format::marker::without_checksums;
use kpack_format::names::KernelName;
use kpack_format::offload_bundle::code_object_id;

use crate::archive::Memory;
use crate::borrowed::Borrowed;
use crate::error::Error;
use crate::lookup::{self, Answer, BinaryOrigin, Candidate, Listing, Location, Rule, Rules};
use crate::scratch::Scratch;
use crate::stderr::{escaped, say};
use crate::{Archive, Attempt, Cache, ErrorCode, Outcome, Report, Request, TargetId};

const RULES: Rules = Rules::KPACK;

/// A code object in an archive.
#[derive(Debug, Clone)]
pub struct CodeObject {
    archive: Arc<Archive>,
    rule: Rule,
    kernel: String,
    target: String,
}

impl CodeObject {
    /// The target that it was compiled for.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// What led to its archive.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Its size, decompressed, in bytes.
    pub fn size(&self) -> u64 {
        self.entry().map_or(0, |entry| entry.original_size)
    }

    /// The ID of its entry in a bundle.
    pub fn entry_id(&self) -> String {
        let stored = self.entry().and_then(|entry| entry.entry_id.as_deref());
        stored.map_or_else(|| code_object_id(&self.target), str::to_owned)
    }

    fn entry(&self) -> Option<&TocEntry> {
        self.archive.toc().entry(&self.kernel, &self.target).ok()
    }
}

impl Cache {
    /// The requested code object, decompressed.
    ///
    /// # Errors
    /// [`Error::Disabled`], [`Error::NoIsa`], [`Error::NoCodeObject`], and the errors of
    /// [`Archive::load`] for the archive that has it.
    pub fn load_code_object(&self, request: &Request<'_>) -> Result<Vec<u8>, Error> {
        self.load_into(request)
    }

    /// Every code object of a kernel that the GPUs of a machine may run, each to be
    /// [loaded](Self::load). For callers that do not know which one the runtime will choose.
    ///
    /// The ISAs of the request are the GPUs, not one GPU's choices; features without a sign are unknown,
    /// and without ISAs, every code object is returned. A GPU that has no code is explained with
    /// `ROCM_KPACK_DEBUG`.
    ///
    /// # Errors
    /// [`Error::Disabled`]; [`Error::NoCodeObject`] if there is none at all.
    pub fn code_objects(&self, request: &Request<'_>) -> Result<Vec<CodeObject>, Error> {
        if self.environment().disable {
            return Err(Error::Disabled);
        }
        let origin = self.origin(request.binary);
        let present = present(self, &locations(self, request, &origin));
        let gpus: Vec<&[TargetId]> = match request.isas {
            [] => vec![&[]],
            gpus => gpus.chunks(1).collect(),
        };
        let mut code_objects: Vec<CodeObject> = Vec::new();
        let mut result = Ok(());
        for gpu in gpus {
            let may_run = |target: &&TargetId| {
                let mut gpus = gpu.iter();
                target.is_spirv() || gpus.all(|gpu| target.may_be_taken_for(gpu, Delivery::Bundle))
            };
            // Without an archive, it is the GPU's own target that is missing.
            let targets = present.iter().filter(may_run).chain(gpu);
            let targets = BTreeSet::from_iter(targets.map(TargetId::to_string));
            let request = Request { isas: gpu, ..*request };
            let targets = Vec::from_iter(targets);
            let search = Search::begin(self, &request, &origin, targets);
            let mut skipped = Vec::new();
            let each = search.targets.chunks(1);
            let found: Vec<CodeObject> =
                each.filter_map(|target| search.find(target, &mut skipped)).collect();
            if found.is_empty() {
                result = Err(search.failure(&skipped, &origin));
            } else if self.environment().debug {
                let trouble = search.trouble(&skipped);
                if !trouble.is_empty() {
                    say(&format!("`{}`{trouble}", search.kernels.join("` or `")));
                }
            }
            for new in found {
                if code_objects.iter().all(|known| known.target != new.target) {
                    code_objects.push(new);
                }
            }
        }
        if code_objects.is_empty() { result.map(|()| code_objects) } else { Ok(code_objects) }
    }

    /// Decompresses a code object into `bytes`, which has its [size](CodeObject::size).
    ///
    /// # Errors
    /// As [`Archive::load`]; [`Error::OutOfMemory`] if `bytes` has another size.
    pub fn load(&self, code_object: &CodeObject, bytes: &mut [u8]) -> Result<(), Error> {
        let bytes = Cell::new(Some(bytes));
        let room = |size| {
            let bytes = bytes.take().filter(|bytes| bytes.len() == size);
            bytes.map(Borrowed)
        };
        // A destructor in thread-local storage would keep a library that this is linked into from being
        // unloaded.
        let mut scratch = Scratch::default();
        let archive = &code_object.archive;
        let loaded =
            archive.load_with(&mut scratch, &code_object.kernel, &code_object.target, &room);
        if self.environment().debug {
            say(&outcome_of(code_object, &loaded));
        }
        loaded.map(|_| ())
    }

    /// As [`load_code_object`](Self::load_code_object), into memory of the caller's kind.
    ///
    /// # Errors
    /// As [`load_code_object`](Self::load_code_object).
    pub fn load_into<M: Memory>(&self, request: &Request<'_>) -> Result<M, Error> {
        self.load_with_target(request).map(|(bytes, _)| bytes)
    }

    /// As [`load_into`](Self::load_into); also returns the target that the code was compiled for.
    pub(crate) fn load_with_target<M: Memory>(
        &self,
        request: &Request<'_>,
    ) -> Result<(M, String), Error> {
        if self.environment().disable {
            return Err(Error::Disabled);
        }
        if request.isas.is_empty() {
            return Err(Error::NoIsa);
        }
        let origin = self.origin(request.binary);
        let targets = lookup::targets(request.isas);
        let search = Search::begin(self, request, &origin, targets);
        let mut skipped = Vec::new();
        let Some(found) = search.find(&search.targets, &mut skipped) else {
            return Err(search.failure(&skipped, &origin));
        };
        let loaded = found.archive.load_into::<M>(&found.kernel, &found.target);
        if self.environment().debug {
            let mut trouble = search.trouble(&skipped);
            if !self.is_news(request.binary, std::slice::from_ref(&trouble)) {
                trouble.clear();
            }
            say(&format!("{}{trouble}", outcome_of(&found, &loaded)));
        }
        loaded.map(|bytes| (bytes, found.target))
    }
}

/// Where to look.
fn locations(cache: &Cache, request: &Request<'_>, origin: &BinaryOrigin) -> Vec<Location> {
    RULES.locations(cache.environment(), request.marker, origin)
}

/// Every target that archives at these locations are for.
fn present(cache: &Cache, locations: &[Location]) -> BTreeSet<TargetId> {
    let mut targets = BTreeSet::new();
    for location in locations {
        for archive in RULES.installed(&location.path).unwrap_or_default() {
            match archive.target {
                Some(target) => _ = targets.insert(target),
                None => {
                    if let Ok(archive) = cache.archive(&archive.path) {
                        let listed = archive.targets().iter();
                        targets.extend(listed.filter_map(|target| target.parse().ok()));
                    }
                }
            }
        }
    }
    targets
}

/// Where to look for a code object, and the archives there.
struct Search<'a> {
    cache: &'a Cache,
    request: &'a Request<'a>,
    /// Best first.
    targets: Vec<String>,
    kernels: Vec<String>,
    /// In the order of the search paths, each archive once.
    tried: Vec<Tried>,
}

/// Where an archive may be, and the archive there.
type Tried = (Candidate, Result<Arc<Archive>, Error>);

/// An archive with the kernel that was not taken, and why.
type Skipped = (Arc<Archive>, Outcome);

fn why_skipped<'s>(skipped: &'s [Skipped], archive: &Arc<Archive>) -> Option<&'s Outcome> {
    let mut skipped = skipped.iter();
    skipped.find(|(other, _)| Arc::ptr_eq(other, archive)).map(|(_, why)| why)
}

impl<'a> Search<'a> {
    /// Opens the archives for `targets` that the search paths lead to.
    fn begin(
        cache: &'a Cache,
        request: &'a Request<'a>,
        origin: &BinaryOrigin,
        targets: Vec<String>,
    ) -> Self {
        let mut tried: Vec<Tried> = Vec::new();
        let locations = locations(cache, request, origin);
        for candidate in RULES.candidates(&locations, &targets) {
            let opened = cache.archive(&candidate.path);
            let known = |archive: &Arc<Archive>| {
                let mut others = tried.iter().filter_map(|(_, other)| other.as_ref().ok());
                others.any(|other| Arc::ptr_eq(other, archive))
            };
            if !opened.as_ref().is_ok_and(known) {
                tried.push((candidate, opened));
            }
        }
        Self {
            cache,
            request,
            kernels: lookup::kernels(request.marker, request.binary, request.co_index),
            targets,
            tried,
        }
    }

    fn opened(&self) -> impl Iterator<Item = (&Candidate, &Arc<Archive>)> + Clone {
        let tried = self.tried.iter();
        tried.filter_map(|(candidate, opened)| Some((candidate, opened.as_ref().ok()?)))
    }

    fn has_a_target(&self, archive: &Archive) -> bool {
        self.targets.iter().any(|target| archive.has_target(target))
    }

    /// The first code object for the best of `targets`. Archives that may have another build's go to `skipped`.
    fn find(&self, targets: &[String], skipped: &mut Vec<Skipped>) -> Option<CodeObject> {
        RULES.first(targets, self.opened(), |(candidate, archive), target| {
            let rule = candidate.rule;
            let answer = self.ask(archive, rule, target);
            let binary = binary_of(&self.kernels);
            let why = match answer {
                Answer::Found(_) | Answer::NoTarget => return answer,
                Answer::OtherBuild => Some(Outcome::OtherBuild(binary)),
                Answer::NoChecksums => Some(Outcome::NotOpened(without_checksums(&binary))),
                Answer::NoKernel => None,
            };
            if let Some(why) = why.filter(|_| why_skipped(skipped, archive).is_none()) {
                skipped.push((Arc::clone(archive), why));
            }
            // Since the archive was opened, an upgrade may have put there what the marker expects.
            if self.request.marker.code_ids.contains_key(target) {
                let now = self.cache.replacement(&candidate.path, archive);
                let found = now.map(|now| self.ask(&now, rule, target));
                if let Some(found @ Answer::Found(_)) = found {
                    return found;
                }
            }
            answer
        })
    }

    fn ask(&self, archive: &Arc<Archive>, rule: Rule, target: &str) -> Answer<CodeObject> {
        let marker = self.request.marker;
        let answer = RULES.ask(&**archive, marker, &self.kernels, target);
        answer.map(|kernel| CodeObject {
            archive: Arc::clone(archive),
            rule,
            kernel: kernel.to_owned(),
            target: target.to_owned(),
        })
    }

    /// The archives that could not be read, or were skipped, a line each.
    fn trouble(&self, skipped: &[Skipped]) -> String {
        let mut text = String::new();
        for (archive, outcome) in skipped {
            let _ = write!(text, "\n  skipped {}: {outcome}", escaped(archive.path()));
        }
        for (Candidate { path, .. }, opened) in &self.tried {
            match opened {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => {
                    let (path, outcome) = (escaped(path), outcome(error));
                    let _ = write!(text, "\n  tried {path}: {outcome}");
                }
            }
        }
        text
    }

    /// Whether the marker says that the binary has no code for any of the targets. Its module's archives may
    /// have code of other binaries for them. A HIP runtime skips a GPU that a binary has no code for, and may give
    /// up on all GPUs where a kernel is missing.
    fn binary_lacks_targets(&self) -> bool {
        let code_ids = &self.request.marker.code_ids;
        let has_code = |target: &String| code_ids.contains_key(target);
        !code_ids.is_empty() && !self.targets.iter().any(has_code)
    }

    /// Whether only SPIR-V was asked for and its archives do not exist. Runtimes ask for it in addition to
    /// a GPU's own code, and few binaries have any.
    fn is_for_spirv_that_is_nowhere(&self) -> bool {
        let is_missing =
            |(_, opened): &Tried| matches!(opened, Ok(_) | Err(Error::NotFound { .. }));
        let mut isas = self.request.isas.iter();
        isas.len() > 0 && isas.all(TargetId::is_spirv) && self.tried.iter().all(is_missing)
    }

    /// Why nothing was found.
    fn failure(&self, skipped: &[Skipped], origin: &BinaryOrigin) -> Error {
        let archives = || self.opened().map(|(_, archive)| archive);
        let out_of_resources =
            |(_, opened): &Tried| opened.as_ref().is_err_and(Error::is_exhaustion);
        let code = if self.tried.iter().any(out_of_resources) {
            // Nobody knows whether this archive has the kernel.
            ErrorCode::KPACK_ERROR_IO_ERROR
        } else if archives().next().is_none() && !self.is_for_spirv_that_is_nowhere() {
            ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND
        } else if skipped.iter().any(|(_, why)| matches!(why, Outcome::NotOpened(_))) {
            ErrorCode::KPACK_ERROR_INVALID_FORMAT
        } else if self.binary_lacks_targets()
            || !skipped.is_empty()
            || !archives().any(|archive| self.has_a_target(archive))
        {
            ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND
        } else {
            ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND
        };
        let attempt = |(candidate, opened): &Tried| Attempt {
            path: candidate.path.clone(),
            outcome: match opened {
                Err(error) => outcome(error),
                Ok(archive) => match why_skipped(skipped, archive) {
                    Some(why) => why.clone(),
                    None if !self.has_a_target(archive) => {
                        Outcome::NoTarget(archive.toc().gfx_arches.clone())
                    }
                    None if self.binary_lacks_targets() => Outcome::NoCodeOfBinary,
                    None => Outcome::NoKernel,
                },
            },
        };
        let attempts = self.tried.iter().map(attempt).collect();
        let installed = RULES.of_marker(self.request.marker, origin);
        let installed = installed.map(|location| location.path).collect();
        let environment = self.cache.environment();
        let kernels = self.kernels.clone();
        let report = Report::new(environment, self.request, kernels, installed, attempts);
        if environment.debug {
            if self.cache.is_news(self.request.binary, &self.targets) {
                say(&report.to_string())
            } else {
                say(&report.headline())
            }
        } else if let Some((archive, why)) = skipped.first() {
            let archive = archive.path();
            if self.cache.is_news(self.request.binary, &[archive.display().to_string()]) {
                // The program may go on without this GPU, so nobody else would say why.
                say(&report.summary(archive, why))
            }
        }
        Error::NoCodeObject { code, report: Box::new(report) }
    }
}

/// The binary that the kernels belong to.
fn binary_of(kernels: &[String]) -> String {
    let kernel = kernels.first().map_or("", String::as_str);
    KernelName::parse(kernel).binary.to_owned()
}

/// What was found, and whether it could be loaded.
fn outcome_of<M>(found: &CodeObject, loaded: &Result<M, Error>) -> String {
    let CodeObject { archive, rule, kernel, target } = found;
    let through = match rule {
        Rule::Marker => String::new(),
        rule => format!(", found through {rule}"),
    };
    let found =
        format!("`{}` for {target} in {}{through}", kernel.escape_debug(), escaped(archive.path()));
    match loaded {
        Ok(_) => format!("loaded {found}"),
        Err(error) => format!("{found} cannot be loaded: {error} [{}]", error.id()),
    }
}

/// The outcome for an archive that could not be opened, without its path.
fn outcome(error: &Error) -> Outcome {
    match error {
        Error::NotFound { .. } => Outcome::Missing,
        Error::Io { source, .. } if error.is_exhaustion() => Outcome::Exhausted(source.to_string()),
        Error::Io { source, .. } => Outcome::NotOpened(format!("it cannot be read: {source}")),
        Error::Archive { source, .. } => Outcome::NotOpened(source.to_string()),
        other => Outcome::NotOpened(other.to_string()),
    }
}
