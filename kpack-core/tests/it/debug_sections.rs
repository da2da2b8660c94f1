//! Given code objects with debug information, when it is removed, then everything else stays.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use kpack_core::archives::debug_sections::{Stripped, build_id};
use kpack_format::code_object::CodeObjectError;
use kpack_tests::fixture::{self, code_object};
use kpack_tests::require::tool;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{LittleEndian as LE, Object, ObjectSection, elf};

const KERNEL: &str = "
    struct pair { float a, b; };
    static __attribute__((device)) int counter;
    __attribute__((global)) void add(pair *out, const float *in, int n) {
        int i = __builtin_amdgcn_workitem_id_x();
        if (i < n) { out[i].a += in[i]; counter++; }
    }
";

/// A code object that clang-19 made with these flags.
fn compiled(flags: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("add.hip"), KERNEL).unwrap();
    let mut clang = Command::new("clang-19");
    clang.args(["-x", "hip", "-nogpulib", "-nogpuinc", "-O1"]);
    clang.args(["--offload-arch=gfx1100", "--cuda-device-only"]);
    clang.arg("--no-gpu-bundle-output").args(flags).current_dir(&directory);
    fixture::compile(&mut clang, &["add.hip"], "add.co");
    let output = directory.path().join("add.co");
    (directory, output)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    assert_eq!(said, "", "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn plan(bytes: &[u8]) -> Result<Option<Stripped>, CodeObjectError> {
    Stripped::plan(&mut Cursor::new(bytes), bytes.len() as u64)
}

fn stripped(bytes: &[u8]) -> Vec<u8> {
    let plan = plan(bytes).unwrap().expect("it has debug sections");
    let mut out = Vec::new();
    plan.write(&mut Cursor::new(bytes), &mut out).unwrap();
    assert_eq!(out.len() as u64, plan.size());
    out
}

fn names(bytes: &[u8]) -> Vec<String> {
    let file = ElfFile64::<LE>::parse(bytes).unwrap();
    let sections = file.sections();
    sections.map(|section| section.name().unwrap().to_owned()).collect()
}

/// Names, addresses and content of all sections that are not for debuggers.
fn contents(bytes: &[u8]) -> Vec<(String, u64, Vec<u8>)> {
    let file = ElfFile64::<LE>::parse(bytes).unwrap();
    let sections = file.sections().filter_map(|section| {
        let name = section.name().unwrap().to_owned();
        let content = section.data().unwrap().to_vec();
        (!name.starts_with(".debug")).then(|| (name, section.address(), content))
    });
    sections.collect()
}

/// What debuggers and loaders see of it, by LLVM's tools, which must have nothing to complain about.
fn assert_valid(path: &Path) {
    run(Command::new("llvm-readelf-19").arg("-a").arg(path));
    run(Command::new("llvm-objdump-19").arg("-dxs").arg(path));
    run(Command::new("llvm-readelf-19").arg("--dyn-symbols").arg(path));
}

#[test]
fn all_but_debug_sections_stays() {
    if !tool("clang-19") {
        return;
    }
    for flags in [
        &["-g"][..],
        &["-g", "-gz", "-Xoffload-linker", "--build-id"],
        &["-g", "-gsplit-dwarf=single", "-ggnu-pubnames"],
        &["-g", "-Xoffload-linker", "--emit-relocs"],
        &["-gdwarf-4", "-Xoffload-linker", "--gdb-index"],
    ] {
        let (directory, path) = compiled(flags);
        let before = std::fs::read(&path).unwrap();
        let Ok(Some(_)) = plan(&before) else {
            // Section symbols of debug sections cannot stay.
            let error = plan(&before).unwrap_err();
            assert!(flags.contains(&"--emit-relocs"), "{flags:?}: {error}");
            assert!(matches!(error, CodeObjectError::Unsupported(_)), "{error}");
            continue;
        };
        let after = stripped(&before);
        assert!(after.len() < before.len());
        let debug = |name: &String| name.contains("debug") || name == ".gdb_index";
        assert!(!names(&after).iter().any(debug), "{:?}", names(&after));
        assert_eq!(contents(&after), {
            let mut kept = contents(&before);
            kept.retain(|(name, ..)| name != ".gdb_index");
            kept
        });

        // All that is loaded is the same but for where the ELF header says that its sections are.
        let header = elf::FileHeader64::<LE>::parse(&*before).unwrap();
        for segment in header.program_headers(LE, &*before).unwrap() {
            let start = (segment.p_offset.get(LE) as usize).max(64);
            let end = (segment.p_offset.get(LE) + segment.p_filesz.get(LE)) as usize;
            if start < end {
                assert_eq!(before[start..end], after[start..end]);
            }
        }
        assert_eq!(before[..40], after[..40]);

        let output = directory.path().join("stripped.co");
        std::fs::write(&output, &after).unwrap();
        assert_valid(&output);

        // As llvm-strip, which also drops the names of source files.
        let theirs = directory.path().join("theirs.co");
        let mut strip = Command::new("llvm-strip-19");
        run(strip.arg("--strip-debug").arg(&path).arg("-o").arg(&theirs));
        assert_eq!(names(&after), names(&std::fs::read(&theirs).unwrap()));

        assert!(plan(&after).unwrap().is_none(), "nothing is left to remove");
    }
}

