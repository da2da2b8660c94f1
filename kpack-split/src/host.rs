//! A linked binary of any host format: the one place that tells formats apart. What commands ask, each format answers
//! in a room of its own, [`elf`] and [`pe`].

use std::fs::File;
use std::io;
use std::ops::Range;

use kpack_core::archives::KeptBundle;
use kpack_core::elf::{BinaryError, FAT_SECTION, ReadAt};
use kpack_core::files::{HostFormat, START};
use kpack_format::marker::{self, Marker};
use kpack_format::offload_binary::{self, OffloadImage};
use object::elf::{DF_1_PIE, DT_FLAGS_1, ET_EXEC, PT_INTERP};
use object::{LittleEndian as LE, pe::IMAGE_FILE_DLL};

use crate::device_code::{DeviceCode, FatBinary, NewCode, SplitWrapper};
use crate::pe::Sums;
use crate::{elf, pe};

/// The section of the handles that HIP runtimes return for registered bundles, and the size of one. Only links of
/// relocatable device code have it.
const HANDLE_SECTION: &str = ".hip_gpubin_handle";
const HANDLE: u64 = 8;

pub use crate::facts::{FactDifference, Facts};

/// A linked binary with its headers in memory; everything else is read on demand.
#[derive(Debug, Clone)]
pub enum Image<S> {
    /// For Linux.
    Elf(elf::Image<S>),
    /// For Windows.
    Pe(pe::Image<S>),
}

/// How to make one binary from another.
#[derive(Debug, Clone)]
pub enum SplitPlan {
    /// For Linux.
    Elf(Box<elf::ElfPlan>),
    /// For Windows.
    Pe(Box<pe::PePlan>),
}

/// How to make a joined binary from a split one.
#[derive(Debug, Clone)]
pub enum JoinPlan {
    /// For Linux.
    Elf(Box<elf::ElfJoinPlan>),
    /// For Windows.
    Pe(Box<pe::PeJoinPlan>),
}

impl<S> Image<S> {
    /// The same headers over another source: the same file, opened again, or none.
    pub fn over<T>(&self, source: T) -> Image<T> {
        match self {
            Self::Elf(image) => Image::Elf(image.over(source)),
            Self::Pe(image) => Image::Pe(image.over(source)),
        }
    }

    /// What only ELF files have; `None` for others.
    pub fn elf(&self) -> Option<&elf::Image<S>> {
        match self {
            Self::Elf(image) => Some(image),
            Self::Pe(_) => None,
        }
    }

    /// Whether it is a DLL or a program for Windows.
    pub fn is_for_windows(&self) -> bool {
        matches!(self, Self::Pe(_))
    }

    /// Whether the system knows it by its real path only, as Linux knows programs.
    pub fn has_real_path(&self) -> bool {
        let elf = self.elf();
        elf.is_some_and(|image| image.segments.iter().any(|s| s.kind == PT_INTERP))
    }

    /// The sections of markers in the file. There may be several, from splitting a binary in two steps.
    pub fn marker_sections(&self) -> Vec<Range<u64>> {
        match self {
            Self::Elf(image) => {
                let sections = image.sections.iter().filter(|s| marker::is_section(&s.name));
                sections.map(|s| s.offset..s.offset + s.size).collect()
            }
            Self::Pe(image) => {
                let sections = image.sections.iter().filter(|s| s.is_marker());
                let size = |s: &pe::Section| s.in_file().end - s.address;
                sections.map(|s| s.offset..s.offset + size(s)).collect()
            }
        }
    }

    /// Whether its wrappers have one handle, as a link of relocatable device code (`-fgpu-rdc`) gives them: start-up
    /// code registers the first one for all. kpack does not look for it in binaries for Windows.
    pub(crate) fn has_one_handle(&self) -> bool {
        match self {
            Self::Elf(image) => {
                let handles = image.sections.iter().filter(|s| s.name == HANDLE_SECTION);
                handles.map(|s| s.size).eq([HANDLE])
            }
            Self::Pe(_) => false,
        }
    }
}

impl<S: ReadAt> Image<S> {
    /// Reads the headers. Refuses anything but a linked binary for a host that GPUs are used with.
    pub fn read(source: S) -> Result<Self, BinaryError> {
        let mut start = vec![0; source.size()?.min(START as u64) as usize];
        source.read_exact_at(0, &mut start)?;
        Ok(match HostFormat::of(&start) {
            Some(HostFormat::Pe) => Self::Pe(pe::Image::read(source)?),
            Some(HostFormat::Elf) | None => Self::Elf(elf::Image::read(source)?),
        })
    }

