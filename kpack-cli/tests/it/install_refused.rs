//! Given damaged or unsupported input, when it is installed, then an error names file and reason, and not a
//! byte of the tree changes.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::command::{command, words};
use crate::verified::assert_holds_against;
use kpack_artifact::verify;
use kpack_core::{Severity, ids};
use kpack_split::Error;
use kpack_split::install::{InstallOptions, Only, install};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, bundle, code};
use kpack_tests::require;
use kpack_tests::steps::{Steps, kill_at_steps};
use kpack_tests::tree::Tree;
use proptest::prelude::*;

fn library() -> FatLibrary {
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "add"), code("gfx942", "add")])
        .wrapper(Storage::Zstd(2), [code("gfx1100", "mul")])
}

/// Installs `bytes` as a library; on error, checks that nothing changed.
fn try_install(bytes: &[u8]) -> Result<Tree, String> {
    let tree = Tree::new();
    fs::create_dir(tree.path("lib")).unwrap();
    fs::write(tree.path("lib/libvec.so"), bytes).unwrap();
    let before = tree.snapshot_with_times();
    match install(&InstallOptions::new(tree.root(), "vec", ["lib/libvec.so"]), &()) {
        Ok(_) => Ok(tree),
        Err(error) => {
            assert_eq!(tree.snapshot_with_times(), before, "{}", error.in_one_line());
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            let text = error.in_one_line();
            assert!(text.contains("lib/libvec.so: "), "{text}");
            Err(text)
        }
    }
}

