//! The manifests of recombined artifacts.
//!
//! The generic artifact has `<module>_<component>.kpm`, which lists the targets of all groups. Each group
//! has a fragment of it, `<module>_<component>.<group>.kpm`, with the group's targets. Since the names
//! differ, artifacts can be copied over each other in any order, and packages share no file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::{Group, archive_ends};

use super::{Artifact, Finding, Severity, is_error};
use crate::tree::ArtifactTree;
use kpack_core::files::with_slashes;
use kpack_core::parallel::lock;
use kpack_core::publish::{self, Present};
use kpack_core::{Error, Id, Reason, ids};
use kpack_split::input::{self, Archives};
use kpack_split::verify::{Difference, not_as_listed};
use kpack_tree::Entry;

/// A module's archives in all groups.
pub(super) struct ModuleManifest {
    /// Path of the kpack directory in the artifact.
    directory: PathBuf,
    /// A shard's manifest or archive, whose mode and time the manifests get.
    pub(super) like: PathBuf,
    manifest: Manifest,
}

impl ModuleManifest {
    /// The manifest of an artifact, with its path; `None` if its group has nothing of this module.
    pub(super) fn manifest(&self, artifact: &Artifact) -> Option<(PathBuf, Manifest)> {
        let mut manifest = self.manifest.clone();
        let module = Group::from(manifest.component_name.as_str());
        let Some(group) = &artifact.group else {
            return Some((self.directory.join(module.manifest()), manifest));
        };
        let targets: BTreeSet<String> = artifact.targets.iter().map(TargetId::to_string).collect();
        let files = &mut manifest.kpack_files;
        files.retain(|target, _| targets.contains(target));
        (!files.is_empty()).then(|| (self.directory.join(module.fragment(group)), manifest))
    }
}

/// Makes the manifests of the archives in `groups`, which must be those that the shards' manifests in
/// `generics` list. `wanted` tells whether a group of the component lists a target.
pub(super) fn merge(
    generics: &[&ArtifactTree],
    groups: &[ArtifactTree],
    wanted: &dyn Fn(&str) -> bool,
    archives: &Archives,
) -> Result<(Vec<ModuleManifest>, Vec<Finding>), Error> {
    let mut merge = ManifestMerge::read(generics)?;
    for tree in groups {
        for item in tree.entries.iter().filter(|item| item.is_kpack()) {
            merge.add(item, archives)?;
        }
    }
    merge.nothing_missing(wanted);
    Ok((merge.modules.into_values().collect(), merge.findings))
}

/// Manifests being made, by path in the artifact.
#[derive(Default)]
struct ManifestMerge {
    modules: BTreeMap<PathBuf, ModuleManifest>,
    /// What the shards' manifests list, by manifest and target.
    listed: BTreeMap<PathBuf, BTreeMap<String, Vec<ListedArchive>>>,
    /// The manifests of each shard that has a generic artifact.
    by_shard: BTreeMap<Arc<str>, BTreeSet<PathBuf>>,
    findings: Vec<Finding>,
}

/// What a shard's manifest says of an archive.
struct ListedArchive {
    shard: Arc<str>,
    manifest: PathBuf,
    file: KpackFile,
}

impl ManifestMerge {
    fn read(generics: &[&ArtifactTree]) -> Result<Self, Error> {
        let mut merge = Self::default();
        for tree in generics {
            let manifests = || tree.entries.iter().filter(|item| item.is_manifest());
            let own = manifests().map(|item| item.path.to_path_buf()).collect();
            merge.by_shard.insert(tree.shard.clone(), own);
            for item in manifests() {
                let path = &item.path;
                let mut manifest = input::read_manifest(item.full())?;
                let targets = merge.listed.entry(path.to_path_buf()).or_default();
                for (target, file) in std::mem::take(&mut manifest.kpack_files) {
                    targets.entry(target).or_default().push(ListedArchive {
                        shard: tree.shard.clone(),
                        manifest: item.full().to_path_buf(),
                        file,
                    });
                }
                let hint = manifest.install_hint.clone();
                let module =
                    merge.modules.entry(path.to_path_buf()).or_insert_with(|| ModuleManifest {
                        directory: parent(path),
                        like: item.full().to_path_buf(),
                        manifest,
                    });
                let taken = &mut module.manifest.install_hint;
                if let Some(hint) = hint
                    && *taken.get_or_insert_with(|| hint.clone()) != hint
                {
                    let text = format!(
                        "the install hint differs from another shard's, which is kept (expected `{}`, \
                         found `{}`)",
                        taken.as_deref().unwrap_or_default().escape_debug(),
                        hint.escape_debug()
                    );
                    merge.say(Severity::Warning, ids::SHARDS_DIFFER, item.full(), text);
                }
            }
        }
        Ok(merge)
    }

    fn say(&mut self, severity: Severity, id: Id, path: &Path, text: String) {
        self.findings.push(Finding::new(severity, id, path, text));
    }

