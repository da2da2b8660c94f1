"""Kernel archives for Python programs, by the commands `kpack create`, `kpack list` and `kpack extract`."""

from __future__ import annotations

import json
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .binutils import kpack_output
from .compression import COMPRESSION_SCHEMES, CompressionInput, Compressor, ZstdCompressor, write_archive

_MAGIC = b"KPAK"


def _name(relative_path: str) -> str:
    """The name of a kernel as it is stored."""
    return str(relative_path).replace("\\", "/")


def _target(gfx_arch: str) -> str:
    """A target's name as it is stored: with its features in alphabetical order."""
    processor, *features = gfx_arch.split(":")
    return ":".join([processor, *sorted(features)])


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel for `PackedKernelArchive.add_kernel`."""

    relative_path: str
    gfx_arch: str
    hsaco_data: bytes
    metadata: dict[str, Any] | None
    payload_type: str
    compressor: Compressor

    @property
    def compression_input(self) -> CompressionInput:
        """The kernel as it will be stored. Archives do not ask for it: kpack compresses what they write."""
        return self.compressor.prepare_kernel(self.hsaco_data, self.kernel_id)

    @property
    def kernel_id(self) -> str:
        """Its name and target, for messages."""
        return f"{self.relative_path}@{self.gfx_arch}"

    @property
    def original_size(self) -> int:
        """The size of the kernel in bytes."""
        return len(self.hsaco_data)


class PackedKernelArchive:
    """An archive of kernels by name and target: one to write, or one that `read` returned."""

    def __init__(
        self,
        group_name: str,
        gfx_arch_family: str,
        gfx_arches: list[str],
        output_path: Path | None = None,
        compressor: Compressor | None = None,
    ) -> None:
        if output_path is not None:
            raise ValueError("Streaming write mode not yet supported; give the path to write() instead")
        self.group_name = group_name
        self.gfx_arch_family = gfx_arch_family
        self.gfx_arches = gfx_arches
        self._compressor = compressor or ZstdCompressor()
        #: By name, then by target: `type`, `ordinal`, `original_size` and, if there is any, `metadata`.
        self.toc: dict[str, dict[str, dict[str, Any]]] = {}
        self._data: list[bytes] = []
        # Wrappers that share a bundle have equal kernels, which are held once.
        self._equal: dict[bytes, bytes] = {}
        self._path: Path | None = None
        self._is_final = False

    @staticmethod
    def compute_pack_filename(group_name: str, gfx_arch_family: str) -> str:
        """The usual file name."""
        return f"{group_name}-{gfx_arch_family}.kpack"

    def prepare_kernel(
        self,
        relative_path: str,
        gfx_arch: str,
        hsaco_data: bytes,
        metadata: dict[str, Any] | None = None,
        payload_type: str = "hsaco",
    ) -> PreparedKernel:
        """A kernel to add. Threads may prepare kernels at once."""
        name, data = _name(relative_path), bytes(hsaco_data)
        return PreparedKernel(name, gfx_arch, data, metadata, payload_type, self._compressor)

    def add_kernel(self, prepared: PreparedKernel) -> None:
        """Adds a kernel. A second one of the same name and target is an error."""
        if self._path or self._is_final:
            raise RuntimeError("Archive already finalized: nothing can be added")
        targets = self.toc.setdefault(prepared.relative_path, {})
        if prepared.gfx_arch in targets:
            raise ValueError(f"Kernel already exists for {prepared.relative_path} @ {prepared.gfx_arch}")
        entry = {"type": prepared.payload_type, "ordinal": len(self._data), "original_size": prepared.original_size}
        if prepared.metadata:
            entry["metadata"] = dict(prepared.metadata)
        targets[prepared.gfx_arch] = entry
        self._data.append(self._equal.setdefault(prepared.hsaco_data, prepared.hsaco_data))

    def finalize_archive(self) -> None:
        """Says that no kernel will be added."""
        if self._path or self._is_final:
            raise RuntimeError("Archive already finalized")
        self._is_final = True

    def write(self, output_path: str | Path) -> None:
        """Writes the archive. A file that is there is replaced."""
        if self._path:
            raise RuntimeError(f"the archive was read from {self._path}")
        if not self._is_final:
            raise RuntimeError("Archive not finalized: call finalize_archive() first")
        kernels, arches = [], [_target(gfx_arch) for gfx_arch in self.gfx_arches]
        for name, targets in self.toc.items():
            for target, entry in targets.items():
                stored = _target(target)
                # The table of an archive lists each target that it has code for.
                if stored not in arches:
                    arches.append(stored)
                data, metadata = self._data[entry["ordinal"]], entry.get("metadata", {})
                kernels.append((name, stored, data, entry["type"], metadata))
        Path(output_path).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="kpack-create-") as directory:
            about = (self.group_name, self.gfx_arch_family, arches)
            write_archive(Path(directory), self._compressor, *about, kernels, Path(output_path))

    @classmethod
    def read(cls, path: str | Path) -> PackedKernelArchive:
        """Reads the table of contents of an archive."""
        with open(path, "rb") as file:
            magic, version = struct.unpack("<4sI", file.read(8).ljust(8, b"\0"))
        if magic != _MAGIC:
            raise ValueError(f"Invalid magic number: {magic!r} (expected {_MAGIC!r})")
        if version != 1:
            raise ValueError(f"Unsupported format version: {version} (expected 1)")
        listed = json.loads(kpack_output("list", "--json", "--", path))
        scheme = listed["compression_scheme"]
        if scheme not in COMPRESSION_SCHEMES:
            raise ValueError(f"Unknown compression scheme: {scheme}")
        compressor = COMPRESSION_SCHEMES[scheme]()
        archive = cls(listed["group_name"], listed["target"], listed["targets"], compressor=compressor)
        for kernel in listed["kernels"]:
            keys = ("ordinal", "original_size", "metadata")
            entry = {"type": kernel.get("type", "hsaco"), **{key: kernel[key] for key in keys if key in kernel}}
            archive.toc.setdefault(kernel["name"], {})[kernel["target"]] = entry
        archive._path = Path(path)
        return archive

    def get_kernel(self, relative_path: str, gfx_arch: str) -> bytes | None:
        """A kernel; None if the archive does not have it."""
        if not self._path and not self._is_final:
            raise RuntimeError("Cannot get_kernel() before archive is finalized: call finalize_archive() first")
        kernel = _name(relative_path)
        targets = self.toc.get(kernel, {})
        # The table has the targets as they were given, or as they are stored.
        target = gfx_arch if gfx_arch in targets else _target(gfx_arch)
        entry = targets.get(target)
        if entry is None:
            return None
        if self._path is None:
            return self._data[entry["ordinal"]]
        # With `=`, names may begin with a hyphen.
        return kpack_output("extract", f"--kernel={kernel}", f"--arch={target}", "--output=-", "--", self._path)

    def __repr__(self) -> str:
        kernels = sum(map(len, self.toc.values()))
        about = f"group={self.group_name}, family={self.gfx_arch_family}"
        return f"PackedKernelArchive({about}, binaries={len(self.toc)}, kernels={kernels})"

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def __enter__(self) -> PackedKernelArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
