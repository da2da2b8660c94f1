"""Runs `kpack artifact recombine` with the arguments of this process."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rocm_kpack import binutils  # noqa: E402

if __name__ == "__main__":
    binutils.run("artifact", "recombine", *sys.argv[1:])
