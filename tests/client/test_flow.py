"""The flow of a call over a scripted port and a clock that moves by waiting."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate.client import (
    CheckAnswer,
    Client,
    InvalidRequest,
    RateLimited,
    Retry,
    Unauthorised,
    Unavailable,
)
from headgate.client.client import AsyncLease
from headgate.client.flow import BODY_BYTES_MAX, RequestFlow
from headgate.client.requests import (
    ApiCall,
    Check,
    RequestHead,
    acquire_call,
    charge_call,
    check_all_call,
    check_call,
)
from headgate.client.retry import NoReply
from headgate.core.errors import HeadgateError, ValidationError
from headgate.core.runtime import run
from headgate.testing import FakeClock
from headgate.transport.http1 import Response, ResponseReader
from tests.client.kit import ALLOWED, KEY, problem, refused, response

REFUSED, LOST = NoReply("connection refused", sent=False), NoReply("reset", sent=True)
CHECK = check_call(Check("alice", "api.search", 1), None)
DRY = check_call(Check("alice", "api.search", 1, dry_run=True), None)
LEASE = {"lease_id": "l1", "state": "open", "expires_at": None, "held": {"tokens": 5}}
OPEN = response(201, {**ALLOWED, **LEASE})

Step = bytes | NoReply | Callable[[], bytes | NoReply]


class ScriptedPort:
    """Gives its steps in order, and notes when and how it was asked."""

    def __init__(self, clock: FakeClock, *steps: Step, took_ms: int = 0) -> None:
        self.clock = clock
        self.steps = list(steps)
        self.took_ms = took_ms
        self.asked: list[tuple[int, int]] = []
        self.payloads: list[bytes] = []

    async def attempt(self, payload: bytes, timeout_ms: int, linger: bool) -> Response | NoReply:
        self.asked.append((self.clock.now_ms, timeout_ms))
        self.payloads.append(payload)
        self.clock.advance(self.took_ms)
        step = self.steps.pop(0)
        found = step() if callable(step) else step
        if isinstance(found, NoReply):
            return found
        read = ResponseReader(BODY_BYTES_MAX, until_close=True).feed(found)
        assert read is not None
        return read

    async def finish(self, flow: Coroutine[Any, Any, Any]) -> Any:
        return await flow

    async def close(self) -> None: ...

    @property
    def paths(self) -> list[str]:
        return [payload.split(b" ")[1].decode() for payload in self.payloads]

    @property
    def last(self) -> Any:
        """The document sent last."""
        return json.loads(self.payloads[-1].partition(b"\r\n\r\n")[2])


def flow_of(*steps: Step, took_ms: int = 0, attempts: int = 4) -> tuple[RequestFlow, ScriptedPort]:
    clock = FakeClock()
    port = ScriptedPort(clock, *steps, took_ms=took_ms)
    flow = RequestFlow(
        port,  # type: ignore[arg-type]
        RequestHead("", (("authorization", f"Bearer {KEY}"),)),
        5_000,
        2_000,
        Retry(attempts=attempts, base_ms=100, cap_ms=1_000),
        clock,
        clock.pace(blocking=True),
        lambda: 0.0,
    )
    return flow, port


def starts(port: ScriptedPort) -> list[int]:
    return [at_ms - port.asked[0][0] for at_ms, _ in port.asked]


GOOD = response(200, ALLOWED)


@pytest.mark.parametrize(
    ("call", "wait_ms", "steps", "starts_ms", "found"),
    [
        (CHECK, 0, [REFUSED, problem(503, "STORAGE_UNAVAILABLE"), GOOD], [0, 50, 150], True),
        (CHECK, 0, [LOST], [0], "not known, so it was not sent again"),
        (DRY, 0, [LOST, LOST, GOOD], [0, 50, 150], True),
        (CHECK, 0, [REFUSED] * 9, [0, 50, 150, 350], "nothing was taken"),
        (CHECK, 0, [refused(700)], [0], False),
        (CHECK, 1_000, [refused(700), refused(20), GOOD], [0, 700, 720], True),
        # no longer than it can help
        (CHECK, 1_000, [refused(1_001)], [0], False),
        (CHECK, 1_000, [refused(600), refused(600)], [0, 600], False),
        (CHECK, 1_000, [refused(None)], [0], False),
    ],
)
def test_when_a_call_is_sent_again(
    call: ApiCall, wait_ms: int, steps: list[Step], starts_ms: list[int], found: bool | str
) -> None:
    flow, port = flow_of(*steps)
    if isinstance(found, bool):
        assert run(flow.check(call, wait_ms)).allowed is found
    else:
        with pytest.raises(Unavailable, match=found) as told:
            run(flow.check(call, wait_ms))
        assert told.value.maybe_applied is (steps[0] is LOST)
    assert starts(port) == starts_ms
    assert port.clock.now_ms == port.asked[-1][0], "no pause after the last attempt"


def test_a_deadline_bounds_a_call() -> None:
    flow, port = flow_of(*[REFUSED] * 99, took_ms=1_500, attempts=100)
    with pytest.raises(Unavailable):
        run(flow.check(CHECK, 0))
    assert len(port.asked) == 4
    assert all(timeout_ms <= 2_000 for _, timeout_ms in port.asked)
    last_ms, last_timeout_ms = port.asked[-1]
    assert last_ms + last_timeout_ms <= port.asked[0][0] + 5_000


def test_the_last_attempt_of_a_wait_has_its_time() -> None:
    flow, port = flow_of(refused(60_000), response(200, ALLOWED))
    run(flow.check(CHECK, 60_000))
    assert port.asked[1] == (port.asked[0][0] + 60_000, 2_000)


def test_a_proxys_refusal() -> None:
    bare = response(429, fields="retry-after: 3\r\nx-ratelimit-limit: 7\r\n")
    flow, _ = flow_of(bare)
    with pytest.raises(RateLimited) as told:
        run(flow.check(CHECK, 0))
    assert (told.value.retry_after_ms, told.value.answer.allowed) == (3_000, False)
    assert told.value.answer.tokens_capacity == 7
    flow, _ = flow_of(bare)
    call = check_all_call(
        [("user", "r")], None, identifier="a", scope=None, tokens=None, dry_run=False
    )
    assert run(flow.check_all(call, 0)).retry_after_ms == 3_000


def raw(body: bytes) -> bytes:
    return b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


NOT_OURS = [
    *(response(200, {"allowed": told}) for told in (1, None, "yes")),
    *(raw(body) for body in (b'{"a":', b"\xff\xfe", b"[" * 100_000, b'{"allowed":' + b"9" * 5_000)),
    *(response(200), response(200, [1])),
]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (problem(400, "INVALID_REQUEST", field="tokens"), InvalidRequest, "tokens: .*because"),
        (problem(401, "UNAUTHENTICATED"), Unauthorised, "api_key="),
        (problem(403, "FORBIDDEN"), Unauthorised, "scope and namespace"),
        (problem(403, "ENTITY_DISABLED"), InvalidRequest, "ENTITY_DISABLED: because"),
        (problem(404, "NOT_FOUND"), InvalidRequest, "NOT_FOUND"),
        (response(404), InvalidRequest, "404; .*check the URL"),
        (problem(413, "PAYLOAD_TOO_LARGE"), InvalidRequest, "PAYLOAD_TOO_LARGE"),
        (problem(422, "DEMAND_TOO_LARGE"), InvalidRequest, "DEMAND_TOO_LARGE"),
        (problem(500, "INTERNAL"), Unavailable, "INTERNAL.*not known"),
        (problem(504, "DEADLINE_EXCEEDED"), Unavailable, "not known"),
        (response(502), Unavailable, "answered 502"),
        (response(307, fields="location: /x\r\n"), Unavailable, "answered 307"),
        (problem(500, "STORAGE_DENIED"), InvalidRequest, "STORAGE_DENIED"),  # no outage
        *((answer, Unavailable, "not headgate's") for answer in NOT_OURS),
    ],
    ids=lambda value: repr(value)[:60],
)  # fmt: skip
def test_what_errors_say(answer: bytes, error: type[HeadgateError], words: str) -> None:
    flow, port = flow_of(answer)
    with pytest.raises(error, match=words) as told:
        run(flow.check(CHECK, 0))
    assert len(port.asked) == 1
    assert KEY not in str(told.value) + repr(told.value)


def test_what_a_server_writes_is_made_printable() -> None:
    flow, _ = flow_of(problem(400, "X", detail="one\ntwo \x1b[31m" + "a" * 10_000))
    with pytest.raises(InvalidRequest) as told:
        run(flow.check(CHECK, 0))
    assert str(told.value).isprintable()
    assert "one; two ?[31ma" in str(told.value)
    assert len(str(told.value)) < 2300


def lease_of(*steps: Step, keep: bool = False) -> tuple[AsyncLease, ScriptedPort]:
    flow, port = flow_of(OPEN, *steps)
    call = acquire_call(Check("a", "r", 5), None, "refund", None)
    return AsyncLease(flow, None, *run(flow.acquire(call, 0)), keep), port


def test_whoever_keeps_only_the_lease_keeps_it() -> None:
    """The context that gave it may go. It can be entered once: a second lease would be nobody's."""
    client = Client("http://localhost:1")
    client._flow, port = flow_of(OPEN)
    lease = client.acquire("a", "r", 5).__enter__()
    gc.collect()
    assert (len(port.paths), lease.answer.state) == (1, "open")
    client._flow, port = flow_of(OPEN, over("settled"))
    call = client.acquire("a", "r", 5)
    with call:
        pass
    with pytest.raises(ValidationError, match="was entered before"), call:
        pass
    assert len(port.paths) == 2


