//! The kernel databases of the ROCm libraries: files with device code, or about it, for one target or
//! for all.
//!
//! To add a database, add a row to [`DATABASES`]: where its files are, which targets their paths name,
//! and which files are for all targets. The test below has a line for each kind of file.
//! The classifier compares the paths with the contents, in the same way for all.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use kpack_core::words::counted;
use kpack_core::{DebugInfo, Finding, Severity, ids};
use kpack_format::TargetId;
use kpack_format::unstable::target_names;

use crate::data_file::uncompressed;
use crate::place::{ForAll, Merge, MustMatch, Place, matches_pattern};
use crate::tensile;
use kpack_core::Error;
use kpack_core::files::{list, metadata_of, with_slashes};
use kpack_split::input::{walk, walk_error};

/// A kernel database.
#[derive(Debug)]
pub struct Database {
    /// Its name in lower case, such as `rocblas`.
    pub name: &'static str,
    /// Its directories, anywhere in a prefix; an empty one stands for all. A version may follow each name:
    /// `rocblas/5/library`.
    directories: &'static [&'static [&'static str]],
    /// What the path of a file says, given its components below the directory; `None` if the file does
    /// not belong to the database.
    place: fn(&[&str]) -> Option<Place>,
    /// The names of files for all targets, if the path names no target. A `*` stands for anything; a
    /// compressed file is looked up without the suffix.
    for_all: &'static [(&'static str, ForAll)],
    /// How names of its files look, as in `for_all`, wherever they are.
    typical: &'static [&'static str],
    /// Whether the targets in its files may differ from those in their paths, so only paths count.
    pub(crate) is_opaque: bool,
    /// Whether it is one of Tensile's, whose code objects and library files belong together.
    pub is_tensile: bool,
    /// If the database is only selected by name: another database whose name also selects it.
    pub with: Option<&'static str>,
    /// The library that reads it, without what its file name begins and ends with; empty if that has no name of its own.
    library: &'static str,
    /// The names of its files, as in `for_all`, if these may also be in the directory of this library.
    beside: Option<&'static str>,
    /// Whether this library does not work without it.
    pub is_required: bool,
    /// The environment variable that leads this library to another place.
    pub variable: &'static str,
}

/// What to say about `files` of kernel databases, in `path`, if device code was to lose its debug information: it
/// does in archives alone.
pub fn not_stripped<'a>(
    files: impl Iterator<Item = &'a Path>,
    debug: &DebugInfo,
    path: &Path,
) -> Option<Finding> {
    let extensions = ["co", "hsaco"].map(OsStr::new);
    let is_code = |file: &&Path| file.extension().is_some_and(|e| extensions.contains(&e));
    let count = files.filter(is_code).count();
    let text = format!(
        "{} of kernel databases stay as they are, with debug information if they have any; build their device code without -g",
        counted(count, "file")
    );
    let finding = Finding::new(Severity::Note, ids::DEBUG_INFORMATION, path, text);
    (count > 0 && *debug != DebugInfo::Keep).then_some(finding)
}

/// The defaults of a row.
const DATABASE: Database = Database {
    name: "",
    directories: &[],
    place: |_| None,
    for_all: &[],
    typical: &[],
    is_opaque: false,
    is_tensile: false,
    with: None,
    library: "",
    beside: None,
    is_required: false,
    variable: "",
};

/// The same, of the libraries of Tensile.
const TENSILE: Database = Database {
    place: tensile::place,
    for_all: tensile::FOR_ALL,
    typical: tensile::TYPICAL,
    is_tensile: true,
    is_required: true,
    ..DATABASE
};

/// The directories of translated kernels, and the processor that each is for.
const TRANSLATIONS: &[(&str, &str)] = &[("gfx1250-b0-a0", "gfx1250")];

