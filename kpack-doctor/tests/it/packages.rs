//! Given files that the lists of package managers name, when the doctor finds something wrong with them, then it names the
//! package and the command that its manager has for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use kpack_core::ids;
use kpack_doctor::examine;
use kpack_tests::process::run;
use kpack_tests::tree::{Tree, write};

use crate::by_hand::{ARCHIVE, for_gpu, of_package, report_of, split, split_for_packages};

/// Given a package of dpkg in two architectures and versions, then each file is of its own, and the command names the
/// architecture that is not the machine's.
#[test]
fn two_architectures_of_a_package() {
    let tree = Tree::new();
    split_for_packages(&tree.path("root"));
    let database = tree.path("root/var/lib/dpkg");
    let root = tree.path("root");
    write(database.join("arch"), "amd64\ni386\n");
    let status = |architectures: [(&str, &str); 2], more: &str| {
        let paragraph = |(architecture, version): (&str, &str)| {
            format!(
                "Package: vec\nStatus: install ok installed\nArchitecture: {architecture}\nMulti-Arch: same\n\
                 Version: {version}\nRecommends: vec-gfx1100 (= {version})\n\n"
            )
        };
        fs::write(database.join("status"), architectures.map(paragraph).concat() + more).unwrap();
    };
    let list = |architecture: &str, files: &[&str]| {
        let text = Vec::from_iter(files.iter().map(|file| format!("/{file}\n"))).concat();
        write(database.join(format!("info/vec:{architecture}.list")), text);
    };
    fs::remove_file(root.join(ARCHIVE)).unwrap();
    let library = "usr/lib/libvec.so";
    let found = |id: &str, command: &str| Some((id.to_owned(), command.to_owned()));
    for both in [[("amd64", "2.0"), ("i386", "1.0")], [("i386", "1.0"), ("amd64", "2.0")]] {
        status(both, "");
        list("amd64", &[library, ARCHIVE]);
        list("i386", &["usr/lib/i386-linux-gnu/libvec.so"]);
        let command = "apt-get install --reinstall 'vec=2.0'";
        assert_eq!(of_package(&root, "gfx1100"), found("device-package-damaged", command));
        list("amd64", &[]);
        list("i386", &[library, ARCHIVE]);
        let command = "apt-get install --reinstall 'vec:i386=1.0'";
        assert_eq!(of_package(&root, "gfx1100"), found("device-package-damaged", command));
        // A device package of the other architecture is not the one that is recommended.
        list("i386", &[]);
        list("amd64", &[library]);
        let device = |architecture: &str| {
            format!(
                "Package: vec-gfx1100\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: 2.0\n"
            )
        };
        status(both, &device("i386"));
        let command = "apt-get install 'vec-gfx1100=2.0'";
        assert_eq!(of_package(&root, "gfx1100"), found("device-package-missing", command));
        for architecture in ["amd64", "all", "i386\nMulti-Arch: foreign"] {
            status(both, &device(architecture));
            let found = of_package(&root, "gfx1100").unwrap().0;
            assert_eq!(found, "missing-archive", "{architecture}");
        }
    }
}

/// Given the path of a system that does not exist, then its packages are unknown, and all else is examined.
#[test]
fn a_system_that_does_not_exist_has_no_packages() {
    let tree = Tree::new();
    let root = tree.path("root");
    split_for_packages(&root);
    fs::remove_file(root.join(ARCHIVE)).unwrap();
    let report = report_of(&tree.path("none"), &root.join("usr/lib/libvec.so"), "gfx1100");
    assert_eq!(report.cause().unwrap().finding.id, ids::MISSING_ARCHIVE);
}

