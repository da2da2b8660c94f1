//! Decides where one entry of a tree belongs, by its path and its content.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use kpack_core::files::with_slashes;
use kpack_core::platform::{FileExt, SharedInode, shared_inode};
use kpack_core::publish::Identity;
use kpack_format::TargetId;
use kpack_format::unstable::target_names;
use kpack_format::unstable::tensile::Library;
use walkdir::DirEntry;

use crate::content::FileContent;
use crate::data_file::{is_package, not_data};
use crate::entry::{Class, Classified, Entry, KPACK, Node};
use crate::entry_path::EntryPath;
use crate::foreign::{Headers, device_section};
use crate::kernel_cache::{self, Unreadable};
use crate::place::{ForAll, Merge, Place};
use crate::selection::{DatabaseSelection, Owner};
use kpack_core::{Error, Finding, Id, Severity, ids, shown};
use kpack_split::elf::{DeviceCode, NoDeviceCode};
use kpack_split::input::{
    self, ClosedBinary, CompressedCode, FileKind, LinkedBinary, ParsedArchives, ParsedBinaries,
    Unlinked, or_refused, walk_error,
};

/// What the pointers begin with that Git LFS puts in the place of files.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// What was parsed before, and is not parsed again.
#[derive(Clone, Copy, Default)]
pub struct Parsed<'a> {
    /// Binaries with device code.
    pub binaries: Option<&'a ParsedBinaries>,
    /// Archives.
    pub archives: Option<&'a ParsedArchives>,
}

/// Classifies one entry of a walk below `prefix`. Directories are taken to be empty.
pub(super) fn classify_entry(
    prefix: &Path,
    databases: &DatabaseSelection,
    parsed: Parsed<'_>,
    found: &DirEntry,
) -> Result<Classified, Error> {
    let path = found.path().strip_prefix(prefix).unwrap_or(found.path());
    let mut classifier = Classifier {
        full: found.path(),
        path,
        name: with_slashes(path),
        databases,
        parsed,
        observations: Vec::new(),
        shared_inode: None,
        identity: None,
        library: None,
        binary: None,
    };
    let (node, class) = classifier.entry(found)?;
    let new = Entry::new(EntryPath::below(prefix, found.path()), node);
    Ok(Classified {
        entry: Entry {
            shared_inode: classifier.shared_inode.map(Box::new),
            identity: classifier.identity.map(Box::new),
            class: class.into(),
            binary: classifier.binary.map(Arc::new),
            library: classifier.library.map(Arc::new),
            ..new
        },
        observations: classifier.observations,
    })
}

/// An entry of such a walk whose content is not read, so that it counts as the host's.
pub(super) fn unread_entry(prefix: &Path, found: &DirEntry) -> Result<Classified, Error> {
    let metadata = found.metadata().map_err(|error| walk_error(prefix, error))?;
    let (node, shared_inode) = if metadata.is_symlink() {
        (Node::Symlink, None)
    } else {
        (Node::File { size: metadata.len() }, shared_inode(&metadata))
    };
    let new = Entry::new(EntryPath::below(prefix, found.path()), node);
    let entry = Entry { shared_inode: shared_inode.map(Box::new), ..new };
    Ok(Classified { entry, observations: Vec::new() })
}

struct Classifier<'a> {
    full: &'a Path,
    /// Its path in the prefix.
    path: &'a Path,
    name: String,
    databases: &'a DatabaseSelection,
    parsed: Parsed<'a>,
    observations: Vec<Finding>,
    shared_inode: Option<SharedInode>,
    identity: Option<Identity>,
    library: Option<Library>,
    binary: Option<ClosedBinary>,
}

