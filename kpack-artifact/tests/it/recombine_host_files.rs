//! Given shards with different host files, when they are recombined, then messages name the files that are
//! not taken, whether host files must match or not.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::planned::{CONFIGURATION, assert_said, options, planned, said, with_validation};
use crate::shards::{DATABASE, PREFIX, shard, three_shards};
use crate::verified::assert_holds;
use kpack_artifact::recombine::{Recombination, Severity};
use kpack_artifact::split::{Options, split};
use kpack_tests::fixture::{FatLibrary, Storage, code, code_object, library_file};
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};

/// The configuration with these values for the validations of device code and host files.
fn validated(duplicates: bool, host_files: bool) -> String {
    let validation = format!(
        "}}, \"validation\": {{\"error_on_duplicate_device_code\": {duplicates}, \
         \"verify_generic_artifacts_match\": {host_files}}}}}"
    );
    CONFIGURATION.strip_suffix("}\n}").unwrap().to_owned() + &validation
}

fn put(tree: &Tree, shard: &str, file: &str, bytes: &[u8]) {
    let path = format!("shards/{shard}/blas_lib_generic/{PREFIX}/{file}");
    tree.write(&path, bytes);
}

/// Every finding is about an existing file.
fn assert_there(plan: &Recombination) {
    for finding in &plan.findings {
        let path = finding.file();
        assert!(path.symlink_metadata().is_ok(), "{}", path.display());
    }
}

/// Fallback files name kernels, whose names differ between targets.
#[test]
fn fallback_files_of_one_shard_are_not_for_the_others_targets() {
    let tree = three_shards();
    let fallback = |target: &str| library_file("gfx000", &[&format!("Kernel_{target}")]).unwrap();
    let file = format!("{DATABASE}/TensileLibrary_Type_HH_fallback.dat");
    for (shard, target) in [("linux-a", "gfx1100"), ("linux-b", "gfx90a"), ("linux-c", "gfx1100")] {
        put(&tree, shard, &file, &fallback(target));
    }
    for (duplicates, host_files, severity) in [
        (true, true, Severity::Fault),
        (false, true, Severity::Fault),
        (true, false, Severity::Fault),
        (false, false, Severity::Warning),
    ] {
        let plan = planned(&tree, &validated(duplicates, host_files));
        let parts = [
            "linux-b",
            "HH_fallback.dat",
            "unmergeable-file",
            "GPUs that linux-b built for would not find theirs",
        ];
        assert_said(&plan, severity, &parts);
        assert_eq!(said(&plan).len(), 1);
    }
    // Skipping one would be no better.
    fs::remove_file(tree.path(&format!("shards/linux-a/blas_lib_generic/{PREFIX}/{file}")))
        .unwrap();
    let plan = planned(&tree, &validated(false, false));
    assert_said(&plan, Severity::Warning, &["linux-b", "only shard linux-b has it"]);
    assert_said(&plan, Severity::Warning, &["linux-c", "only shard linux-c has it"]);
}

#[test]
fn different_data_gets_a_warning_even_if_host_files_need_not_match() {
    let tree = three_shards();
    for (shard, count) in [("linux-a", 1), ("linux-b", 2), ("linux-c", 1)] {
        let data = [b"SQLite format 3\0", &[count; 16][..]].concat();
        put(&tree, shard, "share/blas/tuning.db", &data);
        put(&tree, shard, "share/stamp", format!("built {count}").as_bytes());
    }
    put(&tree, "linux-c", "share/more.db", b"SQLite format 3\0");
    put(&tree, "linux-c", "share/more.txt", b"text");
    let lenient = with_validation("verify_generic_artifacts_match", false);
    let plan = planned(&tree, &lenient);
    let parts = ["linux-b", "tuning.db", "differs: ", "; linux-a's is taken"];
    assert_said(&plan, Severity::Warning, &parts);
    let parts = ["linux-c", "more.db", "skipped: only shard linux-c has it"];
    assert_said(&plan, Severity::Warning, &parts);
    // Texts contain dates and stamps, and no program reads them.
    assert_eq!(said(&plan).len(), 2);
}

#[test]
fn what_only_one_shard_has_is_named_where_it_is() {
    let tree = three_shards();
    put(&tree, "linux-a", "lib/first", b"");
    put(&tree, "linux-b", "lib/second", b"");
    let plan = planned(&tree, CONFIGURATION);
    assert_there(&plan);
    for (file, text) in [
        ("linux-a", "linux-a against linux-b: only shard linux-a has it"),
        ("linux-a", "linux-a against linux-c: only shard linux-a has it"),
        ("linux-b", "linux-a against linux-b: only shard linux-b has it"),
    ] {
        let path = format!("{file}/blas_lib_generic");
        assert_said(&plan, Severity::Fault, &[&path, text]);
    }
}

