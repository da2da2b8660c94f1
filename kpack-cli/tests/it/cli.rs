//! The command as its users see it: help, messages, exit codes. Read the snapshots as a user would.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use crate::command::{command, kpack, said, succeeds, words};
use insta::assert_snapshot;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, add_and_mul, bundle, code};
use kpack_tests::process;
use kpack_tests::require::{root, tool};
use kpack_tests::tree::Tree;

fn library() -> FatLibrary {
    let targets = ["gfx1100", "gfx90a:xnack+"];
    let library = add_and_mul(targets, targets);
    library.wrapper(Storage::Plain, [code("gfx1100", "add")])
}

/// A prefix with `lib/libvec.so`.
fn prefix() -> Tree {
    library().in_tree("lib/libvec.so")
}

fn split_prefix() -> Tree {
    let tree = prefix();
    succeeds(&tree, &words("split --prefix . --module vec lib/libvec.so"));
    tree
}

/// Snapshots without sizes and offsets that depend on the linker.
fn with_filters(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"(split binary|fat binary|host binary|relocatable object|static library), [0-9.]+ [KM]?i?B", "$1, [size]");
    settings.add_filter(r"[0-9.]+ KiB -> [0-9.]+ KiB", "[size] -> [size]");
    settings.add_filter(r"0x[0-9a-f]{4,}", "[offset]");
    // The column is as wide as the path of the temporary directory.
    settings.add_filter(r"archive +size  code", "archive  size  code");
    settings.bind(check);
}

#[test]
fn help() {
    let tree = Tree::new();
    let commands = [
        "split",
        "join",
        "object",
        "launch",
        "stage",
        "show",
        "list",
        "create",
        "extract",
        "artifact split",
        "artifact recombine",
        "artifact pack",
        "artifact select",
        "artifact unpack",
        "report",
        "verify",
        "doctor",
        "wheel split",
        "wheel verify",
        "wheel show",
        "artifact",
        "wheel",
        "targets",
        "explain",
        "completions",
    ];
    let texts = commands.map(|command| {
        let words = command.split(' ').chain(["--help"]);
        said(&tree, &Vec::from_iter(words))
    });
    let all = said(&tree, &["--help"]) + "\n" + &texts.join("\n");
    assert_snapshot!(all);
}

/// A tree in which nothing is split: the last line says so. The exit code depends on whether targets were named.
#[test]
fn an_unsplit_tree_is_named_last() {
    let tree = prefix();
    let text = "nothing here is split: the device code of 1 fat binary is in the files";
    for (arguments, code, kind) in [
        ("verify lib", 0, "warn "),
        ("verify lib --quiet", 0, "warn "),
        ("verify lib --arch gfx1100", 1, "FAULT"),
        ("verify lib --arch gfx1010", 1, "FAULT"),
    ] {
        let output = kpack(&tree, &words(arguments));
        assert_eq!(output.status.code(), Some(code), "{arguments}");
        let said = String::from_utf8(output.stdout).unwrap();
        let last = said.lines().last().unwrap_or_default();
        assert!(last.contains(text) && last.contains(kind), "{arguments}: {said}");
    }
}

#[test]
fn an_option_without_effect_says_so() {
    let tree = split_prefix();
    library().build(&tree.path("lib/libother.so")).unwrap();
    for (arguments, text) in [
        (
            "split --prefix . --module vec lib/libvec.so --strip-debug",
            "`--strip-debug` only affects what is split now",
        ),
        (
            "split --prefix . --module vec --all --strip-debug",
            "`--strip-debug` only affects what is split now",
        ),
        (
            "split --prefix . --module vec --all --level 9 --compression none",
            "--level has no effect with",
        ),
    ] {
        let output = kpack(&tree, &words(arguments));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.matches(text).count() == 1, "{arguments}: {said}");
        library().build(&tree.path("lib/libother.so")).unwrap();
    }
    let output = kpack(&tree, &words("split lib/libother.so --unexpected error"));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--arch <TARGET>"));
}

