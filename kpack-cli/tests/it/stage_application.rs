//! Given a program that loads libraries of ROCm, when it is staged, then the output has all that it needs, and works wherever
//! it is put.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::cargo_build::nothing_hidden;
use crate::command::{Row, command, said, said_by, shell, succeeds, words};
use crate::fat::targets_of;
use crate::machine::{machine, new_runtime, split_files};
use insta::assert_snapshot;
use kpack_doctor::SYSTEM_GROUPS;
use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, code, lazy_library, library_of_kernels, stub_hip,
};
use kpack_tests::page::repository;
use kpack_tests::process;
use kpack_tests::tree::Tree;

pub(crate) const GPUS: [&str; 2] = ["gfx1100", "gfx942"];

pub(crate) fn library(name: &str) -> FatLibrary {
    let fat = FatLibrary::new().wrapper(Storage::Plain, GPUS.map(|gpu| code(gpu, name)));
    fat.flag(format!("-Wl,-soname,{name}"))
}

/// ROCm in `rocm`, and a program in `app` with its library, which finds ROCm by a path that leads out of both.
fn application() -> Tree {
    let tree = Tree::new();
    let hip = tree.path("rocm/lib/libamdhip64.so.7");
    stub_hip(&hip, &["-DWITHOUT_MARKERS"]).unwrap();
    let rocm = tree.path("rocm/lib").display().to_string();
    let blas = library("librocblas.so.5").linked_with(&hip, "$ORIGIN");
    blas.build(&tree.path("rocm/lib/librocblas.so.5.1")).unwrap();
    symlink("librocblas.so.5.1", tree.path("rocm/lib/librocblas.so.5")).unwrap();
    GPUS.iter().for_each(|gpu| database(&tree, gpu));
    let vec = library("libvec.so")
        .linked_with(tree.path("rocm/lib/librocblas.so.5"), "$ORIGIN/../../rocm/lib");
    vec.build(&tree.path("app/lib/libvec.so")).unwrap();
    let app = FatLibrary::new().kind(Kind::Pie);
    let app = app.wrapper(Storage::Plain, GPUS.map(|gpu| code(gpu, "app")));
    let app = app.linked_with(tree.path("app/lib/libvec.so"), "$ORIGIN/../lib");
    app.flag(format!("-Wl,-rpath-link,{rocm}")).build(&tree.path("app/bin/app")).unwrap();
    tree
}

/// rocBLAS's kernel database for a GPU.
pub(crate) fn database(tree: &Tree, gpu: &str) {
    let put = |name: &str, bytes: Vec<u8>| {
        tree.write(&format!("rocm/lib/rocblas/library/{name}"), bytes);
    };
    let (stem, fallback) =
        (format!("TensileLibrary_Type_SS_{gpu}"), "TensileLibrary_Type_SS_fallback");
    put(&format!("TensileLibrary_lazy_{gpu}.dat"), lazy_library(gpu, &[&stem, fallback]).unwrap());
    put(&format!("{stem}.dat"), library_of_kernels(&[gpu], &[false]).unwrap());
    put(&format!("{stem}.co"), code(gpu, "own").1);
    put(&format!("{fallback}.dat"), library_of_kernels(&[], &[true]).unwrap());
    put(&format!("{fallback}_{gpu}.hsaco"), code(gpu, "fallback").1);
    put(&format!("Kernels.so-000-{gpu}.hsaco"), code(gpu, "kernels").1);
}

/// What is in a staged directory.
fn files(tree: &Tree, directory: &str) -> String {
    let files = tree.files().into_iter();
    Vec::from_iter(files.filter_map(|file| Some(file.strip_prefix(directory)?.to_owned())))
        .join("\n")
}

