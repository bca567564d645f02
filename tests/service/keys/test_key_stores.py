"""One contract for every shelf, and what is particular to the file and the store."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from headgate.core.errors import Unreachable, ValidationError
from headgate.core.levels import Entity
from headgate.declare.yaml_fields import InvalidFile
from headgate.repository import open_backend
from headgate.service.keys import file as keys_file
from headgate.service.keys.access import KEYS_NAMESPACE, KeyStore
from headgate.service.keys.file import FileKeys, KeyFileError, decode_keys
from headgate.service.keys.key import Grant, Key, KeyScope, mint
from headgate.service.keys.stored import StoredKeys
from headgate.service.policies import policies as policies_file
from headgate.transport.gates import steady_clock

WIDE = Grant(frozenset(KeyScope), "*")
NARROW = Grant(frozenset({KeyScope.CHECK}), "default", "team-a:")


def _catalog(url: str) -> StoredKeys:
    backend = open_backend(url, blocking=False)
    asyncio.run(backend.catalog.prepare())
    return StoredKeys(backend.catalog, steady_clock())


SHELVES: dict[str, Callable[[Path], KeyStore]] = {
    "file": lambda root: FileKeys(root / "keys.json", create=True),
    "catalog-memory": lambda root: _catalog("memory://"),
}


@pytest.fixture(params=SHELVES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    return SHELVES[request.param](tmp_path)


def fresh(grant: Grant = NARROW, now_ms: int = 7) -> Key:
    return mint(grant, name="for tests", principal="ann", now_ms=now_ms).key


def test_what_is_put_is_found_whole(store: KeyStore) -> None:
    for grant in (NARROW, WIDE):
        key = fresh(grant)
        asyncio.run(store.put(key))
        assert asyncio.run(store.get(key.id)) == key
    assert asyncio.run(store.get("nobodynobody")) is None


def test_an_id_is_taken_once(store: KeyStore) -> None:
    key = fresh()
    asyncio.run(store.put(key))
    with pytest.raises(ValidationError, match="taken"):
        asyncio.run(store.put(Key(key.id, fresh().digest, WIDE)))
    assert asyncio.run(store.get(key.id)) == key


def test_revoking_is_for_good_and_says_who(store: KeyStore) -> None:
    key = fresh()
    asyncio.run(store.put(key))
    assert asyncio.run(store.revoke(key.id, "bob", 99)) is True
    found = asyncio.run(store.get(key.id))
    assert found is not None
    assert (found.revoked_ms, found.changed_by, found.created_by) == (99, "bob", "ann")
    assert asyncio.run(store.revoke(key.id, "eve", 100)) is False
    assert asyncio.run(store.get(key.id)) == found
    assert asyncio.run(store.revoke("nobodynobody", "eve", 100)) is False


def test_pages(store: KeyStore) -> None:
    assert asyncio.run(store.list_keys(limit=5)) == ([], None)
    keys = [fresh() for _ in range(7)]
    for key in keys:
        asyncio.run(store.put(key))
    seen: list[Key] = []
    cursor = None
    for _ in range(4):
        page, cursor = asyncio.run(store.list_keys(limit=3, cursor=cursor))
        assert len(page) <= 3
        seen += page
        if cursor is None:
            break
    assert seen == sorted(keys, key=lambda key: key.id)


def test_a_key_file_is_for_its_owner_holds_no_secret_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    store = FileKeys(path, create=True)
    minted = mint(NARROW, now_ms=1)
    asyncio.run(store.put(minted.key))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert minted.text.split("_", 2)[2] not in path.read_text()
    beside = ["keys.json", "keys.json.audit", "keys.json.lock"]
    assert sorted(one.name for one in tmp_path.iterdir()) == beside
    monkeypatch.setattr(keys_file, "KEYS_MAX", 1)
    with pytest.raises(ValidationError, match="as many as fit"):
        asyncio.run(store.put(fresh()))


def test_whoever_writes_holds_the_lock_from_the_reading_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    store = FileKeys(path, create=True)
    real = policies_file.read_stable
    held = []

    def read(path: str) -> object:
        with open(f"{path}.lock") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
            else:
                held.append(False)
        return real(path)

    monkeypatch.setattr(policies_file, "read_stable", read)
    asyncio.run(store.put(fresh()))
    assert held == [True, False], "while it changes the file, not while it looks afterwards"


def test_who_starts_while_the_file_is_broken_has_the_last_good_keys(tmp_path: Path) -> None:
    path, copy = tmp_path / "keys.json", tmp_path / "copy"
    first = FileKeys(path, create=True, last_good=str(copy))
    key, later = fresh(), fresh()
    asyncio.run(first.put(key))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    good = path.read_text()
    path.write_text("keys: [")
    with pytest.raises(KeyFileError):
        FileKeys(path)
    second = FileKeys(path, last_good=str(copy))
    assert asyncio.run(second.get(key.id)) == key
    assert second.trouble is not None
    path.write_text(good)
    asyncio.run(second.put(later))
    assert second.trouble is None
    assert asyncio.run(first.get(later.id)) == later


def test_writers_of_several_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    FileKeys(path, create=True)
    code = (
        "import asyncio, sys\n"
        "from headgate.service.keys.key import Grant, KeyScope, mint\n"
        "from headgate.service.keys.file import FileKeys\n"
        "store = FileKeys(sys.argv[1])\n"
        "for _ in range(8):\n"
        "    key = mint(Grant(frozenset({KeyScope.READ}), '*'), now_ms=0).key\n"
        "    asyncio.run(store.put(key))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    keys, _ = asyncio.run(FileKeys(path).list_keys(limit=100))
    assert len(keys) == 16


def test_a_write_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip  # noqa: E501
    """Which is for its owner before anything is in it."""
    path = tmp_path / "keys.json"
    modes = []
    real = os.fchmod

    def chmod(file: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(file).st_mode))
        real(file, mode)

    monkeypatch.setattr(os, "fchmod", chmod)
    before = os.umask(0)
    try:
        store = FileKeys(path, create=True)
    finally:
        os.umask(before)
    assert modes == [0o600]
    content = path.read_bytes()
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unreachable, match="No space left"):
        asyncio.run(store.put(fresh()))
    assert path.read_bytes() == content


def test_a_broken_file_keeps_the_keys_is_told_and_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    store = FileKeys(path, create=True)
    key = fresh()
    asyncio.run(store.put(key))
    path.write_text("keys: [")
    with monkeypatch.context() as patched:
        read = Mock(wraps=policies_file.read_stable)
        patched.setattr(policies_file, "read_stable", read)
        for _ in range(5):
            assert asyncio.run(store.get(key.id)) == key
        assert read.call_count == 2, "once more when it has settled, but not for every request"
    assert store.trouble is not None
    with pytest.raises(KeyFileError):
        asyncio.run(store.put(fresh()))
    assert path.read_text() == "keys: ["
    with pytest.raises(KeyFileError):
        FileKeys(path)
    path.write_text("keys: []")
    assert asyncio.run(store.get(key.id)) is None, "taken out of a good file, it is gone"
    assert store.trouble is None
    path.unlink()
    assert asyncio.run(store.get(key.id)) is None
    assert store.trouble is not None


def test_a_second_write_within_one_tick_of_the_time_stamp_is_seen(tmp_path: Path) -> None:
    """Somebody takes a right away, in a file that looks as it did before."""
    path = tmp_path / "keys.json"
    store = FileKeys(path, create=True)
    for scope in ("admin", "check"):
        path.write_text(json.dumps({"keys": [GOOD | {"scopes": [scope]}]}))
        os.utime(path, ns=(5, 5))
        key = asyncio.run(store.get("a" * 12))
        assert key is not None
        assert key.grant.scopes == {scope}


def test_a_file_written_by_hand(tmp_path: Path) -> None:
    minted = mint(NARROW, now_ms=0)
    path = tmp_path / "keys.yaml"
    path.write_text(
        f"""\
