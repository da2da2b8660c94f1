//! Given an installed tree, when something in it is damaged or missing, then verification finds it and says
//! where; and a complete tree has no fault.

use crate::command::{kpack, succeeds, words};
use crate::verified;
use kpack_core::files::open_archive;
use kpack_core::{Details, Error, Severity, ids};
use std::fs::{self, File};
use std::io::Cursor;
use std::path::PathBuf;
use std::process::Command;

use crate::verified::{assert_found, check, check_with, faults};
use kpack_artifact::split;
use kpack_artifact::verify::{self, VerifyReport, verify};
use kpack_format::archive::{ArchiveWriter, Encoder, Scheme};
use kpack_format::digest::blake3;
use kpack_format::manifest::Manifest;
use kpack_split::elf::Image;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Storage, add_and_mul, code};
use kpack_tests::process;
use kpack_tests::require::tool;
use kpack_tests::tree::Tree;

const BINARY: &str = "lib/libvec.so";
const ARCHIVE: &str = "lib/.kpack/vec_lib_gfx1100.kpack";
const MANIFEST: &str = "lib/.kpack/vec_lib.kpm";

fn library() -> FatLibrary {
    add_and_mul(["gfx1100", "gfx942"], ["gfx1100", "gfx942"])
}

/// A prefix where the library was installed, with the original as `fat.so`.
fn installed() -> Tree {
    let tree = library().in_tree(BINARY);
    fs::copy(tree.path(BINARY), tree.path("fat.so")).unwrap();
    install(&InstallOptions::new(tree.root(), "vec", [BINARY]), &()).unwrap();
    tree
}

fn against(tree: &Tree) -> VerifyReport {
    check_with(tree, BINARY, Some("fat.so"), &[])
}

fn change(tree: &Tree, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(tree.path(file)).unwrap();
    change(&mut bytes);
    fs::write(tree.path(file), bytes).unwrap();
}

/// Without them, altered code that is not compressed would be loaded and nobody would notice.
#[test]
fn an_archive_that_lost_its_checksums_is_damaged() {
    let tree = installed();
    change(&tree, ARCHIVE, |bytes| {
        let key = bytes::position(bytes, b"blake3");
        bytes[key] = b'C';
    });
    let report = check(&tree, BINARY);
    assert_found(&report, &["has no checksums", ids::DAMAGED_ARCHIVE.as_str()]);
}

#[test]
fn a_complete_tree_has_no_fault() {
    let tree = installed();
    let report = check(&tree, "lib");
    assert_eq!(faults(&report), [""; 0]);
    assert_eq!(faults(&against(&tree)), [""; 0]);
    for path in [BINARY, ARCHIVE, MANIFEST] {
        assert_eq!(faults(&check(&tree, path)), [""; 0]);
    }
}

/// Whoever asks about a GPU gets an answer, and not only if it is no.
#[test]
fn code_for_the_named_targets_is_said_to_be_there() {
    let tree = installed();
    succeeds(&tree, &words("join --prefix . --arch gfx1100 --output joined.so lib/libvec.so"));
    let asked = |arguments: &str| {
        let output = kpack(&tree, &words(&format!("verify {arguments}")));
        String::from_utf8(output.stdout).unwrap()
    };
    for (arguments, expected) in [
        ("lib/libvec.so --arch gfx1100", "lib/libvec.so has code for gfx1100"),
        ("fat.so --arch gfx942,gfx1100", "fat.so has code for gfx942, gfx1100"),
        ("joined.so --arch gfx1100", "joined.so has code for gfx1100"),
        (". --arch gfx1100", "each of 3 binaries has code for gfx1100"),
    ] {
        let said = asked(arguments);
        assert!(said.ends_with(&format!("\nok    {expected}\n")), "{arguments}: {said}");
    }
    for arguments in [
        "lib/libvec.so",
        "lib/libvec.so --arch all",
        "lib/libvec.so --arch gfx90a",
        "joined.so --arch gfx942",
        ". --arch gfx942",
        "lib/libvec.so --arch gfx1100 --quiet",
        &format!("{ARCHIVE} --arch gfx1100"),
    ] {
        let said = asked(arguments);
        assert!(!said.contains(" code for gfx"), "{arguments}: {said}");
    }
}

