"""Hearing every decision of a service, but only while somebody listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.runtime__observe import Event, Observer

if TYPE_CHECKING:
    from headgate.service.decide.service import Service


class Ear:
    """Stands between a service and whoever observed it before; closed, it costs nothing."""

    def __init__(self, service: Service, hear: Observer) -> None:
        self._service = service
        self._hear = hear
        self._before: Observer | None = None
        self._open = False

    def open(self) -> None:
        if not self._open:
            self._open = True
            self._before = self._service.observe(self._heard)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._service.observe(self._before)

    def _heard(self, event: Event) -> None:
        if self._before is not None:
            self._before(event)
        self._hear(event)
