"""A real Envoy asks the real service: limits, headers, its failure modes, and back again.

Envoy counts every request that it let pass because the rate limit service gave an error:
`failure_mode_allowed`. Nothing a client sends and nothing an operator writes may raise it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate.core.runtime import run
from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import mint, parse_grant
from tests.service.envoy.proxies import Front, Response, envoy, free_port, upstream
from tests.service.server.kit import Running, program

# Refills so slowly that no test sees it.
POLICIES = """\
rate_limits:
  - {name: search_user, scope: user, resource: api.search, capacity: 3, refill_rate: 1/86400}
  - {name: by_address, scope: ip, resource: global, capacity: 8, refill_rate: 1/86400}
"""


@contextmanager
def service(folder: Path, grpc_port: int, policies: str, *options: str) -> Iterator[Running]:
    """The service on a file in the folder."""
    file = folder / "policies.yaml"
    file.write_text(policies)
    store = f"sqlite:///{folder}/limits.db"
    given = ("--store", store, "--policies", str(file), "--grpc-port", str(grpc_port), *options)
    with program(*given) as running:
        yield running


@pytest.fixture(scope="module")
def behind() -> Iterator[int]:
    with upstream() as port:
        yield port


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


def test_limits_failure_and_recovery(tmp_path: Path, behind: int) -> None:
    """One Envoy lets pass while the service is away, and one refuses."""
    grpc_port = free_port()
    deny = {"failure_mode_deny: false": "failure_mode_deny: true"}
    with (
        envoy(tmp_path, grpc_port, behind, {}) as open_front,
        envoy(tmp_path, grpc_port, behind, deny) as shut_front,
    ):
        with service(tmp_path, grpc_port, POLICIES) as running:
            for left, front in ((2, open_front), (1, shut_front), (0, open_front)):
                passed = front.get(x_user="ann")
                assert (passed.status, passed.body) == (200, b"hello")
                assert passed.headers["x-ratelimit-remaining"] == str(left)
                assert passed.headers["x-ratelimit-limit"] == "3"
                assert "retry-after" not in passed.headers
            is_ours(open_front.get(x_user="ann"))
            # The refusal took nothing of the address: 8 - 3 are left for others.
            bob = shut_front.get(x_user="bob")
            assert bob.status == 200
            assert '"by_address";r=4;' in bob.headers["ratelimit"]
            running.kill()
            assert [open_front.get(x_user="ann").status for _ in range(3)] == [200] * 3
            assert [shut_front.get(x_user="ann").status for _ in range(3)] == [503] * 3
        with service(tmp_path, grpc_port, POLICIES):
            for front in (open_front, shut_front):
                is_ours(front.get(x_user="ann"))
                assert front.get(x_user="bob").status == 200


def test_a_key_in_envoys_metadata(tmp_path: Path, behind: int) -> None:
    keys = tmp_path / "keys.json"
    made = mint(parse_grant(["check"], "default"), name="edge", now_ms=0)
    run(FileKeys(keys, create=True).put(made.key))
    grpc_port = free_port()
    sample = '# initial_metadata: [{key: authorization, value: "Bearer hg_…"}]'
    with_key = {sample: sample[2:].replace("hg_…", made.text)}
    with (
        service(tmp_path, grpc_port, POLICIES, "--keys", str(keys)),
        envoy(tmp_path, grpc_port, behind, with_key) as front,
        envoy(tmp_path, grpc_port, behind, {}) as without,
    ):
        assert [front.get(x_user="ann").status for _ in range(4)] == [200] * 3 + [429]
        # A key that is missing is a mistake in a configuration: it does not open the gate.
        assert without.get(x_user="bob").status == 429


# The rest is asked of one Envoy, on routes that do not share their buckets.
SHARED_POLICIES = """\
rate_limits:
  - {name: by_user, scope: user, resource: api.search, capacity: 2, refill_rate: 1/86400}
  - {name: by_address, scope: ip, resource: global, capacity: 5000, refill_rate: 1/86400}
  - {name: racer, scope: user, resource: race, capacity: 30, refill_rate: 0}
  - {name: racers, scope: global, resource: race, capacity: 50, refill_rate: 0}
  - {name: heavy, scope: user, resource: hits, capacity: 3, refill_rate: 0}
  - {name: looked, scope: global, resource: hits, capacity: 8, refill_rate: 0}
"""
FIRST_ROUTE = """\
                        - match: {prefix: "/"}
"""
FIRST_FILTER = """\
                  - name: envoy.filters.http.ratelimit
"""
BROUGHT_LIMIT = """\
                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata:
                        - metadata_namespace: tests
                          value: {limit: {requests_per_unit: 2, unit: DAY}}
