"""The command tree: loaded late, explained everywhere, and written down in the reference and in
pages whose commands run as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from headgate.cli.app import COMMANDS, cli
from headgate.cli.options import BaseCommand, example_lines
from tests.python import run_python
from tests.surface.test_docs_reference import tool

ROOT = Path(__file__).parents[2]


REFERENCE = tool("cli_reference")

TREE: list[tuple[str, Any]] = list(
    REFERENCE.commands(cli, click.Context(cli, info_name="headgate"))
)  # fmt: skip


def test_the_reference_is_what_the_commands_say() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    assert page == REFERENCE.reference(), "run: python tools/cli_reference.py"


@pytest.mark.parametrize(("path", "command"), TREE, ids=[path for path, _ in TREE])
def test_every_help_has_a_sentence_and_examples_that_exist(
    path: str, command: click.Command
) -> None:
    assert command.help
    assert isinstance(command, BaseCommand)
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{path} {option.opts[0]} says nothing"
    lines = example_lines(command.examples)
    assert any(path in line for line in lines) or command is cli, "an example of the command itself"
    for line in lines:
        for part in line.split("|"):
            _exists(part)


def _exists(line: str) -> None:
    """The example's command is one, and so is each of its options."""
    words = shlex.split(line.replace('"$(', "").replace(')"', ""))
    if "headgate" not in words:
        return
    words = words[words.index("headgate") + 1 :]
    command: click.Command = cli
    known = {name for option in cli.params for name in option.opts}
    context = click.Context(cli, info_name="headgate")
    place = 0
    while place < len(words) and isinstance(command, click.Group):
        word = words[place]
        if word in ("-u", "-n"):
            place += 2
            continue
        found = command.get_command(context, word)
        assert found is not None, f"{word!r} in {line!r}"
        command, place = found, place + 1
    if command.context_settings.get("ignore_unknown_options"):
        return
    known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for word in words[place:]:
        if word.startswith("-") and word != "-":
            assert word.split("=")[0] in known, f"{word!r} in {line!r}"


def test_the_table_leads_to_commands_of_that_name() -> None:
    context = click.Context(cli, info_name="headgate")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_help_loads_no_command_and_nothing_heavy() -> None:
    """What `--help` loads beyond click and the library itself is the frame of the command."""
    code = (
        "import sys, click, headgate\n"
        "before = set(sys.modules)\n"
        "from headgate.cli.app import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.split())
    assert not {name.split(".")[0] for name in loaded} & {"rich", "yaml", "redis", "botocore"}
    ours = {name for name in loaded if name.startswith("headgate.cli.")}
    frame = {"app", "options", "output", "session"}
    assert ours == {f"headgate.cli.{name}" for name in frame}
    assert "Decide:" in done.stdout


def test_help_says_the_common_options_apart(run: Any) -> None:
    text = run("entity", "create", "--help").out
    assert text.index("--metadata") < text.index("Options of every command") < text.index("--url")
    assert text.index("Examples:") > text.index("--debug")


PAGES = [
    ROOT / "docs/tutorial/first-limits.md",
    ROOT / "docs/how-to/declare-limits.md",
    ROOT / "docs/how-to/move-between-stores.md",
]
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_as_printed(page: Path, tmp_path: Path) -> None:
    script = ["set -e"]
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "yaml":  # its first line is a comment that names the file
            (tmp_path / text.split("\n")[0].removeprefix("# ")).write_text(text)
        else:
            script.append(text)
    shim = tmp_path / "bin" / "headgate"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m headgate.cli "$@"\n')
    shim.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert len(script) > 1
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
