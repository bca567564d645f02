"""`headgate completion`: the script that makes a shell complete headgate's words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from headgate.cli.options import verb
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import show


@verb(
    "completion",
    examples="""
    eval "$(headgate completion bash)"
    headgate completion zsh > "${fpath[1]}/_headgate"
    headgate completion fish > ~/.config/fish/completions/headgate.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_session
def completion(session: Session, shell: str) -> None:
    """Print the completion script of a shell; load it in its start file."""
    from headgate.cli.app import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    script = kind(cli, {}, "headgate", "_HEADGATE_COMPLETE").source()
    if session.as_json:
        show(session, {"shell": shell, "script": script})
        return
    click.echo(script)
