//! The manifests of recombined artifacts.
//!
//! The generic artifact has `<module>_<component>.kpm`, which lists the targets of all groups. What
//! a group has is listed by `<module>_<component>.<group>.kpm`, a part of it: another name, so that
//! artifacts can be laid over each other in any order, and packages made of them own no file in
//! common.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::Written;
use kpack_format::manifest::{KpackFile, Manifest};

use super::Severity;
use super::tree::{Item, Tree};
use crate::Error;
use crate::inspect;
use crate::kpack_dir;

/// The manifests of all modules, and what is to be said about the shards' own.
#[derive(Default)]
pub(super) struct Manifests {
    pub(super) modules: Vec<Module>,
    pub(super) findings: Vec<(Severity, PathBuf, String)>,
}

/// A module's kpacks in all groups.
pub(super) struct Module {
    /// Path of the kpack directory in the artifact.
    directory: PathBuf,
    /// A kpack directory of the input, whose mode and times are kept.
    like: PathBuf,
    manifest: Manifest,
}

impl Module {
    /// The manifest of the artifact of `group`, which has `targets`, or of the generic one, with
    /// its path; `None` where the group has nothing of this module.
    pub(super) fn manifest(
        &self,
        group: Option<&str>,
        targets: &BTreeSet<TargetId>,
    ) -> Option<(PathBuf, Manifest)> {
        let mut manifest = self.manifest.clone();
        let name = &manifest.component_name;
        let name = match group {
            Some(group) => format!("{name}.{group}.kpm"),
            None => format!("{name}.kpm"),
        };
        if group.is_some() {
            let targets: BTreeSet<String> = targets.iter().map(TargetId::to_string).collect();
            manifest
                .kpack_files
                .retain(|target, _| targets.contains(target));
            if manifest.kpack_files.is_empty() {
                return None;
            }
        }
        Some((self.directory.join(name), manifest))
    }

    /// The directory of the input that `above`, at or above the kpack directory, is like.
    pub(super) fn directory_like(&self, above: &Path) -> PathBuf {
        let up = self.directory.components().count() - above.components().count();
        let mut ancestors = self.like.ancestors();
        ancestors.nth(up).unwrap_or(&self.like).to_owned()
    }
}

