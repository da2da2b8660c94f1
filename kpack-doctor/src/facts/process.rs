//! The processes that load binaries with device code.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kpack::internal::ShimMode;
use kpack_core::{Error, files, ids};
use kpack_format::TargetId;
use kpack_split::elf::DeviceCode;
use kpack_split::host;
use kpack_split::input::{self, FileKind, LinkedBinary, Prefix, binary_error, or_refused};

use super::binary::{Binary, Form, real};
use super::lacking::Lacking;
use super::libraries::{Loading, inherited_from, libraries_with};
use super::machine::Reader;
use super::runtime::{HipRuntime, Runtime, shim};

/// A process that loads binaries with device code: a program, or one with a library of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    /// The file whose libraries were found.
    pub(crate) file: PathBuf,
    /// The same without symbolic links.
    pub(crate) real: PathBuf,
    /// Its HIP runtime.
    pub(crate) runtime: Runtime,
    /// The shim that it is loaded with.
    pub(crate) shim: Option<PathBuf>,
    /// What it needs and does not have.
    pub(crate) lacking: Lacking,
    /// The file and, if the caller named it, its libraries, without those that have no device code.
    pub(crate) binaries: Vec<Binary>,
}

impl Process {
    /// The process of `file`, which the caller may have named, without binaries.
    fn new(file: &Path, loading: &Loading, reader: &Reader, is_named: bool) -> Result<Self, Error> {
        let runtime = Runtime::of(file, loading)?;
        Ok(Self {
            file: file.to_owned(),
            real: real(file),
            lacking: Lacking::of(file, loading, &runtime, reader, is_named)?,
            runtime,
            shim: shim(loading),
            binaries: Vec::new(),
        })
    }

    /// The process that loads `linked`, with the HIP runtime `other` if the dynamic linker would find none: a program
    /// can load one before. A library inherits these directories from such a program.
    pub(crate) fn of_binary(
        linked: &LinkedBinary,
        other: Option<&HipRuntime>,
        inherited: &[PathBuf],
        reader: &Reader,
    ) -> Result<Self, Error> {
        let scope = reader.scope.as_ref();
        let loading = libraries_with(&linked.path, &linked.image, scope, inherited)?;
        let mut process = Self::new(&linked.path, &loading, reader, false)?;
        if let (Runtime::Missing(_) | Runtime::None, Some(other)) = (&process.runtime, other) {
            process.runtime = Runtime::Found(other.clone());
        }
        process.add(linked, reader)?;
        Ok(process)
    }

    /// Adds a binary, if it has device code.
    fn add(&mut self, linked: &LinkedBinary, reader: &Reader) -> Result<(), Error> {
        let is_forced = self.shim.is_some() && reader.machine.shim_mode == ShimMode::Force;
        let hip = match &self.runtime {
            Runtime::Found(hip) if !is_forced => Some(hip),
            _ => None,
        };
        if let Some(mut binary) = Binary::of(linked, reader, hip)? {
            binary.join = binary.plan_join(&reader.machine)?;
            self.binaries.push(binary);
        }
        Ok(())
    }

    /// The process of a file that is refused, for this reason.
    fn refused(file: &Path, reason: String) -> Self {
        let runtime = Runtime::Fails(reason);
        Self {
            file: file.to_owned(),
            real: real(file),
            runtime,
            shim: None,
            lacking: Lacking::default(),
            binaries: Vec::new(),
        }
    }

    /// The same, with what is known about the code for these GPUs alone.
    pub(crate) fn for_gpus(&self, gpus: &[TargetId]) -> Self {
        let mut process = self.clone();
        for binary in &mut process.binaries {
            binary.code.retain(|(gpu, _)| gpus.contains(gpu));
        }
        process
    }

    /// Whether the shim is there for a binary.
    pub(crate) fn has_shim(&self, binary: &Binary) -> bool {
        binary.has_shim || self.shim.is_some()
    }

    /// Whether the HIP runtime itself must find the code of a binary.
    pub(crate) fn must_find(&self, binary: &Binary, mode: ShimMode) -> bool {
        let reads = matches!(&self.runtime, Runtime::Found(hip) if hip.loader.is_some());
        let shim_finds = self.has_shim(binary)
            && match mode {
                ShimMode::Auto => !reads,
                ShimMode::Off => false,
                ShimMode::Force => true,
            };
        let is_split = matches!(binary.form, Form::Split | Form::EarlyMarker);
        is_split && !shim_finds && !binary.loads_itself
    }

