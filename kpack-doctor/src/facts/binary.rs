//! Binaries with device code.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kpack_core::finding::Id;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_format::names::is_object;
use kpack_format::target_id::SPIRV;
use kpack_format::{Delivery, TargetId};
use kpack_split::elf::{BinaryError, DeviceCode, Dynamic, Image};
use kpack_split::input::{
    Kpacks, LinkedBinary, Lookup, MarkerGroup, Resolver, or_refused, placed, prefix_of,
};
use kpack_split::join;
use kpack_tree::databases::{self, Database, InstalledDatabase};
use object::elf;

use super::code::CodeForGpu;
use super::lacking::database_roots;
use super::libraries::Scope;
use super::machine::{Machine, Reader};
use super::misplaced;
use super::rocm_loader::RocmLoader;
use super::runtime::{HipRuntime, Loader, SHIM};
use crate::root::is_absent;

/// The type of the note of a shim that is linked into a binary.
const SHIM_NOTE: u32 = 1;
/// The type of the note of a binary with modules, which the crate `kpack` loads.
const MODULES_NOTE: u32 = 3;
/// What start-up code calls if the HIP runtime is to find the code.
const REGISTER: &str = "__hipRegisterFatBinary";

/// A binary with device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    /// Where the loaders find it: its path, with the directory resolved. It may still be a link to a file elsewhere.
    pub(crate) path: PathBuf,
    /// The same without symbolic links.
    pub(crate) real: PathBuf,
    /// Its install prefix; the directory of a binary that was moved.
    pub(crate) prefix: PathBuf,
    /// What it is.
    pub(crate) form: Form,
    /// Whether there is code for each GPU.
    pub(crate) code: Vec<(TargetId, CodeForGpu)>,
    /// Its archives, and where others would be.
    pub(crate) archives: Vec<PathBuf>,
    /// What led to archives, apart from the ordinary way, for the end of a message.
    pub(crate) found_through: String,
    /// Whether the shim is linked into it, so that every HIP runtime gets its code.
    pub(crate) has_shim: bool,
    /// Whether it loads all its code itself, as modules, so that every HIP runtime will do.
    pub(crate) loads_itself: bool,
    /// What `kpack join` would do; `None` if that does not matter.
    pub(crate) join: Option<Join>,
    /// The kernel databases that it loads files of.
    pub(crate) databases: Vec<InstalledDatabase>,
    /// Why parts of them cannot be listed.
    pub(crate) unlisted: Vec<Finding>,
}

/// What `kpack join` would do with a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Join {
    /// It would have code for these GPUs.
    Gives(Vec<TargetId>),
    /// It is refused, for this reason.
    Refused(String),
}

/// What a binary with device code is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
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

/// Whether the shim is linked into a binary, or the shared one with it.
fn has_shim(image: &Image<File>) -> Result<bool, BinaryError> {
    let needed = Dynamic::read(image)?.strings(image, elf::DT_NEEDED)?;
    Ok(image.has_note(SHIM_NOTE)? || needed.iter().any(|name| name.starts_with(SHIM.as_bytes())))
}

/// Whether a binary has modules, and leaves nothing to the HIP runtime.
fn has_only_modules(image: &Image<File>) -> Result<bool, BinaryError> {
    let linkage = || Dynamic::read(image)?.linkage(image, REGISTER);
    Ok(image.has_note(MODULES_NOTE)? && linkage()?.is_none())
}

/// The kernel databases of a library, and the parts of them that this user may not list: its own, and the images of
/// AOTriton, which PyTorch's libraries load.
fn databases(
    path: &Path,
    directory: &Path,
    reader: &Reader,
) -> Result<(Vec<InstalledDatabase>, Vec<Finding>), Error> {
    let own = databases::of_library(&path.file_name().unwrap_or_default().to_string_lossy());
    let is_own = |database: &Database| {
        own.is_some_and(|own| own.name == database.name) || database.name == "aotriton"
    };
    let (mut found, unlisted) = databases::installed(&database_roots(directory, reader), &is_own);
    found.retain(|database| !database.targets.is_empty());
    let unlisted: Result<_, _> = unlisted.into_iter().filter_map(unlisted_part).collect();
    Ok((found, unlisted?))
}

