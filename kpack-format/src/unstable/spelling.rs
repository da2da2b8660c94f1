//! Names of GPU targets that users write, and what they meant by misspelled ones.

use crate::code_object::processors;
use crate::target_id::{EXPECTED, ParseTargetIdError};
use crate::{Delivery, TargetId};

/// The features that targets have.
pub(crate) const FEATURES: &[&str] = &["sramecc", "xnack"];
/// What the name of a GPU looks like.
const EXPECTED_GPU: &str = "expected a processor, such as gfx1100";
/// The only target that is no processor.
const SPIRV: &str = "amdgcnspirv";

/// Products whose names are taken for their processors.
#[rustfmt::skip]
const PRODUCTS: &[(&str, &str)] = &[
    ("mi25", "gfx900"), ("mi50", "gfx906"), ("mi60", "gfx906"), ("mi100", "gfx908"),
    ("mi200", "gfx90a"), ("mi210", "gfx90a"), ("mi250", "gfx90a"), ("mi250x", "gfx90a"),
    ("mi300", "gfx942"), ("mi300a", "gfx942"), ("mi300x", "gfx942"), ("mi308x", "gfx942"), ("mi325x", "gfx942"),
    ("mi350", "gfx950"), ("mi350x", "gfx950"), ("mi355x", "gfx950"),
    ("rx6800", "gfx1030"), ("rx6900", "gfx1030"), ("rx6700", "gfx1031"), ("rx6600", "gfx1032"),
    ("rx7900", "gfx1100"), ("rx7800", "gfx1101"), ("rx7700", "gfx1101"), ("rx7600", "gfx1102"),
    ("rx9070", "gfx1201"), ("rx9060", "gfx1200"),
];

/// Reads the name of a target as a user writes it: a processor with digits only, or `amdgcnspirv`,
/// and known features. A processor need not be [known](is_known), so that new GPUs work. Files may have other
/// words.
///
/// # Errors
/// The error says what was meant, if that can be guessed.
pub fn read_target(name: &str) -> Result<TargetId, ParseTargetIdError> {
    if let Some(family) = TargetId::family(name) {
        let known = some_of(&family);
        let reason = format!("a family; list its processors, such as {known}");
        return Err(ParseTargetIdError::new(name, reason));
    }
    let target = read(name, EXPECTED, is_processor)?;
    if target.features().all(|(name, _)| FEATURES.contains(&name)) {
        return Ok(target);
    }
    Err(refused(name, &format!("expected the features {}", FEATURES.join(" and "))))
}

/// Reads the name of a GPU as HIP runtimes return it (`gcnArchName`): as [`read_target`], but a newer GPU may have features
/// that this version does not know, and SPIR-V is no GPU.
///
/// # Errors
/// As [`read_target`].
pub fn read_gpu(name: &str) -> Result<TargetId, ParseTargetIdError> {
    if let Some(family) = TargetId::family(name) {
        let reason = format!("a family (expected one processor, such as {})", some_of(&family));
        return Err(ParseTargetIdError::new(name, reason));
    }
    read(name, EXPECTED_GPU, |target| !target.is_spirv() && is_processor(target))
}

/// Reads a name that is neither misspelled nor refused by `is_meant`.
fn read(
    name: &str,
    expected: &str,
    is_meant: impl FnOnce(&TargetId) -> bool,
) -> Result<TargetId, ParseTargetIdError> {
    match name.parse::<TargetId>() {
        Ok(target) if is_meant(&target) => Ok(target),
        Err(error) if error.reason() != EXPECTED => Err(refused(name, error.reason())),
        _ => Err(refused(name, expected)),
    }
}

/// The error for a name, with what was meant, if that can be guessed.
fn refused(name: &str, expected: &str) -> ParseTargetIdError {
    let reason = match meant(name) {
        Some(meant) => format!("{expected}; did you mean {meant}?"),
        None => expected.to_owned(),
    };
    ParseTargetIdError::new(name, reason)
}

