//! Given trees that are empty, half written or truncated, when they are verified, measured or recombined,
//! then none of them passes for a complete artifact.

use std::fs;
use std::io::Cursor;

use crate::planned::{CONFIGURATION, assert_said, options, planned, said, with_validation};
use crate::shards::{DATABASE, PREFIX, one_shard, shard, three_shards};
use crate::verified::{check, check_with, checks, faults};
use kpack_artifact::recombine::Severity;
use kpack_artifact::sizes::measure;
use kpack_artifact::verify::{self, verify};
use kpack_core::ids;
use kpack_format::archive::{Archive, ArchiveWriter, Scheme};
use kpack_format::digest::blake3;
use kpack_format::manifest::Manifest;
use kpack_format::marker::Marker;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::process;
use kpack_tests::tree::{Tree, write};

#[test]
fn a_directory_with_nothing_to_verify() {
    let tree = Tree::new();
    fs::create_dir(tree.path("empty")).unwrap();
    tree.write("documents/README", b"text");
    FatLibrary::new().build(&tree.path("host/lib/libhost.so")).unwrap();
    for path in ["empty", "documents", "host"] {
        let found = faults(&check(&tree, path));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains("there is nothing to verify"), "{found:#?}");
    }
    // Beside others as well.
    shard(&tree, "linux-a", &["gfx1100"]);
    let paths = ["shards", "empty"].map(|path| tree.path(path));
    let report = verify(&paths, &verify::Options::default(), &()).unwrap();
    let found = checks(&report, Severity::Fault);
    assert!(
        matches!(&found[..], [fault] if fault.contains("empty: there is nothing")),
        "{found:#?}"
    );
    // An artifact without device code is one that was verified.
    let doc = tree.path("docs/doc_lib_generic");
    write(doc.join("artifact_manifest.txt"), b"doc/stage\n");
    write(doc.join("doc/stage/README"), b"text");
    assert_eq!(faults(&check(&tree, "docs")), [""; 0]);
}

#[test]
fn leftovers_of_an_interrupted_run_are_not_artifacts() {
    let tree = one_shard();
    let before = measure(&[tree.path("shards")], &[]).unwrap();
    let generic = tree.path("shards/linux-a/blas_lib_generic");
    // One that is half written, and one that was set aside.
    let half = tree.path("shards/linux-a/.blas_lib.tmp/blas_lib_gfx1201");
    write(half.join("artifact_manifest.txt"), PREFIX);
    write(half.join(PREFIX).join("lib/.kpack/x_gfx1201.kpack"), b"KPAK");
    process::copy(&generic, tree.path("shards/linux-a/.blas_lib_generic.tmp"));
    write(generic.join(PREFIX).join("lib/.libx.so.tmp"), b"\x7fELF");
    for path in ["shards", "shards/linux-a"] {
        let report = check(&tree, path);
        assert_eq!(checks(&report, Severity::Fault), [""; 0]);
        let notes = checks(&report, Severity::Note);
        for name in [".blas_lib.tmp", ".blas_lib_generic.tmp", ".libx.so.tmp"] {
            let named = notes.iter().filter(|note| note.contains(name));
            let said = "leftover of an interrupted run";
            assert_eq!(named.filter(|note| note.contains(said)).count(), 1, "{notes:#?}");
        }
        assert!(!notes.iter().any(|note| note.contains("gfx1201")), "{notes:#?}");
    }
    let sizes = measure(&[tree.path("shards")], &[]).unwrap();
    fs::remove_file(generic.join(PREFIX).join("lib/.libx.so.tmp")).unwrap();
    let without = measure(&[tree.path("shards")], &[]).unwrap();
    assert_eq!(without.rows, before.rows);
    assert_eq!(sizes.leftovers.len(), 2);

    let configuration = r#"{"primary_shard": "linux-a",
        "architecture_groups": {"all": {"architectures": ["gfx1100", "gfx942"]}}}"#;
    let plan = planned(&tree, configuration);
    let parts = [".blas_lib.tmp", "skipped: leftover of an interrupted run"];
    assert_said(&plan, Severity::Warning, &parts);
    assert_eq!(said(&plan).len(), 2);

    // Nothing else is there.
    fs::create_dir(tree.path("killed")).unwrap();
    process::copy(&generic, tree.path("killed/.blas_lib_generic.tmp"));
    let found = faults(&check(&tree, "killed"));
    assert!(found.iter().any(|fault| fault.contains("there is nothing to verify")), "{found:#?}");
    assert!(measure(&[tree.path("killed")], &[]).unwrap().rows.is_empty());
}

