//! Objects and static libraries with other bundles in the place of theirs.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use kpack_core::archives::padding;
use kpack_core::elf::{BinaryError, Wrapper};
use kpack_core::files::{self, FileKind, binary_error};
use kpack_core::{Error, Reason};
use object::LittleEndian as LE;

use super::examine;
use super::plan::ObjectPlan;
use super::relocatable::Relocatable;
use super::static_library::StaticLibrary;
use super::window::Window;
use super::wrappers::{DeviceContent, FatObject};

/// An object or a static library whose wrappers lead to bundles.
pub struct FatObjects {
    path: PathBuf,
    library: Option<StaticLibrary>,
    objects: Vec<Object>,
}

/// An object: a file, or a member of a static library.
struct Object {
    /// The index of the member.
    member: Option<usize>,
    range: Range<u64>,
    fat: FatObject,
}

/// An object or a static library as it will be.
#[derive(Debug)]
pub struct ResizedObjects {
    /// The plan of each object: a member, or the file itself.
    plans: Vec<(Option<usize>, Range<u64>, ObjectPlan)>,
    library: Option<StaticLibrary>,
    bundles: BTreeMap<u64, u64>,
    size: u64,
}

impl FatObjects {
    /// Reads an object or a static library.
    ///
    /// # Errors
    /// [`Error::Refused`] for what is damaged, or complete only after the link; [`Error::Io`].
    pub fn read(path: &Path, file: &File) -> Result<Self, Error> {
        let failed = |error: BinaryError| binary_error(path, error);
        let size = file.metadata().map_err(|error| Error::io(path, "read", error))?.len();
        let is_library = files::identify(path, file)? == Some(FileKind::StaticLibrary);
        let library = is_library.then(|| StaticLibrary::read(file)).transpose().map_err(failed)?;
        let members = library.iter().flat_map(|library| library.members.iter().enumerate());
        let mut ranges: Vec<_> = members
            .map(|(index, member)| (Some(index), member.name.clone(), member.range.clone()))
            .collect();
        if !is_library {
            ranges.push((None, String::new(), 0..size));
        }
        let mut objects = Vec::new();
        for (member, name, range) in ranges {
            let failed = |error| match (failed(error), member) {
                (error, Some(_)) => error.about(|reason: Reason| reason.in_member(&name)),
                (error, None) => error,
            };
            let window = Window::new(file, range.start, range.end - range.start);
            if !examine::is_object(&window).map_err(failed)? {
                continue;
            }
            let object = Relocatable::read(window).map_err(failed)?;
            if let DeviceContent::Fat(fat) = object.device_code().map_err(failed)? {
                objects.push(Object { member, range, fat });
            }
        }
        Ok(Self { path: path.to_owned(), library, objects })
    }

    /// Its wrappers, with the offsets of their bundles in the file.
    pub fn wrappers(&self) -> Vec<Wrapper> {
        let wrappers = self.objects.iter().flat_map(|object| {
            object.fat.wrappers.iter().map(|wrapper| Wrapper {
                bundle_offset: wrapper.bundle.bundle_offset + object.range.start,
                ..wrapper.bundle.clone()
            })
        });
        wrappers.collect()
    }

    /// Plans it with bundles of other sizes. `sizes` has the size of each bundle in bytes, as it is and as it will be,
    /// by the offset in the file.
    ///
    /// # Errors
    /// [`Error::Refused`] if something else than bundles and padding is between them, or the format has no room;
    /// [`Error::Io`].
    pub fn resized(
        self,
        file: &File,
        sizes: &BTreeMap<u64, (u64, u64)>,
    ) -> Result<ResizedObjects, Error> {
        let path = &self.path;
        let failed = |error: BinaryError| binary_error(path, error);
        let mut plans = Vec::new();
        for Object { member, range, fat } in self.objects {
            let window = Window::new(file, range.start, range.end - range.start);
            let object = Relocatable::read(window).map_err(failed)?;
            for section in &fat.fat_sections {
                let section = &object.sections[*section];
                let start = range.start + section.sh_offset.get(LE);
                let end = start + section.sh_size.get(LE);
                let within = sizes.range(start..end).map(|(at, (old, _))| *at..at + old);
                padding::check(path, file, start..end, within)?;
            }
            let own =
                sizes.range(range.clone()).map(|(at, (_, new))| (at - range.start, *new)).collect();
            let plan = ObjectPlan::resized(&object, &fat, &own).map_err(failed)?;
            plans.push((member, range, plan));
        }
        let (mut starts, mut size) = (vec![0], plans.first().map_or(0, |(_, _, plan)| plan.size()));
        if let Some(library) = &self.library {
            (starts, size) = library.places(&by_member(library, &plans));
        }
        let mut bundles = BTreeMap::new();
        for (member, range, plan) in &plans {
            let start = starts.get(member.unwrap_or(0)).copied().unwrap_or(0);
            bundles.extend(plan.bundles().map(|(old, new)| (range.start + old, start + new)));
        }
        Ok(ResizedObjects { plans, library: self.library, bundles, size })
    }
}

/// The plan of each member that has one.
fn by_member<'a>(
    library: &StaticLibrary,
    plans: &'a [(Option<usize>, Range<u64>, ObjectPlan)],
) -> Vec<Option<&'a ObjectPlan>> {
    let mut all = vec![None; library.members.len()];
    for (member, _, plan) in plans {
        if let Some(member) = member {
            all[*member] = Some(plan);
        }
    }
    all
}

impl ResizedObjects {
    /// The offset of each bundle in the new file, by its offset in the input.
    pub fn bundles(&self) -> &BTreeMap<u64, u64> {
        &self.bundles
    }

    /// Size of the new file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes all but the bundles to the empty file `output`, and reads that back.
    ///
    /// # Errors
    /// It cannot be written, or is not as planned.
    pub fn write(&self, input: &File, output: &File) -> Result<(), BinaryError> {
        match (&self.library, &self.plans[..]) {
            (Some(library), plans) => library.rewrite(input, &by_member(library, plans), output),
            (None, plans) => plans.iter().try_for_each(|(_, range, plan)| {
                plan.apply(&Window::new(input, range.start, range.end - range.start), output, 0)
            }),
        }
    }
}

impl std::fmt::Debug for FatObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FatObjects").field("path", &self.path).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for StaticLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticLibrary")
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}
