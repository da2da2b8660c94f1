//! Given an output directory that cannot be written, is full or has two users, or sources that nobody expects, when modules
//! are built, then an error says what to do, and the last good build stays.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use kpack_tests::{process, require};

use super::super::said;
use super::{
    AFFINE, PACKAGE, REDUCE, build_for_two, build_in_process, modules, package, published, table,
    warnings,
};

/// The build of [`build_for_two`], in this process.
fn play(root: &str) -> Result<(), String> {
    let built = build_in_process(root, "clang++-19", 2).try_compile_modules("kernels");
    built.map(drop).map_err(|error| error.in_one_line())
}

/// The line that [`play`] printed in another process.
fn printed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.split_once("said: ").unwrap_or_else(|| panic!("{text}")).1;
    line.lines().next().unwrap().to_owned()
}

#[test]
fn an_out_dir_that_cannot_be_written() {
    if let Ok(root) = std::env::var(PACKAGE) {
        println!("said: {}", play(&root).unwrap_err());
        return;
    }
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let root = tree.root().to_str().unwrap();
    play(root).unwrap();
    let before = published(&tree);
    let directories = ["out", "out/kpack", "out/kpack/kernels", "out/kpack/.kernels.objects"];
    let mode = |mode| {
        for directory in directories {
            let path = tree.path(directory);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    fs::write(tree.path("kernels/affine.hip"), AFFINE.replace("+=", "-=")).unwrap();
    mode(0o555);
    let text = if !require::is_root() {
        play(root).unwrap_err()
    } else {
        // Root may write anywhere, so run a copy of this test as another user.
        fs::set_permissions(tree.root(), fs::Permissions::from_mode(0o755)).unwrap();
        let copy = tree.path("test");
        process::copy(std::env::current_exe().unwrap(), &copy);
        let mut command = Command::new(copy);
        let name = "hip::modules::bad_input::an_out_dir_that_cannot_be_written";
        command.args(["--exact", "--nocapture", name]).env(PACKAGE, root);
        printed(&command.uid(65534).gid(65534).current_dir(tree.root()).output().unwrap())
    };
    mode(0o755);
    assert_eq!(published(&tree), before);
    insta::assert_snapshot!(said(&tree, &text));
    play(root).unwrap();
    assert_ne!(published(&tree), before);
}

#[test]
fn a_full_disk() {
    if let Ok(root) = std::env::var(PACKAGE) {
        let at = |name: &str| Path::new(&root).join(name);
        play(&root).unwrap();
        let bundle = at("out/kpack/kernels/affine.hipfb");
        let before = fs::read(&bundle).unwrap();
        let source = AFFINE.replace("+=", "-=");
        fs::write(at("kernels/affine.hip"), source).unwrap();
        // Whatever is left, from nothing to all but a little.
        let mut errors = Vec::new();
        for left in [0, 8, 40] {
            let filler = at("out/filler");
            let mut size = 4 << 20;
            while size > 0 {
                let grown = fs::OpenOptions::new().create(true).append(true).open(&filler).unwrap();
                let length = grown.metadata().unwrap().len();
                if std::io::Write::write_all(&mut &grown, &vec![1; size]).is_err() {
                    grown.set_len(length).unwrap();
                    size /= 2;
                }
            }
            let length = fs::metadata(&filler).unwrap().len();
            let file = fs::OpenOptions::new().write(true).open(&filler).unwrap();
            file.set_len(length - (left << 10)).unwrap();
            if let Err(error) = play(&root) {
                errors.push(error);
                assert_eq!(fs::read(&bundle).unwrap(), before, "{left}");
            }
            fs::remove_file(&filler).unwrap();
        }
        play(&root).unwrap();
        assert_ne!(fs::read(&bundle).unwrap(), before);
        let is_clear = |error: &String| {
            error.contains("No space left on device")
                || error.contains("whether the disk of OUT_DIR is full")
        };
        assert!(!errors.is_empty() && errors.iter().all(is_clear), "{errors:#?}");
        println!("said: {}", errors[0]);
        return;
    }
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let root = tree.root().to_str().unwrap();
    let script = "mount -t tmpfs -o size=2m tmpfs \"$0/out\" || exit 77; exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--mount", "--map-root-user", "sh", "-c", script, root]);
    unshare.arg(std::env::current_exe().unwrap());
    let name = "hip::modules::bad_input::a_full_disk";
    let output =
        unshare.args(["--exact", "--nocapture", name]).env(PACKAGE, root).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || stderr.starts_with("unshare:") {
        require::skip("`unshare --user --mount` does not work here");
        return;
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{stderr}");
    let text = said(&tree, &printed(&output));
    let begin = "modules `kernels`: 2 of 4 compilations failed";
    assert!(text.starts_with(begin) || text.contains("CARGO_TARGET_DIR"), "{text}");
}

/// Such as two cargos with one target directory on a network.
#[test]
fn several_build_scripts_in_one_out_dir() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let root = tree.root().to_str().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| play(root).unwrap());
        }
    });
    let together = published(&tree);
    let alone = package();
    play(alone.root().to_str().unwrap()).unwrap();
    assert_eq!(together, published(&alone));
    let mut left = tree.files();
    left.retain(|file| file.starts_with("out") && file.contains(".tmp"));
    assert_eq!(left, [""; 0]);
}

