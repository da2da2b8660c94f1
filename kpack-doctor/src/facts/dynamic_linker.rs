//! Finds the libraries that a file would be loaded with, as the GNU dynamic linker does (ld.so(8)).
//!
//! The dynamic linker itself could list them, but whoever made the file can let it run code. So kpack
//! only reads the files. Directories `glibc-hwcaps` are left out: they hold variants of the same libraries.

use std::cell::Cell;
use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use object::elf;

use super::companions::{self, NamedLibrary};
use super::libraries::{LoadedLibrary, Loading, Scope, When};
use crate::image;
use kpack_core::Error;
use kpack_core::platform::{MetadataExt, OsStrExt, OsStringExt, file_id};
use kpack_format::is_exhaustion;
use kpack_split::elf::{BinaryError, Dynamic, Image, Machine, ReadAt};
use kpack_split::input::{self, binary_error, or_refused};

/// What the search needs to know of a machine.
struct Host {
    name: &'static str,
    /// The dynamic linker of the GNU C library.
    linker: &'static str,
    elf_machine: elf::Machine,
    /// The flags of its libraries in the cache.
    cache_flags: u32,
    /// The directory of its libraries, in Debian.
    multiarch: &'static str,
}

impl Host {
    fn of(machine: Machine) -> Self {
        match machine {
            Machine::X86_64 => Self {
                name: "x86_64",
                linker: "/lib64/ld-linux-x86-64.so.2",
                elf_machine: elf::EM_X86_64,
                cache_flags: 0x303,
                multiarch: "x86_64-linux-gnu",
            },
            Machine::AArch64 => Self {
                name: "aarch64",
                linker: "/lib/ld-linux-aarch64.so.1",
                elf_machine: elf::EM_AARCH64,
                cache_flags: 0xa03,
                multiarch: "aarch64-linux-gnu",
            },
            Machine::Ppc64Le => Self {
                name: "powerpc64le",
                linker: "/lib64/ld64.so.2",
                elf_machine: elf::EM_PPC64,
                cache_flags: 0x503,
                multiarch: "powerpc64le-linux-gnu",
            },
        }
    }

    /// The directories that are searched last. Those that a distribution does not use have no library
    /// for this machine.
    fn default_directories(&self) -> Vec<PathBuf> {
        let multiarch = ["/lib", "/usr/lib"].map(|at| Path::new(at).join(self.multiarch));
        let others = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from);
        multiarch.into_iter().chain(others).collect()
    }

    /// What `$LIB` stands for.
    fn lib(&self) -> String {
        let multiarch = format!("lib/{}", self.multiarch);
        if Path::new("/").join(&multiarch).is_dir() { multiarch } else { "lib64".to_owned() }
    }
}

/// Only the GNU C library's dynamic linker has this among its names. Others search in other places.
const GLIBC: &[u8] = b"GLIBC_PRIVATE";
/// The libraries that every program is loaded with, as words.
const PRELOADED: &str = "/etc/ld.so.preload";
/// Where libraries are, as `ldconfig` found them.
const CACHE: &str = "/etc/ld.so.cache";
/// More bytes than any of these files has: an image can have anything in their place.
const MAX_FILE: u64 = 64 << 20;

/// The libraries of the file at `path`. Where its dynamic section is damaged, the dynamic linker rejects it as well.
///
/// # Errors
/// [`Error::Io`] if a file cannot be read.
pub(crate) fn libraries(
    path: &Path,
    image: &Image<File>,
    scope: Option<&Scope>,
    inherited: &[PathBuf],
) -> Result<Loading, Error> {
    let found = or_refused(libraries_of(path, image, scope, inherited))?;
    Ok(found.unwrap_or_else(|found| Loading::Fails(found.text)))
}

/// The directories of the DT_RPATH of the program at `path`, which libraries inherit if it loads them by name and they have no run
/// path; none if the file is a library.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub(crate) fn rpath_of_program(path: &Path, image: &Image<File>) -> Result<Vec<PathBuf>, Error> {
    let read = || Ok((interpreter(image)?, Needs::read(image)?));
    let read = read().map_err(|error| binary_error(path, error));
    let Ok((Some(_), Some(Needs { rpath: Some(rpath), runpath: None, .. }))) = or_refused(read)?
    else {
        return Ok(Vec::new());
    };
    let real = path.canonicalize().map_err(|e| Error::io(path, "find", e))?;
    let origin = real.parent().unwrap_or(Path::new("/"));
    let search = Search::new(Host::of(image.machine), None, &[])?;
    // Nobody has too many directories on purpose.
    Ok(search.directories(&rpath, b":", origin).unwrap_or_default())
}

