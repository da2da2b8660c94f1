//! Explains why a code object was not found, and what to do.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kpack_format::Delivery;
use kpack_format::finding::{self, Id};
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::marker::of_another_build;
use kpack_format::names::{GFXARCH, Group, Pattern, SearchPath};

use crate::stderr::escaped;
use crate::{Environment, Request, TargetId, regular_file};

/// The most names in a list.
const MOST_NAMES: usize = 20;
/// The largest manifest to read, in bytes.
const MAX_MANIFEST: u64 = 1 << 20;

/// The code object that was looked for, where, and what is there instead. Only displaying the report
/// looks at the other files in those directories.
#[derive(Debug)]
pub struct Report {
    kernels: Vec<String>,
    isas: Vec<TargetId>,
    binary: PathBuf,
    search_paths: Vec<String>,
    path: Vec<PathBuf>,
    path_prefix: Vec<PathBuf>,
    attempts: Vec<Attempt>,
    /// The marker's search paths, made absolute.
    installed: Vec<PathBuf>,
    places: OnceLock<Vec<SearchedDirectory>>,
}

/// One archive that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The archive.
    pub path: PathBuf,
    /// The outcome.
    pub outcome: Outcome,
}

/// Why an archive did not help.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is not there.
    Missing,
    /// It exists, but could not be opened or is damaged, for this reason.
    NotOpened(String),
    /// The process or the system ran out of a resource that opening a file needs: this one.
    Exhausted(String),
    /// It has no matching target, only these.
    NoTarget(Vec<String>),
    /// It has a matching target, but not this kernel.
    NoKernel,
    /// It has a matching target, for which the binary has no code.
    NoCodeOfBinary,
    /// It has the kernel, but its code for this binary belongs to another build.
    OtherBuild(String),
}

impl Outcome {
    /// What kind of problem it is.
    pub fn id(&self) -> Id {
        match self {
            Self::Missing => finding::MISSING_ARCHIVE,
            Self::NotOpened(_) => finding::DAMAGED_ARCHIVE,
            Self::Exhausted(_) => finding::SYSTEM,
            Self::NoTarget(_) | Self::NoCodeOfBinary => finding::MISSING_TARGET,
            Self::NoKernel => finding::MISSING_KERNEL,
            Self::OtherBuild(_) => finding::STALE_ARCHIVE,
        }
    }
}

/// A directory that a search path leads to.
#[derive(Debug)]
struct SearchedDirectory {
    directory: PathBuf,
    /// Targets whose archives are there.
    targets: Vec<String>,
    /// Why the directory cannot be listed.
    unreadable: Option<String>,
    /// The module's manifests.
    manifests: Vec<(PathBuf, Listed)>,
}

/// A manifest, or why it cannot be read.
type Listed = Result<Manifest, String>;

impl Report {
    pub(crate) fn new(
        environment: &Environment,
        request: &Request<'_>,
        kernels: Vec<String>,
        installed: Vec<PathBuf>,
        attempts: Vec<Attempt>,
    ) -> Self {
        Self {
            kernels,
            isas: request.isas.to_vec(),
            binary: request.binary.to_owned(),
            search_paths: request.marker.kpack_search_paths.clone(),
            path: environment.path.clone(),
            path_prefix: environment.path_prefix.clone(),
            attempts,
            installed,
            places: OnceLock::new(),
        }
    }

    /// Every archive that was tried, in order.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// What kind of problem it is. As displaying does, this looks at the files in the directories.
    pub fn id(&self) -> Id {
        self.diagnosis().0
    }

    /// One line, for a failure that was explained before.
    pub(crate) fn headline(&self) -> String {
        format!(
            "{}: still no code object for {} (kernel {}; explained above) [{}]",
            escaped(&self.binary),
            self.isas(", then "),
            self.kernels(),
            self.id()
        )
    }

    /// One line, for what users need to know without `ROCM_KPACK_DEBUG`: why the archive at `path` was skipped.
    pub(crate) fn summary(&self, path: &Path, skipped: &Outcome) -> String {
        let why = match skipped {
            Outcome::OtherBuild(binary) => {
                format!("was made for another build of {}", binary.escape_debug())
            }
            other => other.to_string(),
        };
        let (id, advice) = self.diagnosis();
        format!(
            "{}: no code object for {}, because {} {why}; {advice} [{id}]",
            escaped(&self.binary),
            self.isas(", then "),
            escaped(path)
        )
    }

