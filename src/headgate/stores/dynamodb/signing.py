"""Signature Version 4 for DynamoDB, computed here: botocore's costs many times as much.

DynamoDB takes one method, one path and five headers, so everything but the body's hash is the same
for every call of a second: it is prepared once, and a signature is two hashes and one HMAC.
"""

from __future__ import annotations

import hmac
import time
from hashlib import sha256

SERVICE = "dynamodb"
CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "DynamoDB_20120810."


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
        self._moment = (-1, b"", "", "", "")

    def headers(self, operation: str, body: bytes, at_s: int) -> str:
        """The header lines that prove who asks: date, token, target and Authorization."""
        moment = self._moment
        if moment[0] != at_s:
            moment = self._moment = self._prepare(at_s)
        _, key, canonical, to_sign, lines = moment
        request = (f"{canonical}{operation}\n\n{self._fields}\n{sha256(body).hexdigest()}").encode()
        text = (to_sign + sha256(request).hexdigest()).encode()
        signature = hmac.digest(key, text, "sha256").hex()
        return f"{lines}{signature}\r\nX-Amz-Target: {TARGET}{operation}\r\n"

    def _prepare(self, at_s: int) -> tuple[int, bytes, str, str, str]:
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
        return at_s, self._key_of(day), canonical, to_sign, lines

    def _key_of(self, day: str) -> bytes:
        known, key = self._day
        if known != day:
            key = b"AWS4" + self._secret.encode()
            for part in (day, self._region, SERVICE, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day = (day, key)
        return key
