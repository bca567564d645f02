"""Every command once with --json: one document, of the shape that is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from headgate.cli.app import cli

# Covered where they need more than a line: programs of others, processes, consent.
ELSEWHERE = (
    {"serve", "demo", "policies check", "keys make"}
    | {"health", "policies show", "policies reload"}  # test_service.py
    | {"keys list", "keys create", "keys revoke"}
    | {f"local {verb}" for verb in ("up", "down", "status")}
    | {"deploy", "status", "list", "upgrade-stack", "delete", "aggregate"}  # tests/aws/infra
)

ENTITY = {"id", "name", "parent_id", "cascade", "metadata", "mode", "version", "created_at"}
NAMESPACE = {"id", "name", "state", "created_at", "deleted_at"}
PAGE = {"items", "next"}
PLAN = {"entities", "levels", "not_declared", "over", "buckets_looked_at", "all_buckets"}
SUMMARY = {"snapshot_count", "total", "average", "total_events", "min_window_start",
           "max_window_start", "window_type", "from_children", "events_from_children"}  # fmt: skip
STORY: tuple[tuple[str, set[str]], ...] = (
    ("version", {"headgate", "python", "extras"}),
    ("cfn-template", {"template"}),
    ("lambda-export aggregator.zip", {"path", "bytes", "key"}),
    ("cost --rps 5 --entities 10", {"own_prices", "priced_on", "region", "usd_per_month", "lines",
                                    "usage_writes_per_1000", "failed_usd_max"}),
    ("version --store", {"headgate", "python", "extras", "store"}),
    ("system set-defaults rpm:1000/min --on-unavailable block", {"limits", "on_unavailable"}),
    ("system get-defaults", {"limits", "on_unavailable"}),
    ("resource set-defaults gpt-4 rpm:60/min tpm:9000/min:12000", {"resource", "limits"}),
    ("resource get-defaults gpt-4", {"resource", "limits"}),
    ("entity create acme --name Acme", ENTITY),
    ("entity create key-1 --parent acme --cascade", ENTITY),
    ("entity set-limits key-1 rpm:5/min -r gpt-4", {"entity_id", "resource", "limits"}),
    ("entity get-limits key-1 -r gpt-4", {"entity_id", "resource", "limits"}),
    ("check key-1 gpt-4 rpm=1", {"allowed", "retry_after_ms", "limits", "nearest"}),
    ("check key-1 gpt-4 rpm=1 --take", {"allowed", "taken", "available", "degraded", "nearest"}),
    ("explain key-1 gpt-4", {"entity_id", "resource", "limits", "on_unavailable", "mode",
                             "mode_source", "version", "nearest", "warnings", "parents"}),
    ("entity show key-1", {"entity", "children", "buckets"}),
    ("entity list", PAGE),
    ("entity list --with-limits gpt-4", PAGE),
    ("entity top-up key-1 gpt-4 rpm=1", {"entity_id", "resource", "applied", "available"}),
    ("entity reset key-1 gpt-4", {"reset"}),
    ("entity set-parent key-1 --none", ENTITY),
    ("entity disable key-1", {"entity_id", "mode"}),
    ("entity bypass key-1", {"entity_id", "mode"}),
    ("entity enable key-1", {"entity_id", "mode"}),
    ("resource disable gpt-4", {"resource", "mode"}),
    ("resource bypass gpt-4", {"resource", "mode"}),
    ("resource enable gpt-4", {"resource", "mode"}),
    ("resource list", {"with_defaults", "with_entity_limits"}),
    ("usage list", PAGE),
    ("usage summary", SUMMARY),
    ("usage summary --plot --window daily", SUMMARY | {"windows"}),
    ("audit list", PAGE),
    ("audit list key-1", PAGE),
    ("audit list key-1 --action limits_set --by cli:ann --start 2020-01-01 --end 2099-01-01", PAGE),
    ("audit list --refused", PAGE),
    ("audit list --system", PAGE),
    ("audit list --policies", PAGE),
    ("audit list --resource gpt-4", PAGE),
    ("top --once", {"time", "buckets", "all_buckets", "items"}),
    ("bench --count 5 --threads 2", {"store", "acquires", "threads", "entities", "per_second",
                                     "microseconds"}),
    ("upgrade", {"dry_run", "steps"}),
    ("trim --usage-days 400 --audit-days 400 --yes", {"gone"}),
    ("limits plan -f limits.yaml", PLAN),
    ("limits diff -f limits.yaml", {"differ", "entities", "levels", "not_declared"}),
    ("limits apply -f limits.yaml --yes", PLAN | {"applied"}),
    ("export -o out.jsonl", {"file", "lines"}),
    ("import out.jsonl --dry-run", {"lines", "dry_run"}),
    ("import out.jsonl", {"written", "skipped"}),
    ("entity delete-limits key-1 -r gpt-4", {"entity_id", "resource", "limits"}),
    ("entity delete key-1 --yes", {"deleted"}),
    ("resource delete-defaults gpt-4", {"resource", "limits"}),
    ("system delete-defaults", {"limits", "on_unavailable"}),
    ("namespace register eu", {"registered"}),
    ("namespace list", {"items"}),
    ("namespace show eu", NAMESPACE),
    ("namespace delete eu", {"deleted", "id"}),
    ("namespace orphans", {"items"}),
    ("namespace recover -- EU", NAMESPACE),
    ("namespace delete eu", {"deleted", "id"}),
    ("namespace purge --yes -- EU", {"purged", "records"}),
    ("completion bash", {"shell", "script"}),
)  # fmt: skip


def _verbs(command: click.Command, context: click.Context) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield context.command_path.removeprefix("headgate ")
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from _verbs(child, click.Context(child, info_name=name, parent=context))


def test_the_story_names_every_command() -> None:
    told = {line for line, _ in STORY}
    verbs = set(_verbs(cli, click.Context(cli, info_name="headgate")))
    missing = {
        verb
        for verb in verbs - ELSEWHERE
        if not any(line == verb or line.startswith(verb + " ") for line in told)
    }
    assert missing == set()
    assert verbs >= ELSEWHERE


@pytest.mark.parametrize("as_json", [True, False], ids=["to programs", "to people"])
def test_every_command_answers(run: Any, tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "limits.yaml").write_text("resources: {gpt-4: [rpm:3/min]}\n")
    eu = ""
    for line, keys in STORY:
        words = [eu if word == "EU" else word for word in line.split()]
        answer = run(*(["--json"] if as_json else []), *words)
        assert answer.code == 0, (line, answer)
        if as_json:
            assert answer.out.count("\n") == 1, line
            assert set(answer.document) == keys, line
            assert answer.err == "", line
        else:
            assert answer.out.strip(), line
            assert "Traceback" not in answer.err, line
        if line == "namespace register eu":
            eu = run("namespace", "show", "eu", "--json").document["id"]


def test_options_of_every_command_may_stand_anywhere(run: Any) -> None:
    before = run("--json", "-n", "default", "entity", "list")
    after = run("entity", "list", "-n", "default", "--json")
    between = run("entity", "--json", "list")
    assert before.document == after.document == between.document == {"items": [], "next": None}


def test_an_option_further_left_is_not_undone_by_the_environment(run: Any, tmp_path: Path) -> None:
    run("entity", "create", "here")
    elsewhere = run("-u", f"sqlite:///{tmp_path}/other.db", "entity", "list", "--json")
    assert elsewhere.document["items"] == []


def test_the_audit_names_who_did_it(run: Any, well: Any) -> None:
    well("entity", "create", "key-1")
    well("--principal", "ops@example", "entity", "disable", "key-1")
    events = well("audit", "list", "key-1")["items"]
    assert [event["principal"] for event in events] == ["ops@example", "cli:ann"]


def test_pages_go_on(run: Any, well: Any) -> None:
    for number in range(5):
        well("entity", "create", f"key-{number}")
    first = well("entity", "list", "--limit", "3")
    rest = well("entity", "list", "--limit", "3", "--cursor", first["next"])
    assert [one["id"] for one in first["items"] + rest["items"]] == [f"key-{n}" for n in range(5)]
    assert rest["next"] is None
    newest = well("audit", "list", "key-1", "--limit", "1")
    assert (len(newest["items"]), newest["next"]) == (1, None)
    last = newest["items"][0]["event_id"]
    assert well("audit", "list", "key-1", "--after", last)["items"] == []


def test_names_cannot_move_the_cursor_or_change_colours(run: Any, well: Any) -> None:
    well("entity", "create", "key-1", "--name", "\x1b[31mred\x1b[0m [bold]b[/bold]\r\n")
    shown = run("entity", "list").out + run("entity", "show", "key-1").out
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "[bold]b[/bold]" in shown


def test_the_audit_of_everybody(run: Any, well: Any) -> None:
    """Without a name it is all of the namespace; options narrow it and pages follow each other."""
    well("entity", "create", "key-1")
    well("--principal", "ops@example", "entity", "set-limits", "key-1", "rpm:9/min", "-r", "gpt-4")
    well("resource", "set-defaults", "gpt-4", "rpm:5/min")
    well("resource", "set-defaults", "gpt-4", "rpm:6/min")

    def told(*words: str) -> list[tuple[str, str]]:
        return [
            (event["entity_id"], event["action"])
            for event in well("audit", "list", *words)["items"]
        ]

    resource = ("$RESOURCE:gpt-4", "limits_set")
    whole = [resource, resource, ("key-1", "limits_set"), ("key-1", "entity_created")]
    assert told()[:4] == whole
    assert told("--resource", "gpt-4") == whole[:3]
    assert told("--by", "ops@example") == whole[2:3]
    assert told("--action", "entity_created", "--by", "cli:ann") == whole[3:]
    assert told("--end", "2020-01-01") == []
    assert told("$RESOURCE:gpt-4") == whole[:2]
    first = well("audit", "list", "--limit", "3")
    assert told("--after", first["next"])[:1] == whole[3:]
    line = run("audit", "list", "$RESOURCE:gpt-4", "--limit", "1")
    assert '"capacity": 6' in line.out
    assert '"capacity": 5' in line.out
    assert "on_unavailable" not in line.out, "of two sides only what differs is shown"


@pytest.mark.parametrize(
    ("user", "principal"),
    [
        ("an\nn", "cli:an?n"), ("\udcff\x1b[1m", "cli:??[1m"), ("x" * 500, "cli:" + "x" * 252),
        ("", "cli"), ("Zoë", "cli:Zoë"),
    ],
)  # fmt: skip
def test_an_odd_user_can_work(
    user: str, principal: str, well: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default name is made valid; one that was given is refused if it is not."""
    monkeypatch.setenv("USER", user)
    monkeypatch.delenv("LOGNAME", raising=False)
    well("entity", "create", "key-1")
    [event] = well("audit", "list", "key-1")["items"]
    assert event["principal"] == principal


@pytest.mark.parametrize("principal", ["", "a\nb", "x" * 257])
def test_a_bad_principal_is_named(principal: str, run: Any) -> None:
    for words in (
        ("entity", "create", "key-1"),
        ("keys", "make", "--keys", "k.yaml", "--namespace", "default"),
    ):
        answer = run("--principal", principal, *words)
        assert (answer.code, "principal" in answer.err) == (2, True), answer
