//! What the doctor looks at, before it judges.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use object::elf::DT_NEEDED;

use super::dynamic_linker::{self, Library, Loading};
use crate::Error;
use crate::elf::{DeviceCode, Dynamic, Image};
use crate::input::{
    self, FileKind, Kpacks, Linked, Lookup, Marked, Prefix, elf_error, or_refused, placed,
    prefix_of,
};
use crate::join;
use crate::verify::{Obstacle, Resolver};
use kpack_format::names::is_object;

/// A process that loads binaries with device code: a program, or one with a library of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    /// The file whose libraries were found.
    pub(super) file: PathBuf,
    /// Its HIP runtime.
    pub(super) runtime: Runtime,
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
    Found(PathBuf, Support),
}

/// How a HIP runtime finds the code of split binaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Support {
    /// Not at all.
    None,
    /// A preloaded shim does it.
    Shim(PathBuf),
    /// It calls the loader of this name; `None` if that was not found.
    Loader(String, Option<PathBuf>),
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
    /// What led to archives, apart from the ordinary way, for the end of a message.
    pub(super) found_through: String,
    /// Whether the shim is linked into it, so that every HIP runtime gets its code.
    pub(super) has_shim: bool,
    /// Why `kpack join` refuses it; `None` if it does not, or need not be asked.
    pub(super) join_refuses: Option<String>,
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
    Damaged(String),
}

/// Whether a binary has code for a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Code {
    /// It has.
    Here,
    /// An archive is missing, damaged, or made for another build: what is wrong, and what to do.
    Fault(String, String),
    /// Nowhere; there is code for these targets only.
    Nowhere(BTreeSet<String>),
}

impl Process {
    fn new(file: &Path, loading: Loading, mut binaries: Vec<Binary>) -> Result<Self, Error> {
        let runtime = Runtime::of(file, loading)?;
        if let Runtime::Found(_, Support::None) = runtime {
            for binary in &mut binaries {
                binary.join_refuses = binary.ask_join()?;
            }
        }
        Ok(Self {
            file: file.to_owned(),
            runtime,
            binaries,
        })
    }

    /// The processes that `path` stands for: a file with its libraries, or every binary with device code
    /// in a prefix.
    pub(super) fn at(path: &Path, gpus: &[TargetId], lookup: &Lookup) -> Result<Vec<Self>, Error> {
        let metadata = path.metadata().map_err(|e| Error::io(path, "read", e))?;
        if metadata.is_dir() {
            return in_prefix(path, gpus, lookup);
        }
        let file = input::open(path)?;
        if input::identify(path, &file)? != Some(FileKind::Linked) {
            let text = "not an executable or shared object (ELF); for archives and manifests, run `kpack verify`";
            return Err(Error::refused(path, text));
        }
        let linked = Linked::read(path, file)?;
        let loading = dynamic_linker::libraries(path, &linked.image)?;
        let mut binaries = Vec::from_iter(Binary::of(&linked, gpus, lookup)?);
        if let Loading::Listed(libraries) = &loading {
            for library in libraries.iter().filter_map(|library| library.path.as_ref()) {
                // Most libraries have nothing to do with device code.
                if let Ok(linked) = or_refused(Linked::open(library))? {
                    binaries.extend(Binary::of(&linked, gpus, lookup)?);
                }
            }
        }
        Ok(vec![Self::new(path, loading, binaries)?])
    }
}

fn in_prefix(path: &Path, gpus: &[TargetId], lookup: &Lookup) -> Result<Vec<Process>, Error> {
    let mut processes = Vec::new();
    for linked in Prefix::new(path)?.reachable_binaries()? {
        let linked = linked?;
        if let Some(binary) = Binary::of(&linked, gpus, lookup)? {
            let loading = dynamic_linker::libraries(&linked.path, &linked.image)?;
            processes.push(Process::new(&linked.path, loading, vec![binary])?);
        }
    }
    match processes.is_empty() {
        true => Err(Error::refused(path, "no binary with device code is in it")),
        false => Ok(processes),
    }
}

