"""Runs `kpack wheel split` with the arguments of this process, in the names that ROCm's build uses."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rocm_kpack import binutils  # noqa: E402


def main() -> None:
    """Becomes kpack."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Other arguments are those of `kpack wheel split`.", allow_abbrev=False
    )
    parser.add_argument("--input", action="append", default=[], metavar="WHEEL", help="wheel to split; can be repeated")
    parser.add_argument("--device-package-prefix", metavar="NAME", help="what device wheels' names begin with")
    parser.add_argument("--group-name", help="ignored: archives are named after the project")
    parser.add_argument("--verbose", action="store_true", help="ignored")
    known, more = parser.parse_known_args()
    arguments = ["wheel", "split"]
    if known.device_package_prefix:
        arguments += ["--device-name", known.device_package_prefix + "-{target}"]
    sys.argv[1:] = []
    binutils.run(*arguments, *more, "--", *known.input)


if __name__ == "__main__":
    main()
