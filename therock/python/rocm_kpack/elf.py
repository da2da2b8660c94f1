"""Binaries without their device code."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from pathlib import Path

from .artifact_utils import is_fat_binary
from .binutils import kpack_output


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
) -> dict[str, int]:
    """Writes a binary without its device code, and with a marker that leads to archives.

    `kpack_search_paths` are relative to the binary's directory, with @GFXARCH@ in their file names. The binary's
    kernels are named `kernel_name`, by default the name of the file. The marker says which code belongs to the
    binary, so the archives need all of it: for each wrapper, even if wrappers share a bundle. Returns the sizes in
    bytes.
    """
    if not kpack_search_paths:
        raise ValueError("kpack_search_paths: expected paths, such as .kpack/vec_@GFXARCH@.kpack")
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
        written = _KEY + _LIST_OF_ONE + _text(placeholder)
        if content.count(written) != 1:
            raise RuntimeError(f"{input_path}: kpack left no marker, or the binary has the bytes of {written!r}")
        binary.write_bytes(content.replace(written, _KEY + listed))
        os.replace(binary, output_path)
    new_size = Path(output_path).stat().st_size
    if verbose:
        print(f"{output_path}: {size} -> {new_size} bytes")
    return {"original_size": size, "new_size": new_size, "removed": size - new_size}


def _listed(paths: list[str]) -> tuple[bytes, bytes]:
    """A list of paths as the marker has it, and a path that kpack can choose whose list is as long."""
    texts = [str(path).encode() for path in paths]
    count = bytes([0x90 | len(texts)]) if len(texts) < 16 else b"\xdc" + struct.pack(">H", len(texts))
    if sum(map(len, texts)) > _MAX_PATHS:
        raise ValueError(f"{len(texts)} paths of {sum(map(len, texts))} bytes in all (expected at most {_MAX_PATHS})")
    for is_wide in (False, True):
        listed = count + _text(texts[0], is_wide) + b"".join(map(_text, texts[1:]))
        room = len(listed) - len(_LIST_OF_ONE)
        # With the sizes before texts, not every length is one of a text.
        for length in (room - 1, room - 2, room - 3):
            # Directories have names of at most 255 bytes.
            start = (b"k" * 199 + b"/") * (length // 200 + 1)
            start = start[: max(length - len(_ENDING) - 1, 0)] + b"k"
            placeholder = start + _ENDING
            if len(_text(placeholder)) == room:
                return listed, placeholder
    raise ValueError(f"{paths}: expected {len(_ENDING) + 1} bytes or more in all")


def _text(text: bytes, is_wide: bool = False) -> bytes:
    """A text in MessagePack, with its size before it; if `is_wide`, in a byte more than that needs."""
    if len(text) < 32 and not is_wide:
        return bytes([0xA0 | len(text)]) + text
    if len(text) < 256 and not (is_wide and len(text) >= 32):
        return b"\xd9" + struct.pack(">B", len(text)) + text
    return b"\xda" + struct.pack(">H", len(text)) + text
