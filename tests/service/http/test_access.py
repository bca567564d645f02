"""Who may do what over REST: every route with every kind of caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headgate import Limit
from headgate.service.http.calls import Endpoint
from headgate.service.http.messages import SANS
from headgate.service.http.routes import ENDPOINTS
from headgate.service.keys.access import Authenticator
from headgate.service.keys.key import parse_grant
from tests.service.decide.kit import World
from tests.service.http.kit import PATHS, Said, call, rest_of, run, scope_of, send_raw
from tests.service.keys.kit import MemoryKeys, minted

CHECK = PATHS["check"]
ASK = {"identifier": "ann", "resource": "api.search", "namespace": "here"}

# A body that each route takes, for the namespace "here".
BODIES: dict[str, Any] = {
    "Check": ASK,
    "Peek": ASK,
    "Batch": {"requests": [{"identifier": "ann", "resource": "api.search"}], "namespace": "here"},
    "Descriptors": {
        "descriptors": [{"scope": "user", "resource": "api.search", "identifier": "ann"}],
        "namespace": "here",
    },
    "Acquire": ASK,
    "Charge": ASK,
    "Change": {"tokens": 1, "namespace": "here"},
    "ChangeOrNothing": {"namespace": "here"},
    "NewEntity": {"id": "user:ann"},
    "EntityChange": {"cascade": True},
    "Limits": {"limits": ["10/minute"]},
    "SystemLimitsChange": {"limits": ["10/minute"]},
    "ModeChange": {"mode": "normal"},
    "PlanLimits": {"limits": ["10/minute"]},
    "PlanAssignment": {"plan": None},
    "Reset": {"entity_id": "user:ann", "resource": "api.search"},
    "TopUp": {"entity_id": "user:ann", "resource": "api.search", "amounts": {"tokens": 1}},
    "NewKey": {"scopes": ["check"], "namespace": "here"},
}
QUERIES = {
    "/v1/explain": "identifier=ann&resource=api.search&namespace=here",
    "/v1/namespaces/{namespace}/audit": "entity_id=user:ann",
    "/v1/leases/{lease_id}": "namespace=here",
    "/v1/namespaces/{namespace}/limits/entities": "resource=api.search",
}


ALL = ("check", "read", "admin")
# One key of each kind, most of them for the namespace "here".
KEYS = {
    **{scope: minted(scope, namespace="here") for scope in ALL},
    **{who: minted(*ALL, namespace="here", prefix=f"user:{who}") for who in ("ann", "bob")},
    "elsewhere": minted(*ALL, namespace="elsewhere"),
    "root": minted(*ALL, namespace="*"),
}


def app_of(world: World, **options: Any) -> Any:
    """A service that knows these keys, and forgets what it makes or revokes with its test."""
    store = MemoryKeys(tuple(made.key for made in KEYS.values()))
    return rest_of(world, Authenticator(store, world.clock), **options)


async def call_as(
    app: Any, who: str, method: str, path: str, body: Any = None, **more: Any
) -> Said:
    return await call(app, method, path, body, key=KEYS[who].text, **more)


async def asked(
    endpoint: Endpoint, key: str | None, namespaces: Sequence[str] = ("here", "elsewhere")
) -> Said:
    """The answer, where these namespaces are registered."""
    world = World()
    for name in namespaces:
        await world.repository.register_namespace(name)
    app = app_of(world)
    has_entity = endpoint.method in ("PATCH", "DELETE") or endpoint.path.endswith(
        ("{entity_id}", "{entity_id}/plan")
    )
    if namespaces and has_entity:
        ns = await world.service.namespace("here")
        await ns.create_entity("user:ann")
    if namespaces and "{plan}" in endpoint.path:
        await (await world.service.namespace("here")).set_plan("pro", [])
    path = endpoint.path.format(
        namespace="here", entity_id="user:ann", resource="api.search", lease_id="no-lease",
        plan="pro",
        key_id="abcdefghijkl", namespace_id="abcdefghijk",
    )  # fmt: skip
    body = None if endpoint.body is None else BODIES[endpoint.body.__name__.removesuffix("Body")]
    query = QUERIES.get(endpoint.path, "")
    return await call(app, endpoint.method, path, body, key=key, query=query)


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


GUARDED = [one for one in ENDPOINTS if one.needs is not None]
WHOLE = ("/v1/namespaces", "/v1/deleted-namespaces", "/v1/policies", "/metrics")


def is_whole(endpoint: Endpoint) -> bool:
    """Whether it is about the service and not about a namespace."""
    return "{namespace}" not in endpoint.path and endpoint.path.startswith(WHOLE)


OPERATORS = next(one for one in GUARDED if one.needs == "admin")
BAD_KEYS = ("", "hg_nonsense", "hg_" + "a" * 12 + "_" + "b" * 43)


@pytest.mark.parametrize(
    ("endpoint", "key"),
    [
        *[(one, None) for one in GUARDED],
        *[(one, key) for one in (GUARDED[0], OPERATORS) for key in BAD_KEYS],
    ],
    ids=lambda one: name_of(one) if isinstance(one, Endpoint) else repr(one),
)
def test_without_a_key_nothing(endpoint: Endpoint, key: str | None) -> None:
    said = run(asked(endpoint, key))
    assert (said.status, said.json["code"]) == (401, "UNAUTHENTICATED")
    assert said.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("endpoint", GUARDED, ids=name_of)
@pytest.mark.parametrize("who", ["check", "read", "admin", "root"])
def test_a_key_does_what_its_scope_says(endpoint: Endpoint, who: str) -> None:
    said = run(asked(endpoint, KEYS[who].text))
    if who != "root" and is_whole(endpoint):
        assert (said.status, said.json["code"]) == (404, "NOT_FOUND")
    elif who not in ("root", endpoint.needs):
        assert (said.status, said.json["code"]) == (403, "FORBIDDEN")
    else:
        assert said.status not in (401, 403), said.content
        if said.status >= 400:  # what is asked for does not exist; it was looked for
            missing = "CONFLICT" if who == "root" else "ENTITY_NOT_FOUND"
            assert said.json["code"] in ("LEASE_NOT_FOUND", "NOT_FOUND", missing), said.content


OF_NAMESPACES = [one for one in GUARDED if not is_whole(one) and "/v1/keys" not in one.path]


@pytest.mark.parametrize("endpoint", OF_NAMESPACES, ids=name_of)
def test_forbidden_and_missing_namespaces_look_the_same(endpoint: Endpoint) -> None:
    """A key for another namespace is told what a key for everything is told of a missing one."""
    foreign = run(asked(endpoint, KEYS["elsewhere"].text))
    assert foreign.status == 404
    assert foreign.json["code"] in ("NOT_FOUND", "LEASE_NOT_FOUND")
    if endpoint.method == "PUT" and endpoint.path.endswith("{namespace}"):
        return  # it makes the namespace where it may
    missing = run(asked(endpoint, KEYS["root"].text, namespaces=()))
    assert (missing.status, missing.json) == (foreign.status, foreign.json)


# Keys and leases are looked at one by one; they have tests of their own.
NOT_ONE_BY_ONE = [
    one for one in GUARDED if "/v1/keys" not in one.path and "lease_id" not in one.path
]


@pytest.mark.parametrize("endpoint", NOT_ONE_BY_ONE, ids=name_of)
def test_a_prefix_keeps_to_its_entities(endpoint: Endpoint) -> None:
    """Bob's key gets nothing of Ann's; Ann's does, where the route is about one entity."""
    of_one = endpoint.place.__name__ in ("entity", "identity") and "usage" not in endpoint.path
    foreign = run(asked(endpoint, KEYS["bob"].text))
    assert (foreign.status, foreign.json["code"]) == (404, "NOT_FOUND")
    own = run(asked(endpoint, KEYS["ann"].text))
    assert (own.status < 400) is of_one, own.content


