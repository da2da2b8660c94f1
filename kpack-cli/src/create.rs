//! Creates archives of files by name, for programs that load their kernels themselves.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use kpack_core::archives::{Budget, Permit};
use kpack_core::files::{self, FileKind, check_code_object, directory_of, kind_of};
use kpack_core::parallel::{self, lock};
use kpack_core::publish::{StagedFile, scratch_file};
use kpack_core::report::Progress;
use kpack_core::{Error, Storage, ids, shown};
use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Encoder, MAX_CODE_OBJECT};
use kpack_format::digest::blake3;
use kpack_format::names::is_archive;
use serde::Serialize;

/// An archive to create.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CreateOptions {
    /// The archive, a path that ends in `.kpack`. A file that is there is replaced.
    pub archive: PathBuf,
    /// The name of the group.
    pub group_name: String,
    /// What the targets have in common. An archive of one target has its ID.
    pub family: String,
    /// The targets, at least one.
    pub targets: Vec<TargetId>,
    /// The kernels.
    pub kernels: Vec<Kernel>,
    /// How they are stored.
    pub storage: Storage,
}

/// A file to store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Kernel {
    /// The name in the archive.
    pub name: String,
    /// The target that it is for, one of the archive's.
    pub target: TargetId,
    /// The file. It is compressed in memory.
    pub file: PathBuf,
    /// The type of its entry, if that is not `hsaco`.
    pub kind: Option<String>,
    /// A MessagePack map that the archive keeps, for programs that read it.
    pub metadata: Option<Vec<u8>>,
}

/// The archive that was created.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Created {
    /// The archive.
    #[serde(serialize_with = "kpack_core::lossy::path")]
    pub archive: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Number of code objects.
    pub code_object_count: u64,
    /// Size of the files in bytes.
    pub original_size: u64,
    /// Whether the file has changed.
    pub changed: bool,
}

impl Kernel {
    /// A file of the type `hsaco`, without metadata.
    pub fn new(name: impl Into<String>, target: TargetId, file: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), target, file: file.into(), kind: None, metadata: None }
    }
}

impl CreateOptions {
    /// An archive of `kernels` for one target, compressed with Zstandard. The group's name is the file's, without the
    /// target.
    pub fn new(archive: impl Into<PathBuf>, target: TargetId) -> Self {
        let archive = archive.into();
        let stem = archive.file_stem().unwrap_or_default().to_string_lossy();
        let family = target.to_string();
        let group = stem.strip_suffix(&format!("_{family}"));
        Self {
            group_name: group.unwrap_or(&stem).to_owned(),
            family,
            targets: vec![target],
            kernels: Vec::new(),
            storage: Storage::zstd(),
            archive,
        }
    }
}

/// Creates an archive. Its bytes depend only on the names, the contents and the options.
///
/// # Errors
/// [`Error::Usage`] for a file name that does not end in `.kpack`, and for a kernel without a name; [`Error::Refused`]
/// for two kernels of one name and target, and for a code object that is for another target; [`Error::Io`].
pub fn create(options: &CreateOptions, progress: &dyn Progress) -> Result<Created, Error> {
    let path = &options.archive;
    if !is_archive(path) {
        return Err(Error::usage(format!(
            "the name of an archive ends in `.kpack`: {}",
            shown(path)
        )));
    }
    check_names(&options.kernels)?;
    let ((staged, written), original_size) = parallel::with_jobs(options.storage.jobs, || {
        let (archive, original_size) = collect(options, progress)?;
        let written = StagedFile::write(path, |staged| {
            let written = archive.finish(staged.file());
            written.map_err(|error| Error::archive(path, "write", error))
        })?;
        Ok::<_, Error>((written, original_size))
    })?;
    Ok(Created {
        archive: path.clone(),
        size: written.size,
        code_object_count: written.kernel_count,
        original_size,
        changed: staged.commit()?,
    })
}

/// Checks what can be checked without reading a file.
fn check_names(kernels: &[Kernel]) -> Result<(), Error> {
    let mut known = BTreeSet::new();
    for Kernel { name, target, file, .. } in kernels {
        if name.is_empty() {
            return Err(Error::usage(format!("{}: a kernel without a name", shown(file))));
        }
        if !known.insert((name, target)) {
            let reason = format!("a second kernel `{}` for {target}", name.escape_debug());
            return Err(Error::rejected(ids::NAME_CLASH, file, reason));
        }
    }
    Ok(())
}

/// Compresses the files. Returns them with their size in bytes.
fn collect(
    options: &CreateOptions,
    progress: &dyn Progress,
) -> Result<(ArchiveWriter<File>, u64), Error> {
    let CreateOptions { archive: path, storage, .. } = options;
    let archive = ArchiveWriter::for_family(
        scratch_file(directory_of(path))?,
        &options.group_name,
        &options.family,
        options.targets.iter().map(TargetId::to_string).collect(),
        storage.scheme,
    );
    let output = Mutex::new((archive, 0));
    let encoders: Mutex<Vec<Encoder>> = Mutex::default();
    let budget = Budget::default();
    parallel::try_map(&options.kernels, |kernel| {
        let (bytes, _permit) = read(kernel, &budget)?;
        progress.advance(bytes.len() as u64);
        let idle = lock(&encoders).pop();
        let new = || Encoder::new(storage.scheme, storage.level);
        let encoded = idle
            .map_or_else(new, Ok)
            .and_then(|mut encoder| {
                let encoded = encoder.encode(&bytes, blake3(&bytes))?;
                lock(&encoders).push(encoder);
                Ok(encoded)
            })
            .map_err(|error| Error::archive(&kernel.file, "compress", error))?;
        let (archive, size) = &mut *lock(&output);
        *size += encoded.original_size;
        let target = kernel.target.to_string();
        let added = archive.add_for(
            (&kernel.name, &target),
            (kernel.kind.as_deref(), kernel.metadata.as_deref()),
            &encoded,
        );
        added.map_err(|error| Error::archive(path, "write", error))
    })?;
    Ok(output.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Reads a file, and checks its target if it is a code object. The bytes count until the permit is dropped.
fn read<'b>(
    Kernel { target, file, .. }: &Kernel,
    budget: &'b Budget,
) -> Result<(Vec<u8>, Permit<'b>), Error> {
    let failed = |error| Error::io(file, "read", error);
    let opened = files::open(file)?;
    let size = opened.metadata().map_err(failed)?.len();
    if size > MAX_CODE_OBJECT {
        let reason =
            format!("{size} bytes; an archive holds at most {MAX_CODE_OBJECT} for a kernel");
        return Err(Error::rejected(ids::SIZE_LIMIT, file, reason));
    }
    let permit = budget.take(size);
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(size as usize);
    reserved.map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    opened.take(size).read_to_end(&mut bytes).map_err(failed)?;
    if kind_of(&bytes) == Some(FileKind::CodeObject) {
        let checked = check_code_object(&bytes, target);
        checked.map_err(|reason| Error::rejected(ids::DAMAGED_CODE_OBJECT, file, reason))?;
    }
    Ok((bytes, permit))
}
