"""Numbers and times as header fields say them; whatever else is there is None, never an error.

Times come as seconds, as epoch seconds or milliseconds, as a duration ("1m30s", "6ms") or as a
date. A plain number is told apart by its size: nobody's window lasts thirty years.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

AMOUNT_MAX = 999_999_999_999_999
AWAY_MS_MAX = 10 * 366 * 24 * 3_600_000
TEXT_LENGTH_MAX = 64

_EPOCH_S_LEAST = 1_000_000_000
_EPOCH_MS_LEAST = 1_000_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_UNITS_NS = {
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,
    "ns": 1,
}

_WHOLE = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9})[0-9]{0,20})?")
_PART = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9})[0-9]{0,20})?(h|ms|m|s|us|µs|ns)")
_DURATION = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,29})?(?:h|ms|m|s|us|µs|ns)){1,7}")
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.([0-9]{1,20}))?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_HTTP_DATE = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) "
    r"([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT"
)


def whole(text: str | None) -> int | None:
    """A whole number from 0 on."""
    if text is None or _WHOLE.fullmatch(text) is None:
        return None
    return int(text)


def first_whole(text: str | None) -> int | None:
    """The first number of a list such as `100, 100;w=60`."""
    return None if text is None else whole(re.split("[,;]", text, maxsplit=1)[0].strip(" \t"))


def milliseconds(text: str | None) -> int | None:
    """A number of milliseconds, rounded up."""
    found = _billionths(text)
    return None if found is None else _near(-(-found // 1_000_000_000))


def wait_ms(text: str | None, now_ms: int) -> int | None:
    """`Retry-After`: seconds, rounded up to the millisecond, or a date; a date gone by is 0."""
    found = _billionths(text)
    if found is not None:
        return _near(-(-found // 1_000_000))
    date_ms = None if text is None else (_http_date_ms(text) or rfc3339_ms(text))
    return None if date_ms is None else _near(max(0, date_ms - now_ms))


def moment_ms(text: str | None, now_ms: int) -> int | None:
    """When it is: epoch milliseconds, from whichever way of saying it."""
    if text is None or len(text) > TEXT_LENGTH_MAX:
        return None
    at_ms: int | None
    number = _billionths(text)
    if number is not None:
        seconds = number // 1_000_000_000
        if seconds >= _EPOCH_MS_LEAST:
            at_ms = seconds
        elif seconds >= _EPOCH_S_LEAST:
            at_ms = -(-number // 1_000_000)
        else:
            at_ms = now_ms - (-number // 1_000_000)
    else:
        duration_ms = _duration_ms(text)
        if duration_ms is not None:
            at_ms = now_ms + duration_ms
        else:
            at_ms = rfc3339_ms(text) or _http_date_ms(text)
    return None if at_ms is None or abs(at_ms - now_ms) > AWAY_MS_MAX else at_ms


def _billionths(text: str | None) -> int | None:
    if text is None or len(text) > TEXT_LENGTH_MAX:
        return None
    found = _NUMBER.fullmatch(text)
    return None if found is None else _scaled(found[1], found[2], 1_000_000_000)


def _scaled(digits: str, fraction: str | None, unit: int) -> int:
    extra = 0 if fraction is None else int(fraction) * unit // 10 ** len(fraction)
    return int(digits) * unit + extra


def _duration_ms(text: str) -> int | None:
    if _DURATION.fullmatch(text) is None:
        return None
    parts = _PART.findall(text)
    total_ns = sum(_scaled(digits, part or None, _UNITS_NS[unit]) for digits, part, unit in parts)
    return -(-total_ns // 1_000_000)


def rfc3339_ms(text: str) -> int | None:
    """A date and time with its offset, in epoch milliseconds."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        return None
    if found[1] is not None and len(found[1]) > 6:
        text = text.replace(found[1], found[1][:6])
    try:
        return (datetime.fromisoformat(text.upper()) - _EPOCH) // _MS
    except (ValueError, OverflowError):
        return None


def _http_date_ms(text: str) -> int | None:
    found = _HTTP_DATE.fullmatch(text)
    if found is None or found[2] not in _MONTHS:
        return None
    day, _, year, hour, minute, second = (found[place] for place in range(1, 7))
    month = _MONTHS.index(found[2]) + 1
    try:
        date = datetime(
            int(year), month, int(day), int(hour), int(minute), int(second), tzinfo=UTC
        )  # fmt: skip
    except ValueError:
        return None
    return (date - _EPOCH) // _MS


def _near(ms: int) -> int | None:
    return ms if ms <= AWAY_MS_MAX else None
