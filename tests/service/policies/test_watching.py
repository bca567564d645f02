"""A changed file is taken up whole; a broken or missing one leaves the old policies in force."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.service.policies import policies as policies_file
from headgate.service.policies.policies import PolicyFileError
from headgate.service.policies.watch import POLL_MS, ReloadResult, Watcher

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


def test_a_look_at_once_does_not_wait(watched: Watched) -> None:
    watched.rewrite(GOOD.format(20))
    assert watched.watcher.look(watched.now_ms, at_once=True) is ReloadResult.LOADED


def test_broken_then_fixed(watched: Watched) -> None:
    watched.rewrite(BROKEN)
    assert watched.look() is ReloadResult.BROKEN
    assert capacity(watched.watcher) == 10, "the old policies stay"
    assert str(watched.watcher.trouble).startswith(f"{watched.path}:2:40: capacity must be")
    assert [watched.look() for _ in range(3)] == [ReloadResult.SAME] * 3, "told once"
    assert watched.watcher.failures == 1
    watched.rewrite(GOOD.format(30))
    assert watched.look() is ReloadResult.LOADED
    assert capacity(watched.watcher) == 30
    assert watched.watcher.trouble is None
    assert watched.told == [ReloadResult.BROKEN, ReloadResult.LOADED]
    assert (watched.watcher.loads, watched.watcher.failures) == (2, 1)


def test_broken_in_another_way_is_told_again(watched: Watched) -> None:
    for failures, text in ((1, BROKEN), (2, "rate_limits: [")):
        watched.rewrite(text)
        assert watched.look() is ReloadResult.BROKEN
        assert watched.watcher.failures == failures


def test_broken_then_as_it_was(watched: Watched) -> None:
    before = watched.watcher.current
    watched.rewrite(BROKEN)
    watched.look()
    watched.rewrite(GOOD.format(10))
    assert watched.look() is ReloadResult.OVER
    assert watched.watcher.trouble is None
    assert watched.watcher.current is before
    assert watched.watcher.loads == 1


@pytest.mark.parametrize("text", ["", "# all gone\n", "rate_limits: [", "\x00"])
def test_an_emptied_or_torn_file_changes_nothing(watched: Watched, text: str) -> None:
    watched.rewrite(text)
    assert watched.look() is ReloadResult.BROKEN
    assert capacity(watched.watcher) == 10


def test_a_deleted_file_leaves_the_policies_and_says_so(watched: Watched) -> None:
    watched.path.unlink()
    assert watched.look() is ReloadResult.BROKEN
    assert [watched.look() for _ in range(2)] == [ReloadResult.SAME] * 2
    assert capacity(watched.watcher) == 10
    assert "cannot be read" in str(watched.watcher.trouble)
    watched.path.write_text(GOOD.format(40))
    assert watched.look() is ReloadResult.LOADED
    assert capacity(watched.watcher) == 40


def test_a_directory_in_its_place(watched: Watched) -> None:
    watched.path.unlink()
    watched.path.mkdir()
    assert watched.look() is ReloadResult.BROKEN
    assert "is not a file" in str(watched.watcher.trouble)


def test_a_file_touched_or_replaced_by_its_like_is_no_reload(watched: Watched) -> None:
    before = watched.watcher.current
    os.utime(watched.path, ns=(1, 1))
    assert watched.look() is ReloadResult.SAME
    watched.rewrite(GOOD.format(10))
    assert watched.look() is ReloadResult.SAME
    assert watched.watcher.current is before
    assert watched.told == []


def test_a_second_write_within_one_tick_of_the_time_stamp_is_seen(watched: Watched) -> None:
    watched.path.write_text(GOOD.format(20))
    os.utime(watched.path, ns=(5, 5))
    assert watched.look() is ReloadResult.LOADED
    watched.path.write_text(GOOD.format(30))
    os.utime(watched.path, ns=(5, 5))
    assert watched.look() is ReloadResult.LOADED, "same file, same size, same time stamp"
    assert capacity(watched.watcher) == 30


def test_a_settled_file_is_not_read_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [watched.look(), watched.look()] == [ReloadResult.SAME] * 2

    def read(path: object) -> bytes:
        raise AssertionError("read")

    monkeypatch.setattr(policies_file, "read_bounded", read)
    assert watched.look() is ReloadResult.SAME


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
        (root / "policies.yaml").symlink_to("..data/policies.yaml")
        self.path = root / "policies.yaml"

    def swap(self, text: str) -> None:
        self.turn += 1
        held = self.root / f"..2026_{self.turn}"
        held.mkdir()
        (held / "policies.yaml").write_text(text)
        spare = self.root / "..data_tmp"
        spare.symlink_to(held.name)
        spare.replace(self.root / "..data")
        old = self.root / f"..2026_{self.turn - 1}"
        if old.exists():
            (old / "policies.yaml").unlink()
            old.rmdir()


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
    path = tmp_path / "policies.yaml"
    with pytest.raises(PolicyFileError, match="cannot be read"):
        Watcher(path, 0)
    path.write_text(BROKEN)
    with pytest.raises(PolicyFileError, match=r"policies\.yaml:2:40"):
        Watcher(path, 0)


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


def test_a_copy_that_is_no_good_either_is_no_start(tmp_path: Path) -> None:
    path, copy = tmp_path / "policies.yaml", tmp_path / "copy"
    path.write_text(BROKEN)
    copy.write_text("rate_limits: [")
    with pytest.raises(PolicyFileError, match=r"policies\.yaml:2:40"):
        Watcher(path, 0, last_good=str(copy))


def test_a_slow_look_does_not_undo_a_later_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin's look begins and ends while the poll's is still reading the file as it was."""
    real: Callable[[str], bytes] = policies_file.read_bounded
    watched.rewrite(GOOD.format(20))

    def slow(path: str) -> bytes:
        content = real(path)
        monkeypatch.setattr(policies_file, "read_bounded", real)
        monkeypatch.setattr(policies_file, "identify", lambda path: before)
        watched.rewrite(GOOD.format(30))
        monkeypatch.setattr(policies_file, "identify", identify)
        assert watched.watcher.look(watched.now_ms, at_once=True) is ReloadResult.LOADED
        monkeypatch.setattr(policies_file, "identify", lambda path: before)
        return content

    identify = policies_file.identify
    before = identify(str(watched.path))
    monkeypatch.setattr(policies_file, "read_bounded", slow)
    assert watched.look() is ReloadResult.SAME
    assert capacity(watched.watcher) == 30


def test_another_store_needs_a_restart_and_is_told(watched: Watched) -> None:
    watched.rewrite(GOOD.format(10) + "runtime: {fail_open: true}\n")
    watched.look()
    assert not watched.watcher.restart_needed
    watched.rewrite(GOOD.format(10) + "runtime: {store: 'memory://'}\n")
    watched.look()
    assert watched.watcher.restart_needed


def test_unchanged_rules_outlive_a_reload(watched: Watched) -> None:
    before = watched.watcher.current.limits_for("user", "x")
    watched.rewrite(GOOD.format(10) + "token_costs: [{endpoint: /a, tokens: 3}]\n")
    assert watched.look() is ReloadResult.LOADED
    assert watched.watcher.current.cost_of("/a") == 3
    assert watched.watcher.current.limits_for("user", "x") is before
