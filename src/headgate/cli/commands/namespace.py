"""`headgate namespace …`: the tenants of one store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from headgate.admin.documents import namespace_as_json
from headgate.cli.arguments import yes_option
from headgate.cli.documents import namespace_rows
from headgate.cli.options import Session, command_group, pass_session
from headgate.cli.output import confirm, progress, show
from headgate.core.errors import NamespaceNotFoundError


class NoDeletedNamespace(click.ClickException):
    """No deleted namespace has that id."""

    advice = "headgate namespace orphans lists the deleted ones with their ids"

    def __init__(self, namespace_id: str) -> None:
        self.why = f"no namespace of this store has the id {namespace_id}"
        super().__init__("there is no such deleted namespace")


@contextlib.contextmanager
def _explain_unknown_id(namespace_id: str) -> Iterator[None]:
    """Words of its own for an id nobody has: registering a name would not help."""
    try:
        yield
    except NamespaceNotFoundError as error:
        raise NoDeletedNamespace(namespace_id) from error


@command_group(
    "namespace",
    examples="""
    headgate namespace register eu
    headgate -n eu entity list
    """,
)
def namespace() -> None:
    """Tenants: names and data of one never touch another's."""


@namespace.command("register", examples="headgate namespace register eu us")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@pass_session
def register(session: Session, names: tuple[str, ...]) -> None:
    """Make namespaces; those that exist stay as they are."""
    with session.repository() as repository:
        ids = repository.register_namespaces(names, session.audit_principal)
    show(session, {"registered": ids}, *(f"{name}  {found}" for name, found in ids.items()))


@namespace.command("list", examples="headgate namespace list")
@pass_session
def list_(session: Session) -> None:
    """The namespaces in use."""
    with session.repository() as repository:
        found = repository.list_namespaces()
    document = {"items": [namespace_as_json(one) for one in found]}
    show(session, document, namespace_rows(found, "no namespaces"))


@namespace.command("show", examples="headgate namespace show eu")
@click.argument("name")
@pass_session
def show_(session: Session, name: str) -> None:
    """One namespace: its id, and since when it exists."""
    with session.repository() as repository:
        found = repository.get_namespace(name)
    if found is None:
        raise NamespaceNotFoundError(name)
    show(session, namespace_as_json(found), namespace_rows([found], ""))


@namespace.command("delete", examples="headgate namespace delete eu")
@click.argument("name")
@pass_session
def delete(session: Session, name: str) -> None:
    """Free the name. The data stays: recover brings it back, purge ends it."""
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
    """A deleted namespace is in use again, under its name.

    An id that begins with - needs -- before it.
    """
    with session.repository() as repository, _explain_unknown_id(namespace_id):
        found = repository.recover_namespace(namespace_id, session.audit_principal)
    show(session, namespace_as_json(found), namespace_rows([found], ""))


@namespace.command("orphans", examples="headgate namespace orphans")
@pass_session
def orphans(session: Session) -> None:
    """Deleted namespaces whose data is still there."""
    with session.repository() as repository:
        found = repository.list_orphan_namespaces()
    document = {"items": [namespace_as_json(one) for one in found]}
    show(session, document, namespace_rows(found, "no deleted namespaces"))


@namespace.command("purge", examples="headgate namespace purge Zk3v9QxT1aM --yes")
@click.argument("namespace_id", metavar="ID")
@yes_option
@pass_session
def purge(session: Session, namespace_id: str, yes: bool) -> None:
    """All data of a deleted namespace is gone for good.

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