/// Given a database of packages that kpack does not read, then it says which one, and what it cannot tell.
#[test]
fn databases_of_packages_that_kpack_does_not_read() {
    const BERKELEY: &[u8] = b"\0\0\0\0\0\0\0\0\0\0\0\0\x61\x15\x06\0\x09\0\0\0";
    const NDB: &[u8] = b"RpmP\0\0\0\0";
    let (rpm, dpkg) = ("run `rpm --query --file FILE`", "run `dpkg --search FILE`");
    let damaged: Option<&[u8]> = Some(b"SQLite format 3\0");
    for (file, content, what, command) in [
        ("var/lib/rpm/Packages", Some(BERKELEY), "Berkeley DB", rpm),
        ("var/lib/rpm/Packages.db", Some(NDB), "ndb", rpm),
        ("usr/lib/sysimage/rpm/Packages.db", Some(NDB), "ndb", rpm),
        ("usr/lib/sysimage/rpm/rpmdb.sqlite", damaged, "kpack cannot read RPM's database", rpm),
        ("var/lib/dpkg/status", None, "cannot be read", dpkg),
        ("usr/conda-meta/vec.json", Some(b"[[["), "cannot be read", "run `conda list`"),
    ] {
        let tree = Tree::new();
        let root = tree.path("root");
        split_for_packages(&root);
        match content {
            Some(content) => write(root.join(file), content),
            None => fs::create_dir_all(root.join(file)).unwrap(),
        }
        let unread = |gpu: &str| {
            let report = report_of(&root, &root.join("usr/lib/libvec.so"), gpu);
            let found = report.findings.into_iter().map(|found| found.finding);
            Vec::from_iter(found.filter(|found| found.id == ids::UNREAD_PACKAGE_DATABASE))
        };
        // It does not matter where nothing is missing.
        assert_eq!(unread("gfx942"), [], "{file}");
        fs::remove_file(root.join(ARCHIVE)).unwrap();
        let [found] = &unread("gfx1100")[..] else { panic!("{file}") };
        assert_eq!(found.file(), root.canonicalize().unwrap().join(file));
        assert!(found.text.contains(what), "{file}: {}", found.text);
        assert!(found.text.ends_with(command), "{file}: {}", found.text);
        assert!(found.text.contains("which package"), "{file}: {}", found.text);
    }
    // In a prefix of this machine, a link that leads nowhere is a description that cannot be read.
    let tree = Tree::new();
    split_for_packages(tree.root());
    fs::remove_file(tree.path(ARCHIVE)).unwrap();
    fs::create_dir(tree.path("usr/conda-meta")).unwrap();
    symlink("/none", tree.path("usr/conda-meta/vec.json")).unwrap();
    let report = examine(&[tree.path("usr/lib/libvec.so")], &for_gpu("gfx1100")).unwrap();
    let mut findings = report.findings.iter().map(|found| &found.finding);
    let unread = findings.find(|found| found.id == ids::UNREAD_PACKAGE_DATABASE).unwrap();
    assert_eq!(unread.file().canonicalize().ok(), None);
    assert!(unread.file().ends_with("usr/conda-meta/vec.json"), "{unread:?}");
    assert!(unread.text.starts_with("conda's description of a package"), "{unread:?}");
}

/// Given a prefix of conda, when a package in it has no code for a GPU, or its archive is gone, then the doctor names the
/// package with its version and build, and no command. What hostile metadata lists belongs to nobody.
#[test]
fn packages_of_conda() {
    let tree = Tree::new();
    let prefix = tree.path("prefix");
    split(&prefix, "libvec.so", None);
    let archive = "lib/.kpack/all_gfx942.kpack";
    let meta = |name: &str, text: &str| write(prefix.join(format!("conda-meta/{name}.json")), text);
    let package = |name: &str, build: &str, files: &[&str]| {
        let text = serde_json::json!({
            "name": name, "version": "2.0", "build": build, "files": files,
            "channel": "https://conda.invalid/t/secret/a", "url": "https://u:secret@conda.invalid/a",
        });
        text.to_string()
    };
    let files = ["lib/libvec.so", archive];
    meta("a", &package("evil\u{1b}", "0", &files));
    meta("b", &package("evil; x", "0", &files));
    meta("c", &package("evil", "0\n", &files));
    meta("d", "[[[");
    let inside = prefix.join("lib/libvec.so").display().to_string();
    meta("e", &package("evil", "0", &["../../prefix/lib/libvec.so", "/lib/libvec.so", &inside]));
    run(Command::new("mkfifo").arg(prefix.join("conda-meta/f.json")));
    meta("vec-2.0-h1_0", &package("vec", "h1_0", &files));
    let examined = |gpu: &str| examine(std::slice::from_ref(&prefix), &for_gpu(gpu)).unwrap();
    assert_eq!(examined("gfx942").loads, Some(true));
    let help =
        "with the program that made this conda environment, install vec 2.0 (build h1_0) again";
    for (gpu, gone, id, what, end) in [
        (
            "gfx1201",
            "none",
            ids::DEVICE_PACKAGE_MISSING,
            "vec 2.0 (build h1_0) has no code for gfx1201",
            ", or a build of it with code for gfx1201",
        ),
        (
            "gfx942",
            archive,
            ids::DEVICE_PACKAGE_DAMAGED,
            "vec 2.0 (build h1_0) is installed, but its archive is missing",
            "",
        ),
    ] {
        let _ = fs::remove_file(prefix.join(gone));
        let report = examined(gpu);
        let cause = report.cause().unwrap();
        assert_eq!(cause.finding.id, id, "{report:#?}");
        assert!(cause.finding.text.contains(what), "{report:#?}");
        assert_eq!(cause.finding.help.as_deref(), Some(&*format!("{help}{end}")), "{report:#?}");
        assert_eq!(report.remedy, None, "{gpu}");
        let json = serde_json::to_string(&report).unwrap();
        assert!(!json.contains("evil") && !json.contains("secret"), "{json}");
    }
}