    /// Whether it is a program, and not a library.
    ///
    /// # Errors
    /// [`BinaryError`] if its dynamic section is damaged.
    pub fn is_program(&self) -> Result<bool, BinaryError> {
        let image = match self {
            Self::Elf(image) => image,
            Self::Pe(image) => {
                return Ok(image.header.characteristics.get(LE).0 & IMAGE_FILE_DLL.0 == 0);
            }
        };
        // A program that is linked statically has no dynamic linker, and may be anywhere in memory.
        let flags = elf::Dynamic::read(image)?.get(DT_FLAGS_1).unwrap_or(0);
        let is_executable = image.header.e_type.get(LE) == ET_EXEC;
        Ok(self.has_real_path() || is_executable || flags & DF_1_PIE.0 != 0)
    }

    /// The file of the image.
    pub fn source(&self) -> &S {
        match self {
            Self::Elf(image) => image.source(),
            Self::Pe(image) => image.source(),
        }
    }

    /// The triple of the host that it is for.
    pub fn host_triple(&self) -> &'static str {
        match self {
            Self::Elf(image) => image.host_triple(),
            Self::Pe(image) => image.host_triple(),
        }
    }

    /// File offset of `addresses`, if they are loaded from the file together.
    pub fn offset_of(&self, addresses: &Range<u64>) -> Option<u64> {
        match self {
            Self::Elf(image) => image.offset_of(addresses),
            Self::Pe(image) => image.offset_of(addresses),
        }
    }

    /// Finds the wrappers and follows each to its bundle or marker.
    pub fn device_code(&self) -> Result<DeviceCode, BinaryError> {
        match self {
            Self::Elf(image) => image.device_code(),
            Self::Pe(image) => image.device_code(),
        }
    }

    /// What a linker cannot change by placing things elsewhere, as it does around device code of another size.
    pub fn facts(&self) -> Result<Facts, BinaryError> {
        let mut facts = match self {
            Self::Elf(image) => elf::facts(image)?,
            Self::Pe(image) => pe::facts(image)?,
        };
        facts.add("host", self.host_triple());
        Ok(facts)
    }

    /// The parts of the file with the data of the host code, without device code.
    pub fn data(&self) -> Vec<Range<u64>> {
        match self {
            Self::Elf(image) => elf::data(image),
            Self::Pe(image) => pe::data(image),
        }
    }

    /// The parts of the file that tell builds of the same code apart, in order: its build ID, the link to its debug
    /// information and, in files for Windows, times and a checksum.
    pub fn build_marks(&self) -> Result<Vec<Range<u64>>, BinaryError> {
        let mut marks = match self {
            Self::Elf(image) => elf::build_marks(image),
            Self::Pe(image) => pe::build_marks(image)?,
        };
        marks.sort_by_key(|range| (range.start, range.end));
        Ok(marks)
    }

    /// Checks that the system would load it.
    pub fn check_loaded(&self) -> Result<(), BinaryError> {
        match self {
            Self::Elf(image) => image.validate().and_then(|()| elf::check_loaded(image)),
            Self::Pe(image) => pe::check_loaded(image),
        }
    }

    /// Whether it has a signature, which covers its contents.
    pub fn is_signed(&self) -> bool {
        match self {
            Self::Elf(_) => false,
            Self::Pe(image) => image.is_signed(),
        }
    }

    /// The checksum in the header and that of the file, if the format has one and they differ.
    pub fn stale_checksum(&self) -> std::io::Result<Option<(u32, u32)>> {
        match self {
            Self::Elf(_) => Ok(None),
            Self::Pe(image) => image.stale_checksum(),
        }
    }

    /// What renews the checksum in the header of the file with `edits`: a change at an offset. Nothing if it has none.
    pub fn checksum_with(
        &self,
        edits: &[(u64, Vec<u8>)],
    ) -> std::io::Result<Option<(u64, Vec<u8>)>> {
        match self {
            Self::Elf(_) => Ok(None),
            Self::Pe(image) => image.checksum_with(edits),
        }
    }

    /// The contents of the only section with a name; `None` if there is none.
    pub fn bytes_of(&self, name: &str) -> Option<Vec<u8>> {
        match self {
            Self::Elf(image) => {
                let (_, section) = image.section(name).ok()??;
                image.section_bytes(section).ok()
            }
            Self::Pe(image) => {
                let (_, section) = image.section(&[name]).ok()??;
                image.section_bytes(section).ok()
            }
        }
    }

    /// Whether it has the place of device code that was moved out. What was split before the link has none.
    pub fn has_place_of_code(&self) -> Result<bool, BinaryError> {
        Ok(match self {
            Self::Elf(image) => image.section(FAT_SECTION)?.is_some(),
            Self::Pe(image) => image.sections.iter().any(pe::Section::is_marker),
        })
    }

    /// The sections that have offload bundles to which no wrapper refers. They are not searched for in binaries for
    /// Windows.
    pub fn bundles_in_data(&self) -> Result<Vec<elf::DataBundles>, BinaryError> {
        match self {
            Self::Elf(image) => elf::bundles_in_data(image),
            Self::Pe(_) => Ok(Vec::new()),
        }
    }

    /// The images for other offloading runtimes. They are not looked for in binaries for Windows.
    pub fn offload_images(&self) -> io::Result<Vec<OffloadImage>> {
        let Self::Elf(image) = self else {
            return Ok(Vec::new());
        };
        let own = |section: &&elf::Section| {
            section.name == offload_binary::SECTION && section.kind != object::elf::SHT_NOBITS
        };
        let mut images = Vec::new();
        for section in image.sections.iter().filter(own) {
            images.extend(offload_binary::read(section.size, &mut |at, buffer| {
                self.source().read_exact_at(section.offset.saturating_add(at), buffer)
            })?);
        }
        Ok(images)
    }

    /// What is left of the device code in a split binary; `None` if nothing is.
    pub fn code_left(&self) -> Result<Option<String>, BinaryError> {
        match self {
            Self::Elf(image) => elf::code_left(image),
            Self::Pe(image) => {
                let left = image.code_left()?;
                Ok(left.map(|section| {
                    let (name, size) = (&section.name, section.file_size);
                    format!("`{name}` still has {size} bytes in the file; expected none")
                }))
            }
        }
    }

    /// Address of the marker of the device code that was moved out: in its place or, if none is there, after it. Those
    /// of objects that were split before the link are elsewhere.
    pub fn main_marker(&self, wrappers: &[SplitWrapper]) -> Result<Option<u64>, BinaryError> {
        let markers = wrappers.iter().map(|w| w.marker_address);
        Ok(match self {
            Self::Elf(image) => {
                let section = image.section(FAT_SECTION)?;
                let place = section.map_or(u64::MAX, |(_, section)| section.addr);
                let (before, after): (Vec<u64>, Vec<u64>) = markers.partition(|at| *at <= place);
                before.into_iter().max().or(after.into_iter().min())
            }
            Self::Pe(image) => {
                let section = image.section(&[pe::MARKER_SECTION])?;
                let place = section.map(|(_, section)| section.addresses());
                let is_inside = |at: &u64| place.as_ref().is_some_and(|place| place.contains(at));
                markers.filter(is_inside).max()
            }
        })
    }
}

