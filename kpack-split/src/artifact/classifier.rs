//! Where one entry of a tree belongs, by its path and by what it says itself.

use std::borrow::Cow;
use std::fs::{self, File, Metadata};
use std::path::Path;

use kpack_format::TargetId;
use walkdir::DirEntry;

use super::classify::{Class, Classification, Finding, KPACK, Node};
use super::content::Content;
use super::data_file::{self, is_package, not_data};
use super::databases::{self, ForAll, Merge, Place, Selection};
use super::elf_header::Headers;
use super::kernel_cache::{self, Unreadable};
use super::pairs::{self, Pairs};
use super::pe;
use super::target_name;
use crate::Error;
use crate::elf::{DeviceCode, Image, NoDeviceCode};
use crate::input::{self, FileKind, unlinked};
use kpack_build::shared::shown;

/// One entry of the walk.
pub(super) struct Classifier<'a> {
    pub(super) full: &'a Path,
    /// In the prefix.
    pub(super) path: &'a Path,
    /// The same as text.
    pub(super) name: Cow<'a, str>,
    pub(super) databases: &'a Selection,
}

impl Classifier<'_> {
    /// What it is and where it belongs. What is to be said of it is added to `result`, and what it
    /// has to do with other files to `pairs`.
    pub(super) fn entry(
        &self,
        found: &DirEntry,
        result: &mut Classification,
        pairs: &mut Pairs,
    ) -> Result<(Node, Class), Error> {
        let kind = found.file_type();
        if kind.is_dir() {
            let inside = format!("{}/.", self.name);
            let class = match databases::recognise(&inside) {
                Some((database, Place::Target(target))) if self.databases.has(database) => {
                    Class::Target {
                        target,
                        database: database.name,
                    }
                }
                _ => Class::Host,
            };
            return Ok((Node::Directory { empty: true }, class));
        }
        if kind.is_symlink() {
            return Ok((Node::Symlink, self.symlink(result)?));
        }
        if !kind.is_file() {
            return Err(Error::refused(
                self.full,
                "expected a file, a directory or a symbolic link; it is something else",
            ));
        }
        let file = input::open(self.full)?;
        let metadata = file.metadata();
        let metadata = metadata.map_err(|e| Error::io(self.full, "read", e))?;
        let node = Node::of_file(&metadata);
        let class = match self.file(&file, metadata.len(), result, pairs) {
            Err(Error::Refused { reason, .. }) if !self.has_to_be_whole(&file)? => {
                let text = format!("damaged, or only begins like device code: {reason}");
                result.unreadable.push(self.finding(text));
                Class::Host
            }
            class => class?,
        };
        Ok((node, class))
    }

    /// Whether a file has to be what it begins like: one of a database, an archive among others, or
    /// an ELF file with a bundle in it, which would not be split. Elsewhere, a text may begin with
    /// `KPAK`, and a test's data be truncated on purpose.
    fn has_to_be_whole(&self, file: &File) -> Result<bool, Error> {
        let is_selected = |(database, _)| self.databases.has(database);
        let directory = self.path.parent().and_then(Path::file_name);
        if databases::recognise(&self.name).is_some_and(is_selected)
            || directory.is_some_and(|name| name == ".kpack")
        {
            return Ok(true);
        }
        let kind = input::identify(self.full, file)?;
        let has_bundle =
            || data_file::has_bundle(file).map_err(|e| Error::io(self.full, "read", e));
        Ok(kind == Some(FileKind::Linked) && has_bundle()?)
    }

    fn symlink(&self, result: &mut Classification) -> Result<Class, Error> {
        let inside = format!("{}/.", self.name);
        let place = databases::recognise(&self.name).or_else(|| databases::recognise(&inside));
        let Some((database, place)) = place else {
            let to = || -> Option<Result<_, Error>> {
                self.full.metadata().ok().filter(Metadata::is_file)?;
                let file = input::open(self.full).ok()?;
                let kind = input::identify(self.full, &file).ok()?;
                Some(not_data(self.full, &file, kind))
            };
            return self.by_name(|| to().unwrap_or(Ok(Some("a symbolic link to no file"))));
        };
        if !self.databases.has(database) {
            return Ok(Class::Host);
        }
        let target = match place {
            Place::Target(target) => Some(target),
            Place::ForAll(_) => None,
            Place::Unnamed => {
                let to = fs::read_link(self.full).map_err(|e| Error::io(self.full, "read", e))?;
                let name = to.file_name().unwrap_or_default().to_string_lossy();
                one(target_name::in_file_name(&name))
            }
            Place::Contradiction(one, other) => {
                result.disagreements.push(self.two_names(&one, &other));
                None
            }
        };
        Ok(target.map_or(Class::Host, |target| Class::Target {
            target,
            database: database.name,
        }))
    }

    fn file(
        &self,
        file: &File,
        size: u64,
        result: &mut Classification,
        pairs: &mut Pairs,
    ) -> Result<Class, Error> {
        let kind = input::identify(self.full, file)?;
        let place = databases::recognise(&self.name);
        let (database, place) = match (place, kind) {
            (Some((database, _)), _) if !self.databases.has(database) => {
                return match kind {
                    Some(FileKind::Linked) => self.linked(file, size, result),
                    _ => Ok(Class::Host),
                };
            }
            (Some((database, place)), _) => (database.name, place),
            (None, Some(FileKind::Archive)) => {
                let content = Content::read(self.full, file, size, kind, false)?;
                return Ok(self.archive(&content, result));
            }
            (None, Some(FileKind::Linked)) => {
                return match self.linked(file, size, result)? {
                    Class::Host => self.by_name(|| not_data(self.full, file, kind)),
                    class => Ok(class),
                };
            }
            (None, _) => {
                if is_package(self.path) {
                    result.notices.push(self.finding(
                        "is not looked into; what device code it has stays in it".to_owned(),
                    ));
                }
                return self.outside(file, size, kind);
            }
        };
        if place == Place::ForAll(ForAll::Merge(Merge::KernelCache)) {
            self.kernel_cache(result)?;
            return Ok(Class::Host);
        }
        // An engine of a target may be a library of its own, which stays whole.
        let kind = match kind {
            Some(FileKind::Linked) if self.headers(file, size)? != Headers::Readable => None,
            kind => kind,
        };
        let library = self
            .path
            .extension()
            .is_some_and(|extension| extension == "dat");
        let content = Content::read(self.full, file, size, kind, library)?;
        pairs.add(self.path, &content);
        if let Content::NoLibrary { reason, damaged } = &content {
            if *damaged && pairs::TENSILE.contains(&database) {
                result
                    .damaged
                    .push(self.finding(format!("it is damaged: {reason}")));
            }
            result.notices.push(self.finding(format!(
                "{reason}; where it belongs is known by its name alone"
            )));
        }
        let target = match place {
            Place::Target(said) => {
                if let Some(own) = content.contradiction(&said) {
                    result
                        .disagreements
                        .push(self.finding(format!("its path says {said}, but {own}")));
                }
                said
            }
            Place::Contradiction(one, other) => {
                result.disagreements.push(self.two_names(&one, &other));
                one
            }
            // However many targets one build made it for, it is one file for all of them.
            Place::ForAll(_) => return Ok(Class::Host),
            Place::Unnamed => match content.only_target() {
                Some(target) => target.clone(),
                None => return Ok(self.unnamed(&content)),
            },
        };
        Ok(Class::Target { target, database })
    }

    /// rocFFT's kernel cache, which is for all targets.
    fn kernel_cache(&self, result: &mut Classification) -> Result<(), Error> {
        let (found, text) = match kernel_cache::targets(self.full)? {
            Ok(targets) if targets.is_empty() => return Ok(()),
            Ok(targets) => {
                let targets: Vec<String> = targets.into_iter().collect();
                let targets = targets.join(", ");
                let text = format!("has device code for {targets}, in one file for all targets");
                (&mut result.for_all, text)
            }
            Err(Unreadable {
                reason,
                damaged: true,
            }) => (&mut result.damaged, reason),
            Err(Unreadable { reason, .. }) => (&mut result.notices, reason),
        };
        found.push(self.finding(text));
        Ok(())
    }

    /// An ELF file for a host. One for another kind of machine cannot have device code.
    fn linked(&self, file: &File, size: u64, result: &mut Classification) -> Result<Class, Error> {
        match self.headers(file, size)? {
            Headers::Readable => {}
            Headers::Foreign => return Ok(Class::Host),
            Headers::WithoutSections => {
                result.notices.push(self.finding(
                    "it has no section headers, so device code in it would not be found".to_owned(),
                ));
                return Ok(Class::Host);
            }
        }
        let code = Image::read(file).and_then(|image| image.device_code());
        match code.map_err(|error| input::elf_error(self.full, error))? {
            DeviceCode::Fat(_) => Ok(Class::Fat),
            DeviceCode::Split(_) => Ok(Class::Split),
            DeviceCode::None(NoDeviceCode::NoWrappers) => {
                let text = format!("stays unchanged: {}", NoDeviceCode::NoWrappers);
                result.notices.push(self.finding(text));
                Ok(Class::Host)
            }
            DeviceCode::None(_) => Ok(Class::Host),
        }
    }

    fn archive(&self, content: &Content, result: &mut Classification) -> Class {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let named = stem
            .rsplit_once('_')
            .and_then(|(_, target)| target.parse().ok());
        let own = content.only_target().cloned();
        let Some(target) = own.clone().or(named.clone()) else {
            return Class::Unknown {
                target: None,
                device_code: true,
                reason: "it is a kpack archive for several targets".to_owned(),
            };
        };
        if let Some(named) = named.filter(|named| Some(named) != own.as_ref())
            && let Some(own) = content.contradiction(&named)
        {
            let text = format!("its name says {named}, but {own}");
            result.disagreements.push(self.finding(text));
        }
        Class::Target {
            target,
            database: KPACK,
        }
    }

    fn headers(&self, file: &File, size: u64) -> Result<Headers, Error> {
        Headers::read(file, size).map_err(|e| Error::io(self.full, "read", e))
    }

    /// A file that is of no one target by its path.
    fn unnamed(&self, content: &Content) -> Class {
        let reason = match content {
            Content::CodeObject(_) => "it is an AMDGPU code object",
            Content::Bundle(targets) if !targets.is_empty() => "it is an offload bundle",
            _ => return Class::Host,
        };
        Class::Unknown {
            target: content.only_target().cloned(),
            device_code: true,
            reason: reason.to_owned(),
        }
    }

    /// A file in no known place.
    fn outside(&self, file: &File, size: u64, kind: Option<FileKind>) -> Result<Class, Error> {
        // A manifest, or the part of one for a group of targets, is for all.
        if kind == Some(FileKind::Manifest) {
            return Ok(Class::Host);
        }
        let unlinked = matches!(kind, Some(FileKind::Object | FileKind::StaticLibrary));
        // What cannot be read as what it begins like is no matter here.
        if unlinked
            && let Ok(unlinked) = unlinked::read(self.full, file)
            && !unlinked.device_objects.is_empty()
        {
            return Ok(Class::Unknown {
                target: None,
                device_code: true,
                reason: "it has device code that is split before the link".to_owned(),
            });
        }
        if kind.is_none()
            && let Some(section) =
                pe::device_section(file).map_err(|e| Error::io(self.full, "read", e))?
        {
            return Ok(Class::Unknown {
                target: None,
                device_code: true,
                reason: format!(
                    "it is a PE/COFF file with device code in section `{section}`, which kpack cannot \
                     split"
                ),
            });
        }
        let content = Content::read(self.full, file, size, kind, false)?;
        let class = self.unnamed(&content);
        if class != Class::Host {
            return Ok(class);
        }
        self.by_name(|| not_data(self.full, file, kind))
    }

    /// What the names in the path suggest, the last first. They make data a target's, and nothing
    /// else: `not_data` says what it is where it is no data.
    fn by_name(
        &self,
        not_data: impl FnOnce() -> Result<Option<&'static str>, Error>,
    ) -> Result<Class, Error> {
        let mut parts = self.name.rsplit('/');
        let Some(part) = parts.find(|part| target_name::looks_specific(part)) else {
            return Ok(Class::Host);
        };
        let name = shown(Path::new(part));
        let reason = format!("`{name}` looks like the name of a GPU target");
        let named = one(target_name::in_file_name(part));
        Ok(match not_data()? {
            Some(what) if named.is_some() => Class::Unknown {
                target: None,
                device_code: false,
                reason: format!("{reason}, but it is {what}"),
            },
            Some(_) | None => Class::Unknown {
                target: named,
                device_code: false,
                reason,
            },
        })
    }

    fn two_names(&self, one: &TargetId, other: &TargetId) -> Finding {
        self.finding(format!("its path says {one}, and {other} as well"))
    }

    fn finding(&self, text: String) -> Finding {
        Finding {
            path: self.path.to_owned(),
            text,
        }
    }
}

/// The only one.
fn one(targets: Vec<TargetId>) -> Option<TargetId> {
    let mut targets = targets.into_iter();
    targets.next().filter(|_| targets.next().is_none())
}
