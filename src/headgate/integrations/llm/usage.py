"""How many tokens a call to a language model uses: estimated before, metered during and after.

Replies and chunks are read by their shape, as objects or as dicts: the chat completions and
responses of OpenAI, the messages of Anthropic, and APIs that look like them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.core.bucket import div_ceil
from headgate.core.errors import ValidationError

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
    for choice in _listed(_get(part, "choices")):
        deltas += [_get(choice, "delta"), _get(choice, "text")]
    for delta in deltas:
        if isinstance(delta, str):
            yield delta
            continue
        for name in ("content", "text", "partial_json", "thinking", "reasoning_content", "refusal"):
            value = _get(delta, name)
            if isinstance(value, str):
                yield value
        for call in _listed(_get(delta, "tool_calls")):
            arguments = _get(_get(call, "function"), "arguments")
            if isinstance(arguments, str):
                yield arguments


def _get(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return None if holder is None or isinstance(holder, str) else getattr(holder, name, None)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _first_int(holder: Any, *names: str) -> int | None:
    """The first of these that is a number of tokens; a provider may send anything."""
    for name in names:
        value = _get(holder, name)
        if type(value) is int and value >= 0:
            return value
    return None
