"""Runs `kpack extract` for each file, in the names that ROCm's build uses."""

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rocm_kpack import binutils  # noqa: E402


def run(args: argparse.Namespace, *, toolchain: "binutils.Toolchain | None" = None) -> None:
    """Unbundles `files`, into `output_dir` if there is one, for `gfx_arch` or all targets. kpack prints its errors;
    then this raises a CalledProcessError."""
    output_dir, gfx_arch = getattr(args, "output_dir", None), getattr(args, "gfx_arch", None)
    if output_dir and len(args.files) > 1:
        raise ValueError("--output-dir takes one FILE; without it, each file has its own directory")
    more = [f"--arch={gfx_arch}"] if gfx_arch else []
    for file in map(Path, args.files):
        directory = Path(output_dir or file.with_suffix(".unbundled"))
        arguments = [binutils.kpack(), "extract", f"--output-dir={directory}", *more, "--", file]
        sys.stdout.flush()
        subprocess.run(arguments, stdin=subprocess.DEVNULL, check=True)
        print(f"Unbundled {directory}: {', '.join(sorted(path.name for path in directory.iterdir()))}")


def main() -> None:
    """Exits with the first code of kpack that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="binary, archive or offload bundle")
    parser.add_argument("-o", "--output-dir", type=Path, help="default, and with several FILEs: each in the directory of its FILE, with the suffix .unbundled in place of the last one")
    parser.add_argument("--gfx-arch", metavar="TARGET", help="write only code objects for this GPU target")
    try:
        run(parser.parse_args())
    except ValueError as error:
        parser.error(str(error))
    except FileNotFoundError as error:
        sys.exit(f"kpack: error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
