//! Given something that the doctor cannot read, or may not print, then it says so, and does not judge as if it were not
//! there.

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_doctor::{Options, Report, examine};
use kpack_tests::require;
use kpack_tests::tree::{Tree, copy_file, write};

use crate::command::{command, said};
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
    let path = tree.path(path);
    let mut doctor = command(tree, &["doctor", "--arch", "gfx1100"]);
    doctor.arg(path);
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| {
        ["PIP_", "UV_"].iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()))
    }) {
        doctor.env_remove(name);
    }
    doctor.env_remove("VIRTUAL_ENV").env("HOME", tree.root());
    doctor
}

/// Given a distribution whose METADATA or RECORD is damaged or missing, then its libraries are examined nevertheless.
#[test]
fn damaged_metadata_hides_no_library() {
    for (file, text) in [
        ("METADATA", Some("[[[")),
        ("METADATA", Some("Name: host\nVersion: x\n")),
        ("METADATA", None),
        ("RECORD", Some("lib/libhost.so,x\n\"")),
        ("RECORD", None),
    ] {
        let tree = environment("");
        let path = tree.path(&format!("{PACKAGES}/host-1.dist-info/{file}"));
        fs::remove_file(&path).unwrap();
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        for examined in ["env", PACKAGES, &format!("{PACKAGES}/lib")] {
            let said = said(&tree, &["doctor", examined, "--arch", "gfx1100"]);
            let is_missed = said.contains("GPU code will not load for gfx1100\n")
                && said.contains("[missing-archive]")
                && said.ends_with("exit code 1\n");
            assert!(is_missed, "{file}: {text:?}: {said}");
        }
        let said = said(&tree, &["doctor", "env", "--arch", "gfx942"]);
        assert!(said.contains("GPU code will load for gfx942\n"), "{file}: {text:?}: {said}");
    }
    // What has no metadata is not said to be needed.
    let tree = environment("");
    by_hand(&tree, PACKAGES, "host-device-gfx942", "", "pip\n");
    fs::write(tree.path(&format!("{PACKAGES}/host-device-gfx942-1.dist-info/METADATA")), "[[[")
        .unwrap();
    let said = said(&tree, &["doctor", "env", "--arch", "gfx1100", "--unused"]);
    assert!(said.contains("[damaged-wheel]"), "{said}");
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
        for option in ["index-url", "extra-index-url", "find-links"] {
            let text = format!("[global]\n{option} = {url}\n");
            fs::write(tree.path("env/pip.conf"), text).unwrap();
            says_nothing(&format!("pip.conf: {option}"), &[]);
        }
        fs::remove_file(tree.path("env/pip.conf")).unwrap();
        for name in ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"] {
            says_nothing(name, &[(name, url)]);
        }
        let dist_info = tree.path(&format!("{PACKAGES}/host-1.dist-info"));
        let origin = dist_info.join("direct_url.json");
        fs::write(&origin, format!("{{\"url\": {quoted}}}")).unwrap();
        says_nothing("direct_url.json", &[]);
        fs::remove_file(&origin).unwrap();
        fs::write(dist_info.join("INSTALLER"), "uv").unwrap();
        for line in [format!("index-url = {quoted}"), format!("[[index]]\nurl = {quoted}")] {
            fs::write(tree.path("uv.toml"), &line).unwrap();
            says_nothing(&line, &[]);
        }
        fs::remove_file(tree.path("uv.toml")).unwrap();
        let named = format!("own={url}");
        for (name, url) in
            [("UV_INDEX_URL", url), ("UV_DEFAULT_INDEX", &named), ("UV_INDEX", &named)]
        {
            says_nothing(name, &[(name, url)]);
        }
        let fields = format!("{}Requires-Dist: other @ {url}\n", for_gfx1100("host"));
        let metadata = format!("Metadata-Version: 2.1\nName: host\nVersion: 1\n{fields}");
        let sound = fs::read(dist_info.join("METADATA")).unwrap();
        fs::write(dist_info.join("METADATA"), metadata).unwrap();
        says_nothing("Requires-Dist", &[]);
        fs::write(dist_info.join("METADATA"), sound).unwrap();
        fs::write(dist_info.join("INSTALLER"), "pip\n").unwrap();
    }
}

/// Given a configuration with several indexes, then all of them are named.
#[test]
fn all_indexes_are_named() {
    let tree = environment(&for_gfx1100("host"));
    let note = || {
        let text = text_of(&doctor(&tree, "env").output().unwrap());
        text.lines().find(|line| line.starts_with("note: ")).unwrap_or_default().to_owned()
    };
    let expected =
        "the indexes https://a.invalid/s, https://b.invalid/s, /wheels, https://c.invalid/s, ";
    let text = "[global]\nextra-index-url =\n    https://a.invalid/s\n    https://b.invalid/s\nfind-links = /wheels https://c.invalid/s\n";
    fs::write(tree.path("env/pip.conf"), text).unwrap();
    assert!(note().contains(expected), "{}", note());
    fs::remove_file(tree.path("env/pip.conf")).unwrap();

    // uv does not read the one beside the environment from here, so the command has the first one alone.
    let dist_info = tree.path(&format!("{PACKAGES}/host-1.dist-info"));
    fs::write(dist_info.join("INSTALLER"), "uv").unwrap();
    let other = tree.path("other");
    fs::create_dir(&other).unwrap();
    fs::rename(tree.path("env"), other.join("env")).unwrap();
    let text = "[[index]]\nurl = 'https://a.invalid/s'\n[[index]]\nurl = 'https://b.invalid/s'\n";
    fs::write(other.join("uv.toml"), text).unwrap();
    let said = text_of(&doctor(&tree, "other/env").output().unwrap());
    assert!(said.contains(" --index-url https://a.invalid/s\n"), "{said}");
    assert!(said.contains("https://b.invalid/s"), "{said}");
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
    let Some(tree) = images::image() else { return };
    write(tree.path("image/var/lib/rpm/Packages"), BERKELEY);
    fs::remove_file(tree.path("image/opt/vec-1/lib/.kpack/vec_lib_gfx942.kpack")).unwrap();
    let (said, _) = images::said(&tree, &["/opt/vec"]);
    assert!(said.contains("\nnote: /var/lib/rpm/Packages: "), "{said}");
}
