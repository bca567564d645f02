"""`headgate serve` and `headgate demo`: programs with options of their own, started from here."""

from __future__ import annotations

import os

from headgate.cli.app__passing import called, passed_on
from headgate.cli.options__session import URL_VARIABLE, Misuse, Session


@passed_on(
    "serve",
    examples="""
    headgate serve
    headgate -u redis://localhost:6379/0 serve --port 8080 --grpc-port 8081
    headgate serve --policies policies.yaml --keys keys.yaml
    headgate serve --help
    """,
)
def serve(session: Session, arguments: tuple[str, ...]) -> int:
    """The REST and gRPC service, until it is stopped.

    --url before serve names its store, or HEADGATE_URL, unless a policy file does; serve --help
    lists its own options.
    """
    given = list(arguments)
    names = {one.split("=")[0] for one in given}
    quiet = names & {"--store", "--policies"} or "HEADGATE_STORE" in os.environ
    store = session.url or (None if quiet else os.environ.get(URL_VARIABLE))
    if store and "--store" not in names:
        given = ["--store", store, *given]
    return called("headgate.service.server.serve:main", given, extra="service")


@passed_on(
    "demo",
    examples="""
    headgate demo
    headgate demo --port 9000 --rate 40
    headgate demo --once 500 --data ./demo-data
    """,
)
def demo(session: Session, arguments: tuple[str, ...]) -> int:
    """A company with teams, keys and models, traffic, the service and its dashboard.

    On SQLite in a directory that is deleted at the end; --data DIR keeps it. demo --help lists its
    options: --port, --rate, --seed, --no-traffic, --once.
    """
    if session.url:
        raise Misuse(
            "the demo has a store of its own",
            "--url names another, which would be filled with made-up people",
            "leave --url out; --data DIR keeps the demo's store",
        )
    return called("headgate.service.demo.program:main", arguments, extra="service")
