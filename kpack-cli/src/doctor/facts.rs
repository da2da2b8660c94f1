//! What the doctor looks at, before it judges.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kpack_format::target_id::SPIRV;
use kpack_format::{Delivery, TargetId};
use object::elf;
use rocm_kpack::ShimMode;
use rocm_kpack::dynamic_symbols::{LOADER_FUNCTION, Linkage};

use super::dynamic_linker::{self, Library, Loading};
use super::machine::Machine;
use super::rocm_loader::RocmLoader;
use kpack_core::files;
use kpack_core::finding::Id;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_format::names::is_object;
use kpack_split::elf::{BinaryError, DeviceCode, Dynamic, Image};
use kpack_split::input::{
    self, FileKind, Kpacks, LinkedBinary, Lookup, MarkerGroup, Prefix, binary_error, or_refused,
    placed, prefix_of,
};
use kpack_split::input::{Obstacle, Resolver};
use kpack_split::join;
use kpack_tree::databases::{self, Database, Installed};

/// A process that loads binaries with device code: a program, or one with a library of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    /// The file whose libraries were found.
    pub(super) file: PathBuf,
    /// Its HIP runtime.
    pub(super) runtime: Runtime,
    /// The shim that it is loaded with.
    pub(super) shim: Option<PathBuf>,
    /// The file and, if the caller named it, its libraries, without those that have no device code.
    pub(super) binaries: Vec<Binary>,
}

/// The HIP runtime of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Runtime {
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
pub(super) struct HipRuntime {
    pub(super) path: PathBuf,
    /// ROCm's version, as far as its SONAME or file name tells it.
    pub(super) version: Vec<u32>,
    /// What finds the code of split binaries for it; `None` if it does not read markers.
    pub(super) loader: Option<Loader>,
}

/// The loader that a HIP runtime calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loader {
    /// It was not found; its name.
    Missing(String),
    /// The one of kpack.
    Kpack(PathBuf),
    /// The one of ROCm.
    Rocm(PathBuf),
}

/// A binary with device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binary {
    /// Its path, with symbolic links resolved.
    pub(super) path: PathBuf,
    /// Its install prefix; the directory of a binary that was moved.
    pub(super) prefix: PathBuf,
    /// What it is.
    pub(super) form: Form,
    /// Whether there is code for each GPU.
    pub(super) code: Vec<(TargetId, Code)>,
    /// Its archives, and where others would be.
    pub(super) archives: Vec<PathBuf>,
    /// What led to archives, apart from the ordinary way, for the end of a message.
    pub(super) found_through: String,
    /// Whether the shim is linked into it, so that every HIP runtime gets its code.
    pub(super) has_shim: bool,
    /// What `kpack join` would do; `None` if that does not matter.
    pub(super) join: Option<Join>,
    /// The kernel databases that it loads files of.
    pub(super) databases: Vec<Installed>,
    /// Why parts of them cannot be listed.
    pub(super) unlisted: Vec<Finding>,
}

/// What `kpack join` would do with a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Join {
    /// It would have code for these GPUs.
    Gives(Vec<TargetId>),
    /// It is refused, for this reason.
    Refused(String),
}

/// What a binary with device code is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// Its device code is in it.
    Fat,
    /// Device code was put back.
    Joined,
    /// Its device code is in archives.
    Split,
    /// Its marker names no archives.
    EarlyMarker,
    /// It is damaged, in this way.
    Damaged(Id, String),
}

/// Whether a binary has code for a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Code {
    /// It has.
    Here,
    /// It has, but whether this version of ROCm's loader finds it is unknown: why, and what to do.
    Doubtful(String, String),
    /// An archive is missing, damaged, or made for another build: what is wrong, and what to do.
    Fault(Id, String, String),
    /// Nowhere; there is code for these targets only.
    Nowhere(BTreeSet<String>),
    /// There are archives for these targets only, and nothing says for which ones they were built. Where an archive
    /// would be.
    Unlisted(BTreeSet<String>, Vec<PathBuf>),
}

impl Process {
    /// The process of `file`, without binaries.
    fn new(file: &Path, loading: &Loading) -> Result<Self, Error> {
        let shim = match loading {
            Loading::Listed(libraries) => named(libraries, SHIM).and_then(|shim| shim.path.clone()),
            _ => None,
        };
        Ok(Self {
            file: file.to_owned(),
            runtime: Runtime::of(file, loading)?,
            shim,
            binaries: Vec::new(),
        })
    }

