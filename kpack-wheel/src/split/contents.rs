//! The contents of one wheel: it is unpacked and its binaries are split like those of an install prefix, in a hidden
//! directory, and each file then belongs to the host or to the GPUs of a device wheel.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::manifest::{KpackFile, Manifest, PROCESSOR};
use kpack_format::names::{Group, is_manifest};
use kpack_format::target_id::ParseTargetIdError;

use super::report::warning;
use crate::archive::{Destination, SitePackages, Wheel};
use crate::device::Devices;
use crate::elsewhere::SplitElsewhere;
use crate::members::{in_member, of_unpacked};
use crate::name::escaped;
use crate::options::Options;
use crate::record::Digest;
use crate::vendor::{ArchiveSources, VendoredArchive};
use crate::writer::Content;
use kpack_core::files::with_slashes;
use kpack_core::platform::canonicalize;
use kpack_core::publish::{self, Directory};
use kpack_core::report::Progress;
use kpack_core::words::list;
use kpack_core::{Error, Finding, Reason, Severity, ids, shown};
use kpack_split::input;
use kpack_split::input::LinkedBinary;
use kpack_split::install::{self, install_parsed};
use kpack_split::split::{DebugFiles, file_names};
use kpack_tree::databases::not_stripped;
use kpack_tree::{Class, DatabaseSelection, Known, Only, Parsed, Tree, Walk};

/// The component of the archives.
const COMPONENT: &str = "lib";

/// Where the files of `site-packages` are unpacked.
const SITE: &str = "site";

/// Where all other files are unpacked, for as long as it takes to look at them.
const ELSEWHERE: &str = "elsewhere";

/// One wheel, read and split.
pub(super) struct WheelContents<'a> {
    pub(super) wheel: &'a Wheel,
    /// The digests of its members.
    pub(super) digests: Vec<Digest>,
    /// The kind of `site-packages` that its device code is in.
    pub(super) scheme: SitePackages,
    /// Where it was unpacked, with a path that leads there as long as it is open.
    pub(super) tree: PathBuf,
    scratch: Directory,
    /// The binaries that are host binaries now, by their paths in `site-packages`.
    split: BTreeSet<String>,
    /// The libraries that another tool split and whose markers were changed, by their paths in `site-packages`.
    changed: BTreeSet<String>,
    /// The manifests of the archives.
    pub(super) manifests: BTreeSet<String>,
    /// The files of each device wheel.
    pub(super) devices: Devices<'a>,
}