/// All of them.
pub const DATABASES: &[Database] = &[
    Database {
        name: "rocblas",
        directories: &[&["rocblas", "library"]],
        library: "rocblas",
        variable: "ROCBLAS_TENSILE_LIBPATH",
        ..TENSILE
    },
    Database {
        name: "hipblaslt",
        library: "hipblaslt",
        variable: "HIPBLASLT_TENSILE_LIBPATH",
        directories: &[&["hipblaslt", "library"]],
        for_all: tensile::LITE_FOR_ALL,
        ..TENSILE
    },
    Database {
        name: "hipsparselt",
        library: "hipsparselt",
        variable: "HIPSPARSELT_TENSILE_LIBPATH",
        directories: &[&["hipsparselt", "library"]],
        for_all: tensile::LITE_FOR_ALL,
        ..TENSILE
    },
    Database {
        name: "miopen",
        directories: &[&["share", "miopen", "db"]],
        place: |inside| target_names::leading(inside.last()?).map(Place::Target),
        typical: &["gfx*db.txt", "gfx*.kdb", "gfx*.model"],
        library: "miopen",
        variable: "MIOPEN_SYSTEM_DB_PATH",
        ..DATABASE
    },
    Database {
        // The plugins of MIOpen, one library for each target. If they were split, each would leave a host
        // file in the generic artifact, and generic artifacts of different shards would differ.
        name: "miopen_ck",
        directories: &[&[]],
        place: |inside| {
            let name = inside.last()?;
            // That of a DLL has neither `lib` nor a version.
            let dll = name.strip_suffix(".dll").and_then(|stem| stem.strip_prefix("MIOpenCK"));
            let elf = || name.strip_prefix("libMIOpenCK")?.split_once(".so");
            let (stem, version) = dll.map(|stem| (stem, "")).or_else(elf)?;
            let named = target_names::in_file_name(stem).pop()?;
            (version.is_empty() || version.starts_with('.')).then_some(Place::Target(named))
        },
        with: Some("miopen"),
        ..DATABASE
    },
    Database {
        name: "composablekernel",
        directories: &[&[]],
        place: |inside| {
            let name = inside.last()?.strip_prefix("libdevice_conv_operations_")?;
            let stem = name.strip_suffix(".a")?;
            let is_start = |at: &usize| *at == 0 || stem[..*at].ends_with('_');
            let start = stem.match_indices("gfx").map(|(at, _)| at).find(is_start)?;
            target_names::of_word(&stem[start..]).map(Place::Target)
        },
        ..DATABASE
    },
    Database {
        name: "aotriton",
        directories: &[&["aotriton", "kernels"], &["aotriton.images"]],
        place: |inside| directory_of_target(inside.first()?),
        typical: &["*.aks2"],
        ..DATABASE
    },
    Database {
        name: "hipkernelprovider",
        // Below: the engine, and any directories above those of its targets.
        directories: &[&["engines", "arch_content"], &["engines", "test_arch_content"]],
        place: |inside| {
            let (_, directories) = inside.split_last()?;
            directories.iter().find_map(|name| directory_of_target(name))
        },
        ..DATABASE
    },
    Database {
        name: "rocfft",
        directories: &[&["rocfft"]],
        for_all: &[("rocfft_kernel_cache.db", ForAll::Merge(Merge::KernelCache))],
        library: "rocfft",
        beside: Some("rocfft_kernel_cache*"),
        variable: "ROCFFT_RTC_SYS_CACHE_PATH",
        ..DATABASE
    },
    Database {
        // RCCL's kernels, translated for another stepping of their processor.
        name: "hotswap_cache",
        directories: &[&["share", "rocjitsu", "translations"]],
        place: |inside| {
            let [domain, "v1", file] = inside else {
                return None;
            };
            let (_, processor) = TRANSLATIONS.iter().find(|(known, _)| known == domain)?;
            let (digest, "man" | "obj") = file.split_once('.')? else {
                return None;
            };
            let is_digest = digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
            is_digest.then(|| processor.parse().ok().map(Place::Target))?
        },
        is_opaque: true,
        ..DATABASE
    },
];

/// The database that a file with this path in the prefix belongs to, and what the path says. A path
/// belongs to at most one database.
pub fn recognise(path: &str) -> Option<(&'static Database, Place)> {
    let parts: Vec<&str> = path.split('/').collect();
    let mut found = DATABASES.iter();
    found.find_map(|database| Some((database, database.recognise(&parts)?)))
}

