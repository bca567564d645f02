"""TLS, client certificates and logins, on one server and on a cluster."""

from __future__ import annotations

import asyncio

import pytest

from headgate import (
    Limit,
    OnUnavailable,
    RateLimiter,
    StoreDenied,
    SyncRateLimiter,
)
from headgate.core.errors import StoreTrouble, Unreachable
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.client.commands import Script
from tests.stores.redis import secured, servers
from tests.stores.redis.client.kit import BOTH_MODES, INCR, outcome, use

SET = Script("set", "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])")


async def _ping(url: str) -> object:
    port = open_port(url, blocking=False)
    try:
        return await port.command("PING")
    finally:
        await port.close()


def test_a_client_certificate_opens_the_door(mutual_url: str) -> None:
    assert servers.command(mutual_url, "PING") == "PONG"
    assert asyncio.run(_ping(mutual_url)) == "PONG"


@BOTH_MODES
@pytest.mark.parametrize("server", ["redis_url", "tls_url"])
def test_tls_carries_what_tcp_does(
    request: pytest.FixtureRequest, server: str, blocking: bool
) -> None:
    """Many calls at once, a script that was flushed, replies in pieces, and a new connection."""
    url = request.getfixturevalue(server)
    servers.flush(url)

    async def test(port: RedisPort) -> None:
        await port.command("SCRIPT", "FLUSH")
        assert await port.scripts([(INCR, ["n"], [])] * 100) == list(range(1, 101))
        big = "é" * 500_000
        sets = [(SET, [f"big{place}"], [big]) for place in range(5)]
        assert await port.scripts(sets) == [big] * 5
        servers.command(url, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        while isinstance(await outcome(port.command("PING")), StoreTrouble):
            pass  # it may notice only when it uses the connection
        assert await port.script(INCR, ["n"], []) == 101

    use(url, test, blocking=blocking, timeout_ms=servers.PATIENCE_MS)
    servers.flush(url)


@pytest.mark.parametrize(
    ("shown", "says"), [("", "redis"), ("stranger", "redis"), ("nowhere", "ssl_certfile")]
)
def test_none_or_the_wrong_one_does_not(mutual_url: str, shown: str, says: str) -> None:
    url = mutual_url.replace("/client.", f"/{shown}.") if shown else mutual_url.partition("&")[0]
    with pytest.raises(Unreachable, match=says):
        servers.command(url, "PING")
    with pytest.raises(Unreachable, match=says):
        asyncio.run(_ping(url))


def test_a_cluster_shows_its_map_to_those_with_a_certificate_only(
    tls_cluster: servers.Cluster,
) -> None:
    url = tls_cluster.url.replace("/client.", "/stranger.") + "&timeout_ms=2000"
    with pytest.raises(StoreTrouble, match="no node of the cluster shows its map"):
        servers.command(url, "PING")


@pytest.mark.parametrize(
    ("less", "named"),
    [(("-evalsha",), "'evalsha'"), (("resetkeys", "~other:*"), "~hg:*"), (("-hset",), "+@write")],
)
def test_a_user_without_a_right_is_denied_not_let_pass(
    redis_server: servers.Server, less: tuple[str, ...], named: str
) -> None:
    """Not even where outages are allowed, and no breaker opens: the server is there."""
    rule = (*secured.ACL_RULE, *less)
    servers.command(redis_server.url, "ACL", "SETUSER", "fewer", "reset", *rule)
    url = redis_server.url.replace("://", "://fewer:pass%20word@")
    limits = [Limit.per_day("x", 100)]
    with SyncRateLimiter(url, limits=limits, on_unavailable=OnUnavailable.ALLOW) as limiter:
        for _ in range(8):
            with pytest.raises(StoreDenied) as caught:
                with limiter.acquire("e", "api", {"x": 1}):
                    raise AssertionError("must not be entered")
            assert named in str(caught.value)


def test_a_login_over_tls_on_a_cluster_serves_both_faces(tls_cluster: servers.Cluster) -> None:
    servers.flush(tls_cluster.url)
    url = secured.with_login(tls_cluster)
    limits = [Limit.per_day("x", 100)]
    asked = [(f"e{place}", "api", {"x": 1}) for place in range(9)]  # on several nodes
    with SyncRateLimiter(url, limits=limits) as limiter:
        with limiter.acquire_many(asked):
            pass

    async def use() -> dict[str, int]:
        async with RateLimiter(url, limits=limits) as limiter:
            async with limiter.acquire_many(asked):
                pass
            return await limiter.available("e3", "api")

    assert asyncio.run(use()) == {"x": 98}


def test_a_user_without_a_right_is_told_which_to_give(redis_server: servers.Server) -> None:
    rule = [part for part in secured.ACL_RULE if part != "+@scripting"]
    servers.command(redis_server.url, "ACL", "SETUSER", "less", "reset", *rule)
    url = redis_server.url.replace("://", "://less:pass%20word@")
    with SyncRateLimiter(url, limits=[Limit.per_day("x", 1)]) as limiter:
        with pytest.raises(StoreDenied, match="ACL user"):
            limiter.available("a", "api")
