"""Header fields that tell a client where a limit stands, item by item.

`RateLimit` and `RateLimit-Policy` follow draft-ietf-httpapi-ratelimit-headers-11: `r` what is left,
`t` seconds until there is more, `q` the capacity, `w` the seconds it takes to fill. The service and
the integrations say the same because they say it with these.
"""

from __future__ import annotations

from headgate.core.bucket import div_ceil

Headers = list[tuple[str, str]]

SF_INTEGER_MAX = 999_999_999_999_999


def policy_item(name: str, capacity: int, window_s: int | None) -> str:
    """One limit in `RateLimit-Policy`."""
    item = f"{sf_string(name)};q={min(capacity, SF_INTEGER_MAX)}"
    return item if window_s is None else f"{item};w={min(window_s, SF_INTEGER_MAX)}"


def standing_item(name: str, remaining: int, wait_ms: int | None) -> str:
    """One limit in `RateLimit`."""
    item = f"{sf_string(name)};r={min(max(0, remaining), SF_INTEGER_MAX)}"
    if wait_ms is None:
        return item
    return f"{item};t={min(div_ceil(wait_ms, 1000), SF_INTEGER_MAX)}"


def standing_fields(capacity: int, remaining: int, reset_at_ms: int | None) -> Headers:
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
