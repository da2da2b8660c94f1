//! Collects the files of a release.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::manifest::Manifest;
use kpack_format::marker::Marker;
use kpack_format::names::Group;

use super::messages::BuiltBinary;
use super::options::Options;
use super::output_dir::OutputDir;
use super::{STRIP, module_of};
use kpack_core::files::open;
use kpack_core::publish::{Directory, StagedFile, Transaction, Update};
use kpack_core::report::{ArchiveReport, FileReport, Outcome, Report};
use kpack_core::{Error, Storage, ids};
use kpack_split::input::Lookup;
use kpack_split::install::{HostPlan, InstallOptions, install_parsed};
use kpack_split::split::{
    self, BinaryKind, DebugFiles, DebugTotals, Presplit, Spirv, Treatment, code_ids,
};

/// The directory of the archives in the staged directory.
const KPACK_DIR: &str = "lib/.kpack";

/// Archives in progress, by module, component and target.
type Writers = BTreeMap<(Group, TargetId), ArchiveWriter<File>>;

/// The directory of a staged binary, and its name there.
type To<'a> = (Arc<Directory>, &'a OsStr);

/// A release in progress.
pub(super) struct Release<'a> {
    output: &'a OutputDir,
    archives: Writers,
    /// How archives are stored.
    storage: Storage,
    debug: DebugTotals,
    debug_files: DebugFiles,
    /// Finds the archives in the build tree.
    lookup: Lookup,
    /// Whether device code in binaries stays there.
    embed: bool,
    /// The names in the release of binaries to split there, by module.
    fat: BTreeMap<String, Vec<String>>,
    report: Report,
}

impl<'a> Release<'a> {
    pub(super) fn begin(output: &'a OutputDir, options: &Options) -> Self {
        let debug_files = DebugFiles::new(&options.debug, true);
        let mut storage = Storage::zstd();
        storage.debug = options.debug.clone();
        storage.spirv = options.spirv;
        Self {
            output,
            archives: Writers::new(),
            storage,
            debug: DebugTotals::default(),
            debug_files,
            lookup: Lookup::default(),
            embed: options.embed,
            fat: BTreeMap::new(),
            report: Report::default(),
        }
    }

    /// Copies a binary, and adds its code objects to the archives of their modules.
    pub(super) fn add(&mut self, binary: &BuiltBinary) -> Result<(), Error> {
        let file_name = binary.path.file_name().unwrap_or_default();
        let name = format!("{}/{}", binary.directory, file_name.display());
        let directory = self.output.tree.provide_below(binary.directory.as_ref())?;
        let to = (Arc::new(directory), file_name);
        if to.0.has(file_name)? {
            return Err(Error::rejected(
                ids::NAME_CLASH,
                &binary.path,
                format!(
                    "the build has another binary named `{name}`; they cannot be staged \
                     together"
                ),
            ));
        }
        let (linked, reason) = match split::read(&binary.path, Some(Spirv::Keep))? {
            BinaryKind::Kept(file)
                if !self.embed && file.is_for_windows() && self.storage.spirv != Spirv::Keep =>
            {
                return self.split_later(binary, name, &to);
            }
            // Modules, objects for Windows, and static libraries that kpack-build has not made are not split before the
            // link. What else is in the binary goes into the archives of the same module.
            BinaryKind::Fat(..) if !self.embed => return self.split_later(binary, name, &to),
            BinaryKind::Fat(_, linked) => (Some(linked), "a fat binary".to_owned()),
            BinaryKind::Split(linked) => (Some(linked), "already split".to_owned()),
            BinaryKind::Kept(file) => {
                let reason = file.code.note().unwrap_or_default();
                self.report.note(ids::SPIRV_KEPT, &binary.path, reason.clone());
                (None, reason)
            }
            BinaryKind::LeftAlone(_, reason) => (None, reason),
        };
        let presplit = linked.map(|linked| Presplit::read(linked, true, &self.lookup));
        let outcome = match presplit.transpose()?.flatten() {
            Some(presplit) => self.place(&presplit, &name, binary.directory, &to)?,
            None => {
                copy(&binary.path, &to)?;
                Outcome::LeftAlone { reason }
            }
        };
        let path = name;
        self.report.files.push(FileReport::new(path, outcome));
        Ok(())
    }

    /// Copies a binary, to be split with the others of its module.
    fn split_later(
        &mut self,
        binary: &BuiltBinary,
        name: String,
        to: &To<'_>,
    ) -> Result<(), Error> {
        copy(&binary.path, to)?;
        let module = module_of(&binary.path);
        self.fat.entry(module).or_default().push(name);
        Ok(())
    }

