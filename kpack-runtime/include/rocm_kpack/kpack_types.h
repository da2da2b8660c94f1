/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Types of librocm_kpack: see kpack.h. Made by cbindgen from kpack-runtime; not to be edited. */

#ifndef ROCM_KPACK_KPACK_TYPES_H
#define ROCM_KPACK_KPACK_TYPES_H

#include <stdbool.h>
#include <stddef.h>

/**
 * The first bytes of an archive, and their number.
 */
#define KPACK_MAGIC "KPAK"
#define KPACK_MAGIC_SIZE 4

/**
 * The version of the archive format.
 */
#define KPACK_CURRENT_VERSION 1

/**
 * What a function returns.
 */
typedef enum kpack_error_t {
  /**
   * It worked.
   */
  KPACK_SUCCESS = 0,
  /**
   * A null argument, an index out of range, a buffer that is too small, or no target ID.
   */
  KPACK_ERROR_INVALID_ARGUMENT = 1,
  /**
   * There is no such file.
   */
  KPACK_ERROR_FILE_NOT_FOUND = 2,
  /**
   * The file is no archive, or its parts contradict each other.
   */
  KPACK_ERROR_INVALID_FORMAT = 3,
  /**
   * An archive of a version that is not known.
   */
  KPACK_ERROR_UNSUPPORTED_VERSION = 4,
  /**
   * No such kernel.
   */
  KPACK_ERROR_KERNEL_NOT_FOUND = 5,
  /**
   * A stored code object is damaged.
   */
  KPACK_ERROR_DECOMPRESSION_FAILED = 6,
  /**
   * Too little memory.
   */
  KPACK_ERROR_OUT_OF_MEMORY = 7,
  /**
   * Turned off by ROCM_KPACK_DISABLE.
   */
  KPACK_ERROR_NOT_IMPLEMENTED = 8,
  /**
   * A file that is empty or cannot be read.
   */
  KPACK_ERROR_IO_ERROR = 9,
  /**
   * The archive's table of contents is no MessagePack map of the right types.
   */
  KPACK_ERROR_MSGPACK_PARSE_FAILED = 10,
  /**
   * No file is mapped at the address.
   */
  KPACK_ERROR_PATH_DISCOVERY_FAILED = 11,
  /**
   * There is no marker.
   */
  KPACK_ERROR_INVALID_METADATA = 12,
  /**
   * No archive could be opened.
   */
  KPACK_ERROR_ARCHIVE_NOT_FOUND = 13,
  /**
   * No archive has a target that fits.
   */
  KPACK_ERROR_ARCH_NOT_FOUND = 14,
} kpack_error_t;

/**
 * How an archive stores code objects.
 */
typedef enum kpack_compression_scheme_t {
  /**
   * As they are: "none".
   */
  KPACK_COMPRESSION_NOOP = 0,
  /**
   * A Zstandard frame each: "zstd-per-kernel".
   */
  KPACK_COMPRESSION_ZSTD_PER_KERNEL = 1,
} kpack_compression_scheme_t;

/**
 * An open archive.
 */
typedef struct kpack_archive kpack_archive;

/**
 * Archives that stay open, and what the environment asks for.
 */
typedef struct kpack_cache kpack_cache;

/**
 * An open archive.
 */
typedef struct kpack_archive *kpack_archive_t;

/**
 * Archives that stay open, and what the environment asks for.
 */
typedef struct kpack_cache *kpack_cache_t;

/**
 * Is called with a target ID, which is valid during the call, and the pointer that was passed on;
 * returns whether to go on. It must not throw.
 */
typedef bool (*kpack_arch_callback_t)(const char *arch, void *user_data);

#endif  /* ROCM_KPACK_KPACK_TYPES_H */
