"""What AWS says about stacks: one, all of headgate's, and what has happened to one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from headgate.aws.infra.options import TAG_PREFIX
from headgate.aws.infra.port import Port
from headgate.aws.infra.port__trouble import AwsRefused, InfrastructureNotFoundError

CLOUDFORMATION = "cloudformation"
PAGES_MAX = 200
OURS = f"{TAG_PREFIX}stack"
MADE_BY = f"{TAG_PREFIX}version"
GONE = "DELETE_COMPLETE"


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
        return self.tags.get(MADE_BY)

    @property
    def is_moving(self) -> bool:
        return self.status.endswith("_IN_PROGRESS")

    @property
    def has_failed(self) -> bool:
        return "FAILED" in self.status or "ROLLBACK" in self.status

    @property
    def url(self) -> str:
        """What a limiter opens; with an aggregator nobody else counts usage."""
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


@dataclass(frozen=True, slots=True)
class Progress:
    """Something that happened to one resource of a stack."""

    id: str
    resource: str
    type: str
    status: str
    reason: str

    @property
    def is_failure(self) -> bool:
        return self.status.endswith("_FAILED")


def status(port: Port, name: str) -> Stack:
    """The stack of that name (or id), if it is one of headgate's."""
    found = find(port, name)
    if found is None or found.status == GONE:
        raise InfrastructureNotFoundError(name)
    if OURS not in found.tags:
        raise InfrastructureNotFoundError(name, "a stack of that name is not one of headgate's")
    return found


def list_stacks(port: Port) -> list[Stack]:
    """Every stack of headgate's in this account and region, by name."""
    pages = _pages(port, "describe_stacks", "Stacks")
    stacks = [_stack(port, entry) for entry in pages]
    ours = [one for one in stacks if OURS in one.tags and one.status != GONE]
    return sorted(ours, key=lambda one: one.name)


def find(port: Port, name: str) -> Stack | None:
    """Anybody's stack of that name or id, as it is; None where there is none."""
    try:
        found = port.call(CLOUDFORMATION, "describe_stacks", StackName=name)["Stacks"]
    except AwsRefused as error:
        if error.code == "ValidationError" and "does not exist" in error.message:
            return None
        raise
    return _stack(port, found[0]) if found else None


def events(port: Port, stack_id: str, seen: set[str]) -> list[Progress]:
    """What happened since, oldest first; `seen` then knows it."""
    fresh: list[Progress] = []
    for entry in _pages(port, "describe_stack_events", "StackEvents", StackName=stack_id):
        if entry["EventId"] in seen:  # the newest come first
            break
        fresh.append(
            Progress(
                entry["EventId"],
                entry.get("LogicalResourceId", ""),
                entry.get("ResourceType", ""),
                entry.get("ResourceStatus", ""),
                entry.get("ResourceStatusReason", ""),
            )
        )
    seen |= {event.id for event in fresh}
    return fresh[::-1]


def resources_of(port: Port, stack_id: str) -> dict[str, str]:
    """The physical names of a stack's resources by their names in the template."""
    rows = _pages(port, "list_stack_resources", "StackResourceSummaries", StackName=stack_id)
    return {
        row["LogicalResourceId"]: row["PhysicalResourceId"]
        for row in rows
        if row.get("PhysicalResourceId") and row.get("ResourceStatus") != GONE
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
