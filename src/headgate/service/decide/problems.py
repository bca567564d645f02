"""Every way a request can fail: one table of stable codes, and headgate's errors turned into them.

A problem's `detail` is written for the caller: it never holds an exception's text from below the
service, an address or anything else the caller did not send.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple, NoReturn

from headgate.core.errors import (
    DemandTooLarge,
    DisabledError,
    EntityExistsError,
    EntityNotFoundError,
    HeadgateError,
    IncompatibleSchemaError,
    LeaseExpiredError,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimiterUnavailable,
    StoreDenied,
    StoreTrouble,
    ValidationError,
    VersionMismatchError,
)

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
STORE_RETRY_MS = 1000


class Code(StrEnum):
    """Stable: clients branch on these."""

    INVALID_REQUEST = "INVALID_REQUEST"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    CONFLICT = "CONFLICT"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    DEMAND_TOO_LARGE = "DEMAND_TOO_LARGE"
    CONFIGURATION_ERROR = "CONFIGURATION_ERROR"
    ENTITY_NOT_FOUND = "ENTITY_NOT_FOUND"
    ENTITY_DISABLED = "ENTITY_DISABLED"
    LEASE_NOT_FOUND = "LEASE_NOT_FOUND"
    TOO_MANY_NEW_IDENTIFIERS = "TOO_MANY_NEW_IDENTIFIERS"
    TOO_MANY_LEASES = "TOO_MANY_LEASES"
    TOO_MANY_CALLS = "TOO_MANY_CALLS"
    RATE_LIMIT_EXCEEDED = "RATE_LIMIT_EXCEEDED"
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    STORAGE_DENIED = "STORAGE_DENIED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"


class ProblemType(NamedTuple):
    """How a code is said on each wire."""

    http_status: int
    grpc_status: str
    title: str
    type_uri: str


# Code, HTTP status, gRPC status, title. The type of a problem is named after its code.
_TABLE: tuple[tuple[Code, int, str, str], ...] = (
    (Code.INVALID_REQUEST, 400, "INVALID_ARGUMENT", "The request cannot be used"),
    (Code.UNAUTHENTICATED, 401, "UNAUTHENTICATED", "A valid key is needed"),
    (Code.FORBIDDEN, 403, "PERMISSION_DENIED", "The key may not do this"),
    # A namespace that is missing and one the key may not use look the same, so that a key cannot
    # be used to find out which namespaces there are.
    (Code.NOT_FOUND, 404, "NOT_FOUND", "There is no such thing for this key"),
    (Code.METHOD_NOT_ALLOWED, 405, "UNIMPLEMENTED", "The method is not offered here"),
    (Code.CONFLICT, 409, "ABORTED", "It is in another state than this needs"),
    (Code.PAYLOAD_TOO_LARGE, 413, "RESOURCE_EXHAUSTED", "The request is too large"),
    (Code.UNSUPPORTED_MEDIA_TYPE, 415, "INVALID_ARGUMENT", "The body must be JSON"),
    (Code.DEMAND_TOO_LARGE, 422, "OUT_OF_RANGE", "No wait will ever admit this much at once"),
    (Code.CONFIGURATION_ERROR, 422, "FAILED_PRECONDITION",
     "The service's limits do not cover this"),
    (Code.ENTITY_NOT_FOUND, 404, "NOT_FOUND", "The entity is not registered"),
    (Code.ENTITY_DISABLED, 403, "PERMISSION_DENIED", "An operator switched this off"),
    (Code.LEASE_NOT_FOUND, 404, "NOT_FOUND", "There is no such lease"),
    (Code.TOO_MANY_NEW_IDENTIFIERS, 429, "RESOURCE_EXHAUSTED",
     "Too many new identifiers came at once"),
    (Code.TOO_MANY_LEASES, 503, "UNAVAILABLE", "The service holds all the leases it can"),
    (Code.TOO_MANY_CALLS, 503, "RESOURCE_EXHAUSTED", "Too many calls are under way"),
    (Code.RATE_LIMIT_EXCEEDED, 429, "RESOURCE_EXHAUSTED", "A rate limit is exceeded"),
    (Code.STORAGE_UNAVAILABLE, 503, "UNAVAILABLE", "The store gives no answer"),
    # Not 503 or UNAVAILABLE, which clients retry and take for an outage.
    (Code.STORAGE_DENIED, 500, "FAILED_PRECONDITION", "The store refuses the service"),
    (Code.DEADLINE_EXCEEDED, 504, "DEADLINE_EXCEEDED", "There was no answer in time"),
    (Code.INTERNAL, 500, "INTERNAL", "The service failed"),
)  # fmt: skip


def _type_uri(code: Code) -> str:
    if code is Code.RATE_LIMIT_EXCEEDED:
        return QUOTA_EXCEEDED
    return f"urn:headgate:problem:{code.lower().replace('_', '-')}"


PROBLEMS: dict[Code, ProblemType] = {
    code: ProblemType(http_status, grpc_status, title, _type_uri(code))
    for code, http_status, grpc_status, title in _TABLE
}


class ServiceError(HeadgateError):
    """A request that gets a problem for an answer; nothing was consumed."""

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        field: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after_ms = retry_after_ms
        super().__init__(f"{code}: {field + ' ' if field else ''}{detail}")

    @property
    def problem(self) -> ProblemType:
        return PROBLEMS[self.code]


def invalid(field: str, reason: str) -> ServiceError:
    return ServiceError(Code.INVALID_REQUEST, reason, field=field)


def problem_body(error: ServiceError) -> dict[str, Any]:
    """The problem+json document."""
    problem = error.problem
    body: dict[str, Any] = {
        "type": problem.type_uri,
        "title": problem.title,
        "status": problem.http_status,
        "detail": error.detail,
        "code": error.code.value,
    }
    if error.field is not None:
        body["field"] = error.field
    if error.retry_after_ms is not None:
        body["retry_after_seconds"] = error.retry_after_ms / 1000
    return body


def to_service_error(error: HeadgateError) -> ServiceError:
    """What a caller is told of an error of the library."""
    match error:
        case ServiceError():
            return error
        case ValidationError():
            return _bad_input(error)
        case DemandTooLarge():
            return ServiceError(
                Code.DEMAND_TOO_LARGE,
                f"{error.requested} asked, but {error.limit_name} never holds more than "
                f"{error.capacity}; ask for less at a time or have the capacity raised",
                field="tokens",
            )
        case DisabledError():
            return ServiceError(
                Code.ENTITY_DISABLED, f"the {error.kind} is disabled until an operator enables it"
            )
        case StoreDenied():
            return storage_denied()
        case RateLimiterUnavailable() | StoreTrouble():
            return ServiceError(
                Code.STORAGE_UNAVAILABLE,
                "the store gave no answer, nothing was decided; try again",
                retry_after_ms=STORE_RETRY_MS,
            )
        case NamespaceNotFoundError() | NamespaceStateError():
            return not_found()
        case EntityNotFoundError():
            return ServiceError(Code.ENTITY_NOT_FOUND, "the entity does not exist; create it first")
        case EntityExistsError():
            return ServiceError(Code.CONFLICT, "the entity exists already; change it instead")
        case VersionMismatchError():
            return ServiceError(
                Code.CONFLICT,
                f"it is at version {error.found}, the change was made for {error.expected}; "
                f"read it again and repeat the change",
            )
        case LeaseExpiredError():
            return ServiceError(Code.CONFLICT, "the lease has ended, its consumption is final")
        case IncompatibleSchemaError():
            return ServiceError(
                Code.CONFIGURATION_ERROR, "the store holds a schema this service cannot use"
            )
    return ServiceError(Code.INTERNAL, "the service failed in an unforeseen way")


def raise_service_error(error: HeadgateError) -> NoReturn:
    problem = to_service_error(error)
    raise problem from (None if problem is error else error)


def storage_denied() -> ServiceError:
    return ServiceError(
        Code.STORAGE_DENIED,
        "the store refuses the service, nothing was decided; waiting does not help, the "
        "operator finds the missing right in the service's log",
    )


def not_found() -> ServiceError:
    return ServiceError(Code.NOT_FOUND, "it does not exist, or the key may not use it")


def _bad_input(error: ValidationError) -> ServiceError:
    if error.field == "limits":
        return ServiceError(
            Code.CONFIGURATION_ERROR,
            "no limits are configured that fit this request; add a policy or store limits",
        )
    return invalid(error.field, error.reason)
