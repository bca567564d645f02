"""Repository: buckets, catalog and ledger of one URL, opened together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from headgate.admin.namespaces import NamespaceAdmin
from headgate.admin.operations import Operations
from headgate.core.errors import ValidationError
from headgate.core.limits import DEFAULT_NAMESPACE
from headgate.core.plan import ENTRIES_MAX
from headgate.core.plan_cache import Configs
from headgate.core.runtime import Clock
from headgate.layers.stack import split_options
from headgate.stores.catalog import Backend
from headgate.transport.gates import gate_factory_for, steady_clock

# --------------------------------------------------------------------------------------------------
# From a URL to a backend: one table of stores; a new one is one line.

URL_LENGTH_MAX = 4096
DAYS_MAX = 36_500  # a century

_PASSWORD = re.compile(r"(password=)[^&]*", re.IGNORECASE)
_TABLE = re.compile(r"[a-zA-Z0-9_.\-]{3,255}")


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What an opener is given: the URL in parts, whether the caller blocks, and its clock.
    `cache_entries` is how many buckets a store that keeps their states remembers."""

    url: str
    parts: SplitResult
    options: Mapping[str, str]
    blocking: bool
    clock: Clock | None
    strict: bool = False
    cache_entries: int = ENTRIES_MAX

    @property
    def shown(self) -> str:
        return redact_url(self.url)

    def only(self, *known: str) -> None:
        """Refuses options that would be ignored."""
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            offered = ", ".join(known) or "none"
            raise ValidationError(
                "url", self.shown, f"has an unknown option {unknown[0]!r}; there are: {offered}"
            )

    def whole_number(self, name: str, default: int, *, least: int, most: int) -> int:
        text = self.options.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 19) or not (
            least <= int(text) <= most
        ):
            raise ValidationError(
                "url", self.shown, f"has {name}={text!r}; it must be from {least} to {most}"
            )
        return int(text)

    def days(self, name: str) -> int | None:
        return self.whole_number(name, 0, least=1, most=DAYS_MAX) or None

    def one_of(self, name: str, default: str, *others: str) -> str:
        text = self.options.get(name, default)
        if text not in (default, *others):
            offered = ", ".join((default, *others))
            raise ValidationError("url", f"{name}={text}", f"must be one of {offered}")
        return text


def _memory(request: OpenRequest) -> Backend:
    from headgate.stores.memory import open_memory
    from headgate.stores.memory.buckets import BUCKETS_MAX

    request.only("buckets_max")
    if request.parts.netloc or request.parts.path not in ("", "/"):
        raise ValidationError("url", request.shown, "names something; memory:// has no name")
    bound = request.whole_number("buckets_max", BUCKETS_MAX, least=1, most=10**8)
    return open_memory(request.clock, buckets_max=bound)


def _sqlite(request: OpenRequest) -> Backend:
    from headgate.stores.sqlite import open_sqlite

    request.only("synchronous", "timeout_ms")
    if request.parts.netloc:
        raise ValidationError(
            "url", request.shown, "names a host; write sqlite:///file.db or sqlite:////absolute.db"
        )
    path = unquote(request.parts.path.removeprefix("/"))
    return open_sqlite(
        path,
        clock=request.clock,
        blocking=request.blocking,
        timeout_ms=request.whole_number("timeout_ms", 5000, least=0, most=600_000),
        synchronous=request.options.get("synchronous", "normal"),
    )


