//! Given a program with modules, when it loads them for GPUs, from its own memory or from the archives that it was split
//! into, then it gets the best code there is, and otherwise an error that says what is there and what to do.
//!
//! This test program is that program. To split it, the tests copy it, and run the copy.

mod damaged;
mod started;

use std::env;
use std::ffi::CStr;
use std::fs;
use std::panic::{self, RefUnwindSafe, UnwindSafe};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use kpack::{Code, Error, Module};
use kpack_doctor::{Options, examine};
use kpack_split::install::{InstallOptions, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::fixture::{Storage, bundle, code};
use kpack_tests::process::run;
use kpack_tests::tree::Tree;

/// As `kpack-build` generates them for two packages.
mod one {
    kpack::modules_v1! {
        kernels;
        AFFINE {
            name: "affine",
            size: 25607,
            bundle: include_bytes!("affine.hipfb"),
            targets: ["gfx90a", "gfx90a:xnack-", "gfx11-generic"],
            kernels: [c"affine_f32", c"affine_f64"],
            list: "affine_f32, affine_f64",
        }
        PACKED {
            name: "packed",
            size: 275,
            bundle: include_bytes!("packed.hipfb"),
            targets: ["gfx942", "gfx1100"],
            kernels: [c"packed"],
            list: "packed",
        }
        REDUCE { skipped: "DOCS_RS is set", name: "reduce" }
    }
}

/// The other package has a module of the same name.
mod two {
    kpack::modules_v1! {
        kernels;
        AFFINE {
            name: "affine",
            size: 9235,
            bundle: include_bytes!("other.hipfb"),
            targets: ["gfx908:xnack-"],
            kernels: [],
            list: "",
        }
    }
}

/// A bundle of [`one`] or [`two`]: its file, how it is stored, and for each target what its code says.
type Contents = (&'static str, Storage, &'static [(&'static str, &'static str)]);

const BUNDLES: [Contents; 3] = [
    (
        "affine.hipfb",
        Storage::Plain,
        &[("gfx90a", "any"), ("gfx90a:xnack-", "no xnack"), ("gfx11-generic", "generic")],
    ),
    ("packed.hipfb", Storage::Zstd(3), &[("gfx942", "packed for one"), ("gfx1100", "for two")]),
    ("other.hipfb", Storage::Plain, &[("gfx908:xnack-", "the other package's")]),
];

/// Builds affine.hipfb and the others again with `KPACK_WRITE_BUNDLES=1`; this program must be compiled again then.
#[test]
fn the_bundles_are_those_of_the_fixture() {
    for (name, storage, codes) in BUNDLES {
        let codes = Vec::from_iter(codes.iter().map(|(target, text)| code(target, text)));
        let expected = bundle(storage, &codes).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/modules").join(name);
        if env::var_os("KPACK_WRITE_BUNDLES").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        assert!(fs::read(&path).unwrap() == expected, "KPACK_WRITE_BUNDLES=1 writes {name} again");
    }
}

const MODULES: [(&str, &Module); 4] = [
    ("affine", &one::kernels::AFFINE),
    ("packed", &one::kernels::PACKED),
    ("reduce", &one::kernels::REDUCE),
    ("other", &two::kernels::AFFINE),
];

/// What the code says, and its target.
fn told(loaded: Result<Code, Error>) -> String {
    match loaded {
        Ok(code) => {
            let texts = BUNDLES.iter().flat_map(|(.., codes)| codes.iter());
            let is_in = |text: &&str| {
                let mut windows = code.as_bytes().windows(text.len());
                windows.any(|window| window == text.as_bytes())
            };
            let text = texts.map(|(_, text)| *text).find(is_in);
            assert!(code.as_bytes().starts_with(b"\x7fELF"));
            assert_eq!(code.as_ptr().cast(), code.as_bytes().as_ptr());
            format!("{} ({})", text.unwrap_or("something else"), code.target())
        }
        Err(error) => format!("error: {error}"),
    }
}

/// Code that any way of delivery finds.
const LOADED: [(&str, &str, &str); 11] = [
    ("affine", "gfx90a", "any (gfx90a)"),
    ("affine", "gfx90a:sramecc+:xnack+", "any (gfx90a)"),
    ("affine", "gfx90a:sramecc+:xnack-", "no xnack (gfx90a:xnack-)"),
    ("affine", "amdgcn-amd-amdhsa--gfx90a:xnack-", "no xnack (gfx90a:xnack-)"),
    ("affine", "gfx1100", "generic (gfx11-generic)"),
    ("affine", "gfx11-generic", "generic (gfx11-generic)"),
    ("packed", "gfx942:sramecc+:xnack-", "packed for one (gfx942)"),
    ("packed", "gfx942:future+:xnack-", "packed for one (gfx942)"),
    ("packed", "gfx1100", "for two (gfx1100)"),
    ("other", "gfx908:xnack-", "the other package's (gfx908:xnack-)"),
    ("other", "gfx908:sramecc+:xnack-", "the other package's (gfx908:xnack-)"),
];

fn module(label: &str) -> &'static Module {
    MODULES.iter().find(|(known, _)| *known == label).unwrap().1
}

