//! Given existing files in the output directory, when a release is staged, then it replaces only a staged
//! release, and a failure changes nothing.

use std::fs;
use std::process::Command;
use std::thread;

use crate::cargo_build::{built, messages, nothing_hidden, stage};
use kpack_cli::stage::Options;
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};
use serde_json::json;

#[test]
fn only_what_was_staged_is_replaced() {
    let tree = Tree::new();
    let text = built(&tree);
    let in_the_way = |directory: &str| {
        let before = tree.snapshot();
        let options = Options::new(tree.path(directory));
        let error = stage(&options, text.as_bytes()).unwrap_err();
        assert_eq!(tree.snapshot(), before);
        nothing_hidden(&tree);
        let root = tree.root().to_str().unwrap();
        error.in_one_line().replace(root, "[root]")
    };
    // A prefix with the same directories as a release.
    fs::create_dir_all(tree.path("prefix/bin")).unwrap();
    fs::create_dir_all(tree.path("prefix/lib")).unwrap();
    fs::write(tree.path("prefix/bin/precious"), "mine").unwrap();
    let mut said = vec![in_the_way("prefix")];
    // A release, with a file of the user's.
    stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    fs::write(tree.path("dist/bin/start"), "mine").unwrap();
    said.push(in_the_way("dist"));
    fs::remove_file(tree.path("dist/bin/start")).unwrap();
    fs::create_dir_all(tree.path("dist/share/doc")).unwrap();
    said.push(in_the_way("dist"));
    fs::remove_dir_all(tree.path("dist/share")).unwrap();
    fs::write(tree.path("file"), "mine").unwrap();
    said.push(in_the_way("file"));
    insta::assert_snapshot!(said.join("\n\n"));

    // A release alone is replaced, with the leftovers of a killed run beside it.
    fs::create_dir_all(tree.path(".dist.tmp/.kpack.tmp/old/bin")).unwrap();
    let stamps =
        ["dist", ".dist.tmp/.kpack.tmp/old"].map(|name| tree.path(name).join(".kpack-stage"));
    fs::copy(&stamps[0], &stamps[1]).unwrap();
    fs::remove_file(tree.path("dist/bin/app")).unwrap();
    stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    assert!(tree.path("dist/bin/app").is_file());
    nothing_hidden(&tree);
    // A run that was killed between its two renames left the release under the other name.
    let hidden = tree.path(".dist.tmp/.kpack.tmp");
    fs::create_dir_all(&hidden).unwrap();
    fs::rename(tree.path("dist"), hidden.join("old")).unwrap();
    let failed = json!({"reason": "build-finished", "success": true}).to_string();
    stage(&Options::new(tree.path("dist")), failed.as_bytes()).unwrap_err();
    stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    nothing_hidden(&tree);
}

#[test]
fn leftovers_of_a_run_that_was_killed_at_any_moment_go() {
    let tree = Tree::new();
    let text = built(&tree);
    let run = || stage(&Options::new(tree.path("dist")), text.as_bytes());
    run().unwrap();
    let stamp = fs::read_to_string(tree.path("dist/.kpack-stage")).unwrap();
    let hidden = tree.path(".dist.tmp/.kpack.tmp");
    for name in ["", "new", "old"] {
        fs::create_dir_all(hidden.join(name)).unwrap();
        run().unwrap();
        nothing_hidden(&tree);
    }
    for name in ["new", "old"] {
        // With nothing but the stamp, complete or not, and with a file.
        for (stamp, file) in [("", None), ("# Made", None), (&*stamp, Some("app"))] {
            let left = hidden.join(name);
            write(left.join(".kpack-stage"), stamp);
            if let Some(file) = file {
                fs::write(left.join(file), "").unwrap();
            }
            run().unwrap();
            nothing_hidden(&tree);
        }
    }
}

#[test]
fn other_files_under_the_hidden_name_stay() {
    let tree = Tree::new();
    let text = built(&tree);
    let options = Options::new(tree.path("dist"));
    let mine = ["thesis.txt", "new/thesis.txt", "old/bin/thesis.txt"];
    let mine = mine.map(|name| tree.path(".dist.tmp").join(name));
    for file in &mine {
        write(file, "mine");
    }
    for _ in 0..2 {
        stage(&options, text.as_bytes()).unwrap();
        assert!(mine.iter().all(|file| fs::read(file).unwrap() == b"mine"));
        assert_eq!(fs::read_dir(tree.path(".dist.tmp")).unwrap().count(), 3);
    }
}

