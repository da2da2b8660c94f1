//! Given somebody who may rename in the directory of the output, when they swap directories that a command made, at its
//! steps, then nothing is written or removed elsewhere.
//!
//! What somebody puts in the place of a directory leads to a copy of it. So whatever a command does by a path, rather than
//! in the directory that it holds open, it does to the copy, where it finds all names that it expects.
//!
//! Each command has two tests. One swaps directories after some steps in one way, and all of them just before some changes of
//! each kind. The one in `faults::extra` does so after each step in each way, and before each change.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use kpack_tests::fixture::{Storage, bundle, code_with};
use kpack_tests::steps::{Step, Steps, Trace, Trial};
use kpack_tests::tree::{Tree, entries_below, names_in, write};
use kpack_tests::{process, require};
use rustix::process::{Pid, Signal, kill_process};
use walkdir::WalkDir;

use crate::cargo_build::built;
use crate::command::{command, kpack, words};
use crate::outputs::inputs;

/// What changes directories, within an open one or by a path. The command stops after the call.
const CALLS: [&str; 11] = [
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
];

/// How often to look whether the command has stopped: for two minutes.
const STEP: Duration = Duration::from_millis(2);
const PATIENCE: usize = 60_000;

/// What is swapped, and for what.
#[derive(Debug, Clone, Copy)]
enum Swap {
    /// The first, the second or the deepest directory, for a link to the copy.
    Link(usize),
    /// The first one, for a directory with such links in it.
    Directory,
    /// All that are in the output directory itself, each for a link.
    All,
}

fn with_inputs() -> Tree {
    let tree = inputs();
    fs::write(tree.path("build.json"), built(&tree)).unwrap();
    let groups = r#"{"primary_shard": "one", "architecture_groups":
        {"one": {"architectures": ["gfx942", "gfx90a"]}}}"#;
    fs::write(tree.path("groups.json"), groups).unwrap();
    for line in [
        "artifact split --artifact-dir artifact --artifact-prefix vec_lib --output-dir shards/one",
        "artifact pack shards/one --output-dir store",
    ] {
        let said = kpack(&tree, &words(line));
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }
    fs::create_dir(tree.path("out")).unwrap();
    tree
}

fn directories(tree: &Tree) -> BTreeSet<PathBuf> {
    let walk = WalkDir::new(tree.path("out")).min_depth(1).into_iter().flatten();
    walk.filter(|entry| entry.file_type().is_dir()).map(walkdir::DirEntry::into_path).collect()
}

/// Takes a directory away, and returns the copy that nobody may change.
pub(crate) fn take(tree: &Tree, path: &Path) -> PathBuf {
    let parts = ["victim", "expected", "taken"].map(|part| tree.path(part));
    parts.iter().for_each(|part| fs::create_dir_all(part).unwrap());
    let number = names_in(&parts[2]).len().to_string();
    let [victim, expected, taken] = parts.map(|part| part.join(&number));
    process::copy(path, &victim);
    write(victim.join("kept"), "precious");
    process::copy(&victim, expected);
    fs::rename(path, taken).unwrap();
    victim
}

/// Whether what was put in the place of directories is as it was.
pub(crate) fn is_untouched(tree: &Tree) -> bool {
    let [victim, expected] = ["victim", "expected"].map(|part| tree.path(part));
    !victim.exists() || entries_below(&victim) == entries_below(&expected)
}

/// Swaps directories that were made in `out`; returns whether there were any.
fn swap(tree: &Tree, is_deep: bool, how: Swap) -> bool {
    let made = directories(tree);
    // What is in kpack's own directory, nobody else can rename.
    let is_private = |path: &&PathBuf| {
        let mut above = path.ancestors().skip(1);
        above.any(|above| above.ends_with(".kpack.tmp"))
    };
    let mut made: Vec<&PathBuf> = made.iter().filter(|path| is_deep || !is_private(path)).collect();
    made.sort_by_key(|path| path.components().count());
    let paths = match how {
        Swap::Link(0) | Swap::Directory => made.first().into_iter().collect(),
        Swap::Link(1) => made.get(1).into_iter().collect(),
        Swap::Link(_) => made.last().filter(|_| made.len() > 2).into_iter().collect(),
        Swap::All => {
            let out = tree.path("out");
            Vec::from_iter(made.iter().filter(|path| path.parent() == Some(&out)))
        }
    };
    for path in &paths {
        let victim = take(tree, path);
        if let Swap::Directory = how {
            fs::create_dir(path).unwrap();
            for name in names_in(&victim) {
                symlink(victim.join(&name), path.join(name)).unwrap();
            }
        } else {
            symlink(victim, path).unwrap();
        }
    }
    !paths.is_empty()
}

