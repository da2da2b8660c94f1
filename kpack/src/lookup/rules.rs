//! What loaders do differently, as data.

use std::fmt;

use kpack_format::CodeId;
use kpack_format::archive::Toc;
use kpack_format::marker::Marker;
use kpack_format::names::KernelName;

use super::Environment;

/// What led to a search path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The marker, from the real directory of the binary: the ordinary way.
    Marker,
    /// The marker, from the directory of a symbolic link to the binary.
    Link,
    /// `ROCM_KPACK_PATH`.
    Path,
    /// `ROCM_KPACK_PATH_PREFIX`.
    PathPrefix,
}

impl<T> Answer<T> {
    /// The same answer with another code object.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Found(found) => Answer::Found(change(found)),
            Self::OtherBuild => Answer::OtherBuild,
            Self::NoChecksums => Answer::NoChecksums,
            Self::NoKernel => Answer::NoKernel,
            Self::NoTarget => Answer::NoTarget,
        }
    }
}

impl Rule {
    /// A name for programs: `marker`, `link`, or that of the variable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Marker => "marker",
            Self::Link => "link",
            Self::Path => Environment::PATH,
            Self::PathPrefix => Environment::PATH_PREFIX,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Marker => "the marker",
            Self::Link => "a symbolic link to the binary",
            Self::Path => Environment::PATH,
            Self::PathPrefix => Environment::PATH_PREFIX,
        })
    }
}

/// How a loader looks code objects up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// Whether search paths are also relative to the directory of a symbolic link to the binary.
    pub beside_links: bool,
    /// Whether `@GFXARCH@` stands for the target in environment variables as well.
    pub expands_variables: bool,
    /// Whether an archive of another build of the binary is skipped.
    pub compares_code_ids: bool,
    /// Whether it finds archives whose names were written for the other system: `gfx90a-xnack+`.
    pub reads_other_names: bool,
    /// Whether, after an archive that has the target and lacks the kernel, others are asked.
    pub asks_every_archive: bool,
}

/// What an archive has for a kernel and a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<T> {
    /// The code object.
    Found(T),
    /// The code object of another build of the binary.
    OtherBuild,
    /// A code object without checksums, so nobody can tell whether it is of the build that the marker names.
    NoChecksums,
    /// Code for the target, but not for the kernel.
    NoKernel,
    /// No code for the target.
    NoTarget,
}

/// What a lookup asks an archive.
pub trait Listing {
    /// Whether it has, or lists, code objects for `target`.
    fn has_target(&self, target: &str) -> bool;
    /// Whether it has the code object of `kernel` for `target`.
    fn has_kernel(&self, kernel: &str, target: &str) -> bool;
    /// The ID of its device code of `binary` for `target`; `None` without checksums.
    fn code_id(&self, binary: &str, target: &str) -> Option<CodeId>;
}

impl Listing for Toc {
    fn has_target(&self, target: &str) -> bool {
        let mut of_kernels = self.kernels.values();
        self.gfx_arches.iter().any(|listed| listed == target)
            || of_kernels.any(|targets| targets.contains_key(target))
    }

    fn has_kernel(&self, kernel: &str, target: &str) -> bool {
        self.entry(kernel, target).is_ok()
    }

    fn code_id(&self, binary: &str, target: &str) -> Option<CodeId> {
        Self::code_id(self, binary, target)
    }
}

impl Rules {
    /// This crate's.
    pub const KPACK: Self = Self {
        beside_links: true,
        expands_variables: true,
        compares_code_ids: true,
        reads_other_names: true,
        asks_every_archive: true,
    };

    /// Those of ROCm's loader since August 2026 (ROCm/rocm-systems, pull request 9953).
    pub const ROCM: Self = Self {
        beside_links: false,
        expands_variables: false,
        compares_code_ids: false,
        reads_other_names: false,
        asks_every_archive: true,
    };

    /// Those of the loader of ROCm 7.13 and 7.14, which looks in the same places as [`Self::ROCM`].
    pub const ROCM_7_14: Self = Self { asks_every_archive: false, ..Self::ROCM };

    /// Asks one archive for the first of `kernels` for `target`.
    pub fn ask<'k>(
        &self,
        archive: &impl Listing,
        marker: &Marker,
        kernels: &'k [String],
        target: &str,
    ) -> Answer<&'k str> {
        if !archive.has_target(target) {
            return Answer::NoTarget;
        }
        let mut kernels = kernels.iter();
        let Some(kernel) = kernels.find(|kernel| archive.has_kernel(kernel, target)) else {
            return Answer::NoKernel;
        };
        let binary = KernelName::parse(kernel).binary;
        // The ID takes time to compute, and is useless if the marker lists none.
        if self.compares_code_ids && marker.code_ids.contains_key(target) {
            match archive.code_id(binary, target) {
                None => return Answer::NoChecksums,
                found if !marker.accepts(target, found) => return Answer::OtherBuild,
                _ => {}
            }
        }
        Answer::Found(kernel)
    }

    /// The first code object that an archive has. Targets come before archives: all archives are asked for the
    /// best target first.
    pub fn first<'t, A, T>(
        &self,
        targets: &'t [String],
        archives: impl IntoIterator<Item = A> + Clone,
        mut ask: impl FnMut(A, &'t str) -> Answer<T>,
    ) -> Option<T> {
        for target in targets {
            for archive in archives.clone() {
                match ask(archive, target) {
                    Answer::Found(found) => return Some(found),
                    Answer::NoKernel if !self.asks_every_archive => return None,
                    Answer::NoKernel
                    | Answer::OtherBuild
                    | Answer::NoChecksums
                    | Answer::NoTarget => {}
                }
            }
        }
        None
    }
}
