//! The binaries of a run, each read once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use kpack_format::TargetId;

use super::options::InstallOptions;
use crate::elf::BinaryError;
use crate::host::Image;
use crate::input::{self, ClosedBinary, LinkedBinary, LocatedBinary, Lookup, MarkerGroup, Prefix};
use crate::report::Report;
use crate::split::{self, BinaryKind, FatFile, Presplit, Spirv};
use crate::{Error, ids};
use kpack_core::Id;
use kpack_core::files::with_slashes;

/// A binary and its device code.
pub(super) struct InstallBinary {
    pub(super) located: LocatedBinary,
    pub(super) content: BinaryContent,
    /// The archives of its objects that were split before the link, if not installed yet.
    pub(super) presplit: Option<Presplit>,
    /// The targets of bundles with SPIR-V that stay in it, if nothing of it is moved.
    pub(super) stays: BTreeSet<TargetId>,
    /// Says that it has bundles in its data beside the code that is split off.
    pub(super) in_data: Option<String>,
    /// The images for other offloading runtimes, which stay.
    pub(super) offload_note: Option<String>,
}

/// What a binary is, apart from objects that were split before the link.
pub(super) enum BinaryContent {
    /// It contains device code.
    Fat(FatFile),
    /// It is already split; these are its markers.
    Split(Vec<MarkerGroup>),
    /// It stays unchanged; the text says why.
    LeftAlone(Id, String),
}

impl InstallBinary {
    /// `kind` is of the binary, or of another file with its device code.
    fn new(located: LocatedBinary, kind: BinaryKind, lookup: &Lookup) -> Result<Self, Error> {
        let mut stays = BTreeSet::new();
        let (mut in_data, mut offload_note) = (None, None);
        let (content, presplit) = match kind {
            BinaryKind::Fat(file, linked) => {
                in_data = linked.bundles_in_data()?;
                offload_note = linked.offload_note()?;
                let presplit = Presplit::read(linked, false, lookup)?;
                (BinaryContent::Fat(*file), presplit)
            }
            BinaryKind::Split(linked) => {
                if let Some(fat) = &linked.kept {
                    let targets = linked.targets(fat, &|_| true)?;
                    stays.extend(targets.iter().filter_map(|target| target.parse().ok()));
                }
                let markers = linked.markers()?;
                let presplit = Presplit::read(linked, false, lookup)?;
                (BinaryContent::Split(markers), presplit)
            }
            BinaryKind::Kept(file) => {
                stays = file.elsewhere();
                let reason = file.code.note().unwrap_or_default();
                (BinaryContent::LeftAlone(ids::UNCHANGED, reason), None)
            }
            BinaryKind::LeftAlone(id, reason) => (BinaryContent::LeftAlone(id, reason), None),
        };
        Ok(Self { located, content, presplit, stays, in_data, offload_note })
    }

    /// Whether an earlier run split it, so that nothing is left to do.
    pub(super) fn is_split(&self) -> bool {
        matches!(self.content, BinaryContent::Split(_)) && self.presplit.is_none()
    }

    /// Whether another tool split it, such as ROCm's.
    pub(super) fn is_of_other_tool(&self) -> bool {
        let is_split = self.is_split();
        let BinaryContent::Split(markers) = &self.content else {
            return false;
        };
        is_split && markers.iter().any(MarkerGroup::is_of_other_tool)
    }

    pub(super) fn has_device_code(&self) -> bool {
        self.fat().is_some() || self.presplit.is_some()
    }

    /// The targets of its device code.
    pub(super) fn targets(&self) -> BTreeSet<TargetId> {
        let placed = self.presplit.as_ref().map(Presplit::targets);
        let split = self.fat().map(|fat| fat.code.targets());
        placed.into_iter().chain(split).flatten().collect()
    }

    /// The targets whose code of a joined binary is in archives alone.
    pub(super) fn elsewhere(&self) -> BTreeSet<TargetId> {
        self.fat().map(FatFile::elsewhere).unwrap_or_default()
    }

    pub(super) fn fat(&self) -> Option<&FatFile> {
        match &self.content {
            BinaryContent::Fat(file) => Some(file),
            _ => None,
        }
    }
}

/// Reads each file once.
pub(super) fn read(
    prefix: &Prefix,
    options: &InstallOptions,
    parsed: &BTreeMap<PathBuf, Arc<ClosedBinary>>,
    lookup: &Lookup,
    report: &mut Report,
) -> Result<Vec<InstallBinary>, Error> {
    if options.all {
        return all_binaries(prefix, options.storage.spirv, lookup, report);
    }
    let mut binaries: Vec<InstallBinary> = Vec::new();
    for (index, file) in options.files.iter().enumerate() {
        let source = options.sources.get(index);
        let located = match source {
            Some(_) => prefix.absent_binary(file)?,
            None => prefix.binary(file)?,
        };
        if located.name != with_slashes(file) && !file.is_absolute() {
            report.note(
                ids::RESOLVED_ELSEWHERE,
                file,
                format!("resolves to {} in the prefix", located.name),
            );
        }
        if binaries.iter().any(|known| known.located == located) {
            continue;
        }
        let path = source.unwrap_or(&located.path);
        let spirv = Some(options.storage.spirv);
        let input = match parsed.get(path) {
            Some(closed) => split::of(closed.open()?, spirv)?,
            None => split::read(path, spirv)?,
        };
        binaries.push(InstallBinary::new(located, input, lookup)?);
    }
    Ok(binaries)
}

/// Reads the linked files in the prefix and keeps those with device code, and split ones. Skips files without device
/// code whose headers are damaged or for another machine. Device code that cannot be read is an error:
/// without it, the binary would not work. So is a truncated file.
fn all_binaries(
    prefix: &Prefix,
    spirv: Spirv,
    lookup: &Lookup,
    report: &mut Report,
) -> Result<Vec<InstallBinary>, Error> {
    let root = prefix.root().path();
    let mut binaries = Vec::new();
    for found in prefix.linked_files() {
        let (path, file) = found?;
        let image = match Image::read(file) {
            Ok(image) => image,
            // What it has lost may be device code.
            Err(error @ BinaryError::Truncated(_)) => {
                return Err(input::binary_error(&path, error));
            }
            Err(error) => match input::binary_error(&path, error) {
                Error::Refused { id, path, reason, .. }
                    if !input::has_bundle(&path, &input::open(&path)?)? =>
                {
                    report.warn(id, path, format!("skipped: {reason}"));
                    continue;
                }
                error => return Err(error),
            },
        };
        let input = split::of(LinkedBinary::of(&path, image)?, Some(spirv))?;
        let is_kept = matches!(input, BinaryKind::Kept(_));
        let binary = InstallBinary::new(prefix.binary(&path)?, input, lookup)?;
        if binary.has_device_code() || binary.is_split() || is_kept {
            binaries.push(binary);
        }
    }
    if binaries.iter().all(InstallBinary::is_split) && report.findings.is_empty() {
        report.note(ids::NO_DEVICE_CODE, root, "contains no unsplit binary with device code");
    }
    Ok(binaries)
}
