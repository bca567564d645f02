"""Many at once on one limit: threads that share a limiter, processes that share a store."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.children import ask_all, wait_for_go
from bench.peers_gate import DYNAMODB, Place, Rate, RealTime, Subject, Take, one
from bench.peers_law import Finding, Probe, steady_ms

THREADS = Probe(
    "8 threads",
    "8 threads ask one limiter for more than the limit at once",
    "exactly the limit and what was refilled meanwhile",
)
PROCESSES = Probe(
    "4 processes",
    "4 processes ask one store for more than the limit at once",
    "exactly the limit and what was refilled meanwhile",
)
PROBES = (THREADS, PROCESSES)
HOUR_S = 3600
CHILDREN = 4
CHILD_S_MAX = 180.0


@dataclass(frozen=True, slots=True)
class Crowd:
    limit: int
    tries: int  # of each


MANY, FEW = Crowd(500, 300), Crowd(100, 60)


def crowd_of(subject: Subject) -> Crowd:
    """A decision of the DynamoDB engine takes milliseconds of its own."""
    return FEW if subject.store == DYNAMODB else MANY


def in_threads(subject: Subject, place: Place, rounds: int | None = None) -> list[Finding]:
    crowd = crowd_of(subject)
    rounds = rounds or (1 if crowd is FEW else 3)
    rate = Rate("rpm", crowd.limit, HOUR_S)
    with subject.open([rate], place, RealTime()) as take, _switching():
        counts = [_threads_round(take, f"t{turn}", crowd, rate) for turn in range(rounds)]
    return [_judge(THREADS, subject, counts, rate)]


def in_processes(subjects: Sequence[Subject], place: Place) -> list[Finding]:
    """The children go through the subjects together, and meet before each."""
    spot = place.fresh()
    for number, subject in enumerate(subjects):
        rate = Rate("rpm", crowd_of(subject).limit, HOUR_S)
        with subject.open([rate], _spot(place, f"{spot}s{number}"), RealTime()) as take:
            take("other", one())  # what is shared exists before anybody hurries
    where = json.dumps([str(place.folder), place.redis_url, place.endpoint, spot])
    names = json.dumps([subject.name for subject in subjects])
    answers = ask_all([("peers", names, where)] * CHILDREN, CHILD_S_MAX)
    return [_judge_children(subject, answers, place) for subject in subjects]


def _judge_children(subject: Subject, answers: list[dict[str, Any]], place: Place) -> Finding:
    found = [answer[subject.name] for answer in answers]
    errors = [one["error"] for one in found if "error" in one]
    if errors:
        return Finding(PROCESSES.name, subject, errors[0].split(":")[0], False, {"errors": errors})
    rate = Rate("rpm", crowd_of(subject).limit, HOUR_S)
    admitted = sum(one["admitted"] for one in found)
    return _judge(
        PROCESSES, subject, [Count(admitted, max(one["spent_ms"] for one in found))], rate
    )


def job(names: str, where: str) -> dict[str, Any]:
    """A child's part of `in_processes`."""
    from bench.peers_subjects import found

    folder, redis_url, endpoint, spot = json.loads(where)
    place = Place(Path(folder), redis_url, endpoint)
    wait_for_go()
    answers = {}
    for number, name in enumerate(json.loads(names)):
        try:
            answers[name] = _childs_part(found(name), _spot(place, f"{spot}s{number}"))
        except Exception as error:  # noqa: BLE001  told to the parent
            answers[name] = {"error": f"{type(error).__name__}: {error}"}
    return answers


def _childs_part(subject: Subject, place: Place) -> dict[str, Any]:
    crowd = crowd_of(subject)
    try:
        with subject.open([Rate("rpm", crowd.limit, HOUR_S)], place, RealTime()) as take:
            take("other", one())
            started_ms = steady_ms()
            _meet(place)
            admitted = sum(take("shared", one()).admitted for _ in range(crowd.tries))
            return {"admitted": admitted, "spent_ms": steady_ms() - started_ms}
    except Exception:
        (place.folder / f"{place.spot}-{os.getpid()}.met").touch()  # nobody waits for this one
        raise


def _meet(place: Place) -> None:
    """All children are here, or a minute is over."""
    (place.folder / f"{place.spot}-{os.getpid()}.met").touch()
    for _ in range(30_000):
        if len(list(place.folder.glob(f"{place.spot}-*.met"))) >= CHILDREN:
            return
        time.sleep(0.002)


def _spot(place: Place, spot: str) -> Place:
    return Place(place.folder, place.redis_url, place.endpoint, spot)


@dataclass(frozen=True, slots=True)
class Count:
    admitted: int
    spent_ms: int


def _threads_round(take: Take, key: str, crowd: Crowd, rate: Rate) -> Count:
    take(f"warm-{key}", one())
    ready = threading.Barrier(8)
    admitted: list[int] = []
    errors: list[BaseException] = []

    def ask() -> None:
        ready.wait(30)
        try:
            admitted.append(sum(take(key, one()).admitted for _ in range(crowd.tries)))
        except Exception as error:  # noqa: BLE001  told to the one who waits
            errors.append(error)

    started_ms = steady_ms()
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CHILD_S_MAX)
    if errors:
        raise errors[0]
    if len(admitted) < len(threads):
        raise TimeoutError(f"no end after {CHILD_S_MAX:.0f} s")
    return Count(sum(admitted), steady_ms() - started_ms)


def _judge(probe: Probe, subject: Subject, counts: Sequence[Count], rate: Rate) -> Finding:
    """The round that is farthest off tells."""
    off = [_off(count, rate) for count in counts]
    most = max(off, key=abs)
    figures = {"admitted": [count.admitted for count in counts], "limit": rate.limit}
    return Finding(probe.name, subject, "holds" if not most else f"{most:+d}", most == 0, figures)


def _off(count: Count, rate: Rate) -> int:
    """Above what may have been refilled, or below the limit."""
    refilled = -(-count.spent_ms * rate.limit // rate.period_ms)
    return max(0, count.admitted - rate.limit - refilled) or min(0, count.admitted - rate.limit)


@contextmanager
def _switching() -> Iterator[None]:
    """Threads take turns a thousand times as often, so that races are met."""
    kept = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(kept)
        time.sleep(0)