fn refused(bytes: &[u8]) -> String {
    match try_install(bytes) {
        Ok(_) => panic!("was not refused"),
        Err(text) => text,
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Offset of the header of section `name`.
fn section_header(bytes: &[u8], name: &str) -> usize {
    let table = word(bytes, 40) as usize;
    let names_index = usize::from(u16::from_le_bytes([bytes[62], bytes[63]]));
    let names = word(bytes, table + names_index * 64 + 24) as usize;
    let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    let named = |header: &usize| {
        let at =
            names + u32::from_le_bytes(bytes[*header..*header + 4].try_into().unwrap()) as usize;
        bytes[at..].starts_with(&[name.as_bytes(), b"\0"].concat())
    };
    (0..count).map(|index| table + index * 64).find(named).unwrap()
}

#[test]
fn a_file_that_is_truncated_anywhere() {
    let bytes = library().bytes();
    let mut cuts: Vec<usize> = (0..bytes.len()).step_by(977).collect();
    cuts.extend([1, 16, 63, 64, 65, bytes.len() - 1]);
    for cut in cuts {
        let text = refused(&bytes[..cut]);
        assert!(!text.is_empty(), "{cut}");
    }
}

/// What is truncated may be all that the prefix has.
#[test]
fn a_truncated_file_with_device_code_among_all_binaries() {
    let tree = Tree::new();
    let path = tree.path("lib/libvec.so");
    library().build(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let mut options = InstallOptions::new(tree.root(), "vec", [""; 0]);
    options.all = true;
    // Given a library that ends anywhere after the begin of its device code,
    let end = bytes.len();
    for cut in [end * 3 / 4, end - 1] {
        fs::write(&path, &bytes[..cut]).unwrap();
        let before = tree.snapshot_with_times();
        // when all binaries are installed, then it is an error, and not passed over.
        let error = install(&options, &()).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let text = error.in_one_line();
        assert!(text.contains("libvec.so: "), "{text}");
        assert_eq!(tree.snapshot_with_times(), before);
    }
    // A text is no binary.
    fs::write(&path, "no library").unwrap();
    install(&options, &()).unwrap();
}

#[test]
fn other_files_and_other_machines() {
    assert!(refused(b"#!/bin/sh\necho\n").contains("[unknown-file]"));
    assert!(refused(b"").contains("[unknown-file]"));
    let bytes = library().bytes();
    let mut other = bytes.clone();
    other[18] = 243; // EM_RISCV
    let text = refused(&other);
    assert!(text.contains("AArch64 (183) or ppc64le (21), found e_machine 243"), "{text}");
    let mut other = bytes.clone();
    other[4] = 1; // ELFCLASS32
    assert!(refused(&other).contains("[unsupported-binary]"));
    let mut other = bytes;
    other[16] = 4; // ET_CORE
    assert!(refused(&other).contains("e_type"));
}

#[test]
fn no_section_headers() {
    let mut bytes = library().bytes();
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let text = refused(&bytes);
    assert!(text.contains("no section headers, which kpack needs to find device code"), "{text}");
}

#[test]
fn a_relocation_into_the_device_code() {
    let bytes = library().flag("-Wl,-z,nopack-relative-relocs").bytes();
    let rela = section_header(&bytes, ".rela.dyn");
    let (offset, size) = (word(&bytes, rela + 24) as usize, word(&bytes, rela + 32) as usize);
    let fat = section_header(&bytes, ".hip_fatbin");
    let wrappers = word(&bytes, section_header(&bytes, ".hipFatBinSegment") + 16);
    // The first relative relocation that is not of a wrapper.
    let entry = (offset..offset + size).step_by(24).find(|at| {
        let address = word(&bytes, *at);
        word(&bytes, at + 8) == 8 && !(wrappers..wrappers + 100).contains(&address)
    });
    let entry = entry.unwrap();
    let inside = word(&bytes, fat + 16) + 0x30;
    let mut into = bytes.clone();
    into[entry + 16..entry + 24].copy_from_slice(&inside.to_le_bytes());
    let text = refused(&into);
    assert!(text.contains(&format!("points to {inside:#x} inside `.hip_fatbin`")), "{text}");
    let mut applied = bytes;
    applied[entry..entry + 8].copy_from_slice(&inside.to_le_bytes());
    let text = refused(&applied);
    assert!(
        text.contains(&format!("applies to address {inside:#x} inside `.hip_fatbin`")),
        "{text}"
    );
}

#[test]
fn device_code_that_no_wrapper_has() {
    let mut bytes = library().bytes();
    let fat = section_header(&bytes, ".hip_fatbin");
    let end = (word(&bytes, fat + 24) + word(&bytes, fat + 32)) as usize;
    // The last bundle is compressed, and padding follows the first.
    let first_size =
        bundle(Storage::Plain, &[code("gfx1100", "add"), code("gfx942", "add")]).unwrap().len();
    let at = word(&bytes, fat + 24) as usize + first_size + 3;
    assert!(at < end && bytes[at] == 0);
    bytes[at] = 1;
    let text = refused(&bytes);
    assert!(
        text.contains(&format!("file offset {at:#x} of the device code"))
            && text.contains("[unaccounted-code]"),
        "{text}"
    );
}

#[test]
fn a_code_object_for_another_target_than_its_entry_says() {
    let mislabelled = ("gfx942".to_owned(), code("gfx1100", "add").1);
    let text = refused(&FatLibrary::new().wrapper(Storage::Plain, [mislabelled]).bytes());
    assert!(
        text.contains("`lib/libvec.so#0` for gfx942") && text.contains("[damaged-code-object]"),
        "{text}"
    );
}

#[test]
fn sizes_that_lie() {
    let bytes = library().bytes();
    let fat = word(&bytes, section_header(&bytes, ".hip_fatbin") + 24) as usize;
    // The first entry after the host's: offset, size, length of the ID.
    let host_id = word(&bytes, fat + 48) as usize;
    let entry = fat + 56 + host_id;
    for (field, value) in [(0, u64::MAX), (8, u64::MAX), (8, 1 << 40), (16, 1 << 60)] {
        let mut lying = bytes.clone();
        lying[entry + field..entry + field + 8].copy_from_slice(&u64::to_le_bytes(value));
        let text = refused(&lying);
        assert!(
            text.contains("wrapper 0, bundle at file offset") && text.contains("[damaged-bundle]"),
            "{text}"
        );
    }
    for section in [".hip_fatbin", ".hipFatBinSegment", ".dynsym", ".rela.dyn"] {
        let header = section_header(&bytes, section);
        for field in [16, 24, 32] {
            let mut lying = bytes.clone();
            lying[header + field..header + field + 8]
                .copy_from_slice(&(u64::MAX - 7).to_le_bytes());
            refused(&lying);
        }
    }
}

#[test]
fn paths_that_leave_the_prefix() {
    let tree = library().in_tree("prefix/lib/libvec.so");
    library().build(&tree.path("outside/libvec.so")).unwrap();
    symlink(tree.path("outside/libvec.so"), tree.path("prefix/lib/link.so")).unwrap();
    symlink(tree.path("outside"), tree.path("prefix/away")).unwrap();
    let before = tree.snapshot_with_times();
    for file in ["../outside/libvec.so", "lib/link.so", "away/libvec.so"] {
        let error =
            install(&InstallOptions::new(tree.path("prefix"), "vec", [file]), &()).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.id(), ids::OUTSIDE_PREFIX, "{text}");
    }
    let mut options = InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]);
    options.kpack_dir = "away/.kpack".into();
    let error = install(&options, &()).unwrap_err();
    assert!(error.to_string().contains("outside of the install prefix"), "{error}");
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn one_bad_binary_of_several() {
    let tree = library().in_tree("lib/libgood.so");
    fs::write(tree.path("lib/libbad.so"), &library().bytes()[..5000]).unwrap();
    let before = tree.snapshot_with_times();
    let error =
        install(&InstallOptions::new(tree.root(), "vec", ["lib/libgood.so", "lib/libbad.so"]), &())
            .unwrap_err();
    assert!(error.to_string().contains("libbad.so"), "{error}");
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn what_is_missing() {
    let tree = Tree::new();
    for (prefix, file) in
        [(tree.root().to_owned(), "lib/none.so"), (tree.path("none"), "lib/none.so")]
    {
        let error = install(&InstallOptions::new(prefix, "vec", [file]), &()).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        assert!(error.in_one_line().contains("No such file"), "{}", error.in_one_line());
    }
}

/// Runs this program again, in a process with limits. It prints the error of the installation.
fn limited(tree: &Tree, shell: &str) -> (bool, String) {
    let unshare = ["--user", "--map-root-user", "--mount", "sh", "-ec", shell];
    run_again(tree, Command::new("unshare").args(unshare))
}

fn run_again(tree: &Tree, command: &mut Command) -> (bool, String) {
    let output = command
        .env("TREE", tree.root())
        .env("KPACK_TEST_INSTALL", "1")
        .env("PROGRAM", std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text + &String::from_utf8_lossy(&output.stderr))
}

/// `limited` runs this; by itself it does nothing.
#[test]
fn install_in_a_limited_process() {
    if std::env::var_os("KPACK_TEST_INSTALL").is_none() {
        return;
    }
    let prefix = std::env::var_os("TREE").unwrap();
    match install(&InstallOptions::new(prefix, "vec", ["lib/libvec.so"]), &()) {
        Err(Error::Io { path, action, source, .. }) => {
            println!("refused to {action} {}: {source}", path.display());
        }
        other => println!("{other:?}"),
    }
}

pub(crate) fn can_unshare() -> bool {
    let works = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "true"])
        .status()
        .is_ok_and(|status| status.success());
    if !works {
        require::skip("`unshare --user --mount` does not work here");
    }
    works
}

