"""The program in a process of its own: how it starts, what it says, how it ends."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.service.server.serve import SERVER_LOGGERS, set_up_logs
from tests.service.http.kit import until
from tests.service.server.kit import environment, program, run_once

ASK = {"identifier": "ann", "resource": "api.search"}
CHECK = "/v1/ratelimit/check"


# A connection for each request: with several workers, each may reach another one.
CLIENT = httpx.Client(trust_env=False, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))


def post(url: str, path: str, values: Any, **more: Any) -> httpx.Response:
    return CLIENT.post(url + path, json=values, **more)


def get(url: str, path: str, **more: Any) -> httpx.Response:
    return CLIENT.get(url + path, **more)


def policy(capacity: int) -> str:
    return (
        "rate_limits:\n  - {name: search, scope: user, resource: api.search, "
        f"capacity: {capacity}, refill_rate: 0}}\n"
    )


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
        assert get(running.url, "/readyz").json()["status"] == "HEALTHY"
        assert running.end() == 0
    assert (tmp_path / "data" / "headgate.db").exists()


def test_what_was_taken_is_taken_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    options = ("--store", f"sqlite:///{tmp_path}/limits.db", "--policies", str(file))
    for left in (9, 8):
        with program(*options) as running:
            assert post(running.url, CHECK, ASK).json()["tokens_remaining"] == left
            assert running.end() == 0


def test_policies_do_not_move_the_store_to_memory(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    options = ("--data-dir", str(tmp_path / "data"), "--policies", str(file))
    with program(*options) as running:
        assert "headgate.db" in "\n".join(running.lines)
    named = tmp_path / "named.db"
    file.write_text(policy(10) + f"runtime: {{store: 'sqlite:///{named}'}}\n")
    with program(*options) as running:
        assert "named.db" in "\n".join(running.lines)
    with program(*options, "--store", "memory://") as running:
        assert "memory://" in "\n".join(running.lines)


def test_a_request_under_way_is_finished(tmp_path: Path) -> None:
    """SIGTERM while a body is on its way: no new connections, this one gets its answer, exit 0."""
    with program("--store", "memory://", "--deadline-ms", "20000") as running:
        body = json.dumps(ASK).encode()
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as line:
            line.sendall(
                b"POST /v1/ratelimit/check HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            )
            line.sendall(body[:5])
            assert get(running.url, "/healthz").status_code == 200  # it has read what came before
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


def test_sigint_ends_it_too() -> None:
    with program("--store", "memory://") as running:
        running.send(signal.SIGINT)
        assert running.process.wait(30) == 0


def test_sighup_reads_the_policies(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    with program("--store", "memory://", "--policies", str(file)) as running:
        assert post(running.url, CHECK, ASK).headers["x-ratelimit-limit"] == "10"
        file.write_text(policy(20))
        running.send(signal.SIGHUP)
        until(lambda: post(running.url, CHECK, ASK).headers["x-ratelimit-limit"] == "20")
        assert running.end() == 0


def test_two_workers_are_one_service(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(100))
    store = f"sqlite:///{tmp_path}/limits.db"
    with program("--store", store, "--workers", "2", "--policies", str(file)) as running:
        answers = [post(running.url, CHECK, ASK) for _ in range(60)]
        assert {one.status_code for one in answers} == {200}
        left = [one.json()["tokens_remaining"] for one in answers]
        assert left == list(range(99, 39, -1)), "they do not share their buckets"
        children = workers_of(running.process.pid)
        assert len(children) == 2
        until(lambda: counted(running.url) >= 60)
        os.kill(children[0], signal.SIGKILL)
        first, parent = children[0], running.process.pid
        until(lambda: len(workers_of(parent)) == 2 and first not in workers_of(parent))
        until(lambda: get_or_none(running.url) == 200)
        assert running.end() == 0
        until(lambda: not [one for one in children if alive(one)])


def counted(url: str) -> int:
    text = get(url, "/metrics").text
    line = next(one for one in text.splitlines() if 'allowed="true"' in one)
    return int(float(line.split()[-1]))


def get_or_none(url: str) -> int | None:
    try:
        return get(url, "/readyz").status_code
    except httpx.HTTPError:
        return None


def workers_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if words[1] == str(pid) and words[0] != "Z":
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_keys_from_the_command_line(tmp_path: Path) -> None:
    file = str(tmp_path / "keys.json")
    made = run_once("key", "--keys", file, "--scopes", "check,admin", "--name", "ops")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert key not in Path(file).read_text()
    with program("--store", "memory://", "--keys", file) as running:
        assert "dev mode" not in "\n".join(running.lines)
        assert post(running.url, CHECK, ASK).status_code == 401
        bearer = {"authorization": f"Bearer {key}"}
        assert post(running.url, CHECK, ASK, headers=bearer).status_code == 200
        assert get(running.url, "/v1/namespaces", headers=bearer).status_code == 404


def test_keys_in_the_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/limits.db"
    made = run_once("key", "--keys", "store", "--store", store)
    assert made.returncode == 0, made.stderr
    with program("--store", store, "--keys", "store") as running:
        bearer = {"authorization": f"Bearer {made.stdout.strip()}"}
        assert post(running.url, CHECK, ASK, headers=bearer).status_code == 200
        assert post(running.url, CHECK, ASK).status_code == 401


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "without keys"),
        (["--port", "70000"], "65535"),
        (["--workers", "0"], "whole number"),
        (["--store", "nonsense://secret@host"], "--store"),
        (["--store", "memory://", "--workers", "2"], "memory://"),
        (["--data-dir", "/dev/null/data"], "data_dir"),
        (["--tls-key", "x.pem"], "--tls-certificate"),
        (["--tls-client-ca", "x.pem"], "--tls-certificate"),
        (["--policies", "/nowhere/policies.yaml"], "policy file"),
        (["--keys", "/nowhere/keys.yaml"], "key file"),
        (["key"], "--keys"),
        (["key", "--keys", "store"], "--store"),
        (["key", "--keys", "x", "--scopes", "all"], "scopes"),
    ],
)
def test_what_cannot_be_is_told(arguments: list[str], said: str) -> None:
    ended = run_once(*arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "secret" not in ended.stderr
    assert ended.stdout == ""


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = run_once("--store", "memory://", "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 2
    assert "cannot listen" in ended.stderr


def test_the_environment_gives_defaults_and_the_command_line_wins(tmp_path: Path) -> None:
    ended = run_once(HEADGATE_PORT="many")
    assert ended.returncode == 2
    assert "whole number" in ended.stderr
    with program(HEADGATE_STORE="memory://", HEADGATE_FAIL_OPEN="true") as running:
        text = "\n".join(running.lines)
        assert "memory://" in text
        assert "fails     open" in text
    with program("--fail-open", "false", HEADGATE_STORE="memory://", HEADGATE_FAIL_OPEN="1") as it:
        assert "fails     closed" in "\n".join(it.lines)


def test_a_store_that_is_away_at_the_start_is_waited_for() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        pytest.importorskip("redis")
        with program("--store", url, "--fail-open", "true") as running:
            said = post(running.url, CHECK, ASK)
            assert (said.status_code, said.json()["degraded"]) == (200, True)
            assert running.end() == 0


def test_importing_headgate_imports_no_server() -> None:
    names = ("uvicorn", "starlette", "msgspec", "yaml")
    code = f"import headgate, sys; print([name for name in {names} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.strip() == "[]"


def test_grpc_beside_rest(tmp_path: Path) -> None:
    """One program, two wires: what one takes the other misses."""
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("grpc_health")
    from headgate.service.grpc.proto.headgate.v1 import headgate_pb2

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    options = ("--store", "memory://", "--policies", str(file), "--grpc-port", str(port))
    with program(*options) as running:
        assert any(f"127.0.0.1:{port}" in line for line in running.lines)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            check = channel.unary_unary(
                "/headgate.v1.RateLimiter/CheckRateLimit",
                request_serializer=headgate_pb2.CheckRateLimitRequest.SerializeToString,
                response_deserializer=headgate_pb2.CheckRateLimitResponse.FromString,
            )
            asked = headgate_pb2.CheckRateLimitRequest(
                identifier="ann", resource="api.search", tokens=4
            )
            assert check(asked, timeout=30).tokens_remaining == 6
        assert post(running.url, CHECK, ASK).json()["tokens_remaining"] == 5
        assert running.end() == 0


def test_the_servers_own_warnings_follow_the_level() -> None:
    """Anybody can make it warn, a line for every request that is none."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, ("headgate", *SERVER_LOGGERS))]
    before = [(one, one.level) for one in loggers]
    handlers = root.handlers[:]
    try:
        set_up_logs("error")
        assert not logging.getLogger("uvicorn.error").isEnabledFor(logging.WARNING)
        assert logging.getLogger("uvicorn.error").isEnabledFor(logging.ERROR)
        set_up_logs("debug")
        assert not logging.getLogger("uvicorn.access").isEnabledFor(logging.INFO)
        assert logging.getLogger("uvicorn.error").isEnabledFor(logging.WARNING)
    finally:
        root.handlers[:] = handlers
        for one, level in before:
            one.setLevel(level)
