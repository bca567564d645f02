"""`headgate entity set-limits|get-limits|delete-limits`: the two highest configuration levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headgate.cli.arguments import limits_argument
from headgate.cli.documents import limit_rows, limits_document
from headgate.cli.options import Noun
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import show
from headgate.core.limits__names import DEFAULT_RESOURCE

if TYPE_CHECKING:
    from headgate.core.limits import Limit

_resource = click.option(
    "--resource", "-r", default=DEFAULT_RESOURCE, metavar="RESOURCE",
    help="On one resource; else on every one.",
)  # fmt: skip


def add_limit_commands(entity: Noun) -> None:
    entity.command(
        "set-limits",
        examples="""
        headgate entity set-limits key-1 rpm:1000/min:1500 -r gpt-4
        headgate entity set-limits acme '100/minute burst 150' 'tpm: 5 per 30s'
        """,
    )(set_limits)
    entity.command("get-limits", examples="headgate entity get-limits key-1 -r gpt-4")(get_limits)
    entity.command("delete-limits", examples="headgate entity delete-limits key-1 -r gpt-4")(
        delete_limits
    )


@click.argument("entity_id", metavar="ENTITY")
@limits_argument
@_resource
@pass_session
def set_limits(session: Session, entity_id: str, limits: tuple[Limit, ...], resource: str) -> None:
    """Store these limits for the entity, in place of those stored at this level."""
    with session.repository() as repository:
        repository.set_limits(entity_id, list(limits), resource, session.who)
    document = {
        "entity_id": entity_id, "resource": resource, "limits": limits_document(limits),
    }  # fmt: skip
    show(session, document, f"{entity_id} on {_named(resource)}:", limit_rows(limits))


@click.argument("entity_id", metavar="ENTITY")
@_resource
@pass_session
def get_limits(session: Session, entity_id: str, resource: str) -> None:
    """The limits stored at this level; `headgate explain` shows what applies."""
    with session.repository() as repository:
        limits = repository.get_limits(entity_id, resource)
    document = {
        "entity_id": entity_id, "resource": resource, "limits": limits_document(limits),
    }  # fmt: skip
    show(session, document, limit_rows(limits))


@click.argument("entity_id", metavar="ENTITY")
@_resource
@pass_session
def delete_limits(session: Session, entity_id: str, resource: str) -> None:
    """Nothing is stored at this level any more; the levels below it apply."""
    with session.repository() as repository:
        repository.delete_limits(entity_id, resource, session.who)
    document = {"entity_id": entity_id, "resource": resource, "limits": []}
    show(session, document, f"no limits of {entity_id} on {_named(resource)}")


def _named(resource: str) -> str:
    return "every resource" if resource == DEFAULT_RESOURCE else resource
