//! Given shards whose generic artifacts have files for all targets, each with its own targets' part,
//! when they are recombined, then the file has every part once, and LLVM's tools can read it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::planned::{CONFIGURATION, assert_said, planned, recombine, said, with_validation};
use crate::shards::{PREFIX, three_shards};
use crate::verified::{check, check_with, faults};
use kpack_artifact::recombine::Severity;
use kpack_format::offload_bundle::{Bundle, Format};
use kpack_tests::fixture::{Storage, bundle, code_object};
use kpack_tests::require::tool;
use kpack_tests::tree::Tree;
use serde_json::json;

const LIBRARY: &str = "lib/hipblaslt/library";
const TRANSFORM: &str = "hipblasltTransform.hsaco";
const EXTENSIONS: &str = "hipblasltExtOpLibrary.dat";
const MAPPING: &str = "TensileLiteLibrary_lazy_Mapping.dat";

/// Writes a file for all targets as a shard built it, and uploaded it in its generic artifact.
fn put(tree: &Tree, shard: &str, file: &str, bytes: &[u8]) {
    for root in [
        format!("in/{shard}/blas_lib/{PREFIX}"),
        format!("shards/{shard}/blas_lib_generic/{PREFIX}"),
    ] {
        tree.write(&format!("{root}/{LIBRARY}/{file}"), bytes);
    }
}

fn transform(storage: Storage, targets: &[&str]) -> Vec<u8> {
    let entry = |target: &&str| {
        let code = code_object(target, format!("transform {target}").as_bytes());
        ((*target).to_owned(), code.unwrap())
    };
    let entries: Vec<(String, Vec<u8>)> = targets.iter().map(entry).collect();
    bundle(storage, &entries).unwrap()
}

fn message_pack(value: &serde_json::Value) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

/// A map with numbers as keys.
fn mapping(names: &[(u32, &str)]) -> Vec<u8> {
    let names: BTreeMap<u32, &str> = names.iter().copied().collect();
    rmp_serde::to_vec(&names).unwrap()
}

fn output(tree: &Tree, file: &str) -> PathBuf {
    tree.path(&format!("out/blas_lib_generic/{PREFIX}/{LIBRARY}/{file}"))
}

#[test]
fn bundles_of_all_shards_are_one() {
    let tree = three_shards();
    let built = [
        ("linux-a", transform(Storage::Plain, &["gfx1100", "gfx1101"])),
        ("linux-b", transform(Storage::Zstd(3), &["gfx90a:xnack+", "gfx1100"])),
        ("linux-c", transform(Storage::Bare, &["gfx942"])),
    ];
    for (shard, bytes) in &built {
        put(&tree, shard, TRANSFORM, bytes);
    }
    assert_eq!(faults(&check(&tree, "shards")), [""; 0]);
    let plan = recombine(&tree, CONFIGURATION);
    assert_said(
        &plan,
        Severity::Note,
        &[TRANSFORM, "merged from the copies of linux-a, linux-b, linux-c"],
    );
    assert_eq!(said(&plan).len(), 1);

    let path = output(&tree, TRANSFORM);
    let bytes = fs::read(&path).unwrap();
    let merged = Bundle::read(&mut Cursor::new(&bytes), bytes.len() as u64).unwrap();
    assert_eq!(merged.format, Format::Plain);
    let ids: Vec<String> = merged.entries.iter().map(|e| e.id.to_string()).collect();
    let targets = ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"];
    let mut expected = vec!["host-x86_64-unknown-linux-gnu-".to_owned()];
    expected.extend(targets.map(|target| format!("hipv4-amdgcn-amd-amdhsa--{target}")));
    assert_eq!(ids, expected);
    assert_eq!(merged.entries[0].size, 0);
    assert!(merged.entries.iter().all(|entry| entry.offset % 4096 == 0));
    let codes = merged.code_objects(Cursor::new(&bytes), |_| true).unwrap();
    for code in codes.map(Result::unwrap) {
        let target = code.target.to_string();
        let expected = code_object(&target, format!("transform {target}").as_bytes());
        assert_eq!(code.bytes, expected.unwrap(), "{target}");
    }

    // It is in the generic artifact, and nothing of any shard is lost.
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
    for (shard, targets) in
        [("in/linux-a", &["gfx1100", "gfx1101"][..]), ("in/linux-c", &["gfx942"])]
    {
        let faults = faults(&check_with(&tree, "out", Some(shard), targets));
        let about = faults.iter().filter(|fault| fault.contains(TRANSFORM));
        assert_eq!(about.count(), 0, "{faults:#?}");
    }
    fs::write(&path, &built[2].1).unwrap();
    let faults = faults(&check_with(&tree, "out", Some("in/linux-a"), &["gfx1100", "gfx1101"]));
    let lost = "lacks the entries for gfx1100, gfx1101 that the unsplit file has";
    assert!(faults.iter().any(|fault| fault.contains(lost)), "{faults:#?}");
}

