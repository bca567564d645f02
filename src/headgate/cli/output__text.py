"""Stored text on its way to a terminal: names and messages may hold anything."""

from __future__ import annotations

import io
import sys
from typing import TextIO


def speaks_utf8() -> bool:
    """Whether standard output takes every letter; JSON has another way of writing them."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return str(encoding).lower().replace("-", "").replace("_", "") == "utf8"


def seen(stream: TextIO | None) -> bool:
    """Whether a person is at the other end; Python has None for a stream that is closed."""
    return stream is not None and stream.isatty()


def lenient() -> None:
    """A letter that a terminal does not know is written in another way, and is no failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def clean(text: object) -> str:
    """The text on one line, without anything that moves a cursor or changes a colour."""
    return "".join(char if char.isprintable() else _escaped(char) for char in str(text))


def _escaped(char: str) -> str:
    return " " if char in "\n\t" else f"\\x{ord(char):02x}"


def amount(number: int) -> str:
    """A whole number as people read it: 12 345."""
    return f"{number:,}".replace(",", " ")


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def duration(wait_ms: int | None) -> str:
    if wait_ms is None:
        return "never"
    if wait_ms < 1000:
        return f"{wait_ms} ms"
    seconds = wait_ms / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def bar(part: float, width: int) -> str:
    """A bar in eighths of a character, for a part from 0 to 1."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