#[test]
fn an_archive_under_another_name_is_noted() {
    let tree = installed();
    let renamed = "lib/.kpack/renamed.kpack";
    fs::rename(tree.path(ARCHIVE), tree.path(renamed)).unwrap();
    let report = check(&tree, renamed);
    let noted = &report.findings[0];
    assert_eq!((noted.severity, noted.id), (Severity::Note, ids::MISNAMED_ARCHIVE));
}

/// The split binary is not at fault then.
#[test]
fn a_tree_with_an_archive_under_another_name_says_how_it_is_looked_for() {
    let tree = installed();
    fs::rename(tree.path(ARCHIVE), tree.path("lib/.kpack/renamed.kpack")).unwrap();
    let report = check(&tree, ".");
    let unused = report.findings.iter().find(|f| f.id == ids::UNUSED_KERNELS);
    let unused = unused.unwrap();
    assert_eq!(unused.severity, Severity::Fault);
    let name = ARCHIVE.rsplit('/').next().unwrap();
    let advice = format!("which looks for `{name}`; rename the archive");
    assert!(unused.text.ends_with(&advice), "{unused:?}");
}

#[test]
fn an_entry_of_another_type_is_noted() {
    let tree = installed();
    for _kernel in 0..2 {
        change(&tree, ARCHIVE, |bytes| {
            let at = bytes.windows(6).position(|bytes| bytes == b"\xa5hsaco");
            bytes.splice(at.unwrap()..at.unwrap() + 6, *b"\xa5other");
        });
    }
    let report = check(&tree, ARCHIVE);
    let noted = &report.findings[0];
    assert_eq!((noted.severity, noted.id), (Severity::Note, ids::OTHER_TYPE));
    assert_eq!(faults(&report), [""; 0]);
}

/// A tree has thousands of archives, and the usual limit is 1,024 open files.
#[test]
fn more_archives_than_files_may_be_open() {
    let tree = Tree::new();
    let original = tree.path("libvec.so");
    library().build(&original).unwrap();
    fs::create_dir_all(tree.path("prefix/lib")).unwrap();
    for index in 0..70 {
        let file = format!("lib/libvec-{index}.so");
        fs::copy(&original, tree.path("prefix").join(&file)).unwrap();
        let options = InstallOptions::new(tree.path("prefix"), format!("vec{index}"), [file]);
        install(&options, &()).unwrap();
    }
    let limited = ["-c", "ulimit -n 64; exec \"$0\" verify \"$1\""];
    let kpack = env!("CARGO_BIN_EXE_kpack");
    let prefix = tree.path("prefix");
    let mut verify = Command::new("sh");
    process::run(verify.args(limited).arg(kpack).arg(prefix));
}

#[test]
fn an_unsplit_binary_in_a_prefix_is_not_a_fault() {
    let tree = installed();
    let report = check(&tree, ".");
    assert_eq!(faults(&report), [""; 0]);
}

#[test]
fn stripped_and_patched_binaries_hold() {
    for (name, arguments) in [
        ("strip", &[][..]),
        ("llvm-strip-19", &[]),
        ("eu-strip", &[]),
        ("patchelf", &["--set-rpath", "/a/directory/with/quite/a/long/name"]),
    ] {
        if !tool(name) {
            continue;
        }
        let tree = installed();
        let mut command = Command::new(name);
        let changed = command.args(arguments).arg(tree.path(BINARY)).status();
        assert!(changed.unwrap().success());
        let report = check(&tree, BINARY);
        assert_eq!(faults(&report), [""; 0], "{name}");
        if name != "patchelf" {
            assert_eq!(faults(&against(&tree)), [""; 0], "{name}");
        }
    }
}

