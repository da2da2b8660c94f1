//! What the files of a process need and do not have: libraries, and the kernel databases of ROCm's libraries.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kpack_core::files::{self, with_slashes};
use kpack_core::{Error, Finding};
use kpack_format::TargetId;
use kpack_split::elf::DeviceCode;
use kpack_split::input::{self, LinkedBinary, or_refused, placed};
use kpack_tree::databases::{self, Database, InstalledDatabase};
use kpack_tree::gaps::gaps;
use kpack_tree::place::Place;
use kpack_tree::{DatabaseSelection, Only, Parsed, Walk};

use super::libraries::{LoadedLibrary, Loading};
use super::machine::Reader;
use super::runtime::{Loader, Runtime, is_runtime};
use crate::image;

/// What is lacking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// The libraries, apart from the HIP runtime and the loader.
    pub(crate) libraries: Vec<LackingLibrary>,
    pub(crate) databases: Vec<LackingDatabase>,
}

/// A library that was not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LackingLibrary {
    pub(crate) library: LoadedLibrary,
    /// Another version of it, beside what needs it.
    pub(crate) other: Option<PathBuf>,
}

/// What is wrong with the kernel database of a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LackingDatabase {
    /// There is none.
    All {
        library: PathBuf,
        database: &'static str,
        /// Its directory, or where that would be.
        directory: PathBuf,
        /// Whether there is such a directory, without files for a GPU.
        is_there: bool,
        /// Whether the library does not work without it.
        is_required: bool,
    },
    /// Files of it are missing: one that needs them, and what to say.
    Files(PathBuf, String),
    /// A file of it is damaged.
    Damaged(Finding),
}

impl Lacking {
    /// What `file` and its libraries lack. Whether databases are complete is a matter of a program: a prefix may have many.
    pub(crate) fn of(
        file: &Path,
        loading: &Loading,
        runtime: &Runtime,
        reader: &Reader,
        is_program: bool,
    ) -> Result<Self, Error> {
        let mut lacking = Self::default();
        let Loading::Listed(libraries) = loading else { return Ok(lacking) };
        // These are reported with what they mean for code.
        let loader = match runtime {
            Runtime::Found(hip) => match &hip.loader {
                Some(Loader::Missing { name, .. }) => Some(name.as_str()),
                _ => None,
            },
            _ => None,
        };
        for library in libraries.iter().filter(|library| library.is_missing()) {
            let name = library.name.to_string_lossy();
            if !is_runtime(&name) && loader != Some(&*name) {
                let other = other_version(&name, &library.needed_by);
                lacking.libraries.push(LackingLibrary { library: library.clone(), other });
            }
        }
        let own = libraries.iter().filter(|library| !library.is_provided);
        let paths = own.filter_map(|library| library.path.as_deref());
        for library in std::iter::once(file).chain(paths) {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            let Some(database) = databases::of_library(&name) else { continue };
            // It is elsewhere then.
            let is_set = |name: &str| image::variable(name).is_some_and(|value| !value.is_empty());
            if reader.machine.is_confined || !is_set(database.variable) {
                lacking.add_database(library, database, reader, is_program)?;
            }
        }
        Ok(lacking)
    }

