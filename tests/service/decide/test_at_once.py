"""What is answered at once is what the usual way answers: to the byte, with the same tokens taken
and the same counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate import Limit
from headgate.service.http.messages import WHOLE_BODY, fields_of
from headgate.service.keys.access import Authenticator
from headgate.testing import FakeClock
from proof.size import sized
from tests.service.http.kit import HOST, JSON, PATHS, at_once_rest, run, scope_of
from tests.service.keys.kit import MemoryKeys, minted

CHECK, ACQUIRE, LEASE = PATHS["check"], PATHS["check_all"], PATHS["acquire"]


class Twin:
    """A service on a memory store, with a clock that is moved by hand."""

    def __init__(self, authenticator: Authenticator | None = None, **settings: Any) -> None:
        self.rest = at_once_rest(authenticator, **settings)
        self.metrics = self.rest.program.metrics
        self.metrics.configure(["user", "tenant"], ["api.search", "both", "chat", "trial"])
        clock: Any = self.rest.program.service.clock
        self.clock: FakeClock = clock
        self.at_once = 0

    async def ask(
        self, path: str, body: Any, *, at_once: bool, key: str | None = None
    ) -> tuple[int, Any, Any]:
        """Status, document and header fields; ids of leases are each their own."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields_sent = [HOST, JSON] if key is None else [HOST, JSON, (b"x-api-key", key.encode())]
        scope = {**scope_of("POST", path, fields_sent), WHOLE_BODY: content}
        whole = self.rest.answer_at_once(scope) if at_once else None
        self.at_once += whole is not None
        if whole is None:
            whole = await self.rest.answer(scope, None)
        assert whole is not None
        status, said, fields = whole
        fields = fields_of(fields) if isinstance(fields, bytes) else fields
        document = json.loads(said)
        if "lease_id" in document:
            assert document.pop("lease_id")
            fields = [field for field in fields if field[0] != b"content-length"]
        return status, list(document.items()), fields

    def buckets(self) -> Any:
        """Levels and consumption, by entity and resource."""
        kept: Any = self.rest.program.service._store
        return {key.partition("#")[2]: record[1:] for key, record in kept._buckets.items()}

    def counted(self) -> str:
        lines = self.metrics.render().decode().splitlines()
        return "\n".join(line for line in lines if "duration" not in line)


scopes = st.sampled_from(["user", "ip", "global", "tenant", "nobody", "us er"])
identifiers = st.sampled_from(["ann", "bob", "a b", "\x07", "user:ann", ""])
resources = st.sampled_from(["api.search", "both", "half", "trial", "once", "chat", "a b", "x"])
tokens = st.sampled_from([1, 2, 3, 5, 0, 1_000_001])
amounts = st.dictionaries(st.sampled_from(["tokens", "hourly", "rpm", "no one"]), st.integers(0, 3))
names = {
    "scope": scopes,
    "identifier": identifiers,
    "entity": st.sampled_from(["user:ann", "key-1", "@"]),
    "tokens": tokens,
    "amounts": amounts,
}
around = {
    "namespace": st.sampled_from(["default", "other", "a b"]),
    "endpoint": st.sampled_from(["/api/ml/predict", "/x", "\x07"]),
    "metadata": st.fixed_dictionaries(
        {}, optional={"ip_address": identifiers, "tenant_id": identifiers, "user_id": identifiers}
    ),
    "dry_run": st.booleans(),
}
plain = st.fixed_dictionaries({"resource": st.just("api.search"), "identifier": st.just("ann")})
checks = plain | st.fixed_dictionaries({"resource": resources}, optional={**names, **around})
descriptors = st.lists(
    st.fixed_dictionaries({"resource": resources, "scope": scopes}, optional={"tokens": tokens})
    | st.fixed_dictionaries({"resource": resources}, optional=names),
    min_size=1,
    max_size=4,
)
own = {name: names[name] for name in ("scope", "identifier", "tokens")}
alls = st.fixed_dictionaries(
    {
        "identifier": identifiers,
        "metadata": st.just({"ip_address": "192.0.2.7"}),
        "descriptors": descriptors,
    }
) | st.fixed_dictionaries({"descriptors": descriptors}, optional={**own, **around})
leases = st.fixed_dictionaries(
    {"resource": resources},
    optional={
        **names,
        "namespace": around["namespace"],
        "ttl_seconds": st.sampled_from([1, 60, 0]),
        "on_expiry": st.sampled_from(["refund", "keep", "?"]),
    },
)
asks = st.one_of(
    st.tuples(st.just(CHECK), checks),
    st.tuples(st.just(ACQUIRE), alls),
    st.tuples(st.just(LEASE), leases),
)


