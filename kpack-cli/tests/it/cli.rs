//! The command as its users see it: help, messages, exit codes. Read the snapshots as a user would.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use crate::command::{Row, command, kpack, said, said_by, succeeds, words};
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
    settings.add_filter(r"(split binary|fat binary) +[0-9.]+ KiB", "$1  [size]");
    settings.add_filter(r"kind +size", "kind  size");
    settings.add_filter(r"cover 0x[0-9a-f]+ bytes", "cover [size]");
    settings.add_filter(r"[0-9.]+ KiB -> [0-9.]+ KiB", "[size] -> [size]");
    settings.add_filter(r"0x[0-9a-f]{4,}", "[offset]");
    settings.add_filter("[0-9a-f]{64}", "[digest]");
    // The column is as wide as the path of the temporary directory.
    settings.add_filter(r"archive +size  code", "archive  size  code");
    settings.bind(check);
}

/// Copies a file of the tree with other bytes.
fn changed(tree: &Tree, from: &str, to: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(tree.path(from)).unwrap();
    change(&mut bytes);
    tree.write(to, bytes);
}

fn build(library: &FatLibrary, tree: &Tree, path: &str) {
    library.build(&tree.path(path)).unwrap();
}

const ARCHIVE: &str = "lib/.kpack/vec_lib_gfx1100.kpack";

/// A prefix in which nothing is split.
#[test]
fn what_is_said_of_fat_binaries() {
    if !tool("strip") {
        return;
    }
    const NOTHING_WRONG: fn(&Tree) = |_| {};
    let rows: &[Row] = &[
        (
            "the last line says that nothing is split; the exit code depends on whether targets are named",
            NOTHING_WRONG,
            &[
                "kpack verify lib",
                "kpack verify lib --quiet",
                "kpack verify lib --arch gfx1100",
                "kpack verify lib --arch gfx1010",
            ],
        ),
        (
            "an install, and the same again",
            NOTHING_WRONG,
            &["kpack split --prefix . --module vec lib/libvec.so"; 2],
        ),
        (
            "an install with warnings",
            |tree| {
                build(&FatLibrary::new(), tree, "lib/libplain.so");
                symlink("libvec.so", tree.path("lib/libvec.so.1")).unwrap();
            },
            &["kpack split --prefix . --module vec --arch gfx1100 lib/libvec.so.1 lib/libplain.so"],
        ),
        (
            "paths that say different things, or nothing, where no option decides",
            |tree| {
                build(&library(), tree, "lib/libadd.so");
                build(&library(), tree, "other/lib/libvec.so");
            },
            &[
                "kpack split lib/libvec.so lib/libadd.so",
                "kpack split lib/libvec.so other/lib/libvec.so",
                "kpack split lib/none.so",
                "kpack split --all",
                "kpack split --all --prefix .",
                "kpack split",
                // One of the options is enough.
                "kpack split --module vec lib/libvec.so lib/libadd.so",
                "kpack split --prefix other lib/libvec.so --quiet",
            ],
        ),
        (
            "what is no binary that can be split here",
            |tree| {
                tree.write("inner/lib/text", "");
                symlink("../../lib/libvec.so", tree.path("inner/lib/out.so")).unwrap();
                changed(tree, "lib/libvec.so", "lib/cut.so", |bytes| bytes.truncate(9000));
                changed(tree, "lib/libvec.so", "lib/riscv.so", |bytes| bytes[18] = 243);
                changed(tree, "lib/libvec.so", "lib/sstripped.so", |bytes| bytes[40..48].fill(0));
                tree.write("lib/script", "#!/bin/sh\n");
            },
            &[
                "kpack split --prefix . --module vec lib/cut.so",
                "kpack split --prefix . --module vec lib/riscv.so",
                "kpack split --prefix . --module vec lib/sstripped.so",
                "kpack split --prefix . --module vec lib/script",
                "kpack split --prefix . --module vec ../x.so",
                "kpack split --prefix inner --module vec lib/out.so",
                "kpack split --prefix . --module vec lib/none.so",
                "kpack show lib/script",
                "kpack show lib/none",
                "kpack list lib/libvec.so",
            ],
        ),
        (
            "options that contradict the file or each other",
            NOTHING_WRONG,
            &[
                "kpack split --prefix . --module vec lib/libvec.so --arch gfx1201",
                "kpack split --prefix . --module vec lib/libvec.so --arch gfx1100 --unexpected error",
                "kpack split --prefix . --module vec lib/libvec.so --arch 'gfx 1100'",
                "kpack split --prefix . --module vec lib/libvec.so --source x",
                "kpack split --prefix . --module vec lib/libvec.so --kpack-dir ../x",
                "kpack split --prefix . --module vec",
            ],
        ),
        (
            "device code that a tool removed",
            |tree| {
                let mut strip = Command::new("strip");
                strip.args(["-R", ".hip_fatbin"]).arg(tree.path("lib/libvec.so"));
                process::run(&mut strip);
            },
            &["kpack show lib/libvec.so", "kpack split --prefix . --module vec lib/libvec.so"],
        ),
    ];
    with_filters(|| assert_snapshot!(said_by(rows, &prefix())));
}

