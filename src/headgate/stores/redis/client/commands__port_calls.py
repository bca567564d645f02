"""What the store asks of Redis: scripts, commands, and where keys live."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.core.errors import StoreTrouble
from headgate.stores.redis.client.commands import Part, Parts, Ready, Wire
from headgate.stores.redis.client.url import Node


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script as the server knows it; made once per file."""

    name: str
    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


def ready_call(script: Script, keys: Sequence[str], args: Sequence[Part]) -> Ready:
    """A script call that is sent again and again."""
    return Ready(("EVALSHA", script.sha, len(keys), *keys, *args))


class MissingScripts:
    """What to send after a server said NOSCRIPT: the whole script, or its hash once more.

    A server that was restarted knows no script, and ten thousand calls may find that out at once.
    The first of them sends the script; the others ask by its hash again, because their calls
    arrive after that one. Sending it with each of them would be 130 MB, which takes longer than
    the timeout.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._sent_s: dict[tuple[Node | None, str], float] = {}

    def retry(
        self, node: Node | None, script: Script, parts: Parts, *, again: bool
    ) -> tuple[Parts, float]:
        """The parts to send and their deadline, a new one: the server has answered in time.

        `again` says that this call has been retried before and needs the whole script.
        """
        now_s = self._wire.now_s()
        timeout_s = self._wire.timeout_s
        sent_s = self._sent_s.get((node, script.sha), -math.inf)
        if again or now_s - sent_s > timeout_s:
            self._sent_s[node, script.sha] = now_s
            parts = ("EVAL", script.source, *parts[2:])
        return parts, now_s + timeout_s


ScriptCall = tuple[Script, Sequence[str], Sequence[Part]]


class Port(Protocol):
    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        """What the script returns; it runs once, also where the server did not know it yet."""
        ...

    def again(self, script: Script, parts: Ready) -> Awaitable[Any]:
        """The same of a call that was packed before: `ready_call` makes one."""
        ...

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        """The reply to one command; `key` says where it goes in a cluster (else the 2nd part)."""
        ...

    async def everywhere(self, *parts: Part) -> list[Any]:
        """The replies of every master; trouble of one is trouble of the call."""
        ...

    async def scan(self, pattern: str) -> list[str]:
        """Keys that match, on every master; some may come twice."""
        ...

    def slot(self, key: str) -> int:
        """Keys of one slot can be used in one call; without a cluster every key is in slot 0."""
        ...

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        """One outcome per call, trouble as a value; the calls are not atomic together."""
        ...

    async def close(self) -> None:
        """No call is served any more; closing again does nothing."""
        ...
