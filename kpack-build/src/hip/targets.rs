//! The GPU targets of a build.

use kpack_format::TargetId;
use kpack_format::unstable::spelling;

use super::environment::Environment;
use super::options::Hip;
use kpack_core::Error;

/// The GPU targets to compile for.
pub(super) fn targets(hip: &Hip, environment: &Environment) -> Result<Vec<TargetId>, Error> {
    const VARIABLE: &str = "KPACK_OFFLOAD_ARCH";
    let lists = if hip.offload_archs.is_empty() {
        Vec::from_iter(environment.get(VARIABLE).map(|list| list.to_string_lossy().into_owned()))
    } else {
        hip.offload_archs.clone()
    };
    let mut targets: Vec<TargetId> = Vec::new();
    for name in lists.iter().flat_map(|list| list.split([';', ',', ' '])) {
        if name.is_empty() {
            continue;
        }
        let target =
            spelling::read_target(name).map_err(|error| Error::usage(error.to_string()))?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    if targets.is_empty() {
        return Err(Error::usage(format!(
            "no GPU target to compile for; name some in build.rs, `.offload_arch(\"gfx1100\")`, \
             or in the environment, {VARIABLE}=\"gfx1100;gfx942\". `rocminfo` prints the target of a \
             GPU"
        )));
    }
    Ok(targets)
}
