"""`headgate demo`: builds it, says what to open, runs it, and leaves nothing behind."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from headgate.core.errors import HeadgateError, Throttled, Unreachable
from headgate.core.limits import DEFAULT_NAMESPACE
from headgate.layers.breaker import BreakerConfig
from headgate.repository import Repository, open_backend
from headgate.service.demo.traffic import MODELS, Traffic, calls, store_sample
from headgate.service.program import Options, Program, embedded_store
from headgate.service.server.options import ServerOptions, within
from headgate.service.server.serve import listen, say, serve, set_up_logs
from headgate.stores.catalog import Backend

# --------------------------------------------------------------------------------------------------
# A backend with a switch, for the demo and nowhere else. What it does when it is broken is what
# ports report of a real engine: `Unreachable` at once, the same after the time a call may take, or
# `Throttled`. Everything above reacts as it would then.

HANG_MS = 400  # what a port would wait for an answer
THROTTLE_MS = 1_500

TAKES = ("consume", "consume_each")


class StoreSwitch:
    """How the store is now, and who may look: the page shows `modes` and `mode`, and turns it."""

    modes: Mapping[str, str] = MappingProxyType({
        "well": "The store answers.",
        "failing": "Every call fails at once, as with a server that was killed.",
        "hanging": f"Every call waits {HANG_MS} ms and then fails, as behind a cut cable.",
        "throttled": "Every take is throttled: a 429 with its own wait. The breaker stays closed.",
    })  # fmt: skip

    def __init__(self) -> None:
        self.mode = "well"

    def wrap(self, backend: Backend) -> Backend:
        """The backend behind this switch."""
        parts = {
            name: FaultyProxy(self, part)
            for name in ("store", "catalog", "ledger", "expiring")
            if (part := getattr(backend, name)) is not None
        }
        return replace(backend, **parts)  # type: ignore[arg-type]

    async def apply_fault(self, verb: str) -> None:
        """What every call meets before it reaches the store."""
        if self.mode == "hanging":
            await asyncio.sleep(HANG_MS / 1000)
        if self.mode in ("failing", "hanging"):
            raise Unreachable(f"the demo's switch says {self.mode}")
        if self.mode == "throttled" and verb in TAKES:
            raise Throttled("the demo's switch says throttled", THROTTLE_MS)


class FaultyProxy:
    """Any part of a backend whose verbs are all asynchronous, behind a switch. `close` always
    reaches it."""

    def __init__(self, switch: StoreSwitch, inner: object) -> None:
        self._switch = switch
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb: Callable[..., Awaitable[Any]] = getattr(self._inner, name)
        if name == "close":
            return verb

        async def call_with_faults(*given: Any, **named: Any) -> Any:
            await self._switch.apply_fault(name)
            return await verb(*given, **named)

        return call_with_faults


# --------------------------------------------------------------------------------------------------
# The options of the demo.

RATE_MAX = 200


@dataclass(frozen=True, slots=True)
class Demo:
    """`data` None is a directory that is deleted at the end; `rate` is in requests a second."""

    port: int = 8080
    rate: int = 12
    seed: int = 1
    traffic: bool = True
    data: str | None = None
    once: int | None = None


def read_options(arguments: Sequence[str] | None) -> Demo:
    """None is the words of the command line."""
    parser = argparse.ArgumentParser(
        prog="headgate demo",
        description="A company with teams, keys and models, traffic, the service and its "
        "dashboard on SQLite. Ctrl-C ends it.",
    )
    add = parser.add_argument
    add("--port", type=within(0, 65_535), default=8080, help="port to listen on (default 8080)")
    add("--rate", type=within(1, RATE_MAX), default=12, metavar="N",
        help=f"requests a second, at most {RATE_MAX} (default 12)")  # fmt: skip
    add("--seed", type=within(0, 10**9), default=1, metavar="N",
        help="another seed is other traffic (default 1)")  # fmt: skip
    add("--no-traffic", dest="traffic", action="store_false", help="the sample alone")
    add("--data", metavar="DIR", help="keep the store there (default: a directory that is deleted)")
    add("--once", type=within(1, 100_000), nargs="?", const=300, metavar="N",
        help="make N requests at once (default 300), say what came of them, and end")  # fmt: skip
    return Demo(**vars(parser.parse_args(arguments)))


# Shorter pauses than a service has, so that a person sees the breaker come back.
PATIENCE = BreakerConfig(open_ms=3_000, open_ms_max=6_000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; its exit code."""
    demo = read_options(arguments)
    set_up_logs("error")  # what the switch does on purpose is no news
    kept = None if demo.data is None else nullcontext(demo.data)
    try:
        with kept or tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
            switch = StoreSwitch()
            program = program_on(folder, switch)
            if demo.once is not None:
                say(asyncio.run(run_once(program, demo, demo.once)))
                return 0
            return _serve(demo, folder, program, switch)
    except HeadgateError as error:
        sys.stderr.write(f"headgate: {error}\n")
        return 2


