//! Splits a staged application into one directory for the host and one per target. Unpacked into one directory, those that a
//! machine needs are the application as it was staged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_core::finding::Finding;
use kpack_core::publish::Directory;
use kpack_core::words::list_some;
use kpack_core::{DebugInfo, Error, Reason, Severity, ids, shown};
use kpack_format::names::Group;
use kpack_format::{Delivery, TargetId};
use kpack_split::install::{FileReport, InstallOptions, Outcome, install_parsed};
use kpack_split::split::DebugFiles;
use kpack_tree::{Class, Tree};

use super::run_paths::Staged;
use crate::stage::STRIP;
use crate::stage::output_dir::{OutputDir, remove_emptied};

/// What to do about archives of variants that lack code.
const WHOLE: &str = "stage without `--split`, or compile all code for the same targets";

/// Moves the code of fat binaries into archives, where they are staged, with what `debug` says about debug sections. Returns
/// what there is to say, and the paths in the output of the archives that it wrote and of their manifests: libraries that were
/// split before may have code there. The debug files are yet to be published.
///
/// # Errors
/// [`Error::Refused`] for damaged or unsupported files; [`Error::Io`].
pub(super) fn split_binaries(
    staged: &Staged<'_>,
    debug: &DebugInfo,
    debug_files: &DebugFiles,
) -> Result<(Vec<Finding>, BTreeSet<PathBuf>), Error> {
    let (mut findings, mut written) = (Vec::new(), BTreeSet::new());
    let originals = staged.written.originals.iter();
    let originals =
        originals.map(|(path, original)| (staged.root.join(path), Arc::clone(&original.binary)));
    let originals = BTreeMap::from_iter(originals);
    for (module, files) in &staged.plan.fat {
        let mut options = InstallOptions::new(staged.root, module, files);
        options.storage.debug = debug.clone();
        let report = install_parsed(&options, &originals, Some(debug_files), &());
        let report = report.map_err(|error| match error.id() {
            // Nobody chooses the module here.
            id if id == ids::SPLIT_ALREADY => error.about(|Reason { text, details, .. }| {
                let fact = text.split("; ").next().unwrap_or(&text);
                let advice = "to stage it, run `kpack join --arch all` first";
                Reason::new(format!("{fact}; {advice}"), details)
            }),
            _ => error,
        });
        let report = report.map_err(|error| error.with_path(|path| staged.origin(path)));
        let report = report.map_err(|error| staged.shown(error))?;
        let manifest = Group::new(module, &options.component).manifest();
        let mut archives = Vec::new();
        for archive in report.archives.iter().filter(|archive| archive.changed) {
            let path = archive.path.strip_prefix(staged.root).unwrap_or(&archive.path);
            written.extend([path.to_owned(), path.with_file_name(&manifest)]);
            let part = archive.target.parse().map(|target: TargetId| target.plain().to_string());
            archives.extend(part.map(|part| shown(&Path::new(&part).join(path)).to_string()));
        }
        // The code of any other copy without code would be nowhere.
        let lacks_code = |file: &&FileReport| {
            let is_split = matches!(file.outcome, Outcome::Split { .. });
            !is_split && staged.written.originals.contains_key(Path::new(&file.path))
        };
        if let Some(file) = report.files.iter().find(lacks_code) {
            return Err(Error::changed(&staged.origin(&staged.root.join(&file.path))));
        }
        let kpacks = staged.root.join(&options.kpack_dir);
        for mut finding in report.findings {
            // The archives move to the parts.
            let is_of_archives = finding.path.as_ref() == Some(&kpacks);
            finding.path = match is_of_archives {
                true => staged.output.parent().map(Path::to_owned),
                false => finding.path.map(|path| staged.place(&path)),
            };
            finding.text = staged.shown_text(&finding.text);
            if finding.id == ids::INCOMPLETE_VARIANT {
                finding.help = Some(WHOLE.to_owned());
            }
            if is_of_archives && finding.id == ids::DEBUG_INFORMATION {
                finding.text += &format!(" in {}", list_some(&archives, MOST_NAMED));
                finding.help = finding.help.map(|_| STRIP.to_owned());
            }
            findings.push(finding);
        }
    }
    // The last code that was read is checked by this only.
    for original in staged.written.originals.values() {
        original.binary.open()?;
    }
    Ok((findings, written))
}

/// The most files that a note names.
const MOST_NAMED: usize = 3;

/// What to say about files of the host that look as if only some GPUs needed them: kpack cannot tell which do.
pub(super) fn unplaced(tree: &Tree, staged: &Staged<'_>) -> Option<Finding> {
    let files = tree.entries.iter().filter(|entry| match &*entry.class {
        // Otherwise only the name of a program or library looks like that.
        Class::Unknown { target, device_code, .. } => *device_code || target.is_some(),
        _ => false,
    });
    let files = Vec::from_iter(files.map(|entry| entry.path.display()));
    let text = format!(
        "has files that look architecture-specific, but belong to no known kernel database, so every machine gets them: {}",
        list_some(&files, MOST_NAMED)
    );
    let finding = Finding::new(Severity::Note, ids::UNPLACED_FILE, staged.output, text);
    (!files.is_empty()).then_some(finding)
}

