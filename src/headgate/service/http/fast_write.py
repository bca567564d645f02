"""The commonest answer of all, written straight to bytes: a plain yes.

`bodies` and `headers` say the same through dicts and lists of text, and say everything else; a test
compares the two. Most of a check's time would go into saying yes otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from headgate.core.history import iso_time
from headgate.core.http_fields import SF_INTEGER_MAX, policy_item, sf_string
from headgate.service.decide.answers import Admission, CheckResult
from headgate.service.decide.bodies import batch_item
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.targets import LimitConstants

CACHED = 4096

_encode = msgspec.json.Encoder().encode
JSON = (b"content-type", b"application/json")
_LENGTHS = [(b"content-length", b"%d" % length) for length in range(512)]

Fields = list[tuple[bytes, bytes]]


class AnswerTemplate:
    """What is always the same in answers about one limit."""

    __slots__ = ("content", "item", "limit", "lines", "policy", "standing")

    def __init__(self, frame: LimitConstants) -> None:
        capacity = b"%d" % frame.capacity
        quoted = sf_string(frame.name)
        policy = policy_item(frame.name, frame.capacity, frame.window_s)
        self.limit = (b"x-ratelimit-limit", capacity)
        self.policy = (b"ratelimit-policy", policy.encode())
        self.standing = _escaped(quoted) + b";r=%d;t=%d"
        rest = (
            b'"allowed":true,"tokens_remaining":%%d,"tokens_capacity":%b,"reset_at":"%%b.%%03dZ",'
            b'"degraded":false}' % capacity
        )
        self.lines = (
            b"content-type: application/json\r\ncontent-length: %%d\r\n"
            b"x-ratelimit-limit: %b\r\nx-ratelimit-remaining: %%d\r\nx-ratelimit-reset: %%d\r\n"
            b"ratelimit-policy: %b\r\nratelimit: %b\r\n"
            % (capacity, _escaped(policy), self.standing)
        )
        self.content = b"{" + rest
        self.item = b'{"status":200,' + rest


def admitted_fields(admitted: Admission) -> tuple[bytes, Fields]:
    """The content and the header fields."""
    frame, remaining, wait_ms, reset_ms = admitted
    wording = frame.wording or _template_for(frame)
    content = wording.content % (remaining, _moment(reset_ms // 1000), reset_ms % 1000)
    left = remaining if remaining > 0 else 0
    return content, [
        JSON,
        _LENGTHS[len(content)],
        wording.limit,
        (b"x-ratelimit-remaining", b"%d" % left),
        (b"x-ratelimit-reset", b"%d" % -(-reset_ms // 1000)),
        wording.policy,
        (b"ratelimit", wording.standing % (
            left if left < SF_INTEGER_MAX else SF_INTEGER_MAX,
            min(-(-wait_ms // 1000), SF_INTEGER_MAX),
        )),
    ]  # fmt: skip


def admitted_lines(admitted: Admission) -> tuple[bytes, bytes]:
    """The content, and the header fields as the lines they are."""
    frame, remaining, wait_ms, reset_ms = admitted
    wording = frame.wording or _template_for(frame)
    content = wording.content % (remaining, _moment(reset_ms // 1000), reset_ms % 1000)
    left = remaining if remaining > 0 else 0
    shown, wait_s = left, -(-wait_ms // 1000)
    if left > SF_INTEGER_MAX or wait_s > SF_INTEGER_MAX:
        shown, wait_s = min(left, SF_INTEGER_MAX), min(wait_s, SF_INTEGER_MAX)
    values = (len(content), left, -(-reset_ms // 1000), shown, wait_s)
    return content, wording.lines % values


def batch_content(results: Sequence[Admission | CheckResult | ServiceError]) -> bytes:
    """The whole document of a batch, most of it the short way."""
    items: list[bytes] = []
    for result in results:
        if isinstance(result, Admission):
            frame, remaining, _, reset_ms = result
            wording = frame.wording or _template_for(frame)
            moment = _moment(reset_ms // 1000)
            items.append(wording.item % (remaining, moment, reset_ms % 1000))
        else:
            items.append(_encode(batch_item(result)))
    return b'{"results":[%b]}' % b",".join(items)


def _template_for(frame: LimitConstants) -> AnswerTemplate:
    frame.wording = wording = AnswerTemplate(frame)
    return wording


@lru_cache(CACHED)
def _moment(second: int) -> bytes:
    """A second as ISO 8601 without its zone."""
    return iso_time(second * 1000)[:19].encode()


def _escaped(text: str) -> bytes:
    """Text that stands in a pattern of `%` as it is."""
    return text.encode().replace(b"%", b"%%")
