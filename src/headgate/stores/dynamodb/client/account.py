"""Who asks, where and when: credentials and endpoint, the service's clock, and the signature.

Profiles, environment, SSO, roles of hosts, tasks and web identities, and their refresh are
botocore's; the calls are not. Credentials are looked up when first needed.
"""

from __future__ import annotations

import hmac
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import botocore.session  # type: ignore[import-untyped,unused-ignore]
from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped,unused-ignore]

from headgate.core.errors import ValidationError
from headgate.stores.dynamodb.client import errors as trouble
from headgate.transport.gates import reset_after_fork
from headgate.transport.http1 import http_date_s
from headgate.transport.http_pool import ServerAddress

LOOK_AGAIN_S = 1.0
SERVICE = "dynamodb"
AGENT = "headgate"
CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "DynamoDB_20120810."

Sessions = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class DynamoEndpoint(ServerAddress):
    """Where the service is, and the region that its signatures name."""

    region: str


def find_endpoint(region: str | None, endpoint: str | None) -> DynamoEndpoint:
    """Where the service is; what is not given is asked of botocore's configuration."""
    try:
        if region is None or endpoint is None:
            session = botocore.session.get_session()
            client = session.create_client(
                SERVICE,
                region_name=region,
                endpoint_url=endpoint,
                aws_access_key_id="unused",  # or it would look for credentials here and now
                aws_secret_access_key="unused",
            )
            region, endpoint = client.meta.region_name, client.meta.endpoint_url
            client.close()
    except (BotoCoreError, ValueError) as error:
        raise ValidationError(
            "region",
            region,
            f"leads to no DynamoDB endpoint ({error}); name one: ?region=eu-west-1",
        ) from error
    assert region is not None
    return _parse_endpoint(str(endpoint), region)


def _parse_endpoint(endpoint: str, region: str) -> DynamoEndpoint:
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValidationError("endpoint", endpoint, f"cannot be read: {error}") from error
    rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username)
    if parts.scheme not in ("http", "https") or not host or any(rest):
        raise ValidationError("endpoint", endpoint, "must be http(s)://host or http(s)://host:port")
    if not host.isascii() or not host.isprintable():
        raise ValidationError("endpoint", endpoint, "must name its host in ASCII")
    if not (region.isascii() and region.replace("-", "").isalnum()):
        raise ValidationError("region", region, "is no name of a region, as in eu-west-1")
    if parts.scheme == "http":
        return DynamoEndpoint(host, port or 80, None, region)
    return DynamoEndpoint(host, port or 443, ssl.create_default_context(), region)


class CredentialProvider:
    """The signer of this moment; `load` may block, on files or on the network."""

    def __init__(
        self,
        place: DynamoEndpoint,
        clock: ServiceClock,
        sessions: Sessions = botocore.session.get_session,
    ) -> None:
        self._place = place
        self._clock = clock
        self._sessions = sessions
        self._credentials: Any = None
        self._signer: Signer | None = None
        self._look_s = self._refuse_s = 0.0
        self._lock = threading.Lock()

    def signer(self, now_s: float) -> Signer | None:
        """Who signs now; None if `load` is to be asked, which one caller a second is told."""
        if now_s < self._look_s or self._signer is None:
            return self._signer
        self._look_s = now_s + LOOK_AGAIN_S
        stale = getattr(self._credentials, "refresh_needed", None)
        return None if stale is not None and stale() else self._signer

    def load(self) -> Signer:
        """Finds credentials, or has them refreshed if they are about to expire."""
        with self._lock:
            credentials = self._credentials
            if credentials is None:
                credentials = self._found()
            signer = self._signer_for(credentials)
            self._credentials, self._signer = credentials, signer
            return signer

    def refuse(self, refused: Signer, now_s: float) -> None:
        """The service did not take it: `load` looks everywhere again, once a second at most."""
        if self._signer is refused and now_s >= self._refuse_s:
            self._refuse_s = now_s + LOOK_AGAIN_S
            self._signer = self._credentials = None

    def _found(self) -> Any:
        try:
            credentials = self._sessions().get_credentials()
        except BotoCoreError as error:
            raise trouble.no_credentials(error) from error
        if credentials is None:
            raise trouble.no_credentials("botocore found none")
        return credentials

    def _signer_for(self, credentials: Any) -> Signer:
        try:
            frozen = credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise trouble.no_credentials(error) from error
        identity = (frozen.access_key, frozen.secret_key, frozen.token)
        signer = self._signer
        if signer is not None and signer.identity == identity:
            return signer
        return Signer(*identity, self._place.region, self._place.authority, self._clock)


# --------------------------------------------------------------------------------------------------
# The service's clock, told by the `Date` of its replies and kept by the host's monotonic clock.
#
# A date names a second. A reply that was asked for at `sent` and came at `received` bounds the
# difference between the two clocks from both sides; replies near the turn of a second make the
# bounds tight, within the round trip at best. The bounds are widened slowly, since clocks drift.

SECOND_NS = 1_000_000_000
DRIFT_PER_MILLION = 100  # more than a host's clock drifts in practice
ODD_NS = 2 * SECOND_NS  # bounds further off than this are an odd reply, until it is repeated
ODD_REPLIES = 3


