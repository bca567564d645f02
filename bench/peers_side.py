"""headgate beside its peers: every probe on every library that is installed, executed.

Memory, SQLite and DynamoDB stores run on virtual time. Redis keeps time itself, so its probes run
on real time with periods of seconds, all subjects side by side.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import (
    machine,
    peers_amounts,
    peers_bursts,
    peers_clocks,
    peers_crowds,
    peers_libraries,
    peers_subjects,
    peers_waits,
)
from bench.peers_gate import (
    DYNAMODB,
    MEMORY,
    REDIS,
    SQLITE,
    Place,
    RealTime,
    Subject,
    VirtualTime,
)
from bench.peers_law import NOT_OFFERED, Finding, Probe, failed
from bench.peers_ours import LIBRARY
from bench.table import Aim, aim, show

VERSIONS = ("limits", "throttled-py", "pyrate-limiter", "zae-limiter", "redis")
SLOW_STEP_MS = {MEMORY: 10_000, SQLITE: 172_800, DYNAMODB: 864_000}
PLAYS = {MEMORY: 12, SQLITE: 6, DYNAMODB: 3}
# A bucket lets this pass by design; the law it keeps is the one of the other probes.
BY_DESIGN = (peers_bursts.WINDOW.name,)

Looks = Callable[[Subject], list[Finding]]


def run(quick: bool) -> dict[str, Any]:
    print(f"peers   {', '.join(f'{name} {machine.version(name)}' for name in VERSIONS)}")
    subjects = peers_subjects.installed()
    peers_subjects.preload()
    with tempfile.TemporaryDirectory(prefix="headgate-peers-") as folder:
        place = Place(Path(folder))
        if quick:
            found = _on_virtual_time([one for one in subjects if one.store == MEMORY], place, 2)
        else:
            found = _everything(subjects, place)
    _show(found)
    return {
        "versions": {name: machine.version(name) for name in VERSIONS},
        "probes": [{"name": p.name, "does": p.does, "right": p.right} for p in probes()],
        "findings": [finding.as_dict() for finding in found],
        "load_at_end": machine.load(),
        "aims": _aims(found),
    }


def probes() -> list[Probe]:
    from bench import peers_faults

    families = (peers_bursts, peers_waits, peers_amounts, peers_crowds, peers_clocks, peers_faults)
    return [probe for family in families for probe in family.PROBES]


def _everything(subjects: Sequence[Subject], place: Place) -> list[Finding]:
    from bench import dynamodb, peers_faults

    local = [one for one in subjects if one.store in (MEMORY, SQLITE)]
    found = _on_virtual_time(local, place, None) + _in_threads(local, place)
    shared = [one for one in subjects if one.store == SQLITE]
    with _redis(place) as served:
        remote = [one for one in subjects if one.store == REDIS] if served else []
        shared += remote
        found += _on_real_time(remote, place) + _in_threads(remote, place)
        found += _each(remote, partial(peers_clocks.run, place=place), peers_clocks.PROBES)
        with dynamodb.running() as engine:
            place.endpoint = engine.endpoint
            tables = [one for one in subjects if one.store == DYNAMODB]
            found += _on_virtual_time(tables, place, None) + _in_threads(tables, place)
            found += _each(tables, partial(peers_clocks.run, place=place), peers_clocks.PROBES)
            _say("processes")
            found += peers_crowds.in_processes([*shared, *tables], place)
            _say("stores that die")
            dying = _dying(remote) + tables
            look = partial(peers_faults.run, place=place)
            found += _side_by_side(dying, look, peers_faults.PROBES)
    return found


def _dying(remote: Sequence[Subject]) -> list[Subject]:
    """One way of each library: how its client meets trouble does not hang on the strategy."""
    names = {LIBRARY: "token bucket", "limits": "fixed window"}
    chosen = [one for one in remote if one.way == names.get(one.library, "token bucket")]
    chosen += [
        one for one in remote if one.library == "pyrate-limiter" and one.way != "token bucket"
    ]
    libraries = {one.library for one in chosen}
    return chosen + [one for one in peers_libraries.TIMED if one.library in libraries]


def _on_virtual_time(subjects: Sequence[Subject], place: Place, plays: int | None) -> list[Finding]:
    found = []
    for subject in subjects:
        _say(subject.name)
        store = subject.store
        for family, look in (
            (peers_bursts.PROBES, peers_bursts.run),
            (peers_waits.PROBES, partial(peers_waits.run, plays=plays or PLAYS[store])),
            (peers_amounts.QUICK, peers_amounts.run),
            ((peers_amounts.SLOW,), partial(peers_amounts.run_slow, step_ms=SLOW_STEP_MS[store])),
        ):
            found += _guarded(subject, family, partial(look, place=place, time=VirtualTime()))
    return found


def _on_real_time(subjects: Sequence[Subject], place: Place) -> list[Finding]:
    _say("Redis, on real time")
    found = []
    for family, look in (
        (peers_bursts.PROBES, peers_bursts.run),
        ((peers_waits.SINGLE,), peers_waits.run_real),
        (peers_amounts.QUICK, peers_amounts.run),
    ):
        found += _side_by_side(subjects, partial(look, place=place, time=RealTime()), family)
    return found


def _in_threads(subjects: Sequence[Subject], place: Place) -> list[Finding]:
    look = partial(peers_crowds.in_threads, place=place)
    return _each(subjects, look, (peers_crowds.THREADS,))


def _each(subjects: Sequence[Subject], look: Looks, family: Sequence[Probe]) -> list[Finding]:
    return [one for subject in subjects for one in _guarded(subject, family, look)]


def _side_by_side(
    subjects: Sequence[Subject], look: Looks, family: Sequence[Probe]
) -> list[Finding]:
    if not subjects:
        return []
    with ThreadPoolExecutor(len(subjects)) as pool:
        answers = pool.map(lambda subject: _guarded(subject, family, look), subjects)
        return [one for found in answers for one in found]


def _guarded(subject: Subject, family: Sequence[Probe], look: Looks) -> list[Finding]:
    """A library that fails at a family of probes says so in the table; the others go on."""
    try:
        return look(subject)
    except Exception as error:  # noqa: BLE001
        return [failed(probe, subject, error) for probe in family]


@contextmanager
def _redis(place: Place) -> Iterator[bool]:
    from bench.peers_faults import serving

    if shutil.which("redis-server") is None:
        print("left out: Redis. To compare: apt-get install redis-server")
        yield False
        return
    with serving(REDIS, place) as server:
        place.redis_url = server.place.redis_url
        yield True


def _say(what: str) -> None:
    print(f"…  {what}", flush=True)


def _show(found: Sequence[Finding]) -> None:
    for probe in probes():
        rows = [one for one in found if one.probe == probe.name]
        if rows:
            show(
                f"{probe.name}: {probe.does}\n  right: {probe.right}",
                ("", "found"),
                [(one.subject.name, one.said) for one in rows],
            )


def _aims(found: Sequence[Finding]) -> list[Aim]:
    """headgate holds on every probe, where a bucket can."""
    ours = [one for one in found if one.subject.library == LIBRARY and one.probe not in BY_DESIGN]
    missed = [one for one in ours if one.holds is False]
    said = "; ".join(f"{one.probe} on {one.subject.store}: {one.said}" for one in missed)
    peers = [one for one in found if one.subject.library != LIBRARY]
    wrong = sum(one.holds is False for one in peers)
    lacking = sum(one.said.startswith(NOT_OFFERED) for one in peers)
    counted = f"{wrong} of {len(peers)} do not hold, {lacking} are not offered"
    return [
        aim(f"headgate holds on all {len(ours)}", said or "all", not missed),
        aim("what the peers' probes found", counted, bool(peers)),
    ]
