"""What can go wrong with a stack; each message says what happened, why, and what to do."""

from __future__ import annotations

from headgate.core.errors import HeadgateError


class StackOperationError(HeadgateError):
    """A stack was not made, changed or deleted; it says which resource stood in the way."""

    def __init__(
        self, stack: str, what: str, reason: str, *, resource: str | None = None, advice: str
    ) -> None:
        self.stack = stack
        self.resource = resource
        self.reason = reason
        cause = f"{resource}: {reason}" if resource else reason
        super().__init__(f"{what}: {cause}; {advice}")


class InfrastructureNotFoundError(HeadgateError):
    """There is no such stack, or it is not one of headgate's."""

    def __init__(self, stack: str, why: str = "there is no stack of that name here") -> None:
        self.stack = stack
        super().__init__(
            f"{stack}: {why}; `headgate deploy` makes one, `headgate list` shows those of this "
            f"account and region"
        )


class AwsRefused(HeadgateError):
    """AWS answered, and the answer was no."""

    def __init__(self, operation: str, code: str, message: str) -> None:
        self.operation = operation
        self.code = code
        self.message = message
        super().__init__(f"{operation} was refused: {message} ({code}); {_advice(code)}")


class AwsUnreachable(HeadgateError):
    """AWS did not answer, or there is nobody to ask as."""

    def __init__(self, operation: str, cause: object) -> None:
        super().__init__(
            f"{operation} got no answer: {cause}; check credentials, region and the network "
            f"(`aws sts get-caller-identity` shows who you are)"
        )


def _advice(code: str) -> str:
    if "AccessDenied" in code or "Unauthorized" in code:
        return "whoever deploys needs that permission; see docs/how-to/deploy-to-aws.md"
    if "Token" in code or "Signature" in code:
        return "renew the credentials"
    return "nothing else was changed by this call"
