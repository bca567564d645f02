"""The commonest answer of all, written straight to bytes: a plain yes.

`bodies` and `headers` say the same through dicts and lists of text, and say everything else; a test
compares the two. Most of a check's time would go into saying yes otherwise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from headgate.service.answers import BatchAnswer, CheckAnswer
from headgate.service.bodies import batch_body, iso_time
from headgate.service.headers import SF_INTEGER_MAX, sf_string
from headgate.service.problems import ServiceError

CACHED = 4096

_encode = msgspec.json.Encoder().encode
JSON = (b"content-type", b"application/json")

Fields = list[tuple[bytes, bytes]]


def plain_yes(answer: CheckAnswer) -> tuple[bytes, Fields] | None:
    """The content and the header fields; None where there is more to say."""
    content = _content(answer)
    remaining, capacity, _, reset_ms, limits = answer[4:9]
    if content is None or remaining is None or capacity is None or reset_ms is None:
        return None
    if len(limits) != 1:
        return None
    name, limit_capacity, left, window_s, wait_ms, _, _, _ = limits[0]
    if window_s is None:
        return None
    policy, quoted = _policy(name, limit_capacity, window_s)
    standing = b"%b;r=%d" % (quoted, min(max(0, left), SF_INTEGER_MAX))
    if wait_ms is not None:
        standing = b"%b;t=%d" % (standing, min(-(-wait_ms // 1000), SF_INTEGER_MAX))
    return content, [
        JSON,
        (b"content-length", b"%d" % len(content)),
        (b"x-ratelimit-limit", b"%d" % capacity),
        (b"x-ratelimit-remaining", b"%d" % max(0, remaining)),
        (b"x-ratelimit-reset", b"%d" % -(-reset_ms // 1000)),
        (b"ratelimit-policy", policy),
        (b"ratelimit", standing),
    ]


def batch_content(answer: BatchAnswer) -> bytes:
    """The whole document of a batch, most of it the short way."""
    return b'{"results":[%b]}' % b",".join([_item(one) for one in answer.results])


def _item(result: CheckAnswer | ServiceError) -> bytes:
    content = None if isinstance(result, ServiceError) else _content(result)
    if content is None:
        return _encode(batch_body(BatchAnswer((result,)))["results"][0])
    return b'{"status":200,' + content[1:]


def _content(answer: CheckAnswer) -> bytes | None:
    """A yes in JSON; None where there is more to say."""
    allowed, _, _, _, remaining, capacity, _, reset_ms, _, _, *rest = answer
    degraded, _, shadowed, dry_run, _ = rest
    if not allowed or degraded or shadowed or dry_run:
        return None
    if remaining is None or capacity is None or reset_ms is None:
        return None
    moment = _moment(reset_ms // 1000)
    if moment is None:
        return None
    return (
        b'{"allowed":true,"tokens_remaining":%d,"tokens_capacity":%d,"reset_at":"%b.%03dZ",'
        b'"degraded":false}' % (remaining, capacity, moment, reset_ms % 1000)
    )


@lru_cache(CACHED)
def _moment(second: int) -> bytes | None:
    """A second as ISO 8601 without its zone."""
    text = iso_time(second * 1000)
    return None if text is None else text[:19].encode()


@lru_cache(CACHED)
def _policy(name: str, capacity: int, window_s: int) -> tuple[bytes, bytes]:
    """What `RateLimit-Policy` says of a limit, and its name in quotes."""
    quoted = sf_string(name)
    told = f"{quoted};q={min(capacity, SF_INTEGER_MAX)};w={min(window_s, SF_INTEGER_MAX)}"
    return told.encode(), quoted.encode()


async def write_plain(send: Any, content: bytes, fields: Fields) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": content})
