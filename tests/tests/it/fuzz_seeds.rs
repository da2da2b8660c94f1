//! Replays the seeds of the fuzz targets, and checks for each what must hold for any bytes.
//!
//! `KPACK_WRITE_SEEDS=1 cargo test -p kpack-tests --test it fuzz_seeds` writes the seeds below again. The
//! others were found by fuzzing (`docs/dev/fuzzing.md`).

#[path = "../../../kpack/tests/it/common/mod.rs"]
mod common;
#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "a library elsewhere")]
mod fuzz;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use kpack_format::archive::Scheme;
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::marker::Marker;
use kpack_format::unstable::tensile::Library;
use kpack_split::install::{InstallOptions, install};
use kpack_store::{PackOptions, pack};
use kpack_tests::bytes;
use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, Wheel, WindowsBuild, WindowsLinker, bundle, code, code_object,
    library_file,
};
use kpack_tests::page::repository;
use kpack_tests::process::run;
use kpack_tests::tree::{Tree, write};

use common::archive;

fn directory(target: &str) -> PathBuf {
    repository().join("fuzz/seeds").join(target)
}

/// `bytes` with `key` replaced by a key that readers ignore.
fn without(bytes: &[u8], key: &str) -> Vec<u8> {
    let place = bytes::position(bytes, key);
    let mut bytes = bytes.to_vec();
    bytes[place] ^= 0x20;
    bytes
}

