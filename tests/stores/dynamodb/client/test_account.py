"""Where the service is and who asks: botocore's answers, looked up without harm to the callers."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import re
import ssl
import string
import subprocess
import threading
import time
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, RefreshableCredentials

from headgate.core.errors import Unreachable, ValidationError
from headgate.stores.dynamodb.client import account as port_account
from headgate.stores.dynamodb.client.account import (
    CONTENT_TYPE,
    TARGET,
    CredentialProvider,
    DynamoEndpoint,
    ServiceClock,
    Signer,
    find_endpoint,
)
from headgate.stores.dynamodb.client.calls import DynamoPort, NotApplied
from headgate.transport.http1 import http_date_s
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
        *(("us-east-1", endpoint) for endpoint in (
            "localhost:8000", "ftp://localhost", "http://", "http://host/path", "http://user@host",
            "http://host:port", "http://hößt",
        )),
        *((region, "http://host") for region in ("us east", "x\r\nHost: y", "")),
    ],
)  # fmt: skip
def test_what_is_no_place(region: str, endpoint: str) -> None:
    with pytest.raises(ValidationError):
        find_endpoint(region, endpoint)


def test_no_region_anywhere(credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ValidationError, match="region"):
        find_endpoint(None, None)


@both
async def test_no_credentials_anywhere(
    canned: Canned, monkeypatch: pytest.MonkeyPatch, port: DynamoPort
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    trouble = await outcome(port.call(TAKE))
    assert isinstance(trouble, NotApplied)
    assert "AWS_ACCESS_KEY_ID" in str(trouble)
    for each in await port.call_all([TAKE, READ]):
        assert isinstance(each, NotApplied)
    os.environ["AWS_ACCESS_KEY_ID"] = "now there"
    await port.call(TAKE)
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
        PLACE, ServiceClock(), lambda: SimpleNamespace(get_credentials=lambda: credentials)
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
    account = CredentialProvider(PLACE, ServiceClock(), lambda: session)
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
        lambda place, clock: plain(place, clock, lambda: session),
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


# The service's time from the dates of its replies, whatever the host's clock says.

MS, S = 1_000_000, 1_000_000_000
TRUE_S = 1_800_000_000


class World:
    """A true time, a host whose clock is off, and replies that take a while."""

    def __init__(self, skew_s: float, drift_ppm: float = 0.0) -> None:
        self.true_ns = TRUE_S * S + 123 * MS
        self.drift_ppm = drift_ppm
        self.clock = ServiceClock(
            wall_ns=lambda: self.true_ns + round(skew_s * S), monotonic_ns=self.monotonic_ns
        )

    def monotonic_ns(self) -> int:
        past_ns = self.true_ns - TRUE_S * S
        return 5 * S + past_ns + round(past_ns * self.drift_ppm / 1e6)

    def wait(self, ns: int) -> None:
        self.true_ns += ns

    def reply(self, there_ns: int = MS, back_ns: int = MS, off_ns: int = 0) -> None:
        sent_ns = self.monotonic_ns()
        self.wait(there_ns)
        date = http_date((self.true_ns + off_ns) // S)
        self.wait(back_ns)
        self.clock.observe(date, sent_ns, self.monotonic_ns())

    @property
    def width_ms(self) -> float | None:
        """How far apart the clock's bounds are; None until there was a reply."""
        bounds = self.clock._bounds_ns
        return None if bounds is None else (bounds[1] - bounds[0]) / MS

    @property
    def error_ms(self) -> float:
        return self.clock.now_ms() - self.true_ns / MS


def amz_date(at_s: int) -> bytes:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s)).encode()


def http_date(at_s: int) -> bytes:
    return formatdate(at_s, usegmt=True).lower().encode()


def test_dates_are_read() -> None:
    for at_s in (0, 951_782_400, TRUE_S, 4_102_444_799):
        assert http_date_s(http_date(at_s)) == at_s
    for bad in (b"", b"yesterday", b"tue, 15 foo 1994 08:12:31 gmt", b"tue, 15 nov 1994 08:12 gmt"):
        assert http_date_s(bad) is None
    assert http_date_s(b"tue, 15 nov 1994 08:12:31 cet") is None


@pytest.mark.parametrize("skew_s", [-10, -1.5, -0.4, 0, 0.4, 1.5, 10])
def test_one_reply_brings_it_within_a_second_and_many_within_the_round_trip(skew_s: float) -> None:
    world = World(skew_s)
    world.reply()
    if skew_s <= 0:
        assert abs(world.error_ms) <= 1002
    for _ in range(3000):
        world.wait(7 * MS)
        world.reply()
    assert world.width_ms <= 12  # the pause between replies and the way there and back
    assert abs(world.error_ms) <= 12  # one that is ahead was not asked before, or would wait


def test_signing_the_first_call_does_not_commit_to_a_host_that_is_ahead() -> None:
    world = World(200)
    signer = Signer("a", "s", None, "us-east-1", "h", world.clock)
    assert b"X-Amz-Date: %s" % amz_date(TRUE_S + 200) in signer.signed_request("GetItem", b"{}")
    world.reply()
    assert abs(world.error_ms) <= 1000
    dates = b"|".join(amz_date(TRUE_S + off_s) for off_s in (-1, 0, 1))
    assert re.search(b"X-Amz-Date: (%s)" % dates, signer.signed_request("GetItem", b"{}"))


def test_a_good_host_clock_is_believed_from_the_start() -> None:
    world = World(0.002)
    for _ in range(50):
        world.wait(301 * MS)
        world.reply(5 * MS, 5 * MS)
        assert abs(world.error_ms - 2) <= 1


