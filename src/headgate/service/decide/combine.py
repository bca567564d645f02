"""Several descriptors in one request: whose identifier each has, and what their results come to."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from headgate.service.decide.answers import CheckResult, CombinedResult
from headgate.service.decide.problems import Code, invalid
from headgate.service.decide.requests import GLOBAL_SCOPE, DescriptorsRequest
from headgate.service.decide.rules import IDENTIFIER_KEYS, Rules
from headgate.service.decide.targets import is_identifier


def identifier_of(rules: Rules, request: DescriptorsRequest, index: int) -> str:
    """The descriptor's own identifier, else the request's where it is of that scope, else the
    metadata entry that names the scope's.

    An identifier of another scope is never used: limiting an address by a user's name would give
    every user a fresh one.
    """
    one = request.descriptors[index]
    if one.identifier is not None:
        return one.identifier
    if one.scope == request.scope and request.identifier is not None:
        return request.identifier
    key = rules.identifier_key(one.scope) or IDENTIFIER_KEYS.get(one.scope, one.scope)
    found = request.metadata.get(key)
    if found is not None and is_identifier(found):
        return found
    if one.scope == GLOBAL_SCOPE:
        return GLOBAL_SCOPE
    raise invalid(
        f"descriptors[{index}].identifier",
        f"is missing; give it here, or as metadata {key!r}, which must be text without control "
        f"characters",
    )


def combine(results: Sequence[CheckResult]) -> CombinedResult:
    """All results together; a code on any refuses the whole."""
    first = results[0]
    blocking: int | None = None
    tightest: int | None = None
    longest = least = 0.0
    for index, one in enumerate(results):
        if one.code is not None:
            wait_ms = float("inf") if one.retry_after_ms is None else one.retry_after_ms
            if blocking is None or wait_ms > longest:
                blocking, longest = index, wait_ms
        if one.tokens_capacity:
            left = (one.tokens_remaining or 0) / one.tokens_capacity
            if tightest is None or left < least:
                tightest, least = index, left
    code: Code | None = None if blocking is None else results[blocking].code
    return CombinedResult(
        blocking is None,
        tuple(results),
        None if code is Code.STORAGE_UNAVAILABLE else blocking,
        tightest,
        0 if blocking is None else results[blocking].retry_after_ms,
        code,
        first.degraded,
        first.degraded_reason,
        first.dry_run,
    )


# --------------------------------------------------------------------------------------------------
# From a refusal to the page that explains it. Only refusals come here: a yes has no link.

PAGE = "/ui/explain"


def explain_link(namespace: str, scope: str, identifier: str, resource: str) -> str:
    """Where the dashboard explains these limits, as seen from the service's root."""
    asked = {"namespace": namespace, "scope": scope, "identifier": identifier, "resource": resource}
    return f"{PAGE}?{urlencode(asked)}"


def with_explain_link(answer: CheckResult, namespace: str, identifier: str) -> CheckResult:
    """The answer with its link, where a limit refused it."""
    if answer.code is not Code.RATE_LIMIT_EXCEEDED:
        return answer
    link = explain_link(namespace, answer.scope, identifier, answer.resource)
    return answer._replace(instance=link)
