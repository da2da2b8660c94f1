"""How archives store kernels."""

from __future__ import annotations

import json
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .binutils import kpack_output


class CompressionInput:
    """A kernel as it is stored."""


class Compressor:
    """A way to store kernels."""

    SCHEME_NAME: str

    def arguments(self) -> list[str]:
        """The arguments of `kpack create`."""
        raise NotImplementedError

    def prepare_kernel(self, kernel_data: bytes, kernel_id: str) -> CompressionInput:
        """A kernel as it is stored."""
        raise NotImplementedError

    def finalize(self, inputs: list[tuple[str, CompressionInput]]) -> tuple[bytes, dict]:
        """The stored kernels of an archive, and what its table says of them."""
        raise NotImplementedError


@dataclass
class NoOpCompressionInput(CompressionInput):
    """A kernel as it is."""

    data: bytes


class NoOpCompressor(Compressor):
    """Stores kernels as they are."""

    SCHEME_NAME = "none"

    def arguments(self) -> list[str]:
        return ["--compression", "none"]

    def prepare_kernel(self, kernel_data: bytes, kernel_id: str) -> NoOpCompressionInput:
        return NoOpCompressionInput(kernel_data)

    def finalize(self, inputs: list[tuple[str, CompressionInput]]) -> tuple[bytes, dict]:
        stored, blobs = bytearray(), []
        for _, kernel in inputs:
            blobs.append({"offset": len(stored), "size": len(kernel.data)})
            stored += kernel.data
        return bytes(stored), {"blobs": blobs}


@dataclass
class ZstdCompressionInput(CompressionInput):
    """A kernel as a Zstandard frame."""

    kernel_id: str
    compressed_frame: bytes
    original_size: int


class ZstdCompressor(Compressor):
    """Stores each kernel as a Zstandard frame."""

    SCHEME_NAME = "zstd-per-kernel"

    def __init__(self, compression_level: int = 3) -> None:
        self.compression_level = compression_level

    def arguments(self) -> list[str]:
        return ["--compression", "zstd", "--level", str(self.compression_level)]

    def prepare_kernel(self, kernel_data: bytes, kernel_id: str) -> ZstdCompressionInput:
        """Compresses one kernel, in a process of its own: archives compress theirs when they are written."""
        with tempfile.TemporaryDirectory(prefix="kpack-create-") as directory:
            archive = write_archive(Path(directory), self, "", "", ["gfx900"], [("k", "gfx900", kernel_data, "hsaco", {})])
            content = archive.read_bytes()
        # The frames begin after the header and their number, each with its size.
        (size,) = struct.unpack_from("<I", content, 68)
        return ZstdCompressionInput(kernel_id, content[72 : 72 + size], len(kernel_data))

    def finalize(self, inputs: list[tuple[str, CompressionInput]]) -> tuple[bytes, dict]:
        stored = bytearray(struct.pack("<I", len(inputs)))
        for _, kernel in inputs:
            stored += struct.pack("<I", len(kernel.compressed_frame)) + kernel.compressed_frame
        return bytes(stored), {"zstd_offset": 0, "zstd_size": len(stored)}


COMPRESSION_SCHEMES = {scheme.SCHEME_NAME: scheme for scheme in (NoOpCompressor, ZstdCompressor)}


def write_archive(
    directory: Path,
    compressor: Compressor,
    group_name: str,
    gfx_arch_family: str,
    gfx_arches: list[str],
    kernels: list[tuple[str, str, bytes, str, dict]],
    output: Path | None = None,
) -> Path:
    """Writes an archive of kernels: name, target, bytes, type and metadata of each. `directory` is for scratch files."""
    listed, files = [], {}
    for name, target, data, kind, metadata in kernels:
        if id(data) not in files:
            files[id(data)] = str(len(files))
            Path(directory, files[id(data)]).write_bytes(data)
        listed.append({"name": name, "target": target, "file": files[id(data)], "type": kind, "metadata": metadata})
    archive = {
        "group_name": group_name,
        "gfx_arch_family": gfx_arch_family,
        "gfx_arches": gfx_arches,
        "kernels": listed,
    }
    description = Path(directory, "archive.json")
    description.write_text(json.dumps(archive), encoding="utf-8")
    output = output or Path(directory, "archive.kpack")
    kpack_output("create", *compressor.arguments(), "--from", description, "--json", "--", output)
    return output
