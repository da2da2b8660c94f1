//! Relocatable objects and static libraries, split before they are linked.
//!
//! In an object nothing has a fixed place yet: the bundles are in a section of their own
//! (`.hip_fatbin`), and one relocation of the wrapper leads there. So the section is replaced by a
//! small one with the marker, the wrapper's magic is changed, and every linker makes a host binary of
//! it without ever seeing device code. What stays in the object stays byte for byte; what follows
//! the device code moves up in the file.
//!
//! Each object has a marker of its own; its kernels are called `<file name>@<digest>#<index>`, with
//! a digest of the object's device code.
//!
//! ```no_run
//! use kpack_build::object_file::{Options, split};
//!
//! # fn main() -> Result<(), kpack_build::Error> {
//! // host/add.o, and host/.kpack/vec_lib_gfx1100.kpack
//! split(&Options::new("vec", "host", ["build/add.o"]), &())?;
//! # Ok(()) }
//! ```

mod arguments;
mod examine;
mod input;
mod launch;
mod name;
mod options;
mod plan;
mod relocatable;
mod static_library;
mod symbols;
mod window;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::manifest::Manifest;

use crate::Error;
use crate::kpack_dir::{self, KpackDir, Update};
use crate::report::{ArchiveReport, Progress, Report};
use crate::split::{Budget, Compression, DeviceCode, compress};
use input::Input;

pub use launch::{launch, launch_watched};
pub use name::is_object;
pub use options::Options;
pub(crate) use static_library::create;

/// Splits objects and static libraries: host-only files of the same names into
/// [`Options::output_dir`], archives and manifest into `.kpack` in it. A file without device code,
/// or one that is split already, is copied, so that the directory has everything to link.
///
/// # Errors
/// [`Error::Usage`] for options that make no sense, [`Error::Refused`] for input that is damaged or
/// cannot be split before the link, [`Error::Io`]. Nothing in the output directory has changed then,
/// but where replacing files failed half-way.
pub fn split(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    options.validate()?;
    let group = kpack_dir::group_name(&options.module, &options.component);
    let search_paths = options.search_paths(&group);
    let mut files = Vec::new();
    for path in &options.files {
        files.push(Input::read(path, &search_paths)?);
    }

    let output = &options.output_dir;
    let made = Made::new(&output.join(".kpack"));
    fs::create_dir_all(output).map_err(|e| Error::io(output, "create directory", e))?;
    let sources: Vec<(String, &DeviceCode)> = files
        .iter()
        .flat_map(|file| &file.units)
        .map(|unit| (unit.kernel_name.clone(), &unit.code))
        .collect();
    let sizes = sources.iter().map(|(_, code)| code.device_size(&|_| true));
    progress.start(sizes.fold(0, u64::saturating_add));
    let compression = Compression {
        group: &group,
        scheme: options.scheme,
        level: options.level,
        jobs: options.jobs,
        scratch: output,
        budget: &Budget::default(),
    };
    let archives = compress(&sources, &|_| true, &compression, progress)?;

    let mut report = Report::default();
    for file in &files {
        file.report(&mut report);
    }
    apply(options, &group, &files, archives, &mut report)?;
    made.stays();
    Ok(report)
}

/// The directories that a run makes; where it fails, they go again.
struct Made {
    /// The deepest first.
    missing: Vec<PathBuf>,
}

impl Made {
    fn new(path: &Path) -> Self {
        let missing = path
            .ancestors()
            .take_while(|directory| !directory.as_os_str().is_empty() && !directory.exists());
        Self {
            missing: missing.map(Path::to_owned).collect(),
        }
    }

    fn stays(mut self) {
        self.missing.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for directory in &self.missing {
            // Only where it is empty.
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Archives, manifest and host-only files into the output directory: everything under hidden names
/// first, then renamed.
fn apply(
    options: &Options,
    group: &str,
    files: &[Input],
    archives: BTreeMap<TargetId, ArchiveWriter<File>>,
    report: &mut Report,
) -> Result<(), Error> {
    let names: Vec<String> = files.iter().map(Input::name).collect();
    let directory = KpackDir::lock(&options.output_dir.join(".kpack"), group.to_owned())?;
    let mut manifest = Manifest {
        component_name: group.to_owned(),
        prefix: String::new(),
        kpack_files: directory
            .manifest()?
            .map(|old| old.kpack_files)
            .unwrap_or_default(),
    };
    // Files that are split already say nothing about their kernels: these stay.
    let again: Vec<&String> = names
        .iter()
        .zip(files)
        .filter(|(_, file)| !file.split_before)
        .map(|(name, _)| name)
        .collect();
    let replaces = |kernel: &str| {
        let file = name::file_of(kernel);
        file.is_some_and(|file| again.iter().any(|name| *name == file))
    };
    let update = Update {
        directory: &directory,
        replaces: &replaces,
        touches: &|_| true,
        only_computed: false,
        jobs: options.jobs,
    };
    let updated = update.stage(archives, &mut manifest)?;
    let mut staged_archives = Vec::new();
    for (target, written, staged) in updated.archives {
        let name = directory.archive_name(&target);
        let entry = kpack_dir::entry(&target, name, &written);
        manifest.kpack_files.insert(target.to_string(), entry);
        let Some(staged) = staged else { continue };
        let line = ArchiveReport::written(staged.path(), &target, &written);
        staged_archives.push((staged, line));
    }
    let staged_manifest = match manifest.kpack_files.is_empty() {
        true => None,
        false => Some(directory.stage_manifest(&manifest)?),
    };
    let mut staged_files = Vec::new();
    for file in files {
        staged_files.push(file.stage(&options.output_dir)?);
    }

    for (staged, mut line) in staged_archives {
        line.changed = staged.commit()?;
        report.archives.push(line);
    }
    report.archives.sort_by(|a, b| a.target.cmp(&b.target));
    match staged_manifest {
        Some(manifest) => {
            manifest.commit()?;
        }
        None => directory.remove_manifest()?,
    }
    for path in updated.emptied {
        kpack_dir::remove(&path)?;
        report.removed.push(path);
    }
    directory.sync()?;
    if manifest.kpack_files.is_empty() {
        // Only where it is empty.
        let _ = fs::remove_dir(directory.path());
    }
    for staged in staged_files {
        staged.commit()?;
    }
    Ok(())
}
