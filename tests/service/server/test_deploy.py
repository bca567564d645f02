"""The files in deploy/ say what the program understands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headgate.service.http.routes import ENDPOINTS
from headgate.service.policies.policies import Policies, check_content, check_file
from headgate.service.server.options import read_options

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
    assert serving.workers == 2
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
    assert (
        Path(__file__).parents[3] / compose["services"]["headgate"]["build"]["dockerfile"]
    ).exists()
