//! Given a recombination that is killed at any moment, then no artifact that has its name is less
//! than whole, and the next run completes what is missing.

mod shards;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use kpack_tests::tree::Tree;
use shards::{three_shards, write};

const TRIES: u32 = 100;

fn command(tree: &Tree) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kpack"));
    command
        .current_dir(tree.root())
        .args([
            "recombine",
            "--input-shards-dir",
            "shards",
            "--output-dir",
            "out",
        ])
        .args(["--config", "packaging.json", "--quiet"])
        .stdin(Stdio::null());
    command
}

/// By name, the files of each artifact that has one.
type Artifacts = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// What is in each artifact that has its name, and the names of hidden ones.
fn artifacts(tree: &Tree) -> (Artifacts, Vec<String>) {
    let mut found = Artifacts::new();
    let mut hidden = Vec::new();
    for entry in fs::read_dir(tree.path("out")).into_iter().flatten() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        match name.starts_with('.') {
            true => hidden.push(name),
            false => drop(found.entry(name).or_default()),
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

#[test]
fn what_is_there_is_whole_and_a_second_run_completes_it() {
    let tree = three_shards();
    write(
        &tree.path("packaging.json"),
        br#"{
          "primary_shard": "linux-a",
          "architecture_groups": {
            "gfx110X": {"architectures": ["gfx1100", "gfx1101"]},
            "instinct": {"architectures": ["gfx90a:xnack+", "gfx942"]}
          }
        }"#,
    );
    let start = Instant::now();
    assert!(command(&tree).status().unwrap().success());
    let whole_run = start.elapsed();
    let (expected, hidden) = artifacts(&tree);
    assert_eq!((expected.len(), hidden.len()), (3, 0));

    let mut killed = 0;
    for attempt in 0..TRIES {
        // Every other one finds nothing there, the rest what was left by the one before.
        if attempt % 2 == 0 {
            let _ = fs::remove_dir_all(tree.path("out"));
        }
        let mut child = command(&tree).spawn().unwrap();
        // Spread over the run, and a little beyond.
        thread::sleep(whole_run * (attempt * 37 % TRIES) / (TRIES * 9 / 10));
        let _ = child.kill();
        killed += u32::from(!child.wait().unwrap().success());
        let (found, _) = artifacts(&tree);
        for (artifact, files) in &found {
            assert!(
                expected.get(artifact) == Some(files),
                "attempt {attempt}: {artifact} has {:?}",
                files.keys()
            );
        }
        if found.contains_key("blas_lib_generic") {
            assert_eq!(found.len(), 3, "attempt {attempt}");
        }
    }
    assert!(
        killed > TRIES / 4,
        "only {killed} runs were killed before they ended"
    );
    assert!(command(&tree).status().unwrap().success());
    assert_eq!(artifacts(&tree), (expected, Vec::new()));
}