/// A run is killed at each call that changes names. Then somebody renames the release.
#[test]
fn after_a_killed_run_the_next_one_works_without_the_release() {
    if !require::tool("strace") {
        return;
    }
    let tree = Tree::new();
    let messages = built(&tree);
    fs::write(tree.path("build.json"), &messages).unwrap();
    let options = Options::new(tree.path("dist"));
    stage(&options, messages.as_bytes()).unwrap();
    let difference = |release: &str| {
        let mut diff = Command::new("diff");
        process::run(diff.args(["-r", release, "dist"]).current_dir(tree.root()));
    };
    stage(&Options::new(tree.path("expected")), messages.as_bytes()).unwrap();
    let failed = json!({"reason": "build-finished", "success": true}).to_string();
    for call in ["unlinkat", "mkdirat", "renameat", "renameat2"] {
        for number in 1.. {
            let mut traced = Command::new("strace");
            traced.args(["-f", "-o", "trace", "-e"]);
            traced.arg(format!("trace={call}"));
            traced.arg(format!("-einject={call}:signal=KILL:when={number}"));
            traced.arg(env!("CARGO_BIN_EXE_kpack"));
            traced.args(["stage", "--output-dir", "dist", "--messages", "build.json"]);
            let output = traced.current_dir(tree.root()).output().unwrap();
            if fs::read_to_string(tree.path("trace")).is_ok_and(|trace| trace.is_empty()) {
                let why = String::from_utf8_lossy(&output.stderr);
                require::skip(&format!("strace cannot trace here: {why}"));
                return;
            }
            let _ = fs::rename(tree.path("dist"), tree.path("release-1"));
            // What a failed run recovers is complete.
            stage(&options, failed.as_bytes()).unwrap_err();
            if tree.path("dist").exists() {
                difference("expected");
            }
            stage(&options, messages.as_bytes()).unwrap();
            difference("expected");
            nothing_hidden(&tree);
            let _ = fs::remove_dir_all(tree.path("release-1"));
            if output.status.success() {
                break;
            }
        }
    }
}

#[test]
fn runs_for_one_directory_take_turns() {
    let tree = Tree::new();
    let text = built(&tree);
    let one_by_one = Options::new(tree.path("alone"));
    stage(&one_by_one, text.as_bytes()).unwrap();
    for directory in ["dist", "a/b/dist"] {
        let options = Options::new(tree.path(directory));
        thread::scope(|scope| {
            let run = || stage(&options, text.as_bytes());
            let runs = Vec::from_iter((0..8).map(|_| scope.spawn(run)));
            for run in runs {
                run.join().unwrap().unwrap();
            }
        });
        let difference = ["-r", "alone", directory];
        process::run(Command::new("diff").args(difference).current_dir(tree.root()));
        nothing_hidden(&tree);
    }
}

/// As a shell that works in it sees it, and the system that has something mounted there.
#[test]
fn an_existing_directory_is_filled() {
    use std::os::unix::fs::MetadataExt;
    let tree = Tree::new();
    let text = built(&tree);
    fs::write(tree.path("build.json"), &text).unwrap();
    stage(&Options::new(tree.path("expected")), text.as_bytes()).unwrap();
    stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
    // A file of the release that the next one does not have.
    tree.write("dist/lib/old/libold.so", "");
    let stamp = tree.path("dist/.kpack-stage");
    fs::write(&stamp, fs::read_to_string(&stamp).unwrap() + "lib/old/libold.so\n").unwrap();
    let inode = || tree.path("dist").metadata().unwrap().ino();
    let before = inode();
    let line = "\"$0\" stage --output-dir . --messages ../build.json --quiet && ls bin/app";
    let mut shell = Command::new("sh");
    shell.args(["-c", line, env!("CARGO_BIN_EXE_kpack")]).current_dir(tree.path("dist"));
    process::run(&mut shell);
    assert_eq!(inode(), before);
    let same = ["-r", "expected", "dist"];
    process::run(Command::new("diff").args(same).current_dir(tree.root()));

    fs::remove_dir_all(tree.path("dist")).unwrap();
    fs::create_dir(tree.path("dist")).unwrap();
    let line = "mount -t tmpfs none dist || exit 77; for run in 1 2; do \
        \"$0\" stage --output-dir dist --messages build.json --quiet || exit; done; diff -r expected dist";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--map-root-user", "sh", "-c", line]);
    let said = unshare.arg(env!("CARGO_BIN_EXE_kpack")).current_dir(tree.root()).output();
    let said = said.unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    if said.status.code() == Some(77) || text.starts_with("unshare:") {
        require::skip(&format!("nothing can be mounted here: {text}"));
        return;
    }
    assert!(said.status.success(), "{text}{}", String::from_utf8_lossy(&said.stdout));
    nothing_hidden(&tree);
}

#[test]
fn symbolic_links_and_empty_directories_stay() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let tree = Tree::new();
    let text = built(&tree);
    fs::create_dir(tree.path("real")).unwrap();
    fs::set_permissions(tree.path("real"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("real", tree.path("dist")).unwrap();
    for _ in 0..2 {
        stage(&Options::new(tree.path("dist")), text.as_bytes()).unwrap();
        assert!(tree.path("dist").is_symlink());
        assert!(tree.path("real/bin/app").is_file());
        nothing_hidden(&tree);
    }
    symlink("nowhere", tree.path("broken")).unwrap();
    stage(&Options::new(tree.path("broken")), text.as_bytes()).unwrap_err();
    assert!(tree.path("broken").is_symlink() && !tree.path("nowhere").exists());
    // A failed run creates no parent directories either.
    let deep = Options::new(tree.path("a/b/dist"));
    let failed = messages(&[]);
    stage(&deep, failed.as_bytes()).unwrap_err();
    fs::write(tree.path("target/release/app"), "#!/bin/sh\n").unwrap();
    let place = tree.path("target/release");
    fs::write(tree.path("target/release/app"), place.to_str().unwrap()).unwrap();
    stage(&deep, text.as_bytes()).unwrap_err();
    assert!(!tree.path("a").exists());
}