/// The end of a message is what to do.
#[test]
fn messages_end_with_what_to_do() {
    let tree = split_prefix();
    let library_bytes = fs::read(tree.path("lib/libvec.so")).unwrap();
    fs::write(tree.path("lib/libcut.so"), &library_bytes[..library_bytes.len() / 2]).unwrap();
    let archive = fs::read(tree.path("lib/.kpack/vec_lib_gfx1100.kpack")).unwrap();
    fs::write(tree.path("cut.kpack"), &archive[..archive.len() / 2]).unwrap();
    fs::create_dir(tree.path("other")).unwrap();
    fs::write(tree.path("vec.whl"), "PK").unwrap();
    library().build(&tree.path("lib/libfat.so")).unwrap();
    for (arguments, advice) in [
        ("show lib/libcut.so", "build or copy it again"),
        ("show cut.kpack", "build or install the archive again"),
        ("show none.so", "check the path"),
        ("split lib", "`kpack split --all`"),
        ("split --prefix other --module vec ../lib/libfat.so", "a prefix that contains it"),
        (
            "split --prefix . --module x lib/libfat.so --arch gfx1100 --unexpected error",
            "Add it to --arch",
        ),
        ("show vec.whl", "run `kpack wheel`"),
        ("verify vec.whl", "run `kpack wheel verify`"),
        ("targets gfx9999", "[unknown-processor]"),
    ] {
        let output = kpack(&tree, &words(arguments));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(advice), "{arguments}: {said}");
    }
}

#[test]
fn an_install_and_the_tree_after_it() {
    let tree = prefix();
    let before = tree.files().join("\n");
    let install = words("split --prefix . --module vec lib/libvec.so");
    let first = said(&tree, &install);
    let after = tree.files().join("\n");
    let second = said(&tree, &install);
    with_filters(|| {
        assert_snapshot!(format!("{before}\n\n{first}\n{after}\n\n{second}"));
    });
}

#[test]
fn an_install_with_warnings() {
    let tree = prefix();
    FatLibrary::new().build(&tree.path("lib/libplain.so")).unwrap();
    symlink("libvec.so", tree.path("lib/libvec.so.1")).unwrap();
    let arguments =
        words("split --prefix . --module vec --arch gfx1100 lib/libvec.so.1 lib/libplain.so");
    let text = said(&tree, &arguments);
    with_filters(|| assert_snapshot!(text));
}

#[test]
fn what_files_are() {
    let tree = split_prefix();
    library().build(&tree.path("fat.so")).unwrap();
    library().kind(Kind::Object).build(&tree.path("device.o")).unwrap();
    library().kind(Kind::StaticLibrary).build(&tree.path("libdevice.a")).unwrap();
    FatLibrary::new().build(&tree.path("plain.so")).unwrap();
    fs::write(tree.path("code.hsaco"), code("gfx90a:xnack+", "add").1).unwrap();
    let entries = [code("gfx1100", "add"), code("gfx90a:xnack+", "add")];
    fs::write(tree.path("code.co"), bundle(Storage::Zstd(3), &entries).unwrap()).unwrap();
    let mut text = String::new();
    for file in [
        "fat.so",
        "lib/libvec.so",
        "plain.so",
        "device.o",
        "libdevice.a",
        "lib/.kpack/vec_lib_gfx1100.kpack",
        "lib/.kpack/vec_lib.kpm",
        "code.co",
        "code.hsaco",
    ] {
        text += &said(&tree, &["show", file]);
        text += "\n";
    }
    // One archive is missing.
    fs::remove_file(tree.path("lib/.kpack/vec_lib_gfx1100.kpack")).unwrap();
    text += &said(&tree, &["show", "lib/libvec.so"]);
    with_filters(|| assert_snapshot!(text));
}

#[test]
fn a_list_of_kernels_and_one_taken_out() {
    let tree = split_prefix();
    let archive = "lib/.kpack/vec_lib_gfx1100.kpack";
    let text = said(&tree, &["list", archive]);
    assert_snapshot!(text);
    let extract = ["extract", archive, "--kernel", "lib/libvec.so#1", "--arch", "gfx1100", "-o"];
    succeeds(&tree, &[&extract[..], &["out.hsaco"]].concat());
    let expected = code("gfx1100", "mul").1;
    assert_eq!(fs::read(tree.path("out.hsaco")).unwrap(), expected);
    let output = kpack(&tree, &[&extract[..], &["-"]].concat());
    assert_eq!(output.stdout, expected);
}

