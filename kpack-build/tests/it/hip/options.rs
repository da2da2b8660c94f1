//! What options and variables do to host and device code.

use super::*;

const GPU: &str = "out/kpack/vector/.kpack/vec_lib_gfx1100.kpack";

/// Its symbols say whether a pass optimizes, which is also true of names in debug information.
const PASSES: &str = r#"#include "vector.h"
#ifdef __HIP_DEVICE_COMPILE__
#ifdef __OPTIMIZE__
__attribute__((device, used)) int optimized_on_device;
#endif
#elif defined __OPTIMIZE__
int optimized_on_host;
#endif
__global__ void add(float *a) { int unused; *a *= 2; }
int vector_host() { return 42; }
"#;

fn has(tree: &Tree, file: &str, part: &str) -> bool {
    bytes::contains(&fs::read(tree.path(file)).unwrap(), part.as_bytes())
}

/// Only what asks for it by name changes device code; the profile and `CXXFLAGS` are for the host.
#[test]
fn device_code_is_optimized_and_has_no_debug_information() {
    if !require::tool("clang++-19") {
        return;
    }
    type Options = fn(&mut Hip) -> &mut Hip;
    let profile: Options = |hip| hip;
    let debug = [("OPT_LEVEL", "0"), ("DEBUG", "true")];
    let release = [("OPT_LEVEL", "3"), ("DEBUG", "false")];
    let cxxflags = [("OPT_LEVEL", "3"), ("DEBUG", "false"), ("CXXFLAGS", "-O0 -g")];
    let hipflags = [("OPT_LEVEL", "3"), ("DEBUG", "false"), ("HIPFLAGS", "-O0 -g")];
    // Whether device code is optimized and has debug information, and whether host code.
    for (number, (options, variables, expected)) in [
        (profile, &debug[..], [true, false, false, true]),
        (profile, &release, [true, false, true, false]),
        (profile, &cxxflags, [true, false, false, true]),
        (profile, &hipflags, [false, true, false, true]),
        (|hip| hip.opt_level(0), &release, [false, false, false, false]),
        (|hip| hip.opt_level(2), &debug, [true, false, true, true]),
        (|hip| hip.debug(true), &release, [true, true, true, true]),
        (|hip| hip.debug(false), &debug, [true, false, false, false]),
    ]
    .into_iter()
    .enumerate()
    {
        let tree = package();
        fs::write(tree.path("src/vector.hip"), PASSES).unwrap();
        let mut hip = build(&tree, &[&[("HIPCXX", "clang++-19")], variables].concat());
        let library = compile(options(hip.offload_arch("gfx1100")));
        let library = library.path().strip_prefix(tree.root()).unwrap().to_str().unwrap();
        let found = [
            has(&tree, GPU, "optimized_on_device"),
            has(&tree, GPU, ".debug_info"),
            has(&tree, library, "optimized_on_host"),
            has(&tree, library, ".debug_info"),
        ];
        assert_eq!(found, expected, "row {number}: {variables:?}");
    }
}

/// Two targets would repeat each warning.
#[test]
fn warnings_of_the_pass_for_the_host() {
    if !require::tool("clang++-19") {
        return;
    }
    for (warnings, expected) in [(None, 0), (Some(true), 1), (Some(false), 0)] {
        let tree = package();
        fs::write(tree.path("src/vector.hip"), PASSES).unwrap();
        let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
        hip.offload_archs(["gfx1100", "gfx942"]);
        if let Some(warnings) = warnings {
            hip.warnings(warnings);
        }
        let library = compile(&hip);
        let warned = library.directives().iter().filter(|line| line.contains("unused variable"));
        assert_eq!(warned.count(), expected, "{warnings:?}: {:#?}", library.directives());
    }
}

#[test]
fn flags_that_the_compiler_supports() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    fs::write(
        tree.path("src/vector.hip"),
        format!("{SOURCE}extern \"C\" int NAME();\nint x = NAME();\n"),
    )
    .unwrap();
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    hip.offload_arch("gfx1100").flag("-DNAME=first");
    for flag in ["--no-such-flag", "-Wlogical-op", "-mno-such-feature", "-UNAME", "-DNAME=second"] {
        hip.flag_if_supported(flag);
    }
    compile(&hip);
    assert!(has(&tree, "out/kpack/vector/libvector.a", "second"));
}

