//! Puts chosen targets' device code back into split binaries, for HIP runtimes that do not read
//! markers.
//!
//! All binaries are read and planned before the first one changes. Each is then written under a hidden
//! name, read back, and renamed. The archives stay as they are.

mod binary;
mod code;
mod differences;
mod joined;
mod options;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::host::JoinPlan;
use crate::input::{self, LocatedBinary, Lookup, Prefix};
use crate::parallel;
use crate::report::{FileReport, Outcome, Progress, Report};
use crate::{Error, ids};
use binary::{Joinable, MarkedBinary};
use code::ChosenCode;
use kpack_core::Reason;
use kpack_core::words::{list, list_some};

pub use differences::{
    Checksums, completed, differences, digests, kept_differences, stripped_digests,
};
pub use options::JoinOptions;

/// How many indices of wrappers a note lists.
const MOST_INDICES: usize = 8;

/// Puts device code back into split binaries of an install prefix.
///
/// ```no_run
/// use kpack_split::join::{JoinOptions, join};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = JoinOptions::new("/opt/rocm", ["gfx1030".parse()?], ["lib/librocsparse.so.1"]);
/// join(&options, &())?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Usage`] for invalid options; [`Error::Refused`] for a binary that is damaged, or whose
/// archives are missing, damaged or of another build, and if no binary has code for the targets;
/// [`Error::Io`]. A binary that was not joined is as it was before.
pub fn join(options: &JoinOptions, progress: &dyn Progress) -> Result<Report, Error> {
    options.validate()?;
    parallel::with_jobs(options.jobs, || join_all(options, progress))
}

/// The targets whose code [`join`] would put into the binaries. Refuses what it would refuse before it
/// changes anything.
///
/// # Errors
/// As [`join`].
pub fn planned_targets(options: &JoinOptions) -> Result<BTreeSet<String>, Error> {
    let planned = plan(options, &Lookup::default(), &mut Report::default())?;
    let targets = planned.iter().flat_map(|(_, code, _)| code.targets());
    Ok(targets.cloned().collect())
}

fn join_all(options: &JoinOptions, progress: &dyn Progress) -> Result<Report, Error> {
    let mut joined = BTreeMap::new();
    input::until_unchanged(|| attempt(options, progress, &mut joined))
}

/// Joins the binaries. `joined` has those of earlier attempts, by name.
fn attempt(
    options: &JoinOptions,
    progress: &dyn Progress,
    joined: &mut BTreeMap<String, Outcome>,
) -> Result<Report, Error> {
    let mut report = Report::default();
    let lookup = Lookup::default();
    let planned = plan(options, &lookup, &mut report)?;
    Prefix::new(&options.prefix)?.remove_leftovers(&options.files)?;
    progress.start(planned.iter().map(|(_, code, _)| code.size()).sum());
    let all_code = options.all_architectures && options.output.is_none();
    let directories =
        planned.iter().filter(|_| all_code).flat_map(|(_, code, _)| code.directories());
    let directories = BTreeSet::from_iter(directories.cloned());
    for (binary, code, plan) in planned {
        progress.file(&binary.located.path);
        let written = binary.write(&code, &plan, options, &lookup, progress, &mut report)?;
        let path = binary.located.name;
        let outcome = match written {
            Outcome::Joined { .. } => {
                joined.insert(path.clone(), written.clone());
                written
            }
            _ => joined.get(&path).cloned().unwrap_or(written),
        };
        report.files.push(FileReport::new(path, outcome));
    }
    for directory in directories {
        let text = "the archives in it stay, but the joined files do not need them; remove them if no split file needs them";
        report.note(ids::UNCHANGED, &directory, text);
    }
    Ok(report)
}

/// Plans everything. What does not fit is refused before anything changes.
fn plan(
    options: &JoinOptions,
    lookup: &Lookup,
    report: &mut Report,
) -> Result<Vec<(MarkedBinary, ChosenCode, JoinPlan)>, Error> {
    let prefix = Prefix::new(&options.prefix)?;
    let binaries = if options.files.is_empty() {
        all_binaries(&prefix, options)?
    } else {
        named_binaries(&prefix, options, report)?
    };
    if binaries.is_empty() && report.files.is_empty() && !options.installed {
        let what = match &options.module {
            Some(module) => format!("no split binary of module `{module}`"),
            None => "no split binary".to_owned(),
        };
        let text = format!("{what} is in it; symbolic links are not followed");
        return Err(Error::rejected(ids::NOTHING_SPLIT, &options.prefix, text));
    }
    let chosen = choose(binaries, options, lookup, report)?.into_iter();
    let planned = chosen.map(|(binary, code)| {
        let plan = binary.plan(&code)?;
        Ok((binary, code, plan))
    });
    planned.collect()
}

/// The binaries that are named.
fn named_binaries(
    prefix: &Prefix,
    options: &JoinOptions,
    report: &mut Report,
) -> Result<Vec<MarkedBinary>, Error> {
    let mut found: Vec<LocatedBinary> = Vec::new();
    let mut binaries = Vec::new();
    for file in &options.files {
        let located = locate(prefix, file, options)?;
        if found.contains(&located) {
            continue;
        }
        found.push(located.clone());
        match MarkedBinary::read(located.clone(), options.check)? {
            Joinable::Binary(binary) if binary.is_of(options.module.as_deref()) => {
                binaries.push(*binary);
            }
            Joinable::Binary(binary) => {
                let text = format!(
                    "the marker refers to `{}`, not to module `{}`",
                    binary.marker.kpack_search_paths.join("`, `"),
                    options.module.as_deref().unwrap_or_default()
                );
                return Err(Error::rejected(ids::OTHER_MODULE, &located.path, text));
            }
            Joinable::LeftAlone(reason) => {
                options.need_no_result(ids::NOTHING_SPLIT, &located.path, &reason)?;
                report.note(ids::UNCHANGED, &located.path, format!("stays unchanged: {reason}"));
                left_alone(located.name, &reason, report);
            }
        }
    }
    Ok(binaries)
}

