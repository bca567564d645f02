"""Waiting for a stack to come to rest, telling what happens, and naming what failed first."""

from __future__ import annotations

from collections.abc import Callable

from headgate.aws.infra.inspect import GONE, Progress, Stack, events, find
from headgate.aws.infra.port import Port
from headgate.aws.infra.port__trouble import StackOperationError

POLL_MS = 2000
POLLS_MAX = 1800  # an hour: a table with four indexes takes minutes, a mistaken one no longer
ECHO = "cancelled"  # what CloudFormation says of the resources it gave up because of another

Report = Callable[[Progress], None]


def silently(progress: Progress) -> None:
    """For those who do not want to know."""


def until_at_rest(
    port: Port, stack_id: str, what: str, seen: set[str], report: Report = silently
) -> Stack | None:
    """The stack when nothing moves any more, None if it is gone; StackOperationError if it failed.

    `seen` holds the events from before, which tell nothing about this change.
    """
    happened: list[Progress] = []
    for _ in range(POLLS_MAX):
        found = find(port, stack_id)
        if found is not None:
            for event in events(port, stack_id, seen):
                happened.append(event)
                report(event)
        if found is None or found.status == GONE:
            return None
        if not found.is_moving:
            if found.has_failed:
                raise failure(found, what, happened)
            return found
        port.pause_ms(POLL_MS)
    raise StackOperationError(
        stack_id,
        what,
        f"it still moves after {POLLS_MAX * POLL_MS // 60_000} minutes",
        advice="nothing was given up: `headgate status` shows how it goes on",
    )


def failure(stack: Stack, what: str, happened: list[Progress]) -> StackOperationError:
    """The first resource that failed and why; the rest failed because of it."""
    failed = [event for event in happened if event.is_failure and event.resource != stack.name]
    first = next((one for one in failed if ECHO not in one.reason.lower()), None)
    first = first or next(iter(failed), None)
    advice = _advice(stack)
    if first is None:
        return StackOperationError(stack.name, what, stack.reason or stack.status, advice=advice)
    resource = f"{first.resource} ({first.type})"
    return StackOperationError(
        stack.name, what, first.reason or first.status, resource=resource, advice=advice
    )


def _advice(stack: Stack) -> str:
    if stack.status == "UPDATE_ROLLBACK_COMPLETE":
        return "the stack is as it was before; mend the cause and run it again"
    if stack.status == "ROLLBACK_COMPLETE":
        return "what was made has been removed; mend the cause and deploy again"
    if stack.status == "DELETE_FAILED":
        return "mend the cause and delete again: what is gone is gone, the rest is still there"
    return f"the stack is {stack.status}; the CloudFormation console can continue or delete it"
