"""`headgate serve|demo|health|policies|keys`: starts the service, and asks one that runs for what
is its own and no store's."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from headgate.cli.app import program
from headgate.cli.options import (
    action_command,
    command_group,
    forwarded_command,
    page_options,
    yes_option,
)
from headgate.cli.output import Columns, Output, confirm, next_page, table_of
from headgate.cli.remote import ServiceAway, ServiceFailure
from headgate.cli.session import (
    ERROR,
    OK,
    UNAVAILABLE,
    URL_VARIABLE,
    CommandFailed,
    Misuse,
    Session,
)
from headgate.core.limits import DEFAULT_NAMESPACE


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


@contextlib.contextmanager
def _explain(**by_code: tuple[str, str, str]) -> Iterator[None]:
    """Says what codes of the service mean here (what, why or the service's own words, what to do);
    other failures speak for themselves."""
    try:
        yield
    except ServiceFailure as failure:
        if failure.code not in by_code:
            raise
        what, why, advice = by_code[failure.code]
        raise CommandFailed(what, why or failure.format_message(), advice) from failure


@action_command("""
    headgate health -u https://limits.example.com
    headgate health --json -u http://localhost:8080
""")
def health(session: Session) -> Output:
    """Show whether a running service is fit to be sent traffic. It needs no key.

    Exit code 0: it is; 4: it gives no answer, or wants no traffic.
    """
    found = session.running_service("headgate version --store asks the store").get_health()
    lines = [found.status]
    if found.ready:
        store = "answers" if found.storage_available else "gives no answer"
        lines += [f"store     {store}", f"breaker   {found.circuit_breaker}"]
        lines += [f"policies  {found.policies}", f"leases    {found.leases}"]
    else:
        lines.append("its store gives no answer, or it is ending")
    return Output(asdict(found), *lines, exit_code=OK if found.ready else UNAVAILABLE)


# --------------------------------------------------------------------------------------------------
# `headgate policies …`: a policy file, and the policies that a service goes by.

NO_FILE = "the service was started without a policy file"
WITHOUT_POLICIES = "give the URL of a service; headgate policies check FILE checks a file"
POLICY_COLUMNS: Columns = {
    "policy": "name", "scope": "scope", "resource": lambda policy: policy["resource"] or "(all)",
    "limit": "limit", "": lambda policy: "shadow" if policy["shadow"] else "",
}  # fmt: skip


@command_group("""
    headgate policies check policies.yaml
    headgate policies show -u https://limits.example.com
""")
def policies() -> None:
    """The service's policy file, and the policies that a running service goes by."""


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


@policies.action("headgate policies show -u https://limits.example.com")
def show_(session: Session) -> Output:
    """Show the policies in force, and what is wrong with the file if it is broken by now."""
    service = session.running_service(WITHOUT_POLICIES)
    with _explain(NOT_FOUND=_out_of_reach("read")):
        found = service.get_policies()
    limits, costs = found["rate_limits"], found["token_costs"]
    if found["standing"] is None:
        return Output(found, NO_FILE)
    default = found.get("default_limit")
    return Output(
        found,
        *_standing_lines(found),
        table_of(limits, POLICY_COLUMNS, "no policies"),
        f"everybody else: {default['limit']}" if default else None,
        table_of(costs, {"endpoint": "endpoint", ">tokens": "tokens"}) if costs else None,
        *found.get("warnings", ()),
    )


@policies.action("headgate policies reload -u https://limits.example.com")
def reload(session: Session) -> Output:
    """Make a service read its policy file now; a broken one changes nothing.

    Other workers and instances follow within two seconds of the change.
    """
    service = session.running_service(WITHOUT_POLICIES)
    no_file = (NO_FILE, "there is nothing that it could read", "start it with --policies FILE")
    advice = "correct it (headgate policies check FILE shows every fault), then reload again"
    with _explain(
        NOT_FOUND=_out_of_reach("admin"),
        CONFLICT=no_file,
        CONFIGURATION_ERROR=("the policy file is broken", "", advice),
    ):
        found = service.reload_policies()
    said = "loaded" if found["result"] == "loaded" else "the file is the one in force already"
    return Output(found, said, *_standing_lines(found))


def _out_of_reach(scope: str) -> tuple[str, str, str]:
    return (
        "this key does not reach the policies",
        "they are the whole service's, and the key is bound to a namespace or to entities",
        f"use a key for every namespace ('*') with the scope {scope}",
    )


def _standing_lines(found: Any) -> list[str]:
    standing = found["standing"]
    lines = [f"policies {found['digest'][:12]}, loaded {standing['loaded_at']}"]
    if standing["trouble"] is not None:
        lines += ["the file is broken by now, these stay in force:", standing["trouble"]]
    if standing["restart_needed"]:
        lines.append("the file names another store or circuit breaker: that waits for a restart")
    return lines


# --------------------------------------------------------------------------------------------------
# `headgate keys …`: API keys, made where they are kept, or by a service that runs.

NO_KEYS = (
    "the service has no keys",
    "it was started without --keys: whoever is on its machine may do everything",
    "start it with --keys FILE or --keys store",
)
WITHOUT_SERVICE = "give the URL of a service on it; headgate keys make makes a key without one"
KEY_COLUMNS: Columns = {
    "id": "id", "name": "name", "scopes": lambda key: ",".join(key["scopes"]),
    "namespace": "namespace", "entities": lambda key: (key["entity_prefix"] or "") + "*",
    "created": "created_at", "by": "created_by", "revoked": "revoked_at",
}  # fmt: skip


@command_group("""
    headgate keys make --help
    headgate keys list -u https://limits.example.com
""")
def keys() -> None:
    """API keys of the service."""


@forwarded_command("""
    headgate keys make --help
    headgate keys make --keys keys.yaml --scopes check,read --name ci
""")
def make(session: Session, arguments: tuple[str, ...]) -> Any:
    """Create an API key in a key file or a store; its secret is printed once.

    It needs no service; keys create asks one that runs. keys make --help lists the options.
    """
    if session.url and session.is_service:
        raise Misuse(
            "keys make writes a key file or a store",
            "--url names a service",
            "headgate keys create asks the service for a key",
        )
    main = program("headgate.service.server.serve:main", extra="service")
    return main(["key", "--principal", session.audit_principal, *arguments])


keys.add_command(make)


@keys.action("""
    headgate keys list -u https://limits.example.com
    headgate keys list --json -u https://limits.example.com
""")
@page_options
def list_(session: Session, limit: int, cursor: str | None) -> Output:
    """List the keys of a service that yours could have made, without their secrets."""
    service = session.running_service(WITHOUT_SERVICE)
    with _explain(CONFLICT=NO_KEYS):
        found, following = service.list_keys(limit, cursor)
    table = table_of(found, KEY_COLUMNS, "no keys")
    return Output({"items": found, "next": following}, table, next_page(following))


@keys.action("""
    headgate keys create --scopes check,read --name ci -u https://limits.example.com
    headgate keys create -n eu --entity-prefix user: -u https://limits.example.com
    headgate keys create -n '*' --scopes read --json -u https://limits.example.com
""")
@click.option(
    "--scopes", default="check", show_default=True, metavar="LIST",
    help="What it may do, of check, read and admin.",
)  # fmt: skip
@click.option("--entity-prefix", metavar="TEXT", help="Only for entities whose id begins so.")
@click.option("--name", help="What people call it.")
def create(session: Session, scopes: str, entity_prefix: str | None, name: str | None) -> Output:
    """Make a service create a key for --namespace ('*': every one); its secret is printed once.

    It reaches no further than the key that asks.
    """
    namespace = session.namespace_name
    session.namespace = DEFAULT_NAMESPACE  # '*' is none that could be opened
    service = session.running_service("headgate keys make --keys store --store URL makes it there")
    too_wide = (
        "the key would reach further than yours",
        f"a key makes others for its own namespace and its own entities; this is for {namespace}",
        "give --namespace and --entity-prefix as those of your key, or use a wider key",
    )
    with _explain(CONFLICT=NO_KEYS, NOT_FOUND=too_wide), _explain_lost():
        made = service.create_key(scopes.split(","), namespace, entity_prefix, name)
    return Output(made, made["key"])


@contextlib.contextmanager
def _explain_lost() -> Iterator[None]:
    try:
        yield
    except ServiceAway as failure:
        if failure.maybe_applied:
            failure.advice = (
                "keys list shows whether it was made; if so revoke it, its secret is lost"
            )
        raise


def _key_id(text: str) -> str:
    """The id, also of a key that is given whole: its secret is sent and shown nowhere."""
    found = re.fullmatch(r"(?:hg_)?([a-z0-9]{12})(?:_.*)?", text)
    if found is None:
        raise click.BadParameter("it is the 12 letters and digits that follow hg_ in the key")
    return found[1]


@keys.action("headgate keys revoke saiabl648yby --yes -u https://limits.example.com")
@click.argument("key_id", metavar="ID", type=_key_id)
@yes_option
def revoke(session: Session, key_id: str, yes: bool) -> Output:
    """Make a service refuse a key, for good. Its id is what follows hg_ in it.

    Other workers and instances follow within ten seconds.
    """
    service = session.running_service(WITHOUT_SERVICE)
    confirm(session, f"Revoke {key_id} for good?", yes=yes)
    unknown = (
        "there is no such key",
        f"the service has no key {key_id}, or yours may not revoke it",
        "headgate keys list shows those that you may revoke, with their ids",
    )
    with _explain(CONFLICT=NO_KEYS, NOT_FOUND=unknown):
        service.revoke_key(key_id)
    return Output({"revoked": key_id}, f"revoked {key_id}")
