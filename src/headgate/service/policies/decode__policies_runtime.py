"""The runtime section of a policy file: outages, the breaker, the store, the global default."""

from __future__ import annotations

from fractions import Fraction

from headgate.core.errors import ValidationError
from headgate.core.limits import Limit
from headgate.declare.yaml_fields import Reader
from headgate.declare.yaml_tree import Node, Scalar
from headgate.repository__connect import layer_switches
from headgate.service.decide.rules import TOKENS
from headgate.service.policies.values import BreakerSettings, Runtime
from headgate.service.policies.values__policies_amounts import AMOUNTS, Amounts

DEFAULT_LIMIT = Limit(TOKENS, 1000, 10, 1)

_KEYS = ("fail_open", "circuit_breaker", "store", "default_limit")
_BREAKER = (
    "failure_threshold", "success_threshold", "timeout_seconds", "max_timeout_seconds",
    "backoff_multiplier",
)  # fmt: skip


class RuntimeSection:
    """What `read` found; the defaults where the file says nothing."""

    def __init__(self, reader: Reader, amounts: Amounts) -> None:
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