/// The database that the library with this file name reads; those of wheels have a hash in their names.
pub fn of_library(file_name: &str) -> Option<&'static Database> {
    let name = file_name.to_ascii_lowercase();
    let name = name.strip_prefix("lib").unwrap_or(&name);
    let is_library = name.ends_with(".dll") || name.ends_with(".so") || name.contains(".so.");
    let is_own = |database: &&Database| {
        let rest = name.strip_prefix(database.library);
        !database.library.is_empty() && rest.is_some_and(|rest| rest.starts_with(['.', '-']))
    };
    DATABASES.iter().filter(|_| is_library).find(is_own)
}

/// The directories where a library in `directory` finds its database: this one, and the one above.
pub fn roots(directory: &Path) -> Vec<&Path> {
    vec![directory, directory.parent().unwrap_or(directory)]
}

/// Where the copy of the database `name` is that a file with this path belongs to: the path before the database's
/// directories. Files that a rule names belong to one copy.
pub fn copy_of<'a>(name: &str, path: &'a str) -> &'a str {
    let parts: Vec<&str> = path.split('/').collect();
    let database = DATABASES.iter().find(|database| database.name == name);
    let mut directories = database.into_iter().flat_map(|database| database.directories);
    let inside = directories.find_map(|directory| Some((below(&parts, directory)?, directory)));
    let Some((inside, directory)) = inside else {
        return "";
    };
    // A version may be between the directories.
    let before =
        parts[..parts.len() - inside.len()].iter().rposition(|p| Some(p) == directory.first());
    let size = parts[..before.unwrap_or(0)].iter().map(|part| part.len() + 1).sum::<usize>();
    &path[..size]
}

/// The directories of the databases that have files with such a name, for people.
pub fn places_of(name: &str) -> impl Iterator<Item = String> {
    let is_typical = |pattern: &&str| matches_pattern(pattern, name);
    let found = DATABASES.iter().filter(move |d| d.typical.iter().any(is_typical));
    let directories = found.flat_map(|database| database.directories);
    directories.map(|directory| format!("{}/", directory.join("/")))
}

/// A database that is installed, and the targets and families that it has files for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledDatabase {
    /// The name of the database.
    pub name: &'static str,
    /// Its directory.
    pub directory: PathBuf,
    /// What it has files for.
    pub targets: BTreeSet<TargetId>,
}

/// The databases that `is_wanted` accepts in these directories of an install prefix, or of a part of it, such as `lib`,
/// and why parts of them cannot be listed. Files without a target do not count. Only names are read, and only in the
/// directories of these databases, since the others may have thousands of files.
pub fn installed(
    directories: &[&Path],
    is_wanted: &dyn Fn(&Database) -> bool,
) -> (Vec<InstalledDatabase>, Vec<Error>) {
    let (mut found, mut unlisted) = (Vec::new(), Vec::new());
    for root in directories {
        for database in DATABASES.iter().filter(|database| is_wanted(database)) {
            for parts in database.directories.iter().filter(|parts| !parts.is_empty()) {
                for directory in directories_at(root, parts, &mut unlisted) {
                    let targets = targets_in(root, &directory, database, &mut unlisted);
                    found.push(InstalledDatabase { name: database.name, directory, targets });
                }
            }
        }
    }
    (found, unlisted)
}

/// The directories below `root` whose paths are these names, each but the last perhaps with a version after it.
fn directories_at(root: &Path, names: &[&str], unlisted: &mut Vec<Error>) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    for (index, name) in names.iter().enumerate() {
        let mut next = Vec::new();
        for above in found {
            if index > 0 {
                let listed = list(&above).map_err(|error| unlisted.push(error));
                let is_version = |path: &PathBuf| {
                    is_version(&path.file_name().unwrap_or_default().to_string_lossy())
                };
                let versions = listed.into_iter().flatten().filter(is_version);
                next.extend(versions.map(|version| version.join(name)));
            }
            next.push(above.join(name));
        }
        next.retain(|path| is_directory(path, unlisted));
        found = next;
    }
    found
}

