"""What one call to a language model reserves, and what it costs in the end; pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.core.engine import Request
from headgate.core.errors import ValidationError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import parse_amount, parse_entity_id, parse_limit_name
from headgate.core.refill.bucket import div_ceil
from headgate.integrations.gate import Rates, parse_rates

BYTES_PER_TOKEN = 4  # of UTF-8: right for English, a little high for most other languages
MESSAGE_TOKENS = 4
PICTURE_TOKENS = 1000
NODES_MAX = 200_000

_PICTURES = frozenset({"image_url", "source", "input_audio", "file", "image"})


class Usage(NamedTuple):
    """Tokens in, tokens out; `cached` is the part of those in that came from a cache."""

    input: int
    output: int
    cached: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output


def estimate_tokens(prompt: Any) -> int:
    """Roughly how many tokens a prompt has: text, messages, or anything made of them."""
    found_bytes, tokens, seen = 0, 0, 0
    todo = [prompt]
    while todo:
        seen += 1
        if seen > NODES_MAX:
            raise ValidationError("prompt", "it", f"has more than {NODES_MAX} parts; send fewer")
        node = todo.pop()
        if isinstance(node, str):
            found_bytes += len(node.encode(errors="replace"))
        elif isinstance(node, Mapping):
            tokens += MESSAGE_TOKENS if "role" in node else 0
            tokens += PICTURE_TOKENS * len(_PICTURES & node.keys())
            todo += [value for name, value in node.items() if name not in _PICTURES]
        elif isinstance(node, Sequence) and not isinstance(node, (bytes, bytearray)):
            todo += node
    return tokens + div_ceil(found_bytes, BYTES_PER_TOKEN)


class Meter:
    """Adds up a call while it runs: what the provider reports, and text it has not reported yet."""

    def __init__(self, input_estimate: int) -> None:
        self.input = input_estimate
        self.output = 0
        self.cached = 0
        self.seen = False
        self._unreported_bytes = 0

    def see(self, part: Any) -> None:
        """A whole reply, or one chunk of a stream."""
        self.seen = True
        usage = _usage_in(part)
        reported_input = _input_of(usage)
        if reported_input is not None:
            self.input, self.cached = reported_input, _cached_of(usage)
        output = _first_int(usage, "completion_tokens", "output_tokens")
        if output is None:
            texts = _texts(part)
            self._unreported_bytes += sum(len(text.encode(errors="replace")) for text in texts)
        else:  # reports are running totals: this one covers all text so far
            self.output = output
            self._unreported_bytes = 0

    @property
    def used(self) -> Usage:
        unreported = div_ceil(self._unreported_bytes, BYTES_PER_TOKEN)
        return Usage(self.input, self.output + unreported, self.cached)


def _usage_in(part: Any) -> Any:
    """The usage a reply or chunk carries, on itself or on the message it is about."""
    for holder in (part, _get(part, "message"), _get(part, "response")):
        usage = _get(holder, "usage")
        if usage is not None:
            return usage
    return None


def _input_of(usage: Any) -> int | None:
    """All input tokens. Anthropic counts cached ones separately, OpenAI includes them."""
    prompt = _first_int(usage, "prompt_tokens")
    if prompt is not None:
        return prompt
    fresh = _first_int(usage, "input_tokens")
    if fresh is None:
        return None
    written = _first_int(usage, "cache_creation_input_tokens") or 0
    return fresh + written + (_first_int(usage, "cache_read_input_tokens") or 0)


def _cached_of(usage: Any) -> int:
    read = _first_int(usage, "cache_read_input_tokens")
    for details in ("prompt_tokens_details", "input_tokens_details"):
        read = _first_int(_get(usage, details), "cached_tokens") if read is None else read
    return read or 0


def _texts(part: Any) -> Iterator[str]:
    """The text of a chunk, wherever its provider puts it."""
    if isinstance(part, str):
        yield part
        return
    deltas = [_get(part, "delta")]
    for choice in _list_or_empty(_get(part, "choices")):
        deltas += [_get(choice, "delta"), _get(choice, "text")]
    for delta in deltas:
        if isinstance(delta, str):
            yield delta
            continue
        for name in ("content", "text", "partial_json", "thinking", "reasoning_content", "refusal"):
            value = _get(delta, name)
            if isinstance(value, str):
                yield value
        for call in _list_or_empty(_get(delta, "tool_calls")):
            arguments = _get(_get(call, "function"), "arguments")
            if isinstance(arguments, str):
                yield arguments


def _get(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return None if holder is None or isinstance(holder, str) else getattr(holder, name, None)


def _list_or_empty(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _first_int(holder: Any, *names: str) -> int | None:
    """The first of these that is a number of tokens; a provider may send anything."""
    for name in names:
        value = _get(holder, name)
        if type(value) is int and value >= 0:
            return value
    return None


OUTPUT_TOKENS = 1024

_OUTPUT_MAX = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_PROMPT = ("messages", "system", "input", "instructions", "prompt", "tools")


class CallRules:
    """How calls are counted: the names of the limits and the rules for the amounts.

    `output_tokens` is reserved if a call does not set its own maximum. `provider` is an entity that
    stands for your account at the provider. Every call takes from it too, and the provider's
    headers correct it. With `ask_usage` streams of OpenAI are asked to report what they used.
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
        ask_usage: bool = True,
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
        self.ask_usage = ask_usage

    def requests_for(self, entity_id: str, resource: str, reserved: int) -> list[Request]:
        amounts = {self.tokens: reserved}
        if self.requests is not None:
            amounts[self.requests] = 1
        found: list[Request] = [(entity_id, resource, amounts, self.limits)]
        if self.provider is not None:
            found.append((self.provider, resource, amounts, None))
        return found


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


def is_raw(reply: Any) -> bool:
    """Whether this is a raw reply, which clients give to show its headers too."""
    return callable(getattr(reply, "parse", None)) and headers_of(reply) is not None


def with_usage_asked(method: Callable[..., Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The request, which asks for the usage at the end of a stream where its caller did not.

    Only the chat and text completions of OpenAI, and what speaks like them, have to be asked. They
    are known by the parameter of the method; other verbs that have it refuse this option.
    """
    options = request.get("stream_options")
    chosen = dict(options) if isinstance(options, Mapping) else {}
    if not request.get("stream") or "include_usage" in chosen:
        return dict(request)
    if not {"messages", "prompt"} & request.keys() or not _has_parameter(method, "stream_options"):
        return dict(request)
    return {**request, "stream_options": {**chosen, "include_usage": True}}


def is_usage_alone(chunk: Any) -> bool:
    """Whether this is the chunk that a stream has only because its usage was asked for."""
    return _get(chunk, "usage") is not None and _get(chunk, "choices") in ([], ())


def _has_parameter(method: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(method).parameters
    except (TypeError, ValueError):  # made in C, or no function at all: nothing is known of it
        return False


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
