//! Given something that the doctor cannot read, or may not print, then it says so, and does not judge as if it were not
//! there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;
use kpack_doctor::{Options, Report, examine};
use kpack_tests::require;
use kpack_tests::tree::{Tree, copy_file, write};

use crate::command::{Row, command, said_by, without_configuration};
use crate::environments::{ARCHIVE, by_hand, for_gfx1100, of_package, split_for_packages, text_of};
use crate::images;

const PACKAGES: &str = "env/lib/python3.12/site-packages";

/// A virtual environment with a split library, whose archive for gfx1100 is missing.
fn environment(fields: &str) -> Tree {
    let tree = Tree::new();
    by_hand(&tree, PACKAGES, "host", fields, "pip\n");
    fs::write(tree.path("env/pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    tree
}

/// What runs the doctor for an environment that is not active, with nothing of the user's own.
fn doctor(tree: &Tree, path: &str) -> Command {
    let mut doctor = command(tree, &["doctor", "--arch", "gfx1100"]);
    without_configuration(doctor.arg(tree.path(path)), tree);
    doctor
}

/// Given a distribution whose METADATA or RECORD is damaged or missing, then its libraries are examined nevertheless. Given a
/// configuration with several indexes, then all of them are named.
#[test]
fn damaged_metadata_and_several_indexes() {
    const EXAMINE: &[&str] = &[
        "kpack doctor env --arch gfx1100",
        "kpack doctor env/lib/python3.12/site-packages --arch gfx1100",
        "kpack doctor env/lib/python3.12/site-packages/lib --arch gfx1100",
        "kpack doctor env --arch gfx942",
    ];
    const METADATA: &str = "env/lib/python3.12/site-packages/host-1.dist-info/METADATA";
    const RECORD: &str = "env/lib/python3.12/site-packages/host-1.dist-info/RECORD";
    let rows: &[Row] = &[
        ("METADATA without fields", |tree| tree.write(METADATA, "[[["), EXAMINE),
        (
            "METADATA with a wrong version",
            |tree| tree.write(METADATA, "Name: host\nVersion: x\n"),
            EXAMINE,
        ),
        ("no METADATA", |tree| fs::remove_file(tree.path(METADATA)).unwrap(), EXAMINE),
        ("RECORD that is no CSV", |tree| tree.write(RECORD, "lib/libhost.so,x\n\""), EXAMINE),
        ("no RECORD", |tree| fs::remove_file(tree.path(RECORD)).unwrap(), EXAMINE),
        (
            "what has no metadata is not said to be needed",
            |tree| {
                by_hand(tree, PACKAGES, "host-device-gfx942", "", "pip\n");
                tree.write(&format!("{PACKAGES}/host-device-gfx942-1.dist-info/METADATA"), "[[[");
            },
            &["kpack doctor env --arch gfx1100 --unused"],
        ),
        (
            "the indexes of pip",
            |tree| {
                by_hand(tree, PACKAGES, "host", &for_gfx1100("host"), "pip\n");
                let text = "[global]\nextra-index-url =\n    https://a.invalid/s\n    https://b.invalid/s\n\
                            find-links = /wheels https://c.invalid/s\n";
                tree.write("env/pip.conf", text);
            },
            &["kpack doctor env --arch gfx1100"],
        ),
        (
            "an index from each place that pip reads, with a password",
            |tree| {
                by_hand(tree, PACKAGES, "host", &for_gfx1100("host"), "pip\n");
                let text = "[global]\nindex-url = https://u:s3cr3t@a.invalid/s\n\
                            extra-index-url = https://u:s3cr3t@b.invalid/s\n\
                            find-links = https://u:s3cr3t@c.invalid/s\n";
                tree.write("env/pip.conf", text);
            },
            &[
                "kpack doctor env --arch gfx1100",
                // Each replaces what the file names, so the note is about the others.
                "PIP_INDEX_URL=https://u:s3cr3t@d.invalid/s kpack doctor env --arch gfx1100",
                "PIP_EXTRA_INDEX_URL=https://u:s3cr3t@d.invalid/s kpack doctor env --arch gfx1100",
                "PIP_FIND_LINKS=https://u:s3cr3t@d.invalid/s kpack doctor env --arch gfx1100",
                "rm env/pip.conf",
                "kpack doctor env --arch gfx1100",
                // The command names this one, since there is no secret in it.
                "PIP_INDEX_URL=https://d.invalid/s kpack doctor env --arch gfx1100",
            ],
        ),
        (
            "an index from each place that uv reads, with a password",
            |tree| {
                by_hand(tree, PACKAGES, "host", &for_gfx1100("host"), "uv");
                fs::create_dir(tree.path("other")).unwrap();
                fs::rename(tree.path("env"), tree.path("other/env")).unwrap();
                let text = "index-url = 'https://u:s3cr3t@a.invalid/s'\n\
                            [[index]]\nurl = 'https://u:s3cr3t@b.invalid/s'\n";
                tree.write("other/uv.toml", text);
            },
            &[
                "kpack doctor other/env --arch gfx1100",
                // Where there is something that uv reads, nothing is said of what it does not read.
                "UV_DEFAULT_INDEX=own=https://u:s3cr3t@d.invalid/s kpack doctor other/env --arch gfx1100",
                "UV_INDEX=own=https://u:s3cr3t@d.invalid/s kpack doctor other/env --arch gfx1100",
                "UV_EXTRA_INDEX_URL=https://u:s3cr3t@d.invalid/s kpack doctor other/env --arch gfx1100",
                "UV_FIND_LINKS=https://u:s3cr3t@d.invalid/s kpack doctor other/env --arch gfx1100",
                "rm other/uv.toml",
                "kpack doctor other/env --arch gfx1100",
                // The command names these, since there is no secret in them.
                "UV_DEFAULT_INDEX=own=https://d.invalid/s kpack doctor other/env --arch gfx1100",
                "UV_INDEX_URL=https://d.invalid/s kpack doctor other/env --arch gfx1100",
            ],
        ),
        (
            "the indexes of uv, which does not read the file from here: the command has the first one alone",
            |tree| {
                by_hand(tree, PACKAGES, "host", &for_gfx1100("host"), "uv");
                fs::create_dir(tree.path("other")).unwrap();
                fs::rename(tree.path("env"), tree.path("other/env")).unwrap();
                let text = "[[index]]\nurl = 'https://a.invalid/s'\n[[index]]\nurl = 'https://b.invalid/s'\n";
                tree.write("other/uv.toml", text);
            },
            &["kpack doctor other/env --arch gfx1100"],
        ),
        (
            "a configuration that is not UTF-8 counts for nothing",
            |tree| {
                by_hand(tree, PACKAGES, "host", &for_gfx1100("host"), "pip\n");
                let text = b"[global]\nindex-url = https://a.invalid/\xff\n";
                tree.write("env/pip.conf", text);
            },
            &["kpack doctor env --arch gfx1100"],
        ),
    ];
    assert_snapshot!(said_by(rows, &environment("")));
}

/// Given URLs that programs read in different ways, or that nobody can read, then no place prints their passwords.
#[test]
fn passwords_are_printed_from_nowhere() {
    let (tree, elsewhere) = (environment(&for_gfx1100("host")), Tree::new());
    for url in [
        "//user:s3cr3t@host.invalid/simple",
        "https:\\\\user:s3cr3t@host.invalid/simple",
        "https:/\\user:s3cr3t@host.invalid/simple",
        "https:user:s3cr3t@host.invalid/simple",
        "https:///user:s3cr3t@host.invalid/simple",
        "user:s3cr3t@host.invalid/simple",
        "host.invalid/simple?token=s3cr3t",
        "https//user:s3cr3t@host.invalid/simple",
        "https://host.invalid\\@user:s3cr3t@host.invalid/simple",
        "https://user:s3cr3t@host.invalid:port/simple",
        "https://user:s3cr3t%40host.invalid/simple",
        "https://user:s3cr3t\u{ff20}host.invalid/simple",
        "git+https://user:s3cr3t@host.invalid/simple",
        "file://user:s3cr3t@host.invalid/a/x.whl",
        "file:////user:s3cr3t@host.invalid/a/x.whl",
        " https://user:s3cr3t@host.invalid/simple",
        "https://host.invalid/simple https://user:s3cr3t@host.invalid/simple",
    ] {
        let says_nothing = |place: &str, variables: &[(&str, &str)]| {
            // The text for people has less.
            let mut doctor = doctor(&tree, "env");
            doctor.arg("--json").envs(variables.iter().copied()).current_dir(elsewhere.root());
            let output = doctor.env("HOME", elsewhere.root()).output().unwrap();
            let text = text_of(&output);
            assert!(!text.contains("s3cr3t"), "{url} in {place}: {text}");
            assert!(output.status.code() == Some(1), "{url} in {place}: {text}");
        };
        let quoted = serde_json::json!(url).to_string();
        // What replaces nothing else is read in one run.
        let options = ["index-url", "extra-index-url", "find-links"];
        let text = options.map(|option| format!("{option} = {url}\n")).concat();
        fs::write(tree.path("env/pip.conf"), format!("[global]\n{text}")).unwrap();
        says_nothing("pip.conf", &[]);
        fs::remove_file(tree.path("env/pip.conf")).unwrap();
        let names = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"];
        says_nothing("variables of pip", &names.map(|name| (name, url)));
        let dist_info = tree.path(&format!("{PACKAGES}/host-1.dist-info"));
        let origin = dist_info.join("direct_url.json");
        fs::write(&origin, format!("{{\"url\": {quoted}}}")).unwrap();
        says_nothing("direct_url.json", &[]);
        fs::remove_file(&origin).unwrap();
        fs::write(dist_info.join("INSTALLER"), "uv").unwrap();
        let text = format!("index-url = {quoted}\n[[index]]\nurl = {quoted}");
        fs::write(tree.path("uv.toml"), text).unwrap();
        says_nothing("uv.toml", &[]);
        fs::remove_file(tree.path("uv.toml")).unwrap();
        let named = format!("own={url}");
        says_nothing("UV_INDEX_URL", &[("UV_INDEX_URL", url)]);
        says_nothing("indexes of uv", &[("UV_DEFAULT_INDEX", &named), ("UV_INDEX", &named)]);
        let fields = format!("{}Requires-Dist: other @ {url}\n", for_gfx1100("host"));
        let metadata = format!("Metadata-Version: 2.1\nName: host\nVersion: 1\n{fields}");
        let sound = fs::read(dist_info.join("METADATA")).unwrap();
        fs::write(dist_info.join("METADATA"), metadata).unwrap();
        says_nothing("Requires-Dist", &[]);
        fs::write(dist_info.join("METADATA"), sound).unwrap();
        fs::write(dist_info.join("INSTALLER"), "pip\n").unwrap();
    }
}

/// Given an image without the dynamic linker of its libraries, then nobody knows which HIP runtime they get.
#[test]
fn an_image_without_a_dynamic_linker() {
    let Some(tree) = images::image() else { return };
    let linker = tree.path("image/usr/lib64/ld-linux-x86-64.so.2");
    if !linker.is_file() {
        return require::skip("this machine has another dynamic linker");
    }
    let packages = "image/opt/env/lib/python3.12/site-packages";
    by_hand(&tree, packages, "host", "", "pip\n");
    for name in ["libamdhip64.so.7", "librocm_kpack.so.0"] {
        let from = tree.path("image/opt/rocm-7/lib").join(name);
        copy_file(from, tree.path(packages).join("lib").join(name));
    }
    let record = tree.path(packages).join("host-1.dist-info/RECORD");
    fs::write(record, "lib/libhost.so,,\nlib/libamdhip64.so.7,,\nlib/librocm_kpack.so.0,,\n")
        .unwrap();
    for examined in ["/opt/vec", "/opt/vec/lib/libvec.so", "/opt/env"] {
        let (said, code) = images::said(&tree, &[examined]);
        assert!(said.starts_with("GPU code will load for gfx942\n"), "{examined}: {said}");
        assert_eq!(code, Some(0), "{examined}: {said}");
    }
    fs::remove_file(linker).unwrap();
    for examined in ["/opt/vec", "/opt/vec/lib/libvec.so", "/opt/env"] {
        let (said, code) = images::said(&tree, &[examined]);
        let verdict = "kpack cannot tell whether GPU code will load for gfx942\n";
        assert!(said.starts_with(verdict), "{examined}: {said}");
        assert!(said.contains("there is no /lib64/ld-linux-x86-64.so.2"), "{examined}: {said}");
        assert_eq!(code, Some(0), "{examined}: {said}");
    }
}

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

/// What the doctor finds about a library in a root of packages.
fn report_of(root: &Path, gpu: &str) -> Report {
    let mut options = Options::default();
    options.targets = vec![gpu.parse().unwrap()];
    options.system = root.to_owned();
    examine(&[root.join("usr/lib/libvec.so")], &options).unwrap()
}

/// Given the path of a system that does not exist, then its packages are unknown, and all else is examined.
#[test]
fn a_system_that_does_not_exist_has_no_packages() {
    let tree = Tree::new();
    let root = tree.path("root");
    split_for_packages(&root);
    fs::remove_file(root.join(ARCHIVE)).unwrap();
    let mut options = Options::default();
    options.targets = vec!["gfx1100".parse().unwrap()];
    options.system = tree.path("none");
    let report = examine(&[root.join("usr/lib/libvec.so")], &options).unwrap();
    assert_eq!(report.cause().unwrap().finding.id.as_str(), "missing-archive");
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
            let report = report_of(&root, gpu);
            let found = report.findings.into_iter().map(|found| found.finding);
            Vec::from_iter(found.filter(|found| found.id.as_str() == "unread-package-database"))
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
    split_for_packages(&tree.path("root"));
    fs::remove_file(tree.path("root").join(ARCHIVE)).unwrap();
    fs::create_dir(tree.path("root/usr/conda-meta")).unwrap();
    symlink("/none", tree.path("root/usr/conda-meta/vec.json")).unwrap();
    let said = text_of(&doctor(&tree, "root/usr/lib/libvec.so").arg("-v").output().unwrap());
    assert!(said.contains("usr/conda-meta/vec.json: conda's description of a package"), "{said}");
    let Some(tree) = images::image() else { return };
    write(tree.path("image/var/lib/rpm/Packages"), BERKELEY);
    fs::remove_file(tree.path("image/opt/vec-1/lib/.kpack/vec_lib_gfx942.kpack")).unwrap();
    let (said, _) = images::said(&tree, &["/opt/vec"]);
    assert!(said.contains("\nnote: /var/lib/rpm/Packages: "), "{said}");
}