@settings(
    deadline=None,
    max_examples=sized(60, 200, 2000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(st.tuples(asks, st.integers(0, 2000)), min_size=1, max_size=8))
def test_both_ways_say_and_do_the_same(steps: list[tuple[tuple[str, Any], int]]) -> None:
    run(both_ways(steps))


async def both_ways(steps: list[tuple[tuple[str, Any], int]]) -> None:
    """Everything is asked three times: from the second on its targets are known."""
    fast, slow = Twin(leases_max=5), Twin(leases_max=5)
    for (path, body), passed_ms in [step for step in steps for _ in range(3)]:
        said = await fast.ask(path, body, at_once=True)
        assert said == await slow.ask(path, body, at_once=False)
        assert fast.buckets() == slow.buckets()
        assert fast.counted() == slow.counted()
        for twin in (fast, slow):
            twin.clock.advance(passed_ms)


THREE = {
    "identifier": "ann",
    "metadata": {"ip_address": "192.0.2.7"},
    "descriptors": [
        {"scope": "user", "resource": "api.search"},
        {"scope": "ip", "resource": "api.search"},
        {"scope": "tenant", "resource": "api.search", "identifier": "acme"},
    ],
}
ONE = {"identifier": "ann", "resource": "api.search"}
TWINS = {"descriptors": [{"scope": "ip", "identifier": one, "resource": "x"} for one in "ab"]}
ASKED = [
    (CHECK, ONE),
    (CHECK, {**ONE, "tokens": 2}),
    (CHECK, {**ONE, "amounts": {"tokens": 2}}),
    (CHECK, {"entity": "user:ann", "resource": "api.search"}),
    (CHECK, {**ONE, "resource": "both", "amounts": {"tokens": 1, "hourly": 1}}),
    (ACQUIRE, THREE),
    (ACQUIRE, {**THREE, "tokens": 2}),
    (ACQUIRE, TWINS),
    (LEASE, ONE),
    (LEASE, {**ONE, "tokens": 2, "ttl_seconds": 5}),
    (LEASE, {**ONE, "resource": "both", "amounts": {"tokens": 1, "hourly": 0}}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_what_is_known_is_answered_at_once(path: str, body: Any) -> None:
    fast, slow = Twin(), Twin()
    for _ in range(12):  # until it is refused
        said = await fast.ask(path, body, at_once=True)
        assert said == await slow.ask(path, body, at_once=False)
    assert said[0] == 429 or body is TWINS
    assert fast.at_once == 11
    assert fast.buckets() == slow.buckets()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHECK, {**ONE, "dry_run": True}),
        (CHECK, {**ONE, "endpoint": "/api/ml/predict"}),
        (CHECK, {**ONE, "tokens": 1_000_001}),
        (CHECK, {**ONE, "tokens": 1, "amounts": {"tokens": 1}}),
        (CHECK, {**ONE, "scope": "user", "entity": "user:ann"}),
        (ACQUIRE, {**THREE, "descriptors": [THREE["descriptors"][0]] * 2}),
        (ACQUIRE, {**THREE, "scope": "us er"}),
        (ACQUIRE, {**THREE, "dry_run": True}),
    ],
)
async def test_what_is_not_ordinary_takes_the_usual_way(path: str, body: Any) -> None:
    fast, slow = Twin(), Twin()
    for known in (ONE, {**ONE, "scope": "ip", "identifier": "192.0.2.7"}):
        await fast.ask(CHECK, known, at_once=False)
        await slow.ask(CHECK, known, at_once=False)
    for _ in range(3):
        assert await fast.ask(path, body, at_once=True) == await slow.ask(path, body, at_once=False)
    assert fast.at_once == 0
    assert fast.buckets() == slow.buckets()


