//! Where each file goes, as data.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, read_link};
use std::path::{Component, Path, PathBuf};

use kpack_core::files::{open, same_bytes, with_slashes};
use kpack_core::{Error, ids, interrupt};
use kpack_format::names::fold_case;
use kpack_format::{Delivery, TargetId};
use kpack_split::input::{walk, walk_error};
use kpack_split::trim::Keep;
use kpack_tree::databases::recognise;
use kpack_tree::place::Place;

use super::collect::{Binary, Facts, Role};
use crate::stage::module_of;

/// What is at a path of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// A program or library. Its code for other GPUs goes.
    Binary(PathBuf),
    /// A copy of a file.
    Copy(PathBuf),
    /// A symbolic link with this target.
    Link(PathBuf),
    /// A manifest of archives, without those that are not staged.
    Manifest(PathBuf),
}

impl Entry {
    /// The file that it is made of.
    pub(super) fn source(&self) -> Option<&Path> {
        match self {
            Self::Binary(from) | Self::Copy(from) | Self::Manifest(from) => Some(from),
            Self::Link(_) => None,
        }
    }
}

/// The application.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// By path in the output.
    pub(super) entries: BTreeMap<PathBuf, Entry>,
    /// The paths of programs in the output.
    pub(super) programs: Vec<PathBuf>,
    /// Those of libraries.
    pub(super) libraries: Vec<PathBuf>,
    /// Those of libraries that programs load by name.
    pub(super) also: Vec<PathBuf>,
    /// The targets of libraries that are for one only, as MIOpen's plugins are.
    pub(super) targets: BTreeMap<PathBuf, TargetId>,
    /// The other programs and libraries with device code that is not split, by module.
    pub(super) fat: BTreeMap<String, Vec<PathBuf>>,
    /// Whether it runs on Windows.
    pub(super) is_for_windows: bool,
}

/// Directories whose libraries every program finds. Where they are says nothing about an application.
const SYSTEM_DIRECTORIES: [&str; 6] =
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];

/// Prefixes that many applications share.
const SHARED_PREFIXES: [&str; 3] = ["/", "/usr", "/usr/local"];

/// Where libraries go that have no place relative to a program.
const LIB: &str = "lib";

/// Where programs go.
const BIN: &str = "bin";

/// Decides where everything goes. With `keep`, only code for its GPUs is staged.
///
/// # Errors
/// [`Error::Refused`] for two files of one name, and files that cannot be found in the output; [`Error::Io`].
pub(super) fn plan(facts: &Facts, output: &Path, keep: Option<&Keep>) -> Result<Plan, Error> {
    let layout = Layout::new(facts);
    let is_for_windows = facts.binaries.values().any(|binary| binary.is_for_windows);
    let plan = Plan { is_for_windows, ..Plan::default() };
    let mut planner = Planner { output, keep, plan };
    for (real, binary) in &facts.binaries {
        planner.binary(real, binary, &layout)?;
    }
    planner.has_directories()?;
    if is_for_windows {
        planner.has_distinct_names()?;
    }
    Ok(planner.plan)
}

/// The directory in the output for each directory with libraries.
struct Layout(BTreeMap<PathBuf, PathBuf>);

impl Layout {
    fn new(facts: &Facts) -> Self {
        let of = |is_wanted: &dyn Fn(&Role) -> bool| {
            let binaries = facts.binaries.values().filter(|binary| is_wanted(&binary.role));
            BTreeSet::from_iter(binaries.map(|binary| binary.directory.as_path()))
        };
        let programs = of(&|role| *role == Role::Program);
        let mut layout = BTreeMap::new();
        // Those above others come first.
        for directory in of(&|role| *role != Role::Program) {
            layout.insert(directory.to_owned(), place(directory, &programs, &layout));
        }
        Self(layout)
    }
}

/// Where a directory with libraries goes: it stays where it is relative to a program or to another such directory, because a
/// run path may lead there from it.
fn place(
    directory: &Path,
    programs: &BTreeSet<&Path>,
    others: &BTreeMap<PathBuf, PathBuf>,
) -> PathBuf {
    // Only absolute run paths lead to a directory of one package there.
    if directory.ancestors().any(is_system) {
        return LIB.into();
    }
    for program in programs {
        if *program == directory {
            return BIN.into();
        }
        let is_bin = program.file_name() == Some(OsStr::new(BIN));
        let prefix = program.parent().filter(|prefix| {
            is_bin && !SHARED_PREFIXES.iter().any(|shared| *prefix == Path::new(shared))
        });
        if let Some(inside) = prefix.and_then(|prefix| directory.strip_prefix(prefix).ok())
            && !inside.as_os_str().is_empty()
        {
            return inside.to_owned();
        }
    }
    let above = directory.ancestors().skip(1).find_map(|above| {
        let inside = directory.strip_prefix(above).ok()?;
        others.get(above).map(|known| known.join(inside))
    });
    above.unwrap_or_else(|| LIB.into())
}

