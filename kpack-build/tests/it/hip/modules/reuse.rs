//! What has not changed is not compiled again, whatever became of the build before.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use kpack_tests::require;

use super::{
    AFFINE, PACKAGE, REDUCE, build_for_two, build_in_process, compilations, counting, empty_build,
    error, modules, package, published, warnings,
};

const ALL: [&str; 4] =
    ["affine.hip gfx1100", "affine.hip gfx942", "reduce.hip gfx1100", "reduce.hip gfx942"];

#[test]
fn only_what_has_changed_is_compiled() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let compiler = counting(&tree);
    let mut hip = build_for_two(&tree, &[("HIPCXX", &compiler)]);
    let first = modules(&hip);
    assert_eq!(compilations(&tree), ALL);
    let files = published(&tree);

    // Nothing. A touched file is the same.
    let source = fs::File::options().append(true).open(tree.path("kernels/affine.hip")).unwrap();
    source.set_modified(SystemTime::now() - Duration::from_secs(1)).unwrap();
    assert_eq!(modules(&hip), first);
    assert_eq!(compilations(&tree), [""; 0]);
    assert_eq!(published(&tree), files);

    // A source; a header, which both include.
    fs::write(tree.path("kernels/affine.hip"), AFFINE.replace("+=", "-=")).unwrap();
    modules(&hip);
    assert_eq!(compilations(&tree), ALL[..2]);
    assert_ne!(published(&tree), files);
    let header = "#define __global__ __attribute__((global))\n#define FACTOR 3\n";
    fs::write(tree.path("include/global.h"), header).unwrap();
    modules(&hip);
    assert_eq!(compilations(&tree), ALL);

    // A target more, one less, and one that comes back.
    modules(hip.offload_arch("gfx1030"));
    assert_eq!(compilations(&tree), ["affine.hip gfx1030", "reduce.hip gfx1030"]);
    let hip = build_for_two(&tree, &[("HIPCXX", &compiler)]);
    modules(&hip);
    assert_eq!(compilations(&tree), [""; 0]);
    modules(hip.clone().offload_arch("gfx1030"));
    assert_eq!(compilations(&tree), ["affine.hip gfx1030", "reduce.hip gfx1030"]);

    // A flag, and variables of the compilers, which Cargo watches.
    modules(hip.clone().flag("-DOTHER"));
    assert_eq!(compilations(&tree), ALL);
    for name in ["CPATH", "SOURCE_DATE_EPOCH", "HIP_CLANG_PATH"] {
        let more = [("HIPCXX", &compiler[..]), (name, "1")];
        let built = modules(build_for_two(&tree, &more).flag("-DOTHER"));
        assert_eq!(compilations(&tree), ALL, "{name}");
        let watched = format!("cargo::rerun-if-env-changed={name}");
        assert!(built.directives().contains(&watched), "{:?}", built.directives());
    }
}

/// A ROCm that is updated in place.
#[test]
fn other_device_libraries_are_linked() {
    let of_debian = "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode";
    if !(require::tool("clang++-19") && require::file(&format!("{of_debian}/ockl.bc"))) {
        return;
    }
    let tree = package();
    fs::create_dir(tree.path("bitcode")).unwrap();
    for library in fs::read_dir(of_debian).unwrap() {
        let library = library.unwrap();
        let to = tree.path("bitcode").join(library.file_name());
        fs::copy(library.path(), to).unwrap();
    }
    let compiler = counting(&tree);
    let mut hip = empty_build(&tree, &[("HIPCXX", &compiler)]);
    hip.file("kernels/affine.hip").include("include").offload_arch("gfx1030");
    let flag = format!("--rocm-device-lib-path={}", tree.path("bitcode").display());
    hip.flags(["-nogpuinc", &flag]);
    let built = modules(&hip);
    let watched = format!("cargo::rerun-if-changed={}", tree.path("bitcode").display());
    assert!(built.directives().contains(&watched), "{:?}", built.directives());
    compilations(&tree);
    modules(&hip);
    assert_eq!(compilations(&tree), [""; 0]);
    let library = fs::File::options().append(true).open(tree.path("bitcode/ockl.bc")).unwrap();
    library.set_modified(SystemTime::now() - Duration::from_secs(9)).unwrap();
    modules(&hip);
    assert_eq!(compilations(&tree), ["affine.hip gfx1030"]);
}

#[test]
fn a_build_that_fails_keeps_the_last_one_and_what_it_has_compiled() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let compiler = counting(&tree);
    let hip = build_for_two(&tree, &[("HIPCXX", &compiler)]);
    modules(&hip);
    compilations(&tree);
    let before = published(&tree);
    fs::write(tree.path("kernels/affine.hip"), format!("{AFFINE}broken(\n")).unwrap();
    fs::write(tree.path("kernels/reduce.hip"), REDUCE.replace("*=", "/=")).unwrap();
    error(&tree, &hip);
    assert_eq!(compilations(&tree), ALL);
    assert_eq!(published(&tree), before);
    fs::write(tree.path("kernels/affine.hip"), AFFINE).unwrap();
    modules(&hip);
    // The code of the build before still fits.
    assert_eq!(compilations(&tree), [""; 0]);
}

