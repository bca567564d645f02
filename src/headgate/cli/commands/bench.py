"""`headgate bench`: how fast acquire is here, on this store, over this network."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator

from headgate.cli.options import action_command, number_option
from headgate.cli.output import Output, Step, progress
from headgate.cli.session import Session
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
@number_option("--count", 1, 1_000_000, 2000, "Acquires per thread.")
@number_option("--threads", 1, 64, 1, "Threads that share one limiter.")
@number_option("--entities", 1, 10_000, 1, "Entities to take from in turn; 1 is one hot bucket.")
def bench(session: Session, count: int, threads: int, entities: int) -> Output:
    """Measure acquire on the store, in a namespace of its own that is purged afterwards."""
    with (
        _namespace(session.repository) as home,
        SyncRateLimiter(home, limits=LIMITS) as limiter,
        progress(session, "acquiring") as step,
    ):
        times_ns, elapsed_ns = _measure(limiter, count, threads, entities, step)
    calls = len(times_ns)
    per_second = round(calls * 1e9 / max(1, elapsed_ns), 1)
    quantiles = {
        name: round(times_ns[min(calls - 1, int(part * calls))] / 1000, 1)
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    }
    store = session.repository.capabilities.name
    return Output(
        {
            "store": store, "acquires": calls, "threads": threads, "entities": entities,
            "per_second": per_second, "microseconds": quantiles,
        },
        f"{per_second:g} acquires/s on {store}",
        "  ".join(f"{name} {value:g} µs" for name, value in quantiles.items()),
    )  # fmt: skip


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
