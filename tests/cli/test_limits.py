"""Limits declared in a file: strict reading, what would change, and for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.commands.limits import FILE_BYTES_MAX, decode
from headgate.core.levels import Level
from headgate.core.limits import Limit
from headgate.declare.apply import Declaration, PlanLevel, compute_changes
from headgate.declare.yaml_fields import Findings
from tests.declare.kit import plan_and_apply

FILE = """\
system:
  limits: [rpm:100/min]
  on_unavailable: allow
resources:
  gpt-4:
    rpm: 40/minute
    tpm: 9000/minute burst 12000
    audio: {capacity: 5, refill_amount: 1, refill_period_seconds: 10, soft: true}
entities:
  key-9: {parent: team-x, cascade: true}
  team-x: {parent: acme}
  acme:
    name: Acme Inc
    limits:
      _default_: ["rpm:1000/min"]
      gpt-4: ["tpm:100/min"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "limits.yaml"
    found.write_text(FILE)
    return found


KEYED = ("system: %s", "{limits: %s}}", "{pro: %s}")  # a mapping there has keys of its own
ONE = Limit.per_minute("rpm", 100, 150, soft=True)
SHAPES = (
    "[rpm:100/minute burst 150 soft]",
    "['rpm:100/min:150:soft']",
    "{rpm: 100/minute burst 150 soft}",
    "{rpm: {capacity: 150, refill_amount: 100, refill_period_seconds: 60, soft: true}}",
    "[{name: rpm, capacity: 150, refill_amount: 100, refill_period_seconds: 60, soft: true}]",
)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_list_of_limits_has_one_shape_at_every_level(shape: str) -> None:
    for text, level in (
        ("system: {limits: %s}", Level()),
        ("resources: {api: %s}", Level(None, "api")),
        ("resources: {api: {limits: %s}}", Level(None, "api")),
        ("entities: {key-1: {limits: {api: %s}}}", Level("key-1", "api")),
        ("plans: {pro: {limits: {api: %s}}}", PlanLevel("pro", "api")),
        ("plans: {pro: {limits: {_default_: %s}}}", PlanLevel("pro")),
        ("plans: {pro: {limits: %s}}", PlanLevel("pro")),
        ("plans: {pro: %s}", PlanLevel("pro")),
        ("entities: {key-1: {limits: {_default_: {limits: %s}}}}", Level("key-1", "_default_")),
        ("system: %s", Level()),
        ("entities: {key-1: {limits: %s}}", Level("key-1", "_default_")),
    ):
        if not shape.startswith("[") and text.endswith(KEYED):
            continue  # a mapping there has keys of its own
        findings = Findings("limits.yaml")
        found = decode((text % shape).encode(), findings)
        assert (findings.faults, found.levels[level].limits) == ([], (ONE,)), text


PLANS = """\
plans:
  free: [rpm:10/min]
  pro:
    limits:
      _default_: [rpm:600/min]
      gpt-4: [rpm:60/min]
  trial:
  partial: {limits: {gpt-4: [rpm:1/min]}}
entities:
  acme: {plan: pro}
  "12": {plan: trial}
  lost: {plan: }
"""


def test_plans_are_declared_and_entities_put_on_them(run: Any, well: Any, tmp_path: Path) -> None:
    file = tmp_path / "plans.yaml"
    file.write_text(PLANS)
    well("plan", "set", "partial", "rpm:9/min")
    well("plan", "set", "old", "rpm:9/min", "-r", "api")
    well("entity", "create", "lost", "--plan", "old")
    planned = well("limits", "plan", "-f", str(file))
    told = [(one["action"], one["plan"], one["resource"]) for one in planned["levels"]]
    assert told == [
        ("create", "trial", None), ("create", "free", None), ("create", "pro", None),
        ("create", "pro", "gpt-4"), ("create", "partial", "gpt-4"),
    ]  # fmt: skip
    assert planned["not_declared"] == [
        {"plan": "old", "resource": "api"}, {"plan": "partial", "resource": None},
    ]  # fmt: skip
    assert "+ plan pro on gpt-4" in run("limits", "plan", "-f", str(file)).out
    lines = run("limits", "diff", "-f", str(file)).out.splitlines()
    assert "- entity lost  plan=old" in lines
    assert "+ entity acme  plan=pro" in lines
    assert well("limits", "apply", "-f", str(file), "--yes")["applied"] == 8
    assert well("limits", "apply", "-f", str(file), "--yes")["applied"] == 0
    assert well("limits", "diff", "-f", str(file))["differ"] is True, "what is not declared"
    pro = well("plan", "get", "pro")
    assert (pro["limits"][0]["capacity"], pro["entities"]) == (600, 1)
    assert pro["resources"]["gpt-4"][0]["capacity"] == 60
    assert [one["name"] for one in well("plan", "list")["items"]] == [
        "free", "old", "partial", "pro", "trial",
    ]  # fmt: skip
    assert well("plan", "get", "partial")["limits"][0]["capacity"] == 9, "not named: it stays"
    assert well("entity", "show", "lost")["entity"]["plan"] is None
    assert well("limits", "apply", "-f", str(file), "--prune", "--yes")["applied"] == 2
    assert well("limits", "diff", "-f", str(file), "--exit-code")["differ"] is False
    assert well("plan", "get", "partial")["limits"] == []
    assert well("plan", "get", "old")["resources"] == {}, "its limits go, the plan stays"


def test_a_plan_of_changes_sees_who_is_on_a_plan_and_who_is_moved(
    run: Any, well: Any, tmp_path: Path
) -> None:
    well("resource", "set-defaults", "api", "rpm:100/day")
    well("plan", "set", "pro", "rpm:100/day")
    well("plan", "set", "free", "rpm:50/day")
    for entity, plan in (("stays", "pro"), ("moves", "pro"), ("other", "free"), ("leaves", "pro")):
        well("entity", "create", entity, "--plan", plan)
    for entity in ("stays", "moves", "leaves", "new"):
        well("check", entity, "api", "rpm=80", "--take")
    well("check", "other", "api", "rpm=40", "--take")
    file = tmp_path / "plans.yaml"
    for text, over in (
        ("plans: {pro: [rpm:60/day]}", {"stays": 60, "moves": 60, "leaves": 60}),
        ("plans: {pro: {limits: {api: [rpm:70/day]}}}", {"stays": 70, "moves": 70, "leaves": 70}),
        ("plans: {pro: {limits: {chat: [rpm:1/day]}}}", {}),
        ("entities: {moves: {plan: free}, leaves: {plan: }}", {"moves": 50}),
        (
            "plans: {free: [rpm:30/day]}\nentities: {moves: {plan: free}}",
            {"moves": 30, "other": 30},
        ),
        ("plans: {tiny: [rpm:5/day]}\nentities: {new: {plan: tiny}}", {"new": 5}),
    ):
        file.write_text(text)
        found = well("limits", "plan", "-f", str(file))["over"]
        assert {one["entity_id"]: one["capacity_after"] for one in found} == over, text
    well("limits", "apply", "-f", str(file), "--yes")
    assert well("explain", "new", "api")["limits"][0]["source"] == "plan tiny for every resource"


def test_a_limit_may_be_called_limits() -> None:
    for limit in ("5/s", "{capacity: 5, refill_amount: 5, refill_period_seconds: 1}"):
        text = f"resources: {{api: {{limits: {limit}}}}}"
        found = decode(text.encode(), Findings("limits.yaml"))
        assert found.levels[Level(None, "api")].limits == (Limit.per_second("limits", 5),)


def test_soft_limits_are_written_and_shown_in_words(run: Any, well: Any) -> None:
    well("resource", "set-defaults", "gpt-4", "100/minute burst 150 soft", "rpm:5/s")
    assert well("explain", "key-1", "gpt-4")["limits"][0]["limit"]["soft"] is True
    lines = run("explain", "key-1", "gpt-4").out.splitlines()
    assert lines[1].strip() == "per_minute: 100/60s burst 150 soft  <- resource gpt-4"
    assert lines[2].strip() == "rpm: 5/1s  <- resource gpt-4"


def test_plan_changes_nothing_and_apply_does_what_it_said(run: Any, well: Any, file: Path) -> None:
    planned = well("limits", "plan", "-f", str(file))
    assert [one["entity_id"] for one in planned["entities"]] == ["acme", "team-x", "key-9"]
    assert len(planned["levels"]) == 4
    assert {one["action"] for one in planned["levels"]} == {"create"}
    assert well("entity", "list")["items"] == []
    assert well("limits", "apply", "-f", str(file), "--yes")["applied"] == 7
    assert well("limits", "apply", "-f", str(file), "--yes")["applied"] == 0
    assert well("limits", "diff", "-f", str(file))["differ"] is False
    assert well("system", "get-defaults")["on_unavailable"] == "allow"
    soft = well("resource", "get-defaults", "gpt-4")["limits"][2]
    assert soft == {"name": "audio", "capacity": 5, "refill_amount": 1,
                    "refill_period_seconds": 10, "soft": True}  # fmt: skip
    assert well("explain", "key-9", "gpt-4")["parents"][0]["entity_id"] == "team-x"


def test_a_plan_names_the_buckets_that_would_be_over(
    run: Any, well: Any, url: str, tmp_path: Path
) -> None:
    """On the other stores the same, beside their tests; here also by levels above and below."""
    plan_and_apply(url, tmp_path)
    file = tmp_path / "least.yaml"
    file.write_text(
        "resources: {api: [rpm:30/day]}\nentities: {own: {limits: {api: [rpm:9/day]}}}\n"
    )
    over = well("limits", "plan", "-f", str(file))["over"]
    assert sorted((one["entity_id"], one["capacity_after"]) for one in over) == [
        ("heavy", 30),
        ("own", 9),
    ]
    assert "heavy" in run("limits", "plan", "-f", str(file)).out


def test_what_the_file_does_not_name_stays_but_with_prune(run: Any, well: Any, file: Path) -> None:
    well("limits", "apply", "-f", str(file), "--yes")
    well("resource", "set-defaults", "other", "rpm:1/s")
    well("entity", "set-limits", "acme", "rpm:1/s", "-r", "other")
    differing = run("limits", "diff", "-f", str(file), "--exit-code", "--json")
    assert differing.code == 1
    assert differing.document["not_declared"] == [
        {"entity_id": None, "resource": "other"},
        {"entity_id": "acme", "resource": "other"},
    ]
    assert well("limits", "apply", "-f", str(file), "--yes")["applied"] == 0
    assert well("limits", "apply", "-f", str(file), "--yes", "--prune")["applied"] == 2
    assert run("limits", "diff", "-f", str(file), "--exit-code").code == 0
    assert well("resource", "list")["with_defaults"] == ["gpt-4"]


def test_apply_without_consent_changes_nothing(run: Any, well: Any, file: Path) -> None:
    assert run("limits", "apply", "-f", str(file)).code == 2
    assert well("resource", "list")["with_defaults"] == []


def test_a_diff_shows_both_sides(run: Any, well: Any, tmp_path: Path) -> None:
    well("resource", "set-defaults", "gpt-4", "rpm:60/min")
    file = tmp_path / "limits.yaml"
    file.write_text("resources: {gpt-4: [rpm:30/min]}\n")
    lines = run("limits", "diff", "-f", str(file)).out.splitlines()
    assert lines == ["  resource gpt-4", "- rpm: 60/60s", "+ rpm: 30/60s"]


# What any YAML is refused for is tested once, for policies: tests/service/policies/test_reading.py.
FAULTS = [
    ("", "1:1", "empty"),
    ("# nothing\n", "1:1", "empty"),
    ("{}\n", "1:1", "empty"),
    ("null\n", "1:1", "empty"),
    ("- a\n", "1:1", "mapping"),
    ("limits: {}\n", "1:1", "no key 'limits'"),
    ("system: {limits: [rpm:1/s]}\nsystem: {}\n", "2:1", "already on line 1"),
    ("system: {}\n", "1:9", "needs the key 'limits'"),
    ("system:\n  limits: [rpm:1/s, rpm:2/s]\n", "2:11", "twice"),
    ("system:\n  limits: []\n", "2:11", "1 to 16"),
    ("system: {limits: [lots]}\n", "1:19", "is not a limit"),
    ("system: {limits: [rpm:1/s], on_unavailable: no}\n", "1:45", "allow or block"),
    ("resources: {9pt: [rpm:1/s]}\n", "1:13", "must start with a letter"),
    ("resources: {gpt-4: 5}\n", "1:20", "must be a mapping"),
    ("resources: {gpt-4: {wcu: 5/s}}\n", "1:26", "reserved"),
    ("plans: {a:b: [rpm:1/s]}\n", "1:9", "must start with"),
    ("plans: {pro: {rpm: 1/s}}\n", "1:15", "no key 'rpm'"),
    ("plans: {pro: {limits: 5}}\n", "1:23", "mapping"),
    ("plans: {pro: 5}\n", "1:14", "mapping"),
    ("plans: {pro: []}\n", "1:14", "1 to 16"),
    ("entities: {a: {plan: a b}}\n", "1:22", "must start with"),
    ("entities: {a: {plan: [b]}}\n", "1:22", "must be text"),
    ("entities: {a#b: {}}\n", "1:12", "must start with"),
    ("entities:\n  a: {parnet: b}\n", "2:7", "no key 'parnet'"),
    ("entities: {a: {cascade: yes}}\n", "1:25", "true or false"),
    ("entities: {a: {name: ''}}\n", "1:22", "1 to 256"),
    ("entities: {a: {limits: 5}}\n", "1:24", "mapping"),
    ("system: [{name: rpm, capacity: 1}]\n", "1:10", "needs the key 'refill_amount'"),
    ("system: [{capacity: 1, refill_amount: 1, refill_period_seconds: 1}]\n", "1:10", "'name'"),
    ("resources: {gpt-4: {limits: [lots]}}\n", "1:30", "is not a limit"),
    ("resources: {gpt-4: [rpm:5/s hard]}\n", "1:21", "100/minute burst 150 soft"),
    (
        "entities: {a: {limits: {b: {rpm: {capacity: 1}}}}}\n",
        "1:34",
        "needs the key 'refill_amount'",
    ),
]


@pytest.mark.parametrize(("text", "place", "said"), FAULTS)
def test_faults_have_their_place(
    run: Any, tmp_path: Path, text: str, place: str, said: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    answer = run("limits", "plan", "-f", str(file))
    assert answer.code == 1
    assert any(f"{file}:{place}: " in line and said in line for line in answer.err.splitlines()), (
        answer.err
    )
    assert not (tmp_path / "limits.db").exists(), "a bad file reaches no store"


def test_all_faults_are_told_at_once(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("system: {limits: [lots]}\nresources: {9pt: [rpm:1/s]}\nentities: 5\n")
    assert run("limits", "plan", "-f", str(file)).err.count("bad.yaml:") == 3


def test_nothing_after_a_key_declares_nothing_and_names_may_look_like_numbers() -> None:
    findings = Findings("f")
    content = (
        b"\xef\xbb\xbfsystem: {limits: [rpm:1/s]}\nresources:\nentities: {12: , a: {parent: 12}}\n"
    )
    declaration = decode(content, findings)
    assert findings.broken is None
    assert list(declaration.levels) == [Level()]
    assert declaration.entities == {"12": {}, "a": {"parent_id": "12"}}


def test_a_file_that_is_too_large_is_not_read() -> None:
    findings = Findings("f")
    assert not decode(b"#" * (FILE_BYTES_MAX + 1), findings).levels
    assert "larger than" in str(findings.broken)


_yamlish = st.text("systemliresourcpx:- {}[]&*!\n'\"0", max_size=80)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode),
                 _yamlish.map(str.encode)))  # fmt: skip
def test_any_content_is_read_or_has_faults_with_a_place(content: bytes) -> None:
    findings = Findings("any.yaml")
    declaration = decode(content, findings)
    said = declaration.levels or declaration.entities
    assert said or findings.faults or b":" in content
    assert all(line >= 1 and column >= 1 for _, line, column, _ in findings.faults)


def test_parents_come_before_their_children_and_rings_end() -> None:
    said = {"c": "b", "b": "a", "a": "z", "x": "y", "y": "x"}
    declaration = Declaration({}, {name: {"parent_id": parent} for name, parent in said.items()})
    order = [change.entity_id for change in compute_changes(declaration, {}, {}).entities]
    assert sorted(order) == sorted(said)
    assert order.index("a") < order.index("b") < order.index("c")


def test_a_level_is_compared_by_its_limits_not_their_order(well: Any, tmp_path: Path) -> None:
    well("resource", "set-defaults", "gpt-4", "tpm:2/s", "rpm:1/s")
    file = tmp_path / "limits.yaml"
    file.write_text("resources: {gpt-4: [rpm:1/s, tpm:2/s]}\n")
    assert well("limits", "diff", "-f", str(file))["differ"] is False