impl<'a> WheelContents<'a> {
    /// Unpacks `wheel` into the empty directory `scratch`, and splits what is there.
    pub(super) fn new(
        wheel: &'a Wheel,
        scratch: Directory,
        options: &'a Options,
        sources: &ArchiveSources,
        debug_files: &DebugFiles,
        progress: &dyn Progress,
        findings: &mut Vec<Finding>,
    ) -> Result<Self, Error> {
        let members = in_site(wheel);
        // Reports have the path without symbolic links.
        let root = canonicalize(&scratch.anchor())
            .map_err(|e| Error::io(&options.output_dir, "open", e))?;
        let (tree, elsewhere) = (root.join(SITE), root.join(ELSEWHERE));
        let digests = wheel.unpack(&scratch, &|member| match wheel.place(member) {
            Destination::Elsewhere => Some(Path::new(ELSEWHERE).join(&member.name)),
            Destination::Site(_, path) => Some(Path::new(SITE).join(path)),
        })?;
        let failed = |error| of_unpacked(&wheel.path, &[&tree, &elsewhere], error);
        warn_of_fat_elsewhere(wheel, &elsewhere, findings).map_err(failed)?;
        scratch.remove_tree(ELSEWHERE.as_ref())?;
        let kernel_files = DatabaseSelection::new(Known::Auto, options.kernel_files.clone());
        let (databases, parsed) = (&kernel_files, Parsed::default());
        let walk = Walk { prefix: &tree, databases, parsed, only: Only::All };
        let mut found = walk.collect().map_err(failed)?;
        found.treat_spirv(options.storage.spirv);
        report_observations(wheel, &tree, &found, findings)?;

        let libraries = wheel.split_elsewhere_in(&found).map_err(failed)?;
        let (lacking, elsewhere): (Vec<_>, Vec<_>) = libraries
            .into_iter()
            .partition(|library| !options.archives.is_empty() && library.lacks_archives());

        let mut contents = Self {
            wheel,
            digests,
            scheme: wheel.root(),
            tree: tree.clone(),
            scratch,
            split: BTreeSet::new(),
            changed: BTreeSet::new(),
            manifests: BTreeSet::new(),
            devices: Devices::new(wheel, options),
        };
        let targets =
            found.entries.iter().filter(|entry| matches!(*entry.class, Class::Target { .. }));
        let files = targets.map(|entry| &*entry.path);
        findings.extend(not_stripped(files, &options.storage.debug, &wheel.path));
        let vendored = lacking.iter().map(SplitElsewhere::path).collect();
        contents.sort(&found, &members, &vendored, findings)?;
        contents.install(options, &found, debug_files, progress, findings).map_err(failed)?;
        contents.vendor(sources, &lacking, findings).map_err(failed)?;
        if contents.devices.is_empty() {
            let is_split = found.entries.iter().any(|entry| *entry.class == Class::Split);
            let mut observations = found.observations.iter();
            let kept = observations.find(|observation| observation.id == ids::SPIRV_KEPT);
            let (id, text) = match (elsewhere.first(), kept, is_split) {
                (Some(library), ..) => (ids::SPLIT_BY_ANOTHER_TOOL, library.to_string()),
                (None, Some(kept), _) => {
                    let text = format!("member `{}`: {}", kept.file().display(), kept.text);
                    (ids::SPIRV_KEPT, text)
                }
                (None, None, true) => (ids::SPLIT_ALREADY, "already split".to_owned()),
                (None, None, false) => (
                    ids::NO_DEVICE_CODE,
                    "no device code in site-packages, so there is nothing to split".to_owned(),
                ),
            };
            return Err(Error::rejected(id, &wheel.path, text));
        }
        for library in elsewhere.iter().filter(|library| library.lacks_archives()) {
            let id = ids::SPLIT_BY_ANOTHER_TOOL;
            findings.push(warning(id, &wheel.path, library.to_string()));
        }
        contents.adopt_manifests(&members).map_err(failed)?;
        contents.fragments().map_err(failed)?;
        Ok(contents)
    }