async def test_a_prefix_has_no_foreign_parent_pay_and_sees_no_foreign_child(world: World) -> None:
    await world.repository.register_namespace("here")
    ns = await world.service.namespace("here")
    await ns.create_entity("user:bob")
    await ns.create_entity("user:ann")
    await ns.create_entity("user:ann.one", parent_id="user:bob", principal="root")
    await ns.create_entity("user:bob.two", parent_id="user:ann", principal="root")
    await ns.create_entity("user:ann.two", parent_id="user:ann")
    app = app_of(world)
    entities = "/v1/namespaces/here/entities"
    new = {"id": "user:ann.new", "cascade": True}
    for method, path, body, status in (
        ("POST", "", {**new, "parent_id": "user:bob"}, 404),
        ("PATCH", "/user:ann", {"parent_id": "user:bob"}, 404),
        ("PATCH", "/user:ann.one", {"cascade": True}, 404),
        ("PATCH", "/user:ann.one", {"cascade": False}, 200),
        ("PATCH", "/user:ann.one", {"parent_id": None}, 200),
        ("POST", "", {**new, "parent_id": "user:ann"}, 201),
    ):
        assert (await call_as(app, "ann", method, entities + path, body)).status == status
    seen = await call_as(app, "ann", "GET", f"{entities}/user:ann/children")
    assert [one["id"] for one in seen.json["items"]] == ["user:ann.new", "user:ann.two"]
    assert await ns.get_entity("user:bob") is not None
    assert await ns.get_children("user:bob") == []