#[test]
fn a_program_runs_where_it_is_put() {
    let tree = application();
    assert_snapshot!(said(&tree, &words("stage app/bin/app --output-dir dist")));
    let first = kpack_tests::tree::entries_below(&tree.path("dist"));
    succeeds(&tree, &words("stage app/bin/app --output-dir dist"));
    assert_eq!(kpack_tests::tree::entries_below(&tree.path("dist")), first);
    nothing_hidden(&tree);
    assert_snapshot!(files(&tree, "dist/"));
    fs::create_dir(tree.path("elsewhere")).unwrap();
    fs::rename(tree.path("dist"), tree.path("elsewhere/moved")).unwrap();
    let before = process::run(&mut Command::new(tree.path("app/bin/app")));
    fs::remove_dir_all(tree.path("rocm")).unwrap();
    fs::remove_dir_all(tree.path("app")).unwrap();
    let moved = tree.path("elsewhere/moved/bin/app");
    assert_eq!(process::run(&mut Command::new(moved)), before);
}

#[test]
fn only_the_code_for_some_gpus() {
    let tree = application();
    assert_snapshot!(said(&tree, &words("stage app/bin/app --output-dir dist --arch gfx1100")));
    assert_snapshot!(files(&tree, "dist/"));
    for file in ["bin/app", "lib/libvec.so", "lib/librocblas.so.5"] {
        assert_eq!(targets_of(&tree.path(&format!("dist/{file}"))), ["gfx1100"], "{file}");
    }
    fs::remove_dir_all(tree.path("rocm")).unwrap();
    process::run(&mut Command::new(tree.path("dist/bin/app")));
}

/// Given a library that is for one GPU by its name, as MIOpen's plugins are, then it is left out for others, with its archives.
#[test]
fn plugins_for_other_gpus() {
    let tree = Tree::new();
    let plugin = |gpu: &str| format!("rocm/lib/libMIOpenCKGroupedConv_{gpu}.so");
    for gpu in GPUS {
        let fat = FatLibrary::new().wrapper(Storage::Plain, [code(gpu, "plugin")]);
        fat.build(&tree.path(&plugin(gpu))).unwrap();
        tree.write(&format!("rocm/share/miopen/db/{gpu}.kdb"), "");
    }
    split_files(&tree, "rocm", &["lib/libMIOpenCKGroupedConv_gfx942.so"]);
    library("libMIOpen.so.1").build(&tree.path("rocm/lib/libMIOpen.so.1")).unwrap();
    let program = FatLibrary::new().kind(Kind::Pie);
    let program = program.linked_with(tree.path("rocm/lib/libMIOpen.so.1"), "$ORIGIN/../lib");
    program.build(&tree.path("rocm/bin/app")).unwrap();
    let staged = |options: &str| {
        succeeds(&tree, &words(&format!("stage rocm/bin/app --output-dir dist{options}")));
        let files = files(&tree, "dist/");
        Vec::from_iter(GPUS.into_iter().filter(|gpu| files.contains(gpu)))
    };
    assert_eq!(staged(""), GPUS);
    assert_eq!(staged(" --arch gfx1100"), ["gfx1100"]);
    assert!(tree.path("dist/lib/libMIOpenCKGroupedConv_gfx1100.so").exists());
    assert_eq!(staged(" --arch gfx942"), ["gfx942"]);
}

/// Given a split library, then its archives and their manifest come along, and with `--arch` only those for the GPUs.
#[test]
fn archives_of_split_libraries() {
    let tree = machine();
    new_runtime(&tree);
    succeeds(&tree, &words("stage bin/app --output-dir dist"));
    assert_snapshot!(files(&tree, "dist/"));
    let verified = |tree: &Tree| succeeds(tree, &words("verify dist"));
    verified(&tree);
    let one = succeeds(&tree, &words("stage bin/app --output-dir dist --arch gfx942"));
    assert!(one.contains("\ngfx942 ") && !one.contains("gfx1030"), "{one}");
    assert!(!tree.path("dist/lib/.kpack/vec_lib_gfx1030.kpack").exists());
    verified(&tree);
    assert_snapshot!(said(&tree, &words("stage bin/app --output-dir dist --arch gfx1100")));
    verified(&tree);
    fs::remove_dir_all(tree.path("prefix/lib/.kpack")).unwrap();
    assert_snapshot!(said(&tree, &words("stage bin/app --output-dir none")));
    assert!(!tree.path("none").exists());
}