/// Target, name and bytes.
type Seed = (&'static str, String, Vec<u8>);

/// The seeds that this test writes.
static SEEDS: LazyLock<Vec<Seed>> = LazyLock::new(seeds);

fn seeds() -> Vec<Seed> {
    let kernels: [(&str, &[u8]); 3] =
        [("lib/libvec.so#0", b"one"), ("lib/libvec.so#1", &[7; 2000]), ("lib/libvec.so#2", b"one")];
    let none = archive(Scheme::None, "gfx90a:xnack+", &kernels);
    let zstd = archive(Scheme::ZstdPerKernel, "gfx90a:xnack+", &kernels);
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, bytes: &[u8]| {
        seeds.push((target, name.to_owned(), bytes.to_vec()));
    };
    add("archive", "none", &none);
    add("archive", "zstd", &zstd);
    add("archive", "zstd_without_frame_offsets", &without(&zstd, "frame_offsets"));
    add("archive", "zstd_without_checksums", &without(&zstd, "blake3"));
    add("archive", "empty", &archive(Scheme::ZstdPerKernel, "gfx90a:xnack+", &[]));
    add("archive", "cut_off", &zstd[..zstd.len() - 9]);
    let large = archive(Scheme::ZstdPerKernel, "gfx90a:xnack+", &[("a#0", &[0; 400_000])]);
    add("archive", "several_blocks", &large);

    // Tables for the data that `with_toc` puts before them.
    let two: [(&str, &[u8]); 2] = [("lib/a.so#0", b"one"), ("lib/a.so#1", b"two!")];
    let table = |scheme| {
        let bytes = archive(scheme, "gfx90a:xnack+", &two);
        let at = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
        bytes[at..].to_vec()
    };
    add("toc", "none", &table(Scheme::None));
    let zstd = table(Scheme::ZstdPerKernel);
    add("toc", "zstd", &zstd);
    add("toc", "zstd_without_frame_offsets", &without(&zstd, "frame_offsets"));
    add("toc", "unknown_keys", b"\x81\xa1x\x93\xc0\x81\xa1y\xc3\xcb\0\0\0\0\0\0\0\0");

    let marker = Marker::new(
        "lib/libvec.so.1",
        vec![
            ".kpack/vec_lib_@GFXARCH@.kpack".to_owned(),
            "/opt/vec/vec_lib_@GFXARCH@.kpack".to_owned(),
        ],
    );
    add("marker", "map", &marker.to_bytes());
    let with_ids = marker.clone().with_code_ids([("gfx1100".to_owned(), *b"eight by")].into());
    add("marker", "code_ids", &with_ids.to_bytes());
    let mut padded = marker.to_bytes();
    padded.resize(256, 0);
    add("marker", "map_and_padding", &padded);
    add("marker", "text", b"../../../.kpack:../../.kpack:.kpack\0rest");
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
    let small = FatLibrary::new().flag("-s").wrapper(Storage::Plain, [("gfx1100", code)]);
    small.build(&library).unwrap();
    let fat = fs::read(&library).unwrap();
    add("linked", "fat", &fat);
    install(&InstallOptions::new(tree.root(), "vec", ["lib/libvec.so"]), &()).unwrap();
    add("linked", "split", &fs::read(&library).unwrap());

    let build =
        WindowsBuild { linker: WindowsLinker::LldLink, is_program: false, flags: &["/brepro"] };
    let library_for_windows = tree.path("bin/vec.dll");
    // The seeds themselves are in the repository.
    if build.linker.is_there() {
        small.build_for_windows(build, &library_for_windows).unwrap();
        let fat = fs::read(&library_for_windows).unwrap();
        add("linked", "fat_dll", &fat);
        let options = InstallOptions::new(tree.root(), "dll", ["bin/vec.dll"]);
        install(&options, &()).unwrap();
        let split = fs::read(&library_for_windows).unwrap();
        add("linked", "split_dll", &split);
    }

    let archive = fs::read(tree.path("lib/.kpack/vec_lib_gfx1100.kpack")).unwrap();
    let markers = [
        ("lib/.kpack/vec_lib_gfx1100.kpack", &archive[..]),
        ("marker", &marker_of(&fs::read(&library).unwrap())),
    ];
    add("shim", "library", &list(&markers));
    seeds_of_the_doctor(&tree, &mut add);

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
    add("object", "static_library", &run("ar", &["qc", "vec.a", "vec.o"]));
    add("object", "merged", &run("ld", &["-o", "merged.o", "-r", "vec.o"]));
    seeds.extend(of_databases());
    seeds.extend(of_lists(&fat, &entries[0].1));
    seeds
}

/// The marker of a split library.
fn marker_of(library: &[u8]) -> Vec<u8> {
    let key = b"\xb2kpack_search_paths";
    let mut places = (1..library.len()).filter(|at| library[*at..].starts_with(key));
    let marker = &library[places.next().unwrap() - 1..];
    let (_, size) = Marker::read(marker).unwrap();
    marker[..size].to_vec()
}

/// The split library, which needs a HIP runtime that reads markers or one that does not.
fn seeds_of_the_doctor(tree: &Tree, add: &mut impl FnMut(&'static str, &str, &[u8])) {
    let small = ["-shared", "-fPIC", "-nostdlib", "-s", "-Wl,-z,noseparate-code"];
    let cc = |output: &str, text: &str, flags: &[&str]| {
        fs::write(tree.path("stub.c"), text).unwrap();
        let name = Path::new(output).file_name().unwrap().display();
        let mut cc = Command::new("cc");
        cc.current_dir(tree.root()).args(small).args(["stub.c", "-o", output]);
        cc.arg(format!("-Wl,-soname,{name},-rpath,$ORIGIN,--no-as-needed"));
        run(cc.args(flags));
        fs::read(tree.path(output)).unwrap()
    };
    let runtime = "rocm/libamdhip64.so.6";
    let own = "int kpack_load_code_object(void) { return 1; }";
    let uses = "int kpack_load_code_object(void); int (*loads)(void) = kpack_load_code_object;";
    fs::create_dir(tree.path("rocm")).unwrap();
    let loader = cc("rocm/librocm_kpack.so.0", own, &[]);
    let new = cc(runtime, uses, &["rocm/librocm_kpack.so.0"]);
    let old = cc(runtime, "", &[]);
    let library = FatLibrary::new().wrapper(Storage::Plain, [code("gfx1100", "add")]);
    let library = library.flag("-Wl,--no-as-needed,-rpath,$ORIGIN/../../rocm,-z,noseparate-code");
    let library = library.flag("-s").flag(tree.path(runtime));
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    let options = InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]);
    install(&options, &()).unwrap();
    let of_prefix = ["lib/libvec.so", "lib/.kpack/vec_lib_gfx1100.kpack", "lib/.kpack/vec_lib.kpm"];
    let mut files = of_prefix
        .map(|path| format!("prefix/{path}"))
        .map(|path| {
            let bytes = fs::read(tree.path(&path)).unwrap();
            (path, bytes)
        })
        .to_vec();
    files.push(("rocm/librocm_kpack.so.0".to_owned(), loader));
    for (name, bytes) in [("new_runtime", new), ("old_runtime", old)] {
        let mut files = files.clone();
        files.push((runtime.to_owned(), bytes));
        let files = Vec::from_iter(files.iter().map(|(path, bytes)| (path.as_str(), &bytes[..])));
        add("doctor", name, &list(&files));
    }
}

