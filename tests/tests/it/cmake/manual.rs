//! What comes with an installed helper: its manual, completions for shells, and licences.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;
use std::process::Command;

use flate2::read::GzDecoder;
use kpack_tests::require;

use crate::cmake::package::{Package, dist_prefix};
use crate::cmake::project::Run;

/// The commands that `kpack --help` lists.
fn commands() -> Vec<String> {
    let help = Run::of(Command::new(Package::installed().helper).arg("--help")).succeeds();
    let (_, list) = help.output.split_once("Commands:\n").unwrap();
    let names = list.lines().take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.map(|line| line.split_whitespace().next().unwrap().to_owned());
    let names: Vec<String> = names.filter(|name| name != "help").collect();
    assert!(names.len() > 10, "{names:?}");
    names
}

fn installed(path: &str) -> PathBuf {
    dist_prefix().join(path)
}

#[test]
fn each_command_has_a_manual_page() {
    for command in commands() {
        let page = installed(&format!("share/man/man1/kpack-{command}.1.gz"));
        let mut text = String::new();
        let compressed = File::open(&page).unwrap_or_else(|error| panic!("{page:?}: {error}"));
        GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
        let synopsis = format!("\\fBkpack {command}\\fR");
        assert!(text.contains(&synopsis), "{text}");
        let title = format!(".TH KPACK\\-{} 1 \"\" \"kpack ", command.to_uppercase());
        assert!(text.replace("\\-", "-").contains(&title.replace("\\-", "-")), "{text}");
        for section in ["ENVIRONMENT", "SEE ALSO"] {
            assert!(
                text.contains(&format!("\n.SH \"{section}\""))
                    || text.contains(&format!("\n.SH {section}")),
                "{text}"
            );
        }
    }
    for (page, parts) in [
        ("split", &["EXIT STATUS", "EXAMPLES", "<DIR>", "<NAME>"][..]),
        ("wheel-split", &["SOURCE_DATE_EPOCH"]),
        ("artifact-split", &["EXIT STATUS", "EXAMPLES"]),
    ] {
        let page = installed(&format!("share/man/man1/kpack-{page}.1.gz"));
        let mut text = String::new();
        GzDecoder::new(File::open(page).unwrap()).read_to_string(&mut text).unwrap();
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
    }
    assert!(installed("share/man/man1/kpack.1.gz").exists());
}

#[test]
fn bash_completes_each_command() {
    if !require::tool("bash") {
        return;
    }
    let script = "source \"$1\"; COMP_WORDS=(kpack \"$2\") COMP_CWORD=1; \
                  _kpack kpack \"$2\" kpack; echo \"${COMPREPLY[@]}\"";
    for command in commands() {
        let begun = &command[..command.len() - 1];
        Run::of(
            Command::new("bash")
                .args(["-euc", script, "bash"])
                .arg(installed("share/bash-completion/completions/kpack"))
                .arg(begun),
        )
        .succeeds()
        .says(&command);
    }
}

#[test]
fn fish_completes_each_command() {
    if !require::tool("fish") {
        return;
    }
    let script = "source $argv[1]; complete --do-complete \"kpack $argv[2]\"";
    for command in commands() {
        let begun = &command[..command.len() - 1];
        Run::of(
            Command::new("fish")
                .args(["--no-config", "--command", script])
                .arg(installed("share/fish/vendor_completions.d/kpack.fish"))
                .arg(begun),
        )
        .succeeds()
        .says(&command);
    }
}

#[test]
fn zsh_loads_its_completions() {
    if !require::tool("zsh") {
        return;
    }
    let script = "fpath=($1 $fpath); autoload -Uz compinit; compinit -D -u; \
                  echo $_comps[kpack]; autoload +X _kpack; functions _kpack";
    for directory in ["vendor-completions", "site-functions"] {
        let mut zsh = Command::new("zsh");
        zsh.args(["-f", "-c", script, "zsh"]);
        let mut run =
            Run::of(zsh.arg(installed("share/zsh").join(directory))).succeeds().says("_kpack");
        for command in commands() {
            run = run.says(&format!("({command})"));
        }
    }
}

#[test]
fn what_is_linked_into_a_binary_has_its_licence_beside_it() {
    for (package, linked) in [
        ("kpack", ["zstd-sys", "libsqlite3-sys"]),
        ("librocm-kpack0", ["zstd-sys", "parking_lot"]),
        ("librocm-kpack-dev", ["zstd-sys", "parking_lot"]),
    ] {
        let documents = installed("share/doc").join(package);
        let text = fs::read_to_string(documents.join("copyright")).unwrap();
        for linked in linked {
            let heading = format!("\n{linked} ");
            assert!(text.contains(&heading), "{package} lacks {linked}");
        }
        // A macro of the compiler, and a crate for other systems.
        for not_linked in ["serde_derive", "windows-sys"] {
            assert!(!text.contains(not_linked), "{package} has {not_linked}");
        }
    }
}