/// The parts of an application.
pub(super) struct Parts<'a> {
    /// The directory of all parts.
    output: &'a Directory,
    /// That of the host.
    host: &'a Directory,
    /// By target, the files of its part.
    targets: BTreeMap<TargetId, Part>,
    /// The bytes of the host's part.
    pub(super) host_size: u64,
}

/// The files of a target.
#[derive(Default)]
struct Part {
    /// By path in the application.
    files: Vec<PathBuf>,
    /// Their bytes.
    size: u64,
}

impl<'a> Parts<'a> {
    /// Tells the files of the host from those for targets. All are still in the directory of the host, which `tree` lists.
    ///
    /// # Errors
    /// [`Error::Refused`] for a file whose name and content are for different targets.
    pub(super) fn of(
        tree: &Tree,
        staged: &Staged<'a>,
        output: &'a OutputDir,
    ) -> Result<Self, Error> {
        let mut contradictory = tree.observations.iter();
        if let Some(found) = contradictory.find(|found| found.id == ids::CONTRADICTORY_TARGET) {
            let path = staged.origin(&staged.root.join(found.file()));
            return Err(Error::rejected(found.id, &path, &*found.text));
        }
        let mut targets: BTreeMap<TargetId, Part> = BTreeMap::new();
        let mut host_size = 0;
        for entry in tree.entries.iter().filter(|entry| !entry.is_directory()) {
            match &*entry.class {
                Class::Target { target, .. } => {
                    let part = targets.entry(target.plain()).or_default();
                    part.files.push(entry.path.to_path_buf());
                    part.size += entry.size();
                }
                _ => host_size += entry.size(),
            }
        }
        Ok(Self { output: &output.tree, host: staged.tree, targets, host_size })
    }

    /// The parts by name, with their sizes.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (String, u64)> {
        self.targets.iter().map(|(target, part)| (target.to_string(), part.size))
    }

    /// The targets whose parts a machine with this GPU needs, apart from the host's.
    pub(super) fn needed_by(&self, gpu: &TargetId) -> Vec<&TargetId> {
        let targets = self.targets.keys();
        targets.filter(|target| gpu.needs(target, Delivery::Archive)).collect()
    }

    /// The bytes of these parts, with the host's.
    pub(super) fn size_of(&self, targets: &[&TargetId]) -> u64 {
        let sizes = targets.iter().map(|target| self.targets[target].size);
        self.host_size + sizes.sum::<u64>()
    }

    /// Where a file of the application will be: its part, and its path in there.
    pub(super) fn places(&self) -> BTreeMap<&Path, String> {
        let parts = self.targets.iter();
        let places = parts.flat_map(|(target, part)| {
            part.files.iter().map(move |file| (file.as_path(), target.to_string()))
        });
        places.collect()
    }

    /// Calls `check` with nothing in the directory of the host but what a machine with the GPU has.
    ///
    /// # Errors
    /// Those of `check`; [`Error::Io`].
    pub(super) fn with(
        &self,
        gpu: &TargetId,
        check: impl FnOnce() -> Result<Vec<Finding>, Error>,
    ) -> Result<Vec<Finding>, Error> {
        let needed = self.needed_by(gpu);
        self.take_in(&needed)?;
        let mut checked = check().map_err(|error| match error.id() {
            id if id == ids::RUNTIME_IGNORES_MARKERS => error.about(|reason| {
                reason.then("; stage it without `--split`, or with ROCm 7.13 or newer")
            }),
            _ => error,
        })?;
        self.take_out(&needed)?;
        for note in checked.iter_mut().filter(|found| found.id == ids::NEWER_ROCM_NEEDED) {
            note.help = Some("for an older ROCm, stage without `--split`".to_owned());
        }
        Ok(checked)
    }

    /// Moves all parts from the directory of the host into their own.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn take_all_out(&self) -> Result<(), Error> {
        self.take_out(&Vec::from_iter(self.targets.keys()))
    }

    fn take_out(&self, targets: &[&TargetId]) -> Result<(), Error> {
        for target in targets {
            let files = &self.targets[target].files;
            let own = self.output.provide_below(target.to_string().as_ref())?;
            rename_all(files, self.host, &own)?;
            remove_emptied(self.host, files);
        }
        Ok(())
    }

    fn take_in(&self, targets: &[&TargetId]) -> Result<(), Error> {
        for target in targets {
            let own = self.output.below(target.to_string().as_ref())?;
            rename_all(&self.targets[target].files, &own, self.host)?;
        }
        Ok(())
    }
}

/// Renames files from one directory into another, below which they keep their paths.
fn rename_all(files: &[PathBuf], from: &Directory, to: &Directory) -> Result<(), Error> {
    // Most have the directory of the one before.
    let mut last: Option<(&Path, Directory, Directory)> = None;
    for file in files {
        let parent = file.parent().unwrap_or(Path::new(""));
        let name = file.file_name().unwrap_or_default();
        let (_, from, to) = match last.take() {
            Some(known) if known.0 == parent => last.insert(known),
            _ => last.insert((parent, from.below(parent)?, to.provide_below(parent)?)),
        };
        let renamed = from.rename_into(name, to, name);
        renamed.map_err(|error| Error::io(&from.path().join(name), "move", error))?;
    }
    Ok(())
}
