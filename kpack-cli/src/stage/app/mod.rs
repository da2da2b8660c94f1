//! Stages programs in any language with all that they need to run on a machine with a GPU and without ROCm: libraries, archives,
//! kernel databases, the HIP runtime and the loader, in the places in which they find each other.
//!
//! `collect` finds out what a program needs, `plan` decides where each file goes, and `apply` writes them. `run_paths` makes
//! them find each other, and `check` examines the result.

mod apply;
mod build_tree;
mod check;
mod collect;
mod options;
mod plan;
mod run_paths;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kpack_artifact::sizes::{self, Sizes};
use kpack_core::finding::Finding;
use kpack_core::platform::canonicalize;
use kpack_core::{Error, Severity, escaped, ids};
use kpack_doctor::SystemLibraries;
use kpack_format::TargetId;
use kpack_split::trim::Keep;
use serde::Serialize;

use super::Options;
use super::output_dir::{OutputDir, resolve};
use super::places::BuildDirectories;
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
    /// The bytes of its parts: first those for the host, if there are any.
    pub parts: Vec<Part>,
    /// The bytes that a machine with one GPU needs: the host's, and those for its target.
    pub machines: Vec<Part>,
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

impl Part {
    /// The parts of what was measured.
    fn all(sizes: &Sizes) -> Vec<Self> {
        let mut parts: BTreeMap<Option<&str>, u64> = BTreeMap::new();
        for row in &sizes.rows {
            *parts.entry(row.target.as_deref()).or_default() += row.after;
        }
        let parts = parts.into_iter();
        parts.map(|(target, size)| Self { target: target.map(str::to_owned), size }).collect()
    }

    /// What machines need.
    fn of_machines(sizes: &Sizes) -> Vec<Self> {
        let machines = sizes.machines.iter();
        machines
            .map(|machine| Self { target: Some(machine.target.clone()), size: machine.after })
            .collect()
    }
}

/// A file or link of an application.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct StagedEntry {
    /// Its path in the output.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub path: PathBuf,
    /// What it was made of, or the target of the link.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub from: PathBuf,
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
    let written = apply::apply(&plan, &output, keep)?;
    // Programs are known by their real paths.
    let hidden = output.hidden.canonicalize();
    let root = hidden.map_err(|error| Error::io(&output.path, "find", error))?;
    let staged = Staged {
        plan: &plan,
        root: &root,
        tree: &output.tree,
        output: &output.path,
        system: &system,
        written: &written,
    };
    let roots = staged.settle()?;
    let mut findings = facts.findings.clone();
    let shown = |error| staged.shown(error);
    findings.extend(build_paths(&facts, &plan, options, &output).map_err(shown)?);
    findings.extend(written.findings.iter().cloned());
    let sizes = sizes::measure(std::slice::from_ref(&root), &[]).map_err(shown)?;
    let gpus = if app.gpus.is_empty() { gpus_in(&sizes) } else { app.gpus.clone() };
    findings.extend(check::check(&staged, &roots, &gpus, keep.is_some())?);
    output.commit()?;
    let files = plan.entries.into_iter().map(|(path, entry)| StagedEntry {
        from: match &entry {
            Entry::Link(target) => target.clone(),
            other => other.source().unwrap_or(&path).to_owned(),
        },
        path,
    });
    Ok(Application {
        files: files.collect(),
        system_libraries: facts.provided.into_iter().collect(),
        parts: Part::all(&sizes),
        machines: Part::of_machines(&sizes),
        findings,
    })
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
    plan: &Plan,
    options: &Options,
    output: &OutputDir,
) -> Result<Vec<Finding>, Error> {
    let places = build_tree::directories(facts)?;
    let mut findings = Vec::new();
    let own = plan.entries.iter().filter(|(_, entry)| match entry {
        Entry::Binary(from) => places.iter().any(|place| from.starts_with(place)),
        _ => false,
    });
    let directories = BuildDirectories::new(places.clone());
    for (path, _) in own {
        let Some(text) = directories.in_file(&output.hidden.join(path))? else {
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
