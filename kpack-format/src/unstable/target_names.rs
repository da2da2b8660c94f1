//! GPU targets in the names of files and directories that others chose: `Kernels.so-000-gfx90a-xnack+.hsaco`.
//! [`FileNames`] has those that kpack chooses, [`read_target`](super::spelling::read_target) what users write.

use crate::TargetId;
use crate::code_object::processors;
use crate::names::FileNames;

use super::spelling::FEATURES;

/// Reads text that is nothing but a target in its usual form, such as `gfx90a:xnack+`, or the name of a
/// family. Only processors and SPIR-V are targets: groups of targets also have names.
pub fn exact(text: &str) -> Option<TargetId> {
    TargetId::family(text).or_else(|| {
        let target = FileNames::parse(text)?;
        let processor = target.processor();
        let known = processor.starts_with("gfx") || processor == "amdgcnspirv";
        let id = target.to_string();
        let is_usual =
            [FileNames::Linux, FileNames::Windows].iter().any(|names| names.of(&id) == text);
        (known && is_usual).then_some(target)
    })
}

/// The target at the end of a name, after any `_`, and what is before that: the name of an artifact, or of an archive
/// without `.kpack`.
pub fn last(name: &str) -> Option<(&str, TargetId)> {
    // A family's name may have a `_` (gfx12_0).
    let mut splits = name.match_indices('_');
    splits.find_map(|(at, _)| Some((&name[..at], exact(&name[at + 1..])?)))
}

/// A target in the name of a Python project, which has neither `_` nor capitals.
pub fn of_project(label: &str) -> Option<TargetId> {
    let family = TargetId::family(label).or_else(|| TargetId::family(&label.replace('-', "_")));
    family.or_else(|| label.starts_with("gfx").then(|| label.parse().ok()).flatten())
}

/// A target, or the family of a build, such as `gfx94X-dcgpu` and `gfx110X-all`.
pub fn of_build(name: &str) -> Option<TargetId> {
    exact(name).or_else(|| {
        let family = name.split('-').next()?.to_lowercase();
        TargetId::family(&family).or_else(|| {
            let is_family = name.contains('-') || family != name;
            is_family.then(|| exact(&family)).flatten()
        })
    })
}

/// Parses a whole name as a target, such as a directory's: `gfx1100`, `gfx90a-xnack+`,
/// `gfx942_20cu`, `amd-gfx11xx`.
pub fn of_directory(name: &str) -> Option<TargetId> {
    let name = name.strip_prefix("amd-").unwrap_or(name);
    if !name.starts_with("gfx") {
        return None;
    }
    let (target, rest) = at_start(name)?;
    (rest.is_empty() || rest.starts_with('_')).then_some(target)
}

/// The distinct targets in a file name, in order. Before and after a target there is no letter or
/// digit.
pub fn in_file_name(name: &str) -> Vec<TargetId> {
    let mut found: Vec<TargetId> = Vec::new();
    for (start, _) in name.match_indices("gfx") {
        let target = at_boundary(name, start).and_then(at_start).map(|(target, _)| target);
        found.extend(target.filter(|target| !found.contains(target)));
    }
    found
}

/// The target in a file name that has only one.
pub fn only_in_file_name(name: &str) -> Option<TargetId> {
    let mut targets = in_file_name(name).into_iter();
    targets.next().filter(|_| targets.next().is_none())
}

/// The target that a file of MIOpen's begins with. The number of compute units may follow without
/// anything between (`gfx90a68` is gfx90a with 0x68 of them), so what is a processor has to be known.
pub fn leading(name: &str) -> Option<TargetId> {
    let target = at_start(name).map(|(target, _)| target);
    let is_known = |target: &&TargetId| processors().any(|known| known == target.processor());
    if let Some(target) = target.as_ref().filter(is_known) {
        return Some(target.clone());
    }
    let known = processors().filter(|known| {
        let rest = name.strip_prefix(known);
        let after = rest.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
        after.is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric()))
    });
    match known.max_by_key(|known| known.len()) {
        Some(known) => known.parse().ok(),
        None => target,
    }
}

/// Whether a name has `gfx` and a digit in it where a target could be.
pub fn looks_specific(name: &str) -> bool {
    let mut starts = name.match_indices("gfx").map(|(start, _)| start);
    starts.any(|start| {
        at_boundary(name, start)
            .and_then(|name| name.as_bytes().get(3))
            .is_some_and(u8::is_ascii_digit)
    })
}

