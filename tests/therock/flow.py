"""Does with split artifacts what ROCm's build does with them after the build, by its rules.

flatten ARTIFACTS DIST PREFIX...     install the artifacts of one machine into one directory
push ARTIFACTS STORE                 store the artifacts of one machine; what is stored last is kept
fetch STORE OUTPUT TARGET...         install the generic artifacts and those of these targets
package STORE OUTPUT                 a directory of host files, and one per target that is installed over it
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
from pathlib import Path

LIST = "artifact_manifest.txt"
GENERIC = "generic"
# No part of a name has a `_`.
NAME = re.compile(r"([^_]+)_([^_]+)_([^_]+)")
COMPONENTS = ("lib", "run", "dev", "dbg", "doc", "test")


def parts(artifact: str) -> tuple[str, str, str]:
    """Name, component and target; ROCm's build would ignore an artifact of another name."""
    found = NAME.fullmatch(artifact)
    if not found:
        sys.exit(f"{artifact}: its name is not NAME_COMPONENT_TARGET")
    return found.groups()


def prefixes(artifact: Path) -> list[str]:
    """The listed directories."""
    return (artifact / LIST).read_text().split()


def add(source: Path, root: Path) -> None:
    """Copies what is in a prefix into an install root, where no other artifact may have put a file."""
    for path in sorted(source.rglob("*")):
        to = root / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            to.mkdir(parents=True, exist_ok=True)
            continue
        if to.exists():
            sys.exit(f"{to}: {path} would replace it")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to, follow_symlinks=False)


def flatten(artifacts: Path, dist: Path, *names: str) -> None:
    shutil.rmtree(dist, ignore_errors=True)
    for artifact in sorted(artifacts.iterdir()):
        name, component, _ = parts(artifact.name) if (artifact / LIST).is_file() else ("", "", "")
        if f"{name}_{component}" in names:
            for prefix in prefixes(artifact):
                add(artifact / prefix, dist)


def push(artifacts: Path, store: Path) -> None:
    store.mkdir(parents=True, exist_ok=True)
    for artifact in sorted(path for path in artifacts.iterdir() if (path / LIST).is_file()):
        parts(artifact.name)
        with tarfile.open(store / f"{artifact.name}.tar", "w") as archive:
            archive.add(artifact / LIST, LIST)
            for prefix in prefixes(artifact):
                if (artifact / prefix).is_dir():
                    archive.add(artifact / prefix, prefix)


def install(stored: Path, root: Path, scratch: Path) -> None:
    """Unpacks a stored artifact, in which the list comes first and says where every other file belongs."""
    shutil.rmtree(scratch, ignore_errors=True)
    with tarfile.open(stored) as archive:
        first = archive.next()
        if first is None or first.name != LIST:
            sys.exit(f"{stored}: {LIST} is not the first file")
        listed = archive.extractfile(first).read().decode().split()
        for name in archive.getnames()[1:]:
            if not any(name == prefix or name.startswith(f"{prefix}/") for prefix in listed):
                sys.exit(f"{stored}: {name} is in no listed directory")
        archive.extractall(scratch)
    for prefix in listed:
        if (scratch / prefix).is_dir():
            add(scratch / prefix, root)


def fetch(store: Path, output: Path, *targets: str) -> None:
    shutil.rmtree(output, ignore_errors=True)
    scratch = output.with_name(output.name + ".scratch")
    names = sorted({parts(stored.stem)[0] for stored in store.glob("*.tar")})
    for name in names:
        for target in (GENERIC, *targets):
            for component in COMPONENTS:
                stored = store / f"{name}_{component}_{target}.tar"
                if stored.is_file():
                    install(stored, output, scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def package(store: Path, output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    for stored in sorted(store.glob("*_lib_*.tar")):
        install(stored, output / parts(stored.stem)[2], output / ".scratch")
    shutil.rmtree(output / ".scratch", ignore_errors=True)


COMMANDS = {"flatten": (flatten, 2), "push": (push, 2), "fetch": (fetch, 2), "package": (package, 2)}

if __name__ == "__main__":
    command, paths = COMMANDS[sys.argv[1]]
    command(*map(Path, sys.argv[2 : 2 + paths]), *sys.argv[2 + paths :])
