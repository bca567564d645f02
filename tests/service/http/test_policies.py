"""The policy file changes while requests are served: never without limits, never half a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.service.http.asgi import Rest
from headgate.service.http.deadlines import run_in_thread
from headgate.service.program import Options, Program
from headgate.testing import FakeClock
from tests.service.http.kit import PATHS, Said, call

POLL_MS = 2000


def policy(capacity: int, extra: str = "") -> str:
    return (
        f"rate_limits:\n  - {{name: search, scope: user, resource: api.search, "
        f"capacity: {capacity}, refill_rate: 0}}\n{extra}"
    )


class Setting:
    """A program on a policy file, and a clock that decides when it is looked at."""

    def __init__(self, path: Path, **options: Any) -> None:
        chosen = Options(**{"store": "memory://", "policies": str(path), **options})
        self.clock = FakeClock()
        self.program = Program.build(chosen, clock=self.clock)
        self.app = Rest(self.program)
        self.asked = 0

    async def capacity(self) -> int:
        """The capacity in force, told to somebody new."""
        self.asked += 1
        ask = {"identifier": f"user-{self.asked}", "resource": "api.search"}
        said = await self.call("POST", PATHS["check"], ask)
        assert said.status == 200, said.content
        return int(said.headers["x-ratelimit-limit"])

    async def later(self) -> None:
        self.clock.advance(POLL_MS)
        await self.program.tick(run_in_thread)

    async def call(self, method: str, path: str, body: Any = None) -> Said:
        return await call(self.app, method, path, body)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "policies.yaml"
    found.write_text(policy(10))
    return found


async def test_changed_broken_and_fixed(file: Path) -> None:
    setting = Setting(file)
    assert await setting.capacity() == 10
    file.write_text(policy(20))
    assert await setting.capacity() == 10
    await setting.later()
    assert await setting.capacity() == 20
    file.write_text("rate_limits:\n  - {name: search, scope: user, capacity: -1, refil: 2}\n")
    await setting.later()
    assert await setting.capacity() == 20
    ready = (await setting.call("GET", "/readyz")).json
    assert ready["status"] == "DEGRADED"
    assert ready["policies"] == "broken", "why is for those who may read the policies"
    exposed = (await setting.call("GET", "/metrics")).content
    assert b"headgate_policy_trouble 1" in exposed
    assert b'headgate_policy_reload_total{result="broken"} 1' in exposed
    file.write_text(policy(30))
    await setting.later()
    assert await setting.capacity() == 30
    ready = (await setting.call("GET", "/readyz")).json
    assert (ready["status"], ready["policies"]) == ("HEALTHY", "ok")


async def test_a_reload_by_hand(file: Path) -> None:
    setting = Setting(file)

    async def reload() -> Said:
        return await setting.call("POST", "/v1/policies/reload")

    again = await reload()
    assert (again.status, again.json["result"]) == (200, "same")
    file.write_text(policy(20))
    done = await reload()
    assert (done.status, done.json["result"]) == (200, "loaded")
    assert await setting.capacity() == 20
    shown = (await setting.call("GET", "/v1/policies")).json
    assert [one["capacity"] for one in shown["rate_limits"]] == [20]
    assert shown["digest"] == done.json["digest"]
    file.write_text("rate_limits: {}")
    broken = await reload()
    assert (broken.status, broken.json["code"]) == (422, "CONFIGURATION_ERROR")
    assert "policies.yaml:1" in broken.json["detail"]
    assert await setting.capacity() == 20
    setting.program.look_soon()
    file.write_text(policy(30))
    await setting.program.tick(run_in_thread)
    assert await setting.capacity() == 30


@pytest.mark.parametrize(
    ("options", "seen"),
    [({}, [True, False]), ({"fail_open": True}, [True] * 2), ({"fail_open": False}, [False] * 2)],
)
async def test_failing_open_follows_the_file_unless_the_operator_said(
    file: Path, options: dict[str, bool], seen: list[bool]
) -> None:
    setting = Setting(file, **options)
    await setting.capacity()
    ns = await setting.program.service.namespace("default")
    for told, expected in zip(("true", "false"), seen, strict=True):
        file.write_text(policy(10, f"runtime: {{fail_open: {told}}}\n"))
        await setting.program.look(run_in_thread)
        assert setting.program.settings.fail_open is expected
        assert (ns.engine.on_unavailable.value == "allow") is expected


async def test_a_top_up_knows_the_policys_limit(file: Path) -> None:
    setting = Setting(file)

    async def take(tokens: int) -> Said:
        ask = {"identifier": "ann", "resource": "api.search", "tokens": tokens}
        return await setting.call("POST", PATHS["check"], ask)

    assert [(await take(10)).status for _ in range(2)] == [200, 429]
    held = (await setting.call("GET", "/v1/namespaces/default/buckets/user:ann")).json["items"]
    grant = {"entity_id": "user:ann", "resource": "api.search", "idempotency_key": "once",
             "amounts": {held[0]["limit"]: 4}}  # fmt: skip
    for applied in (True, False):
        done = await setting.call("POST", "/v1/namespaces/default/buckets/top-up", grant)
        assert (done.status, done.json) == (200, {"applied": applied})
    left = await take(4)
    assert (left.status, left.json["tokens_remaining"]) == (200, 0)


async def test_every_change_is_in_the_audit_once(file: Path, tmp_path: Path) -> None:
    """Also one that was made while the service was down; a broken file changes nothing."""
    store = f"sqlite:///{tmp_path}/limits.db"
    for content in (policy(10), policy(20), "rate_limits: {", policy(30)):
        setting, twin = (Setting(file, store=store) for _ in range(2))  # two workers
        for one in (setting, twin, setting):
            await one.program.start()
            await one.later()
        file.write_text(content)
        for one in (setting, twin):
            await one.later()
            await one.program.close()
        if content.endswith("{"):
            file.write_text(policy(20))
    last = Setting(file, store=store)
    events = await last.program.service.repository.get_audit_events("$POLICIES", 10)
    await last.program.close()
    assert [event.action for event in events] == ["policies_changed"] * 3
    digests = [event.details["after"]["digest"] for event in events]
    assert len(set(digests)) == 3
    assert events[0].details["before"]["digest"] == digests[1]
    assert events[0].principal == f"file:{file}"
    assert events[-1].details["before"] is None
    assert events[0].details["after"]["resources"] == ["api.search"]
