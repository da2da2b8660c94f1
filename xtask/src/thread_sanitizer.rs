//! `cargo xtask thread-sanitizer`: eight threads load from one archive and one cache, watched by
//! ThreadSanitizer.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use xshell::cmd;

use crate::{build, log, process, repository};

/// Wrappers of the library under test, and so its kernels.
const KERNELS: usize = 64;

/// Builds the loader for ThreadSanitizer, and runs `kpack-runtime/tests/c/threads.c` with it.
///
/// # Errors
/// ThreadSanitizer reports a data race in the loader, or misses the deliberate one.
pub(crate) fn run() -> Result<()> {
    let clang = process::find_program("clang-19|clang")
        .context("clang is not installed; run `cargo xtask bootstrap thread-sanitizer`")?;
    let work = repository::target_directory().join("thread-sanitizer");
    let helper = build::helper(build::Profile::Release)?;
    let prefix = work.join("prefix");
    let _ = fs::remove_dir_all(&prefix);
    fs::create_dir_all(prefix.join("lib"))?;
    let archive = make_archive(&helper, &prefix)?;
    let loader = build_loader(&clang, &work)?;

    let program = work.join("threads");
    let include = repository::root().join("kpack-runtime/include");
    let source = repository::root().join("kpack-runtime/tests/c/threads.c");
    process::run!(
        "{clang} -std=c11 -Wall -Wextra -fsanitize=thread -g -I {include} {source} {loader} -o {program} -lgcc_s -lpthread -ldl -lm"
    )?;
    let symbols = process::output(cmd!(process::shell(), "nm {loader}").ignore_stderr())?;
    ensure!(
        symbols.contains("__tsan_read"),
        "{} was not built for ThreadSanitizer",
        loader.display()
    );
    process::step("Loading in eight threads under ThreadSanitizer");
    for archive in [&archive, &without_frame_offsets(&archive)?] {
        let printed = process::run!("{program} {archive}")?;
        let name = archive.file_name().unwrap_or_default().display();
        println!("   {name}: {} loaded, no report", printed.trim());
    }

    let race =
        cmd!(process::shell(), "{program} {archive} race").quiet().ignore_status().output()?;
    let report = String::from_utf8_lossy(&race.stderr);
    ensure!(
        !race.status.success() && report.contains("data race"),
        "ThreadSanitizer does not report the deliberate race:\n{report}"
    );
    println!("   the deliberate race: reported");
    Ok(())
}

/// The loader as a static library, with its own code and zstd's instrumented.
fn build_loader(clang: &Path, work: &Path) -> Result<PathBuf> {
    process::step("Building the loader for ThreadSanitizer");
    let target = repository::explicit_target()?;
    let variable = |name: &str| format!("{name}_{}", target.replace('-', "_"));
    let command = cmd!(process::shell(),
        "cargo rustc --release --locked --target {target} --target-dir {work} --package kpack-runtime --lib --crate-type staticlib"
    )
    // The flags are not stable, and this does not rebuild the standard library. ThreadSanitizer cannot
    // see into its locks; the loader's locks are of another crate, which is instrumented here.
    .env("RUSTC_BOOTSTRAP", "1")
    .env(
        "RUSTFLAGS",
        "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
    )
    .env(variable("CC"), clang)
    .env(variable("CFLAGS"), "-fsanitize=thread");
    log::run(command)?;
    Ok(work.join(target).join("release/librocm_kpack.a"))
}

/// A copy of the archive without the list of frames, so that the threads walk over them.
fn without_frame_offsets(archive: &Path) -> Result<PathBuf> {
    let mut bytes = fs::read(archive)?;
    let key = b"frame_offsets";
    let at = bytes.windows(key.len()).rposition(|window| window == key);
    let at = at.context("the archive has no `frame_offsets`")?;
    // Readers ignore a key with an unknown name.
    bytes[at..at + key.len()].make_ascii_uppercase();
    let path = archive.with_file_name("without_frame_offsets.kpack");
    fs::write(&path, bytes)?;
    Ok(path)
}

fn make_archive(helper: &Path, prefix: &Path) -> Result<PathBuf> {
    let library = prefix.join("lib/libvec.so");
    (0..KERNELS)
        .fold(FatLibrary::new(), |library, number| {
            let code = code("gfx1100", &format!("kernel {number}"));
            library.wrapper(Storage::Plain, [code])
        })
        .build(&library)?;
    process::run!("{helper} install --prefix {prefix} --module vec lib/libvec.so")?;
    Ok(prefix.join("lib/.kpack/vec_lib_gfx1100.kpack"))
}
