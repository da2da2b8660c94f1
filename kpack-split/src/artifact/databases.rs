//! The kernel databases of the ROCm libraries: files that are device code, or about it, one target
//! each.
//!
//! Another database is another entry of [`DATABASES`]: a name, and a function that says from the
//! path in the prefix alone whose a file is. The test below has a line for each; what the file
//! itself says is compared by [`classify`](super::classify), the same way for all.

use std::fmt;

use kpack_format::TargetId;

use super::data_file::uncompressed;
use super::target_name;

/// A kernel database.
#[derive(Debug)]
pub struct Database {
    /// What it is called in lower case, such as `rocblas`.
    pub name: &'static str,
    /// Where its files are and whose they are, for people.
    pub description: &'static str,
    /// The place of a file, from the parts of its path in the prefix; `None` for a file of
    /// something else.
    recognise: fn(&[&str]) -> Option<Place>,
}

/// What the path of a database file says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// It is of a target.
    Target(TargetId),
    /// It is of all targets, whatever it has or names itself.
    Shared,
    /// It does not say; the file itself may.
    Unnamed,
    /// It says one target here and another there.
    Contradiction(TargetId, TargetId),
}

/// All of them.
pub const DATABASES: &[Database] = &[
    Database {
        name: "rocblas",
        description: "rocblas/library, by file name, or a directory for each target",
        recognise: |path| tensile(path, "rocblas"),
    },
    Database {
        name: "hipblaslt",
        description: "hipblaslt/library, by file name, or a directory for each target",
        recognise: |path| tensile(path, "hipblaslt"),
    },
    Database {
        name: "hipsparselt",
        description: "hipsparselt/library, by file name, or a directory for each target",
        recognise: |path| tensile(path, "hipsparselt"),
    },
    Database {
        name: "miopen",
        description: "share/miopen/db, by the beginning of the file name",
        recognise: |path| {
            let file = below(path, &["share", "miopen", "db"])?.last()?;
            target_name::leading(file).map(Place::Target)
        },
    },
    Database {
        name: "aotriton",
        description: "aotriton/kernels/gfx* and aotriton.images/amd-gfx*",
        recognise: |path| {
            let inside = below(path, &["aotriton", "kernels"]);
            let inside = inside.or_else(|| below(path, &["aotriton.images"]))?;
            let (directory, _) = inside.split_first()?;
            target_name::of_directory(directory).map(Place::Target)
        },
    },
    Database {
        name: "hipkernelprovider",
        description: "engines/arch_content/<engine>/<target>",
        recognise: |path| {
            let inside = below(path, &["engines", "arch_content"])?;
            target_name::of_directory(inside.get(1)?).map(Place::Target)
        },
    },
];

/// Which databases are known places.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Selection {
    /// All of them.
    #[default]
    Auto,
    /// None.
    None,
    /// Those with these names.
    Named(Vec<String>),
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names() {
            names if names.is_empty() => f.write_str("none"),
            names => f.write_str(&names.join(", ")),
        }
    }
}

impl Selection {
    /// The names of those that are selected.
    pub fn names(&self) -> Vec<String> {
        let selected = DATABASES.iter().filter(|database| self.has(database));
        selected.map(|database| database.name.to_owned()).collect()
    }

    /// Whether this database is selected.
    pub fn has(&self, database: &Database) -> bool {
        match self {
            Self::Auto => true,
            Self::None => false,
            Self::Named(names) => names.iter().any(|name| name == database.name),
        }
    }
}

/// The database that a file with this path in the prefix is of, and what the path says. A path is
/// of one database at most.
pub fn recognise(path: &str) -> Option<(&'static Database, Place)> {
    let parts: Vec<&str> = path.split('/').collect();
    let mut found = DATABASES
        .iter()
        .map(|database| Some((database, (database.recognise)(&parts)?)));
    found.find_map(|found| found)
}

