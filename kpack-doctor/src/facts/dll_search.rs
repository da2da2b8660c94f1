//! Finds the DLLs that a file would be loaded with, as Windows does for programs that are not packaged
//! (<https://learn.microsoft.com/en-us/windows/win32/dlls/dynamic-link-library-search-order>): API sets, DLLs that are
//! loaded already, known DLLs, the program's directory, those of Windows, and then PATH. The files may be on any system.
//!
//! A DLL that is examined by itself is taken to be loaded by its path: what it needs is then searched for in its own
//! directory, and in that of the program, if a scope says which. Manifests, and what programs add to the search, are left out.

use std::collections::{HashMap, HashSet, VecDeque};
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::iter;
use std::path::{Path, PathBuf};

use kpack_core::{Error, files};
use kpack_format::names::fold_case;
use kpack_split::input::{self, binary_error, or_refused};
use kpack_split::pe::Image;

use super::companions;
use super::libraries::{LoadedLibrary, Loading, Scope, When};
use crate::image;
use crate::system_libraries::group_of;

/// What Windows adds to a name without an extension.
const EXTENSION: &str = ".dll";

/// The DLLs of the file at `path`.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read.
pub(crate) fn libraries(
    path: &Path,
    image: &Image<File>,
    scope: Option<&Scope>,
) -> Result<Loading, Error> {
    let path = std::path::absolute(path).map_err(|e| Error::io(path, "find", e))?;
    let mut search = Search::new(path.parent().unwrap_or(Path::new("/")), scope)?;
    let found = or_refused(search.all(&path, image))?;
    Ok(match found {
        Ok(()) => Loading::Listed(search.listed),
        Err(found) => Loading::Fails(format!("{}: {}", found.file().display(), found.text)),
    })
}

/// A DLL that is asked for.
struct Request {
    name: String,
    needed_by: PathBuf,
    when: When,
}

/// The search for the DLLs of one file.
struct Search<'s> {
    scope: Option<&'s Scope>,
    /// The files in the directory of the file and in that of the program, by the keys of their names. The former count first.
    beside: HashMap<String, PathBuf>,
    /// The directories that are searched after it.
    directories: Vec<PathBuf>,
    /// How many of these are the system's.
    of_system: usize,
    /// The keys of what was asked for.
    known: HashSet<String>,
    /// What is loaded with the file, by name later on, and when a function is called: each before the next.
    requests: [VecDeque<Request>; 3],
    listed: Vec<LoadedLibrary>,
}

impl<'s> Search<'s> {
    fn new(directory: &Path, scope: Option<&'s Scope>) -> Result<Self, Error> {
        let inherited = scope.into_iter().flat_map(|scope| &scope.inherited);
        let mut beside = HashMap::new();
        for directory in iter::once(directory).chain(inherited.map(PathBuf::as_path)) {
            for path in files::list(directory)? {
                if let Some(name) = path.file_name().and_then(OsStr::to_str) {
                    beside.entry(fold_case(name)).or_insert(path);
                }
            }
        }
        let is_confined = scope.is_some_and(|scope| scope.directory.is_some());
        let (mut directories, mut of_system) = (Vec::new(), 0);
        if cfg!(windows) && !is_confined {
            let root = image::variable("SystemRoot").map(PathBuf::from);
            directories.extend(root.iter().map(|root| root.join("System32")));
            directories.extend(root);
            of_system = directories.len();
            let path = image::variable("PATH").unwrap_or_default();
            directories.extend(env::split_paths(&path));
        }
        Ok(Self {
            scope,
            beside,
            directories,
            of_system,
            known: HashSet::new(),
            requests: Default::default(),
            listed: Vec::new(),
        })
    }

    fn all(&mut self, path: &Path, image: &Image<File>) -> Result<(), Error> {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        self.known.insert(fold_case(name));
        self.request(path, image, When::AtStart)?;
        while let Some(request) = self.requests.iter_mut().find_map(VecDeque::pop_front) {
            if self.known.insert(fold_case(&request.name)) {
                self.add(request)?;
            }
        }
        Ok(())
    }

    /// Asks for what a file needs. What a DLL needs that is loaded later is loaded later as well.
    fn request(&mut self, path: &Path, image: &Image<File>, when: When) -> Result<(), Error> {
        let dlls = image.imported_dlls().map_err(|error| binary_error(path, error))?;
        let imported = dlls.into_iter().map(|dll| {
            let own = if dll.is_delayed { When::AtFirstCall } else { when };
            (String::from_utf8_lossy(&dll.name).into_owned(), own.max(when))
        });
        let imported = Vec::from_iter(imported);
        let names = imported.iter().map(|(name, _)| name.as_str());
        let by_name = companions::names(path, image.source(), names)?;
        let by_name = by_name.into_iter().filter(|library| {
            library.is_required || self.beside.contains_key(&fold_case(&library.name))
        });
        let by_name = by_name.map(|library| (library.name, When::ByName.max(when)));
        for (mut name, when) in imported.into_iter().chain(by_name) {
            if !name.contains('.') {
                name.push_str(EXTENSION);
            }
            let request = Request { name, needed_by: path.to_owned(), when };
            self.requests[when as usize].push_back(request);
        }
        Ok(())
    }

    /// Finds a DLL, and asks for what it needs in turn.
    fn add(&mut self, request: Request) -> Result<(), Error> {
        let Request { name, needed_by, when } = request;
        let name_only = Path::new(&name);
        let of_table = match self.scope {
            Some(scope) => scope.provides(name_only),
            None => Scope::default().provides(name_only),
        };
        let is_reserved = of_table && group_of(&name).is_some_and(|group| group.is_reserved);
        let (path, is_of_system) = match self.find(&name).filter(|_| !is_reserved) {
            Some((path, is_of_system)) => (Some(path), is_of_system),
            None => (None, false),
        };
        // Where the whole machine counts, what the system provides is left to it, wherever a copy is.
        let is_left = self.scope.is_some_and(|scope| scope.directory.is_none());
        let is_provided = is_of_system || of_table && (path.is_none() || is_left);
        let own = path.clone().filter(|_| !is_provided);
        self.listed.push(LoadedLibrary {
            name: name.into(),
            other_names: Vec::new(),
            path,
            needed_by,
            when,
            is_provided,
        });
        let Some(path) = own else { return Ok(()) };
        let read = input::open(&path)
            .and_then(|file| Image::read(file).map_err(|error| binary_error(&path, error)));
        match or_refused(read)? {
            Ok(image) => self.request(&path, &image, when),
            // What is loaded later may never be.
            Err(_) if when == When::AtFirstCall => Ok(()),
            Err(found) => Err(Error::rejected(found.id, &path, found.text)),
        }
    }

    /// Where a DLL is, and whether it is one of the system's own.
    fn find(&self, name: &str) -> Option<(PathBuf, bool)> {
        let is_in_scope = |path: &PathBuf| self.scope.is_none_or(|scope| scope.has(path));
        let beside = self.beside.get(&fold_case(name)).filter(|path| path.is_file());
        if let Some(path) = beside.filter(|path| is_in_scope(path)) {
            return Some((path.clone(), false));
        }
        let mut others = self.directories.iter().enumerate();
        others.find_map(|(index, directory)| {
            let path = directory.join(name);
            path.is_file().then_some((path, index < self.of_system))
        })
    }
}
