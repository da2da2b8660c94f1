"""Tells linked binaries apart, by how they begin."""

from __future__ import annotations

import struct
from pathlib import Path


class UnsupportedBinaryFormat(ValueError):
    """The file is neither ELF nor PE/COFF."""


def detect_binary_format(path: Path) -> str:
    """`elf`, or `coff` for a binary for Windows."""
    with open(path, "rb") as file:
        start = file.read(64)
        if start.startswith(b"\x7fELF"):
            return "elf"
        if start.startswith(b"MZ") and len(start) == 64:
            # The last field of this header says where that of Windows is.
            file.seek(*struct.unpack_from("<I", start, 60))
            if file.read(4) == b"PE\0\0":
                return "coff"
    raise UnsupportedBinaryFormat(f"{path}: neither ELF nor PE/COFF")


def is_elf_binary(path: Path) -> bool:
    """Whether there is an ELF file."""
    return _is(path, "elf")


def is_pe_binary(path: Path) -> bool:
    """Whether there is a binary for Windows."""
    return _is(path, "coff")


def _is(path: Path, expected: str) -> bool:
    try:
        return detect_binary_format(path) == expected
    except (UnsupportedBinaryFormat, FileNotFoundError):
        return False
