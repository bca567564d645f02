"""What goes in is checked before anything is sent; the key shows nowhere; both faces are one."""

from __future__ import annotations

import ast
import inspect
import logging
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

import headgate.client
from headgate.client import AsyncClient, AsyncLease, Client, Lease, Unavailable
from headgate.core.errors import HeadgateError, ValidationError
from tests.client.kit import ALLOWED, HANG_UP, KEY, play, response, scripted

URL = "http://127.0.0.1:9"
SOURCES = sorted(Path(headgate.client.__file__).parent.glob("*.py"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "limits.example.com"}, "url.*https://"),
        ({"url": "ftp://x"}, "url.*https://"),
        ({"url": "http://"}, "url"),
        ({"url": "http://x:99999"}, "url"),
        ({"url": "http://x:0"}, "url"),
        ({"url": "http://x/a?b=c"}, "url.*path"),
        ({"url": "http://x/a#b"}, "url.*path"),
        ({"url": "http://x/a b\r\nhost: y"}, "url"),
        ({"url": "http://ex ample"}, "url"),
        ({"url": "http://bücher.example"}, "url.*punycode"),
        ({"url": f"http://user:{KEY}@x"}, "url.*api_key="),
        ({"url": 5}, "url"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": f"{KEY}\r\nx: y"}, "api_key"),
        ({"api_key": f"{KEY} "}, "api_key"),
        ({"api_key": "ключ"}, "api_key"),
        ({"api_key": "k" * 5000}, "api_key"),
        ({"api_key": KEY.encode()}, "api_key"),
        ({"namespace": "a b"}, "namespace"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"attempt_timeout_s": -1}, "attempt_timeout_s"),
        ({"attempt_timeout_s": float("nan")}, "attempt_timeout_s"),
        ({"connections": 0}, "connections"),
        ({"connections": 10**6}, "connections"),
        ({"retry": 3}, "retry"),
        ({"tls": ssl.create_default_context()}, "tls"),
    ],
    ids=lambda value: repr(value).partition(" object at ")[0][:50],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as told:
        Client(**{"url": URL, **options})
    assert KEY not in str(told.value)
    assert KEY not in repr(told.value.value)


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("check", ("", "r"), {}, "identifier"),
    ("check", (5, "r"), {}, "identifier"),
    ("check", ("a" * 257, "r"), {}, "identifier"),
    ("check", ("\ud800", "r"), {}, "Unicode"),
    ("check", ("a", "1r"), {}, "resource"),
    ("check", ("a", "r\n"), {}, "resource"),
    ("check", ("a", "r", 0), {}, "tokens"),
    ("check", ("a", "r", True), {}, "tokens"),
    ("check", ("a", "r", 1.0), {}, "tokens"),
    ("check", ("a", "r", "1"), {}, "tokens"),
    ("check", ("a", "r", 2**53), {}, "tokens"),
    ("check", ("a", "r"), {"scope": ""}, "scope"),
    ("check", ("a", "r"), {"dry_run": 1}, "dry_run"),
    ("check", ("a", "r"), {"metadata": {"a": 1}}, "metadata"),
    ("check", ("a", "r"), {"metadata": "a"}, "metadata"),
    ("check", ("a", "r"), {"endpoint": 1}, "endpoint"),
    ("check", ("a", "r"), {"wait": -1}, "wait"),
    ("check", ("a", "r"), {"wait": True}, "wait"),
    ("check", ("a", "r"), {"wait": float("inf")}, "wait"),
    ("batch", ([],), {}, "checks"),
    ("batch", ([("a",)],), {}, "checks"),
    ("batch", ([("a", "r", 0)],), {}, "tokens"),
    ("batch", ([("a", "r")] * 10_001,), {}, "checks"),
    ("check_all", ([],), {}, "descriptors"),
    ("check_all", ([("user",)],), {}, "descriptors"),
    ("check_all", ([("user", "r")],), {"identifier": ""}, "identifier"),
    ("check_all", ([("user", "r")],), {"tokens": 0}, "tokens"),
    ("explain", ("a", "r r"), {}, "resource"),
]


@pytest.mark.parametrize(("verb", "args", "options", "words"), CALLS, ids=lambda v: repr(v)[:30])
def test_bad_calls(verb: str, args: tuple[Any, ...], options: dict[str, Any], words: str) -> None:
    with Client(URL) as client, pytest.raises(ValidationError, match=words):
        getattr(client, verb)(*args, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": 1, "amounts": {"rpm": 1}}, "amounts"),
        ({"amounts": {}}, "amounts"),
        ({"amounts": {"rpm": True}}, "rpm"),
        ({"amounts": {"rpm": -1}}, "rpm"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 1.5}, "ttl_s"),
        ({"on_error": "forget"}, "on_error"),
        ({"on_expiry": "forget"}, "on_expiry"),
        ({"wait": "long"}, "wait"),
    ],
)
def test_bad_acquires(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Client(URL).acquire("a", "r", **options)


def test_the_key_shows_nowhere(
    colour: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    async def flow(client: Any) -> None:
        inner = getattr(client, "inner", client)
        flow_ = inner._flow
        shown.extend(repr(one) for one in (inner, flow_, flow_._head, flow_.port, vars(flow_)))
        answer = await client.check("a", "r")
        shown.append(repr(answer))
        with pytest.raises(Unavailable) as told:
            await client.check("a", "r")
        shown.extend([repr(told.value), str(told.value), repr(told.value.__dict__)])

    with scripted(response(200, ALLOWED), HANG_UP) as script:
        play(colour, script.url, flow, api_key=KEY)
        assert f"Bearer {KEY}".encode() in script.requests[0]
    shown.append(caplog.text)
    assert not [text for text in shown if KEY in text or "ssss" in text]


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_client_is_not_pickled_with_its_key(make: Any) -> None:
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(make(URL, api_key=KEY))


def test_the_environment(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow(client: Any) -> None:
        await client.check("a", "r")

    with scripted(response(200, ALLOWED)) as script:
        monkeypatch.setenv("HEADGATE_SERVICE_URL", script.url)
        monkeypatch.setenv("HEADGATE_API_KEY", KEY)
        play(colour, None, flow)  # type: ignore[arg-type]
        assert KEY.encode() in script.requests[0]
        play(colour, script.url, flow)
        assert b"authorization" not in script.requests[1], "the key of another place"


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Lease, AsyncLease)])
def test_both_colours_have_the_same_calls(one: type, other: type) -> None:
    def calls(face: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(value)).partition(" -> ")[0]
            for name, value in vars(face).items()
            if inspect.isfunction(value) and (not name.startswith("_") or name == "__init__")
        }

    assert calls(one) == calls(other)
    assert {name for name, value in vars(one).items() if isinstance(value, property)} == {
        name for name, value in vars(other).items() if isinstance(value, property)
    }


def test_the_public_names() -> None:
    assert sorted(headgate.client.__all__) == headgate.client.__all__
    for name in headgate.client.__all__:
        assert hasattr(headgate.client, name)
    errors = [getattr(headgate.client, name) for name in headgate.client.__all__]
    raised = [one for one in errors if isinstance(one, type) and issubclass(one, Exception)]
    assert len(raised) == 5
    assert all(issubclass(one, HeadgateError) for one in raised)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_client_needs_nothing_of_the_service(path: Path) -> None:
    allowed = {"client", "core", "transport"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headgate."):
            assert (node.module or "").split(".")[1] in allowed, node.module
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not [name for name in names if name.startswith(("headgate", "httpx"))]
        assert "asyncio" not in names