async def test_a_key_that_is_known_is_answered_at_once() -> None:
    """Not at first, when it is looked up; nor where it may not, or for some entities only: then
    a body that is wrong is told before that, and the usual way does so."""
    whole, ann = minted("check", namespace="*"), minted("check", namespace="*", prefix="user:ann")
    reader, other = minted("read", namespace="*"), minted("check", namespace="other")
    twins = [
        Twin(Authenticator(MemoryKeys((whole.key, ann.key, reader.key, other.key)), FakeClock()))
        for _ in range(2)
    ]
    fast, slow = twins
    for made, status, at_once in (
        (whole, 200, 2), (ann, 200, 0), (reader, 403, 0), (other, 404, 0), (None, 401, 3),
    ):  # fmt: skip
        fast.at_once = 0
        for _ in range(3):
            key = None if made is None else made.text
            said = await fast.ask(CHECK, ONE, at_once=True, key=key)
            assert said == await slow.ask(CHECK, ONE, at_once=False, key=key)
            assert said[0] == status
        if status in (403, 404):
            wrong = {**ONE, "resource": "a b"}
            said = await fast.ask(CHECK, wrong, at_once=True, key=key)
            assert said == await slow.ask(CHECK, wrong, at_once=False, key=key)
            assert said[0] == 400
        assert fast.at_once == at_once
    assert fast.buckets() == slow.buckets()
    assert fast.counted() == slow.counted()


async def test_what_an_operator_changes_applies_to_the_next_request() -> None:
    """A plan that is kept at hand is good only for as long as the cache would give the same."""
    fast, slow = Twin(), Twin()

    async def capacity() -> int:
        said = await fast.ask(CHECK, ONE, at_once=True)
        assert said == await slow.ask(CHECK, ONE, at_once=False)
        told: int = dict(said[1])["tokens_capacity"]
        return told

    async def change(limits: list[Limit] | None) -> None:
        for twin in (fast, slow):
            ns = await twin.rest.program.service.namespace("default")
            if limits is None:
                await ns.delete_limits("user:ann", "api.search")
            else:
                await ns.set_limits("user:ann", limits, "api.search")

    assert [await capacity() for _ in range(2)] == [10, 10]
    await change([Limit.per_minute("tokens", 7)])
    assert [await capacity() for _ in range(3)] == [7, 7, 7]
    await change(None)
    assert [await capacity() for _ in range(2)] == [10, 10]
    for twin in (fast, slow):  # the cache looks again at what it knows
        twin.clock.advance(61_000)
    before = fast.at_once
    assert [await capacity() for _ in range(2)] == [10, 10]
    assert fast.at_once == before + 1


async def test_leases_on_a_session_quota_give_back_in_its_window() -> None:
    """When the window began, only its bucket knows, so a lease notes it when it is made."""
    fast, slow = Twin(), Twin()
    body = {"scope": "user", "identifier": "ann", "resource": "api.search", "tokens": 2}
    for twin in (fast, slow):
        ns = await twin.rest.program.service.namespace("default")
        await ns.set_limits(
            "user:ann", [Limit.quota("tokens", 10, reset_after=18_000)], "api.search"
        )
        for _ in range(3):
            said = await twin.ask(LEASE, {**body, "ttl_seconds": 10}, at_once=twin is fast)
            assert said[0] == 201
        twin.clock.advance(11_000)
        await twin.rest.program.service.leases.sweep()
    assert fast.at_once > 0
    left = [record[4] for twin in (fast, slow) for record in twin.buckets().values()]
    assert left == [10_000, 10_000]