def over(state: str) -> bytes:
    return response(200, {**LEASE, "state": state})


@pytest.mark.parametrize(
    ("failed", "keep", "verb"),
    [(False, False, "settle"), (False, True, "settle"), (True, False, "release"),
     (True, True, "settle")],
)  # fmt: skip
def test_how_a_lease_ends(failed: bool, keep: bool, verb: str) -> None:
    core, port = lease_of(over("settled"), keep=keep)
    run(core._leave(failed))
    assert port.paths[1:] == [f"/v1/leases/l1/{verb}"]
    assert port.last == {}


def test_a_lost_end_is_said_again_and_a_lost_change_is_not() -> None:
    for verb, given in (("settle", (3,)), ("release", ())):
        core, port = lease_of(LOST, over(f"{verb}d"))
        run(getattr(core, verb)(*given))
        assert port.paths[1:] == [f"/v1/leases/l1/{verb}"] * 2
    for change in ("adjust", "release"):
        core, port = lease_of(LOST)
        with pytest.raises(Unavailable) as told:
            run(getattr(core, change)(3))
        assert told.value.maybe_applied
        assert len(port.paths) == 2


def test_a_settlement_that_failed_is_not_turned_into_a_refund() -> None:
    core, port = lease_of(*[LOST] * 4, over("settled"))
    with pytest.raises(Unavailable):
        run(core.settle(tpm=7))
    run(core._leave(True))  # as it is when the error leaves the block
    assert port.paths[-1] == "/v1/leases/l1/settle"
    assert port.last == {"amounts": {"tpm": 7}}
    assert core._is_ended


