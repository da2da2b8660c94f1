//! Device code that others compiled.

use std::fs;
use std::process::Command;

use kpack_format::offload_bundle;
use kpack_tests::fixture::{Storage, bundle};
use kpack_tests::process::run;
use kpack_tests::require;
use kpack_tests::tree::Tree;

use super::{build_for_two, code_object, empty_build, error, modules, package, table, warnings};

/// The sources' package, built, with the code objects of `affine` in files.
fn built() -> Tree {
    let tree = package();
    modules(&build_for_two(&tree, &[]));
    for target in ["gfx942", "gfx1100"] {
        code_object(&tree, "affine", target);
    }
    tree
}

#[test]
fn code_objects_and_bundles_are_modules() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = built();
    let bundle = tree.path("out/kpack/kernels/affine.hipfb");
    fs::copy(&bundle, tree.path("saxpy.hipfb")).unwrap();
    // Without sources, neither a compiler nor targets are needed.
    let mut hip = empty_build(&tree, &[("HIPCXX", "no-such-compiler")]);
    hip.code_object("axpy", "gfx942", "affine-gfx942.co")
        .bundle("saxpy", "saxpy.hipfb")
        .code_object("axpy", "gfx1100", tree.path("affine-gfx1100.co"));
    let of_others = modules(&hip);
    let text = fs::read_to_string(of_others.path()).unwrap();
    for name in ["AXPY", "SAXPY"] {
        assert!(text.contains(&format!("    {name} {{")), "{text}");
    }
    for module in ["axpy", "saxpy"] {
        let bundle = of_others.directory().join(format!("{module}.hipfb"));
        assert_eq!(fs::read(bundle).unwrap(), fs::read(tree.path("saxpy.hipfb")).unwrap());
    }
    for path in ["affine-gfx942.co", "saxpy.hipfb"] {
        let watched = format!("cargo::rerun-if-changed={path}");
        assert!(of_others.directives().contains(&watched), "{:?}", of_others.directives());
    }
}

/// Kernel-language compilers write all kinds of bundles; `.hipfb` is always an uncompressed one.
#[test]
fn compressed_bundles_and_bare_code_objects_become_plain_bundles() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = built();
    let entry = |target: &str| {
        let code = fs::read(tree.path(&format!("affine-{target}.co"))).unwrap();
        (target.to_owned(), code)
    };
    let both = [entry("gfx942"), entry("gfx1100")];
    let plain = fs::read(tree.path("out/kpack/kernels/affine.hipfb")).unwrap();
    for storage in [Storage::Plain, Storage::Zstd(2), Storage::Zstd(3), Storage::Zlib(1)] {
        fs::write(tree.path("given"), bundle(storage, &both).unwrap()).unwrap();
        let built = modules(empty_build(&tree, &[]).bundle("saxpy", "given"));
        let own = fs::read(built.directory().join("saxpy.hipfb")).unwrap();
        assert!(own == plain, "{storage:?}");
    }
    fs::write(tree.path("given"), bundle(Storage::Bare, &both[1..]).unwrap()).unwrap();
    let built = modules(empty_build(&tree, &[]).bundle("saxpy", "given"));
    assert_eq!(table(&built.directory().join("saxpy.hipfb")).entries.len(), 2);
}

#[test]
fn a_source_and_a_code_object_can_share_a_module() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = built();
    let mut hip = empty_build(&tree, &[]);
    hip.file("kernels/affine.hip").include("include").flags(["-nogpuinc", "-nogpulib"]);
    hip.offload_arch("gfx942").code_object("affine", "gfx1100", "affine-gfx1100.co");
    let both = modules(&hip);
    assert_eq!(table(&both.directory().join("affine.hipfb")).entries.len(), 3);
    let text = error(&tree, hip.code_object("affine", "gfx942", "affine-gfx942.co"));
    assert_eq!(
        text,
        "module `affine` has two code objects for gfx942, of kernels/affine.hip and \
         [package]/affine-gfx942.co; remove one of them [usage]"
    );
}

