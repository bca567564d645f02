"""A lease held over the wire: what was asked of it, and how it ends; async and blocking."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headgate.client.answers import CheckAnswer, LeaseAnswer
from headgate.client.errors import ClientError
from headgate.client.flow import RequestFlow
from headgate.client.requests import ApiCall, adjust_call, release_call, settle_call
from headgate.core.errors import LeaseExpiredError

log = logging.getLogger("headgate.client")

Amounts = Mapping[str, int]


class LeaseCore:
    """What the service holds for us, and the last word said about it."""

    def __init__(
        self,
        flow: RequestFlow,
        namespace: str | None,
        check: CheckAnswer,
        lease: LeaseAnswer,
        keep: bool,
    ) -> None:
        self._flow = flow
        self._namespace = namespace
        self._keep = keep
        self._final: ApiCall | None = None  # an end that was asked for
        self._closed = False
        self.check = check
        self.answer = lease
        self.trouble: ClientError | None = None

    @property
    def ended(self) -> bool:
        return self.answer.state != "open"

    async def adjust(self, tokens: int | None, amounts: Amounts) -> None:
        self._must_be_open()
        self.answer = await self._flow.change(
            adjust_call(self.answer.lease_id, *_split(tokens, amounts), self._namespace)
        )

    async def release(self, tokens: int | None, amounts: Amounts) -> None:
        self._must_be_open()
        call = release_call(self.answer.lease_id, *_split(tokens, amounts), self._namespace)
        if tokens is None and not amounts:
            self._final = call
        self.answer = await self._flow.change(call)

    async def settle(self, tokens: int | None, amounts: Amounts) -> None:
        if self._closed:
            raise LeaseExpiredError
        self._final = settle_call(self.answer.lease_id, *_split(tokens, amounts), self._namespace)
        self.answer = await self._flow.change(self._final)

    async def leave(self, failed: bool) -> None:
        """Ends the lease where that was not done: as was asked last, else by how the block ended.

        The block's work is done, so trouble here is told and kept, not raised; the service then
        ends the lease by itself when its time is over.
        """
        self._closed = True
        if self.ended:
            return
        end = release_call if failed and not self._keep else settle_call
        call = self._final or end(self.answer.lease_id, None, {}, self._namespace)
        try:
            self.answer = await self._flow.change(call)
        except ClientError as error:
            self.trouble = error
            log.warning("a lease was left to expire: %s", error)

    def _must_be_open(self) -> None:
        if self._closed or self.ended:
            raise LeaseExpiredError


def _split(tokens: int | None, amounts: Amounts) -> tuple[int | None, Amounts]:
    """`tokens` beside names of limits is a name, too."""
    if tokens is None or not amounts:
        return tokens, amounts
    return None, {"tokens": tokens, **amounts}
