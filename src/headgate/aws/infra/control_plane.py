"""Calls to AWS's control plane, the stacks read with them, and what can go wrong.

botocore makes the calls. One person deploys at a time and it takes minutes, so nothing would be
gained by calling AWS ourselves, or by an async form.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from botocore.session import Session

from headgate.aws.aggregator.s3 import make_client
from headgate.aws.infra.options import TAG_PREFIX
from headgate.core.errors import HeadgateError, ValidationError

# --------------------------------------------------------------------------------------------------
# What can go wrong with a stack; each message says what happened, why, and what to do.


class StackOperationError(HeadgateError):
    """A stack was not created, changed or deleted; says which resource was in the way."""

    def __init__(
        self, stack: str, what: str, reason: str, *, resource: str | None = None, advice: str
    ) -> None:
        self.stack = stack
        self.resource = resource
        self.reason = reason
        cause = f"{resource}: {reason}" if resource else reason
        super().__init__(f"{what}: {cause}; {advice}")


class InfrastructureNotFoundError(HeadgateError):
    """There is no such stack, or headgate did not create it."""

    def __init__(self, stack: str, why: str = "there is no stack of that name here") -> None:
        self.stack = stack
        super().__init__(
            f"{stack}: {why}; `headgate deploy` makes one, `headgate list` shows those of this "
            f"account and region"
        )


class AwsRefused(HeadgateError):
    """AWS refused a call."""

    def __init__(self, operation: str, code: str, message: str) -> None:
        self.operation = operation
        self.code = code
        self.message = message
        super().__init__(f"{operation} was refused: {message} ({code}); {_advice(code)}")


class AwsUnreachable(HeadgateError):
    """AWS did not answer, or there are no credentials to call it with."""

    def __init__(self, operation: str, cause: object) -> None:
        super().__init__(
            f"{operation} got no answer: {cause}; check credentials, region and the network "
            f"(`aws sts get-caller-identity` shows who you are)"
        )


def _advice(code: str) -> str:
    if "AccessDenied" in code or "Unauthorized" in code:
        return "whoever deploys needs that permission; see docs/how-to/deploy-to-aws.md"
    if "Token" in code or "Signature" in code:
        return "renew the credentials"
    return "nothing else was changed by this call"


CONNECT_S, READ_S = 5, 60
ATTEMPTS_MAX = 5


class Port:
    """Operations go by botocore's names: `call("cloudformation", "describe_stacks", …)`."""

    def __init__(self, session: Session, region: str, endpoint: str | None) -> None:
        self.region = region
        self.endpoint = endpoint
        self._session = session
        self._clients: dict[str, Any] = {}

    def call(self, service: str, operation: str, /, **params: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client(service), operation)(**params)
        except ClientError as error:
            found = error.response.get("Error", {})
            code, message = found.get("Code", "unknown"), found.get("Message", str(error))
            raise AwsRefused(f"{service} {operation}", code, message) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise AwsUnreachable(f"{service} {operation}", error) from error
        return answer

    def pause_ms(self, wait_ms: int) -> None:
        time.sleep(wait_ms / 1000)

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = make_client(
                self._session, service, self.region, self.endpoint,
                connect_s=CONNECT_S, read_s=READ_S, attempts=ATTEMPTS_MAX,
            )  # fmt: skip
        return self._clients[service]


def open_port(*, region: str | None = None, endpoint: str | None = None) -> Port:
    """The port to a region of an account; nothing is contacted before the first call.

    Credentials are found as AWS's own tools find them: AWS_PROFILE, keys, SSO, roles.
    """
    try:
        session = Session()
        found = region or session.get_config_variable("region")
    except BotoCoreError as error:
        raise AwsUnreachable("the profile", error) from error
    if not found:
        raise ValidationError("region", region, "is nowhere to be found; name it, or AWS_REGION")
    return Port(session, found, endpoint)


