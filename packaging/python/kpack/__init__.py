"""The install prefix of kpack: its command in `bin`, its CMake package in `lib/cmake`."""

import os
import sys
from pathlib import Path

PREFIX = Path(__file__).resolve().parent


def main():
    """Become the command."""
    program = PREFIX / "bin" / "kpack"
    os.execv(program, [str(program), *sys.argv[1:]])