#[test]
fn kernels_with_unusual_names() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let long = format!("k{}", "_long".repeat(400));
    let source = format!(
        r#"#include "global.h"
extern "C" __global__ void {long}(int *a) {{ ++*a; }}
namespace deep::inside {{ template <typename T> __global__ void add(T *a) {{ ++*a; }} }}
template __global__ void deep::inside::add<float>(float *);
template __global__ void deep::inside::add<int>(int *);
namespace {{ __global__ void hidden(int *a) {{ ++*a; }} }}
void *use() {{ return (void *)hidden; }}
extern "C" __global__ void größe(int *a) {{ ++*a; }}
"#
    );
    fs::write(tree.path("kernels/affine.hip"), source).unwrap();
    fs::write(tree.path("kernels/reduce.hip"), "").unwrap();
    let built = modules(&build_for_two(&tree, &[]));
    assert_eq!(warnings(&built), ["module `reduce` has no kernels"]);
    assert_eq!(table(&built.directory().join("reduce.hipfb")).entries.len(), 3);
    let text = fs::read_to_string(built.path()).unwrap();
    let kernels = text.split("kernels: [").nth(1).unwrap().split(']').next().unwrap();
    let names = [
        "_ZN12_GLOBAL__N_16hiddenEPi",
        "_ZN4deep6inside3addIfEEvPT_",
        "_ZN4deep6inside3addIiEEvPT_",
        "gr\\u{f6}\\u{df}e",
        &long[..],
    ];
    let expected = names.map(|name| format!("c\"{name}\"")).join(", ");
    assert_eq!(kernels, expected);
    assert_eq!(super::printed(&tree).lines().count(), 2);
}

/// As many sources as a large project has.
#[test]
fn many_sources() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let names = Vec::from_iter((0..40).map(|number| format!("kernels/source_{number}.hip")));
    for (number, name) in names.iter().enumerate() {
        let source = REDUCE.replace("reduce", &format!("reduce_{number}"));
        fs::write(tree.path(name), source).unwrap();
    }
    let mut hip = super::build(&tree, &[]);
    let built = modules(hip.files(&names).offload_arch("gfx942"));
    assert_eq!(warnings(&built), [""; 0]);
    let text = fs::read_to_string(built.path()).unwrap();
    for number in 0..40 {
        assert!(text.contains(&format!("SOURCE_{number} {{")), "{number}");
        assert!(text.contains(&format!("c\"reduce_{number}\"")), "{number}");
    }
}

/// A launcher that takes results from its cache writes what it knows of, and the build needs the list of headers.
#[test]
fn a_launcher_with_a_cache() {
    if !require::tools(&["clang++-19", "ccache"]) {
        return;
    }
    let tree = package();
    let cache = tree.path("cache");
    let variables = [("HIPCXX", "ccache clang++-19"), ("CCACHE_DIR", cache.to_str().unwrap())];
    let first = modules(&build_for_two(&tree, &variables));
    let before = published(&tree);
    for directory in ["out/kpack/kernels", "out/kpack/.kernels.objects"] {
        fs::remove_dir_all(tree.path(directory)).unwrap();
    }
    assert_eq!(modules(&build_for_two(&tree, &variables)), first);
    assert_eq!(published(&tree), before);
    let header = "cargo::rerun-if-changed=include/global.h".to_owned();
    assert!(first.directives().contains(&header), "{:?}", first.directives());
}