/// Given an output directory below a symbolic link into what is staged, then it counts as inside of that, whether it exists or not.
#[test]
fn an_output_directory_behind_a_link() {
    let tree = application();
    symlink("rocm/lib/rocblas/library", tree.path("link")).unwrap();
    let before = tree.snapshot();
    for output in ["link/dist", "link/new/dist", "link/new/../dist", "new/../link/dist"] {
        let said = said(&tree, &["stage", "app/bin/app", "--output-dir", output]);
        assert!(said.contains("is in /tree/rocm/lib/rocblas/library, which is staged"), "{said}");
        assert_eq!(tree.snapshot(), before, "{output}");
    }
}

/// Given files whose names are no text, or have line breaks, then the output is replaced as any other, and a foreign file is not.
#[test]
fn unusual_names() {
    let tree = application();
    let names: [&[u8]; 3] = [b"not\xfftext", b"two\nlines", b"back\\nslash"];
    let at = |directory: &str, name: &[u8]| tree.path(directory).join(OsStr::from_bytes(name));
    for name in names {
        fs::write(at("rocm/lib/rocblas/library", name), "").unwrap();
    }
    for _ in 0..2 {
        succeeds(&tree, &words("stage app/bin/app --output-dir dist"));
        assert!(names.iter().all(|name| at("dist/lib/rocblas/library", name).is_file()));
    }
    for foreign in [&b"not\xfetext"[..], b"two\\nlines", b"back\nslash"] {
        let foreign = at("dist/lib/rocblas/library", foreign);
        fs::write(&foreign, "mine").unwrap();
        let said = said(&tree, &words("stage app/bin/app --output-dir dist"));
        assert!(said.contains("which was not staged"), "{said}");
        fs::remove_file(foreign).unwrap();
    }
}

/// What is preloaded into programs of this machine says nothing about a program.
#[test]
fn preloaded_libraries() {
    let tree = application();
    process::run(
        Command::new("cc").args(["-shared", "-xc", "/dev/null", "-o"]).arg(tree.path("libpre.so")),
    );
    let mut kpack = command(&tree, &words("stage app/bin/app --output-dir dist"));
    process::run(kpack.env("LD_PRELOAD", tree.path("libpre.so")));
    assert!(!files(&tree, "dist/").contains("libpre.so"), "{}", files(&tree, "dist/"));
}

/// Given a library that another one needs by two names, then both are in the output.
#[test]
fn two_names_of_a_library() {
    let tree = application();
    let at = |name: &str| tree.path("rocm/lib").join(name);
    library("libblas.so.5").build(&at("libblas.so.5")).unwrap();
    let user = library("libuser.so").linked_with(at("librocblas.so.5"), "$ORIGIN");
    user.linked_with(at("libblas.so.5"), "$ORIGIN").build(&at("libuser.so")).unwrap();
    fs::remove_file(at("libblas.so.5")).unwrap();
    symlink("librocblas.so.5.1", at("libblas.so.5")).unwrap();
    succeeds(&tree, &words("stage rocm/lib/libuser.so --output-dir dist"));
    let [one, other] = ["libblas.so.5", "librocblas.so.5"]
        .map(|name| tree.path("dist/lib").join(name).canonicalize().unwrap());
    assert_eq!(one, other);
}

