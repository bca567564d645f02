"""headgate: a distributed token-bucket rate limiter. The public names, nothing else.

Each is loaded when it is first used: whoever needs one error class, or the help of the command
line, does not wait for the whole library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.core.decision import LimitStatus, Verdict
    from headgate.core.errors import (
        ClockStoppedError,
        DemandTooLarge,
        DisabledError,
        EntityExistsError,
        EntityNotFoundError,
        HeadgateError,
        IncompatibleSchemaError,
        InvalidIdentifierError,
        InvalidNameError,
        LeaseExpiredError,
        NamespaceNotFoundError,
        NamespaceStateError,
        PlanInUseError,
        PlanNotFoundError,
        RateLimiterClosed,
        RateLimiterUnavailable,
        RateLimitExceeded,
        StoreDenied,
        ValidationError,
        VersionMismatchError,
    )
    from headgate.core.history import AuditEvent, BucketState, UsageSnapshot
    from headgate.core.levels import Entity, OnUnavailable, Plan
    from headgate.core.limits import Limit
    from headgate.core.plan import CacheStats
    from headgate.core.runtime import Event
    from headgate.limiter import Lease, RateLimiter
    from headgate.repository import Repository
    from headgate.sync import SyncLease, SyncRateLimiter, SyncRepository

__version__ = "0.1.0"

__all__ = [
    "AuditEvent",
    "BucketState",
    "CacheStats",
    "ClockStoppedError",
    "DemandTooLarge",
    "DisabledError",
    "Entity",
    "EntityExistsError",
    "EntityNotFoundError",
    "Event",
    "HeadgateError",
    "IncompatibleSchemaError",
    "InvalidIdentifierError",
    "InvalidNameError",
    "Lease",
    "LeaseExpiredError",
    "Limit",
    "LimitStatus",
    "NamespaceNotFoundError",
    "NamespaceStateError",
    "OnUnavailable",
    "Plan",
    "PlanInUseError",
    "PlanNotFoundError",
    "RateLimitExceeded",
    "RateLimiter",
    "RateLimiterClosed",
    "RateLimiterUnavailable",
    "Repository",
    "StoreDenied",
    "SyncLease",
    "SyncRateLimiter",
    "SyncRepository",
    "UsageSnapshot",
    "ValidationError",
    "Verdict",
    "VersionMismatchError",
]

# Where the names above live, from the light modules to those that load many others.
_HOMES = (
    "core.errors", "core.limits", "core.levels", "core.runtime", "core.decision", "core.history",
    "core.plan", "repository", "limiter", "sync",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    from importlib import import_module

    modules = (import_module(f"headgate.{home}") for home in _HOMES)
    found = next(getattr(module, name) for module in modules if hasattr(module, name))
    globals()[name] = found  # from now on it is found without coming here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
