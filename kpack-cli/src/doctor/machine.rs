//! The GPUs and the environment of this machine.

use std::env;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use rocm_kpack::KFD_NODES;
use rocm_kpack::lookup::Rules;
use rocm_kpack::{Environment, Gpu, ShimMode, gpus_at, visible};

use kpack_core::{Error, ids};
use kpack_split::input::Lookup;

/// What to examine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The GPUs that there must be code for; if empty, those of this machine. One without features can be
    /// any variant.
    pub targets: Vec<TargetId>,
    /// Where the kernel lists the GPUs.
    pub nodes: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self { targets: Vec::new(), nodes: KFD_NODES.into() }
    }
}

/// The processors of all GPUs of the machine, each once, in the order of the kernel. Variables that hide GPUs from one
/// process do not count.
///
/// # Errors
/// [`Error::Refused`] if there is none, or it cannot be found out.
pub fn processors(options: &Options) -> Result<Vec<String>, Error> {
    let mut processors: Vec<String> = Vec::new();
    let gpus = gpus_at(&options.nodes, |name| env::var_os(name));
    for gpu in gpus.unwrap_or_default() {
        let processor = gpu.target.processor().to_owned();
        if !processors.contains(&processor) {
            processors.push(processor);
        }
    }
    if processors.is_empty() {
        return Err(no_gpu(&options.nodes));
    }
    Ok(processors)
}

/// Why no GPU is known there.
pub(super) const ON_WINDOWS: &str = "kpack cannot detect GPUs on Windows";

/// The error where GPUs are needed, and the kernel lists none in the directory `nodes`.
pub(crate) fn no_gpu(nodes: &Path) -> Error {
    if cfg!(windows) {
        let text = format!("{ON_WINDOWS}; name them with --arch");
        return Error::rejected(ids::NO_GPU, "this machine".as_ref(), text);
    }
    let text = "no GPU that ROCm can use; is the driver `amdgpu` loaded, and can this container access the GPUs?";
    Error::rejected(ids::NO_GPU, nodes, text)
}

/// The GPUs and the environment.
pub(super) struct Machine {
    /// All GPUs, in the order of the kernel, or those that the caller named; `None` if unknown.
    pub(super) all: Option<Vec<TargetId>>,
    /// Those that a HIP runtime sees, each once.
    pub(super) seen: Vec<TargetId>,
    /// The variables that hide the others.
    pub(super) hidden_by: Vec<&'static str>,
    /// Whether the caller named them.
    pub(super) asked: bool,
    pub(super) environment: Environment,
    pub(super) shim_mode: ShimMode,
    /// As kpack's loader finds archives.
    pub(super) lookup: Lookup,
    /// As ROCm's loader finds them.
    pub(super) rocm_lookup: Lookup,
}

impl Machine {
    pub(super) fn new(options: &Options) -> Self {
        let get = |name: &str| env::var_os(name);
        let environment = Environment::of_process();
        let asked = !options.targets.is_empty();
        let mut machine = Self {
            all: Some(options.targets.clone()),
            seen: distinct(&options.targets),
            hidden_by: Vec::new(),
            asked,
            lookup: Lookup::new(Rules::KPACK, environment.clone()),
            rocm_lookup: Lookup::new(Rules::ROCM, environment.clone()),
            environment,
            shim_mode: get("KPACK_HIP")
                .and_then(|mode| ShimMode::read(&mode))
                .unwrap_or(ShimMode::Auto),
        };
        if !asked {
            let targets = |gpus: &[Gpu]| Vec::from_iter(gpus.iter().map(|gpu| gpu.target.clone()));
            let gpus = gpus_at(&options.nodes, get);
            let (seen, hidden_by) = visible(gpus.as_deref().unwrap_or_default(), get);
            machine.all = gpus.as_deref().map(targets);
            machine.seen = distinct(&targets(&seen));
            machine.hidden_by = hidden_by;
        }
        machine
    }

    /// The GPUs that there must be code for.
    pub(super) fn gpus(&self) -> &[TargetId] {
        &self.seen
    }

    /// The GPUs to join for. Variables count for one process, a joined file for all.
    pub(super) fn to_join(&self) -> Vec<TargetId> {
        distinct(self.all.as_deref().unwrap_or_default())
    }
}

/// Each target once.
fn distinct(targets: &[TargetId]) -> Vec<TargetId> {
    let mut distinct: Vec<TargetId> = Vec::new();
    for target in targets {
        if !distinct.contains(target) {
            distinct.push(target.clone());
        }
    }
    distinct
}
