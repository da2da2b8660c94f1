//! `kpack list`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::output::{self, Text, size};
use super::print::print;
use super::show::{self, offload_images, totals};
use crate::inspect::{self, Content};
use kpack_core::Error;

/// List the kernels of archives
///
/// For a file with images for other offloading runtimes, such as OpenMP's, lists the images. Shows other files, such as
/// libraries, and directories, as `kpack show` does.
///
/// A kernel is named after the path of its binary in the install prefix and the index of its wrapper:
/// lib/libvec.so#0. Kernels with identical code objects share one stored copy.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Archives
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut code = ExitCode::SUCCESS;
    for file in &arguments.files {
        let own = list(file)?;
        if own != ExitCode::SUCCESS {
            code = own;
        }
    }
    Ok(code)
}

fn list(path: &Path) -> Result<ExitCode, Error> {
    if path.is_dir() {
        return show::show(path);
    }
    let inspection = inspect::inspect(path)?;
    if !inspection.images.is_empty() {
        let mut text = Text::default();
        if print().json {
            output::json(&inspection)?;
        } else {
            offload_images(&inspection, &mut text);
            text.write()?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let Content::Archive(archive) = &inspection.content else {
        return show::file(&inspection);
    };
    if print().json {
        output::json(archive)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = archive.entries.iter().map(|entry| {
        let stored = match entry.shared_by {
            0 | 1 => "once".to_owned(),
            kernels => format!("shared by {kernels}"),
        };
        vec![
            entry.name.clone(),
            entry.target.clone(),
            size(entry.original_size),
            size(entry.stored_size),
            stored,
        ]
    });
    let mut text = Text::default();
    text.table(0, &["kernel", "target", ">size", ">stored", "how"], rows);
    text.line(format_args!(
        "{}, {}: {}",
        archive.group_name,
        archive.targets.join(", "),
        totals(archive),
    ));
    text.write()?;
    Ok(ExitCode::SUCCESS)
}
