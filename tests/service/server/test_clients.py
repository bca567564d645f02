"""Clients that are slow, greedy, many, or hold a certificate, at the default server."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.service.server import protocol as serve_protocol
from tests.service.decide.kit import World
from tests.service.http.kit import rest_of, served, until
from tests.service.server.kit import program

ASK = {"identifier": "ann", "resource": "api.search"}
CHECK = "/v1/ratelimit/check"
HEAD = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)


def all_of(line: socket.socket) -> bytes:
    found = b""
    try:
        while part := line.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_a_head_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_protocol, "HEAD_S", 0.2)
    with served(rest_of(World())) as (url, _):
        with connect(url) as silent, connect(url) as slow, connect(url) as second:
            slow.sendall(HEAD)
            second.sendall(HEAD + b"\r\n")
            assert second.recv(65536).startswith(b"HTTP/1.1 200")
            second.sendall(HEAD)  # the second request of a connection is not waited for either
            assert all_of(silent) == b""
            assert all_of(slow) == b""
            assert all_of(second) == b""
        assert httpx.get(url + "/healthz", trust_env=False).status_code == 200


def test_a_head_has_a_bound() -> None:
    with served(rest_of(World())) as (url, _):
        with connect(url) as line:
            line.sendall(HEAD)
            try:
                for _ in range(100):
                    line.sendall(b"x: " + b"a" * 4096 + b"\r\n")
            except OSError:
                pass
            assert all_of(line)[:12] == b"HTTP/1.1 431"
        large = {"x-large": "a" * 20_000}
        said = httpx.get(url + "/healthz", headers=large, trust_env=False)
        assert said.status_code == 200
        assert httpx.get(url + "/healthz", trust_env=False).status_code == 200


def test_a_large_body_is_not_taken_for_a_head() -> None:
    with served(rest_of(World())) as (url, _):
        items = [{**ASK, "identifier": "u" * 200 + str(n)} for n in range(100)]
        batch = {"requests": [{**one, "metadata": {"k": "v" * 256}} for one in items]}
        said = httpx.post(url + "/v1/ratelimit/batch", json=batch, trust_env=False)
        assert said.status_code == 200
        assert len(said.json()["results"]) == 100


def test_there_is_a_bound_on_connections() -> None:
    with served(rest_of(World()), connections_max=3) as (url, server):
        lines = [connect(url) for _ in range(3)]
        until(lambda: len(server.server_state.connections) == 3)
        with connect(url) as one_more:
            assert all_of(one_more) == b""
        for line in lines:
            line.close()
        until(lambda: not server.server_state.connections)
        assert httpx.get(url + "/healthz", trust_env=False).status_code == 200


def test_what_is_no_http_is_refused() -> None:
    with served(rest_of(World())) as (url, _):
        for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\x00" * 100):
            with connect(url) as line:
                line.sendall(nonsense)
                line.shutdown(socket.SHUT_WR)
                assert b" 500 " not in all_of(line)
        assert httpx.get(url + "/healthz", trust_env=False).status_code == 200


class Papers:
    """An authority, a server's certificate, and clients' with names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = self._self_signed("ca")
        self.server = self._signed("server", "IP:127.0.0.1")
        self.client = self._signed("client", "DNS:checkout.internal")
        self.stranger = self._signed("stranger", "DNS:unknown.internal")

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def _self_signed(self, name: str) -> str:
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", "2",
        )  # fmt: skip
        return str(self.folder / f"{name}.pem")

    def _signed(self, name: str, san: str) -> tuple[str, str]:
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
        )  # fmt: skip
        (self.folder / f"{name}.ext").write_text(
            f"subjectAltName={san}\nauthorityKeyIdentifier=keyid\n"  # Python 3.13 asks for it
        )
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext",
        )  # fmt: skip
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return Papers(tmp_path_factory.mktemp("papers"))


def trusting(papers: Papers, client: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=papers.ca)
    if client is not None:
        context.load_cert_chain(*client)
    return context


def ask(url: str, context: ssl.SSLContext) -> Any:
    return httpx.post(url + CHECK, json=ASK, verify=context, trust_env=False, timeout=30)


def test_tls_and_callers_by_certificate(papers: Papers, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "keys: []\ncertificates:\n"
        "  - {san: 'DNS:checkout.internal', scopes: [check], namespace: default}\n"
    )
    options = (
        "--store", "memory://", "--keys", str(keys), "--tls-certificate", papers.server[0],
        "--tls-key", papers.server[1], "--tls-client-ca", papers.ca,
    )  # fmt: skip
    with program(*options) as running:
        assert running.url.startswith("https://")
        assert ask(running.url, trusting(papers, papers.client)).status_code == 200
        assert ask(running.url, trusting(papers, papers.stranger)).status_code == 401
        with pytest.raises(httpx.HTTPError):
            ask(running.url, trusting(papers))
        with pytest.raises(httpx.HTTPError):
            httpx.get(running.url.replace("https", "http") + "/healthz", trust_env=False)
        assert running.end() == 0


def test_tls_without_client_certificates(papers: Papers) -> None:
    options = ("--tls-certificate", papers.server[0], "--tls-key", papers.server[1])
    with program("--store", "memory://", *options) as running:
        assert ask(running.url, trusting(papers)).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(running.url + "/healthz", trust_env=False)
