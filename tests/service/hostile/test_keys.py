"""Strangers and callers with too little: what they cost, what they see, what they leave behind."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headgate.core.errors import StoreDenied, Throttled, Unreachable
from headgate.service.dashboard import Dashboard
from headgate.service.http.asgi import Rest
from headgate.service.keys.key import Grant, KeyScope, MintedKey, mint
from headgate.service.keys.stored import INDEX_MS, LOOKUPS_MAX, PAGE_MAX, KeyIndex, StoredKeys
from headgate.service.program import Options, Program
from tests.service.http.kit import Said, call

CHECK = "/v1/ratelimit/check"
ASK = {"identifier": "ann", "resource": "api.search"}
SECRET = "hunter2"


class Front:
    """The service as the wires see it, on memory, with a clock that stands still."""

    def __init__(self, **options: Any) -> None:
        self.now_ms = 1_000_000
        self.program = Program.build(
            Options(store="memory://", **options), clock=lambda: self.now_ms
        )
        rest = Rest(self.program)
        self.app = Dashboard(self.program).before(rest)
        self.catalog_calls = 0
        catalog = self.program.service.repository.backend.catalog
        for name in ("get_namespace", "get_entity", "list_entities"):
            setattr(catalog, name, self._counted(getattr(catalog, name)))

    def _counted(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*given: Any, **named: Any) -> Any:
            self.catalog_calls += 1
            await asyncio.sleep(0)  # as a store that is asked over a network would
            return await real(*given, **named)

        return counted

    async def put_key(self, *scopes: KeyScope, namespace: str = "default") -> MintedKey:
        """A key that another process makes, so nothing here is told of it."""
        made = mint(Grant(frozenset(scopes), namespace), now_ms=self.now_ms)
        repository = self.program.service.repository
        await StoredKeys(repository.backend.catalog, repository.clock).put(made.key)
        return made

    async def check(self, key: str) -> int:
        return (await call(self.app, "POST", CHECK, ASK, key=key)).status

    async def check_as_stranger(self) -> int:
        return await self.check(mint(Grant(frozenset({KeyScope.CHECK}), "*"), now_ms=0).text)


async def test_random_keys_do_not_drive_the_store() -> None:
    front = Front(keys="store")
    good = await front.put_key(KeyScope.CHECK)
    assert await front.check(good.text) == 200
    front.catalog_calls = 0
    for _ in range(200):
        assert await front.check_as_stranger() == 401
    assert front.catalog_calls <= 2
    for _ in range(10):  # and each second costs one look at the list
        front.now_ms += INDEX_MS
        for _ in range(20):
            assert await front.check_as_stranger() == 401
    assert front.catalog_calls <= 22
    assert await front.check(good.text) == 200


async def test_many_at_once_share_one_look() -> None:
    front = Front(keys="store")
    await front.put_key(KeyScope.CHECK)
    front.catalog_calls = 0
    found = await asyncio.gather(*[front.check_as_stranger() for _ in range(100)])
    assert set(found) == {401}
    assert front.catalog_calls <= 2


async def test_a_key_that_was_made_a_moment_ago_works_within_a_second() -> None:
    front = Front(keys="store")
    assert await front.check_as_stranger() == 401
    made = await front.put_key(KeyScope.CHECK)
    assert await front.check(made.text) == 401, "the list is not a second old"
    for _ in range(50):
        assert await front.check_as_stranger() == 401
    front.now_ms += INDEX_MS
    assert await front.check(made.text) == 200


async def test_a_list_of_many_pages_is_read_as_seldom_as_it_is_long() -> None:
    front = Front(keys="store")
    for _ in range(PAGE_MAX + 1):
        await front.put_key(KeyScope.CHECK)
    await front.check_as_stranger()
    front.catalog_calls = 0
    front.now_ms += INDEX_MS
    assert await front.check_as_stranger() == 401
    assert front.catalog_calls == 0
    front.now_ms += INDEX_MS
    made = await front.put_key(KeyScope.CHECK)
    assert await front.check(made.text) == 200


async def test_while_the_store_is_away_strangers_do_not_knock_on_it() -> None:
    front = Front(keys="store")
    away = AsyncMock(side_effect=Unreachable("down"))
    catalog: Any = front.program.service.repository.backend.catalog
    catalog.get_namespace = away
    assert {await front.check_as_stranger() for _ in range(50)} == {503}
    assert away.await_count == 1


async def test_a_store_that_denies_the_keys_is_not_taken_for_one_that_is_away() -> None:
    front = Front(keys="store")
    catalog: Any = front.program.service.repository.backend.catalog
    catalog.get_namespace = AsyncMock(side_effect=StoreDenied("no right to read the keys"))
    key = mint(Grant(frozenset({KeyScope.READ}), "*"), now_ms=0).text
    for path in (ENTITIES, "/ui/shards") * 2:
        said = await call(front.app, "GET", path, key=key)
        assert (said.status, said.json["code"]) == (500, "STORAGE_DENIED")
        assert b"no right to read" not in said.content


async def test_many_unknown_keys_beyond_the_list_look_like_a_busy_store() -> None:
    """A client can cause it, so on Envoy's protocol it must not be taken for an outage."""

    now_ms = 1_000_000
    front = Front(keys="store")
    index = KeyIndex(front.program.service.repository.backend.catalog, lambda: now_ms)
    assert not await index.can_have("none")
    index._is_whole = False  # as with more keys than the list has pages for
    for number in range(LOOKUPS_MAX):
        assert await index.can_have(f"random-{number}")
    with pytest.raises(Throttled):
        await index.can_have("one-more")


