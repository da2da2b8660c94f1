//! The fat binaries that share archives, and the plans of their host binaries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::marker::Marker;
use kpack_format::names::{FileNames, Group};

use super::{Layout, Options};
use crate::manifest_txt;
use crate::tree::ArtifactTree;
use kpack_core::publish::is_name_part;
use kpack_core::{Error, ids};
use kpack_split::host::SplitPlan;
use kpack_split::input::{KpackPath, LocatedBinary, Prefix, binary_error};
use kpack_split::split::{self, BinaryKind, FatFile, Spirv, code_ids};
use kpack_tree::{Class, Entry};

/// The fat binaries of a prefix, or of all prefixes of an artifact.
pub(super) struct Module {
    /// The one with the archives.
    pub(super) prefix: String,
    /// Module and component.
    pub(super) group: Group,
    /// How loaders on the binaries' system look for its archives.
    pub(super) names: FileNames,
    pub(super) kpacks: KpackPath,
    pub(super) binaries: Vec<ModuleBinary>,
    /// Archives of binaries of the module that were split before.
    pub(super) present: BTreeMap<TargetId, PathBuf>,
    /// Their manifest.
    pub(super) manifest: Option<PathBuf>,
}

/// The name of an archive that is there.
pub(super) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

impl Module {
    /// The fat binaries of prefixes that share archives; `None` if they have none. Names of one inode are one
    /// binary, of the first name.
    pub(super) fn read(
        tree: &ArtifactTree,
        prefixes: &[String],
        options: &Options,
    ) -> Result<Option<Self>, Error> {
        let is_own = |item: &Entry| prefixes.iter().any(|prefix| **prefix == *item.origin.prefix);
        let all = || tree.entries.iter().filter(|item| is_own(item));
        let fat: Vec<&Entry> = all().filter(|item| *item.class == Class::Fat).collect();
        let Some(first) = fat.first() else {
            return Ok(None);
        };
        let prefix = first.origin.prefix.to_string();
        let group = group(&tree.root, &prefix, options)?;
        let kpacks =
            Prefix::new(&tree.root.join(&prefix))?.kpack_dir(Path::new(match options.layout {
                Layout::Module => "lib/.kpack",
                Layout::Artifact => ".kpack",
            }))?;

        let named = names(tree, &fat)?.into_iter();
        let spirv = options.storage.spirv;
        let binaries: Vec<ModuleBinary> = named
            .map(|named| named.planned(&kpacks, &group, spirv))
            .collect::<Result<_, Error>>()?;
        let directory = Path::new(&prefix).join(&kpacks.name);
        let mut present = BTreeMap::new();
        for item in all() {
            if let Class::Target { target, .. } = &*item.class
                && item.path.parent() == Some(&*directory)
                && group.target_of(&file_name(&item.path)).as_ref() == Some(target)
            {
                present.insert(target.clone(), item.full().to_path_buf());
            }
        }
        let manifest = tree.entries.get(&*directory.join(group.manifest()));
        let names = split::file_names(binaries.iter().map(|binary| binary.file.is_for_windows()));
        Ok(Some(Self {
            prefix,
            group: group.with_names_of(names.on_disk()),
            names,
            kpacks,
            binaries,
            present,
            manifest: manifest.map(|item| item.full().to_path_buf()),
        }))
    }

    /// The name of its archive for a target. One that is there keeps its name.
    pub(super) fn archive_name(&self, target: &TargetId) -> String {
        let present = self.present.get(target);
        present.map_or_else(|| self.group.archive(target), |path| file_name(path))
    }

    /// The targets that the binaries have device code for.
    pub(super) fn found(&self) -> BTreeSet<TargetId> {
        let binaries = self.binaries.iter();
        binaries.flat_map(|binary| binary.file.code.targets()).collect()
    }

    /// What its archives are installed as.
    pub(super) fn archives(&self) -> PathBuf {
        Path::new(&self.kpacks.name).join(self.group.archive("TARGET"))
    }

    /// Whether its archives would take the place of the other's.
    pub(super) fn collides(&self, other: &Self) -> bool {
        self.archives() == other.archives()
    }

    /// The error that names the artifact or prefix of a module with the same archives.
    pub(super) fn collision(&self, artifact: &Path, other: &str, advice: &str) -> Error {
        let reason = format!(
            "the archives would be installed as {}, like those of {other}; {advice}",
            self.archives().display()
        );
        Error::rejected(ids::CONFLICTING_FILES, &artifact.join(&self.prefix), reason)
    }

