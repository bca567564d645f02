"""What is written and read on the wire."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headgate.core.errors import Contended, Full, StoreDenied, Unreachable
from headgate.stores.redis.client import commands as wire
from headgate.stores.redis.client import errors
from headgate.stores.redis.client.commands import NOTHING
from headgate.stores.redis.client.errors import ScriptRefused, ServerError, Unexpected
from headgate.stores.redis.client.url import Node

NODE = Node("h", 1)


REPLIES = (
    b"$3\r\n\xc3\xa9x\r\n:-7\r\n$-1\r\n*-1\r\n+OK\r\n-ERR some text\r\n$1\r\n\xff\r\n"
    b"*2\r\n-OOM full\r\n*1\r\n$0\r\n\r\n"
)
VALUES = ["éx", -7, None, None, "OK", ("error", "ERR some text"), "\udcff",
          [("error", "OOM full"), [""]]]  # fmt: skip


def plain(value: object) -> object:
    if isinstance(value, ServerError):
        return ("error", value.text)
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_replies_are_whole_however_the_bytes_come(size: int) -> None:
    """An error is a value, also inside a list; bytes that are no text are kept as they are."""
    reader = wire.new_reader()
    got: list[object] = []
    for place in range(0, len(REPLIES), size):
        reader.feed(REPLIES[place : place + size])
        while (value := reader.gets()) is not NOTHING:
            got.append(plain(value))
    assert got == VALUES


def test_a_command_is_packed_by_its_bytes() -> None:
    assert wire.pack(("A", 12, "é\r\n")) == b"*3\r\n$1\r\nA\r\n$2\r\n12\r\n$4\r\n\xc3\xa9\r\n\r\n"


@pytest.mark.parametrize("package", ["redis", "hiredis"])
def test_a_missing_package_is_named_with_what_to_install(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from headgate import Repository\n"
        "Repository('redis://127.0.0.1')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    error = ended.stderr.splitlines()[-1]
    assert f"needs a package that is not installed ({package}" in error
    assert "pip install 'headgate[redis]'" in error


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
    trouble = errors.error_of_reply(ServerError(text), NODE)
    assert type(trouble) is kind
    assert words in str(trouble)
