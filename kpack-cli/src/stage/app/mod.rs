//! Stages programs in any language with all that they need to run on a machine with a GPU and without ROCm: libraries, archives,
//! kernel databases, the HIP runtime and the loader, in the places in which they find each other.
//!
//! `collect` finds out what a program needs, `plan` decides where each file goes, and `apply` writes them. `run_paths` makes
//! them find each other, `parts` splits the result if that is wanted, and `check` examines it.

mod apply;
mod build_tree;
mod check;
mod collect;
mod options;
mod parts;
mod plan;
mod run_paths;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_artifact::sizes::{self, Sizes};
use kpack_core::finding::Finding;
use kpack_core::platform::canonicalize;
use kpack_core::{Error, Severity, escaped, files, ids};
use kpack_doctor::SystemLibraries;
use kpack_format::TargetId;
use kpack_split::split::DebugFiles;
use kpack_split::trim::Keep;
use kpack_tree::{DatabaseSelection, Only, Parsed, Tree, Walk};
use serde::Serialize;

use super::Options;
use super::output_dir::{HOST, OutputDir, Prefix, resolve};
use super::places::BuildDirectories;
use apply::Original;
use parts::Parts;
use plan::{Entry, Plan};
use run_paths::Staged;

pub use options::{Also, AppOptions};

/// An application that was staged.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Application {
    /// Its files and links.
    pub files: Vec<StagedEntry>,
    /// The libraries that the system must provide.
    pub system_libraries: Vec<String>,
    /// The bytes of its parts: first those for the host, if there are any. If it was split, each is a directory.
    pub parts: Vec<Part>,
    /// What machines with one GPU use of it.
    pub machines: Vec<Machine>,
    /// Warnings and notes.
    pub findings: Vec<Finding>,
}

/// The bytes for a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Part {
    /// The target; `None` for the host.
    pub target: Option<String>,
    /// The bytes.
    pub size: u64,
}

/// What a machine with one GPU uses of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// The GPU's target.
    pub target: String,
    /// The bytes for the host and for the GPU. If the application was split, those of the directories.
    pub size: u64,
    /// The directories that it needs, if the application was split.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<String>,
}

/// The parts and machines of an application that is one directory.
fn of_sizes(sizes: &Sizes) -> (Vec<Part>, Vec<Machine>) {
    let mut parts: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    for row in &sizes.rows {
        *parts.entry(row.target.as_deref()).or_default() += row.after;
    }
    let parts = parts.into_iter();
    let parts = parts.map(|(target, size)| Part { target: target.map(str::to_owned), size });
    let machines = sizes.machines.iter().map(|machine| Machine {
        target: machine.target.clone(),
        size: machine.after,
        directories: Vec::new(),
    });
    (parts.collect(), machines.collect())
}

/// Those of one that is split. Its GPUs are those that any file has code for, since not every file can be split.
fn of_parts(own: &Parts<'_>, sizes: &Sizes) -> (Vec<Part>, Vec<Machine>) {
    let host = Part { target: None, size: own.host_size };
    let others = own.sizes().map(|(target, size)| Part { target: Some(target), size });
    let machines = gpus_in(sizes).into_iter().map(|gpu| {
        let needed = own.needed_by(&gpu);
        let names = needed.iter().map(ToString::to_string);
        Machine {
            target: gpu.to_string(),
            size: own.size_of(&needed),
            directories: [HOST.to_owned()].into_iter().chain(names).collect(),
        }
    });
    ([host].into_iter().chain(others).collect(), machines.collect())
}

/// A file or link of an application.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct StagedEntry {
    /// Its path in the output.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub path: PathBuf,
    /// What it was made of, or the target of the link; `None` for archives with the code of binaries that were split in this
    /// run, and their manifests.
    #[serde(serialize_with = "kpack_core::lossy::optional_path")]
    pub from: Option<PathBuf>,
}

/// Stages programs and libraries with what they need.
///
/// # Errors
/// [`Error::Refused`] for a missing library, files that do not find each other, code that would not load, and an output
/// directory with other files; [`Error::Io`]. The output directory is unchanged then.
pub fn stage_application(options: &Options, app: &AppOptions) -> Result<Application, Error> {
    let system = SystemLibraries {
        rocm: app.system_rocm,
        also: app.exclude.clone(),
        except: app.include.clone(),
    };
    let facts = collect::collect(app, &system)?;
    let keep = Keep { gpus: app.gpus.clone(), spirv: false, check: false };
    let keep = (!app.gpus.is_empty()).then_some(&keep);
    let path = resolve(&options.output_dir)?;
    let plan = plan::plan(&facts, &path, keep)?;
    is_apart(&plan, &path)?;
    let output = OutputDir::begin(&options.output_dir)?;
    let prefix = output.prefix(app.split)?;
    let written = apply::apply(&plan, &prefix, keep, app.split)?;
    // Programs are known by their real paths.
    let hidden = prefix.hidden.canonicalize();
    let root = hidden.map_err(|error| Error::io(&prefix.path, "find", error))?;
    let staged = Staged {
        plan: &plan,
        root: &root,
        tree: &prefix.tree,
        output: &prefix.path,
        system: &system,
        written: &written,
    };
    let roots = staged.settle()?;
    let mut findings = facts.findings.clone();
    let shown = |error| staged.shown(error);
    findings.extend(build_paths(&facts, &staged, options, &prefix).map_err(shown)?);
    findings.extend(written.findings.iter().cloned());
    let debug_files = DebugFiles::new(&options.debug, true);
    let mut of_split = BTreeSet::new();
    if app.split {
        let (said, archives) = parts::split_binaries(&staged, &options.debug, &debug_files)?;
        findings.extend(said);
        of_split = archives;
    }
    // A library for one GPU goes to its part as a whole.
    let all = app.split.then(DatabaseSelection::all);
    let databases = &all.unwrap_or_default();
    let walk = Walk { prefix: &root, databases, parsed: Parsed::default(), only: Only::WithBytes };
    let tree = walk.collect().map_err(shown)?;
    let sizes = sizes::of_tree(&tree).map_err(shown)?;
    let gpus = if app.gpus.is_empty() { gpus_in(&sizes) } else { app.gpus.clone() };
    let check = |gpus: &[TargetId]| check::check(&staged, &roots, gpus, keep.is_some());
    let own = app.split.then(|| Parts::of(&tree, &staged, &output)).transpose()?;
    let (parts, machines) = match &own {
        Some(own) => {
            findings.extend(parts::unplaced(&tree, &staged));
            own.take_all_out().map_err(shown)?;
            for gpu in &gpus {
                findings.extend(own.with(gpu, || check(std::slice::from_ref(gpu)))?);
            }
            if gpus.is_empty() {
                findings.extend(check(&gpus)?);
            }
            of_parts(own, &sizes)
        }
        None => {
            findings.extend(check(&gpus)?);
            of_sizes(&sizes)
        }
    };
    let files = files(&tree, &plan, own.as_ref(), &of_split);
    debug_files.publish()?;
    output.commit()?;
    Ok(Application {
        files,
        system_libraries: facts.provided.into_iter().collect(),
        parts,
        machines,
        findings: distinct(findings),
    })
}