# made with: headgate keys mint
keys:
  - id: "{minted.key.id}"
    digest: "{minted.key.digest}"
    name: checkout
    scopes: [check]
    namespace: default
    entity_prefix: "team-a:"
certificates:
  - {{san: "DNS:Checkout.internal", scopes: [check, read], namespace: "*"}}
"""
    )
    store = FileKeys(path)
    found = asyncio.run(store.get(minted.key.id))
    assert found is not None
    assert (found.digest, found.grant, found.name) == (minted.key.digest, NARROW, "checkout")
    wide = Grant(frozenset({KeyScope.CHECK, KeyScope.READ}), "*")
    assert store.certificates == {"DNS:checkout.internal": wide}
    asyncio.run(store.put(fresh()))
    assert store.certificates == {"DNS:checkout.internal": wide}, "writing keys keeps the rest"


SECRET = mint(NARROW, now_ms=0).text
GOOD = {"id": "a" * 12, "digest": "sha256:" + "0" * 64, "scopes": ["check"], "namespace": "n1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": SECRET}, "id is <not shown>; it must be the 12 letters"),
        ({"digest": SECRET}, "digest is <not shown>; it must be 'sha256:'"),
        ({"secret": SECRET}, "a key has no key <not shown>"),
        ({SECRET: 1}, "a key has no key <not shown>"),
        ({"name": SECRET}, "name is <not shown>; it holds a key"),
        ({"scopes": ["check", "root"]}, "scopes must be one or more of"),
        ({"scopes": []}, "scopes must be one or more of"),
        ({"scopes": "check"}, "scopes must be a list, not text"),
        ({"scopes": [True]}, "a scope must be text"),
        ({"scopes": ["check"] * 4}, "scopes has 4 entries; at most 3"),
        ({"namespace": "a b"}, "namespace must start with"),
        ({"namespace": 5}, "namespace must be text"),
        ({"entity_prefix": "#"}, "entity_prefix must be the beginning"),
        ({"created_ms": 1.5}, "created_ms is <not shown>; it must be a whole number"),
        ({"revoked_ms": 2**53 - 1}, "revoked_ms is <not shown>; it must be a whole number"),
        ({"created_by": "x" * 257}, "created_by is <not shown>; it must be at most 256 characters"),
    ],
    ids=range(16),
)
def test_key_files_that_are_refused_do_not_tell_what_they_hold(
    change: dict[str, object], said: str
) -> None:
    found = decode_keys(json.dumps({"keys": [GOOD | change]}).encode(), "keys.json")
    assert isinstance(found, InvalidFile)
    assert said in str(found)
    assert str(found).startswith("keys.json:1:")
    assert SECRET not in str(found) + repr(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keys: 5",
        "other: []",
        json.dumps({"keys": [GOOD, GOOD]}),
        json.dumps({"keys": [{name: GOOD[name] for name in ("id", "digest", "scopes")}]}),
        json.dumps({"certificates": [{"san": "x", "scopes": ["check"], "namespace": "n"}]}),
        "keys: &a []\ncertificates: *a\n",
        "x" * 1_000_001,
    ],
    ids=range(8),
)
def test_other_key_files_that_are_refused(text: str) -> None:
    assert isinstance(decode_keys(text.encode(), "keys.json"), InvalidFile)


async def test_keys_in_the_store_are_audited_and_what_is_no_key_opens_nothing() -> None:
    backend = open_backend("memory://", blocking=False)
    store = StoredKeys(backend.catalog, steady_clock())
    assert await store.get("a" * 12) is None
    assert await backend.catalog.get_namespace(KEYS_NAMESPACE) is None, "asking makes nothing"
    key = fresh()
    await store.put(key)
    await store.revoke(key.id, "bob", 8)
    home = await backend.catalog.get_namespace(KEYS_NAMESPACE)
    assert home is not None
    events = await backend.ledger.audit(home.id, key.id, limit=10, before=None)
    assert [(event.action, event.principal) for event in events] == [
        ("entity_changed", "bob"), ("entity_created", "ann"),
    ]  # fmt: skip
    for metadata in ({}, {"digest": key.digest}, {"digest": 5, "scopes": ["admin"]}):
        await backend.catalog.create_entity(
            home.id, Entity(f"x{len(metadata)}", metadata=metadata), None, 9
        )
    assert await store.get("x0") is None
    assert await store.get("x1") is None
    assert [one.id for one in (await store.list_keys(limit=10))[0]] == [key.id]
    await backend.catalog.delete_namespace(KEYS_NAMESPACE, None, 10)
    assert await store.get(key.id) is None
