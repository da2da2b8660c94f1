//! Small libraries with any code objects: which generic code a real HIP runtime takes, and how the loaders differ.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_format::{Delivery, RocmVersion, TargetId};
use kpack_tests::fixture::{FatLibrary, Storage, TargetCode};
use kpack_tests::require::{checked, skip};

use super::DOCUMENT;
use super::gpus::GPUS;
use super::rig::{End, Execution, Rig, any_runtime};
use crate::support::{prefix, root, run, work};

/// The generic targets that HIP runtimes know, and `e_flags` of their code objects.
const GENERIC: [(&str, u32); 6] = [
    ("gfx9-generic", 0x0100_0151),
    ("gfx9-4-generic", 0x0100_055f),
    ("gfx10-1-generic", 0x0100_0152),
    ("gfx10-3-generic", 0x0100_0053),
    ("gfx11-generic", 0x0100_0054),
    ("gfx12-generic", 0x0100_0059),
];

/// A real code object with other `e_flags`, so that each is different.
fn code(target: &str, flags: u32) -> Result<TargetCode> {
    let file = root().join("tests/fixtures/code-objects/dot.gfx11-generic.hsaco");
    let mut bytes = fs::read(file)?;
    bytes[48..52].copy_from_slice(&flags.to_le_bytes());
    Ok((target.to_owned(), bytes))
}

/// Builds `lib/libsmall.so` in a prefix, with a wrapper for each list of code objects.
fn build(prefix: &Path, units: &[Vec<TargetCode>]) -> Result<PathBuf> {
    let library = prefix.join("lib/libsmall.so");
    let wrappers = units.iter().cloned();
    wrappers
        .fold(FatLibrary::new(), |library, unit| library.wrapper(Storage::Plain, unit))
        .start_up(&vec!["_Z3dotPfPKfS1_"; units.len()])
        .flag(any_runtime()?)
        .build(&library)?;
    Ok(library)
}

fn kpack() -> PathBuf {
    prefix().join("bin/kpack")
}

/// Builds a library and splits a copy of it.
fn build_and_split(work: &Path, units: &[Vec<TargetCode>]) -> Result<[PathBuf; 2]> {
    let helper = kpack();
    let fat = build(&work.join("fat"), units)?;
    let prefix = work.join("split");
    let split = build(&prefix, units)?;
    run!("{helper} split --quiet --prefix {prefix} --module small lib/libsmall.so")?;
    Ok([fat, split])
}

/// That each runtime takes generic code for the GPUs in the table of kpack-format, and for no others.
pub(super) fn check_generic(rig: &Rig) -> Result<()> {
    let code_objects = GENERIC.map(|(target, flags)| code(target, flags));
    let code_objects: Vec<TargetCode> = code_objects.into_iter().collect::<Result<_>>()?;
    let units = std::slice::from_ref(&code_objects);
    let [fat, split] = build_and_split(&rig.work("generic"), units)?;
    let (mut taken, mut known_gpus, mut differences) = (0, 0, String::new());
    for (library, delivery) in [(fat, Delivery::Bundle), (split, Delivery::Archive)] {
        if delivery == Delivery::Archive && !rig.reads_markers {
            continue;
        }
        for gpu in GPUS {
            let execution =
                Execution { gpus: &[gpu], steps: &["open", "devices"], ..Execution::default() };
            let outcome = rig.run(&library, &execution)?;
            if outcome.end == End::Error(100) {
                // This runtime does not know the GPU.
                continue;
            }
            known_gpus += 1;
            let found: Vec<&str> = code_objects
                .iter()
                .filter(|(_, bytes)| outcome.has(bytes))
                .map(|(target, _)| target.as_str())
                .collect();
            let known = gpu.parse::<TargetId>()?.generic(delivery);
            let known = known.filter(|generic| generic.since <= rig.version);
            let mut expected: Vec<&str> =
                known.iter().map(|generic| generic.target.processor()).collect();
            // The table also has what later runtimes take.
            if rig.version == RocmVersion(6, 4) && gpu.starts_with("gfx906") {
                expected = vec!["gfx9-generic"];
            }
            if found != expected {
                differences += &format!(
                    "\n{delivery:?}: for {gpu} it takes {found:?}, and the table of kpack-format has {expected:?}"
                );
            }
            taken += found.len();
        }
    }
    ensure!(known_gpus > 0, "it knows no GPU");
    ensure!(differences.is_empty(), "{differences}");
    checked(&format!("{}: {taken} of {known_gpus} GPUs get generic code", rig.name));
    Ok(())
}

