//! Makes programs and libraries find each other in the output: where their run paths do not lead there, DT_RPATH is set in
//! place.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use kpack_core::files::open;
use kpack_core::platform::{FileExt, OsStrExt, OsStringExt};
use kpack_core::publish::Directory;
use kpack_core::words::list;
use kpack_core::{Error, Reason, ids};
use kpack_doctor::internal::{Loading, libraries};
use kpack_doctor::{Scope, SystemLibraries};
use kpack_split::elf::{Dynamic, Image, run_path};
use kpack_split::host;
use kpack_split::input::{LinkedBinary, binary_error};
use object::elf;

use super::apply::Written;
use super::plan::{Entry, Plan};
use super::quoted;

/// The staged files of an application.
pub(super) struct Staged<'a> {
    pub(super) plan: &'a Plan,
    /// Where they are, without symbolic links.
    pub(super) root: &'a Path,
    /// The same directory, held open.
    pub(super) tree: &'a Directory,
    /// Where they will be.
    pub(super) output: &'a Path,
    pub(super) system: &'a SystemLibraries,
    pub(super) written: &'a Written,
}

/// A library that a staged file needs and does not find.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lost {
    /// The path of the library in the output.
    library: PathBuf,
    /// The file that needs it.
    by: PathBuf,
}

