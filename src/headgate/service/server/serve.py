"""The program: read the options, say what it does, listen, and end well.

SIGTERM and SIGINT: no new connections, requests under way are finished, the store is closed, exit
code 0; so also while the program is still starting. SIGHUP: the policy file is read.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from headgate.core.errors import HeadgateError
from headgate.core.history import iso_time, valid_principal
from headgate.core.runtime import run, wall_clock_ms
from headgate.service.dashboard import Dashboard, FaultSwitch
from headgate.service.http.asgi import Rest, SideServer, StartSideServer
from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import mint, parse_grant
from headgate.service.keys.stored import StoredKeys
from headgate.service.program import STORE_KEYS, Program
from headgate.service.server.options import NO_SNIFFING, OptionError, ServerOptions, read_options
from headgate.service.server.protocol import protocol_with
from headgate.service.server.tls import TlsListener, tls_context
from headgate.service.server.workers import Workers, ready_file, unblock_hangup
from headgate.sync import SyncRepository

# --------------------------------------------------------------------------------------------------
# Logs: one JSON object a line on standard error, with nothing in it that callers sent.

SERVER_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": iso_time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)


def set_up_logs(level: str) -> None:
    """The server's own chatter is left out up to warnings: every request would be in it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("headgate").setLevel(level.upper())
    for name in SERVER_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, getattr(logging, level.upper())))


# --------------------------------------------------------------------------------------------------
# Making an API key where there is none yet: `python -m headgate.service key`.


def make_key(arguments: Sequence[str]) -> int:
    """Makes one key and prints it: the only time that anybody sees it."""
    given = _parser().parse_args(arguments)
    grant = parse_grant(given.scopes.split(","), given.namespace, given.entity_prefix)
    made = mint(grant, name=given.name, principal=given.principal, now_ms=wall_clock_ms())
    if given.keys != STORE_KEYS:
        run(FileKeys(given.keys, create=True).put(made.key))
    elif given.store is None:
        raise OptionError("--keys store needs --store URL: the store that keeps the keys")
    else:
        with SyncRepository.open(given.store) as repository:
            core = repository.core
            run(StoredKeys(core.backend.catalog, core.clock).put(made.key))
    sys.stdout.write(made.text + "\n")
    return 0


def _cli_principal() -> str:
    user = os.environ.get("USER") or os.environ.get("LOGNAME")
    return valid_principal(f"cli:{user}" if user else "cli")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headgate.service key")
    parser.add_argument("--keys", required=True, help="key file (made if missing), or 'store'")
    parser.add_argument("--store", help="URL of the store, for --keys store")
    parser.add_argument("--scopes", default="check", help="of check, read, admin: check,read")
    parser.add_argument("--namespace", default="default", help="'*' is all of them")
    parser.add_argument("--entity-prefix", help="only entities whose id begins so, as user:")
    parser.add_argument("--name", default="", help="for people")
    parser.add_argument("--principal", default=_cli_principal(), help="whom the audit names")
    return parser


BACKLOG = 2048
KEEP_ALIVE_S = 30
SECOND_THOUGHT_S = 1.0
NO_KEYS = "NONE (dev mode): whoever is on this machine may do everything"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_early)
    try:
        if given[:1] == ["key"]:
            return make_key(given[1:])
        serving = read_options(given, os.environ)
        set_up_logs(serving.log_level)
        return _serve(serving, given)
    except HeadgateError as error:
        sys.stderr.write(f"headgate: {error}\n")
        return 2


def _serve(serving: ServerOptions, given: Sequence[str]) -> int:
    if serving.descriptor is not None:
        return _work(serving, socket.socket(fileno=serving.descriptor))
    with listen(serving) as listener:
        serving = replace(serving, port=listener.getsockname()[1])
        if serving.program.workers == 1:
            return _work(serving, listener, announce=True)
        return _supervise(serving, given, listener)


def _supervise(serving: ServerOptions, given: Sequence[str], listener: socket.socket) -> int:
    with tempfile.TemporaryDirectory(prefix="headgate-", ignore_cleanup_errors=True) as board:
        serving = replace(serving, program=replace(serving.program, board=board))
        program = Program.build(serving.program)  # a mistake in a file shows here, once
        listener.listen(BACKLOG)  # clients that come before the workers are there wait for them
        listener.set_inheritable(True)
        workers = Workers(serving, given, listener, program.service.repository.url)
        say(startup_message(serving, program))
        return workers.run()


def listen(serving: ServerOptions) -> socket.socket:
    """The socket of a service; OptionError where it cannot be had."""
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((serving.host, serving.port))
    except OSError as error:
        listener.close()
        raise OptionError(
            f"cannot listen on {serving.host}:{serving.port} ({error.strerror}); choose another "
            f"with --host and --port"
        ) from None
    return listener


def _work(serving: ServerOptions, listener: socket.socket, *, announce: bool = False) -> int:
    """One worker, or the only one."""
    program = Program.build(serving.program)
    greeting = startup_message(serving, program) if announce else ""
    return serve(serving, program, listener, greeting, alongside=side_server_of(serving, program))


