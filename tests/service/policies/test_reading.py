"""A policy file is read exactly, or refused with every fault and its place."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.limits import AMOUNT_MAX, Limit
from headgate.declare import yaml_fields as strict_yaml
from headgate.declare.yaml_fields import DECIMALS_MAX, FAULTS_MAX, PERIOD_SECONDS_MAX, InvalidFile
from headgate.layers.breaker import BreakerConfig
from headgate.service.decide.rules import GLOBAL_DEFAULT
from headgate.service.policies.decode import TOKENS_MAX
from headgate.service.policies.policies import FILE_BYTES_MAX, Policies, check_content, check_file
from headgate.stores.redis.client.url import parse as parse_redis_url
from headgate.stores.redis.encoding import check_limits

WHOLE = """\
rate_limits:
  - {name: search, scope: user, resource: api.search, capacity: 1000, refill_rate: 10.0}
  - {name: anybody, scope: user, capacity: 100, refill_rate: 0.1, burst_multiplier: 1.5}
  - name: address
    scope: ip
    resource: global
    capacity: 100
    refill_rate: 100/60
    key_pattern: "ip:{ip_address}:global"
    shadow: true
    min_refill_interval_ms: 50
token_costs:
  - {endpoint: /api/ml/predict, tokens: 10}
runtime:
  fail_open: true
  circuit_breaker: {failure_threshold: 3, success_threshold: 1, timeout_seconds: 0.5,
    max_timeout_seconds: 4, backoff_multiplier: 1.5}
  store: "redis://user:hunter2@localhost:6379/0"
"""


def good(text: str) -> Policies:
    found = check_content(text.encode(), "p.yaml")
    assert isinstance(found, Policies), str(found)
    return found


def faults(text: str | bytes) -> list[str]:
    content = text.encode() if isinstance(text, str) else text
    found = check_content(content, "p.yaml")
    assert isinstance(found, InvalidFile), found
    return [str(fault) for fault in found.faults]


def rule_with(**fields: str) -> str:
    values = {"name": "n", "scope": "user", "capacity": "10", "refill_rate": "1"} | fields
    inner = ", ".join(f"{key}: {value}" for key, value in values.items() if value != "-")
    return f"rate_limits:\n  - {{{inner}}}\n"


def limit_with(**fields: str) -> Limit:
    return good(rule_with(**fields)).policies[0].limit


def test_the_whole_format() -> None:
    found = good(WHOLE)
    assert [(p.name, p.scope, p.resource, p.shadow) for p in found.policies] == [
        ("search", "user", "api.search", False),
        ("anybody", "user", None, False),
        ("address", "ip", "global", True),
    ]
    assert [p.limit for p in found.policies] == [
        Limit("tokens", 1000, 10, 1),
        Limit("tokens", 150, 1, 10),
        Limit("tokens", 100, 5, 3, soft=True),
    ]
    assert found.runtime.fail_open is True
    assert found.runtime.breaker == BreakerConfig(3, 1, 500, 4000, 1.5)
    assert found.cost_of("/api/ml/predict") == 10
    assert found.cost_of("/api/ml/predict/") is None
    assert found.identifier_key("ip") == "ip_address"
    assert found.identifier_key("user") is None
    assert found.names == ({"user", "ip"}, {"api.search", "global"})
    assert [str(w).split(": ")[0] for w in found.warnings] == ["p.yaml:11:29"]
    assert "no effect" in found.warnings[0].text


def test_resolution_is_exact_then_scope_then_global_and_the_same_object_each_time() -> None:
    found = good(WHOLE)
    exact, scope = found.limits_for("user", "api.search"), found.limits_for("user", "other")
    assert [(one.name, one.level) for one in (exact, scope) if one] == [
        ("search", "exact"), ("anybody", "scope"),
    ]  # fmt: skip
    assert found.limits_for("ip", "other") is GLOBAL_DEFAULT, "ip has no default of its own"
    assert found.limits_for("tenant", "api.search") is GLOBAL_DEFAULT
    assert found.limits_for("user", "api.search") is exact
    assert found.limits_for("user", "third") is scope


CHAT = """\
rate_limits:
  - {name: chat_requests, scope: user, resource: chat, limit_name: rpm, capacity: 60,
     refill_rate: 1}
  - {name: chat_tokens, scope: user, resource: chat, limit_name: tpm, capacity: 1000000,
     refill_rate: 1000000/60, counts_tokens: true}
