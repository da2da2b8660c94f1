//! Functions of the C interface. Their comments go into the header, which has the contract of all of them
//! once, at the top.

#![allow(
    clippy::missing_safety_doc,
    reason = "the contract is in the module's documentation and at the top of the header"
)]

use std::ffi::{CString, c_char, c_void};

use kpack::internal::{
    Archive, Cache, Error, Request, TargetId, discover_binary_path, marker_at, path_of, text_of,
};

use super::arguments::{INVALID, Out, Output, code, guard, isas, text};
use super::kpack_error_t;
use super::types::{
    kpack_arch_callback_t, kpack_archive, kpack_archive_t, kpack_cache, kpack_cache_t,
};

/// Opens the archive at `path`: reads its header and table of contents, and nothing else.
///
/// Close `*archive` with kpack_close(). An error leaves it unchanged.
///
/// Returns KPACK_ERROR_INVALID_ARGUMENT for a null argument, KPACK_ERROR_FILE_NOT_FOUND,
/// KPACK_ERROR_IO_ERROR for a file that is empty or cannot be read, KPACK_ERROR_INVALID_FORMAT,
/// KPACK_ERROR_UNSUPPORTED_VERSION, KPACK_ERROR_MSGPACK_PARSE_FAILED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_open(
    path: *const c_char,
    archive: *mut kpack_archive_t,
) -> kpack_error_t {
    guard(|| {
        // SAFETY: by contract.
        let (path, out) = unsafe { (text(path)?, Out::new(archive)?) };
        let opened = Archive::open(&path_of(path));
        let opened = opened.and_then(kpack_archive::new).map_err(code)?;
        out.set(Box::into_raw(Box::new(opened)));
        Ok(())
    })
}

/// Closes an archive, and frees what it owns. Nobody may use it afterwards. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_close(archive: kpack_archive_t) {
    if !archive.is_null() {
        guard(|| {
            // SAFETY: it came from kpack_open, and is not used any more.
            drop(unsafe { Box::from_raw(archive) });
            Ok(())
        });
    }
}

/// Returns the number of targets in the archive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_get_architecture_count(
    archive: kpack_archive_t,
    count: *mut usize,
) -> kpack_error_t {
    // SAFETY: by contract.
    unsafe { tell_count(archive, count, |archive| &archive.architectures) }
}

/// Returns the target ID at `index`, such as "gfx90a:xnack+". The archive owns the string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_get_architecture(
    archive: kpack_archive_t,
    index: usize,
    arch: *mut *const c_char,
) -> kpack_error_t {
    // SAFETY: by contract.
    unsafe { tell_name(archive, index, arch, |archive| &archive.architectures) }
}

/// Returns the number of kernel names in the archive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_get_binary_count(
    archive: kpack_archive_t,
    count: *mut usize,
) -> kpack_error_t {
    // SAFETY: by contract.
    unsafe { tell_count(archive, count, |archive| &archive.names) }
}

/// Returns the kernel name at `index`, such as "lib/librocblas.so.5#0", for kpack_get_kernel(). The
/// archive owns the string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_get_binary(
    archive: kpack_archive_t,
    index: usize,
    binary: *mut *const c_char,
) -> kpack_error_t {
    // SAFETY: by contract.
    unsafe { tell_name(archive, index, binary, |archive| &archive.names) }
}

/// Copies the code object with this kernel name for this target. Any number of threads may do so with one
/// archive.
///
/// Free `*kernel_data` with kpack_free_kernel(); it outlives the archive. An error leaves the outputs
/// unchanged.
///
/// Returns KPACK_ERROR_KERNEL_NOT_FOUND if the archive has no such name, or not for that target;
/// KPACK_ERROR_DECOMPRESSION_FAILED, KPACK_ERROR_INVALID_FORMAT, KPACK_ERROR_OUT_OF_MEMORY; and
/// KPACK_ERROR_IO_ERROR if the file was truncated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_get_kernel(
    archive: kpack_archive_t,
    binary_name: *const c_char,
    arch: *const c_char,
    kernel_data: *mut *mut c_void,
    kernel_size: *mut usize,
) -> kpack_error_t {
    guard(|| {
        // SAFETY: by contract.
        let (archive, name, target) = unsafe {
            let archive = archive.as_ref().ok_or(INVALID)?;
            (archive, text(binary_name)?, text(arch)?)
        };
        // SAFETY: by contract.
        let output = unsafe { Output::new(kernel_data, kernel_size)? };
        let (Ok(name), Ok(target)) = (std::str::from_utf8(name), std::str::from_utf8(target))
        else {
            return Err(kpack_error_t::KPACK_ERROR_KERNEL_NOT_FOUND);
        };
        output.set(archive.archive.load_into(name, target).map_err(code)?);
        Ok(())
    })
}

