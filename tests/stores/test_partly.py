"""An adjustment of several buckets that reached only some of them must not be made again: a credit
that is sent twice admits more than was promised, and a client repeats what was not applied."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Limit
from headgate.core.decision import Demand
from headgate.core.errors import (
    PartlyApplied,
    StoreDenied,
    StoreTrouble,
    Throttled,
    Unreachable,
    ValidationError,
)
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.service.decide.problems import Code
from headgate.stores.dynamodb import store as dynamo
from headgate.stores.redis.buckets import RedisStore
from headgate.stores.redis.client.errors import NotSent
from tests.service.decide.kit import World
from tests.stores.dynamodb.kit import store_on

TERMS = Terms((Limit.per_minute("rpm", 10).spec,), 1)


def credits_for(*names: str, milli: int = -1000) -> list[Demand]:
    return [Demand(BucketKey("n", name, "r"), TERMS, (milli,)) for name in names]


class TwoSlots:
    """A port to a cluster that keeps each bucket in a slot of its own, and says what it is told."""

    slots = 2

    def __init__(self, *answers: int | StoreTrouble) -> None:
        self.answers = list(answers)

    def slot(self, key: str) -> int:
        return 0

    def by_slot(self, items: list[Any], key: Any) -> list[list[Any]]:
        return [[one] for one in items]

    async def script(self, *call: Any) -> int:
        answer = self.answers.pop(0)
        if isinstance(answer, StoreTrouble):
            raise answer
        return answer


def redis_outcome(*answers: int | StoreTrouble) -> bool | StoreTrouble:
    store = RedisStore(TwoSlots(*answers))  # type: ignore[arg-type]
    try:
        return run(store.adjust(credits_for("a", "b"), None, once="k"))
    except StoreTrouble as trouble:
        return trouble


def test_of_several_slots() -> None:
    away, denied = NotSent("no way there"), StoreDenied("no right")
    found = redis_outcome(1, away)
    assert isinstance(found, PartlyApplied)
    assert found.__cause__ is away
    assert redis_outcome(away, 1) is away, "nothing was moved before it"
    assert redis_outcome(0, away) is away, "the key was used before, so nothing was moved now"
    assert redis_outcome(1, denied) is denied
    lost = Unreachable("no answer")
    assert redis_outcome(1, lost) is lost
    assert away.__cause__ is None


def test_a_key_that_had_reached_some_of_them_reaches_the_others() -> None:
    for answers, applied in (((0, 0), False), ((0, 1), True), ((1, 1), True)):
        assert redis_outcome(*answers) is applied


def test_what_redis_cannot_count_is_found_out_before_anything_is_sent() -> None:
    port = TwoSlots(1, 1)
    store = RedisStore(port)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        run(store.adjust([*credits_for("a"), *credits_for("b", milli=2**52)], None))
    assert port.answers == [1, 1]


@pytest.mark.parametrize("place", [0, 1])
def test_of_several_items(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hot = Throttled("one key is too fast")

    async def only_some(port: Any, flows: Any, results: dict[int, Any]) -> None:
        for at, flow in enumerate(flows):
            flow.close()
            results[at] = hot if at == place else True

    monkeypatch.setattr(dynamo, "run_flows", only_some)
    for metered in (True, False):
        store = store_on(usage="local")
        with pytest.raises(PartlyApplied):
            run(store.adjust(credits_for("a", "b"), 0, metered=metered))
        assert store._usage is not None
        told = {BucketKey.from_text(text).entity_id for text, _ in store._usage.held}
        assert told == ({"ab"[1 - place]} if metered else set()), "what was moved is counted"


def test_of_none_of_several_items(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(port: Any, flows: Any, results: dict[int, Any]) -> None:
        results.update(enumerate([Throttled("too fast")] * len(flows)))

    monkeypatch.setattr(dynamo, "run_flows", nowhere)
    with pytest.raises(Throttled):
        run(store_on().adjust(credits_for("a", "b"), 0))


async def test_a_client_is_told_not_to_repeat_it() -> None:
    world = World()
    values = {"identifier": "ann", "resource": "api.search", "tokens": -3}
    await world.ask("charge", values)
    world.goes_down(PartlyApplied(Throttled("one key is too fast")))
    found = await world.ask("charge", values)
    assert found.code is Code.DEADLINE_EXCEEDED
