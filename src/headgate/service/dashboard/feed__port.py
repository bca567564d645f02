"""All that the dashboard asks of the event loop: a beat while somebody watches, and streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

BEAT_S = 0.2  # five frames a second
WAITING_MAX = 8
LOOK_S = 1.0
STREAM_S_MAX = 600.0  # then the page asks again, and who it is is checked again
HERE = b": here\n\n"  # a comment: keeps the line open, says nothing

log = logging.getLogger("headgate.service")
Late = TimeoutError
Answer = TypeVar("Answer")


class Viewer:
    """Frames that wait for one browser; a slow one misses the oldest."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)

    def push(self, frame: bytes) -> None:
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(frame)

    async def next(self) -> bytes | None:
        """The next frame; None where there is none for a while."""
        try:
            return await asyncio.wait_for(self._frames.get(), LOOK_S)
        except TimeoutError:
            return None


class Heart:
    """Calls `beat` over and over from `start` to `stop`; a failure is logged and outlived."""

    def __init__(self, beat: Callable[[], Awaitable[None]]) -> None:
        self._beat = beat
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        failed = False
        while True:
            try:
                await self._beat()
                failed = False
            except Exception:
                if not failed:  # once, not five times a second
                    log.exception("the dashboard's feed failed; it goes on")
                failed = True
            await asyncio.sleep(BEAT_S)


async def relay(viewer: Viewer, receive: Any, send: Any, leaving: Callable[[], bool]) -> None:
    """Frames to a client until it goes, the service ends, or it is time to ask again."""
    loop = asyncio.get_running_loop()
    gone = loop.create_task(_gone(receive))
    until_s = loop.time() + STREAM_S_MAX
    try:
        await send({"type": "http.response.body", "body": HERE, "more_body": True})
        while not gone.done() and not leaving() and loop.time() < until_s:
            frame = await viewer.next()
            await send({"type": "http.response.body", "body": frame or HERE, "more_body": True})
        if not gone.done():
            await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()


async def within_s(limit_s: float, flow: Awaitable[Answer]) -> Answer:
    """What the flow returns, or Late."""
    return await asyncio.wait_for(flow, limit_s)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