#[test]
fn a_library_file_that_was_cut_off() {
    let tree = one_shard();
    let file = format!("{PREFIX}/{DATABASE}/TensileLibrary_Type_SS_gfx942.dat");
    let path = tree.path(&format!("shards/linux-a/blas_lib_gfx942/{file}"));
    let whole = fs::read(&path).unwrap();
    for bytes in [
        &whole[..whole.len() - 1],
        &whole[..whole.len() / 2],
        &whole[..1],
        b"",
        &[&whole[..], &[0]].concat(),
        &vec![0; whole.len()],
    ] {
        fs::write(&path, bytes).unwrap();
        let found = faults(&check(&tree, "shards"));
        let damaged = |fault: &String| {
            fault.contains("Type_SS_gfx942.dat: damaged: not a MessagePack library file")
        };
        assert!(found.iter().any(damaged), "{} bytes: {found:#?}", bytes.len());
    }
    // Of another format, judging by its beginning: compressed, or text.
    for bytes in [&[0x1f, 0x8b, 8][..], &[0x78, 0x9c, 1], &[0x28, 0xb5, 0x2f, 0xfd], b"- {}\n"] {
        fs::write(&path, bytes).unwrap();
        let found = faults(&check(&tree, "shards"));
        assert!(!found.iter().any(|fault| fault.contains("damaged")), "{found:#?}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(faults(&check(&tree, "shards")), [""; 0]);
    // One that is for all targets.
    let fallback = format!("blas_lib_generic/{PREFIX}/{DATABASE}/TensileLibrary_fallback.dat");
    let fallback = tree.path(&format!("shards/linux-a/{fallback}"));
    let whole = fs::read(&fallback).unwrap();
    fs::write(&fallback, &whole[..whole.len() - 1]).unwrap();
    assert!(faults(&check(&tree, "shards")).iter().any(|fault| fault.contains("damaged")));
}

#[test]
fn databases_of_an_install_prefix() {
    let tree = one_shard();
    fs::create_dir(tree.path("root")).unwrap();
    for artifact in ["generic", "gfx942"] {
        let from = tree.path(&format!("shards/linux-a/blas_lib_{artifact}/{PREFIX}/."));
        process::copy(&from, tree.path("root"));
    }
    let missing = |fault: &String| fault.contains("gfx1100");
    let found = |path: &str| -> Vec<String> {
        let found = faults(&check(&tree, path)).into_iter();
        found.filter(|fault| !missing(fault)).collect()
    };
    assert_eq!(found("root"), [""; 0]);
    let report = check(&tree, "root");
    let sound = report.findings.iter().find(|found| found.id == ids::DATABASES_SOUND);
    assert!(sound.unwrap().text.starts_with("3 files "), "{report:#?}");
    let library = tree.path(&format!("root/{DATABASE}/TensileLibrary_Type_SS_gfx942.dat"));
    let whole = fs::read(&library).unwrap();
    fs::write(&library, &whole[..whole.len() / 2]).unwrap();
    let damaged = found("root");
    assert!(damaged.iter().any(|fault| fault.contains("damaged")), "{damaged:#?}");
    fs::remove_file(&library).unwrap();
    let unpaired = found("root");
    assert!(unpaired.iter().any(|fault| fault.contains("no library file")), "{unpaired:#?}");
}

#[test]
fn damaged_files_are_not_recombined() {
    let tree = three_shards();
    let file = |shard: &str, artifact: &str, file: &str| {
        tree.path(&format!("shards/{shard}/blas_lib_{artifact}/{PREFIX}/{file}"))
    };
    let library =
        file("linux-c", "gfx942", &format!("{DATABASE}/TensileLibrary_Type_SS_gfx942.dat"));
    let bytes = fs::read(&library).unwrap();
    fs::write(&library, &bytes[..bytes.len() - 1]).unwrap();
    let parts = ["linux-c", "Type_SS_gfx942.dat", "damaged-database-file"];
    assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &parts);
    // A problem with another component is also reported.
    let archive = file("linux-a", "gfx1100", "lib/.kpack/rocblas_lib_gfx1100.kpack");
    fs::write(&archive, b"KPAK").unwrap();
    for shard in ["linux-a", "linux-b"] {
        let doc = tree.path(&format!("shards/{shard}/doc_lib_generic"));
        write(doc.join("artifact_manifest.txt"), b"doc/stage\n");
        write(doc.join("doc/stage/README"), shard);
    }
    let plan = planned(&tree, CONFIGURATION);
    assert_said(&plan, Severity::Fault, &["rocblas_lib_gfx1100.kpack"]);
    assert_said(&plan, Severity::Fault, &["doc/stage/README", "host file"]);
    let lenient = with_validation("verify_generic_artifacts_match", false);
    let options = options(&tree, &lenient);
    let plan = kpack_artifact::recombine::plan(&options, &()).unwrap();
    assert!(plan.apply(&options, &()).unwrap().is_empty());
    assert!(plan.failed.iter().eq(["blas_lib"]), "{:?}", plan.failed);
    // The other component is whole.
    let written = fs::read_dir(tree.path("out")).unwrap();
    let written: Vec<_> = written.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(written, ["doc_lib_generic"]);
}

const MODULE: &str = "prefix/lib/.kpack/vec_lib";

/// An install prefix whose archive for gfx942 has the kernels under the name of another binary, and a
/// manifest that agrees with that.
fn other_names() -> Tree {
    let tree = Tree::new();
    let objects = [code("gfx1100", "add"), code("gfx942", "add")];
    let library = FatLibrary::new().wrapper(Storage::Plain, objects);
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    let options = InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]);
    install(&options, &()).unwrap();

    let path = tree.path(&format!("{MODULE}_gfx942.kpack"));
    let mut old = Archive::open(Cursor::new(fs::read(&path).unwrap())).unwrap();
    let target = "gfx942".parse().unwrap();
    let spool = Cursor::new(Vec::new());
    let mut new = ArchiveWriter::new(spool, "vec_lib", &target, Scheme::ZstdPerKernel);
    let renamed = |name: &str| vec![name.replace("libvec", "libother")];
    new.merge_as(&mut old, renamed).unwrap();
    let mut bytes = Vec::new();
    new.finish(&mut bytes).unwrap();
    fs::write(&path, &bytes).unwrap();
    let manifest_path = tree.path(&format!("{MODULE}.kpm"));
    let mut manifest = Manifest::read(&fs::read(&manifest_path).unwrap()).unwrap();
    let listed = manifest.kpack_files.get_mut("gfx942").unwrap();
    listed.size = bytes.len() as u64;
    listed.checksum = Some(blake3(&bytes));
    fs::write(&manifest_path, manifest.to_bytes()).unwrap();
    tree
}

