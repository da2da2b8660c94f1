//! How the functions reject wrong arguments.

use std::fs;

use kpack_tests::bytes;
use kpack_tests::fixture::code_object;

use crate::cmake::package::Package;
use crate::cmake::project::{Project, Run, define};

with_each_package!(["cmake", "cc"] => wrong_arguments_are_explained, options_reach_the_helper, kernel_files_are_checked, architectures_are_compared_with_hip);

const LIBRARY: &str = "kpack_install(TARGETS veclib MODULE veclib";

/// The arguments of a call, and the expected error.
const WRONG: &[(&str, &str)] = &[
    ("kpack_install(MODULE veclib)", "kpack_install(): TARGETS is missing"),
    ("kpack_install(TARGETS veclib)", "kpack_install(): MODULE is missing"),
    ("kpack_install(veclib MODULE veclib)", "TARGETS is missing"),
    ("kpack_install(TARGETS veclib MODULE)", "MODULE needs a value."),
    (
        "kpack_install(TARGETS veclib MODULE ARCHITECTURES gfx942)",
        "MODULE needs a value, but ARCHITECTURES follows it",
    ),
    ("kpack_install(TARGETS veclib MODULE a MODULE b)", "MODULE is given twice"),
    ("kpack_install(TARGETS veclib MODULE a b)", "does not accept the arguments \"b\""),
    (
        "kpack_install(TARGETS veclib MODULE ../veclib)",
        "MODULE is \"../veclib\". It becomes part of file names",
    ),
    ("kpack_install(TARGETS nothing MODULE veclib)", "nothing"),
    (
        "kpack_install(TARGETS kernels MODULE veclib RUNTIME_SHIM)",
        "RUNTIME_SHIM: nothing is linked into \"kernels\" (STATIC_LIBRARY). Give RUNTIME_SHIM",
    ),
    (
        "COMPONENT \"Runtime files\")",
        "choose the name in the names of archives with KPACK_COMPONENT",
    ),
    (
        "ARCHITECTURES gfx1100 native)",
        "ARCHITECTURES: `native` is not a GPU target ID: expected a processor",
    ),
    ("ARCHITECTURES gfx1100 gfx-900)", "did you mean gfx900?"),
    ("ARCHITECTURES gxf1100)", "ARCHITECTURES: `gxf1100` is not a GPU target ID"),
    ("ARCHITECTURES gfx11oo)", "did you mean gfx1100?"),
    ("ARCHITECTURES gfx90)", "ARCHITECTURES: `gfx90` is not a GPU target ID"),
    ("ARCHITECTURES gfx90a:xnak+)", "did you mean gfx90a:xnack+?"),
    ("ARCHITECTURES gfx90a:xnack)", "ARCHITECTURES: `gfx90a:xnack` is not a GPU target ID"),
    ("ARCHITECTURES mi300x)", "did you mean gfx942?"),
    (
        "ARCHITECTURES gfx90a gfx90a:xnack+ DEVICE_COMPONENTS)",
        "ARCHITECTURES has gfx90a and gfx90a:xnack+: gfx90a stands for its variants too",
    ),
    (
        "UNEXPECTED explode ARCHITECTURES gfx942)",
        "UNEXPECTED is \"explode\" (expected drop, error or keep)",
    ),
    ("UNEXPECTED error)", "UNEXPECTED needs ARCHITECTURES"),
    ("SPIRV burn)", "SPIRV is \"burn\" (expected keep, drop or archive)"),
    ("DEBUG_DESTINATION lib/debug)", "DEBUG_DESTINATION needs STRIP_DEBUG"),
    ("COMPRESSION lzma)", "(expected zstd or none)"),
    ("LEVEL high)", "LEVEL is \"high\" (expected 1 to 22)"),
    (
        "LIBRARY DESTINATION /opt/lib)",
        "the destination of \"veclib\" is \"/opt/lib\", an absolute path",
    ),
    ("LIBRARY DESTINATION lib/../../lib)", "which leaves the install prefix"),
    ("KPACK_DESTINATION /opt/.kpack)", "KPACK_DESTINATION is \"/opt/.kpack\", an absolute path"),
    ("DEVICE_COMPONENTS)", "DEVICE_COMPONENTS needs ARCHITECTURES"),
    (
        "DEVICE_COMPONENTS ARCHITECTURES gfx942 UNEXPECTED keep)",
        "UNEXPECTED keep cannot be combined with DEVICE_COMPONENTS",
    ),
    (
        "DEVICE_COMPONENTS ARCHITECTURES gfx942)\nkpack_install(TARGETS vecapp MODULE veclib)",
        "An earlier rule already writes lib/.kpack/veclib_lib_*.kpack",
    ),
    (
        ")\nkpack_install(TARGETS vecapp MODULE veclib ARCHITECTURES gfx942 DEVICE_COMPONENTS)",
        "name all targets of module \"veclib\" in one call",
    ),
    (
        ")\nkpack_install(TARGETS vecapp MODULE veclib COMPONENT lib)",
        "would be written by two install components, \"Unspecified\" and \"lib\"",
    ),
    (
        "DEVICE_COMPONENTS ARCHITECTURES gfx942)\n\
         kpack_install(TARGETS vecapp MODULE vecapp COMPONENT lib ARCHITECTURES gfx942 DEVICE_COMPONENTS)",
        "component \"lib-gfx942\" would hold device code of both \"Unspecified\" and \"lib\"",
    ),
    (
        "kpack_split_installed(TARGETS veclib MODULE veclib)",
        "DESTINATION is missing; name the directory where \"veclib\" is installed",
    ),
    (
        "kpack_split_installed(TARGETS nothing MODULE veclib DESTINATION lib)",
        "there is no target \"nothing\"",
    ),
    (
        "kpack_split_installed(TARGETS veclib MODULE veclib DESTINATION lib EXPORT vec)",
        "EXPORT belongs to the command that installs the targets",
    ),
    (
        "kpack_split_installed(TARGETS Kpack::kpack MODULE veclib DESTINATION lib)",
        "is not built here",
    ),
];

