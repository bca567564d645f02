"""`headgate version`: what is installed, and what the store says of itself."""

from __future__ import annotations

import platform
from typing import Any

import click

from headgate.cli.options import verb
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import show

# The package that tells whether an extra is installed.
EXTRAS = {"redis": "redis", "dynamodb": "botocore", "service": "uvicorn", "cli": "click"}


@verb(
    "version",
    examples="""
    headgate version
    headgate version --store --json
    """,
)
@click.option("--store", "with_store", is_flag=True, help="Ask the store, too.")
@pass_session
def version(session: Session, with_store: bool) -> None:
    """Versions of headgate, of Python, of the extras' packages and of the store's schema."""
    import headgate

    document: dict[str, Any] = {
        "headgate": headgate.__version__,
        "python": platform.python_version(),
        "extras": {extra: _installed(package) for extra, package in EXTRAS.items()},
    }
    lines = [f"headgate {document['headgate']}", f"python   {document['python']}"]
    lines += [f"{name:8} {found or 'not installed'}" for name, found in document["extras"].items()]
    if with_store:
        document["store"] = _store(session)
        found = document["store"]
        lines.append(
            f"store    {found['name']}, shared by the {found['shared']}, {found['record']}"
        )
    show(session, document, "\n".join(lines))


def _installed(package: str) -> str | None:
    from importlib import metadata

    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None


def _store(session: Session) -> dict[str, Any]:
    from dataclasses import asdict

    with session.repository() as repository:
        return {**asdict(repository.capabilities), "record": dict(repository.get_version_record())}
