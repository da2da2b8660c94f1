//! The device code of one module.

use std::collections::BTreeSet;
use std::iter;
use std::path::Path;

use kpack_core::words::{list, list_some};
use kpack_core::{Error, Reason, files, ids};
use kpack_format::code_object;
use kpack_format::offload_bundle::{self, HOST_ENTRY, Layout, PLAIN_MAGIC};
use kpack_format::{Delivery, TargetId};

use super::names::ModuleName;
use crate::object_file::is_bitcode;

/// The type of a linked file in the ELF header, and where it is.
const ET_DYN: u8 = 3;
const TYPE_AT: usize = 16;

/// The most kernels in a warning.
const MOST_KERNELS: usize = 5;

/// Why a module has no code.
pub(super) const WITHOUT_CODE: &str =
    "`file_for` limits it to targets that this build does not have";

/// A code object.
pub(super) struct Part {
    /// Where it comes from, for messages.
    origin: String,
    target: TargetId,
    code: Vec<u8>,
    kernels: BTreeSet<String>,
}

impl Part {
    /// What the file or source `origin` has for `target`.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is no linked code object, or for another target.
    pub(super) fn new(origin: String, target: &TargetId, code: Vec<u8>) -> Result<Self, Error> {
        let refuse = |reason: String| {
            Err(Error::rejected(ids::DAMAGED_CODE_OBJECT, Path::new(&origin), Reason::from(reason)))
        };
        if code.starts_with(PLAIN_MAGIC) {
            return refuse(
                "an offload bundle (expected a code object); add it with `bundle`".into(),
            );
        }
        if is_bitcode(&code) {
            return Err(Error::rejected(
                ids::UNSUPPORTED_BINARY,
                Path::new(&origin),
                "LLVM bitcode, as -fgpu-rdc, -flto and -emit-llvm make it (expected a linked code object); compile \
                 without that option, because a module has no device link",
            ));
        }
        if let Err(problem) = files::check_code_object(&code, target) {
            return refuse(format!(
                "{problem}; add an AMDGPU ELF file that was linked for {target}"
            ));
        }
        if code.get(TYPE_AT) != Some(&ET_DYN) {
            return refuse(
                "a code object that is not linked; link it (`ld.lld -shared`), or compile without \
                 -fgpu-rdc"
                    .to_owned(),
            );
        }
        let Some(kernels) = code_object::kernel_names(&code) else {
            return refuse(
                "the code object does not say which kernels it has (expected the metadata of code \
                 object version 3 or later); compile it for amdgcn-amd-amdhsa"
                    .to_owned(),
            );
        };
        let kernels = kernels.into_iter().map(str::to_owned).collect();
        Ok(Self { origin, target: target.clone(), code, kernels })
    }
}

/// One module with its code for all targets.
pub(super) struct Contents {
    pub(super) name: ModuleName,
    parts: Vec<Part>,
}

impl Contents {
    pub(super) fn new(name: ModuleName) -> Self {
        Self { name, parts: Vec::new() }
    }

    /// Adds code for a target that has none yet.
    pub(super) fn add(&mut self, part: Part) -> Result<(), Error> {
        if let Some(other) = self.parts.iter().find(|other| other.target == part.target) {
            return Err(Error::usage(format!(
                "module `{}` has two code objects for {}, of {} and {}; remove one of them",
                self.name.as_str(),
                part.target,
                other.origin,
                part.origin
            )));
        }
        self.parts.push(part);
        Ok(())
    }

    /// Whether it has code for any target of this build. `file_for` may limit its source to others.
    pub(super) fn has_code(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The name of its bundle.
    pub(super) fn file_name(&self) -> String {
        format!("{}.hipfb", self.name.as_str())
    }

    /// An uncompressed bundle, as clang writes them.
    pub(super) fn bundle(&self) -> Vec<u8> {
        let entries = Vec::from_iter(self.entries());
        offload_bundle::plain(entries.iter().map(|(id, code)| (&id[..], *code)))
    }

    /// Size of the bundle in bytes.
    pub(super) fn bundle_size(&self) -> u64 {
        let sizes = self.entries().map(|(id, code)| (id, code.len() as u64));
        Layout::new(&Vec::from_iter(sizes)).size
    }

    /// The IDs of the bundle's entries, and their code.
    fn entries(&self) -> impl Iterator<Item = (String, &[u8])> {
        let id = |part: &Part| offload_bundle::code_object_id(&part.target.to_string());
        let own = self.parts.iter().map(move |part| (id(part), &part.code[..]));
        iter::once((HOST_ENTRY.to_owned(), &[][..])).chain(own)
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = &TargetId> {
        self.parts.iter().map(|part| &part.target)
    }

    /// The kernels that it has for at least one target.
    pub(super) fn kernels(&self) -> BTreeSet<&str> {
        self.parts.iter().flat_map(|part| &part.kernels).map(|name| &name[..]).collect()
    }

    /// What the user should know of targets of the build and of kernels that are missing. `targets` are those that it is
    /// expected to have code for.
    pub(super) fn warnings(&self, targets: &[TargetId]) -> Vec<String> {
        let (name, all) = (self.name.as_str(), self.kernels());
        if !self.has_code() {
            return vec![format!("module `{name}` has no code: {WITHOUT_CODE}")];
        }
        let is_there = |target: &TargetId| {
            self.targets().any(|there| there.may_be_taken_for(target, Delivery::Bundle))
        };
        let lacking = Vec::from_iter(targets.iter().filter(|target| !is_there(target)));
        let lacking = (!lacking.is_empty()).then(|| {
            format!(
                "module `{name}` has code for {}, but not for {}; add that with `code_object` or `bundle`",
                list(self.targets()),
                list(lacking)
            )
        });
        if all.is_empty() {
            let without_kernels = format!("module `{name}` has no kernels");
            return lacking.into_iter().chain([without_kernels]).collect();
        }
        let missing = self.parts.iter().filter_map(|part| {
            let missing: Vec<&str> =
                all.iter().copied().filter(|kernel| !part.kernels.contains(*kernel)).collect();
            let kernels = match &missing[..] {
                [] => return None,
                [one] => format!("the kernel `{one}`"),
                several => format!("the kernels {}", list_some(several, MOST_KERNELS)),
            };
            Some(format!(
                "module `{name}` has {kernels} for other targets, but not for {} ({})",
                part.target, part.origin
            ))
        });
        lacking.into_iter().chain(missing).collect()
    }
}