impl Classifier<'_> {
    fn entry(&mut self, found: &DirEntry) -> Result<(Node, Class), Error> {
        let kind = found.file_type();
        if kind.is_dir() {
            return Ok((Node::Directory { empty: true }, self.directory()));
        }
        if kind.is_symlink() {
            return Ok((Node::Symlink, self.symlink()?));
        }
        if !kind.is_file() {
            return Err(Error::rejected(
                ids::NOT_A_FILE,
                self.full,
                "not a file, a directory or a symbolic link",
            ));
        }
        let (file, metadata) = input::open_found(self.full)?;
        let node = Node::File { size: metadata.len() };
        self.shared_inode = shared_inode(&metadata);
        // Before its content is read: whoever changes it meanwhile makes it another file.
        let identity = Identity::of(self.full, &file)?;
        let class = match self.file(&file, metadata.len()) {
            Err(Error::Refused { reason, .. }) if !self.must_be_valid(&file)? => {
                let text = format!("damaged, or only begins like device code: {reason}");
                self.observe(ids::UNREADABLE_DEVICE_CODE, text);
                Class::Host
            }
            class => class?,
        };
        self.identity = matches!(class, Class::Target { .. }).then_some(identity);
        Ok((node, class))
    }

    /// Whether a file must be what it begins like: one of a database, an archive in `.kpack`, or an ELF
    /// file with a bundle in it, which would not be split. Elsewhere, a text may begin with `KPAK`,
    /// and a test's data may be truncated on purpose.
    fn must_be_valid(&self, file: &File) -> Result<bool, Error> {
        let is_selected = |(owner, _): (Owner<'_>, _)| owner.is_selected();
        let directory = self.path.parent().and_then(Path::file_name);
        if self.databases.recognise(&self.name).is_some_and(is_selected)
            || directory.is_some_and(|name| name == ".kpack")
        {
            return Ok(true);
        }
        let kind = input::identify(self.full, file)?;
        Ok(kind == Some(FileKind::Linked) && input::has_bundle(self.full, file)?)
    }

    fn directory(&self) -> Class {
        match self.databases.recognise(&format!("{}/.", self.name)) {
            Some((owner, Place::Target(target))) if owner.is_selected() => {
                of_database(owner, target)
            }
            _ => Class::Host,
        }
    }

    fn symlink(&mut self) -> Result<Class, Error> {
        let inside = format!("{}/.", self.name);
        let databases = self.databases;
        let place = databases.recognise(&self.name).or_else(|| databases.recognise(&inside));
        let Some((owner, place)) = place else {
            return self.by_name(|| {
                if !self.full.is_file() {
                    return Ok(Some("a dangling symbolic link"));
                }
                let file = input::open(self.full)?;
                not_data(self.full, &file, input::identify(self.full, &file)?)
            });
        };
        if !owner.is_selected() {
            return Ok(Class::Host);
        }
        let target = match place {
            Place::Target(target) => Some(target),
            Place::ForAll(_) => None,
            Place::Unnamed => {
                let to = fs::read_link(self.full).map_err(|e| Error::io(self.full, "read", e))?;
                let name = to.file_name().unwrap_or_default().to_string_lossy();
                target_names::only_in_file_name(&name)
            }
            Place::Contradiction(one, other) => {
                self.observe(ids::CONTRADICTORY_TARGET, two_targets(&one, &other));
                None
            }
        };
        Ok(target.map_or(Class::Host, |target| of_database(owner, target)))
    }

    fn file(&mut self, file: &File, size: u64) -> Result<Class, Error> {
        let kind = input::identify(self.full, file)?;
        let is_linked = kind == Some(FileKind::Linked);
        match self.databases.recognise(&self.name) {
            Some((owner, place)) if owner.is_selected() => {
                self.in_database(file, size, kind, owner, place)
            }
            Some(_) if is_linked => self.linked(file, size),
            Some(_) => Ok(Class::Host),
            None if is_linked => match self.linked(file, size)? {
                Class::Host => self.by_name(|| not_data(self.full, file, kind)),
                class => Ok(class),
            },
            None if kind == Some(FileKind::Archive) => {
                let content =
                    FileContent::read(self.full, file, size, kind, false, self.parsed.archives)?;
                Ok(self.archive(&content))
            }
            None => {
                if is_package(self.path) {
                    let text = "packages are not opened, so device code in it is not split";
                    self.observe(ids::UNOPENED_PACKAGE, text.to_owned());
                }
                self.outside(file, size, kind)
            }
        }
    }

    /// A file in the place of a database. Whatever its path says is compared with its content.
    fn in_database(
        &mut self,
        file: &File,
        size: u64,
        kind: Option<FileKind>,
        owner: Owner<'_>,
        place: Place,
    ) -> Result<Class, Error> {
        match place {
            Place::Target(target) if owner.is_opaque() => {
                return Ok(of_database(owner, target));
            }
            Place::ForAll(ForAll::Merge(Merge::KernelCache)) => {
                self.kernel_cache()?;
                return Ok(Class::Host);
            }
            _ => {}
        }
        // A target's engine may be a separate library, which is not split.
        let kind = match kind {
            Some(FileKind::Linked) if self.headers(file, size)? != Headers::Readable => None,
            kind => kind,
        };
        let is_library = self.path.extension().is_some_and(|end| end == "dat");
        let archives = self.parsed.archives;
        // Tensile's library files may be compressed, too; only their names are read then.
        let may_be_compressed = !is_library && kind.is_none();
        let code = if may_be_compressed { CompressedCode::find(self.full, file)? } else { None };
        let content = match code {
            Some(code) => {
                let kind = Some(code.kind());
                let (code, size) = code.decompress(self.full, &std::env::temp_dir())?;
                FileContent::read(self.full, &code, size, kind, false, archives)?
            }
            None => FileContent::read(self.full, file, size, kind, is_library, archives)?,
        };
        if let FileContent::NoLibrary(Unreadable { reason, damaged }) = &content {
            if *damaged && owner.is_tensile() {
                self.observe(ids::DAMAGED_DATABASE_FILE, format!("damaged: {reason}"));
            }
            let text = format!("{reason}; only its name says where it belongs");
            self.observe(ids::UNREAD_DATABASE_FILE, text);
        }
        // What was recognised stands in for nothing else.
        if let FileContent::Silent | FileContent::NoLibrary(_) = content {
            self.must_be_code(file, size, &content)?;
        }
        if let Place::ForAll(ForAll::Merge(Merge::Bundle)) = place {
            self.library = Some(Library { targets: content.targets(), ..Library::default() });
        }
        let class = match place {
            Place::Target(said) => {
                if let Some(own) = content.contradiction(&said) {
                    let text = format!("the path says {said}, but {own}");
                    self.observe(ids::CONTRADICTORY_TARGET, text);
                }
                of_database(owner, said)
            }
            Place::Contradiction(one, other) => {
                self.observe(ids::CONTRADICTORY_TARGET, two_targets(&one, &other));
                of_database(owner, one)
            }
            // However many targets one build made it for, it is one file for all of them.
            Place::ForAll(_) => Class::Host,
            Place::Unnamed => match content.only_target() {
                Some(target) => of_database(owner, target.clone()),
                None => device_code(&content),
            },
        };
        if let FileContent::Library(mut library) = content {
            // They only matter where the path does not say which target it is for.
            if let Class::Target { .. } = class {
                library.targets.clear();
            }
            if let Some(stem) = self.path.file_stem().and_then(OsStr::to_str) {
                library.keep_own(stem);
            }
            self.library = Some(library);
        }
        Ok(class)
    }

    /// Observes what stands in for a file: the pointer of a file that was never fetched, and what is named
    /// like a code object and is none.
    fn must_be_code(&mut self, file: &File, size: u64, content: &FileContent) -> Result<(), Error> {
        let mut head = vec![0; LFS_POINTER.len().min(usize::try_from(size).unwrap_or(usize::MAX))];
        let read = file.read_exact_at(&mut head, 0);
        read.map_err(|e| Error::io(self.full, "read", e))?;
        let extension = self.path.extension().unwrap_or_default();
        let is_code = extension == "co" || extension == "hsaco";
        let what = if head == LFS_POINTER {
            "a Git LFS pointer instead of the file; run `git lfs pull`"
        } else if !is_code || !matches!(content, FileContent::Silent) {
            return Ok(());
        } else if size == 0 {
            "empty"
        } else {
            "not a code object or bundle, though it is named like one"
        };
        self.observe(ids::DAMAGED_DATABASE_FILE, format!("damaged: {what}"));
        Ok(())
    }

    /// rocFFT's kernel cache, which is for all targets.
    fn kernel_cache(&mut self) -> Result<(), Error> {
        let (id, text) = match kernel_cache::targets(self.full)? {
            Ok(targets) if targets.is_empty() => return Ok(()),
            Ok(targets) => {
                let targets = Vec::from_iter(targets).join(", ");
                let text = format!("has device code for {targets}, in one file for all targets");
                (ids::FILE_FOR_ALL_TARGETS, text)
            }
            Err(Unreadable { reason, damaged }) => {
                if damaged {
                    (ids::DAMAGED_DATABASE_FILE, reason)
                } else {
                    (ids::UNREAD_DATABASE_FILE, reason)
                }
            }
        };
        self.observe(id, text);
        Ok(())
    }

    /// A linked file for a host. One for another kind of machine cannot have device code.
    fn linked(&mut self, file: &File, size: u64) -> Result<Class, Error> {
        match self.headers(file, size)? {
            Headers::Readable => {}
            Headers::Foreign => return Ok(self.foreign(file)?.unwrap_or(Class::Host)),
            Headers::WithoutSections => {
                let text = "no section headers, so device code in it would not be found";
                self.observe(ids::UNSUPPORTED_BINARY, text.to_owned());
                return Ok(Class::Host);
            }
        }
        let file = file.try_clone().map_err(|error| Error::io(self.full, "read", error))?;
        let linked = match self.parsed.binaries {
            Some(parsed) => parsed.read(self.full, file)?,
            None => LinkedBinary::read(self.full, file)?,
        };
        if !matches!(linked.code, DeviceCode::None(_)) {
            self.binary = Some(linked.close()?);
        }
        Ok(match &linked.code {
            DeviceCode::Fat(fat) if linked.has_only_spirv(fat) => {
                let text = "stays unchanged: all of its bundles have SPIR-V code, which HIP runtimes do not read from archives (--spirv drop removes the SPIR-V, --spirv archive moves it)";
                self.observe(ids::SPIRV_KEPT, text.to_owned());
                Class::Host
            }
            DeviceCode::Fat(_) => Class::Fat,
            DeviceCode::Split(_) => Class::Split,
            DeviceCode::None(NoDeviceCode::NoWrappers) => {
                let text = format!("stays unchanged: {}", NoDeviceCode::NoWrappers);
                self.observe(ids::WITHOUT_WRAPPERS, text);
                Class::Host
            }
            DeviceCode::None(_) => Class::Host,
        })
    }

    fn archive(&mut self, content: &FileContent) -> Class {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let named = target_names::last(&stem).map(|(_, target)| target);
        let own = content.only_target().cloned();
        let Some(target) = own.clone().or(named.clone()) else {
            let reason = "a kpack archive for several targets".to_owned();
            return unknown(None, true, reason);
        };
        if let Some(named) = named.filter(|named| Some(named) != own.as_ref())
            && let Some(own) = content.contradiction(&named)
        {
            let text = format!("the name says {named}, but {own}");
            self.observe(ids::CONTRADICTORY_TARGET, text);
        }
        Class::Target { target, database: KPACK.into() }
    }

    /// The class of a PE or COFF file of a kind that kpack cannot split, if it has device code.
    fn foreign(&self, file: &File) -> Result<Option<Class>, Error> {
        let section = device_section(file).map_err(|e| Error::io(self.full, "read", e))?;
        Ok(section.map(|section| {
            let reason = format!(
                "a PE/COFF file with device code in section `{section}`, of a kind that kpack cannot split"
            );
            unknown(None, true, reason)
        }))
    }

    fn headers(&self, file: &File, size: u64) -> Result<Headers, Error> {
        Headers::read(file, size).map_err(|e| Error::io(self.full, "read", e))
    }

    /// A file outside of the known places.
    fn outside(&self, file: &File, size: u64, kind: Option<FileKind>) -> Result<Class, Error> {
        // A manifest, or the part of one for a group of targets, is for all.
        if kind == Some(FileKind::Manifest) {
            return Ok(Class::Host);
        }
        let unlinked = matches!(kind, Some(FileKind::Object | FileKind::StaticLibrary));
        // It does not matter here whether it can be read as what it begins like.
        if unlinked
            && let Ok(unlinked) = or_refused(Unlinked::read(self.full, file))?
            && !unlinked.device_objects.is_empty()
        {
            let reason = "has device code that is split before the link".to_owned();
            return Ok(unknown(None, true, reason));
        }
        if kind.is_none()
            && let Some(class) = self.foreign(file)?
        {
            return Ok(class);
        }
        let content = FileContent::read(self.full, file, size, kind, false, self.parsed.archives)?;
        match device_code(&content) {
            Class::Host => self.by_name(|| not_data(self.full, file, kind)),
            class => Ok(class),
        }
    }

    /// What the names in the path suggest, the last first. They assign data to a target, and nothing
    /// else: `not_data` says what a file is that is no data.
    fn by_name(
        &self,
        not_data: impl FnOnce() -> Result<Option<&'static str>, Error>,
    ) -> Result<Class, Error> {
        let mut parts = self.name.rsplit('/');
        let Some(part) = parts.find(|part| target_names::looks_specific(part)) else {
            return Ok(Class::Host);
        };
        let name = shown(Path::new(part));
        let reason = format!("`{name}` looks like the name of a GPU target");
        let named = target_names::only_in_file_name(part);
        Ok(match not_data()? {
            Some(what) if named.is_some() => {
                unknown(None, false, format!("{reason}, but it is {what}"))
            }
            Some(_) | None => unknown(named, false, reason),
        })
    }

    fn observe(&mut self, id: Id, text: String) {
        let severity = match id {
            ids::CONTRADICTORY_TARGET | ids::DAMAGED_DATABASE_FILE => Severity::Fault,
            ids::UNREADABLE_DEVICE_CODE => Severity::Warning,
            _ => Severity::Note,
        };
        self.observations.push(Finding::new(severity, id, self.path, text));
    }
}

/// The class of what a database has for a target.
fn of_database(owner: Owner<'_>, target: TargetId) -> Class {
    Class::Target { target, database: owner.name() }
}

/// The class of a file whose path names no target, by its content.
fn device_code(content: &FileContent) -> Class {
    let reason = match content {
        FileContent::CodeObject(_) => "an AMDGPU code object",
        FileContent::Bundle(targets) if !targets.is_empty() => "an offload bundle",
        _ => return Class::Host,
    };
    unknown(content.only_target().cloned(), true, reason.to_owned())
}

fn unknown(target: Option<TargetId>, device_code: bool, reason: String) -> Class {
    Class::Unknown { target, device_code, reason }
}

fn two_targets(one: &TargetId, other: &TargetId) -> String {
    format!("the path says {one}, and {other} as well")
}