/// Packages keep the mode, whatever the umask was.
#[test]
fn mode_and_time_are_of_a_copy() {
    let tree = three_shards();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    for (shard, target) in [("linux-a", "gfx1100"), ("linux-c", "gfx942")] {
        put(&tree, shard, TRANSFORM, &transform(Storage::Bare, &[target]));
        let file = format!("shards/{shard}/blas_lib_generic/{PREFIX}/{LIBRARY}/{TRANSFORM}");
        let file = fs::File::open(tree.path(&file)).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o751)).unwrap();
        file.set_modified(then).unwrap();
    }
    recombine(&tree, CONFIGURATION);
    let made = output(&tree, TRANSFORM).metadata().unwrap();
    assert_eq!(made.mode() & 0o7777, 0o751);
    assert_eq!(made.modified().unwrap(), then);
}

#[test]
fn llvm_reads_merged_bundles() {
    let bundler = "clang-offload-bundler-19";
    if !tool(bundler) {
        return;
    }
    let tree = three_shards();
    put(&tree, "linux-a", TRANSFORM, &transform(Storage::Plain, &["gfx1100"]));
    put(&tree, "linux-c", TRANSFORM, &transform(Storage::Bare, &["gfx942"]));
    recombine(&tree, CONFIGURATION);
    let run = |arguments: &[&str]| {
        let input = format!("--input={}", output(&tree, TRANSFORM).display());
        let output = Command::new(bundler).arg("--type=o").arg(input).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = run(&["--list"]);
    // The order does not matter.
    let mut ids: Vec<&str> = listed.lines().collect();
    ids.sort_unstable();
    assert_eq!(
        ids,
        [
            "hipv4-amdgcn-amd-amdhsa--gfx1100",
            "hipv4-amdgcn-amd-amdhsa--gfx942",
            "host-x86_64-unknown-linux-gnu-",
        ]
    );
    for target in ["gfx1100", "gfx942"] {
        let to = tree.path(target);
        let targets = format!("--targets=hipv4-amdgcn-amd-amdhsa--{target}");
        run(&["--unbundle", &targets, &format!("--output={}", to.display())]);
        let expected = code_object(target, format!("transform {target}").as_bytes());
        assert_eq!(fs::read(to).unwrap(), expected.unwrap(), "{target}");
    }
}

#[test]
fn a_copy_that_has_everything_is_taken_as_it_is() {
    let tree = three_shards();
    let all = transform(Storage::Zstd(2), &["gfx1100", "gfx942"]);
    put(&tree, "linux-a", TRANSFORM, &transform(Storage::Plain, &["gfx1100"]));
    put(&tree, "linux-b", TRANSFORM, &all);
    let plan = recombine(&tree, CONFIGURATION);
    assert_eq!(said(&plan), [""; 0]);
    assert_eq!(fs::read(output(&tree, TRANSFORM)).unwrap(), all);
    let generic = plan.artifacts.iter().find(|a| a.group.is_none()).unwrap();
    let shards: Vec<&String> = generic.shards.iter().collect();
    assert_eq!(shards, ["linux-a", "linux-b"]);
    // The same if the primary shard has none.
    for root in ["in/linux-a/blas_lib", "shards/linux-a/blas_lib_generic"] {
        fs::remove_dir_all(tree.path(&format!("{root}/{PREFIX}/lib/hipblaslt"))).unwrap();
    }
    assert_eq!(said(&recombine(&tree, CONFIGURATION)), [""; 0]);
    assert_eq!(fs::read(output(&tree, TRANSFORM)).unwrap(), all);
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
}

#[test]
fn different_code_for_one_target_is_a_duplicate() {
    let tree = three_shards();
    let ours = transform(Storage::Plain, &["gfx1100", "gfx942"]);
    let other = vec![("gfx942".to_owned(), code_object("gfx942", b"other").unwrap())];
    put(&tree, "linux-a", TRANSFORM, &ours);
    put(&tree, "linux-c", TRANSFORM, &bundle(Storage::Plain, &other).unwrap());
    let parts =
        ["linux-c", TRANSFORM, "its entries for gfx942 differ between shards linux-a and linux-c"];
    assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &parts);
    let allowed = with_validation("error_on_duplicate_device_code", false);
    assert_said(&recombine(&tree, &allowed), Severity::Warning, &parts);
    assert_eq!(fs::read(output(&tree, TRANSFORM)).unwrap(), ours);
}

