"""All operator flows together: what a limiter and a repository both offer."""

from __future__ import annotations

from headgate.admin.operations import EntityAdmin, LimitAdmin
from headgate.admin.reports import Reports


class Operations(EntityAdmin, LimitAdmin, Reports):
    """Entities, stored limits, buckets and history of one namespace."""
