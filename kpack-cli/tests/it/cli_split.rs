//! `kpack artifact split` as packagers see it: messages, exit codes, JSON, and what a killed run leaves.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::command::{command, kpack, said, words};
use insta::assert_snapshot;
use kpack_tests::fixture::{FatLibrary, Storage, code, code_object, library_file};
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::steps::{Steps, kill_at_steps};
use kpack_tests::tree::{Snapshot, Tree};
use rustix::process::{Pid, Signal, kill_process};

/// An artifact directory `name` in a tree: a library, and a database with `files` pairs for each of
/// two targets.
fn artifact(tree: &Tree, name: &str, payload: &str, files: usize) {
    let stage = format!("{name}/math-libs/BLAS/rocBLAS/stage");
    tree.write(&format!("{name}/artifact_manifest.txt"), "math-libs/BLAS/rocBLAS/stage\n");
    let targets = ["gfx1100", "gfx942"];
    FatLibrary::new()
        .wrapper(Storage::Zstd(2), targets.map(|target| code(target, payload)))
        .build(&tree.path(&format!("{stage}/lib/librocblas.so")))
        .unwrap();
    for target in targets {
        for index in 0..files {
            let stem = format!("TensileLibrary_{index}_{target}");
            let path = format!("{stage}/lib/rocblas/library/{stem}");
            let object = code_object(target, format!("{payload} {index}").as_bytes()).unwrap();
            tree.write(&format!("{path}.co"), object);
            tree.write(&format!("{path}.dat"), library_file(target, &[&stem]).unwrap());
        }
    }
}

fn with_filters(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"[0-9.]+ [KM]iB -> [0-9.]+ [KM]iB", "[size] -> [size]");
    settings.add_filter(r" *[0-9.]+ KiB", " [size]");
    settings.add_filter(r" *[0-9]{3,} B", " [size]");
    settings.add_filter(r"0x[0-9a-f]{4,}", "[offset]");
    settings.bind(check);
}

const SPLIT: [&str; 8] = [
    "artifact",
    "split",
    "--artifact-dir",
    "in/blas_lib",
    "--artifact-prefix",
    "blas_lib",
    "--output-dir",
    "out",
];

const BATCH: [&str; 6] =
    ["artifact", "split", "--batch-artifact-parent-dir", "in", "--output-dir", "out"];

#[test]
fn an_artifact_and_what_is_said_of_it() {
    let tree = Tree::new();
    artifact(&tree, "in/blas_lib", "gemm", 2);
    let mut text = said(&tree, &SPLIT);
    text += &said(&tree, &[&SPLIT[..], &["--gpu-targets", "gfx1100", "gfx1201"]].concat());
    tree.write("in/docs_doc/artifact_manifest.txt", "docs/stage\n");
    tree.write("in/docs_doc/docs/stage/readme.txt", "read me");
    let docs = [
        "artifact",
        "split",
        "--artifact-dir",
        "in/docs_doc",
        "--artifact-prefix",
        "docs_doc",
        "--output-dir",
        "docs",
    ];
    text += &said(&tree, &docs);
    with_filters(|| assert_snapshot!(text));
}