fn libraries_of(
    path: &Path,
    image: &Image<File>,
    scope: Option<&Scope>,
    inherited: &[PathBuf],
) -> Result<Loading, Error> {
    let unknown = |why: String| Ok(Loading::Unknown(why));
    let host = Host::of(image.machine);
    if host.name != env::consts::ARCH {
        return unknown(format!(
            "it is for another machine ({}; this one is {})",
            host.name,
            env::consts::ARCH
        ));
    }
    let failed = |error| binary_error(path, error);
    let needs = Needs::read(image).map_err(failed)?;
    let Some(needs) = needs else {
        return unknown("it is linked statically".to_owned());
    };
    let interpreter = interpreter(image).map_err(failed)?;
    let linker = Path::new(host.linker);
    if let Some(own) = &interpreter
        && own.canonicalize().ok() != linker.canonicalize().ok()
    {
        return unknown(format!(
            "its dynamic linker is {}, not that of this machine",
            own.display()
        ));
    }
    if let Some(why) = not_of_glibc(linker)? {
        return unknown(why);
    }
    // Programs do not load programs.
    let inherited = if interpreter.is_none() { inherited } else { &[] };
    // A program is loaded from its real directory; a library from the one where it was found.
    let real = match interpreter {
        Some(_) => path.canonicalize(),
        None => std::path::absolute(path),
    }
    .map_err(|e| Error::io(path, "find", e))?;
    let file = image.source().metadata().map_err(|e| Error::io(path, "read", e))?;
    let is_confined = scope.is_some_and(|scope| scope.directory.is_some());
    // With raised privileges, the dynamic linker ignores what users choose.
    let variable = |name| match file.mode() & 0o6000 {
        0 if !is_confined => image::variable(name).unwrap_or_default().into_vec(),
        _ => Vec::new(),
    };
    let id = file_id(image.source()).map_err(|e| Error::io(path, "read", e))?;
    let mut main = LibraryFile { id, needs, by_name: Vec::new() };
    main.add_named(path, image.source())?;
    // What is preloaded is this machine's, whatever the program.
    let preloaded = match scope {
        Some(_) => Default::default(),
        None => {
            let listed = read_optional(Path::new(PRELOADED))?;
            [variable("LD_PRELOAD"), without_comments(&listed)]
        }
    };
    let mut search = Search::new(host, scope, inherited)?;
    let found = search.all(&real, main, &variable("LD_LIBRARY_PATH"), &preloaded);
    Ok(match found {
        Ok(()) => Loading::Listed(search.listed),
        Err(Stop::Fails(why)) => Loading::Fails(why),
        Err(Stop::TooMany) => {
            Loading::Unknown(format!("more than {MOST_LOOKUPS} files would have to be looked for"))
        }
        Err(Stop::System(error)) => return Err(error),
    })
}

/// Why the dynamic linker of this machine is not that of the GNU C library, if it is not. It is read once.
fn not_of_glibc(linker: &Path) -> Result<Option<String>, Error> {
    static READ: OnceLock<Option<String>> = OnceLock::new();
    if let Some(known) = READ.get() {
        return Ok(known.clone());
    }
    let why = match read(linker) {
        Ok(bytes) if bytes.windows(GLIBC.len()).any(|name| name == GLIBC) => None,
        Ok(_) | Err(Error::Refused { .. }) => {
            Some(format!("{} is not that of the GNU C library", linker.display()))
        }
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            Some(format!("there is no {}, the dynamic linker", linker.display()))
        }
        Err(error) => return Err(error),
    };
    Ok(READ.get_or_init(|| why).clone())
}

