//! Modules of device code in Rust programs, and loading them.

mod bundle;
mod error;
mod macros;
mod wrapper;

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::LazyLock;

use kpack_format::Delivery;
use kpack_format::unstable::spelling::read_gpu;

use crate::{Cache, Request, TargetId, discover_binary_path, marker_at};

pub use error::Error;
pub use wrapper::{Bundle, Note, Wrapper};
use wrapper::{Content, Found};

/// The archives that the modules of this process were loaded from.
static CACHE: LazyLock<Cache> = LazyLock::new(Cache::from_environment);

/// A module: the kernels of one source, compiled for several targets.
///
/// [`include_modules!`](crate::include_modules) makes one for each source that `kpack-build` compiled.
#[derive(Debug)]
pub struct Module {
    name: &'static str,
    targets: &'static [&'static str],
    kernels: &'static [&'static CStr],
    origin: Origin,
}

/// Where a module's code is.
#[derive(Debug)]
enum Origin {
    /// Where the wrapper leads. The text is the panic for names that are none of the kernels'.
    Wrapper(&'static Wrapper, &'static str),
    /// Nowhere, for this reason.
    Skipped(&'static str),
}

/// The device code of a module for one GPU.
///
/// Give [`as_ptr`](Self::as_ptr) to `hipModuleLoadData`, and **keep this until `hipModuleUnload`**. ROCm's runtime does not
/// copy a code object: `FatBinaryInfo::ExtractFatBinaryUsingCOMGR` (in `hip_fatbin.cpp`) recognises it by its ELF magic, and
/// `AddDevProgram` gives the caller's pointer to `amd::Program::addDeviceProgram` with copying turned off. The module keeps
/// it until it is unloaded.
#[must_use = "the HIP runtime reads it until the module is unloaded"]
pub struct Code {
    bytes: Vec<u8>,
    target: TargetId,
}

impl Module {
    /// For the macro.
    pub(crate) const fn compiled(
        name: &'static str,
        wrapper: &'static Wrapper,
        targets: &'static [&'static str],
        kernels: &'static [&'static CStr],
        no_such_kernel: &'static str,
    ) -> Self {
        let origin = Origin::Wrapper(wrapper, no_such_kernel);
        Self { name, targets, kernels, origin }
    }

    /// For the macro.
    pub(crate) const fn skipped(name: &'static str, reason: &'static str) -> Self {
        Self { name, targets: &[], kernels: &[], origin: Origin::Skipped(reason) }
    }

    /// Its name, which is that of the source file without its extension.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The names of its kernels, for `hipModuleGetFunction`. Empty if the build skipped the module.
    pub const fn kernels(&self) -> &'static [&'static CStr] {
        self.kernels
    }

    /// The targets that it was compiled for. Empty if the build skipped the module.
    ///
    /// An installation may have fewer: its archives are separate files, and `kpack trim` removes code.
    pub const fn targets(&self) -> &'static [&'static str] {
        self.targets
    }

    /// Checks the name of a kernel, and returns it.
    ///
    /// In a constant, a wrong name is an error of the compiler:
    ///
    /// ```
    /// # kpack::modules_v1! { kernels; AFFINE {
    /// #     name: "affine", size: 8, bundle: &[0; 8], targets: [], kernels: [c"affine_f32"], list: "affine_f32",
    /// # } }
    /// # use std::ffi::CStr;
    /// const AFFINE_F32: &CStr = kernels::AFFINE.kernel(c"affine_f32");
    /// # fn main() { assert_eq!(AFFINE_F32, c"affine_f32") }
    /// ```
    ///
    /// ```compile_fail,E0080
    /// # kpack::modules_v1! { kernels; AFFINE {
    /// #     name: "affine", size: 8, bundle: &[0; 8], targets: [], kernels: [c"affine_f32"], list: "affine_f32",
    /// # } }
    /// # use std::ffi::CStr;
    /// const AFFINE_F16: &CStr = kernels::AFFINE.kernel(c"affine_f16");
    /// # fn main() { assert_eq!(AFFINE_F16, c"affine_f16") }
    /// ```
    ///
    /// If the build skipped the module, every name is accepted.
    ///
    /// # Panics
    /// The module has no such kernel. The message lists those that it has.
    #[track_caller]
    pub const fn kernel<'n>(&self, name: &'n CStr) -> &'n CStr {
        match self.origin {
            Origin::Wrapper(_, no_such_kernel) if !has(self.kernels, name) => {
                panic!("{}", no_such_kernel)
            }
            _ => name,
        }
    }

    /// Finds the code for a GPU: in the program, or in the archive that the program was split into.
    ///
    /// `gcn_arch_name` is the field `gcnArchName` of `hipGetDeviceProperties`, such as `gfx90a:sramecc+:xnack-`. The best
    /// code is that for the GPU with its features, then that for fewer features, then generic code such as
    /// `gfx11-generic`.
    ///
    /// Archives are found as HIP runtimes find them, so `ROCM_KPACK_PATH` and the other variables apply. The environment is
    /// read at the first call, and archives stay open.
    ///
    /// # Errors
    /// [`Error::Archived`] only for a program that was split, [`Error::NoCode`] and those of damaged code only for one that
    /// was not.
    pub fn load(&self, gcn_arch_name: &str) -> Result<Code, Error> {
        let module = self.name;
        let gpu = read_gpu(gcn_arch_name).map_err(|source| Error::NotGpu { module, source })?;
        let wrapper = match self.origin {
            Origin::Wrapper(wrapper, _) => wrapper,
            Origin::Skipped(reason) => return Err(Error::Skipped { module, reason }),
        };
        match wrapper.read() {
            Found { content: Content::Bundle, address, .. } => bundle::load(module, address, gpu),
            Found { content: Content::Marker, address, co_index } => {
                let loaded = load_split(address, co_index, gpu);
                loaded.map_err(|source| Error::Archived { module, source: Box::new(source) })
            }
            Found { content: Content::Unknown(magic), .. } => Err(Error::Wrapper { module, magic }),
        }
    }
}

