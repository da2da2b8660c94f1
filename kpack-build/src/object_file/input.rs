//! Input objects and static libraries, and how each will be split.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kpack_core::platform::FileExt;
use kpack_format::TargetId;
use kpack_format::archive::ArchiveWriter;
use kpack_format::digest::Hasher;
use kpack_format::marker::Marker;
use kpack_format::names::ObjectName;
use object::LittleEndian as LE;

use super::examine;
use super::plan::ObjectPlan;
use super::relocatable::Relocatable;
use super::static_library::{Member, StaticLibrary};
use super::window::Window;
use super::wrappers::{DeviceContent, FatObject};
use kpack_core::archives::{PackedCode, Spirv, code_ids, padding};
use kpack_core::elf::{BinaryError, Wrapper};
use kpack_core::files::{self, FileKind, binary_error};
use kpack_core::publish::{Directory, StagedFile};
use kpack_core::report::{FileReport, Outcome, Report};
use kpack_core::{Error, ids};

/// Note for an object whose bundles no wrapper points to.
const WITHOUT_WRAPPERS: &str = "`.hip_fatbin` without wrappers: the program loads its device \
                                code by other means, so it stays in place";

/// An object or static library.
pub(super) struct ObjectInput {
    path: PathBuf,
    file: Arc<File>,
    size: u64,
    static_library: Option<StaticLibrary>,
    /// The objects with device code.
    pub(super) units: Vec<Unit>,
    /// Whether at least one of its objects is already split.
    pub(super) split_before: bool,
    /// The objects whose bundles no wrapper points to: a member name, or `None` for the file
    /// itself.
    without_wrappers: Vec<Option<String>>,
    /// The objects that stay whole because of their SPIR-V: a member name, or `None` for the file itself,
    /// and a note.
    with_spirv: Vec<(Option<String>, String)>,
}

/// An object with device code: a file or a static library member.
pub(super) struct Unit {
    /// Index of a member of the static library.
    member: Option<usize>,
    pub(super) kernel_name: String,
    pub(super) code: PackedCode,
    marker: Marker,
    plan: ObjectPlan,
}

impl ObjectInput {
    pub(super) fn read(path: &Path, search_paths: &[String], spirv: Spirv) -> Result<Self, Error> {
        let file = Arc::new(files::open(path)?);
        let metadata = file.metadata().map_err(|e| Error::io(path, "read", e))?;
        let mut input = Self {
            path: path.to_owned(),
            file,
            size: metadata.len(),
            static_library: None,
            units: Vec::new(),
            split_before: false,
            without_wrappers: Vec::new(),
            with_spirv: Vec::new(),
        };
        let kind = files::identify(path, &input.file)?;
        if kind == Some(FileKind::StaticLibrary) {
            let library = StaticLibrary::read(&input.file);
            let library = library.map_err(|e| binary_error(path, e))?;
            for member in library.members.iter().enumerate() {
                input.add(Some(member), search_paths, spirv)?;
            }
            input.static_library = Some(library);
            return Ok(input);
        }
        let start = examine::start(&*input.file).map_err(|e| binary_error(path, e))?;
        match kind {
            Some(FileKind::Object) => {}
            None if examine::is_bitcode(&start) => {}
            other => {
                return Err(Error::rejected(ids::UNKNOWN_FILE, path, expected(&start, other)));
            }
        }
        input.add(None, search_paths, spirv)?;
        Ok(input)
    }

