"""The table of commands. A new command is one line here; its module is loaded when it is used.

`where` is `module:object` below headgate.cli, the object a click command made with `verb` or
`noun`. Or it is the whole name of a program elsewhere, as in `headgate.aws.infra.deploy:main`, that
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
        Entry("check", "commands.check:check", "Would it pass? With --take: take it."),
        Entry(
            "explain",
            "commands.check:explain",
            "Which level gave each limit, and what it overrides.",
        ),
    ),
    "Configure": (
        Entry(
            "entity",
            "commands.entity:entity",
            "Who is limited: create, limit, switch, reset, top up.",
        ),
        Entry("resource", "commands.defaults:resource", "Default limits of what is used."),
        Entry("system", "commands.defaults:system", "Default limits of everything."),
        Entry("limits", "commands.limits:limits", "Limits declared in a file: plan, apply, diff."),
        Entry("namespace", "commands.namespace:namespace", "Tenants of one store."),
    ),
    "Look": (
        Entry("top", "commands.top:top", "The busiest buckets, live."),
        Entry("usage", "commands.usage:usage", "What was consumed per hour, day and month."),
        Entry("audit", "commands.audit:audit", "Who changed what."),
        Entry("bench", "commands.bench:bench", "Measure acquire on a store."),
        Entry(
            "version", "commands.store:version", "Versions of headgate, of Python and of the store."
        ),
    ),
    "Move": (
        Entry(
            "export",
            "commands.move:export",
            "Entities, limits and usage of a namespace, as JSON lines.",
        ),
        Entry("import", "commands.move:import_", "What an export wrote, into this store."),
        Entry("upgrade", "commands.store:upgrade", "Move a store on from an older schema."),
        Entry("trim", "commands.store:trim", "Delete usage and audit history that is old."),
    ),
    "AWS": (
        Entry("deploy", "commands.stack:deploy", "Make a stack, or change one.", "aws"),
        Entry("status", "commands.stack:status", "How a stack is.", "aws"),
        Entry("list", "commands.stack:list_", "All stacks in a region.", "aws"),
        Entry("upgrade-stack", "commands.stack:upgrade_stack", "Bring a stack up to date.", "aws"),
        Entry("delete", "commands.stack:delete", "Delete a stack.", "aws"),
        Entry("cfn-template", "commands.stack:cfn_template", "The CloudFormation template.", "aws"),
        Entry(
            "lambda-export", "commands.stack:lambda_export", "The aggregator as a zip file.", "aws"
        ),
        Entry("cost", "commands.stack:cost", "What a table costs a month."),
    ),
    "Run": (
        Entry("serve", "commands.serve:serve", "The REST and gRPC service."),
        Entry(
            "demo",
            "commands.serve:demo",
            "A sample company, traffic, the service and its dashboard.",
        ),
        Entry("policies", "commands.serve:policies", "The service's policy file."),
        Entry("keys", "commands.serve:keys", "API keys of the service."),
        Entry(
            "aggregate", "commands.aggregate:aggregate", "Usage from a table's stream.", "dynamodb"
        ),
        Entry("local", "commands.local:local", "A local AWS engine to try DynamoDB with."),
        Entry("completion", "commands.store:completion", "Completion for bash, zsh and fish."),
    ),
}

COMMANDS: dict[str, Entry] = {
    entry.name: entry for section in SECTIONS.values() for entry in section
}
