//! Given a HIP runtime that does not read markers, when a split library is loaded with the shim, then the
//! runtime gets the code objects that it would get from the unsplit library.

#[path = "../../../kpack/tests/it/common/mod.rs"]
mod common;

mod bundle;
mod copies;
mod project;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kpack_tests::fixture::{RocmScheme, rocm_split_with};
use kpack_tests::process::{copy, run};
use kpack_tests::require;
use project::{Form, Project, entries, entries_of, prefix, preloaded};

/// The versions of these GPUs.
const GFX90A: &str = "9.0.10";
const GFX1030: &str = "10.3.0";
const GFX1100: &str = "11.0.0";

fn same_code(form: Form, ways: &[&[&str]]) {
    let project = Project::new(form);
    let fat = project.load("fat", GFX90A, &["open"]);
    for (version, processor, count) in [(GFX90A, "gfx90a", 3), (GFX1100, "gfx1100", 1)] {
        let expected = entries_of(&fat, processor);
        assert_eq!(expected.len(), count, "{fat:#?}");
        for steps in ways {
            let events = project.load("split", version, steps);
            assert_eq!(entries(&events), expected, "{steps:?} {events:#?}");
        }
    }
}

#[test]
fn preloaded_it_gives_the_runtime_the_same_code() {
    let ways: [&[&str]; 4] = [
        &["open"],
        &["local"],
        &["local", "close", "open", "close"],
        &["fork", "local", "fork", "close"],
    ];
    same_code(Form::Preloaded, &ways);
}

/// Their markers are elsewhere, and their archives have no checksums.
#[test]
fn libraries_that_rocms_tool_split_get_the_same_code() {
    let project = Project::new(Form::Preloaded);
    let fat = project.load("fat", GFX90A, &["open"]);
    for scheme in [RocmScheme::None, RocmScheme::Zstd] {
        project.link("rocm", "cc", &[]);
        let (prefix, file) = (project.tree.path("rocm"), "lib/libvec.so");
        rocm_split_with(&project.library(), &prefix, file, "vec_lib", scheme).unwrap();
        for (version, processor, count) in [(GFX90A, "gfx90a", 3), (GFX1100, "gfx1100", 1)] {
            let expected = entries_of(&fat, processor);
            assert_eq!(expected.len(), count, "{fat:#?}");
            let events = project.load("rocm", version, &["open"]);
            assert_eq!(entries(&events), expected, "{scheme:?} {events:#?}");
        }
    }
}

const LINKED: [&[&str]; 4] = [
    &["open"],
    &["local", "close", "open", "close"],
    &["deepbind", "close"],
    &["fork", "local", "fork", "close"],
];

#[test]
fn linked_it_gives_the_runtime_the_same_code() {
    same_code(Form::Linked, &LINKED);
}

#[test]
fn as_a_shared_library_it_gives_the_runtime_the_same_code() {
    same_code(Form::Shared, &LINKED);
}

#[test]
fn set_user_id_programs_have_it_if_it_is_linked() {
    if !require::tool("setpriv") || !require::root() {
        return;
    }
    for form in [Form::Preloaded, Form::Linked, Form::Shared] {
        let project = Project::new(form);
        let runtime = project.tree.path("old");
        let mut flags = project.flags();
        flags.push(format!("-Wl,-rpath,{}", runtime.display()));
        project.link("split", "cc", &flags);
        project.split("split");
        let program = project.program("tests/real/load.c");
        let of_all = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        of_all(project.tree.root(), 0o755);
        of_all(&program, 0o4755);
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(program)
            .arg(project.tree.path("split/lib/libvec.so"))
            .args(["local", "close"]);
        let (printed, events) = project.run("old", GFX90A, &mut command);
        assert!(printed.status.success(), "{form:?}: {printed:?}");
        let expected = match form {
            Form::Preloaded => BTreeSet::new(),
            _ => entries_of(&project.load("fat", GFX90A, &["open"]), "gfx90a"),
        };
        assert_eq!(entries(&events), expected, "{form:?}");
    }
}

