"""Which layers wrap a store, and in which order.

    shadow > prefetch > rejections > breaker > store            (the outermost first)

Shadow sees every refusal, whichever layer makes it. Prefetch is in front of rejections, because
held tokens can be served however empty the store is. Rejections are in front of the breaker: a
refusal that is certain holds while the store is away, and says nothing about the store's health.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from headgate.core.errors import ValidationError
from headgate.core.runtime import Clock
from headgate.core.store import Capabilities, Store
from headgate.layers.breaker import Breaker, BreakerConfig, BreakerState, Circuit
from headgate.layers.layer import OnRefusal, Shadow
from headgate.layers.prefetch import Prefetch
from headgate.layers.rejections import Rejections
from headgate.transport.gates import GateFactory

SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Layering:
    """Which layers to use."""

    breaker: bool = True
    rejections: bool = True
    prefetch: bool = False
    shadow: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool):
                raise ValidationError(field.name, value, "must be True or False")

    def for_store(self, capabilities: Capabilities) -> Layering:
        """Without layers that cannot help: a store in this process is never away, and nothing is
        nearer to the caller."""
        if capabilities.shared != "process":
            return self
        return replace(self, breaker=False, rejections=False, prefetch=False)

    def override(self, switches: Mapping[str, bool]) -> Layering:
        """The same with the switches of a URL: an operator sets it, so it overrules the code."""
        return replace(self, **switches)


def split_options(url: str, options: Mapping[str, str]) -> tuple[dict[str, bool], dict[str, str]]:
    """The layers that a URL switches on or off, and the options left for the store."""
    names = {field.name for field in fields(Layering)}
    switches: dict[str, bool] = {}
    for name in names & set(options):
        switch = SWITCHES.get(options[name].lower())
        if switch is None:
            raise ValidationError("url", url, f"has {name}={options[name]!r}; it must be on or off")
        switches[name] = switch
    return switches, {name: text for name, text in options.items() if name not in names}


def add_layers(
    store: Store,
    *,
    clock: Clock,
    pace: GateFactory | None = None,
    breaker: bool = True,
    rejections: bool = True,
    prefetch: bool = False,
    shadow: bool = False,
    patience: BreakerConfig = BreakerConfig(),  # noqa: B008  # it is frozen
    rng: random.Random | None = None,
    on_change: Callable[[BreakerState], None] | None = None,
    on_refusal: OnRefusal | None = None,
) -> Store:
    """The store with these layers around it, in their order.

    `clock` never steps back. With a `pace` and prefetch, callers of a bucket wait for one another's
    call. `patience` configures the breaker, and `on_change` gets its new state. `on_refusal` gets
    what shadow let pass.
    """
    if breaker:
        store = Breaker(store, Circuit(clock, patience=patience, rng=rng, on_change=on_change))
    if rejections:
        store = Rejections(store, clock)
    if prefetch:
        store = Prefetch(store, clock, pace)
    if shadow:
        store = Shadow(store, on_refusal=on_refusal)
    return store
