"""The Redis and Valkey store: one script call per decision, exact integers, the server's clock."""

from __future__ import annotations

from headgate.core.store import Capabilities
from headgate.stores.catalog import Backend
from headgate.stores.redis.buckets import RedisStore
from headgate.stores.redis.client.calls import open_port
from headgate.stores.redis.encoding import check_limits
from headgate.stores.redis.ledger import RedisLedger
from headgate.stores.redis.records import RedisCatalog, RedisExpiringRecords


def open_redis(url: str, *, blocking: bool, usage: bool = True) -> Backend:
    """The backend of a server, a Sentinel service or a cluster; nothing is contacted yet."""
    port = open_port(url, blocking=blocking)
    store = RedisStore(port, usage=usage)
    cluster = "+cluster" in url.split("://", 1)[0]
    capabilities = Capabilities(
        name="redis",
        shared="network",
        atomic="undo" if cluster else "one step",
        obeys_clock=False,
        durable=True,
    )
    return Backend(
        store,
        RedisCatalog(port),
        RedisLedger(port),
        capabilities,
        RedisExpiringRecords(port),
        check_limits,
    )
