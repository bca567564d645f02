"""`headgate demo`: builds it, says what to open, runs it, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from headgate.core.errors import HeadgateError
from headgate.core.limits__names import DEFAULT_NAMESPACE
from headgate.layers.breaker import Patience
from headgate.repository import Repository
from headgate.repository__connect import open_backend
from headgate.service.decide.service import Service
from headgate.service.demo.faulty_store import StoreSwitch
from headgate.service.demo.program__options import Demo, read_options
from headgate.service.demo.sample import MODELS, store_sample
from headgate.service.demo.traffic import calls
from headgate.service.demo.traffic__port import Traffic, pause_ms, run
from headgate.service.metrics.service import ServiceMetrics
from headgate.service.program import Options, Program, embedded_store, entrance_of, settings_of
from headgate.service.server.options import Serving
from headgate.service.server.serve import listen, serve
from headgate.service.server.serve__serve_log import set_up_logs

# Shorter pauses than a service has, so that a person sees the breaker come back.
PATIENCE = Patience(open_ms=3_000, open_ms_max=6_000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; its exit code."""
    demo = read_options(sys.argv[1:] if arguments is None else arguments)
    set_up_logs("error")  # what the switch does on purpose is no news
    try:
        with _folder(demo) as folder:
            switch = StoreSwitch(pause_ms)
            program = program_on(folder, switch)
            if demo.once is not None:
                _say(run(once(program, demo)))
                return 0
            return _serve(demo, folder, program, switch)
    except HeadgateError as error:
        sys.stderr.write(f"headgate: {error}\n")
        return 2


def program_on(folder: str, switch: StoreSwitch) -> Program:
    """The service's program on SQLite behind a switch; it fails open, in dev mode."""
    url = embedded_store(folder)
    repository = Repository(url, _backend=switch.over(open_backend(url, blocking=False)))
    options = Options(store=url, fail_open=True)
    metrics = ServiceMetrics()
    metrics.configure((), MODELS)
    service = Service(
        repository,
        settings=settings_of(options),
        on_answer=metrics.answered,
        patience=PATIENCE,
    )
    return Program(options, service, entrance_of(options, repository), metrics)


async def once(program: Program, demo: Demo) -> str:
    """The sample and some requests; what came of them."""
    try:
        await program.start()
        await store_sample(await program.service.room(DEFAULT_NAMESPACE))
        told = await Traffic(program.service, calls(demo.seed), demo.rate).send(demo.once or 0)
        return f"{demo.once} requests, seed {demo.seed}: {told}"
    finally:
        await program.close()


def started(url: str, demo: Demo, folder: str) -> str:
    """What to open and what to try: a screen has room for 14 lines."""
    kept = "kept" if demo.data else "deleted at the end"
    traffic = f"{demo.rate} requests a second, seed {demo.seed}" if demo.traffic else "none"
    asked = '{"scope": "api_key", "identifier": "intern", "resource": "gpt-4", "tokens": 5}'
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
            f"  curl -i {url}/v1/ratelimit/check -H 'content-type: application/json' \\",
            f"    -d '{asked}'",
        ]
    )


def _serve(demo: Demo, folder: str, program: Program, switch: StoreSwitch) -> int:
    serving = Serving(program.options, port=demo.port, drain_s=2)
    listener = listen(serving)
    serving = replace(serving, port=listener.getsockname()[1])
    greeting = started(serving.url, demo, folder)
    return serve(
        serving, program, listener, greeting, alongside=beside(program, demo), switch=switch
    )


def beside(program: Program, demo: Demo) -> Callable[[], Awaitable[Traffic]]:
    """The sample, stored once the program runs, and the traffic, which ends before it does."""

    async def start() -> Traffic:
        await store_sample(await program.service.room(DEFAULT_NAMESPACE))
        traffic = Traffic(program.service, calls(demo.seed), demo.rate)
        if demo.traffic:
            traffic.start()
        return traffic

    return start


@contextlib.contextmanager
def _folder(demo: Demo) -> Iterator[str]:
    if demo.data is not None:
        yield demo.data
        return
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as made:
        yield made


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
