//! The GPUs and the environment of this machine.

use std::fs;
use std::path::{Path, PathBuf};

use kpack::internal::lookup::Rules;
use kpack::internal::{Environment, ShimMode};
use kpack_format::TargetId;

use super::libraries::Scope;
use crate::image;
use crate::text::small_text;
use kpack_core::gpus::{Gpu, KFD_NODES, gpus_at, is_override, visible};
use kpack_core::{Error, ids};
use kpack_split::input::Lookup;

/// What to examine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The GPUs that there must be code for; if empty, those of this machine, or none if `scope` has a directory. One without
    /// features can be any variant.
    pub targets: Vec<TargetId>,
    /// Where the kernel lists the GPUs.
    pub nodes: PathBuf,
    /// The root directory: where `dev`, `sys`, and the databases of packages are.
    pub system: PathBuf,
    /// What counts in the search for libraries; `None` for all of this machine.
    pub scope: Option<Scope>,
}

impl Default for Options {
    fn default() -> Self {
        Self { targets: Vec::new(), nodes: KFD_NODES.into(), system: "/".into(), scope: None }
    }
}

/// The processors of all GPUs of the machine, each once, in the order of the kernel. Variables that hide GPUs from one
/// process do not count.
///
/// # Errors
/// [`Error::Refused`] if there is none, or it cannot be found out.
pub fn processors(options: &Options) -> Result<Vec<String>, Error> {
    let mut processors: Vec<String> = Vec::new();
    let gpus = gpus_at(&options.nodes, image::variable);
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
pub(crate) const ON_WINDOWS: &str = "kpack does not know this machine's GPUs";

/// The error where GPUs are needed, and the kernel lists none in the directory `nodes`.
pub fn no_gpu(nodes: &Path) -> Error {
    if cfg!(windows) {
        let text = format!("{ON_WINDOWS}; specify them with --arch");
        return Error::rejected(ids::NO_GPU, "this machine".as_ref(), text);
    }
    let text = "no GPU that ROCm can use; is the driver `amdgpu` loaded, and can this container access the GPUs?";
    Error::rejected(ids::NO_GPU, nodes, text)
}

/// What keeps programs from the GPUs of a machine, as far as files tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Access {
    /// Whether a display adapter of AMD is on the PCI bus.
    pub(crate) has_adapter: bool,
    /// Whether this is Windows Subsystem for Linux, where `/dev/dxg` is the GPU.
    pub(crate) is_wsl: bool,
    /// Whether this is a container.
    pub(crate) is_container: bool,
    /// Whether `/dev/kfd` exists, or this is Windows, which needs none.
    pub(crate) has_device: bool,
    /// Whether this process may use it.
    pub(crate) may_use_device: bool,
}

