"""Finds and runs the command kpack."""

import os
import shutil
import sys
from pathlib import Path


def kpack() -> str:
    """Its path: KPACK_EXECUTABLE, or beside this file in a distribution, or on the PATH."""
    named = os.environ.get("KPACK_EXECUTABLE")
    prefix = Path(__file__).resolve().parent / "../../../../.."
    beside = prefix.resolve() / "bin/kpack"
    found = named or (str(beside) if beside.is_file() else shutil.which("kpack"))
    if not found:
        sys.exit(f"kpack: error: {beside} does not exist, and the PATH has no kpack; set KPACK_EXECUTABLE")
    return found


def run(*arguments: str) -> None:
    """Becomes kpack with these arguments, and then those of this process."""
    command = kpack()
    sys.stdout.flush()
    os.execv(command, [command, *arguments, *sys.argv[1:]])