/// A few known processors of a family.
fn some_of(family: &TargetId) -> String {
    let known = processors().filter(|name| covers(family, name)).take(3);
    Vec::from_iter(known).join(", ")
}

/// Whether this version knows the processor, or one of the family. Newer ones can be used all the same.
pub fn is_known(target: &TargetId) -> bool {
    target.processor() == SPIRV || processors().any(|known| covers(target, known))
}

/// What to say of a target that is not [known](is_known).
pub fn unknown_warning(target: &TargetId) -> Option<String> {
    if is_known(target) {
        return None;
    }
    let processor = target.processor();
    let meant = nearest(processor).map_or(String::new(), |near| format!("; did you mean {near}?"));
    let generic = target.generic(Delivery::Archive).map_or(String::new(), |generic| {
        let similar = Vec::from_iter(target.similar()).join(", ");
        let generic = generic.target.processor().to_owned();
        format!("; kpack assumes that it runs {generic} code, as {similar} do")
    });
    Some(format!("{processor} is not a processor that this version of kpack knows{generic}{meant}"))
}

fn is_processor(target: &TargetId) -> bool {
    let number = target.processor().strip_prefix("gfx");
    number.map_or(target.processor() == SPIRV, |number| !number.contains('x'))
}

fn covers(target: &TargetId, processor: &str) -> bool {
    processor.parse().is_ok_and(|processor| target.covers(&processor))
}

/// The target that a misspelled name, or that of a product, stands for.
pub fn meant(name: &str) -> Option<String> {
    let plain: String = name.to_lowercase().split_whitespace().collect();
    let mut parts = plain.split(':');
    let mut target = processor_meant(parts.next()?)?.to_owned();
    for part in parts {
        let sign = part.chars().next_back().filter(|sign| "+-".contains(*sign))?;
        let feature = closest(part.trim_end_matches(['+', '-']), FEATURES.iter().copied())?;
        target.push_str(&format!(":{feature}{sign}"));
    }
    let target: TargetId = target.parse().ok()?;
    Some(target.to_string()).filter(|target| target != name)
}

fn processor_meant(plain: &str) -> Option<&'static str> {
    let product = plain.strip_prefix("radeon").unwrap_or(plain);
    let product = product.trim_end_matches("xtx").trim_end_matches("xt");
    if let Some((_, processor)) = PRODUCTS.iter().find(|(known, _)| *known == product) {
        return Some(processor);
    }
    let Some(number) = plain.strip_prefix("gfx") else {
        // Any other number may be a product's.
        return processors().find(|known| known.strip_prefix("gfx") == Some(plain));
    };
    let number = number.trim_start_matches(['-', '_']);
    // Letters that look like digits.
    let digits: String = if number.contains("generic") {
        number.to_owned()
    } else {
        number.replace('o', "0").replace(['l', 'i'], "1")
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    nearest(&format!("gfx{digits}"))
}

/// The known processor with the most similar name.
fn nearest(name: &str) -> Option<&'static str> {
    closest(name, processors())
}

/// The most similar of the `known` names, if one is similar.
fn closest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let known = known.map(|known| (distance(name, known), known));
    let (distance, known) = known.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1).then_some(known)
}

