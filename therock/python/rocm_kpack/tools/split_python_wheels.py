"""Runs `kpack wheel split` with the options that ROCm's build passes to its own tool."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rocm_kpack import binutils, wheel_directory  # noqa: E402


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Other arguments are those of `kpack wheel split`.", allow_abbrev=False
    )
    parser.add_argument("--input", type=Path, required=True, metavar="PATH", help="wheel, or directory of an unpacked wheel")
    parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR", help="where the wheels are written")
    parser.add_argument("--device-package-prefix", required=True, metavar="NAME", help="what device wheels' names begin with")
    parser.add_argument(
        "--device-requires-dist",
        nargs="*",
        action="extend",
        default=[],
        metavar="REQUIREMENT",
        help="what device wheels also require; @GFXARCH@ stands for the processor",
    )
    parser.add_argument("--compression-level", metavar="N", help="Zstandard level; ignored with --compression none")
    parser.add_argument("--compression", metavar="SCHEME", help="zstd (the default) or none")
    parser.add_argument("--output-format", choices=["wheel", "directory"], default="wheel", help="directory: unpack each wheel")
    parser.add_argument("--generate-variant-wheel", action="store_true", help="not supported: see --variant")
    parser.add_argument("--variant-label", metavar="LABEL", help="not supported: see --variant")
    parser.add_argument("--tmp-dir", type=Path, metavar="DIR", help="where directories are packed, and wheels unpacked")
    ignored = parser.add_argument_group("accepted and ignored")
    for option in ("--wheel-type", "--clang-offload-bundler", "--objcopy", "--readelf"):
        ignored.add_argument(option, metavar="VALUE")
    ignored.add_argument("--databases", nargs="*", metavar="NAME", help="files of all known kernel databases are split")
    return parser


def main() -> int:
    """Ends with the exit code of kpack."""
    parser = _parser()
    known, more = parser.parse_known_args()
    for option in ("generate_variant_wheel", "variant_label"):
        if getattr(known, option):
            name = option.replace("_", "-")
            parser.error(f"--{name}: kpack writes wheel variants in the format of PEP 825; pass --variant instead")
    arguments = [f"--device-name={known.device_package_prefix}-{{target}}", "--host-requires=rocm-bootstrap"]
    for requirement in known.device_requires_dist:
        arguments.append("--device-requires=" + requirement.replace("@GFXARCH@", "{target}"))
    if known.compression:
        arguments.append(f"--compression={known.compression}")
    if known.compression_level and known.compression != "none":
        arguments.append(f"--level={known.compression_level}")
    try:
        command = [binutils.kpack(), "wheel", "split", *arguments, *more]
        with tempfile.TemporaryDirectory(prefix="kpack-", dir=known.tmp_dir) as scratch:
            return _split(command, known.input, known.output_dir, known.output_format == "directory", Path(scratch))
    except (OSError, ValueError) as error:
        print(f"kpack: error: {error}", file=sys.stderr)
        return 4


def _split(command: "list[str]", wheel: Path, output: Path, as_directories: bool, scratch: Path) -> int:
    """Splits a wheel, or a directory, into wheels or directories. Returns the exit code of kpack."""
    if wheel.is_dir():
        wheel = wheel_directory.pack(wheel, scratch)
    wheels = scratch / "wheels" if as_directories else output
    command = [*command, f"--output-dir={wheels}", "--", os.fspath(wheel)]
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if code == 0 and as_directories:
        output.mkdir(parents=True, exist_ok=True)
        for path in sorted(wheels.glob("*.whl")):
            wheel_directory.unpack(path, output / path.stem)
    return code


if __name__ == "__main__":
    sys.exit(main())