    /// The file name, used as the prefix of kernel names.
    pub(super) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Plans the split of an object that has device code.
    fn add(
        &mut self,
        member: Option<(usize, &Member)>,
        search_paths: &[String],
        spirv: Spirv,
    ) -> Result<(), Error> {
        let path = self.path.clone();
        let in_member = |error: Error| match member {
            Some((_, member)) => error.about(|reason| reason.in_member(&member.name)),
            None => error,
        };
        let failed = |error: BinaryError| in_member(binary_error(&path, error));
        let file = self.file.clone();
        let range = member.map_or(0..self.size, |(_, member)| member.range.clone());
        let window = Window::new(&file, range.start, range.end - range.start);
        if !examine::is_object(&window).map_err(failed)? {
            return Ok(());
        }
        let object = Relocatable::read(window).map_err(failed)?;
        let fat = match object.device_code().map_err(failed)? {
            DeviceContent::None => return Ok(()),
            DeviceContent::NoWrappers => {
                let name = member.map(|(_, member)| member.name.clone());
                self.without_wrappers.push(name);
                return Ok(());
            }
            DeviceContent::Split => {
                self.split_before = true;
                return Ok(());
            }
            DeviceContent::Fat(fat) => fat,
        };
        let code = self.device_code(&object, &fat, spirv).map_err(in_member)?;
        if !code.kept().is_empty() {
            let name = member.map(|(_, member)| member.name.clone());
            self.with_spirv.push((name, code.note().unwrap_or_default()));
            return Ok(());
        }
        let label = match member {
            Some((_, member)) => format!("{}/{}", self.name(), member.name),
            None => self.name(),
        };
        let kernel_name = kernel_name(&path, &label, &file, code.ranges())?;
        let marker = Marker::new(&kernel_name, search_paths.to_vec())
            .with_code_ids(code_ids::planned(&code.targets()));
        let plan = ObjectPlan::new(&object, &fat, &code_ids::with_room(&marker, usize::MAX))
            .map_err(failed)?;
        self.units.push(Unit {
            member: member.map(|(index, _)| index),
            kernel_name,
            code,
            marker,
            plan,
        });
        Ok(())
    }

    /// The bundles and their file offsets.
    fn device_code(
        &self,
        object: &Relocatable<Window<'_>>,
        fat: &FatObject,
        spirv: Spirv,
    ) -> Result<PackedCode, Error> {
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
        let code = PackedCode::read(&self.path, &self.file, &wrappers, spirv)?;
        for section in &fat.fat_sections {
            let section = &object.sections[*section];
            let start = base + section.sh_offset.get(LE);
            let end = start + section.sh_size.get(LE);
            let within = code.ranges().filter(|range| (start..end).contains(&range.start));
            padding::check(&self.path, &self.file, start..end, within)?;
        }
        Ok(code)
    }

    /// Writes the IDs of the device code in `archives` into the markers.
    pub(super) fn set_code_ids(
        &mut self,
        archives: &BTreeMap<TargetId, ArchiveWriter<File>>,
    ) -> Result<(), Error> {
        for unit in &mut self.units {
            unit.marker.code_ids = code_ids::computed(archives, &unit.kernel_name);
            let set = unit.plan.set_marker(&code_ids::with_room(&unit.marker, usize::MAX));
            set.map_err(|error| binary_error(&self.path, error))?;
        }
        Ok(())
    }

    pub(super) fn report(&self, report: &mut Report) {
        let mut targets: Vec<String> = self
            .units
            .iter()
            .flat_map(|unit| unit.code.targets())
            .map(|target| target.to_string())
            .collect();
        targets.sort();
        targets.dedup();
        let saved = self.units.iter().map(|unit| {
            let member =
                unit.member.and_then(|index| self.static_library.as_ref()?.members.get(index));
            let before = member.map_or(self.size, Member::size);
            before as i64 - unit.plan.size() as i64
        });
        let outcome = match (self.units.is_empty(), self.split_before) {
            (false, _) => Outcome::Split {
                wrappers: self.units.iter().map(|unit| unit.plan.wrappers()).sum(),
                targets,
                size_before: self.size,
                size_after: self.size.saturating_add_signed(-saved.sum::<i64>()),
            },
            (true, _) if !self.with_spirv.is_empty() => Outcome::LeftAlone {
                reason: "SPIR-V code, which HIP runtimes do not read from archives".to_owned(),
            },
            (true, true) => Outcome::AlreadySplit,
            (true, false) if self.without_wrappers.is_empty() => {
                Outcome::LeftAlone { reason: "no device code".to_owned() }
            }
            (true, false) => Outcome::LeftAlone { reason: WITHOUT_WRAPPERS.to_owned() },
        };
        for member in self.without_wrappers.iter().flatten() {
            report.note(
                ids::WITHOUT_WRAPPERS,
                &self.path,
                format!("member `{member}` stays unchanged: {WITHOUT_WRAPPERS}"),
            );
        }
        for (member, note) in &self.with_spirv {
            let note = match member {
                Some(member) => format!("member `{member}` stays unchanged: {note}"),
                None => note.clone(),
            };
            report.note(ids::SPIRV_KEPT, &self.path, note);
        }
        for note in self.units.iter().filter_map(|unit| unit.code.note()) {
            report.note(ids::SPIRV_KEPT, &self.path, note);
        }
        if let Outcome::LeftAlone { reason } = &outcome {
            report.note(ids::UNCHANGED, &self.path, format!("stays unchanged: {reason}"));
        }
        let path = self.name();
        report.files.push(FileReport::new(path, outcome));
    }

