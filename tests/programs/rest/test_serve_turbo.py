"""The turbo server: the program in a process of its own, and clients that are slow or greedy."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import httpx
import pytest

from headgate.service.http.read import BODY_BYTES_MAX
from headgate.service.server import turbo as serve_turbo_loop
from programs.rest.rest_kit import rest_of, served_turbo, until
from programs.rest.serve_kit import program, run_once
from programs.rest.test_serve_clients import ASK, CHECK, HEAD, all_of, connect
from programs.rest.test_serve_program import accepts, counted, get, policy, post, workers_of
from programs.service.kit import World

TURBO = ("--server", "turbo")


def test_it_starts_answers_and_ends() -> None:
    with program(*TURBO, "--store", "memory://") as running:
        said = post(running.url, CHECK, ASK)
        assert (said.status_code, said.json()["tokens_remaining"]) == (200, 999)
        assert get(running.url, "/readyz").json()["status"] == "HEALTHY"
        assert running.end() == 0


def test_sigint_and_sighup(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    with program(*TURBO, "--store", "memory://", "--policies", str(file)) as running:
        assert post(running.url, CHECK, ASK).headers["x-ratelimit-limit"] == "10"
        file.write_text(policy(20))
        running.send(signal.SIGHUP)
        until(lambda: post(running.url, CHECK, ASK).headers["x-ratelimit-limit"] == "20")
        running.send(signal.SIGINT)
        assert running.process.wait(30) == 0


def test_a_request_under_way_is_finished() -> None:
    with program(*TURBO, "--store", "memory://", "--deadline-ms", "20000") as running:
        body = json.dumps(ASK).encode()
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as line:
            line.sendall(
                b"POST /v1/ratelimit/check HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            )
            line.sendall(body[:5])
            assert get(running.url, "/healthz").status_code == 200
            running.send(signal.SIGTERM)
            until(lambda: not accepts(running.port))
            assert running.process.poll() is None
            line.sendall(body[5:])
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"allowed":true' in answer
        assert running.process.wait(30) == 0


def test_two_workers_are_one_service(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(100))
    store = f"sqlite:///{tmp_path}/limits.db"
    options = ("--store", store, "--workers", "2", "--policies", str(file))
    with program(*TURBO, *options) as running:
        answers = [post(running.url, CHECK, ASK) for _ in range(40)]
        left = [one.json()["tokens_remaining"] for one in answers]
        assert left == list(range(99, 59, -1)), "they do not share their buckets"
        assert len(workers_of(running.process.pid)) == 2
        until(lambda: counted(running.url) >= 40)
        assert running.end() == 0


def test_it_has_no_client_certificates_and_says_so(tmp_path: Path) -> None:
    papers = [
        word for name in ("certificate", "key", "client-ca") for word in (f"--tls-{name}", "x")
    ]
    done = run_once(*TURBO, "--store", "memory://", *papers)
    assert done.returncode == 2
    assert "client certificates" in done.stderr


def test_slow_and_greedy_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_turbo_loop, "HEAD_S", 0.3)
    with served_turbo(rest_of(World())) as url:
        with connect(url) as silent, connect(url) as slow:
            slow.sendall(HEAD)
            assert b"200" not in all_of(slow)
            assert all_of(silent) == b""
        with connect(url) as line:
            line.sendall(HEAD)
            try:
                for _ in range(100):
                    line.sendall(b"x: " + b"a" * 4096 + b"\r\n")
            except OSError:
                pass
            assert all_of(line)[:12] in (b"HTTP/1.1 431", b"")
        large = httpx.post(url + CHECK, content=b"x" * (BODY_BYTES_MAX + 1), trust_env=False)
        assert large.status_code == 413
        huge = httpx.post(url + CHECK, content=b"x" * 2_000_000, trust_env=False)
        assert huge.status_code == 413
        for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\x00" * 100):
            with connect(url) as line:
                line.sendall(nonsense)
                line.shutdown(socket.SHUT_WR)
                assert b" 500 " not in all_of(line)
        assert httpx.get(url + "/healthz", trust_env=False).status_code == 200


def test_there_is_a_bound_on_connections() -> None:
    with served_turbo(rest_of(World()), connections_max=3) as url:
        lines = [connect(url) for _ in range(3)]
        for line in lines:
            line.sendall(HEAD + b"\r\n")
            assert line.recv(65536).startswith(b"HTTP/1.1 200")
        with connect(url) as one_more:
            one_more.settimeout(1.0)
            try:
                one_more.sendall(HEAD + b"\r\n")
                said = one_more.recv(65536)
            except (TimeoutError, OSError):
                said = b""
            assert not said.startswith(b"HTTP/1.1 200")
        for line in lines:
            line.close()

        def answers() -> bool:
            try:
                return httpx.get(url + "/healthz", trust_env=False, timeout=1).status_code == 200
            except httpx.HTTPError:
                return False

        until(answers)