/// A list of files, as `fuzz/src/trees.rs` reads it.
fn list(files: &[(&str, &[u8])]) -> Vec<u8> {
    let file = |(path, bytes): &(&str, &[u8])| [format!("--- {path}\n").as_bytes(), bytes].concat();
    Vec::from_iter(files.iter().map(file)).join(&b"\n"[..])
}

/// Manifests, maps of kernel databases, and packaging configurations.
fn of_databases() -> Vec<Seed> {
    let mut manifest = Manifest::new("vec_lib", "lib");
    manifest.install_hint = Some("apt install vec-@GFXARCH@".to_owned());
    for (target, checksum) in [("gfx1100", None), ("gfx90a:xnack+", Some([7; 32]))] {
        let file = KpackFile::new(target, format!("vec_lib_{target}.kpack"), 4096, 3, checksum);
        manifest.kpack_files.insert(target.to_owned(), file);
    }
    let map = b"\x83\xa6gfx942\x91\x81\xa7co_path\xafextop_gfx942.co\xa7gfx1100\x90\x05\xcb\0\0\0\0\0\0\0\0";
    let library = library_file("gfx942", &["Kernels_gfx942", "Kernels_gfx942-hsaco.co"]).unwrap();
    let seed = |target, name: &str, bytes: &[u8]| (target, name.to_owned(), bytes.to_vec());
    vec![
        seed("manifest", "two_targets", &manifest.to_bytes()),
        seed("map", "by_target", map),
        seed("map", "library", &library),
        seed("packaging", "groups", CONFIGURATION.as_bytes()),
        seed("packaging", "least", LEAST.as_bytes()),
    ]
}

const LEAST: &str =
    r#"{"primary_shard": "one", "architecture_groups": {"all": {"architectures": ["gfx1100"]}}}"#;
const CONFIGURATION: &str = r#"{
  "primary_shard": "one",
  "architecture_groups": {
    "gfx110X": {"display_name": "Radeon \u2026", "architectures": ["gfx1100", "gfx1101"]},
    "instinct": {"architectures": ["gfx90a:xnack+"]}
  },
  "component_overrides": {"blas_lib": {"architecture_groups": ["gfx110X"]}},
  "validation": {"error_on_missing_architecture": false}
}
"#;

