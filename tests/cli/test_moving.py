"""Export and import: what comes out goes in again, nothing twice, nothing from a broken file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import HeadgateError, Limit, OnUnavailable, SyncRateLimiter, SyncRepository
from headgate.admin.export import LineError, export_lines, read_lines
from headgate.admin.import_ import AlreadyStored, Existing, import_lines
from headgate.core.runtime import run as run_flow
from headgate.testing import FakeClock

HOUR_MS = 3_600_000
OTHER = ("-u", "sqlite:///other.db")
NONE = {"plan": 0, "entity": 0, "level": 0, "usage": 0}
ALL = {"plan": 2, "entity": 3, "level": 6, "usage": 9}


@pytest.fixture
def exported_file(well: Any, tmp_path: Path) -> Path:
    """A namespace with everything in it; children sort before their parents."""
    well("system", "set-defaults", "rpm:1000/min", "--on-unavailable", "allow")
    well("resource", "set-defaults", "gpt-4", "rpm:60/min", "tpm:9000/min:12000")
    well("resource", "bypass", "gpt-4")
    well("resource", "enable", "gpt-4")
    well("resource", "disable", "closed")  # which has no limits
    well("resource", "bypass", "open")
    well("plan", "set", "pro", "rpm:600/min", "tpm:5/s:9")
    well("plan", "set", "pro", "rpm:60/min", "-r", "gpt/4:x")
    well("plan", "set", "empty", "--none")
    well(
        "entity", "create", "zeta", "--name", "Zeta ☃", "--plan", "pro",
        "--metadata", '{"region": ["eu", 1]}',
    )  # fmt: skip
    well("entity", "create", "middle", "--parent", "zeta", "--cascade")
    well("entity", "create", "alpha", "--parent", "middle", "--cascade")
    well("entity", "set-limits", "alpha", "rpm:5/min")
    well("entity", "set-limits", "zeta", "tpm:77/day", "-r", "gpt-4")
    well("entity", "disable", "middle")
    well("entity", "enable", "middle")
    well("check", "alpha", "gpt-4", "rpm=3", "tpm=50", "--take")
    well("entity", "disable", "middle")
    file = tmp_path / "out.jsonl"
    assert well("export", "-o", str(file))["lines"] == ALL
    return file


def test_what_comes_out_goes_in_again(run: Any, well: Any, exported_file: Path) -> None:
    done = well(*OTHER, "import", str(exported_file))
    assert done == {"written": ALL, "skipped": NONE}
    again = run(*OTHER, "export")
    assert again.code == 0
    assert again.out == exported_file.read_text()
    assert well(*OTHER, "explain", "alpha", "closed")["mode"] == "disabled"
    assert well(*OTHER, "explain", "alpha", "gpt-4")["parents"][0]["entity_id"] == "middle"
    events = well(*OTHER, "audit", "list", "alpha")
    done = well(*OTHER, "import", str(exported_file))
    assert done == {"written": NONE, "skipped": ALL}
    assert well(*OTHER, "audit", "list", "alpha") == events, "importing again changes nothing"


def test_an_export_without_plans_is_as_it_was_before_there_were_any(run: Any, well: Any) -> None:
    well("entity", "create", "a")
    lines = [json.loads(line) for line in run("export").out.splitlines()]
    assert [line["kind"] for line in lines] == ["headgate", "entity", "end"]
    assert "plan" not in lines[1]
    assert "plan" not in lines[2]


def test_plans_that_differ_are_kept_or_replaced_as_a_whole(
    run: Any, well: Any, exported_file: Path
) -> None:
    well(*OTHER, "plan", "set", "pro", "rpm:1/min", "-r", "other")
    failed = run(*OTHER, "import", str(exported_file))
    assert failed.code == 1
    assert "another plan 'pro' is in this store already" in failed.err
    skipped = well(*OTHER, "import", str(exported_file), "--existing", "skip")
    assert (skipped["written"]["plan"], skipped["skipped"]["plan"]) == (0, 2)
    assert list(well(*OTHER, "plan", "get", "pro")["resources"]) == ["other"]
    assert well(*OTHER, "entity", "show", "zeta")["entity"]["plan"] == "pro"
    well(*OTHER, "plan", "assign", "zeta", "empty")
    replaced = well(*OTHER, "import", str(exported_file), "--existing", "replace")
    assert (replaced["written"]["plan"], replaced["written"]["entity"]) == (1, 1)
    found = well(*OTHER, "plan", "get", "pro")
    assert (list(found["resources"]), found["entities"]) == (["gpt/4:x"], 1)
    [event, *_] = well(*OTHER, "audit", "list", "$PLAN:pro")["items"]
    assert list(event["details"]["before"]["resources"]) == ["other"]


def test_an_older_export_can_still_be_read(well: Any, exported_file: Path) -> None:
    """Files of before said `soft` of soft limits only, and not where a window ends."""
    older = []
    for line in map(json.loads, exported_file.read_text().splitlines()):
        for limit in line.get("limits", ()):
            assert limit.pop("soft") is False
        if line["kind"] == "usage":
            del line["window_end"]
        older.append(json.dumps(line) + "\n")
    exported_file.with_name("older.jsonl").write_text("".join(older))
    done = well(*OTHER, "import", str(exported_file.with_name("older.jsonl")))
    assert done["written"] == ALL
    again = well(*OTHER, "import", str(exported_file))
    assert again["skipped"] == ALL


def test_what_is_there_and_different(run: Any, well: Any, exported_file: Path) -> None:
    well(*OTHER, "entity", "create", "zeta", "--name", "Another")
    refused = run(*OTHER, "import", str(exported_file))
    assert refused.code == 1
    assert "--existing" in refused.err
    well(*OTHER, "import", str(exported_file), "--existing", "skip")
    assert well(*OTHER, "entity", "show", "zeta")["entity"]["name"] == "Another"
    well(*OTHER, "import", str(exported_file), "--existing", "replace")
    assert run(*OTHER, "export").out == exported_file.read_text()


def test_usage_that_differs_is_brought_to_what_the_file_says(
    run: Any, well: Any, exported_file: Path
) -> None:
    well(*OTHER, "import", str(exported_file))
    well(*OTHER, "entity", "enable", "middle")
    well(*OTHER, "check", "alpha", "gpt-4", "rpm=1", "--take")
    assert run(*OTHER, "import", str(exported_file), "--existing", "fail").code == 1
    well(*OTHER, "import", str(exported_file), "--existing", "replace")
    assert run(*OTHER, "export").out == exported_file.read_text()


def test_a_pipe_and_another_namespace(run: Any, well: Any, exported_file: Path) -> None:
    well("namespace", "register", "copy")
    answer = run("-n", "copy", "import", "-", "--json", given=exported_file.read_text())
    assert answer.code == 0
    assert answer.document["written"]["usage"] == 9
    copied = run("-n", "copy", "export").out.splitlines()
    assert copied[1:] == exported_file.read_text().splitlines()[1:]
    assert json.loads(copied[0])["namespace"] == "copy"


def test_what_came_from_children_moves_along(run: Any, well: Any, tmp_path: Any) -> None:
    """Into another store; a file of before, which does not tell it, takes nothing of it away."""
    well("entity", "create", "team")
    well("entity", "create", "key", "--parent", "team", "--cascade")
    well("check", "key", "r", "rpm=30", "--limit", "rpm:60/day", "--take")
    lines = run("export").out.splitlines(keepends=True)
    before = []
    for line in map(json.loads, lines):
        line.pop("from_children", None)
        line.pop("events_from_children", None)
        before.append(json.dumps(line) + "\n")
    told, untold = tmp_path / "told.jsonl", tmp_path / "untold.jsonl"
    told.write_text("".join(lines))
    untold.write_text("".join(before))
    well(*OTHER, "import", str(told))
    again = well(*OTHER, "import", str(untold))
    assert again["skipped"]["usage"] == 6
    found = well(*OTHER, "usage", "summary", "--entity", "team")
    assert (found["total"], found["from_children"]) == ({}, {"rpm": 30})
    assert well(*OTHER, "usage", "summary")["total"] == {"rpm": 30}


def test_no_usage_if_not_wanted(run: Any, exported_file: Path) -> None:
    lines = run("export", "--no-usage").out.splitlines()
    assert json.loads(lines[-1]) == {
        "kind": "end", "plan": 2, "entity": 3, "level": 6, "usage": 0,
    }  # fmt: skip


def test_a_file_that_was_cut_off_writes_nothing(run: Any, well: Any, exported_file: Path) -> None:
    text = exported_file.read_text()
    for cut in (len(text) // 3, len(text) - 2, text.rindex("\n", 0, -1) + 1):
        part = exported_file.with_name("part.jsonl")
        part.write_text(text[:cut])
        answer = run("-u", "sqlite:///fresh.db", "import", str(part))
        assert answer.code == 2, cut
    assert not exported_file.with_name("fresh.db").exists()


def test_an_export_that_fails_leaves_the_old_file(
    run: Any, exported_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = exported_file.read_text()

    async def broken(*_: Any, **__: Any) -> Any:
        yield {"kind": "headgate"}
        raise OSError("no space")

    monkeypatch.setattr("headgate.cli.commands.move.export_lines", broken)
    assert run("export", "-o", str(exported_file)).code == 1
    assert exported_file.read_text() == before
    assert list(exported_file.parent.glob(".out*")) == []


HEAD = '{"kind": "headgate", "format": 1}'
USAGE = {
    "kind": "usage", "entity_id": "a", "resource": "r", "window_type": "hourly",
    "window_start": "2026-01-01T00:00:00Z", "counters": {"rpm": 1}, "total_events": 1,
}  # fmt: skip
ENTITY = {
    "kind": "entity", "id": "a", "name": None, "parent_id": None, "cascade": False,
    "metadata": {}, "mode": "normal",
}  # fmt: skip
LEVEL = {
    "kind": "level", "entity_id": None, "resource": "r", "on_unavailable": None,
    "mode": "normal", "limits": [Limit.per_minute("rpm", 1).to_dict()],
}  # fmt: skip


LIMITS = [Limit.per_minute("rpm", 1).to_dict()]
PLAN = {"kind": "plan", "name": "pro", "limits": LIMITS, "resources": {"r": LIMITS}}


BAD_VALUES: list[tuple[dict[str, Any], str, list[Any]]] = [
    (ENTITY, "id", ["a#b", 5]),
    (ENTITY, "mode", ["asleep"]),
    (ENTITY, "parent_id", ["a#b", "a\n", 5]),
    (ENTITY, "name", ["", 5]),
    (ENTITY, "cascade", [1, None]),
    (ENTITY, "metadata", [[], "x", None, {"k": "x" * 5000}]),
    (ENTITY, "plan", ["a b", 5, ""]),
    (PLAN, "name", ["a b", 5, None]),
    (PLAN, "limits", ["rpm:1/s", [{"name": "rpm"}], [Limit.per_minute("rpm", 1).to_dict()] * 2]),
    (PLAN, "limits", [[Limit.per_minute(f"l{n}", 1).to_dict() for n in range(17)], None]),
    (PLAN, "resources", [[], {"9": LIMITS}, {"_default_": LIMITS}, {"r": []}, {"r": "rpm:1/s"}]),
    (PLAN, "resources", [{f"r{n}": LIMITS for n in range(256)}]),
    (LEVEL, "resource", ["9", "_default_"]),
    (LEVEL, "limits", [[{"name": "rpm"}], "rpm:1/s", [Limit.per_minute("rpm", 1).to_dict()] * 2]),
    (LEVEL, "on_unavailable", ["maybe"]),
    ({**LEVEL, "entity_id": "a"}, "resource", [None]),
    (USAGE, "window_type", ["weekly", None]),
    (USAGE, "window_start", ["2026-01-01T00:30:00Z", None]),
    (USAGE, "counters", [{"rpm": 1.5}, {"rpm": True}, {"a b": 1}, {f"c{n}": 1 for n in range(65)}]),
    (USAGE, "total_events", [-1]),
    (USAGE, "entity_id", ["x" * 140_000]),
]
BAD_LINES = [
    *("", "nonsense", "[]", "{}"),
    *('{"kind": "bucket"}', '{"kind": ["usage"]}', '{"kind": "entity"}'),
    *(json.dumps({**line, key: bad}) for line, key, values in BAD_VALUES for bad in values),
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:60])
def test_lines_that_cannot_be_used_are_named(line: str) -> None:
    with pytest.raises(LineError, match="line=2 "):
        list(read_lines([HEAD.encode(), line.encode()]))


END = '{"kind": "end", "entity": 0, "level": 0, "usage": 0}'
NOT_WHOLE: list[list[str]] = [
    [], ["{}"], ['{"kind": "headgate", "format": 2}'], [HEAD], [HEAD, HEAD], [HEAD, END, HEAD],
    [HEAD, END.replace('"entity": 0', '"entity": 1')],
]  # fmt: skip


@pytest.mark.parametrize("lines", NOT_WHOLE)
def test_a_file_must_be_whole(lines: list[str]) -> None:
    with pytest.raises(LineError):
        list(read_lines([line.encode() for line in lines]))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(st.sampled_from([PLAN, ENTITY, LEVEL, USAGE]), st.data())
def test_any_other_value_is_taken_or_named(line: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(set(line) - {"kind"})))
    bent = {**line, key: data.draw(_json)}
    with contextlib.suppress(LineError):
        list(read_lines([HEAD.encode(), json.dumps(bent).encode()]))


def _lines(repository: SyncRepository) -> list[bytes]:
    async def all_of_them() -> list[bytes]:
        return [json.dumps(line).encode() async for line in export_lines(repository.core)]

    return run_flow(all_of_them())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_800_000 * 1000)


@pytest.fixture
def repositories(clock: FakeClock) -> Iterator[tuple[SyncRepository, SyncRepository]]:
    with (
        SyncRepository("memory://", clock=clock) as one,
        SyncRepository("memory://", clock=clock) as other,
    ):
        yield one, other


def test_months_of_usage_between_stores_in_memory(
    clock: FakeClock, repositories: tuple[SyncRepository, SyncRepository]
) -> None:
    one, other = repositories
    limiter = SyncRateLimiter(one, limits=[Limit.per_second("rpm", 1000)])
    for hours in (1, 30, 24 * 40):
        with limiter.acquire("a", "r", {"rpm": 7}):
            pass
        clock.advance(hours * HOUR_MS)
    lines = _lines(one)
    run_flow(import_lines(other.core, read_lines(lines)))
    assert _lines(other)[1:] == lines[1:]
    for window_type in ("hourly", "daily", "monthly"):
        assert other.get_usage_summary("a", "r", window_type).total == {"rpm": 21}


def test_usage_is_left_out_where_a_store_takes_none(
    repositories: tuple[SyncRepository, SyncRepository], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = repositories
    monkeypatch.delattr(type(other.core.backend.ledger), "add_usage")
    end = END.replace('"usage": 0', '"usage": 1')
    lines = [HEAD.encode(), json.dumps(USAGE).encode(), end.encode()]
    tally = run_flow(import_lines(other.core, read_lines(lines)))
    assert tally.skipped["usage"] == 1


class Cut(Exception):
    """The process ends here."""


def _cut_after(writes: int, repository: SyncRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store takes that many more writes, and then none."""
    records = repository.core.backend.catalog.records
    commit, left = type(records).commit, iter(range(writes))

    async def commit_or_end(self: Any, *args: Any) -> int:
        if next(left, None) is None:
            raise Cut
        return await commit(self, *args)

    monkeypatch.setattr(type(records), "commit", commit_or_end)