const RUN: &str = "\"$PROGRAM\" --exact install_refused::install_in_a_limited_process --nocapture";

/// A file size limit is like a full disk for one process, and needs no privileges.
#[test]
fn files_that_cannot_grow() {
    let tree = library().in_tree("lib/libvec.so");
    let before = tree.snapshot_with_times();
    // Blocks are of 512 bytes or of 1024; the host binary is larger than 8 of either.
    let shell = format!("trap '' XFSZ; ulimit -f 8; {RUN}");
    let (succeeded, text) = run_again(&tree, Command::new("sh").args(["-ec", &shell]));
    assert!(succeeded, "{text}");
    assert!(text.contains("refused to") && text.contains("File too large"), "{text}");
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn a_full_disk() {
    if !can_unshare() {
        return;
    }
    let tree = library().in_tree("lib/libvec.so");
    let shell = format!(
        "cp \"$TREE/lib/libvec.so\" \"$TREE/copy.so\"; mount -t tmpfs -o size=200k tmpfs \"$TREE/lib\"
         cp \"$TREE/copy.so\" \"$TREE/lib/libvec.so\"
         head -c 1000000 /dev/urandom > \"$TREE/lib/filler\" || true
         cp \"$TREE/lib/libvec.so\" \"$TREE/before.so\"; {RUN}
         cmp \"$TREE/lib/libvec.so\" \"$TREE/before.so\"; find \"$TREE/lib\" -type f | sort"
    );
    let (succeeded, text) = limited(&tree, &shell);
    assert!(succeeded, "{text}");
    assert!(text.contains("refused to") && text.contains("No space left on device"), "{text}");
    let left: Vec<&str> = text.lines().filter(|line| line.starts_with('/')).collect();
    assert_eq!(left.len(), 2, "{text}");
}

#[test]
fn a_read_only_disk() {
    if !can_unshare() {
        return;
    }
    let tree = library().in_tree("lib/libvec.so");
    let before = tree.snapshot_with_times();
    let shell =
        format!("mount --bind \"$TREE\" \"$TREE\"; mount -o remount,ro,bind \"$TREE\"; {RUN}");
    let (succeeded, text) = limited(&tree, &shell);
    assert!(succeeded, "{text}");
    assert!(text.contains("refused to") && text.contains("Read-only file system"), "{text}");
    assert_eq!(tree.snapshot_with_times(), before);
}

#[test]
fn packed_relocations_of_a_segment_past_the_end() {
    let mut bytes = library().flag("-Wl,-z,pack-relative-relocs").bytes();
    let (table, count) = (word(&bytes, 32) as usize, bytes[56] as usize);
    let past_the_end = (bytes.len() as u64).next_multiple_of(1 << 16);
    for at in (0..count).map(|index| table + index * 56) {
        // Each PT_LOAD that is writable.
        if word(&bytes, at) == 6 << 32 | 1 {
            let offset = word(&bytes, at + 8) + past_the_end;
            bytes[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
        }
    }
    let error = refused(&bytes);
    assert!(error.contains("[damaged-binary]"), "{error}");
}

/// Killed at any step, the tree works: each binary is whole, and finds its device code. `faults::extra::split` kills it at
/// each of them.
#[test]
fn a_run_that_is_killed() {
    if !require::tracing() {
        return;
    }
    let original = Tree::new();
    library().build(&original.path("lib/libvec.so")).unwrap();
    let fat = original.path("lib/libvec.so");
    let whole = original.copy();
    install(&InstallOptions::new(whole.root(), "vec", ["lib/libvec.so"]), &()).unwrap();
    let tree = RefCell::new(original.copy());
    kill_at_steps(
        Steps::Some,
        1,
        |_| {
            *tree.borrow_mut() = original.copy();
            let arguments = words("split --prefix . --module vec lib/libvec.so");
            command(&tree.borrow(), &arguments)
        },
        || tree.borrow().snapshot_with_times(),
        |_| {
            let tree = tree.borrow();
            let library = tree.path("lib/libvec.so");
            if fs::read(&library).unwrap() != fs::read(&fat).unwrap() {
                assert_holds_against(&library, &fat);
            }
            // And the next run makes it whole.
            install(&InstallOptions::new(tree.root(), "vec", ["lib/libvec.so"]), &()).unwrap();
            assert_eq!(tree.snapshot(), whole.snapshot());
        },
    );
}

#[test]
fn a_binary_that_is_written_to_meanwhile_is_not_replaced() {
    // The source of `--only device` is another file, and is never opened for writing.
    let tree = library().in_tree("build/libvec.so");
    fs::create_dir(tree.path("prefix")).unwrap();
    let mut options = InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]);
    options.only = Some(Only::Device);
    options.sources = vec![tree.path("build/libvec.so")];
    let lock = File::options().append(true).open(tree.path("build/libvec.so")).unwrap();
    install(&options, &()).unwrap();
    (&lock).write_all(b"").unwrap();
    assert_eq!(fs::read(tree.path("build/libvec.so")).unwrap(), library().bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A damaged library is rejected, or the result has the code objects of the input.
    #[test]
    fn flipped_bytes(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8.., 0..4), 1..3),
    ) {
        static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let bytes = BYTES.get_or_init(|| library().kind(Kind::Shared).bytes());
        let mut damaged = bytes.clone();
        // The comparison of host code trusts the section headers.
        let headers_hold = flips.iter().all(|(_, _, place)| *place != 1 && *place != 3);
        for (index, flip, place) in flips {
            let table = word(bytes, 40) as usize;
            // Where a flip matters most: headers, section headers, device code; or anywhere.
            let range = match place {
                0 => 0..1000,
                1 => table..bytes.len(),
                2 => word(bytes, section_header(bytes, ".hip_fatbin") + 24) as usize..table,
                _ => 0..bytes.len(),
            };
            let at = range.start + index.index(range.len());
            damaged[at] ^= flip;
        }
        if let Ok(tree) = try_install(&damaged) {
            let original = Tree::new();
            fs::write(original.path("fat.so"), &damaged).unwrap();
            let mut options = verify::Options::default();
            options.against = Some(original.path("fat.so"));
            let split = tree.path("lib/libvec.so");
            if tree.path("lib/.kpack").exists() {
                let report = verify::verify(&[split], &options, &()).unwrap();
                let fault = report.findings.iter().find(|check| {
                    check.severity == Severity::Fault
                        && (headers_hold || check.id != ids::HOST_DIFFERS)
                });
                prop_assert!(fault.is_none(), "{fault:#?}");
            }
        }
    }
}
