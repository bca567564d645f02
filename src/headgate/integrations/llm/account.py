"""What one call to a language model reserves, and what it costs in the end; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.core.engine import Request
from headgate.core.errors import ValidationError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import parse_amount, parse_entity_id, parse_limit_name
from headgate.integrations.gate import Rates, parse_rates
from headgate.integrations.llm.usage import Meter, Usage, estimate_tokens

OUTPUT_TOKENS = 1024

_OUTPUT_MAX = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_PROMPT = ("messages", "system", "input", "instructions", "prompt", "tools")


class CallRules:
    """How calls are counted: the names of the limits and the rules for the amounts.

    `output_tokens` is reserved if a call does not set its own maximum. `provider` is an entity that
    stands for your account at the provider. Every call takes from it too, and the provider's
    headers correct it.
    """

    def __init__(
        self,
        *,
        requests: str | None = "rpm",
        tokens: str = "tpm",
        estimate: Callable[[Any], int] = estimate_tokens,
        count: Callable[[Usage], int] = lambda usage: usage.total,
        output_tokens: int = OUTPUT_TOKENS,
        provider: str | None = None,
        limits: Rates = None,
        wait: float | None = None,
        on_unavailable: OnUnavailable | None = None,
    ) -> None:
        self.requests = None if requests is None else parse_limit_name(requests)
        self.tokens = parse_limit_name(tokens)
        self.estimate = estimate
        self.count = count
        self.output_tokens = parse_amount("output_tokens", output_tokens)
        self.provider = None if provider is None else parse_entity_id(provider)
        self.limits = parse_rates(limits)
        self.wait_s = wait
        self.on_unavailable = on_unavailable

    def wants(self, entity_id: str, resource: str, reserved: int) -> list[Request]:
        amounts = {self.tokens: reserved}
        if self.requests is not None:
            amounts[self.requests] = 1
        wants: list[Request] = [(entity_id, resource, amounts, self.limits)]
        if self.provider is not None:
            wants.append((self.provider, resource, amounts, None))
        return wants


class CallAccount:
    """One call: `reserved` before it, metered during it, `owed` after it."""

    def __init__(self, rules: CallRules, prompt: Any, output_max: int | None) -> None:
        estimated = parse_amount("estimate", rules.estimate(prompt))
        most = rules.output_tokens if output_max is None else output_max
        self.rules = rules
        self.reserved = estimated + parse_amount("output_max", most)
        self.meter = Meter(estimated)

    def owed(self, error: BaseException | None) -> int:
        """The tokens to settle: what was metered, however the call ended.

        If nothing came back, the call keeps what it reserved, because the provider may have worked
        all the same; unless the provider itself answered with an error.
        """
        if self.meter.seen:
            return self.rules.count(self.meter.used)
        return 0 if status_of(error) is not None else self.reserved


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status a provider's error carries; None for errors that are not the provider's."""
    status = getattr(error, "status_code", None)
    if status is None:
        status = getattr(getattr(error, "response", None), "status_code", None)
    return status if type(status) is int and status >= 400 else None


def headers_of(answer: Any) -> Mapping[str, Any] | None:
    """The headers a raw reply or a provider's error carries."""
    for holder in (answer, getattr(answer, "response", None)):
        headers = getattr(holder, "headers", None)
        if headers is not None and hasattr(headers, "items"):
            found: Mapping[str, Any] = headers
            return found
    return None


def unwrap_reply(reply: Any) -> Any:
    """The reply inside a raw one, which clients give together with its headers."""
    parse = getattr(reply, "parse", None)
    return parse() if callable(parse) and headers_of(reply) is not None else reply


def model_of(request: Mapping[str, Any], resource: str | None) -> str:
    name = request.get("model") if resource is None else resource
    if not isinstance(name, str):
        raise ValidationError("model", name, "is missing: give model=… or resource=…")
    return name


def account_for(rules: CallRules, request: Mapping[str, Any]) -> CallAccount:
    """The account of a call made with these keyword arguments."""
    given: Sequence[Any] = [request[name] for name in _PROMPT if request.get(name)]
    tops = [request[name] for name in _OUTPUT_MAX if type(request.get(name)) is int]
    return CallAccount(rules, given, tops[0] if tops else None)
