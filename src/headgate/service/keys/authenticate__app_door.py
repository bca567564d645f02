"""The entrance: who is calling, by key, by client certificate, or in dev mode by being here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.service.keys.access import DEV_CALLER, Because, Caller, Refusal
from headgate.service.keys.access__keys_certificates import caller_of
from headgate.service.keys.authenticate import Door
from headgate.service.keys.key import Grant, Scope
from headgate.service.keys.stored__keys_shelf import KeyShelf

NO_CERTIFICATES: Mapping[str, Grant] = {}


class Entrance:
    """Recognises callers for every wire. Without a door it is dev mode: whoever calls from this
    machine may do everything, and nobody else anything."""

    def __init__(
        self,
        door: Door | None,
        certificates: Callable[[], Mapping[str, Grant]] = lambda: NO_CERTIFICATES,
    ) -> None:
        self._door = door
        self._certificates = certificates

    @property
    def dev(self) -> bool:
        return self._door is None

    @property
    def shelf(self) -> KeyShelf | None:
        """Where keys are kept; None in dev mode."""
        return None if self._door is None else self._door.shelf

    async def recognise(
        self, key_text: str | None, *, sans: Sequence[str] = (), local: bool = False
    ) -> Caller | Refusal:
        """Whose request it is. A key that was sent decides alone, also when it is wrong; `sans`
        are the names in a client certificate that TLS has verified, `local` says that the peer
        is on this machine."""
        if self._door is None:
            return DEV_CALLER if local else Refusal(Because.NO_KEY)
        if key_text is None and sans:
            return caller_of(sans, self._certificates())
        return await self._door.recognise(key_text)

    async def authorise(
        self,
        key_text: str | None,
        need: Scope,
        namespace: str | None,
        entity_id: str | None,
        *,
        sans: Sequence[str] = (),
        local: bool = False,
    ) -> Caller | Refusal:
        """Who it is if they may do this, or why not."""
        found = await self.recognise(key_text, sans=sans, local=local)
        if isinstance(found, Refusal):
            return found
        return found.refuses(need, namespace, entity_id) or found

    def forget(self, key_id: str) -> None:
        """The next request with this key asks the shelf."""
        if self._door is not None:
            self._door.forget(key_id)
