//! Given somebody who changes a tree while it is trimmed, a second run, or a system that fails, when a tree is trimmed, then
//! nothing elsewhere changes, nothing is lost, and what can be done is done.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{command, kpack, words};
use crate::fat::targets_of;
use crate::swapped::{can_stop, is_untouched, run, swap_at_each, take, trace};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code_with};
use kpack_tests::process;
use kpack_tests::steps::Steps;
use kpack_tests::tree::{Tree, copy_file, entries_below};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Calls after which a directory is swapped.
const CALLS: [&str; 6] = ["openat", "rename", "renameat", "unlink", "unlinkat", "linkat"];

const LIBRARY: &str = "lib/libvec.so";
const DATABASE: &str = "lib/rocblas/library";

fn build(path: &Path) {
    let both = |seed| ["gfx1100", "gfx942"].map(|target| code_with(target, &[seed; 5_000]));
    FatLibrary::new().wrapper(Storage::Zstd(2), both(1)).build(path).unwrap();
}

/// A tree with everything that trim changes.
fn tree() -> Tree {
    let tree = Tree::new();
    build(&tree.path("fat"));
    build(&tree.path("out/lib/libsplit.so"));
    install(&InstallOptions::new(tree.path("out"), "vec", ["lib/libsplit.so"]), &()).unwrap();
    copy_file(tree.path("fat"), tree.path("out").join(LIBRARY));
    for target in ["gfx1100", "gfx942"] {
        let code = code_with(target, &[1; 500]).1;
        tree.write(&format!("out/{DATABASE}/TensileLibrary_Type_SS_{target}.hsaco"), code);
    }
    symlink(tree.path("fat"), tree.path("out/lib/linked.so")).unwrap();
    tree
}

/// What a copy of the tree does not have.
fn with_hard_links(tree: &Tree) {
    for name in ["lib/libvec.so.1", "lib/rocblas/libvec.so.2"] {
        fs::hard_link(tree.path("out").join(LIBRARY), tree.path("out").join(name)).unwrap();
    }
}

/// Swaps a directory after calls of each kind for a link to a copy: after some one directory, or after all each. Before
/// changes, it is the one that has all files.
fn swap(steps: Steps, line: &str, directories: &[&str]) {
    if !can_stop() {
        return;
    }
    let inputs = tree();
    let calls = {
        let tree = inputs.copy();
        with_hard_links(&tree);
        trace(&tree, line, &["-f"])
    };
    let trials = calls.trials(steps, &CALLS, directories, &["out/lib"]);
    swap_at_each(line, &trials, |step, directory| {
        let tree = inputs.copy();
        with_hard_links(&tree);
        let path = tree.path(directory);
        let given = entries_below(&path);
        let swap = || {
            symlink(take(&tree, &path), &path).unwrap();
            true
        };
        let swapped = run(&tree, line, &["-f"], step, &swap);
        // What was given may be swapped before the run finds it.
        let is_other = || directory == "out" && entries_below(&tree.path("taken/0")) == given;
        assert!(is_untouched(&tree) || is_other(), "{directory} at {step:?}");
        swapped == Some(true)
    });
}

fn swap_directories(steps: Steps) {
    let database = &format!("out/{DATABASE}");
    let directories = ["out", "out/lib", database, "out/lib/.kpack", "out/lib/rocblas"];
    swap(steps, "trim --arch gfx1100 out", &directories);
}

fn swap_directories_of_a_root(steps: Steps) {
    swap(steps, "trim --arch gfx1100 --root out /", &["out", "out/lib", "out/lib/rocblas"]);
}

#[test]
fn directories_that_are_swapped_lead_nowhere_else() {
    swap_directories(Steps::Some);
}

#[test]
fn in_a_root_directories_that_are_swapped_lead_nowhere_else() {
    swap_directories_of_a_root(Steps::Some);
}

/// Each directory, after each call.
mod extra {
    use super::*;

    #[test]
    #[ignore = "needs minutes"]
    fn directories_that_are_swapped_lead_nowhere_else() {
        swap_directories(Steps::All);
    }

    #[test]
    #[ignore = "needs minutes"]
    fn in_a_root_directories_that_are_swapped_lead_nowhere_else() {
        swap_directories_of_a_root(Steps::All);
    }
}

const FILES: usize = 60;

/// A database with as many files for each GPU, and a library.
fn with_database() -> Tree {
    let tree = tree();
    for (target, number) in
        ["gfx1100", "gfx942"].iter().flat_map(|t| (0..FILES).map(move |n| (t, n)))
    {
        let code = code_with(target, &[number as u8; 500]).1;
        tree.write(&format!("out/{DATABASE}/Kernels{number}_{target}.hsaco"), code);
    }
    tree
}

