"""Clients that begin a TLS handshake and never finish it, and callers known by a certificate."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from headgate.service.http.asgi import Rest
from headgate.service.program import Program
from headgate.service.server import tls as serve_tls
from headgate.service.server.options import OptionError, read_options
from headgate.service.server.serve import Server, config_of, listen
from headgate.service.server.tls import tls_context
from tests.service.hostile.kit import request
from tests.service.http.kit import in_thread, until
from tests.service.server.kit import ASK, CHECK, Papers, sockets_on

CONNECTIONS_MAX = 20
HANDSHAKE_S = 0.5
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a client's first message


@contextmanager
def tls_server(papers: Papers, *options: str) -> Iterator[int]:
    """The port of a service."""
    certificate, key = papers.pair("server")
    given = ["--store", "memory://", "--port", "0", "--tls-certificate", certificate]
    serving = read_options([*given, "--tls-key", key, *options], {})
    listener = listen(serving)
    rest = Rest(Program.build(serving.program))
    server = Server(config_of(serving, rest, rest))
    server.tls, server.on_started = tls_context(serving), lambda: None
    with in_thread(server, listener) as port:
        yield port


@pytest.fixture(scope="module")
def port(papers: Papers) -> Iterator[int]:
    with tls_server(papers, "--connections-max", str(CONNECTIONS_MAX)) as found:
        yield found


def trusting(papers: Papers, name: str | None = None) -> ssl.SSLContext:
    """What a client trusts, and the certificate that it shows."""
    context = ssl.create_default_context(cafile=papers.pair("ca")[0])
    if name is not None:
        context.load_cert_chain(*papers.pair(name))
    return context


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def answer(port: int, context: ssl.SSLContext) -> bytes:
    """What a client gets that does everything right; empty where it is not let in."""
    try:
        with context.wrap_socket(connect(port), server_hostname="127.0.0.1") as line:
            line.sendall(request(b"GET", b"/healthz"))
            return line.recv(65_536)
    except OSError:
        return b""


def is_served(port: int, papers: Papers) -> bool:
    return answer(port, trusting(papers)).startswith(b"HTTP/1.1 200")


def test_unfinished_handshakes_are_counted_and_end(port: int, papers: Papers) -> None:
    assert is_served(port, papers)
    until(lambda: sockets_on(port) == 1)  # the listener
    # A short deadline only where one has to pass: a busy machine takes longer to serve a client.
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patches:
        patches.setattr(serve_tls, "HANDSHAKE_S", HANDSHAKE_S)
        lines = [stack.enter_context(connect(port)) for _ in range(3 * CONNECTIONS_MAX)]
        for line in lines[::2]:
            with suppress(OSError):  # it is one too many, and closed already
                line.sendall(HELLO)
        until(lambda: sockets_on(port) <= CONNECTIONS_MAX + 1)
        until(lambda: sockets_on(port) == 1)  # the clients stay: it is the server that ends this
    until(partial(is_served, port, papers))


def test_a_client_beyond_the_bound_is_not_let_in(
    papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_tls, "HANDSHAKE_S", 600.0)
    with tls_server(papers, "--connections-max", "2") as port, connect(port), connect(port) as one:
        until(lambda: sockets_on(port) == 3)
        assert not is_served(port, papers)
        one.close()
        until(partial(is_served, port, papers))


def test_what_comes_with_the_end_of_a_handshake_is_not_lost(port: int, papers: Papers) -> None:
    context = trusting(papers)
    for _ in range(30):
        until(lambda: answer(port, context).startswith(b"HTTP/1.1 200"), steps=3)


def test_what_is_no_tls_is_dropped(
    port: int, papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, HELLO + b"\xff" * 2000):
        with connect(port) as line:
            line.sendall(nonsense)
            with suppress(OSError):
                assert b"HTTP/1.1 200" not in line.recv(65_536)
    assert is_served(port, papers)
    assert not [one for one in caplog.records if one.exc_info]


def test_callers_by_certificate(papers: Papers, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "keys: []\ncertificates:\n"
        "  - {san: 'DNS:checkout.internal', scopes: [check], namespace: default}\n"
    )

    def ask(name: str | None) -> int:
        context = trusting(papers, name)
        url = f"https://127.0.0.1:{port}{CHECK}"
        return httpx.post(url, json=ASK, verify=context, trust_env=False, timeout=30).status_code

    ca = papers.pair("ca")[0]
    with tls_server(papers, "--keys", str(keys), "--tls-client-ca", ca) as port:
        assert ask("checkout") == 200
        assert ask("nobody") == 401
        for name in (None, "forger"):
            with pytest.raises(httpx.HTTPError):
                ask(name)


@pytest.mark.parametrize("wrong", ["missing.pem", "ca.pem"])
def test_files_that_cannot_be_used_are_named_at_start(papers: Papers, wrong: str) -> None:
    certificate, key = papers.pair("server")[0], str(papers.folder / wrong)
    serving = read_options(["--tls-certificate", certificate, "--tls-key", key], {})
    with pytest.raises(OptionError, match="--tls-key"):
        tls_context(serving)