async def test_readyz_shows_nothing_of_a_broken_policy_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "headgate.service")  # it is not about the log

    file = tmp_path / "policies.yaml"
    file.write_text("rate_limits: []\n")
    front = Front(policies=str(file))
    file.write_text(f"runtime: {{store: 'redis://:{SECRET}@db/0', {SECRET}: 1}}\n")
    front.now_ms += 10_000
    await front.program.look()
    said = await call(front.app, "GET", "/readyz")
    assert (said.status, said.json["policies"]) == (200, "broken")
    assert said.json["status"] == "DEGRADED"
    assert SECRET not in said.content.decode()
    assert "policies.yaml" not in said.content.decode()
    read = await call(front.app, "GET", "/v1/policies")  # whoever may read them sees why
    assert "policies.yaml" in read.json["standing"]["trouble"]


@pytest.mark.parametrize("word", ["release", "settle", "adjust"])
@pytest.mark.parametrize(
    "field", [(b"origin", b"https://evil.example"), (b"sec-fetch-site", b"cross-site")]
)
async def test_a_foreign_page_cannot_end_a_lease(word: str, field: tuple[bytes, bytes]) -> None:
    front = Front()
    taken = await call(front.app, "POST", "/v1/leases", {**ASK, "tokens": 5})
    assert taken.status == 201
    path = f"/v1/leases/{taken.json['lease_id']}"
    assert (await call(front.app, "POST", f"{path}/{word}", headers=(field,))).status == 403
    assert (await call(front.app, "GET", path)).json["state"] == "open"
    own = (b"origin", b"http://localhost")
    assert (await call(front.app, "POST", f"{path}/release", headers=(own,))).status == 200


async def denied(front: Front, key: MintedKey) -> Said:
    return await call(front.app, "GET", "/v1/namespaces/default/entities", key=key.text)


async def test_a_403_leaves_an_audit_event_and_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headgate.service")
    front = Front(keys="store")
    key = await front.put_key(KeyScope.CHECK)
    reader = await front.put_key(KeyScope.READ)
    await front.program.start()
    for _ in range(3):
        assert (await denied(front, key)).status == 403
    assert await front.check(reader.text) == 403
    await front.program.tick()
    audit = await call(
        front.app, "GET", "/v1/namespaces/default/audit", key=reader.text,
        query="entity_id=$ACCESS",
    )  # fmt: skip
    found = {
        (one["principal"], one["details"]["needed"], one["details"]["count"])
        for one in audit.json["items"]
    }
    assert found == {
        (f"key:{key.key.id}", "read", 3),
        (f"key:{reader.key.id}", "check", 1),
    }
    assert {one["action"] for one in audit.json["items"]} == {"access_denied"}
    lines = [one.getMessage() for one in caplog.records if "denied" in one.getMessage()]
    assert len(lines) == 2
    assert any("3 times" in one and "'read'" in one for one in lines)


