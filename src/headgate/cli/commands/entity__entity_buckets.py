"""`headgate entity reset|top-up|disable|enable|bypass`: buckets, and operators' switches."""

from __future__ import annotations

import click

from headgate.cli.arguments import amounts_argument, amounts_of
from headgate.cli.options import Noun
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import show


def add_bucket_commands(entity: Noun) -> None:
    entity.command("reset", examples="headgate entity reset key-1 gpt-4")(reset)
    entity.command(
        "top-up",
        examples="""
        headgate entity top-up key-1 gpt-4 tpm=5000
        headgate entity top-up key-1 gpt-4 tpm=5000 --once invoice-4711
        """,
    )(top_up)
    entity.command("disable", examples="headgate entity disable key-1")(disable)
    entity.command("enable", examples="headgate entity enable key-1")(enable)
    entity.command("bypass", examples="headgate entity bypass key-1")(bypass)


@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@pass_session
def reset(session: Session, entity_id: str, resource: str) -> None:
    """The bucket is as if never used: full, debt forgiven."""
    with session.repository() as repository:
        repository.reset_bucket(entity_id, resource, session.who)
    show(session, {"reset": {"entity_id": entity_id, "resource": resource}}, "the bucket is full")


@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@amounts_argument
@click.option("--once", metavar="KEY", help="Do nothing if this key was used within a day.")
@pass_session
def top_up(
    session: Session,
    entity_id: str,
    resource: str,
    amounts: tuple[tuple[str, int], ...],
    once: str | None,
) -> None:
    """Grant tokens, up to the capacity."""
    granted = amounts_of(amounts)
    with session.limiter() as limiter:
        applied = limiter.top_up(entity_id, resource, granted, once, session.who)
        left = limiter.available(entity_id, resource)
    document = {
        "entity_id": entity_id, "resource": resource, "applied": applied, "available": left,
    }  # fmt: skip
    now = ", ".join(f"{name} {value}" for name, value in left.items())
    said = "granted" if applied else f"--once {once} was used before; nothing was granted"
    show(session, document, f"{said}; available: {now}")


@click.argument("entity_id", metavar="ENTITY")
@pass_session
def disable(session: Session, entity_id: str) -> None:
    """Every acquire of the entity is refused."""
    _switched(session, entity_id, "disable", "disabled")


@click.argument("entity_id", metavar="ENTITY")
@pass_session
def enable(session: Session, entity_id: str) -> None:
    """Back to normal, after disable or bypass."""
    _switched(session, entity_id, "enable", "normal")


@click.argument("entity_id", metavar="ENTITY")
@pass_session
def bypass(session: Session, entity_id: str) -> None:
    """Every acquire of the entity passes and takes nothing."""
    _switched(session, entity_id, "bypass", "bypass")


def _switched(session: Session, entity_id: str, verb: str, mode: str) -> None:
    with session.repository() as repository:
        getattr(repository, verb)(entity_id, principal=session.who)
    show(session, {"entity_id": entity_id, "mode": mode}, f"{entity_id}: {mode}")