/// What the dynamic section of a file says about its libraries.
#[derive(Debug, Default)]
struct Needs {
    soname: Option<Vec<u8>>,
    needed: Vec<Vec<u8>>,
    /// DT_RPATH, which counts only without DT_RUNPATH.
    rpath: Option<Vec<u8>>,
    runpath: Option<Vec<u8>>,
    /// Whether the default directories are left out.
    is_nodeflib: bool,
}

impl Needs {
    /// `None` if the file has no dynamic section.
    fn read<S: ReadAt>(image: &Image<S>) -> Result<Option<Self>, BinaryError> {
        let dynamic = Dynamic::read(image)?;
        if dynamic.entries.is_empty() {
            return Ok(None);
        }
        let strings = |tag| dynamic.strings(image, tag);
        let last = |tag| Ok::<_, BinaryError>(strings(tag)?.pop());
        let flags = dynamic.get(elf::DT_FLAGS_1).unwrap_or(0);
        Ok(Some(Self {
            soname: last(elf::DT_SONAME)?,
            needed: strings(elf::DT_NEEDED)?,
            rpath: last(elf::DT_RPATH)?,
            runpath: last(elf::DT_RUNPATH)?,
            is_nodeflib: flags & elf::DF_1_NODEFLIB.0 != 0,
        }))
    }
}

/// A file that is loaded: the main one, or a library.
struct Object {
    file: LibraryFile,
    /// Where it was found.
    path: PathBuf,
    /// What `$ORIGIN` stands for.
    origin: PathBuf,
    /// The one that it is loaded for.
    parent: Option<usize>,
    /// The directories of DT_RPATH.
    rpath: Vec<PathBuf>,
    /// The directories of DT_RUNPATH.
    runpath: Vec<PathBuf>,
}

/// Why a search ends early.
enum Stop {
    /// The dynamic linker would reject it for the same reason.
    Fails(String),
    /// The files name too many libraries and directories.
    TooMany,
    /// A file cannot be read, which says nothing about it.
    System(Error),
}

/// How many files are looked for at most: a small file could name any number of libraries and directories.
const MOST_LOOKUPS: usize = 100_000;
/// How many directories a search path can have.
const MOST_DIRECTORIES: usize = 4096;
/// Longer paths cannot be opened (`PATH_MAX`).
const MAX_PATH: usize = 4096;

/// The search for the libraries of one file.
struct Search<'s> {
    host: Host,
    scope: Option<&'s Scope>,
    /// The DT_RPATH that libraries without a run path inherit from the program that loads them by name.
    inherited: Vec<PathBuf>,
    lib: String,
    /// The main file, then the libraries.
    objects: Vec<Object>,
    /// The object for each requested name and SONAME; `None` if it was not found.
    names: HashMap<Vec<u8>, Option<usize>>,
    listed: Vec<LoadedLibrary>,
    /// `LD_LIBRARY_PATH`.
    library_path: Vec<PathBuf>,
    cache: &'static HashMap<Vec<u8>, PathBuf>,
    default_directories: Vec<PathBuf>,
    lookups: Cell<usize>,
}

impl<'s> Search<'s> {
    fn new(host: Host, scope: Option<&'s Scope>, inherited: &[PathBuf]) -> Result<Self, Error> {
        let of_scope = scope.map(|scope| scope.inherited.as_slice()).unwrap_or_default();
        Ok(Self {
            scope,
            inherited: [of_scope, inherited].concat(),
            lib: host.lib(),
            objects: Vec::new(),
            names: HashMap::new(),
            listed: Vec::new(),
            library_path: Vec::new(),
            cache: cache(host.cache_flags)?,
            default_directories: host.default_directories(),
            lookups: Cell::new(0),
            host,
        })
    }