/// Real SPIR-V. The entry ID is that of clang 22.
fn spirv() -> Result<TargetCode> {
    let file = root().join("tests/fixtures/code-objects/dot.amdgcnspirv.spv");
    let id = "hipv4-spirv64-amd-amdhsa--amdgcnspirv";
    Ok((id.to_owned(), fs::read(file)?))
}

/// Which forms of a library a real HIP runtime finds SPIR-V in, for a GPU that the library has no other code for, and
/// whether it can compile it: a row of a table in `docs/dev/runtimes.md`.
pub(super) fn check_spirv(rig: &Rig) -> Result<()> {
    const GPU: &str = "gfx1030";
    if let Some(why) = Rig::has_gpus() {
        skip(why);
        return Ok(());
    }
    let work = rig.work("spirv");
    let units = [vec![code("gfx90a", 0x53f)?, spirv()?]];
    let (helper, shim) = (kpack(), prefix().join("lib/libkpack_hip.so"));
    let [fat, kept] = build_and_split(&work, &units)?;
    let split = |name: &str| {
        let prefix = work.join(name);
        let library = build(&prefix, &units)?;
        run!(
            "{helper} split --quiet --prefix {prefix} --module small --spirv archive lib/libsmall.so"
        )?;
        anyhow::Ok((prefix, library))
    };
    let (_, archived) = split("archived")?;
    let (prefix, joined) = split("joined")?;
    run!("{helper} join --quiet --prefix {prefix} --arch {GPU}")?;
    fs::remove_dir_all(prefix.join("lib/.kpack"))?;
    let forms = [
        ("unsplit", &fat, None),
        ("kept", &kept, None),
        ("archived", &archived, None),
        ("joined", &joined, None),
        ("shim", &archived, Some(shim.as_path())),
    ];
    let (mut cells, mut expected) = (Vec::new(), None);
    let log = work.join("comgr.txt");
    let shown = log.display().to_string();
    for (form, library, preload) in forms {
        let _ = fs::remove_file(&log);
        let execution = Execution {
            gpus: &[GPU],
            steps: &["open", "devices"],
            preload,
            environment: &[
                ("HSA_OVERRIDE_GFX_VERSION", "10.3.0"),
                ("KPACK_HIP", "force"),
                ("AMD_COMGR_CACHE", "0"),
                ("AMD_COMGR_EMIT_VERBOSE_LOGS", "1"),
                ("AMD_COMGR_REDIRECT_LOGS", &shown),
            ],
            ..Execution::default()
        };
        let found = rig.run(library, &execution).context(form)?;
        let compiler = fs::read_to_string(&log).unwrap_or_default();
        cells.push(match found.count() {
            0 if compiler.contains("SPIRV") => "found",
            0 => "no",
            _ => "compiled",
        });
        let expected = expected.get_or_insert_with(|| found.clone());
        ensure!(
            form == "archived" || found == *expected,
            "{form}: {found:?}; from the unsplit library {expected:?}"
        );
    }
    let line = format!("| {} | {} |", rig.name, cells.join(" | "));
    let document = fs::read_to_string(root().join(DOCUMENT))?;
    ensure!(document.lines().any(|known| known == line), "{DOCUMENT} needs this row:\n{line}");
    checked(&format!("{}: {}", rig.name, cells.join(", ")));
    Ok(())
}

