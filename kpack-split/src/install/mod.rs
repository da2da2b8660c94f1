//! Splits binaries of an install prefix into host binaries and the module's kpacks.
//!
//! Everything is read, checked and written under hidden names before a file of the prefix changes.
//! Then the archives are replaced, then the manifest, and once these are durable, the host
//! binaries. So every binary always finds its device code.

mod again;
mod apply;
mod binary;
mod former;
mod options;
mod plans;
mod targets;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kpack_core::DebugInfo;
use kpack_format::TargetId;
use kpack_format::names::Group;

use crate::input::{self, ClosedBinary, Lookup, Prefix};
use crate::parallel;
use crate::split::{
    self, Budget, CompressedArchives, Compression, DebugFiles, FatFile, PackedCode, Presplit,
    Treatment, variants,
};
use crate::{Error, ids};
use apply::InstallRun;
use binary::{BinaryContent, InstallBinary};
use plans::HostPlans;
use targets::{split_already, wanted_targets};

pub use crate::report::{ArchiveReport, FileReport, Outcome, Progress, Report};
pub use crate::split::Unexpected;
pub use kpack_core::{Finding, Severity};
pub use options::{InstallOptions, Only};
pub use plans::HostPlan;

/// Splits binaries of an install prefix.
///
/// ```no_run
/// use kpack_split::install::{InstallOptions, install};
///
/// # fn main() -> Result<(), kpack_split::Error> {
/// let options = InstallOptions::new("stage", "vec", ["lib/libvec.so", "bin/vec"]);
/// let report = install(&options, &())?;
/// for archive in &report.archives {
///     println!("{}: {} bytes", archive.path.display(), archive.size);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Usage`] for invalid options; [`Error::Refused`] for damaged or unsupported input;
/// [`Error::Io`]. On failure no file of the prefix has changed, unless replacing files failed
/// half-way: then each replaced file is complete and consistent with the others.
pub fn install(options: &InstallOptions, progress: &dyn Progress) -> Result<Report, Error> {
    install_parsed(options, &BTreeMap::new(), None, progress)
}

/// As [`install`], without parsing the binaries that are `parsed`, by path without symbolic links. Leaves it to the
/// caller to publish `debug_files`. If one was parsed at another path, its device code is read there, and the file in the
/// prefix need not have that code.
///
/// # Errors
/// As [`install`].
pub fn install_parsed(
    options: &InstallOptions,
    parsed: &BTreeMap<PathBuf, Arc<ClosedBinary>>,
    debug_files: Option<&DebugFiles>,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    options.validate()?;
    parallel::with_jobs(options.storage.jobs, || {
        input::until_unchanged(|| attempt(options, parsed, debug_files, progress))
    })
}

fn attempt(
    options: &InstallOptions,
    parsed: &BTreeMap<PathBuf, Arc<ClosedBinary>>,
    debug_files: Option<&DebugFiles>,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let prefix = Prefix::new(&options.prefix)?;
    let kpacks = prefix.kpack_dir(&options.kpack_dir)?;
    let mut report = Report::default();

    if !options.dry_run {
        prefix.remove_leftovers(&options.files)?;
    }
    let lookup = Lookup::default();
    let binaries = binary::read(&prefix, options, parsed, &lookup, &mut report)?;
    let fat: Vec<&InstallBinary> = binaries.iter().filter(|b| b.has_device_code()).collect();
    let linked = fat.iter().filter_map(|binary| binary.fat());
    let names = split::file_names(linked.map(FatFile::is_for_windows));
    let group = Group::new(&options.module, &options.component).with_names_of(names.on_disk());
    let known = split_already(&binaries, &kpacks, &group, options, &lookup)?;
    let wanted = wanted_targets(options, &fat, known, &mut report)?;
    let wants = |target: &TargetId| wanted.wants(target);

    let mut plans = match options.only {
        Some(Only::Device) => HostPlans::new(),
        _ => plans::plan(&fat, &kpacks, &group, &wants)?,
    };
    if options.only != Some(Only::Device) {
        former::warn_of_archives(&fat, &kpacks, &group, &mut report)?;
    }

    let describe = |plans: &HostPlans, report: &mut Report| {
        note_split(&binaries, options, report);
        // Binaries that are already split are not listed unless they were named.
        let reported = binaries.iter().filter(|binary| !options.all || !binary.is_split());
        file_reports(reported, plans, &wants, report);
    };
    if options.dry_run {
        describe(&plans, &mut report);
        return Ok(report);
    }

    let own_debug_files = match options.only {
        // The run for device code writes them.
        Some(Only::Host) => DebugFiles::default(),
        _ => DebugFiles::new(&options.storage.debug, true),
    };
    let compression = Compression {
        group: &group,
        storage: options.storage.clone(),
        scratch: kpacks.existing(),
        budget: &Budget::default(),
        flushes: true,
        debug_files: debug_files.unwrap_or(&own_debug_files),
    };
    let others = former::kernels_of_others(&fat, &kpacks, &group)?;
    // Those for variants that only other binaries of the module have code for.
    let completed =
        Vec::from_iter(others.keys().filter(|target| wanted.may_write(target)).cloned());
    let CompressedArchives { archives, debug } =
        archives(&compression, &fat, &wants, &completed, progress)?;
    report.findings.extend(debug.findings(&options.storage.debug, &kpacks.path));
    let path = |name: &str| prefix.root().path().join(name);
    report.findings.extend(variants::warnings(&archives, &others, path));
    plans::set_code_ids(&mut plans, &fat, &kpacks, &group, &archives)?;
    if options.only == Some(Only::Device) {
        plans::warn_of_other_builds(&fat, &archives, &mut report);
    }

    describe(&plans, &mut report);
    if !fat.is_empty() {
        let run = InstallRun {
            options,
            root: prefix.root(),
            kpacks: &kpacks,
            group: &group,
            wants: &wants,
            fat: &fat,
        };
        run.apply(archives, &plans, own_debug_files.into_batch(), &mut report)?;
    }
    let targets = report.archives.iter().map(|archive| &archive.target);
    let warning = split::warn_of_names(names, &kpacks.path, targets);
    report.findings.extend(warning);
    Ok(report)
}

