"""Faults put into the running product: a function or a value replaced while a search looks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


def around(name: str, new: Callable[..., Any], *owners: Any) -> Plant:
    """A function of these modules or classes bent: `new` gets the sound one and its arguments."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        for owner in owners:
            real = getattr(owner, name)
            # not a partial, which would be no method where the owner is a class
            patch.setattr(owner, name, lambda *args, real=real, **named: new(real, *args, **named))

    return plant


def value(owner: Any, name: str, new: Any) -> Plant:
    return lambda patch: patch.setattr(owner, name, new)


def full_child(real: Any, *args: Any, **named: Any) -> Any:
    """A new shard begins full."""
    request = real(*args, **named)
    item = request.params["TransactItems"][1]["Put"]["Item"]
    for name in [name for name in item if name.startswith("b_") and name.endswith("_cp")]:
        depth = int(item["sd"]["N"])
        item[name[:-3] + "_tk"] = {"N": str(int(item[name]["N"]) >> depth)}
    return request


def wide_band(real: Any, capacity: int, *_: Any) -> int:
    """A sixteenth of every limit is given away, however slowly it refills."""
    return capacity // 16
