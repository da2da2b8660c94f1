//! Given a program with modules that was split, when it is started in an unusual way, then it finds its code, or says why not
//! and what to do; and it never loads the code of another build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::require;
use kpack_tests::tree::Tree;

use super::{LOADED, asked, asked_by, split};

const PACKED: (&str, &str) = ("packed", "gfx942");

/// Another build of `bin/program`, split. Its modules have other code for gfx942.
pub(super) fn other_build() -> Tree {
    let tree = Tree::new();
    let wrappers = ["one", "two", "three"].map(|text| [code("gfx942", text)]);
    let program = wrappers
        .into_iter()
        .fold(FatLibrary::new(), |program, codes| program.wrapper(Storage::Plain, codes));
    program.build(&tree.path("bin/program")).unwrap();
    install(&InstallOptions::new(tree.root(), "program", ["bin/program"]), &()).unwrap();
    tree
}

#[test]
fn with_the_archives_of_another_build_in_the_environment() {
    let (tree, other) = (split(), other_build());
    let program = tree.path("bin/program");
    let ask = |variable: &str, value: &Path| {
        let mut command = Command::new(&program);
        let answers = tree.path("bin/answers");
        asked_by(command.env(variable, value), &answers, &[PACKED]).remove(0)
    };
    let archives = other.path("lib/.kpack");
    let pattern = archives.join("program_lib_@GFXARCH@.kpack");
    for path in [&archives, &pattern, &archives.join("program_lib_gfx942.kpack")] {
        let error = ask("ROCM_KPACK_PATH", path);
        assert!(error.starts_with("error: module `packed`: no code object for gfx942"), "{error}");
        let advice = "what to do: unset ROCM_KPACK_PATH: it replaces the installed archives";
        assert!(error.contains(advice), "{error}");
        // The program's own archives come second.
        assert_eq!(ask("ROCM_KPACK_PATH_PREFIX", path), "packed for one (gfx942)");
    }
    let own = tree.path("lib/.kpack/program_lib_@GFXARCH@.kpack");
    assert_eq!(ask("ROCM_KPACK_PATH", &own), "packed for one (gfx942)");
}

#[test]
fn through_a_symbolic_link() {
    let tree = split();
    let elsewhere = Tree::new();
    let link = elsewhere.path("run");
    symlink(tree.path("bin/program"), &link).unwrap();
    let questions = LOADED.map(|(label, gpu, _)| (label, gpu));
    assert_eq!(asked(&link, &questions), LOADED.map(|(.., expected)| expected));
}

#[test]
fn where_proc_is_not_mounted() {
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let without_proc = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-ec", script, "sh"]).arg(program);
        command
    };
    // Containers may forbid it.
    if !without_proc(Path::new("true")).output().is_ok_and(|output| output.status.success()) {
        require::skip("`unshare --mount --map-root-user` does not work here");
        return;
    }
    let tree = split();
    let program = tree.path("bin/program");
    let ask = |program: &Path| {
        let answers = tree.path("bin/answers");
        asked_by(&mut without_proc(program), &answers, &[PACKED]).remove(0)
    };
    assert_eq!(
        ask(&program),
        "error: module `packed`: /proc/self/maps: cannot be read: /proc is not mounted; mount it"
    );
    // A program that was not split needs none.
    fs::remove_file(&program).unwrap();
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    assert_eq!(ask(&program), "packed for one (gfx942)");
}
