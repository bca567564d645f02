"""What a client raises: four kinds, each with the service's stable code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.client.answers import CheckAnswer


class ClientError(HeadgateError):
    """A call that got no decision, or a refusal where there must be a lease.

    `code` is the service's stable word for it and None where the service did not speak; `field`
    names what was wrong with the request.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        detail: str | None = None,
        field: str | None = None,
        status: int | None = None,
    ) -> None:
        self.code = code
        self.detail = detail
        self.field = field
        self.status = status
        super().__init__(message)


class RateLimited(ClientError):
    """A limit refused; nothing was taken. `answer` says what is left and how long to wait."""

    def __init__(self, answer: CheckAnswer) -> None:
        self.answer = answer
        names = ", ".join(answer.violated) or "a limit"
        wait_ms = answer.retry_after_ms
        advice = (
            "it never refills: have it raised or topped up"
            if wait_ms is None
            else f"try again in {wait_ms / 1000:g} s, or let the call wait with wait="
        )
        super().__init__(f"{names} refused; {advice}", code=answer.code, status=429)

    @property
    def retry_after_ms(self) -> int | None:
        return self.answer.retry_after_ms


class Unavailable(ClientError):
    """No decision: the service or its store gave no answer in time.

    `maybe_applied` is whether tokens may be gone nonetheless; such a call was not repeated.
    """

    def __init__(
        self,
        message: str,
        *,
        maybe_applied: bool,
        code: str | None = None,
        detail: str | None = None,
        status: int | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        self.maybe_applied = maybe_applied
        self.retry_after_ms = retry_after_ms
        super().__init__(message, code=code, detail=detail, status=status)


class Unauthorised(ClientError):
    """The key is missing, unknown or not allowed to do this."""


class InvalidRequest(ClientError):
    """The service cannot do what was asked, however often it is asked; nothing was taken."""
