//! HIP runtimes, and the loaders that they call.

use std::fs::File;
use std::path::{Path, PathBuf};

use kpack::internal::dynamic_symbols::{LOADER_FUNCTION, Linkage};
use kpack_core::Error;
use kpack_core::files::{HostFormat, START};
use kpack_split::elf::{BinaryError, Dynamic, Image, ReadAt};
use kpack_split::input::{self, LinkedBinary, binary_error, or_refused};
use kpack_split::pe;
use object::elf;

use super::lacking::other_version;
use super::libraries::{self, LoadedLibrary, Loading, Scope};
use crate::system_libraries::is_dll;

/// The HIP runtime of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Unknown, for this reason.
    Unknown(String),
    /// The file cannot be loaded, for this reason.
    Fails(String),
    /// The file needs none.
    None,
    /// It needs this one, which was not found.
    Missing(String),
    /// It needs this one, which the system is to provide.
    Provided(String),
    /// This one.
    Found(HipRuntime),
}

/// A HIP runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HipRuntime {
    pub(crate) path: PathBuf,
    /// ROCm's version, as far as its SONAME or file name tells it.
    pub(crate) version: Vec<u32>,
    /// What finds the code of split binaries for it; `None` if it does not read markers.
    pub(crate) loader: Option<Loader>,
    /// The functions of a loader that it calls, and that its loader does not have.
    pub(crate) lacking: Vec<String>,
}

/// The loader that a HIP runtime calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Loader {
    /// It was not found.
    Missing {
        name: String,
        /// Another version of it, beside the HIP runtime.
        other: Option<PathBuf>,
    },
    /// The one of kpack.
    Kpack(PathBuf),
    /// The one of ROCm.
    Rocm(PathBuf),
}

impl Runtime {
    /// The HIP runtime that `file` is loaded with: one of its libraries, or itself.
    pub(crate) fn of(file: &Path, loading: &Loading) -> Result<Self, Error> {
        let mut libraries = match loading {
            Loading::Listed(libraries) => libraries.clone(),
            Loading::Fails(why) => return Ok(Self::Fails(why.clone())),
            Loading::Unknown(why) => return Ok(Self::Unknown(why.clone())),
        };
        libraries.insert(0, LoadedLibrary::at(file));
        Self::of_libraries(libraries)
    }

    /// The HIP runtime among these libraries.
    fn of_libraries(libraries: Vec<LoadedLibrary>) -> Result<Self, Error> {
        let Some(runtime) = named(&libraries, is_runtime) else {
            return Ok(Self::None);
        };
        let name = || runtime.name.to_string_lossy().into_owned();
        if runtime.is_provided {
            return Ok(Self::Provided(name()));
        }
        let Some(path) = &runtime.path else {
            return Ok(Self::Missing(name()));
        };
        let found = or_refused(HipRuntime::read(path, &libraries))?;
        Ok(match found {
            Ok(hip) => Self::Found(hip),
            Err(found) => Self::Fails(format!("{}: {}", path.display(), found.text)),
        })
    }
}

impl HipRuntime {
    /// The library at `path`, if it is one, and the libraries that it is loaded with are known: without these, nobody knows
    /// which loader it calls.
    pub(crate) fn at(path: &Path, scope: Option<&Scope>) -> Result<Option<Self>, Error> {
        let Ok(linked) = or_refused(LinkedBinary::open(path))? else {
            return Ok(None);
        };
        let loading = libraries::libraries(path, &linked.image, scope)?;
        Ok(match Runtime::of(path, &loading)? {
            Runtime::Found(hip) => Some(hip),
            _ => None,
        })
    }