/// Frees memory from kpack_get_kernel(). Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_free_kernel(kernel_data: *mut c_void) {
    // SAFETY: it came from malloc or calloc.
    unsafe { libc::free(kernel_data) };
}

/// Creates a cache, which keeps archives open. Reads the environment here, once: ROCM_KPACK_PATH,
/// ROCM_KPACK_PATH_PREFIX, ROCM_KPACK_DISABLE, ROCM_KPACK_DEBUG; but not in a process with raised
/// privileges.
///
/// Free `*cache` with kpack_cache_destroy().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_cache_create(cache: *mut kpack_cache_t) -> kpack_error_t {
    guard(|| {
        // SAFETY: by contract.
        let out = unsafe { Out::new(cache)? };
        let cache = Cache::from_environment();
        out.set(Box::into_raw(Box::new(kpack_cache { cache })));
        Ok(())
    })
}

/// Closes all archives of a cache, and frees it. Nobody may use it afterwards. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_cache_destroy(cache: kpack_cache_t) {
    if !cache.is_null() {
        guard(|| {
            // SAFETY: it came from kpack_cache_create, and is not used any more.
            drop(unsafe { Box::from_raw(cache) });
            Ok(())
        });
    }
}

/// Returns the path of the file that is mapped at an address and, if `offset_out` is not null, the offset
/// of that address in the file.
///
/// Returns KPACK_ERROR_PATH_DISCOVERY_FAILED if no file is mapped there; KPACK_ERROR_IO_ERROR if the
/// process cannot find out, for example because it has too many open files; and
/// KPACK_ERROR_INVALID_ARGUMENT for a null argument, and if the path with its final NUL needs more than
/// `path_out_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_discover_binary_path(
    address_in_binary: *const c_void,
    path_out: *mut c_char,
    path_out_size: usize,
    offset_out: *mut usize,
) -> kpack_error_t {
    guard(|| {
        if address_in_binary.is_null() || path_out.is_null() || path_out_size == 0 {
            return Err(INVALID);
        }
        let found = discover_binary_path(address_in_binary as usize);
        let (path, offset) = found.map_err(|error| {
            if error.is_exhaustion() {
                code(error)
            } else {
                kpack_error_t::KPACK_ERROR_PATH_DISCOVERY_FAILED
            }
        })?;
        let path = CString::new(text_of(&path)).map_err(|_| INVALID)?;
        let path = path.as_bytes_with_nul();
        if path.len() > path_out_size {
            return Err(INVALID);
        }
        // SAFETY: by contract; the size was compared.
        unsafe {
            path_out.cast::<u8>().copy_from_nonoverlapping(path.as_ptr(), path.len());
            if let Ok(out) = Out::new(offset_out) {
                out.set(offset);
            }
        }
        Ok(())
    })
}