impl SplitPlan {
    /// Plans the host binary of `image`, replacing the device code `fat` by `marker` (at most 64 KiB). The bundles
    /// `kept` stay.
    pub fn new<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        marker: &[u8],
        kept: &[KeptBundle],
    ) -> Result<Self, BinaryError> {
        Ok(match image {
            Image::Elf(image) => {
                let plan = elf::ElfPlan::new(image, fat, marker)?;
                Self::Elf(Box::new(plan.keeping(image.source(), kept)?))
            }
            Image::Pe(image) => {
                let plan = pe::PePlan::new(image, fat, marker)?;
                Self::Pe(Box::new(plan.keeping(image.source(), kept)?))
            }
        })
    }

    /// Replaces the planned marker. Drops code IDs that do not fit.
    pub fn set_marker(&mut self, marker: &Marker) -> Result<(), BinaryError> {
        match self {
            Self::Elf(plan) => plan.set_marker(marker),
            Self::Pe(plan) => plan.set_marker(marker),
        }
    }

    /// Adds changes by input offset, for the wrappers and markers of objects that were split before
    /// the link. These are in data and in sections that do not move.
    pub(crate) fn add(&mut self, edits: Vec<(u64, Vec<u8>)>) {
        match self {
            Self::Elf(plan) => plan.add(edits),
            Self::Pe(plan) => plan.add(edits),
        }
    }

    /// Size of the result in bytes.
    pub fn output_size(&self) -> u64 {
        match self {
            Self::Elf(plan) => plan.output_size(),
            Self::Pe(plan) => plan.output_size(),
        }
    }

    /// Writes the result to the empty file `output`, then reads it back and checks it. `input` must be
    /// the planned file.
    pub fn apply(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        match self {
            Self::Elf(plan) => plan.apply(input, output),
            Self::Pe(plan) => plan.apply(input, output),
        }
    }
}

