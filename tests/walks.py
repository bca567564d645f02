"""How far one call walks through the package: its function calls and the modules they are in.

Who follows a warm acquire in an editor should pass few functions and few files. The bounds in the
tests are what there is today; they are only lowered.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from headgate import Limit, RateLimiter
from headgate.service.decide.requests import BatchRequest, CheckRequest
from headgate.service.program import Options, Program

PACKAGE = "headgate."


class Walk:
    """`steps` are (module, function), in their order; a coroutine that goes on is no new step."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self._frames: set[FrameType] = set()  # kept, so that none is taken for another

    @property
    def calls(self) -> int:
        return len(self.steps)

    @property
    def modules(self) -> int:
        return len({module for module, _ in self.steps})

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        # By the module's name, not its file: what dataclasses generate has none, and takes time.
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(PACKAGE) and frame not in self._frames:
            self._frames.add(frame)
            self.steps.append((module.removeprefix(PACKAGE), frame.f_code.co_qualname))

    def is_within(self, calls: int, modules: int) -> bool:
        return self.calls <= calls and self.modules <= modules

    def __repr__(self) -> str:
        return f"{self.calls} calls in {self.modules} modules: {self.steps}"


@contextmanager
def walked() -> Iterator[Walk]:
    """What this thread does in the block."""
    walk = Walk()
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)


async def warm_acquire(url: str) -> Walk:
    """The walk of an acquire whose plan, bucket and connection are known."""

    async def acquire(limiter: RateLimiter) -> None:
        async with limiter.acquire("user:7", "api", {"rps": 1}):
            pass

    return await _warm(url, acquire)


async def warm_take(url: str) -> Walk:
    """The same of the plain verb."""

    async def take(limiter: RateLimiter) -> None:
        assert await limiter.take("user:7", "api", {"rps": 1})

    return await _warm(url, take)


async def _warm(url: str, act: Callable[[RateLimiter], Awaitable[None]]) -> Walk:
    """Of twenty walks, the shortest two in a row, and the longer of these.

    A busy machine only ever adds calls: a reply comes in two pieces, a new second is signed, a
    connection is dialled again, a timer goes off meanwhile. The shortest walks met none of that.
    They are two, so that what is done at every second acquire counts.
    """
    walks = []
    async with RateLimiter(url, limits=[Limit.per_second("rps", 1000)]) as limiter:
        for _ in range(25):
            with walked() as walk:
                await act(limiter)
            walks.append(walk)
    longer = (max(two, key=lambda walk: walk.calls) for two in itertools.pairwise(walks[5:]))
    return min(longer, key=lambda walk: walk.calls)


async def warm_checks(url: str) -> tuple[Walk, Walk]:
    """The walks of a check and of a batch by the service, whose plan and bucket are known."""
    program = Program.build(Options(store=url))
    await program.start()
    try:
        check = CheckRequest("user", "ann", "short", 1)
        batch = BatchRequest((check, CheckRequest("user", "bob", "short", 1)))
        for _ in range(3):
            await program.service.decide(check)
            await program.service.decide_batch(batch)
        with walked() as alone:
            await program.service.decide(check)
        with walked() as together:
            await program.service.decide_batch(batch)
    finally:
        await program.close()
    return alone, together


def has_short_answer(walk: Walk) -> bool:
    """Whether plain admissions were told as such: no decision was wrapped, no limit described."""
    names = {name for _, name in walk.steps}
    return "plain_admission" in names and not names & {
        "BatchEngine._finish",
        "check_result",
    }
