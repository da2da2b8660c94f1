"""Finds and runs the command kpack, which takes binaries apart."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
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


def ignoring(*options: str) -> argparse.ArgumentParser:
    """A parser for a tool that runs kpack: it takes these options, which kpack does not need, out of the arguments, and
    leaves `--help` to kpack."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option, metavar="VALUE")
    return parser


def run(*arguments: str) -> None:
    """Becomes kpack with these arguments."""
    try:
        command = kpack()
    except FileNotFoundError as error:
        sys.exit(f"kpack: error: {error}")
    sys.stdout.flush()
    os.execv(command, [command, *arguments])


def replaces_artifacts() -> list[str]:
    """The option of `kpack artifact split` that KPACK_REPLACE_ARTIFACTS=1 stands for: ROCm's build has none for it."""
    value = os.environ.get("KPACK_REPLACE_ARTIFACTS", "")
    if value not in ("", "0", "1"):
        sys.exit(f"kpack: error: KPACK_REPLACE_ARTIFACTS is {value!r} (expected 1 or 0); set it to 1 or unset it")
    return ["--replace-artifacts"] if value == "1" else []


def kpack_output(*arguments: str | Path) -> bytes:
    """What kpack prints; a ValueError with its message if it fails."""
    done = subprocess.run([kpack(), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.decode(errors="replace").strip())
    return done.stdout


def _link(path: str | Path, name: Path) -> None:
    """Gives a file a second name, and replaces what has that name; copies it if there are no hard links."""
    name.unlink(missing_ok=True)
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)


class Toolchain:
    """Other tools for binaries, by their paths. kpack needs none, so one is only looked for when a script asks."""

    _NAMES = {
        "clang_offload_bundler": ("clang-offload-bundler",),
        "objcopy": ("objcopy", "llvm-objcopy"),
        "objdump": ("objdump", "llvm-objdump"),
        "readelf": ("readelf", "llvm-readelf"),
    }

    def __init__(
        self,
        *,
        clang_offload_bundler: Path | None = None,
        objcopy: Path | None = None,
        objdump: Path | None = None,
        readelf: Path | None = None,
    ) -> None:
        self._paths = {
            "clang_offload_bundler": clang_offload_bundler,
            "objcopy": objcopy,
            "objdump": objdump,
            "readelf": readelf,
        }

    @staticmethod
    def configure_argparse(p: argparse.ArgumentParser) -> None:
        """Adds the option that `from_args` reads."""
        p.add_argument("--clang-offload-bundler", type=Path, help="accepted: kpack reads bundles itself")

    @staticmethod
    def from_args(args: argparse.Namespace) -> Toolchain:
        """The toolchain of a command line."""
        return Toolchain(clang_offload_bundler=args.clang_offload_bundler)

    def __getattr__(self, tool: str) -> Path:
        if tool not in self._NAMES:
            raise AttributeError(tool)
        named = self._paths[tool]
        if named is not None and not Path(named).exists():
            raise OSError(f"{named}: no such tool")
        found = named or next(filter(None, map(shutil.which, self._NAMES[tool])), None)
        if found is None:
            raise OSError(f"{self._NAMES[tool][0]}: no such tool on the PATH")
        return Path(found)

    def exec_capture_text(self, args: list[str | Path]) -> str:
        """What a tool prints."""
        return subprocess.check_output([str(argument) for argument in args], stderr=subprocess.STDOUT).decode()

    def exec(self, args: list[str | Path]) -> None:
        """Runs a tool. What it prints is in the exception if it fails."""
        self.exec_capture_text(args)


class UnbundledContents:
    """A directory of code objects, which is removed in the end."""

    def __init__(
        self,
        source_binary: BundledBinary,
        dest_dir: Path,
        delete_on_close: bool,
        target_list: list[tuple[str, str]],
    ) -> None:
        self.source_binary = source_binary
        self.dest_dir = dest_dir
        self.delete_on_close = delete_on_close
        #: The target of each file as bundles have it, such as hipv4-amdgcn-amd-amdhsa--gfx942, and the file's name.
        self.target_list = target_list

    @property
    def file_names(self) -> list[str]:
        """The names of the files."""
        return [name for _, name in self.target_list]

    def close(self) -> None:
        """Removes the directory, unless it is to stay."""
        if self.delete_on_close:
            shutil.rmtree(self.dest_dir, ignore_errors=True)

    def __enter__(self) -> UnbundledContents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"UnbundledContents(dest_dir={self.dest_dir}, target_list={self.target_list})"


class BundledBinary:
    """A file with device code: a binary, an object, a static library or an offload bundle."""

    def __init__(self, file_path: Path, *, toolchain: Toolchain | None = None) -> None:
        self.file_path = Path(file_path)
        self.toolchain = toolchain or Toolchain()

    def unbundle(
        self, *, dest_dir: Path | None = None, delete_on_close: bool = True, gfx_arch: str | None = None
    ) -> UnbundledContents:
        """Writes the code objects into a directory, all or those for a processor. Wrappers that share a bundle, as with
        `-fgpu-rdc`, have a file each; their files are hard links where the file system has them."""
        directory = Path(dest_dir or tempfile.mkdtemp(prefix="kpack-"))
        contents = UnbundledContents(self, directory, delete_on_close, [])
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # The names below are not those of kpack, so its files are written elsewhere first.
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                wanted = [f"--arch={gfx_arch}"] if gfx_arch else []
                output = Path(scratch, "code")
                printed = kpack_output("extract", "--json", f"--output-dir={output}", *wanted, "--", self.file_path)
                written = self._of_each_wrapper(json.loads(printed))
                targets = [target for target, _ in written]
                is_indexed = len(set(targets)) < len(targets)
                for index, (target, path) in enumerate(written):
                    triple = f"hipv4-amdgcn-amd-amdhsa--{target}"
                    name = f"{triple}_{index}.hsaco" if is_indexed else f"{triple}.hsaco"
                    _link(path, directory / name)
                    contents.target_list.append((triple, name))
        except BaseException:
            contents.close()
            raise
        return contents

    def _of_each_wrapper(self, extracted: list[dict[str, str]]) -> list[tuple[str, str]]:
        """The target and path of each code object, in the order of the wrappers. kpack extracts a bundle once, but an
        archive needs its code for each wrapper that shares it: scripts number the code objects of a target from 0,
        and that number has to be the wrapper's."""
        shown = json.loads(kpack_output("show", "--json", "--", self.file_path))
        by_bundle: dict[int, list[int]] = {}
        for wrapper in shown.get("wrappers", []):
            if "bundle_offset" in wrapper:
                by_bundle.setdefault(wrapper["bundle_offset"], []).append(wrapper["index"])
        sharing = {wrappers[0]: wrappers for wrappers in by_bundle.values() if len(wrappers) > 1}
        numbered = []
        for code_object in extracted:
            _, _, index = code_object["kernel"].rpartition("#")
            # Only in the files whose bundles were numbered above do all kernels have an index.
            first = int(index) if sharing else 0
            found = (code_object["target"], code_object["path"])
            numbered += [(wrapper, found) for wrapper in sharing.get(first, [first])]
        return [found for _, found in sorted(numbered, key=lambda it: it[0])]

    def list_bundles(self) -> list[str]:
        """The GPU target of each code object of each wrapper."""
        with self.unbundle() as contents:
            return [target.rpartition("--")[2] for target, _ in contents.target_list]

    def cleanup(self) -> None:
        """Does nothing: nothing is left to remove."""
