"""The command as a process: starting, completion, pipes, and the programs it hands over to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from headgate.cli.app import cli
from tests.python import run_python
from tests.service.envoy.proxies import free_port

COMMAND = [sys.executable, "-W", "error", "-m", "headgate.cli"]


def test_without_its_packages_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['click'] = None; import headgate.cli as c; sys.exit(c.main())"
    done = run_python("-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'headgate[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_early(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    line = f"{' '.join(COMMAND)} -u {url} completion bash | head -c 10"
    done = subprocess.run(
        line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr


def _closed(streams: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command, begun by a shell that closes some of its streams."""
    line = f'exec "$@" {streams}'
    url = f"sqlite:///{cwd}/limits.db"
    return subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND, "-u", url, *arguments], cwd=cwd, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip


def test_without_standard_output_nothing_is_done(tmp_path: Path) -> None:
    gate = ("check", "cron", "db", "runs=1", "--limit", "runs:1/day", "--take")
    done = _closed(">&-", *gate, "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output is closed\n"), done.stderr
    assert ">/dev/null" in done.stderr
    assert not (tmp_path / "limits.db").exists()
    assert _closed(">/dev/null", *gate, cwd=tmp_path).returncode == 0


def test_without_the_other_streams(tmp_path: Path) -> None:
    asked = _closed("<&-", "entity", "delete", "nobody", cwd=tmp_path)
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert _closed("2>&-", "export", "-o", "out.jsonl", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Any, shell: str) -> None:
    script = run("completion", shell).out
    assert "_HEADGATE_COMPLETE" in script
    assert shell in script


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("headgate ent", {"entity"}),
        ("headgate entity set-", {"set-limits", "set-parent"}),
        ("headgate entity create x --pa", {"--parent"}),
        ("headgate completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_words_are_completed(words: str, offered: set[str]) -> None:
    *before, last = words.split(" ")[1:]
    shell = ShellComplete(cli, {}, "headgate", "_HEADGATE_COMPLETE")
    assert {found.value for found in shell.get_completions(before, last)} == offered


def test_a_shell_asks_the_command_itself() -> None:
    asked = {"COMP_WORDS": "headgate ent", "COMP_CWORD": "1"}
    done = run_python(*COMMAND[1:], _HEADGATE_COMPLETE="bash_complete", **asked)
    assert done.stdout == "plain,entity\n"


def test_bars(run: Any, well: Any) -> None:
    well("check", "a", "r", "rpm=30", "--limit", "rpm:60/day", "--take")
    well("check", "b", "r", "rpm=10", "--limit", "rpm:60/day", "--take")
    lines = run("usage", "summary", "--plot", "--window", "monthly").out.splitlines()
    assert lines[-1].endswith("  40")
    assert lines[-1].count("█") == 40
    assert well("usage", "summary", "--plot")["windows"][0]["rpm"] == 40


def test_what_cascades_is_in_a_total_once_and_labelled_at_the_parent(run: Any, well: Any) -> None:
    well("entity", "create", "company")
    well("entity", "create", "team", "--parent", "company", "--cascade")
    well("entity", "create", "key", "--parent", "team", "--cascade")
    well("check", "key", "r", "tpm=500", "--limit", "tpm:1000/day", "--take")
    whole = well("usage", "summary", "--plot")
    assert (whole["total"], whole["average"], whole["total_events"]) == (
        {"tpm": 500}, {"tpm": 500.0}, 1,
    )  # fmt: skip
    assert [window["tpm"] for window in whole["windows"]] == [500]
    assert (whole["from_children"], whole["events_from_children"]) == (None, None)
    team = well("usage", "summary", "--entity", "team")
    assert (team["total"], team["total_events"]) == ({}, 0)
    assert (team["from_children"], team["events_from_children"]) == ({"tpm": 500}, 1)
    told = run("usage", "summary", "--entity", "team").out
    assert "Roll-up: used by children through team, not in its total (1 events)" in told
    assert "from children" in told
    assert "Roll-up" not in run("usage", "summary").out
    rows = well("usage", "list", "--window", "daily")["items"]
    assert {row["entity_id"]: (row["counters"], row["from_children"]) for row in rows} == {
        "key": ({"tpm": 500}, {}),
        "team": ({"tpm": 500}, {"tpm": 500}),
        "company": ({"tpm": 500}, {"tpm": 500}),
    }
    assert "of it from children" in run("usage", "list").out


def test_bench_leaves_nothing_behind(well: Any) -> None:
    found = well("bench", "--count", "20", "--threads", "2", "--entities", "3")
    assert found["acquires"] == 40
    assert found["per_second"] > 0
    assert well("namespace", "list")["items"] == []
    assert well("namespace", "orphans")["items"] == []


def stand_in(monkeypatch: pytest.MonkeyPatch, where: str, name: str, value: Any) -> None:
    """Puts a program of the test's own where one of headgate's will be looked for."""
    module = ModuleType(where)
    setattr(module, name, value)
    parent = where.rpartition(".")[0]
    monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, where, module)