#[test]
fn what_follows_the_sections_is_aligned() {
    if !tool("clang-19") {
        return;
    }
    let (_directory, path) = compiled(&["-g"]);
    let after = stripped(&std::fs::read(&path).unwrap());
    let header = elf::FileHeader64::<LE>::parse(&*after).unwrap();
    for section in header.section_headers(LE, &*after).unwrap() {
        let align = section.sh_addralign(LE).max(1);
        assert_eq!(section.sh_offset(LE) % align, 0);
    }
}

#[test]
fn a_code_object_without_debug_sections_stays_as_it_is() {
    let synthetic = code_object("gfx1100", b"kernels").unwrap();
    assert!(plan(&synthetic).unwrap().is_none());
    if !tool("clang-19") {
        return;
    }
    let (_directory, path) = compiled(&["-g0"]);
    assert!(plan(&std::fs::read(path).unwrap()).unwrap().is_none());
}

#[test]
fn the_build_id_is_read() {
    if !tool("clang-19") {
        return;
    }
    let id = |flags: &[&str]| {
        let (_directory, path) = compiled(flags);
        let bytes = std::fs::read(&path).unwrap();
        let id = build_id(&mut Cursor::new(&bytes), bytes.len() as u64).unwrap();
        let notes = run(Command::new("llvm-readelf-19").arg("-n").arg(&path));
        if let Some(id) = &id {
            let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(notes.contains(&format!("Build ID: {hex}")), "{notes}");
        }
        id.map(|id| id.len())
    };
    assert_eq!(id(&["-g"]), None);
    assert_eq!(id(&["-g", "-Xoffload-linker", "--build-id=sha1"]), Some(20));
    assert_eq!(id(&["-g", "-Xoffload-linker", "--build-id=fast"]), Some(8));
}

/// Every byte of the headers and section table, set to a few values.
#[test]
fn no_damage_panics_or_grows_the_file() {
    if !tool("clang-19") {
        return;
    }
    let (_directory, path) = compiled(&["-g", "-Xoffload-linker", "--build-id"]);
    let bytes = std::fs::read(&path).unwrap();
    let header = elf::FileHeader64::<LE>::parse(&*bytes).unwrap();
    let table = header.e_shoff(LE) as usize..bytes.len();
    let (mut planned, mut refused) = (0, 0);
    for at in (0..0x300).chain(table) {
        for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 8] {
            let mut changed = bytes.clone();
            changed[at] = value;
            let size = changed.len() as u64;
            let _ = build_id(&mut Cursor::new(&changed), size);
            match plan(&changed) {
                Ok(Some(plan)) => {
                    planned += 1;
                    assert!(plan.size() <= size, "{at:#x} {value:#x}");
                    let mut out = Vec::new();
                    plan.write(&mut Cursor::new(&changed), &mut out).unwrap();
                    assert_eq!(out.len() as u64, plan.size(), "{at:#x} {value:#x}");
                }
                Ok(None) => {}
                Err(error) => {
                    refused += 1;
                    let is_io = matches!(error, CodeObjectError::Io(_));
                    assert!(!is_io, "{at:#x} {value:#x}: {error}");
                }
            }
        }
    }
    assert!(planned > 1000 && refused > 1000, "{planned} {refused}");
    for end in 0..bytes.len() {
        assert!(!matches!(plan(&bytes[..end]), Ok(Some(_))), "{end}");
    }
}
