"""What is remembered of traffic is bounded, and the busiest come first."""

from __future__ import annotations

from headgate.core.runtime import Event
from headgate.service.dashboard.app import is_foreign, is_own
from headgate.service.dashboard.feed import DECISIONS_MAX, WAITING_MAX, FeedWindow, Viewer


def seen(entity_id: str, kind: str = "admitted") -> Event:
    return Event(kind, "default", entity_id, "api")


def test_a_beat_tells_what_happened_since_the_last() -> None:
    pulse = FeedWindow()
    for kind in ("admitted", "admitted", "refused"):
        pulse.record(seen("ann", kind))
    place = {"entity_id": "ann", "resource": "api"}
    assert pulse.tick() == {
        "counts": {"admitted": 2, "refused": 1},
        "decisions": [
            {"kind": "admitted", **place, "times": 2},
            {"kind": "refused", **place, "times": 1},
        ],
        "left_out": 0,
    }
    assert pulse.tick() == {"counts": {}, "decisions": [], "left_out": 0}


def test_the_busiest_come_first_and_cool_down() -> None:
    pulse = FeedWindow()
    for entity_id in ("ann", "bob", "bob"):
        pulse.record(seen(entity_id))
    assert pulse.busiest(5) == [("bob", "api"), ("ann", "api")]
    assert pulse.busiest(1) == [("bob", "api")]
    for _ in range(1000):
        pulse.tick()
    assert pulse.busiest(5) == []


def test_any_amount_of_traffic_is_remembered_in_bounds() -> None:
    pulse = FeedWindow(hot_max=100)
    for _ in range(50):
        pulse.record(seen("hot"))
    for number in range(10_000):
        pulse.record(seen(f"cold-{number}"))
    tick = pulse.tick()
    assert tick["counts"] == {"admitted": 10_050}
    assert len(tick["decisions"]) == DECISIONS_MAX
    assert sum(one["times"] for one in tick["decisions"]) + tick["left_out"] == 10_050
    assert len(pulse.busiest(10_000)) <= 100
    assert pulse.busiest(1) == [("hot", "api")]


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
