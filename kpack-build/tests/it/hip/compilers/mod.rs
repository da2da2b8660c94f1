//! Given several compilers and a distribution's device libraries, when targets are asked for, then a
//! compiler is chosen that can make code for them, or the error says why none can.
//!
//! Debian 12 has `hipcc` with clang 15, which does not know gfx942; device libraries for gfx1030 and
//! gfx90a but not for gfx942 (`rocm-device-libs`); and clang 19, which does not look where they are.

use std::fs;

use kpack_tests::require;
use kpack_tests::tree::Tree;

use super::{build, build_with_rocm, compile, error, package};

/// Where Debian's `rocm-device-libs` puts the library for gfx1030.
const DEVICE_LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode/oclc_isa_version_1030.bc";

/// Needs ROCm's header, and `sinf` from the device libraries.
const WITH_ROCM: &str = "#include <hip/hip_runtime.h>
__global__ void add(float *a) { a[threadIdx.x] += sinf(a[threadIdx.x]); }
extern \"C\" int vector_add(float *a) { add<<<1, 1>>>(a); return hipGetLastError(); }
";

/// A package whose source needs ROCm.
fn package_with_rocm() -> Tree {
    let tree = package();
    fs::write(tree.path("src/vector.hip"), WITH_ROCM).unwrap();
    tree
}

/// Whether Debian's packages are there: `hipcc` depends on the device libraries.
fn debian_has_rocm() -> bool {
    require::tools(&["hipcc", "clang++-19"]) && require::file(DEVICE_LIBRARY)
}

#[test]
fn hipcc_is_chosen_for_targets_that_it_knows() {
    if !debian_has_rocm() {
        return;
    }
    let tree = package_with_rocm();
    let mut hip = build_with_rocm(&tree, &[]);
    let library = compile(hip.offload_archs(["gfx1030", "gfx90a:xnack+"]));
    for target in ["gfx1030", "gfx90a:xnack+"] {
        let archive = library.kpack_dir().join(format!("vec_lib_{target}.kpack"));
        assert!(archive.is_file(), "{}", archive.display());
    }
}

#[test]
fn another_compiler_is_chosen_for_a_target_that_hipcc_does_not_know() {
    if !debian_has_rocm() {
        return;
    }
    let tree = package();
    let mut hip = build(&tree, &[]);
    let library = compile(hip.offload_archs(["gfx1030", "gfx942"]));
    assert!(library.kpack_dir().join("vec_lib_gfx942.kpack").is_file());
}

#[test]
fn device_libraries_of_the_distribution_are_found() {
    if !debian_has_rocm() {
        return;
    }
    let tree = package_with_rocm();
    let mut hip = build_with_rocm(&tree, &[("HIPCXX", "clang++-19")]);
    compile(hip.offload_arch("gfx1030"));
    let mut hip = build_with_rocm(&tree, &[]);
    compile(hip.offload_arch("gfx1030").compiler("clang++-19"));
}

#[test]
fn a_target_without_device_library_is_named() {
    if !debian_has_rocm() {
        return;
    }
    let tree = package_with_rocm();
    let mut hip = build_with_rocm(&tree, &[]);
    let text = error(&tree, hip.offload_archs(["gfx1030", "gfx942"]));
    for expected in [
        "\n  hipcc: cannot compile for gfx942\n",
        "\n  clang++-19: finds no ROCm device library for gfx942\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let mut hip = build_with_rocm(&tree, &[("HIPCXX", "clang++-19")]);
    let text = error(&tree, hip.offload_arch("gfx942"));
    assert!(
        text.contains("HIPCXX is `clang++-19`: finds no ROCm device library for gfx942"),
        "{text}"
    );
}
