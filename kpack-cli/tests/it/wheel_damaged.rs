//! Given wheels that somebody damaged, or made to harm whoever reads them, when they are split or described,
//! then that ends with an error or a result, and an error leaves nothing behind.

use std::fs;
use std::io::{Cursor, Write};
use std::process::Command;

use kpack_core::ids;
use kpack_split::Error;
use kpack_tests::fixture::{Wheel, add_and_mul};
use kpack_tests::process;
use kpack_tests::tree::Tree;
use kpack_wheel::{Options, VerifyOptions, describe, split, verify};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

const FAT: &str = "vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";

/// The number of threads that read damaged copies.
const THREADS: u64 = 4;

fn binary() -> Vec<u8> {
    add_and_mul(["gfx942", "gfx90a"], ["gfx942", "gfx90a"]).bytes()
}

fn wheel() -> Wheel {
    Wheel::new(FAT).member("vec/__init__.py", "answer = 42\n").member("vec/_vec.so", binary())
}

/// Damages some bytes of a file, most often near its end.
fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..=random.usize(..3) {
        let near = [bytes.len(), bytes.len().min(1200)][random.usize(..2)];
        let at = bytes.len() - near + random.usize(..=near);
        let end = bytes.len().min(at + 1 + random.usize(..16));
        match random.usize(..5) {
            0 => bytes.truncate(at),
            1 => bytes[at..end].fill([0, 0xff, 0x7f][random.usize(..3)]),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                let to = random.usize(..=bytes.len());
                bytes.splice(to..to, copy);
            }
            _ if at < end => bytes[at] ^= 1 << random.usize(..8),
            _ => {}
        }
    }
}

/// Replaces a part of a text by something odd.
fn mangle(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let at = random.usize(..=bytes.len());
    let end = bytes.len().min(at + random.usize(..12));
    let odd: &[&[u8]] = &[
        b"\n",
        b"\n\n",
        b"\r",
        b": ",
        b"\"",
        b",",
        b"\0",
        b"\xff",
        b"\x1b[31m",
        b"../",
        b"\\",
        b"(",
        b"\nRequires-Dist: ",
        b"\nProvides-Extra: device-all",
        b"\nName: ",
        b" ; extra == 'a'",
        b"1!0",
    ];
    let odd = random.choice(odd).unwrap();
    bytes.splice(at..end, odd.iter().copied());
}

/// The members of a wheel.
fn members(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut zip = ZipArchive::new(Cursor::new(bytes)).unwrap();
    let all = 0..zip.len();
    let read = all.map(|index| {
        let mut member = zip.by_index(index).unwrap();
        let mut bytes = Vec::new();
        std::io::copy(&mut member, &mut bytes).unwrap();
        (member.name().unwrap().into_owned(), bytes)
    });
    read.collect()
}

