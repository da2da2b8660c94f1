"""Kernel archives for Python programs, by the commands `kpack create`, `kpack list` and `kpack extract`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from .binutils import kpack
from .compression import NoOpCompressor, ZstdCompressor

_COMPRESSORS = {compressor.SCHEME_NAME: compressor for compressor in (NoOpCompressor, ZstdCompressor)}


def _run(*arguments: str | Path) -> bytes:
    """What kpack prints; a ValueError with its message if it fails."""
    done = subprocess.run([kpack(), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.decode(errors="replace").strip())
    return done.stdout


def _name(relative_path: str) -> str:
    """The name of a kernel as it is stored."""
    return PurePosixPath(str(relative_path).replace("\\", "/")).as_posix()


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
    metadata: dict[str, Any]
    payload_type: str

    @property
    def original_size(self) -> int:
        """The size of the kernel in bytes."""
        return len(self.hsaco_data)


class PackedKernelArchive:
    """An archive of kernels by name and target: one to write, or one that `read` returned."""

    def __init__(self, group_name: str, gfx_arch_family: str, gfx_arches: list[str], compressor=None) -> None:
        self.group_name = group_name
        self.gfx_arch_family = gfx_arch_family
        self.gfx_arches = [_target(gfx_arch) for gfx_arch in gfx_arches]
        self.compressor = compressor or ZstdCompressor()
        #: By name, then by target: `type`, `ordinal`, `original_size` and, if there is any, `metadata`.
        self.toc: dict[str, dict[str, dict[str, Any]]] = {}
        self._data: list[bytes] = []
        self._path: Path | None = None
        self._is_final = False

    @staticmethod
    def compute_pack_filename(group_name: str, gfx_arch_family: str) -> str:
        """The usual file name."""
        return f"{group_name}_{gfx_arch_family}.kpack"

    def prepare_kernel(
        self,
        relative_path: str,
        gfx_arch: str,
        hsaco_data: bytes,
        metadata: dict[str, Any] | None = None,
        payload_type: str = "hsaco",
    ) -> PreparedKernel:
        """A kernel to add. Threads may prepare kernels at once."""
        target = _target(gfx_arch)
        if target not in self.gfx_arches:
            raise ValueError(f"{relative_path} is for {gfx_arch}; the archive is for {', '.join(self.gfx_arches)}")
        return PreparedKernel(_name(relative_path), target, bytes(hsaco_data), dict(metadata or {}), payload_type)

    def add_kernel(self, prepared: PreparedKernel) -> None:
        """Adds a kernel. A second one of the same name and target is an error."""
        if self._path or self._is_final:
            raise RuntimeError("the archive is complete; nothing can be added")
        targets = self.toc.setdefault(prepared.relative_path, {})
        if prepared.gfx_arch in targets:
            raise ValueError(f"{prepared.relative_path} for {prepared.gfx_arch} is in the archive already")
        entry = {"type": prepared.payload_type, "ordinal": len(self._data), "original_size": prepared.original_size}
        if prepared.metadata:
            entry["metadata"] = prepared.metadata
        targets[prepared.gfx_arch] = entry
        self._data.append(prepared.hsaco_data)

    def finalize_archive(self) -> None:
        """Says that no kernel will be added."""
        self._is_final = True

    def write(self, output_path: str | Path) -> None:
        """Writes the archive. A file that is there is replaced."""
        if self._path:
            raise RuntimeError(f"the archive was read from {self._path}")
        if not self._is_final:
            raise RuntimeError("call finalize_archive() first")
        with tempfile.TemporaryDirectory(prefix="kpack-create-") as directory:
            kernels = []
            for name, targets in self.toc.items():
                for target, entry in targets.items():
                    file = str(entry["ordinal"])
                    Path(directory, file).write_bytes(self._data[entry["ordinal"]])
                    metadata = entry.get("metadata", {})
                    kernel = {"name": name, "target": target, "file": file, "type": entry["type"], "metadata": metadata}
                    kernels.append(kernel)
            archive = {
                "group_name": self.group_name,
                "gfx_arch_family": self.gfx_arch_family,
                "gfx_arches": self.gfx_arches,
                "kernels": kernels,
            }
            description = Path(directory, "archive.json")
            description.write_text(json.dumps(archive), encoding="utf-8")
            _run("create", *self.compressor.arguments(), "--from", description, "--json", "--", output_path)

    @classmethod
    def read(cls, path: str | Path) -> PackedKernelArchive:
        """Reads the table of contents of an archive."""
        listed = json.loads(_run("list", "--json", "--", path))
        compressor = _COMPRESSORS[listed["compression_scheme"]]()
        archive = cls(listed["group_name"], listed["target"], listed["targets"], compressor)
        for kernel in listed["kernels"]:
            keys = ("ordinal", "original_size", "metadata")
            entry = {"type": kernel.get("type", "hsaco"), **{key: kernel[key] for key in keys if key in kernel}}
            archive.toc.setdefault(kernel["name"], {})[kernel["target"]] = entry
        archive._path = Path(path)
        return archive

    def get_kernel(self, relative_path: str, gfx_arch: str) -> bytes | None:
        """A kernel; None if the archive does not have it."""
        stored_name, stored_target = _name(relative_path), _target(gfx_arch)
        entry = self.toc.get(stored_name, {}).get(stored_target)
        if entry is None:
            return None
        if self._path is None:
            return self._data[entry["ordinal"]]
        # With `=`, names may begin with a hyphen.
        name, target = f"--kernel={stored_name}", f"--arch={stored_target}"
        return _run("extract", name, target, "--output=-", "--", self._path)

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def __enter__(self) -> PackedKernelArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
