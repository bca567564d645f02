"""The files in deploy/ say what the program understands.

The dashboard and the alerts name metrics and labels that exist, and every metric is of use.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import kubernetes_validate
import pytest
import yaml

from headgate.service.decide.problems import Code
from headgate.service.http.routes import ENDPOINTS
from headgate.service.keys.access import DenyReason
from headgate.service.keys.file import FileKeys
from headgate.service.metrics import ServiceMetrics
from headgate.service.policies.policies import Policies, ReloadResult, check_content, check_file
from headgate.service.server.options import OptionError, read_options
from headgate.service.server.serve import main, side_server_of
from headgate.service.server.workers import worker_deaths
from tests.service.server.kit import program, run_main

DEPLOY = Path(__file__).parents[3] / "deploy"
HOW_TO = DEPLOY.parent / "docs/how-to/run-the-service.md"
PATHS = {one.path for one in ENDPOINTS}
PROGRAM = ["python", "-m", "headgate.service"]


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


def image() -> str:
    """The Dockerfile, a command per line."""
    return (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_the_images_user_can_read_what_compose_mounts() -> None:
    """A key file is its maker's alone. So the image's user makes it, in a volume that starts as a
    copy of a directory which that user owns; and what is mounted from here anybody may read."""
    service = compose()["services"]["headgate"]
    assert "USER 10001" in image()
    owned = set(re.findall(r"/\w+", re.search(r"chown headgate ([^&\n]+)", image())[1]))  # type: ignore[index]
    mounts = [one.split(":") for one in service["volumes"]]
    volumes = {target for source, target, *_ in mounts if source in compose()["volumes"]}
    keys = service["environment"]["HEADGATE_KEYS"]
    assert str(Path(keys).parent) in volumes & owned
    assert str(Path(keys).parent) not in service["tmpfs"], "it would be gone after the command"
    for source, _, *rest in (one for one in mounts if one[0].startswith(".")):
        assert (DEPLOY / source).is_file(), "docker would make a directory of it"
        assert rest == ["ro"]
        assert (DEPLOY / source).stat().st_mode & 0o004, source


@pytest.mark.parametrize("where", [DEPLOY / "compose.yaml", HOW_TO], ids=lambda one: one.name)
def test_the_quickstart_makes_the_key_that_the_service_uses(where: Path, tmp_path: Path) -> None:
    """The command of the quickstart, with the volume's place on this machine."""
    [line] = re.findall(
        r"docker compose .* run --rm --no-deps headgate (key .*)", where.read_text()
    )
    environment = compose()["services"]["headgate"]["environment"]
    keys, here = environment["HEADGATE_KEYS"], tmp_path / "keys.json"
    arguments = [str(here) if one == keys else one for one in shlex.split(line)]
    assert str(here) in arguments, "the file that the service is told to read"
    assert main(arguments) == 0
    [key] = FileKeys(here).state().keys.values()
    assert key.grant.scopes == {"check", "read", "admin"}
    assert key.grant.namespace == "*"


def test_the_image_has_what_spans_need() -> None:
    [install] = [line for line in image().splitlines() if "pip install" in line]
    assert re.search(r"'\.\[[a-z,]*\botel\b", install)
    for package in ("opentelemetry-distro", "opentelemetry-exporter-otlp"):
        assert package in install
    assert "--entrypoint opentelemetry-instrument" in HOW_TO.read_text()


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"(HEADGATE_[A-Z_]+)=(\S+)", image()))