/// Artifacts and wheels.
fn of_lists(fat: &[u8], code: &[u8]) -> Vec<Seed> {
    let library = library_file("gfx1100", &["Kernels_gfx1100"]).unwrap();
    let artifact = |rest: &str| format!("blas_lib/math-libs/rocBLAS/stage/lib/{rest}");
    let files = [
        ("blas_lib/artifact_manifest.txt".to_owned(), &b"math-libs/rocBLAS/stage\n"[..]),
        (artifact("librocblas.so"), fat),
        (artifact("rocblas/library/Kernels_gfx1100.co"), code),
        (artifact("rocblas/library/TensileLibrary_gfx1100.dat"), &library),
        (artifact("rocblas/library/TensileLibrary_fallback.dat"), b"\x80"),
        (artifact("hipblaslt/library/hipblasltExtOpLibrary.dat"), b"\x81\xa7gfx1100\x90"),
        ("config.json".to_owned(), LEAST.as_bytes()),
    ];
    let tree = files.iter().map(|(path, bytes)| (path.as_str(), *bytes));
    let record = "vec/__init__.py,,\nvec/_vec.so,,\nvec-1.0.dist-info/METADATA,,\nvec-1.0.dist-info/WHEEL,,\nvec-1.0.dist-info/RECORD,,\n";
    let wheel: [(&str, &[u8]); 5] = [
        ("vec/__init__.py", b"answer = 42\n"),
        ("vec/_vec.so", fat),
        (
            "vec-1.0.dist-info/METADATA",
            b"Metadata-Version: 2.1\nName: vec\nVersion: 1.0\nRequires-Dist: numpy (>=1.0) ; extra == 'test'\nProvides-Extra: test\n\nText\n",
        ),
        (
            "vec-1.0.dist-info/WHEEL",
            b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux_2_28_x86_64\n",
        ),
        ("vec-1.0.dist-info/RECORD", record.as_bytes()),
    ];
    let packed = Wheel::new("vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl");
    let packed = packed.member("vec/_vec.so", fat).bytes().unwrap();
    let seed = |target, name: &str, bytes: Vec<u8>| (target, name.to_owned(), bytes);
    vec![
        seed("tree", "artifact", list(&Vec::from_iter(tree))),
        seed("wheel", "members", list(&wheel)),
        seed("wheel", "packed", packed),
        seed("store", "artifacts", store()),
    ]
}

/// Packed artifacts of a host and a target, with links and a long name, and without their compression.
fn store() -> Vec<u8> {
    let tree = Tree::new();
    let long = format!("stage/{}file", "directory/".repeat(12));
    for (name, files) in [
        ("generic", ["stage/lib/libblas.so.5", &long]),
        ("gfx942", ["stage/lib/.kpack/blas_lib_gfx942.kpack", "stage/share/empty"]),
    ] {
        let artifact = tree.path(&format!("in/blas_lib_{name}"));
        for file in files {
            let path = artifact.join(file);
            write(&path, file);
        }
        fs::write(artifact.join("artifact_manifest.txt"), "stage\n").unwrap();
    }
    let lib = tree.path("in/blas_lib_generic/stage/lib");
    std::os::unix::fs::symlink("libblas.so.5", lib.join("libblas.so")).unwrap();
    fs::hard_link(lib.join("libblas.so.5"), lib.join("libother.so")).unwrap();
    pack(&PackOptions::new(tree.path("in"), tree.path("store")), &()).unwrap();
    let files = ["blas_lib_generic.tar.zst", "blas_lib_gfx942.tar.zst"].map(|name| {
        let bytes = fs::read(tree.path(&format!("store/{name}"))).unwrap();
        (name, zstd::decode_all(&bytes[..]).unwrap())
    });
    list(&files.each_ref().map(|(name, bytes)| (*name, &bytes[..])))
}

#[test]
fn every_seed_holds() {
    for (target, holds) in fuzz::TARGETS {
        let directory = directory(target);
        if std::env::var_os("KPACK_WRITE_SEEDS").is_some() {
            fs::create_dir_all(&directory).unwrap();
            for (_, name, bytes) in SEEDS.iter().filter(|(of, ..)| *of == target) {
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
        let made = SEEDS.iter().filter(|(of, ..)| *of == target).count();
        assert!(replayed >= made, "{target}: {replayed} seeds of {made}");
    }
}

/// The seeds are not just noise: undamaged ones are read to their end.
#[test]
fn whole_seeds_are_read() {
    for (target, name, bytes) in &*SEEDS {
        let whole = match *target {
            "archive" if name != "cut_off" => fuzz::opens(bytes),
            "toc" if name.starts_with("zstd") => fuzz::opens(&fuzz::with_toc(bytes)),
            "marker" => Marker::read(bytes).is_ok(),
            "manifest" => Manifest::read(bytes).is_ok(),
            "map" => Library::read(bytes).is_ok(),
            "doctor" => fuzz::doctor(bytes) == (name == "new_runtime"),
            "shim" => fuzz::shim(bytes),
            "packaging" => fuzz::packaging(bytes),
            "store" => fuzz::store(bytes),
            "tree" => fuzz::tree(bytes),
            "wheel" => fuzz::wheel(bytes),
            _ => continue,
        };
        assert!(whole, "{target}/{name}");
    }
}
