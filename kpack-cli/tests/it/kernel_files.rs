//! Given kernel files of a program that kpack does not know, and rules that name them, when something is split, then
//! each file goes where the files of its target go.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use kpack_tests::fixture::{Storage, Wheel, bundle, code_object};
use kpack_tests::tree::Tree;

use crate::blas;
use crate::command::said;
use crate::wheels::{FAT, library, members};

const CYCLES: &str = "cycles=lib/kernel*_{target}.{fatbin,hipfb}.zst";
const TARGETS: [&str; 3] = ["gfx1030", "gfx1100", "gfx942"];

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 3).unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A bundle with code for one target, as Blender compresses them.
fn kernel(target: &str, name: &str) -> Vec<u8> {
    let object = code_object(target, name.as_bytes()).unwrap();
    zstd(&bundle(Storage::Plain, &[(target.to_owned(), object)]).unwrap())
}

/// The files of Blender's render engine, by path.
fn cycles() -> Vec<(String, Vec<u8>)> {
    let kinds = [("kernel", "fatbin"), ("kernel_rt", "hipfb")];
    let files = TARGETS.iter().flat_map(|target| {
        kinds.map(|(stem, end)| (format!("lib/{stem}_{target}.{end}.zst"), kernel(target, stem)))
    });
    let other = [("lib/kernel_sm_75.cubin.zst".to_owned(), zstd(b"of another maker"))];
    files.chain(other).collect()
}

fn fat_wheel(tree: &Tree) -> String {
    let wheel = Wheel::new(FAT).member_with_mode("vec/_vec.so", 0o755, library().bytes());
    let wheel = cycles()
        .into_iter()
        .fold(wheel, |wheel, (path, bytes)| wheel.member(&format!("vec/cycles/{path}"), bytes));
    wheel.write(&tree.path("dist")).unwrap().to_str().unwrap().to_owned()
}

/// The kernel files among the members of a wheel.
fn kernels(wheel: &Path) -> BTreeSet<String> {
    members(wheel).into_keys().filter(|name| name.contains("/kernel_")).collect()
}

#[test]
fn a_device_wheel_has_the_kernel_files_of_its_target_and_no_others() {
    let tree = Tree::new();
    let fat = fat_wheel(&tree);
    let split = ["wheel", "split", &fat, "--output-dir", "out", "--kernel-files", CYCLES];
    let text = said(&tree, &split);
    assert!(text.ends_with("exit code 0\n") && !text.contains("unplaced-file"), "{text}");
    for target in TARGETS {
        let wheel = format!("out/vec_device_{target}-1.0-cp311-cp311-manylinux_2_28_x86_64.whl");
        let expected = [("kernel", "fatbin"), ("kernel_rt", "hipfb")]
            .map(|(stem, end)| format!("vec/cycles/lib/{stem}_{target}.{end}.zst"));
        assert_eq!(kernels(&tree.path(&wheel)), BTreeSet::from(expected));
    }
    let host = kernels(&tree.path(&format!("out/{FAT}")));
    assert_eq!(host, BTreeSet::from(["vec/cycles/lib/kernel_sm_75.cubin.zst".to_owned()]));
    let verify = ["wheel", "verify", "-q", "--against", &fat];
    let mut wheels: Vec<String> = fs::read_dir(tree.path("out"))
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .collect();
    wheels.sort();
    let arguments: Vec<&str> = verify.into_iter().chain(wheels.iter().map(|s| &**s)).collect();
    let text = said(&tree, &arguments);
    assert!(text.ends_with("exit code 0\n"), "{text}");
}

#[test]
fn a_wheel_with_a_file_for_another_target_than_its_name_says_is_rejected() {
    let tree = Tree::new();
    let wheel = Wheel::new(FAT).member("vec/lib/kernel_gfx1100.fatbin.zst", kernel("gfx1101", "k"));
    let fat = wheel.write(&tree.path("dist")).unwrap();
    let fat = fat.to_str().unwrap();
    let text =
        said(&tree, &["wheel", "split", fat, "--output-dir", "out", "--kernel-files", CYCLES]);
    assert!(text.contains("the path says gfx1100, but it has code for gfx1101"), "{text}");
    assert!(text.contains("[contradictory-target]"), "{text}");
    assert!(text.ends_with("exit code 3\n") && !tree.path("out").join(FAT).exists(), "{text}");
}

/// The artifact of a program with two kinds of kernel files, and a file of rules that it ships.
fn artifact() -> Tree {
    let tree = blas::artifact();
    for (path, bytes) in cycles() {
        tree.write(&format!("{}/{path}", blas::ROCBLAS), bytes);
    }
    for target in TARGETS {
        let object = code_object(target, b"fwd").unwrap();
        let directory = format!("{}/share/aiter/hsa/{target}", blas::ROCBLAS);
        tree.write(&format!("{directory}/fmha/fwd.co.gz"), gzip(&object));
        tree.write(&format!("{directory}/table.csv"), "fwd,1\n");
    }
    tree.write("kernels.rules", format!("# of Cycles\n{CYCLES}\n\naiter=hsa/{{target}}/**\n"));
    tree
}

