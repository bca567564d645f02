"""Our signatures are botocore's, byte for byte."""

from __future__ import annotations

import datetime
import random
import string
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from headgate.stores.dynamodb.client.account import CONTENT_TYPE, TARGET, Signer

OPERATIONS = ("UpdateItem", "GetItem", "Query", "BatchGetItem", "TransactWriteItems", "CreateTable")
REGIONS = ("us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1")


def botocores(
    monkeypatch: pytest.MonkeyPatch,
    identity: tuple[str, str, str | None],
    region: str,
    host: str,
    operation: str,
    body: bytes,
    at_s: int,
) -> dict[str, str]:
    moment = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    if hasattr(botocore.auth, "get_current_datetime"):
        monkeypatch.setattr(
            botocore.auth,
            "get_current_datetime",
            lambda remove_tzinfo=True: moment.replace(tzinfo=None) if remove_tzinfo else moment,
        )
    else:

        class Frozen(datetime.datetime):
            @classmethod
            def utcnow(cls) -> Any:
                return moment.replace(tzinfo=None)

        monkeypatch.setattr(botocore.auth.datetime, "datetime", Frozen)
    headers = {"X-Amz-Target": TARGET + operation, "Content-Type": CONTENT_TYPE, "Host": host}
    request = AWSRequest("POST", f"https://{host}/", headers, body)
    botocore.auth.SigV4Auth(Credentials(*identity), "dynamodb", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def ours(signer: Signer, operation: str, body: bytes, at_s: int) -> dict[str, str]:
    lines = signer.headers(operation, body, at_s).split("\r\n")
    assert lines.pop() == ""
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


@pytest.mark.parametrize("seed", range(12))
def test_signatures_are_botocores(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    letters = string.ascii_letters + string.digits + "/+="
    access, secret, token = ("".join(dice.choices(letters, k=n)) for n in (20, 40, 300))
    identity = (access, secret, token if seed % 2 else None)
    region = dice.choice(REGIONS)
    host = f"dynamodb.{region}.amazonaws.com" + dice.choice(("", ":8000"))
    signer = Signer(*identity, region, host)
    at_s = dice.randrange(1_600_000_000, 2_000_000_000)
    for _ in range(10):
        at_s += dice.choice((0, 1, 3600, 86_400))
        body = dice.randbytes(dice.randrange(2000))
        operation = dice.choice(OPERATIONS)
        theirs = botocores(monkeypatch, identity, region, host, operation, body, at_s)
        mine = ours(signer, operation, body, at_s)
        assert mine["authorization"] == theirs["authorization"]
        for name in mine.keys() - {"authorization"}:
            assert mine[name] == theirs[name]


def test_the_key_of_a_day_is_not_used_on_another() -> None:
    signer = Signer("a", "s", None, "us-east-1", "h")
    midnight_s = 1_767_225_600
    late = ours(signer, "GetItem", b"{}", midnight_s - 1)["authorization"]
    early = ours(signer, "GetItem", b"{}", midnight_s)["authorization"]
    assert "/20251231/" in late
    assert "/20260101/" in early
    fresh = Signer("a", "s", None, "us-east-1", "h")
    assert ours(fresh, "GetItem", b"{}", midnight_s)["authorization"] == early