def test_it_never_steps_back() -> None:
    dice = random.Random(7)
    world = World(+10)
    last_ms = world.clock.now_ms()
    for _ in range(2000):
        world.wait(dice.randrange(30) * MS)
        world.reply(dice.randrange(80) * MS, dice.randrange(80) * MS, dice.randrange(-20, 20) * MS)
        now_ms = world.clock.now_ms()
        assert now_ms >= last_ms
        last_ms = now_ms
    assert abs(world.error_ms) < 150


def test_it_stands_still_until_the_time_it_told_has_come() -> None:
    world = World(+10)
    told_ms = world.clock.now_ms()
    world.reply()
    world.wait(3 * S)
    assert world.clock.now_ms() == told_ms
    world.wait(9 * S)
    assert abs(world.error_ms) <= 1002


def test_slow_replies_do_not_harm() -> None:
    world = World(-10)
    for _ in range(400):
        world.wait(13 * MS)
        world.reply(3 * MS, 2 * MS)
        world.reply(MS, 1500 * MS)
        world.reply(1500 * MS, MS)
    assert abs(world.error_ms) <= 30


@pytest.mark.parametrize("drift_ppm", [-80, 80])
def test_it_follows_a_host_that_runs_fast_or_slow(drift_ppm: float) -> None:
    world = World(-10, drift_ppm)
    for _ in range(7000):  # two hours
        world.wait(1037 * MS)
        world.reply()
    assert abs(world.error_ms) <= 150


def test_one_odd_date_moves_nothing_but_a_lasting_change_does() -> None:
    world = World(0)
    world.reply()
    for _ in range(2):
        world.reply(off_ns=-3600 * S)
        world.reply(off_ns=3600 * S)
        world.reply()
        assert abs(world.error_ms) <= 1
    for _ in range(3):
        world.wait(10 * MS)
        world.reply(off_ns=3600 * S)
    assert abs(world.error_ms - 3_600_000) <= 1000


def test_clocks_of_the_service_that_differ_a_little_are_met_in_between() -> None:
    world = World(-5)
    for step in range(5000):
        world.wait(3 * MS)
        world.reply(off_ns=(step % 2) * 40 * MS)
    assert -5 <= world.error_ms <= 45
    assert world.width_ms <= 60


def test_a_reply_without_a_date_teaches_nothing() -> None:
    world = World(0)
    world.clock.observe(b"soon", 0, 1)
    assert world.width_ms is None


# Our signatures are botocore's, byte for byte.

OPERATIONS = ("UpdateItem", "GetItem", "Query", "BatchGetItem", "TransactWriteItems", "CreateTable")
REGIONS = ("us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1")


def botocores(
    monkeypatch: pytest.MonkeyPatch,
    identity: tuple[str, str, str | None],
    region: str,
    host: str,
    operation: str,
    body: bytes,
    at_s: int,
) -> dict[str, str]:
    moment = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    if hasattr(botocore.auth, "get_current_datetime"):
        monkeypatch.setattr(
            botocore.auth,
            "get_current_datetime",
            lambda remove_tzinfo=True: moment.replace(tzinfo=None) if remove_tzinfo else moment,
        )
    else:

        class Frozen(datetime.datetime):
            @classmethod
            def utcnow(cls) -> Any:
                return moment.replace(tzinfo=None)

        monkeypatch.setattr(botocore.auth.datetime, "datetime", Frozen)
    headers = {"X-Amz-Target": TARGET + operation, "Content-Type": CONTENT_TYPE, "Host": host}
    request = AWSRequest("POST", f"https://{host}/", headers, body)
    botocore.auth.SigV4Auth(Credentials(*identity), "dynamodb", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def clock_at(moment_s: int) -> ServiceClock:
    """One that stands still."""
    return ServiceClock(wall_ns=lambda: moment_s * S, monotonic_ns=lambda: 0)


def ours(signer: Signer, operation: str, body: bytes, at_s: int) -> dict[str, str]:
    signer._clock.offset_ns = at_s * S
    head, _, rest = signer.signed_request(operation, body).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert (first, rest) == ("POST / HTTP/1.1", body)
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


@pytest.mark.parametrize("seed", range(12))
def test_signatures_are_botocores(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    letters = string.ascii_letters + string.digits + "/+="
    access, secret, token = ("".join(dice.choices(letters, k=n)) for n in (20, 40, 300))
    identity = (access, secret, token if seed % 2 else None)
    region = dice.choice(REGIONS)
    host = f"dynamodb.{region}.amazonaws.com" + dice.choice(("", ":8000"))
    signer = Signer(*identity, region, host, clock_at(0))
    at_s = dice.randrange(1_600_000_000, 2_000_000_000)
    for _ in range(10):
        at_s += dice.choice((0, 1, 3600, 86_400))
        body = dice.randbytes(dice.randrange(2000))
        operation = dice.choice(OPERATIONS)
        theirs = botocores(monkeypatch, identity, region, host, operation, body, at_s)
        mine = ours(signer, operation, body, at_s)
        assert mine["content-length"] == str(len(body))
        for name in theirs:
            assert mine[name] == theirs[name]


def test_the_key_of_a_day_is_not_used_on_another() -> None:
    signer = Signer("a", "s", None, "us-east-1", "h", clock_at(0))
    midnight_s = 1_767_225_600
    late = ours(signer, "GetItem", b"{}", midnight_s - 1)["authorization"]
    early = ours(signer, "GetItem", b"{}", midnight_s)["authorization"]
    assert "/20251231/" in late
    assert "/20260101/" in early
    fresh = Signer("a", "s", None, "us-east-1", "h", clock_at(0))
    assert ours(fresh, "GetItem", b"{}", midnight_s)["authorization"] == early
