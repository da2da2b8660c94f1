//! The findings about the machine and its variables.

use kpack_core::gpus::GPU_OVERRIDE;
use kpack_core::words::list;
use kpack_core::{Finding, Severity, ids};
use kpack_format::TargetId;

use crate::facts::machine::{Machine, ON_WINDOWS};
use crate::remedy::Diagnosis;

/// The findings about the machine and its variables.
pub(crate) fn of_machine(machine: &Machine) -> Vec<Diagnosis> {
    let mut findings: Vec<Finding> = Vec::new();
    match &machine.all {
        _ if machine.asked => {}
        Some(gpus) if !gpus.is_empty() && !machine.access.has_device => {
            let text = format!(
                "the kernel lists {}, but programs cannot use it because /dev/kfd does not exist",
                list(machine.to_join())
            );
            let fault = Finding::general(Severity::Fault, ids::NO_DEVICE_ACCESS, text);
            findings.push(fault.with_help(of_container(machine)));
        }
        Some(gpus) if !gpus.is_empty() && !machine.access.may_use_device => {
            let text = "programs see no GPU because this user may not read and write /dev/kfd";
            let help = if machine.access.is_container {
                of_container(machine)
            } else {
                "add the user to the group that owns /dev/kfd (`render` or `video`), and log in again"
            };
            let fault = Finding::general(Severity::Fault, ids::NO_DEVICE_ACCESS, text);
            findings.push(fault.with_help(help));
        }
        None => findings.push(of_no_gpu(machine)),
        Some(gpus) if gpus.is_empty() => findings.push(of_no_gpu(machine)),
        Some(_) => {
            let all = list(machine.to_join());
            let variables = list(&machine.hidden_by);
            findings.push(match (machine.hidden_by.is_empty(), machine.seen.as_slice()) {
                (true, _) => {
                    Finding::general(Severity::Ok, ids::GPUS, format!("this machine has {all}"))
                }
                (false, []) => {
                    let text =
                        format!("this machine has {all}, but programs see no GPU: {variables}");
                    let advice = format!("unset {variables}");
                    Finding::general(Severity::Fault, ids::HIDDEN_GPUS, text).with_help(advice)
                }
                (false, seen) => {
                    let text = format!(
                        "this machine has {all}; programs see only {}: {variables}",
                        list(seen)
                    );
                    Finding::general(Severity::Note, ids::HIDDEN_GPUS, text)
                }
            });
        }
    }
    if machine.environment.disable {
        let text = "ROCM_KPACK_DISABLE is set, so the loader finds no code";
        findings.push(
            Finding::general(Severity::Fault, ids::LOADER_DISABLED, text)
                .with_help("unset ROCM_KPACK_DISABLE"),
        );
    }
    if !machine.environment.path.is_empty() {
        let text =
            "ROCM_KPACK_PATH is set, so the loader searches there instead of the markers' paths";
        findings.push(Finding::general(Severity::Note, ids::SEARCH_PATHS_SET, text));
    } else if !machine.environment.path_prefix.is_empty() {
        let text = "ROCM_KPACK_PATH_PREFIX is set, so the loader searches there first";
        findings.push(Finding::general(Severity::Note, ids::SEARCH_PATHS_SET, text));
    }
    findings.into_iter().map(Diagnosis::from).collect()
}

/// The finding about a [`GPU_OVERRIDE`], which replaces the `native` GPUs. Whether less is wrong without it.
pub(super) fn of_override(machine: &Machine, native: &[TargetId], helps: bool) -> Diagnosis {
    let (gpus, native) = (list(machine.gpus()), list(native));
    let text = format!("{GPU_OVERRIDE} makes programs ask for {gpus} instead of {native}");
    if helps {
        let text = format!("{text}, and there is code for {native}");
        let fault = Finding::general(Severity::Fault, ids::GPU_OVERRIDDEN, text);
        fault.with_help(format!("unset {GPU_OVERRIDE}")).into()
    } else {
        let text = format!("{text}: builds for {native} alone do not load with it");
        Finding::general(Severity::Note, ids::GPU_OVERRIDDEN, text).into()
    }
}

/// The finding where no GPU is known: nothing loads on a machine without one.
fn of_no_gpu(machine: &Machine) -> Finding {
    let access = &machine.access;
    let fault = |id, text: &str| Finding::general(Severity::Fault, id, text);
    if cfg!(windows) {
        let note = Finding::general(Severity::Note, ids::NO_GPU, ON_WINDOWS);
        note.with_help("specify its GPU with --arch")
    } else if access.is_wsl && !access.has_device {
        let text = "this is WSL (/dev/dxg), where kpack cannot detect the GPU, and only ROCm for WSL can use it";
        fault(ids::NO_DRIVER, text)
            .with_help("install ROCm for WSL, and specify the GPU with --arch to check its code")
    } else if access.has_adapter && machine.all.is_none() {
        let text = "this machine has an AMD GPU, but the amdgpu driver does not offer it for computing (KFD)";
        fault(ids::NO_DRIVER, text).with_help("load or install the driver: `modprobe amdgpu`")
    } else if access.is_container {
        let text = "no GPU reaches this container";
        fault(ids::NO_DEVICE_ACCESS, text).with_help(of_container(machine))
    } else if machine.all.is_none() {
        let text = "cannot detect this machine's GPUs: there is none, or the amdgpu driver (KFD) is missing or too old";
        fault(ids::NO_GPU, text).with_help("specify the GPU with --arch to check its code")
    } else {
        let text = "this machine has no GPU that ROCm can use";
        fault(ids::NO_GPU, text).with_help("specify a GPU with --arch to check its code")
    }
}

/// What to do where a GPU of the machine is not in the container.
fn of_container(machine: &Machine) -> &'static str {
    if machine.access.is_container {
        "start the container with `--device /dev/kfd --device /dev/dri --group-add $(stat -c %g /dev/kfd)`"
    } else {
        "load the driver amdgpu again, or give this container or sandbox /dev/kfd and /dev/dri"
    }
}
