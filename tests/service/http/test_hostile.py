"""Hostile requests by the thousand: no 5xx, nothing taken, nothing changed, and still alive."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import Any

from headgate.service.http.routes import ENDPOINTS
from proof.size import sized
from tests.service.decide.kit import World
from tests.service.http.kit import HOST, JSON, PATHS, Said, call, rest_of, scope_of, send_raw

REQUESTS = sized(2_000, 20_000, 200_000)
SEED = int(os.environ.get("HEADGATE_SEED", "20260131"))

GOOD = {"identifier": "ann", "resource": "api.search", "tokens": 1, "scope": "user"}
NUMBERS = [
    b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"1" + b"0" * 5000, b"0x10", b"01",
    b"1.0", b"1e0", b"true", b'"5"', b"-1", b"0", b"null", b"[]", b"{}", b"1_000", b"+1", b".5",
    b"100001", b"9007199254740993", b"-0", b"1E-400", b"18446744073709551616",
]  # fmt: skip
TEXTS = [
    "", "a\r\nx: y", "a\x00b", "\u202e", "\ud800", "é" * 300, "../../etc/passwd", "a" * 5000,
    "'; DROP TABLE buckets;--", "{{7*7}}", "%s%n", "\u2028", "a\tb", "$(id)", "\x7f", "#", "a#b",
]  # fmt: skip
KINDS = [
    b"text/plain", b"application/xml", b"application/json; charset=utf-16", b"multipart/form-data",
    b"", b"\xff", b"application/json\x00",
]  # fmt: skip


def nested(rng: random.Random) -> bytes:
    depth = rng.choice([17, 100, 1000, 5000, 100_000])
    opener, closer = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    return opener * depth + (b"1" + closer * depth if rng.random() < 0.5 else b"")


def with_number(rng: random.Random) -> bytes:
    name = rng.choice(["tokens", "ttl_seconds", "dry_run"])
    values = {key: value for key, value in GOOD.items() if key != name}
    text = json.dumps(values)[:-1].encode()
    return text + b', "%b": %b}' % (name.encode(), rng.choice(NUMBERS))


FINE = {"../../etc/passwd", "'; DROP TABLE buckets;--", "{{7*7}}", "%s%n", "$(id)", "#", "a#b"}


def with_text(rng: random.Random) -> bytes:
    name = rng.choice(["identifier", "resource", "scope", "namespace"])
    bad = [text for text in TEXTS if name != "identifier" or text not in FINE]
    return json.dumps({**GOOD, name: rng.choice(bad)}).encode()


def repeated(rng: random.Random) -> bytes:
    name = rng.choice(list(GOOD))
    value = json.dumps(GOOD[name])
    space = rng.choice(["", " ", "\n\t"])
    return (json.dumps(GOOD)[:-1] + f', "{name}"{space}: {value}}}').encode()


def unknown(rng: random.Random) -> bytes:
    name = rng.choice(["dryrun", "limits", "__proto__", "a" * 500, "\u0000", "Tokens", ""])
    return json.dumps({**GOOD, name: rng.choice([1, None, {}, "x"])}).encode()


def damaged(rng: random.Random) -> bytes:
    """A good body with a byte changed so that it is no JSON, or cut off."""
    body = bytearray(json.dumps(GOOD).encode())
    if rng.random() < 0.5:
        return bytes(body[: rng.randrange(len(body))])
    body[0] = rng.choice([0x00, 0x80, 0xFF, 0x22, 0x5D, 0x7F])
    return bytes(body)


def bytes_of_chance(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([1, 10, 1000, 20_000]))


def huge(rng: random.Random) -> bytes:
    return b'{"identifier": "' + b"a" * rng.choice([16_400, 300_000, 2_000_000]) + b'"}'


def bad_batch(rng: random.Random) -> bytes:
    items: list[Any] = [dict(GOOD) for _ in range(rng.choice([1, 5, 100]))]
    items[rng.randrange(len(items))] = rng.choice(
        [None, 1, [], {}, {**GOOD, "tokens": 0}, {**GOOD, "namespace": "x"}, {**GOOD, "x": 1}]
    )
    return json.dumps({"requests": items}).encode()


BODIES = [nested, with_number, with_text, repeated, unknown, damaged, bytes_of_chance, bad_batch]


async def hostile(app: Any, rng: random.Random) -> Said:
    """One request that must not be taken: a bad body, a bad head, or a bad address."""
    dice = rng.random()
    if dice < 0.70:
        make = huge if rng.random() < 0.01 else rng.choice(BODIES)
        paths = list(PATHS.values())
        if make is with_number:
            paths.remove(PATHS["charge"])  # which may be of a negative number
        path = PATHS["batch"] if make is bad_batch else rng.choice(paths)
        body = make(rng)
        return await send_raw(app, scope_of("POST", path, [HOST, JSON]), parts_of(rng, body))
    if dice < 0.80:
        headers = [HOST, (b"content-type", rng.choice(KINDS))]
        if rng.random() < 0.3:
            headers = [HOST, JSON, *[(b"x-%d" % n, rng.randbytes(8)) for n in range(70)]]
        scope = scope_of("POST", rng.choice(list(PATHS.values())), headers)
        return await send_raw(app, scope, [json.dumps(GOOD).encode()])
    return await misdirected(app, rng)


async def misdirected(app: Any, rng: random.Random) -> Said:
    """Any route with nonsense in its path and query, by any method but with nothing it wants."""
    endpoint = rng.choice(ENDPOINTS)
    words = {
        name: rng.choice([*TEXTS[1:], "a", "..", "a/b", "x" * 70]).replace("\ud800", "?")
        for name in (
            "namespace", "entity_id", "lease_id", "key_id", "namespace_id", "resource", "plan",
        )
    }  # fmt: skip
    words["namespace"] = rng.choice(["nowhere", "a b", "a\x00", "%00", "x" * 65])
    if endpoint.path.endswith("{namespace}"):
        words["namespace"] = "a b"  # with a good name, PUT is a good request
    path = endpoint.path.format(**words)
    query = rng.choice([b"", b"limit=0", b"cursor=%00", b"a=b", b"limit=1&limit=2", b"%", b"=&="])
    method = rng.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "BREW", endpoint.method])
    body = rng.choice([b"", b"{}", b"[]", b"{", b"\xff"])
    return await send_raw(app, scope_of(method, path, [HOST, JSON], query), [body])


def parts_of(rng: random.Random, body: bytes) -> list[bytes]:
    cut = rng.randrange(len(body) + 1)
    return rng.choice([[body], [body[:cut], body[cut:]], [b"", body, b""]])


async def state_of(world: World) -> list[Any]:
    found: list[Any] = [len(world.service.leases.store)]
    for name in [one.name for one in await world.repository.list_namespaces()]:
        ns = await world.service.namespace(name)
        found += [name, [one.id for one in (await ns.list_entities())[0]]]
        found += [await ns.get_buckets("user:ann"), await ns.get_system_defaults()]
        found += [await ns.list_resources_with_defaults(), await ns.list_plans()]
    return found


async def test_hostile_requests_change_nothing() -> None:
    rng = random.Random(SEED)
    statuses: Counter[int] = Counter()
    world = World()
    app = rest_of(world)
    first = await call(app, "POST", PATHS["check"], GOOD)
    assert first.status == 200
    before = await state_of(world)
    world.store.calls.clear()
    for number in range(REQUESTS):
        said = await hostile(app, rng)
        statuses[said.status] += 1
        assert said.status < 500, f"seed {SEED}, request {number}: {said}"
        assert b"Traceback" not in said.content
        if said.status >= 400 and said.content:
            assert said.headers["content-type"] == "application/problem+json"
            assert said.json["status"] == said.status
        assert "consume" not in world.store.verbs, f"seed {SEED}, request {number}: {said}"
        assert "adjust" not in world.store.verbs
    assert await state_of(world) == before
    last = await call(app, "POST", PATHS["check"], GOOD)
    assert last.json["tokens_remaining"] == first.json["tokens_remaining"] - 1
    print(f"seed {SEED}: {REQUESTS} hostile requests, {dict(sorted(statuses.items()))}")  # noqa: T201
    assert sum(statuses.values()) == REQUESTS
    assert {400, 404, 405, 413, 415, 431} <= set(statuses)