async def test_a_stubborn_caller_cannot_fill_the_audit() -> None:
    front = Front(keys="store")
    key = await front.put_key(KeyScope.CHECK)
    await front.program.start()
    for _ in range(60):  # a minute of seconds
        for _ in range(5):
            await denied(front, key)
        await front.program.tick()
        front.now_ms += 1000
    found = await front.program.service.repository.get_audit_events("$ACCESS", 100)
    assert [one.details["count"] for one in found] == [5]
    front.now_ms += 1000
    await front.program.tick()
    found = await front.program.service.repository.get_audit_events("$ACCESS", 100)
    assert sorted(one.details["count"] for one in found) == [5, 295], "none is lost"


async def test_many_callers_cannot_fill_the_audit_either() -> None:
    front = Front(keys="store")
    await front.program.start()
    for _ in range(50):
        assert (await denied(front, await front.put_key(KeyScope.CHECK))).status == 403
        front.now_ms += INDEX_MS  # so that the next key is known
    await front.program.tick()
    found = await front.program.service.repository.get_audit_events("$ACCESS", 100)
    assert len(found) <= 21
    assert sum(one.details["count"] for one in found) == 50


async def test_a_403_of_the_dashboard_and_a_foreign_page_leave_a_trace_too() -> None:
    front = Front()
    await front.program.start()
    foreign = ((b"origin", b"https://evil.example"),)
    for method, path, body in (("DELETE", NS, None), ("POST", "/ui/preview", {})):
        assert (await call(front.app, method, path, body, headers=foreign)).status == 403
    await front.program.tick()
    (found,) = await front.program.service.repository.get_audit_events("$ACCESS", 10)
    assert (found.details["needed"], found.details["count"]) == ("own origin", 2)
    front = Front(keys="store")
    key = await front.put_key(KeyScope.CHECK)
    assert (await call(front.app, "GET", "/ui/shards", key=key.text)).status == 403
    assert b'headgate_auth_refused_total{because="scope"} 1' in front.program.render()
    await front.program.start()
    await front.program.tick()
    (found,) = await front.program.service.repository.get_audit_events("$ACCESS", 10)
    assert found.principal == f"key:{key.key.id}"


NS, ENTITIES = "/v1/namespaces/default", "/v1/namespaces/default/entities"
NULLS = [
    ("POST", CHECK, {**ASK, "tokens": None}, "tokens"),
    *[("POST", CHECK, {**ASK, name: None}, name) for name in ("namespace", "metadata", "endpoint")],
    ("POST", CHECK, {"scope": "global", "identifier": None, "resource": "api"}, "identifier"),
    ("POST", "/v1/ratelimit/batch", {"requests": [{**ASK, "tokens": None}]}, "requests[0].tokens"),
    ("POST", "/v1/ratelimit/acquire",
     {"identifier": "a", "descriptors": [{"scope": "user", "resource": "r", "tokens": None}]},
     "descriptors[0].tokens"),
    ("POST", "/v1/leases", {**ASK, "amounts": None}, "amounts"),
    ("POST", "/v1/leases/abc/release", {"tokens": None}, "tokens"),
    ("POST", "/v1/leases/abc/release", b"null", "request"),
    *[("POST", ENTITIES, {"id": "a", name: None}, name) for name in ("name", "metadata")],
    ("POST", f"{NS}/buckets/top-up",
     {"entity_id": "a", "resource": "r", "amounts": {"t": 1}, "idempotency_key": None},
     "idempotency_key"),
    ("POST", "/v1/keys", {"scopes": ["check"], "namespace": "default", "name": None}, "name"),
    ("PUT", f"{NS}/limits/system", {"limits": ["1/second"], "on_unavailable": None},
     "on_unavailable"),
    ("PATCH", f"{ENTITIES}/a", {"cascade": None}, "cascade"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "field"), NULLS)
async def test_null_is_refused_where_the_schema_has_none(
    method: str, path: str, body: Any, field: str
) -> None:
    said = await call(Front().app, method, path, body)
    assert said.status == 400, said.content
    assert said.json["field"] == field


async def test_null_stays_where_the_schema_has_it() -> None:
    front = Front()
    path = "/v1/namespaces/default/entities"
    for one in ({"id": "mum"}, {"id": "kid", "parent_id": "mum"}):
        assert (await call(front.app, "POST", path, one)).status == 201
    said = await call(front.app, "PATCH", f"{path}/kid", {"parent_id": None})
    assert (said.status, said.json["parent_id"]) == (200, None), json.dumps(said.json)
