"""`headgate namespace …`: the tenants of one store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import click

from headgate.admin.documents import namespace_as_json
from headgate.cli.arguments import yes_option
from headgate.cli.documents import namespace_rows
from headgate.cli.options import CommandFailed, Session, command_group, pass_session
from headgate.cli.output import confirm, progress, show
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


@command_group(
    "namespace",
    examples="""
    headgate namespace register eu
    headgate -n eu entity list
    """,
)
def namespace() -> None:
    """Tenants of one store: what one stores never touches another."""


@namespace.command("register", examples="headgate namespace register eu us")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@pass_session
def register(session: Session, names: tuple[str, ...]) -> None:
    """Create namespaces; those that exist stay as they are."""
    with session.repository() as repository:
        ids = repository.register_namespaces(names, session.audit_principal)
    show(session, {"registered": ids}, *(f"{name}  {found}" for name, found in ids.items()))


@namespace.command("list", examples="headgate namespace list")
@pass_session
def list_(session: Session) -> None:
    """List the namespaces in use."""
    with session.repository() as repository:
        _show_all(session, repository.list_namespaces(), "no namespaces")


@namespace.command("show", examples="headgate namespace show eu")
@click.argument("name")
@pass_session
def show_(session: Session, name: str) -> None:
    """Show a namespace: its id, and when it was created."""
    with session.repository() as repository:
        found = repository.get_namespace(name)
    if found is None:
        raise NamespaceNotFoundError(name)
    show(session, namespace_as_json(found), namespace_rows([found], ""))


@namespace.command("delete", examples="headgate namespace delete eu")
@click.argument("name")
@pass_session
def delete(session: Session, name: str) -> None:
    """Free the name. The data stays: recover brings it back, purge deletes it."""
    with session.repository() as repository:
        found = repository.get_namespace(name)
        repository.delete_namespace(name, session.audit_principal)
    namespace_id = found.id if found else None
    back = f"headgate namespace recover {namespace_id}"
    show(session, {"deleted": name, "id": namespace_id}, f"deleted {name}; {back} undoes it")


@namespace.command("recover", examples="headgate namespace recover Zk3v9QxT1aM")
@click.argument("namespace_id", metavar="ID")
@pass_session
def recover(session: Session, namespace_id: str) -> None:
    """Bring a deleted namespace back, under its name.

    An id that begins with - needs -- before it.
    """
    with session.repository() as repository, _explain_unknown_id(namespace_id):
        found = repository.recover_namespace(namespace_id, session.audit_principal)
    show(session, namespace_as_json(found), namespace_rows([found], ""))


@namespace.command("orphans", examples="headgate namespace orphans")
@pass_session
def orphans(session: Session) -> None:
    """List deleted namespaces whose data is still there."""
    with session.repository() as repository:
        _show_all(session, repository.list_orphan_namespaces(), "no deleted namespaces")


def _show_all(session: Session, found: Sequence[Namespace], empty: str) -> None:
    document = {"items": [namespace_as_json(one) for one in found]}
    show(session, document, namespace_rows(found, empty))


@namespace.command("purge", examples="headgate namespace purge Zk3v9QxT1aM --yes")
@click.argument("namespace_id", metavar="ID")
@yes_option
@pass_session
def purge(session: Session, namespace_id: str, yes: bool) -> None:
    """Delete all data of a deleted namespace for good.

    An id that begins with - needs -- before it.
    """
    confirm(session, f"Purge everything of {namespace_id} for good?", yes=yes)
    with (
        session.repository() as store,
        progress(session, "purging"),
        _explain_unknown_id(namespace_id),
    ):
        gone = store.purge_namespace(namespace_id, session.audit_principal)
    show(session, {"purged": namespace_id, "records": gone}, f"{gone} records are gone")
