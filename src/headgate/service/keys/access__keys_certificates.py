"""Callers by client certificate: the subject alternative names of a peer that TLS has verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.core.errors import ValidationError
from headgate.service.keys.access import Because, Caller, Refusal
from headgate.service.keys.key import Grant

SANS_MAX = 64
SAN_LENGTH_MAX = 512
KINDS = ("DNS", "URI", "email", "IP")
_KIND_OF = {"DNS": "DNS", "URI": "URI", "email": "email", "IP Address": "IP"}


def sans_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Names like `DNS:checkout.internal` or `URI:spiffe://corp/checkout`, from what
    `SSLSocket.getpeercert()` gives. The subject's common name is not looked at."""
    found = (certificate or {}).get("subjectAltName", ())
    pairs = [(kind, name) for kind, name in found[:SANS_MAX] if kind in _KIND_OF]
    return tuple(_normal(_KIND_OF[kind], name) for kind, name in pairs)


def parse_san(text: object) -> str:
    """A name as a table of certificates holds it; exact, without wildcards."""
    kind, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind not in KINDS or not name or len(name) > SAN_LENGTH_MAX or "*" in name:
        raise ValidationError(
            "san", text,
            "must be DNS:name, URI:uri, email:address or IP:address, whole and without wildcards",
        )  # fmt: skip
    return _normal(kind, name)


def caller_of(sans: Iterable[str], table: Mapping[str, Grant]) -> Caller | Refusal:
    """The caller whose name the table has. A certificate that fits two entries fits none: nobody
    can tell which of the two grants was meant."""
    found = [san for san in dict.fromkeys(sans) if san in table]
    if not found:
        return Refusal(Because.NO_CERTIFICATE)
    if len(found) > 1:
        return Refusal(Because.AMBIGUOUS_CERTIFICATE)
    return Caller(f"cert:{found[0]}", table[found[0]])


def _normal(kind: str, name: str) -> str:
    """Host names are the same in any case; the other names are not."""
    return f"{kind}:{name.lower().rstrip('.') if kind == 'DNS' else name}"