/// The number of characters to insert, remove or replace.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, a) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_users_write() {
        for (name, target) in [
            ("gfx1100", "gfx1100"),
            ("gfx90a:xnack-:sramecc+", "gfx90a:sramecc+:xnack-"),
            ("amdgcn-amd-amdhsa--gfx90a:xnack+", "gfx90a:xnack+"),
            ("gfx9-4-generic", "gfx9-4-generic"),
            ("gfx1250-strict", "gfx1250-strict"),
            ("amdgcnspirv", "amdgcnspirv"),
            // New GPUs must work.
            ("gfx9999", "gfx9999"),
            ("gfx14-generic", "gfx14-generic"),
        ] {
            assert_eq!(read_target(name).unwrap().to_string(), target);
        }
    }

    #[test]
    fn what_was_meant_by_a_misspelled_name() {
        for (name, meant) in [
            ("gfx11OO", Some("gfx1100")),
            ("gfx1l00", Some("gfx1100")),
            ("GFX1100", Some("gfx1100")),
            ("gfx-900", Some("gfx900")),
            ("gfx 90a", Some("gfx90a")),
            ("1100", Some("gfx1100")),
            ("mi300x", Some("gfx942")),
            ("MI300X", Some("gfx942")),
            ("mi210:xnack+", Some("gfx90a:xnack+")),
            ("gfx90a:xnak+", Some("gfx90a:xnack+")),
            ("gfx90a:XNACK-", Some("gfx90a:xnack-")),
            ("gfx90a:tgsplit+", None),
            ("gfx90a:xnack", None),
            ("native", None),
            ("all", None),
            ("", None),
        ] {
            let error = read_target(name).unwrap_err().to_string();
            let expected = meant.map(|meant| format!("; did you mean {meant}?"));
            let told = error.split_once("; did you").map(|(_, told)| format!("; did you{told}"));
            assert_eq!(told, expected, "{error}");
        }
    }

    #[test]
    fn names_of_gpus() {
        for (name, target) in [
            ("gfx1100", "gfx1100"),
            ("gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack-"),
            ("amdgcn-amd-amdhsa--gfx90a:xnack-", "gfx90a:xnack-"),
            ("gfx11-generic", "gfx11-generic"),
            // New GPUs and features must work.
            ("gfx1390", "gfx1390"),
            ("gfx942:foo+", "gfx942:foo+"),
        ] {
            assert_eq!(read_gpu(name).unwrap().to_string(), target);
        }
        for (name, expected) in [
            ("nonsense", "expected a processor, such as gfx1100"),
            ("amdgcnspirv", "expected a processor, such as gfx1100"),
            ("", "expected a processor, such as gfx1100"),
            ("native", "expected a processor, such as gfx1100"),
            ("gfx90a:xnack", "expected `+` or `-` after each feature"),
            ("gfx11OO", "expected a processor, such as gfx1100; did you mean gfx1100?"),
            ("gfx11", "a family (expected one processor, such as gfx1100, gfx1150, gfx1103)"),
            ("gfx19xx", "expected a processor, such as gfx1100"),
        ] {
            let error = read_gpu(name).unwrap_err().to_string();
            assert_eq!(error, format!("`{name}` is not a GPU target ID: {expected}"));
        }
    }

    #[test]
    fn a_family_is_no_target() {
        for name in ["gfx11", "gfx11xx", "gfx110x"] {
            let error = read_target(name).unwrap_err().to_string();
            assert!(error.contains("a family; list its processors, such as gfx1100"), "{error}");
        }
        // A family that nobody knows.
        assert!(read_target("gfx19xx").is_err());
    }

    #[test]
    fn products_are_named_and_other_numbers_are_not() {
        let said = |name: &str| read_target(name).unwrap_err().to_string();
        for name in ["rx7600", "Radeon RX 7600 XT", "RX7600"] {
            assert!(said(name).ends_with("; did you mean gfx1102?"), "{name}");
        }
        assert!(said("1100").ends_with("; did you mean gfx1100?"));
        assert!(!said("7600").contains("did you mean"), "{}", said("7600"));
    }

    #[test]
    fn unknown_processors_get_a_warning() {
        let warning = |name: &str| unknown_warning(&read_target(name).unwrap());
        assert_eq!(warning("gfx1100"), None);
        assert_eq!(warning("amdgcnspirv"), None);
        let text = warning("gfx9999:xnack+").unwrap();
        assert_eq!(text, "gfx9999 is not a processor that this version of kpack knows");
        let text = warning("gfx1154").unwrap();
        let expected = "gfx1154 is not a processor that this version of kpack knows; kpack assumes that it runs gfx11-generic code, as gfx1150, gfx1151, gfx1152, gfx1153 do; did you mean gfx1150?";
        assert_eq!(text, expected);
        let text = warning("gfx943").unwrap();
        assert!(text.ends_with("; did you mean gfx940?"), "{text}");
    }
}
