"""Scripts import the functions from here as well."""

from ..kpack_transform import NotFatBinaryError, kpack_offload_binary, read_kpack_ref_marker

__all__ = ["NotFatBinaryError", "kpack_offload_binary", "read_kpack_ref_marker"]
