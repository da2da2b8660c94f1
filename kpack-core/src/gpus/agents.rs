//! The GPUs of this machine, without a GPU runtime.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use kpack_format::TargetId;

use super::kfd::{NODES, Node, OVERRIDE, overriding, unique_id};
use super::pci;
use crate::platform::display_adapters;

/// The processors of the GPUs in this machine, one for each GPU in the order of the kernel's nodes, as
/// the ROCm runtime sees them with the environment's `HSA_OVERRIDE_GFX_VERSION`. `None` if nobody can
/// tell: there is no KFD, or it does not tell a GPU's version. On Windows, those of the display adapters, in any
/// order; `None` if one of them is unknown.
///
/// It cannot tell the features (xnack, sramecc): code objects for all of them must be at hand.
pub fn agents() -> Option<Vec<TargetId>> {
    agents_at(NODES.as_ref(), |name| std::env::var_os(name))
}

/// As [`agents`], with the nodes in the directory `nodes` and the environment variables that `get`
/// returns.
pub fn agents_at(nodes: &Path, get: impl Fn(&str) -> Option<OsString>) -> Option<Vec<TargetId>> {
    let gpus = gpus_at(nodes, get)?;
    Some(gpus.into_iter().map(|gpu| gpu.target).collect())
}

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// Its processor.
    pub target: TargetId,
    /// `GPU-` and 16 hexadecimal digits; `None` if the driver does not tell.
    pub uuid: Option<String>,
}

/// As [`agents_at`], with what else is known of the GPUs.
pub fn gpus_at(nodes: &Path, get: impl Fn(&str) -> Option<OsString>) -> Option<Vec<Gpu>> {
    let overriding = |name: &str| overriding(get(name)?.to_str()?);
    let of_all = overriding(OVERRIDE);
    let Ok(entries) = fs::read_dir(nodes) else {
        // Windows has no KFD, and its programs ignore the variable. Windows Subsystem for Linux has GPUs without KFD.
        let found = if cfg!(windows) {
            pci::processors(&display_adapters())
        } else {
            of_all.map(|agent| vec![agent])
        };
        let gpu = |target| Gpu { target, uuid: None };
        return found.map(|agents| agents.into_iter().map(gpu).collect());
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut numbers: Vec<u32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let mut gpus = Vec::new();
    for number in numbers {
        // A container may not read the nodes of other containers' GPUs, and cannot use them.
        let properties = nodes.join(format!("{number}/properties"));
        let Ok(properties) = fs::read_to_string(properties) else {
            continue;
        };
        let overridden = || overriding(&format!("{OVERRIDE}_{number}")).or_else(|| of_all.clone());
        let target = match Node::read(&properties) {
            Node::Host => continue,
            Node::Gpu(agent) => overridden().unwrap_or(agent),
            Node::UnknownGpu => overridden()?,
        };
        let uuid = unique_id(&properties).map(|number| format!("GPU-{number:016x}"));
        gpus.push(Gpu { target, uuid });
    }
    Some(gpus)
}

/// The variables that hide GPUs from a process, in the order of their effect: ROCm's runtime obeys the first
/// one, and the HIP runtime the second, or else the third.
const VISIBLE: [&str; 3] = ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];

/// Those of a machine's `gpus` that a HIP runtime sees with the environment variables that `get` returns, in
/// its order, and the variables that hide or reorder some.
pub fn visible(
    gpus: &[Gpu],
    get: impl Fn(&str) -> Option<OsString>,
) -> (Vec<Gpu>, Vec<&'static str>) {
    let [rocr, hip, cuda] = VISIBLE.map(|name| (name, get(name)));
    // For the HIP runtime, an empty list is none.
    let hip = [hip, cuda].into_iter().find(|(_, list)| {
        let list = list.as_ref();
        list.is_some_and(|list| !list.is_empty())
    });
    let mut seen = gpus.to_vec();
    let mut by = Vec::new();
    for (name, list) in [Some(rocr), hip].into_iter().flatten() {
        let Some(list) = list else {
            continue;
        };
        let chosen = chosen(&seen, &list.to_string_lossy());
        if chosen != seen {
            by.push(name);
        }
        seen = chosen;
    }
    (seen, by)
}

/// The GPUs of a list of positions and UUIDs. It ends at the first entry that is neither.
fn chosen(gpus: &[Gpu], list: &str) -> Vec<Gpu> {
    let position = |entry: &str| {
        let entry = entry.trim();
        let is_it = |gpu: &Gpu| {
            let uuid = gpu.uuid.as_ref();
            uuid.is_some_and(|uuid| uuid.starts_with(entry))
        };
        if entry.len() > 4 && entry.starts_with("GPU-") {
            gpus.iter().position(is_it)
        } else {
            entry.parse().ok().filter(|at| *at < gpus.len())
        }
    };
    let mut positions: Vec<usize> = Vec::new();
    for position in list.split(',').map_while(position) {
        if !positions.contains(&position) {
            positions.push(position);
        }
    }
    positions.into_iter().map(|at| gpus[at].clone()).collect()
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
        let no_kfd =
            agents_at("/no/such/directory".as_ref(), |name| (name == all.0).then(|| all.1.into()));
        assert_eq!(no_kfd.unwrap(), ["gfx1030".parse().unwrap()]);
    }
    #[test]
    fn variables_hide_and_reorder_gpus() {
        let uuids = ["GPU-00000000000000aa", "GPU-00000000000000bb"];
        let gpu = |target: &str, uuid: Option<&str>| Gpu {
            target: target.parse().unwrap(),
            uuid: uuid.map(str::to_owned),
        };
        let gpus =
            [gpu("gfx90a", Some(uuids[0])), gpu("gfx1030", Some(uuids[1])), gpu("gfx1100", None)];
        let seen = |variables: &[(&str, &str)]| {
            let get = |name: &str| {
                let mut variables = variables.iter();
                let variable = variables.find(|(known, _)| *known == name);
                variable.map(|(_, value)| OsString::from(value))
            };
            let (seen, by) = visible(&gpus, get);
            let seen = seen.iter().map(|gpu| gpu.target.to_string());
            (Vec::from_iter(seen).join(" "), by.join(" "))
        };
        let (rocr, hip, cuda) = (VISIBLE[0], VISIBLE[1], VISIBLE[2]);
        let all = "gfx90a gfx1030 gfx1100";
        for (variables, expected, by) in [
            (&[][..], all, ""),
            (&[(hip, "0,1,2")], all, ""),
            (&[(hip, "")], all, ""),
            (&[(rocr, "")], "", rocr),
            (&[(hip, "-1")], "", hip),
            (&[(hip, "2,0,2")], "gfx1100 gfx90a", hip),
            (&[(rocr, "1,7,0")], "gfx1030", rocr),
            (&[(rocr, uuids[1])], "gfx1030", rocr),
            (&[(rocr, "GPU-cc")], "", rocr),
            (&[(cuda, "1")], "gfx1030", cuda),
            (&[(hip, "0"), (cuda, "1")], "gfx90a", hip),
            (&[(rocr, "1,2"), (hip, "1")], "gfx1100", "ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES"),
        ] {
            let expected = (expected.to_owned(), by.to_owned());
            assert_eq!(seen(variables), expected, "{variables:?}");
        }
    }
}
