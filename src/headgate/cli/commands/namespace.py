"""`headgate namespace …`: the tenants of one store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import click

from headgate.admin.documents import namespace_as_json
from headgate.cli.options import command_group, yes_option
from headgate.cli.output import Output, confirm, progress, table_of
from headgate.cli.session import CommandFailed, Session
from headgate.core.errors import NamespaceNotFoundError
from headgate.core.levels import Namespace


@contextlib.contextmanager
def _explain_unknown_id(namespace_id: str) -> Iterator[None]:
    """Advises what helps with an unknown id: registering the name would not."""
    try:
        yield
    except NamespaceNotFoundError as error:
        raise CommandFailed(
            "there is no such deleted namespace",
            f"no namespace of this store has the id {namespace_id}",
            "headgate namespace orphans lists the deleted ones with their ids",
        ) from error


@command_group("""
    headgate namespace register eu
    headgate -n eu entity list
""")
def namespace() -> None:
    """Tenants of one store: what one stores never touches another."""


@namespace.action("headgate namespace register eu us")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def register(session: Session, names: tuple[str, ...]) -> Output:
    """Create namespaces; those that exist stay as they are."""
    ids = session.repository.register_namespaces(names, session.audit_principal)
    return Output({"registered": ids}, *(f"{name}  {found}" for name, found in ids.items()))


@namespace.action("headgate namespace list")
def list_(session: Session) -> Output:
    """List the namespaces in use."""
    return _list_output(session.repository.list_namespaces(), "no namespaces")


@namespace.action("headgate namespace show eu")
@click.argument("name")
def show_(session: Session, name: str) -> Output:
    """Show a namespace: its id, and when it was created."""
    found = session.repository.get_namespace(name)
    if found is None:
        raise NamespaceNotFoundError(name)
    return _output(found)


@namespace.action("headgate namespace delete eu")
@click.argument("name")
def delete(session: Session, name: str) -> Output:
    """Free the name. The data stays: recover brings it back, purge deletes it."""
    found = session.repository.get_namespace(name)
    session.repository.delete_namespace(name, session.audit_principal)
    namespace_id = found.id if found else None
    back = f"headgate namespace recover {namespace_id}"
    return Output({"deleted": name, "id": namespace_id}, f"deleted {name}; {back} undoes it")


@namespace.action("headgate namespace recover Zk3v9QxT1aM")
@click.argument("namespace_id", metavar="ID")
def recover(session: Session, namespace_id: str) -> Output:
    """Bring a deleted namespace back, under its name.

    An id that begins with - needs -- before it.
    """
    with _explain_unknown_id(namespace_id):
        return _output(session.repository.recover_namespace(namespace_id, session.audit_principal))


@namespace.action("headgate namespace orphans")
def orphans(session: Session) -> Output:
    """List deleted namespaces whose data is still there."""
    return _list_output(session.repository.list_orphan_namespaces(), "no deleted namespaces")


COLUMNS = {
    "name": "name", "id": "id", "state": "state", "created": "created_at", "deleted": "deleted_at",
}  # fmt: skip


def _list_output(found: Sequence[Namespace], empty: str) -> Output:
    items = [namespace_as_json(one) for one in found]
    return Output({"items": items}, table_of(items, COLUMNS, empty))


def _output(found: Namespace) -> Output:
    document = namespace_as_json(found)
    return Output(document, table_of([document], COLUMNS))


@namespace.action("headgate namespace purge Zk3v9QxT1aM --yes")
@click.argument("namespace_id", metavar="ID")
@yes_option
def purge(session: Session, namespace_id: str, yes: bool) -> Output:
    """Delete all data of a deleted namespace for good.

    An id that begins with - needs -- before it.
    """
    confirm(session, f"Purge everything of {namespace_id} for good?", yes=yes)
    with progress(session, "purging"), _explain_unknown_id(namespace_id):
        gone = session.repository.purge_namespace(namespace_id, session.audit_principal)
    return Output({"purged": namespace_id, "records": gone}, f"{gone} records are gone")