/// What to say about a part of a database that cannot be listed; `None` about one that vanished meanwhile, because it is being
/// replaced.
fn unlisted_part(error: Error) -> Option<Result<Finding, Error>> {
    match &error {
        Error::Io { source, .. } if is_absent(source) => return None,
        Error::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => {}
        _ => return Some(Err(error)),
    }
    let text = format!(
        "{}, so kpack cannot tell which GPUs the kernel database has files for",
        error.without_id()
    );
    let note = Finding::general(Severity::Note, error.id(), text);
    Some(Ok(note.with_help("run kpack as a user who may read it")))
}

impl Binary {
    /// The binary, if it has device code.
    pub(crate) fn of(
        linked: &LinkedBinary,
        reader: &Reader,
        hip: Option<&HipRuntime>,
    ) -> Result<Option<Self>, Error> {
        let path = placed(&linked.loaded_as()).unwrap_or_else(|| linked.path.clone());
        // If its dynamic section is damaged, nothing loads it.
        let is = |has: fn(&Image<File>) -> Result<bool, BinaryError>| {
            linked.image.elf().is_some_and(|image| has(image).unwrap_or(false))
        };
        let loads_itself = is(has_only_modules);
        // The HIP runtime and its loader have no part in it then.
        let hip = hip.filter(|_| !loads_itself);
        let (form, code, name, archives, found_through) = match Form::of(linked, reader, hip) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(Error::Refused { id, path, reason, .. }) if path == linked.path => {
                (Form::Damaged(id, reason), Vec::new(), None, Vec::new(), String::new())
            }
            Err(Error::Io { path, source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                let text = format!("this user may not read {}", path.display());
                let advice = "let this user read it, or install it again";
                let fault = CodeForGpu::Fault(ids::DAMAGED_ARCHIVE, text, advice.to_owned());
                let gpus = reader.machine.gpus().iter().cloned();
                let code = gpus.map(|gpu| (gpu, fault.clone())).collect();
                (Form::Split, code, None, Vec::new(), String::new())
            }
            Err(error) => return Err(error),
        };
        let prefix = name.and_then(|name| prefix_of(&path, &name));
        let directory = path.parent().unwrap_or(Path::new("/"));
        // A database that this user may not list keeps nothing else from being examined.
        let (databases, unlisted) = databases(&path, directory, reader)?;
        Ok(Some(Self {
            prefix: prefix.unwrap_or_else(|| directory.to_owned()),
            real: real(&path),
            path,
            form,
            code,
            archives,
            found_through,
            has_shim: is(has_shim),
            loads_itself,
            join: None,
            databases,
            unlisted,
        }))
    }

    /// Whether it has no code for some GPU.
    pub(crate) fn lacks_code(&self) -> bool {
        self.code.iter().any(|(_, code)| !code.is_here())
    }

