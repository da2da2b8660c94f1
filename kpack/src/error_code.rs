//! The numbers of errors in the C interface.

#![allow(non_camel_case_types)]

/// The result of a function.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum kpack_error_t {
    /// Success.
    KPACK_SUCCESS = 0,
    /// A null argument, an index out of range, a buffer that is too small, or no valid target ID.
    KPACK_ERROR_INVALID_ARGUMENT = 1,
    /// There is no such file.
    KPACK_ERROR_FILE_NOT_FOUND = 2,
    /// The file is not an archive, or its parts contradict each other.
    KPACK_ERROR_INVALID_FORMAT = 3,
    /// An archive of an unsupported version.
    KPACK_ERROR_UNSUPPORTED_VERSION = 4,
    /// No such kernel.
    KPACK_ERROR_KERNEL_NOT_FOUND = 5,
    /// A stored code object is damaged.
    KPACK_ERROR_DECOMPRESSION_FAILED = 6,
    /// Too little memory.
    KPACK_ERROR_OUT_OF_MEMORY = 7,
    /// ROCM_KPACK_DISABLE is set.
    KPACK_ERROR_NOT_IMPLEMENTED = 8,
    /// A file that is empty or cannot be read.
    KPACK_ERROR_IO_ERROR = 9,
    /// The archive's table of contents is not a MessagePack map of the right types.
    KPACK_ERROR_MSGPACK_PARSE_FAILED = 10,
    /// No file is mapped at the address.
    KPACK_ERROR_PATH_DISCOVERY_FAILED = 11,
    /// There is no marker.
    KPACK_ERROR_INVALID_METADATA = 12,
    /// No archive could be opened.
    KPACK_ERROR_ARCHIVE_NOT_FOUND = 13,
    /// No archive has a matching target.
    KPACK_ERROR_ARCH_NOT_FOUND = 14,
}
