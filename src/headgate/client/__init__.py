"""headgate.client: ask a headgate service, from tasks (AsyncClient) or threads (Client)."""

from headgate.client.answers import (
    BatchResult,
    ChargeAnswer,
    CheckAnswer,
    ClientError,
    CombinedAnswer,
    Health,
    InvalidRequest,
    LeaseAnswer,
    RateLimited,
    Unauthorised,
    Unavailable,
)
from headgate.client.client import AsyncClient, AsyncLease, Client, Lease
from headgate.client.requests import ChargeItem, Check, Descriptor
from headgate.client.retry import Retry
from headgate.transport.quota import Quota, parse_quota, parse_quotas

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "BatchResult",
    "ChargeAnswer",
    "ChargeItem",
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
