//! Verifies a manifest against the archives next to it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::{Component, Path, PathBuf};

use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::names::Group;

use super::context::{Context, Demanded, means};
use super::report::VerifyReport;
use crate::input::{Archives, manifest_parts, open, or_refused, read_manifest};
use kpack_core::files::directory_of;
use kpack_core::parallel::lock;
use kpack_core::words::{counted, list};
use kpack_core::{Error, Id, Reason, Severity, ids};

pub(super) fn verify(
    path: &Path,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let manifest = report.accepted(path, read_manifest(path))?;
    let Some(manifest) = manifest else {
        return Ok(());
    };
    let directory = directory_of(path);
    let group = Group::from(manifest.component_name.as_str());
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut check = ManifestCheck {
        context,
        is_part: group.part_of(&file_name).is_some(),
        manifest: &manifest,
        directories: context.surroundings.places(directory),
        faults: Vec::new(),
        notes: Vec::new(),
    };
    if !group.has_manifest(&file_name) {
        check.fault(ids::INCONSISTENT_MANIFEST, format!("the `component_name` is `{group}`"));
    }
    if check.is_part {
        check.agrees_with_whole(&group)?;
    }
    let prefix = context.surroundings.around_file(path).map(|(_, prefix)| prefix);
    let is_at = is_at(path, prefix.as_deref(), &manifest.prefix);
    if let Err(text) = is_at {
        check.fault(ids::INCONSISTENT_MANIFEST, text);
    }
    let listed = check.archives(&group)?;
    if !check.is_part {
        check.lists_all(&group)?;
    }
    if check.faults.is_empty() {
        report.ok(ids::MANIFEST_SOUND, path, listed);
    }
    for (id, text) in check.faults {
        report.fault(id, path, text);
    }
    for text in check.notes {
        report.note(ids::NOT_AS_LISTED, path, text);
    }
    Ok(())
}

struct ManifestCheck<'a> {
    context: &'a Context<'a>,
    /// Whether it is a fragment, which lists only one package's archives.
    is_part: bool,
    manifest: &'a Manifest,
    /// Directories that may contain its archives; its own comes first.
    directories: Vec<PathBuf>,
    faults: Vec<(Id, Reason)>,
    /// Differences of archives whose damage was reported.
    notes: Vec<Reason>,
}

