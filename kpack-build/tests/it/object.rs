//! Given objects with device code, when they are split and linked, then every linker makes a host binary that
//! finds its device code, and a rejected object gets an error with the reason.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::verified::{assert_holds, assert_holds_against};
use kpack_build::object_file::{Options, split};
use kpack_build::report::{Outcome, Report};
use kpack_build::{Error, ids};
use kpack_core::Finding;
use kpack_format::archive::{Archive, Scheme};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, bundle, code, code_object, three_wrappers};
use kpack_tests::linker;
use kpack_tests::process::run;
use kpack_tests::require;
use kpack_tests::tree::Tree;
use object::read::elf::{ElfFile64, ElfSection64};
use object::{Object as _, ObjectSection as _};

/// Builds the fixture as a file of a tree.
fn build(tree: &Tree, kind: Kind, file: &str) {
    three_wrappers().kind(kind).build(&tree.path(file)).unwrap();
}

/// Splits files of a tree into a directory of it.
fn split_into(tree: &Tree, directory: &str, files: &[&str]) -> Report {
    try_split(tree, directory, files).unwrap_or_else(|error| panic!("{}", error.in_one_line()))
}

fn try_split(tree: &Tree, directory: &str, files: &[&str]) -> Result<Report, Error> {
    let files = files.iter().map(|file| tree.path(file));
    split(&Options::new("vec", tree.path(directory), files), &())
}

/// `main.o`, which calls the fixture's report.
fn build_main(tree: &Tree) -> PathBuf {
    let source = tree.path("main.c");
    let text = "void fixture_report(void);\nint main(void) { fixture_report(); return 0; }\n";
    fs::write(&source, text).unwrap();
    let object = tree.path("main.o");
    run(Command::new("cc").args(["-c", "-o"]).arg(&object).arg(&source));
    object
}

fn link(linker: &str, objects: &[PathBuf], output: &Path) {
    run(linker::driver(linker).arg("-o").arg(output).args(objects));
}

#[test]
fn every_linker_makes_a_host_binary_of_split_objects() {
    let tree = Tree::new();
    build(&tree, Kind::Object, "vec.o");
    let main = build_main(&tree);
    let report = split_into(&tree, "host", &["vec.o"]);
    assert_eq!(report.archives.len(), 3);
    for linker in linker::installed() {
        let fat = tree.path(&format!("{linker}-fat"));
        link(linker, &[main.clone(), tree.path("vec.o")], &fat);
        let host = tree.path(&format!("host/{linker}"));
        link(linker, &[main.clone(), tree.path("host/vec.o")], &host);
        assert_eq!(run(&mut Command::new(&host)), "HIPK 0\nHIPK 1\nHIPK 2\nhost 27\n");
        assert_holds_against(&host, &fat);
        run(Command::new("strip").arg(&host));
        assert_holds_against(&host, &fat);
    }
}

#[test]
fn the_code_objects_are_those_of_the_linked_binary() {
    let tree = Tree::new();
    build(&tree, Kind::Object, "vec.o");
    three_wrappers().build(&tree.path("stage/lib/libvec.so")).unwrap();
    split_into(&tree, "host", &["vec.o"]);
    let options =
        kpack_split::install::InstallOptions::new(tree.path("stage"), "vec", ["lib/libvec.so"]);
    kpack_split::install::install(&options, &()).unwrap();
    let before = kernels(&tree.path("host/.kpack"));
    let after = kernels(&tree.path("stage/lib/.kpack"));
    assert_eq!(before.len(), 5);
    let codes = |all: BTreeMap<(String, String), Vec<u8>>| {
        let by_index = all.into_iter().map(|((kernel, target), code)| {
            (kernel.rsplit_once('#').unwrap().1.to_owned(), target, code)
        });
        by_index.collect::<Vec<_>>()
    };
    assert_eq!(codes(before), codes(after));
}

/// Every code object of the archives in a directory, by kernel and target.
fn kernels(directory: &Path) -> BTreeMap<(String, String), Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "kpack") {
            continue;
        }
        let mut archive = Archive::open(File::open(&path).unwrap()).unwrap();
        for (kernel, targets) in archive.toc().kernels.clone() {
            for target in targets.keys() {
                let code = archive.read(&kernel, target).unwrap();
                found.insert((kernel.clone(), target.clone()), code);
            }
        }
    }
    found
}

