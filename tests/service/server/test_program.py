"""The program: how it starts, what it says, how it ends."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from headgate.core.runtime import run_program
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2
from headgate.service.grpc.proto.headgate.v1.headgate_pb2_grpc import RateLimiterStub
from headgate.service.http.asgi import Rest
from headgate.service.http.openapi import document
from headgate.service.program import Program
from headgate.service.server.options import read_options
from headgate.service.server.serve import set_up_logs, startup_message
from headgate.service.settings import OnUndecided, OnUnknown
from tests.service.envoy.proxies import free_port
from tests.service.http.kit import call, until
from tests.service.server.kit import (
    ASK,
    CHECK,
    Running,
    policy,
    process_state_kept,
    program,
    run_main,
)

# No connection is kept: nobody closes the client.
CLIENT = httpx.Client(trust_env=False, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))


def remaining(running: Running) -> Any:
    return CLIENT.post(running.url + CHECK, json=ASK).json()["tokens_remaining"]


def test_the_first_minute(tmp_path: Path) -> None:
    """It starts with nothing given, says little, and what it says to try works."""
    with program("--data-dir", str(tmp_path / "data")) as running:
        assert len(running.lines) <= 12
        text = "\n".join(running.lines)
        assert "dev mode" in text
        assert "headgate.db" in text
        curl = next(line for line in running.lines if line.startswith("try: "))
        words = shlex.split(curl.removeprefix("try: "))
        assert words[:2] == ["curl", "-i"]
        body = words[words.index("-d") + 1]
        header = words[words.index("-H") + 1].split(": ")
        said = CLIENT.post(words[2], content=body, headers={header[0]: header[1]})
        assert (said.status_code, said.json()["tokens_remaining"]) == (200, 999)
        assert CLIENT.get(running.url + "/readyz").json()["status"] == "HEALTHY"
        running.send(signal.SIGINT)
        assert running.process.wait(30) == 0
    assert (tmp_path / "data" / "headgate.db").exists()


def built(*arguments: str, **environ: str) -> tuple[Program, str]:
    """The program of these options, and what it says at its start."""
    serving = read_options(arguments, {f"HEADGATE_{key}": text for key, text in environ.items()})
    found = Program.build(serving.program)
    return found, startup_message(serving, found)


def test_policies_do_not_move_the_store_to_memory(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    options = ("--data-dir", str(tmp_path / "data"), "--policies", str(file))
    assert "headgate.db" in built(*options)[1]
    file.write_text(policy(10, f"runtime: {{store: 'sqlite:///{tmp_path}/named.db'}}\n"))
    assert "named.db" in built(*options)[1]
    assert "memory://" in built(*options, "--store", "memory://")[1]


def test_a_service_remembers_more_than_a_process_of_its_own_kind_unless_the_url_says_it() -> None:
    for url, wanted in (("memory://", 100_000), ("memory://?cache_entries=9", 9)):
        found, _ = built("--store", url)
        home = found.service.repository
        assert home.configs.cache.entries_max == wanted
        assert home.namespace("other").configs.cache.entries_max == wanted


def test_how_much_may_be_asked_at_once_is_an_option_and_in_the_document() -> None:
    most = 9_007_199_254_740_991
    for given, wanted in (((), 2_000_000), (("--amount-max", "5"), 5),
                          (("--amount-max", str(most)), most)):  # fmt: skip
        found, _ = built("--store", "memory://", *given)
        assert found.service.settings.amount_max == wanted
        schemas = document(found.service.settings.amount_max)["components"]["schemas"]
        for name in ("Check", "Peek", "BatchItem", "Acquire", "Descriptor"):
            fields = schemas[name]["properties"]
            assert fields["tokens"]["maximum"] == wanted
            assert fields["amounts"]["additionalProperties"]["maximum"] == wanted
        for name in ("Charge", "ChargedDescriptor", "Change"):
            fields = schemas[name]["properties"]
            for number in (fields["tokens"], fields["amounts"]["additionalProperties"]):
                assert (number["minimum"], number["maximum"]) == (-wanted, wanted)
    for wrong in ("0", "-1", "x", str(most + 1), "9" * 40):
        with pytest.raises(SystemExit):
            built("--store", "memory://", "--amount-max", wrong)


def test_a_request_under_way_is_finished() -> None:
    """SIGTERM while a body is on its way: no new connections, this one gets its answer, exit 0."""
    with program("--store", "memory://", "--deadline-ms", "20000") as running:
        body = json.dumps(ASK).encode()
        with running.connect() as line:
            line.sendall(
                b"POST /v1/ratelimit/check HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            )
            line.sendall(body[:5])
            running.healthz_s()  # once that is answered, it has read what came before
            running.send(signal.SIGTERM)
            until(lambda: not accepts(running.port))
            assert running.process.poll() is None
            line.sendall(body[5:])
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"allowed":true' in answer
        assert running.process.wait(30) == 0


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program") / "policies.yaml"


@pytest.fixture(scope="module")
def running(file: Path) -> Iterator[Running]:
    """With policies, and with gRPC beside REST."""
    file.write_text(policy(1000))
    options = ("--store", "memory://", "--policies", str(file), "--grpc-port", str(free_port()))
    with program(*options) as found:
        yield found


def test_sighup_reads_the_policies(running: Running, file: Path) -> None:
    def limit() -> str:
        return CLIENT.post(running.url + CHECK, json=ASK).headers["x-ratelimit-limit"]

    assert limit() == "1000"
    file.write_text(policy(900))
    running.send(signal.SIGHUP)
    until(lambda: limit() == "900")


def test_grpc_beside_rest(running: Running) -> None:
    """One program, two wires: what one takes the other misses."""
    (address,) = [line.split()[1] for line in running.lines if line.startswith("  grpc")]
    before = remaining(running)
    with grpc.insecure_channel(address) as channel:
        stub: Any = RateLimiterStub(channel)
        asked = headgate_pb2.CheckRateLimitRequest(**ASK, tokens=4)
        assert stub.CheckRateLimit(asked, timeout=30).tokens_remaining == before - 4
    assert remaining(running) == before - 5


@pytest.mark.parametrize("kept_in", ["file", "store"])
async def test_keys_from_the_command_line(tmp_path: Path, kept_in: str) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/limits.db")
    keys = "store" if kept_in == "store" else str(tmp_path / "keys.json")
    made = run_main("key", *store, "--keys", keys, "--scopes", "check,admin", "--name", "ops")
    assert made.code == 0, made.stderr
    key = made.stdout.strip()
    assert not [one for one in tmp_path.iterdir() if key.encode() in one.read_bytes()]
    found, said = built(*store, "--keys", keys)
    assert "dev mode" not in said
    await found.start()
    rest = Rest(found)
    assert (await call(rest, "POST", CHECK, ASK)).status == 401
    assert (await call(rest, "POST", CHECK, ASK, key=key)).status == 200
    assert (await call(rest, "GET", "/v1/namespaces", key=key)).status == 404
    await found.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "without keys"),
        (["--port", "70000"], "65535"),
        (["--store", "memory://", "--port", "TAKEN"], "cannot listen"),
        (["--workers", "0"], "whole number"),
        (["--store", "nonsense://secret@host"], "--store"),
        (["--store", "memory://", "--workers", "2"], "memory://"),
        (["--data-dir", "/dev/null/data"], "data_dir"),
        (["--tls-key", "x.pem"], "--tls-certificate"),
        (["--tls-client-ca", "x.pem"], "--tls-certificate"),
        (["--policies", "/nowhere/policies.yaml"], "policy file"),
        (["--policies", "/nowhere/policies.yaml", "--workers", "2"], "policies.yaml"),
        (["--keys", "/nowhere/keys.yaml"], "key file"),
        (["key"], "--keys"),
        (["key", "--keys", "store"], "--store"),
        (["key", "--keys", "x", "--scopes", "all"], "scopes"),
    ],
)
def test_what_cannot_be_is_told(arguments: list[str], said: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run_main(*[port if one == "TAKEN" else one for one in arguments])
    assert ended.code == 2
    assert said in ended.stderr
    assert "secret" not in ended.stderr
    assert ended.stdout == ""


def test_the_environment_gives_defaults_and_the_command_line_wins() -> None:
    ended = run_main(HEADGATE_PORT="many")
    assert ended.code == 2
    assert "whole number" in ended.stderr
    said = built(STORE="memory://", FAIL_OPEN="true")[1]
    assert "memory://" in said
    assert "fails     open" in said
    options = ("--fail-open", "false", "--unknown", "deny", "--envoy-undecided", "allow")
    found, said = built(*options, STORE="memory://", FAIL_OPEN="1")
    assert "fails     closed" in said
    chosen = (found.service.settings.unknown, found.options.envoy_undecided)
    assert chosen == (OnUnknown.DENY, OnUndecided.ALLOW)


async def test_a_store_that_is_away_at_the_start_is_waited_for() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        found, _ = built("--store", url, "--fail-open", "true")
        await found.start()
        said = await call(Rest(found), "POST", CHECK, ASK)
        assert (said.status, said.json["degraded"]) == (200, True)
        await found.close()


def test_the_servers_own_warnings_follow_the_level() -> None:
    """Anybody can make it warn, a line for every request that is none."""
    with process_state_kept():
        set_up_logs("error")
        assert not logging.getLogger("uvicorn.error").isEnabledFor(logging.WARNING)
        assert logging.getLogger("uvicorn.error").isEnabledFor(logging.ERROR)
        set_up_logs("debug")
        assert not logging.getLogger("uvicorn.access").isEnabledFor(logging.INFO)
        assert logging.getLogger("uvicorn.error").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(("name", "package"), [("service", "service"), ("demo", "service.demo")])
def test_without_its_packages_a_program_says_which(name: str, package: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['uvicorn'] = None\n"
        f"from headgate.{package}.__main__ import start\n"
        "sys.exit(start())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"the {name} needs a package that is not installed (uvicorn)" in ended.stderr
    assert "pip install 'headgate[service]'" in ended.stderr


def test_a_module_of_ours_that_is_missing_is_a_fault() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        run_program("headgate.nowhere:main", "it", extra="service")
    assert run_program("os:getpid", "it", extra="service") > 0  # the exit code is the program's


def test_what_was_taken_is_taken_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    for left in (9, 8):
        with program("--data-dir", str(tmp_path / "data"), "--policies", str(file)) as running:
            assert remaining(running) == left
            assert running.end() == 0
