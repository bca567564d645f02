"""Whoever makes or revokes a key is found in the audit, wherever keys are kept; no digest is."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli.app import cli
from headgate.core.errors import StoreTrouble, Unreachable, ValidationError
from headgate.core.history import AuditEvent
from headgate.core.runtime import run as run_blocking
from headgate.repository import Repository
from headgate.service.http.asgi import Rest
from headgate.service.http.deadlines import run_in_thread
from headgate.service.keys.access import KEYS_NAMESPACE
from headgate.service.keys.audit import AGAIN_MS, SHOWN_MAX
from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import Grant, KeyScope, mint
from headgate.service.program import Options, Program
from headgate.service.server.serve import make_key
from headgate.testing import FakeClock
from tests.service.http.kit import call, run

NARROW = Grant(frozenset({KeyScope.CHECK}), "default", "team-a:")
ALL = Grant(frozenset(KeyScope), "*")
DIGEST = re.compile(r"sha256|[0-9a-f]{64}")


def no_digest(told: object) -> bool:
    """The digest of the whole file is none of a key."""
    return not DIGEST.search(re.sub(r"['\"]digest['\"]: ['\"][0-9a-f]{64}['\"]", "", str(told)))


class Setting:
    """A service on a key file and a store that outlives it."""

    def __init__(self, root: Path, keys: str | None = None) -> None:
        self.file = root / "keys.json"
        self.clock = FakeClock()
        self.store = f"sqlite:///{root / 'store.db'}"
        self.keys = keys or str(self.file)
        self.admin = mint(ALL, name="boss", principal="setup", now_ms=5)

    def program(self) -> Program:
        return Program.build(Options(store=self.store, keys=self.keys), clock=self.clock)

    async def ticked(self, *programs: Program) -> None:
        for program in programs:
            await program.tick(run_in_thread)

    async def told(self, program: Program) -> list[AuditEvent]:
        """The newest event first."""
        backend = program.service.repository.backend
        home = await backend.catalog.get_namespace(KEYS_NAMESPACE)
        if home is None:
            return []
        return list(await backend.ledger.audit(home.id, "$KEYS", limit=100, before=None))

    async def ask(self, program: Program, method: str, path: str, body: Any = None) -> Any:
        return await call(Rest(program), method, path, body, key=self.admin.text)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    found = Setting(tmp_path)
    run_blocking(FileKeys(found.file, create=True).put(found.admin.key))
    return found


async def test_the_admin_endpoints_on_a_file_leave_before_and_after(setting: Setting) -> None:
    program, twin = setting.program(), setting.program()  # two workers
    await program.start()
    await twin.start()
    await setting.ticked(program, twin, program)
    new = {"scopes": ["check"], "namespace": "default", "name": "ci"}
    made = json.loads((await setting.ask(program, "POST", "/v1/keys", new)).content)
    await setting.ticked(program, twin, program)
    gone = await setting.ask(program, "DELETE", f"/v1/keys/{made['id']}")
    assert gone.status == 204
    await setting.ticked(twin, program, twin)
    await twin.close()
    found = await setting.told(program)
    await program.close()
    assert made["key"].split("_")[2] not in str(found)
    revoked, made, first = found
    assert {one.action for one in (revoked, made, first)} == {"keys_changed"}
    assert first.details["before"] is None
    [boss] = first.details["after"]["keys"]
    assert (boss["name"], boss["created_by"], boss["scopes"]) == (
        "boss", "setup", ["admin", "check", "read"]
    )  # fmt: skip
    assert made.details["before"]["keys"] == []
    [key] = made.details["after"]["keys"]  # what differs, and nothing else
    assert key["created_by"] == f"key:{setting.admin.key.id}"
    assert key["revoked_at"] is None
    [before], [after] = revoked.details["before"]["keys"], revoked.details["after"]["keys"]
    assert before == key
    assert after["changed_by"] == f"key:{setting.admin.key.id}"
    assert after["revoked_at"] is not None
    assert revoked.details["after"]["count"] == 2
    assert all(no_digest(one) for one in (revoked, made, first))


async def test_changes_by_hand_and_while_the_service_is_down_are_found(setting: Setting) -> None:
    for content in (
        None,
        {"keys": [], "certificates": [_certificate("DNS:a.example", "check")]},
        None,  # the same again, in other words
        {"keys": [], "certificates": [_certificate("DNS:a.example", "admin")]},
    ):
        if content is not None:
            setting.file.write_text(json.dumps(content))
        else:
            setting.file.write_text(json.dumps(json.loads(setting.file.read_text()), indent=4))
        program = setting.program()
        await program.start()
        await setting.ticked(program, program)
        found = await setting.told(program)
        await program.close()
    last, second, first = found
    assert first.details["after"]["count"] == 1
    assert second.details["before"]["digest"] == first.details["after"]["digest"]
    assert second.details["before"]["keys"][0]["id"] == setting.admin.key.id
    assert second.details["after"]["keys"] == []
    assert last.details["after"]["certificates"]["DNS:a.example"]["scopes"] == ["admin"]
    assert last.details["before"]["certificates"]["DNS:a.example"]["scopes"] == ["check"]
    assert last.principal == f"file:{setting.file}"


def _certificate(san: str, scope: str) -> dict[str, Any]:
    return {"san": san, "scopes": [scope], "namespace": "default"}


async def test_another_secret_under_the_same_id_is_told_without_either(setting: Setting) -> None:
    program = setting.program()
    await program.start()
    await setting.ticked(program)
    body = json.loads(setting.file.read_text())
    body["keys"][0]["digest"] = "sha256:" + "7" * 64
    setting.file.write_text(json.dumps(body))
    await setting.ticked(program)
    setting.file.write_text("keys: {")  # a broken file changes nothing
    await setting.ticked(program)
    found = await setting.told(program)
    await program.close()
    changed, _ = found
    assert changed.details["after"]["secrets_replaced"] == [setting.admin.key.id]
    assert no_digest(changed)
    assert "7" * 64 not in str(changed)


async def test_an_event_is_bounded(setting: Setting) -> None:
    program = setting.program()
    await program.start()
    await setting.ticked(program)
    body = json.loads(setting.file.read_text())
    body["keys"] += [
        {"id": f"{number:012d}", "digest": "sha256:" + "0" * 64, "scopes": ["check"],
         "namespace": "default"}
        for number in range(SHOWN_MAX + 50)
    ]  # fmt: skip
    setting.file.write_text(json.dumps(body))
    await setting.ticked(program)
    found = await setting.told(program)
    await program.close()
    after = found[0].details["after"]
    assert len(after["keys"]) == SHOWN_MAX
    assert (after["not_shown"], after["count"]) == (50, SHOWN_MAX + 51)


@pytest.mark.parametrize(
    ("trouble", "later"), [(Unreachable("away"), 1), (ValidationError("x", 1, "is wrong"), 0)]
)
async def test_a_store_that_is_away_is_told_later(
    setting: Setting, trouble: Exception, later: int, caplog: pytest.LogCaptureFixture
) -> None:
    program = setting.program()
    await program.start()
    asked = []

    async def away(*_: Any) -> Any:
        asked.append(_)
        raise trouble

    catalog = program.service.repository.backend.catalog
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "register_namespace", away)
        for _ in range(3):
            await setting.ticked(program)
    assert len(asked) == 1  # not every second
    setting.clock.advance(AGAIN_MS)
    await setting.ticked(program)
    found = await setting.told(program)
    await program.close()
    assert len(found) == later
    lines = [one for one in caplog.records if "not in the audit" in one.message]
    assert len(lines) == (0 if isinstance(trouble, StoreTrouble) else 1)


async def test_the_command_lists_them_and_callers_cannot(setting: Setting) -> None:
    program = setting.program()
    await program.start()
    await setting.ticked(program)
    seen = []
    for place in ("default", KEYS_NAMESPACE):
        path = f"/v1/namespaces/{place}/audit"
        said = await call(
            Rest(program), "GET", path, key=setting.admin.text, query="entity_id=$KEYS"
        )
        seen.append(len(json.loads(said.content)["items"]) if said.status == 200 else -1)
    await program.close()
    assert seen == [0, -1]
    listed = CliRunner().invoke(cli, ["--url", setting.store, "audit", "list", "--keys", "--json"])
    assert listed.exit_code == 0, listed.output
    [event] = json.loads(listed.stdout)["items"]
    assert event["details"]["after"]["keys"][0]["name"] == "boss"
    of_one = ["--url", setting.store, "audit", "list", "abcdefghijkl", "--keys", "--json"]
    assert json.loads(CliRunner().invoke(cli, of_one).stdout)["items"] == []


def trail(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"{file}.audit").read_text().splitlines()]


def test_the_file_has_a_trail_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    store = FileKeys(file, create=True)
    key = mint(NARROW, name="ci", principal="ann", now_ms=7000).key
    run_blocking(store.put(key))
    assert run_blocking(store.revoke(key.id, "bob", 9000))
    assert not run_blocking(store.revoke(key.id, "eve", 9999))  # changes nothing, and says nothing
    made, revoked = trail(file)
    assert (made["action"], made["principal"], made["before"]) == ("key_created", "ann", None)
    assert made["after"]["entity_prefix"] == "team-a:"
    assert made["at"] == "1970-01-01T00:00:07.000Z"
    assert (revoked["action"], revoked["principal"]) == ("key_revoked", "bob")
    assert revoked["before"] == made["after"]
    assert revoked["after"]["revoked_at"] == "1970-01-01T00:00:09.000Z"
    assert no_digest(trail(file))
    assert key.digest not in Path(f"{file}.audit").read_text()
    assert stat.S_IMODE(os.stat(f"{file}.audit").st_mode) == 0o600


def test_no_key_is_changed_without_its_line(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    store = FileKeys(file, create=True)
    Path(f"{file}.audit").mkdir()  # it cannot be written
    before = file.read_bytes()
    with pytest.raises(Unreachable, match="stay as they are"):
        run_blocking(store.put(mint(NARROW, now_ms=1).key))
    assert file.read_bytes() == before


def test_the_commands_name_who_ran_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("USER", "ada")
    file = tmp_path / "keys.json"
    assert make_key(["--keys", str(file)]) == 0
    assert make_key(["--keys", str(file), "--principal", "robot"]) == 0
    capsys.readouterr()
    done = CliRunner().invoke(cli, ["--principal", "eve", "keys", "make", "--keys", str(file)])
    assert done.exit_code == 0, done.output
    assert [line["principal"] for line in trail(file)] == ["cli:ada", "robot", "eve"]
    monkeypatch.delenv("USER")
    monkeypatch.delenv("LOGNAME", raising=False)
    assert make_key(["--keys", str(file)]) == 0
    assert trail(file)[-1]["principal"] == "cli"


def test_a_key_in_the_store_is_audited_there_by_command_and_by_endpoint(tmp_path: Path) -> None:
    """By a command in a process of its own, then by the service; the digest is in no event."""
    setting = Setting(tmp_path, "store")
    words = ["key", "--keys", "store", "--store", setting.store, "--principal", "ann",
             "--scopes", "check,read,admin", "--namespace", "*"]  # fmt: skip
    command = [sys.executable, "-m", "headgate.service", *words]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    async def flow() -> list[AuditEvent]:
        program = setting.program()
        await program.start()
        new = {"scopes": ["check"], "namespace": "default"}
        said = await call(Rest(program), "POST", "/v1/keys", new, key=text)
        made = json.loads(said.content)
        await call(Rest(program), "DELETE", f"/v1/keys/{made['id']}", key=text)
        await setting.ticked(program)
        await program.close()
        keys = await Repository.open(setting.store, namespace=KEYS_NAMESPACE)
        ids = (text.split("_")[1], made["id"])
        found = [event for one in ids for event in await keys.get_audit_events(one, 10)]
        await keys.close()
        return found

    first, revoked, made = run(flow())
    assert (first.principal, made.principal) == ("ann", f"key:{text.split('_')[1]}")
    assert first.details["before"] is None
    assert first.details["after"]["metadata"]["scopes"] == ["admin", "check", "read"]
    assert revoked.details["before"]["metadata"]["revoked_ms"] is None
    assert revoked.details["after"]["metadata"]["revoked_ms"] is not None
    assert first.details["after"]["metadata"]["$digest"] == "<hidden>"
    assert all(not DIGEST.search(str(one)) for one in (first, revoked, made))
