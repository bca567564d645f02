"""A look, a charge into debt and a credit through the service, on the engine behind a URL."""

from __future__ import annotations

from headgate import Repository
from headgate.service.decide.answers import ChargeResult, CheckResult
from headgate.service.decide.requests import parse_charge, parse_check
from headgate.service.decide.service import Service
from tests.service.decide.kit import TableRules, rule

ASK = {"identifier": "ann", "resource": "stream", "namespace": "charges"}


async def left(service: Service, **given: object) -> tuple[bool, int | None, int | None]:
    """Whether it was charged, what is left, and the wait until there is something again."""
    found = await service.charge(parse_charge({**ASK, **given}))
    assert isinstance(found, ChargeResult)
    assert isinstance(found.answer, CheckResult)
    return found.charged, found.answer.tokens_remaining, found.wait_ms


async def charge_and_give_back(url: str, cost: int) -> None:
    rules = TableRules({("user", None): rule("two", 2, 0)})  # it never refills: no clock is needed
    async with Repository(url) as repository:
        await repository.register_namespace("charges")
        service = Service(repository, rules)
        assert await left(service, tokens=cost) == (True, 2 - cost, None)
        looked = await service.check(parse_check({**ASK, "dry_run": True}))
        assert (looked.allowed, looked.tokens_remaining) == (False, 2 - cost)
        key = f"key-{cost}"
        assert await left(service, tokens=-cost, idempotency_key=key) == (True, 2, 0)
        assert await left(service, tokens=-cost, idempotency_key=key) == (False, 2, 0)
        assert await left(service, tokens=1, mode="fit") == (True, 1, 0)
        assert (await left(service, tokens=2, mode="fit"))[0] is False
        assert await left(service, tokens=-1_000_000) == (True, 2, 0)
        await service.close()
