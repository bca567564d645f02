"""One server: the call goes there, and a script it does not know is sent whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.commands import (
    MissingScripts,
    Part,
    Parts,
    RedisTransport,
    Script,
    ScriptCall,
    ServerError,
    scan_keys,
)
from headgate.stores.redis.client.url import Node


class SinglePort:
    """One server, always the same."""

    slots = 1

    def __init__(self, wire: RedisTransport, node: Node) -> None:
        self._wire = wire
        self._node = node
        self._missing = MissingScripts(wire)

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        return await self.again(script, ("EVALSHA", script.sha, len(keys), *keys, *args))

    async def again(self, script: Script, parts: Parts) -> Any:
        wire = self._wire
        due_s = wire.now_s() + wire.timeout_s
        reply = await wire.ask(self._node, parts, due_s)
        if type(reply) is not ServerError:
            return reply
        for again in (False, True):
            if type(reply) is ServerError and reply.code == "NOSCRIPT":
                parts, due_s = self._missing.retry(self._node, script, parts, again=again)
                reply = await wire.ask(self._node, parts, due_s)
        if type(reply) is ServerError:
            raise self._trouble(reply)
        return reply

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        wire = self._wire
        reply = await wire.ask(self._node, parts, wire.now_s() + wire.timeout_s)
        if type(reply) is ServerError:
            raise self._trouble(reply)
        return reply

    async def everywhere(self, *parts: Part) -> list[Any]:
        return [await self.command(*parts)]

    async def scan(self, pattern: str) -> list[str]:
        return await scan_keys(self.command, pattern)

    def slot(self, key: str) -> int:
        return 0

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        return await self._wire.together([self.script(*call) for call in calls])

    async def close(self) -> None:
        await self._wire.close()

    def _trouble(self, reply: ServerError) -> StoreTrouble:
        if trouble.is_replica(reply):  # the name may lead to the new master by now
            self._wire.retire(self._node)
        return trouble.error_of_reply(reply, self._node)
