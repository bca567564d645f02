"""Who may do what over REST: every route with every kind of caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headgate.service.http.calls import Endpoint
from headgate.service.http.openapi import SCHEMAS
from headgate.service.http.read import SANS
from headgate.service.http.routes import ENDPOINTS
from headgate.service.keys.authenticate import Authenticator
from headgate.service.keys.key import KeyScope, mint, parse_grant
from tests.service.decide.kit import World
from tests.service.http.kit import PATHS, Said, call, rest_of, run, scope_of, send_raw
from tests.service.keys.kit import MemoryKeys

NOW_MS = 1_700_000_000_000
CHECK = PATHS["check"]
ASK = {"identifier": "ann", "resource": "api.search", "namespace": "here"}

# A body that each route takes, for the namespace "here".
BODIES: dict[str, Any] = {
    "Check": ASK,
    "Batch": {"requests": [{"identifier": "ann", "resource": "api.search"}], "namespace": "here"},
    "Descriptors": {
        "descriptors": [{"scope": "user", "resource": "api.search", "identifier": "ann"}],
        "namespace": "here",
    },
    "Acquire": ASK,
    "Change": {"tokens": 1, "namespace": "here"},
    "ChangeOrNothing": {"namespace": "here"},
    "NewEntity": {"id": "user:ann"},
    "EntityChange": {"cascade": True},
    "Limits": {"limits": ["10/minute"]},
    "SystemLimitsChange": {"limits": ["10/minute"]},
    "ModeChange": {"mode": "normal"},
    "Reset": {"entity_id": "user:ann", "resource": "api.search"},
    "TopUp": {"entity_id": "user:ann", "resource": "api.search", "amounts": {"tokens": 1}},
    "NewKey": {"scopes": ["check"], "namespace": "here"},
}
QUERIES = {
    "/v1/explain": "identifier=ann&resource=api.search&namespace=here",
    "/v1/namespaces/{namespace}/audit": "entity_id=user:ann",
    "/v1/leases/{lease_id}": "namespace=here",
}


class Callers:
    """A shelf with one key of each kind, for the namespace "here" unless said otherwise."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        keys = []
        for name, scopes, namespace, prefix in (
            ("check", ["check"], "here", None),
            ("read", ["read"], "here", None),
            ("admin", ["admin"], "here", None),
            ("elsewhere", ["check", "read", "admin"], "elsewhere", None),
            ("missing", ["check", "read", "admin"], "nowhere", None),
            ("ann", ["check", "read", "admin"], "here", "user:ann"),
            ("bob", ["check", "read", "admin"], "here", "user:bob"),
            ("root", ["check", "read", "admin"], "*", None),
        ):
            made = mint(parse_grant(scopes, namespace, prefix), name=name, now_ms=NOW_MS)
            self.texts[name] = made.text
            keys.append(made.key)
        self.store = MemoryKeys(tuple(keys))

    def authenticator(self, world: World) -> Authenticator:
        return Authenticator(self.store, world.clock)


CALLERS = Callers()


async def asked(
    endpoint: Endpoint, key: str | None, namespaces: Sequence[str] = ("here", "elsewhere")
) -> Said:
    """The answer, where these namespaces are registered."""
    world = World()
    for name in namespaces:
        await world.repository.register_namespace(name)
    app = rest_of(world, CALLERS.authenticator(world))
    has_entity = endpoint.method in ("PATCH", "DELETE") or endpoint.path.endswith("{entity_id}")
    if namespaces and has_entity:
        ns = await world.service.namespace("here")
        await ns.create_entity("user:ann")
    path = endpoint.path.format(
        namespace="here", entity_id="user:ann", resource="api.search", lease_id="no-lease",
        key_id="abcdefghijkl", namespace_id="abcdefghijk",
    )  # fmt: skip
    body = None if endpoint.body is None else BODIES[endpoint.body]
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
@pytest.mark.parametrize("scope", ["check", "read", "admin"])
def test_a_key_does_what_its_scope_says(endpoint: Endpoint, scope: str) -> None:
    said = run(asked(endpoint, CALLERS.texts[scope]))
    if is_whole(endpoint):
        assert (said.status, said.json["code"]) == (404, "NOT_FOUND")
    elif scope != endpoint.needs:
        assert (said.status, said.json["code"]) == (403, "FORBIDDEN")
    else:
        assert said.status not in (401, 403), said.content
        if said.status >= 400:  # what is asked for does not exist; it was looked for
            assert said.json["code"] in (
                "LEASE_NOT_FOUND", "NOT_FOUND", "ENTITY_NOT_FOUND"
            ), said.content  # fmt: skip