    /// The process that loads `linked`, with the HIP runtime `other` if the dynamic linker would find none: a program
    /// can load one before.
    pub(super) fn of_binary(
        linked: &LinkedBinary,
        loading: &Loading,
        other: Option<&HipRuntime>,
        machine: &Machine,
    ) -> Result<Self, Error> {
        let mut process = Self::new(&linked.path, loading)?;
        if let (Runtime::Missing(_) | Runtime::None, Some(other)) = (&process.runtime, other) {
            process.runtime = Runtime::Found(other.clone());
        }
        process.add(linked, machine)?;
        Ok(process)
    }

    /// Adds a binary, if it has device code.
    fn add(&mut self, linked: &LinkedBinary, machine: &Machine) -> Result<(), Error> {
        let is_forced = self.shim.is_some() && machine.shim_mode == ShimMode::Force;
        let hip = match &self.runtime {
            Runtime::Found(hip) if !is_forced => Some(hip),
            _ => None,
        };
        if let Some(mut binary) = Binary::of(linked, machine, hip)? {
            binary.join = binary.plan_join(machine)?;
            self.binaries.push(binary);
        }
        Ok(())
    }

    /// The process of a file that is refused, for this reason.
    fn refused(file: &Path, reason: String) -> Self {
        let runtime = Runtime::Fails(reason);
        Self { file: file.to_owned(), runtime, shim: None, binaries: Vec::new() }
    }

    /// The same, with what is known about the code for these GPUs alone.
    pub(super) fn for_gpus(&self, gpus: &[TargetId]) -> Self {
        let mut process = self.clone();
        for binary in &mut process.binaries {
            binary.code.retain(|(gpu, _)| gpus.contains(gpu));
        }
        process
    }

    /// Whether the shim is there for a binary.
    pub(super) fn has_shim(&self, binary: &Binary) -> bool {
        binary.has_shim || self.shim.is_some()
    }

    /// Whether the HIP runtime itself must find the code of a binary.
    pub(super) fn must_find(&self, binary: &Binary, mode: ShimMode) -> bool {
        let reads = matches!(&self.runtime, Runtime::Found(hip) if hip.loader.is_some());
        let shim_finds = self.has_shim(binary)
            && match mode {
                ShimMode::Auto => !reads,
                ShimMode::Off => false,
                ShimMode::Force => true,
            };
        matches!(binary.form, Form::Split | Form::EarlyMarker) && !shim_finds
    }

    /// The processes that `path` stands for: a file with its libraries, or every binary with device code
    /// in a prefix.
    pub(super) fn at(path: &Path, machine: &Machine) -> Result<Vec<Self>, Error> {
        let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
        if metadata.is_dir() {
            return in_prefix(path, machine);
        }
        let file = input::open(path)?;
        if input::identify(path, &file)? != Some(FileKind::Linked) {
            let text =
                "not a program or shared library; for archives and manifests, run `kpack verify`";
            return Err(Error::rejected(ids::UNKNOWN_FILE, path, text));
        }
        let linked = LinkedBinary::read(path, file)?;
        let loading = dynamic_linker::libraries(path, &linked.image)?;
        let mut process = Self::new(path, &loading)?;
        process.add(&linked, machine)?;
        if let Loading::Listed(libraries) = &loading {
            for library in libraries.iter().filter_map(|library| library.path.as_ref()) {
                // Most libraries have nothing to do with device code.
                if let Ok(linked) = or_refused(LinkedBinary::open(library))? {
                    process.add(&linked, machine)?;
                }
            }
        }
        Ok(vec![process])
    }
}

fn in_prefix(path: &Path, machine: &Machine) -> Result<Vec<Process>, Error> {
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
        let loading = dynamic_linker::libraries(&linked.path, &linked.image)?;
        processes.push(Process::of_binary(&linked, &loading, None, machine)?);
    }
    if processes.is_empty() {
        Err(Error::rejected(ids::NO_DEVICE_CODE, path, "no binary with device code is in it"))
    } else {
        Ok(processes)
    }
}

