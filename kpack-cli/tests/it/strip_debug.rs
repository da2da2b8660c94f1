//! Given device code with debug information, when it is split with `--strip-debug`, then archives have all
//! of it but that, and everything agrees.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use kpack_artifact::verify;
use kpack_build::object_file;
use kpack_core::archives::debug_sections::{Stripped, build_id};
use kpack_core::{DebugInfo, Finding, Severity, ids};
use kpack_format::archive::{Archive, Scheme};
use kpack_format::names::KernelName;
use kpack_split::install::{InstallOptions, Only, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, Wheel, compile};
use kpack_tests::process::run;
use kpack_tests::require::tools;
use kpack_tests::tree::{Tree, write};
use zip::ZipArchive;

use crate::blas;
use crate::command::kpack;
use crate::verified::{assert_holds, check_with, faults};
use crate::wheels::noise;

const FILE: &str = "lib/libvec.so";
const TARGETS: [&str; 2] = ["gfx1100", "gfx942"];
pub(crate) const TOOLS: [&str; 4] = ["clang-19", "ld.lld-19", "llvm-objcopy-19", "llvm-readelf-19"];
/// A kernel, and a table that is as large as a test asks for.
const KERNEL: &str = "
__attribute__((device)) char table[SIZE] = {1};
__attribute__((global)) void add(float *out, const float *in) {
    int i = __builtin_amdgcn_workitem_id_x();
    out[i] += in[i] + table[i];
}
";

/// How to compile.
#[derive(Clone, Copy)]
pub(crate) struct Code<'a> {
    /// Bytes that are loaded.
    pub(crate) table: usize,
    /// Bytes of an additional debug section.
    pub(crate) debug: usize,
    pub(crate) flags: &'a [&'a str],
}

pub(crate) const SMALL: Code<'_> =
    Code { table: 100, debug: 0, flags: &["-g", "-Xoffload-linker", "--build-id"] };

impl Code<'_> {
    pub(crate) fn compile(self, tree: &Tree, target: &str) -> Vec<u8> {
        let path = tree.path("add.co");
        fs::write(tree.path("add.hip"), KERNEL).unwrap();
        let mut command = Command::new("clang-19");
        command.current_dir(tree.root());
        command.args(["-x", "hip", "-nogpulib", "-nogpuinc", "-O1"]);
        command.args(["--cuda-device-only", "--no-gpu-bundle-output"]);
        command.arg(format!("--offload-arch={target}"));
        command.arg(format!("-DSIZE={}", self.table));
        compile(command.args(self.flags), &["add.hip"], "add.co");
        if self.debug > 0 {
            fs::write(tree.path("debug"), noise(self.debug)).unwrap();
            let mut command = Command::new("llvm-objcopy-19");
            command.arg(format!("--add-section=.debug_more={}", tree.path("debug").display()));
            run(command.arg(&path));
        }
        fs::read(path).unwrap()
    }
}

