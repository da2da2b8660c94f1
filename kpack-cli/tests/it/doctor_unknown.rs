//! Given something that the doctor cannot read, or may not print, then it says so, and does not judge as if it were not
//! there.

use std::fs;
use std::process::Command;

use insta::assert_snapshot;
use kpack_tests::require;
use kpack_tests::tree::{Tree, copy_file, write};

use crate::by_hand::{PACKAGES, by_hand, for_gfx1100};
use crate::command::{Row, command, said_by, without_configuration};
use crate::environments::text_of;
use crate::images;

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

/// Given a configuration with several indexes, then all of them are named.
#[test]
fn several_indexes() {
    let rows: &[Row] = &[
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

/// Given URLs with passwords, then these are printed from nowhere that names one. Which parts of a URL are masked is a question
/// for kpack-doctor.
#[test]
fn passwords_are_printed_from_nowhere() {
    let (tree, elsewhere) = (environment(&for_gfx1100("host")), Tree::new());
    // One that everybody reads in the same way, one that nobody can read, and two.
    for url in [
        "https://user:s3cr3t%40host.invalid/simple",
        "https:\\\\user:s3cr3t@host.invalid/simple",
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

/// Given an image with a database of packages that kpack does not read, then it says so where it prints no command.
#[test]
fn a_database_of_packages_that_kpack_does_not_read_is_why_there_is_no_command() {
    let Some(tree) = images::image() else { return };
    // In the format Berkeley DB.
    let database = b"\0\0\0\0\0\0\0\0\0\0\0\0\x61\x15\x06\0\x09\0\0\0";
    write(tree.path("image/var/lib/rpm/Packages"), database);
    fs::remove_file(tree.path("image/opt/vec-1/lib/.kpack/vec_lib_gfx942.kpack")).unwrap();
    let (said, _) = images::said(&tree, &["/opt/vec"]);
    assert!(said.contains("\nnote: /var/lib/rpm/Packages: "), "{said}");
}