@pytest.mark.parametrize("endpoint", GUARDED, ids=name_of)
def test_a_key_for_everything_reaches_everything(endpoint: Endpoint) -> None:
    said = run(asked(endpoint, CALLERS.texts["root"]))
    assert said.status not in (401, 403)
    if said.status >= 400:
        assert said.json["code"] in (
            "LEASE_NOT_FOUND", "NOT_FOUND", "CONFLICT"
        ), said.content  # fmt: skip


OF_NAMESPACES = [one for one in GUARDED if not is_whole(one) and "/v1/keys" not in one.path]


@pytest.mark.parametrize("endpoint", OF_NAMESPACES, ids=name_of)
def test_forbidden_and_missing_namespaces_look_the_same(endpoint: Endpoint) -> None:
    """A key for another namespace is told what a key for everything is told of a missing one."""
    foreign = run(asked(endpoint, CALLERS.texts["elsewhere"]))
    assert foreign.status == 404
    assert foreign.json["code"] in ("NOT_FOUND", "LEASE_NOT_FOUND")
    if endpoint.method == "PUT" and endpoint.path.endswith("{namespace}"):
        return  # it makes the namespace where it may
    missing = run(asked(endpoint, CALLERS.texts["root"], namespaces=()))
    assert (missing.status, missing.json) == (foreign.status, foreign.json)


# Keys and leases are looked at one by one; they have tests of their own.
NOT_ONE_BY_ONE = [
    one for one in GUARDED if "/v1/keys" not in one.path and "lease_id" not in one.path
]


@pytest.mark.parametrize("endpoint", NOT_ONE_BY_ONE, ids=name_of)
def test_a_prefix_keeps_to_its_entities(endpoint: Endpoint) -> None:
    """Bob's key gets nothing of Ann's; Ann's does, where the route is about one entity."""
    of_one = endpoint.place.__name__ in ("entity", "identity") and "usage" not in endpoint.path
    foreign = run(asked(endpoint, CALLERS.texts["bob"]))
    assert (foreign.status, foreign.json["code"]) == (404, "NOT_FOUND")
    own = run(asked(endpoint, CALLERS.texts["ann"]))
    assert (own.status < 400) is of_one, own.content


async def test_a_prefix_has_no_foreign_parent_pay_and_sees_no_foreign_child(world: World) -> None:
    await world.repository.register_namespace("here")
    ns = await world.service.namespace("here")
    await ns.create_entity("user:bob")
    await ns.create_entity("user:ann")
    await ns.create_entity("user:ann.one", parent_id="user:bob", principal="root")
    await ns.create_entity("user:bob.two", parent_id="user:ann", principal="root")
    await ns.create_entity("user:ann.two", parent_id="user:ann")
    app = rest_of(world, CALLERS.authenticator(world))
    entities = "/v1/namespaces/here/entities"

    async def ask(method: str, path: str, body: Any = None) -> int:
        said = await call(app, method, path, body, key=CALLERS.texts["ann"])
        return int(said.status)

    new = {"id": "user:ann.new", "cascade": True}
    assert await ask("POST", entities, {**new, "parent_id": "user:bob"}) == 404
    assert await ask("PATCH", f"{entities}/user:ann", {"parent_id": "user:bob"}) == 404
    assert await ask("PATCH", f"{entities}/user:ann.one", {"cascade": True}) == 404
    assert await ask("PATCH", f"{entities}/user:ann.one", {"cascade": False}) == 200
    assert await ask("PATCH", f"{entities}/user:ann.one", {"parent_id": None}) == 200
    assert await ask("POST", entities, {**new, "parent_id": "user:ann"}) == 201
    seen = await call(app, "GET", f"{entities}/user:ann/children", key=CALLERS.texts["ann"])
    assert [one["id"] for one in seen.json["items"]] == ["user:ann.new", "user:ann.two"]
    bob = await ns.get_entity("user:bob")
    assert bob is not None
    assert await ns.get_children("user:bob") == []


