"""Plain yeses, straight to bytes.

A plain yes (`decide.plain`) is by far the commonest answer, and half of a check's time would go
into saying it by way of dicts and lists of text. So it is written from a template for each limit,
which holds all that is the same for everybody. tests/service/http/test_fast_write.py compares that
with the long way in `messages`, which says everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from headgate.core import http_fields
from headgate.core.history import iso_time
from headgate.core.http_fields import SF_INTEGER_MAX
from headgate.core.refill.bucket import MILLI
from headgate.service.decide.answers import Admission, CombinedAdmission, LeaseResult
from headgate.service.decide.rules import LimitConstants

MOMENTS_MAX = 4096
TEMPLATES_MAX = 1024

Written = tuple[bytes, bytes]  # the document, and the lines of its header fields

_encode = msgspec.json.Encoder().encode
_DECISION = b'"allowed":true,"tokens_remaining":%%d,"tokens_capacity":%b,"reset_at":"%%b.%%03dZ"'
_LINES = (
    b"content-type: application/json\r\ncontent-length: %%d\r\nx-ratelimit-limit: %b\r\n"
    b"x-ratelimit-remaining: %%d\r\nx-ratelimit-reset: %%d\r\n"
    b"ratelimit-policy: %b\r\nratelimit: %b\r\n"
)


class AnswerTemplate:
    """What is always the same in answers about one limit."""

    __slots__ = ("content", "item", "lease", "lines", "part", "place", "policy", "status")

    def __init__(self, frame: LimitConstants) -> None:
        capacity = b"%d" % frame.capacity
        decision = _DECISION % capacity
        place = _encode({"scope": frame.scope or None, "resource": frame.resource})[1:-1]
        self.policy = _escape(http_fields.policy_item(frame.name, frame.capacity, frame.window_s))
        self.status = _escape(http_fields.sf_string(frame.name)) + b";r=%d;t=%d"
        self.lines = _LINES % (capacity, self.policy, self.status)
        self.content = b"{" + decision + b',"degraded":false}'
        self.item = b'{"status":200,' + decision + b',"degraded":false}'
        self.lease = (
            b"{" + decision + b',"degraded":false,"lease_id":%b,"state":"open",'
            b'"expires_at":"%b.%03dZ","held":%b}'
        )
        # As one of several: where it is, with the entity if the request named one, and how it was
        # decided.
        self.place = b"{" + place.replace(b"%", b"%%") + b"%b}"
        self.part = b"{" + place.replace(b"%", b"%%") + b"%b," + decision + b"}"


def template_for(frame: LimitConstants) -> AnswerTemplate:
    found: AnswerTemplate | None = frame.wording
    if found is None:
        frame.wording = found = AnswerTemplate(frame)
    return found


def admission_bytes(answer: Admission) -> Written:
    """The answer to a check."""
    frame, remaining, wait_ms, reset_ms = answer
    template = frame.wording or template_for(frame)
    content = template.content % (remaining, _moment(reset_ms // 1000), reset_ms % 1000)
    return content, _lines(template, len(content), remaining, wait_ms, reset_ms)


def item_bytes(answer: Admission) -> bytes:
    """One of a batch."""
    frame, remaining, _, reset_ms = answer
    template = frame.wording or template_for(frame)
    item: bytes = template.item % (remaining, _moment(reset_ms // 1000), reset_ms % 1000)
    return item


def lease_bytes(answer: Admission, lease: LeaseResult) -> Written:
    """The answer to who took tokens with a lease, which is open."""
    frame, remaining, wait_ms, reset_ms = answer
    template = frame.wording or template_for(frame)
    end_ms = lease.expires_at_ms
    content = template.lease % (
        remaining, _moment(reset_ms // 1000), reset_ms % 1000, _encode(lease.lease_id),
        _moment(end_ms // 1000), end_ms % 1000, _encode(lease.held),
    )  # fmt: skip
    return content, _lines(template, len(content), remaining, wait_ms, reset_ms)


def _lines(
    template: AnswerTemplate, size: int, remaining: int, wait_ms: int, reset_ms: int
) -> bytes:
    left = remaining if remaining > 0 else 0
    shown, wait_s = left, -(-wait_ms // 1000)
    if left > SF_INTEGER_MAX or wait_s > SF_INTEGER_MAX:
        shown, wait_s = min(left, SF_INTEGER_MAX), min(wait_s, SF_INTEGER_MAX)
    return template.lines % (size, left, -(-reset_ms // 1000), shown, wait_s)


# --------------------------------------------------------------------------------------------------
# Several limits in one answer. Requests that ask for the same limits share a template.


class CombinedTemplate:
    """What is always the same in answers about several limits.

    `has_twins`: some are called the same, so that the header fields tell the tightest of them.
    """

    __slots__ = ("content", "has_twins", "lines", "places")

    def __init__(self, frames: Sequence[LimitConstants]) -> None:
        templates = [template_for(frame) for frame in frames]
        parts = b",".join([one.part for one in templates])
        self.content = (
            b'{"allowed":true,"tokens_remaining":%d,"tokens_capacity":%d,"reset_at":"%b.%03dZ",'
            b'"degraded":false,"results":[' + parts + b'],"blocking":null,"most_restrictive":%b}'
        )
        self.places = [one.place for one in templates]
        policies = b", ".join([one.policy for one in templates])
        self.lines = _LINES % (b"%d", policies, b", ".join([one.status for one in templates]))
        self.has_twins = len({frame.name for frame in frames}) < len(frames)


@lru_cache(TEMPLATES_MAX)
def _combined_template(*frames: LimitConstants) -> CombinedTemplate:
    return CombinedTemplate(frames)


def combined_bytes(answer: CombinedAdmission) -> Written:
    """The answer to several descriptors, all of which were admitted.

    How each stands is worked out here, as `decide.plain` and `core.refill.bucket` do for one: in
    the same loop that puts it into words it takes half as long.
    """
    frames, records, now_ms, targets = answer
    template = _combined_template(*frames)
    values: list[object] = []  # four of each part
    waits: list[int] = []  # what is left, and the seconds until there is more
    least, at = 2.0, 0
    for frame, record, target in zip(frames, records, targets, strict=True):
        _, _, _, _, epoch_ms, tokens, _, _ = record  # a frame is of one limit
        period_ms, amount = frame.period_ms, frame.amount_milli
        left = (tokens + (now_ms - epoch_ms) * amount // period_ms) // MILLI
        reset_ms = epoch_ms - (tokens - frame.capacity_milli) * period_ms // amount
        wait_ms = epoch_ms - now_ms - (tokens - MILLI - left * MILLI) * period_ms // amount
        share = left / frame.capacity
        if share < least:
            least, at, tightest, full_ms = share, len(values), frame, reset_ms
        entity = target.entity
        named = b"" if entity is None else b',"entity":"%b"' % entity.encode()
        values += (named, left, _moment(reset_ms // 1000), reset_ms % 1000)
        waits += (left, -(-wait_ms // 1000))
    most_restrictive = template.places[at // 4] % values[at]
    _, left, *full = values[at : at + 4]
    content = template.content % (left, tightest.capacity, *full, *values, most_restrictive)
    if template.has_twins:
        template, waits = _tightest_by_name(frames, waits)
    return content, template.lines % (
        len(content), tightest.capacity, left, -(-full_ms // 1000), *waits,
    )  # fmt: skip


def _tightest_by_name(
    frames: Sequence[LimitConstants], waits: Sequence[int]
) -> tuple[CombinedTemplate, list[int]]:
    """A name stands for one policy: of limits that share it, the tightest is told."""
    found: dict[str, int] = {}
    for place, frame in enumerate(frames):
        twin = found.setdefault(frame.name, place)
        if waits[2 * place] / frame.capacity < waits[2 * twin] / frames[twin].capacity:
            found[frame.name] = place
    told = [wait for place in found.values() for wait in waits[2 * place : 2 * place + 2]]
    return _combined_template(*[frames[place] for place in found.values()]), told


@lru_cache(MOMENTS_MAX)
def _moment(second: int) -> bytes:
    """A second as ISO 8601 without its zone."""
    return iso_time(second * 1000)[:19].encode()


def _escape(text: str) -> bytes:
    """Text that stands in a pattern of `%` as it is."""
    return text.encode().replace(b"%", b"%%")