    /// The kpack directory in an artifact.
    pub(super) fn kpack_dir(&self) -> PathBuf {
        Path::new(&self.prefix).join(&self.kpacks.name)
    }
}

/// A fat binary, and the plan of its host binary.
pub(super) struct ModuleBinary {
    pub(super) prefix: String,
    /// Path in the prefix, the kernel name.
    pub(super) name: String,
    /// Its files, by their paths in the artifact: several if it has several names.
    pub(super) files: Vec<(PathBuf, PathBuf)>,
    pub(super) file: FatFile,
    marker: Marker,
    /// With room for the IDs of its device code, which are not known yet.
    pub(super) plan: SplitPlan,
}

impl ModuleBinary {
    /// The plan with the IDs of its device code in `archives`.
    pub(super) fn plan_for(
        &self,
        archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
    ) -> Result<SplitPlan, Error> {
        let code_ids = code_ids::computed(archives, &self.name);
        let marker = self.marker.clone().with_code_ids(code_ids);
        let mut plan = self.plan.clone();
        let set = plan.set_marker(&self.file.complete(marker)?);
        set.map_err(|error| binary_error(&self.file.code.path, error))?;
        Ok(plan)
    }
}

/// A fat binary, with all of its names in the install prefix.
struct NamedBinary<'a> {
    prefix: String,
    item: &'a Entry,
    files: Vec<(PathBuf, PathBuf)>,
    names: Vec<LocatedBinary>,
}

impl NamedBinary<'_> {
    /// The binary, with the plan of its host binary.
    fn planned(
        self,
        kpacks: &KpackPath,
        group: &Group,
        spirv: Spirv,
    ) -> Result<ModuleBinary, Error> {
        let (_, from) = &self.files[0];
        let BinaryKind::Fat(file, _) = split::of(self.item.linked()?, Some(spirv))? else {
            return Err(Error::changed(from));
        };
        let code_ids = code_ids::planned(&file.code.targets());
        let marker = marker(kpacks, group, &self.names).with_code_ids(code_ids);
        Ok(ModuleBinary {
            prefix: self.prefix,
            name: self.names[0].name.clone(),
            files: self.files,
            plan: file.plan(&file.complete(marker.clone())?)?,
            marker,
            file: *file,
        })
    }
}

/// The binaries that fat files are names of.
fn names<'a>(tree: &ArtifactTree, fat: &[&'a Entry]) -> Result<Vec<NamedBinary<'a>>, Error> {
    let mut binaries: Vec<NamedBinary<'a>> = Vec::new();
    let mut inodes = HashMap::new();
    for item in fat {
        let path = &item.path;
        let prefix = &*item.origin.prefix;
        let installed = Prefix::new(&tree.root.join(prefix))?;
        let located = installed.binary(path.strip_prefix(prefix).unwrap_or(path))?;
        let next = binaries.len();
        let inode = item.shared_inode.as_deref();
        let binary = inode.map_or(next, |inode| *inodes.entry(inode).or_insert(next));
        let file = (path.to_path_buf(), item.full().to_path_buf());
        match binaries.get_mut(binary) {
            Some(known) => {
                known.names.push(located);
                known.files.push(file);
            }
            None => binaries.push(NamedBinary {
                prefix: prefix.to_owned(),
                item,
                files: vec![file],
                names: vec![located],
            }),
        }
    }
    Ok(binaries)
}

/// The module and component whose archives are those of `prefix`.
fn group(root: &Path, prefix: &str, options: &Options) -> Result<Group, Error> {
    let component = options.component()?;
    if options.layout == Layout::Artifact {
        return Ok(Group::from(options.artifact_prefix.as_str()));
    }
    let name = manifest_txt::module_name(prefix);
    if is_name_part(&name) {
        return Ok(Group::new(&name, component));
    }
    let reason = format!(
        "the module would be `{name}`; expected a part of a file name, of letters, digits, `.`, `_`, `+` \
         and `-`"
    );
    Err(Error::rejected(ids::INVALID_PREFIX_LIST, &root.join(prefix), reason))
}

/// The marker of a binary with these names: archives are looked for from each one's directory.
fn marker(kpacks: &KpackPath, group: &Group, names: &[LocatedBinary]) -> Marker {
    let mut paths: Vec<String> = Vec::new();
    for name in names {
        for path in kpacks.marker(name, group).kpack_search_paths {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    Marker::new(names.first().map_or("", |first| &first.name), paths)
}
