"""Wheels as directories."""

import base64
import hashlib
import shutil
import zipfile
from email.parser import HeaderParser
from pathlib import Path


def pack(directory: Path, into: Path) -> Path:
    """Makes a wheel of an unpacked one. Its RECORD is written anew, since somebody may have changed the files."""
    found = sorted(directory.glob("*.dist-info"))
    if len(found) != 1 or not (found[0] / "WHEEL").is_file():
        raise ValueError(f"{directory}: not an unpacked wheel (expected one directory *.dist-info with a file WHEEL)")
    dist_info = found[0]
    fields = HeaderParser().parsestr((dist_info / "WHEEL").read_text(encoding="utf-8"))
    tags = [tag.strip().split("-") for tag in fields.get_all("Tag", [])]
    if not tags or any(len(tag) != 3 for tag in tags):
        raise ValueError(f"{dist_info / 'WHEEL'}: expected fields such as `Tag: cp311-cp311-linux_x86_64`")
    build = [fields["Build"].strip()] if "Build" in fields else []
    # A file name has each part of the tags once: py2.py3-none-any.
    parts = [".".join(dict.fromkeys(values)) for values in zip(*tags)]
    wheel = into / ("-".join([dist_info.name[: -len(".dist-info")], *build, *parts]) + ".whl")
    record = dist_info / "RECORD"
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(directory.rglob("*")):
            if not path.is_file() or path == record:
                continue
            name = path.relative_to(directory).as_posix()
            digest, size = _digest(path)
            rows.append(f"{_quoted(name)},sha256={digest},{size}\n")
            archive.write(path, name)
        name = record.relative_to(directory).as_posix()
        archive.writestr(name, "".join([*rows, f"{_quoted(name)},,\n"]))
    return wheel


def unpack(wheel: Path, directory: Path) -> None:
    """Unpacks a wheel with the modes of its files. A directory from an earlier run is replaced."""
    if directory.exists() and not list(directory.glob("*.dist-info")):
        raise ValueError(f"{directory}: exists, and is not an unpacked wheel; remove it")
    fresh = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = archive.extract(member, fresh)
            mode = member.external_attr >> 16 & 0o777
            if mode and not member.is_dir():
                Path(path).chmod(mode)
    old = directory.with_name(f".{directory.name}.old.tmp")
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
    try:
        fresh.rename(directory)
    except OSError:
        if old.exists():
            old.rename(directory)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> "tuple[str, int]":
    """The SHA-256 of a file as RECORD has it, and its size."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode(), size


def _quoted(name: str) -> str:
    """A field of RECORD, which is a CSV file."""
    return '"' + name.replace('"', '""') + '"' if any(c in name for c in ',"\n\r') else name
