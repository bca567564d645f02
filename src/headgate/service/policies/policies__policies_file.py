"""Reading a small file that others replace: which file it is, and its content in one piece.

Workers of one service also keep a copy of each file that was good, for those that start later."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headgate.declare.yaml_tree import Broken, Fault

FILE_BYTES_MAX = 1_000_000
READS_MAX = 3

log = logging.getLogger("headgate.service")


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


def keep_copy(copy: str | None, content: bytes) -> None:
    """Keeps a file that was good where a worker that starts later finds it. The copy is replaced
    whole, so that no reader ever sees half of it. `copy=None` keeps nothing."""
    if copy is None:
        return
    spare = f"{copy}.{os.getpid()}.new"
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(spare, flags, 0o600), "wb") as file:
            file.write(content)
        os.replace(spare, copy)
    except OSError as error:  # the disk is full: the worker itself has what it needs
        log.warning("the last good file could not be kept: %s", error.strerror)
        with suppress(OSError):
            os.unlink(spare)