impl Access {
    fn of(system: &Path) -> Self {
        let exists = |path: &str| system.join(path).exists();
        let text = |path: PathBuf| small_text(&path).unwrap_or_default();
        let mut adapters = fs::read_dir(system.join("sys/bus/pci/devices"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let device = system.join("dev/kfd");
        Self {
            has_adapter: adapters.any(|adapter| {
                let is_of_amd = text(adapter.join("vendor")).trim() == "0x1002";
                // Display controllers and processing accelerators.
                let class = text(adapter.join("class"));
                is_of_amd && ["0x03", "0x12"].iter().any(|kind| class.starts_with(kind))
            }),
            is_wsl: exists("dev/dxg"),
            is_container: exists(".dockerenv") || exists("run/.containerenv"),
            has_device: cfg!(windows) || device.exists(),
            may_use_device: may_read_and_write(&device),
        }
    }
}

/// Whether this process may read and write a device, without opening it: that would already use it.
#[cfg(not(windows))]
fn may_read_and_write(device: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(device, Access::READ_OK | Access::WRITE_OK).is_ok()
}

#[cfg(windows)]
fn may_read_and_write(_device: &Path) -> bool {
    true
}

/// The GPUs and the environment.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// All GPUs, in the order of the kernel, or those that the caller named; `None` if unknown.
    pub(crate) all: Option<Vec<TargetId>>,
    /// Those that a HIP runtime sees, each once.
    pub(crate) seen: Vec<TargetId>,
    /// The variables that hide the others.
    pub(crate) hidden_by: Vec<&'static str>,
    /// The GPUs without a [`GPU_OVERRIDE`](kpack_core::gpus::GPU_OVERRIDE), if that is set and changes one.
    pub(crate) native: Option<Vec<TargetId>>,
    /// What keeps programs from the GPUs.
    pub(crate) access: Access,
    /// The variables that are set which lead the dynamic linker elsewhere.
    pub(crate) linker_variables: Vec<&'static str>,
    /// Whether the caller named them, or wants none of this machine's.
    pub(crate) asked: bool,
    /// Whether only the files of one directory count.
    pub(crate) is_confined: bool,
    pub(crate) environment: Environment,
    pub(crate) shim_mode: ShimMode,
}

impl Machine {
    pub(crate) fn new(options: &Options) -> Self {
        // A directory that must be complete is for other machines.
        let is_confined = options.scope.as_ref().is_some_and(|scope| scope.directory.is_some());
        let get = |name: &str| if is_confined { None } else { image::variable(name) };
        let environment =
            if is_confined { Environment::default() } else { image::loader_variables() };
        let asked = is_confined || !options.targets.is_empty();
        let linker_variables = ["LD_LIBRARY_PATH", "LD_PRELOAD"].into_iter();
        let is_set = |name: &&str| get(name).is_some_and(|value| !value.is_empty());
        let mut machine = Self {
            all: Some(options.targets.clone()),
            seen: distinct(&options.targets),
            hidden_by: Vec::new(),
            native: None,
            access: Access::of(&options.system),
            linker_variables: Vec::from_iter(linker_variables.filter(is_set)),
            asked,
            is_confined,
            environment,
            shim_mode: get("KPACK_HIP")
                .and_then(|mode| ShimMode::read(&mode))
                .unwrap_or(ShimMode::Auto),
        };
        if !asked {
            let targets = |gpus: &[Gpu]| Vec::from_iter(gpus.iter().map(|gpu| gpu.target.clone()));
            let gpus = gpus_at(&options.nodes, get);
            machine.all = gpus.as_deref().map(targets);
            // The variables count GPUs in another order than Windows.
            let is_ordered = !cfg!(windows) || machine.to_join().len() < 2;
            let (seen, hidden_by) = visible(gpus.as_deref().unwrap_or_default(), |name| {
                get(name).filter(|_| is_ordered)
            });
            machine.seen = distinct(&targets(&seen));
            machine.hidden_by = hidden_by;
            let native = gpus_at(&options.nodes, |name| get(name).filter(|_| !is_override(name)))
                .as_deref()
                .map(targets)
                .filter(|native| !native.is_empty());
            machine.native = native.filter(|native| Some(native) != machine.all.as_ref());
        }
        machine
    }

    /// The GPUs that there must be code for.
    pub(crate) fn gpus(&self) -> &[TargetId] {
        &self.seen
    }

    /// The GPUs to join for. Variables count for one process, a joined file for all.
    pub(crate) fn to_join(&self) -> Vec<TargetId> {
        distinct(self.all.as_deref().unwrap_or_default())
    }
}

/// What binaries are read with.
pub(crate) struct Reader {
    pub(crate) machine: Machine,
    /// The archives, as kpack's loader finds them.
    pub(crate) lookup: Lookup,
    /// As ROCm's loader finds them. All versions look in the same places.
    pub(crate) rocm_lookup: Lookup,
    /// What counts in the search for libraries and archives.
    pub(crate) scope: Option<Scope>,
}

impl Reader {
    pub(crate) fn new(machine: Machine, scope: Option<Scope>) -> Self {
        let lookup = |rules| Lookup::new(rules, machine.environment.clone());
        let (lookup, rocm_lookup) = (lookup(Rules::KPACK), lookup(Rules::ROCM));
        Self { machine, lookup, rocm_lookup, scope }
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
