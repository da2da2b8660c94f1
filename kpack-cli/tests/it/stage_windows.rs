//! Given programs and DLLs for Windows, when they are staged, then the release and the report are as for others, also
//! where one module has several binaries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_cli::stage::Options;
use kpack_core::{DebugInfo, ids};
use kpack_split::report::Report;
use kpack_tests::fixture::{FatLibrary, Storage, WindowsBuild, WindowsLinker, code, code_object};
use kpack_tests::process::run;
use kpack_tests::tree::{Tree, entries_below};
use kpack_tests::{require, sha256, windows};

use crate::cargo_build::{artifact_of, messages, nothing_hidden, refused_with, stage};
use crate::command::{succeeds, words};
use crate::spirv::{CLANG_19, spirv};
use crate::stage_application::database;
use crate::stage_split::{archives_of_host, faults, unpacked};
use crate::strip_debug::{Code, SMALL, TOOLS};
use crate::verified::{assert_holds, check_with, faults as faults_in};
use crate::windows::exe;
use crate::windows_rust::runtime;

/// Builds binaries, and returns Cargo's messages about them.
fn built(tree: &Tree, binaries: &[(&str, FatLibrary)]) -> String {
    let artifacts = binaries.iter().map(|(name, library)| {
        let build = WindowsBuild {
            linker: WindowsLinker::Gnu,
            is_program: name.ends_with(".exe"),
            flags: &["-s"],
        };
        let path = tree.path(&format!("target/release/{name}"));
        library.build_for_windows(build, &path).unwrap();
        artifact_of(tree, &path, if build.is_program { "bin" } else { "cdylib" })
    });
    messages(&Vec::from_iter(artifacts))
}

/// A binary with this content in its device code.
fn library(content: &str) -> FatLibrary {
    let targets = [code("gfx1100", content), code("gfx942", content)];
    FatLibrary::new().wrapper(Storage::Plain, targets)
}

/// A binary whose device code has debug information.
fn with_debug_information(tree: &Tree, table: usize) -> FatLibrary {
    compiled(tree, Code { table, ..SMALL })
}

fn compiled(tree: &Tree, code: Code<'_>) -> FatLibrary {
    let targets = ["gfx1100", "gfx942"];
    let targets = targets.map(|target| (target, code.compile(tree, target)));
    FatLibrary::new().wrapper(Storage::Plain, targets)
}

fn staged(tree: &Tree, options: &Options, messages: &str) -> Report {
    let report = stage(options, messages.as_bytes());
    let report = report.unwrap_or_else(|error| panic!("{}", error.in_one_line()));
    assert_holds(&tree.path("dist"));
    report
}

/// The archives of a release, by name.
fn archives(tree: &Tree) -> Vec<String> {
    let files = tree.files().into_iter();
    let archives = files.filter(|file| file.starts_with("dist/lib/.kpack/"));
    Vec::from_iter(archives.filter(|file| file.ends_with(".kpack")))
}

#[test]
fn a_rejected_release_leaves_no_debug_files() {
    if !require::tool(kpack_tests::windows::COMPILER) || !require::tools(&TOOLS) {
        return;
    }
    let tree = Tree::new();
    let place = tree.path("app/src/add.hip").display().to_string();
    let library = with_debug_information(&tree, 100)
        .wrapper(Storage::Plain, [code("gfx1100", &place), code("gfx942", &place)]);
    let text = built(&tree, &[("app.exe", library)]);
    let mut options = Options::new(tree.path("dist"));
    options.debug = DebugInfo::StripTo(tree.path("debug"));
    let said = refused_with(&tree, &options, &text);
    assert!(said.ends_with("[build-path]"), "{said}");
    let left = tree.files().into_iter();
    let left = Vec::from_iter(left.filter(|file| file.starts_with("debug")));
    assert_eq!(left, [""; 0]);

    options.allow_build_paths = true;
    staged(&tree, &options, &text);
    let files = tree.files().into_iter();
    let debug_files = files.filter(|file| file.starts_with("debug/.build-id/"));
    assert_eq!(debug_files.count(), 2);
}

