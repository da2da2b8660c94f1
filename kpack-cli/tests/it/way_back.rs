//! Given trimmed files, when somebody asks why there is no code for a GPU, then `.kpack-trimmed` explains it as long as the
//! files are as trim left them. `environments` runs the commands that bring the code back.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::require;
use kpack_tests::tree::{Tree, copy_file, write};
use serde_json::{Value, json};

use crate::command::{NOBODY, for_every_user, kpack, said, words};

const LIBRARY: &str = "lib/libvec.so";
const NOTE: &str = "prefix/.kpack-trimmed";
const TRIMMED: &str = "`kpack trim` removed the code for ";

fn library(targets: &[&str]) -> FatLibrary {
    let codes = targets.iter().map(|target| code(target, "add"));
    FatLibrary::new().wrapper(Storage::Plain, codes)
}

fn prefix() -> Tree {
    library(&["gfx1100", "gfx942", "gfx90a"]).in_prefix(LIBRARY)
}

/// A prefix with a library that kpack split.
fn split_prefix() -> Tree {
    let tree = prefix();
    install(&InstallOptions::new(tree.path("prefix"), "vec", [LIBRARY]), &()).unwrap();
    tree
}

fn trim(tree: &Tree, arguments: &str) {
    let output = kpack(tree, &words(&format!("trim {arguments}")));
    assert!(output.status.success(), "{output:?}");
}

/// What the commands say about a GPU's code in the library.
fn about(tree: &Tree, gpu: &str) -> Vec<String> {
    [
        format!("verify --arch {gpu} prefix/{LIBRARY}"),
        format!("doctor --arch {gpu} prefix/{LIBRARY}"),
        format!("show prefix/{LIBRARY}"),
    ]
    .map(|command| said(tree, &words(&command)))
    .into()
}

fn note(tree: &Tree) -> Value {
    serde_json::from_slice(&fs::read(tree.path(NOTE)).unwrap()).unwrap()
}

#[test]
fn what_went_from_split_and_from_fat_libraries_is_explained_by_all_commands() {
    for tree in [prefix(), split_prefix()] {
        trim(&tree, "--arch gfx942 prefix");
        for text in about(&tree, "gfx1100") {
            assert!(text.contains(TRIMMED) && text.contains("gfx1100"), "{text}");
            assert!(text.contains("install it again from where it came"), "{text}");
        }
        for text in &about(&tree, "gfx1030")[..2] {
            assert!(!text.contains(TRIMMED), "{text}");
        }
    }
}

/// The note of a directory above, and of the library's own directory.
#[test]
fn of_several_notes_the_newest_that_agrees_counts() {
    let tree = prefix();
    let targets = ["gfx1100", "gfx942", "gfx90a"];
    trim(&tree, "--arch gfx942,gfx90a prefix");
    trim(&tree, "--arch gfx942 prefix/lib/libvec.so");
    assert!(
        about(&tree, "gfx90a")[1]
            .contains("(it kept gfx942), says /tree/prefix/lib/.kpack-trimmed")
    );
    // The one above says what the library was like before.
    assert!(!about(&tree, "gfx1100")[1].contains(TRIMMED));
    // The newest note is about another file than the one that is there.
    copy_file(tree.path("fat"), tree.path("prefix").join(LIBRARY));
    trim(&tree, "--arch gfx942,gfx1100 prefix");
    let later = SystemTime::now() + Duration::from_secs(100);
    let newer = tree.path("prefix/lib/.kpack-trimmed");
    File::options().write(true).open(newer).unwrap().set_modified(later).unwrap();
    let text = &about(&tree, targets[2])[1];
    assert!(text.contains("(it kept gfx1100, gfx942), says /tree/prefix/.kpack-trimmed"), "{text}");
}

#[test]
fn a_note_that_is_out_of_date_is_not_repeated_and_trim_forgets_it() {
    let tree = prefix();
    trim(&tree, "--arch gfx942 prefix");
    let path = tree.path("prefix").join(LIBRARY);
    // Another version, which never had the code.
    library(&["gfx942", "gfx1201"]).build(&path).unwrap();
    for text in about(&tree, "gfx1100") {
        assert!(!text.contains(TRIMMED), "{text}");
    }
    trim(&tree, "--arch gfx942,gfx1201 prefix");
    assert_eq!(note(&tree)["files"], json!({}));
    // The same version.
    trim(&tree, "--arch gfx942 prefix");
    assert_eq!(note(&tree)["files"][LIBRARY]["removed"], json!(["gfx1201"]));
    copy_file(tree.path("fat"), &path);
    for text in about(&tree, "gfx1100") {
        assert!(!text.contains(TRIMMED), "{text}");
    }
}

