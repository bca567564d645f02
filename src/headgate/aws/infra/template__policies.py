"""A policy for one namespace, for whoever would rather name it than tag principals."""

from __future__ import annotations

import re
from typing import Any

from headgate.core.errors import ValidationError
from headgate.core.limits__names import NAMESPACE_ID_LENGTH

_ID = re.compile(rf"[a-zA-Z0-9_\-]{{{NAMESPACE_ID_LENGTH}}}")
_TABLE_ARN = re.compile(r"arn:aws[a-z\-]*:dynamodb:[a-z0-9\-]+:\d{12}:table/[a-zA-Z0-9_.\-]{3,255}")

REGISTRY_KEY = "_/SYSTEM#"
USAGE_ATTRIBUTES = (
    "PK",
    "SK",
    "GSI2PK",
    "GSI2SK",
    "GSI4PK",
    "GSI4SK",
    "entity_id",
    "resource",
    "window",
    "window_start",
    "ttl",
    "total_events",
    "u_*",
)


def namespace_policy(
    table_arn: str, namespace_id: str, *, counts_usage: bool = False
) -> dict[str, Any]:
    """May acquire in one namespace and see no other; `counts_usage` where there is no aggregator.

    It says what the template's NamespacePolicy says of a principal with that tag.
    """
    if not isinstance(namespace_id, str) or not _ID.fullmatch(namespace_id):
        raise ValidationError(
            "namespace_id", namespace_id,
            "must be the 11 characters that `headgate namespace show` calls its id, not its name",
        )  # fmt: skip
    if not isinstance(table_arn, str) or not _TABLE_ARN.fullmatch(table_arn):
        raise ValidationError("table_arn", table_arn, "must be the ARN of a table")
    every = [namespace_id, f"{namespace_id}/*", REGISTRY_KEY]
    balances = [f"{namespace_id}/BUCKET#*", f"{namespace_id}/ONCE#*"]
    read = ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"]
    write = ["dynamodb:UpdateItem", "dynamodb:PutItem", "dynamodb:DeleteItem"]
    statements = [
        _allow("Read", read, [table_arn, f"{table_arn}/index/*"], every),
        _allow("Balances", write, table_arn, balances),
    ]
    if counts_usage:
        usage = _allow("Usage", ["dynamodb:UpdateItem"], table_arn, [f"{namespace_id}/ENTITY#*"])
        condition = usage["Condition"]
        condition["Null"]["dynamodb:Attributes"] = "false"
        condition["ForAllValues:StringLike"]["dynamodb:Attributes"] = list(USAGE_ATTRIBUTES)
        statements.append(usage)
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(
    sid: str, actions: list[str], resource: str | list[str], keys: list[str]
) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": actions,
        "Resource": resource,
        "Condition": {
            "Null": {"dynamodb:LeadingKeys": "false"},
            "ForAllValues:StringLike": {"dynamodb:LeadingKeys": keys},
        },
    }