/// Given a library that is found through `..` and does not find its own library, then its run path is set.
#[test]
fn a_run_path_with_a_parent_directory() {
    let tree = Tree::new();
    fs::create_dir(tree.path("lib")).unwrap();
    for line in [
        "cc -shared -xc /dev/null -o lib/libc1.so -Wl,-soname,libc1.so",
        "cc -shared -xc /dev/null -xnone -Wl,--no-as-needed lib/libc1.so -o lib/libb1.so -Wl,-soname,libb1.so,-rpath,/of/this/machine",
        "cc -shared -xc /dev/null -xnone -Wl,--no-as-needed lib/libb1.so -o lib/liba1.so -Wl,-rpath,'$ORIGIN/../lib',-rpath-link,lib",
        "LD_LIBRARY_PATH=lib kpack stage lib/liba1.so --output-dir dist",
        "rm -r lib",
    ] {
        let output = shell(&tree, line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
    let library = tree.path("dist/lib/liba1.so");
    let loaded = Command::new("ldd").arg(library).output().unwrap();
    let loaded = String::from_utf8(loaded.stdout).unwrap();
    assert!(loaded.contains("libc1.so => ") && !loaded.contains("not found"), "{loaded}");
}

/// A program that loads `libplugin.so`, which lies beside it, by name.
fn with_plugin(tree: &Tree, flags: &str) {
    let code = "#include <dlfcn.h>\n#include <stdio.h>\n\
        int main(void) { void *found = dlopen(\"libplugin.so\", RTLD_NOW);\n\
        puts(found ? \"found\" : dlerror()); return !found; }\n";
    tree.write("host.c", code);
    let mut cc = Command::new("cc");
    cc.current_dir(tree.root()).args(["host.c", "-o", "host"]).args(flags.split(' '));
    process::run(&mut cc);
    let hip = tree.path("rocm/lib/libamdhip64.so.7");
    stub_hip(&hip, &["-DWITHOUT_MARKERS"]).unwrap();
    let plugin = library("libplugin.so").linked_with(&hip, "$ORIGIN/../rocm/lib");
    plugin.build(&tree.path("plugins/libplugin.so")).unwrap();
}

#[test]
fn libraries_that_are_loaded_by_name() {
    let tree = Tree::new();
    with_plugin(&tree, "-Wl,-rpath,$ORIGIN/plugins:/some/directory/of/this/machine");
    succeeds(&tree, &words("stage host --also bin=plugins/libplugin.so --output-dir dist"));
    assert_snapshot!(files(&tree, "dist/"));
    fs::remove_dir_all(tree.path("rocm")).unwrap();
    fs::rename(tree.path("plugins"), tree.path("gone")).unwrap();
    let run = |path: &str| {
        let output = Command::new(tree.path(path)).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run("dist/bin/host"), "found\n");
    assert!(run("host").contains("libplugin.so: cannot open"));
    for wrong in ["/bin=gone/libplugin.so", "../bin=gone/libplugin.so", "bin="] {
        let said = said(&tree, &["stage", "host", "--also", wrong, "--output-dir", "none"]);
        assert!(said.contains("expected LIB, or DIR=LIB") && said.contains("code 2"), "{said}");
    }
}

/// Given a library that is loaded by name, and needs one that the program has loaded before, without a run path that leads there,
/// then it is staged, and works.
#[test]
fn what_is_loaded_before() {
    let tree = Tree::new();
    tree.write("f.c", "int f(void) { return 0; }");
    tree.write("g.c", "int f(void); int g(void) { return f(); }");
    let code = "#include <dlfcn.h>\nint f(void);\n\
        int main(void) { return f() || !dlopen(\"libg.so\", RTLD_NOW); }";
    tree.write("main.c", code);
    fs::create_dir(tree.path("lib")).unwrap();
    fs::create_dir(tree.path("plugins")).unwrap();
    for tags in ["--disable-new-dtags", "--enable-new-dtags"] {
        for arguments in [
            "-shared -fPIC f.c -o lib/libf.so -Wl,-soname,libf.so".to_owned(),
            "-shared -fPIC g.c lib/libf.so -o plugins/libg.so -Wl,-soname,libg.so".to_owned(),
            format!("main.c lib/libf.so -o main -Wl,{tags},-rpath,$ORIGIN/lib:$ORIGIN/plugins"),
        ] {
            let mut cc = Command::new("cc");
            process::run(cc.args(words(&arguments)).current_dir(tree.root()));
        }
        process::run(&mut Command::new(tree.path("main")));
        succeeds(&tree, &words("stage main --also plugins/libg.so --output-dir dist --quiet"));
        process::run(&mut Command::new(tree.path("dist/bin/main")));
    }
}

#[test]
fn what_the_system_provides() {
    let tree = application();
    let staged = |options: &str| {
        succeeds(&tree, &words(&format!("stage app/bin/app --output-dir dist {options}")));
        files(&tree, "dist/lib/")
    };
    let all = staged("--include libc.so.6");
    assert!(all.contains("libc.so.6") && all.contains("librocblas.so.5"), "{all}");
    let without = staged("--exclude librocblas.so.* --exclude libamdhip64.so.7");
    assert_eq!(without, "libvec.so");
    assert_eq!(staged("--system-rocm"), "libvec.so");
}

/// The page lists what the code does.
#[test]
fn the_page_lists_what_the_system_provides() {
    let page = fs::read_to_string(repository().join("docs/stage.md")).unwrap();
    for group in SYSTEM_GROUPS.iter().filter(|group| !group.is_rocm) {
        let names = group.names.iter().filter(|name| name.contains(".so"));
        let row = format!("| {}: {} |", group.name, listed(names));
        assert!(row.ends_with(":  |") || page.contains(&row), "{row}");
    }
}

fn listed<'n>(names: impl Iterator<Item = &'n &'n str>) -> String {
    Vec::from_iter(names.map(|name| format!("`{name}`"))).join(", ")
}

/// Given what cannot be staged, then the message names the file and says what to do, and nothing is written.
#[test]
fn bad_input() {
    let rows: &[Row] = &[
        (
            "a script",
            |tree| tree.write("script", "#!/bin/sh\n"),
            &["kpack stage script --output-dir dist"],
        ),
        (
            "a library is missing, and others",
            |tree| {
                for name in ["libamdhip64.so.7", "librocblas.so.5"] {
                    fs::remove_file(tree.path("rocm/lib").join(name)).unwrap();
                }
            },
            &[
                "kpack stage app/bin/app --output-dir dist",
                "kpack stage app/bin/app --output-dir dist --exclude libro*",
                "rm -r dist",
            ],
        ),
        (
            "two libraries of one name",
            |tree| {
                let other = library("libvec.so").flag("-DOTHER").flag("-O0");
                let other = other.wrapper(Storage::Plain, GPUS.map(|gpu| code(gpu, "other")));
                other.build(&tree.path("other/lib/libvec.so")).unwrap();
                let program = FatLibrary::new().kind(Kind::Pie);
                let program =
                    program.linked_with(tree.path("other/lib/libvec.so"), "$ORIGIN/../lib");
                program.build(&tree.path("other/bin/other")).unwrap();
            },
            &["kpack stage app/bin/app other/bin/other --output-dir dist"],
        ),
        (
            "a library that is loaded by its path",
            |tree| {
                let plain =
                    FatLibrary::new().wrapper(Storage::Plain, GPUS.map(|gpu| code(gpu, "x")));
                plain.build(&tree.path("plain/libplain.so")).unwrap();
                tree.write("main.c", "int main(void) { return 0; }");
                let mut cc = Command::new("cc");
                cc.args(["main.c", "-Wl,--no-as-needed", "plain/libplain.so", "-o", "main"]);
                process::run(cc.current_dir(tree.root()));
            },
            &["kpack stage main --output-dir dist"],
        ),
        (
            "links in circles",
            |tree| {
                symlink("round", tree.path("round")).unwrap();
                symlink(".", tree.path("rocm/lib/rocblas/library/round")).unwrap();
            },
            &["kpack stage round --output-dir dist", "kpack stage app/bin/app --output-dir dist"],
        ),
        (
            "an output directory with other files, and one inside the input",
            |tree| tree.write("precious/file", "mine"),
            &[
                "kpack stage app/bin/app --output-dir precious",
                "kpack stage app/bin/app --output-dir app/bin/app",
                "kpack stage app/bin/app --output-dir rocm/lib/rocblas/library/dist",
                "kpack stage app/bin/app --output-dir dist --quiet",
                "kpack stage dist/bin/app --output-dir dist",
                "rm -r dist",
            ],
        ),
        (
            "a program without a run path, and without room for one",
            |tree| {
                tree.write("main.c", "int main(void) { return 0; }");
                let mut cc = Command::new("cc");
                cc.args(["main.c", "-Wl,--no-as-needed", "app/lib/libvec.so", "-o", "main"]);
                cc.arg("-Wl,--allow-shlib-undefined");
                process::run(cc.current_dir(tree.root()));
            },
            &[
                "kpack stage main --output-dir dist",
                "LD_LIBRARY_PATH=app/lib kpack stage main --output-dir dist",
            ],
        ),
        (
            "a program that names the directory of its build",
            |tree| {
                tree.write("build/CMakeCache.txt", "CMAKE_HOME_DIRECTORY:INTERNAL=/srv/app\n");
                tree.write(
                    "main.c",
                    "#include <stdio.h>\nint main(void) { puts(\"/srv/app/main.c\"); }",
                );
                let mut cc = Command::new("cc");
                process::run(cc.args(["main.c", "-o", "build/main"]).current_dir(tree.root()));
            },
            &[
                "kpack stage build/main --output-dir dist",
                "kpack stage build/main --output-dir dist --allow-build-paths --quiet",
                "rm -r dist",
            ],
        ),
        (
            "a library in a directory that a run path cannot name",
            |_| {},
            &["kpack stage app/bin/app --also a:b=app/lib/libvec.so --output-dir dist"],
        ),
        (
            "a library by a path relative to what loads it",
            |tree| {
                tree.write("main.c", "int main(void) { return 0; }");
                let mut cc = Command::new("cc");
                cc.args(["main.c", "-Wl,--no-as-needed", "app/lib/libvec.so", "-o", "main"]);
                cc.arg("-Wl,--allow-shlib-undefined");
                process::run(cc.current_dir(tree.root()));
                let mut patchelf = Command::new("patchelf");
                patchelf.args(["--replace-needed", "libvec.so", "$ORIGIN/app/lib/libvec.so"]);
                process::run(patchelf.arg("main").current_dir(tree.root()));
            },
            &["kpack stage main --output-dir dist"],
        ),
        (
            "options for libraries",
            |tree| {
                let mut cc = Command::new("cc");
                cc.args(["-shared", "-xc", "/dev/null", "-o", "libplain.so"]);
                process::run(cc.current_dir(tree.root()));
            },
            &[
                "kpack stage app/bin/app --also .kpack-stage=app/lib/libvec.so --output-dir dist",
                "kpack stage app/bin/app --also .kpack-stage.tmp/a=app/lib/libvec.so --output-dir dist",
                "kpack stage app/bin/app --also a=app/lib/libvec.so --also b=app/lib/libvec.so --output-dir dist",
                "kpack stage app/bin/app --also bin/app=libplain.so --output-dir dist",
                "kpack stage app/bin/app --exclude libnone.so.* --include libnone.so.2 --output-dir dist --quiet --system-rocm",
                "rm -r dist",
            ],
        ),
        (
            "no code for the GPU",
            |_| {},
            &["kpack stage app/bin/app --output-dir dist --arch gfx1030"],
        ),
        (
            "options of the other kind",
            |_| {},
            &[
                "kpack stage app/bin/app --output-dir dist --messages build.json",
                "kpack stage --output-dir dist --system-rocm",
            ],
        ),
    ];
    let tree = application();
    assert_snapshot!(said_by(rows, &tree));
    nothing_hidden(&tree);
    assert!(!tree.path("dist").exists());
}

/// Given run paths that lead to a library of the same name on this machine, and only then to the staged one, then the copy
/// loads the staged one.
#[test]
fn run_paths_that_lead_out_of_the_output() {
    let tree = Tree::new();
    let function = |directory: &str, number: u32| {
        tree.write(&format!("{directory}/f.c"), format!("int f(void) {{ return {number}; }}"));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "f.c", "-o", "libf.so", "-Wl,-soname,libf.so"])
            .current_dir(tree.path(directory));
        process::run(&mut cc);
    };
    function("app/lib", 0);
    tree.write("main.c", "int f(void); int main(void) { return f(); }");
    let evil = tree.path("evil").display().to_string();
    for (flag, outside) in [
        ("--enable-new-dtags", evil.as_str()),
        ("--disable-new-dtags", &evil),
        ("--enable-new-dtags", "$ORIGIN/../../evil"),
        ("--enable-new-dtags", ":relative"),
    ] {
        let _ = fs::remove_dir_all(tree.path("evil"));
        fs::create_dir_all(tree.path("app/bin")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["main.c", "app/lib/libf.so", "-o", "app/bin/app", &format!("-Wl,{flag}")]);
        cc.arg(format!("-Wl,-rpath,{outside}:$ORIGIN/../lib"));
        process::run(cc.current_dir(tree.root()));
        succeeds(&tree, &words("stage app/bin/app --output-dir dist"));
        function("evil", 1);
        let mut moved = Command::new(tree.path("dist/bin/app"));
        process::run(moved.current_dir(tree.path("evil")));
        let mut readelf = Command::new("readelf");
        let dynamic = process::run(readelf.arg("-d").arg(tree.path("dist/bin/app")));
        assert!(dynamic.contains("[$ORIGIN/../lib]"), "{outside}: {dynamic}");
        fs::remove_dir_all(tree.path("dist")).unwrap();
    }
}

