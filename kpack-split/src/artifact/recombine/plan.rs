//! From shards and a configuration to the artifacts to be written.

use std::collections::{BTreeMap, BTreeSet};

use super::component::Component;
use super::overlay::overlaps;
use super::shards::Shards;
use super::stale::stale;
use super::{Artifact, Concerning, Finding, Options, Plan, Severity};
use crate::Error;
use crate::artifact::rules::Digests;
use crate::artifact::split::resolve;
use crate::leftover;
use crate::parallel;

/// Reads the shards and plans the artifacts. `on_component` is called when a component was read,
/// with its name and the number of components.
///
/// # Errors
/// [`Error::Refused`] for a directory without shards and a primary shard that is not there;
/// [`Error::Usage`] for a component that no shard has; [`Error::Io`]. Damaged files, and what is
/// wrong with the shards together, are no errors here, but among the plan's findings.
pub fn plan(options: &Options, on_component: &(dyn Fn(&str, usize) + Sync)) -> Result<Plan, Error> {
    let configuration = &options.configuration;
    let mut shards = Shards::read(&options.shards_dir)?;
    if !shards.put_first(&configuration.primary_shard) {
        let text = format!(
            "there is no shard `{}` in {}, only {}",
            configuration.primary_shard,
            options.shards_dir.display(),
            shards.names().join(", ")
        );
        return Err(configuration.refuse(&["primary_shard"], text));
    }
    apart(options, &shards)?;
    let components = chosen(options, &shards)?;
    let mut plan = Plan {
        findings: left_out(options, &shards),
        components: components.len(),
        ..Plan::default()
    };
    let digests = Digests::default();
    let planned = parallel::with_jobs(options.jobs, || {
        parallel::map(&components, |name| {
            let read = Component::read(name, options, &shards, &digests);
            on_component(name, components.len());
            (*name, read)
        })
    });
    let mut read = Vec::new();
    for (name, component) in planned {
        match component {
            Ok(component) => {
                read.push(name);
                let mut findings = component.findings.iter();
                if findings.any(|finding| finding.severity == Severity::Error) {
                    plan.failed.insert(name.to_owned());
                }
                plan.artifacts.extend(component.artifacts);
                plan.findings.extend(component.findings);
            }
            // A damaged file, or one that cannot be read; the others go on.
            Err(error) => {
                plan.failed.insert(name.to_owned());
                plan.io |= matches!(error, Error::Io { .. });
                let (path, text) = match error {
                    Error::Refused { path, reason } => (path, reason),
                    error => (options.shards_dir.clone(), error.in_one_line()),
                };
                plan.findings.push(Finding {
                    severity: Severity::Error,
                    path,
                    text,
                });
            }
        }
    }
    let mut found = names_apart(&plan.artifacts, options);
    found.extend(overlaps(&plan.artifacts, options)?);
    found.extend(stale(options, &shards, &read, &plan.artifacts)?);
    for (components, finding) in found {
        if finding.severity == Severity::Error {
            plan.failed.extend(components);
        }
        plan.findings.push(finding);
    }
    Ok(plan)
}

/// What is in the shards' directory and is not recombined, and what the configuration says of nothing.
fn left_out(options: &Options, shards: &Shards) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in &shards.leftovers {
        findings.push(Finding {
            severity: Severity::Warning,
            path: path.clone(),
            text: format!("skipped: {}", leftover::TEXT),
        });
    }
    for (path, missed) in &shards.others {
        let is_shard = path.parent() == Some(&options.shards_dir);
        let text = match is_shard {
            true => "skipped: a shard without split artifacts, which have names such as",
            false => "skipped: not a split artifact, which has a name such as",
        };
        findings.push(Finding {
            severity: match missed {
                true => Severity::Warning,
                false => Severity::Note,
            },
            path: path.clone(),
            text: format!(
                "{text} blas_lib_generic or blas_lib_gfx1100 and an artifact_manifest.txt"
            ),
        });
    }
    for component in options.configuration.overrides.keys() {
        if !shards.components().contains(component.as_str()) {
            let reason = options.configuration.refuse(
                &["component_overrides", component],
                format_args!("no shard has the component `{component}`"),
            );
            findings.push(Finding {
                severity: Severity::Warning,
                path: options.shards_dir.clone(),
                text: reason.in_one_line(),
            });
        }
    }
    findings
}

/// Refuses an output directory in which shards or artifacts of them are, and the other way round,
/// wherever symbolic links lead.
fn apart(options: &Options, shards: &Shards) -> Result<(), Error> {
    let output = resolve(&options.output_dir)?;
    for input in shards.directories().chain([&*options.shards_dir]) {
        let real = input
            .canonicalize()
            .map_err(|e| Error::io(input, "find", e))?;
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

/// Refuses two artifacts that would have one name: `blas` for the group `lib_all`, `blas_lib` for
/// `all`.
fn names_apart(artifacts: &[Artifact], options: &Options) -> Vec<Concerning> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for artifact in artifacts {
        if let Some(other) = names.insert(&artifact.name, &artifact.component) {
            let finding = Finding {
                severity: Severity::Error,
                path: options.output_dir.join(&artifact.name),
                text: format!(
                    "it would be an artifact of {other} and of {}; give the group another name",
                    artifact.component
                ),
            };
            findings.push((vec![other.to_owned(), artifact.component.clone()], finding));
        }
    }
    findings
}

fn chosen<'a>(options: &'a Options, shards: &'a Shards) -> Result<Vec<&'a str>, Error> {
    let known = shards.components();
    if options.components.is_empty() {
        return Ok(known.into_iter().collect());
    }
    let mut chosen = BTreeSet::new();
    for component in &options.components {
        let Some(known) = known.get(component.as_str()) else {
            let known: Vec<&str> = known.iter().copied().collect();
            return Err(Error::usage(format!(
                "no shard has the component `{component}`; there are {}",
                known.join(", ")
            )));
        };
        chosen.insert(*known);
    }
    Ok(chosen.into_iter().collect())
}
