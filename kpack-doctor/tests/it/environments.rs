//! Given Python environments that no installer made, when the doctor examines them, then it finds what is wrong, and the
//! command for exactly that environment.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use kpack_core::{Severity, ids};
use kpack_doctor::{Report, examine, extras, unused};
use kpack_tests::process::run;
use kpack_tests::tree::{Tree, write};

use crate::by_hand::{PACKAGES, TARGETS, by_hand, for_gfx1100, for_gpu, split};

/// What the doctor finds at a path in a tree, for this GPU.
fn examined(tree: &Tree, path: &str, gpu: &str) -> Report {
    examine(&[tree.path(path)], &for_gpu(gpu)).unwrap()
}

/// The command that mends what is wrong first, if there is one, with the tree as `/tree`.
fn command(tree: &Tree, report: &Report) -> Option<String> {
    let command = &report.remedy.as_ref()?.command;
    Some(command.replace(tree.root().to_str().unwrap(), "/tree"))
}

/// Everything that a program can read in a report.
fn json(report: &Report) -> String {
    serde_json::to_string(report).unwrap()
}

/// Given a distribution whose METADATA or RECORD is damaged or missing, then its libraries are examined nevertheless.
#[test]
fn damaged_metadata_keeps_no_library_from_being_examined() {
    type Damage = fn(&Path, &Path);
    let rows: &[(&str, Damage, Option<&str>)] = &[
        (
            "METADATA without fields",
            |metadata, _| write(metadata, "[[["),
            Some("`[[[` is not a valid header field (expected NAME: VALUE)"),
        ),
        (
            "METADATA with a wrong version",
            |metadata, _| write(metadata, "Name: host\nVersion: x\n"),
            Some("METADATA has the version `x`, which PEP 440 forbids"),
        ),
        (
            "no METADATA",
            |metadata, _| fs::remove_file(metadata).unwrap(),
            Some("cannot open /tree/env/lib/python3.12/site-packages/host-1.dist-info/METADATA"),
        ),
        ("RECORD that is no CSV", |_, record| write(record, "lib/libhost.so,x\n\""), None),
        ("no RECORD", |_, record| fs::remove_file(record).unwrap(), None),
    ];
    let original = Tree::new();
    by_hand(&original, PACKAGES, "host", "", "pip\n");
    write(original.path("env/pyvenv.cfg"), "home = /usr/bin\n");
    for (name, damage, expected) in rows {
        let tree = original.copy();
        let dist_info = tree.path(PACKAGES).join("host-1.dist-info");
        damage(&dist_info.join("METADATA"), &dist_info.join("RECORD"));
        for path in ["env", PACKAGES, &format!("{PACKAGES}/lib")] {
            let report = examined(&tree, path, "gfx1100");
            let cause = &report.cause().unwrap().finding;
            assert_eq!(report.loads, Some(false), "{name}, {path}: {report:#?}");
            assert_eq!(cause.id, ids::MISSING_ARCHIVE, "{name}, {path}: {report:#?}");
            assert_eq!(cause.file(), tree.path(PACKAGES).join("lib/libhost.so"), "{name}, {path}");
        }
        let report = examined(&tree, "env", "gfx942");
        assert_eq!((report.loads, report.faults()), (Some(true), 0), "{name}: {report:#?}");
        let damaged = report.findings.iter().map(|found| &found.finding);
        let damaged = damaged.filter(|found| found.id == ids::DAMAGED_WHEEL).map(|found| {
            assert_eq!(found.severity, Severity::Warning, "{name}");
            found.text.replace(tree.root().to_str().unwrap(), "/tree")
        });
        assert_eq!(Vec::from_iter(damaged), Vec::from_iter(*expected), "{name}");
    }
    // What has no metadata is not said to be needed.
    by_hand(&original, PACKAGES, "host-device-gfx942", "", "pip\n");
    write(original.path(PACKAGES).join("host-device-gfx942-1.dist-info/METADATA"), "[[[");
    let found = unused(Some(&original.path("env")), &for_gpu("gfx1100")).unwrap();
    assert_eq!((found.packages, found.remedy), (Vec::new(), None));
    assert_eq!(found.findings.len(), 1);
}