    /// Finds the preloaded libraries of the main file, which is at `path`, then breadth first what each
    /// object needs.
    fn all(
        &mut self,
        path: &Path,
        main: LibraryFile,
        library_path: &[u8],
        preloaded: &[Vec<u8>],
    ) -> Result<(), Stop> {
        self.add(path, main, None)?;
        self.library_path = self.directories(library_path, b":;", &self.objects[0].origin)?;
        let words = preloaded.iter().flat_map(|names| {
            let is_space = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
            names.split(is_space).filter(|name| !name.is_empty())
        });
        for name in words {
            // The dynamic linker goes on without them.
            match self.need(0, name, When::AtStart) {
                Ok(()) | Err(Stop::Fails(_)) => {}
                Err(stop) => return Err(stop),
            }
        }
        let mut next = self.add_needed(0, When::AtStart)?;
        // These are loaded later, and then all that they need.
        let mut index = 0;
        while let Some(object) = self.objects.get_mut(index) {
            for library in std::mem::take(&mut object.file.by_name) {
                let before = self.listed.len();
                self.need(index, library.name.as_bytes(), When::ByName)?;
                if !library.is_required
                    && self.listed[before..].iter().all(LoadedLibrary::is_missing)
                {
                    self.listed.truncate(before);
                }
                next = self.add_needed(next, When::ByName)?;
            }
            index += 1;
        }
        Ok(())
    }

    /// Finds what the objects from this one on need, breadth first. Returns the number of objects.
    fn add_needed(&mut self, mut next: usize, when: When) -> Result<usize, Stop> {
        while let Some(object) = self.objects.get_mut(next) {
            for name in std::mem::take(&mut object.file.needs.needed) {
                self.need(next, &name, when)?;
            }
            next += 1;
        }
        Ok(next)
    }

    /// Finds the library `name` for an object, if that was not asked for yet.
    fn need(&mut self, by: usize, name: &[u8], when: When) -> Result<(), Stop> {
        self.count()?;
        let name = self.expand(name, &self.objects[by].origin);
        if self.names.contains_key(&name) {
            return Ok(());
        }
        let mut found = self.find(by, &name)?;
        let path = found.as_ref().map(|(path, _)| path.clone());
        let is_provided = self.scope.is_some_and(|scope| {
            let is_elsewhere = scope.directory.is_none() || path.is_none();
            is_elsewhere && scope.provides(Path::new(OsStr::from_bytes(&name)))
        });
        if is_provided {
            // What it needs is the system's as well.
            found = None;
        }
        let known = found.as_ref().and_then(|(_, file)| {
            let mut objects = self.objects.iter();
            objects.position(|object| object.file.id == file.id)
        });
        if let Some(known) = known {
            let path = Some(&self.objects[known].path);
            let mut listed = self.listed.iter_mut();
            if let Some(listed) = listed.find(|listed| listed.path.as_ref() == path) {
                listed.other_names.push(OsString::from_vec(name.clone()));
            }
        } else {
            self.listed.push(LoadedLibrary {
                name: OsString::from_vec(name.clone()),
                other_names: Vec::new(),
                path,
                needed_by: self.objects[by].path.clone(),
                when,
                is_provided,
            });
        }
        let index = match (known, found) {
            (None, Some((path, file))) => Some(self.add(&path, file, Some(by))?),
            (known, _) => known,
        };
        self.names.insert(name, index);
        Ok(())
    }

    fn add(&mut self, path: &Path, file: LibraryFile, by: Option<usize>) -> Result<usize, Stop> {
        let origin = path.parent().unwrap_or(Path::new("/"));
        let directories = |path: &Option<Vec<u8>>| match path {
            Some(path) => self.directories(path, b":", origin),
            None => Ok(Vec::new()),
        };
        let needs = &file.needs;
        let object = Object {
            rpath: match needs.runpath {
                Some(_) => Vec::new(),
                None => directories(&needs.rpath)?,
            },
            runpath: directories(&needs.runpath)?,
            origin: origin.to_owned(),
            path: path.to_owned(),
            parent: by,
            file,
        };
        let index = self.objects.len();
        if let Some(soname) = &object.file.needs.soname {
            self.names.entry(soname.clone()).or_insert(Some(index));
        }
        self.objects.push(object);
        Ok(index)
    }

    fn count(&self) -> Result<(), Stop> {
        self.lookups.set(self.lookups.get() + 1);
        if self.lookups.get() > MOST_LOOKUPS { Err(Stop::TooMany) } else { Ok(()) }
    }

