//! What a program needs: facts about the files where they are. Nothing is written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kpack_core::files::open;
use kpack_core::words::list;
use kpack_core::{Error, Finding, Severity, ids, interrupt};
use kpack_doctor::internal::{
    Loading, data_of, libraries as libraries_of, libraries_beside, matches_library,
};
use kpack_doctor::{Scope, SystemLibraries};
use kpack_split::elf::{DeviceCode, Dynamic};
use kpack_split::input::{
    FileKind, LinkedBinary, Lookup, Resolver, binary_error, identify, placed,
};
use object::elf;

use super::options::{Also, AppOptions};
use super::quoted;

/// What a file is in the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// A program that was given.
    Program,
    /// A library that a file loads, or one that was given.
    Library,
    /// A library that a program loads by name: its directory in the output, if that was given.
    Also(Option<PathBuf>),
}

/// A program or library.
#[derive(Debug)]
pub(super) struct Binary {
    /// Where it was found.
    pub(super) path: PathBuf,
    /// The same, with its directory without symbolic links.
    pub(super) directory: PathBuf,
    pub(super) role: Role,
    /// Whether it is for Windows, which searches for DLLs beside the program.
    pub(super) is_for_windows: bool,
    /// Whether it has device code that is not split.
    pub(super) is_fat: bool,
    /// The names by which it is loaded.
    pub(super) names: BTreeSet<OsString>,
    /// The archives with its device code, with their targets, and their manifests.
    pub(super) archives: BTreeMap<PathBuf, String>,
    pub(super) manifests: BTreeSet<PathBuf>,
    /// Files and directories that it reads.
    pub(super) data: Vec<PathBuf>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// By path without symbolic links.
    pub(super) binaries: BTreeMap<PathBuf, Binary>,
    /// The libraries that the system must provide.
    pub(super) provided: BTreeSet<String>,
    /// What to say about the options.
    pub(super) findings: Vec<Finding>,
}

/// What is still to be looked at.
struct Found {
    path: PathBuf,
    role: Role,
    name: OsString,
}

struct Collector<'a> {
    system: &'a SystemLibraries,
    lookup: Lookup,
    facts: Facts,
    left: VecDeque<Found>,
    /// The names of all libraries that anything needs.
    names: BTreeSet<String>,
    /// For each library that was not found, the files that need it.
    missing: BTreeMap<String, BTreeSet<PathBuf>>,
    /// The directories of programs for Windows, where DLLs find others.
    program_directories: Vec<PathBuf>,
}

/// Finds what the given programs and libraries need.
///
/// # Errors
/// [`Error::Refused`] for what is no program or library, and for libraries that were not found; [`Error::Io`].
pub(super) fn collect(options: &AppOptions, system: &SystemLibraries) -> Result<Facts, Error> {
    let mut collector = Collector {
        system,
        lookup: Lookup::default(),
        facts: Facts::default(),
        left: VecDeque::new(),
        names: BTreeSet::new(),
        missing: BTreeMap::new(),
        program_directories: Vec::new(),
    };
    for path in &options.programs {
        let name = path.file_name().unwrap_or_default().to_owned();
        // The file itself says whether it is a library.
        collector.left.push_back(Found { path: path.clone(), role: Role::Program, name });
    }
    for also in &options.also {
        let Also { library, directory } = also.clone();
        let name = also.name();
        collector.left.push_back(Found { path: library, role: Role::Also(directory), name });
    }
    while let Some(found) = collector.left.pop_front() {
        interrupt::check(&found.path, "read")?;
        collector.root(found)?;
    }
    collector.all_there()?;
    collector.all_named();
    Ok(collector.facts)
}

