"""A port to a real table that IAM stands before: what the policies do not allow is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.calls import DynamoPort, DynamoRequest, Rejected
from tests.aws.infra.iam import allowed
from tests.aws.infra.rendering import TABLE_ARN

Asked = tuple[str, str, list[str], list[str]]  # action, resource, leading keys, attributes


def asked(request: DynamoRequest) -> Iterator[Asked]:
    """What a request needs to be allowed, as DynamoDB asks IAM."""
    params, action = request.params, request.operation
    match action:
        case "UpdateItem" | "DeleteItem" | "GetItem":
            names = list(params.get("ExpressionAttributeNames", {}).values())
            yield action, TABLE_ARN, [params["Key"]["PK"]["S"]], ["PK", "SK", *names]
        case "PutItem":
            yield action, TABLE_ARN, [params["Item"]["PK"]["S"]], list(params["Item"])
        case "TransactWriteItems":
            for part in params["TransactItems"]:
                for verb, inner in part.items():
                    yield from asked(DynamoRequest(f"{verb}Item", inner))
        case "BatchGetItem":
            for wanted in params["RequestItems"].values():
                yield action, TABLE_ARN, [key["PK"]["S"] for key in wanted["Keys"]], []
        case "BatchWriteItem":
            for parts in params["RequestItems"].values():
                keys = [part["DeleteRequest"]["Key"]["PK"]["S"] for part in parts]
                yield action, TABLE_ARN, keys, []
        case "Query":
            index = params.get("IndexName")
            place = f"{TABLE_ARN}/index/{index}" if index else TABLE_ARN
            yield action, place, [params["ExpressionAttributeValues"][":pk"]["S"]], []
        case _:
            yield action, TABLE_ARN, [], []


class Guarded:
    def __init__(self, inner: DynamoPort, statements: list[dict[str, Any]], tag: str = "") -> None:
        self._inner = inner
        self._statements = statements
        self._tag = tag
        self.granted: set[str] = set()
        self.denied: list[Asked] = []

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        self._check(request)
        return await self._inner.call(request)

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        for request in requests:
            self._check(request)
        return await self._inner.call_all(requests)

    def now_ms(self) -> int:
        return self._inner.now_ms()

    async def close(self) -> None:
        await self._inner.close()

    def _check(self, request: DynamoRequest) -> None:
        for one in asked(request):
            action, resource, keys, attributes = one
            context = {"dynamodb:LeadingKeys": keys, "dynamodb:Attributes": attributes}
            context["aws:PrincipalTag/headgate-namespace"] = [self._tag] if self._tag else []
            if not allowed(self._statements, f"dynamodb:{action}", resource, context):
                self.denied.append(one)
                raise Rejected("AccessDeniedException", f"{action} on {keys} is not allowed")
            self.granted.add(action)
