//! Replays the seeds of the fuzz targets, and checks for each what must hold for any bytes.
//!
//! `KPACK_WRITE_SEEDS=1 cargo test -p kpack-tests --test fuzz_seeds` writes the seeds below again. The
//! others were found by fuzzing (`docs/fuzzing.md`).

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "it is a library elsewhere")]
mod fuzz;

use std::fs;
use std::io::Cursor;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;

use kpack_format::archive::{ArchiveWriter, Encoder, Scheme};
use kpack_format::digest::sha256;
use kpack_format::marker::Marker;
use kpack_split::install::{Options, install};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, bundle, code_object};
use kpack_tests::tree::Tree;

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 6] = [
    ("archive", fuzz::archive),
    ("toc", fuzz::toc),
    ("marker", fuzz::marker),
    ("bundle", fuzz::bundle),
    ("linked", fuzz::linked),
    ("object", fuzz::object),
];

fn directory(target: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    root.join("fuzz/seeds").join(target)
}

fn archive(scheme: Scheme, kernels: &[(&str, &[u8])]) -> Vec<u8> {
    let spool = Cursor::new(Vec::new());
    let target = "gfx90a:xnack+".parse().unwrap();
    let mut writer = ArchiveWriter::new(spool, "vec_lib", &target, scheme);
    let mut encoder = Encoder::new(scheme, 3).unwrap();
    for (name, bytes) in kernels {
        let encoded = encoder.encode(bytes, sha256(bytes)).unwrap();
        writer.add(name, &encoded).unwrap();
    }
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    bytes
}

/// `bytes` with `key` replaced by a key that readers ignore.
fn without(bytes: &[u8], key: &str) -> Vec<u8> {
    let place = bytes
        .windows(key.len())
        .position(|window| window == key.as_bytes())
        .unwrap();
    let mut bytes = bytes.to_vec();
    bytes[place] ^= 0x20;
    bytes
}