/// The processes of ROCm's libraries in a directory that has those of the whole distribution.
pub(super) fn in_libraries(directory: &Path, machine: &Machine) -> Result<Vec<Process>, Error> {
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
            let loading = dynamic_linker::libraries(&linked.path, &linked.image)?;
            processes.push(Process::of_binary(&linked, &loading, None, machine)?);
        }
    }
    Ok(processes)
}

/// Opens a file; `None` if it is no linked one.
pub(super) fn open_linked(path: &Path) -> Result<Option<LinkedBinary>, Error> {
    let file = input::open(path)?;
    let is_linked = input::identify(path, &file)? == Some(FileKind::Linked);
    is_linked.then(|| LinkedBinary::read(path, file)).transpose()
}

impl Runtime {
    /// The HIP runtime that `file` is loaded with: one of its libraries, or itself.
    fn of(file: &Path, loading: &Loading) -> Result<Self, Error> {
        let mut libraries = match loading {
            Loading::Listed(libraries) => libraries.clone(),
            Loading::Fails(why) => return Ok(Self::Fails(why.clone())),
            Loading::Unknown(why) => return Ok(Self::Unknown(why.clone())),
        };
        libraries.insert(0, Library::at(file));
        Self::of_libraries(libraries)
    }

    /// The HIP runtime among these libraries.
    pub(super) fn of_libraries(libraries: Vec<Library>) -> Result<Self, Error> {
        let Some(runtime) = named(&libraries, "libamdhip64") else {
            return Ok(Self::None);
        };
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
    /// Reads the runtime at `path`, which is one of `libraries`.
    fn read(path: &Path, libraries: &[Library]) -> Result<Self, Error> {
        let failed = |error| binary_error(path, error);
        let image = Image::read_loaded(input::open(path)?).map_err(failed)?;
        let dynamic = Dynamic::read(&image).map_err(failed)?;
        let strings = |tag| {
            let strings = dynamic.strings(&image, tag).map_err(failed)?;
            let strings = strings.iter().map(|name| String::from_utf8_lossy(name));
            Ok::<_, Error>(Vec::from_iter(strings.map(|name| name.into_owned())))
        };
        let real = path.canonicalize();
        let real = real.map_err(|e| Error::io(path, "find", e))?;
        let file_name = real.file_name().unwrap_or_default().to_string_lossy();
        let soname = strings(elf::DT_SONAME)?.pop().unwrap_or_default();
        let versions = [version(&soname), version(&file_name)].into_iter();
        let linkage = dynamic.linkage(&image, LOADER_FUNCTION);
        let loader = match linkage.map_err(failed)? {
            Some(Linkage::Imported) => Some(Loader::find(libraries)?.unwrap_or_else(|| {
                let mut needed = strings(elf::DT_NEEDED).unwrap_or_default().into_iter();
                let needed = needed.find(|name| name.contains(LOADER));
                Loader::Missing(needed.unwrap_or_else(|| format!("{LOADER}.so")))
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
    pub(super) fn wants_all(&self) -> bool {
        self.version.first().is_some_and(|major| *major <= 5)
    }

    /// Whether it is known to be of ROCm 7.14 or older. ROCm 7.13 and 7.14 ask their loader for one code object for
    /// all GPUs, and this loader stops at an archive that lacks the kernel. Later ones do neither; which is the first
    /// of these is unknown.
    pub(super) fn is_up_to_7_14(&self) -> bool {
        let version = self.version.get(..2);
        version.is_some_and(|version| version <= &[7, 14])
    }
}

/// The numbers at the end of a library's name: 7 and 14 of `libamdhip64.so.7.14`.
fn version(name: &str) -> Vec<u32> {
    numbers(name.rsplit_once(".so.").map_or("", |(_, numbers)| numbers))
}

/// The numbers between the dots of a version, up to what is none.
pub(super) fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|number| number.parse().ok()).collect()
}

impl Loader {
    /// The first of the libraries that exports what a loader does.
    fn find(libraries: &[Library]) -> Result<Option<Self>, Error> {
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
const SHIM: &str = "libkpack_hip";
/// The type of the note of a shim that is linked into a binary.
const SHIM_NOTE: u32 = 1;

/// The first library whose file name begins like this.
fn named<'l>(libraries: &'l [Library], start: &str) -> Option<&'l Library> {
    let is_named = |library: &&Library| {
        let name = Path::new(&library.name).file_name();
        name.is_some_and(|name| name.to_string_lossy().starts_with(start))
    };
    libraries.iter().find(is_named)
}

/// Whether the shim is linked into a binary, or the shared one with it.
fn has_shim(image: &Image<File>) -> Result<bool, BinaryError> {
    let needed = Dynamic::read(image)?.strings(image, elf::DT_NEEDED)?;
    let mut needed = needed.iter();
    Ok(image.has_note(SHIM_NOTE)? || needed.any(|name| name.starts_with(SHIM.as_bytes())))
}

/// The kernel databases of a library, and the parts of them that this user may not list: those that are named as it is, and
/// the images of AOTriton, which PyTorch's libraries load.
fn databases(path: &Path, directory: &Path) -> Result<(Vec<Installed>, Vec<Finding>), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let parent = directory.parent().unwrap_or(directory);
    let is_own = |database: &Database| name.contains(database.name) || database.name == "aotriton";
    let (mut found, unlisted) = databases::installed(&[directory, parent], &is_own);
    found.retain(|database| !database.targets.is_empty());
    let closed = |error| {
        if !matches!(&error, Error::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied)
        {
            return Err(error);
        }
        let text = format!(
            "{}, so kpack cannot tell which GPUs the kernel database has files for",
            error.without_id()
        );
        let note = Finding::general(Severity::Note, error.id(), text);
        Ok(note.with_help("run kpack as a user who may read it"))
    };
    let unlisted: Result<_, _> = unlisted.into_iter().map(closed).collect();
    Ok((found, unlisted?))
}

impl Binary {
    /// The binary, if it has device code.
    fn of(
        linked: &LinkedBinary,
        machine: &Machine,
        hip: Option<&HipRuntime>,
    ) -> Result<Option<Self>, Error> {
        let path = placed(&linked.loaded_as()).unwrap_or_else(|| linked.path.clone());
        let (form, code, name, archives, found_through) = match Form::of(linked, machine, hip) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(Error::Refused { id, path, reason, .. }) if path == linked.path => {
                (Form::Damaged(id, reason), Vec::new(), None, Vec::new(), String::new())
            }
            Err(Error::Io { path, source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                let text = format!("this user may not read {}", path.display());
                let advice = "let this user read it, or install it again";
                let fault = Code::Fault(ids::DAMAGED_ARCHIVE, text, advice.to_owned());
                let gpus = machine.gpus().iter().cloned();
                let code = gpus.map(|gpu| (gpu, fault.clone())).collect();
                (Form::Split, code, None, Vec::new(), String::new())
            }
            Err(error) => return Err(error),
        };
        let prefix = name.and_then(|name| prefix_of(&path, &name));
        let directory = path.parent().unwrap_or(Path::new("/"));
        // A database that this user may not list keeps nothing else from being examined.
        let (databases, unlisted) = databases(&path, directory)?;
        Ok(Some(Self {
            prefix: prefix.unwrap_or_else(|| directory.to_owned()),
            path,
            form,
            code,
            archives,
            found_through,
            // If its dynamic section is damaged, nothing loads it.
            has_shim: linked.image.elf().is_some_and(|image| has_shim(image).unwrap_or(false)),
            join: None,
            databases,
            unlisted,
        }))
    }

    /// Its kernel databases that have no files for a GPU, or for a family that it is in.
    pub(super) fn lacking_databases<'a>(
        &'a self,
        machine: &'a Machine,
    ) -> impl Iterator<Item = (&'a TargetId, &'a Installed)> {
        let has_files = |database: &Installed, gpu: &TargetId| {
            let mut targets = database.targets.iter();
            targets.any(|target| target.may_be_taken_for(gpu, Delivery::Archive))
        };
        self.databases.iter().flat_map(move |database| {
            let gpus = machine.gpus().iter().filter(move |gpu| !has_files(database, gpu));
            gpus.map(move |gpu| (gpu, database))
        })
    }

    /// Plans a join for all GPUs of the machine, without writing.
    fn plan_join(&self, machine: &Machine) -> Result<Option<Join>, Error> {
        match &self.form {
            Form::Split | Form::Joined => {}
            Form::EarlyMarker => {
                let why = "the marker names no kernels".to_owned();
                return Ok(Some(Join::Refused(why)));
            }
            Form::Fat | Form::Damaged(..) => return Ok(None),
        }
        let gpus = machine.to_join();
        if gpus.is_empty() {
            return Ok(None);
        }
        let options = join::JoinOptions::new(&self.prefix, gpus.iter().cloned(), [&self.path]);
        let planned = match join::planned_targets(&options) {
            Err(Error::Io { path, source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                let why = format!("this user may not read {}", path.display());
                return Ok(Some(Join::Refused(why)));
            }
            planned => or_refused(planned)?,
        };
        Ok(Some(match planned {
            Ok(targets) => {
                let has_code = |gpu: &TargetId| targets.iter().any(|target| gpu.may_run(target));
                Join::Gives(gpus.into_iter().filter(has_code).collect())
            }
            Err(found) => Join::Refused(found.text),
        }))
    }
}

/// What a binary is, whether there is code for each GPU, its path in the install prefix, where archives are or would be,
/// and what led to them.
type Found = (Form, Vec<(TargetId, Code)>, Option<String>, Vec<PathBuf>, String);

impl Form {
    fn of(
        linked: &LinkedBinary,
        machine: &Machine,
        hip: Option<&HipRuntime>,
    ) -> Result<Option<Found>, Error> {
        let fat = match &linked.code {
            DeviceCode::None(_) => return Ok(None),
            DeviceCode::Split(_) => return split(linked, machine, hip).map(Some),
            DeviceCode::Fat(fat) => fat,
        };
        let targets = linked.targets(fat, &|_| true)?;
        // Runtimes compile SPIR-V for any GPU.
        let may_run = |gpu: &TargetId, target: &String| target == SPIRV || gpu.may_run(target);
        let code = |gpu: &TargetId| {
            if targets.iter().any(|target| may_run(gpu, target)) {
                Code::Here
            } else {
                Code::Nowhere(targets.clone())
            }
        };
        let gpus = machine.gpus().iter();
        let code = gpus.map(|gpu| (gpu.clone(), code(gpu))).collect();
        Ok(Some(match linked.kept_marker()? {
            Some(marker) => (Self::Joined, code, marker.kernel_name, Vec::new(), String::new()),
            None => (Self::Fat, code, None, Vec::new(), String::new()),
        }))
    }
}

fn split(
    linked: &LinkedBinary,
    machine: &Machine,
    hip: Option<&HipRuntime>,
) -> Result<Found, Error> {
    let groups = linked.markers()?;
    let loaded_as = linked.loaded_as();
    let (mut kpacks, mut archives) = (Vec::new(), Vec::new());
    let code = machine.gpus().iter().cloned();
    let code = code.map(|gpu| (gpu, Code::Nowhere(BTreeSet::new())));
    let mut code: Vec<(TargetId, Code)> = code.collect();
    for group in &groups {
        let Some(name) = &group.marker.kernel_name else {
            return Ok((Form::EarlyMarker, Vec::new(), None, Vec::new(), String::new()));
        };
        let open = |lookup: &Lookup| {
            Resolver::open(lookup, &linked.image, &loaded_as, &group.marker, name)
        };
        let resolver = open(&machine.lookup)?;
        let rocm = match hip {
            Some(HipRuntime { loader: Some(Loader::Rocm(path)), .. }) => Some(RocmLoader {
                path,
                is_old: hip.is_some_and(HipRuntime::is_up_to_7_14),
                resolver: open(&machine.rocm_lookup)?,
            }),
            _ => None,
        };
        for (gpu, known) in &mut code {
            let mut found = Code::of(group, &resolver, gpu)?;
            // Only this variable replaces what the marker leads to.
            if found != Code::Here
                && !machine.environment.path.is_empty()
                && Code::of(group, &open(&Lookup::default())?, gpu)? == Code::Here
            {
                found = Code::replaced(gpu);
            }
            if let (Code::Here, Some(rocm)) = (&found, &rocm)
                && let Some(worse) = rocm.judge(group, gpu, &resolver)
            {
                found = worse;
            }
            known.add(found);
            archives.extend(resolver.unlisted(gpu));
        }
        archives.extend(resolver.kpacks.files.iter().map(|kpack| kpack.path.clone()));
        kpacks.push(resolver.kpacks);
    }
    let mut names = groups.iter().map(|group| group.marker.kernel_name.clone());
    let name = names.next().flatten().filter(|name| !is_object(name));
    Ok((Form::Split, code, name, archives, Kpacks::found_through(&kpacks)))
}

impl Code {
    /// Whether there is code, even if some version of ROCm's loader does not find it.
    pub(super) fn is_here(&self) -> bool {
        matches!(self, Self::Here | Self::Doubtful(..))
    }

    /// Whether it is neither in the binary nor in an archive that is there.
    pub(super) fn is_missing(&self) -> bool {
        let is_fault = matches!(self, Self::Fault(id, ..) if *id == ids::MISSING_ARCHIVE);
        is_fault || matches!(self, Self::Nowhere(_) | Self::Unlisted(..))
    }

    /// `ROCM_KPACK_PATH` keeps the loader from the code for `gpu`.
    fn replaced(gpu: &TargetId) -> Self {
        Self::Fault(
            ids::SEARCH_PATHS_SET,
            format!("the paths in ROCM_KPACK_PATH contain no code for {gpu}"),
            format!(
                "unset ROCM_KPACK_PATH: it replaces the installed archives, which have code for {gpu}"
            ),
        )
    }

    fn of(group: &MarkerGroup, resolver: &Resolver, gpu: &TargetId) -> Result<Self, Error> {
        let promised = resolver.kpacks.targets().map(str::to_owned);
        let promised = promised.chain(group.marker.code_ids.keys().cloned());
        let known: BTreeSet<String> = promised.collect();
        let (fitting, others): (Vec<&String>, Vec<&String>) =
            known.iter().partition(|target| gpu.may_run(target));
        let has_code = |target: &&String| {
            let mut wrappers = group.wrappers.iter();
            wrappers.any(|wrapper| resolver.find(wrapper.co_index, target).is_some())
        };
        if fitting.iter().any(has_code) {
            return Ok(Self::Here);
        }
        let obstacle = |target: &&String| Some(((*target).clone(), resolver.obstacle(target)?));
        let Some((target, obstacle)) = fitting.iter().find_map(obstacle) else {
            let files = resolver.kpacks.files.iter();
            let ids = &group.marker.code_ids;
            let mut own = files.filter(|kpack| {
                fitting.contains(&&kpack.target) && ids.contains_key(&kpack.target)
            });
            return Ok(match own.next() {
                Some(kpack) => {
                    Self::damaged(ids::MISSING_KERNEL, &kpack.path, "no code object of this binary")
                }
                // Not every binary of a module has code for each target.
                None => {
                    let others = others.into_iter().cloned().collect();
                    match resolver.unlisted(gpu) {
                        places if places.is_empty() => Self::Nowhere(others),
                        places => Self::Unlisted(others, places),
                    }
                }
            });
        };
        let (id, what, advice) = match obstacle {
            Obstacle::Damaged(archive, reason) => {
                return Ok(Self::damaged(ids::DAMAGED_ARCHIVE, archive, reason));
            }
            Obstacle::OtherBuild(archive) => (
                ids::STALE_ARCHIVE,
                format!("{} is made for another build of it", archive.display()),
                "install host and device packages of one version",
            ),
            Obstacle::Missing(place) => {
                let place = match place {
                    Some(place) => place.display().to_string(),
                    None => group.marker.kpack_search_paths.join("`, `"),
                };
                (
                    ids::MISSING_ARCHIVE,
                    format!("the archive for {target} is missing: `{place}`"),
                    "install the package that contains it",
                )
            }
        };
        Ok(Self::Fault(id, what, advice.to_owned()))
    }

    fn damaged(id: Id, archive: &Path, reason: &str) -> Self {
        let what = format!("{} is damaged: {reason}", archive.display());
        Self::Fault(id, what, "install that archive again".to_owned())
    }

    /// Adds the code of another part of the binary. Not every part is compiled for every GPU.
    fn add(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Nowhere(known) | Self::Unlisted(known, _), Self::Nowhere(more)) => {
                known.extend(more);
            }
            (Self::Unlisted(known, places), Self::Unlisted(more, others)) => {
                known.extend(more);
                places.extend(others);
            }
            (Self::Nowhere(known), Self::Unlisted(mut more, places)) => {
                more.append(known);
                *self = Self::Unlisted(more, places);
            }
            (Self::Fault(..), _)
            | (Self::Here | Self::Doubtful(..), Self::Nowhere(_) | Self::Unlisted(..))
            | (Self::Doubtful(..), Self::Here) => {}
            (known, other) => *known = other,
        }
    }
}
