"""The Lua files as scripts: a script is its own file behind the files it builds on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.redis.client.commands import RedisPort, Script


def load_script(name: str, *parts: str) -> Script:
    folder = files("headgate.stores.redis") / "lua"
    source = "\n".join((folder / f"{part}.lua").read_text() for part in (*parts, name))
    return Script(name, source)


def load_loop(name: str, inner: Script) -> Script:
    """A script that runs another as its function `decide(KEYS, ARGV)`."""
    own = load_script(name).source
    return Script(name, f"local function decide(KEYS, ARGV)\n{inner.source}\nend\n{own}")


# --------------------------------------------------------------------------------------------------
# Work on many keys: in batches that fit a call, a slot at a time, some calls at once.

UNLINK = load_script("catalog_unlink")
UNLINK_PER_BATCH = 500
CALLS_AT_ONCE = 64


async def matching_keys(port: RedisPort, pattern: str) -> list[str]:
    """Keys that match, each once; a walk over every key of every master, in small calls."""
    return sorted(set(await port.scan(pattern)))


async def unlink(port: RedisPort, names: Iterable[str]) -> int:
    """The keys are gone; how many there were."""
    return sum([gone for _, gone in await on_all(port, UNLINK, names, batch_size=UNLINK_PER_BATCH)])


async def on_all(
    port: RedisPort,
    script: Script,
    names: Iterable[str],
    args: Sequence[str | int] = (),
    *,
    batch_size: int,
) -> list[tuple[list[str], Any]]:
    """What the script replies for every bite of keys, with the keys it was given."""
    bites = list(_batches(port, names, batch_size))
    found: list[tuple[list[str], Any]] = []
    for at in range(0, len(bites), CALLS_AT_ONCE):
        wave = bites[at : at + CALLS_AT_ONCE]
        replies = await port.scripts([(script, names, args) for names in wave])
        for reply in replies:
            if isinstance(reply, StoreTrouble):
                raise reply
        found += zip(wave, replies, strict=True)
    return found


def _batches(port: RedisPort, names: Iterable[str], batch_size: int) -> Iterator[list[str]]:
    slots: dict[int, list[str]] = {}
    for name in names:
        slots.setdefault(port.slot(name), []).append(name)
    for together in slots.values():
        for at in range(0, len(together), batch_size):
            yield together[at : at + batch_size]
