"""The policy file changes while requests are served: never without limits, never half a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headgate.service.http.asgi import Rest
from headgate.service.http.deadlines import run_in_thread
from headgate.service.program import Options, Program
from headgate.testing import FakeClock
from tests.service.http.kit import PATHS, call, run

POLL_MS = 2000


def policy(capacity: int, extra: str = "") -> str:
    return (
        f"rate_limits:\n  - {{name: search, scope: user, resource: api.search, "
        f"capacity: {capacity}, refill_rate: 0}}\n{extra}"
    )


class Setting:
    """A program on a policy file, and a clock that decides when it is looked at."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.clock = FakeClock()
        self.program = Program.build(
            Options(store="memory://", policies=str(path), **options), clock=self.clock
        )
        self.app = Rest(self.program)
        self.asked = 0

    async def capacity(self) -> int:
        """The capacity in force, told to somebody new."""
        self.asked += 1
        ask = {"identifier": f"user-{self.asked}", "resource": "api.search"}
        said = await call(self.app, "POST", PATHS["check"], ask)
        assert said.status == 200, said.content
        return int(said.headers["x-ratelimit-limit"])

    async def later(self) -> None:
        self.clock.advance(POLL_MS)
        await self.program.tick(run_in_thread)


def test_broken_fixed_and_swapped_twice(tmp_path: Path) -> None:
    """As Kubernetes does it: a link to a directory is replaced beside the file."""
    for name, content in (
        ("one", policy(10)),
        ("two", policy(20)),
        ("three", policy(30)),
        ("bad", "rate_limits:\n  - {name: search, scope: user, capacity: -1, refil: 2}\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policies.yaml").write_text(content)
    link = tmp_path / "..data"
    link.symlink_to("one")
    file = tmp_path / "policies.yaml"
    file.symlink_to("..data/policies.yaml")

    def swap(name: str) -> None:
        spare = tmp_path / "..data_tmp"
        spare.symlink_to(name)
        os.replace(spare, link)

    async def flow() -> None:
        setting = Setting(file)
        assert await setting.capacity() == 10
        swap("two")
        assert await setting.capacity() == 10
        await setting.later()
        assert await setting.capacity() == 20
        swap("bad")
        await setting.later()
        assert await setting.capacity() == 20
        ready = (await call(setting.app, "GET", "/readyz")).json
        assert ready["status"] == "DEGRADED"
        assert ready["policies"] == "broken", "why is for those who may read the policies"
        exposed = (await call(setting.app, "GET", "/metrics")).content
        assert b"headgate_policy_trouble 1" in exposed
        assert b'headgate_policy_reload_total{result="broken"} 1' in exposed
        swap("three")
        await setting.later()
        assert await setting.capacity() == 30
        swap("two")
        await setting.later()
        assert await setting.capacity() == 20
        ready = (await call(setting.app, "GET", "/readyz")).json
        assert (ready["status"], ready["policies"]) == ("HEALTHY", "ok")

    run(flow())


def test_a_reload_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))

    async def flow() -> None:
        setting = Setting(file)
        again = await call(setting.app, "POST", "/v1/policies/reload")
        assert (again.status, again.json["result"]) == (200, "same")
        file.write_text(policy(20))
        done = await call(setting.app, "POST", "/v1/policies/reload")
        assert (done.status, done.json["result"]) == (200, "loaded")
        assert await setting.capacity() == 20
        shown = (await call(setting.app, "GET", "/v1/policies")).json
        assert [one["capacity"] for one in shown["rate_limits"]] == [20]
        assert shown["digest"] == done.json["digest"]
        file.write_text("rate_limits: {}")
        broken = await call(setting.app, "POST", "/v1/policies/reload")
        assert (broken.status, broken.json["code"]) == (422, "CONFIGURATION_ERROR")
        assert "policies.yaml:1" in broken.json["detail"]
        assert await setting.capacity() == 20
        setting.program.look_soon()
        file.write_text(policy(30))
        await setting.program.tick(run_in_thread)
        assert await setting.capacity() == 30

    run(flow())


def test_failing_open_follows_the_file_unless_the_operator_said(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"

    async def flow(**options: Any) -> list[bool]:
        file.write_text(policy(10))
        setting = Setting(file, **options)
        await setting.capacity()
        ns = await setting.program.service.namespace("default")
        seen = []
        for told in ("true", "false"):
            file.write_text(policy(10, f"runtime: {{fail_open: {told}}}\n"))
            await setting.program.look(run_in_thread)
            assert setting.program.settings.fail_open is (ns.engine.on_unavailable.value == "allow")
            seen.append(setting.program.settings.fail_open)
        return seen

    assert run(flow()) == [True, False]
    assert run(flow(fail_open=True)) == [True, True]
    assert run(flow(fail_open=False)) == [False, False]


def test_a_top_up_knows_the_policys_limit(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))

    async def flow() -> None:
        setting = Setting(file)
        ask = {"identifier": "ann", "resource": "api.search", "tokens": 10}
        assert (await call(setting.app, "POST", PATHS["check"], ask)).status == 200
        assert (await call(setting.app, "POST", PATHS["check"], ask)).status == 429
        grant = {"entity_id": "user:ann", "resource": "api.search", "amounts": {"search": 4}}
        names = (await call(setting.app, "GET", "/v1/namespaces/default/buckets/user:ann")).json
        grant["amounts"] = {names["items"][0]["limit"]: 4}
        path = "/v1/namespaces/default/buckets/top-up"
        done = await call(setting.app, "POST", path, {**grant, "idempotency_key": "once"})
        assert (done.status, done.json) == (200, {"applied": True})
        again = await call(setting.app, "POST", path, {**grant, "idempotency_key": "once"})
        assert again.json == {"applied": False}
        left = await call(setting.app, "POST", PATHS["check"], {**ask, "tokens": 4})
        assert (left.status, left.json["tokens_remaining"]) == (200, 0)

    run(flow())


def test_every_change_is_in_the_audit_once(tmp_path: Path) -> None:
    """Also one that was made while the service was down; a broken file changes nothing."""
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    store = f"sqlite:///{tmp_path}/limits.db"

    def served() -> Setting:
        setting = Setting(file)
        setting.clock = FakeClock()
        options = Options(store=store, policies=str(file))
        setting.program = Program.build(options, clock=setting.clock)
        return setting

    async def flow() -> list[Any]:
        for content in (policy(10), policy(20), "rate_limits: {", policy(30)):
            setting = served()
            twin = served()  # another worker on the same file
            for one in (setting, twin, setting):
                await one.program.start()
                await one.later()
            file.write_text(content)
            for one in (setting, twin):
                await one.later()
            await setting.program.close()
            await twin.program.close()
            if content.endswith("{"):
                file.write_text(policy(20))
        last = served()
        found = await last.program.service.repository.get_audit_events("$POLICIES", 10)
        await last.program.close()
        return found

    events = run(flow())
    assert [event.action for event in events] == ["policies_changed"] * 3
    digests = [event.details["after"]["digest"] for event in events]
    assert len(set(digests)) == 3
    assert events[0].details["before"]["digest"] == digests[1]
    assert events[0].principal == f"file:{file}"
    assert events[-1].details["before"] is None
    assert events[0].details["after"]["resources"] == ["api.search"]