    /// Its kernel databases that have no files for a GPU, or for a family that it is in.
    pub(crate) fn lacking_databases<'a>(
        &'a self,
        machine: &'a Machine,
    ) -> impl Iterator<Item = (&'a TargetId, &'a InstalledDatabase)> {
        let has_files = |database: &InstalledDatabase, gpu: &TargetId| {
            let mut targets = database.targets.iter();
            targets.any(|target| target.may_be_taken_for(gpu, Delivery::Archive))
        };
        self.databases.iter().flat_map(move |database| {
            let gpus = machine.gpus().iter().filter(move |gpu| !has_files(database, gpu));
            gpus.map(move |gpu| (gpu, database))
        })
    }

    /// Plans a join for all GPUs of the machine, without writing.
    pub(crate) fn plan_join(&self, machine: &Machine) -> Result<Option<Join>, Error> {
        match &self.form {
            Form::Split | Form::Joined => {}
            Form::EarlyMarker => {
                let why = "the marker names no kernels".to_owned();
                return Ok(Some(Join::Refused(why)));
            }
            Form::Fat | Form::Damaged(..) => return Ok(None),
        }
        if self.loads_itself {
            return Ok(None);
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
type DeviceCodeFacts = (Form, Vec<(TargetId, CodeForGpu)>, Option<String>, Vec<PathBuf>, String);

impl Form {
    fn of(
        linked: &LinkedBinary,
        reader: &Reader,
        hip: Option<&HipRuntime>,
    ) -> Result<Option<DeviceCodeFacts>, Error> {
        let fat = match &linked.code {
            DeviceCode::None(_) => return Ok(None),
            DeviceCode::Split(_) => return split(linked, reader, hip).map(Some),
            DeviceCode::Fat(fat) => fat,
        };
        let targets = linked.targets(fat, &|_| true)?;
        // Runtimes compile SPIR-V for any GPU.
        let may_run = |gpu: &TargetId, target: &String| target == SPIRV || gpu.may_run(target);
        let code_for = |gpu: &TargetId| {
            if targets.iter().any(|target| may_run(gpu, target)) {
                CodeForGpu::Here
            } else {
                CodeForGpu::Nowhere(targets.clone())
            }
        };
        let gpus = reader.machine.gpus().iter();
        let code = gpus.map(|gpu| (gpu.clone(), code_for(gpu))).collect();
        Ok(Some(match linked.kept_marker()? {
            Some(marker) => (Self::Joined, code, marker.kernel_name, Vec::new(), String::new()),
            None => (Self::Fat, code, None, Vec::new(), String::new()),
        }))
    }
}

fn split(
    linked: &LinkedBinary,
    reader: &Reader,
    hip: Option<&HipRuntime>,
) -> Result<DeviceCodeFacts, Error> {
    let groups = linked.markers()?;
    let loaded_as = linked.loaded_as();
    let (mut kpacks, mut archives) = (Vec::new(), Vec::new());
    let mut code: Vec<(TargetId, CodeForGpu)> = reader
        .machine
        .gpus()
        .iter()
        .cloned()
        .map(|gpu| (gpu, CodeForGpu::Nowhere(BTreeSet::new())))
        .collect();
    for group in &groups {
        let Some(name) = &group.marker.kernel_name else {
            return Ok((Form::EarlyMarker, Vec::new(), None, Vec::new(), String::new()));
        };
        let open = |lookup: &Lookup| {
            Resolver::open(lookup, &linked.image, &loaded_as, &group.marker, name)
        };
        let resolver = open(&reader.lookup)?;
        let rocm = match hip {
            Some(HipRuntime { loader: Some(Loader::Rocm(path)), .. }) => Some(RocmLoader {
                path,
                is_old: hip.is_some_and(HipRuntime::is_up_to_7_14),
                resolver: open(&reader.rocm_lookup)?,
            }),
            _ => None,
        };
        for (gpu, known) in &mut code {
            let mut found = CodeForGpu::of(group, &resolver, gpu)?;
            // Only this variable replaces what the marker leads to.
            if found != CodeForGpu::Here
                && !reader.machine.environment.path.is_empty()
                && CodeForGpu::of(group, &open(&Lookup::default())?, gpu)? == CodeForGpu::Here
            {
                found = CodeForGpu::replaced(gpu);
            }
            if found == CodeForGpu::Here
                && let Some(scope) = &reader.scope
                && let Some(archive) = outside(scope, group, &resolver, gpu)
            {
                found = CodeForGpu::outside(gpu, archive);
            }
            if found.is_missing()
                && let Some(other) = misplaced::find(linked, group, name, &resolver, gpu)?
            {
                found = CodeForGpu::Misplaced(other);
            }
            if let (CodeForGpu::Here, Some(rocm)) = (&found, &rocm)
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

/// The archive that code for `gpu` would be loaded from, if it is outside of the scope.
fn outside<'r>(
    scope: &Scope,
    group: &MarkerGroup,
    resolver: &'r Resolver,
    gpu: &TargetId,
) -> Option<&'r Path> {
    let targets = Vec::from_iter(resolver.kpacks.targets().filter(|target| gpu.may_run(target)));
    let places = group.wrappers.iter().flat_map(|wrapper| {
        let places = |target: &&str| resolver.places(wrapper.co_index, target);
        targets.iter().flat_map(places)
    });
    let paths = Vec::from_iter(places.map(|place| resolver.path(place)));
    let is_outside = !paths.iter().any(|path| scope.has(path));
    paths.first().copied().filter(|_| is_outside)
}

/// A path without symbolic links.
pub(super) fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Given a part of a database that cannot be listed, then one that vanished says nothing, one that is closed to this user is
    /// a note, and anything else is an error of the system.
    #[test]
    fn parts_of_databases_that_cannot_be_listed() {
        let kinds = |kind: ErrorKind| {
            let error = Error::io("library".as_ref(), "list", io::Error::from(kind));
            unlisted_part(error).map(|found| found.map(|note| note.severity).map_err(|_| "error"))
        };
        assert_eq!(kinds(ErrorKind::NotFound), None);
        assert_eq!(kinds(ErrorKind::NotADirectory), None);
        assert_eq!(kinds(ErrorKind::PermissionDenied), Some(Ok(Severity::Note)));
        assert_eq!(kinds(ErrorKind::OutOfMemory), Some(Err("error")));
        assert_eq!(kinds(ErrorKind::Other), Some(Err("error")));
    }
}
