"""Where the service is and who asks: a URL and a key, parsed once."""

from __future__ import annotations

import re
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from headgate.client.requests__wire import Head
from headgate.core.errors import ValidationError

PORTS = {"http": 80, "https": 443}
KEY_LENGTH_MAX = 4096

_KEY = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[A-Za-z0-9.\-_]{1,253}|[0-9A-Fa-f:.]{2,45}")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%\-]+)*/?")


class Address(NamedTuple):
    """A host, a port and, for https, how to check who answers there."""

    host: str
    port: int
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(
    url: object, api_key: str | None, tls: ssl.SSLContext | None
) -> tuple[Address, Head]:
    """The address, and the head of every request sent there; the key is in the head alone."""
    if not isinstance(url, str):
        raise ValidationError("url", type(url).__name__, "must be a str")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_url("cannot be parsed") from None
    if "@" in parts.netloc:
        raise _bad_url("holds a user or password; give the key as api_key=")
    if parts.scheme not in PORTS or parts.hostname is None:
        raise _bad_url("must look like https://limits.example.com")
    if parts.query or parts.fragment or _PATH.fullmatch(parts.path) is None:
        raise _bad_url("may have a path, and nothing after it")
    if _HOST.fullmatch(parts.hostname) is None or port == 0:
        raise _bad_url("has no usable host or port; write an international name as punycode")
    secure = parts.scheme == "https"
    if tls is not None and not secure:
        raise ValidationError("tls", "<SSLContext>", "needs an https URL")
    address = Address(
        parts.hostname,
        port or PORTS[parts.scheme],
        (tls or ssl.create_default_context()) if secure else None,
    )
    return address, _head(parts.path.rstrip("/"), _host_field(address), api_key)


def _head(path: str, host: str, api_key: str | None) -> Head:
    fields = [("host", host), ("user-agent", "headgate-client"), ("accept", "application/json")]
    if api_key is not None:
        fields.append(("authorization", f"Bearer {parse_key(api_key)}"))
    return Head(path, tuple(fields))


def parse_key(api_key: object) -> str:
    """The key; what is wrong with one is told without showing it."""
    if (
        not isinstance(api_key, str)
        or len(api_key) > KEY_LENGTH_MAX
        or _KEY.fullmatch(api_key) is None
    ):
        raise ValidationError("api_key", "<hidden>", "must be printable ASCII without spaces")
    return api_key


def _host_field(address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    plain = PORTS["http" if address.tls is None else "https"]
    return host if address.port == plain else f"{host}:{address.port}"


def _bad_url(reason: str) -> ValidationError:
    """The URL is not repeated: people put passwords into them."""
    return ValidationError("url", "<not shown>", reason)
