//! Given artifacts with one archive for all modules of a target, in the first prefix, as kpack or another
//! splitter writes them, when they are verified or recombined, then they hold; and what is really wrong is
//! found.

use crate::planned;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Cursor;
use std::path::Path;

use crate::blas::{HIPBLASLT, ROCBLAS, artifact, fat, files, options, overlay, run};
use crate::verified::{check, check_with, checks};
use kpack_artifact::split::{Layout, Options};
use kpack_core::Severity;
use kpack_format::archive::{ArchiveWriter, Encoder, Scheme};
use kpack_format::digest::blake3;
use kpack_format::marker::Marker;
use kpack_split::elf::{DeviceCode, ElfPlan, Image};
use kpack_tests::bytes;
use kpack_tests::fixture::FatLibrary;
use kpack_tests::process;
use kpack_tests::tree::Tree;

/// The libraries of two modules, by prefix.
const LIBRARIES: [(&str, &str, &str); 2] =
    [(ROCBLAS, "lib/librocblas.so.5", "gemm"), (HIPBLASLT, "lib/libhipblaslt.so.1", "lt")];

const ALL: [&str; 3] = ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"];

/// A group for each target.
const GROUPS: &str = r#"{
  "primary_shard": "linux",
  "architecture_groups": {
    "radeon": {"architectures": ["gfx1100"]},
    "instinct": {"architectures": ["gfx942"]}
  }
}"#;

/// Split artifacts of both, whose kernels are named by the path in the artifact.
fn of_another_splitter() -> Tree {
    let tree = Tree::new();
    let mut archives: BTreeMap<String, ArchiveWriter<Cursor<Vec<u8>>>> = BTreeMap::new();
    for (prefix, path, name) in LIBRARIES {
        let library = fat(name);
        let kernel_name = format!("{prefix}/{path}");
        let host = tree.path(&format!("blas_lib_generic/{kernel_name}"));
        split(&library, &kernel_name, &host);
        for (index, code_objects) in library.code_objects().enumerate() {
            for (target, code) in code_objects {
                let archive = archives.entry(target.clone()).or_insert_with(|| {
                    let spool = Cursor::new(Vec::new());
                    ArchiveWriter::new(spool, "blas_lib", &target.parse().unwrap(), Scheme::None)
                });
                let mut encoder = Encoder::new(Scheme::None, 3).unwrap();
                let encoded = encoder.encode(code, blake3(code)).unwrap();
                archive.add(&format!("{kernel_name}#{index}"), &encoded).unwrap();
            }
        }
    }
    let prefixes = format!("{HIPBLASLT}\n{ROCBLAS}\n");
    tree.write("blas_lib_generic/artifact_manifest.txt", &prefixes);
    for (target, archive) in archives {
        let mut bytes = Vec::new();
        archive.finish(&mut bytes).unwrap();
        // What kpack adds, others lack.
        let key = bytes::position(&bytes, b"blake3");
        bytes[key] = b'_';
        let artifact = format!("blas_lib_{target}");
        let kpack = format!("{artifact}/{HIPBLASLT}/.kpack/{artifact}.kpack");
        tree.write(&kpack, bytes);
        tree.write(&format!("{artifact}/artifact_manifest.txt"), &prefixes);
    }
    tree
}

/// Writes the host library; its archives are in the root of the install prefix.
fn split(library: &FatLibrary, kernel_name: &str, host: &Path) {
    let scratch = Tree::new();
    let path = scratch.path("fat.so");
    library.build(&path).unwrap();
    let input = File::open(path).unwrap();
    let image = Image::read(&input).unwrap();
    let DeviceCode::Fat(code) = image.device_code().unwrap() else { panic!("it is fat") };
    let marker = Marker::new(kernel_name, vec!["../.kpack/blas_lib_@GFXARCH@.kpack".to_owned()]);
    let plan = ElfPlan::new(&image, &code, &marker.to_bytes()).unwrap();
    fs::create_dir_all(host.parent().unwrap()).unwrap();
    let mut options = File::options();
    let output = options.read(true).write(true).create_new(true).open(host);
    plan.apply(&input, &output.unwrap()).unwrap();
}

fn faults(tree: &Tree, path: &str) -> Vec<String> {
    checks(&check(tree, path), Severity::Fault)
}

/// That artifacts hold, installed too, and after they were recombined.
fn assert_hold(tree: &Tree) {
    assert_eq!(faults(tree, ""), [""; 0]);
    assert_eq!(faults(&overlay(tree, &ALL), ""), [""; 0]);
    let shards = Tree::new();
    fs::create_dir_all(shards.path("shards/linux")).unwrap();
    for artifact in ALL {
        let shard = shards.path(&format!("shards/linux/{artifact}"));
        fs::rename(tree.path(artifact), shard).unwrap();
    }
    let plan = planned::planned(&shards, GROUPS);
    assert_eq!(plan.errors(), 0, "{:#?}", planned::said(&plan));
    let options = planned::options(&shards, GROUPS);
    plan.apply(&options, &()).unwrap();
    assert_eq!(faults(&shards, "out"), [""; 0]);
}

