//! The GPUs of this machine, without a GPU runtime.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use kpack_format::kfd::{NODES, Node, OVERRIDE, overriding};

use crate::TargetId;

/// The processors of the GPUs in this machine, one for each GPU in the order of the kernel's nodes, as
/// the ROCm runtime sees them with the environment's `HSA_OVERRIDE_GFX_VERSION`. `None` if nobody can
/// tell: there is no KFD, or it does not tell a GPU's version.
///
/// It cannot tell the features (xnack, sramecc): code objects for all of them must be at hand.
pub fn agents() -> Option<Vec<TargetId>> {
    agents_at(NODES.as_ref(), |name| std::env::var_os(name))
}

/// As [`agents`], with the nodes in the directory `nodes` and the environment variables that `get`
/// returns.
pub fn agents_at(nodes: &Path, get: impl Fn(&str) -> Option<OsString>) -> Option<Vec<TargetId>> {
    let overriding = |name: &str| overriding(get(name)?.to_str()?);
    let of_all = overriding(OVERRIDE);
    let Ok(entries) = fs::read_dir(nodes) else {
        // Windows Subsystem for Linux has GPUs without KFD.
        return of_all.map(|agent| vec![agent]);
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut numbers: Vec<u32> = names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let mut agents = Vec::new();
    for number in numbers {
        // A container may not read the nodes of other containers' GPUs, and cannot use them.
        let properties = nodes.join(format!("{number}/properties"));
        let Ok(properties) = fs::read_to_string(properties) else {
            continue;
        };
        let overridden = || overriding(&format!("{OVERRIDE}_{number}")).or_else(|| of_all.clone());
        match Node::read(&properties) {
            Node::Host => {}
            Node::Gpu(agent) => agents.push(overridden().unwrap_or(agent)),
            Node::UnknownGpu => agents.push(overridden()?),
        }
    }
    Some(agents)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agents of a machine with these nodes, and with these variables.
    fn agents(nodes: &[&str], variables: &[(&str, &str)]) -> Option<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        for (number, properties) in nodes.iter().enumerate() {
            let node = directory.path().join(number.to_string());
            fs::create_dir(&node).unwrap();
            fs::write(node.join("properties"), properties).unwrap();
        }
        let get = |name: &str| {
            let mut variables = variables.iter();
            let variable = variables.find(|(known, _)| *known == name);
            variable.map(|(_, value)| OsString::from(value))
        };
        let agents = agents_at(directory.path(), get)?;
        Some(agents.iter().map(TargetId::to_string).collect())
    }

    const HOST: &str = "cpu_cores_count 16\nsimd_count 0\n";
    const GFX90A: &str = "simd_count 440\ngfx_target_version 90010\n";
    const GFX1030: &str = "simd_count 160\ngfx_target_version 100300\n";
    const OLD_DRIVER: &str = "simd_count 256\n";

    #[test]
    fn every_gpu_that_can_be_read() {
        assert_eq!(agents(&[HOST], &[]), Some(vec![]));
        let both = agents(&[HOST, GFX90A, GFX1030], &[]).unwrap();
        assert_eq!(both, ["gfx90a", "gfx1030"]);
    }

    #[test]
    fn a_machine_that_does_not_tell() {
        assert_eq!(agents(&[HOST, OLD_DRIVER], &[]), None);
        let no_kfd = agents_at("/no/such/directory".as_ref(), |_| None);
        assert_eq!(no_kfd, None);
    }

    #[test]
    fn an_override_wins() {
        let all = ("HSA_OVERRIDE_GFX_VERSION", "10.3.0");
        let one = ("HSA_OVERRIDE_GFX_VERSION_2", "11.0.0");
        let nodes = [HOST, GFX90A, OLD_DRIVER];
        assert_eq!(agents(&nodes, &[all]).unwrap(), ["gfx1030", "gfx1030"]);
        assert_eq!(agents(&nodes, &[one]).unwrap(), ["gfx90a", "gfx1100"]);
        assert_eq!(agents(&nodes, &[all, one]).unwrap(), ["gfx1030", "gfx1100"]);
        assert_eq!(agents(&[HOST], &[all]).unwrap(), [""; 0]);
        let no_kfd = agents_at("/no/such/directory".as_ref(), |name| {
            (name == all.0).then(|| all.1.into())
        });
        assert_eq!(no_kfd.unwrap(), ["gfx1030".parse().unwrap()]);
    }
}
