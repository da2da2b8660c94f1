//! The fat binaries of a prefix, and what becomes of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::marker::Marker;
use kpack_format::names::Group;

use super::Options;
use super::sources::Read;
use super::targets::Targets;
use crate::Error;
use crate::artifact::classify::{Class, Entry, Node};
use crate::artifact::manifest_txt;
use crate::elf;
use crate::input::elf_error;
use crate::install::is_name_part;
use crate::install::locate::{KpackPath, Located, Prefix};
use crate::split::{self, FatFile, Input, code_ids};

/// The fat binaries of a prefix.
pub(super) struct Module {
    pub(super) prefix: String,
    /// Module and component.
    pub(super) group: Group,
    pub(super) kpacks: KpackPath,
    pub(super) binaries: Vec<FatBinary>,
    /// Archives of binaries of the module that were split before.
    pub(super) present: BTreeMap<TargetId, PathBuf>,
    /// Their manifest.
    pub(super) manifest: Option<PathBuf>,
}

impl Module {
    /// The targets that the binaries have device code for.
    pub(super) fn found(&self) -> BTreeSet<TargetId> {
        let binaries = self.binaries.iter();
        binaries
            .flat_map(|binary| binary.file.code.targets())
            .collect()
    }

    /// The files of the input that are written anew.
    pub(super) fn written_anew(&self, targets: &Targets) -> impl Iterator<Item = &Path> {
        let found = self.found();
        let archives = self.present.iter();
        let archives = archives
            .filter(move |(target, _)| found.contains(*target) && targets.keeps(target))
            .map(|(_, path)| path);
        self.manifest.iter().chain(archives).map(PathBuf::as_path)
    }
}

/// A fat binary, and what its host binary will be.
pub(super) struct FatBinary {
    /// Path in the prefix, the kernel name.
    pub(super) name: String,
    pub(super) file: FatFile,
    marker: Marker,
    /// With room for the IDs of its device code, which are not known yet.
    pub(super) plan: elf::Plan,
}

impl FatBinary {
    /// The plan with the IDs of its device code in `archives`.
    pub(super) fn plan_for(
        &self,
        archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
    ) -> Result<elf::Plan, Error> {
        let marker = Marker {
            code_ids: code_ids::computed(archives, &self.name),
            ..self.marker.clone()
        };
        let mut plan = self.plan.clone();
        let set = plan.set_marker(&marker);
        set.map_err(|error| elf_error(&self.file.code.path, error))?;
        Ok(plan)
    }

    /// By how many bytes the host binary is smaller.
    pub(super) fn device_share(&self) -> u64 {
        self.file
            .code
            .file_size()
            .saturating_sub(self.plan.output_size())
    }
}

/// The fat binaries of a prefix. Names of one inode are one binary, of the first name.
pub(super) fn module(
    read: &Read,
    component: &str,
    index: usize,
    fat_of: &mut HashMap<PathBuf, (usize, usize)>,
) -> Result<Option<Module>, Error> {
    let entries = read.classification.entries.iter();
    let fat: Vec<&Entry> = entries.filter(|entry| entry.class == Class::Fat).collect();
    if fat.is_empty() {
        return Ok(None);
    }
    let name = manifest_txt::module(&read.prefix);
    if !is_name_part(&name) {
        return Err(Error::refused(
            &read.root,
            format!(
                "its module would be `{name}`; expected a part of a file name, of letters, digits, \
                 `.`, `_`, `+` and `-`"
            ),
        ));
    }
    let group = Group::new(&name, component);
    let prefix = Prefix::new(&read.root)?;
    let kpacks = prefix.kpack_dir(Path::new("lib/.kpack"))?;

    let mut links: BTreeMap<usize, (PathBuf, Vec<Located>)> = BTreeMap::new();
    let mut inodes = HashMap::new();
    for entry in fat {
        let located = prefix.binary(&entry.path)?;
        let next = links.len();
        let binary = match entry.node {
            Node::File {
                shared_inode: Some(inode),
                ..
            } => *inodes.entry(inode).or_insert(next),
            _ => next,
        };
        let path = read.root.join(&entry.path);
        fat_of.insert(path.clone(), (index, binary));
        let (_, names) = links.entry(binary).or_insert((path, Vec::new()));
        names.push(located);
    }
    let mut binaries = Vec::new();
    for (path, names) in links.into_values() {
        let Some(first) = names.first() else { continue };
        let Input::Fat(file, _) = split::read(&path)? else {
            return Err(Error::refused(&path, "it changed while it was read"));
        };
        let marker = Marker {
            code_ids: code_ids::planned(&file.code.targets()),
            ..marker(&kpacks, &group, &names)
        };
        let plan = file.plan(&marker)?;
        binaries.push(FatBinary {
            name: first.name.clone(),
            marker,
            file,
            plan,
        });
    }
    let directory = Path::new(&kpacks.name);
    let mut present = BTreeMap::new();
    for entry in &read.classification.entries {
        if let Class::Target { target, .. } = &entry.class
            && entry.path == directory.join(group.archive(target))
        {
            present.insert(target.clone(), read.root.join(&entry.path));
        }
    }
    let manifest = read.root.join(directory).join(group.manifest());
    Ok(Some(Module {
        prefix: read.prefix.clone(),
        group,
        kpacks,
        binaries,
        present,
        manifest: manifest.exists().then_some(manifest),
    }))
}

/// The marker of a binary with these names: archives are looked for from each one's directory.
fn marker(kpacks: &KpackPath, group: &Group, names: &[Located]) -> Marker {
    let mut paths: Vec<String> = Vec::new();
    for name in names {
        for path in kpacks.marker(name, group).kpack_search_paths {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    Marker {
        kernel_name: names.first().map(|first| first.name.clone()),
        kpack_search_paths: paths,
        ..Marker::default()
    }
}

/// Archives of one name in two prefixes would take each other's place in an installation.
pub(super) fn refuse_collision(
    modules: &[Module],
    new: &Module,
    options: &Options,
) -> Result<(), Error> {
    let same = |other: &&Module| other.group == new.group && other.kpacks.name == new.kpacks.name;
    match modules.iter().find(same) {
        None => Ok(()),
        Some(other) => Err(Error::refused(
            &options.artifact_dir.join(&new.prefix),
            format!(
                "its archives would be named {}_TARGET.kpack, like those of {}; the directory above \
                 `stage` names the module",
                new.group, other.prefix
            ),
        )),
    }
}
