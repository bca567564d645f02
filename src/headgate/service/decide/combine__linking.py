"""From a refusal to the page that explains it. Only refusals come here: a yes has no link."""

from __future__ import annotations

from urllib.parse import urlencode

from headgate.service.decide.answers import CheckAnswer
from headgate.service.decide.problems import Code

PAGE = "/ui/explain"


def explain_link(namespace: str, scope: str, identifier: str, resource: str) -> str:
    """Where the dashboard explains these limits, as seen from the service's root."""
    asked = {"namespace": namespace, "scope": scope, "identifier": identifier, "resource": resource}
    return f"{PAGE}?{urlencode(asked)}"


def linked(answer: CheckAnswer, namespace: str, identifier: str) -> CheckAnswer:
    """The answer with its link, where a limit refused it."""
    if answer.code is not Code.RATE_LIMIT_EXCEEDED:
        return answer
    link = explain_link(namespace, answer.scope, identifier, answer.resource)
    return answer._replace(instance=link)