async def test_another_entitys_lease_is_not_there(world: World) -> None:
    await world.repository.register_namespace("here")
    app = rest_of(world, CALLERS.authenticator(world))
    made = await call(app, "POST", "/v1/leases", ASK, key=CALLERS.texts["ann"])
    assert made.status == 201
    path = f"/v1/leases/{made.json['lease_id']}"
    found = []
    for who in ("bob", "elsewhere", "ann"):
        key = CALLERS.texts[who]
        seen = await call(app, "GET", path, key=key, query="namespace=here")
        ended = await call(app, "POST", f"{path}/settle", {"namespace": "here"}, key=key)
        found += [(who, seen.status, ended.status)]
    assert found == [("bob", 404, 404), ("elsewhere", 404, 404), ("ann", 200, 200)]


def test_what_is_open_to_everybody_is_listed_here() -> None:
    assert {one.path for one in ENDPOINTS if one.needs is None} == {
        "/healthz",
        "/readyz",
        "/openapi.json",
    }


def test_metrics_can_be_opened(world: World) -> None:
    app = rest_of(world, CALLERS.authenticator(world), open_metrics=True)
    assert run(call(app, "GET", "/metrics")).status == 200
    assert run(call(app, "GET", "/v1/policies")).status == 401


def test_every_body_has_an_example_here() -> None:
    """So that a new route cannot go untested."""
    bodies = {one.body for one in ENDPOINTS if one.body is not None}
    assert bodies == set(BODIES)
    assert bodies <= set(SCHEMAS)


class TestDevMode:
    def test_whoever_is_here_may_do_everything(self) -> None:
        app = rest_of(World())
        assert run(call(app, "GET", "/v1/namespaces")).status == 200
        assert run(call(app, "POST", CHECK, {**ASK, "namespace": "default"})).status == 200

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
    def test_who_is_here(self, host: bytes, more: dict[str, Any], status: int) -> None:
        more = dict(more)
        headers = [(b"host", host), *([more.pop("headers")] if "headers" in more else [])]
        scope = scope_of("GET", "/v1/namespaces", headers, **more)
        assert run(send_raw(rest_of(World()), scope, [b""])).status == status

    def test_keys_cannot_be_made(self) -> None:
        said = run(call(rest_of(World()), "POST", "/v1/keys", BODIES["NewKey"]))
        assert (said.status, said.json["code"]) == (409, "CONFLICT")


