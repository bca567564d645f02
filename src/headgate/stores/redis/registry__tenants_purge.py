"""The end of a namespace, and of everything."""

from __future__ import annotations

from headgate.core.errors import NamespaceNotFoundError
from headgate.stores.redis import keys__catalog_keys as keys
from headgate.stores.redis import registry as tenants
from headgate.stores.redis import scripts__scan as scan
from headgate.stores.redis.catalog_steps import read
from headgate.stores.redis.client.port import Port
from headgate.stores.redis.keys import PREFIX

STREAMS_BITE = 500
RECORDS = (f"{PREFIX}:b:", f"{PREFIX}:u:")  # the rest of an entity's keys only lead to these


async def purge(port: Port, namespace: str) -> int:
    """How many records went; a purge that was cut short is finished by the next."""
    if not await tenants.exists(port, namespace):
        if await tenants.strike(port, namespace):  # cut short before its last step
            return 1
        raise NamespaceNotFoundError(namespace)
    await tenants.begin_purge(port, namespace)
    gone = await _purge_entities(port, namespace) + await _purge_audit(port, namespace)
    entities, levels = keys.entities(namespace), keys.levels(namespace)
    people_count, levels_count = await read(port, ("HLEN", entities), ("HLEN", levels))
    texts = keys.drawer(namespace), keys.drawer_ends(namespace)
    await port.command(
        "UNLINK", entities, levels, *texts, keys.index(namespace), keys.head(namespace)
    )
    await tenants.strike(port, namespace)
    return gone + int(people_count) + int(levels_count) + 1


async def destroy(port: Port) -> None:
    await scan.unlink(port, await scan.matching(port, keys.EVERYTHING))


async def _purge_entities(port: Port, namespace: str) -> int:
    names = await scan.matching(port, keys.things_of_entities(namespace))
    records = [name for name in names if name.startswith(RECORDS)]
    await scan.unlink(port, [name for name in names if not name.startswith(RECORDS)])
    return await scan.unlink(port, records)


async def _purge_audit(port: Port, namespace: str) -> int:
    gone = 0
    streams = await scan.matching(port, keys.audit_of_namespace(namespace))
    for at in range(0, len(streams), STREAMS_BITE):
        bite = streams[at : at + STREAMS_BITE]
        gone += sum(await read(port, *[("XLEN", stream) for stream in bite]))
        await scan.unlink(port, bite)
    return gone
