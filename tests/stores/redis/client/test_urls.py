"""Every form of URL leads to its server, in both colours; what cannot be meant is refused."""

from __future__ import annotations

import asyncio
import re

import pytest

from headgate import Limit, OnUnavailable, RateLimiter, SyncRateLimiter
from headgate.core.errors import StoreDenied, StoreTrouble, Unreachable, ValidationError
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.client.commands import Script
from headgate.stores.redis.client.url import Node, parse
from tests.stores.redis import secured, servers
from tests.stores.redis.client.kit import BOTH_MODES, INCR, outcome, use, use_in_both_modes

ADD = Script("add", "return {redis.call('INCRBY', KEYS[1], ARGV[1]), 'é', false, {1, 'x'}}")
FORMS = ("redis_url", "unix_url", "acl_url", "sentinel_url", "tls_url", "cluster_url")


@pytest.mark.parametrize("server", FORMS)
def test_a_url_leads_to_its_server(url: str) -> None:
    async def test(port: RedisPort) -> None:
        servers.flush(url)
        assert await port.script(ADD, ["k"], [5]) == [5, "é", None, [1, "x"]]
        assert await port.script(ADD, ["k"], ["2"]) == [7, "é", None, [1, "x"]]
        assert await port.command("GET", "k") == "7"
        assert await port.command("GET", "nothing") is None
        calls = [(ADD, [f"k{place}"], [place]) for place in range(20)]
        assert [reply[0] for reply in await port.scripts(calls)] == list(range(20))

    use_in_both_modes(url, test, timeout_ms=servers.PATIENCE_MS)


def test_uvloop_serves_plain_and_tls(redis_url: str, tls_url: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use(url: str) -> None:
        port = open_port(url, blocking=False)
        await asyncio.gather(*(port.script(ADD, ["u"], [1]) for _ in range(100)))
        assert await port.command("GET", "u") == "100"
        await port.close()

    for url in (redis_url, tls_url):
        servers.flush(url)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(use(url))


def test_the_database_is_selected(redis_url: str, unix_url: str) -> None:
    servers.flush(redis_url)
    servers.command(f"{redis_url}/3", "SET", "k", "three")
    assert servers.command(redis_url, "GET", "k") is None
    assert servers.command(f"{unix_url}?db=3", "GET", "k") == "three"


def test_a_server_that_wants_a_login_says_so() -> None:
    with servers.folder() as folder:
        port = servers.free_port()
        url = f"redis://:secret@{servers.HOST}:{port}"
        with servers.Server(folder, "--requirepass", "secret", port=port, url=url):
            assert servers.command(url, "PING") == "PONG"
            with pytest.raises(StoreDenied, match="wants a login"):
                servers.command(url.replace(":secret@", ""), "PING")


def test_what_a_url_says() -> None:
    target = parse("redis://us%40er:p%3Aw@[::1]:7000/4?timeout_ms=250&connections=3")
    assert target.nodes == (Node("::1", 7000),)
    assert (target.access.username, target.access.password) == ("us@er", "p:w")
    assert (target.access.db, target.timeout_ms, target.connections) == (4, 250, 3)
    assert str(target.nodes[0]) == "[::1]:7000"
    assert parse("redis://").nodes == (Node("localhost", 6379),)
    checked = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    assert parse("rediss://h").access.tls == checked
    target = parse("redis+sentinel://a,b:1/svc/2?sentinel_password=x")
    assert target.nodes == (Node("a", 26379), Node("b", 1))
    assert (target.service, target.access.db) == ("svc", 2)
    assert target.sentinel_access.password == "x"
    assert parse("redis+cluster://a:1,b:2").nodes == (Node("a", 1), Node("b", 2))
    assert "x" not in repr(parse("redis://u:x@h").access).replace("Access", "")


@pytest.mark.parametrize(
    "url",
    [
        "http://h", "redis:/h", "redis://h?nonsense=1", "redis://h?db=1",
        "redis://h?ssl_ca_certs=x", "redis://h?timeout_ms=0", "redis://h?timeout_ms=ten",
        "redis://h?timeout_ms=1&timeout_ms=2", "redis://h:0", "redis://h:99999", "redis://h:port",
        "redis://h/one", "redis://h/1/2", "redis://a,b", "redis://h#fragment",
        "redis://h?timeout_ms", "rediss://h?ssl_cert_reqs=perhaps",
        "rediss://h?ssl_check_hostname=perhaps", "redis+sentinel://h", "redis+cluster://h/1",
        "unix://", "unix://host/path", "redis://[::1",
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="url="):
        open_port(url, blocking=True)


def test_a_refusal_hides_the_password() -> None:
    for url in ("redis://u:secret@h?x=1", "redis+sentinel://h/s/s?sentinel_password=secret"):
        with pytest.raises(ValidationError) as caught:
            open_port(url, blocking=False)
        assert "secret" not in str(caught.value)
        assert "secret" not in repr(caught.value.value)


# TLS, client certificates and logins, on one server and on a cluster.

SET = Script("set", "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])")


@BOTH_MODES
def test_nothing_is_contacted_before_the_first_call(blocking: bool) -> None:
    open_port("redis://192.0.2.1:1", blocking=blocking)


@pytest.fixture
def nobody_url() -> str:
    return f"redis://{servers.HOST}:{servers.free_port()}"


@pytest.mark.parametrize(
    ("form", "part", "instead", "kind", "says"),
    [
        ("redis_url", "://", "://gate:wrong@", StoreDenied, r"login.*nothing was sent"),
        ("nobody_url", "", "", Unreachable, r"check that it runs.*nothing was sent"),
        ("tls_url", "/ca.crt", "/other.crt", Unreachable, "TLS failed"),
        ("mutual_url", "&.*", "", Unreachable, "redis"),
        ("mutual_url", "/client[.]", "/stranger.", Unreachable, "redis"),
        ("mutual_url", "/client[.]", "/nowhere.", Unreachable, "ssl_certfile"),
    ],
    ids=["login", "nobody", "authority", "no certificate", "a stranger's", "no file"],
)
@BOTH_MODES
def test_who_does_not_get_in_is_told_why(
    request: pytest.FixtureRequest,
    form: str,
    part: str,
    instead: str,
    kind: type[StoreTrouble],
    says: str,
    blocking: bool,
) -> None:
    async def test(port: RedisPort) -> None:
        with pytest.raises(kind, match=says):
            await port.command("PING")

    use(re.sub(part, instead, request.getfixturevalue(form), count=1), test, blocking=blocking)


@BOTH_MODES
def test_a_client_certificate_opens_the_door(mutual_url: str, blocking: bool) -> None:
    async def test(port: RedisPort) -> None:
        assert await port.command("PING") == "PONG"

    use(mutual_url, test, blocking=blocking)


def test_an_authority_need_not_be_known_to_those_who_do_not_check(tls_url: str) -> None:
    other = tls_url.replace("/ca.crt", "/other.crt")
    assert servers.command(f"{other}&ssl_cert_reqs=none", "PING") == "PONG"


@BOTH_MODES
@pytest.mark.parametrize("server", ["redis_url", "tls_url"])
def test_tls_carries_what_tcp_does(url: str, blocking: bool) -> None:
    """Many calls at once, a script that was flushed, replies in pieces, and a new connection."""

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
            assert "its ACL user lacks a right; allow what the message names" in str(caught.value)


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
