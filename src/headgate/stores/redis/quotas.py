"""What a call tells the scripts about quotas: the resets around now, which the server cannot know.

A script has no time zones, so a call says of each schedule the last resets and the next ones, and
the server decides by them and by its own clock. They are good for hours or months, so nearly every
call is one. Where they do not do, because the client was idle for long, or the bucket is older and
in debt, or it holds a quota that the client had not heard of, the script writes nothing and says
what it wants to know: then the same call is sent once more. See lua/resets.lua.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headgate.core.decision import Demand
from headgate.core.errors import Contended, Damaged, StoreTrouble, ValidationError
from headgate.core.record import BucketKey
from headgate.core.refill.resets import Resets, SessionResets, schedule_of
from headgate.core.runtime import wall_clock_ms
from headgate.stores.redis.client.calls import RedisPort, ScriptCall
from headgate.stores.redis.client.commands import Script
from headgate.stores.redis.encoding import (
    GARBLED,
    packed_list,
    packed_number,
    packed_text,
    unreadable_bucket,
)
from headgate.stores.redis.scripts import Call

WANTED = 4  # the code of a reply that wants rules
ASKED_MAX = 4  # a bucket may change between two calls; nothing was written by any but the last
RESETS_BEFORE = 2  # so a bucket that is in debt since the window before is counted, too
RESETS_SENT = 6
NEVER_MS = 2**53 - 1
DAY_MS = 86_400_000
# No two resets are further apart: zones skip a day or repeat hours, and a cron expression comes at
# least every ten years.
WIDEST_DAYS = {"day": 3, "week": 9, "month": 33, "year": 368, None: 11 * 366}
OTHERS_MAX = 4096
SCHEDULES_MAX = 64

BuildCall = Callable[..., Call]  # with what is wanted
Asked = tuple[Sequence[Demand], Any, BuildCall]  # what was asked, the reply, and the call again


class Wanted(NamedTuple):
    """What a script wants to know: the server's time, and by schedule the epochs to count from."""

    now_ms: int
    epochs: dict[str, tuple[int, ...]]


def wants_rules(reply: Any) -> bool:
    """Whether the reply is no answer, but asks for rules."""
    return type(reply) is list and len(reply) == 3 and reply[0] == WANTED


def wanted_of(reply: list[Any]) -> Wanted:
    """What a reply that wants rules wants to know."""
    epochs: dict[str, set[int]] = {}
    for name, epoch_ms in zip(reply[2][::2], reply[2][1::2], strict=True):
        text = name.decode() if isinstance(name, bytes) else name
        epochs.setdefault(text, set()).add(int(epoch_ms))
    return Wanted(int(reply[1]), {name: tuple(sorted(found)) for name, found in epochs.items()})


