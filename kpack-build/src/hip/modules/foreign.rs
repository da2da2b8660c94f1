//! Device code that others compiled: rustc for `amdgcn-amd-amdhsa`, Triton, an assembler.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use kpack_core::{Error, Reason, ids, shown};
use kpack_format::TargetId;
use kpack_format::archive::ArchiveError;
use kpack_format::offload_bundle::{Bundle, BundleError};
use kpack_format::unstable::spelling;

use super::contents::Part;
use crate::hip::options::DeviceFile;

/// The code objects in a file. A relative path is one in `package`.
pub(super) fn read(
    file: &DeviceFile,
    package: &Path,
    warnings: &mut Vec<String>,
) -> Result<Vec<Part>, Error> {
    let path = package.join(&file.path);
    let bytes = fs::read(&path).map_err(|e| Error::io(&path, "read", e))?;
    let origin = shown(&path).to_string();
    match &file.target {
        Some(target) => {
            let target = spelling::read_target(target);
            let target = target.map_err(|error| Error::usage(error.to_string()))?;
            if target.is_spirv() {
                return Err(Error::usage(format!(
                    "module `{}`: {origin} is for {target}, and a program loads modules for its GPU, not SPIR-V; name \
                     the target of a GPU",
                    file.module
                )));
            }
            Ok(vec![Part::new(origin, &target, bytes)?])
        }
        None => read_bundle(&file.module, &path, &origin, &bytes, warnings),
    }
}

fn read_bundle(
    module: &str,
    path: &Path,
    origin: &str,
    bytes: &[u8],
    warnings: &mut Vec<String>,
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
        warnings.push(format!(
            "module `{module}` leaves out the SPIR-V in {origin}, because a program loads \
             modules for its GPU"
        ));
    }
    Ok(parts)
}
