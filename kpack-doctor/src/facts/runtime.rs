//! HIP runtimes, and the loaders that they call.

use std::path::{Path, PathBuf};

use kpack::internal::dynamic_symbols::{LOADER_FUNCTION, Linkage};
use kpack_core::Error;
use kpack_split::elf::{Dynamic, Image};
use kpack_split::input::{self, LinkedBinary, binary_error, or_refused};
use object::elf;

use super::libraries::{self, LoadedLibrary, Loading, Scope};

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
}

/// The loader that a HIP runtime calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Loader {
    /// It was not found; its name.
    Missing(String),
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
        let Some(runtime) = named(&libraries, "libamdhip64") else {
            return Ok(Self::None);
        };
        if runtime.is_provided {
            let why = format!("the system is to provide {}", runtime.name.display());
            return Ok(Self::Unknown(why));
        }
        let Some(path) = &runtime.path else {
            return Ok(Self::Missing(runtime.name.to_string_lossy().into_owned()));
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
        let image = Image::read_loaded(input::open(path)?).map_err(failed)?;
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
                Loader::Missing(loader.unwrap_or_else(|| format!("{LOADER}.so")))
            })),
            _ => None,
        };
        Ok(Self {
            path: path.to_owned(),
            version: versions.max_by_key(Vec::len).unwrap_or_default(),
            loader,
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
        for path in libraries.iter().filter_map(|library| library.path.as_ref()) {
            let failed = |error| binary_error(path, error);
            let Ok(image) = or_refused(input::open(path))? else {
                continue;
            };
            let image = Image::read_loaded(image).map_err(failed)?;
            let dynamic = Dynamic::read(&image).map_err(failed)?;
            let linkage = dynamic.linkage(&image, LOADER_FUNCTION);
            if linkage.map_err(failed)? != Some(Linkage::Exported) {
                continue;
            }
            let is_ours = image.has_note(LOADER_NOTE).map_err(failed)?;
            let loader = if is_ours { Self::Kpack } else { Self::Rocm };
            return Ok(Some(loader(path.clone())));
        }
        Ok(None)
    }
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
        Loading::Listed(libraries) => named(libraries, SHIM)?.path.clone(),
        _ => None,
    }
}

/// The first library whose file name begins like this.
fn named<'l>(libraries: &'l [LoadedLibrary], start: &str) -> Option<&'l LoadedLibrary> {
    let is_named = |library: &&LoadedLibrary| {
        let name = Path::new(&library.name).file_name();
        name.is_some_and(|name| name.to_string_lossy().starts_with(start))
    };
    libraries.iter().find(is_named)
}
