"""A service under a policy file that changes: levels carry over, and limits are never absent."""

from __future__ import annotations

from pathlib import Path

from headgate.layers.breaker import BreakerConfig
from headgate.service.decide.requests import CheckRequest
from headgate.service.http.deadlines import run_in_thread
from headgate.service.policies.policies import Policies, check_file
from headgate.service.program import Options, Program
from headgate.testing import FakeClock

FILE = """\
rate_limits:
  - {{name: search, scope: user, resource: api.search, capacity: {capacity}, refill_rate: 0}}
  - {{name: trial, scope: user, resource: api.trial, capacity: 1, refill_rate: 0, shadow: true}}
token_costs: [{{endpoint: /dear, tokens: 4}}]
"""


class Running:
    """A program on a policy file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(FILE.format(capacity=10))
        options = Options(store="memory://", policies=str(path))
        self.program = Program.build(options, clock=FakeClock())
        self.service = self.program.service

    async def write(self, text: str) -> None:
        spare = self.path.with_suffix(".new")
        spare.write_text(text)
        spare.replace(self.path)
        await self.program.look(run_in_thread)

    async def left(self, tokens: int | None, resource: str = "api.search", **more: str) -> object:
        request = CheckRequest("user", "ann", resource, tokens, **more)  # type: ignore[arg-type]
        answer = await self.service.check(request)
        return answer.tokens_remaining if answer.allowed else "refused"


async def test_levels_carry_over_and_a_broken_file_is_no_open_gate(tmp_path: Path) -> None:
    running = Running(tmp_path / "policies.yaml")
    await running.service.repository.create_table()
    assert await running.left(6) == 4
    await running.write(FILE.format(capacity=10).replace("search,", "searching,", 1))
    assert await running.left(1) == 3, "another name for the policy is the same bucket"
    await running.write(FILE.format(capacity=5))
    assert await running.left(4) == "refused", "a changed policy hands out nothing"
    for text in ("rate_limits: [", "", FILE.format(capacity="none"), "rate_limits: {}"):
        await running.write(text)
        assert await running.left(4) == "refused"
        health = await running.service.health()
        assert health.status.value == "DEGRADED"
        assert "policies.yaml:" in str(running.service.rules_trouble)
    running.path.unlink()
    await running.program.look(run_in_thread)
    assert await running.left(4) == "refused"
    await running.write(FILE.format(capacity=5))
    assert running.service.rules_trouble is None
    assert (await running.service.health()).status.value == "HEALTHY"
    assert await running.left(3) == 0


async def test_costs_shadow_and_labels(tmp_path: Path) -> None:
    running = Running(tmp_path / "policies.yaml")
    await running.service.repository.create_table()
    assert await running.left(None, endpoint="/dear") == 6
    assert await running.left(None, endpoint="/cheap") == 5
    for _ in range(3):
        assert await running.left(1, "api.trial") != "refused"
    await running.left(1, "api.elsewhere")
    text = running.program.render().decode()
    assert 'headgate_requests_total{scope="user",resource="api.trial",allowed="true"} 3' in text
    assert "headgate_shadowed_total 2" in text
    assert 'headgate_tokens_consumed_total{scope="user",resource="api.search"} 5' in text
    assert 'resource="other"' in text
    assert "elsewhere" not in text
    assert "ann" not in text


async def test_a_store_is_not_needed_to_read_policies(tmp_path: Path) -> None:
    """Checking a file opens nothing: the store of the file may be out of reach."""
    running = Running(tmp_path / "policies.yaml")
    await running.write(FILE.format(capacity=10) + "runtime: {store: 'redis://192.0.2.1:1/0'}\n")
    assert running.program.watcher is not None
    assert running.program.watcher.restart_needed


def test_the_breaker_of_the_file_is_the_breaker_of_the_service(tmp_path: Path) -> None:
    """The runtime section's thresholds and pauses are those the circuit goes by."""
    path = tmp_path / "policies.yaml"
    path.write_text(
        "runtime:\n"
        "  circuit_breaker: {failure_threshold: 2, success_threshold: 1, timeout_seconds: 1.5,"
        " max_timeout_seconds: 4, backoff_multiplier: 2}\n"
        "rate_limits:\n"
        "  - {name: users, scope: user, capacity: 5, refill_rate: 1}\n"
    )
    found = check_file(str(path))
    assert isinstance(found, Policies)
    assert found.runtime.breaker == BreakerConfig(2, 1, 1500, 4000, 2.0)
