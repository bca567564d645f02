"""From a YAML tree to policies, costs and runtime: every rule of the file format, and the values
that a file is read into."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from headgate.core.errors import InvalidNameError, ValidationError
from headgate.core.limits import LIMITS_MAX, Limit, parse_limit_name, parse_resource
from headgate.declare.yaml_fields import (
    PERIOD_SECONDS_MAX,
    FieldReader,
    Fields,
    Findings,
    Node,
    Scalar,
    kind_of,
)
from headgate.layers.breaker import BreakerConfig
from headgate.repository import layer_switches
from headgate.service.decide.rules import DEBT, FIT, SCOPE_LENGTH_MAX, TOKENS, is_scope

ENDPOINT_LENGTH_MAX = 256
PATTERN_LENGTH_MAX = 256

_PLAIN = ("capacity", "refill_rate")
_HOST = re.compile(r"[a-zA-Z0-9_.\-]{1,253}|[0-9a-fA-F:.]{2,64}")
_ENDPOINT = re.compile(r"/[!-~]*")
_PATTERN = re.compile(r"(?:[a-zA-Z0-9_.\-:@/]|\{[a-z][a-z0-9_]{0,31}\})+")
_PATTERN_FIELD = re.compile(r"\{([a-z0-9_]+)\}")
_GIVEN_FIELDS = ("scope", "resource")


@dataclass(frozen=True, slots=True)
class Policy:
    """One limit of an entry of `rate_limits`; without a resource it is its scope's default.

    `limit` has the burst in its capacity, and is soft where the policy is in shadow: it records
    what it would have refused. `label` is what headers and answers call it: the policy's name, and
    the limit's too where the entry lists several. Where several policies are limits of one bucket,
    a request's tokens are of those with `counts_tokens`. `charge` says whether what is charged
    afterwards goes into debt or must fit; None leaves it to how it is asked
    (docs/adr/0025-charges.md).
    """

    name: str
    scope: str
    resource: str | None
    limit: Limit
    key_pattern: str | None = None
    counts_tokens: bool = False
    label: str = ""
    charge: str | None = None

    @property
    def shadow(self) -> bool:
        return self.limit.soft

    @property
    def identifier_key(self) -> str | None:
        """The metadata entry that names who is limited; None where the request's own identifier
        does."""
        return next((name for name in fields_of(self.key_pattern) if name != "identifier"), None)


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the service is run. None is "not said": the command line or the default decides.

    `store` may hold a password, so it is never shown.
    """

    fail_open: bool | None = None
    breaker: BreakerConfig | None = None
    store: str | None = field(default=None, repr=False)


def parse_scope(text: str) -> str:
    if not is_scope(text):
        raise InvalidNameError(
            "scope", text,
            f"must start with a letter and continue with letters, digits and _ . -, at most "
            f"{SCOPE_LENGTH_MAX} characters",
        )  # fmt: skip
    return text


def parse_endpoint(text: str) -> str:
    if len(text) > ENDPOINT_LENGTH_MAX or _ENDPOINT.fullmatch(text) is None:
        raise ValidationError(
            "endpoint", text,
            f"must be a path like /api/search, at most {ENDPOINT_LENGTH_MAX} characters",
        )  # fmt: skip
    return text


def parse_charge(text: str) -> str:
    if text not in (DEBT, FIT):
        raise ValidationError("charge", text, f"must be {DEBT} or {FIT}")
    return text


def fields_of(pattern: str | None) -> list[str]:
    """The fields of a key pattern that say who is limited."""
    found = _PATTERN_FIELD.findall(pattern or "")
    return [name for name in found if name not in _GIVEN_FIELDS]


def parse_key_pattern(text: str) -> str:
    """Literal text, `{scope}`, `{resource}`, and one field that says who is limited."""
    if len(text) > PATTERN_LENGTH_MAX or _PATTERN.fullmatch(text) is None:
        raise ValidationError(
            "key_pattern", text,
            "must be letters, digits, _ . - : @ / and fields like {ip_address}, at most "
            f"{PATTERN_LENGTH_MAX} characters",
        )  # fmt: skip
    if len(fields_of(text)) > 1:
        raise ValidationError(
            "key_pattern", text,
            "has more than one field for who is limited; use one beside {scope} and {resource}",
        )  # fmt: skip
    return text


