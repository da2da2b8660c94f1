//! Given files with device code, when a command reads them, then it parses each binary and archive once, and opens
//! files as often as the documents say. The system calls show how often.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::blas;
use crate::command::{succeeds, words};
use crate::planned::CONFIGURATION;
use crate::shards::three_shards;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, Wheel, code};
use kpack_tests::page::repository;
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::tree::Tree;

/// How often a file was opened and parsed.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Reads {
    opened: usize,
    /// Only binaries and archives: how often the header was read to find the rest.
    parsed: usize,
}

/// What a command that reads a tree does with each file in it, by path; `None` if strace cannot trace here.
fn reads(tree: &Tree, line: &str) -> Option<BTreeMap<String, Reads>> {
    let root = tree.root().canonicalize().unwrap();
    let traces = Tree::new();
    let output = Command::new("strace")
        // A trace of each thread, with the paths of descriptors.
        .args(["-ff", "-y", "-s", "8"])
        .args(["-e", "trace=open,openat,read,pread64,copy_file_range,sendfile", "-o"])
        .arg(traces.path("trace"))
        .arg(env!("CARGO_BIN_EXE_kpack"))
        .args(words(line))
        .current_dir(&root)
        .output()
        .unwrap();
    let mut found: BTreeMap<String, Reads> = BTreeMap::new();
    for trace in traces.files() {
        let trace = fs::read(traces.path(&trace)).unwrap();
        for call in String::from_utf8_lossy(&trace).lines() {
            let is_open = call.starts_with("open");
            // As in `openat(AT_FDCWD</tree>, "in", O_RDONLY) = 3</tree/in>` and `pread64(3</tree/in>, …`.
            // That of the input is the second one.
            let call = match call.strip_prefix("sendfile(") {
                Some(arguments) => arguments.split_once('>').map_or("", |(_, input)| input),
                None => call,
            };
            let descriptor = if is_open { call.rsplit_once(" = ") } else { call.split_once('(') };
            let file = descriptor.and_then(|(_, text)| text.split_once('<')?.1.split_once('>'));
            let file = file.and_then(|(path, _)| Path::new(path).strip_prefix(&root).ok());
            let Some(file) = file.and_then(Path::to_str) else {
                continue;
            };
            // The first bytes show what a file is: 24 for its kind, 16 for the headers of a binary.
            let is_header = call.contains("\"\\177ELF") && call.ends_with(", 16, 0) = 16")
                || call.contains("\"KPAK") && call.contains(", 8192, 0) = ");
            let reads = found.entry(file.to_owned()).or_default();
            reads.opened += usize::from(is_open);
            reads.parsed += usize::from(is_header);
        }
    }
    if found.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        require::skip(&format!("strace cannot trace here: {why}"));
        return None;
    }
    assert!(output.status.success(), "{output:?}");
    Some(found)
}

/// The kind of a file, for the table in the documents.
fn kind(file: &str) -> Option<&'static str> {
    let name = file.rsplit('/').next().unwrap_or(file);
    let has_end = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    // Files being written, under hidden names.
    if name.starts_with(['.', '#']) {
        None
    } else if has_end(&[".kpack"]) {
        Some("archives")
    } else if has_end(&[".co", ".dat"]) {
        Some("database files")
    } else if name.contains(".so") || file.contains("/bin/") {
        Some("binaries")
    } else {
        None
    }
}

/// Checks that the documents' row of a command says how often it opens and parses files.
fn assert_documented(name: &str, tree: &Tree, line: &str) {
    let before = tree.files();
    let Some(reads) = reads(tree, line) else {
        return;
    };
    let mut most: BTreeMap<&str, Reads> = BTreeMap::new();
    for (file, reads) in &reads {
        let Some(kind) = kind(file) else { continue };
        // The binaries of a wheel are unpacked into a hidden directory.
        let is_unpacked = file.contains("/site/") && kind == "binaries";
        if !is_unpacked && !before.contains(file) {
            continue;
        }
        let most = most.entry(kind).or_default();
        most.opened = most.opened.max(reads.opened);
        most.parsed = most.parsed.max(reads.parsed);
    }
    assert_eq!(most["binaries"].parsed, 1, "{name}");
    assert!(most.values().all(|reads| reads.parsed <= 1), "{name}");
    let mut row = format!("| {name} |");
    for kind in ["binaries", "archives", "database files"] {
        let cell = match (most.get(kind), kind) {
            (None, _) => String::new(),
            (Some(reads), "database files") => format!(" {}", reads.opened),
            (Some(Reads { opened, parsed, .. }), _) => format!(" {opened}, {parsed}"),
        };
        write!(row, "{cell} |").unwrap();
    }
    let page = repository().join("docs/dev/architecture.md");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.lines().any(|line| line == row), "expected the row\n{row}");
}

/// A prefix with two libraries, a program, and a program without device code.
fn prefix() -> Tree {
    let tree = Tree::new();
    let code = |name| ["gfx1100", "gfx942"].map(|target| code(target, name));
    for name in ["libadd.so", "libmul.so"] {
        FatLibrary::new()
            .wrapper(Storage::Plain, code(name))
            .wrapper(Storage::Zstd(2), code("more"))
            .build(&tree.path("prefix/lib").join(name))
            .unwrap();
    }
    let program = FatLibrary::new().kind(Kind::Pie);
    program.build(&tree.path("prefix/bin/host")).unwrap();
    let program = program.wrapper(Storage::Plain, code("program"));
    program.build(&tree.path("prefix/bin/bench")).unwrap();
    tree
}

/// The tree in which the command has run.
fn after(tree: Tree, line: &str) -> Tree {
    succeeds(&tree, &words(line));
    tree
}

