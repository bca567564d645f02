"""Calls to AWS's control plane, such as CloudFormation, and what can go wrong with them.

botocore makes the calls. One person deploys at a time and it takes minutes, so nothing would be
gained by calling AWS ourselves, or by an async form.
"""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from botocore.session import Session

from headgate.aws.aggregator.s3 import make_client
from headgate.core.errors import HeadgateError, ValidationError

# --------------------------------------------------------------------------------------------------
# What can go wrong with a stack; each message says what happened, why, and what to do.


class StackOperationError(HeadgateError):
    """A stack was not created, changed or deleted; says which resource was in the way."""

    def __init__(
        self, stack: str, what: str, reason: str, *, resource: str | None = None, advice: str
    ) -> None:
        self.stack = stack
        self.resource = resource
        self.reason = reason
        cause = f"{resource}: {reason}" if resource else reason
        super().__init__(f"{what}: {cause}; {advice}")


class InfrastructureNotFoundError(HeadgateError):
    """There is no such stack, or headgate did not create it."""

    def __init__(self, stack: str, why: str = "there is no stack of that name here") -> None:
        self.stack = stack
        super().__init__(
            f"{stack}: {why}; `headgate deploy` makes one, `headgate list` shows those of this "
            f"account and region"
        )


class AwsRefused(HeadgateError):
    """AWS refused a call."""

    def __init__(self, operation: str, code: str, message: str) -> None:
        self.operation = operation
        self.code = code
        self.message = message
        super().__init__(f"{operation} was refused: {message} ({code}); {_advice(code)}")


class AwsUnreachable(HeadgateError):
    """AWS did not answer, or there are no credentials to call it with."""

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


CONNECT_S, READ_S = 5, 60
ATTEMPTS_MAX = 5


class Port:
    """Operations go by botocore's names: `call("cloudformation", "describe_stacks", …)`."""

    def __init__(self, session: Session, region: str, endpoint: str | None) -> None:
        self.region = region
        self.endpoint = endpoint
        self._session = session
        self._clients: dict[str, Any] = {}

    def call(self, service: str, operation: str, /, **params: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client(service), operation)(**params)
        except ClientError as error:
            found = error.response.get("Error", {})
            code, message = found.get("Code", "unknown"), found.get("Message", str(error))
            raise AwsRefused(f"{service} {operation}", code, message) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise AwsUnreachable(f"{service} {operation}", error) from error
        return answer

    def pause_ms(self, wait_ms: int) -> None:
        time.sleep(wait_ms / 1000)

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = make_client(
                self._session, service, self.region, self.endpoint,
                connect_s=CONNECT_S, read_s=READ_S, attempts=ATTEMPTS_MAX,
            )  # fmt: skip
        return self._clients[service]


def open_port(*, region: str | None = None, endpoint: str | None = None) -> Port:
    """The port to a region of an account; nothing is contacted before the first call.

    Credentials are found as AWS's own tools find them: AWS_PROFILE, keys, SSO, roles.
    """
    try:
        session = Session()
        found = region or session.get_config_variable("region")
    except BotoCoreError as error:
        raise AwsUnreachable("the profile", error) from error
    if not found:
        raise ValidationError("region", region, "is nowhere to be found; name it, or AWS_REGION")
    return Port(session, found, endpoint)