async def test_another_entitys_lease_is_not_there(world: World) -> None:
    await world.repository.register_namespace("here")
    app = app_of(world)
    made = await call_as(app, "ann", "POST", "/v1/leases", ASK)
    assert made.status == 201
    path = f"/v1/leases/{made.json['lease_id']}"
    for who, status in (("bob", 404), ("elsewhere", 404), ("ann", 200)):
        seen = await call_as(app, who, "GET", path, query="namespace=here")
        ended = await call_as(app, who, "POST", f"{path}/settle", {"namespace": "here"})
        assert (seen.status, ended.status) == (status, status), who


async def test_a_key_names_the_entities_of_its_reach_and_no_others(world: World) -> None:
    """A key for a namespace names any of them, one with a prefix those that begin with it."""
    await world.repository.register_namespace("here")
    ns = await world.service.namespace("here")
    await ns.set_system_defaults([Limit.per_hour("rph", 100)])
    app = app_of(world)
    for entity, ann in (
        ("user:ann", 200),
        ("user:ann.two", 200),
        ("key-1", 404),
        ("user:bob", 404),
    ):
        named = {"entity": entity, "resource": "api.search"}
        for path, body in (
            ("ratelimit/take", named),
            ("ratelimit/peek", named),
            ("ratelimit/batch", {"requests": [named]}),
            ("ratelimit/acquire", {"descriptors": [named]}),
            ("leases", named),
        ):
            for who, status in (("ann", ann), ("check", 200), ("elsewhere", 404)):
                said = await call_as(app, who, "POST", f"/v1/{path}", {**body, "namespace": "here"})
                wanted = 201 if path == "leases" and status == 200 else status
                assert said.status == wanted, (entity, path, who, said.content)


async def test_what_is_open_to_everybody(world: World) -> None:
    open_paths = {one.path for one in ENDPOINTS if one.needs is None}
    assert open_paths == {"/healthz", "/readyz", "/openapi.json"}
    app = app_of(world, open_metrics=True)
    assert (await call(app, "GET", "/metrics")).status == 200
    assert (await call(app, "GET", "/v1/policies")).status == 401