    /// The processes that `path` stands for: a file with its libraries, or every binary with device code
    /// in a prefix. Libraries inherit these directories from other programs that are examined.
    pub(crate) fn at(
        path: &Path,
        inherited: &[PathBuf],
        reader: &Reader,
    ) -> Result<Vec<Self>, Error> {
        let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
        if metadata.is_dir() {
            return in_prefix(path, inherited, reader);
        }
        let file = input::open(path)?;
        if input::identify(path, &file)? != Some(FileKind::Linked) {
            let text =
                "not a program or shared library; for archives and manifests, run `kpack verify`";
            return Err(Error::rejected(ids::UNKNOWN_FILE, path, text));
        }
        let linked = LinkedBinary::read(path, file)?;
        let loading = libraries_with(path, &linked.image, reader.scope.as_ref(), inherited)?;
        let mut process = Self::new(path, &loading, reader, true)?;
        process.add(&linked, reader)?;
        if let Loading::Listed(libraries) = &loading {
            for library in libraries.iter().filter_map(|library| library.path.as_ref()) {
                // Most libraries have nothing to do with device code.
                if let Ok(linked) = or_refused(LinkedBinary::open(library))? {
                    process.add(&linked, reader)?;
                }
            }
        }
        Ok(vec![process])
    }
}

/// The directories that libraries inherit from the programs among these files. The caller names a library with the program that
/// loads it.
pub(crate) fn inherited_from_programs(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut inherited = Vec::new();
    for path in paths.iter().filter(|path| paths.len() > 1 && path.is_file()) {
        let image = host::Image::read(input::open(path)?);
        // What is no program is examined later.
        if let Ok(image) = or_refused(image.map_err(|error| binary_error(path, error)))? {
            inherited.extend(inherited_from(path, &image)?);
        }
    }
    Ok(inherited)
}

/// A program of a prefix.
struct Program {
    /// The directories that libraries inherit from it.
    inherited: Vec<PathBuf>,
    /// The directories with libraries that it may load, without symbolic links: its own, and those that it searches.
    near: Vec<PathBuf>,
}

impl Program {
    fn of(linked: &LinkedBinary) -> Result<Option<Self>, Error> {
        let inherited = inherited_from(&linked.path, &linked.image)?;
        if inherited.is_empty() {
            return Ok(None);
        }
        let real = real(&linked.path);
        let near = real.parent().into_iter().chain(inherited.iter().map(PathBuf::as_path));
        let near = near.filter_map(|directory| directory.canonicalize().ok()).collect();
        Ok(Some(Self { inherited, near }))
    }

    /// Whether it may load the library, whose path has no symbolic links: a prefix such as `/usr` has programs that have nothing to
    /// do with each other.
    fn may_load(&self, library: &Path) -> bool {
        self.near.iter().any(|directory| library.starts_with(directory))
    }
}

fn in_prefix(path: &Path, inherited: &[PathBuf], reader: &Reader) -> Result<Vec<Process>, Error> {
    let (mut found, mut programs) = (Vec::new(), Vec::new());
    for linked in Prefix::new(path)?.reachable_binaries()? {
        let linked = match or_refused(linked)? {
            Ok(linked) => linked,
            Err(refused) => {
                found.push(Err(Process::refused(refused.file(), refused.text.clone())));
                continue;
            }
        };
        programs.extend(Program::of(&linked)?);
        if !matches!(linked.code, DeviceCode::None(_)) {
            found.push(Ok(linked.close()?));
        }
    }
    if found.is_empty() {
        let text = "no binary with device code is in it";
        return Err(Error::rejected(ids::NO_DEVICE_CODE, path, text));
    }
    let processes = found.into_iter().map(|found| match found {
        Ok(closed) => {
            let linked = closed.open()?;
            let real = real(&linked.path);
            let own = programs.iter().filter(|program| program.may_load(&real));
            let own = own.flat_map(|program| &program.inherited);
            // Most programs of a prefix have the same.
            let mut known = BTreeSet::new();
            let inherited = inherited.iter().chain(own).filter(|path| known.insert(*path));
            let inherited = Vec::from_iter(inherited.cloned());
            Process::of_binary(&linked, None, &inherited, reader)
        }
        Err(refused) => Ok(refused),
    });
    processes.collect()
}

/// The processes of ROCm's libraries in a directory that has those of the whole distribution.
pub(crate) fn in_libraries(directory: &Path, reader: &Reader) -> Result<Vec<Process>, Error> {
    const NAMES: [&str; 5] = ["libroc", "libhip", "libamdhip64", "libMIOpen", "librccl"];
    let mut processes = Vec::new();
    for path in files::list(directory)? {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if !NAMES.iter().any(|start| name.starts_with(start.as_bytes())) {
            continue;
        }
        let metadata = match path.symlink_metadata() {
            // It is being replaced.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            metadata => metadata.map_err(|e| Error::io(&path, "read", e))?,
        };
        if !metadata.is_file() {
            continue;
        }
        let linked = match or_refused(open_linked(&path))? {
            Ok(Some(linked)) => linked,
            Ok(None) => continue,
            Err(found) => {
                processes.push(Process::refused(&path, found.text));
                continue;
            }
        };
        if !matches!(linked.code, DeviceCode::None(_)) {
            processes.push(Process::of_binary(&linked, None, &[], reader)?);
        }
    }
    Ok(processes)
}

/// Opens a file; `None` if it is no linked one.
pub(crate) fn open_linked(path: &Path) -> Result<Option<LinkedBinary>, Error> {
    let file = input::open(path)?;
    let is_linked = input::identify(path, &file)? == Some(FileKind::Linked);
    is_linked.then(|| LinkedBinary::read(path, file)).transpose()
}
