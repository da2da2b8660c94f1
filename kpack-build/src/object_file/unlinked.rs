//! What device code objects and static libraries have, also of kinds that are not split before the link.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use kpack_core::Error;
use kpack_core::archives::{PackedCode, Spirv};
use kpack_core::elf::{BinaryError, DeviceSection, ReadAt};
use kpack_core::files::{FileKind, binary_error, identify};
use kpack_format::offload_binary::{self, OffloadImage};
use object::LittleEndian as LE;

use super::input::ObjectInput;
use super::relocatable::Relocatable;
use super::static_library;
use super::window::Window;

/// A relocatable object or static library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlinked {
    /// Whether it is a static library.
    pub static_library: bool,
    /// Whether it is a thin archive, whose members are files of their own, which are not read.
    pub thin: bool,
    /// Number of members of a static library; 1 for an object.
    pub members: usize,
    /// The objects with device code.
    pub device_objects: Vec<DeviceObject>,
}

/// An object with device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceObject {
    /// Name of the member in its static library; `None` for an object in its own file.
    pub member: Option<String>,
    /// Size of its device code in bytes, without images for other runtimes than HIP.
    pub device_bytes: u64,
    /// Whether it has wrappers for its device code. With `-fgpu-rdc` that is for a device link, or the wrappers are
    /// in other objects, and only the host's linker knows what belongs together.
    pub has_wrappers: bool,
    /// Its images in LLVM's format, for any offloading runtime.
    pub images: Vec<OffloadImage>,
}

impl Unlinked {
    /// Reads an object for any CPU, or a static library in any format.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is damaged; [`Error::Io`].
    pub fn read(path: &Path, file: &File) -> Result<Self, Error> {
        let unlinked = match identify(path, file)? {
            Some(FileKind::StaticLibrary) => Self::library(file),
            _ => Self::object(file),
        };
        unlinked.map_err(|error| binary_error(path, error))
    }

    fn object(file: &File) -> Result<Self, BinaryError> {
        let device_objects = device_object(Window::new(file, 0, file.size()?), None)?;
        Ok(Self {
            static_library: false,
            thin: false,
            members: 1,
            device_objects: device_objects.into_iter().collect(),
        })
    }

    fn library(file: &File) -> Result<Self, BinaryError> {
        let end = file.size()?;
        static_library::parse(file, |archive| {
            let mut library = Self {
                static_library: true,
                thin: archive.is_thin(),
                members: 0,
                device_objects: Vec::new(),
            };
            for member in archive.members() {
                let member = member.map_err(static_library::damaged)?;
                library.members += 1;
                // The members of a thin archive are separate files.
                if library.thin {
                    continue;
                }
                let (start, size) = member.file_range();
                // A damaged library says any size.
                let size = size.min(end.saturating_sub(start));
                let name = String::from_utf8_lossy(member.name()).into_owned();
                match device_object(Window::new(file, start, size), Some(name)) {
                    Ok(found) => library.device_objects.extend(found),
                    Err(BinaryError::Io(error)) if error.kind() != ErrorKind::UnexpectedEof => {
                        return Err(error.into());
                    }
                    // Members that are not ELF (an import list, LLVM bitcode) have no `.hip_fatbin`.
                    Err(_) => {}
                }
            }
            Ok(library)
        })
    }
}

/// The device code of an object; `None` if it has none.
fn device_object(
    source: Window<'_>,
    member: Option<String>,
) -> Result<Option<DeviceObject>, BinaryError> {
    let object = Relocatable::read(source)?;
    let mut device_bytes: Option<u64> = None;
    let mut has_wrappers = false;
    let mut is_for_device_link = false;
    let mut images = Vec::new();
    for (_, section, kind) in object.device_sections() {
        let mut size = section.sh_size.get(LE);
        match kind {
            DeviceSection::Wrappers => {
                has_wrappers = true;
                continue;
            }
            DeviceSection::Bundles => {}
            DeviceSection::ForDeviceLink => is_for_device_link = true,
            DeviceSection::ForLinkerWrapper => {
                let found = object.images(section)?;
                if offload_binary::may_be_hip(&found) {
                    is_for_device_link = true;
                } else {
                    size = 0;
                }
                images.extend(found);
            }
        }
        device_bytes = Some(device_bytes.unwrap_or(0).saturating_add(size));
    }
    Ok(device_bytes.map(|device_bytes| DeviceObject {
        member,
        device_bytes,
        has_wrappers: has_wrappers && !is_for_device_link,
        images,
    }))
}

/// The device code of an object, or of each member of a static library that has some.
///
/// # Errors
/// [`Error::Refused`] for damaged or unsupported device code; [`Error::Io`].
pub fn device_code(path: &Path) -> Result<Vec<PackedCode>, Error> {
    let units = ObjectInput::read(path, &[], Spirv::Archive)?.units.into_iter();
    Ok(units.map(|unit| unit.code).collect())
}
