//! What has to hold in a tree of artifacts, whoever asks: split, recombine or verify.

use std::path::Path;

use kpack_format::manifest::KpackFile;

use crate::Error;
use crate::inspect::{digest, open, open_archive};

/// In what the archive at `path` is not the one of `group` that a manifest lists as `file`; empty
/// where it is.
pub(crate) fn not_as_listed(
    path: &Path,
    group: &str,
    file: &KpackFile,
) -> Result<Vec<String>, Error> {
    let metadata = open(path)?.metadata();
    let size = metadata.map_err(|e| Error::io(path, "read", e))?.len();
    if size != file.size {
        return Ok(vec![format!("has {size} bytes; expected {}", file.size)]);
    }
    let mut reasons = Vec::new();
    if let Some(expected) = file.checksum
        && digest(path)? != expected
    {
        reasons.push("has another SHA-256 than is listed".to_owned());
    }
    let archive = match open_archive(path) {
        Ok(archive) => archive,
        Err(Error::Refused { reason, .. }) => {
            reasons.push(format!("is damaged: {reason}"));
            return Ok(reasons);
        }
        Err(error) => return Err(error),
    };
    let toc = archive.toc();
    let kernels = toc.kernels.values();
    let count: u64 = kernels.map(|targets| targets.len() as u64).sum();
    if count != file.kernel_count {
        let expected = file.kernel_count;
        reasons.push(format!("has {count} kernels; expected {expected}"));
    }
    if toc.gfx_arch_family != file.architecture {
        reasons.push(format!("is an archive for {}", toc.gfx_arch_family));
    }
    if toc.group_name != group {
        reasons.push(format!("is an archive of `{}`", toc.group_name));
    }
    Ok(reasons)
}

/// Why a code object of the archive at `path` cannot be read; `None` where all can.
pub(crate) fn unreadable(path: &Path) -> Result<Option<String>, Error> {
    let mut archive = open_archive(path)?;
    let toc = archive.toc().clone();
    for (kernel, targets) in &toc.kernels {
        for target in targets.keys() {
            if let Err(error) = archive.read(kernel, target) {
                return Ok(Some(format!(
                    "has no whole `{kernel}` for {target}: {error}"
                )));
            }
        }
    }
    Ok(None)
}