#[test]
fn tables_of_kernels_are_merged_by_key() {
    let tree = three_shards();
    let extension = |target: &str| json!([{"co_path": format!("extop_{target}.co")}]);
    let of = |targets: &[&str]| {
        let entries = targets.iter().map(|t| ((*t).to_owned(), json!({"Softmax": extension(t)})));
        message_pack(&serde_json::Value::Object(entries.collect()))
    };
    put(&tree, "linux-a", EXTENSIONS, &of(&["gfx1100", "gfx1101"]));
    put(&tree, "linux-b", EXTENSIONS, &of(&["gfx90a"]));
    put(&tree, "linux-c", EXTENSIONS, &of(&["gfx942", "gfx1101"]));
    let plan = recombine(&tree, CONFIGURATION);
    let parts = [EXTENSIONS, "merged-file"];
    assert_said(&plan, Severity::Note, &parts);
    assert_eq!(said(&plan).len(), 1);
    let all = of(&["gfx1100", "gfx1101", "gfx90a", "gfx942"]);
    assert_eq!(fs::read(output(&tree, EXTENSIONS)).unwrap(), all);
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
}

/// A key is the start of a range of kernels, and every build counts from 0.
#[test]
fn kernel_numbers_of_two_builds_are_not_merged() {
    let tree = three_shards();
    let ours = mapping(&[(0, "BB_gfx1100"), (60, "HH_gfx1100")]);
    put(&tree, "linux-a", MAPPING, &ours);
    put(&tree, "linux-b", MAPPING, &ours);
    put(&tree, "linux-c", MAPPING, &ours);
    assert_eq!(said(&recombine(&tree, CONFIGURATION)), [""; 0]);
    assert_eq!(fs::read(output(&tree, MAPPING)).unwrap(), ours);

    // With any validation, and whether or not they have numbers in common.
    let lax = CONFIGURATION.strip_suffix("  }\n}").unwrap().to_owned()
        + r#"}, "validation": {"error_on_duplicate_device_code": false,
                               "verify_generic_artifacts_match": false}}"#;
    for theirs in [
        mapping(&[(0, "BB_gfx90a")]),
        mapping(&[(45, "BB_gfx90a")]),
        message_pack(&json!({"0": "BB_gfx90a"})),
    ] {
        put(&tree, "linux-b", MAPPING, &theirs);
        for configuration in [CONFIGURATION, &lax] {
            let plan = planned(&tree, configuration);
            let parts = [
                "linux-b",
                MAPPING,
                "unmergeable-file",
                "TensileLiteLibrary_lazy_<target>_Mapping.dat or a directory for each target",
                "let one shard build this library for all targets",
            ];
            assert_said(&plan, Severity::Fault, &parts);
            assert_eq!(said(&plan).len(), 1);
        }
    }
    // Otherwise the entries of another shard would be lost.
    put(&tree, "linux-b", MAPPING, &ours);
    for shard in ["linux-a", "linux-c"] {
        let library = format!("shards/{shard}/blas_lib_generic/{PREFIX}/lib/hipblaslt");
        fs::remove_dir_all(tree.path(&library)).unwrap();
    }
    for configuration in [CONFIGURATION, &lax] {
        let parts = ["linux-b", MAPPING, "only shard linux-b has it"];
        assert_said(&planned(&tree, configuration), Severity::Fault, &parts);
    }
}

