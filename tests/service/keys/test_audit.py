"""Whoever makes or revokes a key is found in the audit, wherever keys are kept; no digest is."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner

from headgate.cli.app import cli
from headgate.core.errors import StoreTrouble, Unreachable, ValidationError
from headgate.core.history import AuditEvent
from headgate.core.runtime import run as run_blocking
from headgate.repository import Repository
from headgate.service.http.asgi import Rest
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

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Program]:
        """A worker, which has looked at its keys once."""
        program = self.program()
        await program.start()
        await program.tick()
        yield program
        await program.close()

    def write(self, change: Callable[[Any], None]) -> None:
        """Changes the file by hand."""
        body = json.loads(self.file.read_text())
        change(body)
        self.file.write_text(json.dumps(body))

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
    async with setting.started() as program, setting.started() as twin:  # two workers
        await program.tick()
        new = {"scopes": ["check"], "namespace": "default", "name": "ci"}
        made = json.loads((await setting.ask(program, "POST", "/v1/keys", new)).content)
        for one in (program, twin, program):
            await one.tick()
        gone = await setting.ask(program, "DELETE", f"/v1/keys/{made['id']}")
        assert gone.status == 204
        for one in (twin, program, twin):
            await one.tick()
        found = await setting.told(program)
    assert made["key"].split("_", 2)[2] not in str(found)
    revoked, made, first = found
    assert {one.action for one in found} == {"keys_changed"}
    assert first.details["before"] is None
    [boss] = first.details["after"]["keys"]
    assert (boss["name"], boss["created_by"], boss["scopes"]) == (
        "boss", "setup", ["admin", "check", "read"]
    )  # fmt: skip
    assert made.details["before"]["keys"] == []
    [key] = made.details["after"]["keys"]  # what differs, and nothing else
    assert (key["created_by"], key["revoked_at"]) == (f"key:{setting.admin.key.id}", None)
    [before], [after] = revoked.details["before"]["keys"], revoked.details["after"]["keys"]
    assert before == key
    assert after["changed_by"] == f"key:{setting.admin.key.id}"
    assert after["revoked_at"] is not None
    assert revoked.details["after"]["count"] == 2
    assert all(map(no_digest, found))


async def test_changes_by_hand_and_while_the_service_is_down_are_found(setting: Setting) -> None:
    def grant(scope: str) -> list[dict[str, Any]]:
        return [{"san": "DNS:a.example", "scopes": [scope], "namespace": "default"}]

    for content in (
        None,
        {"keys": [], "certificates": grant("check")},
        None,  # the same again, in other words
        {"keys": [], "certificates": grant("admin")},
    ):
        text = content or json.loads(setting.file.read_text())
        setting.file.write_text(json.dumps(text, indent=None if content else 4))
        async with setting.started() as program:
            await program.tick()
            found = await setting.told(program)
    last, second, first = found
    assert first.details["after"]["count"] == 1
    assert second.details["before"]["digest"] == first.details["after"]["digest"]
    assert second.details["before"]["keys"][0]["id"] == setting.admin.key.id
    assert second.details["after"]["keys"] == []
    assert last.details["after"]["certificates"]["DNS:a.example"]["scopes"] == ["admin"]
    assert last.details["before"]["certificates"]["DNS:a.example"]["scopes"] == ["check"]
    assert last.principal == f"file:{setting.file}"


async def test_another_secret_under_the_same_id_is_told_without_either(setting: Setting) -> None:
    async with setting.started() as program:
        setting.write(lambda body: body["keys"][0].update(digest="sha256:" + "7" * 64))
        await program.tick()
        setting.file.write_text("keys: {")  # a broken file changes nothing
        await program.tick()
        changed, _ = await setting.told(program)
    assert changed.details["after"]["secrets_replaced"] == [setting.admin.key.id]
    assert no_digest(changed)
    assert "7" * 64 not in str(changed)


async def test_an_event_is_bounded(setting: Setting) -> None:
    one = {"digest": "sha256:" + "0" * 64, "scopes": ["check"], "namespace": "default"}
    many = [{"id": f"{number:012d}", **one} for number in range(SHOWN_MAX + 50)]
    async with setting.started() as program:
        setting.write(lambda body: body["keys"].extend(many))
        await program.tick()
        after = (await setting.told(program))[0].details["after"]
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
    away = AsyncMock(side_effect=trouble)
    catalog = program.service.repository.backend.catalog
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "register_namespace", away)
        for _ in range(3):
            await program.tick()
    assert away.await_count == 1  # not every second
    setting.clock.advance(AGAIN_MS)
    await program.tick()
    assert len(await setting.told(program)) == later
    await program.close()
    lines = [one for one in caplog.records if "not in the audit" in one.message]
    assert len(lines) == (0 if isinstance(trouble, StoreTrouble) else 1)


async def test_the_command_lists_them_and_callers_cannot(setting: Setting) -> None:
    async with setting.started() as program:
        for place, status in (("default", 200), (KEYS_NAMESPACE, 404)):
            said = await call(
                Rest(program), "GET", f"/v1/namespaces/{place}/audit", key=setting.admin.text,
                query="entity_id=$KEYS",
            )  # fmt: skip
            assert (said.status, said.json.get("items", [])) == (status, [])
    for more, names in (([], ["boss"]), (["abcdefghijkl"], [])):
        words = ["--url", setting.store, "audit", "list", *more, "--keys", "--json"]
        listed = CliRunner().invoke(cli, words)
        assert listed.exit_code == 0, listed.output
        found = [one["details"]["after"]["keys"] for one in json.loads(listed.stdout)["items"]]
        assert [key["name"] for keys in found for key in keys] == names


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
        await program.tick()
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