/// Configures the project with these lines at its end.
fn configure(project: &Project<'_>, call: &str) -> Run {
    let file = project.scratch().join("call.cmake");
    std::fs::write(&file, call).unwrap();
    project.configure(&[&define("CALL", &file)])
}

fn wrong_arguments_are_explained(package: &Package) {
    let project = Project::new(package, "arguments");
    for (call, message) in WRONG {
        let call = if call.starts_with("kpack_") {
            (*call).to_owned()
        } else {
            format!("{LIBRARY} {call}")
        };
        configure(&project, &call).fails_with(message);
    }
    configure(&project, &format!("{LIBRARY})")).succeeds();
    let all = "gfx900 gfx90a:sramecc+:xnack- gfx9-4-generic gfx11-generic:xnack+ gfx1250 gfx1250-strict amdgcnspirv";
    configure(&project, &format!("{LIBRARY} ARCHITECTURES {all})")).succeeds();
}

#[test]
fn the_shim_needs_an_installed_kpack() {
    if kpack_tests::require::tools(&["cmake", "cc"]) {
        let call = format!("{LIBRARY} RUNTIME_SHIM)");
        let source_tree = Package::source_tree();
        configure(&Project::new(&source_tree, "arguments"), &call)
            .fails_with("libkpack_hip.a, which does not exist. Use an installed kpack");
        let shared = format!("{LIBRARY} RUNTIME_SHIM shared)");
        configure(&Project::new(&source_tree, "arguments"), &shared)
            .fails_with("libkpack_hip.so, which does not exist. Use an installed kpack");
        let installed = Package::installed();
        for call in [&call, &shared] {
            configure(&Project::new(&installed, "arguments"), call).succeeds();
        }
        let unknown = format!("{LIBRARY} RUNTIME_SHIM static)");
        configure(&Project::new(&installed, "arguments"), &unknown)
            .fails_with("does not accept the arguments \"static\"");
        configure(&Project::new(&installed, "arguments"), &format!("{call}\n{shared}")).fails_with(
            "another call links libkpack_hip.a into \"veclib\", and this one libkpack_hip.so",
        );
    }
}