    /// Reads the runtime at `path`, which is one of `libraries`.
    fn read(path: &Path, libraries: &[LoadedLibrary]) -> Result<Self, Error> {
        let failed = |error| binary_error(path, error);
        let file = input::open(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_for_windows(path, &file)? {
            let image = pe::Image::read(file).map_err(failed)?;
            let imported = image.imports(LOADER_FUNCTION).map_err(failed)?;
            let loader = match imported {
                Some(dll) => Some(Loader::find(libraries)?.unwrap_or_else(|| Loader::Missing {
                    name: String::from_utf8_lossy(&dll.name).into_owned(),
                    other: None,
                })),
                None => None,
            };
            let lacking = lacking(&loader, || functions_of_dll(&image))?;
            let version = name.split_once('_').map_or(Vec::new(), |(_, version)| numbers(version));
            return Ok(Self { path: path.to_owned(), version, loader, lacking });
        }
        let image = Image::read_loaded(file).map_err(failed)?;
        let dynamic = Dynamic::read(&image).map_err(failed)?;
        let strings = |tag| {
            let strings = dynamic.strings(&image, tag).map_err(failed)?;
            let names = strings.iter().map(|name| String::from_utf8_lossy(name).into_owned());
            Ok::<_, Error>(Vec::from_iter(names))
        };
        let real = path.canonicalize().map_err(|e| Error::io(path, "find", e))?;
        let file_name = real.file_name().unwrap_or_default().to_string_lossy();
        let soname = strings(elf::DT_SONAME)?.pop().unwrap_or_default();
        let versions = [version(&soname), version(&file_name)].into_iter();
        let linkage = dynamic.linkage(&image, LOADER_FUNCTION);
        let loader = match linkage.map_err(failed)? {
            Some(Linkage::Imported) => Some(Loader::find(libraries)?.unwrap_or_else(|| {
                let mut needed = strings(elf::DT_NEEDED).unwrap_or_default().into_iter();
                let loader = needed.find(|name| name.contains(LOADER));
                let name = loader.unwrap_or_else(|| format!("{LOADER}.so"));
                Loader::Missing { other: other_version(&name, path), name }
            })),
            _ => None,
        };
        let lacking = lacking(&loader, || functions(&image, Linkage::Imported))?;
        Ok(Self {
            path: path.to_owned(),
            version: versions.max_by_key(Vec::len).unwrap_or_default(),
            loader,
            lacking,
        })
    }

    /// Whether one GPU without code keeps it from using a binary's code on the others, as ROCm 5's does.
    pub(crate) fn wants_all(&self) -> bool {
        self.version.first().is_some_and(|major| *major <= 5)
    }

    /// Whether it is known to be of ROCm 7.14 or older. ROCm 7.13 and 7.14 ask their loader for one code object for
    /// all GPUs, and this loader stops at an archive that lacks the kernel. Later ones do neither; which is the first
    /// of these is unknown.
    pub(crate) fn is_up_to_7_14(&self) -> bool {
        let version = self.version.get(..2);
        version.is_some_and(|version| version <= &[7, 14])
    }
}

/// The numbers at the end of a library's name: 7 and 14 of `libamdhip64.so.7.14`.
fn version(name: &str) -> Vec<u32> {
    numbers(name.rsplit_once(".so.").map_or("", |(_, numbers)| numbers))
}

/// The numbers between the dots of a version, up to what is none.
pub(crate) fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|number| number.parse().ok()).collect()
}

impl Loader {
    /// The first of the libraries that exports what a loader does.
    fn find(libraries: &[LoadedLibrary]) -> Result<Option<Self>, Error> {
        let own = libraries.iter().filter(|library| !library.is_provided);
        for path in own.filter_map(|library| library.path.as_ref()) {
            let failed = |error| binary_error(path, error);
            let Ok(file) = or_refused(input::open(path))? else {
                continue;
            };
            let is_ours = if is_for_windows(path, &file)? {
                let image = pe::Image::read(file).map_err(failed)?;
                if !image.exports(LOADER_FUNCTION).map_err(failed)? {
                    continue;
                }
                let dlls = image.imported_dlls().map_err(failed)?;
                // It has no note there, but only ROCm's is written in C++.
                !dlls.iter().any(|dll| dll.name.to_ascii_lowercase().starts_with(b"msvcp"))
            } else {
                let image = Image::read_loaded(file).map_err(failed)?;
                let dynamic = Dynamic::read(&image).map_err(failed)?;
                let linkage = dynamic.linkage(&image, LOADER_FUNCTION);
                if linkage.map_err(failed)? != Some(Linkage::Exported) {
                    continue;
                }
                image.has_note(LOADER_NOTE).map_err(failed)?
            };
            let loader = if is_ours { Self::Kpack } else { Self::Rocm };
            return Ok(Some(loader(path.clone())));
        }
        Ok(None)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Missing { .. } => None,
            Self::Kpack(path) | Self::Rocm(path) => Some(path),
        }
    }
}