#[test]
fn objects_of_others() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    fs::write(tree.path("plain.c"), "int of_plain(void) { return 1; }\n").unwrap();
    fs::write(tree.path("fat.hip"), SOURCE.replace("vector_host", "of_fat")).unwrap();
    for (source, more) in [
        ("plain.c", &[][..]),
        (
            "fat.hip",
            &["-nogpuinc", "-nogpulib", "--offload-arch=gfx1100", "-DFACTOR=1", "-Iinclude"],
        ),
    ] {
        let mut clang = Command::new("clang-19");
        clang.current_dir(tree.root()).args(["-c", source]).args(more);
        assert!(clang.status().unwrap().success());
    }
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
    let library = compile(hip.offload_arch("gfx1100").object("plain.o").object("fat.o"));
    for name in ["of_plain", "of_fat", "vector_host"] {
        assert!(has(&tree, "out/kpack/vector/libvector.a", name), "{name}");
    }
    assert!(!has(&tree, "out/kpack/vector/libvector.a", "amdhsa.kernels"));
    assert!(has(&tree, GPU, "fat.o"));
    assert!(library.directives().contains(&"cargo::rerun-if-changed=fat.o".to_owned()));
    // Only objects, and one that does not exist.
    let mut hip = Hip::new();
    hip.object("fat.o").offload_arch("gfx1100").compiler("clang++-19").cargo_metadata(false);
    let variables = ["CARGO_MANIFEST_DIR", "OUT_DIR"].map(|name| (name, tree.root().to_owned()));
    hip.environment(variables);
    compile(&hip);
    let text = error(&tree, hip.object("no-such.o"));
    assert!(text.contains("[package]/no-such.o"), "{text}");
}

#[test]
fn the_standard_library_that_the_compiler_uses() {
    if !require::tool("clang++-19") {
        return;
    }
    type Options = fn(&mut Hip) -> &mut Hip;
    let none: Options = |hip| hip;
    let of_target = "CXXSTDLIB_x86_64_unknown_linux_gnu";
    let is_here = Path::new("/usr/lib/llvm-19/include/c++/v1").is_dir();
    for (options, variables, expected) in [
        (none, &[][..], Some("dylib=stdc++")),
        (none, &[("CXXSTDLIB", "c++")], Some("dylib=c++")),
        (
            none,
            &[("CXXSTDLIB", "c++"), (of_target, "static:-bundle=stdc++")],
            Some("static:-bundle=stdc++"),
        ),
        (none, &[("CXXSTDLIB", "")], None),
        (
            none,
            &[("HIPFLAGS", "-stdlib=libc++")],
            is_here.then_some("dylib=c++").or(Some("dylib=stdc++")),
        ),
        (|hip| hip.cpp_link_stdlib("c++"), &[("CXXSTDLIB", "stdc++")], Some("dylib=c++")),
        (|hip| hip.cpp_link_stdlib(None), &[], None),
    ] {
        let tree = package();
        let more = [("HIPCXX", "clang++-19"), ("TARGET", "x86_64-unknown-linux-gnu")];
        let mut hip = build(&tree, &[&more, variables].concat());
        let library = compile(options(hip.offload_arch("gfx1100").link_runtime(false)));
        let lines = library.directives().iter();
        let linked = lines.filter_map(|line| line.strip_prefix("cargo::rustc-link-lib="));
        let linked = Vec::from_iter(linked.filter(|name| *name != "static=vector"));
        assert_eq!(linked, Vec::from_iter(expected), "{variables:?}");
    }
}

/// A machine whose user says which GPU it has.
#[test]
fn without_a_target_the_gpus_of_this_machine() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let gpu = ("HSA_OVERRIDE_GFX_VERSION", "11.0.0");
    let native = "out/kpack/vector/native-targets.txt";
    let mut hip = build(&tree, &[("HIPCXX", "clang++-19"), gpu]);
    let library = compile(&hip);
    let warnings = library.directives().iter().filter(|line| line.starts_with("cargo::warning="));
    let warnings = Vec::from_iter(warnings);
    assert!(warnings.len() == 1 && warnings[0].contains("only for gfx1100"), "{warnings:?}");
    assert!(library.directives().contains(&format!("cargo::rerun-if-env-changed={}", gpu.0)));
    assert_eq!(fs::read_to_string(tree.path(native)).unwrap(), "gfx1100\n");
    assert!(tree.path(GPU).is_file());

    let library = compile(hip.offload_arch("gfx942"));
    assert!(!library.directives().iter().any(|line| line.starts_with("cargo::warning=")));
    assert!(!tree.path(native).exists() && !tree.path(GPU).exists());
    // The user of a dependency decides.
    let hip = build(&tree, &[("HIPCXX", "clang++-19"), ("KPACK_OFFLOAD_ARCH", "gfx1100")]);
    compile(hip.clone().offload_arch("gfx942"));
    assert!(tree.path(GPU).is_file() && !tree.path(&GPU.replace("gfx1100", "gfx942")).exists());
}