impl Runtime {
    /// The HIP runtime that `file` is loaded with: one of its libraries, or itself.
    fn of(file: &Path, loading: Loading) -> Result<Self, Error> {
        let mut libraries = match loading {
            Loading::Listed(libraries) => libraries,
            Loading::Fails(why) => return Ok(Self::Fails(why)),
            Loading::Unknown(why) => return Ok(Self::Unknown(why)),
        };
        libraries.insert(0, Library::at(file));
        let named = |start| libraries.iter().find(|library| is_named(library, start));
        let Some(runtime) = named("libamdhip64") else {
            return Ok(Self::None);
        };
        let Some(path) = &runtime.path else {
            return Ok(Self::Missing(runtime.name.to_string_lossy().into_owned()));
        };
        let failed = |error| elf_error(path, error);
        let image = Image::read(input::open(path)?).map_err(failed)?;
        let dynamic = Dynamic::read(&image).map_err(failed)?;
        let needed = dynamic.strings(&image, DT_NEEDED).map_err(failed)?;
        let mut needed = needed
            .iter()
            .map(|name| String::from_utf8_lossy(name).into_owned());
        let loader = needed.find(|name| name.starts_with(LOADER));
        let support = match loader {
            None => match named(SHIM) {
                Some(Library {
                    path: Some(shim), ..
                }) => Support::Shim(shim.clone()),
                _ => Support::None,
            },
            Some(name) => {
                let found = named(LOADER).and_then(|library| library.path.clone());
                Support::Loader(name, found)
            }
        };
        Ok(Self::Found(path.clone(), support))
    }
}

/// How the names of the loader begin.
const LOADER: &str = "librocm_kpack.so";
/// How the names of the shim begin.
const SHIM: &str = "libkpack_hip.so";

/// The note of a shim that is linked into a binary.
const SHIM_NOTE: &str = ".note.kpack_hip";

/// Whether a library's file name begins like this.
fn is_named(library: &Library, start: &str) -> bool {
    let name = Path::new(&library.name).file_name();
    name.is_some_and(|name| name.to_string_lossy().starts_with(start))
}

impl Binary {
    /// The binary, if it has device code.
    fn of(linked: &Linked, gpus: &[TargetId], lookup: &Lookup) -> Result<Option<Self>, Error> {
        let path = placed(&linked.loaded_as()).unwrap_or_else(|| linked.path.clone());
        let (form, code, name, found_through) = match Form::of(linked, gpus, lookup) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(Error::Refused { path, reason }) if path == linked.path => {
                (Form::Damaged(reason), Vec::new(), None, String::new())
            }
            Err(error) => return Err(error),
        };
        let prefix = name.and_then(|name| prefix_of(&path, &name));
        let directory = path.parent().unwrap_or(Path::new("/"));
        Ok(Some(Self {
            prefix: prefix.unwrap_or_else(|| directory.to_owned()),
            path,
            form,
            code,
            found_through,
            has_shim: linked.image.sections.iter().any(|s| s.name == SHIM_NOTE),
            join_refuses: None,
        }))
    }

    /// Whether the HIP runtime must read its marker.
    pub(super) fn needs_support(&self) -> bool {
        matches!(self.form, Form::Split | Form::EarlyMarker) && !self.has_shim
    }

    /// Why `kpack join` refuses a split binary for the GPUs that it has code for.
    fn ask_join(&self) -> Result<Option<String>, Error> {
        match &self.form {
            Form::Split => {}
            Form::EarlyMarker => return Ok(Some("its marker names no kernels".to_owned())),
            _ => return Ok(None),
        }
        let code = self.code.iter().filter(|(_, code)| *code == Code::Here);
        let gpus: Vec<TargetId> = code.map(|(gpu, _)| gpu.clone()).collect();
        if gpus.is_empty() {
            return Ok(None);
        }
        let options = join::Options::new(&self.prefix, gpus, [&self.path]);
        let refused = or_refused(join::check(&options))?.err();
        Ok(refused.map(|(_, reason)| reason))
    }
}

