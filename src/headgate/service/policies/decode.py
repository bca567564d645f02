"""From a YAML tree to policies, costs and runtime; every rule of the file format is here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from headgate.core.errors import ValidationError
from headgate.core.limits import LIMITS_MAX, Limit, parse_limit_name, parse_resource
from headgate.declare.yaml_fields import FieldReader
from headgate.declare.yaml_tree import Findings, Node, Scalar
from headgate.repository import layer_switches
from headgate.service.decide.rules import TOKENS
from headgate.service.policies.values import (
    AMOUNTS,
    Amounts,
    BreakerSettings,
    Policy,
    Runtime,
    fields_of,
    parse_endpoint,
    parse_key_pattern,
    parse_scope,
)

# --------------------------------------------------------------------------------------------------
# The runtime section of a policy file: outages, the breaker, the store, the global default.

DEFAULT_LIMIT = Limit(TOKENS, 1000, 10, 1)

_KEYS = ("fail_open", "circuit_breaker", "store", "default_limit")
_BREAKER = (
    "failure_threshold", "success_threshold", "timeout_seconds", "max_timeout_seconds",
    "backoff_multiplier",
)  # fmt: skip


class RuntimeSection:
    """What `read` found; the defaults where the file says nothing."""

    def __init__(self, reader: FieldReader, amounts: Amounts) -> None:
        self._reader = reader
        self._amounts = amounts
        self.runtime = Runtime()
        self.default: Limit | None = DEFAULT_LIMIT

    def read(self, node: Node) -> None:
        reader = self._reader
        given = reader.fields(node, "runtime", _KEYS)
        if given is None:
            return
        fail_open = breaker = store = None
        if "fail_open" in given:
            fail_open = reader.switch(given["fail_open"], "runtime.fail_open")
        if "circuit_breaker" in given:
            breaker = self._breaker(given["circuit_breaker"])
        if "store" in given:
            store = self._store(given["store"])
        if "default_limit" in given:
            self._default(given["default_limit"])
        self.runtime = Runtime(fail_open, breaker, store)

    def _default(self, node: Node) -> None:
        if isinstance(node, Scalar) and node.plain and node.text == "none":
            self.default = None
            return
        given = self._reader.fields(node, "default_limit", AMOUNTS, ("capacity", "refill_rate"))
        if given is not None:
            self.default = self._amounts.limit(given, DEFAULT_LIMIT.name)

    def _store(self, node: Node) -> str | None:
        """A URL that headgate can open. It may hold a password, so no error repeats it."""
        if not isinstance(node, Scalar):
            self._reader.fault(node, "runtime.store must be text")
            return None
        try:
            layer_switches(node.text)
        except ValidationError:
            self._reader.fault(
                node,
                "runtime.store is not the URL of a store, like sqlite:///limits.db or "
                "redis://host:6379/0",
            )
            return None
        return node.text

    def _breaker(self, node: Node) -> BreakerSettings | None:
        given = self._reader.fields(node, "circuit_breaker", _BREAKER)
        if given is None:
            return None
        usual = BreakerSettings()
        failures = self._count(given, "failure_threshold", usual.failure_threshold)
        successes = self._count(given, "success_threshold", usual.success_threshold)
        timeout_ms = self._ms(given, "timeout_seconds", usual.timeout_ms)
        timeout_ms_max = self._ms(given, "max_timeout_seconds", usual.timeout_ms_max)
        backoff: Fraction | None = usual.backoff_multiplier
        if "backoff_multiplier" in given:
            backoff = self._reader.decimal(
                given["backoff_multiplier"], "backoff_multiplier", 1, 100
            )
        if not (failures and successes and timeout_ms and timeout_ms_max and backoff):
            return None
        if timeout_ms > timeout_ms_max:
            self._reader.fault(node, "timeout_seconds is more than max_timeout_seconds")
            return None
        return BreakerSettings(failures, successes, timeout_ms, timeout_ms_max, backoff)

    def _count(self, given: dict[str, Node], name: str, usual: int) -> int | None:
        return self._reader.whole(given[name], name, 1, 1000) if name in given else usual

    def _ms(self, given: dict[str, Node], name: str, usual_ms: int) -> int | None:
        """Seconds as written, in whole milliseconds: rounded down, and at least one."""
        if name not in given:
            return usual_ms
        seconds = self._reader.decimal(given[name], name, 0, 3600)
        if seconds is not None and seconds * 1000 < 1:
            self._reader.fault(given[name], f"{name} must be at least 0.001")
            return None
        return None if seconds is None else int(seconds * 1000)


RULES_MAX = 10_000
COST_MAX = 100_000

_SECTIONS = ("rate_limits", "token_costs", "runtime")
_POLICY = ("name", "scope", "resource", *AMOUNTS, "key_pattern", "min_refill_interval_ms")


@dataclass
class Decoded:
    """What was read; of use only where nothing was found wrong."""

    policies: list[Policy] = field(default_factory=list)
    identifier_keys: dict[str, str | None] = field(default_factory=dict)
    costs: dict[str, int] = field(default_factory=dict)
    default: Limit | None = DEFAULT_LIMIT
    runtime: Runtime = field(default_factory=Runtime)


def decode(root: Node, findings: Findings, warnings: Findings) -> Decoded:
    """The whole file; all that is wrong goes to `findings`, what has no effect to `warnings`."""
    work = _PolicyDecoder(findings, warnings)
    sections = work.reader.fields(root, "the file", _SECTIONS) or {}
    if "rate_limits" in sections:
        work.rate_limits(sections["rate_limits"])
    if "token_costs" in sections:
        work.token_costs(sections["token_costs"])
    if "runtime" in sections:
        runtime = RuntimeSection(work.reader, work.amounts)
        runtime.read(sections["runtime"])
        work.decoded.runtime, work.decoded.default = runtime.runtime, runtime.default
    return work.decoded


class _PolicyDecoder:
    def __init__(self, findings: Findings, warnings: Findings) -> None:
        self.reader = FieldReader(findings)
        self.amounts = Amounts(self.reader, warnings)
        self.decoded = Decoded()
        self._names: dict[str, int] = {}
        self._seats: dict[tuple[str, str | None], int] = {}

    def rate_limits(self, node: Node) -> None:
        for item in self.reader.items(node, "rate_limits", RULES_MAX):
            policy = self._policy(item)
            if policy is not None:
                self.decoded.policies.append(policy)

    def _policy(self, node: Node) -> Policy | None:
        reader = self.reader
        given = reader.fields(
            node, "a rate limit", _POLICY, ("name", "scope", "capacity", "refill_rate")
        )
        if given is None:
            return None
        name = self._name(given.get("name"))
        scope = resource = pattern = None
        if "scope" in given:
            scope = reader.text(given["scope"], "scope", parse_scope)
        if "resource" in given:
            resource = self._resource(given["resource"])
        if "key_pattern" in given:
            pattern = reader.text(given["key_pattern"], "key_pattern", parse_key_pattern)
        limit = self.amounts.limit(given, TOKENS)
        if scope is None or limit is None or name is None:
            return None
        policy = Policy(name, scope, resource, limit, pattern)
        if pattern is not None:
            self._identifier(given["key_pattern"], policy)
        return self._add_limit(node, policy)

    def _name(self, node: Node | None) -> str | None:
        if node is None:
            return None
        name = self.reader.text(node, "name", parse_limit_name)
        if name == TOKENS:
            self.reader.fault(node, f"the name {name!r} is taken by headgate; choose another")
        elif name in self._names:
            self.reader.fault(node, f"the name {name!r} is already on line {self._names[name]}")
        elif name is not None:
            self._names[name] = node.line
        return name

    def _resource(self, node: Node) -> str | None:
        if isinstance(node, Scalar) and node.text == "*":
            self.reader.fault(node, "resource '*' is not a name; leave resource out to say 'all'")
            return None
        return self.reader.text(node, "resource", parse_resource)

    def _identifier(self, node: Node, policy: Policy) -> None:
        """Who is limited must be the same for all policies of a scope: a request resolves its
        identifier before it knows its policy."""
        if not fields_of(policy.key_pattern) and policy.scope != "global":
            self.reader.fault(node, "key_pattern needs a field that says who is limited")
            return
        keys = self.decoded.identifier_keys
        if keys.setdefault(policy.scope, policy.identifier_key) != policy.identifier_key:
            known = keys[policy.scope] or "identifier"
            self.reader.fault(
                node, f"key_pattern and an earlier one of scope {policy.scope} differ: {known!r}"
            )

    def _add_limit(self, node: Node, policy: Policy) -> Policy:
        """Policies for one (scope, resource) are limits of one bucket, which has so many seats.

        The first is the plain limit, the others go by their names: a bucket that gets a second
        policy keeps the level of its first.
        """
        place = (policy.scope, policy.resource)
        seat = self._seats[place] = self._seats.get(place, 0) + 1
        if seat == LIMITS_MAX + 1:
            where = f"{policy.scope}/{policy.resource}" if policy.resource else policy.scope
            self.reader.fault(node, f"{where} has more than {LIMITS_MAX} rate limits")
        if seat == 1:
            return policy
        return replace(policy, limit=replace(policy.limit, name=policy.name))

    def token_costs(self, node: Node) -> None:
        reader = self.reader
        lines: dict[str, int] = {}
        for item in reader.items(node, "token_costs", RULES_MAX):
            known = ("endpoint", "tokens")
            given = reader.fields(item, "a token cost", known, known)
            if given is None or len(given) < len(known):
                continue
            endpoint = reader.text(given["endpoint"], "endpoint", parse_endpoint)
            tokens = reader.whole(given["tokens"], "tokens", 1, COST_MAX)
            if endpoint is not None and endpoint in lines:
                reader.fault(
                    given["endpoint"],
                    f"the endpoint {endpoint!r} is already on line {lines[endpoint]}",
                )
            elif endpoint is not None:
                lines[endpoint] = item.line
                self.decoded.costs[endpoint] = tokens or 1