/// A section: its name, its header without name and offset, and its bytes.
#[derive(Debug, PartialEq)]
struct Section {
    name: String,
    kind: u32,
    flags: u64,
    link: u32,
    info: u32,
    align: u64,
    entsize: u64,
    bytes: Vec<u8>,
}

fn sections(bytes: &[u8]) -> Vec<Section> {
    let endian = object::LittleEndian;
    let file = ElfFile64::<object::LittleEndian>::parse(bytes).unwrap();
    let section = |section: ElfSection64<'_, '_, object::LittleEndian>| {
        let header = section.elf_section_header();
        let align = header.sh_addralign.get(endian);
        let offset = header.sh_offset.get(endian);
        let data = section.data().unwrap().to_owned();
        assert!(data.is_empty() || offset % align.max(1) == 0, "{section:?}");
        Section {
            name: section.name().unwrap().to_owned(),
            kind: header.sh_type.get(endian).0,
            flags: header.sh_flags.get(endian).0,
            link: header.sh_link.get(endian),
            info: header.sh_info.get(endian),
            align,
            entsize: header.sh_entsize.get(endian),
            bytes: data,
        }
    };
    file.sections().map(section).collect()
}

/// The differences between two sections, by offset.
fn changed(old: &Section, new: &Section) -> Vec<usize> {
    assert_eq!(old.bytes.len(), new.bytes.len(), "{}", old.name);
    let pairs = old.bytes.iter().zip(&new.bytes).enumerate();
    pairs.filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect()
}

/// Everything but device code, wrapper, its relocations and the section names is as it was.
fn assert_same_but_device_code(before: &[u8], after: &[u8]) {
    // The header before and after the offset of the section headers.
    assert_eq!(before[..40], after[..40]);
    assert_eq!(before[48..64], after[48..64]);
    let (before, after) = (sections(before), sections(after));
    assert_eq!(before.len(), after.len());
    for (old, new) in before.iter().zip(&after) {
        let headers = [old, new].map(|s| (s.kind, s.flags, s.link, s.info, s.entsize));
        assert_eq!(headers[0], headers[1], "{}", old.name);
        match old.name.as_str() {
            ".hip_fatbin" => {
                assert_eq!((new.name.as_str(), new.align), (".rocm_kpack_ref", 8));
                continue;
            }
            // GNU tools put section names into their own table, LLVM into that of the symbols.
            ".shstrtab" | ".strtab" => {
                assert!(new.bytes.starts_with(&old.bytes), "{}", old.name);
                assert!(new.bytes.len() <= old.bytes.len() + 16, "{}", old.name);
            }
            // Magic, pointer and index of a wrapper; there may be padding between wrappers.
            ".hipFatBinSegment" => {
                let words = new.bytes.chunks(8).enumerate();
                let wrappers = words.filter(|(_, word)| word.starts_with(b"HIPK"));
                let wrappers: Vec<usize> = wrappers.map(|(word, _)| word * 8).collect();
                for at in changed(old, new) {
                    let inside = wrappers.iter().any(|wrapper| {
                        let at = at.wrapping_sub(*wrapper);
                        matches!(at, 0..4 | 8..24)
                    });
                    assert!(inside, "offset {at:#x} of the wrappers");
                }
            }
            // The addend is the last of three words.
            ".rela.hipFatBinSegment" => {
                let all = changed(old, new);
                assert!(all.iter().all(|at| at % 24 >= 16), "{all:?}");
            }
            _ => assert_eq!(old, new),
        }
        assert_eq!((&old.name, old.align), (&new.name, new.align));
    }
}

#[test]
fn everything_else_stays_byte_for_byte() {
    let compilers = [
        ("cc", "cc"),
        ("clang-19", "clang-19"),
        ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-gcc"),
        ("powerpc64le-linux-gnu-gcc", "powerpc64le-linux-gnu-gcc"),
    ];
    for (compiler, tool) in compilers {
        if !require::tool(tool) {
            continue;
        }
        for flag in ["-O1", "-g", "-ffunction-sections"] {
            let tree = Tree::new();
            let library = three_wrappers().kind(Kind::Object).red_zones();
            let library = library.compiler(compiler).flag(flag);
            library.build(&tree.path("vec.o")).unwrap();
            assert_split_keeps_the_rest(&tree, "vec.o");
        }
    }
}