/// The process that strace runs.
fn traced(strace: &Child) -> Option<Pid> {
    let id = strace.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

/// The process of kpack, when it has stopped; `None` if it ended.
fn stopped(strace: &mut Child, trace: &Path, times: usize) -> Option<Pid> {
    for round in 1..=PATIENCE {
        let ended = strace.try_wait().unwrap().is_some();
        let text = fs::read_to_string(trace).unwrap_or_default();
        // The list of children may lack one for a moment. Whoever then took it for ended would wait for it forever.
        if text.matches("stopped by SIGSTOP").count() > times
            && let Some(pid) = traced(strace)
        {
            return Some(pid);
        }
        if ended {
            return None;
        }
        // It may have stopped without strace noting that, if a thread ended at this moment.
        if let Some(pid) = traced(strace).filter(|_| round % 500 == 0) {
            let _ = kill_process(pid, Signal::CONT);
        }
        sleep(STEP);
    }
    let _ = strace.kill();
    panic!("neither stopped nor ended: {}", fs::read_to_string(trace).unwrap_or_default());
}

/// Runs a command that stops after the call `number` of a kind, when a directory is swapped. `None` if there is no such call.
pub(crate) fn run(
    tree: &Tree,
    line: &str,
    follow: &[&str],
    (call, number): &Step,
    swap: &dyn Fn() -> bool,
) -> Option<bool> {
    let trace = tree.path("trace");
    let mut strace = Command::new("strace");
    strace.args(follow).arg("-o").arg(&trace).args(["-e", &format!("trace={call}")]);
    strace.arg(format!("-einject={call}:signal=STOP:when={number}"));
    strace.arg(env!("CARGO_BIN_EXE_kpack")).args(words(line)).arg("--quiet");
    strace.current_dir(tree.root());
    let mut strace = strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut swapped = None;
    let mut times = 0;
    // Each thread counts its own calls.
    while let Some(pid) = stopped(&mut strace, &trace, times) {
        if swapped != Some(true) {
            swapped = Some(swap());
        }
        times = fs::read_to_string(&trace).unwrap().matches("stopped by SIGSTOP").count();
        // It may have ended meanwhile, since a thread that stops need not stop the others at once.
        let _ = kill_process(pid, Signal::CONT);
    }
    strace.wait().unwrap();
    swapped
}

/// Whether strace can stop a program.
pub(crate) fn can_stop() -> bool {
    if !require::tool("strace") {
        return false;
    }
    let probe = Command::new("strace").args(["-einject=getpid:signal=CONT", "true"]).output();
    probe.unwrap().status.success() || require::missing("strace cannot change a program here")
}

/// A command that makes directories.
struct Case<'a> {
    inputs: &'a Tree,
    line: &'a str,
    /// Whether all that it makes is out of reach by its path.
    is_deep: bool,
    /// The option by which strace watches its threads.
    follow: &'a [&'a str],
}

/// Swaps directories that a command makes, at some of its calls or at all.
fn check(steps: Steps, line: &str, is_deep: bool) {
    let inputs = &with_inputs();
    check_case(steps, &Case { inputs, line, is_deep, follow: &["-f"] });
}

fn check_case(steps: Steps, case: &Case<'_>) {
    let Case { inputs, line, is_deep, follow } = case;
    if !can_stop() {
        return;
    }
    let copy = || {
        let tree = inputs.copy();
        fs::create_dir_all(tree.path("out")).unwrap();
        tree
    };
    let ways = [Swap::Link(0), Swap::Directory, Swap::Link(1), Swap::Link(2)];
    let trials = trace(&copy(), line, follow).trials(steps, &CALLS, &ways, &[Swap::All]);
    swap_at_each(line, &trials, |step, how| {
        let tree = copy();
        let swapped = run(&tree, line, follow, step, &|| swap(&tree, *is_deep, how));
        assert!(is_untouched(&tree), "{line}: {how:?} at {step:?}");
        swapped == Some(true)
    });
}

/// Makes trials with a command. `swap` runs it, checks what it left, and returns whether a directory was swapped.
///
/// # Panics
/// At fewer than half of the steps, a directory was swapped.
pub(crate) fn swap_at_each<T: Copy>(
    line: &str,
    trials: &[Trial<T>],
    mut swap: impl FnMut(&Step, T) -> bool,
) {
    let mut steps_with_swap = 0;
    for Trial { step, ways, enough } in trials {
        let swaps = ways.iter().filter(|way| swap(step, **way)).take(*enough).count();
        steps_with_swap += usize::from(swaps > 0);
    }
    // Where other threads take work from the main one, it may make fewer calls than when they were counted.
    println!("{line}: swapped at {steps_with_swap} of {} steps", trials.len());
    assert!(steps_with_swap * 2 >= trials.len(), "{line}: {steps_with_swap} of {}", trials.len());
}

/// The steps of a command.
pub(crate) fn trace(tree: &Tree, line: &str, follow: &[&str]) -> Trace {
    let mut kpack = command(tree, &words(line));
    let calls = [&CALLS[..], &["openat"]].concat();
    Trace::of(kpack.arg("--quiet"), &calls, follow)
}