/// Most of it is Rust's standard library, zstd, rmp-serde and the loader.
#[test]
fn linked_it_adds_less_than_950_kilobytes() {
    let size = |form: Form| {
        let project = Project::new(form);
        let library = project.tree.path("split/lib/libvec.so");
        let stripped = library.with_extension("stripped");
        run(Command::new("strip").arg("-o").arg(&stripped).arg(library));
        std::fs::metadata(stripped).unwrap().len()
    };
    let added = size(Form::Linked) - size(Form::None);
    assert!(added < 950_000, "{added}");
}

#[test]
fn without_it_the_runtime_gets_nothing() {
    let project = Project::new(Form::None);
    let events = project.load("split", GFX90A, &["open"]);
    assert!(events.is_empty(), "{events:#?}");
}

#[test]
fn missing_code_is_explained_and_the_library_still_loads() {
    let project = Project::new(Form::Preloaded);
    let program = project.program("tests/real/load.c");
    let mut command = Command::new(program);
    command
        .arg(project.tree.path("split/lib/libvec.so"))
        .args(["open", "close"])
        .env("ROCM_KPACK_DEBUG", "1");
    let (printed, events) = project.run("old", GFX1030, &mut command);
    assert!(printed.status.success(), "{events:#?}");
    assert_eq!(bundles(&events), [0, 0], "{events:#?}");
    let said = String::from_utf8(printed.stderr).unwrap();
    let said: Vec<&str> = said.lines().collect();
    // In full only once, although the library has two kernels.
    assert_eq!(said[0], "kpack: no code object for gfx1030");
    assert!(said[4].ends_with("/vec_lib_gfx1030.kpack: no such file"), "{said:#?}");
    assert!(said.last().unwrap().contains("; explained above) [missing-target]"), "{said:#?}");
    // A GPU that lacks one kernel of two.
    let (printed, events) = project.run("old", GFX1100, &mut command);
    let said = String::from_utf8(printed.stderr).unwrap();
    assert_eq!(bundles(&events), [1, 0], "{events:#?}");
    assert!(said.contains("has code for this GPU, but not this kernel"), "{said}");
}

/// The number of code objects in each bundle that the runtime got.
fn bundles(events: &[String]) -> Vec<usize> {
    let mut bundles = Vec::new();
    for event in events {
        if event.starts_with("fat\t") {
            bundles.push(0);
        } else if event.starts_with("entry\t")
            && let Some(last) = bundles.last_mut()
        {
            *last += 1;
        }
    }
    bundles
}

#[test]
fn damage_is_reported_and_the_library_still_loads() {
    let project = Project::new(Form::Preloaded);
    let archive = project.tree.path("split/lib/.kpack/vec_lib_gfx1100.kpack");
    let sound = std::fs::read(&archive).unwrap();
    let mut frame = sound.clone();
    frame[90] ^= 0xff;
    for damaged in [frame, b"no archive".to_vec()] {
        std::fs::write(&archive, damaged).unwrap();
        let program = project.program("tests/real/load.c");
        let mut command = Command::new(program);
        command.arg(project.tree.path("split/lib/libvec.so")).args(["open", "close"]);
        let (printed, events) = project.run("old", GFX1100, &mut command);
        assert!(printed.status.success());
        assert_eq!(bundles(&events), [0, 0], "{events:#?}");
        // Without ROCM_KPACK_DEBUG.
        let said = String::from_utf8(printed.stderr).unwrap();
        assert!(said.contains("vec_lib_gfx1100.kpack"), "{said}");
    }
}

/// Loads and unloads the library a hundred times.
fn load_again_and_again(form: Form) {
    let project = Project::new(form);
    let program = project.program("kpack-hip/tests/c/again.c");
    let mut command = Command::new(program);
    command.arg(project.tree.path("split/lib/libvec.so"));
    let (printed, events) = project.run("old", GFX90A, &mut command);
    let said = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{form:?}: {said}");
    assert_eq!(entries(&events).len(), 3);
}