#[test]
fn what_is_no_device_code_for_the_target() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = built();
    fs::write(
        tree.path("text"),
        "not an ELF file, but long enough for the header of one, 64 bytes",
    )
    .unwrap();
    fs::write(tree.path("empty.co"), "").unwrap();
    fs::write(tree.path("bitcode.bc"), b"BC\xc0\xde and so on").unwrap();
    fs::copy("/proc/self/exe", tree.path("program")).unwrap();
    let code = fs::read(tree.path("affine-gfx942.co")).unwrap();
    fs::write(tree.path("truncated.co"), &code[..code.len() - 1000]).unwrap();
    fs::copy(tree.path("out/kpack/kernels/affine.hipfb"), tree.path("affine.hipfb")).unwrap();
    let mut assemble = Command::new("clang-19");
    assemble.current_dir(tree.root()).args(["--target=amdgcn-amd-amdhsa", "-mcpu=gfx942"]);
    run(assemble.args(["-x", "assembler", "-c", "-o", "relocatable.o", "/dev/null"]));
    let host = offload_bundle::plain([(offload_bundle::HOST_ENTRY, &[][..])]);
    fs::write(tree.path("host.hipfb"), host).unwrap();

    let mut text = String::new();
    for (target, path) in [
        ("gfx1100", "affine-gfx942.co"),
        ("gfx942:xnack+", "affine-gfx942.co"),
        ("gfx11oo", "affine-gfx942.co"),
        ("amdgcnspirv", "affine-gfx942.co"),
        ("gfx942", "text"),
        ("gfx942", "empty.co"),
        ("gfx942", "program"),
        ("gfx942", "truncated.co"),
        ("gfx942", "affine.hipfb"),
        ("gfx942", "relocatable.o"),
        ("gfx942", "bitcode.bc"),
        ("gfx942", "missing.co"),
    ] {
        let mut hip = empty_build(&tree, &[]);
        text += &error(&tree, hip.code_object("saxpy", target, path));
        text += "\n";
    }
    for path in ["host.hipfb", "text", "missing.hipfb"] {
        text += &error(&tree, empty_build(&tree, &[]).bundle("saxpy", path));
        text += "\n";
    }
    for name in ["my-code", "all"] {
        let mut hip = empty_build(&tree, &[]);
        text += &error(&tree, hip.code_object(name, "gfx942", "affine-gfx942.co"));
        text += "\n";
    }
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"0x[0-9a-f]+", "0x[..]");
    settings.bind(|| insta::assert_snapshot!(text));
}

/// Only modules have device code alone. Nothing is compiled, and on docs.rs the error is the same.
#[test]
fn a_library_cannot_have_device_code_of_others() {
    let tree = package();
    for variables in [&[("HIPCXX", "no-such-compiler")][..], &[("DOCS_RS", "1")]] {
        let mut hip = empty_build(&tree, variables);
        hip.file("kernels/affine.hip").offload_arch("gfx942");
        let mut with_bundle = hip.clone();
        with_bundle.bundle("saxpy", "saxpy.hipfb");
        hip.code_object("saxpy", "gfx942", "saxpy.co");
        let errors = [
            hip.try_compile("kernels").unwrap_err().to_string(),
            with_bundle.try_shared("kernels").unwrap_err().to_string(),
        ];
        let expected = [("code_object", "saxpy.co"), ("bundle", "saxpy.hipfb")];
        assert_eq!(
            errors,
            expected.map(|(method, file)| format!(
                "library `kernels`: `{method}` adds {file} to a module, and a library has none; use \
                 `compile_modules`, or add a compiled object with `object`"
            ))
        );
    }
}

#[test]
fn a_target_of_the_build_without_code_of_others() {
    if !require::tool("clang++-19") {
        return;
    }
    let tree = built();
    let warning = "module `axpy` has code for gfx942, but not for gfx1100; add that with `code_object` or `bundle`";
    // With a source and without one, for the targets that somebody names.
    let mut hip = build_for_two(&tree, &[]);
    assert_eq!(
        warnings(&modules(hip.code_object("axpy", "gfx942", "affine-gfx942.co"))),
        [warning]
    );
    let mut hip = empty_build(&tree, &[]);
    hip.code_object("axpy", "gfx942", "affine-gfx942.co");
    assert_eq!(warnings(&modules(&hip)), [""; 0]);
    assert_eq!(warnings(&modules(hip.offload_archs(["gfx942:xnack+", "gfx1100"]))), [warning]);
    // Code that is there for the plain processor is for its variants, too.
    hip.code_object("axpy", "gfx1100", "affine-gfx1100.co");
    assert_eq!(warnings(&modules(&hip)), [""; 0]);
}