def test_what_the_quickstart_starts_serves_and_is_healthy(tmp_path: Path) -> None:
    """The image's command with compose's environment, but for places and ports that are not this
    machine's: a key that its command made opens it, and the health check tells whether it runs."""
    assert json.loads(re.search(r"ENTRYPOINT (.*)", image())[1]) == PROGRAM  # type: ignore[index]
    check = json.loads(re.search(r"HEALTHCHECK .*CMD (\[.*\])", image())[1])  # type: ignore[index]
    keys = tmp_path / "keys.json"
    [line] = re.findall(r"headgate (key .*)", (DEPLOY / "compose.yaml").read_text())
    made = run_main(*shlex.split(line.replace("/keys/keys.json", str(keys))))
    secret = re.search(r"hg_\S+", made.stdout)
    assert secret is not None
    given = {**image_environment(), **compose()["services"]["headgate"]["environment"]}
    here = {
        "HEADGATE_HOST": "127.0.0.1", "HEADGATE_KEYS": str(keys), "HEADGATE_STORE": "memory://",
        "HEADGATE_POLICIES": str(DEPLOY / "policies.yaml"), "HEADGATE_GRPC_PORT": "0",
        "HEADGATE_DATA_DIR": str(tmp_path),
    }  # fmt: skip
    assert here.keys() <= given.keys()

    def health(port: int) -> int:
        words = [one.replace(":8080/", f":{port}/") for one in check[1:]]
        assert words != check[1:]
        return subprocess.run(
            [sys.executable, *words], stderr=subprocess.DEVNULL, timeout=30, check=False
        ).returncode

    with program(**{**given, **here}) as running:
        assert health(running.port) == 0
        request = urllib.request.Request(
            f"{running.url}/v1/ratelimit/take",
            json.dumps({"identifier": "ann", "resource": "api.search"}).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {secret[0]}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["tokens_capacity"] == 1000, "as the example policy says"
        assert running.end() == 0
        assert health(running.port) != 0


def test_what_the_page_tells_to_run_in_a_container_has_keys() -> None:
    """The image listens to everybody, so without keys the program would not start."""
    text = HOW_TO.read_text().replace("\\\n", " ")
    commands = re.findall(r"^docker .*\brun .*python -m headgate\.service.*$", text, re.MULTILINE)
    assert commands
    for command in commands:
        environment = image_environment() | dict(re.findall(r"-e (HEADGATE_\w+)=(\S+)", command))
        if "compose -f deploy/compose.yaml" in command:
            environment |= compose()["services"]["headgate"]["environment"]
        read_options(shlex.split(command.partition("headgate.service")[2]), environment)


def test_grpc_is_reached_wherever_the_service_runs() -> None:
    service = compose()["services"]["headgate"]
    port = service["environment"]["HEADGATE_GRPC_PORT"]
    assert f"127.0.0.1:{port}:{port}" in service["ports"]
    assert port in re.findall(r"EXPOSE (.*)", image())[0].split()
    found = kubernetes()
    [container] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"http": 8080, "grpc": int(environment["HEADGATE_GRPC_PORT"])}
    offered = {one["name"]: one["targetPort"] for one in found["Service"]["spec"]["ports"]}
    assert offered == {"http": "http", "grpc": "grpc"}


@pytest.mark.parametrize("given", ["true", "false", None])
def test_reflection_is_switched_by_an_option(given: str | None) -> None:
    arguments = [] if given is None else ["--grpc-reflection", given]
    for serving in (
        read_options(["--grpc-port", "0", *arguments], {}),
        read_options([], {"HEADGATE_GRPC_PORT": "0", "HEADGATE_GRPC_REFLECTION": given or "0"}),
    ):
        with patch("headgate.service.grpc.guard.GrpcSettings") as settings:
            side_server_of(serving, Mock())
        assert settings.call_args.kwargs["reflection"] is (given == "true")
    if given == "true":
        with pytest.raises(OptionError, match="--grpc-port"):
            read_options(arguments, {})


def test_compose_and_the_image_use_options_that_there_are() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    environment = compose["services"]["headgate"]["environment"]
    serving = read_options([], environment | image_environment())
    assert (serving.host, serving.port) == ("0.0.0.0", 8080)
    assert serving.program.store == "redis://redis:6379/0"
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