def program_on(folder: str, switch: StoreSwitch) -> Program:
    """The service's program on SQLite behind a switch; it fails open, in dev mode."""
    url = embedded_store(folder)
    repository = Repository(url, _backend=switch.wrap(open_backend(url, blocking=False)))
    options = Options(store=url, fail_open=True)
    program = Program.build(options, repository=repository, patience=PATIENCE)
    program.metrics.configure((), MODELS)
    return program


async def run_once(program: Program, demo: Demo, count: int) -> str:
    """The sample and some requests; what came of them."""
    try:
        await program.start()
        traffic = await traffic_starter(program, replace(demo, traffic=False))()
        return f"{count} requests, seed {demo.seed}: {await traffic.send(count)}"
    finally:
        await program.close()


def startup_message(url: str, demo: Demo, folder: str) -> str:
    """What to open and what to try: a screen has room for 14 lines."""
    kept = "kept" if demo.data else "deleted at the end"
    traffic = f"{demo.rate} requests a second, seed {demo.seed}" if demo.traffic else "none"
    asked = '{"entity": "api_key:intern", "resource": "gpt-4", "amounts": {"rpm": 1, "tpm": 500}}'
    why = "explain?entity=api_key:search-batch&resource=gpt-4"
    return "\n".join(
        [
            f"headgate demo on {url}/   (Ctrl-C ends it)",
            f"  store    SQLite in {folder}, {kept}",
            f"  traffic  {traffic}: Acme, its teams, keys and models",
            "open",
            f"  {url}/ui/#/live         buckets drain and refill; bursts, refusals, a debt",
            f"  {url}/ui/#/playground   be refused and let in again; then break the store",
            f"  {url}/ui/#/health       meanwhile: the breaker opens, probes, and closes",
            f"  {url}/ui/#/{why}",
            f"  {url}/ui/#/limits?level=resource&resource=gpt-4   change it: the next decision",
            "ask (the answer's `instance` opens the explanation)",
            f"  curl -i {url}/v1/ratelimit/take -H 'content-type: application/json' \\",
            f"    -d '{asked}'",
        ]
    )


def _serve(demo: Demo, folder: str, program: Program, switch: StoreSwitch) -> int:
    serving = ServerOptions(program.options, port=demo.port, drain_s=2)
    listener = listen(serving)
    serving = replace(serving, port=listener.getsockname()[1])
    greeting, traffic = startup_message(serving.url, demo, folder), traffic_starter(program, demo)
    return serve(serving, program, listener, greeting, alongside=traffic, switch=switch)


def traffic_starter(program: Program, demo: Demo) -> Callable[[], Awaitable[Traffic]]:
    """The sample, stored once the program runs, and the traffic, which ends before it does."""

    async def start() -> Traffic:
        await store_sample(await program.service.namespace(DEFAULT_NAMESPACE))
        traffic = Traffic(program.service, calls(demo.seed), demo.rate)
        if demo.traffic:
            traffic.start()
        return traffic

    return start
