"""The dashboard and the alerts name metrics and labels that exist, and every metric is of use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.service.decide.problems import Code
from headgate.service.keys.access import DenyReason
from headgate.service.metrics.service import ServiceMetrics
from headgate.service.policies.watch import ReloadResult
from headgate.service.server.workers import worker_deaths

DEPLOY = Path(__file__).parents[3] / "deploy"
NAME = re.compile(r"headgate_[a-z_]+")
SELECTED = re.compile(r"(headgate_[a-z_]+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|=)\s*"([^"]*)"')
GROUPED = re.compile(r"by \(([^)]*)\)")
OUTSIDE = {"job", "instance"}  # what Prometheus adds


def _exposed() -> dict[str, set[str]]:
    """Every name that can be asked for, with its labels."""
    found: dict[str, set[str]] = {}
    for family in (*ServiceMetrics().families, worker_deaths()):
        if family.kind == "histogram":
            found[f"{family.name}_bucket"] = {*family.labels, "le"}
            found[f"{family.name}_sum"] = found[f"{family.name}_count"] = set(family.labels)
        else:
            found[family.name] = set(family.labels)
    return found


def _rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def _dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return loaded


def _dashboard_queries() -> list[str]:
    board = _dashboard()
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    variables = board["templating"]["list"]
    return targets + [one["definition"] for one in variables if "definition" in one]


QUERIES = [*(rule["expr"] for rule in _rules()), *_dashboard_queries()]


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_queries_name_what_exists(query: str) -> None:
    known = _exposed()
    names = NAME.findall(query)
    assert names
    assert set(names) <= set(known)
    labels = set().union(*(known[name] for name in names)) | OUTSIDE
    for group in GROUPED.findall(query):
        assert {label.strip() for label in group.split(",")} <= labels
    for name, inner in SELECTED.findall(query):
        assert {label for label, _, _ in MATCHER.findall(inner)} <= known[name] | OUTSIDE
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_label_values_in_queries_exist(query: str) -> None:
    values = {
        "type": {code.value for code in Code},
        "because": {because.value for because in DenyReason},
        "result": {result.value for result in ReloadResult},
    }
    for label, _, text in MATCHER.findall(query):
        if label in values and not text.startswith("$"):
            assert set(text.split("|")) <= values[label]


def test_every_metric_is_looked_at_somewhere() -> None:
    seen = {name for query in QUERIES for name in NAME.findall(query)}
    for family in (*ServiceMetrics().families, worker_deaths()):
        assert any(name.startswith(family.name) for name in seen), family.name


def test_alerts_say_what_people_need() -> None:
    rules = _rules()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert re.fullmatch(r"[0-9]+m", rule["for"])


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    panels = _dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