/// What RPM's find-debuginfo does, and Debian's dh_strip, before and after a binary is split.
#[test]
fn a_debugger_finds_the_debug_file_of_a_split_binary() {
    const SEPARATE: [&str; 2] = [
        "eu-strip -f @.debug @",
        "objcopy --only-keep-debug @ @.debug && objcopy --strip-debug --add-gnu-debuglink=@.debug @",
    ];
    if !["gdb", "eu-strip", "objcopy"].into_iter().all(tool) {
        return;
    }
    for (script, is_first) in SEPARATE.into_iter().flat_map(|s| [(s, true), (s, false)]) {
        let tree = library().flag("-g").in_tree(BINARY);
        let separate = || {
            let script = script.replace('@', BINARY);
            let mut sh = Command::new("sh");
            process::run(sh.current_dir(tree.root()).args(["-euc", &script]));
        };
        let split = || install(&InstallOptions::new(tree.root(), "vec", [BINARY]), &()).unwrap();
        if is_first {
            separate();
            split();
        } else {
            split();
            separate();
        }
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-ex", "info line fixture_host"]);
        let said = process::run(gdb.arg(tree.path(BINARY)));
        assert!(said.contains("\nLine ") || said.starts_with("Line "), "{script}: {said}");
    }
}

/// `objcopy` makes a NOTE of the emptied `.hip_fatbin`.
#[test]
fn an_emptied_section_of_another_type() {
    if !tool("objcopy") {
        return;
    }
    let tree = installed();
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["--set-section-alignment", ".hip_fatbin=16"]);
    process::run(objcopy.arg(tree.path(BINARY)));
    let file = File::open(tree.path(BINARY)).unwrap();
    let image = Image::read(&file).unwrap();
    let (_, section) = image.section(".hip_fatbin").unwrap().unwrap();
    assert!(section.has_bytes(), "{section:?}");
    assert_eq!(faults(&check(&tree, BINARY)), [""; 0]);
}

/// The dynamic linker finds relocations by DT_RELA, whatever section headers say.
#[test]
fn relocations_in_a_section_of_another_type() {
    let tree = library().in_tree(BINARY);
    change_section(&tree, b".rela.dyn", |header| header[4] = 1);
    fs::copy(tree.path(BINARY), tree.path("fat.so")).unwrap();
    install(&InstallOptions::new(tree.root(), "vec", [BINARY]), &()).unwrap();
    assert_eq!(faults(&against(&tree)), [""; 0]);
}

/// As it finds symbols by DT_SYMTAB. Where nothing is laid out after the device code, `_end` is at its end.
#[test]
fn symbols_in_a_section_of_another_type() {
    let tree = Tree::new();
    let end = tree.path("end.s");
    fs::write(&end, ".section .hip_fatbin,\"a\"\n.globl end\nend:\n").unwrap();
    library().flag(&end).build(&tree.path("fat.so")).unwrap();
    let split = |tree: &Tree| {
        install(&InstallOptions::new(tree.root(), "vec", [BINARY]), &()).unwrap();
        fs::read(tree.path(BINARY)).unwrap()
    };
    fs::create_dir(tree.path("lib")).unwrap();
    fs::copy(tree.path("fat.so"), tree.path(BINARY)).unwrap();
    let other = tree.copy();
    change_section(&other, b".dynsym", |header| header[4] = 1);
    fs::copy(other.path(BINARY), other.path("fat.so")).unwrap();
    let differing = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a != b).count();
    // Only the type in the header.
    assert_eq!(differing(&split(&tree), &split(&other)), 1);
    assert_eq!(faults(&against(&tree)), [""; 0]);
    assert_eq!(faults(&against(&other)), [""; 0]);
}

#[test]
fn a_section_that_is_not_where_it_is_loaded() {
    let tree = installed();
    let bytes = fs::read(tree.path(BINARY)).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (table, count) = (word(0x28), bytes[0x3c]);
    // Change the file offset of constant data (PROGBITS, read-only).
    let mut headers = (0..usize::from(count)).map(|index| table + 64 * index);
    let constant = |at: &usize| bytes[at + 4] == 1 && bytes[at + 8] == 2 && word(at + 32) > 0;
    let header = headers.rfind(constant).unwrap();
    change(&tree, BINARY, |bytes| bytes[header + 24] ^= 0x10);
    let report = check(&tree, BINARY);
    assert_found(&report, &["libvec.so", "damaged-binary"]);
}