CLOUDFORMATION = "cloudformation"
PAGES_MAX = 200
STACK_TAG = f"{TAG_PREFIX}stack"
VERSION_TAG = f"{TAG_PREFIX}version"
DELETED_STATUS = "DELETE_COMPLETE"


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack as it is now."""

    name: str
    id: str
    status: str
    reason: str
    outputs: Mapping[str, str]
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    region: str
    endpoint: str | None = None  # of a local engine

    @property
    def template_version(self) -> int | None:
        """None where the stack was never finished."""
        text = self.outputs.get("TemplateVersion", "")
        return int(text) if text.isascii() and text.isdigit() else None

    @property
    def headgate_version(self) -> str | None:
        """Which headgate made it or changed it last."""
        return self.tags.get(VERSION_TAG)

    @property
    def is_in_progress(self) -> bool:
        return self.status.endswith("_IN_PROGRESS")

    @property
    def has_failed(self) -> bool:
        return "FAILED" in self.status or "ROLLBACK" in self.status

    @property
    def url(self) -> str:
        """The URL a limiter opens; with an aggregator, limiters do not count usage themselves."""
        options = {"region": self.region}
        if self.parameters.get("EnableAggregator") == "true":
            options["usage"] = "stream"
        if self.endpoint is not None:
            options["endpoint"] = self.endpoint
        return f"dynamodb://{self.name}?{urlencode(options)}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "reason": self.reason,
            "region": self.region,
            "url": self.url,
            "template_version": self.template_version,
            "headgate_version": self.headgate_version,
            "outputs": dict(self.outputs),
            "parameters": dict(self.parameters),
            "tags": dict(self.tags),
        }


EVENT_FIELDS = (
    "EventId", "LogicalResourceId", "ResourceType", "ResourceStatus", "ResourceStatusReason",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Progress:
    """An event of one resource of a stack."""

    id: str
    resource: str
    type: str
    status: str
    reason: str


def status(port: Port, name: str) -> Stack:
    """The stack of that name (or id), if it is one of headgate's."""
    found = find_stack(port, name)
    if found is None or found.status == DELETED_STATUS:
        raise InfrastructureNotFoundError(name)
    if STACK_TAG not in found.tags:
        raise InfrastructureNotFoundError(name, "a stack of that name is not one of headgate's")
    return found


def list_stacks(port: Port) -> list[Stack]:
    """Every stack of headgate's in this account and region, by name."""
    stacks = [_stack(port, entry) for entry in _pages(port, "describe_stacks", "Stacks")]
    ours = [one for one in stacks if STACK_TAG in one.tags and one.status != DELETED_STATUS]
    return sorted(ours, key=lambda one: one.name)


def find_stack(port: Port, name: str) -> Stack | None:
    """The stack of that name or id, whoever created it; None if there is none."""
    try:
        found = port.call(CLOUDFORMATION, "describe_stacks", StackName=name)["Stacks"]
    except AwsRefused as error:
        if error.code == "ValidationError" and "does not exist" in error.message:
            return None
        raise
    return _stack(port, found[0]) if found else None


def new_events(port: Port, stack_id: str, seen: set[str]) -> list[Progress]:
    """The events that are not in `seen` yet, oldest first; they are added to it."""
    fresh: list[Progress] = []
    for entry in _pages(port, "describe_stack_events", "StackEvents", StackName=stack_id):
        if entry["EventId"] in seen:  # the newest come first
            break
        fresh.append(Progress(*(entry.get(name, "") for name in EVENT_FIELDS)))
    seen |= {event.id for event in fresh}
    return fresh[::-1]


def resources_of(port: Port, stack_id: str) -> dict[str, str]:
    """The physical names of a stack's resources by their names in the template."""
    rows = _pages(port, "list_stack_resources", "StackResourceSummaries", StackName=stack_id)
    return {
        row["LogicalResourceId"]: row["PhysicalResourceId"]
        for row in rows
        if row.get("PhysicalResourceId") and row.get("ResourceStatus") != DELETED_STATUS
    }