const INSTALL: &str = "split --prefix prefix --module vec --all";
const SPLIT: &str = "artifact split --artifact-dir in --artifact-prefix blas_lib --output-dir out";

/// A split prefix, and the unsplit one.
fn installed() -> Tree {
    let tree = prefix();
    process::copy(tree.path("prefix"), tree.path("fat"));
    after(tree, INSTALL)
}

fn artifact() -> Tree {
    let tree = Tree::new();
    process::copy(blas::artifact().root(), tree.path("in"));
    tree
}

#[test]
fn install_prefixes() {
    if !require::tool("strace") {
        return;
    }
    assert_documented("`split`", &prefix(), INSTALL);
    let join = "join --prefix prefix --arch gfx1100";
    assert_documented("`join`", &installed(), join);
    // Several threads may open an archive at the same time.
    let verify = "verify prefix --jobs 1";
    assert_documented("`verify` of a prefix", &installed(), verify);
    let verify = "verify prefix --against fat --jobs 1";
    let name = "`verify --against` of a prefix";
    assert_documented(name, &installed(), verify);
}

/// Given archives that are not installed, then the manifest that lists them is opened as often for ten of them as for two, and
/// their directory is looked up at most once more for each.
#[test]
fn many_missing_archives_of_one_directory() {
    if !require::tool("strace") {
        return;
    }
    const MISSING: [&str; 10] = [
        "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1101", "gfx1102",
        "gfx1200", "gfx1201",
    ];
    let counts = [2, 10].map(|missing| {
        let missing = &MISSING[..missing];
        let codes = missing.iter().chain(&["gfx1100"]).map(|target| code(target, "add"));
        let tree = FatLibrary::new().wrapper(Storage::Plain, codes).in_prefix("lib/libvec.so");
        succeeds(&tree, &words(INSTALL));
        for target in missing {
            let name = format!("prefix/lib/.kpack/vec_lib_{target}.kpack");
            fs::remove_file(tree.path(&name)).unwrap();
        }
        let line = "verify prefix --jobs 1";
        let manifest = "prefix/lib/.kpack/vec_lib.kpm";
        let opened = reads(&tree, line).map(|reads| reads[manifest].opened);
        let directory = tree.root().canonicalize().unwrap().join("prefix/lib/.kpack");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-e", "trace=readlink,readlinkat,lstat,newfstatat"]);
        strace.arg(env!("CARGO_BIN_EXE_kpack")).args(words(line)).current_dir(tree.root());
        let calls = String::from_utf8(strace.output().unwrap().stderr).unwrap();
        let directory = format!("\"{}\"", directory.display());
        (opened, calls.lines().filter(|call| call.contains(&directory)).count())
    });
    let [(opened_for_two, calls_for_two), (opened, calls)] = counts;
    assert_eq!(opened, opened_for_two);
    assert!(calls <= calls_for_two + 8, "{calls_for_two} {calls}");
}

#[test]
fn artifact_directories() {
    if !require::tool("strace") {
        return;
    }
    assert_documented("`artifact split`", &artifact(), SPLIT);
    let split = || after(artifact(), SPLIT);
    let verify = "verify out --jobs 1";
    assert_documented("`verify` of artifacts", &split(), verify);
    let verify = "verify out --against in --jobs 1";
    let name = "`verify --against` of artifacts";
    assert_documented(name, &split(), verify);
    let shards = three_shards();
    fs::write(shards.path("packaging.json"), CONFIGURATION).unwrap();
    let recombine = "artifact recombine --input-shards-dir shards --config packaging.json --output-dir out --jobs 1";
    assert_documented("`artifact recombine`", &shards, recombine);
}

#[test]
fn wheels() {
    if !require::tool("strace") {
        return;
    }
    const WHEEL: &str = "vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
    let (tree, prefix) = (Tree::new(), prefix());
    let bytes = |path: &str| fs::read(prefix.path(path)).unwrap();
    Wheel::new(WHEEL)
        .member_with_mode("vec/_add.so", 0o755, bytes("prefix/lib/libadd.so"))
        .member_with_mode("vec/_mul.so", 0o755, bytes("prefix/lib/libmul.so"))
        .member_with_mode("vec/_host.so", 0o755, bytes("prefix/bin/host"))
        .write(tree.root())
        .unwrap();
    let line = format!("wheel split --output-dir out {WHEEL}");
    assert_documented("`wheel split`", &tree, &line);
}

/// lld puts the symbols right after the program headers, so they make room for another one.
#[test]
fn a_table_that_moves_is_compared_in_blocks() {
    if !require::tool("ld.lld-19") || !require::tool("strace") {
        return;
    }
    let tree = Tree::new();
    let mut text = ".text\n".to_owned();
    for index in 0..5000 {
        let _ = writeln!(text, ".globl f{index}\nf{index}: ret");
    }
    fs::write(tree.path("many.s"), text).unwrap();
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "add")])
        .compiler("clang-19")
        .flag("-fuse-ld=lld")
        .flag("-Wl,--build-id=none")
        .flag(tree.path("many.s"))
        .build(&tree.path("lib/libvec.so"))
        .unwrap();
    let line = "split --quiet --prefix . --module vec lib/libvec.so";
    let output = Command::new("strace")
        .args(["-f", "-e", "trace=pread64"])
        .arg(env!("CARGO_BIN_EXE_kpack"))
        .args(words(line))
        .current_dir(tree.root())
        .output()
        .unwrap();
    let calls = String::from_utf8_lossy(&output.stderr);
    let calls = calls.lines().filter(|line| line.contains("pread64(")).count();
    assert!(output.status.success() && calls < 500, "{calls}");
}