fn assert_split_keeps_the_rest(tree: &Tree, file: &str) {
    let report = split_into(tree, "host", &[file]);
    let outcome = &report.files[0].outcome;
    assert!(matches!(outcome, Outcome::Split { .. }), "{outcome:?}");
    let before = fs::read(tree.path(file)).unwrap();
    let after = fs::read(tree.path(&format!("host/{file}"))).unwrap();
    assert_same_but_device_code(&before, &after);
}

/// Objects that clang compiles from HIP, with COMDAT groups, debug information, instrumentation and many
/// sections; and two of these, linked into one object.
#[test]
fn everything_else_of_a_compiled_object_stays_byte_for_byte() {
    if !(require::tool("clang++-19") && require::tool("ld.lld-19")) {
        return;
    }
    let tree = Tree::new();
    let source = |name: &str| {
        let text = format!(
            "#include <hip/hip_runtime.h>\n\
             template <class T> T twice(T x) {{ return x + x; }}\n\
             inline int &shared_by_all() {{ static int x; return x; }}\n\
             __global__ void {name}(float *a) {{ a[0] += 1; }}\n\
             void run_{name}(float *a) {{ shared_by_all() = twice(3); {name}<<<1, 1>>>(a); }}\n"
        );
        fs::write(tree.path(&format!("{name}.hip")), text).unwrap();
    };
    source("add");
    source("mul");
    let compile = |name: &str, object: &str, flags: &str| {
        let mut clang = Command::new("clang++-19");
        clang.current_dir(tree.root());
        clang.args(["-x", "hip", "-nogpuinc", "-nogpulib", "-fPIC"]);
        clang.args(["--offload-arch=gfx1100", "-c", "-o", object, "-I"]);
        clang.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip"));
        run(clang.arg(format!("{name}.hip")).args(flags.split_whitespace()));
    };
    for flags in [
        "",
        "-g",
        "-g -gsplit-dwarf",
        "-fsanitize=address -fno-gpu-sanitize",
        "-ffunction-sections -fdata-sections -O2",
        "--offload-compress",
    ] {
        compile("add", "vec.o", flags);
        assert_split_keeps_the_rest(&tree, "vec.o");
    }
    compile("add", "add.o", "-g");
    compile("mul", "mul.o", "-g");
    for linker in ["ld.bfd", "ld.lld-19", "ld.mold"] {
        if require::tool(linker) {
            let mut linker = Command::new(linker);
            linker.current_dir(tree.root());
            run(linker.args(["-r", "-o", "vec.o", "add.o", "mul.o"]));
            assert_split_keeps_the_rest(&tree, "vec.o");
        }
    }
}

/// More sections than fit into 16 bits, for which the gABI has escapes.
#[test]
fn objects_have_as_many_sections_as_they_like() {
    let tree = Tree::new();
    build(&tree, Kind::Object, "few.o");
    let mut text = String::new();
    for section in 0..66_000 {
        text.push_str(&format!(".section s{section},\"a\"\n.byte 1\n"));
    }
    fs::write(tree.path("many.s"), text).unwrap();
    run(Command::new("cc").current_dir(tree.root()).args(["-c", "many.s"]));
    run(Command::new("ld").current_dir(tree.root()).args(["-r", "-o", "vec.o", "few.o", "many.o"]));
    assert_split_keeps_the_rest(&tree, "vec.o");
}

/// Splits an object for another machine, links it and runs the program under `qemu`.
fn assert_runs_after_the_link(machine: &str, compiler: &str, qemu: &str) {
    if !require::tools(&[compiler, qemu]) {
        return;
    }
    let tree = three_wrappers().kind(Kind::Object).compiler(compiler).in_tree("vec.o");
    split_into(&tree, "host", &["vec.o"]);
    build_main(&tree);
    let program = tree.path("host/program");
    let mut command = Command::new(compiler);
    command.arg("-o").arg(&program).arg(tree.path("main.c")).arg(tree.path("host/vec.o"));
    run(&mut command);
    let mut qemu = Command::new(qemu);
    qemu.args(["-L", &format!("/usr/{machine}-linux-gnu")]).arg(&program);
    assert_eq!(run(&mut qemu), "HIPK 0\nHIPK 1\nHIPK 2\nhost 27\n");
    assert_holds(&program);
}

