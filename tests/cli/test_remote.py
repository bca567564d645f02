"""The command on a service: what REST offers is told as on the store itself."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import mint, parse_grant
from headgate.service.program import Options
from tests.cli.kit import invoke
from tests.cli.test_story import STORY
from tests.client.kit import served

# What REST has no verb for: it is about the installation, or about the store as a whole.
OF_STORES = (
    "version", "cfn-template", "lambda-export", "cost", "bench", "upgrade", "trim", "limits",
    "export", "import", "top", "completion",
)  # fmt: skip
UNLIKE = re.compile(
    r'"(created_at|deleted_at|reset_at|timestamp|event_id|id|eu|deleted|purged|principal)": "[^"]*"'
    r'|"[a-z_]*window_(start|end)": "[^"]*"|"created_ms": [0-9]+'
)
LINES = [line for line, _ in STORY if line.split()[0] not in OF_STORES]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("HEADGATE_NAMESPACE", raising=False)
    with served(Options(store=f"sqlite:///{tmp_path}/remote.db")) as running:
        yield running.url


def tell(url: str) -> list[tuple[str, str]]:
    """The lines of the story, and what the command said to each."""
    found, eu = [], ""
    for line in LINES:
        words = [eu if word == "EU" else word for word in line.split()]
        answer = invoke("-u", url, "--json", *words)
        assert answer.code == 0, (line, answer)
        told = str(answer.document["allowed"]) if words[0] == "check" else answer.out
        if line == "usage list":  # their clocks differ, and in its first hour a day begins with it
            items = [UNLIKE.sub("", json.dumps(one)) for one in answer.document["items"]]
            told = "\n".join(sorted(items))
        found.append((line, UNLIKE.sub("", told)))
        if line == "namespace register eu":
            eu = invoke("-u", url, "namespace", "show", "eu", "--json").document["id"]
    return found


def test_a_service_answers_as_its_store_does(service: str, tmp_path: Path) -> None:
    assert dict(tell(service)) == dict(tell(f"sqlite:///{tmp_path}/store.db"))


def test_a_check_and_a_take_by_amounts(service: str) -> None:
    invoke("-u", service, "resource", "set-defaults", "gpt-4", "rpm:2/min", "tpm:100/min")
    check = ("-u", service, "check", "key-1", "gpt-4", "rpm=1", "tpm=60", "--json")
    for _ in range(2):
        assert invoke(*check).document["allowed"], "a check takes nothing"
    taken = invoke(*check, "--take").document
    assert (taken["allowed"], taken["degraded"]) == (True, False)
    left = {one["capacity"]: one["available"] for one in taken["limits"]}
    assert left == {2: 1, 100: 40}
    refused = invoke(*check, "--take")
    assert refused.code == 3
    assert 11_000 < refused.document["retry_after_ms"] <= 12_000
    assert "limited; retry after" in invoke(*check[:-1]).out
    assert invoke(*check, "--limit", "rpm:9/min").code == 2
    unknown = invoke("-u", service, "check", "key-1", "gpt-4", "tokens=1")
    assert unknown.code == 2
    assert "rpm, tpm" in unknown.err


def test_who_was_never_registered_is_switched_as_on_a_store(service: str) -> None:
    assert invoke("-u", service, "entity", "disable", "user:abuser").code == 0
    shown = invoke("-u", service, "entity", "show", "user:abuser", "--json").document
    assert shown["entity"]["mode"] == "disabled"
    assert invoke("-u", service, "entity", "enable", "user:abuser").code == 0


def test_what_rest_has_not_says_what_to_do(service: str) -> None:
    for line in ("upgrade", "trim --usage-days 9 --yes", "top --once", "export"):
        answer = invoke("-u", service, *line.split())
        assert answer.code == 2, answer
        assert f"headgate {line.split()[0]} works on the store itself" in answer.err
        assert "give the store's own URL" in answer.err
        assert "Traceback" not in answer.err


def test_who_changes_something_is_the_key(service: str) -> None:
    answer = invoke("-u", service, "--principal", "ann", "entity", "create", "a")
    assert answer.code == 2
    assert "the API key that asks" in answer.err


def test_no_service_there() -> None:
    answer = invoke("-u", "http://127.0.0.1:1", "entity", "list")
    assert answer.code == 4
    assert "the service gave no answer" in answer.err


def test_the_key_is_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {scope: mint(parse_grant([scope], "default"), now_ms=0) for scope in ("read", "admin")}
    path = tmp_path / "keys.json"
    for one in made.values():
        asyncio.run(FileKeys(path, create=True).put(one.key))
    with served(Options(store="memory://", keys=str(path))) as running:
        assert invoke("-u", running.url, "entity", "list").code == 1
        monkeypatch.setenv("HEADGATE_API_KEY", made["read"].text)
        assert invoke("-u", running.url, "entity", "list").code == 0
        refused = invoke("-u", running.url, "entity", "create", "a")
        assert refused.code == 1
        assert "HEADGATE_API_KEY" in refused.err
        monkeypatch.setenv("HEADGATE_API_KEY", made["admin"].text)
        assert invoke("-u", running.url, "entity", "create", "a").code == 0
