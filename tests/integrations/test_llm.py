"""Calls to language models: reserve, meter, settle; hanging up is not free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from headgate import Limit, RateLimiter, RateLimitExceeded, ValidationError
from headgate.core.errors import DemandTooLarge, Unreachable
from headgate.integrations.gate import limits_off
from headgate.integrations.llm.account import Meter, Usage, estimate_tokens
from headgate.integrations.llm.limiter import WAIT_MS_MAX, LlmLimiter, _told_limits
from headgate.integrations.llm.sync import SyncLlmLimiter
from headgate.testing import FakeClock, FaultyStore
from tests.integrations.kit import blocking, limiter, run

LIMITS = [Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 10_000)]
ASK: dict[str, Any] = {
    "model": "gpt-4",
    "messages": [{"role": "user", "content": "x" * 392}],  # 98 + 1 for the role + 4 = 103
    "max_tokens": 500,
}
RESERVED = 603


class ProviderError(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        self.status_code = status
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = Thing(headers=named, status_code=status)
        super().__init__("provider")


def openai_reply(prompt: int = 90, out: int = 40) -> Any:
    return Thing(
        usage=Thing(prompt_tokens=prompt, completion_tokens=out, total_tokens=prompt + out)
    )


def openai_chunk(text: str | None, usage: Any = None) -> Any:
    choices = [] if text is None else [Thing(delta=Thing(content=text, tool_calls=None))]
    return Thing(choices=choices, usage=usage)


def openai_chunks(count: int = 5) -> list[Any]:
    last = openai_chunk(None, Thing(prompt_tokens=90, completion_tokens=33, total_tokens=123))
    return [*(openai_chunk("y" * 40) for _ in range(count)), last]


def anthropic_events() -> list[Any]:
    return [
        Thing(type="message_start", message=Thing(usage=Thing(
            input_tokens=50, output_tokens=1, cache_creation_input_tokens=20,
            cache_read_input_tokens=30))),
        *(Thing(type="content_block_delta", delta=Thing(type="text_delta", text="z" * 40))
          for _ in range(5)),
        Thing(type="message_delta", delta=Thing(stop_reason="x"), usage=Thing(output_tokens=44)),
        Thing(type="message_stop"),
    ]  # fmt: skip


class AsyncClient:
    """Answers like an asyncio client: a reply, a stream of these parts, or an error."""

    def __init__(self, *parts: Any, error: BaseException | None = None, after: int = 0) -> None:
        self.parts, self.error, self.after = parts, error, after
        self.calls: list[dict[str, Any]] = []
        self.closed = False

    async def create(self, **request: Any) -> Any:
        self.calls.append(request)
        if self.error is not None and not self.after:
            raise self.error
        return self.stream() if request.get("stream") else self.parts[0]

    async def stream(self) -> AsyncIterator[Any]:
        try:
            for number, part in enumerate(self.parts):
                if self.error is not None and number == self.after:
                    raise self.error
                await asyncio.sleep(0)
                yield part
        finally:
            self.closed = True


@pytest.fixture
def gate() -> RateLimiter:
    return limiter(limits=LIMITS)


def left(gate: Any) -> dict[str, int]:
    return run(gate.available("k", "gpt-4"))


ANTHROPIC = {"usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100}}


@pytest.mark.parametrize(
    ("reply", "options", "used"),
    [
        (openai_reply(), {}, 130),
        (ANTHROPIC, {}, 115),
        (ANTHROPIC, {"count": lambda usage: usage.total - usage.cached}, 15),
    ],
)
def test_a_reply_settles_by_its_usage(
    reply: Any, options: dict[str, Any], used: int, gate: RateLimiter
) -> None:
    client = AsyncClient(reply)
    assert run(LlmLimiter(gate, **options).create("k", client.create, **ASK)) is reply
    assert client.calls == [ASK]
    assert left(gate) == {"rpm": 9, "tpm": 10_000 - used}


def test_the_reservation_is_held_while_the_call_runs(gate: RateLimiter) -> None:
    seen: list[dict[str, int]] = []

    async def slow(**request: Any) -> Any:
        seen.append(await gate.available("k", "gpt-4"))
        return openai_reply()

    run(LlmLimiter(gate).create("k", slow, **ASK))
    assert seen == [{"rpm": 9, "tpm": 10_000 - RESERVED}]


def test_what_does_not_fit_is_not_sent() -> None:
    gate = limiter(limits=[Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 1000)])
    llm, client = LlmLimiter(gate), AsyncClient(openai_reply(400, 300))
    run(llm.create("k", client.create, **ASK))
    with pytest.raises(RateLimitExceeded):
        run(llm.create("k", client.create, **ASK))
    with pytest.raises(DemandTooLarge):
        run(llm.create("k", client.create, **{**ASK, "max_tokens": 5000}))
    assert len(client.calls) == 1


@pytest.mark.parametrize(
    ("parts", "used"), [(openai_chunks(), 123), (anthropic_events(), 50 + 20 + 30 + 44)]
)
def test_a_whole_stream_settles_by_the_usage_in_it(
    parts: list[Any], used: int, gate: RateLimiter
) -> None:
    client = AsyncClient(*parts)

    async def flow() -> list[Any]:
        return [chunk async for chunk in LlmLimiter(gate).stream("k", client.create, **ASK)]

    assert run(flow()) == parts
    assert client.calls == [{**ASK, "stream": True}]
    assert left(gate) == {"rpm": 9, "tpm": 10_000 - used}


@pytest.mark.parametrize(
    ("parts", "used"),
    [(openai_chunks(), 103 + 20), (anthropic_events(), 100 + 1 + 10)],  # two resp. one text seen
)
def test_hanging_up_keeps_what_was_metered(parts: list[Any], used: int, gate: RateLimiter) -> None:
    """The client goes after two chunks, long before the usage chunk: it pays for those two."""
    client = AsyncClient(*parts)
    llm = LlmLimiter(gate)

    async def by_closing() -> None:
        stream = llm.stream("k", client.create, **ASK)
        await anext(stream)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    run(by_closing())
    assert client.closed
    assert left(gate) == {"rpm": 9, "tpm": 10_000 - used}

    async def by_cancelling() -> None:
        got = asyncio.Event()
        count = 0

        async def serve() -> None:
            nonlocal count
            async for _ in llm.stream("k", client.create, **ASK):
                count += 1
                if count == 2:
                    got.set()
                    await asyncio.Event().wait()  # writing to a client that is gone

        task = asyncio.ensure_future(serve())
        await got.wait()
        task.cancel()
        await asyncio.wait([task])
        del task

    run(by_cancelling())
    assert left(gate) == {"rpm": 8, "tpm": 10_000 - 2 * used}


def test_a_stream_ends_once(gate: RateLimiter) -> None:
    client = AsyncClient(*openai_chunks())

    async def flow() -> None:
        stream = await LlmLimiter(gate).create("k", client.create, **ASK, stream=True)
        assert (await gate.available("k", "gpt-4"))["tpm"] == 10_000 - RESERVED
        assert len([chunk async for chunk in stream]) == 6
        for _ in range(2):  # settling again would be an error
            await stream.aclose()

    run(flow())
    assert left(gate) == {"rpm": 9, "tpm": 10_000 - 123}


def test_cancelled_before_anything_came_keeps_the_reservation(gate: RateLimiter) -> None:

    async def never(**request: Any) -> Any:
        await asyncio.Event().wait()

    async def flow() -> None:
        task = asyncio.ensure_future(LlmLimiter(gate).create("k", never, **ASK))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(flow())
    assert left(gate) == {"rpm": 9, "tpm": 10_000 - RESERVED}


@pytest.mark.parametrize(
    ("error", "after", "used"),
    [
        (ProviderError(500), 0, 0),  # it refused, so it has not worked
        (ConnectionError(), 0, RESERVED),  # a broken line: it may have
        (ProviderError(500), 3, 103 + 30),  # a stream is paid as far as it came
    ],
)
def test_what_a_call_that_fails_costs(
    error: Exception, after: int, used: int, gate: RateLimiter
) -> None:
    client = AsyncClient(*openai_chunks(), error=error, after=after)

    async def flow() -> None:
        async for _ in LlmLimiter(gate).stream("k", client.create, **ASK):
            pass

    with pytest.raises(type(error)):
        run(flow())
    assert left(gate) == {"rpm": 9, "tpm": 10_000 - used}


def test_any_other_shape_by_reserve(gate: RateLimiter) -> None:

    async def flow() -> None:
        async with LlmLimiter(gate).reserve("k", "gpt-4", "x" * 400, output_max=50) as call:
            assert call.reserved == 150
            call.meter.see("four" * 3)
        async with LlmLimiter(gate).reserve("k", "gpt-4", "x" * 400, output_max=50):
            pass  # nothing was metered: the reservation stands

    run(flow())
    assert left(gate)["tpm"] == 10_000 - 103 - 150


async def test_waiting_instead_of_refusing() -> None:
    clock = FakeClock()
    gate = limiter(clock, limits=[Limit.per_minute("rpm", 1), Limit.per_minute("tpm", 9000)])
    llm, client = LlmLimiter(gate, wait=120), AsyncClient(openai_reply())

    await llm.create("k", client.create, **ASK)
    second = asyncio.ensure_future(llm.create("k", client.create, **ASK))
    await clock.run_for(59_999)
    assert not second.done()
    await clock.run_for(1)
    assert second.done()


def test_the_account_at_the_provider_is_shared_and_corrected(gate: RateLimiter) -> None:
    llm = LlmLimiter(gate, provider="provider:openai")
    headers = {"x-ratelimit-remaining-tokens": "4000", "x-ratelimit-remaining-requests": "99"}
    raw = Thing(headers=headers, parse=openai_reply)
    assert run(llm.create("k", AsyncClient(raw).create, **ASK)) is raw
    assert left(gate)["tpm"] == 10_000 - 130
    account = run(gate.available("provider:openai", "gpt-4"))
    assert account == {"rpm": 9, "tpm": 4000}  # more requests than ours: nothing is handed out


def test_a_429_of_the_provider_closes_the_account_for_as_long() -> None:
    clock = FakeClock()
    gate = limiter(clock, limits=LIMITS)
    llm = LlmLimiter(gate, provider="provider:openai", output_tokens=1)
    refused = ProviderError(
        429, retry_after="30", x_ratelimit_remaining_tokens="0", x_ratelimit_remaining_requests="5"
    )
    with pytest.raises(ProviderError):
        run(llm.create("k", AsyncClient(error=refused).create, **ASK))
    assert left(gate) == {"rpm": 9, "tpm": 10_000}
    wait_s = run(gate.time_until_available("provider:openai", "gpt-4", {"tpm": 1}))
    assert wait_s == 30
    assert run(gate.available("provider:openai", "gpt-4"))["rpm"] == 5
    client = AsyncClient(openai_reply())
    with pytest.raises(RateLimitExceeded):
        run(llm.create("another", client.create, **ASK))
    assert client.calls == []


def test_learning_never_gives_and_never_breaks_a_call(gate: RateLimiter) -> None:
    llm = LlmLimiter(gate)
    assert run(llm.learn({"x-ratelimit-remaining-tokens": "99999999"}, "k", "gpt-4")) == {}
    assert run(llm.learn({"X-RateLimit-Remaining-Tokens": "7"}, "k", "gpt-4")) == {"tpm": 9993}
    assert run(llm.learn({"x-ratelimit-remaining-tokens": "-7"}, "k", "gpt-4")) == {}
    assert run(llm.learn({}, "k", "gpt-4", refused=True)) == {}
    gate.engine.use(FaultyStore(gate.engine.store, before=[None, None, Unreachable("x")]))
    shared = LlmLimiter(gate, provider="p")
    raw = Thing(headers={"x-ratelimit-remaining-tokens": "4"}, parse=openai_reply)
    assert run(shared.create("j", AsyncClient(raw).create, **ASK)) is raw


@pytest.mark.parametrize(
    ("headers", "requests", "tokens"),
    [
        ({"x-ratelimit-remaining-tokens": "0", "retry-after": "2"}, (None, None), (0, 2000)),
        ({"x-ratelimit-reset-tokens": "20ms"}, (None, None), (None, 20)),
        ({"x-ratelimit-reset-requests": "3d"}, (None, WAIT_MS_MAX), (None, None)),
        ({"retry-after": "2", "retry-after-ms": "250"}, (None, 250), (None, 250)),
        ({"x-ratelimit-remaining-tokens": 3, "retry-after": 2}, (None, 2000), (3, 2000)),
        (
            {"x-ratelimit-limit-tokens": "60", "anthropic-ratelimit-tokens-remaining": "5"},
            (None, None),
            (5, None),
        ),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "1000",
                "anthropic-ratelimit-tokens-reset": "2023-11-14T22:13:30Z",
            },
            (None, None),
            (1000, 10_000),
        ),
    ],
)
def test_what_the_headers_of_a_429_say(headers: Any, requests: Any, tokens: Any) -> None:
    found = _told_limits(headers, 1_700_000_000_000, refused=True)
    assert found == {"requests": requests, "tokens": tokens}


def test_the_meter_counts_text_until_it_is_reported() -> None:
    meter = Meter(10)
    call = {"function": {"arguments": "{}" * 4}}
    meter.see({"choices": [{"delta": {"content": "x" * 8, "tool_calls": [call]}}], "usage": None})
    assert meter.used == Usage(10, 4)
    meter.see({"type": "response.output_text.delta", "delta": "y" * 4})
    assert meter.used == Usage(10, 5)
    cached = {"cached_tokens": 2}
    usage = {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": cached}
    meter.see({"type": "response.completed", "response": {"usage": usage}})
    assert meter.used == Usage(7, 3, 2)
    meter.see({"usage": {"prompt_tokens": True, "completion_tokens": "many"}})
    assert meter.used == Usage(7, 3, 2)


def test_estimates() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("abcde") == 2
    assert estimate_tokens([{"role": "user", "content": "abcd"}]) == 6
    picture = {"type": "image_url", "image_url": {"url": "data:" + "A" * 100_000}}
    assert estimate_tokens([picture]) < 1100
    with pytest.raises(ValidationError):
        estimate_tokens(["x"] * 300_000)


def test_bad_options_are_told() -> None:
    for options in ({"tokens": "9x"}, {"output_tokens": True}, {"provider": "#"}, {"limits": "?"}):
        with pytest.raises(ValidationError):
            LlmLimiter(limiter(), **options)
    with pytest.raises(ValidationError, match="model"):
        run(LlmLimiter(limiter(limits=LIMITS)).create("k", AsyncClient().create, messages=[]))


def test_the_switch(gate: RateLimiter) -> None:
    with limits_off():
        run(LlmLimiter(gate).create("k", AsyncClient(openai_reply()).create, **ASK))
    assert left(gate) == {"rpm": 10, "tpm": 10_000}


class BlockingClient:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.closed = False

    def create(self, **request: Any) -> Any:
        return self.stream() if request.get("stream") else self.parts[0]

    def stream(self) -> Iterator[Any]:
        try:
            yield from self.parts
        finally:
            self.closed = True


def test_blocking_clients() -> None:
    gate = blocking(limits=LIMITS)
    llm = SyncLlmLimiter(gate)
    llm.create("k", BlockingClient(openai_reply()).create, **ASK)
    assert gate.available("k", "gpt-4") == {"rpm": 9, "tpm": 10_000 - 130}
    assert len(list(llm.stream("k", BlockingClient(*openai_chunks()).create, **ASK))) == 6
    assert gate.available("k", "gpt-4")["tpm"] == 10_000 - 130 - 123
    client = BlockingClient(*openai_chunks())
    stream: Any = llm.stream("k", client.create, **ASK)
    next(stream)
    stream.close()
    assert client.closed
    assert gate.available("k", "gpt-4")["tpm"] == 10_000 - 130 - 123 - 113
    with (
        pytest.raises(KeyboardInterrupt),
        llm.reserve("k", "gpt-4", "x" * 40, output_max=5) as call,
    ):
        call.meter.see("x" * 8)
        raise KeyboardInterrupt
    assert gate.available("k", "gpt-4")["tpm"] == 10_000 - 130 - 123 - 113 - 12
    assert llm.learn({"x-ratelimit-remaining-requests": "1"}, "k", "gpt-4") == {"rpm": 5}


def test_blocking_calls_in_a_task_that_was_cancelled() -> None:
    """Whoever cleans up after a cancellation may do so with blocking calls."""
    llm = SyncLlmLimiter(blocking(limits=LIMITS))

    async def work() -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return llm.create("k", BlockingClient(openai_reply()).create, **ASK)

    async def flow() -> Any:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert run(flow()).usage.total_tokens == 130


async def test_hanging_up_hangs_up_on_the_provider() -> None:
    """Clients give a stream object with an async `close`, which nobody else would call."""

    class Stream:
        closed = False

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            return openai_chunk("x")

        async def close(self) -> None:
            self.closed = True

    opened = Stream()

    async def create(**request: Any) -> Any:
        return opened

    chunks: Any = LlmLimiter(limiter(limits=LIMITS)).stream("k", create, **ASK)
    await anext(chunks)
    assert not opened.closed
    await chunks.aclose()
    assert opened.closed