def _pages(port: Port, operation: str, part: str, **params: str) -> Iterator[dict[str, Any]]:
    for _ in range(PAGES_MAX):
        page = port.call(CLOUDFORMATION, operation, **params)
        yield from page.get(part, [])
        if not page.get("NextToken"):
            return
        params["NextToken"] = page["NextToken"]


def _stack(port: Port, entry: Mapping[str, Any]) -> Stack:
    def pairs(part: str, key: str, value: str) -> dict[str, str]:
        return {row[key]: row.get(value, "") for row in entry.get(part) or []}

    return Stack(
        entry["StackName"],
        entry["StackId"],
        entry["StackStatus"],
        entry.get("StackStatusReason", ""),
        pairs("Outputs", "OutputKey", "OutputValue"),
        pairs("Parameters", "ParameterKey", "ParameterValue"),
        pairs("Tags", "Key", "Value"),
        port.region,
        port.endpoint,
    )


# --------------------------------------------------------------------------------------------------
# Waiting until a stack is at rest, reporting its events, and naming what failed first.

POLL_MS = 2000
POLLS_MAX = 1800  # an hour: a table with four indexes takes minutes, a mistaken one no longer
ECHO = "cancelled"  # what CloudFormation says of the resources it gave up because of another

Report = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Does nothing: the default report."""


def change_stack(
    port: Port, operation: str, stack: Stack, what: str, report: Report, **request: Any
) -> Stack | None:
    """Asks CloudFormation to update or delete a stack, and waits until it is at rest."""
    seen: set[str] = set()
    new_events(port, stack.id, seen)  # what happened before tells nothing about this change
    port.call(CLOUDFORMATION, operation, StackName=stack.id, **request)
    return wait_until_at_rest(port, stack.id, what, seen, report)


def wait_until_at_rest(
    port: Port, stack_id: str, what: str, seen: set[str], report: Report = ignore_progress
) -> Stack | None:
    """The stack when nothing moves any more, None if it is gone; StackOperationError if it failed.

    `seen` holds the events from before, which tell nothing about this change.
    """
    happened: list[Progress] = []
    for _ in range(POLLS_MAX):
        found = find_stack(port, stack_id)
        if found is not None:
            for event in new_events(port, stack_id, seen):
                happened.append(event)
                report(event)
        if found is None or found.status == DELETED_STATUS:
            return None
        if not found.is_in_progress:
            if found.has_failed:
                raise operation_error(found, what, happened)
            return found
        port.pause_ms(POLL_MS)
    raise StackOperationError(
        stack_id,
        what,
        f"it still moves after {POLLS_MAX * POLL_MS // 60_000} minutes",
        advice="nothing was given up: `headgate status` shows how it goes on",
    )


def operation_error(stack: Stack, what: str, happened: list[Progress]) -> StackOperationError:
    """The first resource that failed and why; the rest failed because of it."""
    failed = [
        event
        for event in happened
        if event.status.endswith("_FAILED") and event.resource != stack.name
    ]
    first = min(failed, key=lambda event: ECHO in event.reason.lower(), default=None)
    advice = ADVICE.get(
        stack.status,
        f"the stack is {stack.status}; the CloudFormation console can continue or delete it",
    )
    resource = None if first is None else f"{first.resource} ({first.type})"
    blamed = first or stack
    return StackOperationError(
        stack.name, what, blamed.reason or blamed.status, resource=resource, advice=advice
    )


ADVICE = {
    "UPDATE_ROLLBACK_COMPLETE": "the stack is as it was before; mend the cause and run it again",
    "ROLLBACK_COMPLETE": "what was made has been removed; mend the cause and deploy again",
    "DELETE_FAILED": "mend the cause and delete again: what is gone is gone, the rest is still "
    "there",
}