@pytest.fixture
def family(repositories: tuple[SyncRepository, SyncRepository]) -> list[bytes]:
    """An export whose children sort before their parents, with every switch in use."""
    one, _ = repositories
    one.create_entity("zeta", "Zeta", metadata={"plan": "gold"})
    one.create_entity("middle", parent_id="zeta", cascade=True)
    one.create_entity("alpha", parent_id="middle", cascade=True)
    one.disable("alpha")
    one.bypass("zeta")
    one.set_limits("alpha", [Limit.per_minute("rpm", 5)])
    one.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 6)])
    one.disable(resource="gpt-4")
    one.set_system_defaults([Limit.per_minute("rpm", 7)], OnUnavailable.ALLOW)
    return _lines(one)


@pytest.mark.parametrize("existing", Existing)
@pytest.mark.parametrize("writes", range(6))
def test_an_import_cut_short_is_finished_by_the_same_command(
    repositories: tuple[SyncRepository, SyncRepository],
    family: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    existing: Existing,
    writes: int,
) -> None:
    """Wherever it ends: what is there is there as a whole, so nothing counts as another one."""
    _, other = repositories
    moved = list(read_lines(family))
    with monkeypatch.context() as patch, pytest.raises(Cut):
        _cut_after(writes, other, patch)
        run_flow(import_lines(other.core, moved, existing=existing))
    disabled = other.get_entity("alpha")
    assert disabled is None or (disabled.mode.value, disabled.parent_id) == ("disabled", "middle")
    run_flow(import_lines(other.core, moved, existing=existing))
    assert _lines(other)[1:] == family[1:]