/// A prefix in which `lib/libvec.so` is split.
#[test]
fn what_is_said_of_split_binaries() {
    let rows: &[Row] = &[
        (
            "options without effect",
            |tree| build(&library(), tree, "lib/libother.so"),
            &[
                "kpack split --prefix . --module vec lib/libvec.so --strip-debug",
                "kpack split --prefix . --module vec --all --strip-debug",
            ],
        ),
        (
            "one more option without effect, and one that another option needs",
            |tree| build(&library(), tree, "lib/libother.so"),
            &[
                "kpack split lib/libother.so --unexpected error",
                "kpack split --prefix . --module vec --all --level 9 --compression none",
            ],
        ),
        (
            "messages end with what to do",
            |tree| {
                changed(tree, "lib/libvec.so", "lib/libcut.so", |bytes| {
                    bytes.truncate(bytes.len() / 2);
                });
                changed(tree, ARCHIVE, "cut.kpack", |bytes| bytes.truncate(bytes.len() / 2));
                fs::create_dir(tree.path("other")).unwrap();
                tree.write("vec.whl", "PK");
                build(&library(), tree, "lib/libfat.so");
            },
            &[
                "kpack show lib/libcut.so",
                "kpack show cut.kpack",
                "kpack show none.so",
                "kpack split lib",
                "kpack split --prefix other --module vec ../lib/libfat.so",
                "kpack split --prefix . --module x lib/libfat.so --arch gfx1100 --unexpected error",
                "kpack show vec.whl",
                "kpack verify vec.whl",
                "kpack targets gfx9999",
            ],
        ),
        (
            "what files are",
            |tree| {
                build(&library(), tree, "fat.so");
                build(&library().kind(Kind::Object), tree, "device.o");
                build(&library().kind(Kind::StaticLibrary), tree, "libdevice.a");
                build(&FatLibrary::new(), tree, "plain.so");
                tree.write("code.hsaco", code("gfx90a:xnack+", "add").1);
                let entries = [code("gfx1100", "add"), code("gfx90a:xnack+", "add")];
                tree.write("code.co", bundle(Storage::Zstd(3), &entries).unwrap());
            },
            &[
                "kpack show fat.so",
                "kpack show fat.so --verbose",
                "kpack show lib/libvec.so",
                "kpack show plain.so",
                "kpack show device.o",
                "kpack show libdevice.a",
                "kpack show lib/.kpack/vec_lib_gfx1100.kpack",
                "kpack show lib/.kpack/vec_lib.kpm",
                "kpack show code.co",
                "kpack show code.hsaco",
                "kpack verify lib/libvec.so --against fat.so",
            ],
        ),
        (
            "an archive is missing",
            |tree| fs::remove_file(tree.path(ARCHIVE)).unwrap(),
            &["kpack show lib/libvec.so"],
        ),
        (
            "nothing is wrong",
            |_| {},
            &[
                "kpack verify lib",
                "kpack verify lib --quiet",
                // Several threads would list the files in any order.
                "kpack verify lib --verbose --jobs 1",
            ],
        ),
        (
            "an archive is damaged, and another one missing",
            |tree| {
                changed(tree, ARCHIVE, ARCHIVE, |bytes| bytes[90] ^= 1);
                fs::remove_file(tree.path("lib/.kpack/vec_lib_gfx90a:xnack+.kpack")).unwrap();
            },
            &["kpack verify lib"],
        ),
        (
            "an archive is truncated",
            |tree| {
                changed(tree, ARCHIVE, ARCHIVE, |bytes| {
                    bytes.pop();
                })
            },
            &[
                "kpack verify lib",
                "kpack verify lib --quiet --color never",
                "kpack verify lib --color always",
            ],
        ),
        (
            "a directory, by file and by target",
            |tree| {
                build(&library(), tree, "fat.so");
                tree.write("README", "text");
            },
            &["kpack show ."],
        ),
        (
            "a directory with damaged files",
            |tree| {
                for name in ["empty.kpack", "other.kpack", "empty.kpm", "README"] {
                    tree.write(name, if name.starts_with("empty") { "" } else { "text" });
                }
            },
            &["kpack show ."],
        ),
        (
            "a directory with binaries for other hosts",
            |tree| {
                build(&library().kind(Kind::Object), tree, "vec.o");
                changed(tree, "vec.o", "vec.o", |bytes| bytes[4] = 1);
                changed(tree, "lib/libvec.so", "lib/lib32.so", |bytes| bytes[4] = 1);
                changed(tree, "lib/libvec.so", "lib/libriscv.so", |bytes| bytes[18] = 243);
            },
            &["kpack show .", "kpack show . --verbose", "kpack show . --quiet"],
        ),
        (
            "what an archive does not contain, and what is none",
            |tree| changed(tree, ARCHIVE, "cut.kpack", |bytes| bytes.truncate(200)),
            &[
                "kpack list lib/.kpack/vec_lib_gfx1100.kpack",
                "kpack extract lib/.kpack/vec_lib_gfx1100.kpack --kernel lib/libvec.so#7 --arch gfx1100 -o out",
                "kpack extract lib/.kpack/vec_lib_gfx1100.kpack --kernel lib/libvec.so#0 --arch gfx942 -o out",
                "kpack extract lib/.kpack/vec_lib_gfx1100.kpack --kernel lib/libvec.so#0 --arch gfx1100 -o none/out",
                "kpack list cut.kpack",
                "kpack verify cut.kpack",
                "kpack verify lib/libvec.so --against none.so",
            ],
        ),
        (
            "an unsplit library without code for the target",
            |tree| build(&library(), tree, "lib/libother.so"),
            &["kpack split --prefix . --module vec --all --arch gfx1030"],
        ),
        (
            "an original that is split",
            |_| {},
            &[
                "kpack verify lib --against lib",
                "kpack verify lib/libvec.so --against lib/libvec.so",
            ],
        ),
    ];
    with_filters(|| assert_snapshot!(said_by(rows, &split_prefix())));
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

#[test]
fn a_kernel_is_taken_out() {
    let tree = split_prefix();
    let extract = ["extract", ARCHIVE, "--kernel", "lib/libvec.so#1", "--arch", "gfx1100", "-o"];
    succeeds(&tree, &[&extract[..], &["out.hsaco"]].concat());
    let expected = code("gfx1100", "mul").1;
    assert_eq!(fs::read(tree.path("out.hsaco")).unwrap(), expected);
    let output = kpack(&tree, &[&extract[..], &["-"]].concat());
    assert_eq!(output.stdout, expected);

    symlink("libvec.so", tree.path("lib/link.so")).unwrap();
    build(&library(), &tree, "lib/libvec.so");
    let before = tree.snapshot();
    for output in ["lib/libvec.so", "lib/link.so"] {
        let line = format!("extract lib/libvec.so --kernel libvec.so#1 --arch gfx1100 -o {output}");
        let said = kpack(&tree, &words(&line));
        assert_eq!(said.status.code(), Some(3), "{}", String::from_utf8_lossy(&said.stderr));
    }
    assert_eq!(tree.snapshot(), before);
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
        "list lib/.kpack/vec_lib_gfx1100.kpack",
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

/// An option that cannot choose is not advised.
#[test]
fn the_options_that_choose_a_code_object_are_those_that_differ() {
    let tree = prefix();
    for (arguments, options) in [
        ("", "--kernel and --arch"),
        (" --kernel libvec.so#0", "--arch"),
        (" --arch gfx1100", "--kernel"),
    ] {
        let line = format!("extract lib/libvec.so -o out{arguments}");
        let said = said(&tree, &words(&line));
        assert!(said.contains(&format!("choose one with {options}, or")), "{said}");
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
    for guess in ["du", "docs", "document", "--verbose"] {
        let output = kpack(&tree, &words(guess));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.contains("documents"), "{guess}: {said}");
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
    assert!(page("helper.1").contains("helper \\- helps"), "{pages}");
    assert_eq!(pages.get("kpack-documents.1"), None);

    tree.write("silent", "#!/bin/sh\n");
    let output = kpack(&tree, &words("documents manual silent"));
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("silent: no description (expected a here-document"), "{said}");
}

/// Commands of `kpack artifact` do not run without that word, but their errors say what to run.
#[test]
fn commands_without_the_word_artifact() {
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
        "split --artifact-dir in --artifact-prefix vec_lib --output-dir out",
        "split --quiet --batch-artifact-parent-dir=in --output-dir out",
        "recombine --input-shards-dir shards --config packaging.json --output-dir out",
        "pack packages --output-dir store",
        "--quiet select store/index.json --arch gfx942",
        "--color never unpack --help",
    ] {
        text += &run(&words(line));
    }
    text += &run(&["pack", "a directory", "--output-dir", "it's", "\u{1b}[2J"]);
    // Neither of these is a command or an option of `kpack artifact`.
    for line in ["wheel split --artifact-dir in", "split --artefact-dir in", "install --all"] {
        let text = run(&words(line));
        assert!(!text.contains("kpack artifact"), "{line}: {text}");
    }
    assert_eq!(tree.snapshot(), before);
    assert_snapshot!(text);
}

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

/// Given a binary as a distribution or a build has it, when it is split without a prefix and a module, then its path and its
/// name say what they are.
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
    let extract =
        ["extract", ARCHIVE, "--kernel", "lib/libvec.so#0", "--arch", "gfx1100", "-o", "-"];
    assert_eq!(on_full_device(&tree, &extract, true, false), Some(4));
    assert_eq!(on_full_device(&tree, &["show", ARCHIVE], true, true), Some(4));
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