impl Staged<'_> {
    /// Sets run paths until all libraries are found. Returns the programs, and the libraries that none of these loads at its
    /// start.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no room for a run path; [`Error::Io`].
    pub(super) fn settle(&self) -> Result<Vec<PathBuf>, Error> {
        self.forget_machine()?;
        let mut changed = BTreeSet::new();
        loop {
            let lost = self.lost()?;
            if lost.iter().all(|(_, lost)| lost.is_empty()) {
                return Ok(lost.into_iter().map(|(root, _)| root).collect());
            }
            let mut new: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
            for (root, lost) in &lost {
                for Lost { library, by } in lost {
                    let directory = library.parent().unwrap_or(Path::new(""));
                    for setter in self.setters(root, by)? {
                        new.entry(setter.to_owned()).or_default().insert(directory.to_owned());
                    }
                }
            }
            for (path, directories) in new {
                if !changed.insert((path.clone(), directories.clone())) {
                    return Err(self.no_room(
                        &path,
                        &directories,
                        "its libraries are not found all the same",
                    ));
                }
                self.set(&path, &directories)?;
            }
        }
    }

    /// Removes entries of run paths that lead out of the output: on another machine, other libraries may be there.
    /// They stay if options leave libraries to the system, because these may be found only there. Entries that led to a library of
    /// `--also` lead to the staged one, because the file may load it by name.
    fn forget_machine(&self) -> Result<(), Error> {
        let may_stay = self.system.rocm || !self.system.also.is_empty();
        for path in &self.written.binaries {
            let Some(old) = self.run_path(path)?.filter(|old| !old.is_empty()) else { continue };
            let also = self.also_on(path, &old);
            let is_staged = |entry| self.is_staged(path, entry);
            let leads_out = || !may_stay && !old.split(|byte| *byte == b':').all(is_staged);
            if !also.is_empty() || leads_out() {
                self.set(path, &also)?;
            }
        }
        Ok(())
    }

    /// The directories of the output with libraries of `--also` that are on the run path of the original of a file.
    fn also_on(&self, file: &Path, run_path: &[u8]) -> BTreeSet<PathBuf> {
        let source_of = |path: &Path| self.plan.entries.get(path).and_then(Entry::source);
        let Some(origin) = source_of(file).and_then(Path::parent) else { return BTreeSet::new() };
        let entries = run_path.split(|byte| *byte == b':').filter_map(|entry| {
            let directory = relative_to(origin, entry);
            let directory = directory.unwrap_or_else(|| OsStr::from_bytes(entry).into());
            directory.canonicalize().ok()
        });
        let entries = BTreeSet::from_iter(entries);
        let also = self.plan.also.iter().filter(|also| {
            let directory = source_of(also).and_then(Path::parent);
            directory.is_some_and(|directory| entries.contains(directory))
        });
        also.filter_map(|also| Some(also.parent()?.to_owned())).collect()
    }

    /// Whether an entry of the run path of a file leads to a directory of the output.
    fn is_staged(&self, file: &Path, entry: &[u8]) -> bool {
        let place = self.root.join(file);
        let origin = place.parent().unwrap_or(self.root);
        let found = relative_to(origin, entry).and_then(|path| path.canonicalize().ok());
        found.is_some_and(|found| found.is_dir() && found.starts_with(self.root))
    }

    /// The files whose run path has to lead from `by`, which is loaded with `root`, to a library: without one of its own, a
    /// library inherits the program's.
    fn setters<'p>(&'p self, root: &'p Path, by: &'p Path) -> Result<Vec<&'p Path>, Error> {
        let is_program = |path: &Path| self.plan.programs.iter().any(|program| program == path);
        if is_program(by) || self.has_run_path(by)? {
            return Ok(vec![by]);
        }
        if is_program(root) {
            return Ok(vec![root]);
        }
        let all = Vec::from_iter(self.plan.programs.iter().map(PathBuf::as_path));
        Ok(if all.is_empty() { vec![by] } else { all })
    }

    /// What a library that is loaded by name inherits from any of the programs.
    pub(super) fn inherited(&self) -> Result<Vec<PathBuf>, Error> {
        let mut common: Option<Vec<PathBuf>> = None;
        for program in &self.plan.programs {
            let origin = self.root.join(program);
            let origin = origin.parent().unwrap_or(self.root);
            let own = if self.plan.is_for_windows {
                vec![origin.to_owned()]
            } else {
                let path = self.strings(program, elf::DT_RPATH)?.unwrap_or_default();
                let own = path.split(|byte| *byte == b':');
                Vec::from_iter(own.filter_map(|path| relative_to(origin, path)))
            };
            common = Some(match common {
                None => own,
                Some(mut common) => {
                    common.retain(|directory| own.contains(directory));
                    common
                }
            });
        }
        Ok(common.unwrap_or_default())
    }

    /// The programs and the libraries that none of them loads at its start, and for each, the libraries that are not found.
    fn lost(&self) -> Result<Vec<(PathBuf, BTreeSet<Lost>)>, Error> {
        let inherited = self.inherited()?;
        let (mut all, mut found) = (Vec::new(), BTreeSet::new());
        let plan = self.plan;
        for root in plan.programs.iter().chain(&plan.also).chain(&plan.libraries) {
            if found.contains(root) {
                continue;
            }
            let (lost, there) = self.lost_by(root, &inherited)?;
            found.extend(there);
            all.push((root.clone(), lost));
        }
        Ok(all)
    }

    fn lost_by(
        &self,
        root: &Path,
        inherited: &[PathBuf],
    ) -> Result<(BTreeSet<Lost>, Vec<PathBuf>), Error> {
        let path = self.root.join(root);
        let linked = LinkedBinary::open(&path).map_err(|error| self.shown(error))?;
        let is_static = linked.image.elf().is_some_and(|image| {
            Dynamic::read(image).is_ok_and(|dynamic| dynamic.entries.is_empty())
        });
        if is_static {
            return Ok(Default::default());
        }
        let is_program = self.plan.programs.iter().any(|program| program == root);
        let scope = self.scope(if is_program { &[] } else { inherited });
        let listed = libraries(&path, &linked.image, Some(&scope));
        let listed = match listed.map_err(|error| self.shown(error))? {
            Loading::Listed(listed) => listed,
            Loading::Fails(why) | Loading::Unknown(why) => {
                let why = self.shown_text(&why);
                let text = format!("cannot be loaded from the output: {why}");
                return Err(Error::rejected(ids::NOT_LOADABLE, &self.output.join(root), text));
            }
        };
        let (mut lost, mut there) = (BTreeSet::new(), Vec::new());
        for library in listed.iter().filter(|library| !library.is_provided) {
            // A run path such as `$ORIGIN/../lib` is in its path.
            let inside = |path: &Path| {
                let place = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
                Some(self.followed(place.strip_prefix(self.root).ok()?))
            };
            if let Some(path) = &library.path {
                let place = inside(path);
                if let Some(place) = place.as_deref().filter(|place| self.is_apart(root, place)) {
                    let text = format!(
                        "needs {}, which was beside it and goes to {}, where Windows may not search for it; pass `--also {}` without a directory",
                        library.name.display(),
                        place.parent().unwrap_or(Path::new("")).display(),
                        quoted(&root.file_name().unwrap_or_default().to_string_lossy())
                    );
                    return Err(Error::rejected(
                        ids::MISSING_LIBRARY,
                        &self.output.join(root),
                        text,
                    ));
                }
                there.extend(place);
                continue;
            }
            if !library.is_missing() {
                continue;
            }
            let name = Path::new(&library.name).file_name().unwrap_or_default();
            let by = inside(&library.needed_by).unwrap_or_else(|| root.to_owned());
            let Some(staged) = self.named(name) else {
                let text = format!("needs {}, which is not in the output", library.name.display());
                return Err(Error::rejected(ids::MISSING_LIBRARY, &self.output.join(by), text));
            };
            if linked.image.is_for_windows() {
                let text = format!(
                    "needs {}, which is in {}, and Windows searches beside the program; pass `--also {}` without a directory",
                    library.name.display(),
                    staged.display(),
                    quoted(&name.to_string_lossy())
                );
                return Err(Error::rejected(ids::MISSING_LIBRARY, &self.output.join(by), text));
            }
            lost.insert(Lost { library: staged.to_owned(), by: self.followed(&by) });
        }
        Ok((lost, there))
    }

    /// Whether a DLL is beside the program now, although `root` found it in its own directory: how the program loads `root` decides
    /// whether Windows searches in both.
    fn is_apart(&self, root: &Path, dll: &Path) -> bool {
        let source_of = |path: &Path| {
            let source = self.plan.entries.get(path).and_then(Entry::source);
            source.and_then(Path::parent)
        };
        let mut programs = self.plan.programs.iter();
        self.plan.is_for_windows
            && root.parent() != dll.parent()
            && !programs.any(|program| source_of(program) == source_of(dll))
    }

    /// Where a link of the output leads.
    fn followed(&self, path: &Path) -> PathBuf {
        match self.plan.entries.get(path) {
            Some(Entry::Link(target)) => path.with_file_name(target),
            _ => path.to_owned(),
        }
    }

    /// The library of this name in the output.
    fn named(&self, name: &OsStr) -> Option<&Path> {
        let libraries = self.plan.libraries.iter().chain(&self.plan.also);
        let mut directories =
            BTreeSet::from_iter(libraries.filter_map(|path| path.parent())).into_iter();
        directories.find_map(|directory| {
            let (path, _) = self.plan.entries.get_key_value(&directory.join(name))?;
            Some(path.as_path())
        })
    }

    fn image(&self, path: &Path) -> Result<Option<Image<File>>, Error> {
        if !self.written.binaries.contains(path) {
            return Ok(None);
        }
        let shown = self.output.join(path);
        let file = open(&self.root.join(path)).map_err(|error| self.shown(error))?;
        match host::Image::read(file).map_err(|error| binary_error(&shown, error))? {
            host::Image::Elf(image) => Ok(Some(image)),
            // Windows has no run paths.
            host::Image::Pe(_) => Ok(None),
        }
    }

    /// Searches in the output only, because nothing else of this machine will be there.
    pub(super) fn scope(&self, inherited: &[PathBuf]) -> Scope {
        Scope {
            directory: Some(self.root.to_owned()),
            system: self.system.clone(),
            inherited: inherited.to_owned(),
        }
    }

    /// The last string of a file's dynamic section with this tag, which is the one that counts.
    fn strings(&self, path: &Path, tag: elf::DynamicTag) -> Result<Option<Vec<u8>>, Error> {
        let Some(image) = self.image(path)? else {
            return Ok(None);
        };
        let failed = |error| binary_error(&self.output.join(path), error);
        let dynamic = Dynamic::read(&image).map_err(failed)?;
        Ok(dynamic.strings(&image, tag).map_err(failed)?.pop())
    }

    /// The run path of a file: DT_RUNPATH, or DT_RPATH without that.
    fn run_path(&self, path: &Path) -> Result<Option<Vec<u8>>, Error> {
        let runpath = self.strings(path, elf::DT_RUNPATH)?;
        if runpath.is_some() { Ok(runpath) } else { self.strings(path, elf::DT_RPATH) }
    }

    fn has_run_path(&self, path: &Path) -> Result<bool, Error> {
        Ok(self.run_path(path)?.is_some_and(|path| !path.is_empty()))
    }

    /// Lets the run path of a file lead to these directories of the output, too.
    fn set(&self, path: &Path, directories: &BTreeSet<PathBuf>) -> Result<(), Error> {
        let from = path.parent().unwrap_or(Path::new(""));
        let old = self.run_path(path)?;
        let has_run_path = old.is_some();
        let old = old.unwrap_or_default();
        // Others are those of this machine.
        let own = old.split(|byte| *byte == b':').filter(|entry| self.is_staged(path, entry));
        let mut all = Vec::from_iter(own.map(<[u8]>::to_vec));
        for directory in directories {
            let new = relative(from, directory);
            if !all.contains(&new) {
                all.push(new);
            }
        }
        let new = all.join(&b':');
        let Some(image) = self.image(path)? else {
            return Err(Error::changed(&self.output.join(path)));
        };
        if directories.iter().any(|directory| is_unusable(directory)) {
            return Err(self.no_room(path, directories, "it cannot lead there"));
        }
        let shown = self.output.join(path);
        let edits = run_path::edits(&image, &new).map_err(|error| binary_error(&shown, error))?;
        let Some(edits) = edits else {
            let why = match has_run_path {
                true => "its run path has no room for that",
                false => "it has no run path",
            };
            return Err(self.no_room(path, directories, why));
        };
        let directory = self.tree.below(from).map_err(|error| self.shown(error))?;
        let file = directory.open_to_change(path.file_name().unwrap_or_default());
        let file = file.map_err(|error| self.shown(error))?;
        for (offset, bytes) in edits {
            let written = file.write_all_at(&bytes, offset);
            written.map_err(|error| Error::io(&shown, "write", error))?;
        }
        Ok(())
    }

    /// The commands that give a file the run path that it needs.
    fn no_room(&self, path: &Path, directories: &BTreeSet<PathBuf>, why: &str) -> Error {
        let from = path.parent().unwrap_or(Path::new(""));
        let new = directories.iter().map(|directory| OsString::from_vec(relative(from, directory)));
        let new = Vec::from_iter(new.map(|path| path.to_string_lossy().into_owned()));
        let source = self.plan.entries.get(path).and_then(Entry::source).unwrap_or(path);
        let names = list(directories.iter().map(|path| path.display()));
        let text = if directories.iter().any(|directory| is_unusable(directory)) {
            format!(
                "does not find libraries in {names}: a run path cannot lead to a directory with `:` or `$` in its name; \
                 rename it, or choose another with `--also DIR=LIB`"
            )
        } else {
            let new = new.join(":");
            let link = quoted(&format!("-Wl,--disable-new-dtags,-rpath,{new}"));
            let name = source.file_name().unwrap_or_default().to_string_lossy();
            format!(
                "does not find libraries in {names}: {why}; link it with `{link}`, or stage a copy, changed with \
                 `patchelf --force-rpath --set-rpath {} {}`",
                quoted(&new),
                quoted(&name)
            )
        };
        Error::rejected(ids::RUN_PATH, source, text)
    }

    /// An error with the paths that files will have.
    pub(super) fn shown(&self, error: Error) -> Error {
        let error = error.with_path(|path| self.place(path));
        error.about(|reason| Reason::new(self.shown_text(&reason.text), reason.details))
    }

    /// A text with the paths that files will have.
    pub(super) fn shown_text(&self, text: &str) -> String {
        let [hidden, output] = [self.root, self.output].map(|path| path.display().to_string());
        text.replace(&hidden, &output)
    }

    /// The file that a staged one was made of, or else the path that it will have.
    pub(super) fn origin(&self, path: &Path) -> PathBuf {
        let entry = path.strip_prefix(self.root).ok().and_then(|path| self.plan.entries.get(path));
        let source = entry.and_then(Entry::source).map(Path::to_owned);
        source.unwrap_or_else(|| self.place(path))
    }

    /// The path that a file will have.
    pub(super) fn place(&self, path: &Path) -> PathBuf {
        let hidden = [self.root, &self.tree.anchor()].map(|hidden| path.strip_prefix(hidden));
        match hidden.into_iter().find_map(Result::ok).ok_or(()) {
            Ok(inside) => self.output.join(inside),
            Err(_) => path.to_owned(),
        }
    }
}

/// Whether no run path can lead to a directory of the output: the dynamic linker takes these characters for others, however they
/// are quoted.
fn is_unusable(directory: &Path) -> bool {
    directory.to_string_lossy().contains([':', '$'])
}

/// Where a directory of a run path is that begins with `$ORIGIN`.
fn relative_to(origin: &Path, directory: &[u8]) -> Option<PathBuf> {
    let mut names = [&b"$ORIGIN"[..], b"${ORIGIN}"].into_iter();
    let inside = names.find_map(|name| directory.strip_prefix(name))?;
    let inside = if inside.is_empty() { inside } else { inside.strip_prefix(b"/")? };
    Some(origin.join(OsStr::from_bytes(inside)))
}

/// A directory as a run path names it, relative to another directory.
fn relative(from: &Path, to: &Path) -> Vec<u8> {
    let names = |path: &Path| {
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            _ => None,
        });
        Vec::<OsString>::from_iter(names)
    };
    let (from, to) = (names(from), names(to));
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let mut path = b"$ORIGIN".to_vec();
    for _ in common..from.len() {
        path.extend(b"/..");
    }
    for name in &to[common..] {
        path.push(b'/');
        path.extend(name.as_bytes());
    }
    path
}