def serve(
    serving: ServerOptions,
    program: Program,
    listener: socket.socket,
    greeting: str,
    *,
    alongside: StartSideServer | None = None,
    switch: FaultSwitch | None = None,
) -> int:
    """Serves until it is told to end; the exit code. `switch` is the dashboard's, in a demo."""
    dashboard = Dashboard(program, switch)
    rest = with_spans(program, Rest(program, alongside))
    server = Server(config_of(serving, dashboard.before(rest), rest))
    server.tls = tls_context(serving)
    dashboard.leaving = lambda: server.should_exit  # open feeds do not hold up the end
    server.parent = serving.parent
    server.on_started = partial(_say_started, serving, greeting)
    for one in (signal.SIGTERM, signal.SIGINT):
        # Until the server has its own handlers, and when it raises the signal again at its end.
        signal.signal(one, server.end_at_once)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda number, frame: program.look_soon())
        unblock_hangup()
    try:
        server.run(sockets=[listener])
    except SystemExit:  # the server says why in the log
        return 1
    return 0 if server.started else 1


def with_spans(program: Program, rest: Rest) -> Rest:
    """The wire, with spans where they are wanted."""
    if program.spans is not None:
        from headgate.service.tracing import trace_requests

        trace_requests(rest, program.spans)
    return rest


class Server(uvicorn.Server):
    """Says that it is there once it is, and ends when its parent is gone. Where there is TLS it
    accepts connections itself."""

    on_started: Callable[[], None]  # set before it runs
    parent: int | None = None
    tls: ssl.SSLContext | None = None
    _told_s: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn sets them a moment after it has begun to listen.
        self.server_state.default_headers = self.config.encoded_headers
        await super().startup(sockets if self.tls is None else [])
        if self.started:
            if self.tls is not None:
                for listener in sockets or ():
                    self._start_tls(listener)
            self.on_started()

    def end_at_once(self, number: int, frame: object) -> None:
        """Starts no more than it must to end well."""
        self.should_exit = True

    def _start_tls(self, listener: socket.socket) -> None:
        assert self.tls is not None
        http: Any = self.config.http_protocol_class
        shared = {"server_state": self.server_state, "app_state": self.lifespan.state}
        make_http = partial(http, config=self.config, **shared)
        connections = self.server_state.connections
        tls = TlsListener(listener, self.tls, make_http, connections, http.connections_max)
        tls.start(BACKLOG)
        self.servers.append(tls)  # type: ignore[arg-type]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """One Ctrl-C may arrive twice, from the terminal and from whoever started this: only one
        that comes later means that the requests under way are not to be waited for."""
        now_s = monotonic()
        if self._told_s is None or now_s - self._told_s > SECOND_THOUGHT_S:
            self._told_s = now_s
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self.parent is not None and os.getppid() != self.parent:
            self.should_exit = True
        return await super().on_tick(counter)


def config_of(serving: ServerOptions, app: Any, lane: Rest | None = None) -> uvicorn.Config:
    """The server's settings: nothing in front of the application but HTTP."""
    return uvicorn.Config(
        app,
        http=protocol_with(serving.connections_max, lane),
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=serving.drain_s,
        headers=[NO_SNIFFING],
    )


def side_server_of(serving: ServerOptions, program: Program) -> StartSideServer | None:
    """The gRPC wire, where it is wanted and installed."""
    if serving.grpc_port is None:
        return None
    try:
        from headgate.service.grpc.guard import GrpcSettings, Tls
        from headgate.service.grpc.server import GrpcServer
    except ModuleNotFoundError as error:
        raise OptionError(
            f"--grpc-port needs a package that is not installed ({error.name}): "
            f"pip install 'headgate[service]'"
        ) from error
    tls = None
    if serving.tls_certificate is not None and serving.tls_key is not None:
        tls = Tls(serving.tls_certificate, serving.tls_key, serving.tls_client_ca)
    settings = GrpcSettings(
        host=serving.host,
        port=serving.grpc_port,
        tls=tls,
        reflection=serving.grpc_reflection,
        share_port=serving.program.workers > 1,
    )

    async def start() -> SideServer:
        return await GrpcServer.start(program, settings)

    return start


def startup_message(serving: ServerOptions, program: Program) -> str:
    """What a person wants to know when it has started; no secrets."""
    url = serving.url
    policies = serving.program.policies
    fails = "open" if program.service.settings.fail_open else "closed"
    lines = [
        f"headgate serves on {url}",
        f"  store     {shown_store(program.service.repository.url)}",
        f"  policies  {policies or 'none: everybody has 1000 tokens, 10 more each second'}",
        f"  keys      {serving.program.keys or NO_KEYS}",
        f"  fails     {fails} while the store is away",
    ]
    if serving.program.workers > 1:
        lines.append(f"  workers   {serving.program.workers}")
    if serving.grpc_port is not None:
        lines.append(f"  grpc      {serving.host}:{serving.grpc_port}")
    key = "" if serving.program.keys is None else " -H 'authorization: Bearer hg_…'"
    lines.append(
        f"try: curl -i {url}/v1/ratelimit/take{key} -H 'content-type: application/json' "
        f'-d \'{{"identifier": "ann", "resource": "api.search"}}\''
    )
    lines.append(f"look: {url}/")
    lines.append(f"all that can be asked: {url}/openapi.json")
    return "\n".join(lines)


def shown_store(url: str) -> str:
    """A store's URL without what may be secret in it."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def say(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _say_started(serving: ServerOptions, greeting: str) -> None:
    """Tells people, and the supervisor where there is one, that this process serves now."""
    say(greeting)
    if serving.parent is not None and serving.program.board is not None:
        ready_file(serving.program.board, os.getpid()).touch()


def _end_early(number: int, frame: object) -> None:
    """Before anything is started there is nothing to finish."""
    raise SystemExit(0)
