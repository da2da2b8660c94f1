//! What the Linux kernel's driver for GPU computing (KFD) says about GPUs, and the variables that
//! override it.

use std::str::FromStr;

use kpack_format::TargetId;

/// Has a directory for each node, named with its number, with a file `properties`.
pub const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
/// Replaces the version of every GPU: `10.3.0`. With `_` and a node's number at its end, of that
/// node's alone.
pub const OVERRIDE: &str = "HSA_OVERRIDE_GFX_VERSION";

/// Whether an environment variable of this name is an [`OVERRIDE`], of all GPUs or of one.
pub fn is_override(name: &str) -> bool {
    let node = |rest: &str| {
        let digits = rest.strip_prefix('_').filter(|digits| !digits.is_empty());
        digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    name.strip_prefix(OVERRIDE).is_some_and(|rest| rest.is_empty() || node(rest))
}

/// The number that tells the GPU of a node from others of its kind, by its `properties`; `None` if the
/// driver does not tell.
pub(super) fn unique_id(properties: &str) -> Option<u64> {
    number(properties, "unique_id").filter(|number| *number != 0)
}

fn number<T: FromStr>(properties: &str, name: &str) -> Option<T> {
    let mut lines = properties.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok())
}

/// A node of KFD's topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// A processor of the host.
    Host,
    /// A GPU, without the signs of its features.
    Gpu(TargetId),
    /// A GPU whose driver does not tell its version. Old drivers do not.
    UnknownGpu,
}

impl Node {
    /// Reads a node's `properties`: a name and a decimal number in each line.
    pub(super) fn read(properties: &str) -> Self {
        let number = |name| number::<u32>(properties, name);
        match (number("simd_count"), number("gfx_target_version")) {
            (None | Some(0), None | Some(0)) | (Some(0), _) => Self::Host,
            (_, None | Some(0)) => Self::UnknownGpu,
            (_, Some(version)) => {
                let parts = [version / 10000, version / 100 % 100, version % 100];
                Self::Gpu(TargetId::of_version(parts))
            }
        }
    }
}

/// The processor that an [`OVERRIDE`] sets; `None` if it is not a version.
pub(super) fn overriding(version: &str) -> Option<TargetId> {
    let parts: Vec<u32> =
        version.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let parts: [u32; 3] = parts.try_into().ok()?;
    let fits = parts[0] <= 63 && parts[1..].iter().all(|part| *part <= 255);
    fits.then(|| TargetId::of_version(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_overrides_all_gpus_or_one() {
        let set = ["HSA_OVERRIDE_GFX_VERSION", "HSA_OVERRIDE_GFX_VERSION_12"];
        assert!(set.into_iter().all(is_override));
        let others = ["HSA_OVERRIDE_GFX_VERSION_", "HSA_OVERRIDE_GFX_VERSION_OLD", "HSA_OVERRIDE"];
        assert!(!others.into_iter().any(is_override));
    }

    fn gpu(name: &str) -> Node {
        Node::Gpu(name.parse().unwrap())
    }

    #[test]
    fn a_gpu_tells_its_version() {
        for (version, name) in [
            (90006, "gfx906"),
            (90010, "gfx90a"),
            (90012, "gfx90c"),
            (90402, "gfx942"),
            (100300, "gfx1030"),
            (110501, "gfx1151"),
            (120500, "gfx1250"),
        ] {
            let text = format!("simd_count 80\nlds_size_in_kb 64\ngfx_target_version {version}\n");
            assert_eq!(Node::read(&text), gpu(name));
        }
    }

    #[test]
    fn the_number_of_one_gpu() {
        assert_eq!(unique_id("unique_id 11871235\n"), Some(11_871_235));
        assert_eq!(unique_id("unique_id 18446744073709551615\n"), Some(u64::MAX));
        assert_eq!(unique_id("unique_id 0\n"), None);
        assert_eq!(unique_id(""), None);
    }

    #[test]
    fn a_node_without_a_version() {
        let host = "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\n";
        assert_eq!(Node::read(host), Node::Host);
        assert_eq!(Node::read(""), Node::Host);
        assert_eq!(Node::read("simd_count 80\n"), Node::UnknownGpu);
        assert_eq!(Node::read("simd_count 80\nold_gfx_target_version 90006\n"), Node::UnknownGpu);
    }

    #[test]
    fn a_version_is_overridden_by_three_decimal_numbers() {
        let name = |version| overriding(version).map(|target| target.to_string());
        assert_eq!(name("10.3.0").as_deref(), Some("gfx1030"));
        assert_eq!(name("9.0.10").as_deref(), Some("gfx90a"));
        for wrong in ["", "10.3", "10.3.0.1", "gfx1030", "10.3.a", "64.0.0"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }
}
