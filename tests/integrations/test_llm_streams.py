"""Streams of the real client libraries are charged what they used, however they end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import anthropic
import openai
import pytest

from headgate import Limit, RateLimiter
from headgate.core.errors import RateLimitExceeded
from headgate.integrations.gate import limits_off
from headgate.integrations.llm.limiter import LlmLimiter
from headgate.integrations.llm.sync import SyncLlmLimiter
from tests.integrations.kit import blocking, limiter, run
from tests.integrations.llm_provider import INPUT, OUTPUT, TEXTS, Provider, provider_running

LIMITS = [Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 10_000)]
ESTIMATED = 4 + 2  # the message, and its seven bytes
RESERVED = ESTIMATED + 500
USED = INPUT + OUTPUT
MESSAGES = [{"role": "user", "content": "hey"}]

# Verb, what to ask it, the events until two texts came, and what is charged for those.
CHAT: dict[str, Any] = {"model": "gpt-4", "messages": MESSAGES, "max_tokens": 500}
RESPONSE: dict[str, Any] = {"model": "gpt-4", "input": MESSAGES, "max_output_tokens": 500}
SHAPES: list[Any] = [
    pytest.param("chat.completions", CHAT, 2, ESTIMATED + 20, id="chat"),
    pytest.param("messages", CHAT, 4, INPUT + 1 + 20, id="messages"),
    pytest.param("responses", RESPONSE, 3, ESTIMATED + 20, id="responses"),
]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with provider_running() as found:
        yield found


@pytest.fixture
def gate() -> RateLimiter:
    return limiter(limits=LIMITS)


def verb(client: Any, name: str) -> Any:
    for part in name.split("."):
        client = getattr(client, part)
    return client


def libraries(name: str) -> Any:
    return anthropic if name == "messages" else openai


def options(provider: Provider, name: str) -> dict[str, Any]:
    path = "" if name == "messages" else "/v1"
    return {"api_key": "x", "base_url": provider.url + path, "max_retries": 0}


@asynccontextmanager
async def create_of(provider: Provider, name: str) -> AsyncIterator[Any]:
    library = libraries(name)
    made = library.AsyncAnthropic if name == "messages" else library.AsyncOpenAI
    async with made(**options(provider, name)) as client:
        yield verb(client, name).create


def blocking_client(provider: Provider, name: str) -> Any:
    library = libraries(name)
    made = library.Anthropic if name == "messages" else library.OpenAI
    return made(**options(provider, name))


def left(gate: Any) -> int:
    found: int = run(gate.available("k", "gpt-4"))["tpm"]
    return 10_000 - found


class Consumer(Exception):
    """The code that reads the stream fails. Web frameworks' errors have a status, too."""

    status_code = 404


@pytest.mark.parametrize(("name", "ask", "events", "partly"), SHAPES)
@pytest.mark.parametrize("end", ["read", "close", "aclose", "with", "consumer", "unread", "again"])
def test_how_a_stream_ends_decides_what_it_costs(
    end: str, name: str, ask: Any, events: int, partly: int, provider: Provider, gate: RateLimiter
) -> None:
    charges = {"read": USED, "again": USED, "unread": RESERVED}
    if end not in charges:
        provider.then, provider.after = "hang", events  # nobody would read on for ever

    async def flow() -> None:
        async with create_of(provider, name) as create:
            stream = await LlmLimiter(gate).create("k", create, stream=True, **ask)
            assert 10_000 - (await gate.available("k", "gpt-4"))["tpm"] == RESERVED
            if end in ("read", "again"):
                assert [part async for part in stream]
                if end == "again":
                    assert [part async for part in stream] == []
                    await stream.close()
            elif end == "unread":
                await stream.close()
            else:
                with suppress(Consumer):
                    await leave(stream)
            await stream.close()

    async def leave(stream: Any) -> None:
        if end in ("close", "aclose"):
            for _ in range(events):
                await anext(stream)
            await getattr(stream, end)()
            return
        async with stream:
            for _ in range(events):
                await anext(stream)
            if end == "consumer":
                raise Consumer

    run(flow())
    assert left(gate) == charges.get(end, partly)
    if end not in charges:
        assert provider.hung_up.wait(10)
    assert run(gate.available("k", "gpt-4"))["rpm"] == 9