/// A prefix with a fat binary whose wrappers have these code objects, the same binary as `fat`, and the code
/// objects in `code`.
fn prefix(codes: &[(Storage, Code<'_>)]) -> Tree {
    let tree = Tree::new();
    let work = Tree::new();
    fs::create_dir(tree.path("code")).unwrap();
    let mut library = FatLibrary::new();
    for (index, (storage, code)) in codes.iter().enumerate() {
        let code = TARGETS.map(|target| (target, code.compile(&work, target)));
        for (target, bytes) in &code {
            fs::write(tree.path(&format!("code/{index}-{target}")), bytes).unwrap();
        }
        library = library.wrapper(*storage, code);
    }
    library.build(&tree.path("fat")).unwrap();
    tree.copy_file("fat", "prefix/lib/libvec.so");
    tree
}

fn options(tree: &Tree, debug: DebugInfo) -> InstallOptions {
    let mut options = InstallOptions::new(tree.path("prefix"), "vec", [FILE]);
    options.storage.debug = debug;
    options
}

fn split(tree: &Tree, debug: DebugInfo) -> Vec<Finding> {
    install(&options(tree, debug), &()).unwrap().findings
}

fn findings(all: &[Finding], id: kpack_core::Id) -> Vec<&Finding> {
    all.iter().filter(|finding| finding.id == id).collect()
}

fn archive(tree: &Tree, target: &str) -> PathBuf {
    tree.path(&format!("prefix/lib/.kpack/vec_lib_{target}.kpack"))
}

fn original(tree: &Tree, index: usize, target: &str) -> Vec<u8> {
    fs::read(tree.path(&format!("code/{index}-{target}"))).unwrap()
}

/// A code object in the archive.
fn stored(tree: &Tree, index: u32, target: &str) -> Vec<u8> {
    let file = fs::File::open(archive(tree, target)).unwrap();
    let mut archive = Archive::open(file).unwrap();
    let kernel = KernelName::new(FILE, index).to_string();
    archive.read(&kernel, target).unwrap()
}

fn without_debug(code: &[u8]) -> Vec<u8> {
    let mut source = std::io::Cursor::new(code);
    let plan = Stripped::plan(&mut source, code.len() as u64).unwrap();
    let mut out = Vec::new();
    let plan = plan.expect("it has debug sections");
    plan.write(&mut source, &mut out).unwrap();
    out
}

fn against(tree: &Tree, path: &str) -> verify::VerifyReport {
    check_with(tree, path, Some("fat"), &[])
}

/// The binary holds, and has the device code of the original but for debug information.
fn assert_stripped(tree: &Tree, count: usize) {
    assert_holds(&tree.path("prefix"));
    let report = against(tree, "prefix/lib/libvec.so");
    assert!(report.holds(), "{report:#?}");
    let notes = findings(&report.findings, ids::DEBUG_INFORMATION);
    let [note] = &notes[..] else {
        panic!("{report:#?}");
    };
    assert_eq!(note.severity, Severity::Note);
    let expected = format!("{count} code objects without the debug information");
    assert!(note.text.contains(&expected), "{}", note.text);
}

#[test]
fn archives_have_everything_but_debug_information() {
    if !tools(&TOOLS) {
        return;
    }
    let large = Code { table: 5 << 20, ..SMALL };
    let much_debug = Code { debug: 5 << 20, ..SMALL };
    let codes = [
        (Storage::Plain, SMALL),
        (Storage::Zstd(3), SMALL),
        (Storage::Plain, large),
        (Storage::Zstd(3), large),
        (Storage::Plain, much_debug),
        (Storage::Zstd(3), much_debug),
    ];
    let tree = prefix(&codes);
    let found = split(&tree, DebugInfo::Strip);
    let notes = findings(&found, ids::DEBUG_INFORMATION);
    assert!(notes[0].text.contains("removed"), "{notes:?}");
    for target in TARGETS {
        for index in 0..codes.len() {
            let expected = without_debug(&original(&tree, index, target));
            let is_equal = stored(&tree, index as u32, target) == expected;
            assert!(is_equal, "{index} {target}");
        }
    }
    assert_stripped(&tree, codes.len() * TARGETS.len());

    // A second run, one half after the other, and the binary from which the archives were joined.
    let before = tree.snapshot();
    split(&tree, DebugInfo::Strip);
    assert_eq!(tree.snapshot(), before);

    fs::remove_dir_all(tree.path("prefix")).unwrap();
    tree.copy_file("fat", "prefix/lib/libvec.so");
    for only in [Only::Device, Only::Host] {
        let mut options = options(&tree, DebugInfo::Strip);
        options.only = Some(only);
        install(&options, &()).unwrap();
    }
    assert_eq!(tree.snapshot(), before);

    let targets = TARGETS.map(|target| target.parse().unwrap());
    join(&JoinOptions::new(tree.path("prefix"), targets, [FILE]), &()).unwrap();
    let report = against(&tree, "prefix/lib/libvec.so");
    assert!(report.holds(), "{:#?}", faults(&report));
    split(&tree, DebugInfo::Keep);
    assert_eq!(tree.snapshot(), before);
}

/// The percentage in a text that has a note on debug information.
fn share(text: &str) -> f64 {
    let after = text.split_once("debug information is about ");
    let share = after.and_then(|(_, after)| after.split_once('%'));
    share.expect(text).0.parse().unwrap()
}

#[test]
fn much_debug_information_gets_a_note() {
    if !tools(&TOOLS) {
        return;
    }
    let tree = prefix(&[(Storage::Plain, SMALL)]);
    let found = split(&tree, DebugInfo::Keep);
    let [note] = findings(&found, ids::DEBUG_INFORMATION)[..] else {
        panic!("{found:?}");
    };
    let share = share(&note.text);
    assert!(!note.text.contains("--strip-debug"), "{note:?}");
    assert!(note.help.as_ref().unwrap().contains("split with --strip-debug"), "{note:?}");
    let shown = kpack(&tree, &["show", archive(&tree, TARGETS[0]).to_str().unwrap()]);
    let shown = String::from_utf8(shown.stderr).unwrap();
    assert!(shown.contains("; to remove it, split with --strip-debug (put"), "{shown}");
    assert!(shown.contains("[debug-information]"), "{shown}");
    // The archives of all targets are alike.
    let noted = || String::from_utf8(kpack(&tree, &["report", "prefix"]).stderr).unwrap();
    assert_eq!(noted().matches("[debug-information]").count(), 1);
    // It is the original, as before.
    let report = against(&tree, "prefix/lib/libvec.so");
    assert!(report.holds(), "{report:#?}");
    assert!(findings(&report.findings, ids::DEBUG_INFORMATION).is_empty());
    let size = |tree: &Tree| fs::metadata(archive(tree, TARGETS[0])).unwrap().len() as f64;
    let before = size(&tree);
    tree.copy_file("fat", "prefix/lib/libvec.so");
    split(&tree, DebugInfo::Strip);
    let shown = kpack(&tree, &["show", archive(&tree, TARGETS[0]).to_str().unwrap()]);
    assert_eq!(String::from_utf8(shown.stderr).unwrap(), "");
    assert_eq!(noted(), "");
    let expected = 100. * (1. - size(&tree) / before);
    assert!((share - expected).abs() < 20., "{share} {expected}");

    let large = Code { table: 1 << 20, ..SMALL };
    let tree = prefix(&[(Storage::Plain, large)]);
    let mut uncompressed = options(&tree, DebugInfo::Keep);
    uncompressed.storage.scheme = Scheme::None;
    let found = install(&uncompressed, &()).unwrap().findings;
    assert!(findings(&found, ids::DEBUG_INFORMATION).is_empty());
}

#[test]
fn all_commands_estimate_the_same_share_of_debug_information() {
    if !tools(&TOOLS) {
        return;
    }
    let large = Code { debug: 5 << 20, ..SMALL };
    let without = Code { flags: &[], ..SMALL };
    let tree = prefix(&[(Storage::Plain, large), (Storage::Plain, without)]);
    let found = split(&tree, DebugInfo::Keep);
    let installed = share(&findings(&found, ids::DEBUG_INFORMATION)[0].text);
    let path = archive(&tree, TARGETS[0]);
    for arguments in [["show", path.to_str().unwrap()], ["report", "prefix"]] {
        let printed = String::from_utf8(kpack(&tree, &arguments).stderr).unwrap();
        let share = share(&printed);
        assert!((share - installed).abs() < 5., "{printed} {installed}");
    }
}

#[test]
fn other_differences_are_still_found() {
    if !tools(&TOOLS) {
        return;
    }
    let tree = prefix(&[(Storage::Plain, SMALL)]);
    split(&tree, DebugInfo::Strip);
    let other = Code { table: 101, ..SMALL };
    let fat = prefix(&[(Storage::Plain, other)]);
    fs::copy(fat.path("fat"), tree.path("fat")).unwrap();
    let report = against(&tree, "prefix/lib/libvec.so");
    let differs = findings(&report.findings, ids::CODE_DIFFERS);
    assert_eq!(differs.len(), TARGETS.len(), "{report:#?}");
}

/// A path below a directory of debug files, as debuggers look for it.
fn debug_file(directory: &Path, code: &[u8]) -> PathBuf {
    let id = build_id(&mut std::io::Cursor::new(code), code.len() as u64);
    let id = id.unwrap().expect("it has a build ID");
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at(2);
    directory.join(format!(".build-id/{first}/{rest}.debug"))
}

#[test]
fn debug_files_are_where_debuggers_look_for_them() {
    if !tools(&TOOLS) || !tools(&["llvm-symbolizer-19"]) {
        return;
    }
    let tree = prefix(&[(Storage::Plain, SMALL), (Storage::Zstd(3), SMALL)]);
    let directory = tree.path("debug");
    let found = split(&tree, DebugInfo::StripTo(directory.clone()));
    assert!(findings(&found, ids::NO_BUILD_ID).is_empty(), "{found:?}");
    assert_stripped(&tree, 4);
    for target in TARGETS {
        let stripped = stored(&tree, 0, target);
        let path = debug_file(&directory, &stripped);
        assert!(fs::read(&path).unwrap() == original(&tree, 0, target));

        let object = tree.path("stored.co");
        fs::write(&object, stripped).unwrap();
        let mut symbols = Command::new("llvm-readelf-19");
        let symbols = run(symbols.args(["-sW"]).arg(&object));
        let line = symbols.lines().find(|line| line.ends_with(" _Z3addPfPKf")).unwrap();
        let address = line.split_whitespace().nth(1).unwrap();
        let line_of = |directory: &Path| {
            let mut command = Command::new("llvm-symbolizer-19");
            command.arg(format!("--debug-file-directory={}", directory.display()));
            command.arg("--obj").arg(&object);
            run(command.arg(format!("0x{address}")))
        };
        let line = line_of(&directory);
        assert!(line.contains("add.hip:"), "{line}");
        assert!(!line_of(tree.root()).contains("add.hip"));
    }

    // The half for host binaries leaves debug files to the other one.
    fs::remove_dir_all(tree.path("prefix")).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    tree.copy_file("fat", "prefix/lib/libvec.so");
    let mut host = options(&tree, DebugInfo::StripTo(directory.clone()));
    host.only = Some(Only::Host);
    install(&host, &()).unwrap();
    assert!(!directory.exists());
}

/// The code objects in all archives below a directory.
fn archived(directory: &Path) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    for entry in walkdir::WalkDir::new(directory) {
        let path = entry.unwrap().into_path();
        if path.extension().is_none_or(|extension| extension != "kpack") {
            continue;
        }
        let mut archive = Archive::open(fs::File::open(path).unwrap()).unwrap();
        for (kernel, targets) in archive.toc().clone().kernels {
            for target in targets.keys() {
                found.insert(archive.read(&kernel, target).unwrap());
            }
        }
    }
    found
}

#[test]
fn every_command_that_splits_strips() {
    if !tools(&TOOLS) {
        return;
    }
    let codes = [(Storage::Plain, SMALL), (Storage::Zstd(3), SMALL)];
    let tree = prefix(&codes);
    let originals = || {
        let pairs = TARGETS.into_iter().flat_map(|t| [(0, t), (1, t)]);
        pairs.map(|(index, target)| original(&tree, index, target))
    };
    let expected: BTreeSet<Vec<u8>> = originals().map(|code| without_debug(&code)).collect();
    let assert_stripped = |directory: &str| {
        let is_equal = archived(&tree.path(directory)) == expected;
        assert!(is_equal, "{directory}");
    };

    tree.write("artifact/artifact_manifest.txt", "vec/stage\n");
    tree.copy_file("fat", "artifact/vec/stage/lib/libvec.so");
    let (input, output) = (tree.path("artifact"), tree.path("artifacts"));
    let mut options = kpack_artifact::split::Options::new(&input, &output, "vec_lib");
    options.storage.debug = DebugInfo::Strip;
    let report = kpack_artifact::split::split(&options, &()).unwrap();
    assert_eq!(findings(&report.findings, ids::DEBUG_INFORMATION).len(), 1);
    assert_stripped("artifacts");
    let report = check_with(&tree, "artifacts", Some("artifact"), &[]);
    assert!(report.holds(), "{report:#?}");

    let name = "vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
    let wheel = Wheel::new(name).member_with_mode(
        "vec/_vec.so",
        0o755,
        fs::read(tree.path("fat")).unwrap(),
    );
    fs::write(tree.path(name), wheel.bytes().unwrap()).unwrap();
    let mut options = kpack_wheel::Options::new([tree.path(name)], tree.path("wheels"));
    options.storage.debug = DebugInfo::Strip;
    kpack_wheel::split(&options, &()).unwrap();
    for entry in fs::read_dir(tree.path("wheels")).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        let mut zip = ZipArchive::new(file).unwrap();
        zip.extract(tree.path("unpacked")).unwrap();
    }
    assert_stripped("unpacked");

    // Before the link; and afterwards what was split before with all of it.
    let library = FatLibrary::new().kind(Kind::Object);
    let library = codes.iter().enumerate().fold(library, |library, (index, (storage, _))| {
        let code = TARGETS.map(|target| (target, original(&tree, index, target)));
        library.wrapper(*storage, code)
    });
    library.build(&tree.path("vec.o")).unwrap();
    for (debug, directory) in [(DebugInfo::Strip, "stripped"), (DebugInfo::Keep, "objects")] {
        let output = tree.path(directory);
        let mut options = object_file::Options::new("vec", &output, [tree.path("vec.o")]);
        let pattern = output.join(".kpack/vec_lib_@GFXARCH@.kpack");
        options.search_paths = vec![pattern.to_str().unwrap().to_owned()];
        options.storage.debug = debug;
        object_file::split(&options, &()).unwrap();
    }
    assert_stripped("stripped");
    assert!(archived(&tree.path("objects")) == originals().collect());
    fs::remove_dir_all(tree.path("prefix")).unwrap();
    fs::create_dir_all(tree.path("prefix/lib")).unwrap();
    let mut link = Command::new("cc");
    link.args(["-shared", "-o"]).arg(tree.path("prefix").join(FILE));
    run(link.arg(tree.path("objects/vec.o")));
    let found = split(&tree, DebugInfo::StripTo(tree.path("debug")));
    assert_eq!(findings(&found, ids::DEBUG_INFORMATION).len(), 1, "{found:?}");
    assert_stripped("prefix");
    assert_holds(&tree.path("prefix"));
    for code in originals() {
        let path = debug_file(&tree.path("debug"), &code);
        assert!(fs::read(path).unwrap() == code);
    }
}

