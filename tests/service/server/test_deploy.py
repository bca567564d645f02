"""The files in deploy/ say what the program understands.

The dashboard and the alerts name metrics and labels that exist, and every metric is of use.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headgate.service.decide.problems import Code
from headgate.service.http.routes import ENDPOINTS
from headgate.service.keys.access import DenyReason
from headgate.service.metrics import ServiceMetrics
from headgate.service.policies.policies import Policies, ReloadResult, check_content, check_file
from headgate.service.server.options import read_options
from headgate.service.server.workers import worker_deaths

DEPLOY = Path(__file__).parents[3] / "deploy"
PATHS = {one.path for one in ENDPOINTS}


def kubernetes() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes/headgate.yaml").read_text())
    return {one["kind"]: one for one in documents}


def test_kubernetes_runs_the_program_as_it_wants_to_be_run() -> None:
    found = kubernetes()
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    serving = read_options([*container["args"], "--host", "0.0.0.0"], environment)
    assert serving.program.open_metrics
    assert serving.program.workers == 2
    assert serving.drain_s + 5 < pod["terminationGracePeriodSeconds"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in PATHS
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    for path in (environment["HEADGATE_KEYS"], environment["HEADGATE_POLICIES"]):
        assert str(Path(path).parent) in mounts
    assert not any("subPath" in one for one in container["volumeMounts"])


def test_kubernetes_understands_the_manifests() -> None:
    """By its own schema; what the schema does not know is an error."""
    for document in kubernetes().values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    broken = kubernetes()["Deployment"]
    broken["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def test_the_example_policies_are_good() -> None:
    data = kubernetes()["ConfigMap"]["data"]["policies.yaml"]
    assert isinstance(check_content(data.encode(), "configmap"), Policies)
    assert isinstance(check_file(DEPLOY / "policies.yaml"), Policies)


def test_compose_and_the_image_use_options_that_there_are() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    environment = compose["services"]["headgate"]["environment"]
    image = (DEPLOY / "Dockerfile").read_text()
    environment |= dict(re.findall(r"(HEADGATE_[A-Z_]+)=(\S+)", image))
    serving = read_options([], environment)
    assert (serving.host, serving.port) == ("0.0.0.0", 8080)
    assert serving.program.store == "redis://redis:6379/0"
    assert "/healthz" in image
    assert (DEPLOY.parent / compose["services"]["headgate"]["build"]["dockerfile"]).exists()


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
    values = {"type": Code, "because": DenyReason, "result": ReloadResult}
    for label, _, text in MATCHER.findall(query):
        if label in values and not text.startswith("$"):
            assert set(text.split("|")) <= {one.value for one in values[label]}


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