/// Locates a named binary. A link may lead to a file that others share, such as a package manager's, so nothing is
/// written through it.
fn locate(prefix: &Prefix, file: &Path, options: &JoinOptions) -> Result<LocatedBinary, Error> {
    let Some(link) = prefix.link(file)? else {
        return prefix.binary(file);
    };
    if options.output.is_some() {
        return Ok(link);
    }
    let real = link.path.canonicalize().map_err(|e| Error::io(&link.path, "find", e))?;
    let text = format!(
        "a symbolic link to {}, which others may share; write the joined binary elsewhere with --output, or name that file",
        real.display()
    );
    Err(Error::rejected(ids::SHARED_LINK, &link.path, text))
}

/// Every split binary of the module in the prefix.
fn all_binaries(prefix: &Prefix, options: &JoinOptions) -> Result<Vec<MarkedBinary>, Error> {
    let mut binaries = Vec::new();
    for linked in prefix.binaries() {
        let linked = linked?;
        if let Joinable::Binary(binary) =
            MarkedBinary::of(prefix.binary(&linked.path)?, &linked, options.check)?
            && binary.is_of(options.module.as_deref())
        {
            binaries.push(*binary);
        }
    }
    Ok(binaries)
}

/// The binaries that have code for chosen targets, with that code.
///
/// # Errors
/// [`Error::Refused`] if there are binaries, and none has any.
fn choose(
    binaries: Vec<MarkedBinary>,
    options: &JoinOptions,
    lookup: &Lookup,
    report: &mut Report,
) -> Result<Vec<(MarkedBinary, ChosenCode)>, Error> {
    let (mut chosen, mut first_error) = (Vec::new(), None);
    for binary in binaries {
        let code = match ChosenCode::choose(&binary, options, lookup) {
            // A copy that an earlier run wrote elsewhere is away from the archives, and nobody named it.
            Err(error)
                if options.files.is_empty()
                    && error.id() == ids::MISSING_ARCHIVE
                    && !binary.joined.is_empty()
                    && (options.all_architectures || binary.has_joined(options)) =>
            {
                if !binary.has_joined(options) {
                    let text = format!(
                        "stays as it is, joined for {}, because the archive for another target is missing or elsewhere",
                        list(&binary.joined)
                    );
                    report.warn(ids::MISSING_ARCHIVE, &binary.located.path, text);
                }
                left_alone(binary.located.name, "its archives are not there", report);
                first_error.get_or_insert(error);
                continue;
            }
            code => code?,
        };
        // What a binary was never built for is not missing.
        let lacking = code.lacking_of(&options.architectures);
        if !lacking.is_empty() && !options.installed {
            let text = format!("has no device code for {lacking}, only for {}", code.known());
            report.warn(ids::MISSING_TARGET, &binary.located.path, text);
        }
        let dropped = binary.dropped_by(&code);
        if !dropped.is_empty() && !code.targets().is_empty() && options.output.is_none() {
            let text = format!(
                "loses its code for {0}; to keep it, run join again with `--arch {0}` as well",
                dropped.join(",")
            );
            report.warn(ids::CODE_DROPPED, &binary.located.path, text);
        }
        for (gpu, absent) in code.incomplete() {
            let text = format!(
                "no code object for {gpu} at index {}; these wrappers ({} of {}) get bundles without it, so their kernels \
                 cannot run there",
                list_some(absent, MOST_INDICES),
                absent.len(),
                binary.indices.len()
            );
            let reason = Reason::from(text).target(gpu);
            if binary.marker.code_ids.is_empty() {
                report.warn(ids::MISSING_KERNEL, &binary.located.path, reason)
            } else if options.architectures.contains(gpu) {
                // So it was built, which whoever asks for all that was built need not hear.
                report.note(ids::MISSING_KERNEL, &binary.located.path, reason)
            }
        }
        if let Some(text) = code.sharing() {
            report.note(ids::MISSING_KERNEL, &binary.located.path, text);
        }
        for text in code.about_generic() {
            report.note(ids::GENERIC_CODE, &binary.located.path, text);
        }
        chosen.push((binary, code));
    }
    if let (true, Some(error)) = (chosen.is_empty(), first_error) {
        return Err(error);
    }
    let has_code = |(_, code): &(MarkedBinary, ChosenCode)| !code.targets().is_empty();
    let (planned, without): (Vec<_>, Vec<_>) = chosen.into_iter().partition(has_code);
    if let (true, Some((first, code))) = (planned.is_empty(), without.first())
        && !options.installed
    {
        let mut text = format!(
            "no device code for {}; there is device code for {}",
            code.lacking(),
            code.known()
        );
        for why in code.about_generic() {
            text.push_str(&format!(" ({why})"));
        }
        let id = match code.unlisted() {
            Some(places) => {
                text = format!("{text}; looked for `{places}`, so install the package with it");
                ids::MISSING_ARCHIVE
            }
            None => ids::MISSING_TARGET,
        };
        return Err(Error::rejected(id, &first.located.path, text));
    }
    for (binary, _) in without {
        let reason = "no device code for the chosen targets";
        options.need_no_result(ids::MISSING_TARGET, &binary.located.path, reason)?;
        left_alone(binary.located.name, reason, report);
    }
    Ok(planned)
}

fn left_alone(path: String, reason: &str, report: &mut Report) {
    let reason = reason.to_owned();
    let outcome = Outcome::LeftAlone { reason };
    report.files.push(FileReport::new(path, outcome));
}