/// Given the lists that installers of all times wrote, then a library is of the distribution whose list names it, and that is
/// what lacks its device wheel. Without a list, it is nobody's.
#[test]
fn the_list_of_a_distribution_says_which_files_are_its_own() {
    let to_egg = |info: &Path| {
        fs::remove_file(info.join("RECORD")).unwrap();
        fs::rename(info.join("METADATA"), info.join("PKG-INFO")).unwrap();
        let egg = info.with_extension("egg-info");
        fs::rename(info, &egg).unwrap();
        egg
    };
    const LISTED: &str = "../lib/libhost.so\nPKG-INFO\n";
    const OUTSIDE: &str = "../../../../../lib/libhost.so\n/lib/libhost.so\n";
    type Change<'a> = &'a dyn Fn(&Path);
    let rows: &[(&str, Change<'_>, bool)] = &[
        ("RECORD", &|_| {}, true),
        ("no RECORD", &|info| fs::remove_file(info.join("RECORD")).unwrap(), false),
        (
            "installed-files.txt",
            &|info| write(to_egg(info).join("installed-files.txt"), LISTED),
            true,
        ),
        ("nothing inside", &|info| write(to_egg(info).join("installed-files.txt"), OUTSIDE), false),
        ("an .egg-info directory without a list", &|info| drop(to_egg(info)), false),
        (
            "an .egg-info file",
            &|info| {
                fs::rename(info.join("METADATA"), info.with_extension("egg-info")).unwrap();
                fs::remove_dir_all(info).unwrap();
            },
            false,
        ),
    ];
    let original = Tree::new();
    by_hand(&original, PACKAGES, "host", &for_gfx1100("host"), "pip\n");
    for (name, change, is_known) in rows {
        let tree = original.copy();
        change(&tree.path(PACKAGES).join("host-1.dist-info"));
        let report = examined(&tree, "env", "gfx1100");
        let install = "pip --python /tree/env install 'host[device-gfx1100]==1'";
        let expected = is_known.then_some(install);
        assert_eq!(command(&tree, &report).as_deref(), expected, "{name}: {report:#?}");
    }
}

/// Given metadata that somebody made to break a reader or a shell, then the doctor says what it cannot read, and puts none
/// of it into a command.
#[test]
fn hostile_metadata_gets_into_no_command() {
    let extras = "Provides-Extra: device-gfx1100\nRequires-Dist: x-device-gfx1100==1; extra == \"device-gfx1100\"\n";
    for (name, metadata) in [
        ("a name for a shell", format!("Name: x; touch pwned\nVersion: 1\n{extras}")),
        ("a name with an option", format!("Name: --index-url=x\nVersion: 1\n{extras}")),
        ("a name that ends wrongly", format!("Name: x-\nVersion: 1\n{extras}")),
        ("a long name", format!("Name: {}\nVersion: 1\n{extras}", "x".repeat(100_000))),
        ("a version for a shell", format!("Name: x\nVersion: 1+$(touch pwned)\n{extras}")),
        ("a version on two lines", format!("Name: x\nVersion: 1\n  \x1b[2J\n{extras}")),
        ("an extra for a shell", "Name: x\nVersion: 1\nProvides-Extra: device-`x`\n".to_owned()),
        ("an extra that ends wrongly", "Name: x\nVersion: 1\nProvides-Extra: device-\n".to_owned()),
        (
            "a requirement for a shell",
            format!("Name: x\nVersion: 1\n{extras}Requires-Dist: $(x)\n"),
        ),
        ("no version", "Name: x\n".to_owned()),
        ("no text", "\u{0}".repeat(100)),
    ] {
        let tree = Tree::new();
        let packages = tree.path(PACKAGES);
        let dist_info = packages.join("x-1.dist-info");
        write(dist_info.join("METADATA"), format!("Metadata-Version: 2.1\n{metadata}"));
        let outside = tree.path("outside.so");
        fs::write(&outside, "").unwrap();
        symlink(tree.root(), packages.join("link")).unwrap();
        let rows = format!(
            "../../../../outside.kpack,,5\n{},,\nx.so,,5\nlink/outside.kpack,,5\nlink/no/outside.kpack,,5\n",
            outside.display()
        );
        fs::write(dist_info.join("RECORD"), rows).unwrap();
        let report = examined(&tree, "env", "gfx1100");
        let json = json(&report);
        assert!(json.contains("\"damaged-wheel\""), "{name}: {json}");
        assert!(report.findings.iter().all(|found| found.remedy.is_none()), "{name}: {json}");
        for part in ["outside", "pip install"] {
            assert!(!json.contains(part), "{name}: {json}");
        }
    }
}

/// Given a `direct_url.json` that somebody made to get words into a command, or that has a password, then the command has
/// neither, and has to be looked at.
#[test]
fn hostile_origins_get_into_no_command() {
    let tree = Tree::new();
    by_hand(&tree, PACKAGES, "host", &for_gfx1100("host"), "pip\n");
    let origin = tree.path(PACKAGES).join("host-1.dist-info/direct_url.json");
    let plain = "pip --python /tree/env install 'host[device-gfx1100]==1'";
    for (url, part) in [
        ("file://-e/x.whl", Some("")),
        ("file://wheels/x.whl", Some("")),
        (
            "file:///wheels/../$(touch pwned)/x.whl",
            Some(" --find-links '/wheels/../$(touch pwned)'"),
        ),
        ("file:///a%20b/x.whl", Some("")),
        // Nothing that a terminal would hide may be in a command.
        ("file:///a\u{1b}[2J/x.whl", None),
        ("file:///a\nb/x.whl", None),
        ("https://user:secret@index.invalid/x.whl?token=secret#secret", Some("")),
        ("ssh://secret@index.invalid/x.whl", Some("")),
        ("https://index.invalid/x.whl --index-url https://index.invalid", Some("")),
        ("", Some("")),
    ] {
        fs::write(&origin, serde_json::json!({ "url": url }).to_string()).unwrap();
        let report = examined(&tree, "env", "gfx1100");
        let expected = part.map(|part| format!("{plain}{part}"));
        assert_eq!(command(&tree, &report), expected, "{url:?}");
        if let Some(remedy) = &report.remedy {
            let caution = remedy.caution.as_deref().unwrap_or_default();
            assert!(caution.starts_with("host was installed from "), "{url:?}: {caution}");
        }
        assert!(!json(&report).contains("secret"), "{url:?}: {report:#?}");
    }
    // One that is no file of JSON says nothing.
    for text in ["[[[", "{\"url\": 1}", "{\"url\": null}", &"[".repeat(100_000)] {
        fs::write(&origin, text).unwrap();
        assert_eq!(command(&tree, &examined(&tree, "env", "gfx1100")).as_deref(), Some(plain));
    }
    fs::remove_file(&origin).unwrap();
    run(Command::new("mkfifo").arg(&origin));
    assert_eq!(command(&tree, &examined(&tree, "env", "gfx1100")).as_deref(), Some(plain));
}

/// Given files of an environment that are none, or that cannot be read, then the doctor neither hangs nor stops.
#[test]
fn metadata_that_is_no_file_keeps_nothing_else_from_being_examined() {
    let tree = Tree::new();
    let root = tree.path("it's $(an) env");
    let packages = root.join("lib/python3.12/site-packages");
    let wheel = |name: &str, fields: &str| {
        let dist_info = packages.join(format!("{name}-1.dist-info"));
        let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{fields}");
        write(dist_info.join("METADATA"), text);
        dist_info
    };
    run(Command::new("mkfifo").arg(wheel("pipe", "").join("RECORD")));
    symlink("/dev/zero", wheel("zero", "").join("RECORD")).unwrap();
    fs::create_dir(wheel("directory", "").join("RECORD")).unwrap();
    // A script is no damaged program.
    let rows =
        "lib/libhost.so,,\nlib/.kpack/pipe.kpack,,\nlib/libpipe.so,,\n../../../bin/python,,12\n";
    fs::write(wheel("host", "").join("RECORD"), rows).unwrap();
    fs::create_dir_all(packages.join("lib/.kpack")).unwrap();
    let pipes = ["lib/.kpack/pipe.kpack", "lib/libpipe.so"].map(|to| packages.join(to));
    run(Command::new("mkfifo").args(pipes));
    write(root.join("bin/python"), "#!/bin/sh -e");
    wheel("host", &for_gfx1100("host"));
    split(&packages, "libhost.so", None);
    for target in TARGETS {
        fs::remove_file(packages.join(format!("lib/.kpack/all_{target}.kpack"))).unwrap();
    }
    let report = examined(&tree, "it's $(an) env", "gfx1100");
    let found = [ids::DAMAGED_WHEEL, ids::DEVICE_WHEEL_MISSING, ids::DEVICE_WHEEL_DAMAGED];
    let found = found.map(|id| report.findings.iter().filter(|f| f.finding.id == id).count());
    assert_eq!(found, [3, 1, 1], "{report:#?}");
    let remedy = report.remedy.unwrap();
    let expected = ["--python", root.to_str().unwrap(), "install", "host[device-gfx1100]==1"];
    assert_eq!(remedy.arguments, expected);
    let script = format!("pip() {{ printf '%s\\n' \"$@\"; }}; {}", remedy.command);
    let printed = run(Command::new("sh").args(["-c", &script]));
    assert_eq!(Vec::from_iter(printed.lines()), expected);
}

/// Given an environment, its directory of packages or a file in it, then the command names the environment, in Unix's layout
/// and in that of Windows.
#[test]
fn a_command_names_the_environment_of_what_is_examined() {
    for packages in [PACKAGES, "env/Lib/site-packages"] {
        let tree = Tree::new();
        by_hand(&tree, packages, "host", &for_gfx1100("host"), "pip\n");
        let expected = "pip --python /tree/env install 'host[device-gfx1100]==1'";
        for path in ["env", packages, &format!("{packages}/lib/libhost.so")] {
            let report = examined(&tree, path, "gfx1100");
            assert_eq!(command(&tree, &report).as_deref(), Some(expected), "{path}: {report:#?}");
        }
    }
}

/// Given an environment that includes the packages of its base Python, then those count, and where one lacks its device
/// wheels, the command installs it with them.
#[test]
fn packages_of_the_base_python_count() {
    let tree = Tree::new();
    by_hand(&tree, "base/lib/python3.12/site-packages", "host", &for_gfx1100("host"), "pip\n");
    // Those of another version do not.
    by_hand(&tree, "base/lib/python3.11/site-packages", "other", &for_gfx1100("other"), "pip\n");
    by_hand(&tree, PACKAGES, "own", "", "pip\n");
    let command = |included: &str| {
        let home = tree.path("base/bin").display().to_string();
        let text = format!("home = {home}\ninclude-system-site-packages = {included}\n");
        write(tree.path("env/pyvenv.cfg"), text);
        command(&tree, &examined(&tree, "env", "gfx1100"))
    };
    let expected = "pip --python /tree/env install 'host[device-gfx1100]==1' --ignore-installed";
    assert_eq!(command("true").as_deref(), Some(expected));
    assert_eq!(command("false"), None);
}

/// Given a prefix that has Python packages, as `/usr` and those of conda have, then its other binaries are examined as well.
#[test]
fn a_prefix_with_python_packages_is_more_than_an_environment() {
    let tree = Tree::new();
    by_hand(&tree, PACKAGES, "own", "", "pip\n");
    split(&tree.path("env"), "libvec.so", None);
    let library = tree.path("env/lib/libvec.so");
    let about_library = |report: &Report, id| {
        let mut findings = report.findings.iter().map(|found| &found.finding);
        findings.any(|found| found.id == id && found.file() == library)
    };
    let report = examined(&tree, "env", "gfx942");
    assert!(about_library(&report, ids::CODE_FOUND), "{report:#?}");
    fs::remove_file(tree.path("env/lib/.kpack/all_gfx942.kpack")).unwrap();
    let report = examined(&tree, "env", "gfx942");
    assert_eq!(report.loads, Some(false), "{report:#?}");
    assert!(about_library(&report, ids::MISSING_ARCHIVE), "{report:#?}");
}

/// Given a GPU that nobody builds for, then the doctor names the targets whose code would do.
#[test]
fn the_nearest_target_of_a_gpu_that_nobody_builds_for() {
    let tree = Tree::new();
    by_hand(&tree, PACKAGES, "host", &for_gfx1100("host"), "pip\n");
    let report = examined(&tree, "env", "gfx1034");
    let help = "install a version of host with code for gfx1034 or gfx10-3-generic or gfx103x";
    assert_eq!(report.cause().unwrap().finding.help.as_deref(), Some(help));
}

/// Given a GPU whose code belongs to another target's device wheels, then these are what it needs, and its own where there
/// are some.
#[test]
fn the_device_wheels_that_contain_the_code_of_another_target() {
    let tree = Tree::new();
    let fields = |targets: &[&str]| -> String {
        let field = |target: &&str| for_gfx1100("host").replace("gfx1100", target);
        targets.iter().map(field).collect()
    };
    let cause = |report: &Report| report.cause().unwrap().finding.text.clone();
    let strict = for_gpu("gfx1250-strict");
    let extras = |path| extras(&[tree.path(path)], &strict).unwrap();
    by_hand(&tree, PACKAGES, "host", &fields(&["gfx1250", "gfx1100"]), "pip\n");
    let missing = examined(&tree, "env", "gfx1250-strict");
    let text = "host 1 needs host-device-gfx1250==1 on gfx1250-strict, which is not installed";
    assert!(cause(&missing).contains(text), "{missing:#?}");
    let command = command(&tree, &missing).unwrap();
    assert!(command.ends_with("'host[device-gfx1250]==1'"), "{command}");
    assert_eq!(extras("env"), ["device-gfx1250"]);
    assert_eq!(extras("none"), ["device-gfx1250"]);

    for name in ["host-device-gfx1250", "host-device-gfx1100"] {
        by_hand(&tree, PACKAGES, name, "Requires-Dist: host==1\n", "pip\n");
    }
    let there = examined(&tree, "env", "gfx1250-strict");
    assert!(!cause(&there).contains("host-device-gfx1250"), "{there:#?}");
    let unused = unused(Some(&tree.path("env")), &strict).unwrap().packages;
    let names = Vec::from_iter(unused.iter().map(|package| &*package.name));
    assert_eq!(names, ["host-device-gfx1100"]);

    // Older versions have a wheel for it alone.
    by_hand(&tree, PACKAGES, "host", &fields(&["gfx1250", "gfx1250-strict"]), "pip\n");
    assert_eq!(extras("env"), ["device-gfx1250-strict"]);
    let older = examined(&tree, "env", "gfx1250-strict");
    assert!(cause(&older).contains("host 1 needs host-device-gfx1250-strict==1"), "{older:#?}");
}
