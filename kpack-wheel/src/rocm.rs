//! What a wheel says of ROCm: which version it is for, and which of ROCm's libraries it contains.

use kpack_format::RocmVersion;
use pep440_rs::{Operator, Version, VersionSpecifier};
use pep508_rs::VersionOrUrl;

use super::archive::Wheel;
use super::metadata::without_url;
use super::name::project_name;
use super::set;
use kpack_core::words::{bytes, counted, list_some};
use kpack_core::{Error, Finding, Severity, ids};

/// The first ROCm whose HIP runtime loads split binaries.
const FIRST: RocmVersion = RocmVersion(7, 13);

/// The most names in one message.
const MOST_NAMES: usize = 5;

/// ROCm's libraries, without `lib` and versions, in lower case. Those that end with `_` or `-` stand for all whose names
/// begin so. kpack's loader has the name of ROCm's, so that is not among them.
#[rustfmt::skip]
const LIBRARIES: &[&str] = &[
    "amd_comgr", "amd_smi", "amdhip64", "amdocl64", "hipblas", "hipblaslt", "hipfft", "hipfftw", "hiprand", "hiprtc",
    "hiprtc-builtins", "hipsolver", "hipsparse", "hipsparselt", "hiptensor", "hsa-amd-aqlprofile64", "hsa-runtime64",
    "migraphx", "migraphx_", "miopen", "rccl", "rocalution", "rocblas", "rocfft", "rocm-core", "rocm_smi64",
    "rocm_sysdeps_", "rocprofiler-", "rocrand", "rocroller", "rocsolver", "rocsparse", "roctracer64", "roctx64",
];

/// Notes about a wheel that is split: that it was for an older ROCm, and that it contains libraries of ROCm.
///
/// # Errors
/// [`Error::Refused`] if METADATA has no name or version.
pub(super) fn notes(wheel: &Wheel) -> Result<Vec<Finding>, Error> {
    let note = |id, text: String| Finding::new(Severity::Note, id, &wheel.path, text);
    let (name, version) = (wheel.required("Name")?, wheel.required("Version")?);
    let mut notes = Vec::new();
    let older = older(name, version, wheel.metadata.all("Requires-Dist"));
    if !older.is_empty() {
        let text = format!(
            "the split wheel needs {FIRST} or newer, but METADATA says it is for an older ROCm ({}); also publish the unsplit wheel for users of that ROCm, or link the shim into its binaries",
            list_some(older, MOST_NAMES)
        );
        notes.push(note(ids::NEWER_ROCM_NEEDED, text));
    }
    let copies = Vec::from_iter(wheel.members.iter().filter_map(|member| {
        let file = member.name.rsplit('/').next().unwrap_or(&member.name);
        Some((library(file)?, file, member.size))
    }));
    if let (Some((first, first_file, _)), false) = (copies.first(), is_of_rocm(&project_name(name)))
    {
        let files = Vec::from_iter(copies.iter().map(|(_, file, _)| file));
        let size = copies.iter().fold(0_u64, |sum, (.., size)| sum.saturating_add(*size));
        let command = match first_file.to_ascii_lowercase().ends_with(".dll") {
            true => format!("delvewheel repair --exclude '{first}.dll'"),
            false => format!("auditwheel repair --exclude '{first}.so*'"),
        };
        let text = format!(
            "contains copies of ROCm's libraries ({}, {}): {}; if your users have ROCm, leave each of them out with an option such as `{command}`",
            counted(copies.len(), "file"),
            bytes(size),
            list_some(files, MOST_NAMES)
        );
        notes.push(note(ids::VENDORED_ROCM, text));
    }
    Ok(notes)
}

/// What says that a wheel is for a ROCm that is too old: its name, its version or requirements.
fn older<'a>(
    name: &str,
    version: &str,
    requirements: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let mut found = Vec::new();
    if is_named_older(name) {
        found.push(format!("name {name}"));
    }
    if is_named_older(version) {
        found.push(format!("version {version}"));
    }
    let older = requirements.filter(|text| requires_older(text));
    // Several extras may have the same one.
    let mut texts = Vec::from_iter(older.map(|text| {
        let requirement = text.split_once(';').map_or(text, |(requirement, _)| requirement);
        format!("requirement {}", without_url(requirement.trim()))
    }));
    texts.sort();
    texts.dedup();
    found.extend(texts);
    found
}