def test_tokens_beside_names_is_a_name() -> None:
    core, port = lease_of(over("open"))
    run(core.adjust(2, rpm=1))
    assert port.last == {"amounts": {"tokens": 2, "rpm": 1}}


def test_an_end_that_fails_is_kept_and_told(caplog: pytest.LogCaptureFixture) -> None:
    core, _ = lease_of(*[LOST] * 4)
    run(core._leave(False))
    assert isinstance(core.trouble, Unavailable)
    assert "left to expire" in caplog.text
    assert KEY not in caplog.text


def test_health_is_asked_once() -> None:
    flow, port = flow_of(problem(503, "STORAGE_UNAVAILABLE"))
    health = run(flow.health())
    assert (health.status, health.ready) == ("UNHEALTHY", False)
    assert port.paths == ["/readyz"]
    for answer in (response(503), response(200, {}), REFUSED):
        flow, port = flow_of(answer)
        with pytest.raises(Unavailable):
            run(flow.health())
        assert len(port.asked) == 1


def test_a_batch_must_be_answered_item_by_item() -> None:
    for document in ({"results": [ALLOWED]}, {"results": 1}, {"results": [1, 2]}, {}):
        flow, _ = flow_of(response(200, document))
        with pytest.raises(Unavailable, match="not headgate's"):
            run(flow.batch([("a", "r"), ("b", "r")], None))


