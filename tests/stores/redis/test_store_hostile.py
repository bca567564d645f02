"""Servers that were demoted or are full, buckets that something else wrote, and replies that are
none: always headgate's own words, for batches as for single decisions."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Damaged, Full, StoreDenied, StoreTrouble, UndoLost, Unreachable
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.core.store import Outcome, consume_each
from headgate.stores.redis.buckets import RedisStore
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.scripts import matching_keys
from tests.stores.redis import servers

TERMS = Terms((Limit.per_day("d", 12).spec,), 1)
DEMANDS = [Demand(BucketKey("ns", f"e{n}", "x"), TERMS, (1000,)) for n in range(3)]


@contextlib.contextmanager
def opened(url: str) -> Iterator[tuple[RedisStore, RedisPort]]:
    port = open_port(url, blocking=True)
    try:
        yield RedisStore(port), port
    finally:
        run(port.close())


def each(store: RedisStore) -> list[Outcome]:
    return run(consume_each(store, [[demand] for demand in DEMANDS], None))


@pytest.mark.parametrize("server", ["own_server", "old_server"])
def test_a_batch_that_meets_a_replica_leaves_it(
    request: pytest.FixtureRequest, server: str
) -> None:
    url = request.getfixturevalue(server).url
    with opened(url) as (store, port):
        assert all(isinstance(one, Verdict) for one in each(store))
        servers.command(url, "REPLICAOF", servers.HOST, servers.free_port())
        before = run(port.command("CLIENT", "ID"))
        told = each(store)
        assert [type(one) for one in told] == [Unreachable] * 3
        assert "replica" in str(told[0])
        assert run(port.command("CLIENT", "ID")) != before  # the name may lead elsewhere by now
        servers.command(url, "REPLICAOF", "NO", "ONE")
        assert all(isinstance(one, Verdict) and one.allowed for one in each(store))


@pytest.mark.parametrize("server", ["own_server", "old_server"])
def test_a_batch_that_meets_full_memory_is_told_so(
    request: pytest.FixtureRequest, server: str
) -> None:
    url = request.getfixturevalue(server).url
    with opened(url) as (store, _):
        servers.command(url, "CONFIG", "SET", "maxmemory", "1")
        told = each(store)
        assert [type(one) for one in told] == [Full] * 3
        assert "memory is full" in str(told[0])
        servers.command(url, "CONFIG", "SET", "maxmemory", "0")
        left = [one.statuses[0].available for one in each(store) if isinstance(one, Verdict)]
        assert left == [11, 11, 11], "nothing of the failed batch was done"


def test_a_batch_follows_a_failover_that_sentinel_tells(own_server: servers.Server) -> None:
    with servers.folder() as folder, servers.Server(folder) as successor:
        masters = [own_server.port]
        with said(lambda _: _master(masters[-1])) as sentinel:
            address = f"redis+sentinel://{servers.HOST}:{sentinel}/main"
            with opened(address) as (store, port):
                assert all(isinstance(one, Verdict) for one in each(store))
                servers.command(own_server.url, "REPLICAOF", servers.HOST, successor.port)
                masters.append(successor.port)
                told = each(store)
                assert [isinstance(one, Verdict) and one.allowed for one in told] == [True] * 3
                assert run(port.command("ROLE"))[0] == "master"


def _master(port: int) -> bytes:
    return b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(port)), port)


DAMAGE = [
    "redis.call('SET', KEYS[1], 'garbage')",
    "redis.call('SET', KEYS[1], '')",
    "redis.call('SET', KEYS[1], cmsgpack.pack(1))",
    "redis.call('SET', KEYS[1], cmsgpack.pack('no json', '', 0, 1, 2, 3, 4))",
    "redis.call('SET', KEYS[1], cmsgpack.pack('{}', '', 0, 1, 2, 3, 4))",
    "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_bucket_is_trouble_of_its_own_and_forgetting_heals_it(
    redis_url: str, damage: str
) -> None:
    servers.flush(redis_url)
    bad, good = DEMANDS[0], DEMANDS[1]
    with opened(redis_url) as (store, port):
        run(store.consume([bad], None))
        (key,) = run(matching_keys(port, "*:b:*"))
        servers.command(redis_url, "EVAL", damage, 1, key)
        for verb in (
            store.consume([bad], None),
            store.adjust([bad], None),
            store.peek([bad.key], None),
        ):
            with pytest.raises(StoreTrouble) as caught:
                run(verb)
            assert not isinstance(caught.value, Unreachable)
        told = run(consume_each(store, [[bad], [good]], None))
        assert isinstance(told[0], StoreTrouble)
        assert not isinstance(told[0], Unreachable)
        assert isinstance(told[1], Verdict)
        run(store.forget([bad.key]))
        assert run(store.consume([bad], None)).statuses[0].available == 11


REPLIES = [
    b"+OK", b":1", b"$-1", b"*-1", b"*0", b"*1\r\n:5", b"*2\r\n:5\r\n+x", b"*2\r\n+5\r\n+1",
    b"*2\r\n:1\r\n:99999999999999999", b"*3\r\n:1\r\n:1\r\n:1", b"*3\r\n:1\r\n:1\r\n*1\r\n:1",
    b"HTTP/1.1 400 Bad Request", b"-ERR unknown", b"-", b"*3\r\n-ERR\r\n-ERR\r\n-ERR",
]  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES)
def test_what_is_no_reply_of_ours_is_trouble_and_never_an_admission(reply: bytes) -> None:
    with said(lambda asked: reply + b"\r\n" if b"EVAL" in asked else b"+OK\r\n") as server:
        with opened(f"redis://{servers.HOST}:{server}") as (store, _):
            for verb in (store.consume(DEMANDS[:1], None), store.peek([DEMANDS[0].key], None)):
                with pytest.raises(StoreTrouble):
                    run(verb)
            assert all(isinstance(one, StoreTrouble) for one in each(store))


def test_a_node_of_a_cluster_is_named() -> None:
    with said(lambda asked: b"-MOVED 1 h:1\r\n" if b"EVAL" in asked else b"+OK\r\n") as server:
        with opened(f"redis://{servers.HOST}:{server}") as (store, _):
            with pytest.raises(StoreDenied, match=r"redis\+cluster://"):
                run(store.consume(DEMANDS[:1], None))


def test_a_reply_that_cannot_be_read_undoes_what_other_slots_gave(cluster_url: str) -> None:
    servers.flush(cluster_url)
    with opened(cluster_url) as (store, port):
        ours = next(d for d in DEMANDS[1:] if _slot(port, d) != _slot(port, DEMANDS[0]))
        sent: list[Any] = []

        async def scripts(calls: Any) -> list[Any]:
            sent.append(calls)
            found = await type(port).scripts(port, calls)
            return [*found[:-1], [1, 2]] if len(sent) == 1 else found

        port.scripts = scripts  # type: ignore[method-assign]
        with pytest.raises(Damaged):
            run(store.consume([ours, DEMANDS[0]], None))
        record = run(store.peek([ours.key], None)).records[0]
        assert record is not None
        assert record[4] == 12_000


def test_an_undo_over_slots_without_an_answer_is_told(cluster_url: str) -> None:
    servers.flush(cluster_url)
    with opened(cluster_url) as (store, port):
        theirs = next(d for d in DEMANDS[1:] if _slot(port, d) != _slot(port, DEMANDS[0]))
        all_of_it = Demand(theirs.key, theirs.terms, (12_000,))
        assert run(store.consume([all_of_it], None)).allowed
        sent: list[Any] = []

        async def scripts(calls: Any) -> list[Any]:
            sent.append(calls)
            found = await type(port).scripts(port, calls)
            return found if len(sent) == 1 else [Unreachable("no answer in time")]

        port.scripts = scripts  # type: ignore[method-assign]
        with pytest.raises(UndoLost, match="no answer in time"):
            run(store.consume([DEMANDS[0], theirs], None))
        assert len(sent) == 2


def _slot(port: RedisPort, demand: Demand) -> int:
    from headgate.stores.redis import keys

    return port.slot(keys.bucket(demand.key))


@contextlib.contextmanager
def said(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """The port of a server that says what it is told to, once for whatever it receives."""
    with socket.create_server((servers.HOST, 0)) as door:
        threading.Thread(target=_serve, args=(door, answer), daemon=True).start()
        yield door.getsockname()[1]
        with contextlib.suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)


def _serve(door: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            caller, _ = door.accept()
            threading.Thread(target=_talk, args=(caller, answer), daemon=True).start()


def _talk(caller: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    with caller, contextlib.suppress(OSError):
        while asked := caller.recv(65_536):
            commands = max(1, asked.count(b"CLIENT\r\n"))
            caller.sendall(b"".join(answer(asked) for _ in range(commands)))