/// A ZIP archive of these members.
fn zipped(members: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in members {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Reads a wheel in each way. Whether it was split.
fn read(tree: &Tree, bytes: &[u8]) -> bool {
    let (fat, out) = (tree.path(FAT), tree.path("out"));
    fs::write(&fat, bytes).unwrap();
    let _ = describe(std::slice::from_ref(&fat));
    let _ = verify(std::slice::from_ref(&fat), &VerifyOptions::default());
    let is_split = split(&Options::new([&fat], &out), &()).is_ok();
    assert_eq!(out.exists(), is_split);
    if is_split {
        fs::remove_dir_all(&out).unwrap();
    }
    is_split
}

#[test]
fn no_damage_makes_kpack_panic_or_leave_something() {
    damaged_copies(2_000);
}

mod faults {
    mod extra {
        #[test]
        #[ignore = "needs minutes"]
        fn no_damage_makes_kpack_panic_or_leave_something() {
            super::super::damaged_copies(100_000);
        }
    }
}

fn damaged_copies(number: u64) {
    let bytes = wheel().bytes().unwrap();
    let members = members(&bytes);
    let stored = zipped(&members, CompressionMethod::Stored);
    assert!(read(&Tree::new(), &stored));
    let damaged = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        match seed % 4 {
            0 => {
                let mut members = members.clone();
                // Few are split, which ends with a wait for the disk.
                if !seed.is_multiple_of(32) {
                    members.retain(|(name, _)| name != "vec/_vec.so");
                }
                let texts = members.len() - 3..members.len();
                let text = texts.start + random.usize(..texts.len());
                mangle(&mut members[text].1, &mut random);
                zipped(&members, CompressionMethod::Stored)
            }
            kind => {
                let mut copy = [&bytes, &stored][kind as usize % 2].clone();
                damage(&mut copy, &mut random);
                copy
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let damaged = &damaged;
            scope.spawn(move || {
                let tree = Tree::new();
                for seed in (thread..number).step_by(THREADS as usize) {
                    read(&tree, &damaged(seed));
                }
            });
        }
    });
}

/// Checks that splitting and verifying a wheel fail, saying `expected`.
fn rejected(bytes: &[u8], expected: &str) {
    let tree = Tree::new();
    let fat = tree.path(FAT);
    fs::write(&fat, bytes).unwrap();
    let error = split(&Options::new([&fat], tree.path("out")), &()).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
    assert!(!tree.path("out").exists());
    let report = verify(&[fat], &VerifyOptions::default()).unwrap();
    let mut texts = report.findings.iter().map(|check| &check.text);
    assert!(texts.any(|text| text.contains(expected)), "{:?}", report.findings);
}

/// The wheel with this METADATA after its first fields.
fn with_metadata(more: &str) -> Vec<u8> {
    let version = "Version: 1.0\n";
    let wheel = wheel().in_metadata(version, &format!("{version}{more}"));
    wheel.bytes().unwrap()
}

#[test]
fn requirements_that_no_parser_reads_are_rejected() {
    let nested = |count| format!("Requires-Dist: a ; {}\n", "(".repeat(count));
    rejected(&with_metadata(&nested(200_000)), "more than 100 parentheses");
    rejected(&with_metadata(&nested(100)), "`Requires-Dist: a ; ((((");
    rejected(&with_metadata("Requires-Dist: !\n"), "`Requires-Dist: !`");
    rejected(&with_metadata("Requires-Dist: a- >=1\n"), "`a-` is not a name");
    rejected(&with_metadata("Requires-Dist: a [b, c.]\n"), "`c.` is not a name");
}

#[test]
fn more_extras_than_there_are_gpus_are_a_fault() {
    let tree = Tree::new();
    let fields = (0..100_000)
        .map(|n| format!("Provides-Extra: device-{n}\nRequires-Dist: a ; extra == 'device-{n}'\n"));
    let fat = tree.path(FAT);
    fs::write(&fat, with_metadata(&String::from_iter(fields))).unwrap();
    let report = verify(&[fat], &VerifyOptions::default()).unwrap();
    let text = &report.findings[0].text;
    assert!(text.contains("more than 1000 extras"), "{text}");
}

#[test]
fn a_field_with_many_lines_is_read_once() {
    let tree = Tree::new();
    let lines = " a\n".repeat(1_000_000);
    assert!(read(&tree, &with_metadata(&format!("Summary: s\n{lines}"))));
}

#[test]
fn names_that_are_not_unicode_are_rejected() {
    let mut bytes = wheel().member("vec/caf_.py", "").bytes().unwrap();
    let name = b"vec/caf_.py";
    for at in 0..bytes.len() - name.len() {
        if bytes[at..].starts_with(name) {
            bytes[at + 7] = 0x82;
        }
    }
    rejected(&bytes, "the name is not UTF-8");
}

#[test]
fn names_that_the_zip_directory_does_not_mark_as_utf_8_are_rejected() {
    let name = "vec/café.py";
    let mut bytes = wheel().member(name, "").bytes().unwrap();
    // The mark is a bit of the flags in the member's header, and of those in the directory.
    for (magic, flags, header) in [(b"PK\x03\x04", 6, 30), (b"PK\x01\x02", 8, 46)] {
        for at in 0..bytes.len() - header {
            if bytes[at..].starts_with(magic) && bytes[at + header..].starts_with(name.as_bytes()) {
                bytes[at + flags + 1] &= !8;
            }
        }
    }
    rejected(&bytes, "the name is not marked as UTF-8");
}

#[test]
fn members_that_cannot_be_installed_together_are_rejected() {
    for (one, other, expected) in [
        ("vec/a", "vec-1.0.data/platlib/vec/a/b", "a file and a directory"),
        ("vec/a", "vec-1.0.data/purelib/vec/a", "at the same path"),
        ("vec-1.0.data/data/a/b", "vec-1.0.data/data/a", "a file and a directory"),
    ] {
        let wheel = wheel().member(one, "1").member(other, "2");
        rejected(&wheel.bytes().unwrap(), expected);
    }
}

/// Installers stop at such members, or disagree about their places.
#[test]
fn members_that_an_installer_would_reject_are_named() {
    let other = "some installers take `other-9.data` for the wheel's data directory";
    let unknown = "installers do not know where to put it";
    let members = [
        ("other-9.data/platlib/o/_vec.so", other),
        ("notes.data", "some installers take `notes.data`"),
        ("VEC-1.0.data/platlib/a", "some installers take `VEC-1.0.data`"),
        ("vec-1.0.data/.kpack/a", unknown),
        ("vec-1.0.data/notes", unknown),
        (
            "vec-1.0.data/purelib/vec-1.0.dist-info/RECORD.jws",
            "would be installed into vec-1.0.dist-info",
        ),
    ];
    for (member, expected) in members {
        rejected(&wheel().member(member, "").bytes().unwrap(), expected);
    }
    // Then `verify` names all of them.
    let tree = Tree::new();
    let bad = members.iter().fold(wheel(), |wheel, (member, _)| wheel.member(member, ""));
    let path = bad.write(tree.root()).unwrap();
    let report = verify(&[path], &VerifyOptions::default()).unwrap();
    for (member, _) in members {
        let is_about = |text: &str| text.starts_with(&format!("member `{member}`: "));
        let mut faults = report.findings.iter().filter(|finding| is_about(&finding.text));
        assert!(faults.next().is_some_and(|f| f.id == ids::DAMAGED_WHEEL), "{member}");
    }
}

#[test]
fn directories_that_are_no_directories_are_rejected() {
    rejected(&wheel().directory("vec/__init__.py").bytes().unwrap(), "a file and a directory");
    rejected(&wheel().directory("vec/_vec.so/a").bytes().unwrap(), "a file and a directory");
    let mut members = members(&wheel().bytes().unwrap());
    members.push(("vec/notes/".to_owned(), b"contents".to_vec()));
    rejected(&zipped(&members, CompressionMethod::Stored), "a directory with contents");
}

#[test]
fn metadata_that_contradicts_itself_is_rejected() {
    rejected(&with_metadata("Version: 2.0\n"), "has the field `Version` more than once");
    rejected(&with_metadata("name: other\n"), "has the field `Name` more than once");
    let twice = wheel().in_wheel("Root-", "Root-Is-Purelib: true\nRoot-");
    rejected(&twice.bytes().unwrap(), "has the field `Root-Is-Purelib` more than once");
}

/// A line break in a name neither moves the ID nor begins another message.
#[test]
fn the_id_ends_a_message_with_a_line_break_in_a_name() {
    let tree = Tree::new();
    for name in ["vec/a\nb/../c", "vec/a\n  b/../c"] {
        let path = wheel().member(name, "").write(tree.root()).unwrap();
        let error = split(&Options::new([path], tree.path("out")), &()).unwrap_err();
        let said = error.in_one_line();
        assert!(said.contains("a\\n") && said.ends_with("[damaged-wheel]"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn an_offset_that_no_file_has_is_damage() {
    let mut bytes = wheel().bytes().unwrap();
    let find = |bytes: &[u8], magic: &[u8]| bytes.windows(4).rposition(|part| part == magic);
    // A field of ZIP64 places the last member at 2⁶³ + 5.
    let entry = find(&bytes, b"PK\x01\x02").unwrap();
    let mut field = vec![1, 0, 8, 0];
    field.extend((u64::MAX / 2 + 6).to_le_bytes());
    let name = usize::from(bytes[entry + 28]);
    bytes[entry + 30] += field.len() as u8;
    bytes[entry + 42..entry + 46].fill(0xff);
    bytes.splice(entry + 46 + name..entry + 46 + name, field);
    let end = find(&bytes, b"PK\x05\x06").unwrap();
    let size = u32::from_le_bytes(bytes[end + 12..end + 16].try_into().unwrap());
    bytes[end + 12..end + 16].copy_from_slice(&(size + 12).to_le_bytes());
    rejected(&bytes, "not a ZIP archive that kpack can read");
}

#[test]
fn a_wheel_that_would_fill_the_disk_is_rejected() {
    let mut bytes = wheel().member("vec/zeros", vec![0; 100_000]).bytes().unwrap();
    // Both the member and the directory say that it is 4 GB.
    let size = 100_000_u32.to_le_bytes();
    for at in 0..bytes.len() - 4 {
        if bytes[at..].starts_with(&size) {
            bytes[at..at + 4].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
        }
    }
    rejected(&bytes, "expected at most 1032 times");
}

#[test]
fn device_wheels_of_one_name_are_a_usage_error() {
    let tree = Tree::new();
    let fat = wheel().write(&tree.path("dist")).unwrap();
    let other = tree.path("dist").join(FAT.replace("vec", "Vec"));
    let bytes = members(&fs::read(&fat).unwrap());
    fs::write(&other, zipped(&bytes, CompressionMethod::Stored)).unwrap();
    let error = split(&Options::new([fat, other], tree.path("out")), &()).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    assert!(error.to_string().contains("two wheels would be named"), "{error}");
    assert!(!tree.path("out").exists());
}

#[test]
fn sets_of_several_versions_and_builds_verify_together() {
    let tree = Tree::new();
    let wheels = ["1.0", "2.0", "2.0-1"].map(|version| {
        let fat = Wheel::new(&FAT.replace("1.0", version)).member("vec/_vec.so", binary());
        fat.write(&tree.path("dist")).unwrap()
    });
    let report = split(&Options::new(wheels, tree.path("out")), &()).unwrap();
    let written: Vec<_> = report.wheels.into_iter().map(|wheel| wheel.path).collect();
    let report = verify(&written, &VerifyOptions::default()).unwrap();
    let faults = report.count(kpack_core::Severity::Fault);
    assert_eq!(faults, 0, "{:?}", report.findings);
}

/// RECORD of the wheel, whose rows have no hashes.
fn rows() -> Vec<String> {
    let members = [
        "vec/__init__.py",
        "vec/_vec.so",
        "vec-1.0.dist-info/METADATA",
        "vec-1.0.dist-info/WHEEL",
        "vec-1.0.dist-info/RECORD",
    ];
    members.map(|name| format!("{name},,")).to_vec()
}

fn with_rows(rows: &[String]) -> Vec<u8> {
    let wheel = wheel().record(rows);
    wheel.bytes().unwrap()
}

#[test]
fn wheels_that_contradict_their_record_are_rejected() {
    assert!(read(&Tree::new(), &with_rows(&rows())));
    let mut fewer = rows();
    fewer.remove(0);
    rejected(&with_rows(&fewer), "`vec/__init__.py`: RECORD does not list it");
    rejected(&with_rows(&["vec-1.0.dist-info/RECORD,,".to_owned()]), "RECORD does not list it");
    for more in ["vec/none.py", "../none.py", "/etc/passwd", "vec/../vec/__init__.py", ""] {
        let mut rows = rows();
        rows.push(format!("\"{more}\",,"));
        rejected(&with_rows(&rows), &format!("lists `{more}`, which is not in the wheel"));
    }
}

#[test]
fn hashes_of_all_kinds_are_compared() {
    // Those of `answer = 42` and a newline, by Python's hashlib.
    let right = [
        "sha256=CndQInRPZMNShj8WXy4SWJhBmZm8V8gyBHcgNtDvay4",
        "sha384=lTR1QM759jYCrMD8d1YVUYTxWBQ2adFvUksessAF721RcFSAM4JMIKHQNFBlqn_g",
        "sha512=26UqXBHN9K-N-eVtc_Ati__fLFRoG61iJoBecS1eM8U2qlIrOBIEK9OvnzOiTWcovLQKRRGo3_MIJbk6FgIwlw",
    ];
    let with = |hash: &str| {
        let mut rows = rows();
        rows[0] = format!("vec/__init__.py,{hash},12");
        with_rows(&rows)
    };
    for hash in right {
        assert!(read(&Tree::new(), &with(hash)), "{hash}");
        let (start, end) = hash.split_at(20);
        let wrong = format!("{start}{}{}", if end.starts_with('A') { 'B' } else { 'A' }, &end[1..]);
        rejected(&with(&wrong), "RECORD has another hash");
        rejected(&with(hash.split('=').next().unwrap()), "RECORD has another hash");
    }
    rejected(&with("md5=XXXXXXXX"), "expected sha256, sha384 or sha512, found md5");
}

#[test]
fn archives_that_readers_read_differently_are_rejected() {
    let good = wheel().bytes().unwrap();
    let end = good.len() - 22;
    let size = u32::from_le_bytes(good[end + 12..end + 16].try_into().unwrap());
    let start = u32::from_le_bytes(good[end + 16..end + 20].try_into().unwrap()) as usize;
    assert_eq!(start + size as usize, end);
    let expected = "not a ZIP archive that kpack can read";
    for more in [1, 22, 5000] {
        rejected(&[&good[..], &vec![0; more]].concat(), expected);
        rejected(&[&vec![0; more], &good[..]].concat(), expected);
    }
    for wrong in [0, size - 1, size + 1, u32::MAX] {
        let mut bytes = good.clone();
        bytes[end + 12..end + 16].copy_from_slice(&wrong.to_le_bytes());
        rejected(&bytes, expected);
    }
    // An entry that is not counted: Python's zipfile goes by the size.
    let mut bytes = good.clone();
    let entry = bytes[start..end].to_vec();
    bytes.splice(end..end, entry);
    let at = bytes.len() - 22;
    bytes[at + 12..at + 16].copy_from_slice(&(2 * size).to_le_bytes());
    rejected(&bytes, expected);
    // Bytes between the members and the directory are in no member.
    let mut commented = good.clone();
    commented.extend(b"comment");
    commented[end + 20] = 7;
    assert!(read(&Tree::new(), &commented));
}

#[test]
fn names_that_no_file_can_have_are_rejected() {
    let long = format!("vec/{}", "x".repeat(300));
    rejected(&wheel().member(&long, "").bytes().unwrap(), "has 300 bytes (expected at most 255)");
    let tree = Tree::new();
    let in_the_way = wheel().member("vec/.kpack", "").write(tree.root()).unwrap();
    let error = split(&Options::new([in_the_way], tree.path("out")), &()).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("where archives need a directory"), "{error}");
    assert!(!tree.path("out").exists());
}

#[test]
fn libraries_that_another_tool_split_are_named() {
    use kpack_split::install::{InstallOptions, install};
    // Given wheels with a split library, without its archives and with them.
    let tree = Tree::new();
    tree.write("site/vec/_vec.so", binary());
    let mut options = InstallOptions::new(tree.path("site"), "vec", ["vec/_vec.so"]);
    options.kpack_dir = "vec/.kpack".into();
    install(&options, &()).unwrap();
    let file = |path: &str| fs::read(tree.path("site").join(path)).unwrap();
    let without = Wheel::new(FAT).member("vec/_vec.so", file("vec/_vec.so"));
    let with = ["vec_lib_gfx942.kpack", "vec_lib_gfx90a.kpack", "vec_lib.kpm"]
        .iter()
        .map(|name| format!("vec/.kpack/{name}"))
        .fold(without.clone(), |wheel, path| wheel.member(&path, file(&path)));
    for (wheel, expected) in [
        (without, "the wheel has no archives at `.kpack/vec_lib_@GFXARCH@.kpack`"),
        (with, "its archives are in the wheel"),
    ] {
        let bytes = wheel.bytes().unwrap();
        // Then each command names the library, and says what is missing and what to do.
        if expected.starts_with("its archives") {
            assert!(read(&Tree::new(), &bytes))
        } else {
            rejected(&bytes, "member `vec/_vec.so`: split by another tool")
        }
        let path = tree.path(FAT);
        fs::write(&path, &bytes).unwrap();
        let shown = &describe(std::slice::from_ref(&path)).unwrap()[0].findings;
        assert_eq!(shown.len(), 1);
        assert_eq!(shown[0].id, ids::SPLIT_BY_ANOTHER_TOOL);
        assert!(shown[0].text.contains(expected), "{shown:?}");
        let report = verify(&[path], &VerifyOptions::default()).unwrap();
        assert!(
            report
                .findings
                .iter()
                .any(|check| (check.id, &check.text) == (shown[0].id, &shown[0].text)),
            "{:?}",
            report.findings
        );
        assert_eq!(
            report.findings.iter().filter(|check| check.text.contains("host wheel")).count(),
            0,
            "{:?}",
            report.findings
        );
    }
}

/// Given little memory, when a wheel is split, then that succeeds, is an error or aborts, and never panics or hangs.
#[test]
fn little_memory_is_an_error() {
    let tree = Tree::new();
    let members = (0..64).fold(wheel(), |wheel, n| {
        wheel.member(&format!("vec/{n}.py"), format!("x = {n}\n").repeat(2000))
    });
    members.write(tree.root()).unwrap();
    let mut codes = std::collections::BTreeSet::new();
    for kilobytes in (12 << 10..120 << 10).step_by(1 << 10) {
        let script = format!(
            "ulimit -v {kilobytes}; exec timeout -s KILL 300 {} wheel split {FAT} --quiet --output-dir out",
            env!("CARGO_BIN_EXE_kpack")
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(tree.root());
        let run = shell.env("RUST_BACKTRACE", "0").output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        // 127: it was not loaded. 134, or none: it was aborted.
        let code = run.status.code();
        assert!(
            matches!(code, None | Some(0 | 4 | 127 | 134)),
            "{kilobytes} KB: {:?}: {said}",
            run.status
        );
        assert!(!said.contains("panicked"), "{kilobytes} KB: {said}");
        if code == Some(4) {
            assert!(said.contains("kpack: error: "), "{kilobytes} KB: {said}");
        }
        codes.insert(code);
        let _ = fs::remove_dir_all(tree.path("out"));
    }
    assert!(codes.contains(&Some(0)), "{codes:?}");
    eprintln!("exit codes: {codes:?}");
}

/// Given a wheel without a split library, and no place for scratch files, when it is described, then nothing is unpacked.
#[test]
fn describing_a_wheel_that_was_not_split_unpacks_nothing() {
    let tree = Tree::new();
    wheel().write(tree.root()).unwrap();
    let mut show = Command::new(env!("CARGO_BIN_EXE_kpack"));
    show.args(["wheel", "show", FAT]).current_dir(tree.root());
    let shown = process::try_run(show.env("TMPDIR", "/nonexistent")).unwrap();
    assert!(shown.contains("vec 1.0"), "{shown}");
}

/// A host wheel whose extra asks for a device wheel by `pin`, and the device wheel, which requires `host`.
fn set(pin: &str, host: &str) -> (Wheel, Wheel) {
    let requires = |pin: &str, extra: &str| format!("{pin} ; extra == '{extra}'");
    let of_host = wheel()
        .field("Provides-Extra", "device-gfx942")
        .field("Provides-Extra", "device-all")
        .field("Requires-Dist", &requires(pin, "device-gfx942"))
        .field("Requires-Dist", &requires(pin, "device-all"));
    let device = FAT.replace("vec-", "vec_device_gfx942-");
    (of_host, Wheel::new(&device).field("Requires-Dist", host))
}

/// The IDs of what is wrong with two wheels.
fn wrong((host, device): (Wheel, Wheel)) -> Vec<kpack_core::Id> {
    let tree = Tree::new();
    let wheels = [host, device].map(|wheel| wheel.write(tree.root()).unwrap());
    let found = verify(&wheels, &VerifyOptions::default()).unwrap().findings;
    let faults = found.into_iter().filter(|found| found.severity == kpack_core::Severity::Fault);
    faults.map(|found| found.id).collect()
}

/// Installers would take a device wheel of another build.
#[test]
fn pins_that_are_not_exact() {
    let (exact, host) = ("vec-device-gfx942==1.0", "vec==1.0");
    assert!(!wrong(set(exact, host)).contains(&ids::WRONG_PIN));
    for (pin, host) in
        [("vec-device-gfx942==2.0", host), (exact, "vec==2.0"), (exact, "other==1.0")]
    {
        assert!(wrong(set(pin, host)).contains(&ids::WRONG_PIN), "{pin}, {host}");
    }
}

/// The second one to be installed would replace the file.
#[test]
fn two_wheels_with_one_file() {
    for member in ["vec/__init__.py", "vec/__init__.py/more"] {
        let (host, device) = set("vec-device-gfx942==1.0", "vec==1.0");
        let found = wrong((host, device.member(member, "")));
        assert!(found.contains(&ids::OVERLAPPING_WHEELS), "{member}: {found:?}");
    }
}