@pytest.mark.parametrize(
    ("host", "more", "status"),
    [
        (b"localhost", {"client": ("10.0.0.7", 1)}, 401),
        (b"localhost", {"headers": (b"x-forwarded-for", b"127.0.0.1")}, 401),
        (b"localhost", {"headers": (b"forwarded", b"for=127.0.0.1")}, 401),
        # A page in a browser on this machine cannot talk to it under its own name.
        *[(host, {}, 401) for host in (b"evil.example", b"127.0.0.1.evil.example:8", b"[::2]")],
        *[(host, {}, 200) for host in (b"LOCALHOST:8080", b"127.0.0.1:1", b"[::1]:9")],
    ],
)  # fmt: skip
def test_who_is_here_in_dev_mode(host: bytes, more: dict[str, Any], status: int) -> None:
    more = dict(more)
    headers = [(b"host", host), *([more.pop("headers")] if "headers" in more else [])]
    scope = scope_of("GET", "/v1/namespaces", headers, **more)
    assert run(send_raw(rest_of(World()), scope, [b""])).status == status


SENT = KEYS["check"].text.encode()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"authorization", b"Bearer " + SENT)], 200),
        ([(b"authorization", b"bearer  " + SENT)], 200),
        ([(b"x-api-key", SENT)], 200),
        ([(b"authorization", b"Bearer " + SENT), (b"x-api-key", SENT)], 401),
        ([(b"authorization", b"Basic " + SENT)], 401),
        ([(b"authorization", SENT)], 401),
        ([(b"x-api-key", b"\xff" + SENT)], 401),
    ],
)
async def test_ways_to_send_a_key(headers: Any, status: int, world: World) -> None:
    await world.repository.register_namespace("here")
    said = await call(app_of(world), "POST", CHECK, ASK, headers=tuple(headers))
    assert said.status == status


async def test_a_certificate_counts_where_no_key_was_sent(world: World) -> None:
    await world.repository.register_namespace("here")
    table = {"DNS:checkout.internal": parse_grant(["check"], "here")}
    app = rest_of(world, Authenticator(MemoryKeys(), world.clock, lambda: table))
    for name, key, status in (
        ("checkout", None, 200),
        ("checkout", "hg_bad", 401),
        ("other", None, 401),
    ):
        sans = {SANS: (f"DNS:{name}.internal",)}
        assert (await call(app, "POST", CHECK, ASK, extensions=sans, key=key)).status == status


@pytest.mark.parametrize(
    ("who", "grant", "status"),
    [
        ("admin", {"scopes": ["check", "read"], "name": "ci"}, 201),
        ("admin", {"namespace": "elsewhere"}, 404),
        ("admin", {"namespace": "*"}, 404),
        ("check", {}, 403),
        ("root", {"scopes": ["admin"], "namespace": "*"}, 201),
        ("ann", {}, 404),  # a prefix cannot be widened
        ("ann", {"entity_prefix": "user:an"}, 404),
        ("ann", {"entity_prefix": "user:ann:"}, 201),
    ],
)
async def test_an_admin_makes_keys_for_its_own_place_only(
    who: str, grant: dict[str, Any], status: int, world: World
) -> None:
    made = await call_as(app_of(world), who, "POST", "/v1/keys", {**BODIES["NewKey"], **grant})
    assert made.status == status
    if status == 201:
        assert made.json["key"].startswith(f"hg_{made.json['id']}_")


async def test_a_key_works_until_it_is_revoked(world: World) -> None:
    await world.repository.register_namespace("here")
    app = app_of(world)
    made = await call_as(app, "root", "POST", "/v1/keys", BODIES["NewKey"])
    key = made.json["key"]
    assert (await call(app, "POST", CHECK, ASK, key=key)).status == 200
    listed = await call_as(app, "root", "GET", "/v1/keys")
    assert made.json["id"] in [one["id"] for one in listed.json["items"]]
    assert key.encode() not in listed.content
    own = await call_as(app, "admin", "GET", "/v1/keys")  # others' are not listed
    assert {one["namespace"] for one in own.json["items"]} == {"here"}
    gone = await call_as(app, "root", "DELETE", f"/v1/keys/{made.json['id']}")
    assert gone.status == 204
    assert (await call(app, "POST", CHECK, ASK, key=key)).status == 401
    in_dev_mode = await call(rest_of(World()), "POST", "/v1/keys", BODIES["NewKey"])
    assert (in_dev_mode.status, in_dev_mode.json["code"]) == (409, "CONFLICT")
