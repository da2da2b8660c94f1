//! Finds archives that an earlier split wrote for another module, and that binaries no longer load.

use std::collections::BTreeSet;
use std::io;

use kpack_core::words::list;
use kpack_format::names::{Group, KernelName, is_archive};

use super::binary::InstallBinary;
use crate::input::{self, KpackPath, or_refused};
use crate::publish::Directory;
use crate::report::Report;
use crate::{Error, ids};

/// An archive of another module.
struct Former {
    /// Its file name, in quotes.
    name: String,
    /// The binaries whose kernels it has.
    binaries: BTreeSet<String>,
}

/// Warns of archives of other modules with code of the binaries `fat`: a new build of a binary replaced the one that
/// loaded them. They stay, because another package may own them.
pub(super) fn warn_of_archives(
    fat: &[&InstallBinary],
    kpacks: &KpackPath,
    group: &Group,
    report: &mut Report,
) -> Result<(), Error> {
    let known: BTreeSet<&str> = fat.iter().map(|binary| &*binary.located.name).collect();
    let archives = former(kpacks, group, &known)?;
    for binary in fat {
        let own = archives.iter().filter(|former| former.binaries.contains(&binary.located.name));
        let (unused, shared): (Vec<&Former>, Vec<&Former>) =
            own.partition(|former| former.binaries.iter().all(|name| known.contains(&**name)));
        let advice =
            [(unused, "remove them"), (shared, "keep them for the code of other binaries")];
        for (archives, advice) in advice.into_iter().filter(|(archives, _)| !archives.is_empty()) {
            let names = list(archives.iter().map(|former| &former.name));
            let text = format!(
                "an earlier split wrote its code into {names}, which it will not load any more, because the module is now \
                 `{group}`; {advice}"
            );
            report.warn(ids::UNUSED_KERNELS, &binary.located.path, text);
        }
    }
    Ok(())
}

/// The archives of other modules than `group` with code of the `known` binaries.
fn former(kpacks: &KpackPath, group: &Group, known: &BTreeSet<&str>) -> Result<Vec<Former>, Error> {
    let mut found = Vec::new();
    if known.is_empty() || !kpacks.path.is_dir() {
        return Ok(found);
    }
    let mut names = Directory::open(&kpacks.path)?.names()?;
    names.sort();
    for name in names {
        let path = kpacks.path.join(&name);
        if !is_archive(&path) || !path.is_file() {
            continue;
        }
        let archive = match or_refused(input::open_archive(&path)) {
            Ok(Ok(archive)) => archive,
            // Damage to others' archives does not matter here.
            Ok(Err(_)) => continue,
            // Another run has just removed it.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let toc = archive.toc();
        if toc.group_name == **group {
            continue;
        }
        let binaries = toc.kernels.keys().filter_map(|kernel| KernelName::binary_of(kernel));
        let binaries: BTreeSet<String> = binaries.map(str::to_owned).collect();
        if binaries.iter().any(|name| known.contains(&**name)) {
            found.push(Former { name: format!("`{}`", name.display()), binaries });
        }
    }
    Ok(found)
}