class ResetRules:
    """Packs the rules of a store's calls. It remembers which buckets hold quotas besides those that
    are asked of them, as a change of limits leaves them, so that the server says so once."""

    def __init__(self, port: RedisPort, on_wanted: Callable[[int], None]) -> None:
        """`on_wanted` gets the server's time; calls that are packed lack a rule then."""
        self._port = port
        self._on_wanted = on_wanted
        self._others: dict[str, frozenset[str]] = {}  # schedules by bucket

    def packed(self, demands: Sequence[Demand], now_ms: int, wanted: Wanted | None) -> bytes:
        """The rules of a call, b"" where no quota is known of. `now_ms` is about what time it is
        there, 0 if that is not known."""
        names: set[str] = set()
        for demand in demands:
            if demand.terms.quotas:
                names |= _schedules(demand)
            if self._others:
                names |= self._others.get(demand.key.text, frozenset())
        epochs: dict[str, tuple[int, ...]] = {}
        if wanted is not None:
            now_ms, epochs = wanted
            names |= epochs.keys()
        if not names:
            return b""
        rules = [_rule(name, now_ms or wall_clock_ms(), epochs.get(name, ())) for name in names]
        return packed_list([rule for rule in rules if rule])

    async def ask(
        self, script: Script, groups: Sequence[Sequence[Demand]], builds: Sequence[BuildCall]
    ) -> list[Any]:
        """The replies to a call for each group of demands, all sent at once."""
        replies = await self._port.scripts([(script, *build()) for build in builds])
        return await self.explain(script, list(zip(groups, replies, builds, strict=True)))

    async def explain(self, script: Script, asked: Sequence[Asked]) -> list[Any]:
        """The replies to several calls, where those that want rules are sent again with them: all
        at once, so in one more round trip. Nothing was written by a call that wants rules."""
        replies = [reply for _, reply, _ in asked]
        for _ in range(ASKED_MAX):
            calls: dict[int, ScriptCall] = {}
            for place, (demands, _, build) in enumerate(asked):
                if wants_rules(replies[place]):
                    try:
                        calls[place] = (script, *self._call_again(demands, replies[place], build))
                    except StoreTrouble as error:
                        replies[place] = error
            if not calls:
                return replies
            told = await self._port.scripts(list(calls.values()))
            for place, reply in zip(calls, told, strict=True):
                replies[place] = reply
        return [
            _changes_each_time(demands[0].key) if wants_rules(reply) else reply
            for (demands, _, _), reply in zip(asked, replies, strict=True)
        ]

    async def explain_one(self, script: Script, *asked: *Asked) -> Any:
        """The same of one call; trouble is raised."""
        (reply,) = await self.explain(script, [asked])
        if isinstance(reply, StoreTrouble):
            raise reply
        return reply

    def _call_again(self, demands: Sequence[Demand], reply: list[Any], build: BuildCall) -> Call:
        key = demands[0].key
        try:
            wanted = wanted_of(reply)
        except GARBLED as error:
            raise unreadable_bucket(key, error) from error
        try:
            call = build(wanted=wanted)
        except ValidationError as error:
            raise Damaged(
                f"the bucket {key.text!r} is kept under a quota whose schedule this machine cannot "
                f"read, so nothing was written: {error}"
            ) from error
        self._learn(demands, wanted)
        self._on_wanted(wanted.now_ms)
        return call

    def _learn(self, demands: Sequence[Demand], wanted: Wanted) -> None:
        """The buckets of a call hold what was wanted, as far as it was not asked of them."""
        if len(self._others) >= OTHERS_MAX:
            self._others.clear()
        for demand in demands:
            names = frozenset(wanted.epochs) - _schedules(demand)
            if names:
                together = names | self._others.get(demand.key.text, frozenset())
                if len(together) > SCHEDULES_MAX:
                    together = names
                self._others[demand.key.text] = together


def _changes_each_time(key: BucketKey) -> Contended:
    return Contended(
        f"the quotas of the bucket {key.text!r} were changed by others each time it was asked; "
        f"nothing was written"
    )


def _schedules(demand: Demand) -> set[str]:
    return {spec.resets for spec in demand.terms.specs if spec.resets is not None}


@functools.lru_cache(maxsize=1024)
def _rule(name: str, now_ms: int, epochs_ms: tuple[int, ...]) -> bytes:
    """One schedule as resets.lua reads it; nothing for a session, which needs no rule."""
    resets = schedule_of(name)
    if isinstance(resets, SessionResets):
        return b""
    moments = resets.around(now_ms, RESETS_BEFORE, RESETS_SENT)
    if len(moments) < RESETS_SENT:  # the calendar ends
        moments = (*moments, NEVER_MS)
    counts: list[bytes] = []
    for epoch_ms in epochs_ms:
        counts += (packed_number(epoch_ms), packed_number(_before(resets, epoch_ms, moments[0])))
    widest_ms = WIDEST_DAYS[resets.every] * DAY_MS
    return packed_list(
        (
            packed_text(name),
            packed_list([packed_number(at_ms) for at_ms in moments]),
            packed_list(counts),
            packed_number(widest_ms),
        )
    )


def _before(resets: Resets, epoch_ms: int, first_ms: int) -> int:
    """How many resets there are after an epoch and before a moment."""
    return resets.resets_between(epoch_ms, first_ms - 1)
