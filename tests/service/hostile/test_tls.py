"""Clients that begin a TLS handshake and never finish it."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.service.hostile.kit import Target, request, target
from tests.service.http.kit import until
from tests.service.server.kit import run_once
from tests.service.server.test_clients import Papers, trusting

CONNECTIONS_MAX = 20
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a client's first message


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def victim(papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    options = ("--tls-certificate", papers.server[0], "--tls-key", papers.server[1])
    bound = ("--connections-max", str(CONNECTIONS_MAX))
    folder = tmp_path_factory.mktemp("victim")
    with target(folder, *options, *bound) as running:
        yield running


def answer(victim: Target, context: ssl.SSLContext) -> bytes:
    """What a client gets that does everything right; empty where it is not let in."""
    try:
        with context.wrap_socket(victim.connect(), server_hostname="127.0.0.1") as line:
            line.sendall(request(b"GET", b"/healthz"))
            return line.recv(65_536)
    except OSError:
        return b""


def test_unfinished_handshakes_are_counted_and_end(victim: Target, papers: Papers) -> None:
    context = trusting(papers)
    assert answer(victim, context).startswith(b"HTTP/1.1 200")
    until(lambda: victim.sockets() == 1)  # the listener
    with ExitStack() as stack:
        lines = [stack.enter_context(victim.connect()) for _ in range(3 * CONNECTIONS_MAX)]
        for number, line in enumerate(lines):
            if number % 2:
                try:
                    line.sendall(HELLO)
                except OSError:
                    continue  # it is one too many, and closed already
        until(lambda: victim.sockets() <= CONNECTIONS_MAX + 1)
        assert answer(victim, context) == b""
        # The clients stay; it is the server that must end this. It takes ten seconds of its clock.
        until(lambda: victim.sockets() == 1, steps=6000)
    until(lambda: answer(victim, context).startswith(b"HTTP/1.1 200"))


def test_what_comes_with_the_end_of_a_handshake_is_not_lost(victim: Target, papers: Papers) -> None:
    context = trusting(papers)
    for _ in range(30):
        until(lambda: answer(victim, context).startswith(b"HTTP/1.1 200"), steps=3)


def test_what_is_no_tls_is_dropped(victim: Target, papers: Papers) -> None:
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, HELLO + b"\xff" * 2000):
        with victim.connect() as line:
            line.sendall(nonsense)
            with suppress(OSError):
                assert b"HTTP/1.1 200" not in line.recv(65_536)
    assert answer(victim, trusting(papers)).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in victim.log


@pytest.mark.parametrize("wrong", ["missing.pem", "ca.pem"])
def test_files_that_cannot_be_used_are_named_at_start(
    papers: Papers, tmp_path: Path, wrong: str
) -> None:
    key = str(papers.folder / wrong)
    done = run_once(
        "--store", "memory://",
        "--tls-certificate", papers.server[0], "--tls-key", key,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--tls-key" in done.stderr
    assert "Traceback" not in done.stderr