/// Without a build ID, as clang links by default.
const NAMELESS: Code<'_> = Code { flags: &["-g"], ..SMALL };

#[test]
fn debug_information_that_no_debugger_would_find_stays() {
    if !tools(&TOOLS) {
        return;
    }
    let tree = prefix(&[(Storage::Plain, SMALL), (Storage::Plain, NAMELESS)]);
    let found = split(&tree, DebugInfo::StripTo(tree.path("debug")));
    let [warning] = findings(&found, ids::NO_BUILD_ID)[..] else {
        panic!("{found:?}");
    };
    assert_eq!(warning.severity, Severity::Warning);
    assert!(warning.text.contains("2 of 4 code objects"), "{warning:?}");
    let assert_kept = |tree: &Tree| {
        for target in TARGETS {
            let expected = without_debug(&original(tree, 0, target));
            assert!(stored(tree, 0, target) == expected, "{target}");
            assert!(stored(tree, 1, target) == original(tree, 1, target));
        }
        assert_stripped(tree, 2);
    };
    assert_kept(&tree);

    // One half after the other.
    fs::remove_dir_all(tree.path("prefix")).unwrap();
    tree.copy_file("fat", "prefix/lib/libvec.so");
    for only in [Only::Device, Only::Host] {
        let mut options = options(&tree, DebugInfo::StripTo(tree.path("debug")));
        options.only = Some(only);
        install(&options, &()).unwrap();
    }
    assert_kept(&tree);
}