#[test]
fn a_named_target_without_code_of_a_binary() {
    let tree = other_names();
    let faults = |targets: &[&str]| {
        let report = check_with(&tree, "prefix", None, targets);
        checks(&report, Severity::Fault)
    };
    let expected = "lib/libvec.so: the archive for gfx942 has no code object of this binary";
    let found = faults(&["gfx942"]);
    assert!(found.len() == 1 && found[0].ends_with(expected), "{found:?}");
    assert_eq!(faults(&["gfx1100"]), [""; 0]);
}

/// Not every part of a binary is compiled for each target. The marker lists the targets of the build.
#[test]
fn a_promised_target_without_the_code_that_the_binary_was_built_with() {
    let tree = other_names();
    let path = tree.path("prefix/lib/libvec.so");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(18).position(|part| part == b"kpack_search_paths");
    // One byte for the map, one for the length of its first key.
    let at = at.unwrap() - 2;
    let (mut marker, _) = Marker::read(&bytes[at..]).unwrap();
    marker.code_ids.insert("gfx942".to_owned(), [1; 8]);
    let marker = marker.to_bytes();
    bytes[at..at + marker.len()].copy_from_slice(&marker);
    fs::write(&path, bytes).unwrap();
    let faults = checks(&check(&tree, "prefix"), Severity::Fault);
    let expected = "the archive for gfx942 has no code object of this binary";
    assert!(faults.iter().any(|fault| fault.contains(expected)), "{faults:?}");
}