#[test]
fn preloaded_it_leaves_no_file_open() {
    load_again_and_again(Form::Preloaded);
}

#[test]
fn linked_it_leaves_no_file_open() {
    load_again_and_again(Form::Linked);
}

#[test]
fn as_a_shared_library_it_leaves_no_file_open() {
    load_again_and_again(Form::Shared);
}

#[test]
fn the_environment_turns_it_off() {
    let project = Project::new(Form::Preloaded);
    for (variable, value, count) in [
        ("KPACK_HIP", "off", 0),
        ("ROCM_KPACK_DISABLE", "1", 0),
        ("KPACK_HIP", "auto", 3),
        ("KPACK_HIP", "unknown", 3),
    ] {
        let program = project.program("tests/real/load.c");
        let mut command = Command::new(program);
        command
            .arg(project.tree.path("split/lib/libvec.so"))
            .args(["open", "close"])
            .env(variable, value);
        let (printed, events) = project.run("old", GFX90A, &mut command);
        assert!(printed.status.success() && printed.stderr.is_empty());
        assert_eq!(entries(&events).len(), count, "{variable}={value}");
    }
}

#[test]
fn a_runtime_that_reads_markers_is_left_alone() {
    let project = Project::new(Form::Preloaded);
    let loader = prefix().join("lib/librocm_kpack.so").canonicalize().unwrap();
    let new = project.tree.path("new");
    std::fs::create_dir(&new).unwrap();
    // Its SONAME is that of the installed loader.
    copy(loader, new.join("librocm_kpack.so.0"));
    project.build_runtime(
        "new",
        &[
            concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../kpack-runtime/include"),
            &format!("-L{}", new.display()),
            "-l:librocm_kpack.so.0",
        ],
    );
    let program = project.program("tests/real/load.c");
    let library = project.tree.path("split/lib/libvec.so");
    for (mode, kind) in [("auto", "split"), ("force", "fat")] {
        let mut command = Command::new(&program);
        command.arg(&library).args(["local", "close"]);
        command.env("KPACK_HIP", mode);
        let (printed, events) = project.run("new", GFX90A, &mut command);
        assert!(printed.status.success(), "{printed:?}");
        let events = events.iter().filter(|event| !event.starts_with("function"));
        let kinds: Vec<&str> = events.filter_map(|event| event.split('\t').next()).collect();
        assert_eq!(kinds, [kind, kind]);
    }
}

#[test]
fn threads_open_and_close_libraries_at_once() {
    for form in [Form::Preloaded, Form::Linked, Form::Shared] {
        let project = Project::new(form);
        let libraries = (0..4).map(|number| {
            let prefix = project.tree.path(&format!("copy{number}"));
            copy(project.tree.path("split"), &prefix);
            prefix.join("lib/libvec.so")
        });
        let program = project.program("kpack-hip/tests/c/threads.c");
        let mut command = Command::new(program);
        let (printed, events) = project.run("old", GFX90A, command.args(libraries));
        assert!(printed.status.success(), "{form:?}: {printed:?}");
        assert_eq!(entries(&events).len(), 3);
    }
}

#[test]
fn cmake_links_it() {
    if require::tool("cmake") {
        install_with_cmake("RUNTIME_SHIM");
    }
}

/// Tools for wheels copy a library that is found, rename it, and change the search path.
#[test]
fn cmake_links_it_as_a_shared_library_that_can_be_vendored() {
    if !require::tools(&["cmake", "patchelf"]) {
        return;
    }
    let project = install_with_cmake("RUNTIME_SHIM shared");
    let library = project.tree.path("installed/lib/libvec.so");
    let vendored = project.tree.path("installed/vec.libs/libkpack_hip-1a2b3c4d.so.0");
    std::fs::create_dir(vendored.parent().unwrap()).unwrap();
    copy(prefix().join("lib/libkpack_hip.so.0"), &vendored);
    let patchelf = |path: &Path, arguments: &[&str]| {
        run(Command::new("patchelf").args(arguments).arg(path));
    };
    let name = "libkpack_hip-1a2b3c4d.so.0";
    patchelf(&vendored, &["--set-soname", name]);
    patchelf(&library, &["--replace-needed", "libkpack_hip.so.0", name]);
    patchelf(&library, &["--set-rpath", "$ORIGIN/../vec.libs"]);
    assert_same_as_fat(&project);
}