/// Whether a name or version has a ROCm in it that is too old, such as `vec-rocm6-4` and `1.0+rocm7.2`.
fn is_named_older(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let mut places =
        text.match_indices("rocm").filter(|(at, _)| !text[..*at].ends_with(char::is_alphanumeric));
    places.any(|(at, word)| {
        let rest = &text[at + word.len()..];
        let number = rest.strip_prefix(['-', '_', '.']).unwrap_or(rest);
        let parts = Vec::from_iter(number.split(['-', '_', '.']).take(2).map(leading_number));
        match parts[..] {
            [Some(major), Some(minor), ..] => is_older(&[major, minor]),
            // A number that is set off may be anything.
            [Some(major), ..] if number.len() == rest.len() => is_older(&joined_digits(major)),
            _ => false,
        }
    })
}

/// The number that `text` begins with.
fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The release that is written without dots: 7.2 as `72`, 6.2.4 as `624`, 7.13 as `713`. It may be a major version alone.
fn joined_digits(number: u64) -> Vec<u64> {
    match number {
        20..=99 => vec![number / 10, number % 10],
        // Minor versions from 10 on have two digits.
        200..=999 if number / 10 % 10 == 1 => vec![number / 100, number % 100],
        200..=999 => vec![number / 100, number / 10 % 10],
        _ => vec![number],
    }
}

/// Whether all ROCms whose version begins so are too old.
fn is_older(release: &[u64]) -> bool {
    let (first_major, first_minor) = (u64::from(FIRST.0), u64::from(FIRST.1));
    match release {
        [major, minor, ..] => (*major, *minor) < (first_major, first_minor),
        [major] => *major < first_major,
        [] => false,
    }
}

/// Whether a requirement accepts only a ROCm that is too old, or a package for one.
fn requires_older(text: &str) -> bool {
    let Ok(requirement) = set::requirement(text) else {
        return false;
    };
    if is_named_older(requirement.name.as_ref()) {
        return true;
    }
    let Some(VersionOrUrl::VersionSpecifier(specifiers)) = &requirement.version_or_url else {
        return false;
    };
    let is_of_rocm = is_of_rocm(requirement.name.as_ref());
    specifiers.iter().any(|specifier| {
        let is_equal = matches!(specifier.operator(), Operator::Equal | Operator::ExactEqual);
        is_equal && is_named_older(&specifier.version().to_string())
            || is_of_rocm && accepts_older(specifier)
    })
}

/// Whether a condition on ROCm's version accepts only those that are too old.
fn accepts_older(specifier: &VersionSpecifier) -> bool {
    let release = specifier.version().release();
    // Pre-releases count as their release.
    let version = Version::new(release.iter().copied());
    let first = Version::new([u64::from(FIRST.0), u64::from(FIRST.1)]);
    match specifier.operator() {
        Operator::Equal | Operator::ExactEqual | Operator::LessThanEqual => version < first,
        Operator::LessThan => version <= first,
        Operator::EqualStar => is_older(release),
        Operator::TildeEqual => is_older(&release[..release.len().saturating_sub(1)]),
        _ => false,
    }
}

/// Whether a project, by its normalised name, is a part of ROCm.
fn is_of_rocm(project: &str) -> bool {
    project == "rocm" || project.starts_with("rocm-sdk")
}