/// Target, name and bytes of each seed that this test writes.
fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let kernels: [(&str, &[u8]); 3] = [
        ("lib/libvec.so#0", b"one"),
        ("lib/libvec.so#1", &[7; 2000]),
        ("lib/libvec.so#2", b"one"),
    ];
    let none = archive(Scheme::None, &kernels);
    let zstd = archive(Scheme::ZstdPerKernel, &kernels);
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, bytes: &[u8]| {
        seeds.push((target, name.to_owned(), bytes.to_vec()));
    };
    add("archive", "none", &none);
    add("archive", "zstd", &zstd);
    add(
        "archive",
        "zstd_without_frame_offsets",
        &without(&zstd, "frame_offsets"),
    );
    add(
        "archive",
        "zstd_without_checksums",
        &without(&zstd, "checksums"),
    );
    add("archive", "empty", &archive(Scheme::ZstdPerKernel, &[]));
    add("archive", "cut_off", &zstd[..zstd.len() - 9]);
    let large = archive(Scheme::ZstdPerKernel, &[("a#0", &[0; 400_000])]);
    add("archive", "several_blocks", &large);

    // Tables for the data that `with_toc` puts before them.
    let two: [(&str, &[u8]); 2] = [("lib/a.so#0", b"one"), ("lib/a.so#1", b"two!")];
    let table = |scheme| {
        let bytes = archive(scheme, &two);
        let at = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
        bytes[at..].to_vec()
    };
    add("toc", "none", &table(Scheme::None));
    let zstd = table(Scheme::ZstdPerKernel);
    add("toc", "zstd", &zstd);
    add(
        "toc",
        "zstd_without_frame_offsets",
        &without(&zstd, "frame_offsets"),
    );
    add(
        "toc",
        "unknown_keys",
        b"\x81\xa1x\x93\xc0\x81\xa1y\xc3\xcb\0\0\0\0\0\0\0\0",
    );

    let marker = Marker {
        kernel_name: Some("lib/libvec.so.1".to_owned()),
        kpack_search_paths: vec![
            ".kpack/vec_lib_@GFXARCH@.kpack".to_owned(),
            "/opt/vec/vec_lib_@GFXARCH@.kpack".to_owned(),
        ],
        ..Marker::default()
    };
    add("marker", "map", &marker.to_bytes());
    let with_ids = Marker {
        code_ids: [("gfx1100".to_owned(), *b"eight by")].into(),
        ..marker.clone()
    };
    add("marker", "code_ids", &with_ids.to_bytes());
    let mut padded = marker.to_bytes();
    padded.resize(256, 0);
    add("marker", "map_and_padding", &padded);
    add(
        "marker",
        "text",
        b"../../../.kpack:../../.kpack:.kpack\0rest",
    );
    add(
        "marker",
        "map_16",
        b"\xde\x00\x02\xabkernel_name\xa1x\xb2kpack_search_paths\xdc\x00\x01\xa1y",
    );

    let entries = ["gfx1100", "gfx90a:xnack+"].map(|target| {
        let code = code_object(target, b"vector_add").unwrap();
        (target.to_owned(), code)
    });
    for (name, storage) in [
        ("plain", Storage::Plain),
        ("zlib_1", Storage::Zlib(1)),
        ("zlib_2", Storage::Zlib(2)),
        ("zstd_2", Storage::Zstd(2)),
        ("zstd_3", Storage::Zstd(3)),
    ] {
        add("bundle", name, &bundle(storage, &entries).unwrap());
    }
    add("bundle", "code_object", &entries[0].1);

    let tree = Tree::new();
    let library = tree.path("lib/libvec.so");
    let code = entries[0].1.repeat(200);
    let small = FatLibrary::new()
        .flag("-s")
        .wrapper(Storage::Plain, [("gfx1100", code)]);
    small.build(&library).unwrap();
    add("linked", "fat", &fs::read(&library).unwrap());
    install(&Options::new(tree.root(), "vec", ["lib/libvec.so"]), &()).unwrap();
    add("linked", "split", &fs::read(&library).unwrap());

    let object = |name: &str, storage| {
        let path = tree.path(name);
        let library = FatLibrary::new().kind(Kind::Object);
        let library = library.wrapper(storage, [("gfx1100".to_owned(), entries[0].1.clone())]);
        library.build(&path).unwrap();
        fs::read(path).unwrap()
    };
    add("object", "object", &object("vec.o", Storage::Zstd(2)));
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let status = command.current_dir(tree.root()).args(arguments).status();
        assert!(status.unwrap().success());
        fs::read(tree.path(arguments[1])).unwrap()
    };
    add(
        "object",
        "static_library",
        &run("ar", &["qc", "vec.a", "vec.o"]),
    );
    add(
        "object",
        "merged",
        &run("ld", &["-o", "merged.o", "-r", "vec.o"]),
    );
    seeds
}

#[test]
fn every_seed_holds() {
    for (target, holds) in TARGETS {
        let directory = directory(target);
        if std::env::var_os("KPACK_WRITE_SEEDS").is_some() {
            fs::create_dir_all(&directory).unwrap();
            for (_, name, bytes) in seeds().iter().filter(|(of, ..)| *of == target) {
                fs::write(directory.join(name), bytes).unwrap();
            }
        }
        let mut replayed = 0;
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let held = catch_unwind(|| holds(&bytes));
            assert!(held.is_ok(), "{} does not hold", path.display());
            replayed += 1;
        }
        let made = seeds().iter().filter(|(of, ..)| *of == target).count();
        assert!(replayed >= made, "{target}: {replayed} seeds of {made}");
    }
}

/// The seeds are not just noise: undamaged ones are read to their end.
#[test]
fn whole_seeds_are_read() {
    for (target, name, bytes) in seeds() {
        let whole = match target {
            "archive" if name != "cut_off" => fuzz::opens(&bytes),
            "toc" if name.starts_with("zstd") => fuzz::opens(&fuzz::with_toc(&bytes)),
            "marker" => Marker::read(&bytes).is_ok(),
            _ => continue,
        };
        assert!(whole, "{target}/{name}");
    }
}
