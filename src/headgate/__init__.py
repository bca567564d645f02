"""headgate: a distributed token-bucket rate limiter. The public names, nothing else."""

from headgate.cache import CacheStats
from headgate.decision import LimitStatus, Verdict
from headgate.entities import Entity, OnUnavailable
from headgate.errors import (
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
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
    VersionMismatchError,
)
from headgate.history import AuditEvent, UsageSnapshot
from headgate.limiter import Lease, RateLimiter
from headgate.limits import Limit
from headgate.observe import Event
from headgate.reports import BucketState
from headgate.repository import Repository
from headgate.sync import SyncLease, SyncRateLimiter
from headgate.sync_repository import SyncRepository

__version__ = "0.1.0"

__all__ = [
    "AuditEvent",
    "BucketState",
    "CacheStats",
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
    "RateLimitExceeded",
    "RateLimiter",
    "RateLimiterUnavailable",
    "Repository",
    "SyncLease",
    "SyncRateLimiter",
    "SyncRepository",
    "UsageSnapshot",
    "ValidationError",
    "Verdict",
    "VersionMismatchError",
]