    /// Searches where the dynamic linker does, in that order.
    fn find(&self, by: usize, name: &[u8]) -> Result<Option<(PathBuf, LibraryFile)>, Stop> {
        let path = Path::new(OsStr::from_bytes(name));
        let is_in_scope = |path: &Path| self.scope.is_none_or(|scope| scope.has(path));
        if name.contains(&b'/') {
            return Ok(self.open(path)?.filter(|(path, _)| is_in_scope(path)));
        }
        let object = &self.objects[by];
        // DT_RPATH of those that need it counts as well.
        let has_rpath = object.file.needs.runpath.is_none();
        let parents = std::iter::successors(has_rpath.then_some(object), |object| {
            Some(&self.objects[object.parent?])
        });
        let cached = self.cache.get(name);
        let is_default = |path: &&PathBuf| {
            let mut defaults = self.default_directories.iter();
            defaults.any(|directory| path.parent() == Some(directory))
        };
        let (cached, last) = if object.file.needs.is_nodeflib {
            (cached.filter(|path| !is_default(path)), &[][..])
        } else {
            (cached, &self.default_directories[..])
        };
        let inherited = has_rpath.then_some(&self.inherited);
        let first = parents
            .flat_map(|object| &object.rpath)
            .chain(inherited.into_iter().flatten())
            .chain(&self.library_path)
            .chain(&object.runpath)
            .map(|directory| directory.join(path));
        let last = last.iter().map(|directory| directory.join(path));
        for path in first.chain(cached.cloned()).chain(last) {
            if let Some(found) = self.open(&path)?
                && is_in_scope(&found.0)
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The directories of a search path.
    fn directories(
        &self,
        path: &[u8],
        separators: &[u8],
        origin: &Path,
    ) -> Result<Vec<PathBuf>, Stop> {
        let mut directories = Vec::new();
        if path.is_empty() {
            return Ok(directories);
        }
        for part in path.split(|byte| separators.contains(byte)) {
            let directory = match self.expand(part, origin) {
                directory if directory.is_empty() => b".".to_vec(),
                directory => directory,
            };
            if directory.len() < MAX_PATH {
                directories.push(OsString::from_vec(directory).into());
            }
            if directories.len() > MOST_DIRECTORIES {
                return Err(Stop::TooMany);
            }
        }
        Ok(directories)
    }

    /// Replaces `$ORIGIN`, `$LIB` and `$PLATFORM`, with or without braces.
    fn expand(&self, text: &[u8], origin: &Path) -> Vec<u8> {
        let mut expanded = Vec::new();
        // Longer ones cannot be opened, expanded or not.
        let mut rest = &text[..text.len().min(MAX_PATH)];
        while let Some((first, after)) = rest.split_first() {
            let token = |(name, value): (&str, &[u8])| {
                let braced = format!("{{{name}}}");
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                let after = match after.strip_prefix(braced.as_bytes()) {
                    Some(after) => after,
                    None => {
                        let after = after.strip_prefix(name.as_bytes())?;
                        (!after.first().is_some_and(is_word)).then_some(after)?
                    }
                };
                Some((value.to_vec(), after))
            };
            let tokens = [
                ("ORIGIN", origin.as_os_str().as_bytes()),
                ("LIB", self.lib.as_bytes()),
                ("PLATFORM", self.host.name.as_bytes()),
            ];
            rest = match tokens.into_iter().find_map(token) {
                Some((value, after)) if *first == b'$' => {
                    expanded.extend(value);
                    after
                }
                _ => {
                    expanded.push(*first);
                    after
                }
            };
        }
        expanded
    }

    /// Opens the library at `path`; `None` if the dynamic linker would search on.
    fn open(&self, path: &Path) -> Result<Option<(PathBuf, LibraryFile)>, Stop> {
        self.count()?;
        let Ok(path) = std::path::absolute(path) else {
            return Ok(None);
        };
        let fails = |why: &dyn Display| {
            let why = format!("{}: {why}", path.display());
            Err(Stop::Fails(why))
        };
        let file = match input::open(&path) {
            Ok(file) => file,
            Err(Error::Refused { reason, .. }) => return fails(&reason),
            Err(error) if is_of_system(&error) => return Err(Stop::System(error)),
            // It is not there, or may not be read.
            Err(_) => return Ok(None),
        };
        let read = match self.is_for_host(&file) {
            Ok(Some(true)) => LibraryFile::read(&path, file),
            Ok(Some(false)) => return Ok(None),
            Ok(None) => return fails(&"not an ELF file"),
            Err(error) => Err(Error::io(&path, "read", error)),
        };
        match read {
            Ok(found) => Ok(Some((path, found))),
            Err(Error::Refused { reason, .. }) => fails(&reason),
            Err(error) => Err(Stop::System(error)),
        }
    }

    /// Whether the ELF file is for this machine; `None` if it is no ELF file.
    fn is_for_host(&self, file: &File) -> std::io::Result<Option<bool>> {
        let mut header = [0; 20];
        if file.size()? < header.len() as u64 {
            return Ok(None);
        }
        file.read_exact_at(0, &mut header)?;
        let machine = u16::from_le_bytes([header[18], header[19]]);
        let is_host = header[4] == elf::ELFCLASS64.0 && machine == self.host.elf_machine.0;
        Ok(header.starts_with(&elf::ELFMAG).then_some(is_host))
    }
}

/// What is read of a library.
struct LibraryFile {
    id: (u64, u64),
    needs: Needs,
    /// What it loads by name.
    by_name: Vec<NamedLibrary>,
}

impl LibraryFile {
    fn read(path: &Path, file: File) -> Result<Self, Error> {
        let failed = |error| binary_error(path, error);
        let id = file_id(&file).map_err(|e| Error::io(path, "read", e))?;
        let image = Image::read_loaded(file).map_err(failed)?;
        let needs = Needs::read(&image).map_err(failed)?.unwrap_or_default();
        let mut read = Self { id, needs, by_name: Vec::new() };
        read.add_named(path, image.source())?;
        Ok(read)
    }

    fn add_named(&mut self, path: &Path, file: &File) -> Result<(), Error> {
        let linked = self.needs.needed.iter().filter_map(|name| str::from_utf8(name).ok());
        self.by_name = companions::names(path, file, linked)?;
        Ok(())
    }
}

/// Whether the file is not to blame for an error.
fn is_of_system(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_exhaustion(source))
}

/// What a file has that may be missing; nothing if it may not be read.
fn read_optional(path: &Path) -> Result<Vec<u8>, Error> {
    match read(path) {
        Err(error) if is_of_system(&error) => Err(error),
        read => Ok(read.unwrap_or_default()),
    }
}

/// The beginning of a regular file, and all of it if it is one of the system's own.
fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut file = input::open(path)?.take(MAX_FILE);
    file.read_to_end(&mut bytes).map_err(|e| Error::io(path, "read", e))?;
    Ok(bytes)
}

