//! Directory trees, and wheels.
//!
//! The input of these targets is a list of files: each begins with a line `--- PATH`, and ends where
//! the next one begins. So a change of the bytes is a change of one file.

use std::fs;
use std::io::{Cursor, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};

use kpack_artifact::packaging::Configuration;
use kpack_artifact::recombine::{self, plan};
use kpack_artifact::split::{self, Unknown};
use kpack_artifact::verify;
use kpack_split::Error;
use kpack_store as store;
use kpack_wheel as wheel;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const SEPARATOR: &[u8] = b"\n--- ";

/// The files of a list: path and content.
fn files(bytes: &[u8]) -> Vec<(String, &[u8])> {
    let bytes = bytes.strip_prefix(&SEPARATOR[1..]).unwrap_or(bytes);
    let mut files = Vec::new();
    let mut rest = Some(bytes);
    while let Some(bytes) = rest {
        let end = bytes.windows(SEPARATOR.len()).position(|at| at == SEPARATOR);
        let file = &bytes[..end.unwrap_or(bytes.len())];
        rest = end.map(|end| &bytes[end + SEPARATOR.len()..]);
        let line = file.iter().position(|byte| *byte == b'\n');
        let (path, content) = file.split_at(line.unwrap_or(file.len()));
        let path = String::from_utf8_lossy(path).into_owned();
        files.push((path, content.get(1..).unwrap_or_default()));
    }
    files
}

/// A packaging configuration. Whether it is read.
///
/// # Panics
/// Where it has more than there are bytes.
pub fn packaging(bytes: &[u8]) -> bool {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("a temporary file");
    let Ok(configuration) = Configuration::read(file.path()) else {
        return false;
    };
    for name in configuration.overrides.keys() {
        assert!(configuration.groups_of(name).len() <= bytes.len());
    }
    assert!(configuration.unknown_keys().count() <= bytes.len());
    true
}

/// The shard of an artifact tree, which is split, and a packaging configuration, `config.json`, by which
/// that is recombined. Whether it is.
///
/// # Panics
/// Where what was written is not read, or something appears that should not.
pub fn tree(bytes: &[u8]) -> bool {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("blas_lib")).expect("a temporary directory");
    write_files(directory.path(), bytes);
    let (shards, out) = (at("shards"), at("out"));
    let mut options = split::Options::new(at("blas_lib"), shards.join("one"), "blas_lib");
    options.unknown = Unknown::Move;
    if not_io(split::split(&options, &())).is_none() {
        assert!(!at("shards/one/blas_lib_generic").exists());
        return false;
    }
    let check = |path: PathBuf| {
        let report = verify::verify(&[path], &verify::Options::default(), &());
        not_io(report).expect("what was written is read");
    };
    check(shards.join("one"));
    let Ok(configuration) = Configuration::read(&at("config.json")) else {
        return false;
    };
    let mut options = recombine::Options::new(shards, configuration, &out);
    options.jobs = std::num::NonZeroUsize::MIN;
    let Some(recombined) = not_io(plan(&options, &())) else {
        return false;
    };
    let is_there = not_io(recombined.apply(&options, &())).is_some() && out.exists();
    if is_there {
        check(out);
    }
    is_there
}

