"""Finds binaries whose program headers a tool moved to another address than file offset.

Linux before 5.18 passes programs a wrong address of such headers. kpack leaves program headers where the linker put
them, so what it split needs nothing, before and after `strip`.
"""

import argparse
import os
import struct
import sys
from pathlib import Path

PT_LOAD = 1


def _are_moved(path: Path) -> bool:
    """Whether the program headers are not behind the ELF header, at an address that is not their offset."""
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return False
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        if offset <= 64 or size != 56:
            return False
        file.seek(offset)
        table = file.read(size * count)
    for at in range(0, len(table) - size + 1, size):
        kind, _, start, address, _, length = struct.unpack_from("<IIQQQQ", table, at)
        if kind == PT_LOAD and start <= offset < start + length:
            return start != address
    return False


def _files(roots: list[str]):
    """ELF files in these directories, and these files."""
    for root in map(Path, roots):
        paths = [root]
        if root.is_dir():
            paths = sorted(Path(directory, name) for directory, _, names in os.walk(root) for name in names)
        for path in paths:
            if not path.is_file() or path.is_symlink():
                continue
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def main() -> int:
    """Ends with 1 if there is such a binary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="file or directory")
    parser.add_argument("--check", action="store_true", help="accepted: nothing is ever changed")
    parser.add_argument("-v", "--verbose", action="store_true", help="name the other files as well")
    arguments = parser.parse_args()
    scanned = moved = 0
    for path in _files(arguments.paths):
        scanned += 1
        if _are_moved(path):
            moved += 1
            print(f"NONCOMPLIANT  {path}  (program headers were moved; split it with kpack, or mend it with that tool)")
        elif arguments.verbose:
            print(f"ok    {path}")
    print(f"Scanned {scanned} ELF file(s); {moved} non-compliant.")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
