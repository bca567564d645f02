"""Header fields that tell a client where a limit stands, item by item.

`RateLimit` and `RateLimit-Policy` follow draft-ietf-httpapi-ratelimit-headers-11: `r` what is left,
`t` seconds until there is more, `q` the capacity, `w` the seconds it takes to fill. The service and
the integrations say the same because they say it with these.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from headgate.core.decision import LimitStatus
from headgate.core.limits import ENTITY_LENGTH_MAX
from headgate.core.refill.bucket import div_ceil

Headers = list[tuple[str, str]]

SF_INTEGER_MAX = 999_999_999_999_999


def limit_fields(limits: Sequence[LimitStatus]) -> Headers:
    """Every limit in `RateLimit-Policy` and in `RateLimit`."""
    policies = [policy_item(one.limit_name, one.limit.capacity, one.window_s) for one in limits]
    items = [status_item(one.limit_name, one.available, one.wait_ms) for one in limits]
    return [("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join(items))]


def policy_item(name: str, capacity: int, window_s: int | None) -> str:
    """One limit in `RateLimit-Policy`."""
    item = f"{sf_string(name)};q={min(capacity, SF_INTEGER_MAX)}"
    return item if window_s is None else f"{item};w={min(window_s, SF_INTEGER_MAX)}"


def status_item(name: str, remaining: int, wait_ms: int | None) -> str:
    """One limit in `RateLimit`."""
    item = f"{sf_string(name)};r={min(max(0, remaining), SF_INTEGER_MAX)}"
    if wait_ms is None:
        return item
    return f"{item};t={min(div_ceil(wait_ms, 1000), SF_INTEGER_MAX)}"


def status_fields(capacity: int, remaining: int, reset_at_ms: int | None) -> Headers:
    """The one limit that is told as three numbers; the reset in seconds of the epoch."""
    found = [
        ("x-ratelimit-limit", str(capacity)),
        ("x-ratelimit-remaining", str(max(0, remaining))),
    ]
    if reset_at_ms is not None:
        found.append(("x-ratelimit-reset", str(div_ceil(reset_at_ms, 1000))))
    return found


def retry_fields(wait_ms: int | None) -> Headers:
    """Whole seconds, never early: rounded up, at least 1; and the exact wait for who can use it."""
    if wait_ms is None:
        return []
    return [("retry-after", str(max(1, div_ceil(wait_ms, 1000)))), ("retry-after-ms", str(wait_ms))]


def sf_string(text: str) -> str:
    """A structured-field string; what it cannot hold becomes '?'."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


# --------------------------------------------------------------------------------------------------
# Whoever has a scope and an identifier as an entity id, injectively.
#
#     entity id = scope ":" written identifier
#
# A scope has no ':', so the first one ends it. An identifier is written as it is where every
# character may stand in an entity id; any other character, and '@' itself, is written as '@' and
# two hex digits per UTF-8 byte. What would be too long is written as '@@' and a digest.

_PLAIN = re.compile(r"[a-zA-Z0-9_.\-:]{1,128}")
_SPECIAL = re.compile(rb"[^a-zA-Z0-9_.\-:]")


def entity_id_of(scope: str, identifier: str) -> str:
    """The entity id; different pairs never share one."""
    if _PLAIN.fullmatch(identifier) is not None:
        return f"{scope}:{identifier}"
    raw = identifier.encode(errors="surrogatepass")
    written = _SPECIAL.sub(lambda found: b"@%02x" % found.group()[0], raw).decode()
    if len(scope) + 1 + len(written) > ENTITY_LENGTH_MAX:
        written = "@@" + hashlib.sha256(raw).hexdigest()
    return f"{scope}:{written}"
