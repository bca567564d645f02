"""A real Envoy and streams whose cost is known at their end: looked at before, charged after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.envoy.proxies import Front, envoy, free_port, upstream
from tests.service.envoy.test_proxy import (
    FIRST_FILTER,
    FIRST_ROUTE,
    OF_FILTER,
    service,
    user_on,
)
from tests.service.server.kit import Running

# Two at a time, and so slowly that no test sees a refill.
POLICIES = """\
rate_limits:
  - {name: streams, scope: user, resource: stream, capacity: 2, refill_rate: 2/86400}
  - {name: fitting, scope: user, resource: fit, capacity: 2, refill_rate: 2/86400, charge: fit}
  - {name: later, scope: user, resource: later, capacity: 2, refill_rate: 2/86400, charge: debt}
"""
# What the upstream says of a request's cost, as a filter of the answer would find it out.
COST_FILTER = """\
                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      response_rules:
                        - header: x-cost
                          on_header_present: {metadata_namespace: tests, key: cost, type: NUMBER}
"""  # noqa: E501
COST = 'hits_addend: {format: "%DYNAMIC_METADATA(tests:cost)%"}'
BACK = f"{COST[:-1]}, is_negative_hits: true}}"
LOOK, AT_END = "hits_addend: {number: 0}", "apply_on_stream_done: true"


def streaming(path: str, resource: str, *charge: str) -> str:
    """A route that looks when a request comes, and charges when its stream ends."""
    user = user_on(resource)
    limits = [f"{{{user}, {LOOK}}}", f"{{{', '.join([user, *charge, AT_END])}}}"]
    place = " " * 30
    found = f'                        - match: {{prefix: "{path}"}}\n' + OF_FILTER
    return found + f"{place}rate_limits: [{', '.join(limits)}]\n"


ROUTES = "".join(
    [
        streaming("/stream", "stream", COST),
        streaming("/once", "stream"),
        streaming("/fit", "fit", COST),
        streaming("/later", "later", COST),
        streaming("/back", "later", BACK),
    ]
)


class Streams:
    """Requests through Envoy, each waited for until its charge has come to headgate."""

    def __init__(self, front: Front, running: Running) -> None:
        self.front = front
        self._http = httpx.Client(base_url=running.url, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def level(self, user: str, resource: str) -> int | None:
        path = f"/v1/namespaces/default/buckets/user:{user}"
        items = self._http.get(path, params={"resource": resource}).json()["items"]
        return items[0]["tokens_remaining"] if items else None

    def send(self, path: str, user: str, **headers: str) -> Any:
        return self.front.get(path, x_user=user, **headers)

    def settle(self, user: str, resource: str, level: int) -> None:
        """Waits until the bucket stands there: Envoy charges when nobody waits for it any more."""
        until_s = time.monotonic() + 30
        while self.level(user, resource) != level:
            assert time.monotonic() < until_s, self.level(user, resource)
            time.sleep(0.01)


@contextmanager
def streams(folder: Path, behind: int) -> Iterator[Streams]:
    grpc_port = free_port()
    changes = {FIRST_ROUTE: ROUTES + FIRST_ROUTE, FIRST_FILTER: COST_FILTER + FIRST_FILTER}
    with (
        service(folder, grpc_port, POLICIES) as running,
        envoy(folder, grpc_port, behind, changes) as front,
    ):
        found = Streams(front, running)
        yield found
        found.close()


@pytest.fixture(scope="module")
def all_streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    with upstream() as port, streams(tmp_path_factory.mktemp("streams"), port) as found:
        yield found


def test_two_a_minute_are_two(all_streams: Streams) -> None:
    """Each stream costs one, as the answer says: two pass, the third no more."""
    for left in (1, 0):
        assert all_streams.send("/stream", "ann", x_wanted_cost="1").status == 200
        all_streams.settle("ann", "stream", left)
    for _ in range(10):
        refused = all_streams.send("/stream", "ann", x_wanted_cost="1")
        assert refused.status == 429
        assert 43_000 < int(refused.headers["retry-after"]) <= 43_200
    assert all_streams.level("ann", "stream") == 0  # no answer of the upstream, no cost


def test_a_cost_that_does_not_fit_is_a_debt(all_streams: Streams) -> None:
    """Under the default, and where the policy says it; three more pass while a stream is open."""
    for path, resource in (("/stream", "stream"), ("/later", "later")):
        assert all_streams.send(path, "bob", x_wanted_cost="5").status == 200
        all_streams.settle("bob", resource, -3)
        refused = all_streams.send(path, "bob", x_wanted_cost="5")
        assert refused.status == 429
        assert 4 * 43_200 - 200 < int(refused.headers["retry-after"]) <= 4 * 43_200
    assert all_streams.send("/stream", "eve", x_wanted_cost="0").status == 200


def test_a_policy_that_says_fit_drops_what_does_not(all_streams: Streams) -> None:
    assert all_streams.send("/fit", "ann", x_wanted_cost="1").status == 200
    all_streams.settle("ann", "fit", 1)
    assert all_streams.send("/fit", "ann", x_wanted_cost="5").status == 200
    assert all_streams.send("/fit", "ann", x_wanted_cost="1").status == 200
    all_streams.settle("ann", "fit", 0)
    assert all_streams.send("/fit", "ann", x_wanted_cost="1").status == 429


def test_negative_hits_give_back(all_streams: Streams) -> None:
    assert all_streams.send("/later", "cat", x_wanted_cost="3").status == 200
    all_streams.settle("cat", "later", -1)
    assert all_streams.send("/back", "cat", x_wanted_cost="2").status == 429
    # The look refused it, so no answer told what to give back; a bucket with something left has it.
    assert all_streams.send("/later", "dan", x_wanted_cost="1").status == 200
    all_streams.settle("dan", "later", 1)
    assert all_streams.send("/back", "dan", x_wanted_cost="1").status == 200
    all_streams.settle("dan", "later", 2)


def test_a_fixed_cost_is_charged_for_a_refused_stream_too(all_streams: Streams) -> None:
    """Envoy charges at the end of every stream, its own 429 included: the page says to take the
    cost from the answer."""
    for left in (1, 0):
        assert all_streams.send("/once", "fay").status == 200
        all_streams.settle("fay", "stream", left)
    assert all_streams.send("/once", "fay").status == 429
    all_streams.settle("fay", "stream", -1)
