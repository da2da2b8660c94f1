"""The tools of ROCm's build, by the command kpack."""

from .artifact_utils import is_fat_binary
from .format_detect import UnsupportedBinaryFormat, detect_binary_format, is_elf_binary, is_pe_binary
from .kpack_transform import NotFatBinaryError, kpack_offload_binary, read_kpack_ref_marker

__all__ = [
    "NotFatBinaryError",
    "UnsupportedBinaryFormat",
    "detect_binary_format",
    "is_elf_binary",
    "is_fat_binary",
    "is_pe_binary",
    "kpack_offload_binary",
    "read_kpack_ref_marker",
]
