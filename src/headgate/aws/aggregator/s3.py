"""Calls to AWS services through botocore, and the objects of one S3 bucket."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError

from headgate.core.errors import StoreTrouble, Throttled, Unreachable, ValidationError
from headgate.stores.dynamodb.client.calls import Rejected

PAGE = 1000
TIMEOUT_S = 10


class S3Objects:
    def __init__(self, service: BotoService, bucket: str) -> None:
        self._service = service
        self._bucket = bucket

    async def put(self, name: str, body: bytes) -> None:
        """Writes the object, whether or not it exists."""
        await self._call("put_object", Key=name, Body=body, ContentType="application/gzip")

    async def get(self, name: str) -> bytes:
        reply = await self._call("get_object", Key=name)
        body: bytes = reply["Body"]
        return body

    async def close(self) -> None:
        await self._service.close()

    async def names(self, prefix: str, most: int) -> list[str]:
        """The names that begin so, in order; an error where they are more than `most`."""
        return [one["Key"] for one in await self._list("Contents", prefix, most)]

    async def folders(self, prefix: str, most: int) -> list[str]:
        """The folders below a prefix that ends in `/`, in order."""
        listed = await self._list("CommonPrefixes", prefix, most, Delimiter="/")
        return sorted(one["Prefix"] for one in listed)

    async def _list(
        self, part: str, prefix: str, most: int, **options: str
    ) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        more = options
        for _ in range(most // PAGE + 1):
            reply = await self._call("list_objects_v2", Prefix=prefix, MaxKeys=PAGE, **more)
            found += reply.get(part, [])
            if not reply.get("IsTruncated"):
                return found
            more = {**options, "ContinuationToken": reply["NextContinuationToken"]}
        raise ValidationError(
            "prefix", prefix, f"leads to more than {most} objects; ask for less, or query the "
            f"archive with a tool made for it, such as Athena"
        )  # fmt: skip

    async def _call(self, operation: str, **params: Any) -> dict[str, Any]:
        return await self._service.call(operation, Bucket=self._bucket, **params)


# --------------------------------------------------------------------------------------------------
# Calls to S3 and to DynamoDB Streams through botocore, async and blocking.
#
# No acquire waits for them: a batch of audit events is one call, and a stream is read a few times a
# second. So it is good enough to run botocore on a thread for async callers.

_THROTTLES = {"LimitExceededException", "ProvisionedThroughputExceededException", "SlowDown"}
_THROTTLES |= {"ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException"}


@dataclass(eq=False)
class BotoService:
    """Calls to one service of AWS, by botocore's names; the client is made at the first of them."""

    name: str
    _: KW_ONLY
    region: str | None
    endpoint: str | None
    blocking: bool
    _client: Any = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    async def call(self, operation: str, **params: Any) -> dict[str, Any]:
        """The reply, a body read to its end; trouble is raised as StoreTrouble."""
        if self.blocking:
            return self._call_client(operation, params)
        return await asyncio.to_thread(self._call_client, operation, params)

    async def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _call_client(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._lock:
                if self._client is None:
                    self._client = make_client(
                        botocore.session.get_session(), self.name, self.region, self.endpoint,
                        connect_s=TIMEOUT_S, read_s=TIMEOUT_S, attempts=3,
                    )  # fmt: skip
                client = self._client
            reply: dict[str, Any] = getattr(client, operation)(**params)
            if "Body" in reply:
                reply["Body"] = reply["Body"].read()
        except ClientError as error:
            raise _error_from_reply(f"{self.name} refused {operation}: {error}", error) from error
        except (BotoCoreError, HTTPClientError, OSError) as error:
            anonymous = isinstance(error, NoCredentialsError)
            hint = "give this host or task a role" if anonymous else "see why"
            raise Unreachable(
                f"{self.name} gave no answer to {operation} ({error}); {hint}"
            ) from error
        return reply


def make_client(
    session: Any,
    service: str,
    region: str | None,
    endpoint: str | None,
    *,
    connect_s: float,
    read_s: float,
    attempts: int,
) -> Any:
    """A client of botocore's for one service; an endpoint is one of another address than AWS's."""
    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        s3={"addressing_style": "path"} if endpoint else None,
    )
    return session.create_client(service, region_name=region, endpoint_url=endpoint, config=config)


def _error_from_reply(shown: str, error: ClientError) -> StoreTrouble:
    reply: dict[str, Any] = dict(error.response)
    code = str(reply.get("Error", {}).get("Code", ""))
    if code in _THROTTLES:
        return Throttled(f"{shown}; try again in a moment")
    status = reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return Unreachable(shown) if status >= 500 else Rejected(code, shown)