/// The parts of `path` behind the directories that are named, which may be anywhere in it.
fn below<'a>(path: &'a [&'a str], directories: &[&str]) -> Option<&'a [&'a str]> {
    let count = directories.len();
    let start = path
        .windows(count)
        .position(|window| window == directories)?;
    path.get(start + count..)
        .filter(|inside| !inside.is_empty())
}

/// The libraries of Tensile. Flat, the files are told apart by their names. Where a directory is
/// named after a target, everything in it is the target's, whatever its name. Newer builds compress
/// their library files (`.dat.zlib`).
fn tensile(path: &[&str], library: &str) -> Option<Place> {
    let inside = below(path, &[library, "library"])?;
    let (file, directories) = inside.split_last()?;
    let named = target_name::in_file_name(file);
    let mut directories = directories
        .iter()
        .map(|name| target_name::of_directory(name));
    if let Some(target) = directories.find_map(|target| target) {
        let other = named
            .into_iter()
            .find(|named| !target_name::matches_processor(target.processor(), named.processor()));
        return Some(match other {
            Some(other) => Place::Contradiction(target, other),
            None => Place::Target(target),
        });
    }
    let file = uncompressed(file);
    let (_, extension) = file.rsplit_once('.')?;
    if !matches!(extension, "co" | "hsaco" | "dat") {
        return None;
    }
    let mut named = named.into_iter();
    Some(match (named.next(), named.next()) {
        (Some(one), Some(other)) => Place::Contradiction(one, other),
        (Some(target), None) => Place::Target(target),
        (None, _) if is_shared(library, file) => Place::Shared,
        (None, _) => Place::Unnamed,
    })
}

/// The files of the flat layout that are for all targets. They stay generic, though they name the
/// targets of one build or have code for them: the exceptions to the rule that a generic artifact
/// holds nothing that is specific to an architecture.
fn is_shared(library: &str, file: &str) -> bool {
    let is_fallback = file.starts_with("TensileLibrary_") && file.ends_with("_fallback.dat");
    is_fallback || library == "hipblaslt" && SHARED_OF_HIPBLASLT.contains(&file)
}

/// Besides `TensileLibrary_*_fallback.dat`, which all three libraries have.
const SHARED_OF_HIPBLASLT: [&str; 2] = ["hipblasltTransform.hsaco", "hipblasltExtOpLibrary.dat"];

#[cfg(test)]
mod tests {
    use super::*;

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
    #[test]
    fn each_database_knows_its_files() {
        for (path, database, says) in [
            (
                "lib/rocblas/library/TensileLibrary_Type_HH_gfx1100.co",
                "rocblas",
                "gfx1100",
            ),
            (
                "lib/rocblas/library/TensileLibrary_lazy_gfx90a.dat",
                "rocblas",
                "gfx90a",
            ),
            (
                "lib/rocblas/library/Kernels.so-000-gfx90a-xnack+.hsaco",
                "rocblas",
                "gfx90a:xnack+",
            ),
            (
                "lib/rocblas/library/TensileLibrary_Type_HH_fallback.dat",
                "rocblas",
                "Shared",
            ),
            (
                "lib/rocblas/library/TensileLibrary_Type_HH.co",
                "rocblas",
                "Unnamed",
            ),
            (
                "lib/rocblas/library/TensileLibrary_Type_HH_fallback.co",
                "rocblas",
                "Unnamed",
            ),
            (
                "lib/rocblas/library/hipblasltTransform.hsaco",
                "rocblas",
                "Unnamed",
            ),
            (
                "lib/rocblas/library/gfx1100/TensileLibrary_fallback.dat",
                "rocblas",
                "gfx1100",
            ),
            (
                "lib/rocblas/library/gfx1100/TensileManifest.txt",
                "rocblas",
                "gfx1100",
            ),
            (
                "lib/rocblas/library/gfx1100/Kernels.so-000-gfx1101.hsaco",
                "rocblas",
                "Contradiction(gfx1100, gfx1101)",
            ),
            (
                "lib/hipblaslt/library/extop_gfx942.co",
                "hipblaslt",
                "gfx942",
            ),
            (
                "lib/hipblaslt/library/hipblasltTransform.hsaco",
                "hipblaslt",
                "Shared",
            ),
            (
                "lib/hipblaslt/library/hipblasltExtOpLibrary.dat",
                "hipblaslt",
                "Shared",
            ),
            (
                "lib/hipblaslt/library/TensileLibrary_Type_HH_gfx942.dat.zlib",
                "hipblaslt",
                "gfx942",
            ),
            (
                "lib/hipblaslt/library/TensileLibrary_Type_HH_fallback.dat.zlib",
                "hipblaslt",
                "Shared",
            ),
            (
                "lib/hipsparselt/library/Kernels_gfx942_20cu.co",
                "hipsparselt",
                "gfx942",
            ),
            ("share/miopen/db/gfx90a68.HIP.fdb.txt", "miopen", "gfx90a"),
            (
                "share/miopen/db/gfx942_metadata.tn.model",
                "miopen",
                "gfx942",
            ),
            (
                "lib/aotriton.images/amd-gfx11xx/flash/attn_fwd.aks2",
                "aotriton",
                "gfx11xx",
            ),
            (
                "lib/aotriton/kernels/gfx90a/flash/a.hsaco",
                "aotriton",
                "gfx90a",
            ),
            (
                "lib/hipkp/engines/arch_content/ck/gfx1201/kernels.bin",
                "hipkernelprovider",
                "gfx1201",
            ),
        ] {
            assert_eq!(place(path), Some((database, says.to_owned())), "{path}");
        }
        for path in [
            "lib/librocblas.so",
            "lib/rocblas/library/TensileManifest.txt",
            "lib/rocblas/library_gfx1100.co",
            "share/miopen/db/readme_gfx90a.txt",
            "lib/aotriton.images/README.md",
            "lib/engines/arch_content/gfx90a",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
    }

    #[test]
    fn every_database_has_a_line_above() {
        let source = include_str!("databases.rs");
        let (_, behind) = source
            .split_once("fn each_database_knows_its_files")
            .unwrap();
        let (tests, _) = behind.split_once("#[test]").unwrap();
        for database in DATABASES {
            assert!(
                tests.contains(&format!("\"{}\"", database.name)),
                "{}",
                database.name
            );
        }
    }

    #[test]
    fn a_selection_names_databases() {
        let names = |selection: Selection| -> Vec<&str> {
            let selected = DATABASES.iter().filter(|database| selection.has(database));
            selected.map(|database| database.name).collect()
        };
        assert_eq!(names(Selection::Auto).len(), DATABASES.len());
        assert!(names(Selection::None).is_empty());
        assert_eq!(
            names(Selection::Named(vec!["miopen".to_owned()])),
            ["miopen"]
        );
    }
}
