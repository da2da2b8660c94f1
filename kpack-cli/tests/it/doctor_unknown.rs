//! Given something that the doctor cannot read, or may not print, then it says so, and does not judge as if it were not
//! there.

use std::fs;
use std::process::Command;

use kpack_tests::tree::Tree;

use crate::command::command;
use crate::environments::{by_hand, for_gfx1100, text_of};

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
