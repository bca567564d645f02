"""The service's, botocore's and the network's complaints in headgate's words."""

from __future__ import annotations

import json
import re
import ssl
from typing import Any

from headgate.core.errors import Contended, StoreDenied, StoreTrouble, Throttled, Unreachable
from headgate.transport.http1 import Response
from headgate.transport.http_pool import Failure, NoResponse, ServerAddress

UNKNOWN = "whether it was applied is unknown"

_THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
    }
)
_THROTTLED_PARTS = frozenset({"ThrottlingError", "ProvisionedThroughputExceeded"})
_CONTENDED = frozenset(
    {
        "TransactionConflictException",
        "TransactionInProgressException",
        "ReplicatedWriteConflictException",
    }
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
# Other credentials may be accepted: these may have been rotated, or be too new to be known yet.
_RENEWABLE = _EXPIRED | {"UnrecognizedClientException", "InvalidClientTokenId"}
_SKEWED = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_SKEW_TEXTS = ("Signature expired", "Signature not yet current")
_ACCESS_ADVICE = {
    "ExpiredToken": "the credentials have expired; renew them (aws sso login, a new token, …)",
    "ExpiredTokenException": "the credentials have expired; renew them (aws sso login, …)",
    "UnrecognizedClientException": "AWS does not know the access key; check the credentials "
    "and that they belong to this region's partition",
    "InvalidClientTokenId": "AWS does not know the access key; check the credentials",
    "InvalidSignatureException": "the signature does not match; check the secret key, and that "
    "this host's clock is right",
    "SignatureDoesNotMatch": "the signature does not match; check the secret key",
    "RequestTimeTooSkewed": "this host's clock is too far off; set it",
    "RequestExpired": "this host's clock is too far off; set it",
    "IncompleteSignatureException": "the credentials are incomplete; check them",
    "MissingAuthenticationToken": "it wants credentials; configure some that botocore finds",
    "MissingAuthenticationTokenException": "it wants credentials; configure some botocore finds",
    "OptInRequired": "the account has not enabled DynamoDB in this region; enable it",
}

_FORBIDDEN = frozenset({"AccessDeniedException", "AccessDenied", "NotAuthorized"})
_RIGHT = re.compile(r"not authorized to perform: (\S+) on resource: (\S+)")

Item = dict[str, Any]


class NotApplied(Unreachable):
    """No use, but no harm either: the call certainly changed nothing."""

    maybe_applied = False


class AccessRefused(StoreDenied):
    """The service did not accept who asks, how that was signed, or that they may do this."""

    def __init__(self, code: str, text: str, said: str) -> None:
        self.code = code
        self.renewable = code in _RENEWABLE
        # told by the service's own clock, which the port has just learned
        self.skewed = code in _SKEWED or said.startswith(_SKEW_TEXTS)
        super().__init__(text)


class CredentialsExpired(NotApplied):
    """The credentials are past their time, and nothing newer was found.

    Unlike what is Refused this is an outage: whoever issues them (STS, a metadata service, SSO) has
    not renewed them in time, no right has changed, and it ends once they do.
    """

    renewable, skewed = True, False


# The service accepted nothing of the call: it may be sent again, signed anew.
UNSIGNED = (AccessRefused, CredentialsExpired)
UNSENT = (NotApplied, AccessRefused)


class ConditionFailed(StoreTrouble):
    """The condition did not hold; `item` is what is stored, where the request asked for it."""

    def __init__(self, item: Item | None, text: str = "the condition did not hold") -> None:
        self.item = item
        super().__init__(text)


class TransactionCancelled(StoreTrouble):
    """None of the transaction was applied; per part why, and the item where it was asked for."""

    def __init__(
        self, reasons: list[tuple[str, Item | None]], text: str = "the transaction was cancelled"
    ) -> None:
        self.reasons = reasons
        super().__init__(text)

    @property
    def throttled(self) -> bool:
        """Whether some part was held back, rather than met by another write."""
        return any(code in _THROTTLED_PARTS for code, _ in self.reasons)


class Rejected(StoreDenied):
    """The service cannot do what it was asked, now or ever; `code` is its name for that."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


class TableMissing(Rejected):
    """The table, or one of its indexes, is not there."""


def code_of(reply: Response) -> tuple[str, dict[str, Any]]:
    """The service's name for what went wrong and all it said; empty if that is not DynamoDB's."""
    try:
        said = json.loads(reply.body)
        return str(said["__type"]).rpartition("#")[2].partition(":")[0], said
    except (ValueError, TypeError, KeyError):
        return "", {}


def error_of_reply(
    reply: Response, place: ServerAddress, operation: str, table: object
) -> StoreTrouble:
    """An answer that is none; unless it says otherwise the call was not applied."""
    code, said = code_of(reply)
    text = str(said.get("message") or said.get("Message") or "no message")
    shown = f"{operation} on {table}: {code}, {text}"
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(said.get("Item") or None)
    if code == "TransactionCanceledException":
        return TransactionCancelled(_reasons(said), f"{shown}; nothing was written")
    if code in _THROTTLED:
        return Throttled(f"DynamoDB holds this key or table back ({shown}); nothing was written")
    if code in _CONTENDED:
        return Contended(f"another transaction holds the item ({shown}); nothing was written")
    if code == "ResourceNotFoundException":
        return TableMissing(
            code,
            f"the DynamoDB table {table} at {place} is missing, or an index of it; create it with "
            f"`create_table()` of the repository, or check its name and region ({shown})",
        )
    if code in _FORBIDDEN:
        advice = (
            f"its IAM identity may not do this; allow it {_missing_right(text, operation, table)}"
        )
        return AccessRefused(code, f"DynamoDB at {place} denies access: {advice} ({shown})", text)
    if code in _ACCESS_ADVICE:
        whole = f"DynamoDB at {place} did not let the call in: {_ACCESS_ADVICE[code]} ({shown})"
        return CredentialsExpired(whole) if code in _EXPIRED else AccessRefused(code, whole, text)
    if code and reply.status < 500:
        return Rejected(code, f"DynamoDB refused the request ({shown}); nothing was written")
    return _broken(reply, place, shown if code else f"{operation} on {table}: {reply.body[:80]!r}")


def _missing_right(said: str, operation: str, table: object) -> str:
    """The action and the resource as AWS names them; else those of the call."""
    found = _RIGHT.search(said)
    return f"{found[1]} on {found[2]}" if found else f"dynamodb:{operation} on the table {table}"


def _broken(reply: Response, place: ServerAddress, shown: str) -> StoreTrouble:
    if reply.status < 500:
        return NotApplied(
            f"{place} answered HTTP {reply.status}, which is no DynamoDB; check the endpoint "
            f"({shown})"
        )
    return Unreachable(
        f"DynamoDB at {place} failed with HTTP {reply.status}; {UNKNOWN}: it is in trouble, or "
        f"what stands in between is ({shown})"
    )


def _reasons(said: dict[str, Any]) -> list[tuple[str, Item | None]]:
    found = said.get("CancellationReasons") or []
    return [(str(reason.get("Code", "None")), reason.get("Item") or None) for reason in found]


def error_without_reply(
    answer: NoResponse, place: ServerAddress, timeout_ms: int, connections: int
) -> StoreTrouble:
    """What it means that a call got no reply. Only a call that was sent may have been applied."""
    failure, reason = answer
    if failure is Failure.CONNECT:
        return _connect_error(reason, place, timeout_ms)
    if failure is Failure.BUSY:
        return Contended(
            f"all {connections} connections to DynamoDB at {place} were busy for {timeout_ms} ms; "
            f"nothing was sent: raise ?connections=…, or ask less at once"
        )
    if failure is Failure.CROWDED:
        return Contended(
            f"{reason} calls wait for DynamoDB at {place} already; nothing was sent: slow down"
        )
    if failure is Failure.SEND:
        return NotApplied(
            f"the connection to DynamoDB at {place} broke before the call was written ({reason}); "
            f"nothing was applied"
        )
    if failure is Failure.OVERDUE:
        return Unreachable(
            f"DynamoDB at {place} gave no answer within {timeout_ms} ms; {UNKNOWN}: "
            f"see whether the network or the service is slow, or raise ?timeout_ms=…"
        )
    if failure is Failure.LOST:
        return Unreachable(
            f"the connection to DynamoDB at {place} was lost while a call was under way "
            f"({reason}); {UNKNOWN}"
        )
    return store_closed()


def _connect_error(error: object, place: ServerAddress, timeout_ms: int) -> NotApplied:
    if isinstance(error, TimeoutError):
        reason = f"no connection within {timeout_ms} ms; check the address and the way there"
    elif isinstance(error, ssl.SSLError):
        reason = f"TLS failed; check that it speaks TLS and that its certificate is known ({error})"
    else:
        reason = f"no connection; check that it runs and the address is right ({error})"
    return NotApplied(f"DynamoDB at {place} gives no answer: {reason}; nothing was sent")


def unreadable_reply(place: ServerAddress, reply: Response) -> Unreachable:
    return Unreachable(
        f"{place} answered with what is no reply of DynamoDB ({reply.body[:80]!r}); {UNKNOWN}: "
        f"check the endpoint, and what stands in between"
    )


def no_credentials(error: object) -> NotApplied:
    return NotApplied(
        f"there are no AWS credentials to sign with ({error}); nothing was sent: set "
        f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE, aws sso login), "
        f"or give this host or task a role"
    )


def slow_credentials(timeout_ms: int) -> NotApplied:
    return NotApplied(
        f"AWS credentials did not come within {timeout_ms} ms; nothing was sent: see whether the "
        f"metadata service, SSO or the credential process answers, or raise ?timeout_ms=…"
    )


def store_closed() -> NotApplied:
    return NotApplied("this DynamoDB store is closed; open it again to use it")
