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

mod launch;
mod name;
mod options;
mod plan;
mod relocatable;
mod static_library;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::manifest::Manifest;
use kpack_format::marker::Marker;
use object::LittleEndian as LE;

use crate::Error;
use crate::elf::Wrapper;
use crate::input::{self, FileKind, elf_error};
use crate::kpack_dir::{self, KpackDir, Staged, Update};
use crate::report::{ArchiveReport, FileReport, Outcome, Progress, Report};
use crate::split::{Budget, Compression, DeviceCode, compress, padding};
use plan::{Plan, Window};
use relocatable::{FatObject, Found, Relocatable};
use static_library::Member;

pub use launch::launch;
pub(crate) use name::is_object;
pub use options::Options;
pub(crate) use static_library::create;

/// How many bytes stand behind a marker, so that there is room for another one when the binary that
/// the object is linked into is installed.
const ROOM: usize = 256;

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
    Ok(report)
}

/// An object or static library.
struct Input {
    path: PathBuf,
    file: Arc<File>,
    size: u64,
    /// The members of a static library.
    members: Option<Vec<Member>>,
    /// The objects with device code.
    units: Vec<Unit>,
    /// Whether one of its objects is split already.
    split_before: bool,
}

/// An object with device code: a file, or a member of a static library.
struct Unit {
    /// The position of the member.
    member: Option<usize>,
    kernel_name: String,
    code: DeviceCode,
    plan: Plan,
}

impl Input {
    fn read(path: &Path, search_paths: &[String]) -> Result<Self, Error> {
        let file = Arc::new(input::open(path)?);
        let metadata = file.metadata().map_err(|e| Error::io(path, "read", e))?;
        let mut input = Self {
            path: path.to_owned(),
            file,
            size: metadata.len(),
            members: None,
            units: Vec::new(),
            split_before: false,
        };
        let name = input.name();
        match input::identify(path, &input.file)? {
            Some(FileKind::Object) => input.add(None, 0..metadata.len(), &name, search_paths)?,
            Some(FileKind::StaticLibrary) => {
                let members = static_library::members(&input.file);
                let members = members.map_err(|e| elf_error(path, e))?;
                for (index, member) in members.iter().enumerate() {
                    let range = member.offset..member.offset + member.size;
                    let label = format!("{name}/{}", member.name);
                    if !member.is_table() {
                        input.add(Some(index), range, &label, search_paths)?;
                    }
                }
                input.members = Some(members);
            }
            other => return Err(Error::refused(path, expected(&input.file, other))),
        }
        Ok(input)
    }

    /// The file name, which the kernels' names begin with.
    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Plans an object, if it has device code.
    fn add(
        &mut self,
        member: Option<usize>,
        range: Range<u64>,
        label: &str,
        search_paths: &[String],
    ) -> Result<(), Error> {
        let path = self.path.clone();
        let failed = |error| match member {
            None => elf_error(&path, error),
            Some(_) => match elf_error(&path, error) {
                Error::Refused { path, reason } => {
                    Error::refused(&path, format!("member `{label}`: {reason}"))
                }
                error => error,
            },
        };
        let file = self.file.clone();
        let window = Window::new(&file, range.start, range.end - range.start);
        if member.is_some() && !static_library::is_elf(&window).map_err(|e| failed(e.into()))? {
            return Ok(());
        }
        let object = Relocatable::read(window).map_err(failed)?;
        let fat = match object.device_code().map_err(failed)? {
            Found::None => return Ok(()),
            Found::Split => {
                self.split_before = true;
                return Ok(());
            }
            Found::Fat(fat) => fat,
        };
        let code = self.device_code(&object, &fat)?;
        let kernel_name = name::kernel_name(&path, label, &file, code.ranges())?;
        let marker = marker(&kernel_name, search_paths);
        let plan = Plan::new(&object, &fat, &marker).map_err(failed)?;
        self.units.push(Unit {
            member,
            kernel_name,
            code,
            plan,
        });
        Ok(())
    }

