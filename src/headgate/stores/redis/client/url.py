"""From a URL to what is to be connected to: nodes, login, TLS, time limits. Contacts nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from headgate.core.errors import ValidationError

SINGLE, SENTINEL, CLUSTER = "single", "sentinel", "cluster"
PORT, SENTINEL_PORT = 6379, 26379
TIMEOUT_MS_MAX = 600_000
CONNECTIONS, CONNECTIONS_MAX = 8, 1000
NODES_MAX = 100
DB_MAX = 16_383

_KINDS = {
    "redis": (SINGLE, False),
    "rediss": (SINGLE, True),
    "unix": (SINGLE, False),
    "redis+sentinel": (SENTINEL, False),
    "rediss+sentinel": (SENTINEL, True),
    "redis+cluster": (CLUSTER, False),
    "rediss+cluster": (CLUSTER, True),
}
SCHEMES = tuple(_KINDS)
_COMMON = ("timeout_ms", "connections")
_TLS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_check_hostname", "ssl_certfile", "ssl_keyfile")
_REQS = ("required", "optional", "none")


class Node(NamedTuple):
    """Where one server listens; port 0 is a unix socket, whose path is then the host."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.port == 0:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Access:
    """How a connection is made and introduced; `tls` holds redis-py's ssl options."""

    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: Mapping[str, str | bool] | None = None

    def __repr__(self) -> str:  # a password must not reach a log
        return f"Access({self.username!r}, db={self.db}, tls={self.tls is not None})"


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """All a URL says; `access` is for the data nodes, `sentinel_access` for the sentinels."""

    kind: str
    nodes: tuple[Node, ...]
    access: Access
    service: str
    sentinel_access: Access
    timeout_ms: int
    connections: int


def parse(url: str, timeout_ms: int = 1000) -> RedisTarget:
    """The target of a URL; what cannot be meant is a ValidationError that hides the password."""
    shown = _without_password(url)
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ValidationError("url", shown, f"cannot be read: {error}") from error
    if parts.scheme not in _KINDS or "://" not in url:
        raise ValidationError("url", shown, f"is not one of {', '.join(SCHEMES)}")
    return _UrlReader(shown, parts, pairs, timeout_ms).target()


class _UrlReader:
    """One URL being read."""

    def __init__(
        self, shown: str, parts: SplitResult, pairs: list[tuple[str, str]], timeout_ms: int
    ) -> None:
        self.shown = shown
        self.parts = parts
        self.options = dict(pairs)
        self.kind, self.secure = _KINDS[parts.scheme]
        self.path = [unquote(piece) for piece in parts.path.split("/") if piece]
        self.timeout_ms = timeout_ms
        if len(self.options) != len(pairs):
            raise self.wrong("gives an option twice")
        if parts.fragment:
            raise self.wrong("has a #fragment; write %23 for a # in a password")

    def target(self) -> RedisTarget:
        self._only_known()
        access, options = self._access(), self.options
        login = options.get("sentinel_username"), options.get("sentinel_password")
        return RedisTarget(
            kind=self.kind,
            nodes=self._nodes(),
            access=access,
            service=self.path[0] if self.kind == SENTINEL else "",
            sentinel_access=Access(*login, tls=access.tls),
            timeout_ms=self.number("timeout_ms", self.timeout_ms, 1, TIMEOUT_MS_MAX),
            connections=self.number("connections", CONNECTIONS, 1, CONNECTIONS_MAX),
        )

    def wrong(self, reason: str) -> ValidationError:
        return ValidationError("url", self.shown, reason)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.options.get(name)
        return default if text is None else self._whole(name, text, least, most)

    def _only_known(self) -> None:
        known = _COMMON + (_TLS if self.secure else ())
        if self.parts.scheme == "unix":
            known += ("db",)
        if self.kind == SENTINEL:
            known += ("sentinel_username", "sentinel_password")
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            raise self.wrong(f"has an unknown option {unknown[0]!r}; there are: {', '.join(known)}")

    def _access(self) -> Access:
        login, _, _ = self.parts.netloc.rpartition("@")
        username, _, password = login.partition(":")
        return Access(
            username=unquote(username) or None,
            password=unquote(password) or None,
            db=self._db(),
            tls=self._tls() if self.secure else None,
        )

    def _db(self) -> int:
        if self.parts.scheme == "unix":
            return self.number("db", 0, 0, DB_MAX)
        pieces = list(self.path)
        if self.kind == SENTINEL:
            if not pieces:
                raise self.wrong("names no service; write redis+sentinel://host:26379/service")
            pieces = pieces[1:]
        if len(pieces) > 1:
            raise self.wrong("has a path that is more than a database number")
        most = 0 if self.kind == CLUSTER else DB_MAX  # a cluster has database 0 only
        return self._whole("database", pieces[0], 0, most) if pieces else 0

    def _tls(self) -> dict[str, str | bool]:
        tls: dict[str, str | bool] = {
            name: self.options[name] for name in _TLS if name in self.options
        }
        if tls.setdefault("ssl_cert_reqs", "required") not in _REQS:
            raise self.wrong(f"has ssl_cert_reqs={tls['ssl_cert_reqs']!r}; use {', '.join(_REQS)}")
        check = tls.get("ssl_check_hostname", "true")
        if check not in ("true", "false"):
            raise self.wrong(f"has ssl_check_hostname={check!r}; use true or false")
        tls["ssl_check_hostname"] = check == "true" and tls["ssl_cert_reqs"] != "none"
        return tls

    def _nodes(self) -> tuple[Node, ...]:
        _, _, hosts = self.parts.netloc.rpartition("@")
        if self.parts.scheme == "unix":
            path = unquote(self.parts.path)
            if hosts or path in ("", "/"):
                raise self.wrong("must name a socket: unix:///run/redis.sock")
            return (Node(path, 0),)
        texts = hosts.split(",")
        if len(texts) > (1 if self.kind == SINGLE else NODES_MAX):
            raise self.wrong("names too many hosts")
        return tuple(self._node(text) for text in texts)

    def _node(self, text: str) -> Node:
        """`host`, `host:port`, `[v6]` or `[v6]:port`; nothing at all is this machine."""
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            host, port = text, ""
        host = host.removeprefix("[").removesuffix("]") or "localhost"
        default = SENTINEL_PORT if self.kind == SENTINEL else PORT
        return Node(unquote(host), self._whole("port", port, 1, 65_535) if port else default)

    def _whole(self, name: str, text: str, least: int, most: int) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise self.wrong(f"has {name} {text!r}; it must be a number")
        if not least <= int(text) <= most:
            raise self.wrong(f"has {name} {text!r}; it must be from {least} to {most}")
        return int(text)


def _without_password(url: str) -> str:
    head, slashes, rest = url.partition("://")
    login, at, tail = rest.rpartition("@")
    shown = f"{head}{slashes}{login.partition(':')[0]}:…{at}{tail}" if at else url
    place, marked, _ = shown.partition("sentinel_password=")
    return f"{place}{marked}…" if marked else shown