/// The target in a name that CMake made a word of: `gfx950_xnackp` is gfx950:xnack+, where `:` and `-`
/// became `_`, and `+` became `p`.
pub fn of_word(word: &str) -> Option<TargetId> {
    let start = FEATURES.iter().filter_map(|feature| word.find(&format!("_{feature}"))).min();
    let (processor, features) = word.split_at(start.unwrap_or(word.len()));
    let mut id = processor.replace('_', "-");
    let mut rest = features;
    while let Some(feature) = rest.strip_prefix('_') {
        let end = feature.find(['p', '_'])?;
        let sign = if feature[end..].starts_with('p') { '+' } else { '-' };
        id.push_str(&format!(":{}{sign}", &feature[..end]));
        rest = &feature[end + 1..];
    }
    rest.is_empty().then(|| id.parse().ok())?
}

/// The suffix of a processor's variant.
const STRICT: &str = "-strict";

fn at_boundary(name: &str, start: usize) -> Option<&str> {
    let before = name.get(..start)?.chars().next_back();
    match before {
        Some(before) if before.is_alphanumeric() => None,
        _ => name.get(start..),
    }
}

/// A target at the start of `text`, and what follows it. No letter or digit follows.
pub fn at_start(text: &str) -> Option<(TargetId, &str)> {
    let digits = text.strip_prefix("gfx")?;
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c) || c == 'x';
    let length = digits.find(|c| !is_digit(c)).unwrap_or(digits.len());
    let (number, mut rest) = digits.split_at(length);
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut id = format!("gfx{number}");
    if let Some((generic, behind)) = generic(rest) {
        id.push_str(generic);
        rest = behind;
    } else if let Some(behind) = rest.strip_prefix(STRICT) {
        id.push_str(STRICT);
        rest = behind;
    } else if number.len() < 3 {
        // A generation, such as gfx9, is not a processor.
        return None;
    }
    while let Some((name, on, behind)) = feature(rest) {
        id.push_str(&format!(":{name}{on}"));
        rest = behind;
    }
    if rest.starts_with(|c: char| c.is_alphanumeric()) {
        return None;
    }
    let target = TargetId::family(&id).or_else(|| id.parse().ok())?;
    Some((target, rest))
}

/// `-generic`, or `-4-generic`.
fn generic(text: &str) -> Option<(&str, &str)> {
    let behind = text.strip_prefix('-')?;
    let digits = behind.trim_start_matches(|c: char| c.is_ascii_digit());
    let behind = if digits.len() == behind.len() { digits } else { digits.strip_prefix('-')? };
    let rest = behind.strip_prefix("generic")?;
    text.split_at_checked(text.len() - rest.len())
}