    /// Copies the code objects of a binary, and the binary with markers that refer to them.
    fn place(
        &mut self,
        presplit: &Presplit,
        name: &str,
        directory: &str,
        to: &To<'_>,
    ) -> Result<Outcome, Error> {
        let hidden = &self.output.hidden;
        let archives = &mut self.archives;
        let storage = &self.storage;
        let treatment = Treatment {
            storage,
            scratch: hidden,
            totals: &self.debug,
            debug_files: &self.debug_files,
        };
        presplit.collect(name, &|_| true, &treatment, &mut |group, target, fill| {
            let key = (group.clone(), target.clone());
            fill(storage.archive(archives, key, (group, target), hidden)?)
        })?;
        let written = &self.archives;
        let marker_of = |group: &Group| {
            let own = written
                .iter()
                .filter(|((of, _), _)| of == group)
                .map(|((_, target), archive)| (target, archive));
            marker(name, directory, group).with_code_ids(code_ids::computed(own, name))
        };
        let edits = HostPlan::Edited(presplit.edits(&marker_of)?);
        let (staged, ()) = StagedFile::write_in(Arc::clone(&to.0), to.1, |staged| {
            edits.write(&hidden.join(name), presplit.file(), staged.file())?;
            staged.keep_mode(presplit.file())
        })?;
        staged.commit()?;
        let targets = presplit.targets().into_iter();
        Ok(Outcome::Relocated {
            wrappers: presplit.wrapper_count(),
            targets: targets.map(|target| target.to_string()).collect(),
        })
    }

    /// Writes the archives, and a manifest for each module. Debug files are yet to be published.
    pub(super) fn finish(self) -> Result<(Report, DebugFiles), Error> {
        let Self { output, archives, mut report, storage, debug, debug_files, fat, embed, .. } =
            self;
        report.findings.extend(debug.findings(&storage.debug, &output.path));
        let mut groups: BTreeMap<Group, BTreeMap<TargetId, ArchiveWriter<File>>> = BTreeMap::new();
        for ((group, target), archive) in archives {
            groups.entry(group).or_default().insert(target, archive);
        }
        if groups.is_empty() && fat.is_empty() && !embed {
            let binaries = Vec::from_iter(report.files.iter().map(|file| file.path.as_str()));
            report.warn(
                ids::NO_DEVICE_CODE,
                &output.path,
                format!(
                    "the release has no archives: `kpack stage` moves no device code of {}",
                    binaries.join(", ")
                ),
            );
        }
        let root = &output.tree;
        for (group, archives) in groups {
            let mut transaction = Transaction::begin(root, Path::new(KPACK_DIR), &group)?;
            let mut manifest = Manifest::new(group, "lib");
            let update =
                Update { replaces: &|_, _| true, touches: &|_| true, only_computed: false };
            transaction.archives(&update, archives, &mut manifest)?;
            transaction.manifest(&manifest)?;
            transaction.commit(&mut report)?;
        }
        for (module, names) in fat {
            let mut options = InstallOptions::new(&output.hidden, module, names);
            options.storage = storage.clone();
            install(&options, output, &debug_files, &mut report)?;
        }
        // The device code of a fat binary may join an archive that this run has just written.
        let mut written: BTreeMap<PathBuf, ArchiveReport> = BTreeMap::new();
        for mut archive in report.archives {
            let name = archive.path.file_name().unwrap_or_default();
            archive.path = output.path.join(KPACK_DIR).join(name);
            written.insert(archive.path.clone(), archive);
        }
        report.archives = written.into_values().collect();
        for finding in report.findings.iter_mut().filter(|own| own.id == ids::DEBUG_INFORMATION) {
            finding.help = finding.help.take().map(|_| STRIP.to_owned());
        }
        Ok((report, debug_files))
    }
}

/// Splits the binaries of a module in the release.
fn install(
    options: &InstallOptions,
    output: &OutputDir,
    debug_files: &DebugFiles,
    report: &mut Report,
) -> Result<(), Error> {
    let own = install_parsed(options, &BTreeMap::new(), Some(debug_files), &())
        .map_err(|error| error.with_path(|path| output.shown(path)))?;
    report.files.extend(own.files);
    report.archives.extend(own.archives);
    for mut finding in own.findings {
        finding.path = finding.path.map(|path| output.shown(&path));
        report.findings.push(finding);
    }
    Ok(())
}

/// The marker of a staged binary for one module's kernels.
fn marker(name: &str, directory: &str, group: &Group) -> Marker {
    let kpacks = match directory {
        "lib" => ".kpack",
        _ => "../lib/.kpack",
    };
    Marker::new(name, vec![format!("{kpacks}/{}", group.archive_pattern())])
}

/// Copies a file, with its mode.
fn copy(from: &Path, (directory, name): &To<'_>) -> Result<(), Error> {
    let input = open(from)?;
    let staged = StagedFile::copy_in(Arc::clone(directory), name, (from, &input), |_| Ok(()))?;
    staged.commit().map(drop)
}
