"""`headgate trim|upgrade|bench|version|completion`: care of a store, and of the installation."""

from __future__ import annotations

import contextlib
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click
from click.shell_completion import get_completion_class

from headgate.cli.options import action_command, number_option, yes_option
from headgate.cli.output import Output, OutputTable, Step, confirm, progress
from headgate.cli.session import Session
from headgate.core.limits import AMOUNT_MAX, Limit
from headgate.sync import SyncRateLimiter, SyncRepository


@action_command("""
    headgate trim --usage-days 400 --yes
    headgate trim --usage-days 90 --audit-days 365 --yes
""")
@click.option("--usage-days", type=int, metavar="N", help="Days of usage to keep, in whole months.")
@click.option("--audit-days", type=int, metavar="N", help="Days of changes to keep.")
@yes_option
def trim(session: Session, usage_days: int | None, audit_days: int | None, yes: bool) -> Output:
    """Delete older usage and audit events, of every namespace."""
    if usage_days is None and audit_days is None:
        raise click.UsageError("say --usage-days, --audit-days, or both")
    confirm(session, "Delete history that is older, for good?", yes=yes)
    gone = session.repository.trim_history(
        usage_days=usage_days, audit_days=audit_days, principal=session.audit_principal
    )
    return Output({"gone": gone}, f"{gone} records are gone")


# --------------------------------------------------------------------------------------------------
# `headgate upgrade`: a store of an older schema is moved on, step by step.

FIELDS = ("version", "title", "looked_at", "moved", "done")


@action_command("""
    headgate upgrade --dry-run
    headgate upgrade
    headgate -u 'dynamodb://headgate?region=eu-west-1' upgrade --create
""")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--create", is_flag=True, help="Create the store's table first, if it is missing.")
def upgrade(session: Session, dry_run: bool, create: bool) -> Output:
    """Upgrade a store from an older schema. If it is cut short, the next run continues it."""
    if create and dry_run:
        raise click.UsageError("--create makes something, --dry-run nothing; choose one")
    repository = session.repository
    with progress(session, "upgrading") as step:
        if create:
            repository.create_table()
        steps = repository.upgrade(
            dry_run=dry_run, report=lambda progress: step(progress.looked_at, None)
        )
    found = [{name: getattr(one, name, None) for name in FIELDS} for one in steps]
    rows = [list(one.values()) for one in found]
    columns = (">version", "step", ">looked at", ">moved", "done")
    table = OutputTable(columns, rows, "the store is up to date")
    return Output({"dry_run": dry_run, "steps": found}, table)


# --------------------------------------------------------------------------------------------------
# `headgate version`: what is installed, and what the store says of itself.

# The package that tells whether an extra is installed.
EXTRAS = {"redis": "redis", "dynamodb": "botocore", "service": "uvicorn", "cli": "click"}


@action_command("""
    headgate version
    headgate version --store --json
""")
@click.option("--store", "with_store", is_flag=True, help="Ask the store, too.")
def version(session: Session, with_store: bool) -> Output:
    """Show the versions of headgate, Python, the extras' packages and the store's schema."""
    import headgate

    document: dict[str, Any] = {
        "headgate": headgate.__version__,
        "python": platform.python_version(),
        "extras": {extra: _package_version(package) for extra, package in EXTRAS.items()},
    }
    lines = [f"headgate {document['headgate']}", f"python   {document['python']}"]
    lines += [f"{name:8} {found or 'not installed'}" for name, found in document["extras"].items()]
    if with_store:
        repository = session.repository
        record = dict(repository.get_version_record())
        store = document["store"] = {**asdict(repository.capabilities), "record": record}
        lines.append(f"store    {store['name']}, shared by the {store['shared']}, {record}")
    return Output(document, "\n".join(lines))


def _package_version(package: str) -> str | None:
    from importlib import metadata

    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None


# --------------------------------------------------------------------------------------------------
# `headgate completion`: the script that makes a shell complete headgate's words.


@action_command("""
    eval "$(headgate completion bash)"
    headgate completion zsh > "${fpath[1]}/_headgate"
    headgate completion fish > ~/.config/fish/completions/headgate.fish
""")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(session: Session, shell: str) -> Output:
    """Print the completion script of a shell; load it in its start file."""
    from headgate.cli.app import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    script = kind(cli, {}, "headgate", "_HEADGATE_COMPLETE").source()
    return Output({"shell": shell, "script": script}, script)


# --------------------------------------------------------------------------------------------------
# `headgate bench`: how fast acquire is here, on this store, over this network.

# So wide that nothing is refused: only admitted acquires are measured.
LIMITS = [Limit.custom("rpm", AMOUNT_MAX // 1000, 1, 1)]
WARM_UP = 20


@action_command("""
    headgate bench
    headgate -u memory:// bench
    headgate -u redis://localhost:6379/0 bench --count 20000 --threads 8
""")
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
