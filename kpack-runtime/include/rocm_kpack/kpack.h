/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* librocm_kpack: finds the device code of split HIP binaries.
 *
 * Made by cbindgen from kpack-runtime; not to be edited.
 *
 * For all functions: pointers are null or valid; where null is not allowed it is an error,
 * KPACK_ERROR_INVALID_ARGUMENT. Strings end with NUL. Any number of threads may use one archive or
 * cache at the same time; the one that closes it must be the last. Outputs are written only where
 * KPACK_SUCCESS is returned. No file, however damaged, makes a function crash.
 */

#ifndef ROCM_KPACK_KPACK_H
#define ROCM_KPACK_KPACK_H

#include <stddef.h>
#include <stdint.h>
#include "kpack_export.h"
#include "kpack_types.h"

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Opens the archive at `path`: reads its header and table of contents, and nothing else.
 *
 * `*archive` is to be closed with kpack_close(). After an error it is as it was.
 *
 * Returns KPACK_ERROR_INVALID_ARGUMENT for a null argument, KPACK_ERROR_FILE_NOT_FOUND,
 * KPACK_ERROR_IO_ERROR for a file that is empty or cannot be read, KPACK_ERROR_INVALID_FORMAT,
 * KPACK_ERROR_UNSUPPORTED_VERSION, KPACK_ERROR_MSGPACK_PARSE_FAILED.
 */
KPACK_API kpack_error_t kpack_open(const char *path, kpack_archive_t *archive);

/**
 * Closes an archive, and frees what it owns. Nothing may use it any more. Null is fine.
 */
KPACK_API void kpack_close(kpack_archive_t archive);

/**
 * Tells how many targets the archive has.
 */
KPACK_API kpack_error_t kpack_get_architecture_count(kpack_archive_t archive, size_t *count);

/**
 * Tells the target ID at `index`, such as "gfx90a:xnack+". The archive owns the string.
 */
KPACK_API
kpack_error_t kpack_get_architecture(kpack_archive_t archive,
                                     size_t index,
                                     const char **arch);

/**
 * Tells how many names the archive has kernels under.
 */
KPACK_API kpack_error_t kpack_get_binary_count(kpack_archive_t archive, size_t *count);

/**
 * Tells the name at `index`, such as "lib/librocblas.so.5#0", which is what kpack_get_kernel()
 * takes. The archive owns the string.
 */
KPACK_API
kpack_error_t kpack_get_binary(kpack_archive_t archive,
                               size_t index,
                               const char **binary);

/**
 * Makes a copy of the code object under a name, for a target. Any number of threads may do so with
 * one archive.
 *
 * `*kernel_data` is to be freed with kpack_free_kernel(), and outlives the archive. After an error
 * the outputs are as they were.
 *
 * Returns KPACK_ERROR_KERNEL_NOT_FOUND where the archive has no such name or not for that target,
 * KPACK_ERROR_DECOMPRESSION_FAILED, KPACK_ERROR_INVALID_FORMAT, KPACK_ERROR_OUT_OF_MEMORY, and
 * KPACK_ERROR_IO_ERROR where the file has become shorter.
 */
KPACK_API
kpack_error_t kpack_get_kernel(kpack_archive_t archive,
                               const char *binary_name,
                               const char *arch,
                               void **kernel_data,
                               size_t *kernel_size);

/**
 * Frees what kpack_get_kernel() made. Null is fine.
 */
KPACK_API void kpack_free_kernel(void *kernel_data);

/**
 * Makes a cache, which keeps archives open. The environment is read here, once: ROCM_KPACK_PATH,
 * ROCM_KPACK_PATH_PREFIX, ROCM_KPACK_DISABLE, ROCM_KPACK_DEBUG; not in a process with raised
 * privileges.
 *
 * `*cache` is to be freed with kpack_cache_destroy().
 */
KPACK_API kpack_error_t kpack_cache_create(kpack_cache_t *cache);

/**
 * Closes all archives of a cache, and frees it. Nothing may use it any more. Null is fine.
 */
KPACK_API void kpack_cache_destroy(kpack_cache_t cache);

/**
 * Tells the path of the file that is mapped at an address, and, where `offset_out` is not null, the
 * offset of that address in the file.
 *
 * Returns KPACK_ERROR_PATH_DISCOVERY_FAILED where no file is mapped there, KPACK_ERROR_IO_ERROR where
 * that cannot be told, as in a process with too many open files, and KPACK_ERROR_INVALID_ARGUMENT for a null argument and where the path with its final NUL has more
 * than `path_out_size` bytes.
 */
KPACK_API
kpack_error_t kpack_discover_binary_path(const void *address_in_binary,
                                         char *path_out,
                                         size_t path_out_size,
                                         size_t *offset_out);

/**
 * Finds the code object of a split binary that runs on a GPU, and makes a copy of it. Any number of
 * threads may do so with one cache.
 *
 * `hipk_metadata` is the wrapper's pointer, to the marker; `co_index` the wrapper's index.
 * `arch_list` has the GPU's ISAs, the preferred one first. For each, every target that runs on it
 * is looked for, the most specific first, in every archive, in the order of the search paths. ISAs
 * that are null, empty or no target IDs are passed over; if there is no other, that is
 * KPACK_ERROR_INVALID_ARGUMENT.
 *
 * `*code_object_out` is to be freed with kpack_free_code_object(), and outlives the cache. After an
 * error the outputs are as they were.
 *
 * Returns KPACK_ERROR_NOT_IMPLEMENTED with ROCM_KPACK_DISABLE, KPACK_ERROR_INVALID_METADATA where
 * there is no marker, KPACK_ERROR_IO_ERROR where the process has too many open files or the system has
 * no memory to open an archive, KPACK_ERROR_ARCHIVE_NOT_FOUND where no archive can be opened,
 * KPACK_ERROR_ARCH_NOT_FOUND where none has a target that fits, KPACK_ERROR_KERNEL_NOT_FOUND where
 * none of those has the kernel, or it was made for another build of the binary, and what
 * kpack_get_kernel() returns. With ROCM_KPACK_DEBUG, standard
 * error has what was tried.
 */
KPACK_API
kpack_error_t kpack_load_code_object(kpack_cache_t cache,
                                     const void *hipk_metadata,
                                     const char *binary_path,
                                     uint32_t co_index,
                                     const char *const *arch_list,
                                     size_t arch_count,
                                     void **code_object_out,
                                     size_t *code_object_size_out);

/**
 * Frees what kpack_load_code_object() made. Null is fine.
 */
KPACK_API void kpack_free_code_object(void *code_object);

/**
 * Calls `callback` with each target ID of the archive at `archive_path`, until it returns false.
 *
 * Returns what kpack_open() returns.
 */
KPACK_API
kpack_error_t kpack_enumerate_architectures(const char *archive_path,
                                            kpack_arch_callback_t callback,
                                            void *user_data);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ROCM_KPACK_KPACK_H */