fn options_reach_the_helper(package: &Package) {
    let project = Project::new(package, "arguments");
    let install = |prefix: &str, arguments: &str| {
        let call = format!("kpack_install(TARGETS vecapp MODULE vec {arguments})");
        configure(&project, &call).succeeds();
        project.build(&[]).succeeds();
        let prefix = project.prefix(prefix);
        (project.install(&prefix.path, &[]), prefix)
    };
    let expected = "ARCHITECTURES gfx1100 gfx942";
    let (run, dropped) = install("drop", expected);
    run.succeeds().says("gfx90a:xnack+");
    let archive = |target: &str| format!("lib/.kpack/vec_lib_{target}.kpack");
    assert!(!dropped.path.join(archive("gfx90a:xnack+")).exists());
    assert!(dropped.path.join(archive("gfx942")).exists());

    install("error", &format!("{expected} UNEXPECTED error"))
        .0
        .fails_with("has device code for gfx90a:xnack+");

    let (run, kept) = install("keep", &format!("{expected} UNEXPECTED keep COMPRESSION none"));
    run.succeeds();
    let bytes = fs::read(kept.path.join(archive("gfx90a:xnack+"))).unwrap();
    let payload = b"mainmainmainmain";
    assert!(bytes::contains(&bytes, payload));
    kept.verifies();
}

fn kernel_files_are_checked(package: &Package) {
    let project = Project::new(package, "arguments");
    let kernels = project.build.join("kernels");
    fs::create_dir_all(&kernels).unwrap();
    let object = code_object("gfx1100", b"kernel").unwrap();
    fs::write(kernels.join("add_gfx1100.hsaco"), &object).unwrap();
    let rules = project.build.join("kernels.rules");
    fs::write(&rules, "# of this project\nvec=share/vec/*_{target}.hsaco\n").unwrap();
    let call = format!(
        "install(DIRECTORY {} DESTINATION share/vec)
        kpack_install(TARGETS vecapp MODULE vec KERNEL_FILES @{} \"more=share/{{target}}/*.co\")",
        kernels.join("").display(),
        rules.display()
    );
    configure(&project, &call).succeeds();
    project.build(&[]).succeeds();
    let install = |prefix: &str| project.install(&project.prefix(prefix).path, &[]);
    install("right").succeeds().says("1 kernel file of vec for gfx1100; unchanged");
    fs::write(kernels.join("add_gfx942.hsaco"), &object).unwrap();
    install("wrong")
        .fails_with("the path says gfx942, but the ELF header of the code object says gfx1100");
}

/// CMake passes HIP_ARCHITECTURES to the HIP compiler.
fn architectures_are_compared_with_hip(package: &Package) {
    let project = Project::new(package, "arguments");
    let with_hip = |architectures: &str| {
        let call = format!(
            "set_target_properties(veclib PROPERTIES HIP_ARCHITECTURES \"gfx1100;gfx942\")\n\
             {LIBRARY} {architectures})"
        );
        configure(&project, &call).succeeds()
    };
    with_hip("ARCHITECTURES gfx1100 gfx942 gfx1201")
        .says("ARCHITECTURES has gfx1201, but HIP_ARCHITECTURES of the targets of module \"veclib\" is gfx1100 gfx942");
    with_hip("ARCHITECTURES gfx1100")
        .says("has gfx942, but ARCHITECTURES does not: the install will skip its code");
    with_hip("ARCHITECTURES gfx1100 UNEXPECTED error").says("the install will stop");
    for quiet in ["ARCHITECTURES gfx1100 gfx942", "", "ARCHITECTURES gfx1100 UNEXPECTED keep"] {
        let run = with_hip(quiet);
        assert!(!run.output.contains("Warning"), "{}", run.output);
    }
}