fn is_system(directory: &Path) -> bool {
    let parent = directory.parent().unwrap_or(directory);
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let is_multiarch = name.ends_with("-linux-gnu") && is_listed(parent);
    is_listed(directory) || is_multiarch
}

fn is_listed(directory: &Path) -> bool {
    SYSTEM_DIRECTORIES.iter().any(|known| directory == Path::new(known))
}

struct Planner<'a> {
    output: &'a Path,
    keep: Option<&'a Keep>,
    plan: Plan,
}

impl Planner<'_> {
    fn binary(&mut self, real: &Path, binary: &Binary, layout: &Layout) -> Result<(), Error> {
        let to = match &binary.role {
            Role::Program => PathBuf::from(BIN),
            Role::Also(Some(directory)) => directory.clone(),
            _ if binary.is_for_windows => PathBuf::from(BIN),
            Role::Library | Role::Also(None) => {
                layout.0.get(&binary.directory).cloned().unwrap_or_else(|| LIB.into())
            }
        };
        let mut names = binary.names.iter();
        let Some(name) = names.next() else { return Ok(()) };
        let path = to.join(name);
        match of_target(&path) {
            // Nothing of it would be for the chosen GPUs.
            Some(target) if !self.is_wanted(&target) => return Ok(()),
            Some(target) => drop(self.plan.targets.insert(path.clone(), target)),
            None if binary.is_fat => {
                self.plan.fat.entry(module_of(&path)).or_default().push(path.clone());
            }
            None => {}
        }
        self.add(path.clone(), Entry::Binary(real.to_owned()))?;
        for other in names {
            self.add(to.join(other), Entry::Link(name.into()))?;
        }
        match binary.role {
            Role::Program => self.plan.programs.push(path),
            Role::Library => self.plan.libraries.push(path),
            Role::Also(_) => self.plan.also.push(path),
        }
        for archive in self.kept(&binary.archives) {
            let at = self.relative(archive, binary, &to)?;
            self.add(at, Entry::Copy(archive.to_owned()))?;
        }
        for manifest in &binary.manifests {
            let at = self.relative(manifest, binary, &to)?;
            self.add(at, Entry::Manifest(manifest.clone()))?;
        }
        for data in &binary.data {
            let at = self.relative(data, binary, &to)?;
            self.data(data, &at)?;
        }
        Ok(())
    }

    /// The archives of a binary that have code for the chosen GPUs.
    fn kept<'b>(&self, archives: &'b BTreeMap<PathBuf, String>) -> Vec<&'b Path> {
        let Some(keep) = self.keep else {
            return archives.keys().map(PathBuf::as_path).collect();
        };
        let target = |target: &String| target.parse::<TargetId>().ok();
        let there = Vec::from_iter(archives.values().filter_map(target));
        let taken = keep.stays(&there);
        let stays = |target: TargetId| {
            let mut gpus = keep.gpus.iter();
            taken.contains(&target) || gpus.any(|gpu| gpu.needs(&target, Delivery::Archive))
        };
        let own = archives.iter().filter(|(_, of)| target(of).is_none_or(stays));
        own.map(|(path, _)| path.as_path()).collect()
    }

    /// The path in the output of a file that a binary finds, which has the same place relative to it.
    fn relative(&self, file: &Path, binary: &Binary, to: &Path) -> Result<PathBuf, Error> {
        let parent = file.parent().unwrap_or(file);
        let real = parent.canonicalize().map_err(|e| Error::io(parent, "find", e))?;
        let real = real.join(file.file_name().unwrap_or_default());
        for (up, above) in binary.directory.ancestors().enumerate() {
            if let Ok(inside) = real.strip_prefix(above) {
                let mut parts = Vec::from_iter(to.components());
                if up <= parts.len() {
                    parts.truncate(parts.len() - up);
                    return Ok(parts.iter().collect::<PathBuf>().join(inside));
                }
                break;
            }
        }
        let text = format!(
            "finds {} by a path that leads out of the output; install both in one prefix, such as {LIB} and {LIB}/.kpack",
            file.display()
        );
        Err(Error::rejected(ids::OUTSIDE_PREFIX, &binary.path, text))
    }

    /// Whether to stage files for this target.
    fn is_wanted(&self, target: &TargetId) -> bool {
        self.keep.is_none_or(|keep| keep.matches(target))
    }

    /// Adds a file, or what is in a directory, without files for GPUs that are not wanted.
    fn data(&mut self, from: &Path, at: &Path) -> Result<(), Error> {
        if !from.is_dir() {
            return self.add(at.to_owned(), Entry::Copy(from.to_owned()));
        }
        if self.output.starts_with(from.canonicalize().map_err(|e| Error::io(from, "find", e))?) {
            let text =
                format!("is in {}, which is staged; choose another directory", from.display());
            return Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, self.output, text));
        }
        let mut found = Vec::new();
        let is_wanted = |to: &Path| of_target(to).is_none_or(|target| self.is_wanted(&target));
        for entry in walk(from).follow_links(true).min_depth(1) {
            interrupt::check(from, "read")?;
            let entry = entry.map_err(|error| match (error.loop_ancestor(), error.path()) {
                (Some(ancestor), Some(link)) => {
                    let text = format!(
                        "leads to {}, which contains it, so what is in there has no end; remove this link",
                        ancestor.display()
                    );
                    Error::rejected(ids::NOT_A_FILE, link, text)
                }
                _ => walk_error(from, error),
            })?;
            let inside = entry.path().strip_prefix(from).unwrap_or(entry.path());
            let to = at.join(inside);
            if entry.file_type().is_file() && is_wanted(&to) {
                found.push((to, entry.path().to_owned(), entry.path_is_symlink()));
            }
        }
        let there = BTreeSet::from_iter(found.iter().map(|(_, from, _)| from.clone()));
        for (to, from, is_link) in found {
            // A second name of a file that is staged, too.
            let target = is_link.then(|| beside(&from, &there)).flatten();
            self.add(to, target.map_or(Entry::Copy(from), Entry::Link))?;
        }
        Ok(())
    }

    fn add(&mut self, at: PathBuf, entry: Entry) -> Result<(), Error> {
        let Some(known) = self.plan.entries.get(&at) else {
            self.plan.entries.insert(at, entry);
            return Ok(());
        };
        if *known == entry {
            return Ok(());
        }
        if let (Some(one), Some(other)) = (known.source(), entry.source()) {
            let same = |one: &File, other: &File| same_bytes(one, other);
            if same(&open(one)?, &open(other)?).map_err(|e| Error::io(other, "read", e))? {
                return Ok(());
            }
        }
        let what_to_do = match (known, &entry) {
            _ if self.plan.programs.contains(&at) => "stage these programs apart",
            (Entry::Copy(_) | Entry::Manifest(_), _) | (_, Entry::Copy(_) | Entry::Manifest(_)) => {
                "stage the programs whose libraries read them apart"
            }
            _ => "stage the programs that need them apart, or leave one out with --exclude",
        };
        let text = format!(
            "would be both {} and {}, which differ; {what_to_do}",
            described(known),
            described(&entry)
        );
        Err(Error::rejected(ids::NAME_CLASH, &self.output.join(at), text))
    }

    /// Fails if the names of two files differ only in case.
    fn has_distinct_names(&self) -> Result<(), Error> {
        let mut known = BTreeMap::new();
        for (path, entry) in &self.plan.entries {
            let Some(other) = known.insert(fold_case(&with_slashes(path)), entry) else {
                continue;
            };
            let text = format!(
                "would be both {} and {}, because their names differ only in case, which Windows ignores; stage only one of them",
                described(other),
                described(entry)
            );
            return Err(Error::rejected(ids::NAME_CLASH, &self.output.join(path), text));
        }
        Ok(())
    }

    /// Fails if a file would be where others need a directory.
    fn has_directories(&self) -> Result<(), Error> {
        let entries = &self.plan.entries;
        for path in entries.keys() {
            let Some((file, _)) =
                path.ancestors().skip(1).find_map(|above| entries.get_key_value(above))
            else {
                continue;
            };
            let text = format!(
                "would be a file and the directory of {}; choose another directory for that, with `--also DIR=LIB`",
                self.output.join(path).display()
            );
            return Err(Error::rejected(ids::NAME_CLASH, &self.output.join(file), text));
        }
        Ok(())
    }
}

/// What an entry is made of, for people.
fn described(entry: &Entry) -> String {
    match entry {
        Entry::Link(target) => format!("a link to {}", target.display()),
        other => other.source().unwrap_or(Path::new("")).display().to_string(),
    }
}

/// The target that a file is for, if its path in the output says so.
fn of_target(path: &Path) -> Option<TargetId> {
    match recognise(&with_slashes(path))? {
        (_, Place::Target(target)) => Some(target),
        _ => None,
    }
}

/// The target of a symbolic link, if that is the name of another of the files in its directory.
fn beside(link: &Path, there: &BTreeSet<PathBuf>) -> Option<PathBuf> {
    let target = read_link(link).ok()?;
    let is_name = matches!(Vec::from_iter(target.components())[..], [Component::Normal(_)]);
    let found = link.parent()?.join(&target);
    (is_name && there.contains(&found) && found != link).then_some(target)
}