def test_a_level_is_another_one_where_only_its_outage_rule_is(
    repositories: tuple[SyncRepository, SyncRepository], family: list[bytes]
) -> None:
    _, other = repositories
    other.set_system_defaults([Limit.per_minute("rpm", 7)], OnUnavailable.BLOCK)
    moved = list(read_lines(family))
    with pytest.raises(AlreadyStored, match="SYSTEM"):
        run_flow(import_lines(other.core, moved))
    run_flow(import_lines(other.core, moved, existing=Existing.SKIP))
    assert other.get_system_defaults()[1] is OnUnavailable.BLOCK
    run_flow(import_lines(other.core, moved, existing=Existing.REPLACE))
    assert other.get_system_defaults()[1] is OnUnavailable.ALLOW


def test_replace_takes_an_outage_rule_away(
    repositories: tuple[SyncRepository, SyncRepository],
) -> None:
    one, other = repositories
    limits = [Limit.per_minute("rpm", 7)]
    one.set_system_defaults(limits)
    other.set_system_defaults(limits, OnUnavailable.ALLOW)
    run_flow(import_lines(other.core, read_lines(_lines(one)), existing=Existing.REPLACE))
    assert other.get_system_defaults() == (limits, None)


def test_replace_turns_a_family_around(
    repositories: tuple[SyncRepository, SyncRepository], family: list[bytes]
) -> None:
    """What is a parent here is a child there; on the way nothing forms a ring."""
    _, other = repositories
    other.create_entity("alpha")
    other.create_entity("middle", parent_id="alpha", cascade=True)
    other.create_entity("zeta", parent_id="middle", cascade=True)
    run_flow(import_lines(other.core, read_lines(family), existing=Existing.REPLACE))
    assert _lines(other)[1:] == family[1:]