#[test]
fn a_damaged_code_object() {
    let tree = installed();
    // In the first frame, after header, number of frames, size and zstd's own header.
    change(&tree, ARCHIVE, |bytes| bytes[90] ^= 1);
    let report = check(&tree, "lib");
    assert_found(&report, &["vec_lib_gfx1100.kpack", "lib/libvec.so#0", "damaged-archive"]);
    // What refers to the archive repeats that in notes.
    assert_eq!(faults(&report).len(), 1);
    assert_found(&check(&tree, MANIFEST), &["vec_lib.kpm", "not-as-listed"]);
    assert_found(&against(&tree), &["libvec.so: index 0 for gfx1100", "its checksum"]);
    // Programs read what the texts say.
    let of_kernel = |details: &Details| {
        details.kernel.as_deref() == Some("lib/libvec.so#0")
            && details.target.as_deref() == Some("gfx1100")
            && details.offset.is_some()
    };
    assert!(report.findings.iter().any(|finding| of_kernel(&finding.details)));
    let path = tree.path(ARCHIVE);
    let read = open_archive(&path).unwrap().read("lib/libvec.so#0", "gfx1100");
    let Err(Error::Refused { details, .. }) = read.map_err(|e| Error::archive(&path, "read", e))
    else {
        panic!("it is read")
    };
    assert!(of_kernel(&details), "{details:?}");
}

#[test]
fn an_archive_that_is_truncated_or_not_an_archive() {
    let tree = installed();
    let size = fs::metadata(tree.path(ARCHIVE)).unwrap().len();
    change(&tree, ARCHIVE, |bytes| bytes.truncate(bytes.len() - 5));
    let report = check(&tree, "lib");
    assert_found(&report, &["vec_lib_gfx1100.kpack", "damaged-archive"]);
    assert_eq!(faults(&report).len(), 1);
    assert_found(&check(&tree, MANIFEST), &["vec_lib.kpm", "not-as-listed"]);
    fs::write(tree.path(ARCHIVE), b"KPAK").unwrap();
    let report = check(&tree, "lib");
    assert_found(&report, &["vec_lib_gfx1100.kpack", "4 bytes"]);
    let report = check(&tree, MANIFEST);
    let listed = report.findings.iter().find(|finding| finding.id == ids::NOT_AS_LISTED);
    let Details { expected, found, .. } = &*listed.unwrap().details;
    assert_eq!(found.as_deref(), Some("4"));
    assert_eq!(expected.as_ref(), Some(&size.to_string()));
}

#[test]
fn an_archive_that_is_missing() {
    let tree = installed();
    fs::remove_file(tree.path(ARCHIVE)).unwrap();
    let report = check(&tree, "lib");
    assert_found(&report, &["vec_lib.kpm", "vec_lib_gfx1100.kpack", "missing-archive"]);
    assert_found(&report, &["libvec.so", "gfx1100", "missing-archive"]);
    // A user who installs the package for one GPU lacks those for the others.
    let report = check_with(&tree, "lib", None, &["gfx942"]);
    assert_eq!(faults(&report), [""; 0]);
    assert!(!check_with(&tree, "lib", None, &["gfx1100"]).holds());
}

/// The package for one GPU lacks the code of a wrapper that was compiled for another GPU only.
#[test]
fn a_wrapper_for_targets_that_are_not_installed() {
    let tree = Tree::new();
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "add"), code("gfx942", "add")])
        .wrapper(Storage::Plain, [code("gfx942", "mul")]);
    library.build(&tree.path(BINARY)).unwrap();
    install(&InstallOptions::new(tree.root(), "vec", [BINARY]), &()).unwrap();
    fs::remove_file(tree.path("lib/.kpack/vec_lib_gfx942.kpack")).unwrap();
    let mut manifest = Manifest::read(&fs::read(tree.path(MANIFEST)).unwrap()).unwrap();
    manifest.kpack_files.remove("gfx942");
    let fragment = tree.path("lib/.kpack/vec_lib.gfx1100.kpm");
    fs::write(fragment, manifest.to_bytes()).unwrap();
    let report = check(&tree, "lib");
    assert_eq!(faults(&report), [""; 0]);
    let notes = verified::checks(&report, Severity::Note);
    assert!(
        notes.iter().any(|note| note.ends_with("no archive has a code object at index 1")),
        "{notes:#?}"
    );
}