    /// The bundles, where they are in the file.
    fn device_code(
        &self,
        object: &Relocatable<Window<'_>>,
        fat: &FatObject,
    ) -> Result<DeviceCode, Error> {
        let base = object.source.start();
        let wrappers: Vec<Wrapper> = fat
            .wrappers
            .iter()
            .map(|wrapper| {
                let mut bundle = wrapper.bundle.clone();
                bundle.bundle_offset += base;
                bundle
            })
            .collect();
        let code = DeviceCode::read(&self.path, self.file.clone(), &wrappers)?;
        for section in &fat.fat_sections {
            let section = &object.sections[*section];
            let start = base + section.sh_offset.get(LE);
            let end = start + section.sh_size.get(LE);
            let within = code
                .ranges()
                .filter(|range| (start..end).contains(&range.start));
            padding::check(&self.path, &self.file, start..end, within)?;
        }
        Ok(code)
    }

    fn report(&self, report: &mut Report) {
        let mut targets: Vec<String> = self
            .units
            .iter()
            .flat_map(|unit| unit.code.targets())
            .map(|target| target.to_string())
            .collect();
        targets.sort();
        targets.dedup();
        let saved = self.units.iter().map(|unit| {
            let member = unit
                .member
                .and_then(|index| self.members.as_ref()?.get(index));
            let before = member.map_or(self.size, |member| member.size);
            before as i64 - unit.plan.size() as i64
        });
        let outcome = match (self.units.is_empty(), self.split_before) {
            (false, _) => Outcome::Split {
                wrappers: self.units.iter().map(|unit| unit.plan.wrappers()).sum(),
                targets,
                size_before: self.size,
                size_after: self.size.saturating_add_signed(-saved.sum::<i64>()),
            },
            (true, true) => Outcome::AlreadySplit,
            (true, false) => Outcome::LeftAlone {
                reason: "no device code".to_owned(),
            },
        };
        if let Outcome::LeftAlone { reason } = &outcome {
            report.note(&self.path, format!("left alone: {reason}"));
        }
        let path = self.name();
        report.files.push(FileReport { path, outcome });
    }

    /// Writes the host-only file beside the one of its name in `directory`.
    fn stage(&self, directory: &Path) -> Result<Staged, Error> {
        let path = directory.join(self.path.file_name().unwrap_or_default());
        let failed = |error| match elf_error(&self.path, error) {
            Error::Io { source, .. } => Error::io(&path, "write", source),
            error => error,
        };
        let (staged, ()) = Staged::write(&path, |output| {
            let whole = Window::new(&self.file, 0, self.size);
            match (&self.members, self.units.as_slice()) {
                (Some(members), _) => {
                    let mut plans: Vec<Option<&Plan>> = members.iter().map(|_| None).collect();
                    for unit in &self.units {
                        if let Some(index) = unit.member {
                            plans[index] = Some(&unit.plan);
                        }
                    }
                    static_library::rewrite(&self.file, members, &plans, output)
                }
                (None, [unit]) => unit.plan.apply(&whole, output, 0),
                (None, _) => plan::copy(&whole, &(0..self.size), output, 0),
            }
            .map_err(failed)?;
            let metadata = self.file.metadata();
            let permissions = metadata
                .map_err(|e| Error::io(&self.path, "read", e))?
                .permissions();
            output
                .set_permissions(permissions)
                .map_err(|e| Error::io(&path, "set the mode of", e))
        })?;
        Ok(staged)
    }
}

/// The marker of an object, with room behind it.
fn marker(kernel_name: &str, search_paths: &[String]) -> Vec<u8> {
    let marker = Marker {
        kernel_name: Some(kernel_name.to_owned()),
        kpack_search_paths: search_paths.to_vec(),
    };
    let mut bytes = marker.to_bytes();
    bytes.resize((bytes.len() + ROOM).next_multiple_of(8), 0);
    bytes
}

/// What a file should have been.
fn expected(file: &File, kind: Option<FileKind>) -> String {
    // The magic of LLVM bitcode, and of its wrapper.
    let mut magic = [0; 4];
    let read = crate::elf::ReadAt::read_exact_at(file, 0, &mut magic);
    if read.is_ok() && (magic == *b"BC\xc0\xde" || magic == [0xde, 0xc0, 0x17, 0x0b]) {
        return "LLVM bitcode, as -flto or -emit-llvm makes it: there is no object yet that could \
                be split. Compile HIP sources without -flto, or link it as it is and split the \
                linked binary (kpack install)"
            .to_owned();
    }
    let what = match kind {
        Some(FileKind::Linked) => {
            "it is linked already; linked binaries are split when they are installed, by `kpack install`"
        }
        _ => "it is something else",
    };
    format!("expected a relocatable object (ELF, ET_REL) or a static library; {what}")
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
