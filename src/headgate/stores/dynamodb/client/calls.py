"""All calls to DynamoDB: one call, one request, written once for async and blocking.

botocore finds credentials, region and endpoint. The call itself is ours, since botocore spends ten
times as much on it: JSON, a prepared signature, HTTP/1.1 over connections that are kept
(`transport`), and the verdict on the answer. What may have been applied is sent once. A call that
certainly was not, because no connection was had or because the service did not accept the
signature, is sent once more within its deadline, unless it is a credit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from headgate.core.errors import HeadgateError, StoreTrouble
from headgate.stores.dynamodb.client import errors as trouble
from headgate.stores.dynamodb.client.account import (
    CredentialProvider,
    DynamoEndpoint,
    ServiceClock,
    Signer,
    find_endpoint,
)
from headgate.stores.dynamodb.client.errors import (
    AccessRefused,
    ConditionFailed,
    NotApplied,
    Rejected,
    TableMissing,
    TransactionCancelled,
)
from headgate.transport.gates import PerOwner
from headgate.transport.http_pool import Answer, HttpPool, NoResponse, PoolOptions
from headgate.transport.pool_async import AsyncHttpPool
from headgate.transport.pool_blocking import BlockingHttpPool

__all__ = [
    "AccessRefused",
    "ConditionFailed",
    "DynamoPort",
    "DynamoRequest",
    "EncodedRequest",
    "Flow",
    "NotApplied",
    "Outcome",
    "Rejected",
    "TableMissing",
    "TransactionCancelled",
    "open_port",
    "outcome_of",
    "run_flow",
    "run_flows",
]

# --------------------------------------------------------------------------------------------------
# What is asked of DynamoDB and by whom: requests are values, a port carries them.


@dataclass(slots=True)
class DynamoRequest:
    """One call: its body is `params` exactly as DynamoDB takes it, attribute values typed."""

    operation: str  # "UpdateItem", "BatchGetItem", "Query", …
    params: dict[str, Any]
    credit: bool = False  # never sent twice, also if nobody knows whether it arrived

    @property
    def body(self) -> bytes:
        return dumps(self.params)


class EncodedRequest(DynamoRequest):
    """A request whose body was written already; its params are read from it if somebody asks."""

    __slots__ = ("body",)

    body: bytes

    def __init__(self, operation: str, body: bytes) -> None:
        self.operation = operation
        self.credit = False
        self.body = body

    @property
    def params(self) -> dict[str, Any]:  # type: ignore[override]
        found: dict[str, Any] = json.loads(self.body)
        return found


class DynamoPort(Protocol):
    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        """The reply's body; trouble is raised as StoreTrouble.

        A request that may have been applied is not sent again. Once it was sent a cancelled
        caller still gets the outcome, and is cancelled at its next await.
        """
        ...

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        """What each comes to, in the order asked, trouble as a value; all under way at once.

        It is never left half done: a cancellation is delivered after the last outcome.
        """
        ...

    def now_ms(self) -> int:
        """The service's time as its replies tell it; the host's until there was a reply.

        It never steps back. A host that is ahead and asked before its first reply gets the same
        answer until the service has caught up, so ask after the first reply where that matters.
        """
        ...

    async def close(self) -> None:
        """No call is served any more; closing again does nothing."""
        ...


Outcome = dict[str, Any] | StoreTrouble

# --------------------------------------------------------------------------------------------------
# A flow: a generator that yields requests and is sent what each came to.
#
# The protocol never waits by itself, so that a port, a simulator or a model checker can carry it.

Result = TypeVar("Result")
Flow = Generator[DynamoRequest, Outcome, Result]


async def run_flow(port: DynamoPort, flow: Flow[Result]) -> Result:
    """What the flow returns."""
    outcome: Outcome | None = None
    while True:
        try:
            request = flow.send(outcome) if outcome is not None else next(flow)
        except StopIteration as done:
            result: Result = done.value
            return result
        try:
            outcome = await port.call(request)
        except StoreTrouble as trouble:
            outcome = trouble


async def run_flows(
    port: DynamoPort, flows: Sequence[Flow[Any]], results: dict[int, Any], *enough: type
) -> None:
    """Several flows in step; `results` gets what each returned or raised, by its place.

    Runs all to their end, or until one came to something of the types that are `enough`. The others
    are then given up between two requests, after their last one was answered. Who is interrupted
    finds in `results` how far they got.
    """
    outcomes: dict[int, Outcome | None] = dict.fromkeys(range(len(flows)))
    while outcomes:
        requests: dict[int, DynamoRequest] = {}
        for place, outcome in outcomes.items():
            flow = flows[place]
            try:
                requests[place] = flow.send(outcome) if outcome is not None else next(flow)
            except StopIteration as done:
                results[place] = done.value
            except StoreTrouble as trouble:
                results[place] = trouble
        if enough and any(isinstance(one, enough) for one in results.values()):
            for place in requests:
                flows[place].close()
            return
        answers = await port.call_all([*requests.values()]) if requests else []
        outcomes = dict(zip(requests, answers, strict=True))


def outcome_of(flow: Flow[Result]) -> Flow[Result | HeadgateError]:
    """The flow, with whatever it raises as what it comes to: the flows beside it go on."""
    try:
        return (yield from flow)
    except HeadgateError as error:
        return error


# --------------------------------------------------------------------------------------------------
# The port over real connections.

try:
    import orjson  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # the standard library does the same, slower
    orjson = None  # type: ignore[assignment,unused-ignore]

PAUSE_S = 0.02
IDLE_S_MAX = 20.0  # the service hangs up on idle connections; one that old is not used again
BODY_BYTES_MAX = 64 * 1024 * 1024  # the service's own bound is 16 MB
_DATE = re.compile(rb"\ndate:([^\r]*)", re.IGNORECASE)


def python_dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


dumps: Callable[[Any], bytes] = python_dumps if orjson is None else orjson.dumps
loads: Callable[[bytes], Any] = json.loads if orjson is None else orjson.loads


class DynamoSession(NamedTuple):
    """What an event loop, or a process, has of its own: connections, and credentials for them."""

    pool: HttpPool
    account: CredentialProvider


class DynamoClient:
    """The port over real connections; made in one event loop or process, it works in others."""

    def __init__(
        self, endpoint: DynamoEndpoint, blocking: bool, timeout_ms: int, connections: int
    ) -> None:
        self._endpoint = endpoint
        self._timeout_ms = timeout_ms
        self._timeout_s = timeout_ms / 1000
        self._clock = ServiceClock()
        self.now_ms = self._clock.now_ms
        self._options = PoolOptions(endpoint, connections, IDLE_S_MAX, BODY_BYTES_MAX)
        self._pool_type = BlockingHttpPool if blocking else AsyncHttpPool
        self._sessions = PerOwner(
            self._open_session,
            trouble.store_closed,
            None if blocking else lambda session: session.pool.abandon(),
        )

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        session = pool, account = self._sessions.here()
        now_s = pool.now_s()
        due_s = now_s + self._timeout_s
        signer = account.signer(now_s) or await self._load_signer(session, due_s)
        answer = await pool.ask(signer.signed_request(request.operation, request.body), due_s)
        outcome = self._judge(request, answer)
        if type(outcome) is dict:
            return outcome
        if isinstance(outcome, trouble.UNSENT):
            again = await self._second_round(session, (request,), [outcome], signer, due_s)
            outcome = again[0]
        if isinstance(outcome, StoreTrouble):
            raise outcome
        return outcome

    async def call_all(self, requests: Sequence[DynamoRequest]) -> list[Outcome]:
        session = pool, account = self._sessions.here()
        now_s = pool.now_s()
        due_s = now_s + self._timeout_s
        try:
            signer = account.signer(now_s) or await self._load_signer(session, due_s)
        except StoreTrouble as error:
            return [error for _ in requests]
        outcomes = await self._round(pool, requests, signer, due_s)
        for outcome in outcomes:
            if isinstance(outcome, trouble.UNSENT):
                return await pool.finish(
                    self._second_round(session, requests, outcomes, signer, due_s)
                )
        return outcomes

    async def close(self) -> None:
        session = self._sessions.close()
        if session is not None:
            await session.pool.close()

    def _open_session(self) -> DynamoSession:
        return DynamoSession(
            self._pool_type(self._options), CredentialProvider(self._endpoint, self._clock)
        )

    async def _round(
        self, pool: HttpPool, requests: Sequence[DynamoRequest], signer: Signer, due_s: float
    ) -> list[Outcome]:
        packed = [signer.signed_request(request.operation, request.body) for request in requests]
        if len(packed) == 1:
            answers = [await pool.ask(packed[0], due_s)]
        else:
            answers = await pool.ask_all(packed, due_s)
        return [self._judge(*pair) for pair in zip(requests, answers, strict=True)]

    async def _second_round(
        self,
        session: DynamoSession,
        requests: Sequence[DynamoRequest],
        outcomes: list[Outcome],
        signer: Signer,
        due_s: float,
    ) -> list[Outcome]:
        """The outcomes, after what certainly was not applied had its second attempt."""
        pool = session.pool
        if pool.now_s() + PAUSE_S >= due_s:
            return outcomes
        fresh, mended = await self._renew_signer(session, outcomes, signer, due_s)
        again = [
            place
            for place, outcome in enumerate(outcomes)
            if isinstance(outcome, trouble.UNSENT)
            and (mended or not isinstance(outcome, trouble.UNSIGNED))
            and not requests[place].credit
        ]
        if again and pool.now_s() < due_s:
            answers = await self._round(pool, [requests[place] for place in again], fresh, due_s)
            for place, answer in zip(again, answers, strict=True):
                outcomes[place] = answer
        return outcomes

    async def _renew_signer(
        self, session: DynamoSession, outcomes: Sequence[Outcome], signer: Signer, due_s: float
    ) -> tuple[Signer, bool]:
        """Who signs now, and whether what was refused for its signature has hope with that."""
        refused = [outcome for outcome in outcomes if isinstance(outcome, trouble.UNSIGNED)]
        if not refused:
            await session.pool.pause(PAUSE_S)
            return signer, False
        if not any(outcome.renewable for outcome in refused):
            return signer, any(outcome.skewed for outcome in refused)
        session.account.refuse(signer, session.pool.now_s())
        try:
            fresh = await self._load_signer(session, due_s)
        except trouble.NotApplied:
            return signer, False
        return fresh, fresh.identity != signer.identity

    def _judge(self, request: DynamoRequest, answer: Answer) -> Outcome:
        if isinstance(answer, NoResponse):
            return trouble.error_without_reply(
                answer, self._endpoint, self._timeout_ms, self._options.connections
            )
        date = _DATE.search(answer.head)
        if date is not None:
            self._clock.observe(date[1], answer.sent_ns, answer.received_ns)
        if answer.status == 200:
            try:
                body = loads(answer.body)
            except ValueError:
                body = None
            if isinstance(body, dict):
                return body
            return trouble.unreadable_reply(self._endpoint, answer)
        table = request.params.get("TableName", "several tables")
        return trouble.error_of_reply(answer, self._endpoint, request.operation, table)

    async def _load_signer(self, session: DynamoSession, due_s: float) -> Signer:
        try:
            return await session.pool.run_in_thread(session.account.load, due_s)
        except TimeoutError as error:
            raise trouble.slow_credentials(self._timeout_ms) from error


def open_port(
    *,
    region: str | None,
    endpoint: str | None,
    blocking: bool,
    timeout_ms: int = 2000,
    connections: int = 16,
) -> DynamoPort:
    """The port to a region or an endpoint; nothing is contacted before the first call."""
    return DynamoClient(find_endpoint(region, endpoint), blocking, timeout_ms, connections)
