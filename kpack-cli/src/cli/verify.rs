//! `kpack verify`.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::stage::{HOST, has_parts};
use crate::trim;
use clap::Args;
use kpack_format::TargetId;
use kpack_format::target_id::ParseTargetIdError;
use kpack_format::unstable::spelling;

use super::all_or::AllOr;
use super::exit_codes::EXIT_CODES;
use super::kernel_files::KernelFilesArguments;
use super::output::{self, Text, count};
use super::print::print;
use super::progress::{Bar, FILES};
use kpack_artifact::verify::{self, Demanded, Options, VerifyReport};
use kpack_core::words::list;
use kpack_core::{Error, Finding, Id, Severity, ids, shown};

/// Verify binaries, archives, manifests, install prefixes or artifact directories
///
/// Checks that archives are undamaged, that manifests list what exists, and that each split binary finds its code
/// objects for every target that the manifest lists. An artifact directory (with an artifact_manifest.txt) must
/// contain everything that belongs in it and nothing else; all artifacts of a component are checked together.
/// --against compares every code object with the unsplit original, byte for byte, and everything else that is loaded.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct Arguments {
    /// Unsplit original to compare a single PATH with: a binary, an install prefix, an artifact
    /// directory, or a directory of artifact directories
    #[arg(long, value_name = "ORIGINAL")]
    against: Option<PathBuf>,
    /// GPU target for which each binary must have code; other targets may be missing. gfx90a also selects
    /// gfx90a:xnack+ and gfx90a:xnack-; gfx90a:xnack+ also selects plain gfx90a. Can be repeated. `all` stands for every target
    /// that a manifest lists. Without --arch, all archives of some targets may be missing if those of another target are
    /// complete; kpack then prints a warning
    #[arg(long, value_name = "TARGET", value_parser = read_arch, value_delimiter = ',')]
    arch: Vec<AllOr<TargetId>>,
    #[command(flatten)]
    kernel_files: KernelFilesArguments,
    /// Number of threads. Default: the number of processors
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Binaries, archives, manifests, or directories that contain them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

impl Arguments {
    /// The targets that `--arch` names.
    pub(super) fn targets(&self) -> impl Iterator<Item = &TargetId> {
        AllOr::each(&self.arch)
    }
}

fn read_arch(name: &str) -> Result<AllOr<TargetId>, ParseTargetIdError> {
    AllOr::read(name, spelling::read_target)
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    output::note_ignored_variables();
    let mut options = Options::default();
    options.against.clone_from(&arguments.against);
    if arguments.arch.is_empty() {
        options.demanded = Demanded::OneGpu;
    } else if arguments.arch.contains(&AllOr::All) {
        // It includes the others.
        options.demanded = Demanded::All;
    } else {
        options.targets = arguments.targets().cloned().collect();
    }
    let rules = arguments.kernel_files.rules()?;
    options.jobs = arguments.jobs;
    let bar = Bar::new(FILES);
    let mut report = verify::verify_with_kernel_files(&arguments.paths, &options, &rules, &bar)?;
    bar.finish();
    trim::explain_all(&mut report.findings);
    report.findings.extend(has_code(&report, &options.targets));
    if let [one, other] = &arguments.paths[..] {
        report.findings.extend(not_compared(one, other, &report));
    }
    if let ([path], None) = (&arguments.paths[..], &arguments.against) {
        report.findings.extend(not_split(path, &report));
    }
    let hints = arguments.paths.iter().filter_map(|path| parts_apart(path, &report));
    let hints = Vec::from_iter(hints);
    report.findings.extend(hints);
    report_checks(&report)
}

/// Answers the question for the code of named targets: a binary without it would be a fault.
fn has_code(report: &VerifyReport, targets: &[TargetId]) -> Option<Finding> {
    const OF_BINARIES: [Id; 3] = [ids::CODE_FOUND, ids::FAT_BINARY, ids::CODE_MATCHES];
    let of_binaries = report.findings.iter().filter(|found| OF_BINARIES.contains(&found.id));
    let binaries = BTreeSet::from_iter(of_binaries.map(Finding::file));
    let first = binaries.first().filter(|_| report.holds() && !targets.is_empty())?;
    let what = match binaries.len() {
        1 => format!("{} has", shown(first)),
        several => format!("each of {several} binaries has"),
    };
    let text = format!("{what} code for {}", list(targets));
    Some(Finding::general(Severity::Ok, ids::CODE_FOUND, text))
}

/// Says what was checked of a single unsplit file.
fn not_split(path: &Path, report: &VerifyReport) -> Option<Finding> {
    let has = |id| report.findings.iter().any(|found| found.id == id);
    let is_unsplit = path.is_file() && has(ids::FAT_BINARY) && !has(ids::CODE_FOUND);
    let text = "the file is not split, so only its bundles were checked; `kpack doctor` says whether its GPU code loads";
    let note = Finding::general(Severity::Note, ids::NOTHING_SPLIT, text);
    (is_unsplit && report.holds()).then_some(note)
}