#[test]
fn code_in_the_program() {
    for (label, gpu, expected) in LOADED {
        assert_eq!(told(module(label).load(gpu)), expected, "{label} for {gpu}");
    }
}

#[test]
fn errors_say_what_is_there_and_what_to_do() {
    let mut messages = Vec::new();
    for (label, gpu) in [
        ("affine", ""),
        ("affine", "gfx"),
        ("affine", "gfx90a:xnack"),
        ("affine", "nonsense"),
        ("affine", "amdgcnspirv"),
        ("affine", "gfx11"),
        ("affine", "gfx11OO"),
        ("affine", "AMD Radeon RX 7900 XTX"),
        ("affine", "gfx9999:future+"),
        ("affine", "gfx1200"),
        ("affine", "gfx1170"),
        ("other", "gfx908"),
        ("other", "gfx908:sramecc+:xnack+"),
        ("packed", "gfx1030"),
        ("reduce", "gfx1100"),
    ] {
        messages.push(format!("{label} for {gpu:?}\n{}", told(module(label).load(gpu))));
    }
    insta::assert_snapshot!(messages.join("\n\n"));
}

#[test]
fn names_of_kernels() {
    const KERNEL: &CStr = one::kernels::AFFINE.kernel(c"affine_f64");
    const SKIPPED: &CStr = one::kernels::REDUCE.kernel(c"anything");
    assert_eq!((KERNEL, SKIPPED), (c"affine_f64", c"anything"));
    for wrong in [c"", c"affine", c"affine_f6", c"affine_f644"] {
        let panicked = panic::catch_unwind(|| one::kernels::AFFINE.kernel(wrong)).unwrap_err();
        let text = panicked.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panicked.downcast_ref::<&str>().copied()).unwrap();
        assert_eq!(
            text,
            "module `affine` has no kernel of this name; it has affine_f32, affine_f64"
        );
    }
}

#[test]
fn lists() {
    let names = one::kernels::ALL.iter().map(|module| module.name());
    assert_eq!(Vec::from_iter(names), ["affine", "packed", "reduce"]);
    let affine = one::kernels::ALL[0];
    assert_eq!(affine.kernels(), [c"affine_f32", c"affine_f64"]);
    assert_eq!(affine.targets(), ["gfx90a", "gfx90a:xnack-", "gfx11-generic"]);
    let skipped = &one::kernels::REDUCE;
    assert!(skipped.kernels().is_empty() && skipped.targets().is_empty());
}

/// Programs load modules in threads, and in closures that may panic.
const _: () = {
    const fn any_thread<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
    any_thread::<Module>();
    any_thread::<Code>();
};

/// In a copy of this program: its questions, and where it writes the answers.
const QUESTIONS: &str = "KPACK_TEST_QUESTIONS";
const ANSWERS: &str = "KPACK_TEST_ANSWERS";

#[test]
fn a_copy_answers() {
    let Ok(questions) = env::var(QUESTIONS) else {
        return;
    };
    let questions = Vec::from_iter(questions.lines());
    let start = Barrier::new(questions.len());
    let answer = |question: &str| {
        let (label, gpu) = question.split_once(' ').unwrap();
        start.wait();
        told(module(label).load(gpu))
    };
    // All at once, because threads share the archives.
    let answers = thread::scope(|scope| {
        let answer = &answer;
        let threads = questions.iter().map(|question| scope.spawn(|| answer(question)));
        let threads = Vec::from_iter(threads);
        Vec::from_iter(threads.into_iter().map(|thread| thread.join().unwrap()))
    });
    fs::write(env::var_os(ANSWERS).unwrap(), answers.join("\0")).unwrap();
}

/// What the copy `program` loads for each module and GPU.
fn asked(program: &Path, questions: &[(&str, &str)]) -> Vec<String> {
    asked_by(&mut Command::new(program), &program.with_extension("answers"), questions)
}