/// The library of ROCm that a file is, as other files refer to it, without versions: `librocblas`.
fn library(file: &str) -> Option<String> {
    let mut ends = file
        .match_indices(".so")
        .map(|(at, _)| at)
        .filter(|at| matches!(file.as_bytes().get(at + 3), None | Some(b'.')));
    let full = match ends.next() {
        Some(end) => &file[..end],
        None => {
            let (stem, extension) = file.rsplit_once('.')?;
            extension.eq_ignore_ascii_case("dll").then_some(stem)?
        }
    };
    // Tools that copy libraries into wheels add a hash to the name.
    let is_hash = |text: &str| text.len() >= 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let stem = match full.rsplit_once('-') {
        Some((stem, hash)) if is_hash(hash) => stem,
        _ => full,
    };
    // It becomes a part of a command.
    if !stem.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)) {
        return None;
    }
    let name = stem.strip_prefix("lib").unwrap_or(stem).to_ascii_lowercase();
    let is_it = |known: &&&str| {
        let rest = name.strip_prefix(**known);
        // Windows has the version before the extension.
        let is_version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '_');
        rest.is_some_and(|rest| known.ends_with(['-', '_']) || is_version(rest))
    };
    LIBRARIES.iter().find(is_it).map(|_| stem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_say_which_rocm() {
        for (text, is_older) in [
            ("1.0+rocm7.2", true),
            ("2.5.1+rocm6.2", true),
            ("2.5.0a0+git1a2b3c.rocm6.4.1", true),
            ("1.0+rocm7.12.1", true),
            ("1.0+rocm7.13.0", false),
            ("1.0+rocm10.0.0", false),
            ("1.0+rocm64", true),
            ("1.0+rocm624", true),
            ("1.0+rocm720", true),
            ("1.0+rocm713", false),
            ("1.0+rocm6", true),
            ("1.0+rocm7", false),
            ("1.0+rocm10", false),
            ("1.0+rocm20240501", false),
            ("1.0+rocm99999999999999999999999", false),
            ("1.0+cu121", false),
            ("vec-rocm6-4", true),
            ("vec_rocm7.2", true),
            ("Vec-ROCm-6.4", true),
            ("jax-rocm60-plugin", true),
            ("jax-rocm7-plugin", false),
            ("vec-rocm", false),
            ("vec-rocm-2", false),
            ("torch-rocm-7-14", false),
            ("procm6.4", false),
            ("rocm\u{e9}6.4", false),
            ("\u{e9}rocm6.4", false),
            ("rocm--6.4", false),
            ("rocm.", false),
            ("rocm", false),
        ] {
            assert_eq!(is_named_older(text), is_older, "{text}");
        }
    }

    #[test]
    fn requirements_say_which_rocm() {
        for (text, is_older) in [
            ("rocm==7.10", true),
            ("rocm[libraries]==7.12.0 ; extra == 'rocm'", true),
            ("rocm-sdk-core==7.10.0rc1", true),
            ("rocm_sdk_core ~= 7.2.0", true),
            ("rocm~=7.2", false),
            ("rocm==6.*", true),
            ("rocm==7.*", false),
            ("rocm<7.13", true),
            ("rocm<7.13.1", false),
            ("rocm<8", false),
            ("rocm<=7.12", true),
            ("rocm>=6.4", false),
            ("rocm>=6.4,<7", true),
            ("rocm==7", true),
            ("rocm==7.13.0rc1", false),
            ("rocm==7.14.0", false),
            ("rocm", false),
            ("rocm!=7.2", false),
            ("torch==2.5.1+rocm6.2", true),
            ("torch==2.13.0+rocm10.0.0", false),
            ("torch==2.5.1", false),
            ("jax-rocm60-plugin>=0.4", true),
            ("other<7", false),
            ("rocm @ https://example.org/rocm-6.4.whl", false),
            ("not a requirement", false),
        ] {
            assert_eq!(requires_older(text), is_older, "{text}");
        }
    }

    #[test]
    fn files_are_libraries_of_rocm() {
        for (file, name) in [
            ("libamdhip64-9bb0d6b1.so.7.2.53211", Some("libamdhip64")),
            ("librocblas.so.5", Some("librocblas")),
            ("libhsa-runtime64-0123456789abcdef.so", Some("libhsa-runtime64")),
            ("librocm_sysdeps_zstd.so.1", Some("librocm_sysdeps_zstd")),
            ("libMIOpen.so.1", Some("libMIOpen")),
            ("amdhip64_7.dll", Some("amdhip64_7")),
            ("hiprtc0714.dll", Some("hiprtc0714")),
            ("rocBLAS-0123456789abcdef0123456789abcdef.DLL", Some("rocBLAS")),
            ("librocm_kpack.so.1", None),
            ("librocblas_extra.so", None),
            ("librocm_sysdeps_a';b.so.1", None),
            ("librocm_sysdeps_$(b).so", None),
            ("librocm_sysdeps_\u{e9}-.so", None),
            ("libtorch_hip.so", None),
            ("rocblas.py", None),
            ("librocblas.sources", None),
            (".dll", None),
            (".so", None),
            ("", None),
        ] {
            assert_eq!(library(file).as_deref(), name, "{file}");
        }
    }
}