@contextmanager
def _extra(name: str, request: OpenRequest) -> Iterator[None]:
    """Imports of a store whose packages come with an extra; without them, says which."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValidationError(
            "url", request.parts.scheme + "://…",
            f"needs a package that is not installed ({error.name}): pip install 'headgate[{name}]'",
        ) from error  # fmt: skip


def _redis(request: OpenRequest) -> Backend:
    with _extra("redis", request):
        from headgate.stores.redis import open_redis
    usage = request.one_of("usage", "on", "off")
    rest = urlencode([pair for pair in request.options.items() if pair[0] != "usage"])
    url = request.url.split("?", 1)[0] + ("?" + rest if rest else "")
    return open_redis(url, blocking=request.blocking, usage=usage == "on")


def _dynamodb(request: OpenRequest) -> Backend:
    with _extra("dynamodb", request):
        from headgate.stores.dynamodb import open_dynamodb
    request.only(
        "region", "endpoint", "timeout_ms", "connections", "strict", "usage", "audit_days",
        "usage_days",
    )  # fmt: skip
    name = request.parts.netloc
    if not _TABLE.fullmatch(name) or request.parts.path not in ("", "/"):
        raise ValidationError(
            "url", request.shown,
            "must name a table, as in dynamodb://headgate?region=eu-west-1: 3 to 255 letters, "
            "digits and _ . -",
        )  # fmt: skip
    return open_dynamodb(
        name,
        region=request.options.get("region"),
        endpoint=request.options.get("endpoint"),
        blocking=request.blocking,
        timeout_ms=request.whole_number("timeout_ms", 2000, least=1, most=600_000),
        connections=request.whole_number("connections", 16, least=1, most=1000),
        strict=request.strict or request.one_of("strict", "off", "on") == "on",
        usage=request.one_of("usage", "local", "stream", "off"),
        audit_days=request.days("audit_days"),
        usage_days=request.days("usage_days"),
        buckets_max=request.cache_entries,
    )


OPENERS: dict[str, Callable[[OpenRequest], Backend]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    **dict.fromkeys(
        ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster",
         "rediss+cluster"), _redis,
    ),
    "dynamodb": _dynamodb,
}  # fmt: skip


def open_backend(
    url: object,
    *,
    blocking: bool,
    clock: Clock | None = None,
    strict: bool = False,
    cache_entries: int = ENTRIES_MAX,
) -> Backend:
    """The backend a URL names; nothing is contacted yet. Layers are the limiter's business.

    `strict` asks for several buckets in one step; a store that cannot is refused.
    """
    parts, options = _read(url)
    opener = OPENERS[parts.scheme]
    _, rest = split_options(redact_url(str(url)), options)
    rest.pop("cache_entries", None)
    entries = cache_entries_of(url, cache_entries)
    backend = opener(OpenRequest(str(url), parts, rest, blocking, clock, strict, entries))
    return check_strict(backend) if strict else backend


def cache_entries_of(url: object, default: int) -> int:
    """For how many entities on a resource a process remembers limits, and on DynamoDB buckets, as
    in `dynamodb://table?cache_entries=50000`."""
    parts, options = _read(url)
    request = OpenRequest(str(url), parts, options, blocking=True, clock=None)
    return request.whole_number("cache_entries", default, least=1, most=10**7)


def check_strict(backend: Backend) -> Backend:
    """The backend, if it decides several buckets in one step."""
    if backend.capabilities.atomic != "one step":
        raise ValidationError(
            "strict", True,
            f"is not what {backend.capabilities.name} can do as it was opened: it takes from "
            f"several buckets apart and undoes; open dynamodb://…?strict=on, one Redis server "
            f"instead of a cluster, or leave strict out",
        )  # fmt: skip
    return backend


def redact_url(url: str) -> str:
    """A URL as an error may quote it: logins and passwords stay hidden, wherever they stand."""
    head, slashes, rest = url.partition("://")
    _, at, place = rest.rpartition("@")
    return _PASSWORD.sub(r"\1…", f"{head}{slashes}…@{place}" if at else url)


def layer_switches(url: str) -> dict[str, bool]:
    """Which layers a URL switches on or off, as in `redis://…?prefetch=on&breaker=off`."""
    _, options = _read(url)
    return split_options(redact_url(url), options)[0]


def _read(url: object) -> tuple[SplitResult, dict[str, str]]:
    if not isinstance(url, str) or len(url) > URL_LENGTH_MAX:
        raise ValidationError(
            "url", "<not shown>", f"must be a str of at most {URL_LENGTH_MAX} characters"
        )
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ValidationError("url", redact_url(url), f"cannot be read: {error}") from error
    if parts.scheme not in OPENERS or "://" not in url:
        schemes = ", ".join(f"{scheme}://" for scheme in OPENERS)
        raise ValidationError(
            "url", redact_url(url), f"has no store behind it; use one of {schemes}"
        )
    if len(dict(options)) != len(options):
        raise ValidationError("url", redact_url(url), "gives an option twice")
    return parts, dict(options)


DEFAULT_URL = "memory://"
CACHE_TTL_S = 60.0


class Repository(NamespaceAdmin, Operations):
    """All that is stored, seen from one namespace.

    `Repository("sqlite:///limits.db")` connects when it is first used; `await Repository.open(…)`
    makes sure now that the store is there and fit for use. Without a URL, `HEADGATE_URL` decides,
    else memory.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        config_cache_ttl: float = CACHE_TTL_S,
        clock: Clock | None = None,
        _blocking: bool = False,
        _backend: Backend | None = None,
        _strict: bool = False,
        _cache_entries: int = ENTRIES_MAX,
    ) -> None:
        self.url = url or os.environ.get("HEADGATE_URL") or DEFAULT_URL
        self.blocking = _blocking
        self.given_clock = clock
        self._config_cache_ttl = config_cache_ttl
        self._cache_entries = cache_entries_of(self.url, _cache_entries)
        backend = _backend or open_backend(
            self.url, blocking=_blocking, clock=clock, strict=_strict, cache_entries=_cache_entries
        )
        time = clock or steady_clock()
        pace = gate_factory_for(clock, blocking=_blocking)
        configs = Configs(backend.catalog, namespace, config_cache_ttl, time, pace)
        configs.cache.entries_max = self._cache_entries
        self._bind(backend, configs, time, drives_time=_drives_time(backend, clock))

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        config_cache_ttl: float = CACHE_TTL_S,
        clock: Clock | None = None,
    ) -> Self:
        """A repository whose store is there and whose namespace is registered."""
        repository = cls(url, namespace=namespace, config_cache_ttl=config_cache_ttl, clock=clock)
        await repository._make_ready()
        return repository

    async def _make_ready(self) -> None:
        try:
            await self.create_table()
            await self.configs.namespace_id()
        except BaseException:
            await self.close()
            raise

    @classmethod
    def builder(cls) -> Builder:
        """The same piece by piece: `Repository.builder().url(…).namespace(…).build()`."""
        return Builder()

    @property
    def namespace_name(self) -> str:
        return self.configs.namespace

    def namespace(self, name: str) -> Repository:
        """The same store seen from another namespace; closing either closes both."""
        return Repository(
            self.url,
            namespace=name,
            config_cache_ttl=self._config_cache_ttl,
            clock=self.given_clock,
            _blocking=self.blocking,
            _backend=self.backend,
            _cache_entries=self._cache_entries,
        )

    async def close(self) -> None:
        """Closes the store; whatever else uses it stops working."""
        await self.backend.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _drives_time(backend: Backend, clock: Clock | None) -> bool:
    """Whether our time is passed to the store: a given clock, or the only process that uses it."""
    can = backend.capabilities
    return can.obeys_clock and (clock is not None or can.shared == "process")


class BuilderOptions:
    """The choices of a builder: the arguments of `open`, one call each."""

    def __init__(self) -> None:
        self._options: dict[str, Any] = {}

    def url(self, url: str) -> Self:
        return self._choose(url=url)

    def namespace(self, name: str) -> Self:
        return self._choose(namespace=name)

    def config_cache_ttl(self, seconds: float) -> Self:
        return self._choose(config_cache_ttl=seconds)

    def clock(self, clock: Clock) -> Self:
        return self._choose(clock=clock)

    def _choose(self, **option: Any) -> Self:
        self._options |= option
        return self


class Builder(BuilderOptions):
    """`await Repository.builder().url("sqlite:///limits.db").namespace("eu").build()`"""

    async def build(self) -> Repository:
        return await Repository.open(**self._options)
