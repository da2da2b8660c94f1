"""Artifact directories and their files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Callable, Iterator

from .binutils import kpack_output
from .format_detect import UnsupportedBinaryFormat, detect_binary_format

_MANIFEST = "artifact_manifest.txt"


def read_artifact_manifest(artifact_dir: Path) -> list[str]:
    """The prefixes of an artifact."""
    path = Path(artifact_dir, _MANIFEST)
    if not path.exists():
        raise FileNotFoundError(f"{_MANIFEST} not found in {artifact_dir}")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()]


def write_artifact_manifest(artifact_dir: Path, prefixes: list[str]) -> None:
    """Says which prefixes an artifact has."""
    Path(artifact_dir, _MANIFEST).write_text("".join(f"{prefix}\n" for prefix in prefixes), encoding="utf-8")


def scan_directory(
    root_dir: Path, predicate: Callable[[Path, os.DirEntry], bool] | None = None
) -> Iterator[tuple[Path, os.DirEntry]]:
    """Everything below a directory. What `predicate` rejects is left out, with all that is in it; links stay links."""
    with os.scandir(root_dir) as entries:
        for entry in entries:
            path = Path(root_dir, entry.name)
            if predicate is None or predicate(path, entry):
                yield path, entry
                if entry.is_dir(follow_symlinks=False):
                    yield from scan_directory(path, predicate)


def is_fat_binary(file_path: Path, toolchain=None) -> bool:
    """Whether a linked binary has device code. kpack needs no toolchain to find out."""
    try:
        detect_binary_format(file_path)
    except UnsupportedBinaryFormat:
        return False
    try:
        shown = json.loads(kpack_output("show", "--json", "--", file_path))
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    return any("bundle" in wrapper for wrapper in shown.get("wrappers", []))


def extract_architecture_from_target(target: str | None) -> str | None:
    """The GPU target of a bundle's entry: gfx942:xnack+ for hipv4-amdgcn-amd-amdhsa--gfx942:xnack+."""
    _, dashes, architecture = (target or "").rpartition("--")
    return architecture if dashes else None