/// Finds the code object of a split binary that runs on a GPU, and copies it. Any number of threads may
/// do so with one cache.
///
/// `hipk_metadata` is the wrapper's pointer to the marker, and `co_index` the wrapper's index.
/// `arch_list` has the GPU's ISAs, the preferred one first. For each ISA, and each target that runs on
/// it, the most specific first, this looks into every archive in the order of the search paths. It skips
/// ISAs that are null, empty or not target IDs; if there is no other, it returns
/// KPACK_ERROR_INVALID_ARGUMENT.
///
/// Free `*code_object_out` with kpack_free_code_object(); it outlives the cache. An error leaves the
/// outputs unchanged.
///
/// Returns the errors of kpack_get_kernel(), and
/// - KPACK_ERROR_NOT_IMPLEMENTED with ROCM_KPACK_DISABLE;
/// - KPACK_ERROR_INVALID_METADATA if there is no marker;
/// - KPACK_ERROR_IO_ERROR if the process has too many open files, or too little memory to open an archive;
/// - KPACK_ERROR_ARCHIVE_NOT_FOUND if no archive can be opened;
/// - KPACK_ERROR_INVALID_FORMAT if an archive lacks checksums, though the marker requires them, and no other has the code;
/// - KPACK_ERROR_ARCH_NOT_FOUND if none has a matching target, or those that have it belong to another build
///   of the binary;
/// - KPACK_ERROR_KERNEL_NOT_FOUND if the archives for the target lack the kernel.
///
/// Prints once on standard error why an archive of another build was not used, and with ROCM_KPACK_DEBUG,
/// all that was tried.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_load_code_object(
    cache: kpack_cache_t,
    hipk_metadata: *const c_void,
    binary_path: *const c_char,
    co_index: u32,
    arch_list: *const *const c_char,
    arch_count: usize,
    code_object_out: *mut *mut c_void,
    code_object_size_out: *mut usize,
) -> kpack_error_t {
    guard(|| {
        if hipk_metadata.is_null() {
            return Err(INVALID);
        }
        // SAFETY: by contract.
        let (cache, binary, isas, output) = unsafe {
            (
                &cache.as_ref().ok_or(INVALID)?.cache,
                text(binary_path)?,
                isas(arch_list, arch_count)?,
                Output::new(code_object_out, code_object_size_out)?,
            )
        };
        let binary = path_of(binary);
        let complain = |error: &Error| cache.complain(&binary, error.id(), error);
        if cache.environment().disable {
            complain(&Error::Disabled);
            return Err(code(Error::Disabled));
        }
        // An unknown ISA must not stop the known ones.
        let mut known: Vec<TargetId> = Vec::new();
        for isa in isas {
            match String::from_utf8_lossy(isa).parse() {
                Ok(isa) => known.push(isa),
                Err(error) => complain(&error.into()),
            }
        }
        let loaded = marker_at(hipk_metadata as usize).and_then(|marker| {
            let isas = &known;
            cache.load_into(&Request { marker: &marker, binary: &binary, co_index, isas })
        });
        if let Err(error @ (Error::Marker { .. } | Error::NotReadable { .. })) = &loaded {
            complain(error);
        }
        output.set(loaded.map_err(code)?);
        Ok(())
    })
}

/// Frees memory from kpack_load_code_object(). Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_free_code_object(code_object: *mut c_void) {
    // SAFETY: it came from malloc or calloc.
    unsafe { libc::free(code_object) };
}

/// Calls `callback` with each target ID of the archive at `archive_path`, until it returns false.
///
/// Returns the errors of kpack_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpack_enumerate_architectures(
    archive_path: *const c_char,
    callback: kpack_arch_callback_t,
    user_data: *mut c_void,
) -> kpack_error_t {
    guard(|| {
        // SAFETY: by contract.
        let path = unsafe { text(archive_path)? };
        let callback = callback.ok_or(INVALID)?;
        let opened = Archive::open(&path_of(path));
        let archive = opened.and_then(kpack_archive::new).map_err(code)?;
        for architecture in &archive.architectures {
            // SAFETY: by contract; the string lives during the call.
            if !unsafe { callback(architecture.as_ptr(), user_data) } {
                break;
            }
        }
        Ok(())
    })
}

/// # Safety
/// `archive` is null or open, `count` is null or may be written.
unsafe fn tell_count(
    archive: kpack_archive_t,
    count: *mut usize,
    list: impl Fn(&kpack_archive) -> &Vec<CString>,
) -> kpack_error_t {
    guard(|| {
        // SAFETY: by contract.
        let (archive, count) = unsafe { (archive.as_ref().ok_or(INVALID)?, Out::new(count)?) };
        count.set(list(archive).len());
        Ok(())
    })
}

/// # Safety
/// `archive` is null or open, `name` is null or may be written.
unsafe fn tell_name(
    archive: kpack_archive_t,
    index: usize,
    name: *mut *const c_char,
    list: impl Fn(&kpack_archive) -> &Vec<CString>,
) -> kpack_error_t {
    guard(|| {
        // SAFETY: by contract.
        let (archive, name) = unsafe { (archive.as_ref().ok_or(INVALID)?, Out::new(name)?) };
        name.set(list(archive).get(index).ok_or(INVALID)?.as_ptr());
        Ok(())
    })
}