#[test]
fn binaries_of_one_module_are_reported_once() {
    if !require::tool(kpack_tests::windows::COMPILER) || !require::tools(&TOOLS) {
        return;
    }
    let tree = Tree::new();
    let binaries = [
        ("app.exe", with_debug_information(&tree, 100)),
        ("app.dll", with_debug_information(&tree, 200)),
        ("other.exe", with_debug_information(&tree, 300)),
    ];
    let text = built(&tree, &binaries);
    for debug in [DebugInfo::Keep, DebugInfo::Strip] {
        let mut options = Options::new(tree.path("dist"));
        options.debug = debug;
        let report = staged(&tree, &options, &text);
        let names = report.files.iter().map(|file| file.path.as_str());
        let names = Vec::from_iter(names);
        assert_eq!(names, ["bin/app.exe", "bin/app.dll", "bin/other.exe"]);
        let listed = report.archives.iter();
        let listed = Vec::from_iter(listed.map(|archive| archive.path.clone()));
        let expected = archives(&tree).into_iter().map(|path| tree.path(&path));
        assert_eq!(listed, Vec::from_iter(expected));
        for archive in &report.archives {
            let is_shared = archive.path.to_str().unwrap().contains("app_lib_");
            assert_eq!(archive.code_object_count, if is_shared { 2 } else { 1 });
            assert_eq!(archive.size, archive.path.metadata().unwrap().len());
        }
        // One for each module.
        let notes = report.findings.iter();
        let notes = notes.filter(|finding| finding.id == ids::DEBUG_INFORMATION);
        let notes = notes.inspect(|note| {
            let advice = (options.debug == DebugInfo::Keep)
                .then_some("to remove it, stage with --strip-debug");
            assert_eq!(note.help.as_deref(), advice, "{note:?}");
        });
        let paths: Vec<PathBuf> = notes.filter_map(|finding| finding.path.clone()).collect();
        assert_eq!(paths, vec![tree.path("dist/lib/.kpack"); 2]);
    }
}

#[test]
fn what_is_rejected_while_it_is_split_has_its_path_in_the_release() {
    if !require::tool(kpack_tests::windows::COMPILER) || !require::tools(&TOOLS) {
        return;
    }
    let tree = Tree::new();
    let binaries = [("app.exe", 100), ("other.exe", 200)].map(|(name, table)| {
        let flags = &["-g", "-Xoffload-linker", "--build-id=0x0123"];
        let code = Code { table, flags, ..SMALL };
        (name, compiled(&tree, code))
    });
    let text = built(&tree, &binaries);
    let mut options = Options::new(tree.path("dist"));
    options.debug = DebugInfo::StripTo(tree.path("debug"));
    let said = refused_with(&tree, &options, &text);
    assert!(said.starts_with("[root]/dist/bin/app.exe: "), "{said}");
    assert!(said.ends_with("[shared-build-id]"), "{said}");
}

#[test]
fn any_file_name_makes_a_module() {
    if !require::tool(kpack_tests::windows::COMPILER) {
        return;
    }
    let tree = Tree::new();
    let names = ["ünï.exe", "My App.exe", ".hidden.dll", "a+b-c.1.exe"];
    let binaries = names.map(|name| (name, library(name)));
    let text = built(&tree, &binaries);
    staged(&tree, &Options::new(tree.path("dist")), &text);
    let modules = archives(&tree).into_iter();
    let modules = modules.map(|path| path.rsplit_once("_lib_").unwrap().0.to_owned());
    let modules = BTreeSet::from_iter(modules);
    let expected = ["_hidden", "_n_", "a+b-c.1", "my_app"];
    let expected = expected.map(|name| format!("dist/lib/.kpack/{name}"));
    assert_eq!(modules, BTreeSet::from(expected));
}

#[test]
fn spirv_stays_unless_it_is_dropped_or_archived() {
    if !require::tool(kpack_tests::windows::COMPILER) {
        return;
    }
    let tree = Tree::new();
    let targets = [code("gfx1100", "add"), spirv(CLANG_19, "add")];
    let library = FatLibrary::new().wrapper(Storage::Plain, targets);
    let text = built(&tree, &[("app.exe", library)]);
    fs::write(tree.path("build.json"), &text).unwrap();

    let report = staged(&tree, &Options::new(tree.path("dist")), &text);
    let found = report.findings.iter();
    let found = Vec::from_iter(found.map(|finding| finding.id));
    assert_eq!(found, [ids::SPIRV_KEPT, ids::NO_DEVICE_CODE]);
    let [kept, none] = &report.findings[..] else {
        panic!("{report:#?}");
    };
    assert!(kept.text.contains("--spirv drop"), "{kept:?}");
    let expected = "the release has no archives: `kpack stage` moves no device code of bin/app.exe";
    assert_eq!(none.text, expected);

    for (how, expected) in [("drop", &["gfx1100"][..]), ("archive", &["amdgcnspirv", "gfx1100"])] {
        let line = format!("stage --output-dir dist --messages build.json --spirv {how}");
        succeeds(&tree, &words(&line));
        assert_holds(&tree.path("dist"));
        let expected = expected.iter();
        let expected = expected.map(|target| format!("dist/lib/.kpack/app_lib_{target}.kpack"));
        assert_eq!(archives(&tree), Vec::from_iter(expected), "{how}");
    }
}

/// The binaries of an application, each with what its host code does after it has registered its device code.
const APPLICATION: [(&str, &str); 3] = [
    ("rocblas.dll", "__declspec(dllexport) int rocblas(void) { {register} return 0; }"),
    (
        "vec.dll",
        "__declspec(dllimport) int rocblas(void);\n\
         __declspec(dllexport) int vec(void) { {register} return rocblas(); }",
    ),
    (
        "app.exe",
        "__declspec(dllimport) int vec(void);\nvoid entry(void);\nvoid start(void) { {register} vec(); entry(); }",
    ),
];