    /// Writes the host-only file under a temporary name in `directory`.
    pub(super) fn stage(&self, directory: &Arc<Directory>) -> Result<StagedFile, Error> {
        let name = self.path.file_name().unwrap_or_default();
        let mut staged = StagedFile::create(Arc::clone(directory), name)?;
        let path = staged.path().to_owned();
        let failed = |error| match binary_error(&self.path, error) {
            Error::Io { source, .. } => Error::io(&path, "write", source),
            error => error,
        };
        let output = staged.file();
        let whole = Window::new(&self.file, 0, self.size);
        match (&self.static_library, self.units.as_slice()) {
            (Some(library), _) => {
                let mut plans: Vec<Option<&ObjectPlan>> =
                    library.members.iter().map(|_| None).collect();
                for unit in &self.units {
                    if let Some(index) = unit.member {
                        plans[index] = Some(&unit.plan);
                    }
                }
                library.rewrite(&self.file, &plans, output)
            }
            (None, [unit]) => unit.plan.apply(&whole, output, 0),
            (None, _) => whole.copy(&(0..self.size), output, 0).map_err(Into::into),
        }
        .map_err(failed)?;
        staged.keep_mode(&self.file)?;
        Ok(staged)
    }
}

/// Bytes hashed at a time.
const CHUNK: u64 = 1 << 20;

/// The kernel name of an object, without the index: `label`, and the digest of its bundles.
fn kernel_name(
    path: &Path,
    label: &str,
    file: &File,
    bundles: impl Iterator<Item = Range<u64>>,
) -> Result<String, Error> {
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; CHUNK as usize];
    for bundle in bundles {
        hasher.update(&(bundle.end - bundle.start).to_le_bytes());
        let mut at = bundle.start;
        while at < bundle.end {
            let some = &mut buffer[..(bundle.end - at).min(CHUNK) as usize];
            file.read_exact_at(some, at).map_err(|e| Error::io(path, "read", e))?;
            hasher.update(some);
            at += some.len() as u64;
        }
    }
    Ok(ObjectName::form(label, &hasher.finish()))
}

/// Describes an unsupported file and what was expected instead.
fn expected(start: &[u8], kind: Option<FileKind>) -> String {
    let what = match kind {
        Some(FileKind::Linked) => "a linked binary; split it with `kpack split`",
        Some(FileKind::Bundle) => "an offload bundle, as --cuda-device-only or -emit-llvm makes it",
        Some(FileKind::CodeObject) => "device code, an AMDGPU ELF file",
        Some(FileKind::OffloadBinary) => {
            "LLVM's offload binary, with images for an offloading runtime"
        }
        Some(FileKind::Archive | FileKind::Manifest) => "an archive or manifest of kpack",
        // The machine of a COFF object (PE Format, "Machine Types"): x86-64 and ARM64, and the
        // values import libraries and /bigobj use instead.
        _ if [[0x64, 0x86], [0x64, 0xaa]].contains(&[start[0], start[1]])
            || start.starts_with(&[0, 0, 0xff, 0xff]) =>
        {
            "an object for Windows (COFF)"
        }
        _ => "the format is unknown",
    };
    format!("not a relocatable object (ELF, ET_REL) or static library: {what}")
}