def test_serve_hands_its_line_over(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        given.append(arguments)
        return 7

    stand_in(monkeypatch, "headgate.service.server.serve", "main", main)
    monkeypatch.delenv("HEADGATE_STORE", raising=False)
    monkeypatch.setenv("HEADGATE_URL", "sqlite:///e.db")
    run("serve")
    run("serve", "--policies=p.yaml")
    assert given == [["--store", "sqlite:///e.db"], ["--policies=p.yaml"]]
    given.clear()
    monkeypatch.delenv("HEADGATE_URL")
    assert run("serve", "--port", "0", "--help", "-x").code == 7
    assert run("-u", "redis://h/0", "serve", "--port", "1").code == 7
    assert run("-u", "redis://h/0", "serve", "--store", "memory://").code == 7
    assert run("keys", "make", "--keys", "k.yaml").code == 7
    assert given == [
        ["--port", "0", "--help", "-x"],
        ["--store", "redis://h/0", "--port", "1"],
        ["--store", "memory://"],
        ["key", "--principal", "cli:ann", "--keys", "k.yaml"],
    ]


def test_demo_hands_its_line_over(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    stand_in(monkeypatch, "headgate.service.demo.program", "main", given.append)
    assert run("demo").code == 0
    assert run("demo", "--port", "0", "--help").code == 0
    assert given == [[], ["--port", "0", "--help"]]


def test_demo_fills_no_store_that_is_in_use(run: Any) -> None:
    refused = run("-u", "sqlite:///play.db", "demo")
    assert refused.code == 2
    assert "leave --url out" in refused.err


def test_policies_check_shows_places(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text("x")
    fault = SimpleNamespace(line=3, column=5, text="unknown key")
    answers = iter([SimpleNamespace(faults=(fault,)), SimpleNamespace(faults=(fault,)), object()])
    stand_in(
        monkeypatch, "headgate.service.policies.policies", "check_file", lambda path: next(answers)
    )
    bad = run("policies", "check", "p.yaml")
    assert bad.code == 1
    assert "p.yaml:3:5" in bad.out
    told = run("policies", "check", "p.yaml", "--json")
    assert told.document["faults"] == [{"line": 3, "column": 5, "text": "unknown key"}]
    assert run("policies", "check", "p.yaml").code == 0


# A stand-in for ministack: it answers as far as `local` looks.
ENGINE = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"] or 0))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *told): pass
def main():
    where = (os.environ["BIND_HOST"], int(os.environ["GATEWAY_PORT"]))
    http.server.HTTPServer(where, Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose Python has the stand-in installed."""
    folder = tmp_path / "home" / "ministack"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    package = folder / "lib" / version / "site-packages" / "ministack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text(textwrap.dedent(ENGINE))
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{package.parent}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.delenv("HEADGATE_MINISTACK_VENV", raising=False)
    monkeypatch.setattr("headgate.cli.commands.local._make_table", lambda found: True)
    return package


def test_local_goes_up_and_down(run: Any, well: Any, engine: Path, tmp_path: Path) -> None:
    assert run("local", "status").code == 4
    up = well("local", "up", "--port", str(free_port()))
    try:
        assert up["answers"] is True
        assert well("local", "up")["pid"] == up["pid"]
        status = run("local", "status")
        assert (status.code, up["url"] in status.out) == (0, True)
        assert "export HEADGATE_URL" in run("local", "up").out
    finally:
        assert well("local", "down") == {"stopped": up["pid"]}
    with pytest.raises(ProcessLookupError):
        os.kill(up["pid"], 0)
    assert well("local", "down") == {"stopped": None}
    assert not (tmp_path / "home" / "local.json").exists()


def test_local_says_what_is_missing_or_wrong(run: Any, engine: Path, tmp_path: Path) -> None:
    (engine / "app.py").write_text("raise SystemExit('no such luck')")
    answer = run("local", "up", "--port", str(free_port()))
    assert answer.code == 1
    assert "no such luck" in answer.err
    assert not (tmp_path / "home" / "local.json").exists()
    (engine / "app.py").unlink()
    answer = run("local", "up", "--port", str(free_port()))
    assert answer.code == 1
    assert "--install" in answer.err


def test_local_never_stops_a_process_that_is_not_the_engine(
    run: Any, well: Any, tmp_path: Path
) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        home = tmp_path / "home"
        home.mkdir()
        (home / "local.json").write_text(json.dumps({"pid": other.pid, "port": 1}))
        assert well("local", "down") == {"stopped": None}
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_python_m_headgate_is_the_command(tmp_path: Path) -> None:
    """As the installed command: its name in what it says, its answers and its exit codes."""
    for words in (["--version"], ["--help"], ["version", "--json"], ["audit", "list", ""]):
        told = []
        for command in (["-m", "headgate"], ["-m", "headgate.cli"]):
            done = run_python(*command, "-u", f"sqlite:///{tmp_path}/limits.db", *words)
            told.append((done.returncode, done.stdout, done.stderr))
        assert told[0] == told[1]
        assert "__main__" not in told[0][1] + told[0][2]
