"""Load on an HTTP server: wrk where it is installed, else a generator of our own.

Requests differ as those of real clients do: each has a `traceparent` of its own, and identifiers
have different lengths. A server that remembers what it was sent before gains nothing from it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

KEYS = 5000
RESOURCE = "api.search"

_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}

SCRIPT = """
{before}
local n = 0
request = function()
  n = n + 1
  local k = n % {keys}
  local trace = string.format("00-%032x-%016x-01", n, n)
  local fields = {{["content-type"] = "application/json", ["traceparent"] = trace}}
  return wrk.format("POST", "{path}", fields, {body})
end
"""
LENGTHS = 8  # of identifiers
ONE = f'{{"identifier":"WHO","resource":"{RESOURCE}"}}'
THREE = (
    '{"identifier":"WHO","metadata":{"ip_address":"WHERE"},"descriptors":['
    f'{{"scope":"user","resource":"{RESOURCE}"}},{{"scope":"ip","resource":"{RESOURCE}"}},'
    f'{{"scope":"global","resource":"{RESOURCE}"}}]}}'
)


def identifier(number: int) -> str:
    return f"user-{'x' * (number % LENGTHS)}{number}"


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: to which path, and bodies that take turns."""

    path: str
    bodies: tuple[bytes, ...]
    lua: str  # the next body, in the script that wrk runs
    lua_before: str = ""

    @classmethod
    def single(cls) -> Load:
        return cls._of("/v1/ratelimit/check", ONE)

    @classmethod
    def acquire(cls) -> Load:
        """Three limits at once: a user's, an address's and everybody's."""
        return cls._of("/v1/ratelimit/acquire", THREE)

    @classmethod
    def lease(cls) -> Load:
        return cls._of("/v1/leases", ONE)

    @classmethod
    def _of(cls, path: str, template: str) -> Load:
        """A body for each identifier, which has an address of its own."""
        bodies = (
            template.replace("WHO", identifier(n)).replace("WHERE", f"10.0.{n // 256}.{n % 256}")
            for n in range(KEYS)
        )
        pattern = template.replace("WHO", "user-%s%d").replace("WHERE", "10.0.%d.%d")
        values = f"string.rep('x', k % {LENGTHS}), k, math.floor(k / 256), k % 256"
        lua = f"string.format('{pattern}', {values})"
        return cls(path, tuple(body.encode() for body in bodies), lua)

    @classmethod
    def batch(cls, size: int) -> Load:
        """All identifiers, so many of them at a time."""
        bodies = []
        for first in range(0, KEYS, size):
            items = [
                {"identifier": identifier(n), "resource": RESOURCE}
                for n in range(first, first + size)
            ]
            bodies.append(json.dumps({"requests": items}, separators=(",", ":")).encode())
        texts = ",".join(f"'{body.decode()}'" for body in bodies)
        lua = f"bodies[n % {len(bodies)} + 1]"
        return cls("/v1/ratelimit/batch", tuple(bodies), lua, f"local bodies = {{{texts}}}")


@dataclass(frozen=True, slots=True)
class Figures:
    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def put_on(url: str, load: Load, connections: int, seconds: float) -> Figures:
    """The load for that long; answers other than 2xx count as failed."""
    if has_wrk():
        return _wrk(url, load, connections, seconds)
    return asyncio.run(_own(url, load, connections, seconds))


def _wrk(url: str, load: Load, connections: int, seconds: float) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "load.lua"
        script.write_text(
            SCRIPT.format(before=load.lua_before, keys=KEYS, path=load.path, body=load.lua),
            encoding="utf-8",
        )
        done = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency",
             "-s", str(script), url],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    text = done.stdout
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return Figures(
        int(_found(r"(\d+) requests in", text)),
        float(_found(r"Requests/sec:\s+([\d.]+)", text)),
        _ms(_found(r"(?m)^\s+50%\s+(\S+)\s*$", text)),
        _ms(_found(r"(?m)^\s+99%\s+(\S+)\s*$", text)),
        int(failed[1]) if failed else 0,
    )


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"wrk said something else than expected:\n{text}")
    return found[1]


def _ms(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]


async def _own(url: str, load: Load, connections: int, seconds: float) -> Figures:
    host, _, port = url.removeprefix("http://").partition(":")
    until_s = time.perf_counter() + seconds
    times: list[float] = []
    failed = 0

    async def client(place: int) -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection(host, int(port))
        number = place
        while (began_s := time.perf_counter()) < until_s:
            body = load.bodies[number % len(load.bodies)]
            number += connections
            writer.write(
                b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"traceparent: 00-%032x-%016x-01\r\ncontent-length: %d\r\n\r\n%b"
                % (load.path.encode(), number + 1, number + 1, len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            failed += not head.startswith(b"HTTP/1.1 2")
            times.append(time.perf_counter() - began_s)
        writer.close()

    await asyncio.gather(*[client(place) for place in range(connections)])
    times.sort()
    return Figures(
        len(times),
        len(times) / seconds,
        times[len(times) // 2] * 1000,
        times[int(len(times) * 0.99)] * 1000,
        failed,
    )
