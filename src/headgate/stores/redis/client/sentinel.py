"""Sentinel: the master is looked up whenever there is no connection to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.core.errors import StoreDenied, StoreTrouble, Unreachable
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.commands import (
    MissingScripts,
    NotSent,
    Part,
    Parts,
    RedisTransport,
    Script,
    ScriptCall,
    ServerError,
    scan_keys,
)
from headgate.stores.redis.client.url import Node


class SentinelPort:
    slots = 1

    def __init__(self, wire: RedisTransport, sentinels: Sequence[Node], service: str) -> None:
        self._wire = wire
        self._sentinels = tuple(sentinels)
        self._service = service
        self._master: Node | None = None
        self._missing = MissingScripts(wire)

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        return await self.again(script, ("EVALSHA", script.sha, len(keys), *keys, *args))

    async def again(self, script: Script, parts: Parts) -> Any:
        due_s = self._wire.now_s() + self._wire.timeout_s
        reply = await self._ask(parts, due_s)
        for again in (False, True):
            if type(reply) is ServerError and reply.code == "NOSCRIPT":
                parts, due_s = self._missing.retry(self._master, script, parts, again=again)
                reply = await self._ask(parts, due_s)
        return self._checked(reply)

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        return self._checked(await self._ask(parts, self._wire.now_s() + self._wire.timeout_s))

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

    async def _ask(self, parts: Parts, due_s: float) -> Any:
        """The master's reply; a second master is tried where the first did certainly nothing."""
        master = self._master
        if master is None or not self._wire.is_connected(master):
            master = await self._look_up(due_s)
        try:
            reply = await self._wire.ask(master, parts, due_s)
        except NotSent:
            successor = await self._successor(master, due_s)
            if successor is None:
                raise
            return await self._wire.ask(successor, parts, due_s)
        if type(reply) is not ServerError or not trouble.is_replica(reply):
            return reply
        self._wire.retire(master)  # it was demoted; a script there ends at its first write
        successor = await self._successor(master, due_s)
        return reply if successor is None else await self._wire.ask(successor, parts, due_s)

    async def _successor(self, master: Node, due_s: float) -> Node | None:
        try:
            found = await self._look_up(due_s)
        except Unreachable:
            return None
        return None if found == master else found

    async def _look_up(self, due_s: float) -> Node:
        """The first sentinel that answers is asked first from now on."""
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        said: object = "none was asked"
        denied: StoreDenied | None = None
        for place, sentinel in enumerate(self._sentinels):
            left_s = due_s - self._wire.now_s()
            share_s = left_s / (len(self._sentinels) - place)
            try:
                reply = await self._wire.ask(sentinel, question, due_s - left_s + share_s)
            except Unreachable as error:
                said = error
                continue
            except StoreDenied as error:
                denied = error
                continue
            if type(reply) is list:
                self._promote(sentinel)
                self._master = Node(str(reply[0]), int(reply[1]))
                return self._master
            if type(reply) is ServerError:
                found = trouble.error_of_reply(reply, sentinel)
                denied = found if isinstance(found, StoreDenied) else denied
            said = f"{sentinel} knows no such service" if reply is None else reply
        if denied is not None:
            raise denied
        raise NotSent(
            f"no sentinel names a master for {self._service!r}: {said}; nothing was sent: "
            f"check the service's name and that the sentinels run"
        )

    def _promote(self, sentinel: Node) -> None:
        if self._sentinels[0] != sentinel:
            others = [other for other in self._sentinels if other != sentinel]
            self._sentinels = (sentinel, *others)

    def _checked(self, reply: Any) -> Any:
        if type(reply) is ServerError:
            raise trouble.error_of_reply(reply, self._master or self._sentinels[0])
        return reply
