"""Binaries without their device code."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from .artifact_utils import is_fat_binary
from .binutils import kpack_output


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

    `kpack_search_paths` has one path, relative to the binary's directory and with @GFXARCH@ in its file name. Its
    kernels are named `kernel_name`, by default the name of the file. Returns the sizes in bytes.
    """
    if kpack_search_paths is None or len(kpack_search_paths) != 1:
        raise ValueError("kpack_search_paths: expected one path, such as .kpack/vec_@GFXARCH@.kpack")
    if not is_fat_binary(input_path):
        raise NotFatBinaryError(f"{input_path}: no device code")
    name = Path(kernel_name or Path(input_path).name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{name}: expected a path below the install prefix")
    path = kpack_search_paths[0].encode()
    size = Path(input_path).stat().st_size
    with tempfile.TemporaryDirectory(prefix="kpack-", dir=Path(output_path).parent) as prefix:
        # kpack chooses the path by the names of a module and a component. One of the same length stands for ours.
        ending = b"/k_k_@GFXARCH@.kpack"
        placeholder = path[:0].ljust(len(path) - len(ending), b"k") + ending
        if len(placeholder) != len(path) or placeholder == ending:
            raise ValueError(f"{path.decode()}: expected a path of at least {len(ending) + 1} bytes")
        binary = Path(prefix, name)
        binary.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(input_path, binary)
        directory = name.parent / placeholder.decode().partition("/")[0]
        options = ["--module=k", "--component=k", f"--kpack-dir={directory}", "--only=host", "--quiet"]
        kpack_output("split", f"--prefix={prefix}", *options, "--", binary)
        content = binary.read_bytes()
        if content.count(placeholder) != 1:
            raise RuntimeError(f"{input_path}: kpack left no marker, or the binary has the bytes of {placeholder!r}")
        binary.write_bytes(content.replace(placeholder, path))
        os.replace(binary, output_path)
    new_size = Path(output_path).stat().st_size
    if verbose:
        print(f"{output_path}: {size} -> {new_size} bytes")
    return {"original_size": size, "new_size": new_size, "removed": size - new_size}