impl Collector<'_> {
    /// Adds a file, and the libraries that it is loaded with.
    fn root(&mut self, found: Found) -> Result<(), Error> {
        let linked = read(&found.path)?;
        let role = match found.role {
            Role::Program if !linked.image.is_program().map_err(|e| linked.error(e))? => {
                Role::Library
            }
            role => role,
        };
        let is_program = role == Role::Program;
        if !self.add(&linked, &found.path, role, found.name)? {
            return Ok(());
        }
        let inherited = if is_program { &[][..] } else { &self.program_directories };
        let loading = libraries(&linked, self.system, inherited)?;
        if is_program && linked.image.is_for_windows() {
            let real = found.path.canonicalize().map_err(|e| Error::io(&found.path, "find", e))?;
            self.program_directories.extend(real.parent().map(Path::to_owned));
        }
        let libraries = match loading {
            Loading::Listed(libraries) => libraries,
            Loading::Fails(why) => {
                let text = format!("the dynamic linker cannot load it: {why}");
                return Err(Error::rejected(ids::NOT_LOADABLE, &found.path, text));
            }
            Loading::Unknown(why) => {
                let text = format!("kpack cannot tell which libraries it loads: {why}");
                return Err(Error::rejected(ids::UNKNOWN_RUNTIME, &found.path, text));
            }
        };
        for library in libraries {
            let name = library.name.to_string_lossy().into_owned();
            let file_name = Path::new(&library.name).file_name().unwrap_or_default().to_owned();
            self.names.insert(file_name.to_string_lossy().into_owned());
            if library.is_provided {
                self.facts.provided.insert(name);
                continue;
            }
            let is_missing = library.is_missing();
            let Some(path) = library.path else {
                if !is_missing {
                    continue;
                }
                if name.is_empty() {
                    let text = "needs a library without a name (an empty DT_NEEDED), which the dynamic linker cannot load; \
                        link it again";
                    return Err(Error::rejected(ids::NOT_LOADABLE, &library.needed_by, text));
                }
                self.missing.entry(name).or_default().insert(library.needed_by);
                continue;
            };
            if Path::new(&library.name).components().count() > 1 {
                return Err(loads_by_path(
                    &library.needed_by,
                    &name,
                    &file_name.to_string_lossy(),
                )?);
            }
            let linked = read(&path)?;
            // Case does not matter in names of DLLs.
            let is_dll = linked.image.is_for_windows();
            let own = path.file_name().filter(|_| is_dll).map(ToOwned::to_owned);
            let names = [own.unwrap_or(file_name)].into_iter().chain(library.other_names);
            for name in names {
                self.add(&linked, &path, Role::Library, name)?;
            }
        }
        Ok(())
    }

    /// Adds a binary and what it reads. Whether it is new.
    fn add(
        &mut self,
        linked: &LinkedBinary,
        path: &Path,
        role: Role,
        name: OsString,
    ) -> Result<bool, Error> {
        let real = path.canonicalize().map_err(|e| Error::io(path, "find", e))?;
        if let Some(known) = self.facts.binaries.get_mut(&real) {
            known.names.insert(name);
            if let (Role::Also(one), Role::Also(other)) = (&known.role, &role)
                && one != other
            {
                let text = format!(
                    "`--also` lists {} for two directories of the output; pass it once",
                    path.display()
                );
                return Err(Error::usage(text));
            }
            // A library that something loads may be given as well, with its directory.
            if known.role == Role::Library && role != Role::Library {
                known.role = role;
            }
            return Ok(false);
        }
        let at = match role {
            // The kernel starts what a link leads to.
            Role::Program => real.clone(),
            _ => placed(path).unwrap_or_else(|| real.clone()),
        };
        let directory = at.parent().unwrap_or(Path::new("/")).to_owned();
        let mut binary = Binary {
            path: path.to_owned(),
            directory: directory.clone(),
            role,
            is_for_windows: linked.image.is_for_windows(),
            is_fat: matches!(linked.code, DeviceCode::Fat(_)),
            names: BTreeSet::from([name.clone()]),
            archives: BTreeMap::new(),
            manifests: BTreeSet::new(),
            data: Vec::new(),
        };
        self.archives(linked, &mut binary)?;
        if binary.role != Role::Program {
            let name = name.to_string_lossy();
            binary.data = data_of(&directory, &name)?;
            for path in libraries_beside(&directory, &name)? {
                let name = path.file_name().unwrap_or_default().to_owned();
                let text = name.to_string_lossy().into_owned();
                if self.system.provides(&text) {
                    self.facts.provided.insert(text.clone());
                } else {
                    self.left.push_back(Found { path, role: Role::Library, name });
                }
                self.names.insert(text);
            }
        }
        self.facts.binaries.insert(real, binary);
        Ok(true)
    }

    /// Adds the archives that the markers of a binary lead to.
    fn archives(&self, linked: &LinkedBinary, binary: &mut Binary) -> Result<(), Error> {
        let DeviceCode::Split(_) = &linked.code else {
            return Ok(());
        };
        for group in linked.markers()? {
            let Some(name) = &group.marker.kernel_name else {
                let text = "its marker names no kernels, so kpack cannot tell which archives it needs; split it again";
                return Err(Error::rejected(ids::EARLY_MARKER, &binary.path, text));
            };
            let resolver = Resolver::open(
                &self.lookup,
                &linked.image,
                &linked.loaded_as(),
                &group.marker,
                name,
            )?;
            let there = resolver.kpacks.files.iter().filter(|kpack| kpack.size.is_some());
            binary.archives.extend(there.map(|kpack| (kpack.path.clone(), kpack.target.clone())));
            binary.manifests.extend(resolver.kpacks.manifests.iter().cloned());
            if binary.archives.is_empty() {
                let text = format!(
                    "was split, and none of its archives is there (`{}`); install them first",
                    group.marker.kpack_search_paths.join("`, `")
                );
                return Err(Error::rejected(ids::MISSING_ARCHIVE, &binary.path, text));
            }
        }
        Ok(())
    }

    /// Fails if a library was not found.
    fn all_there(&mut self) -> Result<(), Error> {
        // The dynamic linker takes a library that is loaded under the same name. The output leads to it, whatever is loaded first.
        let libraries = self.facts.binaries.values().filter(|binary| binary.role != Role::Program);
        for name in libraries.flat_map(|library| &library.names) {
            self.missing.remove(&*name.to_string_lossy());
        }
        let Some((name, by)) = self.missing.first_key_value() else {
            return Ok(());
        };
        let needed_by = by.first().map_or(Path::new(""), PathBuf::as_path);
        let is_dll = Path::new(name).extension().is_some_and(|end| end.eq_ignore_ascii_case("dll"));
        let others = match &Vec::from_iter(self.missing.keys().skip(1))[..] {
            [] => String::new(),
            others => format!("; also missing: {}", list(others)),
        };
        let not_found = match is_dll {
            true => format!("is not in its directory or the program's{others}; copy it there"),
            false => format!(
                "the dynamic linker does not find{others}; install it, add its directory to LD_LIBRARY_PATH"
            ),
        };
        let text = format!(
            "needs {name}, which {not_found}, or leave it out with `--exclude {}`",
            quoted(name)
        );
        Err(Error::rejected(ids::MISSING_LIBRARY, needed_by, text))
    }

    /// Warns of names in options that nothing has: somebody wrote them for a library.
    fn all_named(&mut self) {
        let options = [("--exclude", &self.system.also), ("--include", &self.system.except)];
        for (option, patterns) in options {
            for pattern in patterns {
                if self.names.iter().any(|name| matches_library(pattern, name)) {
                    continue;
                }
                let text = format!(
                    "`{option} {}` has no effect, because no library that is needed has this name",
                    quoted(pattern)
                );
                self.facts.findings.push(Finding::general(Severity::Warning, ids::USAGE, text));
            }
        }
    }
}

