//! What is in an artifact directory and in none of its prefixes. It is not installed, and nobody
//! knows what it is for, so it goes to the generic artifact as it is.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::report::Report;
use crate::Error;
use crate::artifact::classify::{self, Class, Entry, Node};
use crate::artifact::manifest_txt;

/// What is in none of `prefixes`, which are there.
///
/// # Errors
/// [`Error::Refused`] for what cannot be copied: a pipe, a socket, a device.
pub(super) fn read(
    artifact: &Path,
    prefixes: &[String],
    report: &mut Report,
) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for found in manifest_txt::walk_outside(artifact, prefixes) {
        let found = found.map_err(|error| classify::walk_error(artifact, error))?;
        let kind = found.file_type();
        if kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
            let reason = "it is no file, directory or symbolic link, and in no prefix; remove it";
            return Err(Error::refused(found.path(), reason));
        }
        match classify::classify_entry(artifact, &found) {
            Ok(read) => entries.extend(read.entries),
            // It is not installed. Whether it is whole is no matter here.
            Err(Error::Refused { path, reason }) => {
                let metadata = found
                    .metadata()
                    .map_err(|e| classify::walk_error(artifact, e))?;
                report.note(path, format!("in no prefix, and not whole: {reason}"));
                entries.push(Entry {
                    path: found
                        .path()
                        .strip_prefix(artifact)
                        .unwrap_or(found.path())
                        .to_owned(),
                    node: Node::of_file(&metadata),
                    class: Class::Host,
                });
            }
            Err(error) => return Err(error),
        }
    }
    classify::mark_empty(&mut entries);
    for entry in &mut entries {
        let class = std::mem::replace(&mut entry.class, Class::Host);
        entry.class = unknown(class);
    }
    for (top, files) in tops(&entries) {
        let listed = manifest_txt::FILE_NAME;
        let text = match files {
            None => format!("is in no prefix that {listed} lists"),
            Some(1) => format!("has a file that is in no prefix that {listed} lists"),
            Some(files) => format!("has {files} files that are in no prefix that {listed} lists"),
        };
        let text = format!("{text}; copied unchanged to the generic artifact");
        report.warn(artifact.join(top), text);
    }
    Ok(entries)
}

/// The topmost strays with files in them, and for a directory, how many.
fn tops(entries: &[Entry]) -> Vec<(&Path, Option<u64>)> {
    let mut tops: Vec<(&Path, Option<u64>)> = Vec::new();
    for entry in entries {
        let is_directory = matches!(entry.node, Node::Directory { .. });
        match tops.last_mut() {
            Some((top, files)) if entry.path.starts_with(&top) => {
                *files = files.map(|files| files + u64::from(!is_directory));
            }
            _ => tops.push((&entry.path, is_directory.then_some(0))),
        }
    }
    tops.retain(|(_, files)| *files != Some(0));
    tops
}

/// A stray that is specific to an architecture is in no known place, and stays in no other.
fn unknown(class: Class) -> Class {
    let (device_code, reason) = match class {
        Class::Fat => (true, "it is a fat binary".to_owned()),
        Class::Target { target, database } => (true, format!("it is of {target} ({database})")),
        Class::Unknown {
            device_code,
            reason,
            ..
        } => (device_code, reason),
        Class::Host | Class::Split => return class,
    };
    Class::Unknown {
        target: None,
        device_code,
        reason: reason + " in no prefix",
    }
}