#[test]
fn aarch64_objects_run_after_the_link() {
    assert_runs_after_the_link("aarch64", "aarch64-linux-gnu-gcc", "qemu-aarch64");
}

#[test]
fn ppc64le_objects_run_after_the_link() {
    assert_runs_after_the_link("powerpc64le", "powerpc64le-linux-gnu-gcc", "qemu-ppc64le");
}

#[test]
fn a_static_library_becomes_one() {
    let tree = Tree::new();
    build(&tree, Kind::Object, "a_member_with_a_long_name.o");
    let main = build_main(&tree);
    fs::write(tree.path("odd.txt"), "odd").unwrap();
    let library = tree.path("libvec.a");
    let mut ar = Command::new("ar");
    ar.current_dir(tree.root()).arg("rcsD").arg(&library);
    run(ar.args(["odd.txt", "main.o", "a_member_with_a_long_name.o"]));
    let report = split_into(&tree, "host", &["libvec.a"]);
    assert_eq!(report.archives.len(), 3);

    let host = tree.path("host/libvec.a");
    let list = |archive: &Path| run(Command::new("ar").arg("tO").arg(archive));
    let names = |text: String| {
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(list(&host)), names(list(&library)));
    for member in ["odd.txt", "main.o"] {
        let take = |archive: &Path| {
            Command::new("ar").arg("p").arg(archive).arg(member).output().unwrap().stdout
        };
        assert_eq!(take(&host), take(&library));
    }
    // Every linker finds the members through the symbol table.
    for linker in linker::installed() {
        let program = tree.path(&format!("host/{linker}"));
        link(linker, &[main.clone(), host.clone()], &program);
        assert_eq!(run(&mut Command::new(&program)), "HIPK 0\nHIPK 1\nHIPK 2\nhost 27\n");
        assert_holds(&program);
    }
    let kernels = kernels(&tree.path("host/.kpack"));
    assert!(
        kernels.keys().all(|(name, _)| name.starts_with("libvec.a/a_member_with_a_long_name.o@"))
    );
}

/// `ar rcsP` keeps the paths of members.
#[test]
fn a_member_may_be_named_by_its_absolute_path() {
    let tree = Tree::new();
    let object = tree.path("vec.o");
    three_wrappers().kind(Kind::Object).build(&object).unwrap();
    let mut ar = Command::new("ar");
    run(ar.arg("rcsDP").arg(tree.path("libvec.a")).arg(&object));
    let report = split_into(&tree, "host", &["libvec.a"]);
    assert_eq!(report.archives.len(), 3);
    let list = run(Command::new("ar").arg("tP").arg(tree.path("host/libvec.a")));
    assert_eq!(Path::new(list.trim()), object);
}

#[test]
fn a_kernel_name_tells_the_device_code() {
    let tree = Tree::new();
    let build = |path: &str, name: &str| {
        let library = FatLibrary::new().kind(Kind::Object);
        let library = library.wrapper(Storage::Plain, [code("gfx1100", name)]);
        library.build(&tree.path(path)).unwrap();
    };
    build("a/vec.o", "add");
    build("b/vec.o", "add");
    build("c/vec.o", "subtract");
    for directory in ["a", "b", "c"] {
        let file = format!("{directory}/vec.o");
        split_into(&tree, &format!("host/{directory}"), &[&file]);
    }
    let names = |directory: &str| {
        let kernels = kernels(&tree.path(&format!("host/{directory}/.kpack")));
        kernels.into_keys().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names("a"), names("b"));
    assert_ne!(names("a"), names("c"));
}