@pytest.mark.parametrize(("name", "ask", "events", "partly"), SHAPES)
@pytest.mark.parametrize("end", ["read", "close", "with", "consumer", "unread", "again"])
def test_how_a_blocking_stream_ends_decides_what_it_costs(
    end: str, name: str, ask: Any, events: int, partly: int, provider: Provider
) -> None:
    gate = blocking(limits=LIMITS)
    charges = {"read": USED, "again": USED, "unread": RESERVED}
    if end not in charges:
        provider.then, provider.after = "hang", events
    with blocking_client(provider, name) as client:
        stream = SyncLlmLimiter(gate).create("k", verb(client, name).create, stream=True, **ask)
        assert 10_000 - gate.available("k", "gpt-4")["tpm"] == RESERVED
        if end in ("read", "again"):
            assert list(stream)
            assert end == "read" or list(stream) == []
        elif end == "close":
            for _ in range(events):
                next(stream)
        elif end != "unread":
            with suppress(Consumer), stream:
                for _ in range(events):
                    next(stream)
                if end == "consumer":
                    raise Consumer
        if end != "read":
            stream.close()
    assert gate.available("k", "gpt-4") == {"rpm": 9, "tpm": 10_000 - charges.get(end, partly)}


@pytest.mark.parametrize(("name", "ask", "events", "partly"), SHAPES)
def test_a_stream_that_is_dropped_keeps_its_reservation(
    name: str, ask: Any, events: int, partly: int, provider: Provider, gate: RateLimiter
) -> None:
    """`break`, and nobody has the stream any more."""
    threaded = blocking(limits=LIMITS)

    async def drop() -> None:
        async with create_of(provider, name) as create:
            async for _ in await LlmLimiter(gate).create("k", create, stream=True, **ask):
                break
            gc.collect()

    def drop_blocking() -> None:
        with blocking_client(provider, name) as client:
            llm = SyncLlmLimiter(threaded)
            for _ in llm.create("k", verb(client, name).create, stream=True, **ask):
                break
            gc.collect()

    told = f"{RESERVED} reserved tokens stay charged"
    with pytest.warns(ResourceWarning, match=told):
        run(drop())
    with pytest.warns(ResourceWarning, match=told):
        drop_blocking()
    assert left(gate) == RESERVED
    assert threaded.available("k", "gpt-4")["tpm"] == 10_000 - RESERVED


