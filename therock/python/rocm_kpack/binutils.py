"""Finds and runs the command kpack."""

import os
import shutil
import sys
from pathlib import Path


def kpack() -> str:
    """Its path: that of KPACK_EXECUTABLE, or beside this file in a distribution, or on the PATH."""
    prefix = Path(__file__).resolve().parent / "../../../../.."
    beside = prefix.resolve() / "bin/kpack"
    named = os.environ.get("KPACK_EXECUTABLE") or (str(beside) if beside.is_file() else "kpack")
    found = shutil.which(named)
    if not found:
        raise FileNotFoundError(f"{named}: no such program; set KPACK_EXECUTABLE to the command kpack")
    return found


def run(*arguments: str) -> None:
    """Becomes kpack with these arguments, and then those of this process."""
    try:
        command = kpack()
    except FileNotFoundError as error:
        sys.exit(f"kpack: error: {error}")
    sys.stdout.flush()
    os.execv(command, [command, *arguments, *sys.argv[1:]])
