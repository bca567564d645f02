"""Several limits at once: all of them or none, in one atomic step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.core.decision import Verdict
from headgate.core.engine import Decision
from headgate.core.errors import HeadgateError
from headgate.service.decide.answers import CombinedAdmission, CombinedResult, combine
from headgate.service.decide.batch_engine import VerdictOrDecision
from headgate.service.decide.plain import (
    Asked,
    plain_frames,
    plan_known,
    requests_of,
    untroubled,
)
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.requests import DescriptorsRequest, check_amounts, identifier_of
from headgate.service.decide.rules import BY_NAME, Rules, rule_for

if TYPE_CHECKING:
    from headgate.service.decide.service import Service


async def decide_all(
    service: Service, request: DescriptorsRequest, *, whole: bool = False
) -> CombinedResult | CombinedAdmission:
    """The answer to all descriptors; unless all of it is wanted, a plain yes is just that."""
    asked = asked_by(service, request)
    namespace, dry_run = request.namespace, request.dry_run
    ruling: VerdictOrDecision | HeadgateError
    try:
        ns = service.known_namespaces.get(namespace) or await service.namespace(namespace)
        now_ms = service.clock()
        planned = None if dry_run else plan_known(ns, asked, now_ms)
        if planned is not None:
            parts, demands = planned
            wants = requests_of(asked)
            ruling = await ns.engine.consume_planned(wants, parts, demands, now_ms)
            if isinstance(ruling, Verdict):
                ruling = Decision(ruling, parts)
        else:
            wants = [
                await service.engine_request(ns, target, amounts, limits)
                for target, amounts, _, limits in asked
            ]
            ruling = await ns.engine.consume(wants, dry_run=dry_run)
    except HeadgateError as error:
        ruling = error
    if not (whole or dry_run):
        admission = _plain_answer(service, asked, ruling)
        if admission is not None:
            return admission
    return answer_all(service, namespace, asked, ruling, dry_run=dry_run)


def asked_by(service: Service, request: DescriptorsRequest) -> list[Asked]:
    """What each descriptor asks for, and of whose bucket."""
    rules, most = service.rules, service.settings.amount_max
    known = service.targets.for_rules(rules)
    whole_tokens, endpoint, every = request.tokens, request.endpoint, request.every
    if whole_tokens is not None:
        check_amounts(most, whole_tokens, None)
    asked: list[Asked] = []
    for index, (scope, resource, given, own, limits, named, _) in enumerate(request.descriptors):
        if own is not None or named is not None:
            check_amounts(most, own, named, f"descriptors[{index}].")
        name = given
        if name is None:
            name = _identifier_of(rules, request, index)
        target = known.get((scope, name, resource))
        if target is None:
            target = service.targets.of(rules, scope, name, resource)
        tokens = whole_tokens if own is None else own
        if tokens is None and named is None and endpoint is None and not every:
            asked.append((target, target.one, 1, limits))
        else:
            tokens, amounts = target.wanted(rules, tokens, named, endpoint, every=every)
            asked.append((target, amounts, tokens, limits))
    return asked


def _identifier_of(rules: Rules, request: DescriptorsRequest, index: int) -> str:
    try:
        return identifier_of(rules, request, index)
    except ServiceError:
        one = request.descriptors[index]
        if one.scope != BY_NAME:
            rule_for(rules, one.scope, one.resource)  # an unknown scope is told first
        raise


def _plain_answer(
    service: Service, asked: Sequence[Asked], ruling: Decision | HeadgateError
) -> CombinedAdmission | None:
    """A plain yes, told to whoever counts; None where there is more to tell."""
    verdict = untroubled(ruling)
    if verdict is None or any(isinstance(part[1], Mapping) for part in asked):
        return None  # of some limits of a mapping nothing may have been taken
    if isinstance(ruling, Decision) and any(len(part) != 1 for part in ruling.parts):
        return None  # a bucket of several parts is one demand, so then there are fewer of them
    targets = [part[0] for part in asked]
    frames = plain_frames(verdict, targets)
    if frames is None:
        return None
    if service.on_admitted is not None:
        for frame, (_, _, tokens, _) in zip(frames, asked, strict=True):
            service.on_admitted(frame.scope, frame.resource, tokens, 1, frame.is_stored)
    return CombinedAdmission(frames, verdict.records, verdict.now_ms, targets)


def answer_all(
    service: Service,
    namespace: str,
    asked: Sequence[Asked],
    ruling: Decision | HeadgateError,
    *,
    dry_run: bool = False,
) -> CombinedResult:
    """The whole answer, told to whoever counts."""
    whole = combine(
        [
            service.part_result(ruling, part, target, amounts, dry_run, namespace)
            for part, (target, amounts, _, _) in enumerate(asked)
        ]
    )
    service.tell(whole.results, whole.allowed)
    return whole
