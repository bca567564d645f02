"""Every way a request can fail: one table of stable codes, and headgate's errors turned into them.

A problem's `detail` is written for the caller: it never holds an exception's text from below the
service, an address or anything else the caller did not send.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NoReturn, Self

from headgate.core import errors
from headgate.core.errors import HeadgateError, ValidationError

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
STORE_RETRY_MS = 1000


class Code(StrEnum):
    """Stable: clients branch on these. Each knows how the wires tell it."""

    http_status: int
    grpc_status: str
    headline: str

    def __new__(cls, name: str, http_status: int, grpc_status: str, headline: str) -> Self:
        code = str.__new__(cls, name)
        code._value_ = name
        code.http_status, code.grpc_status, code.headline = http_status, grpc_status, headline
        return code

    @property
    def is_of_http(self) -> bool:
        """Whether it is a problem of HTTP itself or of the console, which gRPC never has."""
        return self.grpc_status == "UNKNOWN"

    @property
    def type_uri(self) -> str:
        """The type of a problem is named after its code."""
        if self is Code.RATE_LIMIT_EXCEEDED:
            return QUOTA_EXCEEDED
        return f"urn:headgate:problem:{self.lower().replace('_', '-')}"

    INVALID_REQUEST = "INVALID_REQUEST", 400, "INVALID_ARGUMENT", "The request cannot be used"
    UNAUTHENTICATED = "UNAUTHENTICATED", 401, "UNAUTHENTICATED", "A valid key is needed"
    FORBIDDEN = "FORBIDDEN", 403, "PERMISSION_DENIED", "The key may not do this"
    # A namespace that is missing and one the key may not use look the same, so that a key cannot
    # be used to find out which namespaces there are.
    NOT_FOUND = "NOT_FOUND", 404, "NOT_FOUND", "There is no such thing for this key"
    METHOD_NOT_ALLOWED = (
        "METHOD_NOT_ALLOWED", 405, "UNIMPLEMENTED", "The method is not offered here",
    )  # fmt: skip
    CONFLICT = "CONFLICT", 409, "ABORTED", "It is in another state than this needs"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE", 413, "RESOURCE_EXHAUSTED", "The request is too large"
    UNSUPPORTED_MEDIA_TYPE = (
        "UNSUPPORTED_MEDIA_TYPE", 415, "INVALID_ARGUMENT", "The body must be JSON",
    )  # fmt: skip
    DEMAND_TOO_LARGE = (
        "DEMAND_TOO_LARGE", 422, "OUT_OF_RANGE", "No wait will ever admit this much at once",
    )  # fmt: skip
    CONFIGURATION_ERROR = (
        "CONFIGURATION_ERROR", 422, "FAILED_PRECONDITION", "The service's limits do not cover this",
    )  # fmt: skip
    ENTITY_NOT_FOUND = "ENTITY_NOT_FOUND", 404, "NOT_FOUND", "The entity is not registered"
    PLAN_NOT_FOUND = "PLAN_NOT_FOUND", 404, "NOT_FOUND", "There is no such plan"
    ENTITY_DISABLED = "ENTITY_DISABLED", 403, "PERMISSION_DENIED", "An operator switched this off"
    LEASE_NOT_FOUND = "LEASE_NOT_FOUND", 404, "NOT_FOUND", "There is no such lease"
    TOO_MANY_NEW_IDENTIFIERS = (
        "TOO_MANY_NEW_IDENTIFIERS", 429, "RESOURCE_EXHAUSTED",
        "Too many new identifiers came at once",
    )  # fmt: skip
    TOO_MANY_LEASES = (
        "TOO_MANY_LEASES", 503, "UNAVAILABLE", "The service holds all the leases it can",
    )  # fmt: skip
    TOO_MANY_CALLS = "TOO_MANY_CALLS", 503, "RESOURCE_EXHAUSTED", "Too many calls are under way"
    RATE_LIMIT_EXCEEDED = (
        "RATE_LIMIT_EXCEEDED", 429, "RESOURCE_EXHAUSTED", "A rate limit is exceeded",
    )  # fmt: skip
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE", 503, "UNAVAILABLE", "The store gives no answer"
    # Not 503 or UNAVAILABLE, which clients retry and take for an outage.
    STORAGE_DENIED = "STORAGE_DENIED", 500, "FAILED_PRECONDITION", "The store refuses the service"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED", 504, "DEADLINE_EXCEEDED", "There was no answer in time"
    INTERNAL = "INTERNAL", 500, "INTERNAL", "The service failed"
    MALFORMED_REQUEST = "MALFORMED_REQUEST", 400, "UNKNOWN", "This is no request of HTTP/1.1"
    HOST_MISSING = (
        "HOST_MISSING", 400, "UNKNOWN", "A request of HTTP/1.1 needs the header field Host",
    )  # fmt: skip
    FOREIGN_ORIGIN = (
        "FOREIGN_ORIGIN", 403, "UNKNOWN", "this must be asked by the dashboard's own page",
    )  # fmt: skip
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT", 408, "UNKNOWN", "The request did not arrive in time"
    TOO_MANY_HEADERS = "TOO_MANY_HEADERS", 431, "UNKNOWN", "There are too many header fields"
    HEAD_TOO_LARGE = "HEAD_TOO_LARGE", 431, "UNKNOWN", "The header fields are too large"
    TOO_MANY_VIEWERS = "TOO_MANY_VIEWERS", 503, "UNKNOWN", "too many pages watch already; close one"


class ServiceError(HeadgateError):
    """A request that gets a problem for an answer; nothing was consumed. Where there is nothing to
    add, the code's headline is the detail."""

    def __init__(
        self,
        code: Code,
        detail: str = "",
        *,
        field: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        self.code = code
        self.detail = detail = detail or code.headline
        self.field = field
        self.retry_after_ms = retry_after_ms
        super().__init__(f"{code}: {field + ' ' if field else ''}{detail}")


def invalid(field: str, reason: str) -> ServiceError:
    return ServiceError(Code.INVALID_REQUEST, reason, field=field)


def problem_fields(code: Code) -> dict[str, Any]:
    """What a problem+json document says of a code."""
    return {"type": code.type_uri, "title": code.headline, "status": code.http_status}


def problem_body(error: ServiceError) -> dict[str, Any]:
    """The problem+json document."""
    body = {**problem_fields(error.code), "detail": error.detail, "code": error.code.value}
    if error.field is not None:
        body["field"] = error.field
    if error.retry_after_ms is not None:
        body["retry_after_seconds"] = error.retry_after_ms / 1000
    return body


def to_service_error(error: Exception) -> ServiceError:
    """What a caller is told of an error."""
    match error:
        case ServiceError():
            return error
        case ValidationError():
            return _bad_input(error)
        case errors.DemandTooLarge():
            return demand_too_large(error, "tokens")
        case errors.DisabledError():
            return ServiceError(
                Code.ENTITY_DISABLED, f"the {error.kind} is disabled until an operator enables it"
            )
        case errors.StoreDenied():
            return storage_denied()
        case errors.RateLimiterUnavailable() | errors.StoreTrouble():
            return ServiceError(
                Code.STORAGE_UNAVAILABLE,
                "the store gave no answer, nothing was decided; try again",
                retry_after_ms=STORE_RETRY_MS,
            )
        case errors.NamespaceNotFoundError() | errors.NamespaceStateError():
            return not_found()
        case errors.EntityNotFoundError() | errors.PlanNotFoundError():
            return _missing(error)
        case (
            errors.EntityExistsError()
            | errors.PlanInUseError()
            | errors.VersionMismatchError()
            | errors.LeaseExpiredError()
        ):
            return ServiceError(Code.CONFLICT, _conflict(error))
        case errors.IncompatibleSchemaError() | errors.ClockStoppedError():
            is_clock = isinstance(error, errors.ClockStoppedError)
            schema = "the store holds a schema this service cannot use"
            still = "the clock of this service stands still"
            return ServiceError(Code.CONFIGURATION_ERROR, still if is_clock else schema)
    return ServiceError(Code.INTERNAL, "the service failed in an unforeseen way")


def _missing(error: errors.EntityNotFoundError | errors.PlanNotFoundError) -> ServiceError:
    if isinstance(error, errors.PlanNotFoundError):
        detail = f"plan {error.plan!r} does not exist; create it first"
        return ServiceError(Code.PLAN_NOT_FOUND, detail, field="plan")
    which = "the entity" if error.field is None else f"entity {error.entity_id!r}"
    detail = f"{which} does not exist; create it first"
    return ServiceError(Code.ENTITY_NOT_FOUND, detail, field=error.field)


def _conflict(error: HeadgateError) -> str:
    match error:
        case errors.EntityExistsError():
            return "the entity exists already; change it instead"
        case errors.PlanInUseError():
            more = ", …" if error.entities > len(error.first) else ""
            return (
                f"entities refer to the plan, {error.entities} of them: {', '.join(error.first)}"
                f"{more}; assign them another plan first, or have them unassigned with it"
            )
        case errors.VersionMismatchError():
            return (
                f"it is at version {error.found}, the change was made for {error.expected}; "
                f"read it again and repeat the change"
            )
    return "the lease has ended, its consumption is final"


def raise_service_error(error: HeadgateError) -> NoReturn:
    problem = to_service_error(error)
    raise problem from (None if problem is error else error)


def demand_too_large(error: errors.DemandTooLarge, field: str) -> ServiceError:
    return ServiceError(
        Code.DEMAND_TOO_LARGE,
        f"{error.requested} asked, but {error.limit_name} never holds more than "
        f"{error.capacity}; ask for less at a time or have the capacity raised",
        field=field,
    )


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
    if error.field == "consume":  # what the library calls amounts; the name was checked before
        return invalid(f"amounts.{error.value}", error.reason)
    return invalid(error.field, error.reason)