class ServiceClock:
    """Never steps back; safe to share between threads and loops.

    `monotonic_ns() + offset_ns` is the service's time as far as is known, and may step back.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.monotonic_ns = monotonic_ns
        self.offset_ns = wall_ns() - monotonic_ns()
        self._host_believed = True  # until a reply proves it wrong
        self._bounds_ns: tuple[int, int] | None = None
        self._seen_ns = 0
        self._odd = 0
        self._date: tuple[bytes, int | None] = (b"", None)
        self._last_ns = 0
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """A thread that held the lock when the process forked is not there to release it."""
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        with self._lock:
            self._last_ns = max(self._last_ns, self.monotonic_ns() + self.offset_ns)
            return self._last_ns // 1_000_000

    def observe(self, date: bytes, sent_ns: int, received_ns: int) -> None:
        """Learns from one reply; the times are of the monotonic clock."""
        known, at_s = self._date
        if known != date:
            at_s = http_date_s(date.strip(b" \t").lower())
            self._date = (date, at_s)
        if at_s is None:
            return
        low_ns = at_s * SECOND_NS - received_ns
        high_ns = (at_s + 1) * SECOND_NS - sent_ns
        bounds = self._bounds_ns
        if bounds is not None and not self._odd:
            drift_ns = (received_ns - self._seen_ns) * DRIFT_PER_MILLION // 1_000_000
            if low_ns <= bounds[0] - drift_ns and high_ns >= bounds[1] + drift_ns:
                return  # it knows no more than is known already, as most replies
        with self._lock:
            bounds = self._bounds_ns
            if bounds is not None:
                drift_ns = max(0, received_ns - self._seen_ns) * DRIFT_PER_MILLION // 1_000_000
                old_low_ns, old_high_ns = bounds[0] - drift_ns, bounds[1] + drift_ns
                gap_ns = max(low_ns - old_high_ns, old_low_ns - high_ns)
                if gap_ns > ODD_NS and self._odd + 1 < ODD_REPLIES:
                    self._odd += 1
                    return
                if gap_ns <= ODD_NS:
                    # Where the service's own clocks differ a little, what lies between is left.
                    inner = max(old_low_ns, low_ns), min(old_high_ns, high_ns)
                    low_ns, high_ns = min(inner), max(inner)
            self._odd = 0
            self._seen_ns = max(self._seen_ns, received_ns)
            self._bounds_ns = low_ns, high_ns
            if self._host_believed and low_ns <= self.offset_ns <= high_ns:
                return
            self._host_believed = False
            self.offset_ns = (low_ns + high_ns) // 2


# --------------------------------------------------------------------------------------------------
# Signature Version 4 for DynamoDB, computed here: botocore's costs many times as much.
#
# DynamoDB takes one method, one path and five headers, so everything but the body's hash is the
# same for every call of a second: it is prepared once, and a signature is two hashes and one HMAC.

HmacStates = tuple[Any, Any]  # the two hashes of an HMAC, begun with its key
Moment = tuple[int, HmacStates, str, str, str]


def _hmac_states(key: bytes) -> HmacStates:
    """An HMAC by hand: begun once for a key, finished for each text from copies."""
    padded = key.ljust(64, b"\0")
    return sha256(bytes(byte ^ 0x36 for byte in padded)), sha256(
        bytes(byte ^ 0x5C for byte in padded)
    )


class Signer:
    """Signs for one identity at one host, by its clock; safe to share between threads."""

    def __init__(
        self,
        access: str,
        secret: str,
        token: str | None,
        region: str,
        host: str,
        clock: ServiceClock,
    ) -> None:
        self.identity = (access, secret, token)
        self._clock = clock
        self._start = (
            f"POST / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {AGENT}\r\n"
            f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: "
        )
        self._region = region
        self._secret = secret
        self._fields = "content-type;host;x-amz-date;x-amz-target"
        self._token_line = self._token_header = ""
        if token:
            self._fields = "content-type;host;x-amz-date;x-amz-security-token;x-amz-target"
            self._token_line = f"x-amz-security-token:{token}\n"
            self._token_header = f"X-Amz-Security-Token: {token}\r\n"
        self._before_date = f"POST\n/\n\ncontent-type:{CONTENT_TYPE}\nhost:{host}\nx-amz-date:"
        self._access = access
        self._day: tuple[str, bytes] = ("", b"")
        self._moment: Moment = (-1, _hmac_states(b""), "", "", "")

    def signed_request(self, operation: str, body: bytes) -> bytes:
        """The HTTP request, with what proves who asks: date, token, target and Authorization."""
        # Not `clock.now_ms`, which never steps back: a host that is ahead would go on signing with
        # the time of its first request until the service has caught up.
        at_s = (self._clock.monotonic_ns() + self._clock.offset_ns) // SECOND_NS
        moment = self._moment
        if moment[0] != at_s:
            moment = self._moment = self._prepare(at_s)
        _, (inner, outer), canonical, to_sign, lines = moment
        request = (f"{canonical}{operation}\n\n{self._fields}\n{sha256(body).hexdigest()}").encode()
        text = (to_sign + sha256(request).hexdigest()).encode()
        first, second = inner.copy(), outer.copy()
        first.update(text)
        second.update(first.digest())
        head = (
            f"{self._start}{len(body)}\r\n{lines}{second.hexdigest()}\r\n"
            f"X-Amz-Target: {TARGET}{operation}\r\n\r\n"
        )
        return head.encode() + body

    def _prepare(self, at_s: int) -> Moment:
        """What stays the same for every call signed in this second."""
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
        day = date[:8]
        scope = f"{day}/{self._region}/{SERVICE}/aws4_request"
        canonical = f"{self._before_date}{date}\n{self._token_line}x-amz-target:{TARGET}"
        to_sign = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n"
        lines = (
            f"X-Amz-Date: {date}\r\n{self._token_header}Authorization: AWS4-HMAC-SHA256 "
            f"Credential={self._access}/{scope}, SignedHeaders={self._fields}, Signature="
        )
        return at_s, _hmac_states(self._key_of(day)), canonical, to_sign, lines

    def _key_of(self, day: str) -> bytes:
        known, key = self._day
        if known != day:
            key = b"AWS4" + self._secret.encode()
            for part in (day, self._region, SERVICE, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day = (day, key)
        return key