macro_rules! tests {
    ($($(#[$doc:meta])* $name:ident: $check:expr;)*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                $check(Steps::Some);
            }
        )*
        mod faults {
            mod extra {
                use super::super::*;
                $(
                    #[test]
                    #[ignore = "needs minutes"]
                    fn $name() {
                        $check(Steps::All);
                    }
                )*
            }
        }
    };
}

tests! {
    extract: |steps| check(
        steps,
        "extract prefix/lib/.kpack/vec_lib_gfx942.kpack --output-dir out",
        true,
    );
    split: |steps| check(
        steps,
        "artifact split --artifact-dir artifact --artifact-prefix vec_lib --output-dir out --jobs 1",
        true,
    );
    recombine: |steps| check(
        steps,
        "artifact recombine --input-shards-dir shards --config groups.json --output-dir out --jobs 1",
        true,
    );
    pack: |steps| check(steps, "artifact pack shards/one --output-dir out --jobs 1", true);
    unpack: |steps| check(steps, "artifact unpack store --output-dir out/new --jobs 1", true);
    unpack_into_a_directory: |steps| check(
        steps,
        "artifact unpack store --flatten --output-dir out --jobs 1",
        true,
    );
    wheel_split: |steps| check(
        steps,
        "wheel split vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl --output-dir out --jobs 1",
        false,
    );
    stage: |steps| check_stage(steps, "stage --output-dir out/dist --messages build.json");
    stage_into_a_directory: |steps| check_stage(
        steps,
        "stage --output-dir out --messages build.json",
    );
    join: check_join;
    launch: check_launch;
}

/// In the main thread alone, which makes and publishes the release. A thread that ends while strace stops the others would
/// make it wait for minutes, and `stage` starts threads all the time.
fn check_stage(steps: Steps, line: &str) {
    let inputs = &with_inputs();
    check_case(steps, &Case { inputs, line, is_deep: false, follow: &[] });
}

/// It makes no directories, so that somebody swaps those of the prefix.
fn check_join(steps: Steps) {
    let inputs = &with_inputs();
    fs::remove_dir(inputs.path("out")).unwrap();
    fs::rename(inputs.path("prefix"), inputs.path("out")).unwrap();
    let line = "join --prefix out --arch gfx942 --jobs 1";
    check_case(steps, &Case { inputs, line, is_deep: false, follow: &["-f"] });
}

/// The compiler is another process, which strace does not watch.
fn check_launch(steps: Steps) {
    let inputs = &with_inputs();
    let compiler = inputs.path("compiler");
    process::script(&compiler, "cp vec.o out/vec.o");
    // The copies of the inputs use this one.
    let compiler = compiler.display();
    let line = &format!("launch --module vec -- {compiler} -c vec.hip -o out/vec.o");
    let case = Case { inputs, line, is_deep: false, follow: &[] };
    check_case(steps, &case);
    // Where an earlier run left archives, of which one is stale.
    let said = kpack(inputs, &words(line));
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    fs::write(inputs.path("out/vec.o.kpack/.kpack/vec_lib_gfx1100.kpack"), "stale").unwrap();
    check_case(steps, &case);
}

/// The lists that a trim corrects are above what is given. It makes few calls in their directory, so this swaps that after
/// each.
#[test]
fn lists_of_a_trim() {
    if !can_stop() {
        return;
    }
    const PACKAGES: &str = "venv/lib/python3.12/site-packages";
    let inputs = Tree::new();
    let codes = ["gfx1100", "gfx942"].map(|target| code_with(target, &[1; 1000]));
    let fat = bundle(Storage::Plain, &codes).unwrap();
    inputs.write(&format!("{PACKAGES}/vec/a.hipfb"), &fat);
    let info = format!("{PACKAGES}/vec-1.dist-info");
    let rows = format!("vec/a.hipfb,sha256=x,{}\nvec-1.dist-info/RECORD,,\n", fat.len());
    inputs.write(&format!("{info}/RECORD"), &rows);
    let line = format!("trim --arch gfx1100 {PACKAGES}/vec");
    let (mut swaps, mut corrected) = (0, 0);
    // Other calls depend on the other processes here, which may use the files.
    let follow = ["-f", "-P", &info];
    let calls = [&CALLS[..], &["openat"]].concat();
    let trials = trace(&inputs.copy(), &line, &follow).trials(Steps::All, &calls, &[()], &[]);
    swap_at_each(&line, &trials, |step, ()| {
        let tree = inputs.copy();
        let swap = || {
            symlink(take(&tree, &tree.path(&info)), tree.path(&info)).unwrap();
            true
        };
        let swapped = run(&tree, &line, &follow, step, &swap);
        assert!(is_untouched(&tree), "{step:?}");
        if swapped == Some(true) {
            swaps += 1;
            let taken = fs::read_to_string(tree.path("taken/0/RECORD")).unwrap();
            corrected += usize::from(taken != rows);
        }
        swapped == Some(true)
    });
    // Some swaps came before kpack opened the directory for the new list, and some afterwards.
    assert!(corrected > 0 && swaps > corrected, "{corrected} of {swaps}");
}
