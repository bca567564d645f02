"""What every flow stands on: `run` for blocking callers, the clock, the observer, program starts.

A flow awaits nothing but its port. A blocking port does its work and returns without
suspending, so a single `send(None)` carries the flow to its end.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from headgate.core.decision import Verdict

Given = ParamSpec("Given")
Result = TypeVar("Result")


def run(flow: Coroutine[Any, Any, Result]) -> Result:
    """What the flow returns, computed here and now on this thread."""
    try:
        flow.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    flow.close()
    raise AssertionError("a blocking port suspended: it must finish its call before it returns")


def blocking(
    flow: Callable[Concatenate[Any, Given], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Given], Result]:
    """The method that runs this coroutine to its end, with its signature, defaults and docstring.

    The coroutine is that of `self.core`, or of the object itself where it has no core.
    """

    @wraps(flow)
    def call(self: Any, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return run(flow(getattr(self, "core", self), *args, **kwargs))

    return call


# --------------------------------------------------------------------------------------------------
# Time as an integer of milliseconds, read at the edge and passed down as a value.

Clock = Callable[[], int]


def wall_clock_ms() -> int:
    """The host's wall clock: the same for every process on one machine."""
    return time.time_ns() // 1_000_000


# --------------------------------------------------------------------------------------------------
# One hook, one frozen event: everything worth counting passes through it.


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a request.

    `kind` is one of: admitted, refused, degraded (admitted or refused without the store),
    unavailable, denied (the store refuses the limiter itself; `detail` says why), adjusted,
    refunded, credit_lost, debit_lost, shadowed (let pass although a limit would have refused),
    breaker (it changed its state, which `detail` names; of no entity).
    `verdict` is there where a decision refused: it knows the limits, amounts and waits.
    """

    kind: str
    namespace: str
    entity_id: str
    resource: str
    detail: str = ""
    verdict: Verdict | None = field(default=None, compare=False, repr=False)


Observer = Callable[[Event], None]


# --------------------------------------------------------------------------------------------------
# Programs begin here: one whose packages are not installed says which, and what to do.


def run_program(where: str, told: str, extra: str) -> int:
    """The exit code of the function that a `module:name` text names."""
    module, _, name = where.partition(":")
    try:
        main = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "headgate":
            raise
        sys.stderr.write(
            f"headgate: {told} needs a package that is not installed ({error.name}): "
            f"pip install 'headgate[{extra}]'\n"
        )
        return 2
    code: int = main()
    return code
