"""headgate.client: ask a headgate service, from tasks (AsyncClient) or threads (Client)."""

from headgate.client.answers import (
    BatchResult,
    CheckAnswer,
    CombinedAnswer,
    Health,
    LeaseAnswer,
)
from headgate.client.client import AsyncClient, AsyncLease, Client, Lease
from headgate.client.errors import (
    ClientError,
    InvalidRequest,
    RateLimited,
    Unauthorised,
    Unavailable,
)
from headgate.client.quota import Quota, parse_quota, parse_quotas
from headgate.client.requests import Check, Descriptor
from headgate.client.retry import Retry

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "BatchResult",
    "Check",
    "CheckAnswer",
    "Client",
    "ClientError",
    "CombinedAnswer",
    "Descriptor",
    "Health",
    "InvalidRequest",
    "Lease",
    "LeaseAnswer",
    "Quota",
    "RateLimited",
    "Retry",
    "Unauthorised",
    "Unavailable",
    "parse_quota",
    "parse_quotas",
]
