//! The manual pages and the completions of the helper, from its own description of its arguments.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use clap_complete::{Shell, generate_to};
use flate2::{Compression, GzBuilder};
use kpack_cli::cli;

/// The shells, and where each looks for completions of installed programs.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions"),
    (Shell::Zsh, "share/zsh/vendor-completions"),
    (Shell::Fish, "share/fish/vendor_completions.d"),
];

/// Installs them into `prefix`.
///
/// # Errors
/// A file cannot be written.
pub(super) fn install(prefix: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    clap_mangen::generate_to(cli::command(), scratch.path())?;
    for page in fs::read_dir(scratch.path())? {
        let page = page?;
        let name = page.file_name().into_string().ok();
        let name = name.context("manual pages have ASCII names")?;
        // Without a name and time of its own, the compressed page is the same each time.
        let mut compressed = GzBuilder::new().write(Vec::new(), Compression::best());
        compressed.write_all(&fs::read(page.path())?)?;
        let to = prefix.join(format!("share/man/man1/{name}.gz"));
        super::write_file(&to, &compressed.finish()?)?;
    }
    for (shell, directory) in COMPLETIONS {
        let made = generate_to(shell, &mut cli::command(), "kpack", scratch.path())?;
        let mut name = made.file_name().context("a file has a name")?;
        if shell == Shell::Bash {
            // bash-completion loads the file that has the name of the command.
            name = "kpack".as_ref();
        }
        super::copy_file(&made, &prefix.join(directory).join(name))?;
    }
    // Where zsh looks on other distributions than Debian.
    let link = prefix.join("share/zsh/site-functions/_kpack");
    super::link_file("../vendor-completions/_kpack", &link)
}
