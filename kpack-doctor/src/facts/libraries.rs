//! The libraries that a program or library would be loaded with, whatever the format of its file.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_core::Error;
use kpack_split::host;

use super::{dll_search, dynamic_linker};
use crate::system_libraries::SystemLibraries;

/// The libraries of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loading {
    /// The libraries, in the order of the search for symbols.
    Listed(Vec<LoadedLibrary>),
    /// The system cannot load the file, for this reason.
    Fails(String),
    /// Which ones is unknown, for this reason.
    Unknown(String),
}

/// A library that a file would be loaded with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedLibrary {
    /// The name that it was asked for.
    pub name: OsString,
    /// Other names for which the same file was found.
    pub other_names: Vec<OsString>,
    /// Where it is; `None` if it was not found.
    pub path: Option<PathBuf>,
    /// The file that asks for it.
    pub needed_by: PathBuf,
    /// When it is loaded.
    pub when: When,
    /// Whether the system provides it, so that nobody has to look for it. What it needs is not listed then.
    pub is_provided: bool,
}

/// When a library is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// With the file that needs it, which cannot be loaded without it.
    AtStart,
    /// By its name, when the code of a library of ROCm asks for it, which does not work without it.
    ByName,
    /// When a function of it is first called, as Windows can do.
    AtFirstCall,
}

impl LoadedLibrary {
    /// One that is asked for by its path.
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            name: path.into(),
            other_names: Vec::new(),
            path: Some(path.to_owned()),
            needed_by: path.to_owned(),
            when: When::AtStart,
            is_provided: false,
        }
    }

    /// Whether what needs it does not work, because it is missing.
    pub fn is_missing(&self) -> bool {
        self.path.is_none() && !self.is_provided && self.when != When::AtFirstCall
    }
}

/// What of a machine counts in a search. Libraries that are preloaded into every program never do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// The directory that libraries must be in, unless the system provides them. Variables do not count then. Without
    /// one, libraries are searched for as programs of this machine do.
    pub directory: Option<PathBuf>,
    /// What the system provides.
    pub system: SystemLibraries,
    /// What a library gets from the program that loads it by name: the directories of its DT_RPATH, which libraries without a run
    /// path inherit, or the directory of a program for Windows.
    pub inherited: Vec<PathBuf>,
}

impl Scope {
    /// Whether a file counts.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let Some(directory) = &self.directory else { return true };
        match (directory.canonicalize(), path.canonicalize()) {
            (Ok(directory), Ok(path)) => path.starts_with(directory),
            _ => false,
        }
    }

    /// Whether the system provides the library with this name or path.
    pub(crate) fn provides(&self, name: &Path) -> bool {
        let name = name.file_name().unwrap_or_default();
        name.to_str().is_some_and(|name| self.system.provides(name))
    }
}

/// The libraries of the file at `path`, breadth first; within a scope, those of it. If its tables are damaged, the system
/// rejects it as well.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read.
pub fn libraries(
    path: &Path,
    image: &host::Image<File>,
    scope: Option<&Scope>,
) -> Result<Loading, Error> {
    libraries_with(path, image, scope, &[])
}

/// The same for a file that may be a library which a program with these directories in its DT_RPATH loads by name.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read.
pub(crate) fn libraries_with(
    path: &Path,
    image: &host::Image<File>,
    scope: Option<&Scope>,
    inherited: &[PathBuf],
) -> Result<Loading, Error> {
    match image {
        host::Image::Elf(image) => dynamic_linker::libraries(path, image, scope, inherited),
        host::Image::Pe(image) => dll_search::libraries(path, image, scope),
    }
}

/// The directories that libraries inherit from the program at `path` if it loads them by name; none if it is a library.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub(crate) fn inherited_from(
    path: &Path,
    image: &host::Image<File>,
) -> Result<Vec<PathBuf>, Error> {
    match image {
        host::Image::Elf(image) => dynamic_linker::rpath_of_program(path, image),
        // Windows has no run paths.
        host::Image::Pe(_) => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use kpack_split::input::LinkedBinary;
    use kpack_tests::fixture::stub_library;
    use kpack_tests::process;
    use kpack_tests::tree::Tree;

    use super::*;

    /// The libraries of a file, each with where it is in the tree: `-` if it is missing, `system` if the system provides it.
    fn listed(tree: &Tree, file: &str, scope: Option<&Scope>) -> Vec<(String, String)> {
        let linked = LinkedBinary::open(&tree.path(file)).unwrap();
        let Loading::Listed(found) = libraries(&linked.path, &linked.image, scope).unwrap() else {
            panic!("{file}");
        };
        let described = found.into_iter().map(|library| {
            let real = library.path.map(|path| path.canonicalize().unwrap());
            let place = real.as_ref().map(|path| path.strip_prefix(tree.root()));
            let place = match (library.is_provided, place) {
                (true, _) => "system".to_owned(),
                (false, None) => "-".to_owned(),
                (false, Some(Err(_))) => "elsewhere".to_owned(),
                (false, Some(Ok(place))) => place.display().to_string(),
            };
            let name = Path::new(&library.name).file_name().unwrap();
            (name.to_string_lossy().into_owned(), place)
        });
        described.collect()
    }

    /// Given a program with a library beside it and one elsewhere, when only its directory counts, then the one elsewhere is
    /// missing, and those that the system provides are listed without what they need.
    #[test]
    fn only_the_scope_counts() {
        let tree = Tree::new();
        stub_library(&tree.path("app/libnear.so"), "", &[]);
        stub_library(&tree.path("rocm/libamdhip64.so.7"), "", &[]);
        stub_library(&tree.path("rocm/libdeep.so"), "", &[]);
        let far = [&*tree.path("rocm/libdeep.so")];
        stub_library(&tree.path("rocm/libfar.so"), "", &far);
        tree.write("main.c", "int main(void) { return 0; }");
        let mut cc = Command::new("cc");
        cc.args(["main.c", "-o", "app/main", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"]);
        cc.args(["app/libnear.so", "rocm/libfar.so", "rocm/libamdhip64.so.7"]);
        cc.arg("-Wl,-rpath,$ORIGIN:$ORIGIN/../rocm");
        process::run(cc.current_dir(tree.root()));
        let names = |found: Vec<(String, String)>| {
            let own = found.into_iter().filter(|(name, _)| !name.starts_with("ld-linux"));
            Vec::from_iter(own.map(|(name, place)| format!("{name} {place}")))
        };

        let mut scope = Scope::default();
        let [near, far, hip] = [
            "libnear.so app/libnear.so",
            "libfar.so rocm/libfar.so",
            "libamdhip64.so.7 rocm/libamdhip64.so.7",
        ];
        let deep = "libdeep.so rocm/libdeep.so";
        let all = names(listed(&tree, "app/main", None));
        assert_eq!(all, [near, far, hip, "libc.so.6 elsewhere", deep]);
        let all = names(listed(&tree, "app/main", Some(&scope)));
        assert_eq!(all, [near, far, hip, "libc.so.6 system", deep]);

        scope.directory = Some(tree.path("app"));
        let all = names(listed(&tree, "app/main", Some(&scope)));
        assert_eq!(all, [near, "libfar.so -", "libamdhip64.so.7 -", "libc.so.6 system"]);

        scope.system.rocm = true;
        scope.system.also = vec!["libf*.so".to_owned()];
        scope.system.except = vec!["libc.so.*".to_owned()];
        let all = names(listed(&tree, "app/main", Some(&scope)));
        assert_eq!(all, [near, "libfar.so system", "libamdhip64.so.7 system", "libc.so.6 -"]);
    }
}
