"""What goes in is checked before anything is sent; the key shows nowhere; both faces are one."""

from __future__ import annotations

import logging
import pickle
import ssl
from typing import Any

import pytest

import headgate.client
from headgate.client import AsyncClient, Client, Unavailable
from headgate.core.errors import HeadgateError, ValidationError
from tests.client.kit import ALLOWED, HANG_UP, KEY, play, response, scripted

URL = "http://127.0.0.1:9"


BAD_OPTIONS: list[tuple[str, str, list[Any]]] = [
    ("url", "url.*https://", ["limits.example.com", "ftp://x"]),
    ("url", "url", ["http://", "http://x:99999", "http://x:0", "http://x/a b\r\nhost: y"]),
    ("url", "url", ["http://ex ample", 5]),
    ("url", "url.*path", ["http://x/a?b=c", "http://x/a#b"]),
    ("url", "url.*punycode", ["http://bücher.example"]),
    ("url", "url.*api_key=", [f"http://user:{KEY}@x"]),
    ("api_key", "api_key", ["", f"{KEY}\r\nx: y", f"{KEY} ", "ключ", "k" * 5000, KEY.encode()]),
    ("namespace", "namespace", ["a b"]),
    ("timeout_s", "timeout_s", [0, True, "5"]),
    ("attempt_timeout_s", "attempt_timeout_s", [-1, float("nan")]),
    ("connections", "connections", [0, 10**6]),
    ("retry", "retry", [3]),
    ("tls", "tls", [ssl.create_default_context()]),
]


@pytest.mark.parametrize(
    ("options", "words"),
    [({name: value}, words) for name, words, values in BAD_OPTIONS for value in values],
    ids=lambda value: repr(value).partition(" object at ")[0][:50],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as told:
        Client(**{"url": URL, **options})
    assert KEY not in str(told.value)
    assert KEY not in repr(told.value.value)


BAD_CHECKS: list[tuple[tuple[Any, ...], str]] = [
    *((("a", "r", tokens), "tokens") for tokens in (0, True, 1.0, "1", 2**53)),
    *(((identifier, "r"), "identifier") for identifier in ("", 5, "a" * 257)),
    (("\ud800", "r"), "Unicode"),
    (("a", "1r"), "resource"),
    (("a", "r\n"), "resource"),
]
BAD_WORDS: dict[str, list[dict[str, Any]]] = {
    "check": [
        {"scope": ""}, {"dry_run": 1}, {"metadata": {"a": 1}}, {"metadata": "a"}, {"endpoint": 1},
        {"wait": -1}, {"wait": True}, {"wait": float("inf")}, {"amounts": {}},
        {"amounts": {"rpm": 1}, "tokens": 1}, {"entity": "key-1"},
    ],
    "take": [{"amounts": {}}, {"entity": "key-1"}, {"tokens": 0}, {"wait": -1}],
    "peek": [{"amounts": {"rpm": 1}, "tokens": 1}, {"entity": "key-1"}, {"scope": ""}],
    "explain": [{"entity": "key-1"}],
    "acquire": [
        {"amounts": {}}, {"amounts": {"rpm": 1}, "tokens": 1}, {"ttl_s": 0}, {"ttl_s": 1.5},
        {"on_error": "forget"}, {"on_expiry": "forget"}, {"wait": "long"},
    ],
    "charge": [
        {"amounts": {}}, {"amounts": {"rpm": 1}, "tokens": 1}, {"mode": "later"},
        {"idempotency_key": ""}, {"idempotency_key": "x" * 129}, {"tokens": 1.5},
    ],
}  # fmt: skip
BAD_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    *(("check", args, {}, words) for args, words in BAD_CHECKS),
    *((verb, ("a", "r"), options, next(iter(options)))
      for verb, cases in BAD_WORDS.items() for options in cases),
    ("take", (None, "r"), {"entity": "key-1", "scope": "ip"}, "entity"),
    ("take", (None, "r"), {}, "identifier"),
    ("take", ("a",), {}, "resource"),
    ("take", (), {"entity": "", "resource": "r"}, "entity"),
    ("check_all", ([(None, "r")],), {}, "scope"),
    ("check_all", ([("user", "r", None, None, None, "key-1")],), {}, "entity"),
    ("acquire", ("a", "r"), {"amounts": {"rpm": True}}, "rpm"),
    ("acquire", ("a", "r"), {"amounts": {"rpm": -1}}, "rpm"),
    *(("batch", (checks,), {}, "checks") for checks in ([], [("a",)], [("a", "r")] * 10_001)),
    ("batch", ([("a", "r", 0)],), {}, "tokens"),
    *(("check_all", (limits,), {}, "descriptors") for limits in ([], [("user",)])),
    ("check_all", ([("user", "r")],), {"identifier": ""}, "identifier"),
    ("check_all", ([("user", "r")],), {"tokens": 0}, "tokens"),
    *(("charge_all", (items,), {}, "charges") for items in ([], [("user",)])),
    ("charge_all", ([("user", "r", None, 1, {"rpm": 1})],), {}, "amounts"),
    ("explain", ("a", "r r"), {}, "resource"),
    ("request", ("BREW", "/v1/keys"), {}, "method"),
    *(("request", ("GET", path), {}, "path")
      for path in ("v1/keys", "/v1/keys HTTP/1.1\r\nx: y", "/é", "/" + "a" * 8192, None)),
    ("request", ("POST", "/v1/keys", {"name": "\ud800"}), {}, "request"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "args", "options", "words"), BAD_CALLS, ids=lambda v: repr(v)[:30]
)
def test_bad_calls(verb: str, args: tuple[Any, ...], options: dict[str, Any], words: str) -> None:
    with Client(URL) as client, pytest.raises(ValidationError, match=words):
        getattr(client, verb)(*args, **options)


def test_the_key_shows_nowhere(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    async def flow(client: Any) -> None:
        inner = getattr(client, "inner", client)
        flow_ = inner._flow
        shown.extend(repr(one) for one in (inner, flow_, flow_.head, flow_.port, vars(flow_)))
        answer = await client.check("a", "r")
        shown.append(repr(answer))
        with pytest.raises(Unavailable) as told:
            await client.check("a", "r")
        shown.extend([repr(told.value), str(told.value), repr(told.value.__dict__)])

    with scripted(response(200, ALLOWED), HANG_UP) as script:
        play(mode, script.url, flow, api_key=KEY)
        assert f"Bearer {KEY}".encode() in script.requests[0]
    shown.append(caplog.text)
    assert not [text for text in shown if KEY in text or "ssss" in text]


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_client_is_not_pickled_with_its_key(make: Any) -> None:
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(make(URL, api_key=KEY))


def test_the_environment(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow(client: Any) -> None:
        await client.check("a", "r")

    with scripted(response(200, ALLOWED)) as script:
        monkeypatch.setenv("HEADGATE_SERVICE_URL", script.url)
        monkeypatch.setenv("HEADGATE_API_KEY", KEY)
        play(mode, None, flow)  # type: ignore[arg-type]
        assert KEY.encode() in script.requests[0]
        play(mode, script.url, flow)
        assert b"authorization" not in script.requests[1], "the key of another place"


def test_the_public_names() -> None:
    assert sorted(headgate.client.__all__) == headgate.client.__all__
    for name in headgate.client.__all__:
        assert hasattr(headgate.client, name)
    errors = [getattr(headgate.client, name) for name in headgate.client.__all__]
    raised = [one for one in errors if isinstance(one, type) and issubclass(one, Exception)]
    assert len(raised) == 5
    assert all(issubclass(one, HeadgateError) for one in raised)
