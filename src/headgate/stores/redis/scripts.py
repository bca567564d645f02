"""Scripts: how they are made of Lua files, and calls that carry many decisions or many keys.

A script is its own file behind the files it builds on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.client.commands import Part, Script
from headgate.stores.redis.client.errors import Unexpected


def load_script(name: str, *parts: str, raw: bool = False) -> Script:
    folder = files("headgate.stores.redis") / "lua"
    source = "\n".join((folder / f"{part}.lua").read_text() for part in (*parts, name))
    return Script(name, source, raw=raw)


def load_loop(name: str, inner: Script) -> Script:
    """A script that runs another as its function `decide(KEYS, ARGV)`."""
    own = load_script(name).source
    source = f"local function decide(KEYS, ARGV)\n{inner.source}\nend\n{own}"
    return Script(name, source, raw=inner.raw)


# --------------------------------------------------------------------------------------------------
# Several decisions in one script call: how they are sent, and what each of them got.

Call = tuple[list[str], list[Part]]  # keys and arguments


def join_calls(head: Part, calls: Sequence[Call]) -> Call:
    """One call made of several: what they have in common, and the keys and demands of each."""
    names: list[str] = []
    args = [head]
    for named, demands in calls:
        names += named
        args.append(len(demands))
        args += demands
    return names, args


def split_reply(reply: Any, count: int) -> list[Any]:
    """The reply to each of so many decisions; trouble of the call is trouble of each."""
    if isinstance(reply, list) and len(reply) == count:
        return reply
    if isinstance(reply, StoreTrouble):
        return [reply] * count
    return [
        Unexpected(f"redis answered {count} decisions with something else: {reply!r:.80}")
    ] * count


# --------------------------------------------------------------------------------------------------
# Work on many keys: in batches that fit a call, a slot at a time, some calls at once.

UNLINK = load_script("catalog_unlink")
UNLINK_PER_BATCH = 500
CALLS_AT_ONCE = 64
KEYS_PER_STEP = 1000  # a step of a walk over all keys, which blocks nobody


async def matching_keys(port: RedisPort, pattern: str) -> list[str]:
    """Keys that match, each once; a walk over every key of every master, in small calls."""
    found: set[str] = set()
    for send in await port.each_master():
        cursor = "0"
        while True:
            cursor, names = await send(("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_STEP))
            found.update(names)
            if str(cursor) == "0":
                break
    return sorted(found)


async def unlink(port: RedisPort, names: Iterable[str]) -> int:
    """The keys are gone; how many there were."""
    return sum([gone for _, gone in await on_all(port, UNLINK, names, batch_size=UNLINK_PER_BATCH)])


async def on_all(
    port: RedisPort,
    script: Script,
    names: Iterable[str],
    args: Sequence[Part] = (),
    *,
    batch_size: int,
) -> list[tuple[list[str], Any]]:
    """What the script replies for every batch of keys, with the keys it was given."""
    batches = list(_batches(port, names, batch_size))
    found: list[tuple[list[str], Any]] = []
    for at in range(0, len(batches), CALLS_AT_ONCE):
        wave = batches[at : at + CALLS_AT_ONCE]
        replies = await port.scripts([(script, names, args) for names in wave])
        for reply in replies:
            if isinstance(reply, StoreTrouble):
                raise reply
        found += zip(wave, replies, strict=True)
    return found


def _batches(port: RedisPort, names: Iterable[str], batch_size: int) -> Iterator[list[str]]:
    for together in port.by_slot(names, str):
        for at in range(0, len(together), batch_size):
            yield together[at : at + batch_size]
