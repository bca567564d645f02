"""A changed file is taken up whole; a broken or missing one leaves the old policies in force."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from headgate.service.policies import policies as policies_file
from headgate.service.policies.policies import (
    POLL_MS,
    PolicyFileError,
    ReloadResult,
    Watcher,
)

GOOD = "rate_limits:\n  - {{name: api, scope: user, capacity: {}, refill_rate: 1}}\n"
BROKEN = "rate_limits:\n  - {name: api, scope: user, capacity: none, refill_rate: 1}\n"


def capacity(watcher: Watcher) -> int:
    rule = watcher.current.limits_for("user", "anything")
    assert rule is not None
    return rule.limits[0].capacity


class Watched:
    """A policy file and its watcher, with a clock that moves a poll at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ms = 1_000
        self.told: list[ReloadResult] = []
        self.watcher = Watcher(path, self.now_ms)

    def look(self) -> ReloadResult:
        self.now_ms += POLL_MS
        result = self.watcher.look(self.now_ms)
        if result is not ReloadResult.SAME:
            self.told.append(result)
        return result

    def rewrite(self, text: str) -> None:
        """As careful tools do: a new file takes the old one's name."""
        spare = self.path.with_suffix(".new")
        spare.write_text(text)
        spare.replace(self.path)

    def becomes(self, text: str) -> tuple[ReloadResult, int]:
        """What the next look finds, and the capacity in force after it."""
        self.rewrite(text)
        return self.look(), capacity(self.watcher)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    path = tmp_path / "policies.yaml"
    path.write_text(GOOD.format(10))
    return Watched(path)


def test_a_change_is_seen_at_the_next_look_and_not_before_it_is_time(watched: Watched) -> None:
    watched.rewrite(GOOD.format(20))
    assert watched.watcher.look(watched.now_ms + POLL_MS - 1) is ReloadResult.EARLY
    assert capacity(watched.watcher) == 10
    assert watched.watcher.look(watched.now_ms + POLL_MS) is ReloadResult.LOADED
    assert capacity(watched.watcher) == 20
    assert watched.watcher.look(watched.now_ms + POLL_MS + 1) is ReloadResult.EARLY


def test_broken_then_fixed_or_as_it_was(watched: Watched) -> None:
    watcher, before = watched.watcher, watched.watcher.current
    assert watched.becomes(BROKEN) == (ReloadResult.BROKEN, 10), "the old policies stay"
    assert str(watcher.trouble).startswith(f"{watched.path}:2:40: capacity must be")
    assert [watched.look() for _ in range(3)] == [ReloadResult.SAME] * 3, "told once"
    assert watcher.failures == 1
    assert watched.becomes("") == (ReloadResult.BROKEN, 10), "in another way"
    assert watcher.failures == 2
    assert watched.becomes(GOOD.format(10)) == (ReloadResult.OVER, 10)
    assert (watcher.trouble, watcher.current is before, watcher.loads) == (None, True, 1)
    watched.becomes(BROKEN)
    assert watched.becomes(GOOD.format(30)) == (ReloadResult.LOADED, 30)
    assert (watcher.trouble, watcher.loads, watcher.failures) == (None, 2, 3)
    assert watched.told == ["broken", "broken", "over", "broken", "loaded"]


def test_a_deleted_file_leaves_the_policies_and_says_so(watched: Watched) -> None:
    watched.path.unlink()
    assert watched.look() is ReloadResult.BROKEN
    assert [watched.look() for _ in range(2)] == [ReloadResult.SAME] * 2
    assert capacity(watched.watcher) == 10
    assert "cannot be read" in str(watched.watcher.trouble)
    watched.path.mkdir()
    assert watched.look() is ReloadResult.BROKEN
    assert "is not a file" in str(watched.watcher.trouble)
    watched.path.rmdir()
    assert watched.becomes(GOOD.format(40)) == (ReloadResult.LOADED, 40)


