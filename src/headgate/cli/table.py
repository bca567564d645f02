"""The table of commands. A new command is one line here; its module is loaded when it is used.

`where` is `module:object` below headgate.cli, the object a click command made with `verb` or
`noun`. Or it is the whole name of a program elsewhere, as in `headgate.infra.deploy:main`, that
takes its words as a list and returns its exit code; `extra` is what must be installed for it.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    name: str
    where: str
    summary: str
    extra: str = ""


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Decide": (
        Entry("check", "check:check", "Would it pass? With --take: take it."),
        Entry("explain", "check:explain", "Which level gave each limit, and what it overrides."),
    ),
    "Configure": (
        Entry("entity", "entity:entity", "Who is limited: create, limit, switch, reset, top up."),
        Entry("resource", "resource:resource", "Default limits of what is used."),
        Entry("system", "system:system", "Default limits of everything."),
        Entry("limits", "limits:limits", "Limits declared in a file: plan, apply, diff."),
        Entry("namespace", "namespace:namespace", "Tenants of one store."),
    ),
    "Look": (
        Entry("top", "top:top", "The busiest buckets, live."),
        Entry("usage", "usage:usage", "What was consumed per hour, day and month."),
        Entry("audit", "audit:audit", "Who changed what."),
        Entry("bench", "bench:bench", "Measure acquire on a store."),
        Entry("version", "version:version", "Versions of headgate, of Python and of the store."),
    ),
    "Move": (
        Entry("export", "move:export", "Entities, limits and usage of a namespace, as JSON lines."),
        Entry("import", "move:import_", "What an export wrote, into this store."),
        Entry("upgrade", "upgrade:upgrade", "Move a store on from an older schema."),
        Entry("trim", "trim:trim", "Delete usage and audit history that is old."),
    ),
    "AWS": (
        Entry("deploy", "stack:deploy", "Make a stack, or change one.", "aws"),
        Entry("status", "stack:status", "How a stack is.", "aws"),
        Entry("list", "stack:list_", "All stacks in a region.", "aws"),
        Entry("upgrade-stack", "stack:upgrade_stack", "Bring a stack up to date.", "aws"),
        Entry("delete", "stack:delete", "Delete a stack.", "aws"),
        Entry("cfn-template", "stack:cfn_template", "The CloudFormation template.", "aws"),
        Entry("lambda-export", "stack:lambda_export", "The aggregator as a zip file.", "aws"),
        Entry("cost", "cost:cost", "What a table costs a month."),
    ),
    "Run": (
        Entry("serve", "serve:serve", "The REST and gRPC service."),
        Entry("demo", "serve:demo", "A sample company, traffic, the service and its dashboard."),
        Entry("policies", "service_files:policies", "The service's policy file."),
        Entry("keys", "service_files:keys", "API keys of the service."),
        Entry("aggregate", "aggregate:aggregate", "Usage from a table's stream.", "dynamodb"),
        Entry("local", "local:local", "A local AWS engine to try DynamoDB with."),
        Entry("completion", "completion:completion", "Completion for bash, zsh and fish."),
    ),
}

COMMANDS: dict[str, Entry] = {
    entry.name: entry for section in SECTIONS.values() for entry in section
}
