//! How the files of Tensile's libraries are called: those of rocBLAS, hipBLASLt and hipSPARSELt.

use kpack_format::unstable::target_names;

use crate::data_file::uncompressed;
use crate::place::{ForAll, Merge, MustMatch, Place};

/// How names of their files look.
pub(super) const TYPICAL: &[&str] = &["TensileLibrary*", "Kernels.so-*"];

/// The library files of kernels for GPUs without their own.
const FALLBACK: (&str, ForAll) =
    ("TensileLibrary*_fallback.dat", ForAll::MustMatch(MustMatch::Fallback));
const MANIFEST: (&str, ForAll) = ("TensileManifest.txt", ForAll::Merge(Merge::Lines));

/// The files for all targets.
pub(super) const FOR_ALL: &[(&str, ForAll)] = &[FALLBACK, MANIFEST];

/// TensileLite's file that names the code objects of others.
pub(super) const EXT_OP_LIBRARY: &str = "hipblasltExtOpLibrary.dat";

/// The same for the libraries of TensileLite.
pub(super) const LITE_FOR_ALL: &[(&str, ForAll)] = &[
    FALLBACK,
    MANIFEST,
    ("hipblasltTransform.hsaco", ForAll::Merge(Merge::Bundle)),
    (EXT_OP_LIBRARY, ForAll::Merge(Merge::ByTarget)),
    ("TensileLiteLibrary_lazy_Mapping.dat", ForAll::MustMatch(MustMatch::Mapping)),
];

/// Whether the library of this name is one of kernels for GPUs without their own.
pub(super) fn is_fallback(stem: &str) -> bool {
    stem.contains("fallback")
}

/// What names of files that a library loads by target have before the target, and their extension, if this is such
/// a name.
pub(super) fn loaded_by_target(name: &str) -> Option<(&str, &str)> {
    let before = &name[..name.find("gfx")?];
    let (_, extension) = uncompressed(name).rsplit_once('.')?;
    let is_loaded = match extension {
        "dat" => before == "TensileLibrary_lazy_",
        "hsaco" => before.starts_with("Kernels.so-"),
        "co" => before == "extop_",
        _ => false,
    };
    is_loaded.then_some((before, extension))
}

/// The libraries of Tensile. In a flat directory, the names of the files tell their targets. Everything
/// in a directory named after a target belongs to that target, whatever its name. Newer builds compress
/// their library files (`.dat.zlib`).
pub(super) fn place(inside: &[&str]) -> Option<Place> {
    let (file, directories) = inside.split_last()?;
    let named = target_names::in_file_name(file);
    let mut directories = directories.iter().map(|name| target_names::of_directory(name));
    if let Some(target) = directories.find_map(|target| target) {
        let other = named.into_iter().find(|named| !target.covers(named));
        return Some(match other {
            Some(other) => Place::Contradiction(target, other),
            None => Place::Target(target),
        });
    }
    let (_, extension) = uncompressed(file).rsplit_once('.')?;
    if !matches!(extension, "co" | "hsaco" | "dat") {
        return None;
    }
    let mut named = named.into_iter();
    Some(match (named.next(), named.next()) {
        (Some(one), Some(other)) => Place::Contradiction(one, other),
        (Some(target), None) => Place::Target(target),
        (None, _) => Place::Unnamed,
    })
}
