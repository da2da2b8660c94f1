//! `cargo xtask fuzz`: libFuzzer runs the targets of `fuzz`, watched by AddressSanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use xshell::cmd;

use crate::{log, process, repository};

/// Options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long to fuzz each target.
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u32,
    /// The targets; all if none is named.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// What cargo-fuzz would pass: code that counts the branches taken and shows compared values to libFuzzer.
const FLAGS: &str = "-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer -Cdebug-assertions \
    -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// An input may take so long and so much memory. A code object of 32 MiB is decompressed, a file is joined
/// with 16 MiB of device code for each wrapper, and the machine may be busy.
const LIMITS: [&str; 4] =
    ["-timeout=60", "-rss_limit_mb=2048", "-malloc_limit_mb=512", "-max_len=65536"];

/// The result of a target.
struct Row {
    target: String,
    /// How many inputs ran, and how many branches they took, as libFuzzer prints them.
    runs: String,
    coverage: String,
    /// The inputs that failed.
    findings: Vec<PathBuf>,
}

/// Fuzzes each target for the time given, as many at once as there are processors.
///
/// # Errors
/// An input makes a target fail.
pub(crate) fn run(options: &Options) -> Result<()> {
    let seeds = repository::root().join("fuzz/seeds");
    let targets = chosen(&seeds, &options.targets)?;
    let work = repository::target_directory().join("fuzz");
    let program = build(&work)?;
    process::step(&format!("Fuzzing {} targets for {} s each", targets.len(), options.seconds));
    let queue = Mutex::new(targets.into_iter());
    let next = || queue.lock().ok()?.next();
    let fuzz_some = || -> Result<Vec<Row>> {
        let targets = std::iter::from_fn(next);
        targets.map(|target| fuzz(&program, &work, &seeds, target, options.seconds)).collect()
    };
    let rows = thread::scope(|scope| -> Result<Vec<Row>> {
        let threads = 0..thread::available_parallelism()?.get();
        let threads: Vec<_> = threads.map(|_| scope.spawn(fuzz_some)).collect();
        let mut rows = Vec::new();
        for thread in threads {
            rows.extend(thread.join().expect("a thread does not panic")?);
        }
        Ok(rows)
    })?;
    report(rows)
}

/// The targets in their order, which have a directory of seeds each.
fn chosen(seeds: &Path, names: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(seeds)? {
        all.push(entry?.file_name().to_string_lossy().into_owned());
    }
    all.sort();
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        bail!("{unknown} is no fuzz target (expected {})", all.join(", "));
    }
    all.retain(|target| names.is_empty() || names.contains(target));
    Ok(all)
}

/// Builds all targets as one program, for AddressSanitizer. Its workspace is not the one whose `Cargo.lock` is
/// the truth, so it may be out of date.
fn build(work: &Path) -> Result<PathBuf> {
    process::step("Building the fuzz targets for AddressSanitizer");
    let target = repository::explicit_target()?;
    let command = cmd!(
        process::shell(),
        "cargo build --release --manifest-path fuzz/Cargo.toml --target {target} --target-dir {work}"
    )
    .env("RUSTC_BOOTSTRAP", "1")
    .env("RUSTFLAGS", FLAGS);
    log::run(command)?;
    Ok(work.join(target).join("release/fuzz"))
}

/// Fuzzes one target, from its seeds and what earlier runs found worth keeping.
fn fuzz(program: &Path, work: &Path, seeds: &Path, target: String, seconds: u32) -> Result<Row> {
    let (corpus, found, scratch) = (
        work.join("corpus").join(&target),
        work.join("findings").join(&target),
        work.join("scratch").join(&target),
    );
    let _ = fs::remove_dir_all(&found);
    let _ = fs::remove_dir_all(&scratch);
    for directory in [&corpus, &found, &scratch] {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let log = work.join(format!("{target}.log"));
    let status = Command::new(program)
        .env("KPACK_FUZZ_TARGET", &target)
        .env("TMPDIR", &scratch)
        .args(LIMITS)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", found.display()))
        // From a clean clone, each run tries the same inputs, as far as it gets.
        .args(["-seed=1", "-print_final_stats=1", "-detect_leaks=0"])
        .arg(&corpus)
        .arg(seeds.join(&target))
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .status()
        .with_context(|| program.display().to_string())?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let findings = repository::files(&found)?;
    ensure!(
        status.success() || !findings.is_empty(),
        "{target} failed ({status}), see {}:\n{text}",
        log.display()
    );
    if !findings.is_empty() {
        println!("{text}");
    }
    let after = |key: &str| {
        let value = text.rsplit_once(key).map_or("", |(_, value)| value);
        value.split_whitespace().next().unwrap_or("?").to_owned()
    };
    Ok(Row {
        runs: after("stat::number_of_executed_units:"),
        coverage: after(" cov: "),
        target,
        findings,
    })
}

/// Prints the table; fails where there is a finding.
fn report(mut rows: Vec<Row>) -> Result<()> {
    rows.sort_by(|one, other| one.target.cmp(&other.target));
    println!("\n| target | inputs | branches | findings |\n| --- | ---: | ---: | ---: |");
    for row in &rows {
        println!("| `{}` | {} | {} | {} |", row.target, row.runs, row.coverage, row.findings.len());
    }
    let findings: Vec<String> =
        rows.iter().flat_map(|row| &row.findings).map(|path| path.display().to_string()).collect();
    ensure!(
        findings.is_empty(),
        "these inputs fail; fix the cause, and keep each in fuzz/seeds: {}",
        findings.join(" ")
    );
    Ok(())
}
