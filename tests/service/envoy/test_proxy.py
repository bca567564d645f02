"""A real Envoy asks the real service: limits, headers, its failure modes, and back again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import mint, parse_grant
from tests.service.envoy.proxies import (
    Response,
    envoy,
    free_port,
    get,
    service,
    upstream,
)

# Refills so slowly that no test sees it.
POLICIES = """\
rate_limits:
  - {name: search_user, scope: user, resource: api.search, capacity: 3, refill_rate: 1/86400}
  - {name: by_address, scope: ip, resource: global, capacity: 8, refill_rate: 1/86400}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies.yaml").write_text(POLICIES)
    return tmp_path


def is_ours(limited: Response) -> None:
    """A refusal of headgate, as its clients know it."""
    assert limited.status == 429
    headers = limited.headers
    assert headers["x-ratelimit-limit"] == "3"
    assert headers["x-ratelimit-remaining"] == "0"
    assert headers["ratelimit-policy"] == '"search_user";q=3;w=259200, "by_address";q=8;w=691200'
    assert headers["ratelimit"].startswith('"search_user";r=0;t=')
    assert 0 < int(headers["retry-after"]) <= 86_400
    assert 0 < int(headers["retry-after-ms"]) <= 86_400_000
    assert headers["x-ratelimit-blocking-scope"] == "user"
    assert headers["x-envoy-ratelimited"] == "true"
    assert headers["content-type"] == "application/problem+json"
    body = json.loads(limited.body)
    assert body["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert body["violated-policies"] == ["search_user"]


@pytest.mark.parametrize(("deny", "without"), [("false", 200), ("true", 503)])
def test_limits_failure_and_recovery(folder: Path, deny: str, without: int) -> None:
    port, grpc_port = free_port(), free_port()
    child = service(folder, port, grpc_port)
    try:
        mode = {"failure_mode_deny: false": f"failure_mode_deny: {deny}"}
        with upstream() as behind, envoy(folder, grpc_port, behind, mode) as front:
            for left in (2, 1, 0):
                passed = get(front, x_user="ann")
                assert (passed.status, passed.body) == (200, b"hello")
                assert passed.headers["x-ratelimit-remaining"] == str(left)
                assert passed.headers["x-ratelimit-limit"] == "3"
                assert "retry-after" not in passed.headers
            is_ours(get(front, x_user="ann"))
            # The refusal took nothing of the address: 8 - 3 are left for others.
            bob = get(front, x_user="bob")
            assert bob.status == 200
            assert '"by_address";r=4;' in bob.headers["ratelimit"]

            child.kill()
            for _ in range(3):
                assert get(front, x_user="ann").status == without

            child = service(folder, port, grpc_port)
            is_ours(get(front, x_user="ann"))
            assert get(front, x_user="bob").status == 200
    finally:
        child.stop()


def test_exactly_as_many_pass_as_fit(folder: Path) -> None:
    """Many clients at once through one Envoy: none fails, and none too many passes."""
    (folder / "policies.yaml").write_text(
        "rate_limits:\n"
        "  - {name: search_user, scope: user, resource: api.search, capacity: 90, refill_rate: 0}\n"
        "  - {name: by_address, scope: ip, resource: global, capacity: 150, refill_rate: 0}\n"
    )
    grpc_port = free_port()
    child = service(folder, free_port(), grpc_port)
    mode = {"failure_mode_deny: false": "failure_mode_deny: true"}
    try:
        with (
            upstream() as behind,
            envoy(folder, grpc_port, behind, mode) as front,
            ThreadPoolExecutor(8) as pool,
        ):
            asked = [pool.submit(get, front, x_user=f"user-{n % 2}") for n in range(240)]
            answers = [one.result() for one in asked]
        odd = [one for one in answers if one.status not in (200, 429)]
        assert not odd, odd[0]
        assert Counter(one.status for one in answers) == {200: 150, 429: 90}
    finally:
        child.stop()


def test_a_key_in_envoys_metadata(folder: Path) -> None:
    made = mint(parse_grant(["check"], "default"), name="edge", now_ms=0)
    asyncio.run(FileKeys(folder / "keys.json", create=True).put(made.key))
    port, grpc_port = free_port(), free_port()
    child = service(folder, port, grpc_port, "--keys", str(folder / "keys.json"))
    sample = '# initial_metadata: [{key: authorization, value: "Bearer hg_…"}]'
    with_key = {sample: sample[2:].replace("hg_…", made.text)}
    try:
        with upstream() as behind:
            with envoy(folder, grpc_port, behind, with_key) as front:
                assert [get(front, x_user="ann").status for _ in range(4)] == [200] * 3 + [429]
            # A key that is missing is a mistake in a configuration: it does not open the gate.
            with envoy(folder, grpc_port, behind, {}) as front:
                assert get(front, x_user="bob").status == 429
    finally:
        child.stop()


HITS = """\
                                hits_addend: {number: 2}
                              - actions:
                                  - remote_address: {}
                                hits_addend: {number: 0}
"""
ADDRESS = """\
                              - actions:
                                  - remote_address: {}
"""


# Envoy sends a descriptor's own hits only for rate limits that the filter's configuration holds.
OF_ROUTE = """\
                            rate_limits:
"""
OF_FILTER = """\
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
"""  # noqa: E501


def test_hits_of_each_descriptor(folder: Path) -> None:
    port, grpc_port = free_port(), free_port()
    child = service(folder, port, grpc_port)
    changes = {ADDRESS: HITS, OF_ROUTE: OF_FILTER}
    try:
        with upstream() as behind, envoy(folder, grpc_port, behind, changes) as front:
            first = get(front, x_user="ann")
            assert first.status == 200
            assert first.headers["ratelimit"].startswith('"search_user";r=1;')
            assert '"by_address";r=8' in first.headers["ratelimit"]
            assert get(front, x_user="ann").status == 429
    finally:
        child.stop()


OVERRIDE = """\
                              - actions:
                                  - remote_address: {}
                                limit:
                                  dynamic_metadata:
                                    metadata_key: {key: tests, path: [{key: limit}]}
"""
ROUTER = """\
                  - name: envoy.filters.http.ratelimit
"""
SETTING = """\
                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata:
                        - metadata_namespace: tests
                          value: {limit: {requests_per_unit: 2, unit: DAY}}
"""  # noqa: E501


def test_envoy_brings_a_limit(folder: Path) -> None:
    port, grpc_port = free_port(), free_port()
    child = service(folder, port, grpc_port)
    changes = {ADDRESS: OVERRIDE, ROUTER: SETTING + ROUTER}
    try:
        with upstream() as behind, envoy(folder, grpc_port, behind, changes) as front:
            found = [get(front, x_user=f"user-{n}") for n in range(3)]
            assert [one.status for one in found] == [200, 200, 429]
            assert ";q=2;w=86400" in found[2].headers["ratelimit-policy"]
            assert found[2].headers["x-ratelimit-blocking-scope"] == "ip"
    finally:
        child.stop()