    /// Adds an archive to the manifest of its module.
    fn add(&mut self, item: &Entry, archives: &Archives) -> Result<(), Error> {
        let path = &*item.path;
        let toc = archives.toc(item.full())?;
        let refuse = |reason: String| Error::rejected(ids::MISNAMED_ARCHIVE, item.full(), reason);
        let parsed = toc.gfx_arch_family.parse();
        let target: TargetId = parsed.map_err(|e| refuse(format!("{e}")))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let group = Group::from(toc.group_name.as_str());
        if group.target_of(&name).as_ref() != Some(&target) {
            let expected = group.archive(&target);
            return Err(refuse(format!("by its contents, its name should be `{expected}`")));
        }
        let manifest = parent(path).join(group.manifest());
        let Some(file) = self.entry(&manifest, &target, &group, item, archives)? else {
            return Ok(());
        };
        let expected = installed_prefix(&parent(path), item);
        // Archives of a whole artifact are at the root of a prefix, and need no manifest.
        if !self.modules.contains_key(&manifest) && !expected.is_empty() {
            let text = format!(
                "no shard's generic artifact has a manifest {}, so the host binaries of this module \
                 may be missing",
                manifest.display()
            );
            self.say(Severity::Warning, ids::MISSING_ARTIFACT, item.full(), text);
        }
        let module = self.modules.entry(manifest).or_insert_with(|| ModuleManifest {
            directory: parent(path),
            like: item.full().to_path_buf(),
            manifest: Manifest::new(group.to_string(), &expected),
        });
        module.manifest.kpack_files.insert(target.to_string(), file);
        let said = std::mem::replace(&mut module.manifest.prefix, expected.clone());
        if said != expected {
            let text = format!(
                "the manifest's prefix is `{said}`; expected `{expected}` from its location; using that"
            );
            self.say(Severity::Warning, ids::INCONSISTENT_MANIFEST, item.full(), text);
        }
        Ok(())
    }

    /// The entry of an archive in the new manifest: that of a shard's manifest, if it matches the archive.
    /// `None` if the archive is damaged, or of another split.
    fn entry(
        &mut self,
        manifest: &Path,
        target: &TargetId,
        group: &Group,
        item: &Entry,
        archives: &Archives,
    ) -> Result<Option<KpackFile>, Error> {
        let has_none = self
            .by_shard
            .get(&item.origin.tree)
            .is_some_and(|manifests| !manifests.contains(manifest));
        let Some(targets) = self.listed.get(manifest).filter(|_| !has_none) else {
            if let Some(reason) = unreadable(item.full(), archives)? {
                self.say(
                    Severity::Fault,
                    ids::DAMAGED_ARCHIVE,
                    item.full(),
                    format!("it {reason}"),
                );
            }
            let present = Present {
                path: item.full().to_path_buf(),
                archive: archives.parsed.open(item.full())?,
            };
            let name = item.full().file_name().unwrap_or_default().to_string_lossy().into_owned();
            return publish::entry_of(target, name, &present, None).map(Some);
        };
        let mut reason = format!(
            "no shard's manifest {} lists {target}: it belongs to another build than the host files",
            manifest.display()
        );
        let listed = targets.get(&target.to_string()).map_or(&[][..], Vec::as_slice);
        for listed in listed {
            let differences = not_as_listed(item.full(), group, &listed.file, archives)?;
            let mut wrong = differences.into_iter().next().map(Difference::reason);
            if wrong.is_none() && listed.file.checksum.is_none() {
                wrong = unreadable(item.full(), archives)?.map(Reason::from);
            }
            let Some(wrong) = wrong else {
                return Ok(Some(listed.file.clone()));
            };
            reason = format!(
                "not the kpack that shard {}'s manifest {} lists: it {wrong}; it is damaged, or of \
                 an earlier split, so split again into an empty directory",
                listed.shard,
                manifest.display()
            );
        }
        self.say(Severity::Fault, ids::NOT_AS_LISTED, item.full(), reason);
        Ok(None)
    }

    /// Reports archives that manifests promise and no shard has, and manifests that list nothing.
    fn nothing_missing(&mut self, wanted: &dyn Fn(&str) -> bool) {
        let mut missing = Vec::new();
        for (path, targets) in &self.listed {
            let module = self.modules.get(path);
            let there =
                |target| module.is_some_and(|m| m.manifest.kpack_files.contains_key(target));
            // An archive that does not match was reported already.
            let said = |target: &str| {
                let ends = Vec::from_iter(archive_ends(target));
                let mut errors = self.findings.iter().filter(|finding| is_error(finding));
                let at_end = |path: &PathBuf| {
                    let path = path.to_string_lossy();
                    ends.iter().any(|end| path.ends_with(end))
                };
                errors.any(|finding| finding.path.as_ref().is_some_and(at_end))
            };
            for (target, listed) in targets {
                if let Some(first) = listed.first()
                    && !there(target)
                    && wanted(target)
                    && !said(target)
                {
                    let text = format!("promises an archive for {target}, which no shard has");
                    missing.push(Finding::new(
                        Severity::Fault,
                        ids::MISSING_ARCHIVE,
                        &first.manifest,
                        text,
                    ));
                }
            }
        }
        let modules = self.modules.values();
        for module in modules.filter(|module| module.manifest.kpack_files.is_empty()) {
            let text = format!(
                "no group has an archive of {}: its binaries will find no device code",
                module.manifest.component_name
            );
            missing.push(Finding::new(Severity::Warning, ids::MISSING_ARCHIVE, &module.like, text));
        }
        self.findings.append(&mut missing);
    }
}

/// Why a code object of the archive at `path` cannot be read; `None` if all can be read.
fn unreadable(path: &Path, archives: &Archives) -> Result<Option<String>, Error> {
    let shared = archives.open(path)?;
    let mut archive = lock(&shared);
    let toc = archive.toc().clone();
    for (kernel, targets) in &toc.kernels {
        for target in targets.keys() {
            if let Err(error) = archive.read(kernel, target) {
                return Ok(Some(format!("has no readable `{kernel}` for {target}: {error}")));
            }
        }
    }
    Ok(None)
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}

/// The directory in the install prefix that holds the kpack directory at `directory` of the
/// artifact.
fn installed_prefix(directory: &Path, item: &Entry) -> String {
    let within = directory.strip_prefix(&*item.origin.prefix).unwrap_or(directory);
    let holder = within.parent().unwrap_or(Path::new(""));
    with_slashes(holder)
}
