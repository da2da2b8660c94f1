//! What stands in for functions of the HIP runtime, and all other code that the compiler cannot check.
//!
//! No panic leaves these functions. What goes wrong is explained as the loader explains it, and the
//! runtime then gets what it would get without the shim.

#![allow(unsafe_code)]

mod objects;
pub mod preload;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kpack::internal::{
    Cache, Environment, Outcome, Request, ShimMode, TargetId, discover_binary_path, marker_at,
};
use kpack_core::gpus::agents;
use kpack_format::finding;
use kpack_format::marker::{MAGIC_FAT, MAGIC_SPLIT, WRAPPER_VERSION};

use crate::{Bundle, Error};

/// What the runtime returns for a wrapper.
pub type Module = *mut *mut c_void;
/// `__hipRegisterFatBinary`.
pub type Register = unsafe extern "C" fn(*const c_void) -> Module;
/// `__hipUnregisterFatBinary`.
pub type Unregister = unsafe extern "C" fn(Module);

/// The runtime's own functions.
#[derive(Debug, Clone, Copy)]
pub struct Runtime {
    /// Takes a wrapper.
    pub register: Register,
    /// Takes what `register` returned.
    pub unregister: Unregister,
}

/// `__CudaFatBinaryWrapper`.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    /// The bundle or the marker.
    content: *const c_void,
    /// In its low half, of a split wrapper.
    co_index: u64,
}

/// A fat wrapper that the runtime got in place of a split one.
struct Replacement {
    wrapper: Box<Wrapper>,
    _bundle: Bundle,
}

// SAFETY: the wrapper points into the bundle, which lives as long and does not change.
unsafe impl Send for Replacement {}

/// What the runtime has.
struct Registered {
    unregister: Unregister,
    replacement: Option<Replacement>,
}

/// The settings, and the archives.
struct Shim {
    cache: Cache,
    mode: ShimMode,
    /// `None` if unknown.
    gpus: Option<Vec<TargetId>>,
}

/// As long as the runtime has a module. A library that this is linked into may be unloaded and loaded again,
/// and nothing else would close the archives.
static SHIM: Mutex<Option<Arc<Shim>>> = Mutex::new(None);
/// By what the runtime returned.
static REGISTERED: Mutex<BTreeMap<usize, Registered>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shim {
    /// The one of this process.
    fn get() -> Arc<Self> {
        Arc::clone(lock(&SHIM).get_or_insert_with(|| Arc::new(Self::new())))
    }

    fn new() -> Self {
        let cache = Cache::from_environment();
        let value = Environment::variable("KPACK_HIP").unwrap_or_default();
        let mode = ShimMode::read(&value).unwrap_or_else(|| {
            let found = value.to_string_lossy();
            let problem = format!("expected auto, off or force, found `{}`", found.escape_debug());
            cache.complain("KPACK_HIP".as_ref(), finding::USAGE, &problem);
            ShimMode::Auto
        });
        Self { cache, mode, gpus: agents() }
    }

    /// The fat wrapper in place of `wrapper`; `None` if the runtime must get `wrapper` itself.
    fn replace(&self, wrapper: &Wrapper, runtime: &Runtime) -> Option<Replacement> {
        let wanted = match self.mode {
            _ if (wrapper.magic, wrapper.version) != (MAGIC_SPLIT, WRAPPER_VERSION) => false,
            ShimMode::Off => false,
            ShimMode::Force => true,
            ShimMode::Auto => !objects::takes_markers(runtime.register as usize),
        };
        if !wanted {
            return None;
        }
        let address = wrapper.content as usize;
        // The search starts beside the binary with the marker.
        let binary = discover_binary_path(address);
        let found = binary.as_ref().map(|(path, _)| path.as_path());
        let bundle = match self.bundle(address, found, wrapper.co_index as u32) {
            Ok(bundle) => bundle,
            Err(error @ Error::Loader(kpack::internal::Error::Disabled)) => {
                let binary = found.unwrap_or(Path::new("?"));
                self.cache.complain(binary, error.id(), &error);
                return None;
            }
            Err(error) => {
                self.explain(found.unwrap_or(Path::new("?")), &error);
                Bundle::empty(&self.cache).ok()?
            }
        };
        Some(Replacement {
            wrapper: Box::new(Wrapper {
                magic: MAGIC_FAT,
                version: WRAPPER_VERSION,
                content: bundle.as_ptr().cast(),
                co_index: 0,
            }),
            _bundle: bundle,
        })
    }

    /// Says why there is no code for a binary, unless there just is none for this GPU: the runtime tells
    /// that, as for an unsplit binary.
    fn explain(&self, binary: &Path, error: &Error) {
        let Error::Loader(kpack::internal::Error::NoCodeObject { report, .. }) = error else {
            return self.cache.warn(binary, error.id(), error);
        };
        // The loader has explained it.
        if self.cache.environment().debug {
            return;
        }
        for attempt in report.attempts() {
            if let Outcome::NotOpened(why) | Outcome::Exhausted(why) = &attempt.outcome {
                self.cache.warn(&attempt.path, attempt.outcome.id(), why);
            }
        }
    }

    fn bundle(
        &self,
        marker: usize,
        binary: Result<&Path, &kpack::internal::Error>,
        co_index: u32,
    ) -> Result<Bundle, Error> {
        let Ok(binary) = binary else {
            return Err(kpack::internal::Error::NotMapped { address: marker }.into());
        };
        let request = Request { marker: &marker_at(marker)?, binary, co_index, isas: &[] };
        Bundle::new(&self.cache, &request, self.gpus.as_deref())
    }
}

/// Gives `wrapper` to the runtime, or a fat wrapper in its place.
///
/// # Safety
/// `wrapper` is what start-up code hands to `__hipRegisterFatBinary`, and `runtime` is the HIP runtime
/// that would get it.
pub unsafe fn register(wrapper: *const c_void, runtime: Runtime) -> Module {
    let replacement = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: by contract, null or a wrapper, whose magic the runtime also reads.
        let wrapper = unsafe { wrapper.cast::<Wrapper>().as_ref()? };
        Shim::get().replace(wrapper, &runtime)
    }));
    let replacement = replacement.ok().flatten();
    let given = replacement
        .as_ref()
        .map_or(wrapper, |replacement| (&raw const *replacement.wrapper).cast());
    // SAFETY: by contract; the replacement lives until the runtime has forgotten it.
    let module = unsafe { (runtime.register)(given) };
    if !module.is_null() {
        let registered = Registered { unregister: runtime.unregister, replacement };
        let former = lock(&REGISTERED).insert(module as usize, registered);
        // The runtime has both wrappers in this module.
        std::mem::forget(former.and_then(|former| former.replacement));
    }
    module
}

/// Ends what [`register`] began. `other` finds the function of the runtime for a module that
/// [`register`] did not return.
///
/// # Safety
/// `module` is what start-up code hands to `__hipUnregisterFatBinary`.
pub unsafe fn unregister(module: Module, other: impl FnOnce() -> Option<Unregister>) {
    let registered = lock(&REGISTERED).remove(&(module as usize));
    let own = registered.as_ref().map(|registered| registered.unregister);
    if let Some(unregister) = own.or_else(other) {
        // SAFETY: by contract.
        unsafe { unregister(module) };
    }
    drop(registered);
    let unused = if lock(&REGISTERED).is_empty() { lock(&SHIM).take() } else { None };
    drop(unused);
}
