"""Who asks and where: credentials, region and endpoint as botocore finds them.

Profiles, environment, SSO, roles of hosts, tasks and web identities, and their refresh are
botocore's; the calls are not. Credentials are looked up when first needed.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import botocore.session  # type: ignore[import-untyped,unused-ignore]
from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped,unused-ignore]

from headgate.core.errors import ValidationError
from headgate.stores.dynamodb.client import errors as trouble
from headgate.stores.dynamodb.client.http import DynamoEndpoint
from headgate.stores.dynamodb.client.signing import SERVICE, Signer

LOOK_AGAIN_S = 1.0

Sessions = Callable[[], Any]


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
        self, place: DynamoEndpoint, sessions: Sessions = botocore.session.get_session
    ) -> None:
        self._place = place
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
        return Signer(*identity, self._place.region, self._place.authority)
