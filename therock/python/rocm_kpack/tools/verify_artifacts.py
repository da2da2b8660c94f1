"""Runs `kpack verify` with the arguments of this process, except for the bundler, which it does not need.

The directory that `--artifacts-dir` names becomes a PATH.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rocm_kpack import binutils  # noqa: E402

if __name__ == "__main__":
    parser = binutils.ignoring("--clang-offload-bundler")
    parser.add_argument("--artifacts-dir", metavar="DIR")
    known, arguments = parser.parse_known_args()
    binutils.run("verify", *arguments, *([known.artifacts_dir] if known.artifacts_dir else []))