"""


def test_limits_have_names_and_a_policy_says_which_of_them_tokens_are() -> None:
    found = good(CHAT)
    rule = found.limits_for("user", "chat")
    assert rule is not None
    assert [limit.name for limit in rule.limits] == ["rpm", "tpm"]
    assert rule.counts == ("tpm",)
    shown = found.as_json()["rate_limits"]
    assert [(one["limit_name"], one["counts_tokens"]) for one in shown] == [
        ("rpm", False),
        ("tpm", True),
    ]
    other = good(CHAT.replace("counts_tokens: true", "counts_tokens: false"))
    new = other.with_rules_of(found).limits_for("user", "chat")
    assert new is not rule, "what tokens are is part of a rule"
    assert new is not None
    assert new.counts == ()


def test_what_is_wrong_with_the_names_of_limits_is_told() -> None:
    twice = CHAT.replace("limit_name: tpm", "limit_name: rpm")
    assert faults(twice) == ["p.yaml:4:5: the limit 'rpm' of user/chat is already on line 2"]
    plain = CHAT.replace("limit_name: rpm, ", "").replace("limit_name: tpm", "limit_name: tokens")
    assert faults(plain) == ["p.yaml:4:5: the limit 'tokens' of user/chat is already on line 2"]
    assert "counts_tokens is '1'; write true or false" in faults(rule_with(counts_tokens="1"))[0]
    assert "limit_name" in faults(rule_with(limit_name="a b"))[0]


def test_the_global_default_can_be_set_and_switched_off() -> None:
    found = good("runtime: {default_limit: {capacity: 7, refill_rate: 0.5, shadow: true}}\n")
    rule = found.limits_for("user", "anything")
    assert rule is not None
    assert rule.limits == (Limit("tokens", 7, 1, 2, soft=True),)
    assert (rule.level, rule.shadow) == ("global", True)
    off = good("runtime: {default_limit: none}\n" + rule_with())
    assert off.limits_for("ip", "x") is None
    assert off.limits_for("user", "x") is not None


def test_several_policies_of_one_place_are_limits_of_one_bucket() -> None:
    text = (
        "rate_limits:\n"
        "  - {name: burst, scope: user, resource: a, capacity: 10, refill_rate: 1}\n"
        "  - {name: daily, scope: user, resource: a, capacity: 500, refill_rate: 500/86400}\n"
        "  - {name: trial, scope: user, resource: a, capacity: 5, refill_rate: 1, shadow: true}\n"
    )
    rule = good(text).limits_for("user", "a")
    assert rule is not None
    assert rule.limits == (
        Limit("tokens", 10, 1, 1),
        Limit("daily", 500, 5, 864),
        Limit("trial", 5, 1, 1, soft=True),
    )
    assert (rule.name, rule.shadow) == ("burst", False), "only one of them is in shadow"
    alone = good("\n".join(text.splitlines()[:2])).limits_for("user", "a")
    assert alone is not None
    assert alone.limits == rule.limits[:1], "the first keeps its limit when others join"


def test_a_limit_is_written_as_it_is_everywhere() -> None:
    """In words or numbers, one or a list; `soft` is what `shadow` is."""
    text = (
        "rate_limits:\n"
        "  - {name: search, scope: user, resource: a, limit: 100/minute burst 150 soft}\n"
        "  - {name: daily, scope: user, resource: a, limit: 5000/day}\n"
        "  - name: llm\n"
        "    scope: user\n"
        "    resource: gpt-4\n"
        "    limits: [rpm:60/min, {name: tpm, capacity: 9, refill_amount: 3, "
        "refill_period_seconds: 2}]\n"
        "  - {name: trial, scope: ip, limits: {rps: 5/s}, shadow: true}\n"
        "runtime: {default_limit: 10/s burst 1000}\n"
    )
    found = good(text)
    search = found.limits_for("user", "a")
    assert search is not None
    assert search.limits == (
        Limit.per_minute("tokens", 100, 150, soft=True),
        Limit.per_day("daily", 5000),
    )
    llm = found.limits_for("user", "gpt-4")
    assert llm is not None
    assert llm.limits == (Limit.per_minute("rpm", 60), Limit("tpm", 9, 3, 2))
    trial = found.limits_for("ip", "x")
    assert trial is not None
    assert (trial.limits, trial.shadow) == ((Limit.per_second("rps", 5, soft=True),), True)
    assert found.limits_for("global", "x") is GLOBAL_DEFAULT
    assert [search.label(one) for one in ("tokens", "daily")] == ["search", "daily"]
    assert [llm.label(one) for one in ("rpm", "tpm")] == ["llm.rpm", "llm.tpm"]
    assert trial.label("rps") == "trial"


def test_a_second_policy_does_not_rename_the_first() -> None:
    first = "  - {name: burst, scope: user, capacity: 10, refill_rate: 1}\n"
    second = "  - {name: daily, scope: user, capacity: 500, refill_rate: 1}\n"
    alone, joined = good("rate_limits:\n" + first), good("rate_limits:\n" + first + second)
    rules = [one.limits_for("user", "a") for one in (alone, joined)]
    assert [rule.label("tokens") for rule in rules if rule] == ["burst", "burst"]
    assert rules[1] is not None
    assert rules[1].label("daily") == "daily"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("limit: 5/s, capacity: 5", "limit says it all; leave out capacity"),
        ("limit: 5/s, limits: [a:5/s]", "limit says it all; leave out limits"),
        ("limit: lots", "is not a limit"),
        ("limits: [a:5/s, a:6/s]", "twice"),
        ("limits: []", "1 to 16"),
        ("limit: 9000000000000/s", "does not fit"),
        ("limit: 2000/s burst 1", "1000 times"),
        ("limit: 5/400d", "counts over more than"),
        ("limits: [wcu:5/s]", "reserved"),
        ("limit: [5/s]", "must be text, not a list"),
    ],
)
def test_limits_in_words_that_are_refused(fields: str, said: str) -> None:
    found = faults(f"rate_limits:\n  - {{name: n, scope: user, {fields}}}\n")
    assert len(found) == 1
    assert said in found[0]


def test_limits_of_one_place_have_names_of_their_own() -> None:
    entry = "  - {{name: {}, scope: user, limits: [rpm:5/s]}}\n"
    found = faults("rate_limits:\n" + entry.format("a") + entry.format("b"))
    assert found == ["p.yaml:3:5: the limit 'rpm' of user is already on line 2"]


REDIS = [
    ("redis://h:1/2", "redis://h:1/2"),
    ("{url: redis://h:1/2}", "redis://h:1/2"),
    ("{}", "redis://localhost:6379/0"),
    ("{host: redis, port: 6380, db: 3}", "redis://redis:6380/3"),
    ("{host: redis, password: 'p@ss/w', ssl: true}", "rediss://:p%40ss%2Fw@redis:6379/0"),
    ("{host: '::1', username: u, password: null}", "redis://u:@[::1]:6379/0"),
    ("{max_connections: 50, socket_timeout: 0.5}",
     "redis://localhost:6379/0?connections=50&timeout_ms=500"),
    ("{url: 'redis://h:1?timeout_ms=5', max_connections: 50}",
     "redis://h:1?timeout_ms=5&connections=50"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "url"), REDIS)
def test_the_store_may_be_said_as_a_redis(said: str, url: str) -> None:
    store = good(f"runtime: {{redis: {said}}}\n").runtime.store
    assert store == url
    assert parse_redis_url(store).kind == "single"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("{hots: hunter2}", "no key 'hots'; did you mean 'host'?"),
        ("{host: 'hunter2:6379'}", "without a port"),
        ("{password: [hunter2]}", "must be text"),
        ("{url: redi://u:hunter2@x}", "is not the URL of a store"),
        ("{url: redis://x, port: 5}", "is in the URL already"),
        ("{port: 0}", "from 1 to 65535"),
        ("{host: x}, store: memory://", "keep one of them"),
    ],
)
def test_a_redis_that_cannot_be_is_told_without_its_password(said: str, text: str) -> None:
    found = faults(f"runtime: {{redis: {said}}}\n")
    assert text in "".join(found)
    assert "hunter2" not in "".join(found)


def test_the_file_of_the_request_loads() -> None:
    """What the service was asked to read: scopes, fractions, patterns, costs, breaker and Redis."""
    found = good(
        "rate_limits:\n"
        "  - {name: one, scope: user, resource: api.search, capacity: 1000, refill_rate: 10.0}\n"
        "  - {name: default, scope: user, capacity: 100, refill_rate: 1.0, burst_multiplier: 1.5,\n"
        "     min_refill_interval_ms: 100}\n"
        "  - {name: by_ip, scope: ip, resource: global, capacity: 100, refill_rate: 5.0,\n"
        '     key_pattern: "ip:{ip_address}:global"}\n'
        "token_costs:\n"
        "  - {endpoint: /api/ml/predict, tokens: 10}\n"
        "runtime:\n"
        "  fail_open: true\n"
        "  circuit_breaker: {failure_threshold: 5, success_threshold: 2, timeout_seconds: 10,\n"
        "    max_timeout_seconds: 60, backoff_multiplier: 2}\n"
        "  redis: {host: localhost, port: 6379, db: 0, max_connections: 50, socket_timeout: 5}\n"
    )
    assert [policy.name for policy in found.policies] == ["one", "default", "by_ip"]
    assert found.runtime.store == "redis://localhost:6379/0?connections=50&timeout_ms=5000"


def test_a_policy_says_what_becomes_of_charges() -> None:
    lines = [
        "rate_limits:",
        "  - {name: a, scope: user, resource: r, capacity: 9, refill_rate: 1, charge: fit}",
        "  - {name: b, scope: user, resource: r, capacity: 9, refill_rate: 1}",
        "  - {name: c, scope: user, capacity: 9, refill_rate: 1, charge: debt}",
        "  - {name: d, scope: ip, capacity: 9, refill_rate: 1}",
    ]
    found = good("\n".join(lines))
    rules = [found.limits_for(*place) for place in (("user", "r"), ("user", "x"), ("ip", "r"))]
    assert [one.charge for one in rules if one] == ["fit", "debt", None]
    assert [one["charge"] for one in found.as_json()["rate_limits"]] == ["fit", None, "debt", None]
    changed = good("\n".join(lines).replace("fit", "debt")).with_rules_of(found)
    assert changed.limits_for("user", "r") is not rules[0]
    assert changed.limits_for("user", "x") is rules[1]
    lines[2] = lines[2].replace("1}", "1, charge: debt}")
    (fault,) = faults("\n".join(lines))
    assert "charge and an earlier one of the same scope and resource differ: 'fit'" in fault


def test_more_policies_than_a_bucket_has_limits() -> None:
    line = "  - {{name: n{}, scope: user, resource: a, capacity: 10, refill_rate: 1}}\n"
    many = ["rate_limits:\n", *(line.format(number) for number in range(17))]
    good("".join(many[:17]))
    assert faults("".join(many)) == ["p.yaml:18:5: user/a has more than 16 rate limits"]


def test_a_rate_is_the_number_that_is_written() -> None:
    for text, amount, seconds in (
        ("10", 10, 1), ("10.0", 10, 1), ("10.00", 10, 1), ("0.1", 1, 10), ("0.3", 3, 10),
        ("0.0000001", 1, 10_000_000), ("1.25", 5, 4), ("1/60", 1, 60), ("120/60", 2, 1),
        ("0", 0, 1), ("0.0", 0, 1),
    ):  # fmt: skip
        assert limit_with(refill_rate=text) == Limit("tokens", 10, amount, seconds)


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 7))
def test_every_decimal_is_exact(digits: int, places: int) -> None:
    text = f"{digits // 10**places}.{digits % 10**places:0{places}d}" if places else str(digits)
    limit = limit_with(refill_rate=text, capacity="1000000000")
    assert Fraction(limit.refill_amount, limit.refill_period_seconds) == Fraction(text)


def test_burst_is_part_of_the_capacity_rounded_down() -> None:
    for capacity, burst, whole in (("5", "1.5", 7), ("5", "1", 5), ("100", "1.15", 115)):
        assert limit_with(capacity=capacity, burst_multiplier=burst).capacity == whole


# What is said, and the values of a field of which it is said.
BAD_VALUES = [
    (field, value, said)
    for field, said, values in (
        ("capacity", "whole number from 1",
         ["0", "-1", "1.0", "010", "0x10", "1_000", "1e3", str(10**12 + 1), "9" * 5000]),
        ("capacity", "must be a whole number, not true or false ('true')", ["true"]),
        ("capacity", "must be a whole number, not text ('5')", ["'5'"]),
        ("capacity", "must be a whole number, not nothing ('~')", ["~"]),
        ("capacity", "must be a whole number, not nothing", [""]),
        ("capacity", "must be a whole number, not a list", ["[5]"]),
        ("capacity", "must be a whole number, not a mapping", ["{a: 5}"]),
        ("refill_rate", "digits", [".nan", ".inf", "-.inf", "1e400", "1e1", "-0.1"]),
        ("refill_rate", "must be a number, not text", ["nan"]),
        ("refill_rate", "at most 7 after the point", ["0.00000001"]),
        ("refill_rate", "must be a number, not true or false", ["true"]),
        ("refill_rate", "must be a number", ["1/0"]),
        ("refill_rate", "more than 31622400 seconds", ["1/31622401"]),
        ("refill_rate", "1000 times capacity", ["10000.1", "10001"]),
        ("burst_multiplier", "from 1", ["0.9"]),
        ("burst_multiplier", "must be a number", ["true"]),
        ("shadow", "write true or false", ["yes", "'true'", "1"]),
        ("shadow", "must be true or false, not a list", ["[]"]),
        ("min_refill_interval_ms", "whole number from 0", ["-5"]),
        ("name", "must start with a letter", ["'9lives'", '"a\\n"']),
        ("name", "is reserved", ["wcu"]),
        ("name", "is taken by headgate", ["tokens"]),
        ("name", "must be text, not a number ('5'); put it in quotes", ["5"]),
        ("name", "must be text, not true or false ('on'); put it in quotes", ["on"]),
        ("scope", "must start with a letter", ["'a b'"]),
        ("scope", "characters", ["x" * 65]),
        ("resource", "leave resource out", ["'*'"]),
        ("resource", "must start with a letter", ["'a#b'"]),
        ("resource", "is empty", ["''"]),
        ("key_pattern", "fields like {ip_address}", ["'ip:{ip'", "'ip:{}'", "'ip:{a.b}'"]),
        ("key_pattern", "more than one field", ["'{a}:{b}'"]),
        ("key_pattern", "needs a field", ["'ip:all'"]),
        ("charge", "must be debt or fit", ["never", "''"]),
        ("charge", "must be text, not true or false", ["true"]),
    )
    for value in values
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "said"), BAD_VALUES)
def test_values_that_are_refused(field: str, value: str, said: str) -> None:
    (fault,) = faults(rule_with(**{field: value}))
    place, text = fault.split(": ", 1)
    line = rule_with(**{field: value}).splitlines()[1]
    column = line.index(f"{field}: ") + len(field) + 3
    assert place == f"p.yaml:2:{column}" or not value
    assert said in text
    assert len(text) < 400, "a huge value is not repeated"


def test_the_borders_of_capacity_and_rate() -> None:
    assert limit_with(capacity="1", refill_rate="1000").refill_amount == 1000
    assert limit_with(capacity="1000000000000", refill_rate="0").capacity == 10**12
    assert faults(rule_with(capacity="1000000000000", burst_multiplier="2"))
    fine = faults(rule_with(capacity="1000000000000", refill_rate="1000000000.0000001"))
    assert "do not fit" in fine[0]
    assert AMOUNT_MAX > 10**12 * 1000


@pytest.mark.parametrize("missing", ["name", "scope", "capacity", "refill_rate"])
def test_what_must_be_there(missing: str) -> None:
    assert faults(rule_with(**{missing: "-"})) == [
        f"p.yaml:2:5: a rate limit needs the key {missing!r}"
    ]


def test_all_errors_at_once_in_the_order_of_the_file() -> None:
    text = (
        "rate_limits:\n"
        "  - {name: a, scope: user, capcity: 5, refill_rate: .nan, capacity: true}\n"
        "  - {name: a, name: b, scope: user, capacity: 1, refill_rate: 1}\n"
        "  - &spare {name: c, scope: user, capacity: 0, refill_rate: 1}\n"
        "  - *spare\n"
        "runtime: {circuit_breaker: {timeout_seconds: 61}, fail_open: maybe, color: !red 5}\n"
        "runtim: {}\n"
    )
    assert faults(text) == [
        "p.yaml:2:28: a rate limit has no key 'capcity'; did you mean 'capacity'?",
        "p.yaml:2:53: refill_rate is '.nan'; it must be from 0 to 1000000000000000, written in "
        "digits with at most 7 after the point",
        "p.yaml:2:69: capacity must be a whole number, not true or false ('true')",
        "p.yaml:3:12: the name 'a' is already on line 2",
        "p.yaml:3:15: the key 'name' is already on line 3",
        "p.yaml:4:5: anchors (&name) are not allowed; write the value where it is used",
        "p.yaml:4:45: capacity is '0'; it must be a whole number from 1 to 1000000000000",
        "p.yaml:5:5: aliases (*name) are not allowed; write the value out",
        "p.yaml:6:28: timeout_seconds is more than max_timeout_seconds",
        "p.yaml:6:62: runtime.fail_open is 'maybe'; write true or false",
        "p.yaml:6:69: runtime has no key 'color'; there are: fail_open, circuit_breaker, store, "
        "redis, default_limit",
        "p.yaml:6:76: tags ('!red') are not allowed; write the plain value",
        "p.yaml:7:1: the file has no key 'runtim'; did you mean 'runtime'?",
    ]


def test_errors_are_bounded_and_the_rest_is_counted() -> None:
    found = check_content(b"rate_limits:\n" + b"  - 5\n" * 80, "p.yaml")
    assert isinstance(found, InvalidFile)
    assert (len(found.faults), found.more) == (FAULTS_MAX, 30)
    assert str(found).endswith("… and 30 more")


def test_costs_and_scopes_said_twice() -> None:
    costs = "token_costs:\n  - {endpoint: /a, tokens: 1}\n  - {endpoint: /a, tokens: 2}\n"
    assert faults(costs) == ["p.yaml:3:16: the endpoint '/a' is already on line 2"]
    assert faults("token_costs:\n  - {endpoint: a, tokens: 0}\n  - {tokens: true}\n") == [
        "p.yaml:2:16: endpoint is 'a'; it must be a path like /api/search, at most 256 characters",
        "p.yaml:2:27: tokens is '0'; it must be a whole number from 1 to 1000000000000",
        "p.yaml:3:5: a token cost needs the key 'endpoint'",
    ]
    two = (
        "rate_limits:\n"
        "  - {name: a, scope: ip, capacity: 1, refill_rate: 1, key_pattern: 'ip:{address}'}\n"
        "  - {name: b, scope: ip, resource: r, capacity: 1, refill_rate: 1, key_pattern: '{ip}'}\n"
    )
    assert faults(two) == ["p.yaml:3:81: key_pattern and an earlier one of scope ip differ: 'address'"]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "1:1: the file is empty"),
        (b"# nothing\n", "1:1: the file is empty"),
        (b"[" * 100_000, "1:9: this is nested deeper than 8 levels"),
        (b"a: " * 100_000, "1:5: this is not YAML"),
        (b"rate_limits: [1}", "1:16: this is not YAML"),
        (b"a\nb\x00", "2:2: the character U+0000 is not allowed"),
        (b"a: \xc3\xa9\n\xff", "2:1: this is not UTF-8"),
        ("é: \u202eevil".encode(), "1:4: the character U+202E is not allowed"),
        (b"--- {}\n--- {}\n", "2:1: a second document begins here"),
        (b"[]", "1:1: the file must be a mapping, not a list"),
        (b"rate_limits: {}\n", "1:14: rate_limits must be a list, not a mapping"),
        (b"? [rate_limits]\n: 5\n", "1:3: a key must be a word"),
        (b"<<: {rate_limits: []}\n", "1:1: the file has no key '<<'"),
        (b"rate_limits: !!python/object/apply:os.abort []\n", "1:14: tags"),
        (b"&a [*a]", "1:1: anchors"),
        (b"x" * (FILE_BYTES_MAX + 1), "1:1: the file has more than 1000000 bytes"),
    ],
    ids=range(16),
)
def test_files_that_are_refused(content: bytes, said: str) -> None:
    assert faults(content)[0].startswith(f"p.yaml:{said}")


def test_ten_thousand_rules_fit_and_one_more_does_not() -> None:
    line = "- {{name: n{0}, scope: user, resource: r{0}, capacity: 10, refill_rate: 1}}\n"
    most = "rate_limits:\n" + "".join(line.format(number) for number in range(10_000))
    assert good(most).limits_for("user", "r9999") is not None
    (fault,) = faults(most + line.format(10_000))
    assert fault == "p.yaml:10002:3: rate_limits has 10001 entries; at most 10000"


def test_as_json_tells_all_but_the_store() -> None:
    """A password is in no error and no repr."""
    found = good(WHOLE)
    assert found.runtime.store == "redis://user:hunter2@localhost:6379/0"
    told = found.as_json()
    assert "hunter2" not in repr(found.runtime) + repr(found) + str(told)
    for url in ("redis://u:hunter2@[x", "redi://u:hunter2@x", "redis://u:hunter2@x?a=1&a=2"):
        assert "hunter2" not in "".join(faults(f"runtime: {{store: '{url}'}}\n"))
    assert told["rate_limits"][1] == {
        "name": "anybody", "scope": "user", "resource": None, "limit_name": "tokens",
        "limit": "tokens: 1/10s burst 150", "capacity": 150, "refill_amount": 1,
        "refill_period_seconds": 10, "resets": None, "shadow": False,
        "counts_tokens": False, "key_pattern": None, "charge": None,
    }  # fmt: skip
    assert told["token_costs"] == [{"endpoint": "/api/ml/predict", "tokens": 10}]
    assert told["default_limit"]["capacity"] == 1000


def test_the_parser_in_python_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [WHOLE, rule_with(capacity="0", shadow="yes"), "rate_limits: &a []\n", "a: é\nb: 5\n"]
    fast = [str(check_content(text.encode(), "p.yaml")) for text in texts]
    monkeypatch.setattr(strict_yaml, "_LOADER", yaml.SafeLoader)
    assert [str(check_content(text.encode(), "p.yaml")) for text in texts] == fast


@pytest.mark.parametrize(
    "rate",
    [
        f"1/{PERIOD_SECONDS_MAX}",
        f"{TOKENS_MAX - 1}/{PERIOD_SECONDS_MAX - 1}",
        "0." + "0" * (DECIMALS_MAX - 1) + "1",
        "12345." + "1" * DECIMALS_MAX,
        f"{TOKENS_MAX}",
        f"{TOKENS_MAX}/7",
    ],
)
@pytest.mark.parametrize("burst", ["1", "2.5"])
def test_redis_keeps_every_limit_that_a_file_can_have(rate: str, burst: str) -> None:
    """The longest periods, the most digits and the largest amounts. Redis keeps the fewest limits
    exactly. No policy needs to be checked against the store, because the bounds of the format are
    narrower."""
    capacity = str(int(TOKENS_MAX / Fraction(burst)))
    limit = limit_with(capacity=capacity, refill_rate=rate, burst_multiplier=burst)
    assert limit.capacity == TOKENS_MAX
    check_limits([limit])


def test_check_file_says_which_file(tmp_path: Path) -> None:
    found = check_file(tmp_path / "limits.yaml")
    assert str(found) == f"{tmp_path}/limits.yaml:1:1: cannot be read: No such file or directory"


def test_what_a_breaker_does_not_say_is_as_usual() -> None:
    found = good("runtime: {circuit_breaker: {failure_threshold: 3, timeout_seconds: 0.5}}\n")
    assert found.runtime.breaker == BreakerConfig(3, 2, 500, 60_000)