#[test]
fn an_archive_that_the_manifest_does_not_list() {
    let tree = installed();
    let writer = ArchiveWriter::new(
        Cursor::new(Vec::new()),
        "vec_lib",
        &"gfx1201".parse().unwrap(),
        Scheme::None,
    );
    writer.finish(File::create(tree.path("lib/.kpack/vec_lib_gfx1201.kpack")).unwrap()).unwrap();
    let report = check(&tree, "lib");
    assert_found(&report, &["vec_lib.kpm", "inconsistent-manifest", "`vec_lib_gfx1201.kpack`"]);
}

#[test]
fn a_manifest_that_lies_or_is_damaged() {
    let tree = installed();
    let rewrite = |change: fn(&mut Manifest)| {
        let mut manifest = Manifest::read(&fs::read(tree.path(MANIFEST)).unwrap()).unwrap();
        let whole = manifest.to_bytes();
        change(&mut manifest);
        fs::write(tree.path(MANIFEST), manifest.to_bytes()).unwrap();
        let report = check(&tree, MANIFEST);
        fs::write(tree.path(MANIFEST), whole).unwrap();
        report
    };
    let report = rewrite(|manifest| manifest.kpack_files.get_mut("gfx1100").unwrap().size += 1);
    assert_found(&report, &["vec_lib_gfx1100.kpack", "bytes"]);
    let report =
        rewrite(|manifest| manifest.kpack_files.get_mut("gfx1100").unwrap().kernel_count = 9);
    assert_found(&report, &["vec_lib_gfx1100.kpack", "has 2 kernels; expected 9"]);
    let report = rewrite(|manifest| {
        manifest.kpack_files.get_mut("gfx1100").unwrap().checksum = Some([0; 32])
    });
    assert_found(&report, &["vec_lib_gfx1100.kpack", "BLAKE3"]);
    let report = rewrite(|manifest| manifest.prefix = "lib64".to_owned());
    assert_found(&report, &["lib64"]);
    change(&tree, MANIFEST, |bytes| bytes.truncate(20));
    assert_found(&check(&tree, "lib"), &["vec_lib.kpm", "damaged-manifest"]);
}

#[test]
fn a_marker_that_leads_elsewhere() {
    let tree = installed();
    change(&tree, BINARY, |bytes| {
        let at = bytes::position(bytes, b".kpack/vec_lib_@GFXARCH@");
        bytes[at..at + 6].copy_from_slice(b".kpakk");
    });
    let report = check(&tree, BINARY);
    assert_found(&report, &["libvec.so", "no archive"]);
    let tree = installed();
    change(&tree, BINARY, |bytes| {
        let at = bytes::position(bytes, b"kernel_name");
        bytes[at] = b'K';
    });
    assert_found(&check(&tree, BINARY), &["libvec.so", "not a kpack marker"]);
}

#[test]
fn a_wrapper_that_was_changed() {
    let magic = [&0x4b50_4948_u32.to_le_bytes()[..], &1u32.to_le_bytes()].concat();
    let first = |bytes: &[u8]| bytes::position(bytes, &magic);
    let tree = installed();
    change(&tree, BINARY, |bytes| {
        let at = first(bytes);
        bytes[at + 16] = 1;
    });
    let report = check(&tree, BINARY);
    assert_found(&report, &["libvec.so", "index"]);
    let tree = installed();
    change(&tree, BINARY, |bytes| {
        let at = first(bytes);
        bytes[at..at + 4].copy_from_slice(&0x4849_5046_u32.to_le_bytes());
    });
    let options = verify::Options::default();
    let result = verify(&[tree.path(BINARY)], &options, &());
    let text = match result {
        Ok(report) => faults(&report).join("\n"),
        Err(error) => error.in_one_line(),
    };
    assert!(text.contains("unsplit (magic HIPF), but `.hip_fatbin` has no loaded bytes"), "{text}");
}