/// `:xnack+`, or with `-` in front where the file system or the build has no colons.
fn feature(text: &str) -> Option<(&'static str, char, &str)> {
    let text = text.strip_prefix([':', '-'])?;
    let name = FEATURES.iter().find(|name| text.starts_with(**name))?;
    let rest = &text[name.len()..];
    let on = rest.chars().next().filter(|c| matches!(c, '+' | '-'))?;
    Some((name, on, &rest[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_name(name: &str) -> Vec<String> {
        in_file_name(name).iter().map(TargetId::to_string).collect()
    }

    #[test]
    fn targets_in_file_names() {
        for (name, target) in [
            ("TensileLibrary_lazy_gfx1100.dat", "gfx1100"),
            ("Kernels.so-000-gfx90a-xnack+.hsaco", "gfx90a:xnack+"),
            ("Kernels.so-000-gfx90a:xnack-.hsaco", "gfx90a:xnack-"),
            ("x_gfx942:xnack-:sramecc+_20cu.co", "gfx942:sramecc+:xnack-"),
            ("TensileLibrary_gfx942_20cu.co", "gfx942"),
            ("extop_gfx9-4-generic.co", "gfx9-4-generic"),
            ("extop_gfx11-generic.co", "gfx11-generic"),
            ("TensileLibrary_gfx1250-strict.co", "gfx1250-strict"),
            ("libMIOpenCKGroupedConv_gfx1250-strict-xnack+.so", "gfx1250-strict:xnack+"),
        ] {
            assert_eq!(in_name(name), [target], "{name}");
        }
        for none in [
            "TensileManifest.txt",
            "libgfx1100.so",
            "gfx9.h",
            "gfx1100foo.co",
            "gfx1250-stricter.co",
            "gfx.co",
        ] {
            assert!(in_name(none).is_empty(), "{none}");
        }
        assert_eq!(in_name("gfx942_to_gfx950_gfx942.co"), ["gfx942", "gfx950"]);
    }

    #[test]
    fn targets_at_the_end_of_names_and_of_builds() {
        let of = |name| last(name).map(|(_, target)| target.to_string());
        assert_eq!(of("blas_lib_gfx90a:xnack+").as_deref(), Some("gfx90a:xnack+"));
        assert_eq!(of("blas_lib_gfx90a-xnack+").as_deref(), Some("gfx90a:xnack+"));
        assert_eq!(of("aotriton_lib_gfx12_0").as_deref(), Some("gfx12_0"));
        assert_eq!(of("gfx1100"), None);
        assert_eq!(of("blas_lib_dcgpu"), None);
        let of = |name| of_build(name).map(|target| target.to_string());
        assert_eq!(of("gfx94X-dcgpu").as_deref(), Some("gfx9_4"));
        assert_eq!(of("gfx110X-all").as_deref(), Some("gfx110x"));
        assert_eq!(of("gfx1151").as_deref(), Some("gfx1151"));
        assert_eq!(of("dcgpu"), None);
    }

    #[test]
    fn targets_of_directories() {
        let of = |name| of_directory(name).map(|target| target.to_string());
        assert_eq!(of("gfx1100").as_deref(), Some("gfx1100"));
        assert_eq!(of("gfx90a:xnack+").as_deref(), Some("gfx90a:xnack+"));
        assert_eq!(of("amd-gfx11xx").as_deref(), Some("gfx11"));
        assert_eq!(of("gfx942_mod0").as_deref(), Some("gfx942"));
        assert_eq!(of("flash"), None);
        assert_eq!(of("gfx1100.d"), None);
        assert_eq!(of("with_gfx1100"), None);
    }

    #[test]
    fn compute_units_are_no_part_of_the_processor() {
        let of = |name| leading(name).map(|target| target.to_string());
        assert_eq!(of("gfx90a68.HIP.fdb.txt").as_deref(), Some("gfx90a"));
        assert_eq!(of("gfx90878.kdb").as_deref(), Some("gfx908"));
        assert_eq!(of("gfx942130.db.txt").as_deref(), Some("gfx942"));
        assert_eq!(of("gfx1030_36.kdb").as_deref(), Some("gfx1030"));
        assert_eq!(of("gfx1250-strict100.kdb").as_deref(), Some("gfx1250-strict"));
        assert_eq!(of("gfx1250-strict_64.kdb").as_deref(), Some("gfx1250-strict"));
        assert_eq!(of("gfx908_ConvAsm1x1U_encoder.tn.model").as_deref(), Some("gfx908"));
        assert_eq!(of("gfx1399.kdb").as_deref(), Some("gfx1399"));
        assert_eq!(of("miopen.db"), None);
    }

    #[test]
    fn targets_in_words() {
        for (word, target) in [
            ("gfx1100", Some("gfx1100")),
            ("gfx1250_strict", Some("gfx1250-strict")),
            ("gfx9_4_generic", Some("gfx9-4-generic")),
            ("gfx950_xnackp", Some("gfx950:xnack+")),
            ("gfx942_srameccp_xnack_", Some("gfx942:sramecc+:xnack-")),
            ("gfx942_20cu", None),
            ("gfx950_xnack", None),
            ("gfx950_xnackpp", None),
        ] {
            let own = of_word(word).map(|target| target.to_string());
            assert_eq!(own.as_deref(), target, "{word}");
        }
    }

    #[test]
    fn a_name_may_say_less_than_the_code() {
        let agrees = |said: &str, own: &str| {
            let said: TargetId = said.parse().unwrap();
            said.may_run_on(&own.parse().unwrap())
        };
        assert!(agrees("gfx906", "gfx906:xnack-"));
        assert!(agrees("gfx90a:xnack+", "gfx90a"));
        assert!(agrees("gfx11xx", "gfx1151"));
        assert!(!agrees("gfx90a:xnack+", "gfx90a:xnack-"));
        assert!(!agrees("gfx11xx", "gfx1200"));
        assert!(!agrees("gfx1100", "gfx1101"));
        assert!(!agrees("gfx1250", "gfx1250-strict"));
    }
}