/// The files and links of an application, by their paths in the output. Those `of_split` are made of several.
fn files(
    tree: &Tree,
    plan: &Plan,
    parts: Option<&Parts<'_>>,
    of_split: &BTreeSet<PathBuf>,
) -> Vec<StagedEntry> {
    let places = parts.map(Parts::places);
    let files = tree.entries.iter().filter(|entry| !entry.is_directory()).map(|entry| {
        let path: &Path = &entry.path;
        let planned = plan.entries.get(path).filter(|_| !of_split.contains(path));
        let part = places.as_ref().map(|places| places.get(path).map_or(HOST, String::as_str));
        StagedEntry {
            path: part.map_or_else(|| path.to_owned(), |part| Path::new(part).join(path)),
            from: planned.map(|entry| match entry {
                Entry::Link(target) => target.clone(),
                other => other.source().unwrap_or(path).to_owned(),
            }),
        }
    });
    files.collect()
}

/// Each finding once: two programs may load the same library, and much is the same for all GPUs.
fn distinct(all: Vec<Finding>) -> Vec<Finding> {
    let mut distinct = Vec::new();
    for finding in all {
        if !distinct.contains(&finding) {
            distinct.push(finding);
        }
    }
    distinct
}

/// The GPUs that an application has code for.
fn gpus_in(sizes: &Sizes) -> Vec<TargetId> {
    sizes.machines.iter().filter_map(|machine| machine.target.parse().ok()).collect()
}

/// A word of a command for a shell.
fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| escaped(word).to_string(), |word| word.into_owned())
}

/// Fails if a file that is read would be replaced.
fn is_apart(plan: &Plan, output: &Path) -> Result<(), Error> {
    let mut sources = plan.entries.values().filter_map(Entry::source);
    match sources.find(|source| canonicalize(source).is_ok_and(|real| real.starts_with(output))) {
        Some(source) => {
            let text =
                format!("has {}, which is staged; choose another directory", source.display());
            Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, output, text))
        }
        None => Ok(()),
    }
}

/// Looks for paths of builds in the programs and libraries that these made.
fn build_paths(
    facts: &collect::Facts,
    staged: &Staged<'_>,
    options: &Options,
    output: &Prefix,
) -> Result<Vec<Finding>, Error> {
    let places = build_tree::directories(facts)?;
    let mut findings = Vec::new();
    let own = staged.plan.entries.iter().filter_map(|(path, entry)| match entry {
        Entry::Binary(from) if places.iter().any(|place| from.starts_with(place)) => {
            Some((path, from))
        }
        _ => None,
    });
    let directories = BuildDirectories::new(places.clone());
    for (path, from) in own {
        let copy = output.hidden.join(path);
        let original = staged.written.originals.get(path);
        let text = build_path_in(&directories, from, &copy, original)?;
        let Some(text) = text else {
            continue;
        };
        let shown = output.path.join(path);
        if !options.allow_build_paths {
            return Err(Error::rejected(ids::BUILD_PATH, &shown, text));
        }
        findings.push(Finding::new(Severity::Warning, ids::BUILD_PATH, shown, text));
    }
    Ok(findings)
}

/// Describes a build path in a copy, or in the code of its original that it lacks.
fn build_path_in(
    directories: &BuildDirectories,
    from: &Path,
    copy: &Path,
    original: Option<&Original>,
) -> Result<Option<String>, Error> {
    let opened = |path: &Path| {
        let file = files::open(path)?;
        let size = file.metadata().map_err(|error| Error::io(path, "read", error))?.len();
        Ok((file, size))
    };
    let (file, size) = opened(copy)?;
    let Some(original) = original else {
        // What moved to the disk has to be read from there. Without a path in `from`, the copy has none either: of its run path,
        // only names in the output are new.
        let is_whole = opened(from)?.1 == size;
        return match is_whole && directories.in_file(from)?.is_none() {
            true => Ok(None),
            false => directories.in_file(copy),
        };
    };
    // For bytes that are read from a hole, Linux fills memory with zeros.
    let found = directories.in_parts(copy, &file, original.copied(size))?;
    if found.is_some() {
        return Ok(found);
    }
    let binary = original.binary.open()?;
    directories.in_parts(&binary.path, binary.image.source(), original.code.iter().cloned())
}
