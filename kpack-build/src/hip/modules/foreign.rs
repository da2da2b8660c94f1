//! Device code that others compiled: rustc for `amdgcn-amd-amdhsa`, Triton, an assembler.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use kpack_core::{Error, Reason, ids, shown};
use kpack_format::TargetId;
use kpack_format::archive::ArchiveError;
use kpack_format::offload_bundle::{Bundle, BundleError};
use kpack_format::unstable::spelling;

use super::Said;
use super::contents::Part;

/// A file with device code for a module.
#[derive(Debug, Clone)]
pub(in super::super) struct Foreign {
    /// The module.
    module: String,
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// A code object for a target, as the build script spells it.
    CodeObject(String),
    Bundle,
}

impl Foreign {
    pub(in super::super) fn code_object(module: String, target: String, path: &Path) -> Self {
        Self { module, path: path.to_owned(), kind: Kind::CodeObject(target) }
    }

    pub(in super::super) fn bundle(module: String, path: &Path) -> Self {
        Self { module, path: path.to_owned(), kind: Kind::Bundle }
    }

    /// The name of the module, as the build script spells it.
    pub(super) fn name(&self) -> &str {
        &self.module
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The code objects in the file. A relative path is one in `package`.
    pub(super) fn read(&self, package: &Path, said: &mut Said) -> Result<Vec<Part>, Error> {
        let path = package.join(&self.path);
        let bytes = fs::read(&path).map_err(|e| Error::io(&path, "read", e))?;
        let origin = shown(&path).to_string();
        match &self.kind {
            Kind::CodeObject(target) => {
                let target = spelling::read_target(target);
                let target = target.map_err(|error| Error::usage(error.to_string()))?;
                Ok(vec![Part::new(origin, &target, bytes)?])
            }
            Kind::Bundle => self.read_bundle(&path, &origin, &bytes, said),
        }
    }

    fn read_bundle(
        &self,
        path: &Path,
        origin: &str,
        bytes: &[u8],
        said: &mut Said,
    ) -> Result<Vec<Part>, Error> {
        let damaged = |error: BundleError| match error {
            BundleError::Io(error) => Error::io(path, "read", error),
            error => {
                let is_compressed =
                    error.to_string().contains(&ArchiveError::NoCompression.to_string());
                let advice = if is_compressed {
                    "; add the build dependency `kpack-format`, whose default feature is that"
                } else {
                    "; add a whole bundle, as clang writes it"
                };
                Error::rejected(ids::DAMAGED_BUNDLE, path, Reason::from(error).then(advice))
            }
        };
        let mut source = Cursor::new(bytes);
        let bundle = Bundle::read(&mut source, bytes.len() as u64).map_err(damaged)?;
        source.set_position(0);
        let is_for_gpu = |target: &TargetId| !target.is_spirv();
        let mut parts = Vec::new();
        for code in bundle.code_objects(source, is_for_gpu).map_err(damaged)? {
            let code = code.map_err(damaged)?;
            parts.push(Part::new(origin.to_owned(), &code.target, code.bytes)?);
        }
        if parts.is_empty() {
            return Err(Error::rejected(
                ids::NO_DEVICE_CODE,
                path,
                "the bundle has no code for a GPU; add one that was compiled for GPU targets",
            ));
        }
        if bundle.has_spirv() {
            said.warnings.push(format!(
                "module `{}` leaves out the SPIR-V in {origin}, because a program loads modules for \
                 its GPU",
                self.module
            ));
        }
        Ok(parts)
    }
}
