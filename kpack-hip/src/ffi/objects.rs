//! The libraries of this process, as the dynamic linker knows them.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;
use std::slice;

use kpack_format::dynamic_symbols::{LOADER_FUNCTION, Linkage, linkage};

/// The program or a library.
struct Object {
    /// Empty for the program.
    name: CString,
    base: usize,
    segments: Vec<Range<usize>>,
    /// The address of its dynamic section.
    dynamic: Option<usize>,
}

/// An entry of a dynamic section.
#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

const DT_NULL: usize = 0;

/// Whether the HIP runtime with the function at `address` reads markers.
pub(super) fn reads_markers(address: usize) -> bool {
    let mut objects = objects().into_iter();
    let object = objects.find(|object| object.contains(address));
    object.is_some_and(|object| {
        let (dynamic, base) = (object.dynamic_entries(), object.base as u64);
        let linkage = linkage(&dynamic, base, LOADER_FUNCTION, |address, size| {
            object.read(address, size)
        });
        linkage == Some(Linkage::Imported)
    })
}

/// The next function of this `name`, after that of this library at `this`, that the object with `user`
/// would see.
pub(super) fn next(name: &CStr, this: usize, user: usize) -> Option<usize> {
    // SAFETY: the name ends with NUL.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    if next != 0 && next != this {
        return Some(next);
    }
    // Libraries that were loaded with RTLD_LOCAL are not in that order: first what the user itself
    // depends on, then all others.
    let mut objects = objects();
    objects.sort_by_key(|object| !object.contains(user));
    let mut found = objects.iter().filter_map(|object| object.function(name));
    found.find(|found| *found != this)
}

impl Object {
    fn contains(&self, address: usize) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.contains(&address))
    }

    /// The function of this name in the object, or in what it depends on.
    fn function(&self, name: &CStr) -> Option<usize> {
        // The program is in the usual order.
        if self.name.is_empty() {
            return None;
        }
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: both names end with NUL, and the handle is closed once.
        unsafe {
            let handle = libc::dlopen(self.name.as_ptr(), flags);
            if handle.is_null() {
                return None;
            }
            let found = libc::dlsym(handle, name.as_ptr()) as usize;
            libc::dlclose(handle);
            (found != 0).then_some(found)
        }
    }

    /// The tags and values of its dynamic section.
    fn dynamic_entries(&self) -> Vec<(u64, u64)> {
        let mut entries = Vec::new();
        let Some(dynamic) = self.dynamic else {
            return entries;
        };
        let mut at = dynamic as *const Dynamic;
        // SAFETY: the object is loaded, and its dynamic section ends with DT_NULL.
        while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| entry.tag != DT_NULL) {
            entries.push((entry.tag as u64, entry.value as u64));
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        entries
    }

    /// So many bytes at an address, if they are in a segment.
    fn read(&self, address: u64, size: u64) -> Option<Vec<u8>> {
        let (start, size) = (usize::try_from(address).ok()?, usize::try_from(size).ok()?);
        let end = start.checked_add(size)?;
        let mut segments = self.segments.iter();
        segments.find(|segment| segment.start <= start && end <= segment.end)?;
        // SAFETY: the object is loaded, and nobody changes its tables.
        Some(unsafe { slice::from_raw_parts(start as *const u8, size) }.to_vec())
    }
}

/// All of them, in the order of the dynamic linker.
fn objects() -> Vec<Object> {
    unsafe extern "C" fn add(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        objects: *mut c_void,
    ) -> c_int {
        // SAFETY: both pointers are valid during the call, and nobody else has the list.
        let (info, objects) = unsafe { (&*object, &mut *objects.cast::<Vec<Object>>()) };
        let base = info.dlpi_addr as usize;
        let name = match info.dlpi_name.is_null() {
            true => CString::default(),
            // SAFETY: it ends with NUL.
            false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_owned(),
        };
        let mut found = Object {
            name,
            base,
            segments: Vec::new(),
            dynamic: None,
        };
        for index in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: there are that many headers.
            let header = unsafe { &*info.dlpi_phdr.add(index) };
            let start = base.wrapping_add(header.p_vaddr as usize);
            match header.p_type {
                libc::PT_LOAD => {
                    let end = start.saturating_add(header.p_memsz as usize);
                    found.segments.push(start..end);
                }
                libc::PT_DYNAMIC => found.dynamic = Some(start),
                _ => {}
            }
        }
        objects.push(found);
        0
    }
    let mut objects: Vec<Object> = Vec::new();
    // SAFETY: `add` gets the list, which lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut objects).cast()) };
    objects
}
