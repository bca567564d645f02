"""Where a request of a browser began: on this very page, or on somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def is_own(head: Mapping[bytes, bytes]) -> bool:
    """Whether it says that it began on a page of this service."""
    origin, host = head.get(b"origin"), head.get(b"host")
    return origin is not None and host is not None and _place(origin) == host.lower()


def is_foreign(head: Mapping[bytes, bytes]) -> bool:
    """Whether it says that it began elsewhere; programs say nothing, and are not meant."""
    if b"origin" in head:
        return not is_own(head)
    return head.get(b"sec-fetch-site", b"none") in (b"cross-site", b"same-site")


def _place(origin: bytes) -> bytes:
    """Host and port. Not the scheme: a proxy in front may speak TLS for the service."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return b""