/// How ROCm's loader and kpack's differ, in the same runtime: each row of the table in `docs/runtime.md`.
pub(super) fn check_loaders([theirs, ours]: &[Rig; 2], privileged: Option<&str>) -> Result<()> {
    const GPU: &str = "gfx90a:sramecc+:xnack+";
    const OWN: (&str, u32) = ("gfx90a:xnack+", 0x73f);
    let work = work("loaders");
    let of = |(target, flags), number: u32| code(target, number << 24 | flags);
    let tree = |name: &str, units: &[Vec<TargetCode>]| {
        let [_, split] = build_and_split(&work.join(name), units)?;
        let archives = split.parent().context("it is in a directory")?.join(".kpack");
        anyhow::Ok((split, archives))
    };
    let moved = |name: &str| {
        let (split, archives) = tree(name, &[vec![of(OWN, 1)?]])?;
        let away = work.join(name).join("away");
        fs::rename(archives, &away)?;
        anyhow::Ok((split, away))
    };
    let mut rows = 0;
    let mut row = |what: &str, library: &Path, execution: &Execution<'_>, expected: [usize; 2]| {
        let execution = Execution {
            gpus: &[GPU],
            steps: if execution.privileged {
                &["secure", "open", "init"]
            } else {
                &["open", "init"]
            },
            environment: execution.environment,
            privileged: execution.privileged,
            ..Execution::default()
        };
        let count =
            |rig: &Rig| anyhow::Ok(rig.run(library, &execution).context(what.to_owned())?.count());
        let found = [count(theirs)?, count(ours)?];
        ensure!(
            found == expected,
            "{what}: the two loaders found {found:?} code objects, not {expected:?}"
        );
        rows += 1;
        anyhow::Ok(())
    };
    let plain = Execution::default();

    let (split, archives) = tree("same", &[vec![of(OWN, 1)?]])?;
    row("nothing special", &split, &plain, [1, 1])?;

    let (other, _) = tree("other", &[vec![of(OWN, 2)?]])?;
    fs::remove_dir_all(other.with_file_name(".kpack"))?;
    fs::rename(archives, other.with_file_name(".kpack"))?;
    row("an archive of another build", &other, &plain, [1, 0])?;

    let (split, away) = moved("linked")?;
    let link = work.join("linked/view/lib/libsmall.so");
    fs::create_dir_all(link.with_file_name(""))?;
    symlink(&split, &link)?;
    fs::rename(&away, link.with_file_name(".kpack"))?;
    row("through a symbolic link", &link, &plain, [0, 1])?;

    let units = [vec![of(OWN, 1)?], vec![of(("gfx90a", 0x53f), 2)?]];
    let (split, _) = tree("first", &units)?;
    row("the first archive lacks the kernel", &split, &plain, [1, 2])?;

    let (split, away) = moved("away")?;
    let archive = away.join("small_lib_gfx90a:xnack+.kpack").display().to_string();
    let any = away.join("small_lib_@GFXARCH@.kpack").display().to_string();
    let variable = [("ROCM_KPACK_PATH", any.as_str())];
    let execution = Execution { environment: &variable, ..plain };
    row("@GFXARCH@ in a variable", &split, &execution, [0, 1])?;
    let copy = away.join("archive.kpack");
    fs::copy(archive, &copy)?;
    let copy = copy.display().to_string();
    let variable = [("ROCM_KPACK_PATH", copy.as_str())];
    let execution = Execution { environment: &variable, ..Execution::default() };
    row("a variable", &split, &execution, [1, 1])?;
    // Without a search path, the library gets the runtime that the program's path leads to.
    if privileged.is_none() {
        let execution = Execution { privileged: true, ..execution };
        row("raised privileges", &split, &execution, [1, 0])?;
    }
    checked(&format!("{rows} situations"));
    Ok(())
}
