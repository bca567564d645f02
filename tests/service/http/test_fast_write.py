"""The short way to say a plain yes says exactly what the long way says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate.core.decision import Demand, Verdict, decide
from headgate.core.history import TIME_MS_MAX
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.core.refill.bucket import MILLI
from headgate.layers.layer import ShadowVerdict
from headgate.service.decide.answers import Admission, batch_item, check_body, check_result
from headgate.service.decide.plain import plain_admission
from headgate.service.decide.requests import parse_acquire, parse_descriptors
from headgate.service.decide.rules import Rule, Target
from headgate.service.http.asgi import Rest
from headgate.service.http.messages import (
    WHOLE_BODY,
    acquire_reply,
    batch_content,
    check_headers,
    check_reply,
    combined_reply,
    encode_reply,
    fields_of,
)
from headgate.service.program import Options, Program
from proof.size import sized
from tests.service.decide.kit import RULES, World
from tests.service.http.kit import HOST, JSON, call, scope_of
from tests.walks import has_short_answer, walked, warm_checks

NOW_MS = 1_767_225_600_000
KEY = BucketKey("ns", "user:ann", "api")

limits = st.builds(
    Limit,
    st.just("tokens"),
    st.integers(1, 10**12),
    st.integers(0, 10**9),
    st.integers(1, 10**7),
    st.booleans(),
)


def decided(limit: Limit, taken: list[tuple[int, int]], source: str) -> tuple[Verdict, Demand]:
    """The verdict on the last of several takes, each some time after the one before."""
    terms = Terms((limit.spec,), 1, sources=(source,))
    record, now_ms = None, NOW_MS
    for wait_ms, tokens in taken:
        now_ms += wait_ms
        demand = Demand(KEY, terms, (min(tokens, limit.capacity) * MILLI,))
        verdict, after = decide([demand], [record], now_ms)
        record = after[0] if verdict.allowed or record is not None else None
    return verdict, demand


def plain_of(verdict: Verdict, target: Target) -> Admission | None:
    """The plain yes to the one part of a request, if it is one."""
    if not verdict.allowed or len(verdict.demands) != 1:
        return None
    return plain_admission(verdict.records[0], verdict.demands[0], verdict.now_ms, target)


@settings(max_examples=sized(50, 100, 1000), suppress_health_check=[HealthCheck.too_slow])
@given(
    limits,
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**12)), min_size=1, max_size=4),
    st.sampled_from(["limiter", "system"]),
    st.text(min_size=1, max_size=20),
)
@example(Limit("tokens", 25_164, 1, 9_999_805), [(0, 25_164)], "limiter", "slow")
def test_both_ways_say_the_same(
    limit: Limit, taken: list[tuple[int, int]], source: str, name: str
) -> None:
    verdict, demand = decided(limit, taken, source)
    rule = Rule(name, [limit])
    place = Target("user", "ann", "api", rule)
    yes = plain_of(verdict, place)
    answer = check_result(verdict, [demand], rule, ("user", "api", 1))
    if yes is None:
        shown = answer.limits[0]
        closer = shown.limit.soft or shown.wait_ms is None  # or full at a time that has no date
        assert not answer.allowed or closer or (shown.reset_at_ms or 0) > TIME_MS_MAX
        return
    status, (content, lines), _ = check_reply(yes)
    assert status == 200
    assert isinstance(lines, bytes)
    assert json.loads(content) == check_body(answer)
    assert list(json.loads(content)) == list(check_body(answer))
    written = {name.decode(): value.decode() for name, value in fields_of(lines)}
    assert written.pop("content-type") == "application/json"
    assert written.pop("content-length") == str(len(content))
    assert list(written.items()) == check_headers(answer)
    assert json.loads(batch_content([yes])) == {"results": [batch_item(answer)]}


def test_a_usual_yes_takes_the_short_way_and_nothing_else_does() -> None:
    limit = Limit.per_minute("tokens", 10)
    place = Target("user", "ann", "api", Rule("search", [limit]))
    verdict, demand = decided(limit, [(0, 1)], "limiter")
    stored, _ = decided(Limit.per_minute("tokens", 20), [(0, 1)], "system")
    told = [plain_of(one, place) for one in (verdict, stored, verdict)]
    assert [(yes.limit.name, yes.remaining, yes.limit.capacity) for yes in told if yes] == [
        ("search", 9, 10), ("tokens", 19, 20), ("search", 9, 10),  # by the terms it is kept under
    ]  # fmt: skip
    refused, _ = decided(limit, [(0, 10), (0, 1)], "limiter")
    terms = Terms((limit.spec, Limit.per_hour("hourly", 10).spec), 1)
    both, _ = decide([Demand(KEY, terms, (1000, 1000))], [None], NOW_MS)
    whole = Verdict(True, [demand, demand], [verdict.records[0]] * 2, NOW_MS)
    for other in (refused, ShadowVerdict(refused), both, whole):
        assert plain_of(other, place) is None


ONE = {"identifier": "ann", "resource": "api.search"}
PLACES = [
    {"scope": "user", "resource": "api.search"},
    {"scope": "ip", "resource": "api.search", "identifier": "192.0.2.7"},
    {"scope": "tenant", "resource": "x", "identifier": "acme"},
    {"scope": "global", "resource": "x"},
    {"scope": "ip", "resource": "x", "identifier": "192.0.2.7"},  # its name has a twin
    {"entity": "user:bob", "resource": "x"},
]


@settings(deadline=None, max_examples=sized(40, 100, 1000))
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(PLACES), min_size=1, max_size=6, unique_by=str),
            st.integers(1, 2),
            st.integers(0, 1500),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_several_yeses_are_told_as_the_long_way_tells_them(
    steps: list[tuple[list[dict[str, Any]], int, int]],
) -> None:
    short, long = World(), World()

    async def ask(places: list[dict[str, Any]], tokens: int) -> None:
        body = {"identifier": "ann", "descriptors": places, "tokens": tokens}
        said = combined_reply(await short.service.decide_all(parse_descriptors(body)))
        wanted = combined_reply(await long.service.check_all(parse_descriptors(body)))
        assert told(said) == told(wanted)
        assert (short.yeses != []) == isinstance(said[1], tuple)
        short.yeses.clear()

    for places, tokens, passed_ms in steps:
        asyncio.run(ask(places, tokens))
        for world in (short, long):
            world.clock.advance(passed_ms)


@pytest.mark.parametrize("more", [{}, {"tokens": 3}, {"amounts": {"tokens": 2}}])
async def test_a_lease_is_told_as_the_long_way_tells_it(more: dict[str, Any]) -> None:
    short, long = World(), World()
    body = parse_acquire({**ONE, **more, "ttl_seconds": 7})
    for _ in range(3):
        said = acquire_reply(await short.service.decide_acquire(body))
        wanted = acquire_reply(await long.service.acquire(body))
        assert told(said) == told(wanted)
        assert said[0] == 201
        assert isinstance(said[1], tuple)


def told(reply: Any) -> tuple[int, Any, Any]:
    """What a client understands; the id of a lease is its own."""
    status, body, headers = reply
    if isinstance(body, dict):
        content, fields = encode_reply(status, body, headers)
    else:
        content, lines = body
        fields = fields_of(lines)
    document = json.loads(content)
    if document.pop("lease_id", None) is not None:
        fields = [field for field in fields if field[0] != b"content-length"]
    return status, list(document.items()), fields


@pytest.mark.parametrize(
    ("path", "body", "calls", "modules"),
    [
        ("/v1/ratelimit/check", ONE, 27, 12),
        ("/v1/ratelimit/acquire", {"descriptors": PLACES[1:4]}, 33, 13),
        ("/v1/leases", ONE, 41, 15),
    ],
)
async def test_a_warm_request_is_a_short_walk(
    path: str, body: dict[str, Any], calls: int, modules: int
) -> None:
    program = Program.build(Options(store="memory://"))
    program.service.rules = RULES
    program.metrics.configure(["tenant"], ["api.search", "x"])
    await program.start()
    rest = Rest(program)
    scope = scope_of("POST", path, [HOST, JSON])
    scope[WHOLE_BODY] = json.dumps(body).encode()
    for _ in range(2):
        await rest.answer(scope, None)
    walks = []
    for _ in range(5):  # one may meet a new second, and write its date anew
        with walked() as walk:
            assert rest.answer_at_once(scope) is not None
        walks.append(walk)
    await program.close()
    walk = min(walks, key=lambda walk: walk.calls)
    assert walk.is_within(calls, modules), walk


async def test_a_warm_take_is_as_short_a_walk_with_amounts_of_an_entity() -> None:
    """The same lane and the same templates for each name and each way to ask."""
    program = Program.build(Options(store="memory://"))
    await program.start()
    ns = await program.service.namespace("default")
    await ns.set_limits("key-1", [Limit.per_hour("rph", 1000)])
    rest = Rest(program)
    user = {"scope": "user", "identifier": "7", "resource": "api"}
    named = {"entity": "key-1", "resource": "api"}
    shortest = []
    for path, body in (("check", user), ("take", user), ("take", {**user, "tokens": 2}),
                       ("take", {**user, "amounts": {"tokens": 2}}), ("take", named),
                       ("take", {**named, "amounts": {"rph": 2}})):  # fmt: skip
        walks = []
        for _ in range(8):
            with walked() as walk:
                await call(rest, "POST", f"/v1/ratelimit/{path}", body)
            walks.append(walk)
        shortest.append(min(walks, key=lambda walk: walk.calls))
    await program.close()
    assert all(map(has_short_answer, shortest)), shortest
    assert shortest[0].steps == shortest[1].steps
    assert all(walk.calls <= shortest[0].calls + 8 for walk in shortest), shortest


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/short.db"])
def test_a_warm_check_has_a_short_answer(store: str, tmp_path: Path) -> None:
    walks = asyncio.run(warm_checks(store.format(tmp_path)))
    assert all(map(has_short_answer, walks)), walks
