//! The libraries of this process, as the dynamic linker knows them.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::slice;

use kpack::internal::dynamic_symbols::{LOADER_FUNCTION, Linkage, linkage};

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
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

/// A function that only the shared shim exports, whatever a copy of it is called.
const SHIM_FUNCTION: &str = "__wrap___hipRegisterFatBinary";

/// Whether the function at `address` takes markers: that of a HIP runtime that reads them, or of another copy of
/// the shim, which judges the runtime after it.
pub(super) fn takes_markers(address: usize) -> bool {
    let objects = objects();
    let mut objects = objects.iter();
    let object = objects.find(|object| object.contains(address));
    object.is_some_and(|object| {
        object.linkage(LOADER_FUNCTION) == Some(Linkage::Imported) || object.is_shim()
    })
}

/// The function of this `name` in a HIP runtime: the next one that the object with `user` would see after all
/// copies of the shim. Libraries may each bring a copy; one that calls another could be called by it again.
pub(super) fn next(name: &CStr, user: usize) -> Option<usize> {
    let objects = objects();
    let of_runtime = |found: &usize| {
        let object = objects.iter().find(|object| object.contains(*found));
        object.is_some_and(|object| !object.is_shim())
    };
    // SAFETY: the name ends with NUL.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    if of_runtime(&next) {
        return Some(next);
    }
    // Libraries that were loaded with RTLD_LOCAL are not in that order: first what the user itself
    // depends on, then all others.
    let order = dependencies_first(&objects, user);
    let mut found = order.iter().filter_map(|object| object.function(name));
    found.find(of_runtime)
}

/// The object with `user`, what it depends on in the order of the dynamic linker, and then all others.
fn dependencies_first(objects: &[Object], user: usize) -> Vec<&Object> {
    let mut rest = Vec::from_iter(objects);
    let mut order = Vec::new();
    let mut take = |order: &mut Vec<_>, which: &dyn Fn(&Object) -> bool| {
        let found = rest.iter().position(|object| which(object));
        order.extend(found.map(|at| rest.remove(at)));
    };
    take(&mut order, &|object| object.contains(user));
    let mut at = 0;
    while let Some(object) = order.get(at).copied() {
        for name in object.strings(DT_NEEDED) {
            take(&mut order, &|object| object.is_called(name));
        }
        at += 1;
    }
    order.append(&mut rest);
    order
}

impl Object {
    fn contains(&self, address: usize) -> bool {
        self.segments.iter().any(|segment| segment.contains(&address))
    }

    /// What its tables say about a function.
    fn linkage(&self, name: &str) -> Option<Linkage> {
        let (dynamic, base) = (self.dynamic_entries(), self.base as u64);
        linkage(&dynamic, base, name, |address, size| self.read(address, size))
    }

    fn is_shim(&self) -> bool {
        self.linkage(SHIM_FUNCTION) == Some(Linkage::Exported)
    }

    /// Whether another object that needs this name got this object.
    fn is_called(&self, name: &CStr) -> bool {
        let (path, name) = (self.name.to_bytes(), name.to_bytes());
        let file_name = path.rsplit(|byte| *byte == b'/').next();
        path == name
            || file_name == Some(name)
            || self.strings(DT_SONAME).iter().any(|own| own.to_bytes() == name)
    }

    /// The strings that its dynamic section has under a tag.
    fn strings(&self, tag: u64) -> Vec<&CStr> {
        let entries = self.dynamic_entries();
        let values = |tag| entries.iter().filter(move |(of, _)| *of == tag);
        let Some((_, table)) = values(DT_STRTAB).next() else {
            return Vec::new();
        };
        // Dynamic linkers turn most of them into addresses.
        let table = match *table as usize {
            offset if offset < self.base => offset + self.base,
            address => address,
        };
        let texts = values(tag).filter_map(|(_, at)| {
            let at = table.checked_add(*at as usize)?;
            // SAFETY: the object is loaded, nobody changes its tables, and its strings end with NUL.
            self.contains(at).then(|| unsafe { CStr::from_ptr(at as *const c_char) })
        });
        texts.collect()
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

    /// `size` bytes at an address, if they are in a segment.
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
        let name = if info.dlpi_name.is_null() {
            CString::default()
        } else {
            // SAFETY: it ends with NUL.
            unsafe { CStr::from_ptr(info.dlpi_name) }.to_owned()
        };
        let mut found = Object { name, base, segments: Vec::new(), dynamic: None };
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
