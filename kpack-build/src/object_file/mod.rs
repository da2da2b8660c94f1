//! Relocatable objects and static libraries, split before they are linked.
//!
//! Nothing in an object has a fixed address yet: the bundles are in a section of their own
//! (`.hip_fatbin`), and one relocation per wrapper points to it. Splitting replaces that section
//! with a small one that holds the marker, and changes the wrapper's magic. Any linker then makes a
//! host-only binary, without ever seeing device code. Everything else in the object stays byte for
//! byte; what follows the device code moves up in the file.
//!
//! Each object has its own marker. Its kernels are named `<file name>@<digest>#<index>`, where the
//! digest is of the object's device code.
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
pub(crate) mod launch;
mod layout;
mod options;
mod plan;
mod relocatable;
pub(crate) mod resize;
mod static_library;
mod symbols;
pub(crate) mod unlinked;
mod window;
mod wrappers;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::manifest::Manifest;
use kpack_format::names::{Group, KernelName, ObjectName};

use kpack_core::Error;
use kpack_core::parallel;

pub(crate) use examine::is_bitcode;
use input::ObjectInput;
use kpack_core::archives::{
    Budget, CompressedArchives, Compression, DebugFiles, DebugInfo, PackedCode, compress,
};
use kpack_core::publish::{Batch, CreatedDirectories, Directory, Transaction, Update, stem_of};
use kpack_core::report::{Progress, Report};

pub use launch::launch;
pub use options::Options;

/// Splits objects and static libraries. Host-only files of the same names go to
/// [`Options::output_dir`], archives and manifest to `.kpack` in it. Files without device code and
/// files already split are copied, so the directory holds everything to link.
///
/// # Errors
/// [`Error::Usage`] for invalid options; [`Error::Refused`] for input that is damaged or cannot be
/// split before the link; [`Error::Io`]. On failure the output directory is unchanged, unless
/// replacing its files failed half-way.
pub fn split(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    options.validate()?;
    parallel::with_jobs(options.storage.jobs, || split_all(options, progress))
}

fn split_all(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let group = Group::new(&options.module, &options.component);
    let search_paths = options.search_paths(&group);
    let mut files = Vec::new();
    for path in &options.files {
        files.push(ObjectInput::read(path, &search_paths, options.storage.spirv)?);
    }

    let output = &options.output_dir;
    let mut made = CreatedDirectories::default();
    let mut directory = Directory::make(output, &mut made)?;
    if !options.flushes {
        directory = directory.without_flushes();
    }
    let sources: Vec<(String, &PackedCode)> = files
        .iter()
        .flat_map(|file| &file.units)
        .map(|unit| (unit.kernel_name.clone(), &unit.code))
        .collect();
    let sizes = sources.iter().map(|(_, code)| code.device_size(&|_| true));
    progress.start(sizes.fold(0, u64::saturating_add));
    let debug_files = DebugFiles::new(&options.storage.debug, options.flushes);
    let compression = Compression {
        group: &group,
        storage: options.storage.clone(),
        scratch: output,
        budget: &Budget::default(),
        flushes: options.flushes,
        debug_files: &debug_files,
    };
    let CompressedArchives { archives, debug } =
        compress(&sources, &|_| true, &compression, progress)?;
    for file in &mut files {
        file.set_code_ids(&archives)?;
    }

    let mut report = Report::default();
    // Whoever compiles with `-g` wants it where it is built.
    if options.storage.debug != DebugInfo::Keep {
        report.findings.extend(debug.findings(&options.storage.debug, &output.join(KPACKS)));
    }
    for file in &files {
        file.report(&mut report);
    }
    let debug_files = debug_files.into_batch();
    apply((directory, debug_files), &group, &files, archives, &mut report)?;
    Ok(report)
}

/// Name of the archives' directory in the output directory.
const KPACKS: &str = ".kpack";

/// Writes archives, manifest and host-only files to the output directory, and debug files elsewhere.
fn apply(
    (output, debug_files): (Directory, Option<Batch>),
    group: &Group,
    files: &[ObjectInput],
    archives: BTreeMap<TargetId, ArchiveWriter<File>>,
    report: &mut Report,
) -> Result<(), Error> {
    let names: Vec<String> = files.iter().map(ObjectInput::name).collect();
    let mut transaction = Transaction::begin(&output, Path::new(KPACKS), group)?;
    let mut manifest = Manifest::new(group.to_string(), "");
    if let Some(old) = transaction.directory().manifest()? {
        manifest.kpack_files = old.kpack_files;
    }
    // The kernels of files that are already split are unknown here, so they stay.
    let again: Vec<&String> = names
        .iter()
        .zip(files)
        .filter(|(_, file)| !file.split_before)
        .map(|(name, _)| name)
        .collect();
    let replaces = |_: &TargetId, kernel: &str| {
        let object = ObjectName::parse(KernelName::parse(kernel).binary);
        object.is_some_and(|object| again.iter().any(|name| *name == object.file()))
    };
    let update = Update { replaces: &replaces, touches: &|_| true, only_computed: false };
    transaction.archives(&update, archives, &mut manifest)?;
    transaction.manifest(&manifest)?;
    output.remove_leftovers(&|stem| names.iter().any(|name| stem_of(name.as_ref()) == stem))?;
    let output = Arc::new(output);
    for file in files {
        transaction.host(file.stage(&output)?);
    }
    transaction.beside(debug_files);
    transaction.commit(report)?;
    if manifest.kpack_files.is_empty() {
        output.remove_empty(KPACKS.as_ref());
    }
    Ok(())
}