/// Its shards have the same three files, and a version may be in the path.
#[test]
fn files_of_hipsparselt_are_merged_as_those_of_hipblaslt() {
    for library in ["lib/hipsparselt/library", "lib/x86_64-linux-gnu/hipsparselt/7.2.4/library"] {
        let tree = three_shards();
        let put = |shard: &str, file: &str, bytes: &[u8]| {
            let file = format!("shards/{shard}/blas_lib_generic/{PREFIX}/{library}/{file}");
            tree.write(&file, bytes);
        };
        let of = |target: &str| message_pack(&json!({target: {"AMax": []}}));
        for (shard, target) in [("linux-a", "gfx1100"), ("linux-c", "gfx942")] {
            put(shard, TRANSFORM, &transform(Storage::Plain, &[target]));
            put(shard, EXTENSIONS, &of(target));
        }
        let plan = recombine(&tree, CONFIGURATION);
        for file in [TRANSFORM, EXTENSIONS] {
            let parts = [file, "merged from the copies of linux-a, linux-c"];
            assert_said(&plan, Severity::Note, &parts);
        }
        assert_eq!(said(&plan).len(), 2);
        put("linux-a", MAPPING, &mapping(&[(0, "BB_gfx1100")]));
        put("linux-c", MAPPING, &mapping(&[(0, "BB_gfx942")]));
        let parts = [MAPPING, "unmergeable-file"];
        assert_said(&planned(&tree, CONFIGURATION), Severity::Fault, &parts);
    }
}

#[test]
fn lists_of_files_are_merged_line_by_line() {
    let tree = three_shards();
    let list = |shard: &str, lines: &str| {
        let file = format!("shards/{shard}/blas_lib_generic/{PREFIX}/{LIST}");
        tree.write(&file, lines);
    };
    const LIST: &str = "lib/rocblas/library/TensileManifest.txt";
    list("linux-a", "Kernels_gfx1100.hsaco\nTensileLibrary_fallback.dat\n");
    list("linux-c", "Kernels_gfx942.hsaco\nTensileLibrary_fallback.dat\n");
    let plan = recombine(&tree, CONFIGURATION);
    assert_said(&plan, Severity::Note, &[LIST, "merged from the copies of linux-a, linux-c"]);
    let all = "Kernels_gfx1100.hsaco\nKernels_gfx942.hsaco\nTensileLibrary_fallback.dat\n";
    let out = tree.path(&format!("out/blas_lib_generic/{PREFIX}/{LIST}"));
    assert_eq!(fs::read_to_string(out).unwrap(), all);
    assert_eq!(faults(&check(&tree, "out")), [""; 0]);
}

#[test]
fn what_is_no_such_table_is_a_host_file() {
    let tree = three_shards();
    put(&tree, "linux-a", EXTENSIONS, &message_pack(&json!({"gfx1100": [], "version": 1})));
    put(&tree, "linux-b", EXTENSIONS, &message_pack(&json!({"gfx90a": []})));
    let plan = planned(&tree, CONFIGURATION);
    let parts = [
        "linux-b",
        EXTENSIONS,
        "cannot be merged with shard linux-a's (has the key `version`), and differs",
    ];
    assert_said(&plan, Severity::Fault, &parts);
    assert_eq!(plan.errors(), 1);
    let lenient = with_validation("verify_generic_artifacts_match", false);
    assert_said(&planned(&tree, &lenient), Severity::Warning, &parts);
}

#[test]
fn directories_are_as_old_as_the_shards_have_them() {
    let tree = three_shards();
    recombine(&tree, CONFIGURATION);
    fs::rename(tree.path("out"), tree.path("first")).unwrap();
    recombine(&tree, CONFIGURATION);
    for entry in fs::read_dir(tree.path("out")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let [first, second] =
            ["first", "out"].map(|out| tree.directory_times(&format!("{out}/{name}")));
        assert_eq!(first, second, "{name}");
    }
}
