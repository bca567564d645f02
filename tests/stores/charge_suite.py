"""A look, a charge into debt and a credit through the service, and what is used by who was disabled
meanwhile, on the engine behind a URL."""

from __future__ import annotations

import pytest

from headgate import DisabledError, Limit, RateLimiter, Repository
from headgate.service.decide.answers import ChargeResult, CheckResult
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import (
    parse_acquire,
    parse_charge,
    parse_check,
    parse_settle,
)
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


async def charge_who_was_disabled(url: str) -> None:
    """What was used is owed, by a lease of the library and of the wire and by a charge; a parent
    that was disabled owes its part. Nobody takes meanwhile."""
    async with Repository(url) as repository:
        await repository.register_namespace("disabled")
        service = Service(repository)
        home = (await service.namespace("disabled")).home
        limits = [Limit("tokens", 10, 0, 1)]
        for name, parent in (("user:team", None), ("user:ann", "user:team")):
            await home.create_entity(name, None, parent, cascade=parent is not None)
            await home.set_limits(name, limits, "stream")
        limiter = RateLimiter(home)
        ask = {**ASK, "namespace": "disabled"}
        wire = await service.acquire(parse_acquire({**ask, "tokens": 1}))
        assert wire.lease is not None
        async with limiter.acquire("user:ann", "stream", {"tokens": 1}) as lease:
            await home.disable("user:ann")
            await home.disable("user:team")
            await lease.settle(tokens=6)
        await service.settle(
            parse_settle(wire.lease.lease_id, {"namespace": "disabled", "tokens": 5})
        )
        for spent in (17, 23):
            found = await service.charge(parse_charge({**ask, "tokens": 6}))
            assert isinstance(found.answer, CheckResult)
            told = {one.entity_id: one.available for one in found.answer.limits}
            assert (found.charged, told) == (
                True,
                {"user:ann": 10 - spent, "user:team": 10 - spent},
            )
        for mode in ("check", "fit"):
            with pytest.raises(ServiceError) as refused:
                if mode == "fit":
                    await service.charge(parse_charge({**ask, "tokens": 1, "mode": mode}))
                else:
                    await service.check(parse_check({**ask, "tokens": 1}))
            assert refused.value.code is Code.ENTITY_DISABLED
        with pytest.raises(DisabledError):
            await limiter.take("user:ann", "stream", {"tokens": 1})
        await home.enable("user:ann")
        await home.enable("user:team")
        assert await limiter.available("user:ann", "stream") == {"tokens": -13}
        usage, _ = await home.get_usage_snapshots(window_type="hourly", resource="stream")
        used = {one.entity_id: (dict(one.own), dict(one.from_children)) for one in usage}
        assert used == {
            "user:ann": ({"tokens": 23}, {}),
            "user:team": ({}, {"tokens": 23}),
        }
        await service.close()
