"""Every form of URL leads to its server, in both colours; what cannot be meant is refused."""

from __future__ import annotations

import asyncio

import pytest

from headgate.core.errors import StoreDenied, Unreachable, ValidationError
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.client.commands import Script
from headgate.stores.redis.client.url import Node, parse
from tests.stores.redis import servers
from tests.stores.redis.client.kit import use_in_both_modes

ADD = Script("add", "return {redis.call('INCRBY', KEYS[1], ARGV[1]), 'é', false, {1, 'x'}}")
FORMS = ("redis_url", "unix_url", "acl_url", "sentinel_url", "tls_url", "cluster_url")


@pytest.mark.parametrize("form", FORMS)
def test_a_url_leads_to_its_server(form: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(form)

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


def test_a_wrong_login_says_so(redis_url: str) -> None:
    wrong = redis_url.replace("://", "://gate:wrong@")
    with pytest.raises(StoreDenied, match=r"login.*nothing was sent"):
        servers.command(wrong, "PING")
    with pytest.raises(StoreDenied, match=r"login.*nothing was sent"):
        asyncio.run(_ping(wrong))


def test_a_server_that_wants_a_login_says_so() -> None:
    with servers.folder() as folder:
        port = servers.free_port()
        url = f"redis://:secret@{servers.HOST}:{port}"
        with servers.Server(folder, "--requirepass", "secret", port=port, url=url):
            assert servers.command(url, "PING") == "PONG"
            with pytest.raises(StoreDenied, match="wants a login"):
                servers.command(url.replace(":secret@", ""), "PING")


def test_an_untrusted_certificate_is_refused(tls_url: str) -> None:
    other = tls_url.replace("/ca.crt", "/other.crt")
    with pytest.raises(Unreachable, match="TLS failed"):
        servers.command(other, "PING")
    with pytest.raises(Unreachable, match="TLS failed"):
        asyncio.run(_ping(other))
    assert servers.command(f"{other}&ssl_cert_reqs=none", "PING") == "PONG"


async def _ping(url: str) -> None:
    port = open_port(url, blocking=False)
    try:
        await port.command("PING")
    finally:
        await port.close()


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
        "http://h",
        "redis:/h",
        "redis://h?nonsense=1",
        "redis://h?db=1",
        "redis://h?ssl_ca_certs=x",
        "redis://h?timeout_ms=0",
        "redis://h?timeout_ms=ten",
        "redis://h?timeout_ms=1&timeout_ms=2",
        "redis://h:0",
        "redis://h:99999",
        "redis://h:port",
        "redis://h/one",
        "redis://h/1/2",
        "redis://a,b",
        "redis://h#fragment",
        "redis://h?timeout_ms",
        "rediss://h?ssl_cert_reqs=perhaps",
        "rediss://h?ssl_check_hostname=perhaps",
        "redis+sentinel://h",
        "redis+cluster://h/1",
        "unix://",
        "unix://host/path",
        "redis://[::1",
    ],
)
def test_what_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="url="):
        open_port(url, blocking=True)


def test_a_refusal_hides_the_password() -> None:
    for url in ("redis://u:secret@h?x=1", "redis+sentinel://h/s/s?sentinel_password=secret"):
        with pytest.raises(ValidationError) as caught:
            open_port(url, blocking=False)
        assert "secret" not in str(caught.value)
        assert "secret" not in repr(caught.value.value)


def test_nothing_is_contacted_before_the_first_call() -> None:
    for blocking in (True, False):
        open_port("redis://192.0.2.1:1", blocking=blocking)
    nobody = f"redis://{servers.HOST}:{servers.free_port()}"
    with pytest.raises(Unreachable, match=r"check that it runs.*nothing was sent"):
        servers.command(nobody, "PING")
    with pytest.raises(Unreachable, match=r"check that it runs.*nothing was sent"):
        asyncio.run(_ping(nobody))