#[test]
fn splitting_again_replaces_what_the_file_had() {
    let tree = Tree::new();
    build(&tree, Kind::Object, "vec.o");
    let other = FatLibrary::new().kind(Kind::Object);
    other
        .clone()
        .wrapper(Storage::Plain, [code("gfx942", "other")])
        .build(&tree.path("other.o"))
        .unwrap();
    split_into(&tree, "host", &["vec.o", "other.o"]);
    let first = tree.snapshot();
    split_into(&tree, "host", &["vec.o", "other.o"]);
    assert_eq!(tree.snapshot(), first);

    other.wrapper(Storage::Plain, [code("gfx1101", "vec")]).build(&tree.path("vec.o")).unwrap();
    let report = split_into(&tree, "host", &["vec.o"]);
    assert_eq!(report.removed.len(), 2);
    let targets: Vec<String> =
        kernels(&tree.path("host/.kpack")).into_keys().map(|(_, target)| target).collect();
    assert_eq!(targets.len(), 2);
    assert!(targets.contains(&"gfx1101".to_owned()) && targets.contains(&"gfx942".to_owned()));

    // Split files and their kernels stay unchanged.
    let before = tree.snapshot();
    split_into(&tree, "host", &["host/vec.o", "host/other.o"]);
    assert_eq!(tree.snapshot(), before);
}

/// Otherwise make would run it again each time.
#[test]
fn a_host_only_object_is_newer_than_its_input() {
    let tree = Tree::new();
    let object = three_wrappers().kind(Kind::Object);
    object.build(&tree.path("vec.o")).unwrap();
    split_into(&tree, "host", &["vec.o"]);
    // Given an object that was compiled again and is the same,
    let host = File::options().write(true).open(tree.path("host/vec.o"));
    host.unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    // when it is split again, then the output has the same bytes and the time of this run.
    let before = tree.snapshot();
    split_into(&tree, "host", &["vec.o"]);
    assert_eq!(tree.snapshot(), before);
    let modified = |path: &str| fs::metadata(tree.path(path)).unwrap().modified().unwrap();
    assert!(modified("host/vec.o") >= modified("vec.o"));
}

/// Over 2 GiB of device code: a linker cannot place host code on both sides of it within reach of
/// 32-bit relocations.
///
/// The object is sparse: a small one is assembled, and its `.hip_fatbin` is moved to the end of the file,
/// which then has a bundle's table, the headers of its eight code objects, and holes.
#[test]
fn device_code_that_no_linker_can_place_links_after_the_split() {
    const CODE_SIZE: u64 = 288 << 20;
    let targets =
        ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101"];
    let tree = Tree::new();
    let library = FatLibrary::new().kind(Kind::Object);
    let small = library.wrapper(Storage::Plain, targets.map(|target| code(target, "huge")));
    let path = tree.path("vec.o");
    small.build(&path).unwrap();
    grow(&path, &targets, CODE_SIZE);
    let main = build_main(&tree);

    let mut plain = if require::tool("ld.lld-19") && require::tool("clang-19") {
        Command::new("clang-19")
    } else {
        Command::new("cc")
    };
    if plain.get_program() == "clang-19" {
        plain.arg("-fuse-ld=lld");
    }
    plain.arg("-o").arg(tree.path("plain")).arg(&main).arg(&path);
    let output = plain.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(message.contains("out of range") || message.contains("truncated to fit"), "{message}");

    let report = split_into(&tree, "host", &["vec.o"]);
    assert_eq!(report.archives.len(), targets.len());
    let program = tree.path("host/program");
    link("bfd", &[main, tree.path("host/vec.o")], &program);
    assert_eq!(run(&mut Command::new(&program)), "HIPK 0\nhost 27\n");
    assert!(program.metadata().unwrap().len() < 1 << 20);
}

/// Gives the object at `path` a bundle of code objects of `size` bytes each, without writing them.
fn grow(path: &Path, targets: &[&str], size: u64) {
    let bytes = fs::read(path).unwrap();
    let file = ElfFile64::<object::LittleEndian>::parse(&*bytes).unwrap();
    let index = file.section_by_name(".hip_fatbin").unwrap().index().0;
    let table_at = file.elf_header().e_shoff.get(object::LittleEndian);
    // The table of a bundle of empty code objects has the offset and size of each entry, 8 bytes each,
    // before its ID.
    let empty: Vec<(String, Vec<u8>)> =
        targets.iter().map(|target| ((*target).to_owned(), Vec::new())).collect();
    let mut table = bundle(Storage::Plain, &empty).unwrap();
    let start = (bytes.len() as u64).next_multiple_of(4096);
    let output = File::options().write(true).open(path).unwrap();
    let mut place = 4096u64;
    let mut at = 32;
    for entry in 0..=targets.len() {
        let id_size = u64::from_le_bytes(table[at + 16..at + 24].try_into().unwrap());
        if let Some(target) = entry.checked_sub(1).map(|entry| targets[entry]) {
            table[at..at + 8].copy_from_slice(&place.to_le_bytes());
            table[at + 8..at + 16].copy_from_slice(&size.to_le_bytes());
            let head = code_object(target, b"huge").unwrap();
            output.write_all_at(&head, start + place).unwrap();
            place += size;
        }
        at += 24 + id_size as usize;
    }
    table.truncate(at);
    output.write_all_at(&table, start).unwrap();
    output.set_len(start + place).unwrap();
    // sh_offset and sh_size.
    let header = table_at + 64 * index as u64;
    output.write_all_at(&start.to_le_bytes(), header + 24).unwrap();
    output.write_all_at(&place.to_le_bytes(), header + 32).unwrap();
}