#[test]
fn what_another_splitter_wrote_has_no_fault() {
    assert_hold(&of_another_splitter());
}

#[test]
fn a_module_without_its_device_code_is_found() {
    let tree = of_another_splitter();
    for target in ["gfx1100", "gfx942"] {
        fs::remove_dir_all(tree.path(&format!("blas_lib_{target}"))).unwrap();
    }
    let faults = faults(&tree, "");
    assert_eq!(faults.len(), 2, "{faults:#?}");
    let is_missing = |fault: &String| fault.contains("no archive found");
    assert!(faults.iter().all(is_missing), "{faults:#?}");
}

#[test]
fn an_artifact_is_split_into_one_archive_for_each_target() {
    let (input, output) = (artifact(), Tree::new());
    let mut options = options(&input, &output);
    options.layout = Layout::Artifact;
    let report = run(&options);
    for target in ["gfx1100", "gfx942"] {
        let name = format!("blas_lib_{target}");
        let mut kpacks = files(&output, &name);
        kpacks.retain(|file| file.ends_with(".kpack"));
        assert_eq!(kpacks, [format!("{HIPBLASLT}/.kpack/{name}.kpack")]);
    }
    assert!(!output.files().iter().any(|file| file.ends_with(".kpm")));
    let binaries: Vec<&str> = report.binaries.iter().map(|file| &*file.path).collect();
    let expected = [
        format!("{HIPBLASLT}/lib/libhipblaslt.so.1"),
        format!("{ROCBLAS}/bin/rocblas-bench"),
        format!("{ROCBLAS}/lib/librocblas.so.5"),
    ];
    assert_eq!(binaries, expected);
    let host = output.path(&format!("blas_lib_generic/{ROCBLAS}/bin/rocblas-bench"));
    let host = String::from_utf8_lossy(&fs::read(host).unwrap()).into_owned();
    assert!(host.contains("../.kpack/blas_lib_@GFXARCH@.kpack"));
    assert_hold(&output);
}

/// A library with the same host code and device code for one target, as machines build it that split the work by
/// targets. Each pushes a generic artifact, and the last one's is kept.
#[test]
fn artifacts_of_several_machines_hold_with_the_last_generic_one() {
    // Given shards of one artifact, for a target each,
    let (input, shards) = (artifact(), Tree::new());
    fs::remove_file(input.path(&format!("{ROCBLAS}/bin/rocblas-bench"))).unwrap();
    split_on_two_machines(&input, &shards);
    // when all are installed, with the last one's host files,
    let all = Tree::new();
    for path in ["gfx942/blas_lib_generic", "gfx942/blas_lib_gfx942", "gfx1100/blas_lib_gfx1100"] {
        process::copy(shards.path(&format!("shards/{path}")), all.root());
    }
    // then they hold,
    assert_eq!(faults(&all, ""), [""; 0]);
    let installed = overlay(&all, &ALL);
    for target in ["gfx1100", "gfx942"] {
        let found = check_with(&installed, "", None, &[target]);
        assert_eq!(checks(&found, Severity::Fault), [""; 0], "{target}");
    }
    // and the shards are merged, without a word on manifests.
    let configuration = GROUPS.replace("\"linux\"", "\"gfx942\"");
    let plan = planned::recombine(&shards, &configuration);
    assert_eq!(plan.errors(), 0, "{:#?}", planned::said(&plan));
    let is_of_manifest = |text: &String| text.contains("manifest");
    assert!(!planned::said(&plan).iter().any(is_of_manifest));
    assert_eq!(faults(&shards, "out"), [""; 0]);
}

/// Splits an artifact as two machines do, each for its own target.
fn split_on_two_machines(input: &Tree, shards: &Tree) {
    for target in ["gfx1100", "gfx942"] {
        let output = shards.path(&format!("shards/{target}"));
        let mut options = Options::new(input.root(), output, "blas_lib");
        options.layout = Layout::Artifact;
        options.targets = vec![target.parse().unwrap()];
        run(&options);
    }
}

/// One machine's splitter writes a manifest, and the other's does not.
#[test]
fn a_manifest_of_one_shard_says_nothing_about_the_archives_of_another() {
    let (input, shards) = (artifact(), Tree::new());
    split_on_two_machines(&input, &shards);
    let configuration = GROUPS.replace("\"linux\"", "\"gfx942\"");
    // Merged artifacts have a manifest.
    let one = Tree::new();
    fs::create_dir(one.path("shards")).unwrap();
    fs::rename(shards.path("shards/gfx942"), one.path("shards/gfx942")).unwrap();
    planned::recombine(&one, &configuration);
    fs::rename(one.path("out"), shards.path("shards/gfx942")).unwrap();
    let manifest = format!("shards/gfx942/blas_lib_generic/{HIPBLASLT}/.kpack/blas_lib.kpm");
    assert!(shards.path(&manifest).exists());
    let plan = planned::planned(&shards, &configuration);
    assert_eq!(plan.errors(), 0, "{:#?}", planned::said(&plan));
    planned::recombine(&shards, &configuration);
    assert_eq!(faults(&shards, "out"), [""; 0]);
}
