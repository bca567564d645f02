"""Whether policies allow a request: as much of IAM as the template uses, and no more. And a port to
a real table that refuses what they do not allow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.calls import DynamoPort, DynamoRequest, Rejected
from tests.aws.infra.rendering import TABLE_ARN

Context = Mapping[str, Sequence[str]]


def allowed(
    statements: Iterable[Mapping[str, Any]], action: str, resource: str, context: Context
) -> bool:
    """Nothing is denied here but by not being allowed."""
    return any(_grants(one, action, resource, context) for one in statements)


def like(pattern: str, value: str) -> bool:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None


def many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _grants(one: Mapping[str, Any], action: str, resource: str, context: Context) -> bool:
    assert one["Effect"] == "Allow", "the template has no others"
    return (
        action in many(one["Action"])
        and any(like(pattern, resource) for pattern in many(one["Resource"]))
        and all(_holds(rule, part, context) for rule, part in one.get("Condition", {}).items())
    )


def _holds(rule: str, wanted: Mapping[str, Any], context: Context) -> bool:
    return all(_key_holds(rule, key, value, context) for key, value in wanted.items())


def _key_holds(rule: str, key: str, value: Any, context: Context) -> bool:
    found = context.get(key, ())
    if rule == "Null":
        return (not found) == (str(value).lower() == "true")
    patterns = [text for text in (_substituted(p, context) for p in many(value)) if text]
    if rule == "ForAllValues:StringLike":
        return all(any(like(p, one) for p in patterns) for one in found)  # of none it is true
    if rule == "StringLike":
        return any(like(p, one) for p in patterns for one in found)
    raise AssertionError(rule)


def _substituted(pattern: str, context: Context) -> str | None:
    """A variable without a value makes a pattern that nothing matches."""
    for name in re.findall(r"\$\{([^}]+)\}", pattern):
        values = context.get(name, ())
        if not values:
            return None
        pattern = pattern.replace(f"${{{name}}}", values[0])
    return pattern


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
