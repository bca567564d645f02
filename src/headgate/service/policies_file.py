"""Reading a small file that others replace: which file it is, and its content in one piece."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from headgate.strict_yaml import Broken, Fault

FILE_BYTES_MAX = 1_000_000
READS_MAX = 3


class Identity(NamedTuple):
    """Which file it is and which version of it, as far as the file system says."""

    path: str
    device: int
    inode: int
    mtime_ns: int
    size: int


def read_bounded(path: str | os.PathLike[str]) -> bytes:
    """A file's content, one byte past the bound at most."""
    with Path(path).open("rb") as file:
        return file.read(FILE_BYTES_MAX + 1)


def identify(path: str) -> Identity | None:
    try:
        real = os.path.realpath(path)
        found = os.stat(real)
    except OSError:
        return None
    return Identity(real, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


def read_stable(path: str) -> tuple[Identity | None, bytes | Broken]:
    """A file and which one it was. What changes under the reader is not taken for a file: half of
    a list of limits is a good list, too."""
    said = "keeps changing while it is read"
    for _ in range(READS_MAX):
        before = identify(path)
        if before is not None and not os.path.isfile(before.path):
            said = "is not a file"
            break
        try:
            content = read_bounded(path)
        except OSError as error:
            said = f"cannot be read: {error.strerror}"
            break
        if before is not None and before == identify(path):
            return before, content
    return None, Broken((Fault(path, 1, 1, said),))