#[test]
fn a_batch_with_a_failure() {
    let tree = Tree::new();
    artifact(&tree, "in/blas_lib_gfx94X-dcgpu", "gemm", 1);
    artifact(&tree, "in/fft_lib", "fft", 1);
    let library = tree.path("in/fft_lib/math-libs/BLAS/rocBLAS/stage/lib/librocblas.so");
    let bytes = fs::read(&library).unwrap();
    fs::write(&library, &bytes[..bytes.len() - 100]).unwrap();
    let text = said(&tree, &BATCH);
    with_filters(|| assert_snapshot!(text));

    let output = kpack(&tree, &[&BATCH[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(3));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["outcome"], "failed");
    assert_eq!(report["error"], "1 of 2 artifacts failed: fft_lib");
    assert_eq!(report["artifacts"][0]["outcome"], "split");
    assert_eq!(report["artifacts"][0]["device_code"], true);
    assert_eq!(report["artifacts"][1]["outcome"], "failed");
    assert_eq!(report["artifacts"][1]["artifact_prefix"], "fft_lib");
}

#[test]
fn targets_that_are_not_there() {
    let tree = Tree::new();
    artifact(&tree, "in/blas_lib", "gemm", 1);
    artifact(&tree, "in/fft_lib", "fft", 1);
    let library = "in/fft_lib/math-libs/BLAS/rocBLAS/stage/lib";
    fs::remove_dir_all(tree.path(library)).unwrap();
    FatLibrary::new()
        .wrapper(Storage::Zstd(2), [code("gfx90a", "fft")])
        .build(&tree.path(&format!("{library}/librocfft.so")))
        .unwrap();
    let batch = [&BATCH[..], &["--gpu-targets"]].concat();
    let mut text = String::new();
    for arguments in [
        [&SPLIT[..], &["--gpu-targets", "gfx1201", "--require-targets"]].concat(),
        [&batch[..], &["gfx1201", "--require-targets"]].concat(),
    ] {
        text += &said(&tree, &arguments);
        assert!(!tree.path("out").exists());
    }
    text += &said(&tree, &[&batch[..], &["gfx942"]].concat());
    with_filters(|| assert_snapshot!(text));
}

/// An artifact without device code to split may still contain device code.
#[test]
fn what_is_said_of_what_stays_generic() {
    let tree = Tree::new();
    artifact(&tree, "in/blas_lib", "gemm", 1);
    let stage = tree.path("in/blas_lib/math-libs/BLAS/rocBLAS/stage");
    let none = [&SPLIT[..], &["--split-databases", "none"]].concat();
    let mut text = said(&tree, &none);
    fs::remove_file(stage.join("lib/librocblas.so")).unwrap();
    text += &said(&tree, &[&none[..6], &["--output-dir", "databases"], &none[8..]].concat());
    fs::remove_dir_all(stage.join("lib/rocblas")).unwrap();
    let kernel = code_object("gfx942", b"kernel").unwrap();
    fs::write(stage.join("lib/kernel.bin"), kernel).unwrap();
    text += &said(&tree, &[&SPLIT[..6], &["--output-dir", "unknown"]].concat());
    let again = words("artifact split --batch-artifact-parent-dir out --output-dir again");
    text += &said(&tree, &again);
    let single = [
        "artifact",
        "split",
        "--artifact-dir",
        "out/blas_lib_generic",
        "--artifact-prefix",
        "blas_lib",
        "--output-dir",
        "single",
    ];
    text += &said(&tree, &single);
    with_filters(|| assert_snapshot!(text));
}

#[test]
fn wrong_usage() {
    let tree = Tree::new();
    artifact(&tree, "in/blas_lib", "gemm", 1);
    let mut text = String::new();
    for arguments in [
        &["artifact", "split", "--output-dir", "out"][..],
        &words("artifact split --artifact-dir in/blas_lib --output-dir out"),
        &[&SPLIT[..], &["--split-databases", "rocblas", "cufft"]].concat(),
        &[&SPLIT[..], &["--split-databases", "none", "rocblas"]].concat(),
        &[&SPLIT[..], &["--gpu-targets", "gfx 90a"]].concat(),
        &words("artifact split --artifact-dir in --artifact-prefix x_lib --output-dir out"),
        &[&SPLIT[..6], &["--output-dir", "in/blas_lib/out"]].concat(),
        &words("artifact split --batch-artifact-parent-dir in --output-dir in"),
        &words("artifact split --batch-artifact-parent-dir in/blas_lib --output-dir out"),
    ] {
        text += &said(&tree, arguments);
        text += "\n";
    }
    assert!(!tree.path("out").exists());
    assert_snapshot!(text);
}

/// An artifact of tests has thousands of programs, and the usual limit is 1,024 open files, which kpack may
/// be unable to raise.
#[test]
fn more_fat_binaries_than_files_may_be_open() {
    let tree = Tree::new();
    artifact(&tree, "in/blas_lib", "gemm", 1);
    let lib = tree.path("in/blas_lib/math-libs/BLAS/rocBLAS/stage/lib");
    for index in 0..100 {
        let copy = lib.join(format!("librocblas-{index}.so"));
        fs::copy(lib.join("librocblas.so"), copy).unwrap();
    }
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_kpack"))
        .args(SPLIT)
        .current_dir(tree.root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let archive =
        "out/blas_lib_gfx942/math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib_gfx942.kpack";
    let list = kpack(&tree, &["list", archive]);
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.contains("101 code objects, 1 stored"), "{list}");
}

/// A machine may have no thread to spare: here, no thread gets room for its stack.
#[test]
fn one_thread_is_enough() {
    let tree = Tree::new();
    for name in ["blas_lib", "fft_run"] {
        artifact(&tree, &format!("in/{name}"), name, 40);
    }
    let run = |output: &str, stack: Option<&str>| {
        let arguments = [&BATCH[..5], &[output, "--jobs", "8"]].concat();
        let mut split = command(&tree, &arguments);
        process::run(split.envs(stack.map(|stack| ("RUST_MIN_STACK", stack))));
    };
    run("many", None);
    run("one", Some("70368744177664"));
    let snapshot = |output: &str| {
        let files = tree.snapshot().into_iter();
        let files =
            files.filter_map(|(path, entry)| Some((path.strip_prefix(output)?.to_owned(), entry)));
        files.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(snapshot("many/"), snapshot("one/"));
}

/// An artifact that has its name after a power failure must be complete, and the generic one means that all
/// are. The system calls show what is durable at which moment.
#[test]
fn an_artifact_gets_its_name_when_it_is_durable() {
    if !require::tool("strace") {
        return;
    }
    let tree = Tree::new();
    artifact(&tree, "in/blas_lib", "gemm", 1);
    for run in ["new", "replaced"] {
        let output = Command::new("strace")
            .args(["-f", "-y", "-o", "trace", "-s", "400"])
            .args(["-e", "trace=syncfs,fsync,rename,renameat,renameat2"])
            .arg(env!("CARGO_BIN_EXE_kpack"))
            .args(SPLIT)
            .current_dir(tree.root())
            .output()
            .unwrap();
        let trace = fs::read_to_string(tree.path("trace")).unwrap_or_default();
        if trace.is_empty() {
            let why = String::from_utf8_lossy(&output.stderr);
            require::skip(&format!("strace cannot trace here: {why}"));
            return;
        }
        assert!(output.status.success(), "{output:?}");
        let steps: Vec<&str> = trace
            .lines()
            .filter(|line| line.ends_with("= 0"))
            .filter_map(|line| {
                let new_name = line.rsplit('"').nth(1).unwrap_or_default();
                let renames = |to: &str| line.contains("rename") && new_name.starts_with(to);
                let to_aside = line.contains("/.old-0.tmp>");
                let to_output = line.rsplit(", ").take(3).any(|part| part.ends_with("/out>"));
                [
                    // Also as in `<... syncfs resumed>) = 0`, if another thread ended meanwhile.
                    (line.contains("syncfs"), "all synced"),
                    (line.contains("fsync") && line.contains("/out>"), "names synced"),
                    (line.contains("fsync"), "aside synced"),
                    (to_output && renames("blas_lib_generic"), "generic"),
                    (to_aside && renames("blas_lib_generic"), "generic aside"),
                    (to_output && renames("blas_lib_gfx"), "target"),
                ]
                .into_iter()
                .find_map(|(is, step)| is.then_some(step))
            })
            .collect();
        let last = steps.iter().rposition(|step| *step == "all synced");
        let last = last.unwrap_or_else(|| panic!("{run}: it is not synced:\n{trace}"));
        let steps = &steps[last..];
        // What is set aside may be the only complete output, so it has its new name before the old one is gone.
        let (aside, synced) = match run {
            "new" => (&[][..], &[][..]),
            _ => (&["generic aside"][..], &["aside synced"; 2][..]),
        };
        let expected = [
            &["all synced"][..],
            aside,
            synced,
            &["names synced", "target", "target"],
            synced,
            &["names synced", "generic", "names synced"],
        ];
        assert_eq!(steps, expected.concat(), "{run}:\n{trace}");
    }
}

/// The files of each artifact in `out`, without hidden directories.
fn artifacts(tree: &Tree) -> BTreeMap<String, Snapshot> {
    let mut artifacts: BTreeMap<String, Snapshot> = BTreeMap::new();
    for (path, entry) in tree.snapshot() {
        let Some((name, path)) = path.strip_prefix("out/").and_then(|path| path.split_once('/'))
        else {
            continue;
        };
        if !name.starts_with('.') {
            artifacts.entry(name.to_owned()).or_default().insert(path.to_owned(), entry);
        }
    }
    artifacts
}

/// Whenever it is killed, each artifact that has its name is complete, and if the generic one has its name,
/// all have. Another run completes the rest. `faults::extra::artifact_split` kills it at each step.
#[test]
fn killed_at_any_step_it_leaves_no_artifact_that_looks_complete_and_is_not() {
    if !require::tracing() {
        return;
    }
    let reference = |payload: &str| {
        let tree = Tree::new();
        artifact(&tree, "in/blas_lib", payload, 40);
        process::run(&mut command(&tree, &SPLIT));
        (artifacts(&tree), tree)
    };
    // There is nothing, or the artifacts of an earlier build.
    let (old, old_tree) = reference("old");
    let (new, tree) = reference("new");
    assert_ne!(old, new);
    let replaces = |state| state == 1;
    kill_at_steps(
        Steps::Some,
        2,
        |state| {
            fs::remove_dir_all(tree.path("out")).unwrap();
            if replaces(state) {
                process::copy(old_tree.path("out"), tree.path("out"));
            }
            command(&tree, &SPLIT)
        },
        || tree.snapshot_with_times(),
        |state| {
            if tree.path("out").exists() {
                let found = artifacts(&tree);
                for (name, files) in &found {
                    let whole = new.get(name) == Some(files)
                        || replaces(state) && old.get(name) == Some(files);
                    assert!(whole, "{name} is not whole");
                }
                if found.contains_key("blas_lib_generic") {
                    assert!(found == new || replaces(state) && found == old);
                }
            }
            process::run(&mut command(&tree, &SPLIT));
            assert_eq!(artifacts(&tree), new);
            let left = fs::read_dir(tree.path("out")).unwrap().count();
            assert_eq!(left, 3, "something hidden is left");
        },
    );
}

#[test]
fn json_whatever_happens() {
    let tree = Tree::new();
    artifact(&tree, "in/blas_lib", "gemm", 1);
    let json = |arguments: &[&str]| {
        let output = kpack(&tree, &[arguments, &["--json"]].concat());
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = said["error"].as_str().unwrap_or_default().to_owned();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(&error), "{error}\n{stderr}");
        (output.status.code().unwrap(), said, error)
    };
    for (kind, arguments) in [("single", &SPLIT[..]), ("batch", &BATCH)] {
        for (more, code, words) in [
            (&["--gpu-targets", "gfx1201", "--require-targets"][..], 3, "gfx1201"),
            (&["--split-databases", "no"], 2, "kernel database `no`"),
        ] {
            let (found, said, error) = json(&[arguments, more].concat());
            assert_eq!((found, &said["outcome"]), (code, &"failed".into()), "{said:#}");
            assert!(error.contains(words), "{said:#}");
            assert_eq!(said.get("artifacts").is_some(), kind == "batch", "{said:#}");
        }
        let (code, said, _) = json(arguments);
        assert_eq!((code, &said["outcome"]), (0, &"split".into()), "{said:#}");
        assert!(said.get("error").is_none(), "{said:#}");
    }
    fs::remove_dir_all(tree.path("in")).unwrap();
    for arguments in [&SPLIT[..], &BATCH] {
        let (code, said, error) = json(arguments);
        assert_eq!((code, &said["outcome"]), (4, &"failed".into()), "{said:#}");
        assert!(error.contains("in"), "{said:#}");
    }
}

#[test]
fn a_batch_that_a_signal_stops_ends_by_it() {
    let tree = Tree::new();
    let artifact = tree.path("in/vec_lib");
    fs::create_dir_all(artifact.join("vec/stage/lib")).unwrap();
    fs::write(artifact.join("artifact_manifest.txt"), "vec/stage\n").unwrap();
    fs::write(artifact.join("vec/stage/lib/host.txt"), "host").unwrap();
    // It waits for this lock.
    let hidden = tree.path("out/.vec_lib.tmp");
    fs::create_dir_all(&hidden).unwrap();
    let lock = fs::File::open(&hidden).unwrap();
    lock.lock().unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        // A shell starts background jobs with the signal ignored, and programs inherit that.
        let mut run = Command::new("env");
        run.args(["--default-signal", env!("CARGO_BIN_EXE_kpack"), "artifact", "split"])
            .arg("--batch-artifact-parent-dir")
            .arg(tree.path("in"))
            .arg("--output-dir")
            .arg(tree.path("out"));
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let proc = PathBuf::from(format!("/proc/{}", run.id()));
        let waits = |fd: fs::DirEntry| {
            fs::read_link(fd.path()).is_ok_and(|to| to.ends_with(".vec_lib.tmp"))
        };
        while !fs::read_dir(proc.join("fd")).unwrap().flatten().any(waits) {
            assert_eq!(run.try_wait().unwrap(), None);
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&run), signal).unwrap();
        let status = run.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
    }
}
