"""A cluster of real masters: routing, slots that move, masters that die; and a sentinel."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from headgate.core.errors import StoreDenied, StoreTrouble, Unreachable
from headgate.core.runtime import run
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.client.cluster import slot_of
from headgate.stores.redis.client.commands import Script, first_answer
from headgate.stores.redis.client.errors import ServerError, Unexpected
from headgate.stores.redis.client.url import Node
from headgate.stores.redis.scripts import matching_keys
from tests.stores.redis import servers
from tests.stores.redis.client.kit import INCR, outcome, use_in_both_modes

BOTH = Script("both", "return redis.call('INCR', KEYS[1]) + redis.call('INCR', KEYS[2])")


@pytest.fixture
def own_cluster() -> Iterator[servers.Cluster]:
    with servers.folder() as folder, servers.Cluster(folder) as cluster:
        yield cluster


def key_on(cluster: servers.Cluster, server: servers.Server) -> str:
    keys = (f"k{place}" for place in range(10**6))
    return next(key for key in keys if cluster.owner(slot_of(key)) is server)


def test_slots_are_those_of_the_server(cluster: servers.Cluster) -> None:
    keys = ["", "a", "{a}", "x{a}y", "{}a", "{a", "a}", "{a}{b}", "{{a}}", "é{ü}", "foo{}{bar}"]
    keys += [f"key:{place}" for place in range(300)]

    node = open_port(cluster.servers[0].url, blocking=True)
    assert [run(node.command("CLUSTER", "KEYSLOT", key)) for key in keys] == [*map(slot_of, keys)]
    run(node.close())
    assert slot_of("x{a}y") == slot_of("a")
    assert open_port("redis://h", blocking=True).slot("a") == 0


class Nodes:
    """A wire to nodes that reply after a tenth of a second, or never (None)."""

    def __init__(self, *replies: object) -> None:
        self.replies = {Node(f"n{place}", 1): reply for place, reply in enumerate(replies)}
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    async def ask(self, node: Node, parts: object, due_s: float) -> object:
        reply = self.replies[node]
        if reply is None or due_s - self.time_s < 0.1:
            self.time_s = due_s
            raise Unreachable("no answer in time")
        self.time_s += 0.1
        return reply


@pytest.mark.parametrize(
    ("replies", "spent_s"),
    [
        ([ServerError("BUSY Redis is busy running a script."), ["map"]], 0.2),
        ([ServerError("OOM command not allowed"), ["map"]], 0.2),
        ([None, None, None, ["map"], ["map"]], 0.7),
    ],
    ids=["busy", "full", "three of five are away"],
)
def test_the_next_node_is_asked_and_has_its_share_of_the_time(
    replies: list[object], spent_s: float
) -> None:
    wire = Nodes(*replies)
    asked = first_answer(wire, [*wire.replies], ("X",), 1.0, nothing="knows nothing", failure="no")  # type: ignore[arg-type]
    assert run(asked)[1] == ["map"]
    assert wire.time_s == pytest.approx(spent_s)


def test_keys_of_all_slots_find_their_master(cluster: servers.Cluster) -> None:
    keys = [f"all:{place}" for place in range(600)]

    async def test(port: RedisPort) -> None:
        servers.flush(cluster.url)
        calls = [(INCR, [key], []) for key in keys]
        assert await port.scripts(calls) == [1] * len(keys)
        assert await port.command("GET", keys[7]) == "1"
        sizes = servers.everywhere(cluster.url, "DBSIZE")
        assert sum(sizes) == len(keys)
        assert len(sizes) == 3
        assert min(sizes) > 150

    use_in_both_modes(cluster.url, test, timeout_ms=20_000)


def test_a_scan_sees_the_keys_of_every_master(cluster_url: str, redis_url: str) -> None:
    names = {f"scan:{place}" for place in range(1200)}

    async def test(port: RedisPort) -> None:
        await port.scripts([(INCR, [name], []) for name in (*names, "other")])
        assert await matching_keys(port, "scan:*") == sorted(names)

    for url in (cluster_url, redis_url):
        servers.flush(url)
        use_in_both_modes(url, test, timeout_ms=20_000)


@pytest.mark.parametrize("less", [("-cluster|slots",), (">other",)], ids=["map", "login"])
def test_a_cluster_that_denies_its_map_is_not_away(
    cluster: servers.Cluster, less: tuple[str, ...]
) -> None:
    rule = ("reset", "on", ">secret", "~*", "+@all", *less)
    servers.everywhere(cluster.url, "ACL", "SETUSER", "mapless", *rule)
    if less[0].startswith(">"):
        servers.everywhere(cluster.url, "ACL", "SETUSER", "mapless", "<secret")

    async def test(port: RedisPort) -> None:
        for _ in range(2):  # the second is told what the first one met
            with pytest.raises(StoreDenied):
                await port.script(INCR, ["k"], [])

    use_in_both_modes(cluster.url.replace("://", "://mapless:secret@"), test, timeout_ms=20_000)


def test_keys_of_two_slots_in_one_call_are_refused(cluster: servers.Cluster) -> None:
    async def test(port: RedisPort) -> None:
        with pytest.raises(Unexpected, match="several slots"):
            await port.script(BOTH, ["a", "b"], [])

    use_in_both_modes(cluster.url, test)


def test_a_slot_is_followed_while_it_moves_and_after(own_cluster: servers.Cluster) -> None:
    slot = slot_of("{move}")
    source = own_cluster.owner(slot)
    target = next(server for server in own_cluster.servers if server is not source)
    key = "{move}here"

    async def test(port: RedisPort) -> None:
        source, target = move.pop()
        before = int(await port.script(INCR, [key], []))
        own_cluster_ids = own_cluster.id_of(source), own_cluster.id_of(target)
        servers.command(target.url, "CLUSTER", "SETSLOT", slot, "IMPORTING", own_cluster_ids[0])
        servers.command(source.url, "CLUSTER", "SETSLOT", slot, "MIGRATING", own_cluster_ids[1])
        assert await port.script(INCR, [key], []) == before + 1  # the key is still there
        servers.command(source.url, "MIGRATE", servers.HOST, target.port, key, 0, 5000, "REPLACE")
        servers.everywhere(
            own_cluster.url, "SCRIPT", "FLUSH"
        )  # so the script is unknown at the new place, too
        assert await port.script(INCR, [key], []) == before + 2  # ASK
        torn = await outcome(port.script(BOTH, [key, "{move}nowhere"], []))
        assert isinstance(torn, Unreachable), torn  # TRYAGAIN, until its attempts are over
        for server in (target, source, *own_cluster.servers):
            servers.command(server.url, "CLUSTER", "SETSLOT", slot, "NODE", own_cluster_ids[1])
        assert await port.script(INCR, [key], []) == before + 3  # MOVED
        assert await port.script(INCR, [key], []) == before + 4

    move = [(target, source), (source, target)]
    use_in_both_modes(own_cluster.url, test, timeout_ms=600)


def test_a_dead_master_takes_only_its_slots_along(own_cluster: servers.Cluster) -> None:
    dead = own_cluster.servers[1]
    keys = [key_on(own_cluster, server) for server in own_cluster.servers]

    async def test(port: RedisPort) -> None:
        for key in keys:
            assert isinstance(await port.script(INCR, [key], []), int)
        dead.kill()
        for _ in range(5):
            outcomes = await port.scripts([(INCR, [key], []) for key in keys])
            kinds = [isinstance(each, Unreachable) for each in outcomes]
            assert kinds == [False, True, False], outcomes
        dead.start()
        end_s = time.monotonic() + 20
        while isinstance(await outcome(port.script(INCR, [keys[1]], [])), StoreTrouble):
            assert time.monotonic() < end_s

    use_in_both_modes(own_cluster.url, test, timeout_ms=1000)


def test_a_stopped_master_holds_nobody_past_the_deadline(own_cluster: servers.Cluster) -> None:
    stopped = own_cluster.servers[0]  # the one that is asked for the map first
    keys = [key_on(own_cluster, server) for server in own_cluster.servers]

    async def test(port: RedisPort) -> None:
        for key in keys:
            assert not isinstance(await outcome(port.script(INCR, [key], [])), StoreTrouble)
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                for key, up in zip(keys, (False, True, True), strict=True):
                    assert isinstance(await outcome(port.script(INCR, [key], [])), int) == up
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        servers.until(
            lambda: (
                "cluster_slots_fail:0" in str(servers.command(keeper.url, "CLUSTER", "INFO"))
                and "cluster_slots_pfail:0" in str(servers.command(keeper.url, "CLUSTER", "INFO"))
            ),
            "joining again",
        )

    keeper = own_cluster.servers[1]
    use_in_both_modes(own_cluster.url, test, timeout_ms=400)


def test_a_cluster_that_is_not_there(cluster: servers.Cluster) -> None:
    nobody = f"redis+cluster://{servers.HOST}:{servers.free_port()}"

    async def test(port: RedisPort) -> None:
        outcomes = await port.scripts([(INCR, [f"{place}"], []) for place in range(100)])
        assert all("no node of the cluster shows its map" in str(each) for each in outcomes)

    use_in_both_modes(nobody, test)
    single = cluster.servers[0].url.replace("redis://", "redis+sentinel://") + "/main"
    with pytest.raises(Unreachable, match="no sentinel names a master"):
        servers.command(single, "PING")


def test_sentinel_leads_to_the_new_master_after_a_failover() -> None:
    with servers.folder() as one, servers.folder() as two, servers.folder() as three:
        with servers.Server(one) as master, servers.Server(two) as replica:
            servers.command(replica.url, "REPLICAOF", servers.HOST, master.port)
            servers.until(
                lambda: "master_link_status:up" in str(servers.command(replica.url, "INFO")),
                "replicating",
            )
            with servers.Sentinel(three, master.port) as sentinel:
                servers.until(
                    lambda: bool(servers.command(sentinel.url, "SENTINEL", "REPLICAS", "main")),
                    "seeing the replica",
                )
                _fail_over(sentinel, master)


def _fail_over(sentinel: servers.Sentinel, master: servers.Server) -> None:
    blocking = open_port(sentinel.service_url, blocking=True)

    async def main() -> None:
        port = open_port(sentinel.service_url, blocking=False)
        assert await port.script(INCR, ["n"], []) == 1
        assert run(blocking.script(INCR, ["n"], [])) == 2
        await asyncio.to_thread(
            servers.until,
            lambda: "lag=0" in str(servers.command(master.url, "INFO", "replication")),
            "replicating",
        )
        master.kill()
        end_s = time.monotonic() + 30
        lost = []
        while isinstance(reply := await outcome(port.script(INCR, ["n"], [])), StoreTrouble):
            lost.append(reply)
            assert time.monotonic() < end_s, lost[-1]
        assert lost
        assert reply >= 1
        assert run(blocking.script(INCR, ["n"], [])) == reply + 1
        await port.close()

    asyncio.run(main())
    run(blocking.close())


def test_an_unknown_service_is_named(sentinel_url: str) -> None:
    with pytest.raises(Unreachable, match="knows no such service"):
        servers.command(sentinel_url.replace("/main", "/other"), "PING")