/// The lines of a file without what comes after `#`.
fn without_comments(text: &[u8]) -> Vec<u8> {
    let lines = text
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b'#').next().unwrap_or_default());
    Vec::from_iter(lines).join(&b' ')
}

/// The libraries in the cache of this machine, with the flags of its architecture. It is read once.
fn cache(flags: u32) -> Result<&'static HashMap<Vec<u8>, PathBuf>, Error> {
    static READ: OnceLock<HashMap<Vec<u8>, PathBuf>> = OnceLock::new();
    if let Some(known) = READ.get() {
        return Ok(known);
    }
    let bytes = read_optional(Path::new(CACHE))?;
    Ok(READ.get_or_init(|| read_cache(&bytes, flags)))
}

/// The libraries in the cache with these flags, the first of each name.
///
/// Its entries have 24 bytes each: flags, offsets of name and path in the cache, a version and required
/// features of the processor. An older cache, with entries of 12 bytes, may come before it.
fn read_cache(bytes: &[u8], flags: u32) -> HashMap<Vec<u8>, PathBuf> {
    const OLD: &[u8] = b"ld.so-1.7.0";
    const NEW: &[u8] = b"glibc-ld.so.cache1.1";
    let number = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let start = if bytes.starts_with(OLD) {
        number(bytes, 12).map_or(0, |count| (16 + 12 * count).next_multiple_of(8))
    } else {
        0
    };
    let bytes = bytes.get(start..).unwrap_or_default();
    let mut libraries = HashMap::new();
    if !bytes.starts_with(NEW) {
        return libraries;
    }
    let count = number(bytes, 20).unwrap_or(0);
    let entries = bytes.get(48..).unwrap_or_default().chunks_exact(24);
    for entry in entries.take(count) {
        let string = |at: usize| {
            let rest = bytes.get(number(entry, at)?..)?;
            rest.split(|byte| *byte == 0).next()
        };
        let is_plain = entry[16..24] == [0; 8];
        if let (Some(name), Some(path)) = (string(4), string(8))
            && is_plain
            && number(entry, 0) == Some(flags as usize)
        {
            let path = || PathBuf::from(OsStr::from_bytes(path));
            libraries.entry(name.to_vec()).or_insert_with(path);
        }
    }
    libraries
}