# --------------------------------------------------------------------------------------------------
# Reading them.

RULES_MAX = 10_000
TOKENS_MAX = 10**12  # what every store keeps exactly, Redis included
FILL_PER_SECOND_MAX = 1000  # a bucket may refill whole a thousand times a second: once a tick
DEFAULT_LIMIT = Limit(TOKENS, 1000, 10, 1)

_AMOUNTS = ("capacity", "refill_rate", "burst_multiplier", "shadow")
_WORDED = ("limit", "limits")  # in the grammar of every other list of limits
_POLICY = (
    "name", "scope", "resource", *_WORDED, "limit_name", *_AMOUNTS, "counts_tokens", "key_pattern",
    "charge", "min_refill_interval_ms",
)  # fmt: skip
_SECTIONS = ("rate_limits", "token_costs", "runtime")
_RUNTIME = ("fail_open", "circuit_breaker", "store", "redis", "default_limit")
_REDIS = ("url", "host", "port", "db", "username", "password", "ssl", "max_connections",
          "socket_timeout")  # fmt: skip


def _does_not_fit(limit: Limit) -> str | None:
    """Why no store keeps the limit exactly; None where all do."""
    if limit.refill_amount > limit.capacity * FILL_PER_SECOND_MAX * limit.refill_period_seconds:
        return f"{limit} refills more than 1000 times its capacity a second"
    if max(limit.capacity, limit.refill_amount) > TOKENS_MAX:
        return f"{limit} does not fit; each of its amounts may be {TOKENS_MAX} tokens"
    if limit.refill_period_seconds > PERIOD_SECONDS_MAX:
        return f"{limit} counts over more than {PERIOD_SECONDS_MAX} seconds"
    return None


def value_of(
    given: Mapping[str, Node], name: str, read: Callable[..., Any], *rest: Any, usual: Any = None
) -> Any:
    """What `read` makes of a field, given its node, its name and the rest; `usual` where the field
    was left out."""
    return read(given[name], name, *rest) if name in given else usual


def _count(reader: FieldReader, node: Node, name: str) -> int | None:
    return reader.whole(node, name, 1, 1000)


def _milliseconds(reader: FieldReader, node: Node, name: str) -> int | None:
    """Seconds as written, in whole milliseconds: rounded down, and at least one."""
    seconds = reader.decimal(node, name, 0, 3600)
    if seconds is not None and seconds * 1000 < 1:
        reader.fault(node, f"{name} must be at least 0.001")
        return None
    return None if seconds is None else int(seconds * 1000)


def _multiplier(reader: FieldReader, node: Node, name: str) -> float | None:
    found = reader.decimal(node, name, 1, 100)
    return None if found is None else float(found)


# The keys of `circuit_breaker`: which setting each is, and how it is read.
_BREAKER: dict[str, tuple[str, Callable[[FieldReader, Node, str], Any]]] = {
    "failure_threshold": ("failures_to_open", _count),
    "success_threshold": ("successes_to_close", _count),
    "timeout_seconds": ("open_ms", _milliseconds),
    "max_timeout_seconds": ("open_ms_max", _milliseconds),
    "backoff_multiplier": ("growth", _multiplier),
}


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
    given = work.reader.fields(root, "the file", _SECTIONS) or {}
    value_of(given, "rate_limits", work.rate_limits)
    value_of(given, "token_costs", work.token_costs)
    value_of(given, "runtime", work.runtime)
    return work.decoded