#[test]
fn wrappers_that_changed_places() {
    let tree = installed();
    change(&tree, BINARY, |bytes| {
        let magic = [&0x4b50_4948_u32.to_le_bytes()[..], &1u32.to_le_bytes()].concat();
        let first = bytes::position(bytes, &magic);
        bytes[first + 16] = 1;
        bytes[first + 24 + 16] = 0;
    });
    let report = check(&tree, BINARY);
    assert_found(&report, &["libvec.so", "index 1", "inconsistent-marker"]);
    assert_found(&report, &["libvec.so", "index 0", "inconsistent-marker"]);
}

/// The header of section `name`, for a change: type at 4, size at 32.
fn change_section(tree: &Tree, name: &[u8], edit: impl FnOnce(&mut [u8])) {
    change(tree, BINARY, |bytes| {
        let word = |bytes: &[u8], at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
        };
        let half =
            |bytes: &[u8], at: usize| usize::from(bytes[at]) | usize::from(bytes[at + 1]) << 8;
        let (table, count, names) = (word(bytes, 40), half(bytes, 60), half(bytes, 62));
        let strings = word(bytes, table + names * 64 + 24);
        let header = (0..count)
            .map(|index| table + index * 64)
            .find(|header| {
                let at = strings + (word(bytes, *header) & 0xffff_ffff);
                bytes[at..].starts_with(name) && bytes[at + name.len()] == 0
            })
            .unwrap();
        edit(&mut bytes[header..header + 64]);
    });
}

#[test]
fn device_code_that_is_still_there() {
    let tree = installed();
    // Without bytes, any type will do. ROCm's tool leaves up to a page.
    change_section(&tree, b".hip_fatbin", |header| {
        header[4] = 1;
        header[32..34].copy_from_slice(&0x1001_u16.to_le_bytes());
    });
    let report = check(&tree, BINARY);
    assert_found(&report, &["libvec.so", "device-code-left"]);
    // NOBITS in the header only, over bytes that are loaded from the file.
    let tree = installed();
    let mut marker = [0; 32];
    change_section(&tree, b".rocm_kpack_ref", |header| {
        marker.copy_from_slice(&header[16..48]);
    });
    change_section(&tree, b".hip_fatbin", |header| {
        header[16..48].copy_from_slice(&marker);
    });
    let report = check(&tree, BINARY);
    assert_found(&report, &["libvec.so", "device-code-left"]);
}

#[test]
fn a_code_object_that_no_kernel_names() {
    let tree = installed();
    let mut writer = ArchiveWriter::new(
        Cursor::new(Vec::new()),
        "vec_lib",
        &"gfx1100".parse().unwrap(),
        Scheme::None,
    );
    let mut encoder = Encoder::new(Scheme::None, 3).unwrap();
    for name in ["add", "mul"] {
        let (_, bytes) = code("gfx1100", name);
        let encoded = encoder.encode(&bytes, blake3(&bytes)).unwrap();
        writer.add(&format!("lib/libvec.so#{name}"), &encoded).unwrap();
    }
    writer.finish(File::create(tree.path(ARCHIVE)).unwrap()).unwrap();
    // Both kernels become one, so that a code object is left over.
    change(&tree, ARCHIVE, |bytes| {
        let at = bytes.windows(7).rposition(|window| window == b"ordinal").unwrap();
        assert_eq!(bytes[at + 7], 1);
        bytes[at + 7] = 0;
    });
    let report = check(&tree, ARCHIVE);
    assert_found(&report, &["ordinal 1", "damaged-archive"]);
}

#[test]
fn host_code_that_was_changed() {
    let tree = installed();
    change(&tree, BINARY, |bytes| {
        // The wrappers' own strings are in .rodata; so is the program's format string.
        let at = bytes::position(bytes, b"host %d\n");
        bytes[at] = b'H';
    });
    assert_eq!(faults(&check(&tree, "lib")), [""; 0]);
    assert_found(&against(&tree), &["libvec.so", ".rodata", "host-differs"]);
}

#[test]
fn an_original_that_is_another() {
    let tree = installed();
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "add"), code("gfx942", "add")])
        .wrapper(Storage::Zstd(2), [code("gfx1100", "MUL"), code("gfx942", "mul")])
        .build(&tree.path("fat.so"))
        .unwrap();
    assert_found(&against(&tree), &["libvec.so: index 1 for gfx1100", "code-differs"]);
    library()
        .wrapper(Storage::Plain, [code("gfx1100", "more")])
        .build(&tree.path("fat.so"))
        .unwrap();
    assert_found(&against(&tree), &["libvec.so", "wrapper", "code-differs"]);
}

