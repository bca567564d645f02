"""Signature Version 4 for DynamoDB, computed here: botocore's costs many times as much.

DynamoDB takes one method, one path and five headers, so everything but the body's hash is the same
for every call of a second: it is prepared once, and a signature is two hashes and one HMAC.
"""

from __future__ import annotations

import hmac
import time
from hashlib import sha256
from typing import Any

SERVICE = "dynamodb"
CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "DynamoDB_20120810."


HmacStates = tuple[Any, Any]  # the two hashes of an HMAC, begun with its key
Moment = tuple[int, HmacStates, str, str, str]


def _hmac_states(key: bytes) -> HmacStates:
    """An HMAC by hand: begun once for a key, finished for each text from copies."""
    padded = key.ljust(64, b"\0")
    return sha256(bytes(byte ^ 0x36 for byte in padded)), sha256(
        bytes(byte ^ 0x5C for byte in padded)
    )


class Signer:
    """Signs for one identity at one host; safe to share between threads."""

    def __init__(self, access: str, secret: str, token: str | None, region: str, host: str) -> None:
        self.identity = (access, secret, token)
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

    def headers(self, operation: str, body: bytes, at_s: int) -> str:
        """The header lines that prove who asks: date, token, target and Authorization."""
        moment = self._moment
        if moment[0] != at_s:
            moment = self._moment = self._prepare(at_s)
        _, (inner, outer), canonical, to_sign, lines = moment
        request = (f"{canonical}{operation}\n\n{self._fields}\n{sha256(body).hexdigest()}").encode()
        text = (to_sign + sha256(request).hexdigest()).encode()
        first, second = inner.copy(), outer.copy()
        first.update(text)
        second.update(first.digest())
        return f"{lines}{second.hexdigest()}\r\nX-Amz-Target: {TARGET}{operation}\r\n"

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
