"""What the faster gRPC wire needs of the event loop: a server that runs beside everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """A coroutine that runs from now on."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    async def ended(self) -> None:
        """Waits until it is over, however it ends."""
        await asyncio.gather(self._task, return_exceptions=True)
