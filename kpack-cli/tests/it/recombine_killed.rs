//! Given a recombination that is killed at any step, then each artifact that has its name is complete, and
//! the next run writes the rest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::thread;

use crate::command::{command, words};
use crate::install_refused::can_unshare;
use crate::planned::CONFIGURATION;
use crate::shards::{PREFIX, three_shards};
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::steps::{Steps, kill_at_steps};
use kpack_tests::tree::Tree;

fn recombine(tree: &Tree) -> Command {
    command(
        tree,
        &words(
            "artifact recombine --input-shards-dir shards --output-dir out --config packaging.json",
        ),
    )
}

/// By name, the files of each artifact that has one.
type Artifacts = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// What is in each artifact that has its name, and the names of hidden ones.
fn artifacts(tree: &Tree) -> (Artifacts, Vec<String>) {
    let mut found = Artifacts::new();
    let mut hidden = Vec::new();
    for entry in fs::read_dir(tree.path("out")).into_iter().flatten() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with('.') {
            hidden.push(name)
        } else {
            found.entry(name).or_default();
        }
    }
    for (path, (_, bytes)) in tree.snapshot() {
        let Some(within) = path.strip_prefix("out/") else {
            continue;
        };
        if let Some((artifact, file)) = within.split_once('/')
            && let Some(files) = found.get_mut(artifact)
        {
            files.insert(file.to_owned(), bytes);
        }
    }
    (found, hidden)
}

/// `faults::extra::artifact_recombine` kills it at each step.
#[test]
fn what_is_there_is_whole_and_a_second_run_completes_it() {
    if !require::tracing() {
        return;
    }
    let tree = three_shards();
    fs::write(tree.path("packaging.json"), CONFIGURATION).unwrap();
    process::run(&mut recombine(&tree));
    let (expected, hidden) = artifacts(&tree);
    assert_eq!((expected.len(), hidden.len()), (3, 0));

    kill_at_steps(
        Steps::Some,
        2,
        |state| {
            // There is nothing, or what the run before left.
            if state == 0 {
                fs::remove_dir_all(tree.path("out")).unwrap();
                fs::create_dir(tree.path("out")).unwrap();
            }
            recombine(&tree)
        },
        || tree.snapshot_with_times(),
        |_| {
            let (found, _) = artifacts(&tree);
            for (artifact, files) in &found {
                assert!(expected.get(artifact) == Some(files), "{artifact} has {:?}", files.keys());
            }
            if found.contains_key("blas_lib_generic") {
                assert_eq!(found.len(), 3);
            }
        },
    );
    process::run(&mut recombine(&tree));
    assert_eq!(artifacts(&tree), (expected, Vec::new()));
}

/// Another run may hold the lock of one component while it waits for that of another.
#[test]
fn a_component_is_written_before_the_lock_of_the_next_one_is_awaited() {
    let tree = three_shards();
    add_components(&tree, &["alas_"]);
    fs::create_dir_all(tree.path("out/.blas_lib.tmp")).unwrap();
    let other_run = File::open(tree.path("out/.blas_lib.tmp")).unwrap();
    other_run.lock().unwrap();
    let mut command = recombine(&tree);
    command.args(["--jobs", "1"]).stdout(Stdio::null());
    let mut run = command.stderr(Stdio::null()).spawn().unwrap();
    while !tree.path("out/alas_lib_generic").exists() {
        assert_eq!(run.try_wait().unwrap(), None);
        thread::yield_now();
    }
    assert!(!tree.path("out/blas_lib_generic").exists());
    other_run.unlock().unwrap();
    assert!(run.wait().unwrap().success());
    assert!(tree.path("out/blas_lib_generic").exists());
}

/// Merges three components one after the other, twice, where there is room for little more than four.
#[test]
fn where_little_is_free_each_component_is_replaced_in_turn() {
    if !can_unshare() {
        return;
    }
    let tree = three_shards();
    let noise: Vec<u8> = (0..65_u32 << 10).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    for shard in ["linux-a", "linux-b", "linux-c"] {
        let data = tree.path(&format!("shards/{shard}/blas_lib_generic/{PREFIX}/share"));
        for index in 0..40 {
            fs::write(data.join(format!("large{index}")), &noise).unwrap();
            fs::write(data.join(format!("small{index}")), &noise[..4096]).unwrap();
        }
    }
    // Three components of 2.9 MB, and a little more than one.
    replace_in_little_room(&tree, "1 1");
}

/// Adds copies of the component `blas_lib` to each shard, and writes the configuration.
fn add_components(tree: &Tree, others: &[&str]) {
    for shard in ["linux-a", "linux-b", "linux-c"] {
        for entry in fs::read_dir(tree.path(&format!("shards/{shard}"))).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            for other in others {
                process::copy(&path, path.with_file_name(name.replace("blas_", other)));
            }
        }
    }
    fs::write(tree.path("packaging.json"), CONFIGURATION).unwrap();
}

/// Merges three components once for each number of jobs, where there is room for little more than four.
fn replace_in_little_room(tree: &Tree, jobs: &str) {
    add_components(tree, &["alas_", "clas_"]);
    let script = "mkdir out; mount -t tmpfs -o size=12m tmpfs out
        for jobs in $JOBS; do
            \"$KPACK\" artifact recombine --quiet --jobs $jobs --input-shards-dir shards --output-dir out --config packaging.json
        done
        \"$KPACK\" verify --quiet out; df -k out; ls out";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-ec", script])
        .current_dir(tree.root())
        .envs([("KPACK", env!("CARGO_BIN_EXE_kpack")), ("JOBS", jobs)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