/// Says of a split path and an unsplit one, or of two unsplit files, that they are not compared, since whoever passes both may
/// expect that.
fn not_compared(one: &Path, other: &Path, report: &VerifyReport) -> Option<Finding> {
    const OF_SPLIT: [Id; 4] =
        [ids::MARKER_SOUND, ids::CODE_FOUND, ids::ARCHIVE_SOUND, ids::MANIFEST_SOUND];
    let has = |path: &Path, ids: &[Id]| {
        let real = path.canonicalize();
        let is_below = |found: &Finding| {
            let mut roots = [Some(path), real.as_deref().ok()].into_iter().flatten();
            roots.any(|root| found.file().starts_with(root))
        };
        report.findings.iter().any(|found| ids.contains(&found.id) && is_below(found))
    };
    let has_any = |id| report.findings.iter().any(|found| found.id == id);
    let (split, unsplit) = match [one, other].map(|path| has(path, &OF_SPLIT)) {
        [true, false] => (one, other),
        [false, true] => (other, one),
        [false, false]
            if one.is_file()
                && other.is_file()
                && ![ids::CODE_FOUND, ids::CODE_MATCHES].into_iter().any(has_any) =>
        {
            let text = "neither file is split, so only their bundles were checked; `kpack show` says what each contains";
            return Some(Finding::general(Severity::Note, ids::NOTHING_SPLIT, text));
        }
        _ => return None,
    };
    if one.is_dir() != other.is_dir() || !has(unsplit, &[ids::FAT_BINARY]) {
        return None;
    }
    let (split, unsplit) = (split.to_string_lossy(), unsplit.to_string_lossy());
    let words = ["kpack", "verify", &*split, "--against", &*unsplit];
    let command = shlex::try_join(words).ok()?;
    let text = format!("each PATH is verified by itself; to compare them, run `{command}`");
    Some(Finding::general(Severity::Warning, ids::NOTHING_SPLIT, text))
}

/// Says why archives are missing where the parts of a staged application are beside each other.
fn parts_apart(path: &Path, report: &VerifyReport) -> Option<Finding> {
    let is_missing = |finding: &Finding| {
        finding.severity == Severity::Fault
            && finding.id == ids::MISSING_ARCHIVE
            && finding.file().starts_with(path)
    };
    let text = format!(
        "{} contains the parts of a staged application beside each other; unpack `{HOST}` and the parts for one GPU into one \
         directory, and verify that",
        shown(path)
    );
    let warning = Finding::general(Severity::Warning, ids::MISSING_ARCHIVE, text);
    (report.findings.iter().any(is_missing) && has_parts(path)).then_some(warning)
}

/// Prints the checks that fail and a summary, or all with `--verbose`. Returns the exit code.
pub(super) fn report_checks(report: &VerifyReport) -> Result<ExitCode, Error> {
    if print().json {
        output::json(report)?;
    } else {
        // The few notes that are not about one file are for everybody.
        let is_shown = |finding: &&Finding| {
            let is_for_all = finding.path.is_none() && !print().quiet;
            print().verbose || is_for_all || finding.severity >= Severity::Warning
        };
        let mut text = Text::default();
        let shown = report.findings.iter().filter(is_shown);
        // What all others mean goes last.
        let (all, others): (Vec<_>, Vec<_>) = shown.partition(|finding| finding.path.is_none());
        for finding in others {
            text.labelled(finding.severity, output::described(finding));
        }
        if !print().quiet {
            text.line(summary(report));
        }
        for finding in all {
            text.labelled(finding.severity, output::described(finding));
        }
        text.write()?;
    }
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// How many checks there were, and what came of them.
fn summary(report: &VerifyReport) -> String {
    let of = |severity| report.count(severity) as u64;
    // An answer to a question about all files does not count as a check.
    let is_answer = |found: &Finding| found.path.is_none() && found.severity <= Severity::Note;
    let checks = report.findings.iter().filter(|found| !is_answer(found));
    let mut text = format!(
        "{}, {}",
        count(checks.count() as u64, "check"),
        count(of(Severity::Fault), "fault")
    );
    for (severity, what) in [(Severity::Warning, "warning"), (Severity::Note, "note")] {
        if of(severity) > 0 {
            text += &format!(", {}", count(of(severity), what));
        }
    }
    let mut severities = report.findings.iter().map(|finding| finding.severity);
    if !print().verbose && severities.any(|severity| severity < Severity::Warning) {
        text += "; --verbose prints all";
    }
    text
}
