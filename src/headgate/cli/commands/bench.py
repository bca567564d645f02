"""`headgate bench`: how fast acquire is here, on this store, over this network."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import click

from headgate.cli.options import Session, action_command, pass_session
from headgate.cli.output import Step, progress, show
from headgate.core.limits import AMOUNT_MAX, Limit
from headgate.sync import SyncRateLimiter, SyncRepository

# So wide that nothing is refused: only admitted acquires are measured.
LIMITS = [Limit.custom("rpm", AMOUNT_MAX // 1000, 1, 1)]
WARM_UP = 20


@action_command(
    "bench",
    examples="""
    headgate bench
    headgate -u memory:// bench
    headgate -u redis://localhost:6379/0 bench --count 20000 --threads 8
    """,
)
@click.option(
    "--count", type=click.IntRange(1, 1_000_000), default=2000, show_default=True, metavar="N",
    help="Acquires per thread.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
    help="Threads that share one limiter.",
)  # fmt: skip
@click.option(
    "--entities", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N",
    help="Entities to take from in turn; 1 is one hot bucket.",
)  # fmt: skip
@pass_session
def bench(session: Session, count: int, threads: int, entities: int) -> None:
    """Measure acquire on the store, in a namespace of its own that is purged afterwards."""
    with (
        session.repository() as repository,
        _namespace(repository) as home,
        SyncRateLimiter(home, limits=LIMITS) as limiter,
        progress(session, "acquiring") as step,
    ):
        times_ns, elapsed_ns = _measure(limiter, count, threads, entities, step)
    calls = len(times_ns)
    document: dict[str, Any] = {
        "store": repository.capabilities.name,
        "acquires": calls,
        "threads": threads,
        "entities": entities,
        "per_second": round(calls * 1e9 / max(1, elapsed_ns), 1),
        "microseconds": {
            name: round(times_ns[min(calls - 1, int(part * calls))] / 1000, 1)
            for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
        },
    }
    waits = "  ".join(f"{name} {value:g} µs" for name, value in document["microseconds"].items())
    show(session, document, f"{document['per_second']:g} acquires/s on {document['store']}", waits)


@contextlib.contextmanager
def _namespace(repository: SyncRepository) -> Iterator[SyncRepository]:
    """A namespace for the measurement, purged at the end."""
    name = f"headgate-bench-{secrets.token_hex(4)}"
    found = repository.register_namespace(name)
    try:
        yield repository.namespace(name)
    finally:
        repository.delete_namespace(name)
        repository.purge_namespace(found)


def _measure(
    limiter: SyncRateLimiter, count: int, threads: int, entities: int, step: Step
) -> tuple[list[int], int]:
    """The times of all calls, sorted, and how long they took together."""
    times: list[list[int]] = [[] for _ in range(threads)]
    troubles: list[BaseException] = []
    for _ in range(WARM_UP):
        with limiter.acquire("bench-0", "bench", {"rpm": 1}):
            pass

    def work(own: list[int]) -> None:
        try:
            for turn in range(count):
                began_ns = time.perf_counter_ns()
                with limiter.acquire(f"bench-{turn % entities}", "bench", {"rpm": 1}):
                    pass
                own.append(time.perf_counter_ns() - began_ns)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            troubles.append(error)

    workers = [threading.Thread(target=work, args=(own,), daemon=True) for own in times]
    began_ns = time.perf_counter_ns()
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            worker.join(0.1)
            step(sum(map(len, times)), count * threads)
    elapsed_ns = time.perf_counter_ns() - began_ns
    if troubles:
        raise troubles[0]
    return sorted(one for own in times for one in own), elapsed_ns