/// Whether there is a directory, or a link to one.
fn is_directory(path: &Path, unlisted: &mut Vec<Error>) -> bool {
    let found = metadata_of(path).map_err(|error| unlisted.push(error));
    found.is_ok_and(|found| found.is_some_and(|found| found.is_dir()))
}

/// The targets that `database` has files for in `directory`, which is below `root`.
fn targets_in(
    root: &Path,
    directory: &Path,
    database: &Database,
    unlisted: &mut Vec<Error>,
) -> BTreeSet<TargetId> {
    let mut targets = BTreeSet::new();
    let target_of = |path: &str| match recognise(path)? {
        (owner, Place::Target(target)) if owner.name == database.name => Some(target),
        _ => None,
    };
    // What every file in a directory is for.
    let target_in = |path: &Path| target_of(&with_slashes(&path.join(".")));
    let mut walk = walk(directory).min_depth(1).into_iter();
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                unlisted.push(walk_error(directory, error));
                continue;
            }
        };
        let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
        let is_known =
            |path: &Path| target_in(path).is_some_and(|target| targets.contains(&target));
        if entry.file_type().is_dir() {
            // There can be thousands of files for it.
            if is_known(path) {
                walk.skip_current_dir();
            }
            continue;
        }
        let target = match entry.path_is_symlink() {
            true => match metadata_of(entry.path()).map_err(|error| unlisted.push(error)) {
                Ok(Some(there)) if there.is_dir() => target_in(path),
                Ok(Some(_)) => target_of(&with_slashes(path)),
                // Nothing can be loaded through it.
                Ok(None) | Err(()) => None,
            },
            false => target_of(&with_slashes(path)),
        };
        targets.extend(target);
        let above = path.parent().unwrap_or(path);
        if target_in(above).is_some_and(|target| targets.contains(&target)) {
            walk.skip_current_dir();
        }
    }
    targets
}

/// How to merge the copies of the file with this path in the prefix, if it is for all targets.
pub fn for_all(path: &Path) -> Option<ForAll> {
    match recognise(&with_slashes(path))? {
        (_, Place::ForAll(how)) => Some(how),
        _ => None,
    }
}

impl Database {
    /// Where a library in `directory` looks for it first.
    pub fn expected(&self, directory: &Path) -> PathBuf {
        let names = self.directories.first().copied().unwrap_or_default();
        // This is a directory of the prefix.
        let root = match names.first() {
            Some(&"share") => directory.parent().unwrap_or(directory),
            _ => directory,
        };
        root.join(PathBuf::from_iter(names))
    }

    /// Whether there are files of it in the directory where it is installed. All those of rocFFT are for all targets.
    pub fn has_files(&self, installed: &InstalledDatabase) -> bool {
        !installed.targets.is_empty() || self.is_beside(&installed.directory)
    }

