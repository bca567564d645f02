"""Where the service is and who asks: botocore's answers, looked up without harm to the callers."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.credentials import RefreshableCredentials

from headgate.core.errors import Unreachable, ValidationError
from headgate.stores.dynamodb.client import account as port_account
from headgate.stores.dynamodb.client.account import (
    CredentialProvider,
    DynamoEndpoint,
    find_endpoint,
)
from headgate.stores.dynamodb.client.calls import DynamoPort, NotApplied
from tests.stores.dynamodb.client.kit import READ, TAKE, Canned, outcome, using

both = pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])


def test_a_region_leads_to_its_endpoint(credentials: None) -> None:
    assert str(find_endpoint("eu-west-1", None)) == "https://dynamodb.eu-west-1.amazonaws.com"
    assert str(find_endpoint("cn-north-1", None)) == "https://dynamodb.cn-north-1.amazonaws.com.cn"
    assert find_endpoint(None, None).region == "us-east-1"  # of the environment


def test_botocores_settings_hold(credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    assert "fips" in str(find_endpoint("us-east-1", None))
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "false")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://localhost:4566")
    assert str(find_endpoint("us-east-1", None)) == "http://localhost:4566"


def test_an_endpoint_is_scheme_host_and_port() -> None:
    place = find_endpoint("us-east-1", "http://[::1]:8000")
    assert (place.host, place.port, place.tls) == ("::1", 8000, None)
    assert place.authority == "[::1]:8000"
    assert find_endpoint("us-east-1", "https://example.org:443/").authority == "example.org"
    assert find_endpoint("us-east-1", "http://example.org").port == 80


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("us-east-1", "localhost:8000"),
        ("us-east-1", "ftp://localhost"),
        ("us-east-1", "http://"),
        ("us-east-1", "http://host/path"),
        ("us-east-1", "http://user@host"),
        ("us-east-1", "http://host:port"),
        ("us-east-1", "http://hößt"),
        ("us east", "http://host"),
        ("x\r\nHost: y", "http://host"),
        ("", "http://host"),
    ],
)
def test_what_is_no_place(region: str, endpoint: str) -> None:
    with pytest.raises(ValidationError):
        find_endpoint(region, endpoint)


def test_no_region_anywhere(credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ValidationError, match="region"):
        find_endpoint(None, None)


@both
def test_no_credentials_anywhere(
    canned: Canned, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")

    async def test(port: DynamoPort) -> None:
        trouble = await outcome(port.call(TAKE))
        assert isinstance(trouble, NotApplied)
        assert "AWS_ACCESS_KEY_ID" in str(trouble)
        for each in await port.call_all([TAKE, READ]):
            assert isinstance(each, NotApplied)
        os.environ["AWS_ACCESS_KEY_ID"] = "now there"
        await port.call(TAKE)

    using(canned.endpoint, test, blocking=blocking)
    assert len(canned.seen) == 1


@both
def test_a_session_token_is_sent(
    canned: Canned, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token")
    using(canned.endpoint, lambda port: port.call(TAKE), blocking=blocking)
    assert canned.seen[0].headers["x-amz-security-token"] == "a token"
    assert "x-amz-security-token" in canned.seen[0].headers["authorization"]


class Session:
    """Credentials that last a while; they are refreshed once the gate is open."""

    def __init__(self, lasting_s: float) -> None:
        self.lasting_s = lasting_s
        self.gate = threading.Event()
        self.gate.set()
        self.refreshes = 0

    def get_credentials(self) -> RefreshableCredentials:
        return RefreshableCredentials.create_from_metadata(
            self.fetch(), self.fetch, "test", advisory_timeout=900, mandatory_timeout=600
        )

    def fetch(self) -> dict[str, str]:
        assert self.gate.wait(10)
        self.refreshes += 1
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.lasting_s)
        found = {"access_key": f"key{self.refreshes}", "secret_key": "s", "token": "t"}
        return {**found, "expiry_time": ends.isoformat()}


PLACE = DynamoEndpoint("host", 80, None, "us-east-1")


def test_credentials_are_refreshed_before_they_end() -> None:
    session = Session(lasting_s=3600)
    credentials = session.get_credentials()
    account = CredentialProvider(
        PLACE, lambda: SimpleNamespace(get_credentials=lambda: credentials)
    )
    assert account.signer(10.0) is None  # nothing was loaded
    first = account.load()
    credentials._expiry_time -= datetime.timedelta(seconds=3600 - 800)
    assert account.signer(10.1) is None  # this caller is to have it refreshed
    assert account.signer(10.2) is first  # others go on with what there is
    second = account.load()
    assert second.identity[0] != first.identity[0]
    assert account.signer(20.0) is second
    assert session.refreshes == 2


def test_what_was_refused_is_looked_for_again_but_not_all_the_time() -> None:
    session = Session(lasting_s=3600)
    account = CredentialProvider(PLACE, lambda: session)
    first = account.load()
    account.refuse(first, 10.0)
    second = account.load()
    assert second.identity != first.identity
    account.refuse(first, 10.1)  # a late reply to an old signature
    assert account.load() is second
    account.refuse(second, 10.2)
    assert account.load() is second
    account.refuse(second, 11.1)
    assert account.load() is not second


def test_slow_credentials_are_fetched_once_and_do_not_hold_up_the_loop(
    canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(lasting_s=3600)
    session.gate.clear()
    plain = port_account.CredentialProvider
    monkeypatch.setattr(
        "headgate.stores.dynamodb.client.calls.CredentialProvider",
        lambda place: plain(place, lambda: session),
    )

    async def test(port: DynamoPort) -> None:
        early = await asyncio.gather(*(outcome(port.call(TAKE)) for _ in range(50)))
        assert all(isinstance(each, NotApplied) for each in early)
        assert "credentials" in str(early[0])
        session.gate.set()
        while not session.refreshes:
            await asyncio.sleep(0.005)
        monkeypatch.setattr(port, "_timeout_s", 30.0)
        await asyncio.gather(*(port.call(TAKE) for _ in range(50)))

    using(canned.endpoint, test, blocking=False, timeout_ms=500)
    assert session.refreshes == 1
    assert len(canned.seen) == 50


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-out", str(made[0]), "-keyout", str(made[1])]
    subprocess.run(command, check=True, capture_output=True)
    return made


@both
def test_tls(
    credentials: None,
    blocking: bool,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with Canned(tls=context) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))

        async def test(port: DynamoPort) -> None:
            for _ in range(5):
                assert await port.call(TAKE) == {"Attributes": {}}
            assert await port.call_all([TAKE] * 3) == [{"Attributes": {}}] * 3

        using(server.endpoint, test, blocking=blocking)
        assert len(server.seen) == 8
        assert server.connections <= 3
        monkeypatch.delenv("SSL_CERT_FILE")
        trouble = using(server.endpoint, lambda p: outcome(p.call(TAKE)), blocking=blocking)
        assert isinstance(trouble, Unreachable)
        assert "certificate" in str(trouble)
        assert threading.active_count() < 50
