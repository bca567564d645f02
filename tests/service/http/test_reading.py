"""What a request may look like on the wire, and how each way of being wrong is told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.service.decide.problems import ServiceError
from headgate.service.decide.request_bodies import (
    AcquireBody,
    BatchBody,
    CheckBody,
    DescriptorsBody,
    PeekBody,
    check_values,
    parse_body,
)
from headgate.service.decide.requests import (
    AcquireRequest,
    DescriptorsRequest,
    batch_request,
    check_request,
    parse_acquire,
    parse_batch,
    parse_check,
    parse_descriptors,
    parse_peek,
)
from headgate.service.http.calls import query_of
from headgate.service.http.messages import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    HEADERS_MAX,
    body_reader,
    decode_strictly,
    values_of,
)
from proof.size import sized
from tests.service.decide.kit import World
from tests.service.http.kit import HOST, JSON, PATHS, Said, call, rest_of, run, scope_of, send_raw

CHECK = PATHS["check"]
DEEP = b'{"a":' * 17 + b"1" + b"}" * 17
GOOD = b'{"identifier": "ann", "resource": "api.search"}'


def ask(body: bytes, *, path: str = CHECK, method: str = "POST", **more: Any) -> tuple[Said, World]:
    world = World()
    said = run(call(rest_of(world), method, path, body, **more))
    return said, world


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"identifier": "a", "identifier": "b", "resource": "x"}', "identifier"),
        (b'{"identifier": "a", "resource": "x", "metadata": {"k": "1", "k" : "2"}}', "k"),
        (b'{"identifier": "a:b", "resource": "x", "resource": "x"}', "resource"),
        (b'{"identifier": "a", "resource": "x", "tokens": NaN}', "request"),
        (b'{"identifier": "a", "resource": "x", "tokens": Infinity}', "request"),
        (b'{"identifier": "a", "resource": "x", "tokens": -Infinity}', "request"),
        (b'{"identifier": "a", "resource": "x", "tokens": 1e400}', "tokens"),
        (b'{"identifier": "a", "resource": "x", "tokens": 1%s}' % (b"0" * 5000), "request"),
        (b'{"identifier": "a", "resource": "x", "tokens": 1%s}' % (b"0" * 200), "tokens"),
        (b'{"identifier": "\xff", "resource": "x"}', "request"),
        (b'{"identifier": "\xed\xa0\x80", "resource": "x"}', "request"),
        (b'{"identifier": "a", "resource": "x"} {}', "request"),
        (b'\xef\xbb\xbf{"identifier": "a", "resource": "x"}', "request"),
        (b"", "request"),
        (b"null", "request"),
        (b"[" * 8000, "request"),
        (b"[" * 8000 + b"]" * 8000, "request"),
        (b'{"identifier": "a", "resource": "x", "metadata": %s}' % DEEP, "metadata.a"),
        (b'{"a\\u0000b": 1}', "request"),
    ],
)
def test_what_is_not_plain_json_is_told(body: bytes, field: str) -> None:
    said, world = ask(body)
    assert said.status == 400, said.content
    assert said.json["code"] == "INVALID_REQUEST"
    assert said.json["field"] == field
    assert world.store.verbs == []


def test_colons_in_texts_are_no_repeated_keys() -> None:
    fine = b'{"a": "x:y:z", "b": {"c:d": ["::1", ":"]}}'
    assert values_of(fine) == {"a": "x:y:z", "b": {"c:d": ["::1", ":"]}}
    for twice in (b'{"a": "x:y", "b": {"c": 1, "c": 1}}', rb'{"a": 1, "\u0061": 2}'):
        with pytest.raises(ServiceError):
            values_of(twice)


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        *[(b"content-type", kind, 415) for kind in (
            b"text/plain", b"application/x-www-form-urlencoded", b"application/jsonx", b"",
            b"application/json; charset=latin-1",
        )],
        *[(b"content-type", kind, 200) for kind in (
            b"application/json", b"Application/JSON; charset=UTF-8",
            b'application/json;charset="utf-8"',
        )],
        (b"content-encoding", b"gzip", 415),
    ],
)  # fmt: skip
def test_only_json_in_its_spellings_is_taken(name: bytes, value: bytes, status: int) -> None:
    said, world = ask(GOOD, headers=((name, value),))
    assert said.status == status
    if status == 415:
        assert said.json["code"] == "UNSUPPORTED_MEDIA_TYPE"
        assert world.store.verbs == []


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("path", "most"), [(CHECK, BODY_BYTES_MAX), (PATHS["batch"], BATCH_BYTES_MAX)]
)
def test_a_body_has_a_bound(path: str, most: int, told: bool) -> None:
    """Also where it comes in parts and does not say how large it is."""
    good = GOOD if path == CHECK else b'{"requests": [%b]}' % GOOD
    for size, status in ((most, 200), (most + 1, 413)):
        world, padded = World(), good.ljust(size)
        length = [(b"content-length", b"%d" % size)] if told else []
        parts = [padded[at : at + 4096] for at in range(0, size, 4096)]
        said = run(send_raw(rest_of(world), scope_of("POST", path, [HOST, JSON, *length]), parts))
        assert said.status == status
        if status == 413:
            assert said.json["code"] == "PAYLOAD_TOO_LARGE"
            assert world.store.verbs == []


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"", b"9" * 5000, b"+5", "٣".encode()])
def test_a_senseless_length_is_refused(length: bytes) -> None:
    said, _ = ask(GOOD, headers=(JSON, (b"content-length", length)))
    assert said.status in (400, 413)


def test_too_many_headers_are_431() -> None:
    for number in (0, 1):  # the same again, and others
        many = tuple((b"x-%d" % (number * at), b"v") for at in range(HEADERS_MAX + 1))
        said, _ = ask(GOOD, headers=many)
        assert (said.status, said.json["code"]) == (431, "TOO_MANY_HEADERS")


@pytest.mark.parametrize("name", [b"content-type", b"authorization", b"content-length", b"host"])
def test_a_header_that_decides_must_be_there_once(name: bytes) -> None:
    value = b"application/json" if name == b"content-type" else b"47"
    said, world = ask(GOOD, headers=(JSON, (name, value), (name, value)))
    assert said.status == 400
    assert world.store.verbs == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_405_and_say_which(method: str) -> None:
    for path in (CHECK, PATHS["acquire"], "/v1/leases/x/settle"):
        said, _ = ask(GOOD, path=path, method=method)
        assert said.status == 405
        assert said.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/ratelimit/check/", "/v1//ratelimit/check", "/v1/leases/x/lose", "/é",
     "/openapiXjson"],
)  # fmt: skip
def test_there_is_nothing_elsewhere(path: str) -> None:
    said, _ = ask(GOOD, path=path)
    assert (said.status, said.json["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "raw",
    [
        b"limit=0x1", b"limit=-1", b"limit=1&limit=2", b"limit", b"other=1", b"%ff=1",
        b"cursor=%ff", b"cursor=%00", b"limit=" + b"1" * 400, b"cursor=" + b"a" * 5000, b"&&=;",
    ],
)  # fmt: skip
def test_queries_are_read_strictly(raw: bytes) -> None:
    kinds = {"limit": int, "cursor": str}
    with pytest.raises(ServiceError):
        query_of(raw, kinds)
    assert query_of(b"limit=5&cursor=a%20b", kinds) == {"limit": 5, "cursor": "a b"}


def test_a_client_that_leaves_gets_nothing() -> None:
    assert run(send_raw(rest_of(World()), scope_of("POST", CHECK, [HOST, JSON]), [])).status == 0


# --------------------------------------------------------------------------------------------------
# A check read straight from bytes is what the strictest reader of JSON makes of them.

ODD = [
    GOOD,
    *[GOOD[:-1] + b",%b}" % more for more in (
        b'"tokens":5', b'"tokens":5.0', b'"tokens":true', b'"tokens":null', b'"tokens":0',
        b'"tokens":100001', b'"tokens":1e2', b'"tokens":1' + b"0" * 400, b'"identifier":"ann"',
        b'"identifier":"an\\u003an"', b'"identifier":"an:n"', b'"scope":"user"',
        b'"scope":"user","scope":"user"', b'"scope":null', b'"namespace":"default"',
        b'"namespace":"a:b"', b'"dry_run":true', b'"dry_runn":true', b'"metadata":{"k":"v"}',
        b'"endpoint":"/x"', b'"amounts":{"rpm":1,"tpm":500}', b'"amounts":{"rpm":0}',
        b'"amounts":{}', b'"amounts":[]', b'"amounts":null', b'"amounts":{"rpm":1.0}',
        b'"amounts":{"rpm":true}', b'"amounts":{"rpm":-1}', b'"amounts":{"a b":1}',
        b'"amounts":{"":1}', b'"amounts":{"rpm":1,"rpm":2}', b'"amounts":{"r\\u0070m":1}',
        b'"amounts":{"rpm":1},"tokens":1', b'"amounts":{"rpm":1%b}' % (b"0" * 400),
        b'"entity":"key-1"',
    )],
    *[b'{"resource":"api.search","entity":%b}' % more for more in (
        b'"key-1"', b'"user:a@20b"', b'"key:1","tokens":5', b'"@a"', b'""', b'"a b"', b"null", b"7",
        b'"a\\u003ab"', b'"key-1","scope":"user"', b'"key-1","entity":"key-1"',
    )],
    *[b'{"identifier":"%b","resource":"api.search"}' % identifier for identifier in (
        b"an:n", b'an:n","identifier":"ann', b"an\\u003an", b"a\\u0000", b"a\x7f", b"\xff",
    )],
    b'{"identifier":"ann"}',
    b'{"resource":"api.search","scope":"global"}',
    GOOD + b" {}",
    b'["identifier"]',
    b"",
]  # fmt: skip


def outcome(read: Any, body: bytes) -> object:
    try:
        return read(body)
    except ServiceError as error:
        return (error.code, error.field, error.detail)


def is_read_alike(fast: Any, parse: Any, body: bytes) -> bool:
    return outcome(fast, body) == outcome(lambda body: parse(decode_strictly(body)), body)


def request_reader(kind: Any, build: Any) -> Any:
    read = body_reader(kind, build)
    return lambda content: build(read(content))


read_check = request_reader(CheckBody, check_request)
read_peek = request_reader(PeekBody, check_request)
read_batch = request_reader(BatchBody, batch_request)


@pytest.mark.parametrize("body", ODD)
def test_a_check_is_read_the_same_both_ways(body: bytes) -> None:
    assert is_read_alike(read_check, parse_check, body)
    assert is_read_alike(read_peek, parse_peek, body)


@pytest.mark.parametrize("body", ODD)
def test_a_batch_is_read_the_same_both_ways(body: bytes) -> None:
    for document in (
        b'{"requests":[%b]}' % body,
        b'{"requests":[%b,%b]}' % (GOOD, body),
        b'{"requests":[%b],"namespace":"default"}' % body,
        b'{"requests":[%b],"requests":[%b]}' % (GOOD, body),
        b'{"requests":[%b]}' % b",".join([body] * 101),
        b'{"requests":[]}',
    ):
        assert is_read_alike(read_batch, parse_batch, document)


FIELDS = st.sampled_from(
    ["identifier", "resource", "scope", "tokens", "namespace", "dry_run", "x", "entity", "amounts"]
)
VALUES = (
    st.sampled_from(["ann", "api.search", "user", "default", "a:b", "\\", '"', "é"])
    | st.integers(-2, 10**6)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
    | st.dictionaries(st.sampled_from(["rpm", "tpm", "a b", ""]), st.integers(-1, 9), max_size=3)
)


@settings(max_examples=sized(50, 100, 1000), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(FIELDS, VALUES), max_size=7))
def test_any_object_is_read_the_same_both_ways(pairs: list[tuple[str, Any]]) -> None:
    fields = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs]
    assert is_read_alike(read_check, parse_check, ("{" + ",".join(fields) + "}").encode())


NAMED = {
    "resource": st.sampled_from(["api.search", "a b"]),
    "scope": st.sampled_from(["user", "us er", "global"]),
    "identifier": st.sampled_from(["ann", "\x07", "é"]),
    "entity": st.sampled_from(["user:ann", "@"]),
    "tokens": st.integers(0, 2),
    "amounts": st.dictionaries(st.sampled_from(["rpm", "a b"]), st.integers(-1, 2), max_size=2),
}
ASKED = {
    **{name: NAMED[name] for name in ("scope", "identifier", "tokens")},
    "namespace": st.sampled_from(["default", "a b"]),
    "endpoint": st.sampled_from(["/x", "\x07"]),
    "metadata": st.dictionaries(st.sampled_from(["user_id", ""]), st.just("ann"), max_size=1),
    "dry_run": st.booleans(),
}
DESCRIPTOR = st.fixed_dictionaries({}, optional=NAMED)
BODIES = st.one_of(
    st.tuples(
        st.just((DescriptorsBody, parse_descriptors)),
        st.fixed_dictionaries({"descriptors": st.lists(DESCRIPTOR, max_size=3)}, optional=ASKED),
    ),
    st.tuples(
        st.just((AcquireBody, parse_acquire)),
        st.fixed_dictionaries({}, optional={**NAMED, **ASKED, "ttl_seconds": st.integers(0, 2)}),
    ),
)


@settings(max_examples=sized(150, 300, 3000), suppress_health_check=[HealthCheck.too_slow])
@given(BODIES)
def test_what_does_not_fit_a_body_is_told_before_all_else(case: tuple[Any, Any]) -> None:
    """Its request is made in a shorter way, which looks at each value only where one is wrong."""
    (kind, parse), values = case

    def fit(values: Any) -> None:
        check_values(msgspec.to_builtins(parse_body(values, kind)), kind)

    misfit = outcome(fit, values)
    said = outcome(parse, values)
    assert misfit is None or said == misfit
    if isinstance(said, (DescriptorsRequest, AcquireRequest)):
        assert said.tokens == values.get("tokens")
        assert said.namespace == values.get("namespace", "default")
        asked = said.descriptors if isinstance(said, DescriptorsRequest) else ()
        for one, sent in zip(asked, values.get("descriptors", ()), strict=True):
            assert (one.resource, one.tokens) == (sent["resource"], sent.get("tokens"))
            assert one.amounts == sent.get("amounts")
            assert one.identifier == sent.get("entity", sent.get("identifier"))
            assert one.scope == ("" if "entity" in sent else sent["scope"])
