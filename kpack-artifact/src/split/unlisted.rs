//! What is in an artifact directory and in none of its prefixes. It is not installed, and nobody
//! knows what it is for, so it is copied as it is.

use std::path::Path;

use super::report::Report;
use crate::manifest_txt;
use crate::tree::Tree;
use kpack_core::platform::FileTypeExt;
use kpack_core::{Error, ids};
use kpack_split::input::or_refused;
use kpack_tree::{Class, DatabaseSelection, Entry, Node, Only, Parsed, Walk};

/// Adds what is in no prefix to the entries of `tree`, with an empty prefix.
///
/// # Errors
/// [`Error::Refused`] for what cannot be copied: a pipe, a socket, a device.
pub(super) fn add(tree: &mut Tree, is_generic: bool, report: &mut Report) -> Result<(), Error> {
    let root = &tree.root.clone();
    let (databases, parsed) = (&DatabaseSelection::default(), Parsed::default());
    let walk = Walk { prefix: root, databases, parsed, only: Only::All };
    let mut entries = Vec::new();
    for found in &tree.unlisted {
        let kind = found.file_type();
        if kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
            let reason = "not a file, directory or symbolic link, and in no prefix; remove it";
            return Err(Error::rejected(ids::NOT_A_FILE, found.path(), reason));
        }
        match or_refused(walk.entry(found))? {
            Ok(read) => entries.push(read.entry),
            // It is not installed, so its damage does not matter.
            Err(read) => {
                let text = format!("in no prefix, and damaged: {}", read.text);
                report.note(read.id, read.file(), text);
                entries.push(walk.unread(found)?.entry);
            }
        }
    }
    let listed = manifest_txt::FILE_NAME;
    for (top, files) in tops(&entries) {
        let text = match files {
            None => format!("is in no prefix that {listed} lists"),
            Some(1) => format!("has a file that is in no prefix that {listed} lists"),
            Some(files) => format!("has {files} files that are in no prefix that {listed} lists"),
        };
        let to = if is_generic {
            "; copied unchanged to the generic artifact"
        } else {
            "; copied unchanged"
        };
        report.warn(ids::IN_NO_PREFIX, root.join(top), text + to);
    }
    for entry in &mut entries {
        (entry.class, entry.library) = (in_no_prefix(&entry.class).into(), None);
        entry.binary = None;
    }
    tree.add("", entries.into());
    Ok(())
}

/// The topmost entries with files in them, and for a directory, how many.
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

/// What looks architecture-specific is in no known place here, and stays generic.
fn in_no_prefix(class: &Class) -> Class {
    let (device_code, reason) = match class {
        Class::Fat => (true, "a fat binary".to_owned()),
        Class::Target { target, database } => (true, format!("for {target} ({database})")),
        Class::Unknown { device_code, reason, .. } => (*device_code, reason.clone()),
        Class::Host | Class::Split => return class.clone(),
    };
    Class::Unknown { target: None, device_code, reason: reason + " in no prefix" }
}