class TestWaysToSendAKey:
    def ask(self, *headers: tuple[bytes, bytes]) -> int:
        world = World()
        run(world.repository.register_namespace("here"))
        app = rest_of(world, CALLERS.authenticator(world))
        return int(run(call(app, "POST", CHECK, ASK, headers=headers)).status)

    def test_in_either_header(self) -> None:
        text = CALLERS.texts["check"].encode()
        assert self.ask((b"authorization", b"Bearer " + text)) == 200
        assert self.ask((b"authorization", b"bearer  " + text)) == 200
        assert self.ask((b"x-api-key", text)) == 200

    def test_not_in_both_and_not_otherwise(self) -> None:
        text = CALLERS.texts["check"].encode()
        assert self.ask((b"authorization", b"Bearer " + text), (b"x-api-key", text)) == 401
        assert self.ask((b"authorization", b"Basic " + text)) == 401
        assert self.ask((b"authorization", text)) == 401
        assert self.ask((b"x-api-key", b"\xff" + text)) == 401

    def test_a_certificate_counts_where_no_key_was_sent(self, world: World) -> None:
        run(world.repository.register_namespace("here"))
        table = {"DNS:checkout.internal": parse_grant(["check"], "here")}
        authenticator = Authenticator(CALLERS.store, world.clock, lambda: table)
        app = rest_of(world, authenticator)
        sans = {SANS: ("DNS:checkout.internal",)}
        assert run(call(app, "POST", CHECK, ASK, extensions=sans)).status == 200
        assert run(call(app, "POST", CHECK, ASK, extensions=sans, key="hg_bad")).status == 401
        other = {SANS: ("DNS:other.internal",)}
        assert run(call(app, "POST", CHECK, ASK, extensions=other)).status == 401


class TestMakingKeys:
    def flow(self, who: str, values: dict[str, Any]) -> Said:
        world = World()
        app = rest_of(world, Callers_with(world))
        return run(call(app, "POST", "/v1/keys", values, key=CALLERS.texts[who]))  # type: ignore[no-any-return]

    def test_an_admin_makes_keys_for_its_own_namespace_only(self) -> None:
        made = self.flow("admin", {"scopes": ["check", "read"], "namespace": "here", "name": "ci"})
        assert made.status == 201
        assert made.json["key"].startswith(f"hg_{made.json['id']}_")
        assert self.flow("admin", {"scopes": ["check"], "namespace": "elsewhere"}).status == 404
        assert self.flow("admin", {"scopes": ["check"], "namespace": "*"}).status == 404
        assert self.flow("check", {"scopes": ["check"], "namespace": "here"}).status == 403
        assert self.flow("root", {"scopes": ["admin"], "namespace": "*"}).status == 201

    def test_a_prefix_cannot_be_widened(self) -> None:
        plain = {"scopes": ["check"], "namespace": "here"}
        assert self.flow("ann", plain).status == 404
        assert self.flow("ann", {**plain, "entity_prefix": "user:an"}).status == 404
        assert self.flow("ann", {**plain, "entity_prefix": "user:ann:"}).status == 201

    async def test_a_key_works_until_it_is_revoked(self, world: World) -> None:
        await world.repository.register_namespace("here")
        app = rest_of(world, Callers_with(world))
        root = CALLERS.texts["root"]
        made = await call(app, "POST", "/v1/keys", BODIES["NewKey"], key=root)
        key = made.json["key"]
        seen = [(await call(app, "POST", CHECK, ASK, key=key)).status]
        listed = await call(app, "GET", "/v1/keys", key=root)
        assert made.json["id"] in [one["id"] for one in listed.json["items"]]
        assert key.encode() not in listed.content
        gone = await call(app, "DELETE", f"/v1/keys/{made.json['id']}", key=root)
        seen.append(gone.status)
        seen.append((await call(app, "POST", CHECK, ASK, key=key)).status)
        assert seen == [200, 204, 401]

    def test_others_keys_are_not_listed(self, world: World) -> None:
        app = rest_of(world, CALLERS.authenticator(world))
        listed = run(call(app, "GET", "/v1/keys", key=CALLERS.texts["admin"]))
        assert {one["namespace"] for one in listed.json["items"]} == {"here"}


def Callers_with(world: World) -> Authenticator:
    """The same keys on a shelf of its own, so that tests do not see one another's."""
    store = MemoryKeys(tuple(CALLERS.store._keys.values()))
    return Authenticator(store, world.clock)


def test_scopes_have_these_names() -> None:
    assert [*map(str, KeyScope)] == ["check", "read", "admin"]