/// The message for each file, without the tree's root.
fn refusal(tree: &Tree, file: &str) -> String {
    let before = tree.snapshot();
    let error = try_split(tree, "host", &[file]).unwrap_err();
    assert_eq!(tree.snapshot(), before, "a refused file changes nothing");
    let root = format!("{}/", tree.root().display());
    error.in_one_line().replace(&root, "")
}

#[test]
fn what_cannot_be_split_before_the_link_says_why() {
    let tree = Tree::new();
    let assemble = |file: &str, text: &str| {
        let source = tree.path("text.s");
        fs::write(&source, text).unwrap();
        run(Command::new("cc").arg("-c").arg("-o").arg(tree.path(file)).arg(&source));
    };
    let wrapper = |pointer: &str| {
        format!(
            ".section .hipFatBinSegment,\"aw\",@progbits\n.p2align 3\n.long 0x48495046, 1\n.quad {pointer}, 0\n"
        )
    };
    assemble(
        "rdc.o",
        ".section \"__CLANG_OFFLOAD_BUNDLE__hip-amdgcn-amd-amdhsa--gfx1100\",\"e\",@progbits\n.long 1\n",
    );
    assemble("rdc_host.o", &wrapper("__hip_fatbin_0123456789abcdef"));
    assemble("new_driver.o", ".section .llvm.offloading,\"e\",@0x6fff4c0b\n.long 1\n");
    assemble(
        "other_pointer.o",
        &format!(
            ".section .hip_fatbin,\"a\",@progbits\n.Lb: .zero 64\n.data\n.quad .Lb\n{}",
            wrapper(".Lb")
        ),
    );
    assemble(
        "no_bundle.o",
        &format!(
            ".section .hip_fatbin,\"a\",@progbits\n.Lb: .ascii \"no bundle\"\n{}",
            wrapper(".Lb")
        ),
    );
    assemble("no_relocation.o", &format!("{}.globl x\nx:\n", wrapper("0x1000")));
    let bitcode = b"BC\xc0\xde and so on, with __hip_fatbin_wrapper in it";
    fs::write(tree.path("lto.o"), bitcode).unwrap();
    fs::write(tree.path("bundle"), "__CLANG_OFFLOAD_BUNDLE__ and so on").unwrap();
    build(&tree, Kind::Object, "vec.o");
    let archive = |file: &str, member: &str| {
        let mut ar = Command::new("ar");
        ar.current_dir(tree.root()).args(["qcS", file, member]);
        run(&mut ar);
    };
    archive("lto.a", "lto.o");
    archive("rdc.a", "bundle");
    archive("inner.a", "vec.o");
    archive("outer.a", "inner.a");
    // An e_machine that kpack does not know.
    let mut other = fs::read(tree.path("vec.o")).unwrap();
    other[18] = 243;
    fs::write(tree.path("riscv.o"), other).unwrap();
    fs::write(tree.path("text.o"), "a text").unwrap();
    fs::write(tree.path("windows.o"), [0x64, 0x86, 2, 0, 0, 0]).unwrap();
    let linker_member = |count: &[u8; 4]| {
        let header = format!("{:<48}{:<10}`\n", "/", 4);
        [header.as_bytes(), count].concat()
    };
    let [first, second] = [linker_member(&[0; 4]), linker_member(&[1, 0, 0, 0])];
    fs::write(tree.path("windows.lib"), [b"!<arch>\n".as_slice(), &first, &second].concat())
        .unwrap();
    fs::write(tree.path("thin.a"), "!<thin>\n").unwrap();
    fs::write(tree.path("short.a"), "!<arch>\nshort").unwrap();
    three_wrappers().build(&tree.path("libvec.so")).unwrap();
    let files = [
        "rdc.o",
        "rdc_host.o",
        "new_driver.o",
        "other_pointer.o",
        "no_bundle.o",
        "no_relocation.o",
        "lto.o",
        "lto.a",
        "rdc.a",
        "outer.a",
        "riscv.o",
        "text.o",
        "windows.o",
        "windows.lib",
        "thin.a",
        "short.a",
        "libvec.so",
    ];
    let text: Vec<String> = files.iter().map(|file| refusal(&tree, file)).collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn truncated_objects_are_refused() {
    let tree = Tree::new();
    build(&tree, Kind::Object, "vec.o");
    let bytes = fs::read(tree.path("vec.o")).unwrap();
    for length in (0..bytes.len()).step_by(97) {
        fs::write(tree.path("cut.o"), &bytes[..length]).unwrap();
        let _ = fs::remove_dir_all(tree.path("host"));
        assert!(try_split(&tree, "host", &["cut.o"]).is_err(), "{length} of {} bytes", bytes.len());
    }
}

/// Damage in the headers, symbols and relocations, which are before and after the bundles.
#[test]
fn damage_is_refused_or_harmless() {
    let tree = Tree::new();
    let object = tree.path("vec.o");
    three_wrappers().kind(Kind::Object).build(&object).unwrap();
    let mut ar = Command::new("ar");
    ar.current_dir(tree.root());
    run(ar.args(["qc", "libvec.a", "vec.o"]));
    run(Command::new("ld").args(["-r", "-o"]).arg(tree.path("merged.o")).arg(&object));
    let mut random = fastrand::Rng::with_seed(7);
    for (name, rounds) in [("vec.o", 400), ("libvec.a", 150), ("merged.o", 150)] {
        let bytes = fs::read(tree.path(name)).unwrap();
        for round in 0..rounds {
            let mut damaged = bytes.clone();
            for _ in 0..=random.usize(..3) {
                let place = match random.usize(..4) {
                    0 => random.usize(..400),
                    _ => bytes.len() - 8 - random.usize(..6000),
                };
                let value = match random.usize(..4) {
                    0 => 1 << random.usize(..64),
                    1 => u64::MAX >> random.usize(..64),
                    2 => random.usize(..1 << 16) as u64,
                    _ => (random.usize(..256) as u64) << (8 * random.usize(..8)),
                };
                let width = [1, 2, 4, 8][random.usize(..4)];
                // Aligned, like the fields of records.
                let at = place / width * width;
                damaged[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            }
            let file = format!("damaged-{name}");
            fs::write(tree.path(&file), &damaged).unwrap();
            let what = format!("{name}, round {round}");
            match try_split(&tree, "host", &[&file]) {
                Ok(_) => {
                    let size = fs::metadata(tree.path("host").join(&file)).unwrap().len();
                    assert!(size <= 2 * bytes.len() as u64 + 4096, "{what}: {size} bytes");
                    fs::remove_dir_all(tree.path("host")).unwrap();
                }
                Err(error) => {
                    let refused = matches!(error, Error::Refused { .. });
                    assert!(refused, "{what}: {}", error.in_one_line());
                    assert!(!tree.path("host").exists(), "{what}");
                }
            }
        }
    }
}

/// The alignment of a section after the device code, which must move.
#[test]
fn nonsense_for_an_alignment_is_not_believed() {
    let tree = Tree::new();
    build(&tree, Kind::Object, "vec.o");
    let bytes = fs::read(tree.path("vec.o")).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (table, count) = (word(40), usize::from(bytes[60]));
    split_into(&tree, "host", &["vec.o"]);
    let size = fs::metadata(tree.path("host/vec.o")).unwrap().len();
    for align in [1 << 20, 1 << 40, 1 << 63] {
        let mut damaged = bytes.clone();
        for section in 1..count {
            let at = table + section * 64 + 48;
            damaged[at..at + 8].copy_from_slice(&u64::to_le_bytes(align));
        }
        fs::write(tree.path("vec.o"), &damaged).unwrap();
        split_into(&tree, "host", &["vec.o"]);
        let now = fs::metadata(tree.path("host/vec.o")).unwrap().len();
        assert!(now < 2 * size, "{now} bytes with sections aligned to {align:#x}");
    }
}

#[test]
fn device_code_without_wrappers_is_not_called_none() {
    let tree = Tree::new();
    fs::write(
        tree.path("data.s"),
        ".section .hip_fatbin,\"a\",@progbits\n.globl __hip_fatbin\n__hip_fatbin: .zero 64\n",
    )
    .unwrap();
    let mut tool = Command::new("cc");
    run(tool.current_dir(tree.root()).args(["-c", "data.s"]));
    let mut tool = Command::new("ar");
    run(tool.current_dir(tree.root()).args(["qc", "data.a", "data.o"]));
    let report = split_into(&tree, "host", &["data.o", "data.a"]);
    for file in &report.files {
        let text = format!("{:?}", file.outcome);
        assert!(text.contains("`.hip_fatbin` without wrappers"), "{text}");
        let [before, after] = ["", "host/"]
            .map(|directory| fs::read(tree.path(&format!("{directory}{}", file.path))).unwrap());
        assert_eq!(before, after);
    }
    let of_member = |found: &Finding| {
        found.id == ids::WITHOUT_WRAPPERS && found.text.starts_with("member `data.o`")
    };
    assert!(report.findings.iter().any(of_member), "{:?}", report.findings);
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let tree = Tree::new();
    let fifo = Command::new("mkfifo").arg(tree.path("fifo.o")).status();
    assert!(fifo.unwrap().success());
    let error = try_split(&tree, "host", &["fifo.o"]).unwrap_err();
    assert_eq!(error.id(), ids::NOT_A_FILE, "{error}");
}

#[test]
fn a_socket_is_refused_as_what_it_is() {
    let tree = Tree::new();
    let _socket = std::os::unix::net::UnixListener::bind(tree.path("socket.o")).unwrap();
    let error = try_split(&tree, "host", &["socket.o"]).unwrap_err();
    assert_eq!(error.id(), ids::NOT_A_FILE, "{error}");
}

#[test]
fn compact_relocations_are_refused() {
    if !require::tool("clang-19") {
        return;
    }
    let tree = Tree::new();
    fs::write(
        tree.path("crel.s"),
        ".section .hip_fatbin,\"a\",@progbits\n.Lb: .zero 64\n\
         .section .hipFatBinSegment,\"aw\",@progbits\n.p2align 3\n\
         .long 0x48495046, 1\n.quad .Lb, 0\n",
    )
    .unwrap();
    let mut clang = Command::new("clang-19");
    clang.current_dir(tree.root()).args(["-c", "crel.s"]);
    run(clang.arg("-Wa,--crel,--allow-experimental-crel"));
    let text = refusal(&tree, "crel.o");
    assert!(text.contains("SHT_CREL"), "{text}");
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let tree = Tree::new();
    let mut options = Options::new("vec", tree.path("host"), ["a/x.o", "b/x.o"]);
    let twice = split(&options, &()).unwrap_err().in_one_line();
    assert!(twice.contains("two files named `x.o`"), "{twice}");
    options.files.pop();
    options.search_paths = vec!["lib/vec.kpack".to_owned()];
    let pattern = split(&options, &()).unwrap_err().in_one_line();
    assert!(pattern.contains("has no @GFXARCH@"), "{pattern}");
    options.module = "a/b".to_owned();
    assert_eq!(split(&options, &()).unwrap_err().id(), ids::USAGE);
}

/// In this program other crates ask for kpack-format with compression. A build script that compiles
/// kpack-build alone has none.
#[test]
fn archives_do_not_depend_on_the_features_of_other_crates() {
    // Given an object,
    let tree = Tree::new();
    build(&tree, Kind::Object, "vec.o");
    // when it is split with the default options,
    split_into(&tree, "out", &["vec.o"]);
    // then its archives are as kpack-build alone would write them.
    let archive = tree.path("out/.kpack/vec_lib_gfx1100.kpack");
    let archive = Archive::open(File::open(archive).unwrap()).unwrap();
    assert_eq!(archive.toc().scheme, Scheme::None);
}