#[test]
fn binaries_with_another_layout_share_one_note() {
    let tree = three_shards();
    shard(&tree, "linux-c", &["gfx942"]);
    let library = |shard: &str, name: &str| {
        tree.path(&format!("shards/{shard}/blas_lib_generic/{PREFIX}/lib/{name}"))
    };
    for shard in ["linux-a", "linux-b", "linux-c"] {
        for count in 0..6 {
            let copy = library(shard, &format!("libcopy{count}.so"));
            fs::copy(library(shard, "librocblas.so.5"), copy).unwrap();
        }
    }
    let plan = planned(&tree, CONFIGURATION);
    let parts = [
        "linux-c/blas_lib_generic: host file, linux-a against linux-c: each of 7 binaries has other bytes",
        "libcopy0.so, libcopy1.so, libcopy2.so, libcopy3.so, libcopy4.so and 2 more",
    ];
    assert_said(&plan, Severity::Note, &parts);
    assert_eq!(said(&plan).len(), 1, "{:#?}", said(&plan));
    assert_there(&plan);
}

/// A library without device code in the shards, linked with its own flag in each.
fn put_libraries(tree: &Tree, flags: [&str; 2]) {
    let library = |shard: &str| {
        tree.path(&format!("shards/{shard}/blas_lib_generic/{PREFIX}/lib/libhost.so"))
    };
    for (shard, flag) in ["linux-a", "linux-b"].into_iter().zip(flags) {
        let host = FatLibrary::new().flag(flag);
        host.build(&library(shard)).unwrap();
    }
    fs::copy(library("linux-a"), library("linux-c")).unwrap();
}

#[test]
fn a_different_build_id_alone_gets_a_note() {
    let tree = three_shards();
    put_libraries(&tree, ["-Wl,--build-id=0x0a0b", "-Wl,--build-id=0x0c0d"]);
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["linux-b", "libhost.so", "another build ID", "linux-a's is taken"];
    assert_said(&plan, Severity::Note, &parts);
    assert_eq!(said(&plan).len(), 1, "{:#?}", said(&plan));
}

/// Compiles a library whose `host` multiplies by a `number` into each shard, with its debug file. Without device code, it
/// is the same file for the same number.
fn put_compiled(tree: &Tree, device_code: bool, number: &dyn Fn(&str) -> u32) {
    for (name, target) in [("linux-a", "gfx1100"), ("linux-b", "gfx90a"), ("linux-c", "gfx1100")] {
        let number = number(name);
        let text =
            format!("enum {{ NUMBER = {number} }}; int host(int a) {{ return a * NUMBER; }}\n");
        fs::write(tree.path("host.c"), text).unwrap();
        let library = tree.path("libhost.so");
        if device_code {
            let size = if name == "linux-b" { 50_000 } else { 4000 };
            let code = code_object(target, &vec![7; size]).unwrap();
            let host = FatLibrary::new().wrapper(Storage::Plain, [(target, code)]);
            host.flag(tree.path("host.c")).flag("-g").build(&library).unwrap();
        } else {
            let mut compiler = Command::new("cc");
            compiler.args(["-g", "-shared", "-fPIC", "-Wl,--build-id", "host.c", "-o"]);
            let status = compiler.arg(&library).current_dir(tree.root()).status();
            assert!(status.unwrap().success());
        }
        let mut files = vec![("--only-keep-debug", "libhost.so.debug")];
        if !device_code {
            files.push(("--strip-debug", "libhost.so"));
        }
        for (option, output) in files {
            let output = format!("shards/{name}/blas_lib_generic/{PREFIX}/lib/{output}");
            let mut objcopy = Command::new("objcopy");
            let status = objcopy.arg(option).arg(&library).arg(tree.path(&output)).status();
            assert!(status.unwrap().success());
        }
    }
}

#[test]
fn binaries_without_device_code_must_be_equal() {
    if !require::tool("objcopy") {
        return;
    }
    let tree = three_shards();
    put_compiled(&tree, false, &|shard| if shard == "linux-b" { 1003 } else { 1001 });
    let plan = planned(&tree, CONFIGURATION);
    assert_said(&plan, Severity::Fault, &["linux-b", "libhost.so: ", "differs: first difference"]);
    assert_said(
        &plan,
        Severity::Fault,
        &["linux-b", "libhost.so.debug: ", "differs: first difference"],
    );
    assert_eq!(said(&plan).len(), 2, "{:#?}", said(&plan));
}

