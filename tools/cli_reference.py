"""docs/reference/cli.md, made from the command tree: `python tools/cli_reference.py [--check]`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from headgate.cli.app import SECTIONS, cli
from headgate.cli.options import BaseCommand, CommonOption, example_lines

PAGE = Path(__file__).parents[1] / "docs/reference/cli.md"
HEAD = """\
# The command line

`pip install 'headgate[cli]'` brings the command `headgate`. This page is made from the commands
themselves by `python tools/cli_reference.py`; a test fails when it is out of date. How to use it:
[declare limits in a file](../how-to/declare-limits.md),
[move between stores](../how-to/move-between-stores.md).

A limit is typed as `rpm:1000/min:1500` (name, amount per period, burst), or like
`100/minute burst 150` or `tpm: 5 per 30s`; an amount as `rpm=1`. A quota is typed as
`'month:1000000/calendar month Europe/Berlin'`, and tables show when it is reset:
[set a monthly quota](../how-to/set-a-monthly-quota.md).

| exit code | meaning |
|---|---|
| 0 | well, or admitted |
| 1 | an error; also `limits diff --exit-code` where something differs |
| 2 | usage: the line or its input cannot be used; nothing was done |
| 3 | limited, or disabled by an operator |
| 4 | the store or the service gave no answer |

An error is three lines on standard error: what, why, what to do. With `--json` standard output is
one JSON document and nothing else, in case of an error `{"error": {"exit_code", "what", "why",
"do"}}`. What would ask for consent needs `--yes` there. Entities, limits, buckets,
namespaces, audit events and usage have the same fields as in the REST service ([wire](wire.md)).

With the URL of a service (`--url https://limits.example.com`) every command works that REST has a
verb for, with the API key in `HEADGATE_API_KEY`; the audit log then names the key. What is about
the store as a whole (`export`, `import`, `limits`, `top`, `bench`, `trim`, `upgrade`) needs the
store's own URL, and what a store has not (`health`, `policies show` and `reload`, `keys list`,
`create` and `revoke`) that of a service.

Completion: `eval "$(headgate completion bash)"` in `~/.bashrc`; zsh and fish alike.
"""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name, groups before what is in them."""
    yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, click.Context(child, info_name=name, parent=context))


def reference() -> str:
    root = click.Context(cli, info_name="headgate")
    parts = [HEAD, "## Options of every command\n", _options(cli, common=True)]
    parts += ["## Commands\n", *_contents()]
    for path, command in commands(cli, root):
        if command is not cli:
            parts.append(_section(path, command))
    return "\n".join(parts)


def _contents() -> Iterator[str]:
    for title, entries in SECTIONS.items():
        names = ", ".join(f"[`{one.name}`](#headgate-{one.name})" for one in entries)
        yield f"- {title}: {names}"
    yield ""


def _section(path: str, command: click.Command) -> str:
    depth = "###" if len(path.split()) > 2 else "##"
    parts = [f"{depth} {path}\n", inspect.cleandoc(command.help or "") + "\n"]
    if not isinstance(command, click.Group):
        parts.append(f"    {_usage(path, command)}\n")
    own = _options(command, common=False)
    if own:
        parts.append(own)
    if isinstance(command, BaseCommand) and not isinstance(command, click.Group):
        parts.append("```sh\n" + "\n".join(example_lines(command.examples)) + "\n```\n")
    return "\n".join(parts)


def _usage(path: str, command: click.Command) -> str:
    words = [path]
    if any(isinstance(one, click.Option) for one in command.params):
        words.append("[OPTIONS]")
    for one in command.params:
        if isinstance(one, click.Argument):
            word = one.metavar or (one.name or "").upper()
            words.append(word if one.required or word.startswith("[") else f"[{word}]")
    return " ".join(words)


def _options(command: click.Command, *, common: bool) -> str:
    rows = [
        f"| {_names(one)} | {_told(one)} |"
        for one in command.params
        if isinstance(one, click.Option) and isinstance(one, CommonOption) is common
    ]
    return "\n".join(["| option | |", "|---|---|", *rows, ""]) if rows else ""


def _names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if isinstance(option.type, click.Choice):
        return names + " " + " \\| ".join(f"`{one}`" for one in option.type.choices)
    return names if option.is_flag else f"{names} {option.metavar or (option.name or '').upper()}"


def _told(option: click.Option) -> str:
    notes = ["Required."] if option.required else []
    if option.show_default is True and not option.is_flag:
        notes.append(f"Default: `{option.default}`.")
    return " ".join([option.help or "", *notes])


def main() -> int:
    text = reference()
    if "--check" in sys.argv:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
