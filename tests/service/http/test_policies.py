"""The policy file changes while requests are served: never without limits, never half a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.service.http.asgi import Rest
from headgate.service.policies.audit import NAMES_MAX, _policies_for_audit
from headgate.service.policies.policies import Policies, check_content
from headgate.service.program import Options, Program
from headgate.testing import FakeClock
from tests.service.http.kit import PATHS, Said, call
from tests.service.server.kit import policy

POLL_MS = 2000
SIDES = ("before", "after")
MORE = """\
  - {name: trial, scope: user, resource: api.trial, capacity: 1, refill_rate: 0, shadow: true}
token_costs: [{endpoint: /dear, tokens: 4}]
"""


class Setting:
    """A program on a policy file, and a clock that decides when it is looked at."""

    def __init__(self, path: Path, **options: Any) -> None:
        chosen = Options(**{"store": "memory://", "policies": str(path), **options})
        self.clock = FakeClock()
        self.program = Program.build(chosen, clock=self.clock)
        self.app = Rest(self.program)
        self.path = path
        self.asked = 0

    async def check(self, **more: Any) -> Said:
        ask = {"identifier": "ann", "resource": "api.search", **more}
        return await self.call("POST", PATHS["check"], ask)

    async def capacity(self) -> int:
        """The capacity in force, told to somebody new."""
        self.asked += 1
        said = await self.check(identifier=f"user-{self.asked}")
        assert said.status == 200, said.content
        return int(said.headers["x-ratelimit-limit"])

    async def take(self, tokens: int, **more: Any) -> Any:
        """What Ann has left, or "refused"."""
        said = await self.check(tokens=tokens, **more)
        return said.json["tokens_remaining"] if said.status == 200 else "refused"

    async def write(self, text: str) -> None:
        """As careful tools do: a new file takes the old one's name."""
        spare = self.path.with_suffix(".new")
        spare.write_text(text)
        spare.replace(self.path)
        await self.later()

    async def later(self) -> None:
        self.clock.advance(POLL_MS)
        await self.program.tick()

    async def call(self, method: str, path: str, body: Any = None) -> Said:
        return await call(self.app, method, path, body)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "policies.yaml"
    found.write_text(policy(10))
    return found


async def test_levels_carry_over_and_a_broken_file_is_no_open_gate(file: Path) -> None:
    setting = Setting(file)
    assert await setting.take(6) == 4
    file.write_text(policy(20))
    assert await setting.capacity() == 10, "it is not time to look"
    await setting.write(policy(10).replace("search,", "searching,", 1))
    assert await setting.take(1) == 3, "another name for the policy is the same bucket"
    await setting.write(policy(5))
    assert await setting.take(4) == "refused", "a changed policy hands out nothing"
    for text in ("rate_limits: [", "", policy(5).replace("5", "none"), "rate_limits: {}", None):
        if text is None:
            file.unlink()
            await setting.later()
        else:
            await setting.write(text)
        assert await setting.take(4) == "refused"
        ready = (await setting.call("GET", "/readyz")).json
        assert ready["status"] == "DEGRADED"
        assert ready["policies"] == "broken", "why is for those who may read the policies"
    exposed = (await setting.call("GET", "/metrics")).content
    assert b"headgate_policy_trouble 1" in exposed
    assert b'headgate_policy_reload_total{result="broken"} 5' in exposed
    await setting.write(policy(5))
    ready = (await setting.call("GET", "/readyz")).json
    assert (ready["status"], ready["policies"]) == ("HEALTHY", "ok")
    assert await setting.take(3) == 0
    await setting.write(policy(30))
    assert await setting.capacity() == 30


async def test_costs_shadow_and_labels(file: Path) -> None:
    file.write_text(policy(10, MORE))
    setting = Setting(file)
    for endpoint, left in (("/dear", 6), ("/cheap", 5)):
        assert (await setting.check(endpoint=endpoint)).json["tokens_remaining"] == left
    for _ in range(3):
        assert await setting.take(1, resource="api.trial") != "refused"
    await setting.take(1, resource="api.elsewhere")
    text = setting.program.render().decode()
    assert 'headgate_requests_total{scope="user",resource="api.trial",allowed="true"} 3' in text
    assert 'headgate_shadowed_total{scope="user",resource="api.trial"} 2' in text
    assert 'headgate_tokens_consumed_total{scope="user",resource="api.search"} 5' in text
    assert 'resource="other"' in text
    assert "elsewhere" not in text
    assert "ann" not in text