def test_a_file_touched_or_replaced_by_its_like_is_no_reload(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = watched.watcher.current
    os.utime(watched.path, ns=(1, 1))
    assert watched.look() is ReloadResult.SAME
    assert watched.becomes(GOOD.format(10)) == (ReloadResult.SAME, 10)
    assert watched.watcher.current is before
    assert watched.look() is ReloadResult.SAME
    monkeypatch.delattr(policies_file, "read_bounded")  # a settled file is not read again
    assert watched.look() is ReloadResult.SAME
    assert watched.told == []


def test_a_second_write_within_one_tick_of_the_time_stamp_is_seen(watched: Watched) -> None:
    watched.path.write_text(GOOD.format(20))
    os.utime(watched.path, ns=(5, 5))
    assert watched.look() is ReloadResult.LOADED
    watched.path.write_text(GOOD.format(30))
    os.utime(watched.path, ns=(5, 5))
    assert watched.look() is ReloadResult.LOADED, "same file, same size, same time stamp"
    assert capacity(watched.watcher) == 30


def test_a_file_that_changes_while_it_is_read_is_not_taken_up(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a list of limits is a good list, too."""
    reads = 0

    def torn(path: str) -> bytes:
        nonlocal reads
        reads += 1
        os.utime(path, ns=(reads, reads))
        return GOOD.format(99).encode()

    watched.rewrite(GOOD.format(20))
    with monkeypatch.context() as patched:
        patched.setattr(policies_file, "read_bounded", torn)
        assert watched.look() is ReloadResult.BROKEN
    assert reads == policies_file.READS_MAX
    assert capacity(watched.watcher) == 10
    assert watched.look() is ReloadResult.LOADED
    assert capacity(watched.watcher) == 20


class Mounted:
    """A directory as Kubernetes mounts a ConfigMap: the file is a link through `..data`."""

    def __init__(self, root: Path, text: str) -> None:
        self.root = root
        self.turn = 0
        self.swap(text)
        self.path = root / "policies.yaml"
        self.path.symlink_to("..data/policies.yaml")

    def swap(self, text: str) -> None:
        self.turn += 1
        held = self.root / f"..2026_{self.turn}"
        held.mkdir()
        (held / "policies.yaml").write_text(text)
        spare = self.root / "..data_tmp"
        spare.symlink_to(held.name)
        spare.replace(self.root / "..data")
        shutil.rmtree(self.root / f"..2026_{self.turn - 1}", ignore_errors=True)


def test_a_config_map_swapped_twice_broken_and_fixed(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path, GOOD.format(10))
    watched = Watched(mounted.path)
    seen = [capacity(watched.watcher)]
    for text in (GOOD.format(20), GOOD.format(30), BROKEN, GOOD.format(40), GOOD.format(50)):
        mounted.swap(text)
        assert watched.watcher.current.limits_for("user", "x") is not None
        watched.look()
        seen.append(capacity(watched.watcher))
        watched.look()
    assert seen == [10, 20, 30, 30, 40, 50]
    assert watched.told == ["loaded", "loaded", "broken", "loaded", "loaded"]


def test_without_a_usable_file_there_is_no_start(tmp_path: Path) -> None:
    path, copy = tmp_path / "policies.yaml", tmp_path / "copy"
    with pytest.raises(PolicyFileError, match="cannot be read"):
        Watcher(path, 0)
    path.write_text(BROKEN)
    copy.write_text("rate_limits: [")
    for last_good in (None, str(copy)):
        with pytest.raises(PolicyFileError, match=r"policies\.yaml:2:40"):
            Watcher(path, 0, last_good=last_good)


def test_who_starts_while_the_file_is_broken_goes_by_the_last_good_one(tmp_path: Path) -> None:
    path, copy = tmp_path / "policies.yaml", str(tmp_path / "copy")
    path.write_text(GOOD.format(10))
    first = Watcher(path, 0, last_good=copy)
    path.write_text(GOOD.format(20))
    assert first.look(POLL_MS) is ReloadResult.LOADED
    path.write_text(BROKEN)
    second = Watcher(path, 0, last_good=copy)
    assert capacity(second) == 20
    assert second.current.digest == first.current.digest
    assert second.trouble is not None
    assert second.failures == 1
    assert second.look(POLL_MS) is ReloadResult.SAME, "the trouble has been told"
    path.write_text(GOOD.format(20))
    assert second.look(2 * POLL_MS) is ReloadResult.OVER
    assert second.trouble is None
    path.unlink()
    assert capacity(Watcher(path, 0, last_good=copy)) == 20


def test_a_slow_look_does_not_undo_a_later_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin's look begins while the poll's is still reading the file as it was."""
    real: Callable[[str], bytes] = policies_file.read_bounded
    watched.rewrite(GOOD.format(20))
    at_once = partial(watched.watcher.look, watched.now_ms, at_once=True)
    later: list[Future[ReloadResult]] = []

    def slow(path: str) -> bytes:
        content = real(path)
        monkeypatch.setattr(policies_file, "read_bounded", real)
        monkeypatch.setattr(policies_file, "identify", lambda path: before)
        watched.rewrite(GOOD.format(30))
        later.append(threads.submit(at_once))
        wait(later, timeout=0.1)  # it must be there only after this one
        return content

    before = policies_file.identify(str(watched.path))
    monkeypatch.setattr(policies_file, "read_bounded", slow)
    with ThreadPoolExecutor() as threads:
        assert watched.look() is ReloadResult.LOADED
    assert later[0].result() is ReloadResult.LOADED
    assert capacity(watched.watcher) == 30


def test_a_file_whose_check_failed_is_checked_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.rewrite(GOOD.format(20))
    with monkeypatch.context() as patched:
        patched.setattr(policies_file, "decode", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            watched.look()
    assert watched.look() is ReloadResult.LOADED
    assert capacity(watched.watcher) == 20


def test_unchanged_rules_outlive_a_reload_and_another_store_needs_a_restart(
    watched: Watched,
) -> None:
    before = watched.watcher.current.limits_for("user", "x")
    more = "token_costs: [{endpoint: /a, tokens: 3}]\nruntime: {fail_open: true}\n"
    assert watched.becomes(GOOD.format(10) + more) == (ReloadResult.LOADED, 10)
    assert watched.watcher.current.cost_of("/a") == 3
    assert watched.watcher.current.limits_for("user", "x") is before
    assert not watched.watcher.restart_needed
    watched.becomes(GOOD.format(10) + "runtime: {store: 'memory://'}\n")
    assert watched.watcher.restart_needed
