"""What all flows over the table have in common: how often one tries again (ATTEMPTS_MAX), and what
a transaction comes to (`commit`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.core.errors import Contended, StoreTrouble, Throttled, Unreachable
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.client.calls import (
    DynamoRequest,
    Flow,
    NotApplied,
    Outcome,
    TransactionCancelled,
)
from headgate.stores.dynamodb.table import requests as ask

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
