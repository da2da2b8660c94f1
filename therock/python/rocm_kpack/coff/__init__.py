"""Binaries for Windows without their device code. The functions are the same for all formats."""

from ..kpack_transform import NotFatBinaryError, kpack_offload_binary, read_kpack_ref_marker

__all__ = ["NotFatBinaryError", "kpack_offload_binary", "read_kpack_ref_marker"]