#[test]
fn damaged_code_objects_and_records_are_made_again() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let compiler = counting(&tree);
    let hip = build_for_two(&tree, &[("HIPCXX", &compiler)]);
    modules(&hip);
    compilations(&tree);
    let before = published(&tree);
    let kept = "out/kpack/.kernels.objects";
    let change = |name: &str| {
        let path = tree.path(&format!("{kept}/{name}"));
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    change("affine.gfx942.co");
    change("reduce.gfx1100.inputs");
    fs::remove_file(tree.path(&format!("{kept}/reduce.gfx942.inputs"))).unwrap();
    modules(&hip);
    assert_eq!(compilations(&tree), [ALL[1], ALL[2], ALL[3]]);
    assert_eq!(published(&tree), before);
}

/// A source that changes while it is compiled.
#[test]
fn code_of_a_source_that_changed_meanwhile_is_not_reused() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let compiler = counting(&tree);
    let source = tree.path("kernels/affine.hip");
    let script = fs::read_to_string(&compiler).unwrap();
    let change = format!("sleep 0.05; touch {}\n", source.display());
    let changing = script.replace("exec clang++-19", &format!("{change}exec clang++-19"));
    fs::write(&compiler, changing).unwrap();
    let hip = build_for_two(&tree, &[("HIPCXX", &compiler)]);
    modules(&hip);
    compilations(&tree);
    fs::write(&compiler, script).unwrap();
    modules(&hip);
    assert_eq!(compilations(&tree), ALL[..2]);
}

/// A header that is another one while the first of four compilations runs, and as before when the others do.
#[test]
fn code_of_a_header_that_changed_between_compilations_is_not_reused() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let compiler = counting(&tree);
    let script = fs::read_to_string(&compiler).unwrap();
    let header = tree.path("include/global.h");
    let with = |factor: u32| {
        format!("#define __global__ __attribute__((global))\n#define FACTOR {factor}\n")
    };
    let hip = build_for_two(&tree, &[("HIPCXX", &compiler), ("NUM_JOBS", "1")]);
    modules(&hip);
    compilations(&tree);

    // The time of the content shows nothing.
    fs::write(tree.path("other.h"), with(7)).unwrap();
    let old = fs::File::options().append(true).open(tree.path("other.h")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(9)).unwrap();
    let first = format!(
        "case \"$*\" in *' -dependency-file '*) cp -p {} {}; sleep 0.1 ;; esac\nexec clang++-19",
        tree.path("other.h").display(),
        header.display()
    );
    let changing = script.replace("exec clang++-19", &first);
    assert_ne!(changing, script);
    fs::write(&header, with(3)).unwrap();
    fs::write(&compiler, changing).unwrap();
    modules(&hip);
    assert_eq!(compilations(&tree), ALL);
    fs::write(&compiler, script).unwrap();
    fs::write(&header, with(3)).unwrap();
    modules(&hip);
    assert_eq!(compilations(&tree), ALL);
}

#[test]
fn warnings_are_repeated() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let source = format!("{AFFINE}#warning of the source\n");
    fs::write(tree.path("kernels/affine.hip"), source).unwrap();
    let hip = build_for_two(&tree, &[]);
    let first = modules(&hip);
    let said = warnings(&first);
    // For one target of two, with the line and a mark below it.
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[0].contains("kernels/affine.hip:6:2: warning: of the source"), "{said:?}");
    assert_eq!(modules(&hip), first);
}

#[test]
fn a_killed_build_leaves_the_last_one() {
    let name = "hip::modules::reuse::a_killed_build_leaves_the_last_one";
    let build = |root: &str| build_in_process(root, &format!("{root}/compiler"), 1);
    if let Ok(root) = std::env::var(PACKAGE) {
        modules(&build(&root));
        return;
    }
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let root = tree.root().to_str().unwrap();
    kpack_tests::process::script(tree.path("compiler"), "exec clang++-19 \"$@\"");
    modules(&build(root));
    let before = published(&tree);
    // Its compiler kills it at the last compilation.
    let killing = "case \"$*\" in *' -dependency-file '*reduce.hip) kill -9 $PPID; exit 1 ;; esac\n\
                   exec clang++-19 \"$@\"";
    kpack_tests::process::script(tree.path("compiler"), killing);
    fs::write(tree.path("kernels/affine.hip"), AFFINE.replace("+=", "-=")).unwrap();
    fs::write(tree.path("kernels/reduce.hip"), REDUCE.replace("*=", "/=")).unwrap();
    let mut killed = Command::new(std::env::current_exe().unwrap());
    killed.args(["--exact", name]).env(PACKAGE, root);
    assert!(killed.output().unwrap().status.code().is_none());
    assert_eq!(published(&tree), before);
    let leftover = tree.path("out/kpack/.kernels.tmp");
    assert!(leftover.exists());
    kpack_tests::process::script(tree.path("compiler"), "exec clang++-19 \"$@\"");
    modules(&build(root));
    assert_ne!(published(&tree), before);
    assert!(!leftover.exists());
}
