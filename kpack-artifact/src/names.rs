//! The names of artifact directories: the component, and what it is for.

use kpack_format::TargetId;
use kpack_format::unstable::target_names;

/// The suffix of generic artifacts.
pub const GENERIC: &str = "generic";
/// The name of the mark in artifact directories that kpack wrote.
pub const MARK: &str = ".kpack-artifact";

/// What belongs in an artifact directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Host files.
    Generic,
    /// Device code of one target.
    Target(TargetId),
    /// Device code of several targets.
    Group,
    /// Unsplit: everything.
    Unsplit,
}

/// The component and the target of the artifact directory called `name`. The generic artifact
/// (`blas_lib_generic`) has no target. `None` for a name that says neither.
pub fn parse(name: &str) -> Option<(&str, Option<TargetId>)> {
    let generic = name.strip_suffix(GENERIC).and_then(|name| name.strip_suffix('_'));
    let parsed = match generic {
        Some(component) => (component, None),
        None => target_names::last(name).map(|(component, target)| (component, Some(target)))?,
    };
    Some(parsed).filter(|(component, _)| !component.is_empty())
}

/// The name and component of an artifact directory, split or not. A target, or a family of targets, may follow them.
pub(super) fn component(name: &str) -> &str {
    if let Some((component, _)) = parse(name) {
        return component;
    }
    match name.rsplit_once('_') {
        Some((component, last)) if target_names::of_build(last).is_some() => component,
        _ => name,
    }
}

/// The name of the artifact directory of a component for a target, or of the generic one. Variants are in
/// the artifact of their processor. ROCm's build takes names apart at each `_`, so a family whose name has one
/// is called as AOTriton calls it: `gfx120x` for `gfx12_0`.
pub(super) fn artifact(component: &str, target: Option<&TargetId>) -> String {
    match target {
        None => format!("{component}_{GENERIC}"),
        Some(target) => format!("{component}_{}", target.plain_name()),
    }
}

/// Whether a name can be that of a directory, or a part of it.
pub fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+:-".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use kpack_format::FAMILIES;

    use super::*;

    /// ROCm's build reads `NAME_COMPONENT_TARGET`, without a `_` in any of them.
    #[test]
    fn names_of_artifacts_have_three_parts() {
        let families = FAMILIES.iter().map(|(family, _)| *family);
        let others = ["gfx90a:xnack+", "gfx9-4-generic", "gfx1250-strict", "amdgcnspirv"];
        for name in families.chain(others) {
            let target = TargetId::family(name).unwrap_or_else(|| name.parse().unwrap());
            let artifact = artifact("blas_lib", Some(&target));
            assert_eq!(artifact.split('_').count(), 3, "{artifact}");
            assert_eq!(parse(&artifact), Some(("blas_lib", Some(target.plain()))));
        }
    }

    #[test]
    fn families_are_no_part_of_a_component() {
        assert_eq!(component("blas_lib"), "blas_lib");
        assert_eq!(component("blas_lib_generic"), "blas_lib");
        // The families that TheRock builds for.
        for build in [
            "gfx90X-dcgpu",
            "gfx94X-dcgpu",
            "gfx950-dcgpu",
            "gfx101X-dgpu",
            "gfx103X-dgpu",
            "gfx110X-all",
            "gfx115X-igpu",
            "gfx120X-all",
            "gfx1250-dcgpu",
        ] {
            assert_eq!(component(&format!("blas_lib_{build}")), "blas_lib");
        }
        assert_eq!(component("blas_lib_gfx90a:xnack+"), "blas_lib");
        assert_eq!(component("blas_lib_amdgcnspirv"), "blas_lib");
        assert_eq!(component("core_hip_run"), "core_hip_run");
    }

    #[test]
    fn components_and_targets() {
        let target = |text: &str| Some(text.parse().unwrap());
        for (name, expected) in [
            ("blas_lib_generic", Some(("blas_lib", None))),
            ("blas_lib_gfx1100", Some(("blas_lib", target("gfx1100")))),
            ("blas_lib_gfx90a:xnack+", Some(("blas_lib", target("gfx90a:xnack+")))),
            ("blas_lib_gfx9-4-generic", Some(("blas_lib", target("gfx9-4-generic")))),
            ("blas_lib_amdgcnspirv", Some(("blas_lib", target("amdgcnspirv")))),
            (
                "aotriton_lib_gfx12_0",
                TargetId::family("gfx12_0").map(|family| ("aotriton_lib", Some(family))),
            ),
            // As AOTriton calls the directories of families.
            (
                "aotriton_lib_gfx11xx",
                TargetId::family("gfx11").map(|family| ("aotriton_lib", Some(family))),
            ),
            ("rccl_lib_gfx1250-strict", Some(("rccl_lib", target("gfx1250-strict")))),
            ("blas_lib_gfx110X", None),
            ("blas_lib", None),
            ("_generic", None),
        ] {
            assert_eq!(parse(name), expected, "{name}");
        }
    }
}
