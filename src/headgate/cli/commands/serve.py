"""`headgate serve` and `headgate demo`: programs with options of their own, started from here."""

from __future__ import annotations

import os
from typing import Any

import click

from headgate.cli.app import program
from headgate.cli.options import command_group, forwarded_command
from headgate.cli.output import Columns, Output, table_of
from headgate.cli.session import ERROR, OK, URL_VARIABLE, Misuse, Session


@forwarded_command("""
    headgate serve
    headgate -u redis://localhost:6379/0 serve --port 8080 --grpc-port 8081
    headgate serve --policies policies.yaml --keys keys.yaml
    headgate serve --help
""")
def serve(session: Session, arguments: tuple[str, ...]) -> Any:
    """Run the REST and gRPC service until it is stopped.

    --url before serve or HEADGATE_URL names its store, unless a policy file does; serve --help
    lists its own options.
    """
    given = list(arguments)
    names = {one.split("=")[0] for one in given}
    quiet = names & {"--store", "--policies"} or "HEADGATE_STORE" in os.environ
    store = session.url or (None if quiet else os.environ.get(URL_VARIABLE))
    if store and "--store" not in names:
        given = ["--store", store, *given]
    return program("headgate.service.server.serve:main", extra="service")(given)


@forwarded_command("""
    headgate demo
    headgate demo --port 9000 --rate 40
    headgate demo --once 500 --data ./demo-data
""")
def demo(session: Session, arguments: tuple[str, ...]) -> Any:
    """Run a sample company: teams, keys, models, traffic, the service and its dashboard.

    On SQLite in a directory that is deleted at the end; --data DIR keeps it. demo --help lists its
    options: --port, --rate, --seed, --no-traffic, --once.
    """
    if session.url:
        raise Misuse(
            "the demo has a store of its own",
            "--url names another, which would be filled with made-up people",
            "leave --url out; --data DIR keeps the demo's store",
        )
    return program("headgate.service.demo.program:main", extra="service")(list(arguments))


# --------------------------------------------------------------------------------------------------
# `headgate policies …` and `headgate keys …`: the files the service reads.


@command_group("headgate policies check policies.yaml")
def policies() -> None:
    """The service's policy file."""


@policies.action("headgate policies check policies.yaml")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def check(session: Session, file: str) -> Output:
    """Check a policy file; shows each fault with its line and column.

    Exit code 1 if there is one.
    """
    read = program("headgate.service.policies.policies:check_file", extra="service")
    faults = [
        {"line": one.line, "column": one.column, "text": one.text}
        for one in getattr(read(file), "faults", ())
    ]
    place: Columns = {
        "where": lambda fault: f"{file}:{fault['line']}:{fault['column']}",
        "what": "text",
    }
    return Output(
        {"file": file, "valid": not faults, "faults": faults},
        table_of(faults, place, f"{file} is fit for use"),
        exit_code=ERROR if faults else OK,
    )


@command_group("headgate keys make --help")
def keys() -> None:
    """API keys of the service."""


@forwarded_command("""
    headgate keys make --help
    headgate keys make --keys keys.yaml --scopes check,read --name ci
""")
def make(session: Session, arguments: tuple[str, ...]) -> Any:
    """Create an API key; its secret is printed once. keys make --help lists the options."""
    main = program("headgate.service.server.serve:main", extra="service")
    return main(["key", "--principal", session.audit_principal, *arguments])


keys.add_command(make)
