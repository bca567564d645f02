"""Several decisions in one script call: how they are sent, and what each came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import HeadgateError, StoreTrouble
from headgate.core.store import Outcome
from headgate.stores.redis.client.port import Unexpected

Call = tuple[list[str], list[str | int]]
Reading = Callable[[Sequence[Demand], list[Any]], Verdict]

HEAD = 5  # arguments that all decisions of a call have in common


def joined(calls: Sequence[Call]) -> Call:
    """One call of several, which all begin alike."""
    names: list[str] = []
    args = calls[0][1][:HEAD]
    for named, own in calls:
        names += named
        args.append(len(named))
        args.append(len(own) - HEAD)
        args += own[HEAD:]
    return names, args


def told_each(reply: Any, count: int) -> list[Any]:
    """What was said to each of so many decisions; trouble of the call is trouble of each."""
    if isinstance(reply, list) and len(reply) == count:
        return reply
    if isinstance(reply, StoreTrouble):
        return [reply] * count
    return [
        Unexpected(f"redis answered {count} decisions with something else: {reply!r:.80}")
    ] * count


def outcome(demands: Sequence[Demand], reply: Any, read: Reading) -> Outcome:
    if isinstance(reply, StoreTrouble):
        return reply
    if not isinstance(reply, list):
        return Unexpected(f"redis could not decide on {demands[0].key.text!r}: {reply}")
    try:
        return read(demands, reply)
    except HeadgateError as error:
        return error