/// Makes the manifests of the kpacks in `groups`. What the shards' manifests in `generics` say of
/// an archive is believed as long as the size is right.
/// `wanted` says whether a group of the component names a target.
pub(super) fn merge(
    generics: &[Tree],
    groups: &[Tree],
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Manifests, Error> {
    let mut result = Manifests::default();
    let known = Known::read(generics)?;
    let mut modules: BTreeMap<PathBuf, Module> = BTreeMap::new();
    for (path, (like, manifest)) in &known.modules {
        let mut manifest = manifest.clone();
        manifest.kpack_files.clear();
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        modules.insert(
            path.clone(),
            Module {
                directory,
                like: like.clone(),
                manifest,
            },
        );
    }
    for tree in groups {
        for (path, item) in tree
            .entries
            .iter()
            .filter(|(_, item)| item.class_is_kpack())
        {
            let entry = known.entry(path, item)?;
            let directory = path.parent().unwrap_or(Path::new(""));
            let manifest_path = directory.join(kpack_dir::manifest_name(&entry.group));
            let target = &entry.file.architecture;
            if let Some(promised) = known.promised.get(&manifest_path)
                && !promised.contains_key(target)
            {
                let text = format!(
                    "no shard's manifest {} lists {target}: it is not of the build that the host \
                     files are of",
                    manifest_path.display()
                );
                result
                    .findings
                    .push((Severity::Error, item.from.clone(), text));
            }
            let module = match modules.entry(manifest_path) {
                btree_map::Entry::Occupied(known) => known.into_mut(),
                btree_map::Entry::Vacant(new) => {
                    let text = format!(
                        "no shard's generic artifact has a manifest {}, so the host binaries of \
                         this module may be missing",
                        new.key().display()
                    );
                    result
                        .findings
                        .push((Severity::Warning, item.from.clone(), text));
                    new.insert(Module {
                        directory: directory.to_owned(),
                        like: item.from.parent().unwrap_or(Path::new("")).to_owned(),
                        manifest: Manifest {
                            component_name: entry.group.clone(),
                            prefix: installed_prefix(directory, item),
                            kpack_files: BTreeMap::new(),
                        },
                    })
                }
            };
            let expected = installed_prefix(directory, item);
            if module.manifest.prefix != expected {
                let text = format!(
                    "its manifest's prefix is `{}`; by its place it is `{expected}`, which is taken",
                    module.manifest.prefix
                );
                result
                    .findings
                    .push((Severity::Warning, item.from.clone(), text));
                module.manifest.prefix = expected;
            }
            let files = &mut module.manifest.kpack_files;
            files.insert(entry.file.architecture.clone(), entry.file);
        }
    }
    for (path, promised) in &known.promised {
        let module = modules.get(path);
        for (target, shard_manifest) in promised {
            let there = module.is_some_and(|m| m.manifest.kpack_files.contains_key(target));
            // Of a target that no group takes, that was said already.
            if !there && wanted(target) {
                let text = format!("it promises a kpack for {target}, which no shard has");
                result
                    .findings
                    .push((Severity::Error, shard_manifest.clone(), text));
            }
        }
    }
    for module in modules.values() {
        if module.manifest.kpack_files.is_empty() {
            let text = format!(
                "no group has a kpack of {}: its binaries will find no device code",
                module.manifest.component_name
            );
            result
                .findings
                .push((Severity::Warning, module.like.clone(), text));
        }
    }
    result.modules = modules.into_values().collect();
    Ok(result)
}

/// What the shards' manifests say.
#[derive(Default)]
struct Known {
    /// By path in the artifact: a kpack directory of the input, and a manifest.
    modules: BTreeMap<PathBuf, (PathBuf, Manifest)>,
    /// The targets that they list, and the manifest that does.
    promised: BTreeMap<PathBuf, BTreeMap<String, PathBuf>>,
    /// Entries, by path of the archive.
    files: BTreeMap<PathBuf, Vec<KpackFile>>,
}

/// A kpack's entry.
struct Entry {
    group: String,
    file: KpackFile,
}

impl Known {
    fn read(generics: &[Tree]) -> Result<Self, Error> {
        let mut known = Self::default();
        for tree in generics {
            for (path, item) in tree.entries.iter().filter(|(_, item)| item.is_manifest()) {
                let manifest = inspect::read_manifest(&item.from)?;
                let directory = path.parent().unwrap_or(Path::new(""));
                for (target, file) in &manifest.kpack_files {
                    let promised = known.promised.entry(path.clone()).or_default();
                    promised
                        .entry(target.clone())
                        .or_insert_with(|| item.from.clone());
                    let archive = directory.join(&file.filename);
                    known.files.entry(archive).or_default().push(file.clone());
                }
                let like = item.from.parent().unwrap_or(Path::new("")).to_owned();
                known
                    .modules
                    .entry(path.clone())
                    .or_insert((like, manifest));
            }
        }
        Ok(known)
    }

    fn entry(&self, path: &Path, item: &Item) -> Result<Entry, Error> {
        let archive = inspect::open_archive(&item.from)?;
        let toc = archive.toc();
        let target: TargetId = toc
            .gfx_arch_family
            .parse()
            .map_err(|e| Error::refused(&item.from, format!("{e}")))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let expected = format!("{}_{target}.kpack", toc.group_name);
        if name != expected {
            let text = format!("by what is in it, its name is `{expected}`");
            return Err(Error::refused(&item.from, text));
        }
        let kernel_count = toc
            .kernels
            .values()
            .map(|targets| targets.len() as u64)
            .sum();
        let listed = self.files.get(path).into_iter().flatten().find(|file| {
            let whole = file.size == item.size() && file.kernel_count == kernel_count;
            whole && file.checksum.is_some() && file.architecture == target.to_string()
        });
        let file = match listed {
            Some(file) => file.clone(),
            None => {
                let written = Written {
                    size: item.size(),
                    kernel_count,
                    checksum: inspect::digest(&item.from)?,
                };
                kpack_dir::entry(&target, name.into_owned(), &written)
            }
        };
        Ok(Entry {
            group: toc.group_name.clone(),
            file,
        })
    }
}

/// The directory in the install prefix that holds the kpack directory at `directory` of the
/// artifact.
fn installed_prefix(directory: &Path, item: &Item) -> String {
    let within = directory.strip_prefix(&*item.prefix).unwrap_or(directory);
    let holder = within.parent().unwrap_or(Path::new(""));
    holder.to_string_lossy().into_owned()
}