#[test]
fn verification() {
    let tree = split_prefix();
    library().build(&tree.path("fat.so")).unwrap();
    let fine = said(&tree, &["verify", "lib", "--quiet"])
        + &said(&tree, &["verify", "lib/libvec.so", "--against", "fat.so"]);
    let archive = tree.path("lib/.kpack/vec_lib_gfx1100.kpack");
    let mut bytes = fs::read(&archive).unwrap();
    bytes[90] ^= 1;
    fs::write(&archive, bytes).unwrap();
    fs::remove_file(tree.path("lib/.kpack/vec_lib_gfx90a:xnack+.kpack")).unwrap();
    let faulty = said(&tree, &["verify", "lib"]);
    let mut settings = insta::Settings::clone_current();
    settings.add_filter("[0-9a-f]{64}", "[digest]");
    settings.bind(|| assert_snapshot!(format!("{fine}\n{faulty}")));
}

/// One description of the output for all commands, and for those in commands.
#[test]
fn every_command_has_the_same_options_of_output() {
    let mut command = kpack_cli::cli::command();
    command.build();
    let mut all: Vec<&clap::Command> = command.get_subcommands().collect();
    all.extend(command.find_subcommand("wheel").unwrap().get_subcommands());
    for command in all.iter().filter(|command| command.get_name() != "help") {
        for option in ["json", "quiet", "verbose", "color"] {
            let mut own = command.get_arguments();
            assert!(own.any(|own| own.get_id() == option), "{} {option}", command.get_name());
        }
    }
    let tree = Tree::new();
    for line in ["targets gfx942 --quiet --json", "list --nothing", "none", "targets"] {
        let output = kpack(&tree, &words(line));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("kpack: error: "), "{line}: {said}");
        assert_eq!(output.status.code(), Some(2), "{line}");
    }
    let tree = split_prefix();
    fs::write(tree.path("text"), "text").unwrap();
    let stdout = |line: &str| String::from_utf8(kpack(&tree, &words(line)).stdout).unwrap();
    for line in [
        "join --prefix . --arch native --installed",
        "doctor --print-arch",
        "list lib/.kpack/vec_lib_gfx1100.kpack --summary",
        "create text.kpack --arch gfx942 text",
        "report .",
        "report . --html page.html",
        "show .",
    ] {
        let printed = stdout(&format!("{line} --json"));
        let json = serde_json::from_str::<serde_json::Value>(&printed);
        assert!(json.is_ok(), "{line}: {printed}");
    }
    for line in [
        "join --prefix . --arch native --installed",
        "create text.kpack --arch gfx942 text",
        "report .",
        "report . --html page.html",
    ] {
        assert_eq!(stdout(&format!("{line} --quiet")), "", "{line}");
    }
    let summary = stdout("list lib/.kpack/vec_lib_gfx1100.kpack --summary --json");
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["group_name"], "vec_lib");
    assert_eq!(summary.get("kernels"), None);
}

#[test]
fn verification_prints_what_fails_and_all_if_asked() {
    let tree = split_prefix();
    let verify = |line: &str| said(&tree, &words(format!("verify lib {line}").trim()));
    let lines = |line: &str| Vec::from_iter(verify(line).lines().map(str::to_owned));
    let [_, summary, _] = &lines("")[..] else { panic!("{:#?}", lines("")) };
    assert!(
        summary.contains(" checks, 0 faults") && summary.ends_with("; --verbose prints all"),
        "{summary}"
    );
    assert!(lines("--verbose").iter().any(|line| line.starts_with("ok    ")));
    assert_eq!(lines("--quiet").len(), 2, "{:#?}", lines("--quiet"));
    let archive = tree.path("lib/.kpack/vec_lib_gfx1100.kpack");
    let size = fs::metadata(&archive).unwrap().len();
    fs::File::options().write(true).open(&archive).unwrap().set_len(size - 1).unwrap();
    for (line, label) in [
        ("", "FAULT lib/"),
        ("--quiet --color never", "FAULT lib/"),
        ("--color always", "\u{1b}[1m\u{1b}[31mFAULT\u{1b}[0m lib/"),
    ] {
        assert!(lines(line).iter().any(|line| line.starts_with(label)), "{:#?}", lines(line));
        assert!(!lines(line).iter().any(|line| line.starts_with("ok    ")));
    }
}