/// Whether one of these is `name`.
const fn has(names: &[&CStr], name: &CStr) -> bool {
    let mut rest = names;
    while let [first, others @ ..] = rest {
        if is_same(first.to_bytes(), name.to_bytes()) {
            return true;
        }
        rest = others;
    }
    false
}

/// Whether two names are equal. The operator is not for constants, and recursion would end at 128 characters.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Loads from the archive that the marker at `address` leads to.
fn load_split(address: usize, co_index: u32, gpu: TargetId) -> Result<Code, crate::error::Error> {
    let marker = marker_at(address)?;
    let (binary, _) = discover_binary_path(address)?;
    let isas = isas(gpu, Delivery::Archive);
    let request = Request { marker: &marker, binary: &binary, co_index, isas: &isas };
    let (bytes, target) = CACHE.load_with_target(&request)?;
    Ok(Code { bytes, target: target.parse()? })
}

/// What a HIP runtime asks for: the GPU's own ISA, then the generic one.
fn isas(gpu: TargetId, delivery: Delivery) -> Vec<TargetId> {
    let generic = gpu.generic(delivery);
    [gpu].into_iter().chain(generic.map(|generic| generic.target)).collect()
}

impl Code {
    /// The first byte, for `hipModuleLoadData`.
    pub fn as_ptr(&self) -> *const c_void {
        self.bytes.as_ptr().cast()
    }

    /// The code object, an ELF file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The target that it was compiled for.
    pub fn target(&self) -> &TargetId {
        &self.target
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.bytes.len();
        f.debug_struct("Code").field("target", &self.target).field("size", &size).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More characters than the compiler has stack frames for constants.
    const TEMPLATE: &CStr = c"_ZN7rocprim6detail17trampoline_kernelINS0_14default_configENS1_20scan_config_selectorIfEEZZNS1_9scan_implILNS1_25lookback_scan_determinismE0ELb0ELb0ES3_PfS8_fNS_4plusIvEEfEEDaPvRmT3_T4_T5_mT6_P12ihipStream_tbEvT1_";

    #[test]
    fn a_name_of_a_template_in_a_constant() {
        const HAS: bool = has(&[c"other", TEMPLATE], TEMPLATE);
        const LACKS: bool = has(&[c"other", TEMPLATE], c"_ZN7rocprim6detail");
        assert_eq!((HAS, LACKS), (true, false));
    }
}
