//! Archives for variants of a processor (`gfx90a:xnack+`) that lack code which the archive for plain code (`gfx90a`)
//! has: ROCm 7.13 and 7.14 ask the first archive that exists, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::names::KernelName;

use crate::words::{counted, list};
use crate::{Error, Finding, Severity, ids};

/// A module's archives, by target.
type TargetArchives = BTreeMap<TargetId, ArchiveWriter<File>>;

/// The names of kernels, by target.
pub type Kernels = BTreeMap<TargetId, BTreeSet<String>>;

/// The less specific targets that the GPUs of `target` run code for, best first.
pub fn less_specific(target: &TargetId) -> impl Iterator<Item = TargetId> + use<> {
    target.compatible().into_iter().skip(1)
}

/// Copies the code that each archive for a variant lacks from those for less specific targets.
///
/// # Errors
/// [`Error::Io`] for their scratch files in the directory `scratch`.
pub fn complete(archives: &mut TargetArchives, scratch: &Path) -> Result<(), Error> {
    for target in Vec::from_iter(archives.keys().cloned()) {
        let Some(mut variant) = archives.remove(&target) else {
            continue;
        };
        for plain in less_specific(&target) {
            if let Some(plain) = archives.get_mut(&plain) {
                let completed = variant.complete_from(plain);
                completed.map_err(|error| Error::archive(scratch, "write into", error))?;
            }
        }
        archives.insert(target, variant);
    }
    Ok(())
}

/// A warning for each binary with code in an archive for less specific targets, if there is an archive for a variant
/// that lacks it, with what to do while there are the originals. `others` are the kernels of the module's other binaries, in
/// archives that exist. `path` is that of a binary, by its name in the prefix.
pub fn warnings(
    archives: &TargetArchives,
    others: &Kernels,
    path: impl Fn(&str) -> PathBuf,
) -> Vec<Finding> {
    let mut kernels: BTreeMap<&TargetId, BTreeSet<&str>> = BTreeMap::new();
    for (target, archive) in archives {
        kernels.entry(target).or_default().extend(archive.kernels());
    }
    for (target, others) in others {
        kernels.entry(target).or_default().extend(others.iter().map(String::as_str));
    }
    // By binary: the variants, and the kernels that one of them lacks.
    let mut lacking: BTreeMap<&str, (BTreeSet<&TargetId>, BTreeSet<&str>)> = BTreeMap::new();
    for (target, own) in &kernels {
        for plain in less_specific(target).filter_map(|plain| kernels.get(&plain)) {
            for kernel in plain.difference(own) {
                let binary = KernelName::parse(kernel).binary;
                let (variants, absent) = lacking.entry(binary).or_default();
                variants.insert(target);
                absent.insert(kernel);
            }
        }
    }
    let warnings = lacking.into_iter().map(|(binary, (variants, absent))| {
        let text = format!(
            "the code of {} is only in the archives for less specific targets than {}; ROCm 7.13 and 7.14 do not look there \
             if there is an archive for the GPU's variant",
            counted(absent.len(), "wrapper"),
            list(variants),
        );
        let help = "split the originals of all binaries of the module in one run with `--complete-variants`";
        Finding::new(Severity::Warning, ids::INCOMPLETE_VARIANT, path(binary), text).with_help(help)
    });
    warnings.collect()
}
