"""What became of one attempt: the service's reply as a value, or the reason there is none."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from headgate.client.quota import Quota, parse_quota
from headgate.transport.http1 import Fields, Response


class Trouble(NamedTuple):
    """No reply. `sent` is whether the service may have got the call nonetheless."""

    reason: str
    sent: bool


@dataclass(frozen=True)
class Reply:
    """A response and its JSON object; an empty one where the body is none."""

    status: int
    headers: Fields = field(repr=False)
    document: dict[str, Any] = field(repr=False)
    at_ms: int

    @cached_property
    def quota(self) -> Quota:
        return parse_quota(self.headers, self.at_ms)

    @property
    def code(self) -> str | None:
        """The service's word for what is wrong; None where nothing is or it was not the service
        who spoke."""
        told = self.document.get("code")
        if told is None:
            error = self.document.get("error")
            told = error.get("code") if isinstance(error, dict) else None
        return told if isinstance(told, str) else None

    @property
    def retry_after_ms(self) -> int | None:
        """How long it asks to wait; None where it says nothing of that."""
        told = self.quota.retry_after_ms
        return seconds_ms(self.document.get("retry_after_seconds")) if told is None else told

    @property
    def never(self) -> bool:
        """Whether it says that no wait will help."""
        return self.document.get("retry_after_seconds", 0) is None


Outcome = Reply | Trouble


def reply_of(response: Response, now_ms: int) -> Reply:
    """The reply; a body that is not a JSON object is read as an empty one."""
    try:
        document = json.loads(response.body) if response.body else {}
    except (ValueError, RecursionError):
        document = {}
    if not isinstance(document, dict):
        document = {}
    return Reply(response.status, response.headers, document, now_ms)


def seconds_ms(value: object) -> int | None:
    """Seconds of a JSON document as whole milliseconds, rounded up; None for anything odd."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value <= 10**10:  # NaN is not in there, either
        return None
    return -int(-value * 1000 // 1)