/// What a binary is, whether there is code for each GPU, its path in the install prefix, and what led to
/// archives.
type Found = (Form, Vec<(TargetId, Code)>, Option<String>, String);

impl Form {
    fn of(linked: &Linked, gpus: &[TargetId], lookup: &Lookup) -> Result<Option<Found>, Error> {
        let fat = match &linked.code {
            DeviceCode::None(_) => return Ok(None),
            DeviceCode::Split(_) => return split(linked, gpus, lookup).map(Some),
            DeviceCode::Fat(fat) => fat,
        };
        let targets = linked.targets(fat)?;
        let code = |gpu: &TargetId| match targets.iter().any(|target| gpu.may_run(target)) {
            true => Code::Here,
            false => Code::Nowhere(targets.clone()),
        };
        let code = gpus.iter().map(|gpu| (gpu.clone(), code(gpu))).collect();
        Ok(Some(match linked.kept_marker()? {
            Some(marker) => (Self::Joined, code, marker.kernel_name, String::new()),
            None => (Self::Fat, code, None, String::new()),
        }))
    }
}

fn split(linked: &Linked, gpus: &[TargetId], lookup: &Lookup) -> Result<Found, Error> {
    let groups = linked.markers()?;
    let loaded_as = linked.loaded_as();
    let mut kpacks = Vec::new();
    let code = gpus.iter().cloned();
    let code = code.map(|gpu| (gpu, Code::Nowhere(BTreeSet::new())));
    let mut code: Vec<(TargetId, Code)> = code.collect();
    for group in &groups {
        let Some(name) = &group.marker.kernel_name else {
            return Ok((Form::EarlyMarker, Vec::new(), None, String::new()));
        };
        let resolver = Resolver::open(lookup, &loaded_as, &group.marker, name)?;
        for (gpu, known) in &mut code {
            known.add(Code::of(group, &resolver, gpu)?);
        }
        kpacks.push(resolver.kpacks);
    }
    let mut names = groups.iter().map(|group| group.marker.kernel_name.clone());
    let name = names.next().flatten().filter(|name| !is_object(name));
    Ok((Form::Split, code, name, Kpacks::found_through(&kpacks)))
}

impl Code {
    fn of(group: &Marked, resolver: &Resolver, gpu: &TargetId) -> Result<Self, Error> {
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
                Some(kpack) => Self::damaged(&kpack.path, "it has no code object of this binary"),
                // Not every binary of a module has code for each target.
                None => Self::Nowhere(others.into_iter().cloned().collect()),
            });
        };
        let (what, otherwise) = match obstacle {
            Obstacle::Damaged(archive, reason) => return Ok(Self::damaged(archive, reason)),
            Obstacle::OtherBuild(archive) => (
                format!("{} is made for another build of it", archive.display()),
                "install host and device packages of one version",
            ),
            Obstacle::Missing(place) => {
                let place = match place {
                    Some(place) => place.display().to_string(),
                    None => group.marker.kpack_search_paths.join("`, `"),
                };
                (
                    format!("the archive for {target} is missing: `{place}`"),
                    "install the package that contains it",
                )
            }
        };
        let command = resolver.install_command(&target)?;
        let command = command.map(|command| format!("run `{command}`"));
        Ok(Self::Fault(
            what,
            command.unwrap_or_else(|| otherwise.to_owned()),
        ))
    }

    fn damaged(archive: &Path, reason: &str) -> Self {
        let what = format!("{} is damaged: {reason}", archive.display());
        Self::Fault(what, "install that archive again".to_owned())
    }

    /// Adds the code of another part of the binary. Not every part is compiled for every GPU.
    fn add(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Nowhere(known), Self::Nowhere(more)) => known.extend(more),
            (Self::Fault(..), _) | (_, Self::Nowhere(_)) => {}
            (known, other) => *known = other,
        }
    }
}
