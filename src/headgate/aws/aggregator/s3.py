"""Calls to AWS services through botocore, and the objects of one S3 bucket."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Protocol

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError

from headgate.core.errors import StoreTrouble, Throttled, Unreachable, ValidationError
from headgate.stores.dynamodb.client.calls import Rejected

PAGE = 1000


class AwsService(Protocol):
    """A service of AWS, by the names that botocore has for its operations."""

    async def call(self, operation: str, **params: Any) -> dict[str, Any]: ...

    async def close(self) -> None: ...


class S3Objects:
    def __init__(self, service: AwsService, bucket: str) -> None:
        self._service = service
        self._bucket = bucket

    async def put(self, name: str, body: bytes) -> None:
        """Writes the object, whether or not it exists."""
        await self._service.call(
            "put_object",
            Bucket=self._bucket,
            Key=name,
            Body=body,
            ContentType="application/gzip",
        )

    async def get(self, name: str) -> bytes:
        reply = await self._service.call("get_object", Bucket=self._bucket, Key=name)
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
            reply = await self._service.call(
                "list_objects_v2", Bucket=self._bucket, Prefix=prefix, MaxKeys=PAGE, **more
            )
            found += reply.get(part, [])
            if not reply.get("IsTruncated"):
                return found
            more = {**options, "ContinuationToken": reply["NextContinuationToken"]}
        raise ValidationError(
            "prefix", prefix, f"leads to more than {most} objects; ask for less, or query the "
            f"archive with a tool made for it, such as Athena"
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Calls to S3 and to DynamoDB Streams through botocore, async and blocking.
#
# No acquire waits for them: a batch of audit events is one call, and a stream is read a few times a
# second. So it is good enough to run botocore on a thread for async callers.

_THROTTLES = {"LimitExceededException", "ProvisionedThroughputExceededException", "SlowDown"}
_THROTTLES |= {"ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException"}


class BotoService:
    """Calls to one service of AWS; the client is made at the first of them."""

    def __init__(
        self,
        name: str,
        *,
        region: str | None,
        endpoint: str | None,
        blocking: bool,
        timeout_ms: int = 10_000,
    ) -> None:
        self._name = name
        self._region = region
        self._endpoint = endpoint
        self._blocking = blocking
        self._timeout_s = timeout_ms / 1000
        self._client: Any = None
        self._lock = threading.Lock()

    async def call(self, operation: str, **params: Any) -> dict[str, Any]:
        """The reply, a body read to its end; trouble is raised as StoreTrouble."""
        if self._blocking:
            return self._call_client(operation, params)
        return await asyncio.to_thread(self._call_client, operation, params)

    async def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _call_client(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = getattr(self._get_client(), operation)(**params)
            if "Body" in reply:
                reply["Body"] = reply["Body"].read()
        except ClientError as error:
            raise _error_from_reply(f"{self._name} refused {operation}: {error}", error) from error
        except (BotoCoreError, HTTPClientError, OSError) as error:
            anonymous = isinstance(error, NoCredentialsError)
            hint = "give this host or task a role" if anonymous else "see why"
            raise Unreachable(
                f"{self._name} gave no answer to {operation} ({error}); {hint}"
            ) from error
        return reply

    def _get_client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = make_client(
                    botocore.session.get_session(), self._name, self._region, self._endpoint,
                    connect_s=self._timeout_s, read_s=self._timeout_s, attempts=3,
                )  # fmt: skip
            return self._client


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