impl ManifestCheck<'_> {
    fn fault(&mut self, id: Id, text: impl Into<Reason>) {
        self.faults.push((id, text.into()));
    }

    /// Checks that the whole manifest agrees with this fragment.
    fn agrees_with_whole(&mut self, group: &Group) -> Result<(), Error> {
        for directory in &self.directories {
            let whole = directory.join(group.manifest());
            let texts = differs_from_whole(&whole, self.manifest)?.into_iter();
            self.faults.extend(texts.map(|text| (ids::INCONSISTENT_MANIFEST, text.into())));
        }
        Ok(())
    }

    /// The targets that the installed fragments list, if the module has fragments.
    fn here(&self, group: &Group) -> Result<BTreeSet<String>, Error> {
        let mut here = BTreeSet::new();
        let there = self.directories.iter().filter(|path| path.is_dir());
        for directory in there.filter(|_| !self.is_part) {
            for (_, part) in manifest_parts(directory, group)? {
                here.extend(part.kpack_files.into_keys());
            }
        }
        Ok(here)
    }

    /// Checks the listed archives. Returns the text to report if they are as listed.
    fn archives(&mut self, group: &Group) -> Result<String, Error> {
        let here = self.here(group)?;
        let options = self.context.options;
        let (mut checked, mut skipped, mut elsewhere) = (0, 0, Vec::new());
        for (target, file) in &self.manifest.kpack_files {
            let name = &file.filename;
            if *target != file.architecture {
                let own = &file.architecture;
                let text = Reason::from(format!("lists {target} with `architecture` {own}"));
                self.fault(ids::INCONSISTENT_MANIFEST, text.target(target).differs(target, own));
            }
            if Path::new(name).file_name() != Some(name.as_ref()) {
                self.fault(
                    ids::INCONSISTENT_MANIFEST,
                    format!("`{name}` for {target} is not a file name"),
                );
                continue;
            }
            if !options.wants(target, self.manifest.kpack_files.keys()) {
                skipped += 1;
                continue;
            }
            let mut places = self.directories.iter().map(|place| place.join(name));
            let archive = places.find(|place| place.exists());
            if !self.is_part {
                let own = self.directories[0].join(name);
                self.context.list(archive.as_deref().unwrap_or(&own), target, archive.is_some());
            }
            let is_elsewhere = !here.is_empty() && !here.contains(target);
            let Some(archive) = archive else {
                if options.targets.is_empty() && is_elsewhere && options.demanded != Demanded::All {
                    elsewhere.push(target.as_str());
                } else {
                    self.fault(
                        ids::MISSING_ARCHIVE,
                        Reason::from(format!("lists `{name}` for {target}, which is missing"))
                            .target(target),
                    );
                }
                continue;
            };
            checked += 1;
            let severity = self.context.severity_of_damage(&archive);
            let differences = not_as_listed(&archive, group, file, &self.context.lookup.archives)?;
            for difference in differences {
                if let Difference::Damaged(_) = difference {
                    lock(&self.context.damaged).extend(archive.canonicalize());
                }
                let text = difference.reason().after(format_args!("`{name}` for {target} "));
                let text = text.target(target);
                match severity {
                    Severity::Fault => self.fault(ids::NOT_AS_LISTED, text),
                    _ => self.notes.push(text),
                }
            }
        }
        let mut text = format!("{} as listed", counted(checked, "archive"));
        if skipped > 0 {
            text += &format!(", {skipped} not asked for");
        }
        if !elsewhere.is_empty() {
            text += &format!("; {} in packages that are not installed", elsewhere.join(", "));
        }
        Ok(text)
    }

    /// Checks that the manifest lists the wanted targets and all archives next to it.
    fn lists_all(&mut self, group: &Group) -> Result<(), Error> {
        let files = &self.manifest.kpack_files;
        for wanted in &self.context.options.targets {
            if !files.keys().any(|target| means(wanted, target)) {
                let there = list(files.keys());
                let text = format!("does not list {wanted}; it lists {there}");
                let reason = Reason::from(text).target(wanted).differs(wanted, there);
                self.fault(ids::MISSING_TARGET, reason);
            }
        }
        let listed: BTreeSet<&str> = files.values().map(|file| &*file.filename).collect();
        for directory in self.directories.iter().filter(|place| place.is_dir()) {
            let failed = |error| Error::io(directory, "list", error);
            for entry in fs::read_dir(directory).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                // Other archives belong to a module whose name starts like this one's.
                if let Some(target) = group.target_of(name)
                    && !listed.contains(name)
                    && self.context.lookup.archives.is_for(&entry.path(), &target)?
                {
                    let text = format!("does not list `{name}`, which is in the same directory");
                    self.faults.push((ids::INCONSISTENT_MANIFEST, text.into()));
                }
            }
        }
        Ok(())
    }
}

/// A difference between an archive and what a manifest says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The archive cannot be read, and why.
    Damaged(Reason),
    /// It is another one, and in what: a verb and what follows.
    Other(Reason),
}

impl Difference {
    /// What to say about the archive: a verb and what follows.
    pub fn reason(self) -> Reason {
        match self {
            Self::Damaged(reason) => reason.after("is damaged: "),
            Self::Other(reason) => reason,
        }
    }
}