/// Given two trims for different GPUs, then each file has what its own run kept.
#[test]
fn what_stayed_is_told_of_each_file() {
    let tree = prefix();
    copy_file(tree.path("fat"), tree.path("prefix/lib/libother.so"));
    trim(&tree, "--arch gfx942 prefix/lib/libvec.so");
    trim(&tree, "--arch gfx90a prefix/lib/libother.so");
    assert!(about(&tree, "gfx1100")[1].contains("gfx1100 (it kept gfx942), says"));
    let other = said(&tree, &words("doctor --arch gfx1100 prefix/lib/libother.so"));
    assert!(other.contains("gfx1100 (it kept gfx90a), says"), "{other}");
}

/// Given a note above that cannot be read, then the one nearer to the file still explains it; and where there is no other, one
/// sentence says why nothing is known.
#[test]
fn a_broken_note_above_hides_no_other() {
    let tree = prefix();
    trim(&tree, "--arch gfx942 prefix/lib/libvec.so");
    write(tree.path(NOTE), "broken");
    for text in about(&tree, "gfx1100") {
        assert!(text.contains(TRIMMED) && !text.contains("not a note"), "{text}");
    }
    fs::remove_file(tree.path("prefix/lib/.kpack-trimmed")).unwrap();
    for text in about(&tree, "gfx1100") {
        let why = "kpack cannot tell whether `kpack trim` removed it: ";
        assert!(text.contains(why) && !text.contains("output-in-the-way"), "{text}");
    }
}

/// Given an archive of no package that is gone, when another version was unpacked over everything, then nobody says that
/// trim removed it. The same with a conda package of another version.
#[test]
fn what_is_gone_is_explained_only_while_something_is_as_trim_left_it() {
    let tree = split_prefix();
    trim(&tree, "--arch gfx942 prefix");
    assert!(about(&tree, "gfx1100")[1].contains(TRIMMED));
    let mut other = note(&tree);
    for went in other["files"].as_object_mut().unwrap().values_mut() {
        if went["left"].is_object() {
            went["left"]["file"]["size"] = json!(1);
        }
    }
    write(tree.path(NOTE), other.to_string());
    assert!(!about(&tree, "gfx1100")[1].contains(TRIMMED));

    let tree = split_prefix();
    let archive = "lib/.kpack/vec_lib_gfx1100.kpack";
    let meta = json!({"name": "vec", "version": "2.0", "build": "h1_0", "files": [archive]});
    let list = tree.path("prefix/conda-meta/vec-2.0-h1_0.json");
    write(&list, meta.to_string());
    trim(&tree, "--arch gfx942 prefix");
    let text = &about(&tree, "gfx1100")[1];
    assert!(text.contains("install vec 2.0 (build h1_0) again"), "{text}");
    fs::rename(&list, tree.path("prefix/conda-meta/vec-2.1-h1_0.json")).unwrap();
    let text = &about(&tree, "gfx1100")[1];
    assert!(!text.contains("removed the code for gfx1100"), "{text}");
}

/// Given the note of a killed run, which says no more than what it was about to do, then nobody takes that as proof, and the
/// next run does not repeat it.
#[test]
fn a_note_of_a_killed_run_proves_nothing() {
    let tree = prefix();
    let files = json!({LIBRARY: {"removed": ["gfx1030"]}});
    let killed =
        json!({"format": 2, "kept": ["gfx942"], "files": files, "unfinished": [[LIBRARY]]});
    write(tree.path(NOTE), killed.to_string());
    for text in about(&tree, "gfx1030") {
        assert!(!text.contains(TRIMMED), "{text}");
    }
    trim(&tree, "--arch gfx942 prefix");
    assert_eq!(note(&tree)["files"][LIBRARY]["removed"], json!(["gfx1100", "gfx90a"]));
    assert!(!about(&tree, "gfx1030")[1].contains(TRIMMED));
    assert!(about(&tree, "gfx1100")[1].contains(TRIMMED));
}