/// A store: tar archives, which are compressed, and their `index.json`; without one, it is made of them. Whether they
/// are unpacked.
///
/// # Panics
/// Where something is written outside of the output, an error leaves something behind, or what was unpacked and can
/// be packed is another artifact then.
pub fn store(bytes: &[u8]) -> bool {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("store")).expect("a temporary directory");
    for (path, content) in files(bytes) {
        let content = if path.ends_with(".tar.zst") {
            zstd::bulk::compress(content, 1).expect("there is memory")
        } else {
            content.to_vec()
        };
        if Path::new(&path).components().count() == 1 {
            write(&at("store"), Path::new(&path), &content);
        }
    }
    let one = std::num::NonZeroUsize::MIN;
    if !at("store/index.json").exists() {
        not_io(store::index(&at("store"), &store::IndexOptions::default(), one));
    }
    let mut options = store::UnpackOptions::new(at("store"), at("out"));
    options.jobs = one;
    let is_apart =
        at("store/index.json").exists() && not_io(store::unpack(&options, &())).is_some();
    options.output_dir = at("flat");
    options.flatten = true;
    let is_flat = at("store/index.json").exists() && not_io(store::unpack(&options, &())).is_some();
    let mut expected = vec!["store"];
    expected.extend(is_apart.then_some("out"));
    expected.extend(is_flat.then_some("flat"));
    let there = fs::read_dir(directory.path()).expect("a temporary directory");
    let there = there.map(|entry| entry.expect("a temporary directory").file_name());
    let mut there: Vec<_> = there.collect();
    there.sort();
    expected.sort_unstable();
    assert_eq!(there, expected, "nothing is written elsewhere");
    if is_apart
        && not_io(store::pack(&store::PackOptions::new(at("out"), at("packed")), &())).is_some()
    {
        options = store::UnpackOptions::new(at("packed"), at("again"));
        let again = store::unpack(&options, &()).expect("what was packed is unpacked");
        let packed = store::pack(&store::PackOptions::new(at("again"), at("twice")), &());
        let packed = packed.expect("what was unpacked is packed");
        assert_eq!(again.artifacts, packed.index.artifacts, "it stays the same");
    }
    is_apart
}

/// Writes the files of a list below `root`.
pub(crate) fn write_files(root: &Path, bytes: &[u8]) {
    for (path, content) in files(bytes) {
        write(root, Path::new(&path), content);
    }
}

/// Writes a file below `root`, where its path allows it.
fn write(root: &Path, path: &Path, content: &[u8]) {
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
    if path.components().all(is_name) {
        let path = root.join(path);
        let _ = fs::create_dir_all(path.parent().expect("it is below the root"));
        let _ = fs::write(path, content);
    }
}

/// A wheel, packed from its members unless the bytes are a ZIP archive; what is not rejected is split and
/// verified. Whether it is.
///
/// # Panics
/// Where an error leaves something behind, or what was written does not verify.
pub fn wheel(bytes: &[u8]) -> bool {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let fat = directory.path().join("vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl");
    let zip = if bytes.starts_with(b"PK") { Some(bytes.to_vec()) } else { zipped(&files(bytes)) };
    let Some(zip) = zip else { return false };
    fs::write(&fat, zip).expect("a temporary file");
    let out = directory.path().join("out");
    let _ = wheel::describe(std::slice::from_ref(&fat));
    let _ = wheel::verify(std::slice::from_ref(&fat), &wheel::VerifyOptions::default());
    let Some(report) = not_io(wheel::split(&wheel::Options::new([&fat], &out), &())) else {
        assert!(!out.exists(), "an error leaves nothing");
        return false;
    };
    let written: Vec<PathBuf> = report.wheels.into_iter().map(|wheel| wheel.path).collect();
    let report = wheel::verify(&written, &wheel::VerifyOptions::default());
    let report = report.expect("what was written is read");
    assert_eq!(report.count(kpack_split::Severity::Fault), 0, "{:?}", report.findings);
    true
}

fn zipped(files: &[(String, &[u8])]) -> Option<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (path, content) in files {
        zip.start_file(path, options).ok()?;
        zip.write_all(content).ok()?;
    }
    Some(zip.finish().ok()?.into_inner())
}

/// The result; `None` for a refusal.
///
/// # Panics
/// For an error of the system, which no content of a file must cause, but a name that is too long.
pub(crate) fn not_io<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::InvalidFilename => None,
        Err(error @ Error::Io { .. }) => panic!("{}", error.in_one_line()),
        result => result.ok(),
    }
}