/// Why a file that loads a library by its path cannot be staged.
fn loads_by_path(file: &Path, name: &str, file_name: &str) -> Result<Error, Error> {
    // The dynamic linker replaces `$ORIGIN`, but what changes the file needs the name that is in it.
    let linked = read(file)?;
    let own = match linked.image.elf() {
        Some(image) => Dynamic::read(image)
            .and_then(|dynamic| dynamic.strings(image, elf::DT_NEEDED))
            .map_err(|error| binary_error(file, error))?,
        None => Vec::new(),
    };
    let mut own = own.iter().map(|own| String::from_utf8_lossy(own));
    let own = own.find(|own| own.contains('$') && own.ends_with(&format!("/{file_name}")));
    let (name, why) = match &own {
        Some(own) => (&**own, "relative to its own, which staging changes"),
        None => (name, "where no other machine has it"),
    };
    let text = format!(
        "loads {name} by its path, {why}; link that library by its name \
         (`patchelf --replace-needed {} {} FILE` changes it in a copy)",
        quoted(name),
        quoted(file_name)
    );
    Ok(Error::rejected(ids::NOT_LOADABLE, file, text))
}

/// Reads a program or library.
fn read(path: &Path) -> Result<LinkedBinary, Error> {
    let file = open(path)?;
    if identify(path, &file)? != Some(FileKind::Linked) {
        let text = "not a program or shared library; pass those (of a script, pass the program that it starts)";
        return Err(Error::rejected(ids::UNKNOWN_FILE, path, text));
    }
    LinkedBinary::read(path, file)
}

/// The libraries that a file is loaded with, apart from those that only libraries of the system need.
fn libraries(
    linked: &LinkedBinary,
    system: &SystemLibraries,
    inherited: &[PathBuf],
) -> Result<Loading, Error> {
    if let Some(image) = linked.image.elf() {
        let dynamic = Dynamic::read(image).map_err(|error| binary_error(&linked.path, error))?;
        if dynamic.entries.is_empty() {
            return Ok(Loading::Listed(Vec::new()));
        }
    }
    let (system, inherited) = (system.clone(), inherited.to_owned());
    let scope = Scope { system, inherited, ..Scope::default() };
    libraries_of(&linked.path, &linked.image, Some(&scope))
}