#[test]
fn archives_that_came_back_are_not_named() {
    let tree = split_prefix();
    let archive = tree.path("prefix/lib/.kpack/vec_lib_gfx1100.kpack");
    let kept = tree.path("kept");
    copy_file(&archive, &kept);
    trim(&tree, "--arch gfx942 prefix");
    copy_file(&kept, &archive);
    let text = said(&tree, &words(&format!("show prefix/{LIBRARY}")));
    assert!(text.contains("removed the code for gfx90a (it kept gfx942)"), "{text}");
    let text = said(&tree, &words(&format!("doctor --arch gfx90a prefix/{LIBRARY}")));
    assert!(text.contains("code for gfx90a (it kept gfx942)"), "{text}");
}

/// Given what is no note, or one that cannot be read, or that a later version wrote, then trim stops before it changes
/// anything, and says which it is; the commands that explain say why they cannot.
#[test]
fn a_note_that_cannot_be_read_is_not_replaced() {
    let tree = prefix();
    let run = || kpack(&tree, &words("trim --arch gfx942 prefix"));
    for (text, expected) in [
        ("", "not a note of `kpack trim`"),
        ("[1]", "not a note of `kpack trim`"),
        ("{\"format\":3,\"later\":{}}", "in format 3 (expected 2 or less)"),
        ("{\"format\":0}", "in format 0"),
        ("{\"format\":2,\"kept\":7}", "not a note of `kpack trim`"),
        ("{\"format\":1,\"kept\":[\"run this\"]}", "`run this` is neither a target nor a package"),
        ("{\"format\":2,\"kept\":[\"a\\u001bb\\nc\"]}", "is neither a target nor a package"),
    ] {
        write(tree.path(NOTE), text);
        let before = tree.snapshot_with_times();
        let output = run();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{text}: {error}");
        assert!(error.contains(".kpack-trimmed: ") && error.contains(expected), "{text}: {error}");
        assert_eq!(tree.snapshot_with_times(), before, "{text}");
        let doctor = said(&tree, &words(&format!("doctor --arch gfx1030 prefix/{LIBRARY}")));
        assert!(doctor.contains(expected) && doctor.contains("exit code 1"), "{doctor}");
    }
    fs::remove_file(tree.path(NOTE)).unwrap();
    fs::create_dir(tree.path(NOTE)).unwrap();
    assert_eq!(run().status.code(), Some(3));
    fs::remove_dir(tree.path(NOTE)).unwrap();
    symlink("fat", tree.path(NOTE)).unwrap();
    assert_eq!(run().status.code(), Some(3));
    fs::remove_file(tree.path(NOTE)).unwrap();
    assert!(run().status.success());
    // What format 1 says is not lost.
    let old = json!({"format": 1, "kept": ["gfx942"], "removed": {"gfx1030": ["lib/a.so"]}});
    write(tree.path(NOTE), old.to_string());
    copy_file(tree.path("fat"), tree.path("prefix").join(LIBRARY));
    trim(&tree, "--arch gfx90a prefix");
    assert_eq!(note(&tree)["files"]["lib/a.so"]["removed"], json!(["gfx1030"]));
}

