//! Why a code object was not found, told so that one can act on it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kpack_format::manifest::{KpackFile, Manifest};

use crate::{Environment, Request, TargetId, candidates};

/// What was looked for, where, and what there is instead.
#[derive(Debug)]
pub struct Report {
    kernels: Vec<String>,
    isas: Vec<TargetId>,
    binary: PathBuf,
    search_paths: Vec<String>,
    path: Vec<PathBuf>,
    path_prefix: Vec<PathBuf>,
    attempts: Vec<Attempt>,
    places: Vec<Place>,
}

/// One archive that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The archive.
    pub path: PathBuf,
    /// What came of it.
    pub outcome: Outcome,
}

/// Why an archive did not help.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is not there.
    Missing,
    /// It is there and could not be opened; says why.
    NotOpened(String),
    /// It has no target that fits, but these.
    NoTarget(Vec<String>),
    /// It has a target that fits, but not this kernel.
    NoKernel,
}

/// What is where a search path leads to.
#[derive(Debug)]
struct Place {
    directory: PathBuf,
    /// Targets whose archives are there.
    targets: Vec<String>,
    /// The module's manifest, and what it lists.
    manifest: Option<(PathBuf, BTreeMap<String, KpackFile>)>,
}

impl Report {
    pub(crate) fn new(
        environment: &Environment,
        request: &Request<'_>,
        patterns: &[PathBuf],
        attempts: Vec<Attempt>,
    ) -> Self {
        Self {
            kernels: candidates::kernels(request),
            isas: request.isas.to_vec(),
            binary: request.binary.to_owned(),
            search_paths: request.marker.kpack_search_paths.clone(),
            path: environment.path.clone(),
            path_prefix: environment.path_prefix.clone(),
            attempts,
            places: patterns.iter().filter_map(|p| Place::find(p)).collect(),
        }
    }

    /// Every archive that was tried, in order.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// What to do about it.
    fn advice(&self) -> String {
        let fits = |target: &str| {
            let target: Option<TargetId> = target.parse().ok();
            target.is_some_and(|target| self.isas.iter().any(|isa| target.runs_on(isa)))
        };
        for place in &self.places {
            let Some((_, listed)) = &place.manifest else {
                continue;
            };
            let missing = listed
                .iter()
                .find(|(target, _)| fits(target) && !place.targets.contains(target));
            if let Some((target, file)) = missing {
                return format!(
                    "install the package that has {}: there is code for {target}, and it is not installed",
                    place.directory.join(&file.filename).display()
                );
            }
        }
        let damaged = |attempt: &&Attempt| matches!(attempt.outcome, Outcome::NotOpened(_));
        if let Some(attempt) = self.attempts.iter().find(damaged) {
            let path = attempt.path.display();
            return format!("reinstall {path}, or see to it that it can be read");
        }
        let opened = |attempt: &Attempt| matches!(attempt.outcome, Outcome::NoKernel);
        if self.attempts.iter().any(opened) {
            return "reinstall the binary and its archives from one build: they do not belong together".to_owned();
        }
        let isas: Vec<String> = self.isas.iter().map(TargetId::to_string).collect();
        if self.places.iter().any(|place| !place.targets.is_empty()) {
            return format!(
                "use a build with code for {}, or name its archive in ROCM_KPACK_PATH",
                isas.join(" or ")
            );
        }
        "install the module's archives where the search paths lead, or name them in ROCM_KPACK_PATH"
            .to_owned()
    }
}

impl Place {
    /// What is where `pattern` leads to; `None` where it names no target.
    fn find(pattern: &Path) -> Option<Self> {
        let (before, behind) = candidates::split(pattern)?;
        // The name of an archive has its target in it, and nothing below does.
        if behind.as_bytes().contains(&b'/') {
            return None;
        }
        let before = Path::new(before);
        let (directory, start) = match before.as_os_str().as_bytes().ends_with(b"/") {
            true => (before, ""),
            false => (before.parent()?, before.file_name()?.to_str()?),
        };
        let behind = behind.to_str()?;
        let real = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
        let entries = fs::read_dir(&real).into_iter().flatten().flatten();
        let target = |name: &str| -> Option<TargetId> {
            let target = name.strip_prefix(start)?.strip_suffix(behind)?;
            target.parse().ok()
        };
        let mut targets: Vec<String> = entries
            .filter_map(|entry| target(entry.file_name().to_str()?).map(|t| t.to_string()))
            .collect();
        targets.sort();
        let manifest = start.strip_suffix('_').and_then(|module| {
            let path = real.join(format!("{module}.kpm"));
            let manifest = Manifest::read(&fs::read(&path).ok()?).ok()?;
            Some((path, manifest.kpack_files))
        });
        Some(Self {
            directory: real,
            targets,
            manifest,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let isas: Vec<String> = self.isas.iter().map(TargetId::to_string).collect();
        let paths = |paths: &[PathBuf]| {
            let paths: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
            paths.join(":")
        };
        writeln!(f, "no code object for GPU ISA {}", isas.join(", then "))?;
        writeln!(f, "  binary: {}", self.binary.display())?;
        writeln!(f, "  kernel: {}", self.kernels.join(" or "))?;
        writeln!(
            f,
            "  marker's search paths: {}",
            self.search_paths.join(", ")
        )?;
        if !self.path.is_empty() {
            let paths = paths(&self.path);
            writeln!(f, "  in their place, by ROCM_KPACK_PATH: {paths}")?;
        } else if !self.path_prefix.is_empty() {
            let paths = paths(&self.path_prefix);
            writeln!(f, "  before them, by ROCM_KPACK_PATH_PREFIX: {paths}")?;
        }
        if self.attempts.is_empty() {
            writeln!(f, "  nothing to try: these paths lead to no archive")?;
        }
        for attempt in &self.attempts {
            write!(f, "  tried {}: ", attempt.path.display())?;
            match &attempt.outcome {
                Outcome::Missing => writeln!(f, "no such file")?,
                Outcome::NotOpened(why) => writeln!(f, "{why}")?,
                Outcome::NoTarget(targets) if targets.is_empty() => {
                    writeln!(f, "it has no code")?;
                }
                Outcome::NoTarget(targets) => {
                    writeln!(f, "it has code for {} only", targets.join(", "))?;
                }
                Outcome::NoKernel => writeln!(f, "it has a target that fits, but no such kernel")?,
            }
        }
        for place in &self.places {
            let directory = place.directory.display();
            match place.targets.as_slice() {
                [] => writeln!(f, "  {directory} has no archive of this module")?,
                targets => writeln!(f, "  {directory} has code for {}", targets.join(", "))?,
            }
            if let Some((path, listed)) = &place.manifest {
                let listed: Vec<&str> = listed.keys().map(String::as_str).collect();
                let path = path.display();
                writeln!(f, "  {path} lists {}", listed.join(", "))?;
            }
        }
        write!(f, "  what to do: {}", self.advice())
    }
}