    fn isas(&self, between: &str) -> String {
        if self.isas.is_empty() {
            return "an unknown GPU".to_owned();
        }
        let isas: Vec<String> = self.isas.iter().map(TargetId::to_string).collect();
        isas.join(between)
    }

    fn kernels(&self) -> String {
        list(&self.kernels, " or ")
    }

    fn places(&self) -> &[SearchedDirectory] {
        self.places.get_or_init(|| {
            let mut places: Vec<SearchedDirectory> = Vec::new();
            for pattern in self.installed.iter().chain(&self.path_prefix) {
                let place = SearchedDirectory::find(pattern);
                let new = |p: &SearchedDirectory| places.iter().all(|q| q.directory != p.directory);
                places.extend(place.filter(new));
            }
            places
        })
    }

    /// What kind of problem it is, and what to do about it.
    fn diagnosis(&self) -> (Id, String) {
        let fits = |target: &str| match self.isas.as_slice() {
            [] => target.parse::<TargetId>().is_ok(),
            isas => isas.iter().any(|isa| isa.may_run(target)),
        };
        let exhausted = |attempt: &Attempt| match &attempt.outcome {
            Outcome::Exhausted(why) => Some(why.clone()),
            _ => None,
        };
        if let Some(why) = self.attempts.iter().find_map(exhausted) {
            let advice =
                format!("raise the limit that the process reached, or check the disk: {why}");
            return (finding::SYSTEM, advice);
        }
        if !self.path.is_empty() {
            let mut places = self.places().iter();
            let advice = if places.any(|place| place.targets.iter().any(|target| fits(target))) {
                "unset ROCM_KPACK_PATH: it replaces the installed archives, which have code for this GPU"
            } else {
                "correct ROCM_KPACK_PATH, which replaces the marker's search paths, or unset it"
            };
            return (finding::SEARCH_PATHS_SET, advice.to_owned());
        }
        for place in self.places() {
            if let Some((target, file, hint)) = place.missing(&fits) {
                let path = escaped(&place.directory.join(&file.filename));
                let target = target.escape_debug().to_string();
                let how = match hint {
                    Some(hint) => format!("run `{}`", command(&hint)),
                    None => format!("install the package that contains {path}"),
                };
                let advice = format!("{how}: code for {target} exists, but is not installed");
                return (finding::MISSING_ARCHIVE, advice);
            }
        }
        let other_build = |attempt: &&Attempt| matches!(attempt.outcome, Outcome::OtherBuild(_));
        if let Some(attempt) = self.attempts.iter().find(other_build) {
            let how = self.hint_for(&attempt.path).unwrap_or_else(|| {
                let path = escaped(&attempt.path);
                format!("install the package of the same build that contains {path}")
            });
            let advice =
                format!("{how}, and restart the program if it was started before an upgrade");
            return (finding::STALE_ARCHIVE, advice);
        }
        let damaged = |attempt: &&Attempt| matches!(attempt.outcome, Outcome::NotOpened(_));
        if let Some(attempt) = self.attempts.iter().find(damaged) {
            let path = escaped(&attempt.path);
            let advice = format!("reinstall {path}, or make it readable");
            return (finding::DAMAGED_ARCHIVE, advice);
        }
        let opened = |attempt: &Attempt| matches!(attempt.outcome, Outcome::NoKernel);
        if self.attempts.iter().any(opened) {
            let advice = "reinstall the binary and its archives from one build: these are from different ones";
            return (finding::MISSING_KERNEL, advice.to_owned());
        }
        if self.places().iter().any(|place| !place.targets.is_empty()) {
            return (finding::MISSING_TARGET, self.for_other_targets());
        }
        let advice = format!(
            "install the module's archives where the search paths lead, or list them in ROCM_KPACK_PATH, with {GFXARCH} for the target ID"
        );
        (finding::MISSING_ARCHIVE, advice)
    }

    /// What to do where only archives for other targets are there.
    fn for_other_targets(&self) -> String {
        let isas = if self.isas.is_empty() { "the GPU".to_owned() } else { self.isas(" or ") };
        let why: String = self.not_generic().map(|why| format!(" ({why})")).collect();
        let lacks = |attempt: &&Attempt| attempt.outcome == Outcome::NoCodeOfBinary;
        if let Some(attempt) = self.attempts.iter().find(lacks) {
            let path = escaped(&attempt.path);
            return format!(
                "use a build of the binary with code for {isas}: {path} has code of other binaries only{why}"
            );
        }
        let otherwise = format!(
            "use a build with code for {isas}, or list its archives in ROCM_KPACK_PATH, with {GFXARCH} for the target ID{why}"
        );
        let mut open = self.places().iter().filter(|place| !place.is_fully_listed());
        match open.find(|place| !place.targets.is_empty()) {
            None => otherwise,
            Some(place) => {
                let directory = escaped(&place.directory);
                format!(
                    "install the archive for {isas} in {directory}; if there is none, {otherwise}"
                )
            }
        }
    }