/// Says why binaries that are split already stay unchanged.
fn note_split(binaries: &[InstallBinary], options: &InstallOptions, report: &mut Report) {
    for binary in binaries.iter().filter(|binary| options.all && binary.is_of_other_tool()) {
        let text = "stays unchanged: another tool split it, such as ROCm's (rocm-kpack)";
        report.note(ids::UNCHANGED, &binary.located.path, text);
    }
    let flags = [
        (options.storage.debug != DebugInfo::Keep, "`--strip-debug`"),
        (options.storage.complete_variants, "`--complete-variants`"),
    ];
    let given = flags.into_iter().filter_map(|(is_given, flag)| is_given.then_some(flag));
    for flag in given {
        let is_split = |binary: &&InstallBinary| binary.is_split() && !binary.is_of_other_tool();
        let mut split = binaries.iter().filter(is_split);
        let advice = format!(
            "{flag} only affects what is split now; run `kpack join --arch all`, and split again with {flag}"
        );
        if !options.all {
            for binary in split {
                let text = format!("stays unchanged, because it is already split; {advice}");
                report.note(ids::UNCHANGED, &binary.located.path, text);
            }
        } else if let Some(first) = split.next() {
            let text = match split.count() {
                0 => format!("already split; {advice}"),
                more => format!("this and {more} more are already split; {advice}"),
            };
            report.note(ids::UNCHANGED, &first.located.path, text);
        }
    }
}

/// Compresses the wanted device code, and copies what was split before the link.
fn archives(
    compression: &Compression<'_>,
    fat: &[&InstallBinary],
    wants: &(dyn Fn(&TargetId) -> bool + Sync),
    completed: &[TargetId],
    progress: &dyn Progress,
) -> Result<CompressedArchives, Error> {
    let sources: Vec<(String, &PackedCode)> = fat
        .iter()
        .filter_map(|binary| Some((binary.located.name.clone(), &binary.fat()?.code)))
        .collect();
    let sizes = sources.iter().map(|(_, file)| file.device_size(wants));
    progress.start(sizes.fold(0, u64::saturating_add));
    let mut compressed = split::compress(&sources, wants, compression, progress)?;
    let Compression { group, ref storage, scratch, debug_files, .. } = *compression;
    for binary in fat {
        let Some(presplit) = &binary.presplit else {
            continue;
        };
        let treatment = Treatment { storage, scratch, totals: &compressed.debug, debug_files };
        let archives = &mut compressed.archives;
        presplit.collect(&binary.located.name, wants, &treatment, &mut |_, target, fill| {
            fill(storage.archive(archives, target.clone(), (group, target), scratch)?)
        })?;
    }
    if storage.complete_variants {
        let archives = &mut compressed.archives;
        for target in completed {
            if variants::less_specific(target).any(|plain| archives.contains_key(&plain)) {
                storage.archive(archives, target.clone(), (group, target), scratch)?;
            }
        }
        variants::complete(archives, scratch)?;
    }
    Ok(compressed)
}

/// The outcome for each binary.
fn file_reports<'a>(
    binaries: impl Iterator<Item = &'a InstallBinary>,
    plans: &HostPlans,
    wants: &dyn Fn(&TargetId) -> bool,
    report: &mut Report,
) {
    for binary in binaries {
        let targets =
            binary.targets().into_iter().filter(wants).map(|target| target.to_string()).collect();
        let path = &binary.located.path;
        if let Some(text) = &binary.offload_note {
            report.note(ids::OFFLOAD_IMAGES, path, text);
        }
        if let Some(text) = &binary.in_data {
            report.note(ids::BUNDLES_IN_DATA, path, text);
        }
        let placed = binary.presplit.as_ref().map(Presplit::wrapper_count);
        let outcome = match (&binary.content, placed) {
            (BinaryContent::Fat(fat), placed) => {
                if let Some(note) = fat.code.note() {
                    report.note(ids::SPIRV_KEPT, path, note);
                }
                let size = fat.code.file_size();
                Outcome::Split {
                    wrappers: fat.code.wrapper_count() + placed.unwrap_or(0),
                    targets,
                    size_before: size,
                    size_after: match plans.get(path) {
                        Some(HostPlan::Planned(plan)) => plan.output_size(),
                        _ => size,
                    },
                }
            }
            (_, Some(wrappers)) => Outcome::Relocated { wrappers, targets },
            (BinaryContent::Split(_), None) => Outcome::AlreadySplit,
            (BinaryContent::LeftAlone(id, reason), None) => {
                report.note(*id, path, format!("stays unchanged: {reason}"));
                let reason = reason.clone();
                Outcome::LeftAlone { reason }
            }
        };
        let path = binary.located.name.clone();
        report.files.push(FileReport::new(path, outcome));
    }
}
