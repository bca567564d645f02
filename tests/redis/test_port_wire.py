"""What is written and read on the wire, with and without hiredis."""

from __future__ import annotations

import random

import pytest
import servers

from headgate.core.errors import Contended, Full, StoreDenied, Unreachable
from headgate.core.runtime import run
from headgate.stores.redis.client import blocking_pool as wire_pool
from headgate.stores.redis.client import commands as wire
from headgate.stores.redis.client import errors as port_trouble
from headgate.stores.redis.client.commands import NOTHING, ServerError
from headgate.stores.redis.client.port import ScriptRefused, Unexpected, open_port
from headgate.stores.redis.client.resp import PythonReader
from headgate.stores.redis.client.url import Node

NODE = Node("h", 1)


def reply(random_: random.Random, depth: int = 0) -> bytes:
    text = f"é{random_.getrandbits(random_.choice((1, 40, 4000))):x}"
    data = text.encode()
    kinds = [b"$%d\r\n%b\r\n" % (len(data), data), b":%d\r\n" % random_.randint(-(10**15), 10**15)]
    kinds += [b"$-1\r\n", b"*-1\r\n", b"+OK\r\n", b"-ERR some text\r\n", b"$0\r\n\r\n"]
    if depth < 4 and random_.random() < 0.4:
        parts = [reply(random_, depth + 1) for _ in range(random_.randint(0, 5))]
        return b"*%d\r\n" % len(parts) + b"".join(parts)
    return random_.choice(kinds)


def plain(value: object) -> object:
    if isinstance(value, ServerError):
        return ("error", value.text)
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.skipif(wire.hiredis is None, reason="compares with hiredis")
def test_both_readers_agree_however_the_bytes_come(seed: int) -> None:
    random_ = random.Random(seed)
    data = b"".join(reply(random_) for _ in range(50))
    seen: list[list[object]] = []
    for reader in (wire.hiredis_reader(), PythonReader()):
        got: list[object] = []
        place = 0
        while place < len(data):
            size = random_.choice((1, 7, 100, 10_000))
            reader.feed(data[place : place + size])
            place += size
            while (value := reader.gets()) is not NOTHING:
                got.append(plain(value))
        seen.append(got)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 50


def test_both_packers_agree() -> None:
    for parts in (("PING",), ("SET", "é", ""), ("X", 0, -5, 2**62, "a\r\nb")):
        assert wire.python_pack(parts) == wire.pack(parts)
    assert wire.python_pack(("A", 12)) == b"*2\r\n$1\r\nA\r\n$2\r\n12\r\n"


def test_it_works_without_hiredis(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_pool, "new_reader", wire.python_reader)
    monkeypatch.setattr(wire, "pack", wire.python_pack)
    servers.flush(redis_url)
    port = open_port(redis_url, blocking=True)
    assert run(port.command("SET", "k", "é")) == "OK"
    assert run(port.command("GET", "k")) == "é"
    with pytest.raises(Unexpected):
        run(port.command("NONSENSE"))
    run(port.close())


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("LOADING Redis is loading the dataset in memory", Unreachable, "loading"),
        ("READONLY You can't write against a read only replica.", Unreachable, "replica"),
        ("MASTERDOWN Link with MASTER is down", Unreachable, "master"),
        ("CLUSTERDOWN Hash slot not served", Unreachable, "CLUSTER INFO"),
        ("NOAUTH Authentication required.", StoreDenied, "login"),
        ("ERR Protocol error: unauthenticated multibulk length", StoreDenied, "login"),
        ("WRONGPASS invalid username-password pair", StoreDenied, "password"),
        ("DENIED Redis is running in protected mode", StoreDenied, "protected mode"),
        ("MOVED 3999 127.0.0.1:6381", StoreDenied, "redis+cluster://"),
        ("OOM command not allowed when used memory > 'maxmemory'.", Full, "maxmemory"),
        ("MISCONF Redis is configured to save RDB snapshots", Unreachable, "disk"),
        ("NOREPLICAS Not enough good replicas to write.", Unreachable, "replicas"),
        ("ERR max number of clients reached", Unreachable, "maxclients"),
        ("BUSY Redis is busy running a script.", Contended, "SCRIPT KILL"),
        (
            "NOPERM this user has no permissions to run the 'evalsha' command",
            StoreDenied,
            "evalsha",
        ),
        ("NOPERM No permissions to access a key", StoreDenied, "~hg:*"),
        ("ERR The user executing the script can't run this command", StoreDenied, "+@write"),
        ("ERR ACL failure in script: User x has no permissions", StoreDenied, "+@write"),
        ("ERR something new", Unexpected, "bug"),
        ("nonsense", Unexpected, "nonsense"),
        ("HEADGATE overflow rpm", ScriptRefused, "HEADGATE overflow rpm"),
        (
            "ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed",
            Full,
            "maxmemory",
        ),
        (
            "ERR Error running script (call to f_ab): @user_script: 12: READONLY You can't write",
            Unreachable,
            "replica",
        ),
    ],
)
def test_what_the_server_says_in_our_words(text: str, kind: type, words: str) -> None:
    trouble = port_trouble.error_of_reply(ServerError(text), NODE)
    assert type(trouble) is kind
    assert words in str(trouble)