#[test]
fn a_target_that_was_left_out_is_a_fault_unless_the_others_are_named() {
    let tree = library().in_tree(BINARY);
    fs::copy(tree.path(BINARY), tree.path("fat.so")).unwrap();
    let mut options = InstallOptions::new(tree.root(), "vec", [BINARY]);
    options.architectures = vec!["gfx942".parse().unwrap()];
    install(&options, &()).unwrap();
    assert_found(&against(&tree), &["index 0 for gfx1100", "code-differs"]);
    let report = check_with(&tree, BINARY, Some("fat.so"), &["gfx942"]);
    assert_eq!(faults(&report), [""; 0]);
}

#[test]
fn a_code_object_for_another_target_in_an_archive() {
    let tree = installed();
    let mut writer = ArchiveWriter::new(
        Cursor::new(Vec::new()),
        "vec_lib",
        &"gfx1100".parse().unwrap(),
        Scheme::None,
    );
    let (_, wrong) = code("gfx942", "add");
    let encoded = Encoder::new(Scheme::None, 3).unwrap().encode(&wrong, blake3(&wrong)).unwrap();
    writer.add("lib/libvec.so#0", &encoded).unwrap();
    writer.finish(File::create(tree.path(ARCHIVE)).unwrap()).unwrap();
    let report = check(&tree, ARCHIVE);
    assert_found(&report, &["lib/libvec.so#0", "is for gfx942"]);
}

#[test]
fn what_cannot_be_verified_is_an_error() {
    let tree = installed();
    fs::write(tree.path("text"), "text").unwrap();
    for (paths, against, message) in [
        (vec!["none"], None, "cannot read"),
        (vec!["text"], None, "not recognised"),
        (vec!["lib"], Some("fat.so"), "with the directory"),
        (vec![BINARY, "fat.so"], Some("fat.so"), "with one PATH, not with several"),
    ] {
        let paths: Vec<PathBuf> = paths.iter().map(|path| tree.path(path)).collect();
        let mut options = verify::Options::default();
        options.against = against.map(|path| tree.path(path));
        let error = verify(&paths, &options, &()).unwrap_err().in_one_line();
        assert!(error.contains(message), "{error}");
    }
}

/// It is the last finding.
#[test]
fn a_tree_in_which_nothing_is_split_is_named() {
    let tree = library().in_tree(BINARY);
    let text = "nothing here is split: the device code of 1 fat binary is in the files";
    let report = check(&tree, "lib");
    let last = report.findings.last().unwrap();
    assert!(last.text.starts_with(text) && last.severity == Severity::Warning, "{last:?}");
    assert!(report.holds());
    assert!(check(&installed(), "lib").findings.iter().all(|found| !found.text.starts_with(text)));

    // Nobody verifies an unsplit tree for a target on purpose, so it is a fault, whether or not the code is there.
    for (target, faults) in [("gfx1100", 1), ("gfx1010", 2)] {
        let report = check_with(&tree, "lib", None, &[target]);
        let last = report.findings.last().unwrap();
        assert!(last.text.starts_with(text) && last.severity == Severity::Fault, "{last:?}");
        assert_eq!(report.count(Severity::Fault), faults);
    }
}

/// Whoever passes an original as a second path may believe that the two were compared.
#[test]
fn a_split_path_and_an_unsplit_one_are_not_compared_and_the_command_that_does_is_printed() {
    let tree = installed();
    library().build(&tree.path("original tree/libvec.so")).unwrap();
    for (paths, command) in [
        (vec!["lib", "original tree"], "kpack verify lib --against 'original tree'"),
        (vec!["original tree", "lib"], "kpack verify lib --against 'original tree'"),
        (vec!["fat.so", BINARY], "kpack verify lib/libvec.so --against fat.so"),
        (vec!["lib", "fat.so"], ""),
        (vec!["lib", BINARY], ""),
        (vec!["original tree", "fat.so"], ""),
        (vec!["lib", "original tree", "fat.so"], ""),
    ] {
        let said = String::from_utf8(kpack(&tree, &[&["verify"][..], &paths[..]].concat()).stdout);
        let said = said.unwrap();
        assert!(said.contains(command) && said.contains("0 faults"), "{said}");
        let is_said = said.contains("each PATH is verified by itself");
        assert_eq!(is_said, !command.is_empty(), "{said}");
    }
    let said = kpack(&tree, &["verify", "fat.so", "original tree/libvec.so"]).stdout;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("neither file is split, so only their bundles were checked"), "{said}");
}