/// The dynamic linker that a program names.
fn interpreter(image: &Image<File>) -> Result<Option<PathBuf>, BinaryError> {
    let mut segments = image.segments.iter();
    let Some(segment) = segments.find(|segment| segment.kind == elf::PT_INTERP) else {
        return Ok(None);
    };
    let mut name = image.bytes(segment.offset, segment.filesz, "the name of its dynamic linker")?;
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    Ok(Some(OsString::from_vec(name).into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use kpack_tests::process;
    use kpack_tests::tree::Tree;

    use super::*;

    /// Given a program, libraries that it finds in all ways, and this test, then their libraries are those that
    /// `ldd` lists, in its order.
    #[test]
    fn the_same_libraries_as_ldd() {
        let tree = Tree::new();
        let source = |name: &str, text: &str| {
            let path = tree.path(&format!("{name}.c"));
            fs::write(&path, text).unwrap();
            path
        };
        let cc = |source: PathBuf, arguments: &str| {
            let mut cc = Command::new("cc");
            cc.arg(source).args(arguments.split(' '));
            process::run(cc.current_dir(tree.root()));
        };
        fs::create_dir_all(tree.path("lib/deep")).unwrap();
        let text = "int three(void) { return 3; }";
        cc(
            source("three", text),
            "-shared -fPIC -Wl,-soname,libthree.so.1 -o lib/deep/libthree.so.1",
        );
        let text = "int three(void); int two(void) { return three(); }";
        cc(
            source("two", text),
            "-shared -fPIC -o lib/libtwo.so lib/deep/libthree.so.1 -Wl,--enable-new-dtags,-rpath,$ORIGIN/deep",
        );
        let text = "int one(void) { return 1; }";
        cc(source("one", text), "-shared -fPIC -o lib/libone.so -lm -Wl,--no-as-needed -lresolv");
        let text = "int one(void), two(void); int main(void) { return one() + two(); }";
        let main = source("main", text);
        let common = "lib/libone.so lib/libtwo.so -Wl,--allow-shlib-undefined";
        cc(main.clone(), &format!("-o new {common} -Wl,--enable-new-dtags,-rpath,$ORIGIN/lib"));
        cc(main.clone(), &format!("-o old {common} -Wl,--disable-new-dtags,-rpath,$ORIGIN/lib"));
        cc(main, &format!("-o lost {common}"));
        let built = ["new", "old", "lost", "lib/libtwo.so", "lib/libone.so"];
        let own = env::current_exe().unwrap();
        for path in built.map(|name| tree.path(name)).into_iter().chain([own]) {
            let image = Image::read_loaded(input::open(&path).unwrap()).unwrap();
            let Loading::Listed(found) = libraries(&path, &image, None, &[]).unwrap() else {
                panic!("{path:?}");
            };
            let said = Command::new("ldd").arg(&path).output().unwrap().stdout;
            let said = String::from_utf8(said).unwrap();
            let lines = said.lines().filter_map(|line| line.split_once(" => "));
            let listed = Vec::from_iter(lines.map(|(name, path)| {
                let path = path.split(" (0x").next().unwrap();
                (name.trim().to_owned(), path.to_owned())
            }));
            let named = found.iter().map(|library| {
                let path = library
                    .path
                    .as_ref()
                    .map_or("not found".to_owned(), |p| p.display().to_string());
                (library.name.to_string_lossy().into_owned(), path)
            });
            // `ldd` does not name its own path in the same way.
            let ours = named.filter(|(name, _)| !name.contains("ld-linux"));
            assert!(!listed.is_empty(), "{path:?}");
            assert_eq!(Vec::from_iter(ours), listed, "{path:?}");
        }
    }
}
