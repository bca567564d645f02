"""TLS, client certificates and logins, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headgate import (
    Limit,
    OnUnavailable,
    RateLimiter,
    StoreDenied,
    SyncRateLimiter,
)
from headgate.core.errors import StoreTrouble, Unreachable
from headgate.repository import open_backend
from headgate.stores.redis.client.calls import open_port
from headgate.testing import Case, cases, run_case
from tests.stores.redis import secured, servers

Mutual = tuple[servers.Server, secured.Made]
Nodes = tuple[servers.Cluster, secured.Made]


@pytest.fixture(scope="module")
def mutual() -> Iterator[Mutual]:
    with servers.folder() as folder:
        server, made = secured.tls_server(folder, mutual=True)
        with server:
            yield server, made


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with servers.folder() as folder:
        cluster, made = secured.tls_cluster(folder)
        with cluster:
            yield cluster, made


async def _ping(url: str) -> object:
    port = open_port(url, blocking=False)
    try:
        return await port.command("PING")
    finally:
        await port.close()


def test_a_client_certificate_opens_the_door(mutual: Mutual) -> None:
    server, _ = mutual
    assert servers.command(server.url, "PING") == "PONG"
    assert asyncio.run(_ping(server.url)) == "PONG"


@pytest.mark.parametrize("client", ["", "stranger"])
def test_none_or_the_wrong_one_does_not(mutual: Mutual, client: str) -> None:
    server, made = mutual
    url = secured.trusting(made, f"{servers.HOST}:{server.port}", client=client)
    with pytest.raises(Unreachable):
        servers.command(url, "PING")
    with pytest.raises(Unreachable):
        asyncio.run(_ping(url))


def test_a_certificate_that_cannot_be_read_is_named(mutual: Mutual) -> None:
    server, _ = mutual
    missing = server.url.replace("client.key", "nowhere.key")
    with pytest.raises(Unreachable, match="ssl_certfile"):
        servers.command(missing, "PING")
    with pytest.raises(Unreachable, match="ssl_certfile"):
        asyncio.run(_ping(missing))


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract_on_a_cluster_with_client_certificates(
    nodes: Nodes, case: Case, blocking: bool
) -> None:
    servers.flush(nodes[0].url)
    run_case(case, open_backend(nodes[0].url, blocking=blocking), blocking=blocking)


def test_a_cluster_shows_its_map_to_those_with_a_certificate_only(nodes: Nodes) -> None:
    cluster, made = nodes
    strange = secured.trusting(made, cluster.hosts, client="stranger")
    url = strange.replace("rediss://", "rediss+cluster://") + "&timeout_ms=2000"
    with pytest.raises(StoreTrouble, match="no node of the cluster shows its map"):
        servers.command(url, "PING")


@pytest.mark.parametrize("kind", ["single", "cluster"])
@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract_as_a_user_who_may_do_no_more_than_is_needed(
    request: pytest.FixtureRequest, kind: str, case: Case, blocking: bool
) -> None:
    if kind == "cluster":
        cluster = request.getfixturevalue("cluster")
        servers.flush(cluster.url)
        url = secured.with_login(cluster)
    else:
        server = request.getfixturevalue("redis_server")
        servers.flush(server.url)
        servers.command(server.url, "ACL", "SETUSER", "little", *secured.ACL_RULE)
        url = server.url.replace("://", "://little:pass%20word@")
    run_case(case, open_backend(url, blocking=blocking), blocking=blocking)


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


def test_a_login_over_tls_on_a_cluster_serves_both_faces(nodes: Nodes) -> None:
    cluster, _ = nodes
    servers.flush(cluster.url)
    url = secured.with_login(cluster)
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
