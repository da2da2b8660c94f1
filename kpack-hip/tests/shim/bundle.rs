//! The bundle of a wrapper: which code objects it has.

use std::io::Cursor;

use kpack::internal::{Cache, Environment, Request, TargetId};
use kpack_format::offload_bundle::Bundle as Parsed;
use kpack_hip::{Bundle, Error};
use kpack_tests::tree::Tree;

use crate::common::{marker, write};

const KERNEL: &str = "lib/libvec.so#0";

/// A code object for a target.
fn code(target: &str) -> Vec<u8> {
    [target.as_bytes(), &[7; 5000]].concat()
}

/// A prefix with an archive for each target.
fn prefix(targets: &[&str]) -> Tree {
    let tree = Tree::new();
    for target in targets {
        let path = tree.path(&format!("lib/.kpack/vec_lib_{target}.kpack"));
        write(&path, target, &[(KERNEL, &code(target))]);
    }
    tree
}

fn bundle(tree: &Tree, gpus: Option<&[&str]>) -> Result<Bundle, Error> {
    let gpus = gpus.map(|gpus| {
        let gpus = gpus.iter().map(|gpu| gpu.parse().unwrap());
        gpus.collect::<Vec<TargetId>>()
    });
    let request =
        Request { marker: &marker(), binary: &tree.path("lib/libvec.so"), co_index: 0, isas: &[] };
    Bundle::new(&Cache::new(Environment::default()), &request, gpus.as_deref())
}

/// The targets of a bundle, after comparing its code objects.
fn targets(bundle: &Bundle) -> Vec<String> {
    let bytes = bundle.bytes();
    let parsed = Parsed::read(&mut Cursor::new(bytes), bytes.len() as u64).unwrap();
    assert!(parsed.entries[0].id.target().is_none());
    let mut targets = Vec::new();
    for found in parsed.code_objects(Cursor::new(bytes), |_| true).unwrap() {
        let found = found.unwrap();
        let target = found.target.to_string();
        assert_eq!(found.bytes, code(&target));
        targets.push(target);
    }
    targets
}

#[test]
fn it_has_every_variant_for_each_gpu() {
    let tree = prefix(&[
        "gfx1030",
        "gfx1100",
        "gfx11-generic",
        "gfx9-generic",
        "gfx9-4-generic",
        "gfx90a",
        "gfx90a:xnack+",
        "gfx90a:xnack-",
        "gfx942",
    ]);
    for (gpus, expected) in [
        (&["gfx1030"][..], &["gfx1030"][..]),
        (&["gfx90a"], &["gfx90a", "gfx90a:xnack+", "gfx90a:xnack-"]),
        (&["gfx1102"], &["gfx11-generic"]),
        // HIP runtimes take generic code from bundles for these only.
        (&["gfx900"], &["gfx9-generic"]),
        (&["gfx942"], &["gfx9-4-generic", "gfx942"]),
        (&["gfx950"], &["gfx9-4-generic"]),
        (&["gfx1030", "gfx1030", "gfx942"], &["gfx1030", "gfx9-4-generic", "gfx942"]),
        // One GPU has code, the other one has none.
        (&["gfx906", "gfx1030"], &["gfx1030"]),
        // No GPU: no code.
        (&[], &[]),
    ] {
        assert_eq!(targets(&bundle(&tree, Some(gpus)).unwrap()), expected, "{gpus:?}");
    }
    assert_eq!(targets(&bundle(&tree, None).unwrap()).len(), 9);
    for gpu in ["gfx906", "gfx908"] {
        let error = bundle(&tree, Some(&[gpu])).unwrap_err().to_string();
        let reason = format!("HIP runtimes do not take gfx9-generic for {gpu}");
        let from_archives = "HIP runtimes take gfx9-generic for gfx906 only from archives";
        let is_told = error.contains(&reason) || gpu == "gfx906" && error.contains(from_archives);
        assert!(is_told, "{error}");
    }
}

#[test]
fn it_has_spirv_for_every_gpu() {
    let tree = prefix(&["gfx942", "amdgcnspirv"]);
    for (gpus, expected) in [
        (&["gfx942"][..], &["amdgcnspirv", "gfx942"][..]),
        (&["gfx1030"], &["amdgcnspirv"]),
        (&["gfx942", "gfx1030"], &["amdgcnspirv", "gfx942"]),
        (&[], &[]),
    ] {
        let bundle = bundle(&tree, Some(gpus)).unwrap();
        assert_eq!(targets(&bundle), expected, "{gpus:?}");
        let bytes = bundle.bytes();
        let parsed = Parsed::read(&mut Cursor::new(bytes), bytes.len() as u64).unwrap();
        let ids = parsed.entries.iter().map(|entry| entry.id.as_str());
        let own = ids.filter(|id| id.ends_with("spirv"));
        // What runtimes look for.
        let expected = "hipv4-spirv64-amd-amdhsa--amdgcnspirv";
        assert!(own.into_iter().all(|id| id == expected));
    }
}

#[test]
fn what_is_nowhere_is_an_error_that_says_where_it_was_looked_for() {
    let tree = prefix(&["gfx942"]);
    let error = bundle(&tree, Some(&["gfx906"])).unwrap_err().to_string();
    assert!(error.starts_with("no code object for gfx906\n"), "{error}");
    assert!(
        error.contains("vec_lib_gfx906.kpack: no such file")
            && error.contains(" [missing-target]\n  run: kpack doctor "),
        "{error}"
    );
    let error = bundle(&prefix(&[]), None).unwrap_err().to_string();
    assert!(error.starts_with("no code object for an unknown GPU\n"), "{error}");
}

#[test]
fn a_damaged_archive_of_one_gpu_does_not_cost_the_others() {
    let tree = prefix(&["gfx942", "gfx1100"]);
    let damaged = tree.path("lib/.kpack/vec_lib_gfx942.kpack");
    let mut bytes = std::fs::read(&damaged).unwrap();
    // In the frame, which begins after the header.
    bytes[90] ^= 0xff;
    std::fs::write(&damaged, bytes).unwrap();
    let both = bundle(&tree, Some(&["gfx942", "gfx1100"])).unwrap();
    assert_eq!(targets(&both), ["gfx1100"]);
    let error = bundle(&tree, Some(&["gfx942"])).unwrap_err().to_string();
    assert!(error.contains("vec_lib_gfx942.kpack"), "{error}");
}

#[test]
fn a_runtime_that_would_not_see_all_gets_none() {
    let targets: Vec<String> = (0..120).map(|n| format!("gfx{}", 1000 + n)).collect();
    let tree = Tree::new();
    for target in &targets {
        let path = tree.path(&format!("lib/.kpack/vec_lib_{target}.kpack"));
        write(&path, target, &[(KERNEL, b"code")]);
    }
    let error = bundle(&tree, None).unwrap_err().to_string();
    assert!(error.starts_with("120 code objects fit into no bundle"), "{error}");
}