#[test]
fn a_source_for_some_targets() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    let other = "#ifdef __HIP_DEVICE_COMPILE__\n#ifndef __gfx942__\n#error not this GPU\n#endif\n#include \"gfx942.h\"\n#endif\n";
    let other =
        format!("{other}{}", SOURCE.replace("vector_host", "moe_host").replace(" add(", " moe("));
    fs::write(tree.path("include/gfx942.h"), "").unwrap();
    fs::write(tree.path("src/moe.hip"), other).unwrap();
    for (targets, expected) in [
        (&["gfx1100", "gfx942"][..], &[("gfx1100", false), ("gfx942", true)][..]),
        (&["gfx942"], &[("gfx942", true)]),
        // The program can still be linked.
        (&["gfx1100"], &[("gfx1100", false)]),
    ] {
        let mut hip = build(&tree, &[("HIPCXX", "clang++-19")]);
        hip.file_for("src/moe.hip", ["gfx942", "gfx950"]).offload_archs(targets.iter().copied());
        let library = compile(&hip);
        let archives = tree.files().into_iter().filter(|file| file.ends_with(".kpack"));
        let found = archives.map(|file| {
            let of_all = has(&tree, &file, "_Z3addPfPKf");
            assert!(of_all, "{file}");
            (file.clone(), has(&tree, &file, "_Z3moePfPKf"))
        });
        let archive = |target| GPU.replace("gfx1100", target);
        let expected = expected.iter().map(|(target, there)| (archive(target), *there));
        assert_eq!(Vec::from_iter(found), Vec::from_iter(expected));
        for host in ["vector_host", "moe_host"] {
            assert!(has(&tree, "out/kpack/vector/libvector.a", host));
        }
        let header = "cargo::rerun-if-changed=include/gfx942.h".to_owned();
        assert_eq!(library.directives().contains(&header), targets.contains(&"gfx942"));
        let paths = vec![hip.try_shared("shared").unwrap().path().to_owned()];
        let report = kpack_artifact::verify::verify(&paths, &Default::default(), &()).unwrap();
        let faults = report
            .findings
            .iter()
            .filter(|finding| finding.severity == kpack_core::Severity::Fault);
        assert_eq!(faults.count(), 0, "{targets:?} {report:#?}");
        fs::remove_dir_all(tree.path("out/kpack/shared")).unwrap();
    }
}

/// ROCm's headers for CUDA's names can be replaced.
#[test]
fn headers_of_the_project_before_those_of_rocm() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = package();
    tree.write("rocm/include/hip/hip_version.h", "");
    tree.write(
        "rocm/share/hip/version",
        "HIP_VERSION_MAJOR=6\nHIP_VERSION_MINOR=4\nHIP_VERSION_PATCH=0\n",
    );
    tree.write("rocm/include/hip/hip_runtime.h", HEADER);
    tree.write("rocm/include/cuda_fp16.h", "#error that of ROCm\n");
    fs::write(tree.path("src/vector.hip"), SOURCE.replace("vector.h", "cuda_fp16.h")).unwrap();
    let rocm = tree.path("rocm");
    let variables = [("HIPCXX", "clang++-19"), ("ROCM_PATH", rocm.to_str().unwrap())];
    let mut hip = build_with_rocm(&tree, &variables);
    hip.flags(["-nogpulib", "-nogpuinc", "-idirafter", rocm.join("include").to_str().unwrap()]);
    hip.offload_arch("gfx1100");
    let text = error(&tree, &hip);
    assert!(text.contains("that of ROCm"), "{text}");
    fs::write(tree.path("include/cuda_fp16.h"), HEADER).unwrap();
    compile(&hip);
}

#[test]
fn the_name_of_a_library_that_is_skipped() {
    let tree = package();
    for (target, expected) in
        [("x86_64-unknown-linux-gnu", "libvector.so"), ("x86_64-pc-windows-gnu", "vector.dll")]
    {
        let mut hip = build(&tree, &[("TARGET", target)]);
        let library = hip.skip(true).try_shared("vector").unwrap();
        assert_eq!(library.path().file_name().unwrap(), expected);
    }
}

/// As for modules: the headers of another ROCm may be the same.
#[test]
fn device_libraries_are_watched() {
    let libraries = "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode";
    if !(require::tool("clang++-19") && require::file(&format!("{libraries}/ockl.bc"))) {
        return;
    }
    let tree = package();
    let mut hip = build_with_rocm(&tree, &[("HIPCXX", "clang++-19")]);
    hip.flag("-nogpuinc").flag(format!("--rocm-device-lib-path={libraries}"));
    let library = compile(hip.offload_arch("gfx1030"));
    let watched = format!("cargo::rerun-if-changed={libraries}");
    assert!(library.directives().contains(&watched), "{:?}", library.directives());
}
