//! The output of `--json` is what docs/kpack.schema.json says. A validator compares what each command prints about
//! real files with it; unknown keys are errors.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use kpack_tests::fixture::{FatLibrary, Kind, Wheel, add_and_mul};
use kpack_tests::page::repository;
use kpack_tests::tree::Tree;
use serde_json::{Value, json};

use crate::by_hand::by_hand;
use crate::cargo_build::built;
use crate::command::{command, kpack};
use crate::shards::three_shards;
use crate::stage_split;

/// Validates documents, each against the definition of a command, and prints what is wrong.
const VALIDATOR: &str = r##"
import json, sys
import jsonschema
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
for name, command, document in json.load(sys.stdin):
    validator = jsonschema.Draft202012Validator({"$ref": "#/$defs/" + command, "$defs": schema["$defs"]})
    for error in validator.iter_errors(document):
        best = jsonschema.exceptions.best_match([error])
        print(name + ": " + best.json_path + ": " + best.message)
"##;

/// What commands printed.
#[derive(Default)]
struct Printed(Vec<Value>);

impl Printed {
    /// Runs a command, which ends with `code`, for the definition `name` of the schema.
    fn run(&mut self, tree: &Tree, name: &str, code: i32, arguments: &[&str]) -> Value {
        let output = kpack(tree, &[arguments, &["--json"]].concat());
        let line = arguments.join(" ");
        assert_eq!(output.status.code(), Some(code), "{line}: {output:?}");
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{line}: {error}: {output:?}"));
        self.0.push(json!([line, name, document]));
        // The ID has its own key; on standard error it ends the message.
        if let (Some(error), Some(id)) = (document["error"].as_str(), document["id"].as_str()) {
            let id = format!("[{id}]");
            assert!(!error.contains(&id), "{line}: {error}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(&id), "{line}: {said}");
        }
        document
    }

    /// Faults of the documents.
    fn faults(&self) -> String {
        let schema = repository().join("docs/kpack.schema.json");
        let mut validator = Command::new("python3");
        validator.args(["-c", VALIDATOR]).arg(schema);
        let mut validator = validator.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let documents = serde_json::to_vec(&self.0).unwrap();
        validator.stdin.take().unwrap().write_all(&documents).unwrap();
        let output = validator.wait_with_output().unwrap();
        assert!(output.status.success(), "python3-jsonschema is installed");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn library() -> FatLibrary {
    add_and_mul(["gfx942", "gfx90a"], ["gfx942", "gfx90a"])
}

/// A prefix with `lib/libvec.so`, fat.
fn prefix() -> Tree {
    library().in_tree("lib/libvec.so")
}

const INSTALL: &[&str] = &["split", "--prefix", ".", "--module", "vec", "lib/libvec.so"];

#[test]
fn commands_about_prefixes_print_what_the_schema_says() {
    let mut printed = Printed::default();
    let tree = prefix();
    fs::write(tree.path("text"), "text").unwrap();
    printed.run(&tree, "show", 0, &["show", "lib/libvec.so"]);
    fs::create_dir(tree.path("copy")).unwrap();
    fs::copy(tree.path("lib/libvec.so"), tree.path("copy/libvec.so")).unwrap();
    printed.run(&tree, "trim", 3, &["trim", "copy", "--arch", "gfx1030"]);
    printed.run(&tree, "trim", 0, &["trim", "copy", "--arch", "gfx942"]);
    fs::remove_dir_all(tree.path("copy")).unwrap();
    printed.run(&tree, "trim", 4, &["trim", "copy", "--arch", "gfx942"]);
    printed.run(&tree, "split", 0, INSTALL);
    printed.run(&tree, "split", 0, INSTALL);
    printed.run(&tree, "show", 0, &["show", "lib/libvec.so"]);
    printed.run(&tree, "show", 0, &["show", "lib/.kpack/vec_lib.kpm"]);
    let archive = "lib/.kpack/vec_lib_gfx942.kpack";
    printed.run(&tree, "show", 0, &["show", archive]);
    printed.run(&tree, "list", 0, &["list", archive]);
    let create = ["create", "kernels.kpack", "--arch", "gfx942", "text"];
    printed.run(&tree, "create", 0, &create);
    printed.run(&tree, "list", 0, &["list", "kernels.kpack"]);
    printed.run(&tree, "create", 3, &[&create[..], &["./text"]].concat());
    let extract = ["extract", archive, "--kernel", "lib/libvec.so#0"];
    let extracted = kpack(&tree, &[&extract[..], &["-o", "code"]].concat());
    assert!(extracted.status.success(), "{extracted:?}");
    let all = kpack(&tree, &["extract", archive, "-o", "all"]);
    let said = String::from_utf8(all.stderr).unwrap();
    assert!(said.lines().next().unwrap().ends_with("[several-selected]"), "{said}");
    printed.run(&tree, "show", 0, &["show", "code"]);
    printed.run(&tree, "show", 0, &["show", "."]);
    let into = [&extract[..], &["--output-dir", "extracted"]].concat();
    let extracted = printed.run(&tree, "extract", 0, &into);
    assert_eq!(extracted[0]["target"], "gfx942");
    printed.run(&tree, "extract", 3, &["extract", "text", "-o", "-"]);
    let targets = printed.run(&tree, "targets", 0, &["targets", "gfx942,gfx90a"]);
    assert_eq!(targets, json!(["gfx942", "gfx90a"]));
    printed.run(&tree, "explain", 0, &["explain"]);
    printed.run(&tree, "explain", 0, &["explain", "stale-archive"]);
    let codes = printed.run(&tree, "explain", 0, &["explain", "exit", "code", "3"]);
    assert_eq!(codes[0]["exit_code"], 3);
    printed.run(&tree, "explain", 2, &["explain", "nothing"]);
    printed.run(&tree, "report", 0, &["report", "."]);
    printed.run(&tree, "verify", 0, &["verify", "."]);
    printed.run(&tree, "doctor", 1, &["doctor", ".", "--arch", "gfx1030"]);
    let wheels = Tree::new();
    by_hand(&wheels, "env/lib/python3.12/site-packages", "host", "", "pip\n");
    printed.run(&wheels, "doctor", 0, &["doctor", "env", "--arch", "gfx1100", "--unused"]);
    let native = ["join", "--prefix", ".", "--arch", "native", "--installed"];
    printed.run(&tree, "join", 0, &native);
    let join = ["join", "--prefix", ".", "--arch", "gfx942", "lib/libvec.so"];
    printed.run(&tree, "join", 0, &join);
    printed.run(&tree, "show", 0, &["show", "lib/libvec.so"]);
    let bytes = fs::read(tree.path(archive)).unwrap();
    // In a code object, and in the type of the TOC's first value.
    let toc = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    for (at, details) in [
        (90, json!({"kernel": "lib/libvec.so#0", "target": "gfx942", "offset": 72})),
        (toc as usize, json!({"offset": toc, "expected": "a map", "found": "a list"})),
    ] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        fs::write(tree.path(archive), damaged).unwrap();
        let verified = printed.run(&tree, "verify", 1, &["verify", archive]);
        assert_eq!(verified["findings"][0]["details"], details, "{verified}");
        let failed = printed.run(&tree, "extract", 3, &[&extract[..], &["-o", "-"]].concat());
        assert_eq!(failed["details"], details, "{failed}");
    }
    fs::write(tree.path(archive), &bytes[..bytes.len() / 2]).unwrap();
    let verified = printed.run(&tree, "verify", 1, &["verify", archive]);
    assert_eq!(verified["findings"][0]["severity"], "fault");
    let shown = printed.run(&tree, "show", 3, &["show", "."]);
    let failed = shown.as_array().unwrap().last().unwrap();
    assert_eq!(failed["path"], format!("./{archive}"));
    assert_eq!(failed["id"], "damaged-archive");
    let mut doctor = command(&tree, &["doctor", ".", "--arch", "gfx942"]);
    let output = doctor.env("ROCM_KPACK_DISABLE", "1").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("[loader-disabled]"), "{said}");
    let mut library = fs::read(tree.path("lib/libvec.so")).unwrap();
    let headers = u64::from_le_bytes(library[32..40].try_into().unwrap());
    // The size of a program header, e_phentsize.
    library[54] = 57;
    fs::write(tree.path("damaged.so"), library).unwrap();
    let failed = printed.run(&tree, "show", 3, &["show", "damaged.so"]);
    assert_eq!(failed["details"], json!({"offset": headers, "expected": "56", "found": "57"}));
    for (name, arguments) in [
        ("split", &["split", "--prefix", ".", "--module", "vec", "text"][..]),
        ("join", &["join", "--prefix", ".", "--arch", "gfx942", "text"]),
        ("object", &["object", "--module", "vec", "--output-dir", "out", "text"]),
        ("show", &["show", "text"]),
        ("list", &["list", "text"]),
        ("doctor", &["doctor", "text"]),
    ] {
        let failed = printed.run(&tree, name, 3, arguments);
        assert_eq!(failed["outcome"], "failed", "{name}");
        assert_eq!(failed["id"], "unknown-file", "{name}");
    }
    let failed = printed.run(&tree, "report", 4, &["report", "missing"]);
    assert_eq!(failed["id"], "system");
    let failed = printed.run(&tree, "verify", 4, &["verify", "missing"]);
    assert_eq!(failed["id"], "system");
    assert_eq!(printed.faults(), "");
}

#[test]
fn keys_that_the_schema_does_not_have_are_faults() {
    let finding = json!({"id": "gpus", "severity": "ok", "path": null, "text": "", "help": null});
    let mut more = finding.clone();
    more["more"] = json!(1);
    let mut printed = Printed::default();
    for finding in [finding, more] {
        let line = finding.to_string();
        printed.0.push(json!([line, "verify", {"findings": [finding]}]));
    }
    let faults = printed.faults();
    assert_eq!(faults.lines().count(), 1, "{faults}");
    assert!(faults.contains("'more'") || faults.contains("\"more\":1"), "{faults}");
}

#[test]
fn commands_about_builds_print_what_the_schema_says() {
    let mut printed = Printed::default();
    let tree = Tree::new();
    let object = library().kind(Kind::Object);
    object.build(&tree.path("vec.o")).unwrap();
    printed.run(&tree, "show", 0, &["show", "vec.o"]);
    let object = ["object", "--module", "vec", "--output-dir", "host", "vec.o"];
    printed.run(&tree, "object", 0, &object);
    let tree = Tree::new();
    fs::write(tree.path("build.json"), built(&tree)).unwrap();
    let stage = ["stage", "--output-dir", "dist", "--messages", "build.json"];
    printed.run(&tree, "stage", 0, &stage);
    fs::write(tree.path("build.json"), "{\"reason\":\"build-finished\",\"success\":false}\n")
        .unwrap();
    let failed = printed.run(&tree, "stage", 3, &stage);
    assert_eq!(failed["id"], "nothing-built");
    let program = library().kind(Kind::Pie);
    program.build(&tree.path("app")).unwrap();
    let staged = printed.run(&tree, "stage", 0, &["stage", "app", "--output-dir", "application"]);
    assert_eq!(staged["files"][0]["path"], "bin/app");
    let reading = stage_split::application();
    let split = ["stage", "app/bin/vec", "--output-dir", "dist", "--split"];
    let split = printed.run(&reading, "stage", 0, &split);
    assert_eq!(split["files"][0]["path"], "host/bin/vec");
    assert_eq!(split["machines"][0]["directories"][1], "gfx1100");
    assert_eq!(printed.faults(), "");
}

#[test]
fn commands_about_artifacts_print_what_the_schema_says() {
    let mut printed = Printed::default();
    let tree = three_shards();
    let split =
        ["artifact", "split", "--batch-artifact-parent-dir", "in/linux-a", "--output-dir", "again"];
    printed.run(&tree, "split-batch", 0, &split);
    let artifact = "in/linux-a/blas_lib";
    let split = ["artifact", "split", "--artifact-prefix", "blas_lib", "--output-dir", "one"];
    let one = [&split[..], &["--artifact-dir", artifact]].concat();
    printed.run(&tree, "split-artifact", 0, &one);
    let none = [&split[..], &["--artifact-dir", "missing"]].concat();
    let failed = printed.run(&tree, "split-artifact", 4, &none);
    assert_eq!(failed["id"], "system");
    let configuration = r#"{"primary_shard": "linux-a", "architecture_groups": {"all": {"architectures": ["gfx1100", "gfx942"]}}}"#;
    fs::write(tree.path("packaging.json"), configuration).unwrap();
    let recombine = [
        "artifact",
        "recombine",
        "--input-shards-dir",
        "shards",
        "--output-dir",
        "packages",
        "--config",
    ];
    printed.run(&tree, "artifact-recombine", 0, &[&recombine[..], &["packaging.json"]].concat());
    fs::write(tree.path("bad.json"), "{").unwrap();
    let failed =
        printed.run(&tree, "artifact-recombine", 3, &[&recombine[..], &["bad.json"]].concat());
    assert_eq!(failed["id"], "bad-configuration");
    printed.run(&tree, "verify", 0, &["verify", "packages"]);
    printed.run(&tree, "report", 0, &["report", "packages"]);
    let pack = ["artifact", "pack", "packages", "--output-dir", "store", "--run", "1"];
    printed.run(&tree, "artifact-pack", 0, &pack);
    // The archives alone do not tell which kernel databases they have.
    let archives = ["artifact", "pack", "--archives", "store", "--run", "1"];
    let refused = printed.run(&tree, "artifact-pack", 3, &archives);
    assert_eq!(refused["id"], "output-in-the-way");
    fs::rename(tree.path("store/index.json"), tree.path("index.json")).unwrap();
    printed.run(&tree, "artifact-pack", 0, &["artifact", "pack", "--archives", "store"]);
    fs::rename(tree.path("index.json"), tree.path("store/index.json")).unwrap();
    let other = ["artifact", "pack", "packages", "--output-dir", "store", "--run", "2"];
    printed.run(&tree, "artifact-pack", 3, &other);
    printed.run(&tree, "artifact-select", 0, &["artifact", "select", "store/index.json"]);
    let unpack = ["artifact", "unpack", "store", "--output-dir", "unpacked"];
    printed.run(&tree, "artifact-unpack", 0, &unpack);
    fs::write(tree.path("store/index.json"), "").unwrap();
    let failed = printed.run(&tree, "artifact-unpack", 3, &unpack);
    assert_eq!(failed["id"], "bad-index");
    assert_eq!(printed.faults(), "");
}

#[test]
fn commands_about_wheels_print_what_the_schema_says() {
    let mut printed = Printed::default();
    let tree = library().in_tree("lib.so");
    let fat = Wheel::new("vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl");
    let fat = fat.member("vec/_vec.so", fs::read(tree.path("lib.so")).unwrap());
    let fat = fat.write(&tree.path("dist")).unwrap();
    let fat = fat.to_str().unwrap();
    let split = ["wheel", "split", fat, "--output-dir", "out"];
    printed.run(&tree, "wheel-split", 0, &split);
    let wheels = fs::read_dir(tree.path("out")).unwrap();
    let wheels = wheels.map(|entry| entry.unwrap().path().to_str().unwrap().to_owned());
    let wheels: Vec<String> = wheels.filter(|path| path.ends_with(".whl")).collect();
    let wheels: Vec<&str> = wheels.iter().map(String::as_str).collect();
    printed.run(&tree, "wheel-show", 0, &[&["wheel", "show", fat], &*wheels].concat());
    let verified =
        printed.run(&tree, "wheel-verify", 0, &[&["wheel", "verify"], &*wheels].concat());
    assert_eq!(verified["findings"][0]["id"], "wheel-sound");
    let failed = printed.run(&tree, "wheel-verify", 1, &["wheel", "verify", wheels[0]]);
    assert!(failed["findings"].to_string().contains("-wheel"));
    fs::write(tree.path("a.zip"), "").unwrap();
    let failed = printed.run(&tree, "wheel-show", 3, &["wheel", "show", "a.zip"]);
    assert_eq!(failed["id"], "wheel-name");
    assert_eq!(printed.faults(), "");
}
