"""Whose request it is: nobody talks their way into another bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, ValidationError
from headgate.core.limits import parse_entity_id
from headgate.integrations.gate import parse_rates
from headgate.integrations.keys import Caller, by_header, by_ip, everybody, scoped
from headgate.service.decide.rules import entity_id_of
from tests.integrations.kit import caller

ME = "198.51.100.7"
PROXY = "10.0.0.1"


@pytest.mark.parametrize(
    ("hops", "peer", "said", "found"),
    [
        (1, PROXY, [ME], ME),
        (1, PROXY, [f"6.6.6.6, {ME}"], ME),  # what the client itself sent stands further left
        (1, PROXY, ["6.6.6.6", ME], ME),  # the same in two header lines
        (2, PROXY, [f"6.6.6.6, {ME}, 10.0.0.2"], ME),
        (2, PROXY, [ME], PROXY),  # it did not pass both proxies
        (1, PROXY, [], PROXY),
        (1, PROXY, ["unknown"], PROXY),
        (1, PROXY, [f"{ME}:5099"], ME),
        (1, PROXY, ["[2001:db8:1:2:3:4:5:6]:443"], "2001:db8:1:2::"),
        (1, None, [ME], ME),  # the proxy speaks over a unix socket
        (0, ME, ["1.2.3.4"], ME),  # without trust the header is ignored
        (0, "::ffff:198.51.100.7", [], ME),
        (0, "fe80::1%eth0", [], "fe80::"),
        (0, None, [ME], "unknown"),
        (0, "testclient", [], "unknown"),
    ],
)
def test_hops(hops: int, peer: str | None, said: list[str], found: str) -> None:
    assert by_ip(trusted_hops=hops)(caller(peer, *said)) == f"ip:{found}"


@pytest.mark.parametrize(
    ("peer", "said", "found"),
    [
        (PROXY, [f"6.6.6.6, {ME}, 10.9.9.9"], ME),
        (ME, ["1.2.3.4"], ME),  # around the proxies: the header is not believed
        (PROXY, ["10.0.0.3"], "10.0.0.3"),
        (PROXY, ["nonsense"], PROXY),
    ],
)
def test_networks(peer: str, said: list[str], found: str) -> None:
    assert by_ip(trusted_proxies=["10.0.0.0/8"])(caller(peer, *said)) == f"ip:{found}"


@given(st.text(max_size=200))
def test_a_client_behind_one_proxy_cannot_change_its_key(spoof: str) -> None:
    assert by_ip(trusted_hops=1)(caller(PROXY, f"{spoof},{ME}")) == f"ip:{ME}"
    assert by_ip(trusted_hops=1)(caller(PROXY, spoof, ME)) == f"ip:{ME}"


@given(st.text(max_size=200))
def test_any_garbage_gives_a_good_id(text: str) -> None:
    key = by_ip(trusted_hops=3)(caller(text, text, text, text))
    assert key is not None
    parse_entity_id(key)


def test_ipv6_clients_share_their_network() -> None:
    one, other = "2001:db8:1:2::1", "2001:db8:1:2:ffff::2"
    assert by_ip()(caller(one)) == by_ip()(caller(other))
    exact = by_ip(ipv6_prefix=128)
    assert exact(caller(one)) != exact(caller(other))


@pytest.mark.parametrize(
    "options",
    [
        {"trusted_hops": -1},
        {"trusted_hops": True},
        {"trusted_hops": 17},
        {"trusted_hops": 1, "trusted_proxies": ["10.0.0.0/8"]},
        {"trusted_proxies": ["ten"]},
        {"ipv6_prefix": 0},
    ],
)
def test_bad_options_are_told(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        by_ip(**options)


def test_headers_that_came_repeatedly() -> None:
    sent = [("X-Tag", "a"), ("cookie", "m=1"), ("x-tag", "b, c"), ("Cookie", "n=2"), ("x-tag", "")]
    found = Caller(ME, lambda: iter(sent), "GET", "/", None)
    assert found.headers() == {"x-tag": "a, b, c, ", "cookie": "m=1; n=2"}
    assert found.headers("X-TAG") == ["a", "b, c", ""]
    assert (found.header("x-tag"), found.header("x-other")) == ("a", None)
    found.headers()["x-tag"] = "mine"
    assert found.header("x-tag") == "a", "the mapping is the function's own"


def test_a_header_is_kept_as_a_digest() -> None:
    key = by_header("X-Api-Key")(caller(x_api_key="sk-secret"))
    assert key is not None
    assert key.startswith("key:")
    assert "secret" not in key
    assert key != by_header("X-Api-Key")(caller(x_api_key="sk-other"))
    assert by_header("X-Api-Key")(caller(ME)) == f"ip:{ME}"
    assert by_header("X-Api-Key", otherwise=everybody())(caller()) == "all:everybody"


@given(st.text(min_size=1, max_size=256).filter(str.isprintable))
def test_ids_are_written_as_the_service_writes_them(text: str) -> None:
    assert scoped("user", text) == entity_id_of("user", text)
    parse_entity_id(scoped("user", text))


def test_nobody_has_no_id() -> None:
    with pytest.raises(ValidationError):
        scoped("user", "")
    with pytest.raises(ValidationError):
        scoped("us er", "a")


def test_limits_in_words() -> None:
    found = parse_rates("5/minute; 1,000/hour burst 2000")
    assert found == (Limit.per_minute("per_minute", 5), Limit.per_hour("per_hour", 1000, 2000))
    assert parse_rates(None) is None
    assert parse_rates(Limit.per_day("d", 1)) == (Limit.per_day("d", 1),)
    for bad in (
        "",
        "5/minute;",
        "5/minute;6/minute",
        "5/parsec",
        ";".join(["1/s"] * 17),
        "1" * 2000,
    ):
        with pytest.raises(ValidationError):
            parse_rates(bad)
