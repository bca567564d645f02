"""The objects of one bucket of S3: put, get, and their names."""

from __future__ import annotations

from typing import Any, Protocol

from headgate.core.errors import ValidationError

PAGE = 1000


class Calls(Protocol):
    """A service of AWS, by the names that botocore has for its operations."""

    async def call(self, operation: str, **params: Any) -> dict[str, Any]: ...

    async def close(self) -> None: ...


class Objects:
    def __init__(self, service: Calls, bucket: str) -> None:
        self._service = service
        self._bucket = bucket

    async def put(self, name: str, body: bytes) -> None:
        """The object is there, whether or not it was before."""
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
        return [one["Key"] for one in await self._listed("Contents", prefix, most)]

    async def folders(self, prefix: str, most: int) -> list[str]:
        """What the names that begin so have up to the next `/`, in order, each once."""
        listed = await self._listed("CommonPrefixes", prefix, most, Delimiter="/")
        return sorted(one["Prefix"] for one in listed)

    async def _listed(
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