class _PolicyDecoder:
    def __init__(self, findings: Findings, warnings: Findings) -> None:
        self.reader = FieldReader(findings)
        self.decoded = Decoded()
        self._warnings = warnings
        self._names: dict[str, int] = {}
        self._limits: dict[tuple[str, str | None], dict[str, int]] = {}  # and the line of each
        self._charges: dict[tuple[str, str | None], str] = {}

    def rate_limits(self, node: Node, section: str) -> None:
        for item in self.reader.items(node, section, RULES_MAX):
            self.decoded.policies += self._entry(item)

    def _entry(self, node: Node) -> list[Policy]:
        """The policies of one entry: one for each of its limits."""
        reader = self.reader
        worded = isinstance(node, Fields) and bool(node.values.keys() & {*_WORDED})
        required = ("name", "scope", *(() if worded else _PLAIN))
        given = reader.fields(node, "a rate limit", _POLICY, required)
        if given is None:
            return []
        name = value_of(given, "name", self._name)
        scope = value_of(given, "scope", reader.text, parse_scope)
        resource = value_of(given, "resource", self._resource)
        pattern = value_of(given, "key_pattern", reader.text, parse_key_pattern)
        limit_name = value_of(given, "limit_name", reader.text, parse_limit_name)
        if limit_name is not None and "limits" in given:
            reader.fault(
                given["limit_name"], "limits have names of their own; leave limit_name out"
            )
        counts = bool(value_of(given, "counts_tokens", reader.switch, usual=False))
        charge = value_of(given, "charge", reader.text, parse_charge)
        limits = (self._worded if worded else self._plain)(given, limit_name or TOKENS)
        if scope is None or name is None or not limits:
            return []
        found = []
        for limit in limits:
            label = name if len(limits) == 1 else f"{name}.{limit.name}"
            found.append(Policy(name, scope, resource, limit, pattern, counts, label, charge))
        if charge is not None:
            self._charge(given["charge"], found[0])
        if pattern is not None:
            self._identifier(given["key_pattern"], found[0])
        is_named = limit_name is not None or "limits" in given
        return [self._add_limit(node, policy, is_named=is_named) for policy in found]

    def _plain(self, given: dict[str, Node], limit_name: str) -> tuple[Limit, ...]:
        limit = self._limit(given, limit_name)
        return () if limit is None else (limit,)

    def _worded(self, given: dict[str, Node], limit_name: str) -> tuple[Limit, ...]:
        """`limit: 100/minute burst 150 soft`, or `limits:` and a list of such."""
        said = [name for name in (*_WORDED, *_AMOUNTS[:3]) if name in given]
        if len(said) > 1:
            told = f"{said[0]} says it all; leave out {', '.join(said[1:])}"
            self.reader.fault(given[said[1]], told)
            return ()
        shadow = value_of(given, "shadow", self.reader.switch, usual=False)
        found = self._read_worded(given[said[0]], said[0], limit_name)
        return tuple(replace(one, soft=one.soft or bool(shadow)) for one in found)

    def _read_worded(self, node: Node, field: str, limit_name: str) -> tuple[Limit, ...]:
        if field == "limits":
            found = self.reader.limits(node) or ()
        else:
            limit = self._unnamed(node, limit_name)
            found = () if limit is None else (limit,)
        for limit in found:
            told = _does_not_fit(limit)
            if told is not None:
                self.reader.fault(node, told)
                return ()
        return found

    def _unnamed(self, node: Node, limit_name: str) -> Limit | None:
        """One limit in words, or in numbers, without its name."""
        if isinstance(node, Fields):
            return self.reader.limit(node, limit_name)
        words = self.reader.word(node, "limit")
        if words is None:
            return None
        return self.reader.made(node, lambda: Limit.parse(words, name=limit_name))

    def _name(self, node: Node, field: str) -> str | None:
        name = self.reader.text(node, field, parse_limit_name)
        if name == TOKENS:
            self.reader.fault(node, f"the name {name!r} is taken by headgate; choose another")
        elif name in self._names:
            self.reader.fault(node, f"the name {name!r} is already on line {self._names[name]}")
        elif name is not None:
            self._names[name] = node.line
        return name

    def _resource(self, node: Node, field: str) -> str | None:
        if isinstance(node, Scalar) and node.text == "*":
            self.reader.fault(node, "resource '*' is not a name; leave resource out to say 'all'")
            return None
        return self.reader.text(node, field, parse_resource)

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

    def _charge(self, node: Node, policy: Policy) -> None:
        """A charge is taken of all limits of a bucket, or of none."""
        place = (policy.scope, policy.resource)
        known = self._charges.setdefault(place, policy.charge or "")
        if known != policy.charge:
            self.reader.fault(
                node, f"charge and an earlier one of the same scope and resource differ: {known!r}"
            )

    def _add_limit(self, node: Node, policy: Policy, *, is_named: bool) -> Policy:
        """Policies for one (scope, resource) are limits of one bucket, which has so many seats.

        Where they do not say what their limits are called, the first is the plain limit and the
        others go by their names: a bucket that gets a second policy keeps the level of its first.
        """
        known = self._limits.setdefault((policy.scope, policy.resource), {})
        name = policy.limit.name if is_named or not known else policy.name
        where = f"{policy.scope}/{policy.resource}" if policy.resource else policy.scope
        if name in known:
            told = f"the limit {name!r} of {where} is already on line {known[name]}"
            self.reader.fault(node, told)
        known.setdefault(name, node.line)
        if len(known) == LIMITS_MAX + 1:
            self.reader.fault(node, f"{where} has more than {LIMITS_MAX} rate limits")
        return replace(policy, limit=replace(policy.limit, name=name))

    def token_costs(self, node: Node, section: str) -> None:
        reader = self.reader
        lines: dict[str, int] = {}
        for item in reader.items(node, section, RULES_MAX):
            known = ("endpoint", "tokens")
            given = reader.fields(item, "a token cost", known, known)
            if given is None or len(given) < len(known):
                continue
            endpoint = reader.text(given["endpoint"], "endpoint", parse_endpoint)
            tokens = reader.whole(given["tokens"], "tokens", 1, TOKENS_MAX)
            if endpoint in lines:
                told = f"the endpoint {endpoint!r} is already on line {lines[endpoint]}"
                reader.fault(given["endpoint"], told)
            elif endpoint is not None:
                lines[endpoint] = item.line
                self.decoded.costs[endpoint] = tokens or 1

    def runtime(self, node: Node, section: str) -> None:
        """Outages, the breaker, the store and the global default."""
        given = self.reader.fields(node, section, _RUNTIME) or {}
        if "store" in given and "redis" in given:
            self.reader.fault(given["redis"], "runtime.redis and runtime.store: keep one of them")
        self.decoded.runtime = Runtime(
            value_of(given, "fail_open", self._fail_open),
            value_of(given, "circuit_breaker", self._breaker),
            value_of(given, "redis", self._redis, usual=value_of(given, "store", self._store)),
        )
        self.decoded.default = value_of(given, "default_limit", self._default, usual=DEFAULT_LIMIT)

    def _fail_open(self, node: Node, field: str) -> bool | None:
        return self.reader.switch(node, f"runtime.{field}")

    def _default(self, node: Node, field: str) -> Limit | None:
        if isinstance(node, Scalar) and node.plain and node.text == "none":
            return None
        if isinstance(node, Scalar):
            return next(iter(self._read_worded(node, "limit", DEFAULT_LIMIT.name)), None)
        given = self.reader.fields(node, field, _AMOUNTS, ("capacity", "refill_rate"))
        return None if given is None else self._limit(given, DEFAULT_LIMIT.name)

    def _store(self, node: Node, field: str) -> str | None:
        """A URL that headgate can open. It may hold a password, so no error repeats it."""
        if not isinstance(node, Scalar):
            self.reader.fault(node, f"runtime.{field} must be text")
            return None
        try:
            layer_switches(node.text)
        except ValidationError:
            like = "sqlite:///limits.db or redis://host:6379/0"
            self.reader.fault(node, f"runtime.{field} is not the URL of a store, like {like}")
            return None
        return node.text

    def _redis(self, node: Node, field: str) -> str | None:
        """The store as a Redis by its parts, or by its URL: both make the URL of `store`."""
        reader, what = self.reader, f"runtime.{field}"
        if isinstance(node, Scalar):
            return self._store(node, field)
        given = reader.fields(node, what, _REDIS) or {}
        if "url" in given:
            for name in given.keys() - {"url", "max_connections", "socket_timeout"}:
                reader.fault(given[name], f"{what}.{name} is in the URL already")
            url = self._store(given["url"], f"{field}.url")
        else:
            url = self._redis_url(given)
        options = {
            "connections": value_of(given, "max_connections", reader.whole, 1, 1000),
            "timeout_ms": value_of(given, "socket_timeout", partial(_milliseconds, reader)),
        }
        said = urlencode({name: value for name, value in options.items() if value is not None})
        if url is None or not said:
            return url
        return f"{url}{'&' if '?' in url else '?'}{said}"

    def _redis_url(self, given: dict[str, Node]) -> str | None:
        reader = self.reader
        host = value_of(given, "host", reader.word, usual="localhost")
        port = value_of(given, "port", reader.whole, 1, 65_535, usual=6379)
        db = value_of(given, "db", reader.whole, 0, 16_383, usual=0)
        secure = value_of(given, "ssl", reader.switch, usual=False)
        if host is not None and _HOST.fullmatch(host) is None:
            reader.fault(given["host"], "host must be a name or an address, without a port")
            return None
        login = [quote(self._secret(given, name), safe="") for name in ("username", "password")]
        at = f"{':'.join(login)}@" if any(login) else ""
        if None in (host, port, db, secure):
            return None
        shown = f"[{host}]" if ":" in host else host
        return f"redis{'s' if secure else ''}://{at}{shown}:{port}/{db}"

    def _secret(self, given: Mapping[str, Node], name: str) -> str:
        """Text that no error repeats; nothing is none."""
        node = given.get(name)
        if node is None or kind_of(node) == "nothing":
            return ""
        if isinstance(node, Scalar):
            return node.text
        self.reader.fault(node, f"runtime.redis.{name} must be text")
        return ""

    def _breaker(self, node: Node, field: str) -> BreakerConfig | None:
        given = self.reader.fields(node, field, tuple(_BREAKER)) or {}
        values: dict[str, Any] = {}
        for name, one in given.items():
            setting, read = _BREAKER[name]
            values[setting] = read(self.reader, one, name)
        if None in values.values():
            return None
        usual = BreakerConfig()
        if values.get("open_ms", usual.open_ms) > values.get("open_ms_max", usual.open_ms_max):
            self.reader.fault(node, "timeout_seconds is more than max_timeout_seconds")
            return None
        return BreakerConfig(**values)

    def _limit(self, given: dict[str, Node], name: str) -> Limit | None:
        """The amounts as written, made into an exact limit."""
        reader = self.reader
        capacity = value_of(given, "capacity", reader.whole, 1, TOKENS_MAX)
        rate = value_of(given, "refill_rate", reader.rate)
        burst = value_of(given, "burst_multiplier", reader.decimal, 1, 10**6, usual=1)
        shadow = value_of(given, "shadow", reader.switch, usual=False)
        unused = "min_refill_interval_ms"
        if value_of(given, unused, reader.whole, 0, 10**9) is not None:
            told = f"{unused} has no effect: refill is exact at any interval"
            self._warnings.add(given[unused], told)
        if capacity is None or rate is None or burst is None or shadow is None:
            return None
        whole = int(capacity * burst)  # floor: a part of a token admits nothing
        most = capacity * FILL_PER_SECOND_MAX
        if rate > most:
            told = f"refill_rate is more than {most} a second, 1000 times capacity"
        elif whole > TOKENS_MAX or rate.numerator > TOKENS_MAX:
            told = (
                f"capacity {whole} and {rate.numerator} tokens every {rate.denominator} s do not "
                f"fit; each may be {TOKENS_MAX} tokens"
            )
        else:
            return Limit(name, whole, rate.numerator, rate.denominator, shadow)
        reader.fault(given["refill_rate"], told)
        return None
