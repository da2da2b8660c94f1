//! Eight threads load from one archive and one cache, watched by ThreadSanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::process::{cargo, output, try_run};
use kpack_tests::require::{self, checked};

use crate::support::{prefix, root, run, work};

/// Wrappers of the library under test, and so its kernels.
const KERNELS: usize = 64;

const CLANG: &str = "clang-19";

/// `kpack-runtime/tests/c/threads.c`, with a loader that is built for ThreadSanitizer.
#[test]
#[ignore = "needs clang's ThreadSanitizer, and builds the loader again"]
fn no_data_race_in_the_loader() -> Result<()> {
    if !require::tool(CLANG) {
        return Ok(());
    }
    let work = work("thread-sanitizer");
    let archive = make_archive(&work)?;
    let loader = build_loader()?;
    let program = work.join("threads");
    let include = root().join("kpack-runtime/include");
    let source = root().join("kpack-runtime/tests/c/threads.c");
    run!(
        "{CLANG} -std=c11 -Wall -Wextra -fsanitize=thread -g -I {include} {source} {loader} -o {program} -lgcc_s -lpthread -ldl -lm"
    )?;
    ensure!(
        run!("nm {loader}")?.contains("__tsan_read"),
        "{} was not built for ThreadSanitizer",
        loader.display()
    );
    for archive in [&archive, &without_frame_offsets(&archive)?] {
        let printed = run!("{program} {archive}")?;
        let name = archive.file_name().unwrap_or_default().display();
        checked(&format!("{name}: {} loaded, no report", printed.trim()));
    }
    let race = output(Command::new(&program).arg(&archive).arg("race"));
    let report = String::from_utf8_lossy(&race.stderr);
    ensure!(
        !race.status.success() && report.contains("data race"),
        "ThreadSanitizer does not report the deliberate race:\n{report}"
    );
    Ok(())
}

/// The loader as a static library, with its own code and zstd's instrumented.
fn build_loader() -> Result<PathBuf> {
    // With a target, the flags do not reach build scripts.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let variable = |name: &str| format!("{name}_{}", target.replace('-', "_"));
    // Cargo compiles only what has changed since the last run.
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("thread-sanitizer");
    let mut command = cargo(&["rustc", "--locked", "--package=kpack-runtime", "--lib"]);
    command.args(["--crate-type=staticlib", "--target", &target, "--target-dir"]).arg(&built);
    // It loads 10 MB, so optimising zstd would take longer than it saves.
    command.args(["--config", "profile.dev.package.zstd-sys.opt-level=0"]);
    // The flags are not stable, and this does not rebuild the standard library. ThreadSanitizer cannot
    // see into its locks; the loader's locks are of another crate, which is instrumented here.
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer");
    command.env(variable("CC"), CLANG).env(variable("CFLAGS"), "-fsanitize=thread");
    try_run(command.current_dir(root()))?;
    Ok(built.join(target).join("debug/librocm_kpack.a"))
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

fn make_archive(prefix: &Path) -> Result<PathBuf> {
    (0..KERNELS)
        .fold(FatLibrary::new(), |library, number| {
            let code = code("gfx1100", &format!("kernel {number}"));
            library.wrapper(Storage::Plain, [code])
        })
        .build(&prefix.join("lib/libvec.so"))?;
    let kpack = self::prefix().join("bin/kpack");
    run!("{kpack} split --prefix {prefix} --module vec lib/libvec.so")?;
    Ok(prefix.join("lib/.kpack/vec_lib_gfx1100.kpack"))
}