impl JoinPlan {
    /// Plans the joined binary of `image`, which is split, or was joined for other targets.
    pub fn new<S: ReadAt>(image: &Image<S>, code: &NewCode<'_>) -> Result<Self, BinaryError> {
        Ok(match image {
            Image::Elf(image) => Self::Elf(Box::new(elf::ElfJoinPlan::new(image, code)?)),
            Image::Pe(image) => Self::Pe(Box::new(pe::PeJoinPlan::new(image, code)?)),
        })
    }

    /// Plans the binary of `image` whose device code `fat` becomes the smaller bundles of `code`, in its place.
    pub(crate) fn trimmed<S: ReadAt>(
        image: &Image<S>,
        fat: &FatBinary,
        code: &NewCode<'_>,
    ) -> Result<Self, BinaryError> {
        Ok(match image {
            Image::Elf(image) => Self::Elf(Box::new(elf::ElfJoinPlan::trimmed(image, fat, code)?)),
            Image::Pe(image) => Self::Pe(Box::new(pe::PeJoinPlan::trimmed(image, fat, code)?)),
        })
    }

    /// Size of the joined binary in bytes.
    pub fn output_size(&self) -> u64 {
        match self {
            Self::Elf(plan) => plan.output_size(),
            Self::Pe(plan) => plan.output_size(),
        }
    }

    /// About how many bytes the former device code had; 0 if unknown.
    pub(crate) fn room(&self) -> u64 {
        match self {
            Self::Elf(plan) => plan.room(),
            Self::Pe(plan) => plan.room(),
        }
    }

    /// Offset in the output of each bundle.
    pub fn bundles(&self) -> &[u64] {
        match self {
            Self::Elf(plan) => plan.bundles(),
            Self::Pe(plan) => plan.bundles(),
        }
    }

    /// Leaves these ranges of the input as holes, and returns their offsets in the output. The caller writes there, and
    /// checks what it wrote.
    pub(crate) fn leave_out(&mut self, holes: &[Range<u64>]) -> Vec<u64> {
        match self {
            Self::Elf(plan) => plan.leave_out(holes),
            Self::Pe(plan) => plan.leave_out(holes),
        }
    }

    /// Writes the joined binary without its bundles to the empty file `output`. `input` must be the
    /// planned file.
    pub fn write(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        match self {
            Self::Elf(plan) => plan.write(input, output),
            Self::Pe(plan) => plan.write(input, output),
        }
    }

    /// What to record bytes of bundles in as they are written, if the joined binary has a checksum: that reads the rest.
    pub(crate) fn sums(&self) -> Option<Sums> {
        match self {
            Self::Elf(_) => None,
            Self::Pe(plan) => plan.sums(),
        }
    }

    /// Completes the joined binary when its bundles are written, then reads it back and checks it. `input` must be the
    /// planned file.
    pub fn finish(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        self.finish_with(input, output, self.sums().as_ref())
    }

    /// The same, with what was recorded in [`sums`](Self::sums).
    pub(crate) fn finish_with(
        &self,
        input: &File,
        output: &File,
        sums: Option<&Sums>,
    ) -> Result<(), BinaryError> {
        match self {
            Self::Elf(plan) => plan.check(input, output),
            Self::Pe(plan) => plan.finish(input, output, sums),
        }
    }
}

/// Returns differences between the host code of a fat binary and its split binary, beyond what
/// splitting changes; empty if they agree. Compares only what is loaded, so both may have been
/// stripped.
pub fn compare<A: ReadAt, B: ReadAt>(
    original: &Image<A>,
    split: &Image<B>,
) -> Result<Vec<String>, BinaryError> {
    match (original, split) {
        (Image::Elf(original), Image::Elf(split)) => elf::compare(original, split),
        (Image::Pe(original), Image::Pe(split)) => pe::compare(original, split),
        _ => Ok(vec!["one of them is for Windows, the other is not".to_owned()]),
    }
}
