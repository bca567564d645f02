"""Stacks against a CloudFormation that says what it is told: waits, failures, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate import HeadgateError, IncompatibleSchemaError, ValidationError
from headgate.aws.infra import (
    AwsRefused,
    InfrastructureNotFoundError,
    Port,
    Progress,
    StackOperationError,
    StackOptions,
    build,
    delete,
    deploy,
    list_stacks,
    open_port,
    status,
    upgrade,
)
from headgate.aws.infra import stack as stack_module
from headgate.aws.infra.control_plane import (
    CLOUDFORMATION,
    PAGES_MAX,
    POLL_MS,
    POLLS_MAX,
    new_events,
    wait_until_at_rest,
)
from headgate.aws.infra.options import TEMPLATE_VERSION
from headgate.aws.infra.stack import empty_bucket

OURS = {"headgate:stack": "1", "headgate:version": "0.1.0"}
PLAIN = StackOptions(enable_aggregator=False)


def entry(
    status: str,
    *,
    tags: dict[str, str] | None = None,
    version: int = 1,
    name: str = "limits",
    parameters: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "StackName": name,
        "StackId": f"id-of-{name}",
        "StackStatus": status,
        "Tags": [{"Key": k, "Value": v} for k, v in (OURS if tags is None else tags).items()],
        "Outputs": [{"OutputKey": "TemplateVersion", "OutputValue": str(version)}],
        "Parameters": [
            {"ParameterKey": k, "ParameterValue": v} for k, v in (parameters or {}).items()
        ],
    }


def event(number: int, resource: str, state: str, reason: str = "") -> dict[str, Any]:
    return {
        "EventId": f"e{number}",
        "LogicalResourceId": resource,
        "ResourceType": f"AWS::Some::{resource}",
        "ResourceStatus": state,
        "ResourceStatusReason": reason,
    }


class Scripted(Port):
    """A port that shows one state of a stack after another; the last one stays."""

    def __init__(self, *states: dict[str, Any] | None) -> None:
        self.region, self.endpoint = "eu-west-1", None
        self.states = list(states)
        self.events: list[dict[str, Any]] = []
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.paused_ms = 0
        self.answers: dict[str, Callable[..., dict[str, Any]]] = {}

    def call(self, service: str, operation: str, /, **params: Any) -> dict[str, Any]:
        self.calls.append((service, operation, params))
        if operation in self.answers:
            return self.answers[operation](**params)
        if operation == "describe_stacks":
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            if state is None:
                raise AwsRefused(operation, "ValidationError", "Stack with id x does not exist")
            return {"Stacks": [state]}
        if operation == "describe_stack_events":
            return {"StackEvents": self.events[::-1]}
        if operation == "list_stack_resources":
            return {"StackResourceSummaries": []}
        return {"StackId": "id-of-limits"}

    def pause_ms(self, wait_ms: int) -> None:
        self.paused_ms += wait_ms

    def asked(self, operation: str) -> list[dict[str, Any]]:
        return [params for _, name, params in self.calls if name == operation]

    def sent(self, operation: str) -> dict[str, str]:
        """The parameters of the stack in the one call of that operation."""
        (asked,) = self.asked(operation)
        return {one["ParameterKey"]: one["ParameterValue"] for one in asked["Parameters"]}


@pytest.fixture(autouse=True)
def _no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_module, "prepare_table", lambda stack, options: None)
    monkeypatch.setattr(stack_module, "upgrade_table", lambda stack: ())


def test_a_failure_names_the_resource_that_failed_first_and_why() -> None:
    port = Scripted(None, entry("CREATE_IN_PROGRESS"), entry("ROLLBACK_COMPLETE"))
    port.events = [
        event(1, "limits", "CREATE_IN_PROGRESS"),
        event(2, "AppRole", "CREATE_FAILED", "Resource creation cancelled"),
        event(3, "AggregatorRole", "CREATE_FAILED", "limits-aggregator already exists"),
        event(4, "Table", "CREATE_FAILED", "something that followed"),
        event(5, "limits", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed"),
    ]
    seen: list[Progress] = []
    with pytest.raises(StackOperationError) as caught:
        deploy(port, "limits", PLAIN, report=seen.append)
    error = caught.value
    assert error.resource == "AggregatorRole (AWS::Some::AggregatorRole)"
    assert error.reason == "limits-aggregator already exists"
    assert "deploy again" in str(error)
    assert [one.id for one in seen] == ["e1", "e2", "e3", "e4", "e5"]


@pytest.mark.parametrize(
    ("state", "reason", "events", "named"),
    [
        ("ROLLBACK_COMPLETE", "", [event(1, "AppRole", "CREATE_FAILED", "cancelled")], "AppRole"),
        ("ROLLBACK_FAILED", "no permission", [], "no permission"),
    ],
    ids=["only cancellations", "no events"],
)
def test_a_failure_that_names_no_cause_says_what_is_known(
    state: str, reason: str, events: list[dict[str, Any]], named: str
) -> None:
    port = Scripted(None, {**entry(state), "StackStatusReason": reason})
    port.events = events
    with pytest.raises(StackOperationError, match=named):
        deploy(port, "limits", PLAIN)


def test_a_new_stack_is_made_with_tags_and_every_parameter() -> None:
    port = Scripted(None, entry("CREATE_IN_PROGRESS"), entry("CREATE_COMPLETE"))
    me = {"Account": "123456789012", "Arn": "arn:aws-cn:iam::123456789012:user/me"}
    port.answers["get_caller_identity"] = lambda: me
    options = StackOptions(enable_aggregator=False, tags={"team": "a"}, permission_boundary="bound")
    done = deploy(port, "limits", options)
    assert done.changed
    (asked,) = port.asked("create_stack")
    tags = {one["Key"]: one["Value"] for one in asked["Tags"]}
    assert tags["team"] == "a"
    assert tags["headgate:stack"] == "1"
    sent = port.sent("create_stack")
    assert {"EnableAggregator", "PitrDays"} <= sent.keys()
    assert sent["PermissionBoundaryArn"] == "arn:aws-cn:iam::123456789012:policy/bound"
    assert port.paused_ms == POLL_MS
    assert done.stack.url == "dynamodb://limits?region=eu-west-1"


def test_the_table_is_told_how_long_history_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, StackOptions]] = []
    monkeypatch.setattr(
        stack_module, "prepare_table", lambda stack, options: told.append((stack.name, options))
    )
    options = StackOptions(enable_aggregator=False, audit_retention_days=7)
    deploy(Scripted(None, entry("CREATE_COMPLETE")), "limits", options)
    deploy(Scripted(entry("CREATE_COMPLETE")), "limits", options)
    assert told == [("limits", options)] * 2


@pytest.mark.parametrize("act", [
    lambda port: deploy(port, "limits", PLAIN),
    lambda port: upgrade(port, "limits"),
])  # fmt: skip
def test_a_stack_that_moves_or_is_newer_is_left_alone(act: Callable[[Any], Any]) -> None:
    moving = Scripted(entry("UPDATE_IN_PROGRESS"))
    with pytest.raises(StackOperationError, match="somebody else"):
        act(moving)
    newer = Scripted(entry("CREATE_COMPLETE", version=TEMPLATE_VERSION + 1))
    with pytest.raises(IncompatibleSchemaError, match="update this headgate"):
        act(newer)
    for port in (moving, newer):
        assert not port.asked("update_stack")


def test_an_upgrade_keeps_options_and_tags() -> None:
    parameters = {"EnableAggregator": "false", "PitrDays": "7", "OfAnOlderTemplate": "x"}
    port = Scripted(entry("CREATE_COMPLETE", tags={**OURS, "team": "a"}, parameters=parameters))
    upgrade(port, "limits")
    sent = port.sent("update_stack")
    assert sent == {"EnableAggregator": "false", "PitrDays": "7", "CodeKey": ""}
    (asked,) = port.asked("update_stack")
    assert {"Key": "team", "Value": "a"} in asked["Tags"]


def test_new_code_comes_with_the_new_template_in_one_step() -> None:
    parameters = {"EnableAggregator": "true", "CodeKey": "aggregator/old.zip"}
    before = entry("CREATE_COMPLETE", parameters=parameters)
    before["Outputs"].append({"OutputKey": "BundleBucketName", "OutputValue": "bundles"})
    after = entry("UPDATE_COMPLETE", parameters={**parameters, "CodeKey": build().key})
    after["Outputs"] = before["Outputs"]
    port = Scripted(before, after)
    assert upgrade(port, "limits").changed
    assert len(port.asked("put_object")) == len(port.asked("update_stack")) == 1
    names = [name for _, name, _ in port.calls]
    assert names.index("put_object") < names.index("update_stack")
    upgrade(port, "limits")
    assert len(port.asked("put_object")) == 1  # it is there


def test_a_bucket_that_cannot_be_emptied_is_named() -> None:
    port = Scripted(entry("CREATE_COMPLETE"))
    row = {"Key": "a", "VersionId": "1"}
    port.answers["list_object_versions"] = lambda **_: {"Versions": [row], "DeleteMarkers": [row]}
    port.answers["delete_objects"] = lambda **_: {"Errors": [{"Key": "a", "Message": "locked"}]}
    with pytest.raises(StackOperationError, match="the bucket mine was not emptied: a: locked"):
        empty_bucket(port, "mine")
    (asked,) = port.asked("delete_objects")
    assert asked["Delete"]["Objects"] == [row, row]
    port.answers["delete_objects"] = lambda **_: {}
    with pytest.raises(StackOperationError, match="there is more"):
        empty_bucket(port, "mine")


@pytest.mark.parametrize("act", [
    lambda port: status(port, "limits"),
    lambda port: upgrade(port, "limits"),
    lambda port: delete(port, "limits", confirm="limits"),
])  # fmt: skip
def test_no_stack_or_somebody_elses(act: Callable[[Any], Any]) -> None:
    for state in (None, entry("CREATE_COMPLETE", tags={}), entry("DELETE_COMPLETE")):
        port = Scripted(state)
        with pytest.raises(InfrastructureNotFoundError, match="headgate list"):
            act(port)
        assert not port.asked("delete_stack")
    port = Scripted(entry("CREATE_COMPLETE", tags={}))
    with pytest.raises(InfrastructureNotFoundError, match="not one of headgate's"):
        deploy(port, "limits", PLAIN)
    assert not port.asked("update_stack")


def test_deleting_wants_the_name_twice() -> None:
    port = Scripted(entry("CREATE_COMPLETE"))
    with pytest.raises(ValidationError, match="no_underscores"):
        deploy(port, "no_underscores")
    assert port.calls == [], "a bad name asks nothing of AWS"
    for wrong in ("", "yes", "LIMITS", "limits "):
        with pytest.raises(ValidationError, match="repeat the name"):
            delete(port, "limits", confirm=wrong)
    assert not port.asked("delete_stack")


def test_an_archive_can_be_kept() -> None:
    port = Scripted(entry("CREATE_COMPLETE"), None)
    rows = [{"LogicalResourceId": "ArchiveBucket", "PhysicalResourceId": "the-archive"}]
    port.answers["list_stack_resources"] = lambda **_: {"StackResourceSummaries": rows}
    done = delete(port, "limits", confirm="limits", keep_archive=True)
    assert done.kept_bucket == "the-archive"
    assert not port.asked("delete_bucket")


def test_a_deletion_that_fails_says_why() -> None:
    port = Scripted(entry("CREATE_COMPLETE"), entry("DELETE_FAILED"))
    port.answers["delete_stack"] = lambda **_: (
        port.events.append(event(1, "BundleBucket", "DELETE_FAILED", "it is not empty")) or {}
    )
    with pytest.raises(
        StackOperationError, match=r"BundleBucket .*it is not empty; .*delete again"
    ):
        delete(port, "limits", confirm="limits")


def test_waiting_ends() -> None:
    port = Scripted(entry("CREATE_IN_PROGRESS"))
    with pytest.raises(StackOperationError, match="still moves after 60 minutes"):
        wait_until_at_rest(port, "id-of-limits", "waiting", set())
    assert port.paused_ms == POLLS_MAX * POLL_MS


def test_what_happened_before_is_not_told_again() -> None:
    port = Scripted(entry("UPDATE_IN_PROGRESS"), entry("UPDATE_COMPLETE"))
    port.events = [
        event(1, "Table", "CREATE_FAILED", "long ago"),
        event(2, "Table", "UPDATE_COMPLETE"),
    ]
    told: list[Progress] = []
    wait_until_at_rest(port, "id-of-limits", "x", {"e1"}, told.append)
    assert [one.id for one in told] == ["e2"]


def test_pages_are_bounded() -> None:
    port = Scripted(entry("CREATE_COMPLETE"))
    port.answers["describe_stack_events"] = lambda **_: {"StackEvents": [], "NextToken": "more"}
    assert new_events(port, "id", set()) == []
    assert len(port.asked("describe_stack_events")) == PAGES_MAX


def test_the_list_shows_ours_by_name() -> None:
    port = Scripted(None)
    found = [entry("CREATE_COMPLETE", name="b"), entry("DELETE_COMPLETE", name="c")]
    rest = [entry("CREATE_COMPLETE", name="d", tags={}), entry("CREATE_FAILED", name="a")]
    port.answers["describe_stacks"] = lambda **asked: (
        {"Stacks": rest} if asked else {"Stacks": found, "NextToken": "more"}
    )
    assert [one.name for one in list_stacks(port)] == ["a", "b"]


def test_the_port_says_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(ValidationError, match="AWS_REGION"):
        open_port()
    port = open_port(region="eu-west-1", endpoint="http://127.0.0.1:9")
    assert (port.region, port.endpoint) == ("eu-west-1", "http://127.0.0.1:9")
    monkeypatch.setattr("headgate.aws.infra.control_plane.ATTEMPTS_MAX", 1)
    with pytest.raises(HeadgateError, match="got no answer"):
        port.call(CLOUDFORMATION, "describe_stacks")