#[test]
fn a_run_that_fails_leaves_no_debug_files() {
    if !tools(&TOOLS) {
        return;
    }
    let tree = prefix(&[(Storage::Plain, SMALL)]);
    let damaged = archive(&tree, TARGETS[0]);
    write(&damaged, "no archive");
    let before = tree.snapshot();
    let debug = DebugInfo::StripTo(tree.path("above/debug"));
    let error = install(&options(&tree, debug.clone()), &()).unwrap_err();
    assert_eq!(error.id(), ids::DAMAGED_ARCHIVE, "{error}");
    assert_eq!(tree.snapshot(), before);
    assert!(!tree.path("above").exists());

    // A file name that is taken is noticed while debug files get their names.
    fs::remove_file(&damaged).unwrap();
    let path = debug_file(&tree.path("above/debug"), &original(&tree, 0, TARGETS[0]));
    fs::create_dir_all(&path).unwrap();
    let before = tree.snapshot();
    let error = install(&options(&tree, debug.clone()), &()).unwrap_err();
    assert_eq!(error.id(), ids::OUTPUT_IN_THE_WAY, "{error}");
    assert_eq!(tree.snapshot(), before);
    let mut others = fs::read_dir(tree.path("above/debug/.build-id")).unwrap();
    assert_eq!(others.by_ref().count(), 1);

    // What a killed run left goes with the next one.
    fs::remove_dir(&path).unwrap();
    let leftover = tree.path("above/debug/.build-id/.kpack.0123456789abcdef.tmp");
    fs::create_dir(&leftover).unwrap();
    fs::write(leftover.join("0"), "half").unwrap();
    split(&tree, debug);
    let names = fs::read_dir(tree.path("above/debug")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".build-id"]);
    assert!(fs::read(&path).unwrap() == original(&tree, 0, TARGETS[0]));
}