    /// Adds what the database of a library lacks.
    fn add_database(
        &mut self,
        library: &Path,
        database: &'static Database,
        reader: &Reader,
        is_program: bool,
    ) -> Result<(), Error> {
        let library = placed(library).unwrap_or_else(|| library.to_owned());
        let directory = library.parent().unwrap_or(Path::new("/"));
        let roots = database_roots(directory, reader);
        let (found, unlisted) = databases::installed(&roots, &|other| other.name == database.name);
        // Nobody knows what is in there.
        if !unlisted.is_empty() {
            return Ok(());
        }
        let (found, without_files): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|found| database.has_files(found));
        // ROCm 7.14's rocFFT has its kernels in archives.
        let is_split = || {
            let linked = or_refused(LinkedBinary::open(&library))?;
            Ok::<_, Error>(linked.is_ok_and(|linked| matches!(linked.code, DeviceCode::Split(_))))
        };
        let is_lacking = found.is_empty() && !database.is_beside(directory);
        if is_lacking && (database.is_required || !is_split()?) {
            let there = without_files.into_iter().next().map(|found| found.directory);
            self.databases.push(LackingDatabase::All {
                database: database.name,
                is_there: there.is_some(),
                directory: there.unwrap_or_else(|| database.expected(directory)),
                is_required: database.is_required,
                library: library.clone(),
            });
        }
        for found in found.iter().filter(|_| is_program && database.is_tensile) {
            let root = roots.iter().find(|root| found.directory.starts_with(root));
            self.add_files(root.copied().unwrap_or(directory), database, found, reader)?;
        }
        Ok(())
    }

    /// Adds the files that an installed database lacks for the GPUs of the machine.
    fn add_files(
        &mut self,
        root: &Path,
        database: &Database,
        found: &InstalledDatabase,
        reader: &Reader,
    ) -> Result<(), Error> {
        let selection = DatabaseSelection::all();
        let walk = Walk {
            prefix: root,
            databases: &selection,
            parsed: Parsed::default(),
            only: Only::Databases,
        };
        let is_for = |target: &TargetId| {
            let mut gpus = reader.machine.gpus().iter();
            gpus.any(|gpu| {
                gpu.processor() == target.processor() || gpu.may_run(&target.to_string())
            })
        };
        let mut entries = Vec::new();
        for entry in input::walk(&found.directory).min_depth(1) {
            // Another tool may be replacing it.
            let Ok(entry) = entry else { continue };
            let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
            // Those of other GPUs can be thousands.
            let is_of_other = matches!(
                databases::recognise(&with_slashes(path)),
                Some((_, Place::Target(target))) if !is_for(&target)
            );
            if entry.file_type().is_dir() || is_of_other {
                continue;
            }
            match or_refused(walk.entry(&entry)) {
                Ok(Ok(classified)) => entries.push(classified.entry),
                Ok(Err(found)) => self.databases.push(LackingDatabase::Damaged(found)),
                Err(Error::Io { source, .. })
                    if matches!(
                        source.kind(),
                        ErrorKind::PermissionDenied | ErrorKind::NotFound
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        let names = entries.iter().filter_map(|entry| entry.path.file_name()?.to_str());
        // Other files may be useless without this one, so it comes before them.
        for gpu in reader.machine.gpus() {
            let first = database.missing_first(names.clone(), gpu);
            let text =
                first.map(|first| format!("{first} is missing, which the library loads first"));
            let directory = found.directory.clone();
            self.databases.extend(text.map(|text| LackingDatabase::Files(directory, text)));
        }
        let gaps = gaps(entries.iter()).into_iter();
        let own = gaps.filter(|gap| gap.targets.is_empty() || gap.targets.iter().any(is_for));
        let files = own.map(|gap| LackingDatabase::Files(gap.from.clone(), gap.text()));
        self.databases.extend(files);
        Ok(())
    }
}

/// The directories where the databases of a library in `directory` may be.
pub(super) fn database_roots<'d>(directory: &'d Path, reader: &Reader) -> Vec<&'d Path> {
    let mut roots = databases::roots(directory);
    roots.retain(|root| reader.scope.as_ref().is_none_or(|scope| scope.has(root)));
    roots
}

/// A file beside `needed_by` that has the name of a library of Linux with another version. One with this very name was not found
/// because no run path leads to it.
pub(super) fn other_version(name: &str, needed_by: &Path) -> Option<PathBuf> {
    let (stem, _) = name.split_once(".so")?;
    let beside = files::list(placed(needed_by)?.parent()?).ok()?;
    beside.into_iter().find(|path| {
        let other = path.file_name().unwrap_or_default().to_string_lossy();
        let rest = other.strip_prefix(stem).filter(|_| other != name);
        rest.is_some_and(|rest| rest.starts_with(".so")) && path.is_file()
    })
}
