"""Runs `kpack artifact split --layout artifact` with the arguments of this process, except for those that it does not
need: the directory for temporary files and the bundler.

With KPACK_REPLACE_ARTIFACTS=1 in the environment, it passes `--replace-artifacts` as well: ROCm's build, which calls
this, has no option for that.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rocm_kpack import binutils  # noqa: E402

if __name__ == "__main__":
    _, arguments = binutils.ignoring("--tmp-dir", "--clang-offload-bundler").parse_known_args()
    binutils.run("artifact", "split", "--layout", "artifact", *binutils.replaces_artifacts(), *arguments)
