//! Copies a file's owner, mode and extended attributes.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

/// Signatures of a file's content; they do not fit the new content.
const OF_CONTENT: [&str; 2] = ["security.ima", "security.evm"];

/// Copies owner, mode and extended attributes from `old` to `new`. Returns a message for each that
/// could not be kept.
pub(crate) fn keep(new: &File, old: &File) -> io::Result<Vec<String>> {
    let (own, wanted) = (new.metadata()?, old.metadata()?);
    let mut lost = Vec::new();
    // Only root may give files away. Set owners before the mode, because chown clears set-user-ID.
    let user = own.uid() == wanted.uid() || fchown(new, Some(wanted.uid()), None).is_ok();
    let group = own.gid() == wanted.gid() || fchown(new, None, Some(wanted.gid())).is_ok();
    let mut mode = wanted.mode() & 0o7777;
    for (kept, what, id, bit, called) in [
        (user, "owner", wanted.uid(), 0o4000, "set-user-ID"),
        (group, "group", wanted.gid(), 0o2000, "set-group-ID"),
    ] {
        if kept {
            continue;
        }
        // It would run with the rights of a different user or group than before.
        let dropped = match mode & bit {
            0 => String::new(),
            _ => format!("; its {called} bit is dropped"),
        };
        mode &= !bit;
        lost.push(format!("cannot keep its {what} {id}{dropped}"));
    }
    new.set_permissions(Permissions::from_mode(mode))?;
    extended(new, old, &mut lost);
    Ok(lost)
}

/// Extended attributes: file capabilities, labels of SELinux, access control lists, what users set.
fn extended(new: &File, old: &File, lost: &mut Vec<String>) {
    let names = match list(old) {
        Ok(names) => names,
        // Not every file system supports this.
        Err(Errno::NOTSUP | Errno::NOSYS) => return,
        Err(error) => return lost.push(format!("cannot read its extended attributes: {error}")),
    };
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let shown = String::from_utf8_lossy(name).into_owned();
        if OF_CONTENT.contains(&shown.as_str()) {
            lost.push(format!(
                "cannot keep its extended attribute `{shown}`, which signs the old content"
            ));
            continue;
        }
        let kept = value(old, name).and_then(|wanted| {
            // For example, a label that every file here gets automatically.
            if value(new, name).is_ok_and(|own| own == wanted) {
                return Ok(());
            }
            fsetxattr(new, name, &wanted, XattrFlags::empty())
        });
        match kept {
            // It was removed meanwhile.
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => {
                lost.push(format!("cannot keep its extended attribute `{shown}`: {error}"))
            }
        }
    }
}

fn list(file: &File) -> Result<Vec<u8>, Errno> {
    // At most 64 KiB (Linux, "xattr(7)").
    let mut names = Vec::with_capacity(64 << 10);
    flistxattr(file, rustix::buffer::spare_capacity(&mut names))?;
    Ok(names)
}

fn value(file: &File, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::with_capacity(64 << 10);
    fgetxattr(file, name, rustix::buffer::spare_capacity(&mut bytes))?;
    Ok(bytes)
}
