//! Removes device code for all but chosen GPUs from a file. What is left is a file of the same kind, for the same
//! runtimes: no marker, no archive.
//!
//! [`plan`] says what becomes of one file, and [`TrimPlan::apply`] writes it under a hidden name, reads it back,
//! and renames it.

mod bundle;
mod file;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

use kpack_core::Error;
use kpack_core::publish::scratch_file;
use kpack_format::offload_bundle::{Bundle, Entry};
use kpack_format::{Delivery, TargetId};

pub use file::{NoCode, Trim, TrimDestination, TrimPlan, WrittenFile, link_again, plan};

/// Where plans keep code that was compressed again.
#[derive(Debug, Clone, Copy)]
pub struct Scratch<'a> {
    /// The directory of the nameless files.
    pub directory: &'a Path,
    /// Whether such plans are only printed: then they keep no code, and cannot be applied. What does not fit into memory needs
    /// files all the same.
    pub only_measured: bool,
}

impl Scratch<'_> {
    fn file(self) -> Result<File, Error> {
        scratch_file(self.directory).map_err(|error| match error {
            Error::Io { source, .. } => self.failed(source),
            error => error,
        })
    }

    /// Why it cannot be used, and what to do.
    fn failed(self, error: io::Error) -> Error {
        let advice = match self.only_measured {
            true => "free some space there, or set TMPDIR to another directory",
            false => "free some space there, and check that you may write there",
        };
        let error = io::Error::new(error.kind(), format!("{error}; {advice}"));
        Error::io(self.directory, "write a scratch file in", error)
    }
}

/// Which code stays.
#[derive(Debug, Clone)]
pub struct Keep {
    /// The GPUs. One without features stands for all of its variants.
    pub gpus: Vec<TargetId>,
    /// Whether SPIR-V stays that none of the GPUs needs.
    pub spirv: bool,
    /// Whether the hash in the header of each compressed bundle is compared, also of those of which nothing goes, which
    /// takes about twice as long as decompressing them. That of a bundle that is compressed again always is.
    pub check: bool,
}

impl Keep {
    /// Whether what is for `found` stays, if nothing else is known: by the name of a file.
    pub fn matches(&self, found: &TargetId) -> bool {
        self.gpus.iter().any(|gpu| gpu.needs(found, Delivery::AnyBundle))
    }

    /// Those of the targets `there` are, of one kernel, whose code stays: what any HIP runtime may take for a GPU, and
    /// SPIR-V where a GPU has no code.
    pub fn stays(&self, there: &[TargetId]) -> BTreeSet<TargetId> {
        let taken = self.gpus.iter().flat_map(|gpu| gpu.taken(there, Delivery::AnyBundle));
        let mut stays = BTreeSet::from_iter(taken.cloned());
        let lacks_code = |gpu: &TargetId| gpu.lacks_code(there, Delivery::AnyBundle);
        if self.spirv || self.gpus.iter().any(lacks_code) {
            stays.extend(there.iter().filter(|target| target.is_spirv()).cloned());
        }
        stays
    }

    /// Whether each entry of a bundle stays. What has no target is for the host.
    fn entries(&self, bundle: &Bundle) -> Vec<bool> {
        let there = Vec::from_iter(
            bundle
                .entries
                .iter()
                .filter(|entry| entry.size > 0)
                .filter_map(|entry| entry.id.target().cloned()),
        );
        let stays = self.stays(&there);
        let stay = |entry: &Entry| entry.id.target().is_none_or(|target| stays.contains(target));
        bundle.entries.iter().map(stay).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stays(gpus: &[&str], spirv: bool, there: &[&str]) -> Vec<String> {
        let ids = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
        let keep = Keep { gpus: ids(gpus), spirv, check: false };
        let there: Vec<TargetId> = ids(there);
        keep.stays(&there).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn code_stays_that_a_runtime_may_take_for_a_gpu() {
        let there = ["gfx90a:xnack+", "gfx90a:xnack-", "gfx942", "gfx9-4-generic", "amdgcnspirv"];
        assert_eq!(stays(&["gfx942"], false, &there), ["gfx942"]);
        assert_eq!(stays(&["gfx942"], true, &there), ["amdgcnspirv", "gfx942"]);
        assert_eq!(stays(&["gfx90a"], false, &there), ["gfx90a:xnack-", "gfx90a:xnack+"]);
        assert_eq!(stays(&["gfx90a:xnack+"], false, &there), ["gfx90a:xnack+"]);
        // No code of its own: generic code, and where there is none, SPIR-V.
        assert_eq!(stays(&["gfx950"], false, &there), ["gfx9-4-generic"]);
        assert_eq!(stays(&["gfx1100"], false, &there), ["amdgcnspirv"]);
        assert_eq!(stays(&["gfx1100", "gfx942"], false, &there), ["amdgcnspirv", "gfx942"]);
        assert_eq!(stays(&["gfx1100"], false, &there[..4]), [""; 0]);
    }

    #[test]
    fn code_stays_for_each_variant_and_each_runtime() {
        // ROCm 6.4 alone takes generic code for gfx906, so SPIR-V stays for the others.
        let there = ["gfx906:xnack+", "gfx9-generic", "amdgcnspirv"];
        let all = ["amdgcnspirv", "gfx9-generic", "gfx906:xnack+"];
        assert_eq!(stays(&["gfx906"], false, &there), all);
        assert_eq!(stays(&["gfx906:xnack+"], false, &there), ["gfx906:xnack+"]);
        assert_eq!(stays(&["gfx906:xnack-"], false, &there), all[..2]);
        let there = ["gfx906:xnack+", "gfx906:xnack-", "gfx9-generic", "amdgcnspirv"];
        assert_eq!(stays(&["gfx906"], false, &there), ["gfx906:xnack-", "gfx906:xnack+"]);
    }
}