/// Its sections have other addresses, as those of its binary have.
#[test]
fn the_debug_file_of_a_binary_with_device_code_may_differ_as_the_binary_may() {
    if !require::tool("objcopy") {
        return;
    }
    let tree = three_shards();
    put_compiled(&tree, true, &|_| 1001);
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["linux-b", "libhost.so.debug", "the same names, symbols and sizes of sections"];
    assert_said(&plan, Severity::Note, &parts);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
}

/// CMake overwrites it during the installation, by default with nothing.
#[test]
fn the_rpath_of_a_build_directory_is_named_until_it_is_removed() {
    let tree = three_shards();
    let build = ["/build/linux-a/lib", "/build/linux-b/lib"];
    put_libraries(&tree, build.map(|path| format!("-Wl,-rpath,{path}")).each_ref().map(|s| &**s));
    let rpath = format!("RUNPATH (expected `{}`, found `{}`)", build[0], build[1]);
    let plan = planned(&tree, CONFIGURATION);
    assert_said(&plan, Severity::Fault, &["linux-b", "libhost.so", &rpath]);

    if !require::tool("cmake") {
        return;
    }
    for shard in ["linux-a", "linux-b", "linux-c"] {
        let library =
            tree.path(&format!("shards/{shard}/blas_lib_generic/{PREFIX}/lib/libhost.so"));
        let script = tree.path("remove.cmake");
        let text = format!("file(RPATH_REMOVE FILE \"{}\")\n", library.display());
        fs::write(&script, text).unwrap();
        let status = Command::new("cmake").arg("-P").arg(&script).status();
        assert!(status.unwrap().success());
    }
    let plan = planned(&tree, CONFIGURATION);
    assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
}

/// MIOpen has such plugins, one for each target.
fn plugins(tree: &Tree, name: &str, targets: &[&str]) {
    let artifact = tree.path(&format!("in/{name}/conv_lib"));
    let prefix = artifact.join("ml-libs/MIOpen/stage");
    write(prefix.join("include/miopen.h"), b"int f();\n");
    for target in targets {
        let processor = target.split(':').next().unwrap();
        let library = format!("lib/plugins/libConv_{processor}.so");
        let fat = FatLibrary::new().wrapper(Storage::Plain, [code(target, "conv")]);
        fat.build(&prefix.join(&library).with_extension("so.1")).unwrap();
        let name = format!("libConv_{processor}.so.1");
        symlink(name, prefix.join(&library)).unwrap();
    }
    write(artifact.join("artifact_manifest.txt"), b"ml-libs/MIOpen/stage\n");
    let output = tree.path(&format!("shards/{name}"));
    split(&Options::new(artifact, output, "conv_lib"), &()).unwrap();
}

#[test]
fn host_files_of_one_target_come_from_the_shard_that_builds_for_it() {
    for configuration in [CONFIGURATION, &validated(true, false)] {
        let tree = Tree::new();
        plugins(&tree, "linux-a", &["gfx1100", "gfx1101"]);
        plugins(&tree, "linux-b", &["gfx90a:xnack+"]);
        plugins(&tree, "linux-c", &["gfx942"]);
        let plan = planned(&tree, configuration);
        assert_eq!(plan.errors(), 0, "{:#?}", said(&plan));
        let parts = ["linux-c", "libConv_gfx942.so.1", "merged-file"];
        assert_said(&plan, Severity::Note, &parts);
        // Two files and two links.
        assert_eq!(said(&plan).len(), 4, "{:#?}", said(&plan));
        plan.apply(&options(&tree, configuration), &()).unwrap();
        assert_holds(&tree.path("out"));
        for processor in ["gfx1100", "gfx1101", "gfx90a", "gfx942"] {
            let at = "out/conv_lib_generic/ml-libs/MIOpen/stage/lib/plugins";
            let library = tree.path(&format!("{at}/libConv_{processor}.so"));
            assert!(library.is_symlink() && library.is_file(), "{processor}");
        }
    }
    // But not if two shards build for the target, or none.
    let tree = Tree::new();
    plugins(&tree, "linux-a", &["gfx1100"]);
    plugins(&tree, "linux-b", &["gfx1100", "gfx942"]);
    let library = "conv_lib_generic/ml-libs/MIOpen/stage/lib/plugins/libConv_gfx1100.so.1";
    fs::remove_file(tree.path("shards/linux-b").join(library)).unwrap();
    let other = tree.path("shards/linux-b").join(library.replace("1100", "1101"));
    write(&other, b"");
    let plan = planned(&tree, CONFIGURATION);
    let parts = ["libConv_gfx1100.so.1", "only shard linux-a has it"];
    assert_said(&plan, Severity::Fault, &parts);
    let parts = ["libConv_gfx1101.so.1", "only shard linux-b has it"];
    assert_said(&plan, Severity::Fault, &parts);
}
