"""A real Envoy that lets pass what gets no answer, and clients and settings that try to get none.

Envoy counts every request that it let pass because the rate limit service gave an error:
`failure_mode_allowed`. Nothing a client sends and nothing an operator writes may raise it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.service.envoy.proxies import (
    envoy,
    free_port,
    get,
    ratelimit_stats,
    service,
    upstream,
)

# Refills so slowly that no test sees it.
POLICIES = """\
rate_limits:
  - {name: by_user, scope: user, resource: api.search, capacity: 2, refill_rate: 1/86400}
  - {name: by_address, scope: ip, resource: global, capacity: 500, refill_rate: 1/86400}
"""
FIRST_ROUTE = """\
                        - match: {prefix: "/"}
"""
RESOURCE = "generic_key: {descriptor_key: resource, descriptor_value: api.search}"
HEADER = "request_headers: {header_name: x-user, descriptor_key: user}"


def route(path: str, descriptors: list[str], domain: str | None = None) -> str:
    """A route with these descriptors, each a list of actions; in another domain if one is named."""
    limits = ", ".join(f"{{actions: [{actions}]}}" for actions in descriptors)
    found = f'                        - match: {{prefix: "{path}"}}\n'
    if domain is None:
        return (
            found
            + f"                          route: {{cluster: upstream, rate_limits: [{limits}]}}\n"
        )
    return found + (
        "                          route: {cluster: upstream}\n"
        "                          typed_per_filter_config:\n"
        "                            envoy.filters.http.ratelimit:\n"
        '                              "@type": type.googleapis.com/envoy.extensions.filters.http'
        ".ratelimit.v3.RateLimitPerRoute\n"
        f"                              domain: {domain}\n"
        f"                              rate_limits: [{limits}]\n"
    )


USER = f"{{{HEADER}}}, {{{RESOURCE}}}"
ROUTES = "".join(
    [
        route(
            "/twenty",
            [
                f"{{generic_key: {{descriptor_key: user, descriptor_value: u{n}}}}}"
                for n in range(20)
            ],
        ),
        route("/five", [USER] * 5),
        route("/thirty", [USER] * 30),
        route("/nowhere", [USER], domain="nowhere"),
        route("/nonsense", [USER], domain='"no such domain"'),
        route(
            "/odd-key", [f'{{generic_key: {{descriptor_key: "u s", descriptor_value: x}}}}, {USER}']
        ),
        route("/no-value", ["{request_headers: {header_name: x-none, descriptor_key: user}}"]),
    ]
)


class Case(NamedTuple):
    """What a client asks, and how often the answer is 200 before it is 429."""

    name: str
    path: str
    user: str
    passes: int


HUGE = "x" * 55_000
CASES = [
    Case("an honest user", "/", "ann", 2),
    Case("a byte that is no UTF-8", "/", "bob\xff", 2),
    Case("a Latin-1 letter", "/", "andr\xe9", 2),
    Case("another Latin-1 letter is somebody else", "/", "andr\xe8", 2),
    Case("half a letter of UTF-8", "/", "\xc3", 2),
    Case("half a surrogate pair in UTF-8", "/", "\xed\xa0\x80", 2),
    Case("nothing but bytes", "/", "".join(map(chr, range(0x80, 0x100))), 2),
    Case("a long name", "/", "x" * 5_000, 2),
    Case("no UTF-8 and long", "/", "\xff" * 5_000, 2),
    Case("twenty descriptors", "/twenty", "ann", 0),
    Case("a message over the bound", "/five", HUGE, 0),
    Case("a message far over the bound", "/thirty", HUGE, 0),
    Case("a domain nobody registered", "/nowhere", "ann", 0),
    Case("a domain that cannot be one", "/nonsense", "ann", 0),
]


@contextmanager
def behind_envoy(
    folder: Path, *options: str, changes: dict[str, str] | None = None
) -> Iterator[int]:
    """The port of an Envoy that lets pass on errors; it let nothing pass when this ends."""
    grpc_port, admin_port = free_port(), free_port()
    child = service(folder, free_port(), grpc_port, *options)
    try:
        with (
            upstream() as server,
            envoy(folder, grpc_port, server, changes or {}, admin_port) as front,
        ):
            yield front
            stats = ratelimit_stats(admin_port)
            assert stats["over_limit"] > 0
            assert stats.get("failure_mode_allowed", 0) == 0, stats
            assert stats.get("error", 0) == 0, stats
    finally:
        child.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies.yaml").write_text(POLICIES)
    return tmp_path


def test_no_client_and_no_route_gets_past(folder: Path) -> None:
    with behind_envoy(folder, changes={FIRST_ROUTE: ROUTES + FIRST_ROUTE}) as front:
        for case in CASES:
            found = [get(front, case.path, x_user=case.user).status for _ in range(4)]
            assert found == [200] * case.passes + [429] * (4 - case.passes), case.name
        # A key that cannot be a scope is unknown and passes; that is an answer, not an error.
        assert get(front, "/odd-key", x_user="ann").status == 200
        assert get(front, "/no-value").status == 200


def test_a_store_at_its_bound(folder: Path) -> None:
    """A client that makes up names fills the store; the next name is refused, not let pass."""
    store = ("--store", "memory://?buckets_max=8")  # given again, the last one counts
    with behind_envoy(folder, *store) as front:
        found = [get(front, x_user=f"user-{n}").status for n in range(20)]
        assert found == [200] * 7 + [429] * 13  # the address has a bucket, too
        assert get(front, x_user="user-0").status == 200
        assert get(front, x_user="user-0").status == 429


def test_an_identifier_that_nobody_registered(folder: Path) -> None:
    with behind_envoy(folder, "--unknown", "deny") as front:
        for user in ("ann", "bob\xff", "x" * 50_000):
            assert get(front, x_user=user).status == 429


def test_allowing_what_cannot_be_decided_is_an_answer_too(folder: Path) -> None:
    changes = {FIRST_ROUTE: ROUTES + FIRST_ROUTE}
    with behind_envoy(folder, "--envoy-undecided", "allow", changes=changes) as front:
        for path in ("/twenty", "/five", "/nowhere"):
            assert get(front, path, x_user=HUGE).status == 200
        assert [get(front, x_user="ann").status for _ in range(3)] == [200, 200, 429]


def test_more_new_identifiers_than_are_let_in(folder: Path) -> None:
    with behind_envoy(folder, "--new-identifiers-per-minute", "1") as front:
        refused = get(front, x_user="ann")  # the address is new, too: two, and one may come
        assert refused.status == 429
        assert json.loads(refused.body)["code"] == "TOO_MANY_NEW_IDENTIFIERS"
        assert int(refused.headers["retry-after"]) <= 60