/// One fault says which directory was probably meant.
#[test]
fn an_original_without_a_path_in_common_is_named_once() {
    let tree = installed();
    let original = tree.path("original/usr");
    library().build(&original.join(BINARY)).unwrap();
    for (path, against, meant) in [
        ("prefix", "original", "original/usr"),
        ("above", "original/usr", "above/prefix"),
        ("prefix", "other", ""),
    ] {
        library().build(&tree.path("prefix/lib/libvec.so")).unwrap();
        library().build(&tree.path("above/prefix/lib/libvec.so")).unwrap();
        FatLibrary::new().build(&tree.path("other/bin/tool")).unwrap();
        let report = check_with(&tree, path, Some(against), &[]);
        let faults = faults(&report);
        let [fault] = &faults[..] else { panic!("{faults:#?}") };
        assert!(fault.contains("has no path in common with"), "{fault}");
        let ends = format!("did you mean {}?", tree.path(meant).display());
        assert_eq!(fault.ends_with(&ends), !meant.is_empty(), "{fault}");
    }
}

/// For each kernel, what the loader finds.
#[test]
fn a_required_target_may_have_generic_code_instead() {
    let tree = Tree::new();
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, ["gfx11-generic", "gfx1101"].map(|id| code(id, "add")))
        .wrapper(Storage::Plain, ["gfx11-generic", "gfx942"].map(|id| code(id, "mul")));
    library.build(&tree.path(BINARY)).unwrap();
    fs::copy(tree.path(BINARY), tree.path("fat.so")).unwrap();
    install(&InstallOptions::new(tree.root(), "vec", [BINARY]), &()).unwrap();
    for gpu in ["gfx1100", "gfx1101"] {
        let report = check_with(&tree, "lib", None, &[gpu]);
        assert_eq!(faults(&report), [""; 0], "{gpu}");
        let report = check_with(&tree, BINARY, Some("fat.so"), &[gpu]);
        assert_eq!(faults(&report), [""; 0], "{gpu}");
    }
    let report = check_with(&tree, "lib", None, &["gfx1200"]);
    assert_found(&report, &["missing-target", "gfx1200"]);

    // When the generic code is lost, then the GPU without its own has none.
    fs::remove_file(tree.path("lib/.kpack/vec_lib_gfx11-generic.kpack")).unwrap();
    let report = check_with(&tree, "lib", None, &["gfx1100"]);
    assert_found(&report, &["an archive for gfx11-generic", "missing-archive"]);
}

#[test]
fn generic_code_alone_is_enough() {
    let tree = Tree::new();
    let library = FatLibrary::new().wrapper(Storage::Plain, [code("gfx11-generic", "add")]);
    for path in [BINARY, "artifact/vec/stage/lib/libvec.so"] {
        library.build(&tree.path(path)).unwrap();
    }
    fs::write(tree.path("artifact/artifact_manifest.txt"), "vec/stage\n").unwrap();
    install(&InstallOptions::new(tree.root(), "vec", [BINARY]), &()).unwrap();
    let options = split::Options::new(tree.path("artifact"), tree.path("out"), "vec_lib");
    split::split(&options, &()).unwrap();
    for path in ["lib", BINARY, "out"] {
        let report = check_with(&tree, path, None, &["gfx1100"]);
        assert_eq!(faults(&report), [""; 0], "{path}");
        // HIP runtimes take other generic code for it.
        let report = check_with(&tree, path, None, &["gfx1200"]);
        assert_ne!(faults(&report), [""; 0], "{path}");
    }
}
