//! The processes that load binaries with device code.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kpack::internal::ShimMode;
use kpack_core::{Error, files, ids};
use kpack_format::TargetId;
use kpack_split::elf::DeviceCode;
use kpack_split::input::{self, FileKind, LinkedBinary, Prefix, or_refused};

use super::binary::{Binary, Form, real};
use super::lacking::Lacking;
use super::libraries::{self, Loading};
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
    /// can load one before.
    pub(crate) fn of_binary(
        linked: &LinkedBinary,
        other: Option<&HipRuntime>,
        reader: &Reader,
    ) -> Result<Self, Error> {
        let loading = libraries::libraries(&linked.path, &linked.image, reader.scope.as_ref())?;
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
    /// in a prefix.
    pub(crate) fn at(path: &Path, reader: &Reader) -> Result<Vec<Self>, Error> {
        let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
        if metadata.is_dir() {
            return in_prefix(path, reader);
        }
        let file = input::open(path)?;
        if input::identify(path, &file)? != Some(FileKind::Linked) {
            let text =
                "not a program or shared library; for archives and manifests, run `kpack verify`";
            return Err(Error::rejected(ids::UNKNOWN_FILE, path, text));
        }
        let linked = LinkedBinary::read(path, file)?;
        let loading = libraries::libraries(path, &linked.image, reader.scope.as_ref())?;
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

fn in_prefix(path: &Path, reader: &Reader) -> Result<Vec<Process>, Error> {
    let mut processes = Vec::new();
    for linked in Prefix::new(path)?.reachable_binaries()? {
        let linked = match or_refused(linked)? {
            Ok(linked) => linked,
            Err(found) => {
                processes.push(Process::refused(found.file(), found.text.clone()));
                continue;
            }
        };
        if let DeviceCode::None(_) = linked.code {
            continue;
        }
        processes.push(Process::of_binary(&linked, None, reader)?);
    }
    if processes.is_empty() {
        Err(Error::rejected(ids::NO_DEVICE_CODE, path, "no binary with device code is in it"))
    } else {
        Ok(processes)
    }
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
            processes.push(Process::of_binary(&linked, None, reader)?);
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
