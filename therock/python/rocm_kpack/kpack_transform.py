"""Binaries without their device code."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

from .artifact_utils import is_fat_binary
from .binutils import kpack_output
from .format_detect import detect_binary_format


# In the marker, which is a MessagePack map: the key of the search paths, and the start of a list of one.
_KEY = b"\xb2kpack_search_paths"
_LIST_OF_ONE = b"\x91"
# What the path ends in that kpack makes of the names of a module and a component.
_ENDING = b"/k_k_@GFXARCH@.kpack"
# As many bytes of paths as one path may have, so that a directory can stand for them.
_MAX_PATHS = 3000


class NotFatBinaryError(ValueError):
    """The binary has no device code."""


def kpack_offload_binary(
    input_path: Path,
    output_path: Path,
    kpack_search_paths: list[str] | None = None,
    kernel_name: str | None = None,
    verbose: bool = False,
) -> dict[str, Any]:
    """Writes a binary without its device code, and with a marker that leads to archives.

    `kpack_search_paths` are relative to the binary's directory, with @GFXARCH@ in their file names. The binary's
    kernels are named `kernel_name`, by default the name of the file. The marker says which code belongs to the
    binary, so the archives need all of it: for each wrapper, even if wrappers share a bundle. Returns the format,
    and the sizes in bytes.
    """
    if not kpack_search_paths or isinstance(kpack_search_paths, str):
        raise ValueError("kpack_search_paths: expected a list of paths, such as .kpack/vec_@GFXARCH@.kpack")
    if not is_fat_binary(input_path):
        raise NotFatBinaryError(f"{input_path}: no device code")
    name = Path(kernel_name or Path(input_path).name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{name}: expected a path below the install prefix")
    listed, placeholder = _listed(kpack_search_paths)
    size = Path(input_path).stat().st_size
    with tempfile.TemporaryDirectory(prefix="kpack-", dir=Path(output_path).parent) as prefix:
        binary = Path(prefix, name)
        binary.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(input_path, binary)
        directory = name.parent / placeholder[: -len(_ENDING)].decode()
        options = ["--module=k", "--component=k", f"--kpack-dir={directory}", "--only=host", "--quiet"]
        kpack_output("split", f"--prefix={prefix}", *options, "--", binary)
        content = binary.read_bytes()
        written = _KEY + _LIST_OF_ONE + _shortest_text(placeholder)
        if content.count(written) != 1:
            raise RuntimeError(f"{input_path}: kpack left no marker, or the binary has the bytes of {written!r}")
        binary.write_bytes(_with_checksum(content.replace(written, _KEY + listed)))
        os.replace(binary, output_path)
    new_size = Path(output_path).stat().st_size
    if verbose:
        print(f"{output_path}: {size} -> {new_size} bytes")
    sizes = {"original_size": size, "new_size": new_size, "removed": size - new_size}
    return {"format": detect_binary_format(output_path), **sizes}


def read_kpack_ref_marker(binary_path: Path) -> dict[str, Any] | None:
    """What the marker of a split binary says: `kpack_search_paths` and `kernel_name`. None if it is not split."""
    detect_binary_format(binary_path)
    try:
        shown = json.loads(kpack_output("show", "--json", "--", binary_path))
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    keys = ("kpack_search_paths", "kernel_name")
    return {key: shown[key] for key in keys} if keys[0] in shown else None


def _with_checksum(content: bytes) -> bytes:
    """The same binary; that of Windows with its checksum (PE format, `CheckSum`), if it had one."""
    if not content.startswith(b"MZ"):
        return content
    at = struct.unpack_from("<I", content, 0x3C)[0] + 0x58
    before, own, after = content[:at], content[at : at + 4], content[at + 4 :]
    if own == bytes(4):
        return content
    words = array("H", before + bytes(4) + after + bytes(len(content) % 2))
    if sys.byteorder == "big":
        words.byteswap()
    total = sum(words)
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return before + struct.pack("<I", total + len(content)) + after


def _listed(paths: list[str]) -> tuple[bytes, bytes]:
    """A list of paths as the marker has it, and a path that kpack can choose whose list is as long."""
    first, *others = [str(path).encode() for path in paths]
    size = sum(map(len, [first, *others]))
    if size > _MAX_PATHS:
        raise ValueError(f"{len(paths)} paths of {size} bytes in all (expected at most {_MAX_PATHS})")
    rest = b"".join(map(_shortest_text, others))
    # Not every length is one of a list of one, and a short path is shorter than one that kpack can choose. But sizes
    # may be written in more bytes than they need.
    for start in _sizes(len(paths), (0x90, 15), (None, 0), (0xDC, 0xFFFF), (0xDD, 0xFFFFFFFF)):
        for text in _texts(first):
            listed = start + text + rest
            for length in range(len(listed) - 4, len(listed) - 1):
                placeholder = _placeholder(length)
                if len(_LIST_OF_ONE + _shortest_text(placeholder)) == len(listed):
                    return listed, placeholder
    raise ValueError(f"{paths}: expected paths of {len(_placeholder(0)) - 8} bytes or more in all")


def _placeholder(length: int) -> bytes:
    """A path of this length, or of the least one, that kpack makes of a directory and its names."""
    # Directories have names of at most 255 bytes.
    start = (b"k" * 199 + b"/") * (length // 200 + 1)
    return start[: max(length - len(_ENDING) - 1, 0)] + b"k" + _ENDING


def _sizes(size: int, *forms: tuple[int | None, int]) -> list[bytes]:
    """A size in MessagePack, in each form that can hold it: those of 0, 1, 2 and 4 bytes, as the code that each begins
    with and its maximum."""
    found = []
    for (code, maximum), form in zip(forms, ("", ">B", ">H", ">I")):
        if code is not None and size <= maximum:
            found.append(bytes([code]) + struct.pack(form, size) if form else bytes([code | size]))
    return found


def _texts(text: bytes) -> list[bytes]:
    """A text in MessagePack, in each form, the shortest first."""
    sizes = _sizes(len(text), (0xA0, 31), (0xD9, 0xFF), (0xDA, 0xFFFF), (0xDB, 0xFFFFFFFF))
    return [size + text for size in sizes]


def _shortest_text(text: bytes) -> bytes:
    """A text in MessagePack."""
    return _texts(text)[0]