    /// The file that its library loads first for a GPU, if it is missing from a directory with these names although others for its
    /// processor are there. Other missing files are found by the names in those files, or beside the files of other targets.
    pub fn missing_first<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        gpu: &TargetId,
    ) -> Option<String> {
        let names = BTreeSet::from_iter(names.map(uncompressed));
        let processor = gpu.processor();
        let own = |start: &'static str| {
            let own = names.iter().filter(move |name| name.starts_with(start));
            let targets = own.flat_map(|name| target_names::in_file_name(name));
            targets.filter(|target| target.processor() == processor)
        };
        if !self.is_tensile || own("").next().is_none() {
            return None;
        }
        let [lazy, by_processor, whole] = [
            format!("TensileLibrary_lazy_{processor}.dat"),
            format!("TensileLibrary_{processor}.dat"),
            "TensileLibrary.dat".to_owned(),
        ];
        if ![&lazy, &by_processor, &whole].into_iter().any(|first| names.contains(&**first)) {
            // The code of a library that is loaded as a whole is in one file.
            let is_whole = names.contains(&*format!("TensileLibrary_{processor}.co"));
            return Some(if is_whole { whole } else { lazy });
        }
        // Without these kernels, rocBLAS launches nothing for some types, and reports success.
        const SOURCE: &str = "Kernels.so-000-";
        if self.name != "rocblas" || own(SOURCE).any(|target| target.may_run_on(gpu)) {
            return None;
        }
        let features = |target: &TargetId| {
            Vec::from_iter(target.features().map(|(feature, _)| feature.to_owned()))
        };
        let like = own(SOURCE).next().map(|other| features(&other)).unwrap_or_default();
        let missing = gpu.compatible().into_iter().find(|target| features(target) == like);
        let missing = missing.unwrap_or_else(|| gpu.plain()).to_string();
        Some(format!("{SOURCE}{}.hsaco", missing.replace(':', "-")))
    }

    /// Whether a directory contains a file for all targets whose name shows that it belongs to this database.
    pub fn is_beside(&self, directory: &Path) -> bool {
        let Some(pattern) = self.beside else { return false };
        let is_own = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            matches_pattern(pattern, &name)
        };
        list(directory).is_ok_and(|listed| listed.iter().any(is_own))
    }

    fn recognise(&self, path: &[&str]) -> Option<Place> {
        let mut directories = self.directories.iter();
        let inside = directories.find_map(|directory| below(path, directory))?;
        let place = (self.place)(inside);
        if !matches!(place, None | Some(Place::Unnamed)) {
            return place;
        }
        let file = inside.last()?;
        let name = uncompressed(file);
        match self.for_all.iter().find(|(pattern, _)| matches_pattern(pattern, name)) {
            // Compressed files are not read.
            Some((_, ForAll::Merge(_))) if name != *file => {
                Some(Place::ForAll(ForAll::MustMatch(MustMatch::Fallback)))
            }
            Some((_, how)) => Some(Place::ForAll(*how)),
            None => place,
        }
    }
}