#[test]
fn splits_at_once_share_a_debug_file() {
    if !tools(&TOOLS) {
        return;
    }
    let first = prefix(&[(Storage::Plain, SMALL)]);
    let trees = [(); 4].map(|()| {
        let tree = Tree::new();
        run(Command::new("cp").arg("-a").arg(first.path(".")).arg(tree.path(".")));
        tree
    });
    let shared = Tree::new();
    let directory = shared.path("debug");
    thread::scope(|scope| {
        for tree in &trees {
            let debug = DebugInfo::StripTo(directory.clone());
            scope.spawn(move || install(&options(tree, debug), &()).unwrap());
        }
    });
    for target in TARGETS {
        let file = debug_file(&directory, &original(&trees[0], 0, target));
        assert!(fs::read(file).unwrap() == original(&trees[0], 0, target));
    }
    assert_eq!(shared.files().len(), TARGETS.len());
}

#[test]
fn no_debug_file_takes_the_place_of_another() {
    if !tools(&TOOLS) {
        return;
    }
    let shared = Code { flags: &["-g", "-Xoffload-linker", "--build-id=0x1234"], ..SMALL };
    let tree = prefix(&[(Storage::Plain, shared)]);
    let before = tree.snapshot();
    let debug = DebugInfo::StripTo(tree.path("debug"));
    let error = install(&options(&tree, debug.clone()), &()).unwrap_err();
    assert_eq!(error.id(), ids::SHARED_BUILD_ID, "{error}");
    assert_eq!(tree.snapshot(), before);

    let tree = prefix(&[(Storage::Plain, SMALL)]);
    let debug = DebugInfo::StripTo(tree.path("debug"));
    let path = debug_file(&tree.path("debug"), &original(&tree, 0, TARGETS[1]));
    write(&path, "of another program");
    let before = tree.snapshot();
    let error = install(&options(&tree, debug), &()).unwrap_err();
    assert_eq!(error.id(), ids::SHARED_BUILD_ID, "{error}");
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn what_cannot_be_stripped_stays() {
    if !tools(&TOOLS) {
        return;
    }
    let relocated = Code { flags: &["-g", "-Xoffload-linker", "--emit-relocs"], ..SMALL };
    for to in [None, Some("debug")] {
        let tree = prefix(&[(Storage::Plain, relocated), (Storage::Plain, SMALL)]);
        let debug = to.map_or(DebugInfo::Strip, |to| DebugInfo::StripTo(tree.path(to)));
        let found = split(&tree, debug);
        let [warning] = findings(&found, ids::DEBUG_NOT_REMOVABLE)[..] else {
            panic!("{found:?}");
        };
        assert_eq!(warning.severity, Severity::Warning);
        assert!(warning.text.contains("2 code objects"), "{warning:?}");
        for target in TARGETS {
            assert!(stored(&tree, 0, target) == original(&tree, 0, target));
            let expected = without_debug(&original(&tree, 1, target));
            assert!(stored(&tree, 1, target) == expected, "{target}");
        }
        assert_stripped(&tree, 2);
    }
}

/// A run may be killed when all debug files have their names, and its hidden directory is still there.
#[test]
fn leftovers_go_also_if_no_debug_file_is_written() {
    if !tools(&TOOLS) {
        return;
    }
    let tree = prefix(&[(Storage::Plain, SMALL)]);
    let directory = tree.path("debug");
    split(&tree, DebugInfo::StripTo(directory.clone()));
    let leftover = directory.join(".build-id/.kpack.0123456789abcdef.tmp");
    fs::create_dir(&leftover).unwrap();
    tree.copy_file("fat", "prefix/lib/libvec.so");
    split(&tree, DebugInfo::StripTo(directory));
    assert!(!leftover.exists());
}

#[test]
fn files_of_kernel_databases_stay_as_they_are() {
    let (input, output) = (blas::artifact(), Tree::new());
    for (debug, expected) in [(DebugInfo::Keep, 0), (DebugInfo::Strip, 1)] {
        let mut options = blas::options(&input, &output);
        options.storage.debug = debug;
        let report = blas::run(&options);
        let notes = findings(&report.findings, ids::DEBUG_INFORMATION);
        let notes = notes.iter().filter(|note| note.text.contains("kernel databases"));
        assert_eq!(notes.count(), expected);
    }
}