/// Given a note that this user may not read, then trim stops with the system's error, and the note stays.
#[test]
fn a_note_that_the_system_does_not_let_kpack_read_is_not_replaced() {
    if !require::root() {
        return;
    }
    let tree = prefix();
    for path in ["prefix", "prefix/lib", "prefix/lib/libvec.so"] {
        chown(tree.path(path), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::set_permissions(tree.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let text =
        json!({"format": 2, "kept": ["gfx90a"], "files": {"lib/a.so": {"removed": ["gfx1030"]}}});
    write(tree.path(NOTE), text.to_string());
    fs::set_permissions(tree.path(NOTE), fs::Permissions::from_mode(0o600)).unwrap();
    let (program, _own) = for_every_user();
    let run = || {
        let mut trim = Command::new(&program);
        trim.args(["trim", "--arch", "gfx942"]).arg(tree.path("prefix"));
        trim.uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    let output = run();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains(".kpack-trimmed: Permission denied"), "{error}");
    assert_eq!(fs::read_to_string(tree.path(NOTE)).unwrap(), text.to_string());
    fs::set_permissions(tree.path(NOTE), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(run().status.success());
    assert_eq!(note(&tree)["files"]["lib/a.so"]["removed"], json!(["gfx1030"]));
    assert_eq!(note(&tree)["files"][LIBRARY]["removed"], json!(["gfx1100", "gfx90a"]));
}

/// Given a library of a conda package, then the doctor names the package, and no command.
#[test]
fn a_package_of_conda_is_named() {
    let tree = prefix();
    let meta = json!({"name": "vec", "version": "2.0", "build": "h1_0", "files": [LIBRARY]});
    write(tree.path("prefix/conda-meta/vec-2.0-h1_0.json"), meta.to_string());
    let said = said(&tree, &words("trim --arch gfx942 prefix"));
    assert!(said.contains("\nconda: vec (1 file)\n"), "{said}");
    let help =
        "with the program that made this conda environment, install vec 2.0 (build h1_0) again";
    for text in about(&tree, "gfx1100") {
        assert!(text.contains(TRIMMED) && text.contains(help), "{text}");
        assert!(!text.contains("a build of it"), "{text}");
    }
}

/// Given hostile descriptions of conda packages beside a sound one, then the doctor names the package of that, prints nothing of
/// the others, and prints no command.
#[test]
fn hostile_descriptions_of_conda_packages_are_not_printed() {
    let tree = split_prefix();
    let files = [LIBRARY, "lib/.kpack/vec_lib_gfx942.kpack"];
    let inside = tree.path("prefix").join(LIBRARY).display().to_string();
    for (file, name, build, files) in [
        ("escape", "evil\u{1b}", "0", &files[..]),
        ("command", "evil; x", "0", &files),
        ("line", "evil", "0\n", &files),
        ("outside", "evil", "0", &["../../prefix/lib/libvec.so", "/lib/libvec.so", &inside]),
        ("vec-2.0-h1_0", "vec", "h1_0", &files),
    ] {
        let meta = json!({
            "name": name, "version": "2.0", "build": build, "files": files,
            "channel": "https://conda.invalid/t/secret/a", "url": "https://u:secret@conda.invalid/a",
        });
        write(tree.path(&format!("prefix/conda-meta/{file}.json")), meta.to_string());
    }
    write(tree.path("prefix/conda-meta/damaged.json"), "[[[");
    let made = Command::new("mkfifo").arg(tree.path("prefix/conda-meta/pipe.json")).status();
    assert!(made.unwrap().success());
    let doctor = words("doctor --arch gfx1201 prefix");
    let said = said(&tree, &doctor);
    let cause = "vec 2.0 (build h1_0) has no code for gfx1201 [device-package-missing]";
    let help = "\nwhat to do: with the program that made this conda environment, install vec 2.0 (build h1_0) again";
    assert!(said.contains(cause) && said.contains(help), "{said}");
    assert!(!said.contains("evil") && !said.contains("secret"), "{said}");
    let fix = kpack(&tree, &[doctor, words("--fix")].concat()).stdout;
    assert!(fix.is_empty(), "{fix:?}");
}

/// Given descriptions of packages that links of an image lead out to, and a RECORD that cannot be read, then trim reads nothing
/// outside, and says that it does not know the packages.
#[test]
fn packages_are_looked_for_within_the_image_and_what_cannot_be_read_is_named() {
    let tree = library(&["gfx1100", "gfx942"]).in_prefix(LIBRARY);
    let packages = tree.path("prefix/lib/python3.12/site-packages");
    let meta = json!({"name": "out", "version": "2.0", "build": "h1_0", "files": [LIBRARY]});
    write(tree.path("outside/conda-meta/out-2.0-h1_0.json"), meta.to_string());
    symlink("../outside/conda-meta", tree.path("prefix/conda-meta")).unwrap();
    let metadata = |name: &str| format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n");
    write(tree.path("outside/METADATA"), metadata("elsewhere"));
    fs::create_dir_all(packages.join("elsewhere-1.0.dist-info")).unwrap();
    let link = packages.join("elsewhere-1.0.dist-info/METADATA");
    symlink(tree.path("outside/METADATA"), link).unwrap();
    write(packages.join("elsewhere-1.0.dist-info/RECORD"), "../../libvec.so,,\n");
    write(packages.join("vec-1.0.dist-info/METADATA"), metadata("vec"));
    fs::create_dir(packages.join("vec-1.0.dist-info/RECORD")).unwrap();
    let said = said(&tree, &words("trim --arch gfx942 --root prefix /lib"));
    assert!(!said.contains("conda: ") && !said.contains("python: "), "{said}");
    let unread =
        "vec-1.0.dist-info/RECORD: this list of the files of a Python package cannot be read";
    assert!(said.contains(unread), "{said}");
}

/// Given a note that somebody forged, then nothing of it is in a command.
#[test]
fn a_forged_note_gets_nothing_into_a_command() {
    let tree = prefix();
    trim(&tree, "--arch gfx942 prefix");
    for manager in ["dpkg", "rpm", "conda", "python"] {
        let mut forged = note(&tree);
        forged["packages"] = json!([{"manager": manager, "name": "evil", "version": "1; touch x"}]);
        forged["files"][LIBRARY]["package"] = json!(0);
        write(tree.path(NOTE), forged.to_string());
        let doctor =
            kpack(&tree, &words(&format!("doctor --json --arch gfx1100 prefix/{LIBRARY}")));
        let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        assert_eq!(doctor["remedy"], Value::Null, "{doctor}");
        assert!(doctor.to_string().contains("install"), "{doctor}");
    }
    // An index that there is no package for.
    let mut forged = note(&tree);
    forged["files"][LIBRARY]["package"] = json!(7);
    write(tree.path(NOTE), forged.to_string());
    assert!(about(&tree, "gfx1100")[1].contains("install it again from where it came"));
}

/// Given a file of another system, such as an unpacked image, and a package that is installed here as well, then the package
/// is named, but no command: it would install the package here.
#[test]
fn a_package_of_another_system_is_named_without_a_command() {
    let status = fs::read_to_string("/var/lib/dpkg/status").unwrap_or_default();
    let mut installed = status.split("\n\n").filter_map(|paragraph| {
        let field = |name: &str| {
            let mut lines = paragraph.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        field("Status").filter(|status| status.ends_with(" installed"))?;
        Some((field("Package")?.to_owned(), field("Version")?.to_owned()))
    });
    let Some((name, version)) = installed.next() else { return };
    for tree in [prefix(), split_prefix()] {
        trim(&tree, "--arch gfx942 prefix");
        // The package may be here in this version, or in another one.
        for version in [&version, "0~other"] {
            let mut note = note(&tree);
            note["packages"] = json!([{"manager": "dpkg", "name": name, "version": version}]);
            for file in note["files"].as_object_mut().unwrap().values_mut() {
                file["package"] = json!(0);
            }
            write(tree.path(NOTE), note.to_string());
            let expected = format!("install the package {name} {version} again in the system that");
            for text in about(&tree, "gfx1100") {
                assert!(text.contains(TRIMMED) && text.contains(&expected), "{text}");
                assert!(!text.contains("apt-get"), "{text}");
            }
        }
    }
}

/// Given databases whose files for a GPU went, when the doctor is asked for that GPU, then it says so.
#[test]
fn files_of_databases_that_went_are_explained() {
    let tree = library(&["gfx1100", "gfx942"]).in_prefix("lib/librocblas.so");
    for gpu in ["gfx1100", "gfx942"] {
        write(
            tree.path(&format!("prefix/lib/rocblas/library/Kernels.so-000-{gpu}.hsaco")),
            code(gpu, "add").1,
        );
    }
    trim(&tree, "--arch gfx942 prefix");
    let database = tree.path("prefix/lib/rocblas/library");
    assert_eq!(fs::read_dir(database).unwrap().count(), 1);
    let command = "doctor --verbose --arch gfx1100 prefix/lib/librocblas.so";
    let text = said(&tree, &words(command));
    let line = text.lines().find(|line| line.contains("the kernel database rocblas")).unwrap();
    assert!(line.contains(TRIMMED) && line.contains("gfx1100 (it kept gfx942)"), "{text}");
}
