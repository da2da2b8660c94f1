//! The GPU targets of a build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::unstable::spelling;

use super::environment::Environment;
use super::options::Hip;
use kpack_core::Error;
use kpack_core::gpus::{KFD_NODES, agents_at};
use kpack_core::words::list;

/// This variable replaces the targets in build scripts, so that the person who builds the program decides.
const VARIABLE: &str = "KPACK_OFFLOAD_ARCH";

/// The GPU targets to compile for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Targets {
    all: Vec<TargetId>,
    /// The targets of sources that are not for all of them.
    limits: BTreeMap<PathBuf, Vec<TargetId>>,
    is_native: bool,
}

impl Targets {
    /// The targets in `KPACK_OFFLOAD_ARCH`; else those that the build script names; else, if the program is to run
    /// on this machine, those of its GPUs.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are none, or a name is not a target.
    pub(super) fn new(hip: &Hip, environment: &Environment) -> Result<Self, Error> {
        Self::with_nodes(hip, environment, KFD_NODES.as_ref())
    }

    fn with_nodes(hip: &Hip, environment: &Environment, nodes: &Path) -> Result<Self, Error> {
        let mut limits = BTreeMap::new();
        for (source, names) in &hip.limits {
            let origin = format!("`file_for` of `{}`", source.display());
            let targets = read(&origin, names.iter().map(String::as_str))?;
            if targets.is_empty() {
                return Err(Error::usage(format!(
                    "`{}` is added by `file_for` without a GPU target; name some, or add it by `file`",
                    source.display()
                )));
            }
            limits.insert(source.clone(), targets);
        }
        let mut all = named(hip, environment)?;
        let is_native = all.is_empty();
        if is_native {
            all = native(environment, nodes)?;
        }
        check_features(&all)?;
        Ok(Self { all, limits, is_native })
    }

    /// The targets of the build.
    pub(super) fn all(&self) -> &[TargetId] {
        &self.all
    }

    /// Those that `source` is compiled for, as it was added; none if it is limited to others.
    pub(super) fn of(&self, source: &Path) -> Vec<TargetId> {
        let limit = self.limits.get(source);
        let is_within = |target: &&TargetId| {
            limit.is_none_or(|limit| limit.iter().any(|known| known.runs_on(target)))
        };
        self.all.iter().filter(is_within).cloned().collect()
    }

    /// The targets, if they are those of this machine's GPUs because none is specified.
    pub(super) fn native(&self) -> Option<&[TargetId]> {
        self.is_native.then_some(&self.all)
    }

    /// What to tell the user of the targets.
    pub(super) fn warning(&self) -> Option<String> {
        let targets = self.native()?;
        Some(format!(
            "GPU code is compiled only for {} (this machine), because no target is specified; specify the targets of a \
             release in build.rs, `.offload_arch(\"{}\")`, or in the environment, {VARIABLE}",
            list(targets),
            targets[0],
        ))
    }
}

/// The targets in `KPACK_OFFLOAD_ARCH`; else those that the build script specifies, which may be none.
pub(super) fn named(hip: &Hip, environment: &Environment) -> Result<Vec<TargetId>, Error> {
    let variable = environment.get(VARIABLE).unwrap_or_default();
    let all = read(VARIABLE, [&*variable.to_string_lossy()])?;
    if all.is_empty() {
        return read("`offload_arch`", hip.offload_archs.iter().map(String::as_str));
    }
    Ok(all)
}

