//! Given wheels that somebody damaged, or made to harm whoever reads them, when they are split, described or verified, then
//! that ends with an error or a result, and an error leaves nothing behind.

use std::fmt::Write as _;
use std::fs;
use std::io::{Cursor, Write};

use crate::wheels::{FAT, binary_wheel, members};
use kpack_core::{Error, Finding, Severity};
use kpack_tests::fixture::Wheel;
use kpack_tests::tree::Tree;
use kpack_wheel::{Options, VerifyOptions, describe, split, verify};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// The number of threads that read damaged copies.
const THREADS: u64 = 4;

/// A ZIP archive of these members.
fn zipped(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in members {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// The faults among what was found, without those of any fat wheel that a fixture made.
fn faults(found: &[Finding]) -> Vec<String> {
    let usual = [
        "RECORD has no hash of",
        "no host wheel with the extra device-all is among these",
        "not split, so there is nothing to verify",
    ];
    let is_usual = |text: &str| usual.iter().any(|usual| text.starts_with(usual));
    let faults = found.iter().filter(|found| found.severity == Severity::Fault);
    let faults = faults.filter(|found| !is_usual(&found.text));
    faults.map(|found| format!("{} [{}]", found.text, found.id)).collect()
}

/// Reads a wheel in each way. Returns why it was not split, or `None` if it was, and the faults that `verify` found.
fn read(tree: &Tree, file: &str, bytes: &[u8]) -> (Option<Error>, Vec<String>) {
    let (fat, out) = (tree.path(file), tree.path("out"));
    fs::write(&fat, bytes).unwrap();
    let _ = describe(std::slice::from_ref(&fat));
    let faults = match verify(std::slice::from_ref(&fat), &VerifyOptions::default()) {
        Ok(report) => faults(&report.findings),
        Err(error) => vec![format!("not verified: {}", error.in_one_line())],
    };
    let error = split(&Options::new([&fat], &out), &()).err();
    assert_eq!(out.exists(), error.is_none(), "{error:?}");
    if error.is_none() {
        fs::remove_dir_all(&out).unwrap();
    }
    (error, faults)
}

/// The wheel with this METADATA after its first fields.
fn metadata(more: &str) -> Wheel {
    let version = "Version: 1.0\n";
    binary_wheel().in_metadata(version, &format!("{version}{more}"))
}

/// The rows of the wheel's members in RECORD.
const ROWS: &[&str] = &[
    "vec/__init__.py,,",
    "vec/_vec.so,,",
    "vec-1.0.dist-info/METADATA,,",
    "vec-1.0.dist-info/WHEEL,,",
    "vec-1.0.dist-info/RECORD,,",
];

/// The wheel with these rows in RECORD.
fn rows(rows: impl IntoIterator<Item = &'static &'static str>) -> Wheel {
    binary_wheel().record(&Vec::from_iter(rows.into_iter().map(|row| (*row).to_owned())))
}

/// The wheel with these rows in RECORD after those of its members.
fn record(more: &'static [&'static str]) -> Wheel {
    rows(ROWS.iter().chain(more))
}

/// The wheel with this row for a member whose content is `answer = 42` and a newline.
fn row(hash_and_size: &str) -> Wheel {
    binary_wheel().row(&format!("vec/__init__.py,{hash_and_size}"))
}

/// Hashes of that member, by Python's hashlib.
const HASHES: [&str; 3] = [
    "sha256=CndQInRPZMNShj8WXy4SWJhBmZm8V8gyBHcgNtDvay4",
    "sha384=lTR1QM759jYCrMD8d1YVUYTxWBQ2adFvUksessAF721RcFSAM4JMIKHQNFBlqn_g",
    "sha512=26UqXBHN9K-N-eVtc_Ati__fLFRoG61iJoBecS1eM8U2qlIrOBIEK9OvnzOiTWcovLQKRRGo3_MIJbk6FgIwlw",
];

/// What is wrong, and a wheel with that.
fn wheels() -> Vec<(&'static str, Wheel)> {
    let nested = |count| format!("Requires-Dist: a ; {}\n", "(".repeat(count));
    let member = |name: &str| binary_wheel().member(name, "");
    let two = |one: &str, other: &str| binary_wheel().member(one, "1").member(other, "2");
    let wrong = HASHES.map(|hash| {
        let (start, end) = hash.split_at(20);
        format!("{start}{}{},12", if end.starts_with('A') { 'B' } else { 'A' }, &end[1..])
    });
    vec![
        ("a name with ..", member("vec/../../etc/passwd")),
        ("an absolute name", member("/etc/passwd")),
        ("a line break in a name", member("vec/a\nb/../c")),
        ("a line break in a name, and what looks like another message", member("vec/a\n  b/../c")),
        ("a name that no file can have", member(&format!("vec/{}", "x".repeat(300)))),
        ("a file where archives need a directory", member("vec/.kpack")),
        ("a symbolic link", binary_wheel().symlink("vec/link.so", "_vec.so")),
        ("a file that is a directory for others", binary_wheel().member("vec", "a file")),
        ("a directory that is a file", binary_wheel().directory("vec/__init__.py")),
        ("a directory in a file", binary_wheel().directory("vec/_vec.so/a")),
        ("a file in a file of data", two("vec/a", "vec-1.0.data/platlib/vec/a/b")),
        ("two members at one path", two("vec/a", "vec-1.0.data/purelib/vec/a")),
        ("a file in a file, both in data", two("vec-1.0.data/data/a/b", "vec-1.0.data/data/a")),
        // Installers stop at such members, or disagree about their places.
        ("another wheel's data", member("other-9.data/platlib/o/_vec.so")),
        ("a file that is called like data", member("notes.data")),
        ("data with a name in capitals", member("VEC-1.0.data/platlib/a")),
        ("data for a place that is not known", member("vec-1.0.data/.kpack/a")),
        ("a file of data", member("vec-1.0.data/notes")),
        ("data in metadata", member("vec-1.0.data/purelib/vec-1.0.dist-info/RECORD.jws")),
        (
            "several of these",
            member("other-9.data/platlib/o/_vec.so")
                .member("notes.data", "")
                .member("vec-1.0.data/.kpack/a", "")
                .member("vec-1.0.data/purelib/vec-1.0.dist-info/RECORD.jws", ""),
        ),
        ("other metadata", member("other-1.0.dist-info/METADATA")),
        ("another version of the format", binary_wheel().in_wheel("Version: 1.0", "Version: 2.0")),
        ("another name in METADATA", binary_wheel().in_metadata("Name: vec", "Name: other")),
        ("two versions", metadata("Version: 2.0\n")),
        ("two names", metadata("name: other\n")),
        ("two answers in WHEEL", binary_wheel().in_wheel("Root-", "Root-Is-Purelib: true\nRoot-")),
        ("many parentheses", metadata(&nested(200_000))),
        ("open parentheses", metadata(&nested(100))),
        ("no requirement", metadata("Requires-Dist: !\n")),
        ("a requirement that ends with a hyphen", metadata("Requires-Dist: a- >=1\n")),
        ("an extra that ends with a dot", metadata("Requires-Dist: a [b, c.]\n")),
        ("no device code", Wheel::new(FAT).member("vec/__init__.py", "")),
        ("a RECORD of itself", binary_wheel().record(&["vec-1.0.dist-info/RECORD,,".to_owned()])),
        ("a RECORD without the row of a module", rows(&ROWS[1..])),
        ("a RECORD with a file that is missing", record(&["vec/none.py,,"])),
        ("a RECORD with a missing file elsewhere", record(&["../none.py,,"])),
        ("a RECORD with an absolute path", record(&["/etc/passwd,,"])),
        ("a RECORD with another name for a member", record(&["vec/../vec/__init__.py,,"])),
        ("a RECORD with an empty name", record(&["\"\",,"])),
        ("another size", row(",4")),
        ("another SHA-256", row(&wrong[0])),
        ("another SHA-384", row(&wrong[1])),
        ("another SHA-512", row(&wrong[2])),
        ("an empty SHA-256", row("sha256,12")),
        ("an empty SHA-384", row("sha384,12")),
        ("an empty SHA-512", row("sha512,12")),
        ("a weak hash", row("md5=XXXXXXXX,12")),
    ]
}

/// The bytes with each `from` replaced.
fn replaced(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    bytes
}

/// The bytes, in which `change` changed each header of a member, and each entry of the directory, for a name that begins so.
/// It gets the place of the flags.
fn with_headers(mut bytes: Vec<u8>, name: &str, change: impl Fn(&mut [u8])) -> Vec<u8> {
    for (magic, flags, header) in [(b"PK\x03\x04", 6, 30), (b"PK\x01\x02", 8, 46)] {
        for at in 0..bytes.len() - header {
            if bytes[at..].starts_with(magic) && bytes[at + header..].starts_with(name.as_bytes()) {
                change(&mut bytes[at + flags..]);
            }
        }
    }
    bytes
}

/// The wheel, whose last member is at 2⁶³ + 5, as a field of ZIP64 says.
fn far_member() -> Vec<u8> {
    let mut bytes = binary_wheel().bytes().unwrap();
    let find = |bytes: &[u8], magic: &[u8]| bytes.windows(4).rposition(|part| part == magic);
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
    bytes
}

/// What is wrong, and a ZIP archive with that.
fn archives() -> Vec<(&'static str, Vec<u8>)> {
    let good = binary_wheel().bytes().unwrap();
    let end = good.len() - 22;
    let u32_at = |at: usize| u32::from_le_bytes(good[at..at + 4].try_into().unwrap());
    let (size, start) = (u32_at(end + 12), u32_at(end + 16) as usize);
    assert_eq!(start + size as usize, end);
    let directory_size = |mut bytes: Vec<u8>, size: u32| {
        let end = bytes.len() - 22;
        bytes[end + 12..end + 16].copy_from_slice(&size.to_le_bytes());
        bytes
    };
    let before = |count| [&vec![0; count], &good[..]].concat();
    let after = |count| [&good[..], &vec![0; count]].concat();
    let accented = binary_wheel().member("vec/café.py", "").bytes().unwrap();
    let zeros = binary_wheel().member("vec/zeros", vec![0; 100_000]).bytes().unwrap();
    let mut with_contents = Vec::from_iter(contents(&good));
    with_contents.push(("vec/notes/".to_owned(), b"contents".to_vec()));
    vec![
        (
            "two members of one name",
            replaced(
                binary_wheel().member("vec/__double.py", "").bytes().unwrap(),
                b"vec/__double.py",
                b"vec/__init__.py",
            ),
        ),
        (
            "a name that is not Unicode",
            replaced(
                binary_wheel().member("vec/caf_.py", "").bytes().unwrap(),
                b"vec/caf_.py",
                b"vec/caf\x82.py",
            ),
        ),
        (
            "a name that is not marked as UTF-8",
            with_headers(accented, "vec/café.py", |flags| flags[1] &= !8),
        ),
        ("encrypted members", with_headers(good.clone(), "", |flags| flags[0] |= 1)),
        ("a directory with contents", zipped(&with_contents)),
        ("a member past the end of all files", far_member()),
        // Both the member and the directory say that it is 4 GB.
        (
            "a member that would fill the disk",
            replaced(zeros, &100_000_u32.to_le_bytes(), &0xffff_fff0_u32.to_le_bytes()),
        ),
        ("nothing", Vec::new()),
        ("the first 1000 bytes", good[..1000].to_vec()),
        ("1 byte after it", after(1)),
        ("22 bytes after it", after(22)),
        ("5000 bytes after it", after(5000)),
        ("1 byte before it", before(1)),
        ("22 bytes before it", before(22)),
        ("5000 bytes before it", before(5000)),
        ("a directory of 0 bytes", directory_size(good.clone(), 0)),
        ("a directory that is a byte smaller", directory_size(good.clone(), size - 1)),
        ("a directory that is a byte larger", directory_size(good.clone(), size + 1)),
        ("a directory of 4 GB", directory_size(good.clone(), u32::MAX)),
        // Python's zipfile goes by the size.
        (
            "an entry that is not counted",
            directory_size([&good[..end], &good[start..end], &good[end..]].concat(), 2 * size),
        ),
    ]
}

/// The members of a wheel and their bytes.
fn contents(bytes: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> + use<> {
    let tree = Tree::new();
    tree.write(FAT, bytes);
    members(&tree.path(FAT)).into_iter().map(|(name, (_, bytes))| (name, bytes))
}

/// Given a wheel with something wrong, when it is split, then it is rejected, and nothing is written; `verify` reports the
/// same, unless the wheel is merely of no use to `split`.
#[test]
fn wheels_with_something_wrong_are_rejected() {
    let bytes = |(name, wheel): (_, Wheel)| (name, FAT, wheel.bytes().unwrap());
    let mut rows = Vec::from_iter(wheels().into_iter().map(bytes));
    rows.extend(archives().into_iter().map(|(name, bytes)| (name, FAT, bytes)));
    rows.push(("a name of no wheel", "vec.whl", binary_wheel().bytes().unwrap()));
    let split_before = {
        let tree = Tree::new();
        let fat = binary_wheel().write(&tree.path("dist")).unwrap();
        let report = split(&Options::new([&fat], tree.path("out")), &()).unwrap();
        fs::read(&report.wheels.last().unwrap().path).unwrap()
    };
    rows.push(("a host wheel", FAT, split_before));
    let mut said = String::new();
    for (name, file, bytes) in rows {
        let tree = Tree::new();
        let (error, faults) = read(&tree, file, &bytes);
        let error = error.unwrap_or_else(|| panic!("{name} was split"));
        assert!(matches!(error, Error::Refused { .. }), "{name}: {error}");
        let fat = format!("{}: ", tree.path(file).display());
        let error = error.in_one_line().replace(&fat, "");
        assert_eq!(error.lines().count(), 1, "{name}: {error}");
        writeln!(said, "# {name}\nsplit:  {error}").unwrap();
        for fault in faults {
            let fault = if fault == error { "the same" } else { &fault };
            writeln!(said, "verify: {fault}").unwrap();
        }
    }
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"/\S*/\.tmp\w+/", "[scratch]/");
    settings.bind(|| insta::assert_snapshot!(said));
}

#[test]
fn wheels_that_are_only_unusual_are_split() {
    let mut commented = binary_wheel().bytes().unwrap();
    let end = commented.len() - 22;
    commented.extend(b"comment");
    commented[end + 20] = 7;
    let stored = zipped(&Vec::from_iter(contents(&binary_wheel().bytes().unwrap())));
    let with_hashes = HASHES.map(|hash| row(&format!("{hash},12")).bytes().unwrap());
    let long_field = metadata(&format!("Summary: s\n{}", " a\n".repeat(1_000_000)));
    let rows = [
        ("a comment", commented),
        ("members that are not compressed", stored),
        ("a RECORD without hashes", record(&[]).bytes().unwrap()),
        // It is read once.
        ("a field with many lines", long_field.bytes().unwrap()),
    ];
    let with_hashes = with_hashes.map(|bytes| ("a right hash", bytes));
    for (name, bytes) in rows.into_iter().chain(with_hashes) {
        let (error, _) = read(&Tree::new(), FAT, &bytes);
        assert!(error.is_none(), "{name}: {error:?}");
    }
}

#[test]
fn more_extras_than_there_are_gpus_are_a_fault() {
    let tree = Tree::new();
    let fields = (0..100_000)
        .map(|n| format!("Provides-Extra: device-{n}\nRequires-Dist: a ; extra == 'device-{n}'\n"));
    let fat = metadata(&String::from_iter(fields)).write(tree.root()).unwrap();
    let report = verify(&[fat], &VerifyOptions::default()).unwrap();
    let text = &report.findings[0].text;
    assert!(text.contains("more than 1000 extras"), "{text}");
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

#[test]
fn no_damage_makes_kpack_panic_or_leave_something() {
    damaged_copies(500);
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
    let bytes = binary_wheel().bytes().unwrap();
    let members = Vec::from_iter(contents(&bytes));
    let stored = zipped(&members);
    let damaged = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        match seed % 4 {
            0 => {
                let mut members = members.clone();
                // Few are split, which ends with a wait for the disk.
                if !seed.is_multiple_of(32) {
                    members.retain(|(name, _)| name != "vec/_vec.so");
                }
                let is_text = |(name, _): &&mut (String, _)| name.contains(".dist-info/");
                let mut texts = Vec::from_iter(members.iter_mut().filter(is_text));
                let text = random.usize(..texts.len());
                mangle(&mut texts[text].1, &mut random);
                zipped(&members)
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
                    read(&tree, FAT, &damaged(seed));
                }
            });
        }
    });
}
