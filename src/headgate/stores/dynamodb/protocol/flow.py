"""A flow: a generator that yields requests and is sent what each came to.

The protocol never waits by itself, so that a port, a simulator or a model checker can carry it:
`run_flow` runs one flow, `run_flows` several in step, a round trip per round. How often a flow
tries again (ATTEMPTS_MAX) and what a transaction comes to (`commit`) is said here for all of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from headgate.core.errors import Contended, HeadgateError, StoreTrouble, Throttled, Unreachable
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.client.calls import (
    DynamoPort,
    DynamoRequest,
    NotApplied,
    Outcome,
    TransactionCancelled,
)
from headgate.stores.dynamodb.table import requests as ask

Result = TypeVar("Result")
Flow = Generator[DynamoRequest, Outcome, Result]

# Two are enough where others only take: after a failure the true state is known, and takes only
# move it further to the same side of the brim. Refunds push it back, so a limit without a band
# (`writes.band_milli`) that many clients hold at its brim may flip between attempts.
# Simulated, 64 clients that take and refund needed 1.9 attempts on average and at most 7 in 12 000
# takes.
ATTEMPTS_MAX = 12
SENDS_MAX = 2  # of a transaction whose answers are lost


def too_contended(key: BucketKey) -> Throttled:
    """What ends the last attempt at one change of a bucket. Each failed because somebody else wrote
    first, and learned from that."""
    return Throttled(
        f"{key.entity_id} on {key.resource} is written by so many at once that each of "
        f"{ATTEMPTS_MAX} attempts met another write; nothing was changed: try again in a moment"
    )


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


Reasons = list[tuple[str, Any]]  # per write of a transaction: a code, and the item in its way

MET = {"None", "ConditionalCheckFailed", "TransactionConflict"}  # codes of having met other writes


def commit(table: str, writes: Sequence[ask.Write]) -> Flow[Reasons | None]:
    """All of the writes in one transaction: None once they are done, else what was in the way."""
    outcome = yield ask.transaction(table, writes)
    return reasons_of(outcome)


def send(request: DynamoRequest, *, is_guarded: bool = False) -> Flow[Outcome]:
    """What a transaction came to that somebody must hear of: it is sent again while its answers are
    lost, and its token makes the service do it once.

    After a lost answer only "done" is an answer: a sending that was cancelled says nothing of an
    earlier one, which may still arrive and be applied beside whatever is planned next. Unless it
    `is_guarded`: then its own conditions keep it from being applied beside the next.
    """
    lost: Unreachable | None = None
    for _ in range(SENDS_MAX):
        outcome = yield request
        if not isinstance(outcome, Unreachable) or isinstance(outcome, NotApplied):
            break
        lost = outcome
    if lost is None or is_guarded or type(outcome) is dict:
        return outcome
    return lost


def reasons_of(outcome: Outcome) -> Reasons | None:
    """What was in the way of a transaction, None if it was done. Being held back by the service,
    and whatever is not another write, is raised."""
    if isinstance(outcome, TransactionCancelled):
        if outcome.throttled:
            raise Throttled(str(outcome))
        if not outcome.reasons or not {code for code, _ in outcome.reasons} <= MET:
            raise outcome
        return outcome.reasons
    if isinstance(outcome, Contended):
        return []
    if isinstance(outcome, StoreTrouble):
        raise outcome
    return None
