"""Plain yeses: the answers that say no more than that tokens were taken, told for a fraction of the
cost.

Nearly every answer is one. Telling it the long way, by the status of every limit, takes five times
as long as deciding it. `answers.check_result` tells all others, and would tell these, too:
tests/service/http/test_fast_write.py holds both equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.core.decision import Demand, Verdict
from headgate.core.engine import ChosenLimits, Decision, Request
from headgate.core.errors import HeadgateError
from headgate.core.history import TIME_MS_MAX
from headgate.core.lease import LeaseAccount
from headgate.core.plan import Amounts, join_parts
from headgate.core.record import TERMS, Record
from headgate.core.refill.bucket import MILLI
from headgate.service.decide.answers import Admission
from headgate.service.decide.rules import LimitConstants, Target

if TYPE_CHECKING:
    from headgate.service.decide.namespaces import NamespaceService


# One part of a request: whose bucket, how much by limit, how much as one number, and limits that
# came with it.
Asked = tuple[Target, Amounts, int, ChosenLimits]


Planned = tuple[Sequence[Sequence[Demand]], Sequence[Demand]]  # of each part, and all together


def plan_known(ns: NamespaceService, asked: Sequence[Asked], now_ms: int) -> Planned | None:
    """The demands by plans at hand, without waiting; None where one is missing, or where an
    operator or the request itself has a say beside the plan."""
    parts: list[Sequence[Demand]] = []
    demands: list[Demand] = []
    configs = ns.configs
    for target, amounts, _, limits in asked:
        plan = target.plan_at_hand(configs, now_ms) if limits is None else None
        if plan is None or plan.bypass:
            return None
        part = plan.demands(amounts)
        parts.append(part)
        demands += part
    is_apart = len({demand.key.text for demand in demands}) == len(demands)
    return parts, demands if is_apart else join_parts(parts)


def requests_of(asked: Sequence[Asked]) -> list[Request]:
    """The parts of a request as the engine takes them, by plans that are known."""
    return [
        (target.entity_id, target.resource, amounts, target.chosen)
        for target, amounts, _, _ in asked
    ]


def untroubled(ruling: Decision | HeadgateError) -> Verdict | None:
    """The verdict of the store; None where it gave none, for that is to be told."""
    if isinstance(ruling, HeadgateError) or ruling.trouble is not None:
        return None
    return ruling.verdict


def plain_admission(
    record: Record, wanted: Demand, now_ms: int, target: Target
) -> Admission | None:
    """The answer where this record is left, and there is nothing but a yes to tell."""
    terms = record[TERMS]
    frame = target.frame
    if frame is None or frame.terms is not terms:
        frame = target.frame_for(terms)
    if frame is None or terms.core is not wanted.terms:
        return None
    _, _, _, _, epoch_ms, tokens, _, _ = record  # a frame is of one limit
    period_ms, amount, capacity = frame.period_ms, frame.amount_milli, frame.capacity_milli
    level = tokens + (now_ms - epoch_ms) * amount // period_ms
    reset_ms = epoch_ms - (tokens - capacity) * period_ms // amount
    if level >= capacity or not 0 <= reset_ms <= TIME_MS_MAX:
        return None
    whole = level // MILLI
    wait_ms = epoch_ms - now_ms - (tokens - MILLI - whole * MILLI) * period_ms // amount
    values = (frame, whole, wait_ms, reset_ms)
    return tuple.__new__(Admission, values)  # a third of what Admission(…) takes


def plain_frames(verdict: Verdict, targets: Sequence[Target]) -> list[LimitConstants] | None:
    """The limits of an admission that took tokens of each target, each of which has one demand;
    None where there is more to tell than a yes."""
    if not verdict.allowed or len(verdict.demands) != len(targets):
        return None
    frames: list[LimitConstants] = []
    for target, record, wanted in zip(targets, verdict.records, verdict.demands, strict=True):
        terms = record[TERMS]
        frame = target.frame
        if frame is None or frame.terms is not terms:
            frame = target.frame_for(terms)
        if frame is None or terms.core is not wanted.terms:
            return None
        frames.append(frame)
    return frames


def note_windows(account: LeaseAccount, verdict: Verdict) -> None:
    """A lease on session quotas learns when their windows began, for its refunds; the verdict is
    not kept, because a lease lives long and needs no more of it."""
    if any(demand.terms.quotas for demand in verdict.demands):
        account.verdict = verdict
        account.window_starts()
        account.verdict = None