/// The parts of the application, and a GPU for each.
const PARTS: [(&str, &str); 2] = [("gfx1100", "gfx1100"), ("gfx90a", "gfx90a:sramecc+:xnack+")];

/// The code objects of a binary of the application, by target.
fn codes_of(binary: usize) -> [(&'static str, Vec<u8>); 2] {
    let code = |target: &'static str, byte| (target, code_object(target, &[byte; 50_000]).unwrap());
    let byte = 2 * binary as u8;
    [code("gfx1100", byte), code("gfx90a:xnack+", byte + 1)]
}

/// A program for Windows in `rocm/lib`, with DLLs, their kernel database and a HIP runtime beside it.
fn application() -> Tree {
    let tree = Tree::new();
    let at = |name: &str| tree.path("rocm/lib").join(name);
    fs::create_dir_all(at("")).unwrap();
    let runtime = runtime(&tree);
    for name in ["rocm_kpack.dll", "amdhip64_10.dll"] {
        fs::copy(runtime.join(name), at(name)).unwrap();
    }
    for (index, (name, source)) in APPLICATION.into_iter().enumerate() {
        let register = "__hipRegisterFatBinary(wrapper0);";
        let source = source.replace("{register}", register);
        tree.write(
            "more.c",
            format!("void **__hipRegisterFatBinary(const void *);\nextern const char wrapper0[];\n{source}\n"),
        );
        let mut flags = vec!["-s".to_owned(), tree.path("more.c").display().to_string()];
        let is_program = name.ends_with(".exe");
        flags.extend(is_program.then(|| "-Wl,-e,start".to_owned()));
        let needed = APPLICATION[..index].iter().map(|(name, _)| *name).rev().take(1);
        let needed = needed.chain(["amdhip64_10.dll"]).map(|name| at(name).display().to_string());
        flags.extend(needed);
        let flags = Vec::from_iter(flags.iter().map(String::as_str));
        let build = WindowsBuild { linker: WindowsLinker::Gnu, is_program, flags: &flags };
        let library = FatLibrary::new().wrapper(Storage::Plain, codes_of(index));
        library.build_for_windows(build, &at(name)).unwrap();
    }
    PARTS.iter().for_each(|(part, _)| database(&tree, part));
    tree
}

/// The code that a program loads on a GPU.
fn loads(program: &Path, gpu: &str) -> Vec<String> {
    let printed = run(windows::wine(program).env("STUB_HIP_AGENT", gpu));
    let lines = printed.lines().map(str::trim).filter(|line| line.starts_with("loaded "));
    Vec::from_iter(lines.map(str::to_owned))
}

/// Given a program with DLLs and a kernel database, when it is staged in parts, then those for a GPU have the code of the original,
/// and are what a split of the application makes, and `kpack.exe` writes the same.
#[test]
fn parts_of_a_program() {
    if !windows::available() {
        return;
    }
    let tree = application();
    let line = "stage rocm/lib/app.exe --output-dir";
    succeeds(&tree, &words(&format!("{line} dist --split")));
    nothing_hidden(&tree);
    assert_eq!(archives_of_host(&tree), [""; 0]);
    for (index, (part, gpu)) in PARTS.into_iter().enumerate() {
        let installed = unpacked(&tree, &["host", part]);
        assert_eq!(faults(&tree, &installed, "bin/app.exe", gpu), "");
        let report = check_with(&tree, "installed", None, &[gpu]);
        assert_eq!(faults_in(&report), [""; 0], "{gpu}");
        let mut expected = Vec::new();
        for (binary, (name, _)) in APPLICATION.into_iter().enumerate() {
            let original = format!("rocm/lib/{name}");
            let report =
                check_with(&tree, &format!("installed/bin/{name}"), Some(&original), &[gpu]);
            assert_eq!(faults_in(&report), [""; 0], "{name} {gpu}");
            let (_, code) = &codes_of(binary)[index];
            expected.insert(0, format!("loaded {} {}", code.len(), sha256(code)));
        }
        assert_eq!(loads(&installed.join("bin/app.exe"), gpu), expected, "{gpu}");
    }

    succeeds(&tree, &words(&format!("{line} whole")));
    for (name, _) in APPLICATION {
        let module = name.split('.').next().unwrap();
        succeeds(&tree, &words(&format!("split --prefix whole --module {module} bin/{name}")));
    }
    let mut whole = entries_below(&tree.path("whole"));
    whole.retain(|path, _| path != Path::new(".kpack-stage"));
    assert_eq!(entries_below(&unpacked(&tree, &["host", "gfx1100", "gfx90a"])), whole);

    let output = exe(&tree, &words(&format!("{line} other --split"))).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
    let bytes = |directory: &str| {
        let entries = entries_below(&tree.path(directory)).into_iter();
        BTreeMap::from_iter(entries.map(|(path, (_, bytes))| (path, bytes)))
    };
    assert_eq!(bytes("other"), bytes("dist"));
}