/// Given something else than a file under the name of CMake's cache, then it is no cache; bytes that are no text do not matter.
#[test]
fn what_is_named_like_the_cache_of_a_build() {
    let tree = Tree::new();
    tree.write("main.c", "#include <stdio.h>\nint main(void) { puts(\"/srv/app/main.c\"); }");
    for directory in ["pipe", "bytes"] {
        fs::create_dir_all(tree.path(directory)).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["main.c", "-o", &format!("{directory}/main")]);
        process::run(cc.current_dir(tree.root()));
    }
    process::run(Command::new("mkfifo").arg(tree.path("pipe/CMakeCache.txt")));
    succeeds(&tree, &words("stage pipe/main --output-dir dist"));
    tree.write("bytes/CMakeCache.txt", b"# \xff\nCMAKE_HOME_DIRECTORY:INTERNAL=/srv/app\n");
    let said = said(&tree, &words("stage bytes/main --output-dir dist"));
    assert!(said.contains("[build-path]"), "{said}");
}

/// Given a program for Windows with a DLL beside it, and one elsewhere that needs the former, as Windows finds it, then all are
/// staged. Two DLLs whose names differ only in case would be one file.
#[test]
fn a_program_for_windows() {
    if !kpack_tests::require::tool(kpack_tests::windows::COMPILER) {
        return;
    }
    let tree = Tree::new();
    tree.write("f.c", "__declspec(dllexport) int f(void) { return 0; }");
    tree.write("main.c", "int f(void); int main(void) { return f(); }");
    tree.write("g.c", "int f(void); __declspec(dllexport) int g(void) { return f(); }");
    for directory in ["app", "plugins", "other"] {
        fs::create_dir(tree.path(directory)).unwrap();
    }
    for arguments in [
        "-shared f.c -o app/f.dll",
        "main.c app/f.dll -o app/main.exe",
        "-shared g.c app/f.dll -o plugins/g.dll",
        "-shared f.c -o other/F.dll",
        "-shared f.c -o plugins/e.dll",
        "-shared g.c plugins/e.dll -o plugins/h.dll",
    ] {
        let mut compiler = Command::new(kpack_tests::windows::COMPILER);
        process::run(compiler.args(words(arguments)).current_dir(tree.root()));
    }
    let stage = "stage app/main.exe --output-dir dist";
    succeeds(&tree, &words(stage));
    assert_eq!(files(&tree, "dist/bin/"), "f.dll\nmain.exe");
    succeeds(&tree, &words(&format!("{stage} --also plugins/g.dll")));
    assert_eq!(files(&tree, "dist/bin/"), "f.dll\ng.dll\nmain.exe");
    succeeds(&tree, &words(&format!("{stage} --also plugins=plugins/g.dll")));
    assert_eq!(files(&tree, "dist/"), ".kpack-stage\nbin/f.dll\nbin/main.exe\nplugins/g.dll");
    assert_snapshot!(said(&tree, &words(&format!("{stage} --also other/F.dll"))));
    succeeds(&tree, &words(&format!("{stage} --also plugins/h.dll")));
    assert_eq!(files(&tree, "dist/bin/"), "e.dll\nf.dll\nh.dll\nmain.exe");
    assert_snapshot!(said(&tree, &words(&format!("{stage} --also plugins=plugins/h.dll"))));
    fs::remove_file(tree.path("app/f.dll")).unwrap();
    assert_snapshot!(said(&tree, &words(&format!("{stage} --also plugins/g.dll"))));
}