#[test]
fn kernels_that_no_marker_leads_to() {
    let tree = other_names();
    let notes = checks(&check(&tree, "prefix"), Severity::Note);
    let expected =
        "vec_lib_gfx942.kpack: has kernels of `lib/libother.so`, which no marker refers to";
    assert!(notes.iter().any(|note| note.ends_with(expected)), "{notes:?}");
    // Verifying one binary alone cannot tell.
    let notes = checks(&check(&tree, "prefix/lib/libvec.so"), Severity::Note);
    assert!(!notes.iter().any(|note| note.contains("libother")), "{notes:?}");
}

/// An archive whose binary is gone, or lost its marker, is undamaged but useless.
#[test]
fn an_installed_binary_that_is_gone_or_truncated() {
    let tree = other_names();
    let library = tree.path("prefix/lib/libvec.so");
    fs::remove_file(tree.path(&format!("{MODULE}_gfx942.kpack"))).unwrap();
    for (bytes, outcome, expected) in [
        (
            Some(""),
            Severity::Fault,
            "which does not look for them here: it is truncated, another file, or was split with other archives",
        ),
        (None, Severity::Note, "which no marker refers to"),
    ] {
        match bytes {
            Some(bytes) => fs::write(&library, bytes).unwrap(),
            None => fs::remove_file(&library).unwrap(),
        }
        for targets in [&[][..], &["gfx1100"]] {
            let found = checks(&check_with(&tree, "prefix", None, targets), outcome);
            let expected =
                format!("vec_lib_gfx1100.kpack: has kernels of `lib/libvec.so`, {expected}");
            assert!(found.iter().any(|line| line.ends_with(&expected)), "{found:?}");
        }
    }
}

/// A truncated host binary looks like any file that kpack does not know.
#[test]
fn a_truncated_host_binary() {
    let tree = Tree::new();
    shard(&tree, "linux-a", &["gfx1100", "gfx942"]);
    let library =
        tree.path(&format!("shards/linux-a/blas_lib_generic/{PREFIX}/lib/librocblas.so.5"));
    let bytes = fs::read(&library).unwrap();
    for end in [bytes.len() - 1, bytes.len() / 2, 64, 0] {
        fs::write(&library, &bytes[..end]).unwrap();
        let found = faults(&check(&tree, "shards/linux-a"));
        let text = "has kernels of `lib/librocblas.so.5`, which does not look for them here";
        assert!(found.iter().any(|line| line.contains(text)), "{found:#?}");

        let plan = planned(&tree, CONFIGURATION);
        let parts = ["librocblas.so.5", "unused-kernels"];
        assert_said(&plan, Severity::Fault, &parts);
    }
}
