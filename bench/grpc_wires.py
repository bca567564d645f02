"""Calls per second of the gRPC wire: one worker, the load on the same machine, the memory store.

The service, and beside it grpcio's own ceiling: a handler that returns what it was sent. Every
figure is the best of several rounds, all contestants in turn. CPU is the server's, all its threads.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any, NamedTuple

from bench.children import ROOT
from bench.grpc_load import Load
from bench.grpc_server import ECHO
from bench.table import Aim, aim, show
from headgate.service.grpc.proto.envoy import ratelimit_pb2, rls_pb2
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb

AT_ONCE = 32
BATCH = 100
OF_ECHO_AIM = 0.6
_CHECK = "/headgate.v1.RateLimiter/CheckRateLimit"
_BATCH = "/headgate.v1.RateLimiter/BatchCheckRateLimit"
_ENVOY = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


class Contest(NamedTuple):
    name: str
    server: str
    path: str
    message: bytes
    checks: int = 1
    at_once: int = AT_ONCE


def contests() -> list[Contest]:
    check = pb.CheckRateLimitRequest(identifier="user-1", resource="api.search")
    batch = pb.BatchCheckRateLimitRequest(
        requests=[
            pb.CheckRateLimitRequest(identifier=f"user-{n}", resource="api.search")
            for n in range(BATCH)
        ]
    )
    text = check.SerializeToString()
    return [
        Contest("echo", "echo", ECHO, text),
        Contest("check", "service", _CHECK, text),
        Contest("check, one at a time", "service", _CHECK, text, at_once=1),
        Contest("Envoy, two descriptors", "service", _ENVOY, _envoy()),
        Contest(f"batch of {BATCH}", "service", _BATCH, batch.SerializeToString(), BATCH, 4),
    ]


def run(quick: bool) -> dict[str, Any]:
    seconds, rounds = (0.3, 1) if quick else (4.0, 3)
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for contest in contests():
            found.setdefault(contest.name, []).append(measured(contest, seconds))
    rows = [
        {"name": name, **max(results, key=lambda one: one["checks_per_second"])}
        for name, results in found.items()
    ]
    _show(rows, seconds, rounds)
    return {"grpc": rows, "aims": _aims(rows)}


def measured(contest: Contest, seconds: float) -> dict[str, Any]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.grpc_server", contest.server],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        load = Load(int(server.stdout.readline()), contest.path, contest.message, contest.at_once)
        try:
            load.run(seconds / 8)  # warm
            before_s = _cpu_s(server)
            counted = load.run(seconds)
            spent_s = _cpu_s(server) - before_s
        finally:
            load.close()
            server.stdin.close()
    waits = sorted(counted.waits_ms)
    return {
        "checks_per_second": counted.answered * contest.checks / counted.seconds,
        "cpu_us": spent_s / max(1, counted.answered * contest.checks) * 1e6,
        "p50_ms": statistics.median(waits),
        "p99_ms": waits[int(len(waits) * 0.99)],
        "failed": counted.ended - counted.answered,
    }


def _cpu_s(server: subprocess.Popen[str]) -> float:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("cpu\n")
    server.stdin.flush()
    return float(server.stdout.readline())


def _envoy() -> bytes:
    def described(key: bytes, value: bytes) -> ratelimit_pb2.RateLimitDescriptor:
        entry = ratelimit_pb2.RateLimitDescriptor.Entry
        return ratelimit_pb2.RateLimitDescriptor(
            entries=[entry(key=key, value=value), entry(key=b"resource", value=b"api.search")]
        )

    asked = [described(b"user", b"user-1"), described(b"remote_address", b"10.0.0.1")]
    return rls_pb2.RateLimitRequest(domain=b"default", descriptors=asked).SerializeToString()


def _show(rows: list[dict[str, Any]], seconds: float, rounds: int) -> None:
    show(
        f"gRPC, one worker, memory store ({seconds} s, best of {rounds})",
        ("", "checks/s", "CPU µs/check", "p50 ms", "p99 ms", "failed"),
        [
            (
                row["name"], f"{row['checks_per_second']:,.0f}", row["cpu_us"], row["p50_ms"],
                row["p99_ms"], row["failed"],
            )
            for row in rows
        ],
    )  # fmt: skip


def _aims(rows: list[dict[str, Any]]) -> list[Aim]:
    rates = {row["name"]: row["checks_per_second"] for row in rows}
    share = rates["check"] / rates["echo"]
    return [
        aim(f"a check is at least {OF_ECHO_AIM:.0%} of grpcio's echo", f"{share:.0%}",
            share >= OF_ECHO_AIM),
        aim("no call fails", str(sum(row["failed"] for row in rows)),
            not any(row["failed"] for row in rows)),
    ]  # fmt: skip


if __name__ == "__main__":
    from bench.table import show_aims

    show_aims(run("--quick" in sys.argv)["aims"])