def test_what_an_older_headgate_left_half_done_is_finished_by_replace(
    repositories: tuple[SyncRepository, SyncRepository], family: list[bytes]
) -> None:
    _, other = repositories
    other.create_entity("alpha")
    moved = list(read_lines(family))
    with pytest.raises(AlreadyStored, match="--existing replace makes it"):
        run_flow(import_lines(other.core, moved))
    run_flow(import_lines(other.core, moved, existing=Existing.REPLACE))
    assert _lines(other)[1:] == family[1:]


@pytest.mark.parametrize(
    ("parents", "why"),
    [
        ({"a": "b", "b": "a"}, "descends from a"),
        ({f"e{n}": f"e{n + 1}" for n in range(9)}, "generations above it"),
        ({"a": "nobody"}, "parent_id='nobody'"),
    ],
)
def test_parents_that_cannot_be_are_told_before_anything_is_written(
    repositories: tuple[SyncRepository, SyncRepository], parents: dict[str, str], why: str
) -> None:
    _, other = repositories
    names = sorted({*parents, *parents.values()} - {"nobody"})
    lines = [{**ENTITY, "id": name, "parent_id": parents.get(name)} for name in names]
    end = END.replace('"entity": 0', f'"entity": {len(lines)}')
    text = [HEAD, *map(json.dumps, lines), end]
    with pytest.raises(HeadgateError, match=why):
        run_flow(import_lines(other.core, read_lines([line.encode() for line in text])))
    assert other.list_entities() == ([], None)