    /// Why the generic code that is there for the GPU's generation is not for it.
    fn not_generic(&self) -> impl Iterator<Item = String> {
        let there: BTreeSet<TargetId> = self
            .places()
            .iter()
            .flat_map(|place| &place.targets)
            .filter_map(|id| id.parse().ok())
            .collect();
        let is_asked_for = |id: &TargetId| self.isas.iter().any(|isa| id.may_run_on(isa));
        let why = |gpu: &TargetId| {
            let others = there.iter().filter(|id| !is_asked_for(id));
            let reasons = others.filter_map(|id| gpu.why_not_generic(id, Delivery::Bundle));
            reasons.collect::<Vec<_>>()
        };
        let gpus = self.isas.iter().filter(|isa| !isa.is_generic());
        gpus.flat_map(why).collect::<BTreeSet<_>>().into_iter()
    }

    /// How to install the archive at `path`, if a manifest beside it tells.
    fn hint_for(&self, path: &Path) -> Option<String> {
        let name = path.file_name()?.to_str()?;
        let directory = fs::canonicalize(path.parent()?).ok()?;
        let mut places = self.places().iter();
        let place = places.find(|place| place.directory == directory)?;
        let mut manifests = place.manifests.iter().filter_map(|(_, read)| read.as_ref().ok());
        manifests.find_map(|manifest| {
            let mut files = manifest.kpack_files.iter();
            let (target, _) = files.find(|(_, file)| file.filename == name)?;
            Some(format!("run `{}`", command(&manifest.install_command(target)?)))
        })
    }
}

impl SearchedDirectory {
    /// Whether a whole manifest lists every archive that is there, so that there are no others.
    fn is_fully_listed(&self) -> bool {
        let mut manifests = self.manifests.iter();
        manifests.any(|(path, listed)| {
            let listed = listed.as_ref().ok();
            listed.is_some_and(|manifest| {
                let whole = Group::from(manifest.component_name.as_str()).manifest();
                let mut targets = self.targets.iter();
                path.ends_with(whole)
                    && targets.all(|target| manifest.kpack_files.contains_key(target))
            })
        })
    }

    /// A target that `fits` and whose archive is only listed: its ID, the archive, and how to install it, if
    /// a manifest tells.
    fn missing(
        &self,
        fits: &dyn Fn(&str) -> bool,
    ) -> Option<(&String, &KpackFile, Option<String>)> {
        let manifests = self.manifests.iter().filter_map(|(_, read)| read.as_ref().ok());
        let missing = manifests.flat_map(|manifest| {
            let files = manifest.kpack_files.iter();
            files.map(|(target, file)| (target, file, manifest.install_command(target)))
        });
        missing
            .filter(|(target, ..)| fits(target) && !self.targets.contains(target))
            .min_by_key(|(_, _, hint)| hint.is_none())
    }

