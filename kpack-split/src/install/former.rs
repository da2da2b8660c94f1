//! What earlier splits left in the directory of the archives: archives of other modules that binaries no longer load,
//! and the code of other binaries of the module.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;

use kpack_core::words::list;
use kpack_format::archive::Toc;
use kpack_format::names::{Group, KernelName, is_archive};

use super::binary::InstallBinary;
use crate::input::{self, KpackPath, or_refused};
use crate::publish::Directory;
use crate::report::Report;
use crate::split::variants::Kernels;
use crate::{Error, ids};

/// An archive of another module.
struct OtherArchive {
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
        let (unused, shared): (Vec<&OtherArchive>, Vec<&OtherArchive>) =
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
fn former(
    kpacks: &KpackPath,
    group: &Group,
    known: &BTreeSet<&str>,
) -> Result<Vec<OtherArchive>, Error> {
    let mut found = Vec::new();
    if known.is_empty() {
        return Ok(found);
    }
    for name in names(kpacks)? {
        let Some(toc) = toc(kpacks, &name)?.filter(|toc| toc.group_name != **group) else {
            continue;
        };
        let binaries: BTreeSet<String> = toc
            .kernels
            .keys()
            .filter_map(|kernel| KernelName::binary_of(kernel))
            .map(str::to_owned)
            .collect();
        if binaries.iter().any(|name| known.contains(&**name)) {
            found.push(OtherArchive { name: format!("`{}`", name.display()), binaries });
        }
    }
    Ok(found)
}

/// The kernels of other binaries of the module `group` than `fat` in its archives, if there are archives for variants of
/// processors. Others need no comparison.
pub(super) fn kernels_of_others(
    fat: &[&InstallBinary],
    kpacks: &KpackPath,
    group: &Group,
) -> Result<Kernels, Error> {
    let mut found = Kernels::new();
    let targets = fat.iter().flat_map(|binary| binary.targets());
    let mut is_variant = targets.map(|target| target.features().next().is_some());
    let archives = BTreeMap::from_iter(
        names(kpacks)?
            .into_iter()
            .filter_map(|name| Some((group.target_of(name.to_str()?)?, name))),
    );
    if !archives.keys().any(|target| target.features().next().is_some()) && !is_variant.any(|is| is)
    {
        return Ok(found);
    }
    for (target, name) in archives {
        let Some(toc) = toc(kpacks, &name)?.filter(|toc| toc.group_name == **group) else {
            continue;
        };
        let is_other = |kernel: &&String| {
            let binary = KernelName::parse(kernel).binary;
            !fat.iter().any(|fat| fat.located.name == binary)
        };
        let others = BTreeSet::from_iter(toc.kernels.keys().filter(is_other).cloned());
        if !others.is_empty() {
            found.insert(target, others);
        }
    }
    Ok(found)
}

/// The names in the directory of the archives, sorted.
fn names(kpacks: &KpackPath) -> Result<Vec<OsString>, Error> {
    if !kpacks.path.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Directory::open(&kpacks.path)?.names()?;
    names.sort();
    Ok(names)
}

/// The table of an archive; `None` for what is none. Damage is reported where an archive is used.
fn toc(kpacks: &KpackPath, name: &OsStr) -> Result<Option<Toc>, Error> {
    let path = kpacks.path.join(name);
    if !is_archive(&path) || !path.is_file() {
        return Ok(None);
    }
    match or_refused(input::open_archive(&path)) {
        Ok(archive) => Ok(archive.ok().map(|archive| archive.toc().clone())),
        // Another run has just removed it.
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
