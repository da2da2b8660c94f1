"""Artifact directories for the host and for each GPU target, by the command `kpack artifact split`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .binutils import Toolchain, kpack, replaces_artifacts
from .database_handlers import DatabaseHandler


class ArtifactSplitter:
    """Splits artifact directories."""

    def __init__(
        self,
        artifact_prefix: str,
        toolchain: Toolchain | None = None,
        database_handlers: list[DatabaseHandler] | None = None,
        verbose: bool = False,
        gpu_targets: list[str] | None = None,
    ) -> None:
        self.artifact_prefix = artifact_prefix
        self.toolchain = toolchain
        self.database_handlers = database_handlers or []
        self.verbose = verbose
        self.gpu_targets = gpu_targets

    def split(self, input_dir: Path, output_dir: Path) -> None:
        """Splits an artifact directory. What kpack says goes to the standard streams; an error is a RuntimeError."""
        if not Path(input_dir).exists():
            raise FileNotFoundError(f"{input_dir}: no such directory")
        databases = [handler.name() for handler in self.database_handlers] or ["none"]
        arguments = [f"--artifact-dir={input_dir}", f"--output-dir={output_dir}", "--layout=artifact"]
        arguments += [f"--artifact-prefix={self.artifact_prefix}", f"--split-databases={','.join(databases)}"]
        if self.gpu_targets:
            arguments.append(f"--gpu-targets={','.join(self.gpu_targets)}")
        arguments += [*replaces_artifacts(), "--verbose" if self.verbose else "--quiet"]
        sys.stdout.flush()
        done = subprocess.run([kpack(), "artifact", "split", *arguments], stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{input_dir}: kpack artifact split failed (exit code {done.returncode})")
