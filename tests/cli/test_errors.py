"""What goes wrong is told in three lines; bad input reaches no store."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli.app import cli
from tests.python import run_python

BAD = """
check key-1 gpt-4
check key-1 gpt-4 rpm
check key-1 gpt-4 rpm=
check key-1 gpt-4 rpm=-1
check key-1 gpt-4 rpm=1.5
check key-1 gpt-4 rpm=1 rpm=2
check key-1 gpt-4 =1
check key-1 gpt-4 rpm=99999999999999999
check key#1 gpt-4 rpm=1 --limit rpm:1/s
check key-1 9pt rpm=1 --limit rpm:1/s
check key-1 gpt-4 rpm=1 --limit lots
check key-1 gpt-4 rpm=1 --wait 5
check key-1 gpt-4 rpm=1 --take --wait -1
check key-1 gpt-4 rpm=1 --take --wait nan
check key-1 gpt-4 rpm=1 --limit rpm:1/s --limit rpm:2/s
check key-1 gpt-4 other=1 --limit rpm:1/s
check key-1 gpt-4 rpm=1
entity
entity nonsense
entity create
entity create a b
entity create a#b
entity create a --metadata {
entity create a --metadata []
entity create a --name=
entity set-limits key-1
entity set-limits key-1 rpm:0/min:0
entity set-limits key-1 wcu:5/min
entity set-limits key-1 rpm:1/min -r 9pt
entity set-parent key-1
entity set-parent key-1 acme --none
entity list --limit 0
entity list --limit 1001
entity list --parent a --with-limits b
entity top-up key-1 gpt-4 rpm=0 --once x
entity delete key-1
resource set-defaults _default_ rpm:1/s
system set-defaults
system set-defaults rpm:1/s --on-unavailable maybe
namespace register a/b
namespace recover short
namespace purge 01234567890
audit list ""
audit list --by ""
audit list --by "a\tb"
audit list --action Set
audit list --after x
audit list --start soon
audit list --policies --refused
audit list key-1 --system
audit list --resource 9pt
usage list --window weekly
usage list --start yesterday
usage summary --entity a#b
plan set pro
plan set pro rpm:1/s --none
plan set a#b rpm:1/s
plan set pro rpm
plan set pro rpm:1/s -r 9pt
plan get a/b
plan list --limit 0
plan assign key-1
plan assign key-1 pro --none
plan assign key-1 a/b
entity create key-1 --plan a/b
entity list --plan pro --parent acme
limits plan
limits plan -f missing.yaml
export --json
import missing.jsonl
top --count 0 --once
top --interval 0 --once
top --resource 9pt --once
deploy limits --region us-east-1 --tag team
bench --count 0
bench --threads 65
upgrade --create --dry-run
local up --port 0
completion tcsh
-u nonsense entity list
-u ftp://host entity list
-u memory://name entity list
-n a/b entity list
""".strip().splitlines()


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_usage(run: Any, line: str) -> None:
    words = shlex.split(line)
    answer = run(*words)
    assert answer.code == 2, answer
    if line == "entity":  # a bare noun shows its help
        assert answer.err.startswith("error:") or "Usage:" in answer.out + answer.err
        return
    _three_lines(answer.err)
    told = run(*words, "--json")
    assert told.document["error"].keys() == {"exit_code", "what", "why", "do"}


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("entity show nobody", "headgate entity create nobody"),
        ("entity create twice", "headgate entity show twice"),
        ("entity delete nobody --yes", "headgate entity create nobody"),
        ("entity set-parent twice nobody", "headgate entity create nobody"),
        ("plan get gold", "headgate plan set gold"),
        ("plan delete gold --yes", "headgate plan set gold"),
        ("plan assign twice gold", "headgate plan set gold"),
        ("entity create one --plan gold", "headgate plan set gold"),
        ("plan set gold --none -r gpt-4", "headgate plan set gold"),
        ("plan delete pro --yes", "plan delete pro --unassign"),
        ("-n nowhere entity list", "headgate namespace register nowhere"),
        ("namespace show nowhere", "headgate namespace register nowhere"),
        ("namespace recover 01234567890", "headgate namespace orphans"),
        ("demo", "pip install 'headgate[service]'"),
        ("serve --port 1", "pip install 'headgate[service]'"),
        ("policies check limits.db", "pip install 'headgate[service]'"),
    ],
)
def test_errors_say_what_helps(
    run: Any, monkeypatch: pytest.MonkeyPatch, line: str, advice: str
) -> None:
    for module in (
        "headgate.service",
        "headgate.service.demo.program",
        "headgate.service.server.serve",
        "headgate.service.policies.policies",
    ):
        monkeypatch.setitem(sys.modules, module, None)
    run("entity", "create", "twice")
    run("plan", "set", "pro", "rpm:1/s")
    run("entity", "create", "rich", "--plan", "pro")
    answer = run(*line.split())
    assert answer.code == 1, answer
    _three_lines(answer.err)
    assert advice in answer.err


def _three_lines(text: str) -> None:
    lines = text.splitlines()
    assert [line[:6] for line in lines] == ["error:", "  why:", "  do: "], text
    assert all(line[6:].strip() for line in lines), text


def test_without_a_store_nothing_is_guessed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_URL")
    answer = run("entity", "list")
    assert answer.code == 2
    assert "HEADGATE_URL" in answer.err


def test_bad_input_makes_no_database(run: Any, tmp_path: Path) -> None:
    for line in ("check key-1 gpt-4 rpm", "entity create a#b --name x", "limits plan -f none"):
        run(*line.split())
    assert not (tmp_path / "limits.db").exists()


def test_a_traceback_only_with_debug(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in run("entity", "show", "nobody").err
    assert "Traceback" in run("entity", "show", "nobody", "--debug").err
    assert "Traceback" in run("--debug", "entity", "show", "nobody").err

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("headgate.sync.SyncRepository.__init__", broken)
    answer = run("entity", "list")
    assert answer.code == 1
    _three_lines(answer.err)
    assert "a bug" in answer.err


def test_slips_are_met_with_what_is_near(run: Any) -> None:
    assert "did you mean 'entity'" in run("enttiy", "list").err
    assert "did you mean 'list'" in run("entity", "lst").err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device here")
@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_a_full_disk_is_told_in_three_lines(url: str, json_too: tuple[str, ...]) -> None:
    line = [sys.executable, "-m", "headgate.cli", "-u", url, "namespace", "list", *json_too]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    _three_lines(done.stderr)
    assert "No space left" in done.stderr


@pytest.mark.parametrize("line", ["entity list", "entity show a", "audit list a", "export"])
def test_letters_that_the_terminal_does_not_know_are_no_failure(
    run: Any, well: Any, line: str
) -> None:
    well("entity", "create", "a", "--name", "Ä → ☃")
    runner = CliRunner(charset="ascii")
    for words in (line.split(), [*line.split(), "--json"]):
        if words == ["export", "--json"]:  # an export is JSON by itself
            continue
        done = runner.invoke(cli, words)
        assert (done.exit_code, done.stderr) == (0, "")
    for document in done.stdout.splitlines():
        json.loads(document)
    assert "\\u2603" in done.stdout


def test_a_command_whose_package_is_missing_says_what_to_install() -> None:
    """In a process that cannot import it, one command after the other."""
    cases = {"deploy x": "aws", "cost --rps 1 --entities 1": "aws", "aggregate x": "dynamodb"}
    code = (
        "import sys\n"
        "sys.modules['botocore'] = None\n"
        "from headgate.cli.app import cli\n"
        f"codes = [cli.main(line.split(), standalone_mode=False) for line in {list(cases)}]\n"
        "sys.exit(codes != [1, 1, 1])\n"
    )
    ended = run_python("-c", code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("this command needs botocore") == len(cases)
    advice = [line for line in ended.stderr.splitlines() if "pip install" in line]
    for line, extra in zip(advice, cases.values(), strict=True):
        assert f"pip install 'headgate[{extra}]'" in line
