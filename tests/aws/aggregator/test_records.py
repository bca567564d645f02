"""The door: what is understood, what is passed by, what is damage; and settings."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest

from headgate.aws.aggregator.process import Settings, settings_from
from headgate.aws.aggregator.records import (
    Change,
    ConsumptionState,
    amount_between,
    parse_record,
    sequence_text,
)
from headgate.core.errors import Damaged, ValidationError
from headgate.core.history import DAY_MS
from tests.aws.aggregator.kit import START_MS, Record, Shard, Tape


def one_record() -> Record:
    tape = Tape()
    return Shard(tape, "user:7@x").make(rpm=2)


def test_both_ways_to_tell_a_time_are_the_same() -> None:
    record = one_record()
    moment = datetime.datetime.fromtimestamp(START_MS / 1000, datetime.UTC)
    for told in (START_MS // 1000, float(START_MS // 1000), moment):
        record["dynamodb"]["ApproximateCreationDateTime"] = told
        change = parse_record(record)
        assert isinstance(change, Change)
        assert change.at_ms == START_MS
        assert (change.key.entity_id, change.key.resource, change.shard) == ("user:7@x", "r", 0)


@pytest.mark.parametrize("sk", ["#META", "#CONFIG", "#USAGE#r#hourly#x", "#VERSION", "#STREAM#a#b"])
def test_other_items_are_none_of_its_business(sk: str) -> None:
    tape = Tape()
    assert parse_record(tape.note("n/ENTITY#a", sk, None, {"x": {"S": "y"}})) is None


def test_a_deleted_audit_event_is_not_an_expired_one() -> None:
    tape = Tape()
    old = {"event_id": {"S": "1"}}
    assert parse_record(tape.note("n/AUDIT#a", "#AUDIT#1", old, None)) is None
    who = {"userIdentity": {"type": "AssumedRole", "principalId": "me"}}
    assert parse_record(tape.note("n/AUDIT#a", "#AUDIT#1", old, None, **who)) is None


def test_what_cascaded_is_the_difference_of_the_images() -> None:
    """An image without the counter has none; a write that raised no other consumption is an event
    from children; a limit that goes takes its part along without giving it back."""
    before = ConsumptionState("1.1", 1, {"rpm": 5000, "tpm": 100})
    after = ConsumptionState("1.2", 2, {"rpm": 6000, "tpm": 900}, {"rpm": 1000, "tpm": 800})
    assert amount_between(before, after) == ({"rpm": 1000, "tpm": 800}, 1, after.cascaded_milli, 1)
    both = ConsumptionState("1.3", 3, {"rpm": 8000, "tpm": 900}, {"rpm": 2000, "tpm": 800})
    assert amount_between(after, both) == ({"rpm": 2000}, 1, {"rpm": 1000}, 0)
    back = ConsumptionState("1.4", 4, {"rpm": 7000, "tpm": 900}, {"rpm": 1000, "tpm": 800})
    assert amount_between(both, back) == ({"rpm": -1000}, 0, {"rpm": -1000}, 0)
    gone = ConsumptionState("2.5", 5, {"tpm": 900}, {"tpm": 800})
    assert not amount_between(back, gone)
    record = one_record()
    record["dynamodb"]["NewImage"] |= {"b_rpm_cc": {"N": "2000"}, "b_cc_tc": {"N": "1"}}
    change = parse_record(record)
    assert isinstance(change, Change)
    assert dict(change.after.cascaded_milli) == {"rpm": 2000}


BREAKS: list[Any] = [
    lambda record: record.pop("dynamodb"),
    lambda record: record["dynamodb"].pop("Keys"),
    lambda record: record["dynamodb"].pop("NewImage"),
    lambda record: record["dynamodb"].pop("SequenceNumber"),
    lambda record: record["dynamodb"].pop("ApproximateCreationDateTime"),
    lambda record: record["dynamodb"].update(SequenceNumber="12x"),
    lambda record: record["dynamodb"].update(SequenceNumber="٣"),
    lambda record: record["dynamodb"].update(SequenceNumber="1" * 41),
    lambda record: record["dynamodb"]["Keys"]["PK"].update(S="n/BUCKET#a#r"),
    lambda record: record["dynamodb"]["NewImage"].pop("g"),
    lambda record: record["dynamodb"]["NewImage"].pop("b_rpm_tc"),
    lambda record: record["dynamodb"]["NewImage"].update(b_rpm_tc={"S": "many"}),
    lambda record: record["dynamodb"]["NewImage"].update(b_rpm_tc={"N": "1.5"}),
    lambda record: record["dynamodb"]["NewImage"].update(lo={"N": "1"}),
    lambda record: record.update(eventName="MODIFY"),
]


@pytest.mark.parametrize("number", range(len(BREAKS)))
def test_what_cannot_be_read_is_damage(number: int) -> None:
    record = copy.deepcopy(one_record())
    BREAKS[number](record)
    with pytest.raises(Damaged):
        parse_record(record)
    assert isinstance(sequence_text(record), str)


@pytest.mark.parametrize("record", [None, {}, {"dynamodb": None}, {"dynamodb": 1}, [], "x"])
def test_anything_may_come_in(record: Any) -> None:
    with pytest.raises(Damaged):
        parse_record(record)
    assert sequence_text(record) == ""


def test_settings() -> None:
    assert settings_from({"HEADGATE_TABLE": "limits"}) == Settings("limits")
    told = {
        "HEADGATE_TABLE": "limits",
        "HEADGATE_WINDOWS": "hourly, monthly,hourly",
        "HEADGATE_USAGE_RETENTION_DAYS": "7",
        "HEADGATE_ARCHIVE_BUCKET": "my-archive",
        "HEADGATE_SPLIT": "off",
        "HEADGATE_LOG_LEVEL": "debug",
    }
    windows = ("hourly", "monthly")
    found = Settings("limits", windows, 7 * DAY_MS, "my-archive", False, "DEBUG")
    assert settings_from(told) == found
    assert settings_from({"HEADGATE_TABLE": "limits", "HEADGATE_ARCHIVE_BUCKET": ""}) == Settings(
        "limits"
    )


WRONG = {
    "HEADGATE_TABLE": ["", "a/b", "limits\n"],
    "HEADGATE_WINDOWS": ["", "weekly"],
    "HEADGATE_USAGE_RETENTION_DAYS": ["0", "-1", "9 0", "99999", "²"],
    "HEADGATE_ARCHIVE_BUCKET": ["No_Bucket"],
    "HEADGATE_SPLIT": ["yes"],
    "HEADGATE_LOG_LEVEL": ["LOUD"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_settings_that_are_wrong_are_named(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        settings_from({"HEADGATE_TABLE": "limits", name: value})