def test_a_batch_item_of_a_store_that_is_away() -> None:
    down = {"status": 503, "allowed": False, "error": {"code": "STORAGE_UNAVAILABLE"}}
    flow, _ = flow_of(response(200, {"results": [{"status": 200, **ALLOWED}, down]}))
    first, second = run(flow.batch([("a", "r"), ("b", "r")], None))
    assert isinstance(first, CheckAnswer)
    assert isinstance(second, Unavailable)
    assert (second.code, second.maybe_applied) == ("STORAGE_UNAVAILABLE", False)


def test_degraded_answers_are_labelled() -> None:
    told: dict[str, Any] = {**ALLOWED, "degraded": True, "degraded_reason": "breaker_open"}
    flow, _ = flow_of(response(200, told))
    answer = run(flow.check(CHECK, 0))
    assert (answer.degraded, answer.degraded_reason) == (True, "breaker_open")


@pytest.mark.parametrize("told", [True, None, 1, "false"])
def test_what_is_refused_is_never_allowed_whatever_its_body_says(told: object) -> None:
    lie = {**ALLOWED, **LEASE, "allowed": told, "results": [{**ALLOWED, "allowed": told}]}
    lease = acquire_call(Check("a", "r", 5), None, "refund", None)
    for ask in (
        lambda flow: flow.check(CHECK, 0),
        lambda flow: flow.check_all(CHECK, 0),
        lambda flow: flow.acquire(lease, 0),
    ):
        flow, _ = flow_of(response(429, lie))
        with pytest.raises(Unavailable, match="not headgate's"):
            run(ask(flow))
    flow, _ = flow_of(response(200, {"results": [{**ALLOWED, "allowed": told, "status": 429}]}))
    with pytest.raises(Unavailable, match="not headgate's"):
        run(flow.batch([("a", "r")], None))


def test_only_a_charge_with_a_key_is_sent_again() -> None:
    """One that came twice would be taken twice."""
    told = {**ALLOWED, "charged": True, "mode": "debt", "retry_after_seconds": 0}
    for key, attempts in ((None, 1), ("stream-1", 2)):
        flow, port = flow_of(response(504, {"code": "DEADLINE_EXCEEDED"}), response(200, told))
        call = charge_call(None, Check("a", "r", 5), None, key, None)
        if key is None:
            with pytest.raises(Unavailable, match="whether it was carried out is not known"):
                run(flow.charge(call))
        else:
            assert run(flow.charge(call)).charged
        assert len(port.asked) == attempts


def test_an_answer_that_does_not_say_charged_is_nobodys() -> None:
    flow, _ = flow_of(response(200, ALLOWED))
    with pytest.raises(Unavailable, match="does not say charged"):
        run(flow.charge(charge_call(None, Check("a", "r", 5), None, None, None)))