/// The files of the database for a GPU, and the targets in the library.
fn left(tree: &Tree, gpu: &str) -> (usize, Vec<String>) {
    let files = fs::read_dir(tree.path("out").join(DATABASE)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    (
        names.filter(|name| name.ends_with(&format!("_{gpu}.hsaco"))).count(),
        targets_of(&tree.path("out").join(LIBRARY)),
    )
}

#[test]
fn two_runs_at_once_are_as_one_after_the_other() {
    for (gpus, paths) in [
        (["gfx1100", "gfx942"], ["out", "out"]),
        (["gfx1100", "gfx942"], ["out", "out/lib/rocblas"]),
        (["gfx942", "gfx1100"], ["out/lib/libvec.so out/lib/rocblas", "out"]),
        (["gfx1100", "gfx1100"], ["out", "out/lib"]),
    ] {
        let tree = with_database();
        let runs = [0, 1].map(|run| {
            let line = format!("trim --arch {} {}", gpus[run], paths[run]);
            command(&tree, &words(&line)).stderr(std::process::Stdio::piped()).spawn().unwrap()
        });
        for run in runs {
            let said = run.wait_with_output().unwrap();
            // For the second one, there may be no code any more.
            let nothing = String::from_utf8_lossy(&said.stderr).contains("so nothing is trimmed");
            assert!(said.status.success() || gpus[0] != gpus[1] && nothing, "{paths:?}: {said:?}");
        }
        // Whichever came first has the files of its GPU, all of them.
        let first = gpus.iter().find(|gpu| left(&tree, gpu).0 > 0);
        let first = *first.unwrap_or_else(|| panic!("{paths:?}: nothing is left"));
        let other = if first == "gfx942" { "gfx1100" } else { "gfx942" };
        assert_eq!(left(&tree, first).0, FILES + 1, "{paths:?}");
        assert_eq!(left(&tree, other).0, 0, "{paths:?}");
        // The library was not given to every run.
        let [target] = &left(&tree, first).1[..] else { panic!("{paths:?}") };
        assert!(target == first || paths[1] != "out" || paths[0] != "out", "{paths:?}");
    }
}

/// Runs trim while some calls fail.
fn run_failing(tree: &Tree, inject: &[&str], arguments: &str) -> (Option<i32>, String) {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "trace"]).args(inject).arg(env!("CARGO_BIN_EXE_kpack"));
    strace.args(words(&format!("trim --arch gfx1100 {arguments}"))).current_dir(tree.root());
    let said = process::output(&mut strace);
    let text = [said.stdout, said.stderr].concat();
    (said.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_done() {
    if !can_stop() {
        return;
    }
    for (inject, path, named) in [
        // It has no bytes at its start.
        (&[][..], "lib/memory.so", "out/lib/memory.so"),
        (&["-einject=pread64:error=EIO"], "lib/a.so", "out/lib/a.so"),
        (&["-einject=getdents64:error=EIO"], "lib/unlisted", "out/lib/unlisted"),
        (&["-einject=getdents64:error=EIO"], "lib/rocblas/library", "out/lib/rocblas/library"),
    ] {
        let tree = tree();
        symlink("/proc/self/mem", tree.path("out/lib/memory.so")).unwrap();
        if !inject.is_empty() {
            fs::remove_file(tree.path("out/lib/memory.so")).unwrap();
        }
        copy_file(tree.path("fat"), tree.path("out/lib/a.so"));
        fs::create_dir(tree.path("out/lib/unlisted")).unwrap();
        let path = tree.path("out").join(path);
        let only = [&["-P", path.to_str().unwrap()][..], inject].concat();
        let before = tree.snapshot_with_times();
        let failing = if inject.is_empty() { inject } else { &only };
        let (code, text) = run_failing(&tree, failing, "--dry-run out");
        assert_eq!(code, Some(4), "{named}: {text}");
        fs::remove_file(tree.path("trace")).unwrap();
        assert!(tree.snapshot_with_times() == before);
        let (code, text) = run_failing(&tree, failing, "out");
        assert_eq!(code, Some(4), "{named}: {text}");
        let lines = Vec::from_iter(text.lines().filter(|line| line.contains("kpack: error: ")));
        assert!(lines.iter().all(|line| line.contains(named)) && !lines.is_empty(), "{text}");
        assert_eq!(targets_of(&tree.path("out").join(LIBRARY)), ["gfx1100"], "{named}");
        assert!(text.contains("files changed"), "{text}");
        // Once it can be read, the rest is done.
        let (code, text) = run_failing(&tree, &[], "out");
        assert_eq!(code, Some(if inject.is_empty() { 4 } else { 0 }), "{named}: {text}");
        assert_eq!(targets_of(&tree.path("out/lib/a.so")), ["gfx1100"], "{named}");
        assert_eq!(left(&tree, "gfx942").0, 0, "{named}");
    }
}

#[test]
fn what_a_link_leads_to_that_cannot_be_followed_stays() {
    if !can_stop() {
        return;
    }
    for link in [&format!("{DATABASE}/Again_gfx1100.hsaco"), "lib/unread.so"] {
        let tree = tree();
        let database = tree.path("out").join(DATABASE);
        let other = "TensileLibrary_Type_SS_gfx942.hsaco";
        symlink(other, database.join("Again_gfx1100.hsaco")).unwrap();
        symlink(tree.path("fat"), tree.path("out/lib/unread.so")).unwrap();
        let link = tree.path("out").join(link);
        let failing = ["-P", link.to_str().unwrap(), "-einject=readlink,readlinkat:error=EIO"];
        let (code, text) = run_failing(&tree, &failing, "out");
        assert_eq!(code, Some(4), "{text}");
        let named = format!("kpack: error: cannot follow {}", link.display());
        assert!(text.contains(&named), "{text}");
        assert!(database.join(other).exists(), "{text}");
        assert_eq!(targets_of(&tree.path("out").join(LIBRARY)), ["gfx1100"], "{text}");
    }
}

#[test]
fn a_file_that_takes_the_place_of_one_that_was_read_stays() {
    if !can_stop() {
        return;
    }
    let tree = tree();
    let path = tree.path("out").join(DATABASE).join("TensileLibrary_Type_SS_gfx942.hsaco");
    let swap = || {
        fs::write(tree.path("new"), "new").unwrap();
        fs::rename(tree.path("new"), &path).unwrap();
        true
    };
    // The walk has opened it.
    let options = ["-f", "-P", path.to_str().unwrap()];
    let swapped = run(&tree, "trim --arch gfx1100 out", &options, &("openat".to_owned(), 1), &swap);
    assert_eq!(swapped, Some(true));
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn what_cannot_be_written_is_named_and_the_rest_is_done() {
    if !can_stop() {
        return;
    }
    for inject in [
        "-einject=pwrite64:error=ENOSPC:when=1",
        "-einject=unlinkat:error=EIO:when=1",
        "-einject=renameat:error=EIO:when=4",
    ] {
        let tree = tree();
        for name in ["a", "b", "c", "d"] {
            copy_file(tree.path("fat"), tree.path(&format!("out/lib/{name}.so")));
        }
        let (code, text) = run_failing(&tree, &[inject], "out");
        assert_eq!(code, Some(4), "{inject}: {text}");
        assert!(text.contains("kpack: error: cannot ") && text.contains("[system]"), "{text}");
        assert!(!text.contains("damaged"), "{text}");
        let names = ["a", "b", "c", "d"].map(|name| tree.path(&format!("out/lib/{name}.so")));
        let done = names.iter().filter(|path| targets_of(path) == ["gfx1100"]).count();
        assert!(done >= 2, "{inject}: {text}");
        assert!(!tree.files().iter().any(|file| file.ends_with(".tmp")), "{:?}", tree.files());
        let (code, text) = run_failing(&tree, &[], "out");
        assert_eq!(code, Some(0), "{inject}: {text}");
        assert!(names.iter().all(|path| targets_of(path) == ["gfx1100"]), "{inject}");
        assert_eq!(left(&tree, "gfx942").0, 0, "{inject}");
    }
}

/// How long a process, which may have ended, has used processors: how busy the machine is makes no difference.
fn processor_time(id: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let after_name = text.rsplit_once(") ").unwrap().1;
    let ticks = after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
    // In hundredths of a second, on every Linux.
    Duration::from_millis(10 * ticks.sum::<u64>())
}

#[test]
fn a_signal_ends_a_run_within_a_second_of_processor_time() {
    // A run that waits forever uses no processor.
    const LIMIT: Duration = Duration::from_secs(300);
    let tree = tree();
    for directory in 0..300 {
        for file in 0..120 {
            tree.write(&format!("out/lib/python{directory}/module{file}.py"), "pass");
        }
    }
    let rule = "vec=lib/python*/none_{target}.co";
    for delay in [20, 100, 300, 700] {
        let started = command(&tree, &["trim", "--arch", "gfx1100", "--kernel-files", rule, "out"]);
        let mut run = { started }.spawn().unwrap();
        thread::sleep(Duration::from_millis(delay));
        let before = processor_time(run.id());
        process::run(Command::new("kill").arg(run.id().to_string()));
        // It keeps its times until somebody waits for it.
        let id = WaitId::Pid(Pid::from_child(&run));
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let signalled = Instant::now();
        while waitid(id.clone(), options).unwrap().is_none() {
            if signalled.elapsed() > LIMIT {
                run.kill().unwrap();
                panic!("{delay}: it still runs after {LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
        let after = processor_time(run.id()) - before;
        run.wait().unwrap();
        assert!(after < Duration::from_secs(1), "{delay}: {after:?}");
        assert!(!tree.files().iter().any(|file| file.ends_with(".tmp")));
    }
    assert!(kpack(&tree, &words("trim --arch gfx1100 out")).status.success());
}
