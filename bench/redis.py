"""Decisions of tasks and threads on one Redis: headgate, its peers, the bare client, the server."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

from bench import machine, redis_ours, redis_peers, redis_threads
from bench.redis_clients import server
from bench.redis_jobs import (
    CALLERS,
    KEYS,
    PIPELINED,
    Contestant,
    Timing,
    ask,
    ceiling,
    measure,
    one_round,
)
from bench.redis_ours import BARE, LEASE_1, LIMITS_MOST, STORE_1
from bench.table import Aim, aim, show
from headgate.stores.redis.buckets import CONSUME

TIMES_AIM, CPU_US_AIM, SHARE_AIM = 4, 20, 0.6
BUSY = CALLERS[1:]
LIBRARIES = ("redis", "hiredis", "coredis")


def run(quick: bool) -> dict[str, Any]:
    seconds, rounds = (0.05, 1) if quick else (0.25, 4)
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is not installed; run: apt-get install redis-server")
    contestants = redis_ours.CONTESTANTS + redis_peers.contestants()
    with server() as port:
        url = f"redis://127.0.0.1:{port}"
        _show_set_up(url)
        tops: dict[int, list[float]] = {}
        each_round = partial(_add_ceilings, tops, url, 8000 if quick else 30_000)
        timings = measure(contestants, url, seconds, rounds, each_round)
        threads = redis_threads.measure(url, seconds, rounds)
        costs = _server_costs(url, seconds, rounds)
        trips = {count: _trips(url, count) for count in (1, 3, LIMITS_MOST)}
    rows = [_row(timing, timings) for timing in timings]
    _show(rows, costs, tops, seconds, rounds)
    redis_threads.report(threads, seconds, rounds)
    return {
        "redis": rows,
        "threads": threads,
        "server": costs,
        "round_trips": trips,
        "ceiling": tops,
        "aims": _aims(rows, trips),
    }


def _show_set_up(url: str) -> None:
    info = str(ask(url, "INFO", "server"))
    version = next(line[14:] for line in info.splitlines() if line.startswith("redis_version:"))
    libraries = ", ".join(f"{name} {machine.version(name)}" for name in LIBRARIES)
    print(f"redis   server {version} on loopback; {libraries}")
    for note in redis_peers.NOTES:
        print(f"note    {note}")


def _row(timing: Timing, timings: list[Timing]) -> dict[str, Any]:
    ours = next(
        one.rates
        for one in timings
        if one.callers == timing.callers and one.contestant.name == LEASE_1
    )
    return {
        "name": timing.contestant.name,
        "peer": timing.contestant.peer,
        "callers": timing.callers,
        "per_second": timing.per_second,
        "rate_spread_percent": timing.rate_spread_percent,
        "cpu_us": timing.cpu_us,
        "cpu_spread_percent": timing.cpu_spread_percent,
        "server_us": min(timing.servers_us),
        "lease_times": max(ours) / timing.per_second,
        "lease_times_by_round": [a / b for a, b in zip(ours, timing.rates, strict=True)],
        "rates": timing.rates,
        "cpus_us": timing.cpus_us,
        "servers_us": timing.servers_us,
    }


def _server_costs(url: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """The least of the rounds, at 32 callers so that calls come pipelined."""
    found = []
    for count in (1, 3):
        for usage in (True, False):
            opened = partial(redis_ours.store, count, usage=usage)
            contestant = Contestant("store.consume", opened)
            times = [one_round(contestant, url, 32, seconds)[2] for _ in range(rounds)]
            script_us = [time.script_us for time in times]
            found.append(
                {
                    "limits": count,
                    "usage": usage,
                    "script_us": min(script_us),
                    "script_spread_percent": (max(script_us) / min(script_us) - 1) * 100,
                    "process_us": min(time.process_us for time in times),
                }
            )
    return found


def _trips(url: str, count: int) -> float:
    """Script calls per acquire and lease, as the server counted them."""
    contestant = Contestant("acquire", partial(redis_ours.lease, count))
    return one_round(contestant, url, 32, 0.05)[2].calls


def _add_ceilings(tops: dict[int, list[float]], url: str, n: int) -> None:
    for count in (1, 3):
        ask(url, "FLUSHALL")
        names, args = redis_ours.calls(url, count)[KEYS[0]]
        ask(url, "SCRIPT", "LOAD", CONSUME.source)
        tops.setdefault(count, []).append(ceiling(url, CONSUME, names, args, n))


def _show(
    rows: list[dict[str, Any]],
    costs: list[dict[str, Any]],
    tops: dict[int, list[float]],
    seconds: float,
    rounds: int,
) -> None:
    for callers in CALLERS:
        show(
            f"{callers} asyncio task(s), {len(KEYS)} keys, {seconds:g} s each, best of {rounds} "
            f"interleaved rounds (spread: median to best)",
            ("", "decisions/s", "spread %", "client CPU us", "spread %", "server CPU us",
             "acquire is"),
            [
                (row["name"], f"{row['per_second']:,.0f}", f"{row['rate_spread_percent']:.0f}",
                 f"{row['cpu_us']:.1f}", f"{row['cpu_spread_percent']:.0f}",
                 f"{row['server_us']:.1f}", f"{row['lease_times']:.1f} x")
                for row in rows if row["callers"] == callers
            ],
        )  # fmt: skip
    show(
        f"server CPU per decision, store.consume, 32 tasks, least of {rounds} rounds",
        ("", "usage", "script us", "spread %", "process us"),
        [
            (f"{cost['limits']} limit(s)", "on" if cost["usage"] else "off", cost["script_us"],
             f"{cost['script_spread_percent']:.0f}", cost["process_us"])
            for cost in costs
        ],
    )  # fmt: skip
    show(
        f"our EVALSHA on one key, {PIPELINED} at a time, usage on: the server's ceiling",
        ("", "calls/s", "spread %", *(f"store.consume @{callers}" for callers in BUSY)),
        [
            (
                f"{count} limit(s)",
                f"{max(rates):,.0f}",
                f"{(1 - min(rates) / max(rates)) * 100:.0f}",
                *(_share(rows, callers, max(rates)) if count == 1 else None for callers in BUSY),
            )
            for count, rates in tops.items()
        ],
    )  # fmt: skip


def _share(rows: list[dict[str, Any]], callers: int, top: float) -> str:
    return f"{_found(rows, STORE_1, callers)['per_second'] / top:.0%}"


def _found(rows: list[dict[str, Any]], name: str, callers: int) -> dict[str, Any]:
    return next(row for row in rows if row["name"] == name and row["callers"] == callers)


def _aims(rows: list[dict[str, Any]], trips: dict[int, float]) -> list[Aim]:
    found = []
    for callers in BUSY:
        store = _found(rows, STORE_1, callers)
        share = store["per_second"] / _found(rows, BARE, callers)["per_second"]
        beaten = [row for row in rows if row["peer"] and row["callers"] == callers]
        if beaten:
            least = min(beaten, key=lambda row: float(row["lease_times"]))
            text = f"acquire + lease >= {TIMES_AIM} x every peer at {callers}"
            by_round = " ".join(f"{times:.1f}" for times in least["lease_times_by_round"])
            said = f"{least['lease_times']:.1f} x {least['name']}, the nearest; by round {by_round}"
            found.append(aim(text, said, least["lease_times"] >= TIMES_AIM))
        text = f"store.consume <= {CPU_US_AIM} us client CPU at {callers}"
        found.append(aim(text, f"{store['cpu_us']:.1f} us", store["cpu_us"] <= CPU_US_AIM))
        text = f"store.consume >= {SHARE_AIM:.0%} of the bare client at {callers}"
        found.append(aim(text, f"{share:.0%}", share >= SHARE_AIM))
    said = ", ".join(f"{count} limits {calls:.3f}" for count, calls in trips.items())
    one = all(calls == 1 for calls in trips.values())
    found.append(aim("round trips per acquire + lease = 1 for any number of limits", said, one))
    return found