"""  # noqa: E501
# Envoy sends a descriptor's own hits only for rate limits that the filter's configuration holds.
OF_FILTER = """\
                          route: {cluster: upstream}
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
"""  # noqa: E501


def key(name: str, value: str) -> str:
    return f'{{generic_key: {{descriptor_key: "{name}", descriptor_value: "{value}"}}}}'


def user_on(resource: str, *more: str) -> str:
    header = "{request_headers: {header_name: x-user, descriptor_key: user}}"
    return f"actions: [{', '.join([*more, header, key('resource', resource)])}]"


def all_on(resource: str) -> str:
    return f"actions: [{key('global', 'all')}, {key('resource', resource)}]"


def route(path: str, *descriptors: str, domain: str = "", of_filter: bool = False) -> str:
    """A route with these rate limits; in another domain if one is named."""
    limits = ", ".join(f"{{{one}}}" for one in descriptors)
    found = f'                        - match: {{prefix: "{path}"}}\n'
    if not domain and not of_filter:
        place = " " * 26
        return found + f"{place}route: {{cluster: upstream, rate_limits: [{limits}]}}\n"
    place = " " * 30
    named = f'{place}domain: "{domain}"\n' if domain else ""
    return found + OF_FILTER + named + f"{place}rate_limits: [{limits}]\n"


USER = user_on("api.search")
METADATA_LIMIT = "limit: {dynamic_metadata: {metadata_key: {key: tests, path: [{key: limit}]}}}"
ROUTES = "".join(
    [
        route("/twenty", *[f"actions: [{key('user', f'u{n}')}]" for n in range(20)]),
        route("/five", *[USER] * 5),
        route("/thirty", *[USER] * 30),
        route("/nowhere", USER, domain="nowhere"),
        route("/nonsense", USER, domain="no such domain"),
        route("/odd-key", user_on("api.search", key("u s", "x"))),
        route(
            "/no-value", "actions: [{request_headers: {header_name: x-none, descriptor_key: user}}]"
        ),
        route("/race", user_on("race"), all_on("race")),
        route(
            "/hits",
            user_on("hits") + ", hits_addend: {number: 2}",
            all_on("hits") + ", hits_addend: {number: 0}",
            of_filter=True,
        ),
        route("/brought", f"{all_on('brought')}, {METADATA_LIMIT}"),
    ]
)


@pytest.fixture(scope="module")
def front(behind: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder, grpc_port = tmp_path_factory.mktemp("shared"), free_port()
    changes = {FIRST_ROUTE: ROUTES + FIRST_ROUTE, FIRST_FILTER: BROUGHT_LIMIT + FIRST_FILTER}
    with (
        service(folder, grpc_port, SHARED_POLICIES),
        envoy(folder, grpc_port, behind, changes) as found,
    ):
        yield found


HUGE = "x" * 55_000
# What a client asks, and how often the answer is 200 before it is 429.
CASES = [
    ("an honest user", "/", "ann", 2),
    ("a byte that is no UTF-8", "/", "bob\xff", 2),
    ("a Latin-1 letter", "/", "andr\xe9", 2),
    ("another Latin-1 letter is somebody else", "/", "andr\xe8", 2),
    ("half a letter of UTF-8", "/", "\xc3", 2),
    ("half a surrogate pair in UTF-8", "/", "\xed\xa0\x80", 2),
    ("nothing but bytes", "/", "".join(map(chr, range(0x80, 0x100))), 2),
    ("a long name", "/", "x" * 5_000, 2),
    ("no UTF-8 and long", "/", "\xff" * 5_000, 2),
    ("twenty descriptors", "/twenty", "ann", 0),
    ("a message over the bound", "/five", HUGE, 0),
    ("a message far over the bound", "/thirty", HUGE, 0),
    ("a domain nobody registered", "/nowhere", "ann", 0),
    ("a domain that cannot be one", "/nonsense", "ann", 0),
]


def test_no_client_and_no_route_gets_past(front: Front) -> None:
    for name, path, user, passes in CASES:
        found = [front.get(path, x_user=user).status for _ in range(4)]
        assert found == [200] * passes + [429] * (4 - passes), name
    # A key that cannot be a scope is unknown and passes; that is an answer, not an error.
    assert front.get("/odd-key", x_user="ann").status == 200
    assert front.get("/no-value").status == 200
    stats = front.stats()
    assert stats["over_limit"] > 0
    assert stats.get("failure_mode_allowed", 0) == stats.get("error", 0) == 0, stats


def test_exactly_as_many_pass_as_fit(front: Front) -> None:
    """Many clients at once through one Envoy: none fails, and none too many passes."""
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(front.get, "/race", x_user=f"user-{n % 2}") for n in range(80)]
        answers = [one.result() for one in asked]
    odd = [one for one in answers if one.status not in (200, 429)]
    assert not odd, odd[0]
    assert Counter(one.status for one in answers) == {200: 50, 429: 30}


def test_hits_of_each_descriptor(front: Front) -> None:
    first = front.get("/hits", x_user="ann")
    assert first.status == 200
    assert '"heavy";r=1' in first.headers["ratelimit"]
    assert '"looked";r=8' in first.headers["ratelimit"]
    assert front.get("/hits", x_user="ann").status == 429


def test_envoy_brings_a_limit(front: Front) -> None:
    found = [front.get("/brought", x_user=f"user-{n}") for n in range(3)]
    assert [one.status for one in found] == [200, 200, 429]
    assert ";q=2;w=86400" in found[2].headers["ratelimit-policy"]
    assert found[2].headers["x-ratelimit-blocking-scope"] == "global"