/// The components of `path` after these directories, which may be anywhere in it, each but the last with a
/// version after it.
fn below<'a>(path: &'a [&'a str], directories: &[&str]) -> Option<&'a [&'a str]> {
    let Some((first, others)) = directories.split_first() else {
        return Some(path);
    };
    let starts = (0..path.len()).filter(|start| path[*start] == *first);
    let mut inside = starts.filter_map(|start| {
        let rest = &path[start + 1..];
        others.iter().try_fold(rest, |rest, next| match rest {
            [found, rest @ ..] if found == next => Some(rest),
            [version, found, rest @ ..] if found == next && is_version(version) => Some(rest),
            _ => None,
        })
    });
    inside.find(|inside| !inside.is_empty())
}

/// Whether a directory is named after a version, such as `5` or `2.47.0`.
fn is_version(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+-~".contains(&byte);
    name.starts_with(|c: char| c.is_ascii_digit()) && name.bytes().all(plain)
}

fn directory_of_target(name: &str) -> Option<Place> {
    target_names::of_directory(name).map(Place::Target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_their_databases() {
        let database = |name: &str| of_library(name).map(|database| database.name);
        for (name, expected) in [
            ("librocblas.so.5", "rocblas"),
            ("librocblas-1a2b3c4d.so.5.2", "rocblas"),
            ("rocblas.dll", "rocblas"),
            ("libhipblaslt.so", "hipblaslt"),
            ("libhipblaslt.dll", "hipblaslt"),
            ("libMIOpen.so.1", "miopen"),
            ("MIOpen.dll", "miopen"),
        ] {
            assert_eq!(database(name), Some(expected), "{name}");
        }
        for name in [
            "libhipblas.so.3",
            "librocblas.a",
            "librocblas_extra.so",
            "rocblas-bench",
            "libaotriton.so",
        ] {
            assert_eq!(database(name), None, "{name}");
        }
    }

    #[test]
    fn the_file_that_a_library_loads_first() {
        let missing_for = |gpu: &str, library: &str, names: &[&str]| {
            let (names, gpu) = (names.iter().copied(), gpu.parse().unwrap());
            of_library(library).unwrap().missing_first(names, &gpu)
        };
        let missing = |library: &str, names: &[&str]| missing_for("gfx1100", library, names);
        let (lazy, kernels) = ("TensileLibrary_lazy_gfx1100.dat", "Kernels.so-000-gfx1100.hsaco");
        let code = "TensileLibrary_Type_SS_gfx1100.co";
        assert_eq!(missing("librocblas.so", &[lazy, kernels, code]), None);
        assert_eq!(missing("librocblas.so", &[kernels, code]).as_deref(), Some(lazy));
        assert_eq!(missing("librocblas.so", &[lazy, code]).as_deref(), Some(kernels));
        assert_eq!(missing("libhipblaslt.so", &[lazy, code]), None);
        let compressed = "TensileLibrary_lazy_gfx1100.dat.zlib";
        assert_eq!(missing("libhipblaslt.so", &[compressed, code]), None);
        // Others are loaded as a whole, or have nothing for this GPU.
        let (whole, code) = ("TensileLibrary.dat", "TensileLibrary_gfx1100.co");
        for library in [whole, "TensileLibrary_gfx1100.dat"] {
            assert_eq!(missing("librocblas.so", &[library, kernels, code]), None);
            assert_eq!(missing("librocblas.so", &[library, kernels]), None);
            assert_eq!(missing("librocblas.so", &[library, code]).as_deref(), Some(kernels));
            assert_eq!(missing("libhipblaslt.so", &[library, code]), None);
        }
        assert_eq!(missing("librocblas.so", &[kernels, code]).as_deref(), Some(whole));
        assert_eq!(missing("librocblas.so", &["TensileLibrary_Type_SS_gfx942.co"]), None);
        assert_eq!(missing("librocfft.so", &[code]), None);

        // Code for one setting of a feature does not run with the other.
        let (on, off) =
            ("Kernels.so-000-gfx90a-xnack+.hsaco", "Kernels.so-000-gfx90a-xnack-.hsaco");
        let any = "Kernels.so-000-gfx90a.hsaco";
        for (gpu, kernels, expected) in [
            ("gfx90a:sramecc+:xnack-", on, Some(off)),
            ("gfx90a:xnack+", off, Some(on)),
            ("gfx90a:sramecc+:xnack-", off, None),
            ("gfx90a:sramecc+:xnack-", any, None),
            ("gfx90a", on, None),
            ("gfx90a:xnack-", "TensileLibrary_gfx90a.co", Some(any)),
        ] {
            let found = missing_for(gpu, "librocblas.so", &[whole, kernels]);
            assert_eq!(found.as_deref(), expected, "{gpu}, {kernels}");
        }
    }

    fn place(path: &str) -> Option<(&'static str, String)> {
        recognise(path).map(|(database, place)| {
            let place = match place {
                Place::Target(target) => target.to_string(),
                other => format!("{other:?}"),
            };
            (database.name, place)
        })
    }

    /// One line for each kind of file: its path, its database, and what the path says.
    const FILES: &str = "
        lib/rocblas/library/TensileLibrary_Type_HH_gfx1100.co           rocblas            gfx1100
        lib/rocblas/library/TensileLibrary_lazy_gfx90a.dat              rocblas            gfx90a
        lib/rocblas/library/Kernels.so-000-gfx90a-xnack+.hsaco          rocblas            gfx90a:xnack+
        lib/rocblas/library/TensileLibrary_Type_HH_fallback.dat         rocblas            ForAll(MustMatch(Fallback))
        lib/rocblas/library/TensileLibrary_Type_HH.co                   rocblas            Unnamed
        lib/rocblas/library/TensileLibrary_Type_HH_fallback.co          rocblas            Unnamed
        lib/rocblas/library/hipblasltTransform.hsaco                    rocblas            Unnamed
        lib/rocblas/library/gfx1100/TensileLibrary_fallback.dat         rocblas            gfx1100
        lib/rocblas/library/gfx1100/TensileManifest.txt                 rocblas            gfx1100
        lib/rocblas/library/gfx1100/Kernels.so-000-gfx1101.hsaco        rocblas            Contradiction(gfx1100, gfx1101)
        lib/hipblaslt/library/extop_gfx942.co                           hipblaslt          gfx942
        lib/hipblaslt/library/hipblasltTransform.hsaco                  hipblaslt          ForAll(Merge(Bundle))
        lib/hipblaslt/library/hipblasltExtOpLibrary.dat                 hipblaslt          ForAll(Merge(ByTarget))
        lib/hipblaslt/library/hipblasltExtOpLibrary.dat.zlib            hipblaslt          ForAll(MustMatch(Fallback))
        lib/hipblaslt/library/TensileLiteLibrary_lazy_Mapping.dat.zlib  hipblaslt          ForAll(MustMatch(Mapping))
        lib/rocblas/library/TensileManifest.txt                         rocblas            ForAll(Merge(Lines))
        lib/rocfft/rocfft_kernel_cache.db                               rocfft             ForAll(Merge(KernelCache))
        lib/hipblaslt/library/TensileLibrary_Type_HH_gfx942.dat.zlib    hipblaslt          gfx942
        lib/hipblaslt/library/TensileLibrary_Type_HH_fallback.dat.zlib  hipblaslt          ForAll(MustMatch(Fallback))
        lib/hipsparselt/library/Kernels_gfx942_20cu.co                  hipsparselt        gfx942
        lib/hipsparselt/library/hipblasltTransform.hsaco                hipsparselt        ForAll(Merge(Bundle))
        lib/hipsparselt/library/hipblasltExtOpLibrary.dat               hipsparselt        ForAll(Merge(ByTarget))
        lib/hipsparselt/library/TensileLiteLibrary_lazy_Mapping.dat     hipsparselt        ForAll(MustMatch(Mapping))
        lib/rocblas/2.47.0/library/TensileLibrary_gfx803.co             rocblas            gfx803
        lib/rocblas/5/library/gfx1100/TensileManifest.txt               rocblas            gfx1100
        lib/hipblaslt/1.2/library/hipblasltTransform.hsaco              hipblaslt          ForAll(Merge(Bundle))
        lib/rocfft/1.0.27/rocfft_kernel_cache.db                        rocfft             ForAll(Merge(KernelCache))
        share/miopen/3.4.0/db/gfx942.HIP.fdb.txt                        miopen             gfx942
        share/miopen/db/gfx90a68.HIP.fdb.txt                            miopen             gfx90a
        share/miopen/db/gfx942_metadata.tn.model                        miopen             gfx942
        share/miopen/db/gfx1250-strict256.HIP.fdb.txt                   miopen             gfx1250-strict
        lib/rocblas/library/gfx1250-strict/TensileManifest.txt          rocblas            gfx1250-strict
        lib/rocblas/library/Kernels.so-000-gfx1250-strict.hsaco         rocblas            gfx1250-strict
        lib/libMIOpenCKGroupedConv_gfx1100.so                           miopen_ck          gfx1100
        lib/libMIOpenCKGroupedConv_gfx90a-xnack+.so.1.0                 miopen_ck          gfx90a:xnack+
        bin/MIOpenCK_gfx942.dll                                         miopen_ck          gfx942
        lib/libdevice_conv_operations_gfx942.a                          composablekernel   gfx942
        lib/libdevice_conv_operations_gfx950_xnackp.a                   composablekernel   gfx950:xnack+
        lib/libdevice_conv_operations_2d_gfx1250_strict.a               composablekernel   gfx1250-strict
        lib/aotriton.images/amd-gfx11xx/flash/attn_fwd.aks2             aotriton           gfx11
        lib/aotriton.images/amd-gfx120x/flash/attn_fwd.aks2             aotriton           gfx12_0
        lib/aotriton.images/amd-gfx115x/flash/attn_fwd.aks2             aotriton           gfx115x
        lib/aotriton.images/amd-gfx942/flash/attn_fwd.aks2              aotriton           gfx942
        lib/aotriton/kernels/gfx90a/flash/a.hsaco                       aotriton           gfx90a
        lib/hipkp/engines/arch_content/ck/gfx1201/kernels.bin           hipkernelprovider  gfx1201
        lib/hipkp/engines/arch_content/gfx1250-strict/kernels.bin       hipkernelprovider  gfx1250-strict
        bin/engines/test_arch_content/hkp/unit/shared/gfx942/a/b.bin    hipkernelprovider  gfx942
        share/rocjitsu/translations/gfx1250-b0-a0/v1/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.obj  hotswap_cache  gfx1250
    ";

    #[test]
    fn each_database_knows_its_files() {
        let mut named = BTreeSet::new();
        for line in FILES.trim().lines() {
            let (path, rest) = line.trim().split_once("  ").unwrap();
            let (database, says) = rest.trim().split_once(' ').unwrap();
            let says = says.trim().to_owned();
            assert_eq!(place(path), Some((database, says)), "{path}");
            named.insert(database);
        }
        let all = DATABASES.iter().map(|database| database.name);
        assert_eq!(named, all.collect());
        for path in [
            "lib/librocblas.so",
            "lib/librocfft.so",
            "lib/rocfft/other.db",
            "lib/rocblas/library_gfx1100.co",
            "lib/rocblas/old/library/TensileLibrary_gfx1100.co",
            "lib/rocblas/5/6/library/TensileLibrary_gfx1100.co",
            "share/miopen/db/readme_gfx90a.txt",
            "lib/aotriton.images/README.md",
            "lib/engines/arch_content/gfx90a",
            "lib/libMIOpen.so.1",
            "lib/libMIOpenCKGroupedConv_gfx1100.so_old",
            "bin/MIOpen.dll",
            "bin/MIOpenCK_gfx942.lib",
            "lib/libdevice_conv_operations.a",
            "lib/libdevice_gemm_operations_gfx942.a",
            "share/rocjitsu/translations/gfx1250-b0-a0/v1/index.json",
            "share/rocjitsu/translations/gfx942-x/v1/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.obj",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
    }

    #[test]
    fn what_is_installed_is_what_is_recognised() {
        let root = tempfile::tempdir().unwrap();
        let paths = FILES.trim().lines().filter_map(|line| line.split_whitespace().next());
        let more = [
            "lib/rocblas/library/all/gfx908/TensileLibrary.dat",
            "lib/rocblas/2.47.0/library/gfx940/TensileLibrary.dat",
            "share/miopen/db/more/gfx1030.kdb",
        ];
        let mut expected = Vec::new();
        for path in paths.chain(more) {
            let (database, place) = recognise(path).unwrap();
            let file = root.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            // These have no directories of their own.
            let is_alone = database.directories.iter().all(|parts| parts.is_empty());
            if let Place::Target(target) = place
                && !is_alone
            {
                expected.push((database.name, file, target));
            }
        }
        let library = root.path().join("lib/rocblas/library");
        std::fs::create_dir(library.join("gfx1010")).unwrap();
        for (target, link) in [("gfx1100", "gfx1102"), ("missing", "gfx1103")] {
            kpack_core::platform::symlink(target, library.join(link)).unwrap();
        }
        expected.push(("rocblas", library.join("gfx1102"), "gfx1102".parse().unwrap()));
        let roots = ["", "lib", "lib/hipkp", "bin"].map(|path| root.path().join(path));
        let roots = Vec::from_iter(roots.iter().map(PathBuf::as_path));
        let (installed, unlisted) = installed(&roots, &|_| true);
        assert!(unlisted.is_empty(), "{unlisted:?}");
        for (name, file, target) in expected {
            let mut own = installed.iter().filter(|found| found.name == name);
            let has = own
                .any(|found| file.starts_with(&found.directory) && found.targets.contains(&target));
            assert!(has, "{}: {installed:?}", file.display());
        }
        let empty = ["gfx1010", "gfx1103"].map(|name| name.parse().unwrap());
        assert!(!installed.iter().any(|found| empty.iter().any(|t| found.targets.contains(t))));
        let (only, _) = super::installed(&roots, &|database| database.name == "miopen");
        assert!(!only.is_empty() && only.iter().all(|found| found.name == "miopen"), "{only:?}");
    }
}