    /// Finds the fat binaries, and the files of kernel databases, which move. The archives of the libraries
    /// `vendored` are in the same `site-packages`.
    fn sort(
        &mut self,
        found: &Tree,
        members: &BTreeMap<PathBuf, (SitePackages, usize)>,
        vendored: &BTreeSet<&Path>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Error> {
        let mut schemes = BTreeSet::new();
        for entry in &found.entries {
            let Some((scheme, index)) = members.get(&*entry.path) else {
                continue;
            };
            let path = &*with_slashes(&entry.path);
            match &*entry.class {
                Class::Fat => {
                    self.split.insert(path.to_owned());
                }
                Class::Target { target, .. } => {
                    let (member, digest) = (&self.wheel.members[*index], self.digests[*index]);
                    let content = Content::Copied(self.wheel, member, digest);
                    self.devices.add(target, path, member.mode, content)?;
                }
                Class::Unknown { reason, .. } => {
                    let text = format!(
                        "looks architecture-specific: {reason}; it stays in the host wheel"
                    );
                    let reason = Reason::from(text).in_member(path);
                    findings.push(warning(ids::UNPLACED_FILE, &self.wheel.path, reason));
                    continue;
                }
                Class::Split if vendored.contains(&*entry.path) => {}
                Class::Host | Class::Split => continue,
            }
            schemes.insert(*scheme);
        }
        match Vec::from_iter(schemes).as_slice() {
            [] => Ok(()),
            [only] => {
                self.scheme = *only;
                Ok(())
            }
            _ => Err(Error::rejected(
                ids::UNSUPPORTED_WHEEL,
                &self.wheel.path,
                "has device code in both purelib and platlib, which need not be one directory; build it with Root-Is-Purelib: false and without .data/purelib",
            )),
        }
    }

    /// Splits the fat binaries, with archives in each top-level directory that has some.
    fn install(
        &mut self,
        options: &Options,
        found: &Tree,
        debug_files: &DebugFiles,
        progress: &dyn Progress,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Error> {
        let parsed = BTreeMap::from_iter(found.entries.iter().filter_map(|entry| {
            Some((entry.full().to_owned(), Arc::clone(entry.binary.as_ref()?)))
        }));
        if let Some(root) = &options.overlay_root
            && !self.tree.join(root).is_dir()
        {
            let text = format!("no directory {}, which --overlay-root names", shown(root));
            return Err(Error::rejected(ids::UNSUPPORTED_WHEEL, &self.wheel.path, text));
        }
        let mut tops: BTreeMap<&Path, Vec<&String>> = BTreeMap::new();
        for path in &self.split {
            let own = path.split_once('/').map_or("", |(top, _)| top);
            let top = options.overlay_root.as_deref().unwrap_or(Path::new(own));
            tops.entry(top).or_default().push(path);
        }
        let module = escaped(self.wheel.required("Name")?);
        let hint = self.install_hint()?;
        for (top, files) in tops {
            let binaries = files.iter().filter_map(|file| parsed.get(&self.tree.join(file)));
            // A wheel can have any name, whatever this system can write.
            let names = file_names(binaries.map(|binary| binary.is_for_windows()));
            let mut one = install::InstallOptions::new(&self.tree, &module, files);
            COMPONENT.clone_into(&mut one.component);
            one.kpack_dir = top.join(".kpack");
            one.install_hint = Some(hint.clone());
            one.storage = options.storage.clone();
            let report = install_parsed(&one, &parsed, Some(debug_files), progress)?;
            let group = Group::new(&module, COMPONENT).with_names_of(names);
            let has_others = names != names.on_disk();
            let manifest = one.kpack_dir.join(group.manifest());
            if has_others && !report.archives.is_empty() {
                self.rename_listed(&manifest, &group)?;
            }
            self.manifests.insert(with_slashes(&manifest));
            for archive in report.archives {
                let target = archive.target.parse().map_err(|error: ParseTargetIdError| {
                    Error::rejected(ids::DAMAGED_ARCHIVE, &archive.path, error.to_string())
                })?;
                let path = if has_others {
                    with_slashes(&one.kpack_dir.join(group.archive(&target)))
                } else {
                    with_slashes(archive.path.strip_prefix(&self.tree).unwrap_or(&archive.path))
                };
                let content = Content::Archive(archive.path);
                self.devices.add(&target, &path, 0o644, content)?;
            }
            let mut found = report.findings;
            found.retain(|finding| !has_others || finding.id != ids::NAMES_WITHOUT_COLONS);
            findings.extend(found.into_iter().map(|f| self.of_member(f)));
        }
        Ok(())
    }

    /// Adds the archives of libraries that another tool split, in `.kpack` beside each.
    fn vendor(
        &mut self,
        sources: &ArchiveSources,
        libraries: &[SplitElsewhere],
        findings: &mut Vec<Finding>,
    ) -> Result<(), Error> {
        let hint = self.install_hint()?;
        for library in libraries {
            let path = self.tree.join(library.path());
            let vendored = sources.vendor(&LinkedBinary::open(&path)?)?;
            let (directory, name) = self.place(library.path())?;
            if vendored.apply(&path, directory, name)? {
                let path = with_slashes(library.path());
                self.changed.insert(path);
            }
            if !vendored.unchecked.is_empty() {
                let archives = list(vendored.unchecked.iter().map(|path| shown(path).to_string()));
                let text = format!(
                    "member `{}`: {archives} may be for another build of the library (no code IDs to compare, and no installed library below --archives); pass the prefix of the ROCm that the wheel was built with",
                    library.path().display()
                );
                findings.push(warning(ids::STALE_ARCHIVE, &self.wheel.path, text));
            }
            for (name, archive) in vendored.archives {
                self.vendor_archive(library.path(), name, archive, &hint)?;
            }
        }
        Ok(())
    }

    /// Adds an archive of `library`.
    fn vendor_archive(
        &mut self,
        library: &Path,
        name: String,
        archive: VendoredArchive,
        hint: &str,
    ) -> Result<(), Error> {
        let beside = library.parent().unwrap_or(Path::new(""));
        let directory = beside.join(".kpack");
        let path = with_slashes(&directory.join(&name));
        if let Some(known) = self.devices.content(&path) {
            let known = match known {
                Content::Archive(known) => known,
                _ => &self.tree.join(&path),
            };
            // The marker leads to a name, so the library would get the kernels of another one.
            if *known != archive.from && input::digest(known)? != input::digest(&archive.from)? {
                let text = format!(
                    "{} belongs at `{path}`, where the wheel has an archive with other contents; move one of the libraries to another directory, or pass the ROCm that both came from",
                    shown(&archive.from)
                );
                let library = self.tree.join(library);
                return Err(Error::rejected(ids::NAME_CLASH, &library, text));
            }
            return Ok(());
        }
        let target = archive.target.to_string();
        let open = input::open_archive(&archive.from)?;
        let size = std::fs::metadata(&archive.from)
            .map_err(|e| Error::io(&archive.from, "read", e))?
            .len();
        let checksum = input::digest(&archive.from)?;
        let file = KpackFile::new(&target, name, size, open.kernel_count(), Some(checksum));
        let content = Content::Archive(archive.from);
        self.devices.add(&archive.target, &path, 0o644, content)?;
        let relative = directory.join(archive.group.manifest());
        self.manifests.insert(with_slashes(&relative));
        let manifest = self.tree.join(&relative);
        let mut listed = match input::metadata_of(&manifest)? {
            Some(_) => input::read_manifest(&manifest)?,
            None => Manifest::new(archive.group.to_string(), with_slashes(beside)),
        };
        listed.kpack_files.insert(target, file);
        listed.install_hint = Some(hint.to_owned());
        self.write_manifest(&relative, &listed)
    }

    /// Gives the archives that the manifest at `path` in the unpacked tree lists the names of a group.
    fn rename_listed(&self, path: &Path, group: &Group) -> Result<(), Error> {
        let mut manifest = input::read_manifest(&self.tree.join(path))?;
        for (target, file) in &mut manifest.kpack_files {
            file.filename = group.archive(target);
        }
        self.write_manifest(path, &manifest)
    }

    /// The directory of what has this path in the unpacked tree, which may be missing so far, and its name there.
    fn place<'p>(&self, path: &'p Path) -> Result<(Directory, &'p OsStr), Error> {
        let directory = Path::new(SITE).join(path.parent().unwrap_or(Path::new("")));
        Ok((self.scratch.provide_below(&directory)?, path.file_name().unwrap_or_default()))
    }

    /// Writes a manifest to the unpacked tree, in which it has this path.
    fn write_manifest(&self, path: &Path, manifest: &Manifest) -> Result<(), Error> {
        let (directory, name) = self.place(path)?;
        directory.remove(name)?;
        let shown = self.tree.join(path);
        let file = directory.create_open(name, false).map_err(|e| Error::io(&shown, "write", e))?;
        publish::write_manifest(&shown, &file, &manifest.to_bytes())
    }

    /// A finding about the unpacked tree, as one about the wheel.
    fn of_member(&self, finding: Finding) -> Finding {
        let (severity, id, path) = (finding.severity, finding.id, finding.path.clone());
        let help = finding.help.clone();
        let text = match path {
            Some(path) => {
                let within = path.strip_prefix(&self.tree).unwrap_or(&path);
                finding.reason().in_member(within.display())
            }
            None => finding.reason(),
        };
        let mut of_wheel = Finding::new(severity, id, &self.wheel.path, text);
        of_wheel.help = help;
        of_wheel
    }

    /// Takes the manifests of archives that were in the wheel already, and moved to device wheels.
    fn adopt_manifests(
        &mut self,
        members: &BTreeMap<PathBuf, (SitePackages, usize)>,
    ) -> Result<(), Error> {
        for path in members.keys().filter(|path| is_manifest(path)) {
            let name = with_slashes(path);
            let file = self.tree.join(path);
            if self.manifests.contains(&name) {
                continue;
            }
            let mut manifest = input::read_manifest(&file)?;
            let is_whole = path.ends_with(Group::from(&*manifest.component_name).manifest());
            let mut archives = manifest.kpack_files.values();
            let moved = archives.any(|archive| {
                let archive = path.with_file_name(&archive.filename);
                self.devices.content(&with_slashes(&archive)).is_some()
            });
            if is_whole && moved {
                manifest.install_hint = Some(self.install_hint()?);
                self.write_manifest(path, &manifest)?;
                self.manifests.insert(name);
            }
        }
        Ok(())
    }

    /// How users install the device wheel of a target.
    fn install_hint(&self) -> Result<String, Error> {
        let (project, version) = (self.wheel.required("Name")?, self.wheel.required("Version")?);
        Ok(format!("pip install '{project}[device-{PROCESSOR}]=={version}'"))
    }

    /// Gives each device wheel a fragment of each manifest that lists its archives.
    fn fragments(&mut self) -> Result<(), Error> {
        for path in &self.manifests {
            let manifest = input::read_manifest(&self.tree.join(path))?;
            let group = Group::from(manifest.component_name.as_str());
            for device in self.devices.iter_mut() {
                let is_own = |target: &String| {
                    let target = target.parse().ok();
                    target.is_some_and(|target: TargetId| device.targets.contains(&target))
                };
                let mut fragment = manifest.clone();
                fragment.kpack_files.retain(|target, _| is_own(target));
                if fragment.kpack_files.is_empty() {
                    continue;
                }
                // What the hint says is true for the host wheel's version only.
                fragment.install_hint = None;
                let own = Path::new(path).with_file_name(group.fragment(&device.label));
                device.set(with_slashes(&own), 0o644, Content::Bytes(fragment.to_bytes()));
            }
        }
        Ok(())
    }

    /// Whether the file at a path in `site-packages` is one of the unpacked tree now, and no longer the member of the wheel.
    pub(super) fn is_rewritten(&self, path: &str) -> bool {
        self.split.contains(path) || self.changed.contains(path)
    }

    /// Removes what was unpacked, except the files of device wheels.
    pub(super) fn clean(&self) -> Result<(), Error> {
        for member in &self.wheel.members {
            if let Destination::Site(_, path) = self.wheel.place(member)
                && !matches!(self.devices.content(&with_slashes(&path)), Some(Content::Archive(_)))
            {
                let (directory, name) = self.place(&path)?;
                directory.remove(name)?;
            }
        }
        Ok(())
    }
}

/// The members that are installed in `site-packages`, by their paths there.
fn in_site(wheel: &Wheel) -> BTreeMap<PathBuf, (SitePackages, usize)> {
    let members =
        wheel.members.iter().enumerate().filter_map(|(index, member)| match wheel.place(member) {
            Destination::Site(scheme, path) => Some((path, (scheme, index))),
            Destination::Elsewhere => None,
        });
    members.collect()
}

/// Scripts and data are not installed beside the archives.
fn warn_of_fat_elsewhere(
    wheel: &Wheel,
    elsewhere: &Path,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    if !elsewhere.exists() {
        return Ok(());
    }
    let (databases, parsed) = (&DatabaseSelection::new(Known::None, Vec::new()), Parsed::default());
    let walk = Walk { prefix: elsewhere, databases, parsed, only: Only::All };
    for entry in walk.collect()?.entries {
        if *entry.class == Class::Fat {
            let text = "its device code stays in the host wheel, since it is not installed in site-packages";
            let reason = Reason::from(text).in_member(entry.path.display());
            findings.push(warning(ids::OUTSIDE_SITE_PACKAGES, &wheel.path, reason));
        }
    }
    Ok(())
}

/// Reports what is odd about files of kernel databases.
fn report_observations(
    wheel: &Wheel,
    tree: &Path,
    found: &Tree,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    for observation in &found.observations {
        let path = observation.file().to_string_lossy();
        let (id, text) = (observation.id, observation.clone().reason());
        if id == ids::CONTRADICTORY_TARGET {
            return Err(in_member(id, &wheel.path, &path, text));
        }
        let severity = observation.severity.min(Severity::Warning);
        findings.push(Finding::new(severity, id, &wheel.path, text.in_member(path)));
    }
    for (path, text) in found.lacking() {
        let path = path.strip_prefix(tree).unwrap_or(&path).display();
        let text = Reason::from(text).in_member(path);
        findings.push(warning(ids::INCOMPLETE_DATABASE, &wheel.path, text));
    }
    Ok(())
}
