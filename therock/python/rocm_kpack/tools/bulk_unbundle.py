"""Runs `kpack extract` for each file, in the names that ROCm's build uses."""

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rocm_kpack import binutils  # noqa: E402


def main() -> None:
    """Exits with the first code of kpack that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="binary, archive or offload bundle")
    parser.add_argument("-o", "--output-dir", type=Path, help="default, and with several FILEs: each in the directory of its FILE, with the suffix .unbundled in place of the last one")
    parser.add_argument("--gfx-arch", metavar="TARGET", help="write only code objects for this GPU target")
    known = parser.parse_args()
    more = [f"--arch={known.gfx_arch}"] if known.gfx_arch else []
    if known.output_dir and len(known.files) > 1:
        parser.error("--output-dir takes one FILE; without it, each file has its own directory")
    try:
        command = binutils.kpack()
    except FileNotFoundError as error:
        sys.exit(f"kpack: error: {error}")
    for file in known.files:
        directory = known.output_dir or file.with_suffix(".unbundled")
        arguments = [command, "extract", f"--output-dir={directory}", *more, "--", file]
        code = subprocess.run(arguments, stdin=subprocess.DEVNULL, check=False).returncode
        if code != 0:
            sys.exit(code)
        print(f"Unbundled {directory}: {', '.join(sorted(path.name for path in directory.iterdir()))}")


if __name__ == "__main__":
    main()