/// What runtimes get from the installed library.
fn assert_same_as_fat(project: &Project) {
    let events = project.load("installed", GFX90A, &["deepbind", "close"]);
    assert_eq!(entries(&events), entries_of(&project.load("fat", GFX90A, &["open"]), "gfx90a"));
    assert!(events.iter().any(|event| event.starts_with("fat\tmemory\t")));
}

/// Installs the library with the CMake package.
fn install_with_cmake(shim: &str) -> Project {
    let project = Project::new(Form::None);
    let sources = project.tree.path("sources");
    project.library().write_sources(&sources).unwrap();
    let text = format!(
        "cmake_minimum_required(VERSION 3.22)
project(vec LANGUAGES C ASM)
find_package(Kpack REQUIRED)
add_library(kernels STATIC start.c device.s)
target_compile_options(kernels PRIVATE -fPIC $<$<COMPILE_LANGUAGE:ASM>:-Wa,-I{sources}>)
file(WRITE ${{CMAKE_BINARY_DIR}}/empty.c \"\")
add_library(vec SHARED ${{CMAKE_BINARY_DIR}}/empty.c)
kpack_install(TARGETS vec MODULE vec {shim} LIBRARY DESTINATION lib)
# After the shim: the linker must not have left it out.
target_link_libraries(vec -Wl,--whole-archive kernels -Wl,--no-whole-archive {runtime})
",
        sources = sources.display(),
        runtime = project.tree.path("old/libamdhip64.so").display(),
    );
    std::fs::write(sources.join("CMakeLists.txt"), text).unwrap();
    let build = project.tree.path("build");
    run(Command::new("cmake")
        .arg("-S")
        .arg(&sources)
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    let installed = project.tree.path("installed");
    run(Command::new("cmake").arg("--install").arg(&build).arg("--prefix").arg(&installed));
    assert_same_as_fat(&project);
    project
}

#[test]
fn a_linked_library_exports_nothing_of_it() {
    let linkers =
        [("bfd", "ld.bfd"), ("gold", "ld.gold"), ("lld", "ld.lld-19"), ("mold", "ld.mold")];
    let project = Project::new(Form::Linked);
    for (linker, _) in linkers.iter().filter(|(_, tool)| require::tool(tool)) {
        // gcc does not find Debian's lld, clang does.
        let compiler = if *linker == "lld" { "clang-19" } else { "cc" };
        let mut flags = project.flags();
        flags.push(format!("-fuse-ld={linker}"));
        project.link(linker, compiler, &flags);
        let library = project.tree.path(&format!("{linker}/lib/libvec.so"));
        let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
        let names = symbols.lines().filter_map(|line| line.split(' ').next_back());
        // gold exports these of every library.
        let own = |name: &&str| !["_edata", "__bss_start", "_end"].contains(name);
        assert_eq!(
            names.filter(own).collect::<Vec<_>>(),
            ["fixture_host", "fixture_report", "launch"],
            "{linker}"
        );
        let events = project.load(linker, GFX90A, &["local", "close"]);
        assert_eq!(entries(&events), entries(&project.load("fat", GFX90A, &["open"])));
    }
}

#[test]
fn the_shared_library_shows_what_takes_the_place_of_two_functions_and_nothing_else() {
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(preloaded()));
    let mut names: Vec<&str> =
        symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "__hipRegisterFatBinary",
            "__hipUnregisterFatBinary",
            "__wrap___hipRegisterFatBinary",
            "__wrap___hipUnregisterFatBinary"
        ]
    );
}