#[test]
fn a_directory_is_shown_by_file_and_by_target() {
    let tree = split_prefix();
    library().build(&tree.path("fat.so")).unwrap();
    fs::write(tree.path("README"), "text").unwrap();
    let shown = said(&tree, &["show", "."]);
    assert!(shown.contains(".: 5 files with device code\n"), "{shown}");
    let columns = |start: &str| {
        let mut lines = shown.lines().map(str::trim_start);
        let line = lines.find(|line| line.starts_with(start)).unwrap();
        Vec::from_iter(line.split_whitespace().map(str::to_owned))
    };
    let archive = columns("lib/.kpack/vec_lib_gfx1100.kpack");
    assert_eq!((&*archive[1], &*archive[4]), ("archive", "gfx1100"));
    assert_eq!(columns("fat.so")[1..3], ["fat", "binary"]);
    // The fat binary and the archive.
    assert_eq!(columns("gfx90a:xnack+")[1], "2");
    assert!(!shown.contains("README"), "{shown}");
    // The wrappers of a binary are details.
    assert!(!said(&tree, &["show", "fat.so"]).contains("file offset"));
    assert!(said(&tree, &["show", "--verbose", "fat.so"]).contains("file offset"));
}

#[test]
fn a_directory_is_shown_whatever_is_damaged_in_it() {
    let tree = split_prefix();
    for name in ["empty.kpack", "other.kpack", "empty.kpm", "README"] {
        let text = if name.starts_with("empty") { "" } else { "text" };
        fs::write(tree.path(name), text).unwrap();
    }
    let output = kpack(&tree, &["show", "."]);
    let (stdout, stderr) = (output.stdout, output.stderr);
    let stdout = String::from_utf8(stdout).unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stdout.contains(".: 4 files with device code\n"), "{stdout}");
    let lines = Vec::from_iter(stderr.lines());
    let [archive, manifest, other] = lines[..] else { panic!("{stderr}") };
    assert!(archive.starts_with("kpack: error: ./empty.kpack: empty"), "{archive}");
    assert!(archive.ends_with("[unknown-file]"), "{archive}");
    assert!(manifest.starts_with("kpack: error: ./empty.kpm: "), "{manifest}");
    assert!(other.starts_with("kpack: error: ./other.kpack: not recognised"), "{other}");
}