    /// The directory that `pattern` leads to; `None` if the pattern has no `@GFXARCH@`.
    fn find(pattern: &Path) -> Option<Self> {
        // The archive's own name contains the target, and no directory above it does.
        let pattern = SearchPath::new(pattern).split().filter(Pattern::is_file)?;
        let directory = pattern.directory;
        let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
        let (names, unreadable) = match fs::read_dir(&directory) {
            Ok(entries) => {
                let names = entries.flatten();
                let mut names: Vec<String> =
                    names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
                names.sort();
                (names, None)
            }
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let target = |name: &String| Some(pattern.target_of(name.as_ref())?.to_string());
        let group = pattern.group();
        let is_manifest = |name: &&String| {
            let group = group.as_ref();
            group.is_some_and(|group| group.has_manifest(name))
        };
        let read = |name: &String| {
            let path = directory.join(name);
            let listed = regular_file::read(&path, MAX_MANIFEST)
                .map_err(|error| error.to_string())
                .and_then(|bytes| Manifest::read(&bytes).map_err(|error| error.to_string()));
            (path, listed)
        };
        Some(Self {
            targets: names.iter().filter_map(target).collect(),
            manifests: names.iter().filter(is_manifest).map(read).collect(),
            unreadable,
            directory,
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no such file"),
            Self::NotOpened(why) => write!(f, "{}", why.escape_debug()),
            Self::Exhausted(why) => write!(f, "it cannot be opened now: {why}"),
            Self::NoTarget(targets) if targets.is_empty() => f.write_str("it has no code"),
            Self::NoTarget(targets) => write!(f, "it has code for {} only", list(targets, ", ")),
            Self::NoKernel => f.write_str("it has code for this GPU, but not this kernel"),
            Self::NoCodeOfBinary => {
                f.write_str("it has code for this GPU, but this binary was built without it")
            }
            Self::OtherBuild(binary) => {
                f.write_str(&of_another_build(&binary.escape_debug().to_string()))
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = |paths: &[PathBuf]| {
            let paths: Vec<_> = paths.iter().map(|path| escaped(path)).collect();
            paths.join(":")
        };
        writeln!(f, "no code object for {}", self.isas(", then "))?;
        writeln!(f, "  binary: {}", escaped(&self.binary))?;
        writeln!(f, "  kernel: {}", self.kernels())?;
        let search_paths = list(&self.search_paths, ", ");
        writeln!(f, "  marker's search paths: {search_paths}")?;
        if !self.path.is_empty() {
            let paths = paths(&self.path);
            writeln!(f, "  replaced by ROCM_KPACK_PATH: {paths}")?;
        } else if !self.path_prefix.is_empty() {
            let paths = paths(&self.path_prefix);
            writeln!(f, "  preceded by ROCM_KPACK_PATH_PREFIX: {paths}")?;
        }
        if self.attempts.is_empty() {
            writeln!(f, "  nothing to try: no archive is at these paths")?;
        }
        for Attempt { path, outcome } in &self.attempts {
            writeln!(f, "  tried {}: {outcome}", escaped(path))?;
        }
        for place in self.places() {
            let directory = escaped(&place.directory);
            match (place.targets.as_slice(), &place.unreadable) {
                (_, Some(why)) => writeln!(f, "  {directory} cannot be listed: {why}")?,
                ([], None) => writeln!(f, "  {directory} has no archive of this module")?,
                (targets, None) => {
                    writeln!(f, "  {directory} has code for {}", list(targets, ", "))?
                }
            }
            for (path, listed) in &place.manifests {
                let path = escaped(path);
                match listed {
                    Ok(manifest) => {
                        let targets = list(manifest.kpack_files.keys(), ", ");
                        writeln!(f, "  {path} lists {targets}")?;
                    }
                    Err(why) => writeln!(f, "  {path} cannot be read: {}", why.escape_debug())?,
                }
            }
        }
        let (id, advice) = self.diagnosis();
        writeln!(f, "  what to do: {advice} [{id}]")?;
        write!(f, "  run: kpack doctor {}", quoted(examined(&self.binary)))
    }
}

/// What `kpack doctor` is to examine: the Python environment of a library, or else the library.
fn examined(binary: &Path) -> &Path {
    let is_packages = |path: &&Path| path.file_name().is_some_and(|name| name == "site-packages");
    let packages = binary.ancestors().find(is_packages);
    // `ENVIRONMENT/lib/python3.12/site-packages`, and `ENVIRONMENT\Lib\site-packages` on Windows.
    let root = packages.and_then(|packages| {
        let is_of_windows = packages.parent()?.file_name()? == "Lib";
        packages.ancestors().nth(if is_of_windows { 2 } else { 3 })
    });
    root.unwrap_or(binary)
}

/// A path as a word of a shell, without what could play tricks on a terminal.
fn quoted(path: &Path) -> String {
    let path = escaped(path).to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._+-@%,".contains(c);
    if !path.is_empty() && path.chars().all(is_plain) {
        path
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}

/// A command that cannot play tricks on a terminal, with its quotes as they are.
fn command(text: &str) -> String {
    let escape = |c: char| match c {
        '\'' | '"' | '\\' => c.to_string(),
        _ => c.escape_debug().to_string(),
    };
    text.chars().map(escape).collect()
}

/// Names, not too many, safe to print on a terminal.
fn list<'a>(names: impl IntoIterator<Item = &'a String>, between: &str) -> String {
    let mut names = names.into_iter();
    let some: Vec<String> =
        names.by_ref().take(MOST_NAMES).map(|name| name.escape_debug().to_string()).collect();
    match names.count() {
        0 => some.join(between),
        more => format!("{} and {more} more", some.join(between)),
    }
}
