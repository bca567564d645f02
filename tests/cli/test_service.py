"""What a running service has and no store: keys, policies, health; and that the command reaches
whatever REST offers to an operator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.client.requests import RequestHead
from headgate.service.http.openapi import document
from headgate.service.http.routes import HOT, find_endpoint
from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import mint, parse_grant
from headgate.service.program import Options
from tests.cli.kit import Answer, invoke, told
from tests.client.kit import HANG_UP, problem, response, scripted, served

POLICIES = """
rate_limits:
  - {name: search, scope: user, resource: api.search, limit: 100/minute burst 150}
  - {name: whole, scope: user, limit: 1000/hour, shadow: true}
token_costs:
  - {endpoint: /export, tokens: 10}
"""
GRANTS = {"root": ("check,read,admin", "*"), "look": ("read", "*"), "home": ("admin", "default")}

Ask = Callable[..., Answer]


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    path = tmp_path / "policies.yaml"
    path.write_text(POLICIES)
    return path


@pytest.fixture
def ask(tmp_path: Path, policies: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """The command on a service with keys and policies, by one of the keys of GRANTS."""
    for name in ("HEADGATE_NAMESPACE", "HEADGATE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    path, texts = tmp_path / "keys.json", {}
    for name, (scopes, namespace) in GRANTS.items():
        made = mint(parse_grant(scopes.split(","), namespace), name=name, now_ms=0)
        asyncio.run(FileKeys(path, create=True).put(made.key))
        texts[name] = made.text
    options = Options(store="memory://", keys=str(path), policies=str(policies))
    with served(options) as running:

        def ask(*words: str, by: str = "root") -> Answer:
            monkeypatch.setenv("HEADGATE_API_KEY", texts.get(by, by))
            return invoke("-u", running.url, *words)

        yield ask


# --------------------------------------------------------------------------------------------------
# Every operation of REST, and a line of the command that reaches it: `EU` stands for the id of the
# namespace eu, `KEY` for that of a key. The lines run in this order.

LINES: dict[str, str] = {
    "PUT /v1/namespaces/{namespace}": "namespace register eu",
    "GET /v1/namespaces/{namespace}": "namespace show eu",
    "GET /v1/namespaces": "namespace list",
    "DELETE /v1/namespaces/{namespace}": "namespace delete eu",
    "GET /v1/deleted-namespaces": "namespace orphans",
    "POST /v1/deleted-namespaces/{namespace_id}/recover": "namespace recover EU",
    "DELETE /v1/deleted-namespaces/{namespace_id}": "namespace delete eu; namespace purge EU --yes",
    "POST /v1/namespaces/{namespace}/entities": "entity create acme",
    "GET /v1/namespaces/{namespace}/entities": "entity list",
    "GET /v1/namespaces/{namespace}/entities/{entity_id}": "entity show acme",
    "GET /v1/namespaces/{namespace}/entities/{entity_id}/children": "entity list --parent acme",
    "GET /v1/namespaces/{namespace}/buckets/{entity_id}": "entity show acme",
    "PATCH /v1/namespaces/{namespace}/entities/{entity_id}": "entity set-parent acme --none",
    "PUT /v1/namespaces/{namespace}/limits/system": "system set-defaults rpm:9/min",
    "GET /v1/namespaces/{namespace}/limits/system": "system get-defaults",
    "DELETE /v1/namespaces/{namespace}/limits/system": "system delete-defaults",
    "PUT /v1/namespaces/{namespace}/limits/resources/{resource}": "resource set-defaults a rpm:9/s",
    "GET /v1/namespaces/{namespace}/limits/resources/{resource}": "resource get-defaults a",
    "GET /v1/namespaces/{namespace}/limits/resources": "resource list",
    "DELETE /v1/namespaces/{namespace}/limits/resources/{resource}": "resource delete-defaults a",
    "PUT /v1/namespaces/{namespace}/limits/entities/{entity_id}/{resource}":
        "entity set-limits acme rpm:9/min -r a",
    "GET /v1/namespaces/{namespace}/limits/entities/{entity_id}/{resource}":
        "entity get-limits acme -r a",
    "GET /v1/namespaces/{namespace}/limits/entities": "entity list --with-limits a",
    "PUT /v1/namespaces/{namespace}/plans/{plan}": "plan set pro rpm:9/min",
    "GET /v1/namespaces/{namespace}/plans/{plan}": "plan get pro",
    "GET /v1/namespaces/{namespace}/plans": "plan list",
    "PUT /v1/namespaces/{namespace}/plans/{plan}/limits/{resource}": "plan set pro rpm:9/s -r a",
    "DELETE /v1/namespaces/{namespace}/plans/{plan}/limits/{resource}": "plan set pro --none -r a",
    "PUT /v1/namespaces/{namespace}/entities/{entity_id}/plan": "plan assign acme pro",
    "GET /v1/namespaces/{namespace}/plans/{plan}/entities": "entity list --plan pro",
    "DELETE /v1/namespaces/{namespace}/plans/{plan}": "plan delete pro --unassign --yes",
    "PUT /v1/namespaces/{namespace}/modes/{resource}": "resource enable a",
    "GET /v1/explain": "explain acme a",
    "POST /v1/ratelimit/peek": "check acme a rpm=1",
    "POST /v1/ratelimit/take": "check acme a rpm=1 --take",
    "POST /v1/namespaces/{namespace}/buckets/top-up": "entity top-up acme a rpm=1",
    "POST /v1/namespaces/{namespace}/buckets/reset": "entity reset acme a",
    "DELETE /v1/namespaces/{namespace}/limits/entities/{entity_id}/{resource}":
        "entity delete-limits acme -r a",
    "DELETE /v1/namespaces/{namespace}/entities/{entity_id}": "entity delete acme --yes",
    "GET /v1/namespaces/{namespace}/usage": "usage list",
    "GET /v1/namespaces/{namespace}/audit": "audit list",
    "GET /v1/policies": "policies show",
    "POST /v1/policies/reload": "policies reload",
    "POST /v1/keys": "keys create --name ci",
    "GET /v1/keys": "keys list",
    "DELETE /v1/keys/{key_id}": "keys revoke KEY --yes",
    "GET /readyz": "health",
}  # fmt: skip

# The command has no verb for these on a store, either: programs hold leases and charge.
OF_PROGRAMS = "for programs, which decide many at once, hold leases and charge; see headgate.client"
WITHOUT_VERB: dict[str, str] = {
    "POST /v1/ratelimit/check": "what take was called first: the same call",
    "POST /v1/ratelimit/batch": OF_PROGRAMS,
    "POST /v1/ratelimit/acquire": OF_PROGRAMS,
    "POST /v1/ratelimit/charge": OF_PROGRAMS,
    "POST /v1/leases": OF_PROGRAMS,
    "GET /v1/leases/{lease_id}": OF_PROGRAMS,
    "POST /v1/leases/{lease_id}/adjust": OF_PROGRAMS,
    "POST /v1/leases/{lease_id}/settle": OF_PROGRAMS,
    "POST /v1/leases/{lease_id}/release": OF_PROGRAMS,
    "GET /v1/namespaces/{namespace}/plans/{plan}/limits/{resource}": "a part of `plan get`",
    "GET /healthz": "for a supervisor: less than /readyz says, which `health` shows",
    "GET /metrics": "for Prometheus, in its own format",
    "GET /openapi.json": "for generators of clients",
}


def test_the_table_is_what_rest_offers() -> None:
    offered = {
        f"{method.upper()} {path}"
        for path, methods in document()["paths"].items()
        for method in methods
    }
    assert not LINES.keys() & WITHOUT_VERB.keys()
    assert LINES.keys() | WITHOUT_VERB.keys() == offered, "give it a verb, or say why it has none"


def test_every_operation_is_reached_by_its_line(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send = RequestHead.request

    def noted(self: RequestHead, method: str, path: str, body: bytes | None) -> bytes:
        sent.append(_operation(method, path.partition("?")[0]))
        return send(self, method, path, body)

    monkeypatch.setattr(RequestHead, "request", noted)
    ids: dict[str, str] = {}
    for operation, lines in LINES.items():
        for line in lines.split("; "):
            sent.clear()
            found = told_by(ask, *(ids.get(word, word) for word in line.split()))
            if line == "namespace show eu":
                ids["EU"] = found["id"]
            if line.startswith("keys create"):
                ids["KEY"] = found["id"]
        assert operation in sent, f"{line} asks for {sent}"


def _operation(method: str, path: str) -> str:
    if any((one.method, one.path) == (method, path) for one in HOT):
        return f"{method} {path}"
    return f"{method} {find_endpoint(path, method)[0].path}"


# --------------------------------------------------------------------------------------------------
# Keys.


def test_a_key_is_made_listed_and_revoked(ask: Ask) -> None:
    made = ask("keys", "create", "--scopes", "check,read", "--name", "ci", "--entity-prefix", "u:")
    text = made.out.strip()
    key_id = text.split("_")[1]
    assert made.out == f"{text}\n", "so that a script can keep it"
    assert ask("explain", "u:1", "a", by=text).code == 0
    listed = ask("keys", "list")
    assert "ci" in listed.out
    assert text not in listed.out
    [found] = [key for key in told_by(ask, "keys", "list")["items"] if key["id"] == key_id]
    assert found.pop("created_at")
    assert found == {
        "id": key_id, "name": "ci", "scopes": ["check", "read"], "namespace": "default",
        "entity_prefix": "u:", "created_by": found["created_by"], "revoked_at": None,
    }  # fmt: skip
    assert "add --yes" in ask("keys", "revoke", key_id).err
    assert told_by(ask, "keys", "revoke", key_id, "--yes") == {"revoked": key_id}
    assert "revoked, or" in ask("explain", "u:1", "a", by=text).err


def told_by(ask: Ask, *words: str) -> Any:
    answer = ask(*words, "--json")
    assert answer.code == 0, (words, answer)
    return answer.document


def test_the_namespace_of_a_key_is_that_of_the_line(ask: Ask) -> None:
    for given, expected in ((("-n", "eu"), "eu"), (("-n", "*"), "*"), ((), "default")):
        assert told_by(ask, *given, "keys", "create")["namespace"] == expected


def test_keys_are_listed_page_by_page(ask: Ask) -> None:
    first = ask("keys", "list", "--limit", "2")
    cursor = first.out.split("--cursor ")[1].strip().strip("'")
    ids = [
        key["id"]
        for page in (("--limit", "2"), ("--cursor", cursor))
        for key in told_by(ask, "keys", "list", *page)["items"]
    ]
    assert len(set(ids)) == len(ids) == len(GRANTS)


def test_the_secret_of_a_key_that_is_revoked_whole_is_sent_nowhere(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ask("keys", "create").out.strip()
    sent: list[str] = []
    send = RequestHead.request

    def noted(self: RequestHead, method: str, path: str, body: bytes | None) -> bytes:
        sent.append(path)
        return send(self, method, path, body)

    monkeypatch.setattr(RequestHead, "request", noted)
    assert ask("keys", "revoke", text, "--yes").out == f"revoked {text.split('_')[1]}\n"
    assert sent == [f"/v1/keys/{text.split('_')[1]}"]


# --------------------------------------------------------------------------------------------------
# Policies, and how the service stands.


def test_the_policies_in_force_and_a_change_of_their_file(ask: Ask, policies: Path) -> None:
    shown = ask("policies", "show", by="look").out
    for part in ("search", "api.search", "100/60s burst 150", "shadow", "/export", "else: tokens"):
        assert part in shown
    assert [one["name"] for one in told_by(ask, "policies", "show")["rate_limits"]] == [
        "search",
        "whole",
    ]
    assert "is the one in force" in ask("policies", "reload").out
    policies.write_text(POLICIES.replace("name: whole", "name: all"))
    assert ask("policies", "reload").out.startswith("loaded\n")
    assert "all" in ask("policies", "show").out


def test_a_broken_policy_file(ask: Ask, policies: Path) -> None:
    before = told_by(ask, "policies", "show")["digest"]
    policies.write_text("rate_limits:\n  - {nme: x}\n")
    refused = ask("policies", "reload")
    assert refused.code == 1
    assert "the policy file is broken" in refused.err
    assert f"{policies.name}:2:6: a rate limit has no key 'nme'" in refused.err
    assert "key 'capacity'; " in refused.err, "faults are told apart"
    assert "policies check" in refused.err
    shown = ask("policies", "show")
    assert shown.code == 0
    assert "the file is broken by now" in shown.out
    assert "has no key 'nme'" in shown.out
    assert told_by(ask, "policies", "show")["digest"] == before


def test_how_a_service_stands() -> None:
    with served() as running:
        shown = invoke("-u", running.url, "health")
        assert shown.out.splitlines()[0] == "HEALTHY"
        assert told("-u", running.url, "health")["ready"]
    ending = problem(503, "STORAGE_UNAVAILABLE")
    with scripted(ending) as script:
        answer = invoke("-u", script.url, "health")
        assert (answer.code, answer.out.splitlines()[0]) == (4, "UNHEALTHY")


# --------------------------------------------------------------------------------------------------
# What goes wrong, in plain words: the line, by which key, the exit code and what is said.

WRONG = [
    ("keys list", "", 1, "the service needs a key", "HEADGATE_API_KEY is not set"),
    ("keys list", "hg_aaaaaaaaaaaa_x", 1, "does not know this key", "mistyped"),
    ("keys list", "look", 1, "does not let this key do that", "needs the scope 'admin'"),
    ("policies reload", "look", 1, "does not let this key do that", "needs the scope 'admin'"),
    ("policies show", "home", 1, "does not reach the policies", "('*') with the scope read"),
    ("policies reload", "home", 1, "does not reach the policies", "('*') with the scope admin"),
    ("-n * keys create", "home", 1, "would reach further than yours", "this is for *"),
    ("-n eu keys create", "home", 1, "would reach further than yours", "this is for eu"),
    ("keys create --scopes check,run", "root", 2, "scopes[1] must be", "'check'"),
    ("-n a/b keys create", "root", 2, "namespace must be", "--help"),
    ("keys revoke aaaaaaaaaaaa -y", "root", 1, "there is no such key", "headgate keys list"),
    ("keys revoke nonsense -y", "root", 2, "follow hg_ in the key", "--help"),
    ("keys revoke hg_secret_thing -y", "root", 2, "follow hg_ in the key", "--help"),
    ("audit list --keys", "root", 2, "--keys is for stores", "the store's own URL"),
    ("keys make --keys store", "root", 2, "--url names a service", "headgate keys create"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "by", "code", "what", "more"), WRONG)
def test_what_goes_wrong(ask: Ask, line: str, by: str, code: int, what: str, more: str) -> None:
    answer = ask(*line.split(), by=by)
    assert answer.code == code, answer
    assert what in answer.err
    assert more in answer.err
    assert "thing" not in answer.err, "a secret"


REVOKE = f"keys revoke {'a' * 12} -y"
ASKED = ("keys list", "keys create", REVOKE, "policies show", "policies reload")
INSTEAD = {
    "keys list": "headgate keys make", "keys create": "headgate keys make --keys store",
    REVOKE: "headgate keys make", "policies show": "headgate policies check FILE",
    "policies reload": "headgate policies check FILE", "health": "headgate version --store",
}  # fmt: skip


@pytest.mark.parametrize(("line", "advice"), INSTEAD.items())
def test_a_store_says_what_to_do_instead(
    line: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    store = tmp_path / "limits.db"
    answer = invoke("-u", f"sqlite:///{store}", *line.split())
    assert answer.code == 2
    assert "this is asked of a running service" in answer.err
    assert advice in answer.err
    assert not store.exists()
    unnamed = invoke(*line.split())
    assert unnamed.code == 2
    assert "--url https://limits.example.com" in unnamed.err


def test_a_service_without_keys_and_policies() -> None:
    with served() as running:
        for line in ASKED[:3]:
            answer = invoke("-u", running.url, *line.split())
            assert answer.code == 1
            assert "the service has no keys" in answer.err
            assert "start it with --keys" in answer.err
        assert "without a policy file" in invoke("-u", running.url, "policies", "show").out
        answer = invoke("-u", running.url, "policies", "reload")
        assert answer.code == 1
        assert "start it with --policies FILE" in answer.err


@pytest.mark.parametrize("line", [*ASKED, "health", "entity show a", "namespace show eu"])
def test_a_wrong_url(line: str) -> None:
    with served() as running:
        answer = invoke("-u", f"{running.url}/elsewhere", *line.split())
        assert (answer.code, "see that --url is the service's" in answer.err) == (1, True), answer
    gone = invoke("-u", "http://127.0.0.1:1", *line.split())
    assert (gone.code, "gave no answer" in gone.err) == (4, True)


PAGE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-type: text/html\r\n\r\n<br>"


@pytest.mark.parametrize("line", ["keys list", "keys create", "policies show", "entity list"])
def test_another_server_is_there(line: str) -> None:
    """One that answers everything, and one that knows no such page."""
    for said in (PAGE, response(200, {"hello": "world"}), response(404, {"error": "no page"})):
        with scripted(said) as script:
            answer = invoke("-u", script.url, *line.split())
            assert answer.code == 1, answer
            assert "no headgate service answers there" in answer.err


def test_a_lost_answer_to_keys_create() -> None:
    with scripted(HANG_UP) as script:
        answer = invoke("-u", script.url, "keys", "create", "--json")
        assert answer.code == 4
        assert len(script.requests) == 1, "it is not sent again"
    error = json.loads(answer.out)["error"]
    assert "whether it was carried out is not known" in error["why"]
    assert "keys list shows whether it was made" in error["do"]