@pytest.mark.parametrize(("name", "ask", "events", "partly"), SHAPES)
@pytest.mark.parametrize("then", ["cut", "error"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_stream_that_breaks_is_paid_as_far_as_it_came(
    begun: bool, then: str, name: str, ask: Any, events: int, partly: int, provider: Provider
) -> None:
    provider.then, provider.after = then, events if begun else 0
    charge = partly if begun else RESERVED
    gate, threaded = limiter(limits=LIMITS), blocking(limits=LIMITS)

    async def flow() -> int:
        count = 0
        async with create_of(provider, name) as create:
            stream = await LlmLimiter(gate).create("k", create, stream=True, **ask)
            with pytest.raises(Exception):  # of the library, or of the one below it
                async for _ in stream:
                    count += 1
        return count

    count = run(flow())
    assert left(gate) == charge
    with blocking_client(provider, name) as client:
        llm = SyncLlmLimiter(threaded)
        stream = llm.create("k", verb(client, name).create, stream=True, **ask)
        with pytest.raises(Exception):
            for _ in stream:
                count -= 1
    if name != "responses":  # an "error" is one of its events
        assert count == 0
    assert threaded.available("k", "gpt-4")["tpm"] == 10_000 - charge


@pytest.mark.parametrize(("name", "ask", "events", "partly"), SHAPES)
def test_a_refusal_of_the_provider_costs_no_tokens(
    name: str, ask: Any, events: int, partly: int, provider: Provider, gate: RateLimiter
) -> None:
    provider.status = 529

    async def flow() -> None:
        async with create_of(provider, name) as create:
            with pytest.raises(libraries(name).APIStatusError):
                await LlmLimiter(gate).create("k", create, stream=True, **ask)

    run(flow())
    assert run(gate.available("k", "gpt-4")) == {"rpm": 9, "tpm": 10_000}


@pytest.mark.parametrize(("name", "ask", "events", "partly"), SHAPES)
@pytest.mark.parametrize("begun", [True, False])
async def test_cancelled_while_it_waits_for_the_next_chunk(
    begun: bool, name: str, ask: Any, events: int, partly: int, provider: Provider
) -> None:
    provider.then, provider.after = "hang", events if begun else 0
    gate = limiter(limits=LIMITS)
    async with create_of(provider, name) as create:
        stream = await LlmLimiter(gate).create("k", create, stream=True, **ask)
        came = asyncio.Semaphore(0)

        async def read() -> None:
            async for _ in stream:
                came.release()

        task = asyncio.ensure_future(read())
        for _ in range(events if begun else 0):
            await came.acquire()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(provider.hung_up.wait, 10)
    assert 10_000 - (await gate.available("k", "gpt-4"))["tpm"] == (partly if begun else RESERVED)


@pytest.mark.parametrize(("name", "ask", "events", "partly"), SHAPES)
def test_the_stream_verb(
    name: str, ask: Any, events: int, partly: int, provider: Provider, gate: RateLimiter
) -> None:
    """Its generators: one that was never begun asked for nothing, one that ends early is closed."""
    threaded = blocking(limits=LIMITS)

    async def flow() -> None:
        async with create_of(provider, name) as create:
            llm = LlmLimiter(gate)
            llm.stream("k", create, **ask)
            assert provider.asked == []
            assert left_of(await gate.available("k", "gpt-4")) == 0
            assert [part async for part in llm.stream("k", create, **ask)]
            assert left_of(await gate.available("k", "gpt-4")) == USED
            provider.then, provider.after = "hang", events
            stream: Any = llm.stream("k", create, **ask)
            async with aclosing(stream) as chunks:
                for _ in range(events):
                    await anext(chunks)
            assert left_of(await gate.available("k", "gpt-4")) == USED + partly

    run(flow())
    provider.then = "end"
    asked = len(provider.asked)
    with blocking_client(provider, name) as client:
        llm, create = SyncLlmLimiter(threaded), verb(client, name).create
        llm.stream("k", create, **ask)
        assert len(provider.asked) == asked
        assert list(llm.stream("k", create, **ask))
        assert left_of(threaded.available("k", "gpt-4")) == USED
        provider.then, provider.after = "hang", events
        for count, _ in enumerate(llm.stream("k", create, **ask), start=1):
            if count == events:
                break
        assert left_of(threaded.available("k", "gpt-4")) == USED + partly


def left_of(levels: dict[str, int]) -> int:
    return 10_000 - levels["tpm"]


def read_all(provider: Provider, llm: Any, **ask: Any) -> list[Any]:
    async def flow() -> list[Any]:
        async with create_of(provider, "chat.completions") as create:
            stream = await llm.create("k", create, stream=True, **{**CHAT, **ask})
            return [part async for part in stream]

    found: list[Any] = run(flow())
    return found


def test_usage_is_asked_for_where_the_caller_did_not(provider: Provider, gate: RateLimiter) -> None:
    """And the chunk that comes for it, which has no choices, is ours: callers read `choices[0]`."""
    llm = LlmLimiter(gate)
    assert len(read_all(provider, llm)) == TEXTS
    assert provider.asked[-1]["stream_options"] == {"include_usage": True}
    assert left(gate) == USED
    told = read_all(provider, llm, stream_options={"include_usage": True})
    assert told[-1].usage.completion_tokens == OUTPUT
    assert len(read_all(provider, llm, stream_options={"include_obfuscation": False})) == TEXTS
    assert provider.asked[-1]["stream_options"] == {
        "include_obfuscation": False,
        "include_usage": True,
    }
    assert left(gate) == 3 * USED
    for silent, more in ((llm, {"stream_options": {"include_usage": False}}),
                         (LlmLimiter(gate, ask_usage=False), {})):  # fmt: skip
        before = left(gate)
        assert len(read_all(provider, silent, **more)) == TEXTS
        assert left(gate) - before == ESTIMATED + 30  # by its text


def test_two_streams_at_once_are_two_accounts(provider: Provider, gate: RateLimiter) -> None:
    async def flow() -> None:
        async with create_of(provider, "chat.completions") as create:
            llm = LlmLimiter(gate)
            both = [await llm.create("k", create, stream=True, **CHAT) for _ in range(2)]
            assert left_of(await gate.available("k", "gpt-4")) == 2 * RESERVED
            async for _ in both[0]:
                pass
            assert left_of(await gate.available("k", "gpt-4")) == USED + RESERVED
            await both[1].close()

    run(flow())


@pytest.mark.parametrize(("name", "ask", "events", "partly"), SHAPES)
def test_raw_replies_hold_a_metered_stream(
    name: str, ask: Any, events: int, partly: int, provider: Provider
) -> None:
    """And the provider's account learns from the headers, which come first."""
    gate, threaded = limiter(limits=LIMITS), blocking(limits=LIMITS)

    async def flow() -> None:
        library = libraries(name)
        made = library.AsyncAnthropic if name == "messages" else library.AsyncOpenAI
        async with made(**options(provider, name)) as client:
            llm = LlmLimiter(gate, provider="provider:x")
            create = verb(client, name).with_raw_response.create
            raw = await llm.create("k", create, stream=True, **ask)
            assert raw.headers["x-ratelimit-remaining-tokens"] == "4000"
            assert (await gate.available("provider:x", "gpt-4"))["tpm"] == 4000
            stream = raw.parse()
            stream = await stream if asyncio.iscoroutine(stream) else stream
            assert [part async for part in stream]

    run(flow())
    assert left(gate) == USED
    with blocking_client(provider, name) as client:
        create = verb(client, name).with_raw_response.create
        raw = SyncLlmLimiter(threaded).create("k", create, stream=True, **ask)
        assert list(raw.parse())
    assert left_of(threaded.available("k", "gpt-4")) == USED


def test_the_stream_is_the_librarys_in_all_else(provider: Provider, gate: RateLimiter) -> None:
    async def flow() -> None:
        async with create_of(provider, "chat.completions") as create:
            llm = LlmLimiter(gate)
            async with await llm.create("k", create, stream=True, **CHAT) as stream:
                assert stream.response.status_code == 200
                with pytest.raises(AttributeError):
                    stream.no_such_thing  # noqa: B018
            with limits_off():
                opened = await llm.create("k", create, stream=True, **CHAT)
            assert isinstance(opened, openai.AsyncStream)
            await opened.close()

    run(flow())
    assert left(gate) == RESERVED  # of the first: it was closed before anything came


def test_helpers_that_open_a_stream_go_in_a_reservation(
    provider: Provider, gate: RateLimiter
) -> None:
    """`messages.stream` and `chat.completions.stream` give a context manager, not a stream."""

    async def flow() -> None:
        llm = LlmLimiter(gate)
        async with anthropic.AsyncAnthropic(**options(provider, "messages")) as client:
            async with llm.reserve("k", "gpt-4", MESSAGES, output_max=500) as call:
                async with client.messages.stream(**CHAT) as stream:
                    assert "".join([text async for text in stream.text_stream])
                    call.meter.see(await stream.get_final_message())

    run(flow())
    assert left(gate) == USED
    threaded = blocking(limits=LIMITS)
    with blocking_client(provider, "chat.completions") as client:
        llm = SyncLlmLimiter(threaded)
        asked = {**CHAT, "stream_options": {"include_usage": True}}
        with llm.reserve("k", "gpt-4", MESSAGES, output_max=500) as call:
            with client.chat.completions.stream(**asked) as stream:
                call.meter.see(stream.get_final_completion())
    assert left_of(threaded.available("k", "gpt-4")) == USED


def test_what_is_refused_opens_no_stream(provider: Provider) -> None:
    gate = limiter(limits=[Limit.per_minute("rpm", 1), Limit.per_minute("tpm", 10_000)])
    llm = LlmLimiter(gate)
    assert read_all(provider, llm)
    with pytest.raises(RateLimitExceeded):
        read_all(provider, llm)
    assert len(provider.asked) == 1