#[test]
fn binaries_for_other_hosts_are_skipped_in_a_directory() {
    let tree = split_prefix();
    let patched = |from: &str, at: usize, byte: u8, to: &str| {
        let mut bytes = fs::read(tree.path(from)).unwrap();
        bytes[at] = byte;
        fs::write(tree.path(to), bytes).unwrap();
    };
    let object = library().kind(Kind::Object);
    object.build(&tree.path("vec.o")).unwrap();
    patched("vec.o", 4, 1, "vec.o");
    patched("lib/libvec.so", 4, 1, "lib/lib32.so");
    patched("lib/libvec.so", 18, 243, "lib/libriscv.so");
    let output = kpack(&tree, &["show", "."]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("kpack: note: skipped 3 files: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let output = kpack(&tree, &["show", ".", "--verbose"]);
    let said = String::from_utf8(output.stderr).unwrap();
    for name in ["vec.o", "lib/lib32.so", "lib/libriscv.so"] {
        let line = format!("kpack: note: ./{name}: ");
        assert!(said.contains(&line), "{said}");
    }
    let output = kpack(&tree, &["show", ".", "--quiet"]);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn a_directory_is_shown_as_far_as_it_can_be_read() {
    if !root() || !tool("setpriv") {
        return;
    }
    let tree = split_prefix();
    process::copy(env!("CARGO_BIN_EXE_kpack"), tree.path("kpack"));
    fs::create_dir(tree.path("closed")).unwrap();
    fs::write(tree.path("aa.so"), "text").unwrap();
    for name in ["closed", "aa.so"] {
        fs::set_permissions(tree.path(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    process::run(Command::new("chown").args(["-R", "65534:65534"]).arg(tree.root()));
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["./kpack", "show", ".", "--json"]);
    let output = process::output(command.current_dir(tree.root()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown = shown.as_array().unwrap();
    let paths = |which: &str| {
        let which = shown.iter().filter(|file| file["outcome"] == which);
        Vec::from_iter(which.map(|file| file["path"].as_str().unwrap()))
    };
    assert_eq!(paths("failed"), ["./aa.so", "./closed"]);
    assert_eq!(shown.len(), 6, "{shown:#?}");
}

#[test]
fn completions_of_each_shell() {
    let tree = Tree::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = kpack(&tree, &["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains("recombine") && script.contains("color"), "{shell}");
        // These also complete values.
        if ["bash", "zsh", "fish"].contains(&shell) {
            for value in ["gfx942", "gfx9-4-generic", "amdgcnspirv", "stale-archive"] {
                assert!(script.contains(value), "{shell}: {value}");
            }
        }
    }
}

/// Packages and the handbook are made with `kpack documents`, which neither help nor a shell offers.
#[test]
fn documents_for_packages() {
    let tree = Tree::new();
    let line = |line: &str| {
        let output = kpack(&tree, &words(line));
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for shown in ["--help", "completions bash", "completions zsh", "completions fish"] {
        assert!(!line(shown).contains("documents"), "{shown}");
    }
    let options = line("documents options");
    assert!(options.contains("\n## kpack artifact split\n") && !options.contains("documents"));
    let processors = line("documents processors");
    assert!(
        processors.lines().any(|line| line == "gfx942 gfx9-4-generic gfx94x gfx9"),
        "{processors}"
    );

    tree.write("helper", "#!/bin/sh\ncat <<'EOF'\nhelps\n\nIn many ways.\nEOF\n");
    let pages = line("documents manual helper");
    let pages: serde_json::Value = serde_json::from_str(&pages).unwrap();
    let page = |name: &str| pages[name].as_str().unwrap_or_else(|| panic!("{name}: {pages}"));
    assert!(page("kpack-split.1").contains("EXIT STATUS"));
    assert_eq!(page("kpack-unbundle.1"), ".so man1/kpack-extract.1\n");
    assert!(page("helper.1").contains("helper \\- helps"), "{pages}");
    assert_eq!(pages.get("kpack-documents.1"), None);

    tree.write("silent", "#!/bin/sh\n");
    let output = kpack(&tree, &words("documents manual silent"));
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("silent: no description (expected a here-document"), "{said}");
}

/// Commands do not run under their earlier names, and print today's.
#[test]
fn earlier_names() {
    let tree = prefix();
    let before = tree.snapshot();
    let run = |arguments: &[&str]| {
        let output = kpack(&tree, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let mut text = String::new();
    for line in [
        "install --prefix . --module vec lib/libvec.so",
        "--quiet install --help",
        "--color never install --all",
        "split --artifact-dir in --artifact-prefix vec_lib --output-dir out",
        "split --quiet --batch-artifact-parent-dir=in --output-dir out",
        "split --jobs 2 --input-dir in --component-name vec_lib",
        "recombine --input-shards-dir shards --config packaging.json --output-dir out",
        "pack packages --output-dir store",
        "select store/index.json --arch gfx942",
        "unpack store --output-dir out",
    ] {
        text += &run(&words(line));
    }
    text += &run(&["install", "--prefix", "a prefix", "--module", "it's", "lib/\u{1b}[2J.so"]);
    // These were never the names of commands.
    for line in
        ["wheel split --artifact-dir in", "split --artefact-dir in", "help install", "instal"]
    {
        let text = run(&words(line));
        assert!(!text.contains("is now"), "{line}: {text}");
    }
    assert_eq!(tree.snapshot(), before);
    assert_snapshot!(text);
}

/// Given a binary as a distribution or a build has it, when it is split without a prefix and a module, then its path and its
/// name say what they are.
#[test]
fn without_arguments_it_lists_what_people_need() {
    let output = Command::new(env!("CARGO_BIN_EXE_kpack")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let tree = Tree::new();
    for command in text.lines().filter_map(|line| line.strip_prefix("  kpack ")) {
        let words = command.split_whitespace();
        let words = words.take_while(|word| word.chars().all(|letter| letter.is_ascii_lowercase()));
        let mut words = Vec::from_iter(words);
        words.truncate(2);
        if words != ["artifact", "split"] && words != ["wheel", "split"] {
            words.truncate(1);
        }
        assert!(kpack(&tree, &[&words[..], &["--help"]].concat()).status.success(), "{command}");
    }
    assert_snapshot!("overview", text);
}

/// On a terminal, the last lines are what a person would say. Python's `pty` gives it one.
#[cfg(unix)]
#[test]
fn on_a_terminal_a_split_ends_with_two_sentences() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    let file = tree.path("stage/lib/libvec.so.1");
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1030", "a"), code("gfx942", "b")])
        .build(&file)
        .unwrap();
    let script = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let output = Command::new("python3")
        .args(["-c", script, env!("CARGO_BIN_EXE_kpack"), "split"])
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let lines = Vec::from_iter(text.trim_end().lines().rev().take(2));
    assert!(lines[1].starts_with("libvec.so.1: ") && lines[1].contains(" KiB → "), "{text}");
    assert!(lines[0].starts_with("Each machine needs the archive for its GPU ("), "{text}");
}

#[test]
fn a_file_alone_is_split() {
    for (directory, file, prefix, archive) in [
        ("usr/lib/x86_64-linux-gnu", "librocrand.so.1.1", "usr", "rocrand_lib_gfx1100.kpack"),
        ("build", "lib.so", "build", "lib_lib_gfx1100.kpack"),
        ("stage/bin", "vec", "stage", "vec_lib_gfx1100.kpack"),
    ] {
        let tree = library().in_tree(&format!("{directory}/{file}"));
        let split = |from: &str, file: &str| {
            let mut split = command(&tree, &["split", file]);
            let output = split.current_dir(tree.path(from)).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{directory}/{file}: {said}");
            let prefix = tree.path(prefix).canonicalize().unwrap();
            assert!(said.contains(&format!("--prefix {} ", prefix.display())), "{said}");
        };
        split(".", &format!("{directory}/{file}"));
        let archive = format!("{prefix}/lib/.kpack/{archive}");
        assert!(tree.path(&archive).exists(), "{:?}", tree.files());
        let verified = kpack(&tree, &["verify", prefix]);
        assert!(verified.status.success(), "{verified:?}");
        // A link is followed, and is not mistaken for what has the same name in the prefix.
        symlink(file, tree.path(&format!("{directory}/link"))).unwrap();
        if directory != prefix {
            fs::write(tree.path(&format!("{prefix}/link")), "text").unwrap();
        }
        split(directory, "link");
    }
}

/// Given files whose paths say different things, or none, when no option decides, then that is an error and nothing changes.
#[test]
fn files_with_different_defaults() {
    let tree = prefix();
    for file in ["lib/libadd.so", "other/lib/libvec.so"] {
        library().build(&tree.path(file)).unwrap();
    }
    let before = tree.snapshot_with_times();
    let mut text = String::new();
    for line in [
        "split lib/libvec.so lib/libadd.so",
        "split lib/libvec.so other/lib/libvec.so",
        "split lib/none.so",
        "split --all",
        "split --all --prefix .",
        "split",
    ] {
        text += &said(&tree, &words(line));
        text += "\n";
    }
    assert_eq!(tree.snapshot_with_times(), before);
    let text = text.replace(tree.root().canonicalize().unwrap().to_str().unwrap(), "/tree");
    assert_snapshot!(text);
    // One of the options is enough.
    succeeds(&tree, &words("split --module vec lib/libvec.so lib/libadd.so --json"));
    let output = kpack(&tree, &words("split --prefix other lib/libvec.so --quiet"));
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(tree.path("other/lib/.kpack/vec_lib_gfx1100.kpack").exists());
}

#[test]
fn errors() {
    let tree = prefix();
    let outside = Tree::new();
    library().build(&outside.path("libout.so")).unwrap();
    symlink(outside.path("libout.so"), tree.path("lib/out.so")).unwrap();
    let fat = fs::read(tree.path("lib/libvec.so")).unwrap();
    fs::write(tree.path("lib/cut.so"), &fat[..9000]).unwrap();
    let mut machine = fat.clone();
    machine[18] = 243;
    fs::write(tree.path("lib/riscv.so"), machine).unwrap();
    let mut headers = fat;
    headers[40..48].fill(0);
    fs::write(tree.path("lib/sstripped.so"), headers).unwrap();
    fs::write(tree.path("lib/script"), "#!/bin/sh\n").unwrap();
    let before = tree.snapshot_with_times();
    let install = |rest: &[&str]| {
        said(&tree, &[&["split", "--prefix", ".", "--module", "vec"], rest].concat())
    };
    let mut text = String::new();
    for rest in [
        &["lib/cut.so"][..],
        &["lib/riscv.so"],
        &["lib/sstripped.so"],
        &["lib/script"],
        &["../x.so"],
        &["lib/out.so"],
        &["lib/none.so"],
        &["lib/libvec.so", "--arch", "gfx1201"],
        &words("lib/libvec.so --arch gfx1100 --unexpected error"),
        &["lib/libvec.so", "--arch", "gfx 1100"],
        &["lib/libvec.so", "--source", "x"],
        &["lib/libvec.so", "--kpack-dir", "../x"],
        &[],
    ] {
        text += &install(rest);
        text += "\n";
    }
    text += &said(&tree, &["show", "lib/script"]);
    text += &said(&tree, &["show", "lib/none"]);
    text += &said(&tree, &["list", "lib/libvec.so"]);
    assert_eq!(tree.snapshot_with_times(), before);
    let text = text.replace(outside.root().canonicalize().unwrap().to_str().unwrap(), "/outside");
    with_filters(|| assert_snapshot!(text));
}

#[test]
fn errors_about_archives() {
    let tree = split_prefix();
    let archive = "lib/.kpack/vec_lib_gfx1100.kpack";
    let extract = |kernel: &str, target: &str, out: &str| {
        said(&tree, &["extract", archive, "--kernel", kernel, "--arch", target, "-o", out])
    };
    let mut text = extract("lib/libvec.so#7", "gfx1100", "out");
    text += &extract("lib/libvec.so#0", "gfx942", "out");
    text += &extract("lib/libvec.so#0", "gfx1100", "none/out");
    assert!(!tree.path("out").exists());
    let bytes = fs::read(tree.path(archive)).unwrap();
    fs::write(tree.path("cut.kpack"), &bytes[..200]).unwrap();
    text += &said(&tree, &["list", "cut.kpack"]);
    text += &said(&tree, &["verify", "cut.kpack"]);
    text += &said(&tree, &["verify", "lib/libvec.so", "--against", "none.so"]);
    assert_snapshot!(text);
}

/// `-fgpu-rdc --emit-static-lib` makes such libraries: wrapper and bundle are in different members.
#[test]
fn device_code_without_wrappers_is_not_split_before_the_link() {
    for sections in [
        ".section .hip_fatbin,\"a\",@progbits\n.zero 64\n",
        // For a device link: of clang, and of its new offload driver.
        ".section __CLANG_OFFLOAD_BUNDLE__hip-amdgcn-amd-amdhsa--gfx942,\"e\",@progbits\n.zero 64\n\
         .section .hipFatBinSegment,\"aw\",@progbits\n.zero 24\n",
        ".section .llvm.offloading,\"e\",@0x6fff4c0b\n.zero 64\n",
    ] {
        let tree = Tree::new();
        fs::write(tree.path("rdc.s"), sections).unwrap();
        for command in
            [&["cc", "-c", "rdc.s", "-o", "rdc.o"][..], &["ar", "qc", "librdc.a", "rdc.o"]]
        {
            let (program, arguments) = command.split_first().unwrap();
            process::run(Command::new(program).current_dir(tree.root()).args(arguments));
        }
        for file in ["librdc.a", "rdc.o"] {
            let text = said(&tree, &["show", file]);
            let expected = "64 B of device code, some without wrappers (-fgpu-rdc), which is split in the linked binary";
            assert!(text.contains(expected), "{text}");
            assert!(!text.contains("split before the link"), "{text}");
        }
    }
}

#[test]
fn device_code_that_a_tool_removed() {
    if !tool("strip") {
        return;
    }
    let tree = library().in_tree("fat.so");
    process::run(
        Command::new("strip").args(["-R", ".hip_fatbin", "fat.so"]).current_dir(tree.root()),
    );
    for arguments in
        [&["show", "fat.so"][..], &["split", "--prefix", ".", "--module", "vec", "fat.so"]]
    {
        let text = said(&tree, arguments);
        assert!(
            text.contains("as after `strip -R .hip_fatbin`; build or install the binary again"),
            "{text}"
        );
    }
}

/// The JSON is interface: whatever changes here breaks somebody's script.
#[test]
fn reports_as_json() {
    let tree = split_prefix();
    library().build(&tree.path("lib/fat.so")).unwrap();
    let mut text = String::new();
    for arguments in [
        &["show", "lib/libvec.so"][..],
        &["show", "lib/fat.so"],
        &["list", "lib/.kpack/vec_lib_gfx1100.kpack"],
        &["verify", "lib/libvec.so"],
        &["split", "--prefix", ".", "--module", "vec", "lib/fat.so"],
    ] {
        let output = kpack(&tree, &[arguments, &["--json"]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        text += &format!("$ kpack {} --json\n{value:#}\n\n", arguments.join(" "));
    }
    let mut settings = insta::Settings::clone_current();
    let root = tree.root().canonicalize().unwrap();
    settings.add_filter(root.to_str().unwrap(), "/tree");
    settings.add_filter("[0-9a-f]{64}", "[digest]");
    // Offsets and sizes depend on the linker.
    settings.add_filter(r": [0-9]{3,}(,?)\n", ": [number]$1\n");
    settings.bind(|| assert_snapshot!(text));
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let tree = split_prefix();
    for line in ["verify .", "help", "--version", "completions bash"] {
        let mut child = command(&tree, &words(line))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert_eq!((child.wait().unwrap().code(), error.as_str()), (Some(0), ""), "{line}");
    }
}

/// Runs it with standard output, standard error or both on a full device.
fn on_full_device(tree: &Tree, arguments: &[&str], stdout: bool, stderr: bool) -> Option<i32> {
    let target = |full: bool| {
        if full {
            Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap())
        } else {
            Stdio::null()
        }
    };
    let status = command(tree, arguments).stdout(target(stdout)).stderr(target(stderr)).status();
    status.unwrap().code()
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let tree = split_prefix();
    // A buffer would keep the bytes after the last newline.
    let archive = "lib/.kpack/vec_lib_gfx1100.kpack";
    let extract =
        ["extract", archive, "--kernel", "lib/libvec.so#0", "--arch", "gfx1100", "-o", "-"];
    assert_eq!(on_full_device(&tree, &extract, true, false), Some(4));
    assert_eq!(on_full_device(&tree, &["show", archive], true, true), Some(4));
    assert_eq!(on_full_device(&tree, &["show", "none"], false, true), Some(4));
    for line in ["help", "--help", "--version", "help split", "split --help", "artifact -h"] {
        assert_eq!(on_full_device(&tree, &words(line), true, false), Some(4), "{line}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let completions = ["completions", shell];
        assert_eq!(on_full_device(&tree, &completions, true, false), Some(4), "{shell}");
    }
    assert!(said(&tree, &["--version"]).ends_with("exit code 0\n"));
}

#[test]
fn a_name_that_is_not_text_does_not_break_the_report() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let tree = split_prefix();
    let odd = tree.path("lib").join(OsStr::from_bytes(b"\xff\xfe.so"));
    fs::copy(tree.path("lib/libvec.so"), odd).unwrap();
    let output = kpack(&tree, &["verify", "lib", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["findings"].as_array().unwrap().len() > 4, "{output:?}");
}

#[test]
fn refusals_exit_with_3_and_change_nothing() {
    let split = split_prefix();
    let tree = split_prefix();
    add_and_mul(["gfx1100", "gfx942"], ["gfx1100", "gfx942"])
        .build(&tree.path("lib/libother.so"))
        .unwrap();
    for (tree, line, why) in [
        (&tree, "split --prefix . --module vec --all --arch gfx1030", "no device code for gfx1030"),
        (&split, "verify lib --against lib", "split"),
        (&split, "verify lib/libvec.so --against lib/libvec.so", "split"),
    ] {
        let before = tree.snapshot();
        let output = kpack(tree, &words(line));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{line}: {said}");
        assert!(said.contains(why), "{line}: {said}");
        assert!(tree.snapshot() == before, "{line}");
    }
}