async def test_a_reload_by_hand(file: Path) -> None:
    setting = Setting(file)

    async def reload() -> Said:
        return await setting.call("POST", "/v1/policies/reload")

    for capacity, result in ((10, "same"), (20, "loaded")):
        file.write_text(policy(capacity))
        done = await reload()
        assert (done.status, done.json["result"]) == (200, result)
        assert await setting.capacity() == capacity
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
    await setting.program.tick()
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
        await setting.program.look()
        assert setting.program.service.settings.fail_open is expected
        assert (ns.engine.on_unavailable.value == "allow") is expected


async def test_a_top_up_knows_the_policys_limit(file: Path) -> None:
    setting = Setting(file)
    assert [await setting.take(10) for _ in range(2)] == [0, "refused"]
    held = (await setting.call("GET", "/v1/namespaces/default/buckets/user:ann")).json["items"]
    grant = {"entity_id": "user:ann", "resource": "api.search", "idempotency_key": "once",
             "amounts": {held[0]["limit"]: 4}}  # fmt: skip
    for applied in (True, False):
        done = await setting.call("POST", "/v1/namespaces/default/buckets/top-up", grant)
        assert (done.status, done.json) == (200, {"applied": applied})
    assert await setting.take(4) == 0


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
    for event, capacities in zip(events, ((20, 30), (10, 20)), strict=False):
        [before], [after] = (event.details[side]["policies"].values() for side in SIDES)
        assert (before["capacity"], after["capacity"]) == capacities


async def test_the_audit_shows_each_policy_before_and_after(file: Path) -> None:
    """Every policy's values on both sides, new ones and those that went; never a secret."""
    more = """
  - {name: other, scope: ip, resource: global, capacity: 7, refill_rate: 1}
token_costs:
  - {endpoint: /api/ml, tokens: 10}
runtime:
  fail_open: true
  store: "redis://ann:s3cret@db:6379/0?sentinel_password=hush"
"""
    setting = Setting(file)
    await setting.program.start()
    await setting.later()
    for content in (policy(10) + more, policy(25)):
        file.write_text(content)
        await setting.later()
    events = await setting.program.service.repository.get_audit_events("$POLICIES", 10)
    await setting.program.close()
    assert "s3cret" not in str(events)
    assert "hush" not in str(events)
    gone, added = events[0].details, events[1].details
    [name] = gone["after"]["policies"]
    assert set(gone["before"]["policies"]) == {name, "other"} == set(added["after"]["policies"])
    assert gone["before"]["policies"]["other"]["capacity"] == 7
    assert gone["before"]["policies"][name]["capacity"] == 10
    assert gone["after"]["policies"][name]["capacity"] == 25
    assert (gone["before"]["token_costs"], gone["after"]["token_costs"]) == ({"/api/ml": 10}, {})
    assert gone["before"]["runtime"]["fail_open"] is True
    assert gone["before"]["runtime"]["store"].endswith("@db:6379/0?sentinel_password=…")
    assert gone["after"]["runtime"] == {"fail_open": None, "circuit_breaker": None, "store": None}


async def test_the_audit_shows_each_limit_of_a_policy(file: Path) -> None:
    """The last one of the list used to stand for all of them."""
    words = "rate_limits:\n  - {name: llm, scope: user, limits: {rpm: %s/min, tpm: 900/min}}\n"
    file.write_text(words % 60)
    setting = Setting(file)
    await setting.program.start()
    await setting.later()
    file.write_text(words % 80)
    await setting.later()
    event = (await setting.program.service.repository.get_audit_events("$POLICIES", 1))[0]
    await setting.program.close()
    before, after = (event.details[side]["policies"] for side in SIDES)
    assert set(before) == set(after) == {"llm.rpm", "llm.tpm"}
    assert [side["llm.rpm"]["capacity"] for side in (before, after)] == [60, 80]


async def test_a_change_while_the_service_was_down_has_both_sides(
    file: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/limits.db"
    for capacity in (10, 40):
        file.write_text(policy(capacity))
        setting = Setting(file, store=store)
        await setting.program.start()
        await setting.later()
        events = await setting.program.service.repository.get_audit_events("$POLICIES", 10)
        await setting.program.close()
    [before], [after] = (events[0].details[side]["policies"].values() for side in SIDES)
    assert (before["capacity"], after["capacity"]) == (10, 40)


def test_of_very_many_policies_the_changed_ones_are_shown(tmp_path: Path) -> None:
    def policies(changed: int) -> Policies:
        rows = "".join(
            f"  - {{name: p{n}, scope: s{n}, capacity: {n + 1 + (n == changed)}, refill_rate: 1}}\n"
            for n in range(300)
        )
        found = check_content(f"rate_limits:\n{rows}".encode(), "p.yaml")
        assert isinstance(found, Policies)
        return found

    told = _policies_for_audit(policies(299), policies(7))
    assert {"p299", "p7"} <= set(told["policies"])
    assert (len(told["policies"]), told["not_shown"]) == (NAMES_MAX, 300 - NAMES_MAX)