/// As [`asked`], with a command that runs the copy, and a file for the answers.
fn asked_by(command: &mut Command, answers: &Path, questions: &[(&str, &str)]) -> Vec<String> {
    let lines = questions.iter().map(|(label, gpu)| format!("{label} {gpu}"));
    command.args(["--exact", "modules::a_copy_answers"]);
    command.env(QUESTIONS, Vec::from_iter(lines).join("\n")).env(ANSWERS, answers);
    run(command);
    let answers = fs::read_to_string(answers).unwrap();
    answers.split('\0').map(str::to_owned).collect()
}

/// A prefix with a copy of this program, split.
fn split() -> Tree {
    let tree = Tree::new();
    let program = tree.path("bin/program");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::copy(env::current_exe().unwrap(), program).unwrap();
    install(&InstallOptions::new(tree.root(), "program", ["bin/program"]), &()).unwrap();
    tree
}

#[test]
fn code_in_archives() {
    let tree = split();
    let program = tree.path("bin/program");
    let questions = LOADED.map(|(label, gpu, _)| (label, gpu));
    let expected = LOADED.map(|(.., expected)| expected);
    assert_eq!(asked(&program, &questions), expected);

    // Moved, and joined: the bundles are elsewhere, and of another size.
    let moved = Tree::new();
    tree.copy_to(&moved);
    let program = moved.path("bin/program");
    assert_eq!(asked(&program, &questions), expected);
    let options =
        JoinOptions::new(moved.root(), ["gfx90a"].map(|gpu| gpu.parse().unwrap()), ["bin/program"]);
    join(&options, &()).unwrap();
    fs::remove_dir_all(moved.path("lib")).unwrap();
    let found = asked(&program, &questions);
    for ((found, expected), (label, gpu)) in found.iter().zip(expected).zip(questions) {
        if expected.contains("gfx90a") {
            assert_eq!(found, expected, "{label} for {gpu}");
        } else {
            let name = module(label).name();
            assert!(found.starts_with(&format!("error: module `{name}` has no code")), "{found}");
        }
    }
}

/// Nothing registers the wrappers with the HIP runtime, so which one the program loads does not matter.
#[test]
fn the_doctor_asks_for_no_runtime() {
    let tree = split();
    let mut options = Options::default();
    options.targets.push("gfx1100".parse().unwrap());
    let report = examine(&[tree.path("bin/program")], &options).unwrap();
    let said = report.findings.iter().map(|found| found.finding.text.as_str());
    let said = Vec::from_iter(said).join("\n");
    assert!(said.contains("loads its modules itself, so any HIP runtime will do"), "{said}");
    assert_eq!(report.remedy, None, "{said}");
    assert_eq!(report.loads, Some(true), "{said}");
}

#[test]
fn archives_that_do_not_serve() {
    let tree = split();
    let program = tree.path("bin/program");
    let archive = |target: &str| tree.path(&format!("lib/.kpack/program_lib_{target}.kpack"));
    let load = |label, gpu| asked(&program, &[(label, gpu)]).remove(0);
    let says = |answer: String, parts: &[&str]| {
        for part in parts {
            assert!(answer.contains(part), "{part:?} in {answer}");
        }
    };
    let there = ["gfx90a", "gfx90a:xnack-", "gfx11-generic", "gfx942", "gfx1100"];
    says(load("affine", "gfx1200"), &there);
    says(
        load("affine", "gfx1200"),
        &["error: module `affine`: no code object for gfx1200", "what to do:"],
    );
    says(load("reduce", "gfx90a"), &["DOCS_RS is set"]);

    // Truncated, then of another build.
    let whole = fs::read(archive("gfx942")).unwrap();
    fs::write(archive("gfx942"), &whole[..whole.len() - 100]).unwrap();
    says(
        load("packed", "gfx942"),
        &["error: module `packed`: ", "program_lib_gfx942.kpack", "[damaged-archive]"],
    );
    fs::write(archive("gfx942"), &whole).unwrap();
    says(load("packed", "gfx942"), &["packed for one"]);

    // Another program with the same name, whose modules have other code for this GPU.
    let other = started::other_build();
    fs::copy(other.path("lib/.kpack/program_lib_gfx942.kpack"), archive("gfx942")).unwrap();
    says(
        load("packed", "gfx942"),
        &["module `packed`: no code object for gfx942", "[stale-archive]"],
    );

    fs::remove_dir_all(tree.path("lib")).unwrap();
    says(
        load("affine", "gfx90a"),
        &["module `affine`: no code object for gfx90a", "[missing-archive]"],
    );
}
