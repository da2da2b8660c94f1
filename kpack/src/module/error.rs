//! Why a module was not loaded.

use std::error;

use kpack_format::Delivery;
use kpack_format::code_object::CodeObjectError;
use kpack_format::offload_bundle::BundleError;
use kpack_format::target_id::ParseTargetIdError;

use crate::TargetId;

/// Why a module was not loaded. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not the name of a GPU.
    #[error(
        "module `{module}`: {source}; pass gcnArchName of hipGetDeviceProperties, such as gfx90a:sramecc+:xnack-"
    )]
    NotGpu {
        /// The module.
        module: &'static str,
        /// What was expected.
        source: ParseTargetIdError,
    },
    /// The program has code for other GPUs only.
    #[error("module `{module}` has {}", no_code(gpu, there))]
    NoCode {
        /// The module.
        module: &'static str,
        /// The GPU.
        gpu: TargetId,
        /// The targets that it has code for.
        there: Vec<TargetId>,
    },
    /// The program was built without the code of its modules.
    #[error(
        "module `{module}` has no code, because the build skipped it ({reason}); change that, and rebuild the program"
    )]
    Skipped {
        /// The module.
        module: &'static str,
        /// Why the build skipped it.
        reason: &'static str,
    },
    /// The program was split, and no archive has the code, or it cannot be read.
    #[error("module `{module}`: {source}")]
    Archived {
        /// The module.
        module: &'static str,
        /// The archives that were tried, and what to do.
        source: Box<dyn error::Error + Send + Sync>,
    },
    /// The bundle in the program is damaged.
    #[error(
        "module `{module}`: its code in the program is damaged: {source}; rebuild or reinstall the program"
    )]
    Bundle {
        /// The module.
        module: &'static str,
        /// Where, what was expected, and what was found.
        source: BundleError,
    },
    /// The code object in the program is damaged, or for another target than its entry says.
    #[error(
        "module `{module}`: its code for {target} in the program is damaged: {source}; rebuild or reinstall the program"
    )]
    CodeObject {
        /// The module.
        module: &'static str,
        /// The target of its entry.
        target: TargetId,
        /// What was expected, and what was found.
        source: CodeObjectError,
    },
    /// The wrapper in the program is damaged.
    #[error(
        "module `{module}`: its wrapper in the program is damaged (expected the magic HIPF or HIPK, found {magic:#010x}); rebuild or reinstall the program"
    )]
    Wrapper {
        /// The module.
        module: &'static str,
        /// The first word of the wrapper.
        magic: u32,
    },
    /// Too little memory for the code object.
    #[error("module `{module}`: not enough memory for a code object of {size} bytes")]
    OutOfMemory {
        /// The module.
        module: &'static str,
        /// Size in bytes.
        size: u64,
    },
}

/// What a module has instead of code for `gpu`, and what to do.
fn no_code(gpu: &TargetId, there: &[TargetId]) -> String {
    let list = |targets: &mut dyn Iterator<Item = &TargetId>| {
        Vec::from_iter(targets.map(TargetId::to_string)).join(", ")
    };
    if there.is_empty() {
        return format!("no code for {gpu} or any other target; rebuild or reinstall the program");
    }
    let may_run = list(&mut there.iter().filter(|target| target.may_run_on(gpu)));
    if !may_run.is_empty() {
        return format!(
            "code for {may_run}, but {gpu} leaves its features open; pass the whole gcnArchName"
        );
    }
    let why: Vec<String> =
        there.iter().filter_map(|target| gpu.why_not_generic(target, Delivery::Bundle)).collect();
    let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
    format!(
        "no code for {gpu}, only for {}{why}; to add {}, list it in build.rs (in `file_for`, if that adds the source) or \
         KPACK_OFFLOAD_ARCH, and rebuild the program",
        list(&mut there.iter()),
        beside(gpu, there)
    )
}

/// The target to add for `gpu`. clang takes several targets of a processor only if all of them name the same features.
fn beside(gpu: &TargetId, there: &[TargetId]) -> String {
    let of_processor = || there.iter().filter(|target| target.processor() == gpu.processor());
    let is_named =
        |name: &str| of_processor().any(|target| target.features().any(|(other, _)| other == name));
    let features = gpu.features().filter(|(name, _)| is_named(name));
    features.fold(gpu.processor().to_owned(), |target, (name, is_on)| {
        format!("{target}:{name}{}", if is_on { '+' } else { '-' })
    })
}