/// The differences between the archive at `path` and what the manifest of `group` says of it in `file`.
///
/// # Errors
/// [`Error::Io`].
pub fn not_as_listed(
    path: &Path,
    group: &str,
    file: &KpackFile,
    archives: &Archives,
) -> Result<Vec<Difference>, Error> {
    let differs = |text: String, expected: &dyn Display, found: &dyn Display| {
        Difference::Other(Reason::from(text).differs(expected, found))
    };
    let metadata = open(path)?.metadata();
    let size = metadata.map_err(|e| Error::io(path, "read", e))?.len();
    if size != file.size {
        let expected = file.size;
        let text = format!("has {size} bytes; expected {expected}");
        return Ok(vec![differs(text, &expected, &size)]);
    }
    let mut differences = Vec::new();
    if let Some(expected) = file.checksum
        && archives.digest(path)? != expected
    {
        differences.push(Difference::Other("does not have the listed BLAKE3 digest".into()));
    }
    let toc = match or_refused(archives.toc(path))? {
        Ok(toc) => toc,
        Err(found) => return Ok(vec![Difference::Damaged(found.reason())]),
    };
    let kernels = toc.kernels.values();
    let count: u64 = kernels.map(|targets| targets.len() as u64).sum();
    if count != file.kernel_count {
        let expected = file.kernel_count;
        let text = format!("has {count} kernels; expected {expected}");
        differences.push(differs(text, &expected, &count));
    }
    let found = &toc.gfx_arch_family;
    if *found != file.architecture {
        let text = format!("is an archive for {found}");
        differences.push(differs(text, &file.architecture, found));
    }
    let found = &toc.group_name;
    if found != group {
        differences.push(differs(format!("is an archive of `{found}`"), &group, found));
    }
    Ok(differences)
}

/// How a fragment disagrees with the whole manifest at `path`.
fn differs_from_whole(path: &Path, part: &Manifest) -> Result<Vec<String>, Error> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    // An unreadable manifest is reported on its own.
    let Ok(whole) = or_refused(read_manifest(path))? else {
        return Ok(Vec::new());
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut reasons = Vec::new();
    if whole.prefix != part.prefix {
        let (own, other) = (&part.prefix, &whole.prefix);
        reasons.push(format!("the `prefix` is `{own}`, and `{other}` in `{name}`"));
    }
    for (target, file) in &part.kpack_files {
        match whole.kpack_files.get(target) {
            Some(other) if other == file => {}
            Some(_) => reasons.push(format!("disagrees with `{name}` about {target}")),
            None => reasons.push(format!("lists {target}, which `{name}` does not")),
        }
    }
    Ok(reasons)
}

/// Checks that the manifest's parent directory is at `claimed` in the install prefix at `prefix`, as
/// installed, or ends in `claimed` where the prefix is unknown. A path in the artifact directory would be
/// a path of the build.
fn is_at(manifest: &Path, prefix: Option<&Path>, claimed: &str) -> Result<(), String> {
    let path = Path::new(claimed);
    let real = fs::canonicalize(manifest).unwrap_or_else(|_| manifest.to_owned());
    let holder = real.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let text = match prefix.map(|prefix| (prefix, holder.strip_prefix(prefix))) {
        Some((_, Ok(within))) if within == path => return Ok(()),
        Some((_, Ok(within))) => {
            let within = within.display();
            format!("the `prefix` is `{claimed}`; as installed it is `{within}`")
        }
        Some((prefix, Err(_))) => {
            format!("not in a directory of the install prefix {}", prefix.display())
        }
        None if path.is_absolute() => format!(
            "the `prefix` is the absolute path `{claimed}`; expected a directory in the install prefix"
        ),
        None if path.components().any(|part| part == Component::ParentDir) => {
            format!("the `prefix` `{claimed}` leaves the install prefix")
        }
        None => {
            let parts = path.components();
            let plain: PathBuf = parts.filter(|part| *part != Component::CurDir).collect();
            if holder.ends_with(plain) {
                return Ok(());
            }
            let holder = holder.display();
            format!("the `prefix` is `{claimed}`, but its directory is in `{holder}`")
        }
    };
    Err(text)
}