#[test]
fn split_artifacts_remember_the_rules() {
    let input = artifact();
    let output = Tree::new();
    let (from, to) = (input.root().to_str().unwrap(), output.root().to_str().unwrap());
    let rules = format!("@{}", input.path("kernels.rules").display());
    let split = |more: &[&str]| {
        let arguments =
            ["artifact", "split", "--artifact-dir", from, "--artifact-prefix", "blas_lib"];
        let text = said(&input, &[&arguments, &["--output-dir", to][..], more].concat());
        assert!(text.ends_with("exit code 0\n"), "{text}");
        text
    };
    split(&["--kernel-files", &rules]);
    for target in TARGETS {
        let artifact = output.path(&format!("blas_lib_{target}/{}", blas::ROCBLAS));
        for path in [
            format!("lib/kernel_{target}.fatbin.zst"),
            format!("lib/kernel_rt_{target}.hipfb.zst"),
            format!("share/aiter/hsa/{target}/fmha/fwd.co.gz"),
            format!("share/aiter/hsa/{target}/table.csv"),
        ] {
            assert!(artifact.join(&path).is_file(), "{path}");
        }
    }
    let mark = fs::read_to_string(output.path("blas_lib_generic/.kpack-artifact")).unwrap();
    assert!(mark.contains(&format!("\"{CYCLES}\"")), "{mark}");

    let verify = said(&input, &["verify", to]);
    assert!(verify.ends_with("exit code 0\n") && !verify.contains("error"), "{verify}");
    // A second split of the generic artifact with its targets keeps them as they are.
    let again = Tree::new();
    let (batch, again_to) = (to, again.root().to_str().unwrap());
    let text = said(
        &input,
        &["artifact", "split", "--batch-artifact-parent-dir", batch, "--output-dir", again_to],
    );
    assert!(text.ends_with("exit code 0\n"), "{text}");
    assert!(output.snapshot() == again.snapshot(), "splitting again changes something");

    // The original does not list the rules.
    fs::remove_dir_all(output.path("blas_lib_gfx942")).unwrap();
    let against = ["verify", to, "--against", from, "--arch", "gfx1100"];
    let text = said(&input, &against);
    assert!(
        text.contains("kernel_gfx942.fatbin.zst: is lost") && text.ends_with("exit code 1\n"),
        "{text}"
    );
    let text = said(&input, &[&against, &["--kernel-files", &rules][..]].concat());
    assert!(text.ends_with("exit code 0\n"), "{text}");
}

#[test]
fn a_prefix_is_checked_before_anything_in_it_changes() {
    let tree = library().in_tree("stage/lib/libvec.so");
    for (path, bytes) in cycles() {
        tree.write(&format!("stage/{path}"), bytes);
    }
    let install = |tree: &Tree| {
        let arguments = ["split", "--prefix", "stage", "--module", "vec", "--all"];
        said(tree, &[&arguments, &["--kernel-files", CYCLES][..]].concat())
    };
    for (bytes, reason) in [
        (kernel("gfx1030", "k"), "the path says gfx942, but it has code for gfx1030"),
        (kernel("gfx942", "k")[..60].to_vec(), "damaged: it cannot be decompressed"),
    ] {
        let right = fs::read(tree.path("stage/lib/kernel_gfx942.fatbin.zst")).unwrap();
        fs::write(tree.path("stage/lib/kernel_gfx942.fatbin.zst"), bytes).unwrap();
        let before = tree.snapshot();
        let text = install(&tree);
        assert!(text.contains(reason) && text.ends_with("exit code 3\n"), "{text}");
        assert!(tree.snapshot() == before, "the prefix changed");
        let text = said(&tree, &["verify", "stage", "--kernel-files", CYCLES]);
        assert!(text.contains(reason) && text.ends_with("exit code 1\n"), "{text}");
        fs::write(tree.path("stage/lib/kernel_gfx942.fatbin.zst"), right).unwrap();
    }
    let text = install(&tree);
    assert!(
        text.contains("6 kernel files of cycles for gfx1030, gfx1100, gfx942; unchanged"),
        "{text}"
    );
    assert!(text.ends_with("exit code 0\n"), "{text}");
    let text = said(&tree, &["verify", "stage", "--kernel-files", CYCLES, "--verbose"]);
    assert!(
        text.contains("6 files of kernel databases") && text.ends_with("exit code 0\n"),
        "{text}"
    );
}

#[test]
fn invalid_rules_say_where_they_are() {
    let tree = Tree::new();
    tree.write("kernels.rules", format!("{CYCLES}\nflash=kernels/*.co\n"));
    let text = said(&tree, &["verify", ".", "--kernel-files", "@kernels.rules"]);
    assert!(text.contains("kernels.rules:2: "), "{text}");
    assert!(text.contains("expected {target} where the path names the GPU target"), "{text}");
    assert!(text.ends_with("exit code 2\n"), "{text}");
}
