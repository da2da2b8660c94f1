//! `kpack list`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::output::{self, Text, size};
use super::print::print;
use super::show::{offload_images, totals};
use crate::inspect::{self, Content};
use kpack_core::{Error, ids};

/// List the kernels of an archive
///
/// For a file with images for other offloading runtimes, such as OpenMP's, lists the images.
///
/// A kernel is named after the path of its binary in the install prefix and the index of its wrapper:
/// lib/libvec.so#0. Kernels with identical code objects share one stored copy.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Archive
    #[arg(value_name = "FILE.kpack")]
    file: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let inspection = inspect::inspect(&arguments.file)?;
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
    let Content::Archive(archive) = inspection.content else {
        return Err(Error::rejected(
            ids::UNKNOWN_FILE,
            &arguments.file,
            "not a .kpack archive; run `kpack show` to see what it is",
        ));
    };
    if print().json {
        output::json(&archive)?;
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
        totals(&archive),
    ));
    text.write()?;
    Ok(ExitCode::SUCCESS)
}