/// Given more libraries than files that a process may have open, then all are staged.
#[test]
fn many_libraries() {
    let tree = Tree::new();
    tree.write("main.c", "int main(void) { return 0; }");
    let names = Vec::from_iter((0..80).map(|number| format!("lib/lib{number}.so")));
    fs::create_dir(tree.path("lib")).unwrap();
    for name in &names {
        let soname = name.replace("lib/", "-Wl,-soname,");
        let mut cc = Command::new("cc");
        process::run(cc.args(["-shared", "-xc", "/dev/null", &soname, "-o"]).arg(tree.path(name)));
    }
    let mut cc = Command::new("cc");
    cc.args(["main.c", "-o", "main", "-Wl,--no-as-needed,-rpath,$ORIGIN/lib:/some/directory"])
        .args(&names);
    process::run(cc.current_dir(tree.root()));
    let limited = "ulimit -n 64; exec \"$0\" stage main --output-dir dist --quiet";
    let kpack = command(&tree, &[]).get_program().to_owned();
    let mut shell = Command::new("sh");
    process::run(shell.args(["-c", limited]).arg(kpack).current_dir(tree.root()));
    process::run(&mut Command::new(tree.path("dist/bin/main")));
}

/// Given a file that cannot grow, as on a full disk, although others were written, then nothing stays of the run.
#[test]
fn a_full_disk() {
    let tree = application();
    tree.write("rocm/lib/rocblas/library/large", vec![0; 1 << 20]);
    let kpack = command(&tree, &[]).get_program().to_owned();
    // In half kibibytes; the others have less.
    let staged = |limit: u32, output: &str| {
        let limited =
            format!("ulimit -f {limit}; exec \"$0\" stage app/bin/app --output-dir {output}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited]).arg(&kpack).current_dir(tree.root()).output().unwrap()
    };
    assert!(staged(1 << 11, "enough").status.success());
    let before = tree.snapshot();
    let output = staged((1 << 11) - 1, "dist");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let large = tree.path("dist/lib/rocblas/library/large");
    assert!(said.contains(&format!("cannot write {}: File too large", large.display())), "{said}");
    assert_eq!(tree.snapshot(), before);
}