/// Whether a file is a DLL or a program for Windows, whatever its name.
fn is_for_windows(path: &Path, file: &File) -> Result<bool, Error> {
    let failed = |error| Error::io(path, "read", error);
    let mut start = vec![0; file.size().map_err(failed)?.min(START as u64) as usize];
    file.read_exact_at(0, &mut start).map_err(failed)?;
    Ok(HostFormat::of(&start) == Some(HostFormat::Pe))
}

/// How the names of a loader's functions begin.
const LOADER_FUNCTIONS: &str = "kpack_";

/// The functions among those that a HIP runtime calls which its loader does not have.
fn lacking(
    loader: &Option<Loader>,
    called: impl FnOnce() -> Result<Vec<String>, BinaryError>,
) -> Result<Vec<String>, Error> {
    let Some(path) = loader.as_ref().and_then(Loader::path) else {
        return Ok(Vec::new());
    };
    let failed = |error| binary_error(path, error);
    let file = input::open(path)?;
    let has: Vec<String> = if is_for_windows(path, &file)? {
        let image = pe::Image::read(file).map_err(failed)?;
        image.exported_names().map_err(failed)?
    } else {
        let image = Image::read_loaded(file).map_err(failed)?;
        functions(&image, Linkage::Exported).map_err(failed)?
    };
    // If its tables are damaged, the linker says so.
    let mut lacking = called().unwrap_or_default();
    lacking.retain(|name| !has.contains(name));
    lacking.sort();
    lacking.dedup();
    Ok(lacking)
}

/// The functions of a loader that a file imports or exports.
fn functions(image: &Image<File>, linkage: Linkage) -> Result<Vec<String>, BinaryError> {
    let dynamic = Dynamic::read(image)?;
    let mut found = Vec::new();
    for name in dynamic.names(image)? {
        if let Ok(name) = String::from_utf8(name)
            && name.starts_with(LOADER_FUNCTIONS)
            && dynamic.linkage(image, &name)? == Some(linkage)
        {
            found.push(name);
        }
    }
    Ok(found)
}

/// The functions of a loader that a DLL imports.
fn functions_of_dll(image: &pe::Image<File>) -> Result<Vec<String>, BinaryError> {
    let mut names = image.imported_names()?;
    names.retain(|name| name.starts_with(LOADER_FUNCTIONS));
    Ok(names)
}

/// How the name of a loader begins, unless it was renamed.
const LOADER: &str = "librocm_kpack";
/// The type of the note of kpack's loader.
const LOADER_NOTE: u32 = 2;
/// How the names of the shim begin, also of one that a wheel has renamed.
pub(crate) const SHIM: &str = "libkpack_hip";

/// The shim among the libraries of a process.
pub(crate) fn shim(loading: &Loading) -> Option<PathBuf> {
    match loading {
        Loading::Listed(libraries) => named(libraries, |name| name.starts_with(SHIM))?.path.clone(),
        _ => None,
    }
}

/// The first library with such a file name.
fn named(libraries: &[LoadedLibrary], is_wanted: impl Fn(&str) -> bool) -> Option<&LoadedLibrary> {
    let is_named = |library: &&LoadedLibrary| {
        let name = Path::new(&library.name).file_name();
        name.is_some_and(|name| is_wanted(&name.to_string_lossy()))
    };
    libraries.iter().find(is_named)
}

/// Whether a file is named as a HIP runtime is, also one that a tool for wheels renamed, or that of Windows.
pub(crate) fn is_runtime(name: &str) -> bool {
    let is_for_windows = || name.to_ascii_lowercase().starts_with("amdhip64") && is_dll(name);
    name.starts_with("libamdhip64") && name.contains(".so") || is_for_windows()
}