/// The targets of the GPUs in this machine.
fn native(environment: &Environment, nodes: &Path) -> Result<Vec<TargetId>, Error> {
    let is_for_here = environment.target() == environment.host();
    let found = is_for_here.then(|| agents_at(nodes, |name| environment.get(name))).flatten();
    let mut targets: Vec<TargetId> = Vec::new();
    for target in found.unwrap_or_default() {
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    if targets.is_empty() {
        let here = if is_for_here {
            "kpack finds no GPU in this machine".to_owned()
        } else {
            format!("the program is for another machine ({})", environment.target())
        };
        return Err(Error::usage(format!(
            "no GPU target to compile for, and {here}; name some in build.rs, `.offload_arch(\"gfx1100\")`, \
             or in the environment, {VARIABLE}=\"gfx1100;gfx942\". `rocminfo` prints the target of a \
             GPU"
        )));
    }
    Ok(targets)
}

/// Checks that clang accepts the targets together (`getConflictTargetIDCombination` in `TargetID.cpp`): a feature of one
/// must be in the first target of the same processor, with either sign.
fn check_features(targets: &[TargetId]) -> Result<(), Error> {
    let has = |target: &TargetId, name: &str| target.features().any(|(known, _)| known == name);
    let mut sorted = Vec::from_iter(targets);
    sorted.sort_by_key(|target| target.to_string());
    for target in &sorted {
        let of_processor = |other: &&&TargetId| other.processor() == target.processor();
        let first = sorted.iter().find(of_processor).unwrap_or(target);
        if target.features().any(|(name, _)| !has(first, name)) {
            return Err(Error::usage(format!(
                "the targets {first} and {target} exclude each other: those of one processor must specify the same \
                 features; remove one, or specify each feature in both, as + or -"
            )));
        }
    }
    Ok(())
}

/// The targets in lists, each once. `origin` says where the lists are.
fn read<'a>(
    origin: &str,
    lists: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<TargetId>, Error> {
    let mut targets: Vec<TargetId> = Vec::new();
    let is_between = |c: char| c == ';' || c == ',' || c.is_whitespace();
    for name in lists.into_iter().flat_map(|list| list.split(is_between)) {
        if name.is_empty() {
            continue;
        }
        let target = spelling::read_target(name)
            .map_err(|error| Error::usage(format!("{origin}: {error}")))?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use super::*;

    /// The targets of a build on a machine with a gfx942, two gfx1100 and these variables.
    fn targets(hip: &Hip, variables: &[(&str, &str)]) -> Result<Targets, Error> {
        let directory = tempfile::tempdir().unwrap();
        for (number, version) in [90402, 110000, 110000].iter().enumerate() {
            let node = directory.path().join(number.to_string());
            fs::create_dir(&node).unwrap();
            let properties = format!("simd_count 4\ngfx_target_version {version}\n");
            fs::write(node.join("properties"), properties).unwrap();
        }
        let variables =
            variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let environment = Environment::of(variables.collect());
        Targets::with_nodes(hip, &environment, directory.path())
    }

    #[test]
    fn the_variable_then_the_build_script_then_the_machine() {
        let variable = (VARIABLE, "gfx90a;gfx1201\tgfx90a\n");
        let empty = (VARIABLE, " ; ");
        let cross = [("HOST", "x86_64-unknown-linux-gnu"), ("TARGET", "aarch64-unknown-linux-gnu")];
        let overriding = ("HSA_OVERRIDE_GFX_VERSION", "10.3.0");
        let named = ["gfx950,gfx942"];
        for (script, variables, expected, is_native) in [
            (&named[..], &[variable][..], "gfx90a gfx1201", false),
            (&[], &[variable], "gfx90a gfx1201", false),
            (&named, &[], "gfx950 gfx942", false),
            (&named, &[empty, overriding], "gfx950 gfx942", false),
            (&named, &cross, "gfx950 gfx942", false),
            (&[], &[], "gfx942 gfx1100", true),
            (&[], &[empty], "gfx942 gfx1100", true),
            (&[], &[overriding], "gfx1030", true),
        ] {
            let found = targets(Hip::new().offload_archs(script.iter().copied()), variables);
            let found = found.unwrap();
            let names = Vec::from_iter(found.all().iter().map(TargetId::to_string)).join(" ");
            assert_eq!((&*names, found.native().is_some()), (expected, is_native), "{variables:?}");
            assert_eq!(found.warning().is_some(), is_native);
        }
        let error = targets(&Hip::new(), &cross).unwrap_err().to_string();
        assert!(error.contains("another machine (aarch64-unknown-linux-gnu)"), "{error}");
        let warning = targets(&Hip::new(), &[]).unwrap().warning().unwrap();
        assert!(warning.contains("only for gfx942, gfx1100 (this machine)"), "{warning}");
    }

    #[test]
    fn a_source_for_some_targets() {
        let mut hip = Hip::new();
        hip.file("all.hip").file_for("some.hip", ["gfx942,gfx950", "gfx90a:xnack+"]);
        let all = "gfx942:xnack+ gfx942:xnack- gfx90a:sramecc+:xnack+ gfx1100";
        for (variable, source, expected) in [
            (all, "all.hip", all),
            (all, "some.hip", "gfx942:xnack+ gfx942:xnack- gfx90a:sramecc+:xnack+"),
            ("gfx90a gfx1100", "some.hip", ""),
        ] {
            let found = targets(&hip, &[(VARIABLE, variable)]).unwrap().of(source.as_ref());
            let found = Vec::from_iter(found.iter().map(TargetId::to_string)).join(" ");
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn file_for_adds_targets_to_a_source() {
        let mut hip = Hip::new();
        hip.offload_archs(["gfx90a", "gfx942", "gfx1100"]);
        hip.file_for("a.hip", ["gfx942"]).file_for("a.hip", ["gfx1100"]);
        assert_eq!(hip.files, [Path::new("a.hip")]);
        let found = targets(&hip, &[]).unwrap().of("a.hip".as_ref());
        assert_eq!(Vec::from_iter(found.iter().map(TargetId::to_string)), ["gfx942", "gfx1100"]);
    }

    #[test]
    fn an_error_says_where_the_target_is() {
        type Options = fn(&mut Hip) -> &mut Hip;
        let none: Options = |hip| hip;
        let variable = |value| [(VARIABLE, value)];
        for (options, variables, expected) in [
            (none, &variable("gfx94x1")[..], "KPACK_OFFLOAD_ARCH: `gfx94x1` is not"),
            (|hip| hip.offload_arch("gfx94x1"), &[], "`offload_arch`: `gfx94x1` is not"),
            (|hip| hip.file_for("a.hip", ["gfx94x1"]), &[], "`file_for` of `a.hip`: `gfx94x1`"),
            (|hip| hip.file_for("a.hip", [""; 0]), &[], "`a.hip` is added by `file_for` without"),
            (
                none,
                &variable("gfx942;gfx942:xnack+"),
                "the targets gfx942 and gfx942:xnack+ exclude",
            ),
            (
                |hip| hip.offload_archs(["gfx90a:xnack+", "gfx1100", "gfx90a:sramecc+"]),
                &[],
                "the targets gfx90a:sramecc+ and gfx90a:xnack+ exclude",
            ),
        ] {
            let error = targets(options(&mut Hip::new()), variables).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
