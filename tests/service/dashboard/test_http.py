"""The dashboard over plain HTTP: who may ask what, what browsers are told about it, and a feed that
remembers traffic within bounds."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from headgate.core.errors import Unreachable
from headgate.core.runtime import Event
from headgate.service.dashboard.app import FOLDER, files, is_foreign, is_own
from headgate.service.dashboard.feed import (
    DECISIONS_MAX,
    VIEWERS_MAX,
    WAITING_MAX,
    FeedWindow,
    Viewer,
)
from tests.service.dashboard.kit import Place, dashboard, key_in
from tests.service.http.kit import until

LIMIT = {"name": "tokens", "capacity": 5, "refill_amount": 1, "refill_period_seconds": 1}
CHANGE = {"resource": "api.search", "limits": [LIMIT]}


def streaming(place: Place) -> Any:
    """The feed while it runs."""
    return place.asked("GET", "/ui/feed")


def beat_of(reply: Any) -> dict[str, Any]:
    while True:
        line = reply.readline().decode()
        assert line, "the feed has ended"
        if line.startswith("data: "):
            found: dict[str, Any] = json.loads(line[6:])
            return found


@pytest.mark.parametrize("path", ["", "app.js", "app.css", "vendor/uplot.js", "nothing.js"])
def test_browsers_are_told_to_be_strict(path: str, place: Place) -> None:
    _, headers, _ = place.send("GET", f"/ui/{path}")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_nothing_in_the_page_is_inline_or_from_elsewhere() -> None:
    for name, file in files().items():
        text = file.content.decode()
        assert name != "vendor/uplot.LICENSE.txt" or "MIT License" in text
        if name.endswith(".html"):
            assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*src=)", text)
        if not name.startswith("vendor/"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
            )
            assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("httpE", "")


def test_only_the_files_of_the_page_can_be_asked_for(place: Place) -> None:
    for path in ("../app.py", "..%2fapp.py", "static/app.js", "__init__.py", "pages", "pages/"):
        status, _, content = place.send("GET", f"/ui/{path}")
        assert status == 404, path
        assert b"import" not in content


def test_a_method_that_is_not_meant_is_answered_with_those_that_are(place: Place) -> None:
    for method, path, allowed in (("POST", "/ui/about", "GET"), ("GET", "/ui/preview", "POST")):
        status, headers, _ = place.send(method, path)
        assert (status, headers["allow"]) == (405, allowed)


def test_a_known_file_is_not_sent_twice(place: Place) -> None:
    _, headers, content = place.send("GET", "/ui/app.js")
    assert content == (FOLDER / "app.js").read_bytes()
    status, _, content = place.send("GET", "/ui/app.js", if_none_match=headers["etag"])
    assert (status, content) == (304, b"")


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1"])
def test_a_post_that_did_not_begin_on_the_page_is_refused(origin: str | None, place: Place) -> None:
    headers = {} if origin is None else {"origin": origin}
    status, _, content = place.send("POST", "/ui/preview", CHANGE, **headers)
    assert status == 403
    assert json.loads(content)["code"] == "FOREIGN_ORIGIN"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        *[(change, 400) for change in (
            [],
            {},
            {"limits": 3},
            {"limits": [LIMIT, LIMIT]},
            {"limits": [{**LIMIT, "capacity": 0}]},
            {"limits": [{**LIMIT, "capacity": True}]},
            {"limits": [LIMIT], "resource": "a b"},
            {"limits": [LIMIT], "resource": "_default_"},
            {"limits": [LIMIT], "namespace": "../x"},
            {"limits": [LIMIT], "more": 1},
            {"limits": [LIMIT], "plan": "a b"},
            {"limits": [LIMIT], "plan": "pro", "entity_id": "user:ann"},
            {"limits": [LIMIT], "plan": "pro", "resource": "_default_"},
        )],
        ({"limits": [{**LIMIT, "name": "x" * 20_000}]}, 413),
        ({**CHANGE, "namespace": "nowhere"}, 404),
    ],
)  # fmt: skip
def test_a_preview_of_nonsense_is_a_bad_request(change: Any, status: int, place: Place) -> None:
    found, _, content = place.send("POST", "/ui/preview", change, origin=place.url)
    assert found == status
    assert status != 400 or json.loads(content)["code"] == "INVALID_REQUEST"


def test_the_feed_tells_levels_and_decisions(place: Place) -> None:
    place.limit("entities/user:fed/feeding", capacity=10, amount=0)
    with streaming(place) as reply:
        assert reply.getheader("content-type").startswith("text/event-stream")
        beat_of(reply)
        place.check("fed", "feeding", 4)
        place.check("fed", "feeding", 7)
        seen: dict[str, int] = {}
        while not {"admitted", "refused"} <= seen.keys():
            beat = beat_of(reply)
            for one in beat["decisions"]:
                if one["entity_id"] == "user:fed":
                    seen[one["kind"]] = one["times"]
        assert seen == {"admitted": 1, "refused": 1}
        [bucket] = [one for one in beat["buckets"] if one["entity"] == "user:fed"]
        assert bucket["limits"] == [
            {"name": "tokens", "level_milli": 6000, "capacity_milli": 10_000, "amount_milli": 0,
             "period_ms": 60_000}
        ]  # fmt: skip


def test_nobody_watching_costs_nothing(place: Place) -> None:
    service = place.program.service
    with streaming(place) as reply:
        beat_of(reply)
        assert service._observer is not None
    until(lambda: service._observer is None)
    assert all(ns.engine.observer is None for ns in service.known_namespaces.values())


def test_a_store_that_goes_away_is_told_and_comes_back() -> None:
    with dashboard() as place, streaming(place) as reply:
        place.check("ann", "api.search")
        while not beat_of(reply)["buckets"]:
            pass
        ns = place.program.service.known_namespaces["default"]
        there = ns.backend
        away = AsyncMock(side_effect=Unreachable("connection refused at a secret address"))
        ns.backend = replace(there, store=Mock(peek=away, find=away))
        while not (beat := beat_of(reply))["trouble"]:
            pass
        assert beat["buckets"] == []
        ns.backend = there
        while (beat := beat_of(reply))["trouble"]:
            pass
        assert [one["entity"] for one in beat["buckets"]] == ["user:ann"]


def test_a_feed_ends_well_when_the_service_does() -> None:
    with ExitStack() as stack:
        with dashboard() as place:
            reply = stack.enter_context(streaming(place))
            beat_of(reply)
        reply.read()  # to a proper end: a line that was cut would raise


def test_viewers_are_bounded_and_foreign_pages_are_none() -> None:
    with dashboard() as place:
        with ExitStack() as stack:
            opened = [stack.enter_context(streaming(place)) for _ in range(VIEWERS_MAX)]
            assert [one.status for one in opened] == [200] * VIEWERS_MAX
            assert place.send("GET", "/ui/feed")[0] == 503
        assert place.send("GET", "/ui/feed", sec_fetch_site="cross-site")[0] == 403
        assert place.send("GET", "/ui/feed", origin="http://evil.example")[0] == 403
        assert place.send("GET", "/ui/feed?namespace=nowhere")[0] == 404


def test_keys_decide_what_may_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {
        "check": key_in(file, "check", "default"),
        "read": key_in(file, "read", "default"),
        "elsewhere": key_in(file, "read", "elsewhere"),
    }
    with dashboard(keys=str(file)) as place:
        assert place.send("GET", "/ui/feed")[0] == 401
        nobody = {"dev": False, "scopes": [], "principal": None}
        assert json.loads(place.send("GET", "/ui/about")[2]) == nobody
        place.key = keys["check"]
        assert place.send("GET", "/ui/feed")[0] == 403
        place.key = keys["elsewhere"]
        assert place.send("GET", "/ui/feed")[0] == 404
        assert place.send("POST", "/ui/preview", CHANGE, origin=place.url)[0] == 404
        place.key = keys["read"]
        about = json.loads(place.send("GET", "/ui/about")[2])
        assert about["scopes"] == ["read"]
        assert place.send("POST", "/ui/preview", CHANGE, origin=place.url)[0] == 200
        with streaming(place) as reply:
            assert reply.status == 200
            assert beat_of(reply)["buckets"] == []


@pytest.mark.parametrize(
    "field", [{"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}]
)
def test_another_sites_page_cannot_reload_the_policies(field: dict[str, str], place: Place) -> None:
    """It needs no body, so a page elsewhere could send it for its reader."""
    assert place.send("POST", "/v1/policies/reload", **field)[0] == 403
    assert place.send("POST", "/v1/policies/reload", origin=place.url)[0] != 403


# --------------------------------------------------------------------------------------------------
# What the feed remembers of traffic is bounded, and the busiest come first.


def seen(entity_id: str, kind: str = "admitted") -> Event:
    return Event(kind, "default", entity_id, "api")


def test_a_beat_tells_what_happened_since_the_last() -> None:
    window = FeedWindow()
    for kind in ("admitted", "admitted", "refused"):
        window.record(seen("ann", kind))
    place = {"entity_id": "ann", "resource": "api"}
    assert window.tick() == {
        "counts": {"admitted": 2, "refused": 1},
        "decisions": [
            {"kind": "admitted", **place, "times": 2},
            {"kind": "refused", **place, "times": 1},
        ],
        "left_out": 0,
    }
    assert window.tick() == {"counts": {}, "decisions": [], "left_out": 0}


def test_the_busiest_come_first_and_cool_down() -> None:
    window = FeedWindow()
    for entity_id in ("ann", "bob", "bob"):
        window.record(seen(entity_id))
    assert window.busiest(5) == [("bob", "api"), ("ann", "api")]
    assert window.busiest(1) == [("bob", "api")]
    for _ in range(1000):
        window.tick()
    assert window.busiest(5) == []


def test_any_amount_of_traffic_is_remembered_in_bounds() -> None:
    window = FeedWindow(hot_max=100)
    for _ in range(50):
        window.record(seen("hot"))
    for number in range(10_000):
        window.record(seen(f"cold-{number}"))
    tick = window.tick()
    assert tick["counts"] == {"admitted": 10_050}
    assert len(tick["decisions"]) == DECISIONS_MAX
    assert sum(one["times"] for one in tick["decisions"]) + tick["left_out"] == 10_050
    assert len(window.busiest(10_000)) <= 100
    assert window.busiest(1) == [("hot", "api")]


def test_a_slow_viewer_misses_the_oldest() -> None:
    viewer = Viewer()
    for number in range(WAITING_MAX + 3):
        viewer.push(b"%d" % number)
    assert viewer._frames.get_nowait() == b"3"
    assert viewer._frames.qsize() == WAITING_MAX - 1


def test_where_a_request_began() -> None:
    host = {b"host": b"gate.example:8080"}
    assert is_own({**host, b"origin": b"http://gate.example:8080"})
    assert is_own({**host, b"origin": b"https://GATE.example:8080"})  # a proxy spoke TLS
    for origin in (b"http://gate.example", b"null", b"", b"http://[", b"http://evil.example"):
        assert not is_own({**host, b"origin": origin})
        assert is_foreign({**host, b"origin": origin})
    assert not is_own(host)
    assert not is_foreign(host)
    assert is_foreign({**host, b"sec-fetch-site": b"cross-site"})
    assert is_foreign({**host, b"sec-fetch-site": b"same-site"})  # a neighbour's, not ours
    assert not is_foreign({**host, b"sec-fetch-site": b"same-origin"})
