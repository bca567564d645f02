"""One hook, one frozen event: everything worth counting passes through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a request.

    `kind` is one of: admitted, refused, degraded (admitted or refused without the store),
    unavailable, denied (the store refuses the limiter itself; `detail` says why), adjusted,
    refunded, credit_lost, debit_lost, shadowed (let pass although a limit would have refused),
    breaker (it changed its state, which `detail` names; of no entity).
    """

    kind: str
    namespace: str
    entity_id: str
    resource: str
    detail: str = ""


Observer = Callable[[Event], None]
