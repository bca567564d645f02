"""The options of the program: from the command line, else the environment, else the defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from headgate.core.errors import HeadgateError
from headgate.core.limits import AMOUNT_MAX
from headgate.repository import layer_switches
from headgate.service.program import Options
from headgate.service.settings import OnUndecided, OnUnknown, is_loopback

PREFIX = "HEADGATE_"
NO_SNIFFING = ("x-content-type-options", "nosniff")  # with every answer
WORKERS_MAX = 64
DIGITS_MAX = 17  # of an option's number: one more than the largest has


class OptionError(HeadgateError):
    """The program cannot start as it was asked to."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where and how to listen, and the program's own options."""

    program: Options
    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int | None = None
    grpc_reflection: bool = False
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    connections_max: int = 1_000
    drain_s: int = 15
    log_level: str = "info"
    descriptor: int | None = field(default=None, repr=False)  # a worker's inherited socket
    parent: int | None = None  # a worker's supervisor

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_certificate else 'http'}://{host}:{self.port}"


def read_options(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerOptions:
    """The options as chosen; OptionError says what cannot be, and what to do."""
    given = vars(_parser(environment).parse_args(arguments))
    given["unknown"] = OnUnknown(given["unknown"])
    given["envoy_undecided"] = OnUndecided(given["envoy_undecided"])
    _check_store(given["store"])
    given["program"] = Options(**{one.name: given[one.name] for one in fields(Options)})
    serving = ServerOptions(**{one.name: given[one.name] for one in fields(ServerOptions)})
    _check_options(serving)
    return serving


def _check_options(serving: ServerOptions) -> None:
    """Raises where two options do not go together."""
    if serving.program.keys is None and not is_loopback(serving.host):
        raise OptionError(
            f"--host {serving.host} is open to other machines, and without keys anybody could "
            f"change limits: give --keys FILE (python -m headgate.service key makes one), or "
            f"listen on 127.0.0.1"
        )
    if (serving.tls_certificate is None) != (serving.tls_key is None):
        raise OptionError("--tls-certificate and --tls-key belong together: give both or none")
    if serving.tls_client_ca is not None and serving.tls_certificate is None:
        raise OptionError("--tls-client-ca needs --tls-certificate and --tls-key")
    if serving.grpc_reflection and serving.grpc_port is None:
        raise OptionError(
            "--grpc-reflection true needs --grpc-port: without it nobody calls by gRPC"
        )


def _check_store(url: str | None) -> None:
    """Raises where headgate cannot open the URL; it may hold a password, so no error repeats it."""
    if url is not None:
        try:
            layer_switches(url)
        except HeadgateError:
            raise OptionError(
                "--store is no URL of a store; write sqlite:///file.db, redis://host:6379/0 or "
                "memory://"
            ) from None


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m headgate.service",
        description="Rate limits as a service. Each option can be given as an environment "
        "variable, too: --grpc-port as HEADGATE_GRPC_PORT.",
        epilog="python -m headgate.service key --help tells how to make an API key.",
    )

    defaults = {one.name: one.default for one in (*fields(Options), *fields(ServerOptions))}
    defaults["data_dir"] = "~/.headgate"  # a program that somebody embeds has none

    def add(name: str, told: str, **more: object) -> None:
        option = name.removeprefix("--").replace("-", "_")
        # What the environment says goes through `type`: argparse does that with a text.
        more["default"] = environment.get(PREFIX + option.upper(), defaults[option])
        parser.add_argument(name, help=told, **more)  # type: ignore[arg-type]

    add("--store", "URL of the store (default: SQLite in the data directory)", metavar="URL")
    add("--data-dir", "where the embedded store lives", metavar="DIR")
    add("--policies", "policy file (YAML), reloaded when it changes", metavar="FILE")
    add("--keys", "key file, or 'store'; without it: dev mode, loopback only", metavar="FILE")
    add("--host", "address to listen on")
    add("--port", "port to listen on", type=within(0, 65_535))
    add("--grpc-port", "also listen for gRPC and Envoy there", type=within(0, 65_535))
    add("--grpc-reflection", "tell gRPC clients what can be called: true or false", type=_flag,
        metavar="BOOL")  # fmt: skip
    add("--workers", "processes", type=within(1, WORKERS_MAX))
    add("--fail-open", "admit while the store is away: true or false", type=_flag, metavar="BOOL")
    add("--unknown", "entities nobody registered", choices=[*map(str, OnUnknown)])
    add("--new-identifiers-per-minute", "bound on identifiers nobody registered; 0 is none",
        type=within(0, 1_000_000_000))  # fmt: skip
    add("--amount-max", "the most that may be asked of a limit at once",
        type=within(1, AMOUNT_MAX))  # fmt: skip
    add("--envoy-undecided", "answer to Envoy where nothing can be decided",
        choices=[*map(str, OnUndecided)])  # fmt: skip
    add("--deadline-ms", "longest a request may take", type=within(50, 60_000))
    add("--open-metrics", "serve /metrics without a key: true or false", type=_flag, metavar="BOOL")
    add("--spans", "OpenTelemetry spans of requests and store calls: true or false", type=_flag,
        metavar="BOOL")  # fmt: skip
    add("--connections-max", "connections of one worker", type=within(1, 100_000))
    add("--drain-s", "seconds to finish requests after SIGTERM", type=within(1, 600))
    add("--tls-certificate", "PEM file", metavar="FILE")
    add("--tls-key", "PEM file", metavar="FILE")
    add("--tls-client-ca", "PEM file: clients must show a certificate of it", metavar="FILE")
    levels = ["debug", "info", "warning", "error"]
    add("--log-level", "debug, info, warning or error", choices=levels)
    parser.add_argument("--board", help=argparse.SUPPRESS)
    parser.add_argument("--descriptor", help=argparse.SUPPRESS, type=int)
    parser.add_argument("--parent", help=argparse.SUPPRESS, type=int)
    return parser


def within(least: int, most: int) -> Callable[[str], int]:
    """Reads the value of an option that is a whole number from `least` to `most`."""

    def whole(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text[:DIGITS_MAX]) <= most):
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return int(text)

    return whole


def _flag(text: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError("must be true or false")
    return known[text.lower()]
