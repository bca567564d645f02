"""The switch of a demo: a store that can be broken on purpose. A service has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headgate.core.errors import ValidationError


class Switch(Protocol):
    """`modes` says what each mode means; `turn` raises ValueError for what is none."""

    @property
    def modes(self) -> Mapping[str, str]: ...

    @property
    def mode(self) -> str: ...

    def turn(self, mode: str) -> None: ...


def as_told(switch: Switch) -> dict[str, Any]:
    return {"mode": switch.mode, "modes": dict(switch.modes)}


def turned(switch: Switch, values: object) -> dict[str, Any]:
    """The switch as it stands after what was asked."""
    mode = values.get("mode") if isinstance(values, dict) and len(values) == 1 else None
    if not isinstance(mode, str) or mode not in switch.modes:
        raise ValidationError("mode", mode, f"must be one of {', '.join(switch.modes)}")
    switch.turn(mode)
    return as_told(switch)
