//! From shards and a configuration to the artifacts to be written.

use std::collections::BTreeSet;
use std::path::Path;

use kpack_split::input::Archives;

use super::check::check;
use super::merge::{Merged, merge};
use super::read::{Component, read};
use super::shards::Shards;
use super::together::{overlaps, stale, unique_names};
use super::{Finding, Options, Recombination, Severity, is_error};
use kpack_core::parallel;
use kpack_core::publish::resolve;
use kpack_core::report::Progress;
use kpack_core::words::list;
use kpack_core::{Error, Reason, ids};
use kpack_split::leftover;

/// Reads the shards and plans the artifacts. Writes nothing. `progress` counts components.
///
/// # Errors
/// [`Error::Refused`] for a directory without shards and a primary shard that is not there;
/// [`Error::Usage`] for a component that no shard has; [`Error::Io`]. Damaged files, and what is
/// wrong with the shards together, are no errors here, but among the plan's findings.
pub fn plan(options: &Options, progress: &dyn Progress) -> Result<Recombination, Error> {
    let shards = Shards::read(options)?;
    check_list(options, &shards)?;
    refuse_overlap(options, &shards)?;
    let components = chosen(options, &shards)?;
    let mut plan = Recombination {
        findings: unused(options, &shards),
        components: components.len(),
        ..Recombination::default()
    };
    let archives = Archives::default();
    progress.start(components.len() as u64);
    let planned = parallel::with_jobs(options.jobs, || {
        parallel::map(&components, |name| {
            progress.file(Path::new(name));
            let component = Component { name, options, shards: &shards, archives: &archives };
            let merged = of_component(component);
            progress.advance(1);
            (*name, merged)
        })
    });
    let mut read = Vec::new();
    for (name, component) in planned {
        let Merged { artifacts, findings } = match component {
            Ok(merged) => {
                read.push(name);
                merged
            }
            // A damaged file, or one that cannot be read; the others go on.
            Err(error) => {
                plan.io |= matches!(error, Error::Io { .. });
                Merged { artifacts: Vec::new(), findings: vec![failed(error, options)] }
            }
        };
        if findings.iter().any(is_error) {
            plan.failed.insert(name.to_owned());
        }
        plan.artifacts.extend(artifacts);
        plan.findings.extend(findings);
    }
    let mut found = unique_names(&plan.artifacts, options);
    found.extend(overlaps(&plan.artifacts, options)?);
    found.extend(stale(options, &shards, &read, &plan.artifacts)?);
    for (components, finding) in found {
        if is_error(&finding) {
            plan.failed.extend(components);
        }
        plan.findings.push(finding);
    }
    Ok(plan)
}

/// Reads a component, checks it and plans its artifacts.
fn of_component(component: Component<'_>) -> Result<Merged, Error> {
    let (inputs, mut findings) = read(component)?;
    findings.extend(check(&inputs)?);
    let mut merged = merge(&inputs)?;
    findings.append(&mut merged.findings);
    Ok(Merged { findings, ..merged })
}

fn failed(error: Error, options: &Options) -> Finding {
    let id = error.id();
    let (path, text) = match error {
        Error::Refused { path, reason, details, .. } => (path, Reason::new(reason, details)),
        error => (options.shards_dir.clone(), Reason::from(&error)),
    };
    Finding::new(Severity::Fault, id, path, text)
}

/// Reports what the shards' directory has besides shards, and configured components that no shard has.
fn unused(options: &Options, shards: &Shards) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in &shards.leftovers {
        let text = format!("skipped: {}", leftover::TEXT);
        findings.push(Finding::new(Severity::Warning, ids::LEFTOVER, path, text));
    }
    for (path, missed) in &shards.others {
        let is_shard = path.parent() == Some(&options.shards_dir);
        let text = if is_shard {
            "skipped: a shard without split artifacts, which have names such as"
        } else {
            "skipped: not a split artifact, which has a name such as"
        };
        let text =
            format!("{text} blas_lib_generic or blas_lib_gfx1100 and an artifact_manifest.txt");
        let severity = if *missed { Severity::Warning } else { Severity::Note };
        findings.push(Finding::new(severity, ids::NOT_AN_ARTIFACT, path, text));
    }
    for component in options.configuration.overrides.keys() {
        if !shards.components().contains(component.as_str()) {
            let reason = options.configuration.refuse(
                &["component_overrides", component],
                format_args!("no shard has the component `{component}`"),
            );
            let text = reason.to_string();
            findings.push(Finding::new(Severity::Warning, reason.id(), &options.shards_dir, text));
        }
    }
    findings
}

/// Checks that the shards are those that the configuration lists.
fn check_list(options: &Options, shards: &Shards) -> Result<(), Error> {
    let listed: BTreeSet<&str> = options.configuration.shards.iter().map(String::as_str).collect();
    let there: BTreeSet<&str> = shards.names().collect();
    if listed.is_empty() {
        return Ok(());
    }
    let missing: Vec<&&str> = listed.difference(&there).collect();
    let others: Vec<&&str> = there.difference(&listed).collect();
    let text = match (missing.is_empty(), others.is_empty()) {
        (true, true) => return Ok(()),
        (false, _) => format!(
            "no artifacts of {}, which the configuration lists (found {}); fetch or build what is missing",
            list(missing),
            list(&there)
        ),
        (true, false) => format!(
            "the configuration does not list {} (expected {}); list it, or remove it",
            list(others),
            list(&listed)
        ),
    };
    Err(Error::rejected(ids::MISSING_SHARD, &options.shards_dir, text))
}

/// Refuses an output directory that holds shards or artifacts of them, or lies in one. Symbolic links
/// are followed.
fn refuse_overlap(options: &Options, shards: &Shards) -> Result<(), Error> {
    let output = resolve(&options.output_dir)?;
    for input in shards.directories().chain([&*options.shards_dir]) {
        let real = input.canonicalize().map_err(|e| Error::io(input, "find", e))?;
        if output.starts_with(&real) || real.starts_with(&output) {
            return Err(Error::usage(format!(
                "the shards in {} and the output in {} must not contain each other",
                input.display(),
                options.output_dir.display()
            )));
        }
    }
    Ok(())
}

fn chosen<'a>(options: &'a Options, shards: &'a Shards) -> Result<Vec<&'a str>, Error> {
    let known = shards.components();
    if options.components.is_empty() {
        return Ok(known.into_iter().collect());
    }
    let mut chosen = BTreeSet::new();
    for component in &options.components {
        let Some(known) = known.get(component.as_str()) else {
            return Err(Error::usage(format!(
                "no shard has the component `{component}`; there are {}",
                list(&known)
            )));
        };
        chosen.insert(*known);
    }
    Ok(chosen.into_iter().collect())
}
