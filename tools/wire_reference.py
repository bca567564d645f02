"""docs/reference/wire.md, made from OpenAPI, the .proto file and the metrics:
`python tools/wire_reference.py [--check]`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate.service.http.openapi import document
from headgate.service.metrics import ServiceMetrics
from headgate.service.server.workers import worker_deaths

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/wire.md"
PROTO = ROOT / "src/headgate/service/grpc/proto/headgate/v1/headgate.proto"
HEAD = """\
# Every field of the service

Every operation, field, message and metric, made from the code by `python tools/wire_reference.py`;
a test fails when it is out of date. What they mean together: [REST](rest.md), [gRPC](grpc.md).
"""

_MESSAGE = re.compile(r"^message (\w+) \{(?:\}|(.*?)^\})", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(?:(optional|repeated) )?(?:([\w.<>, ]*[\w>]) )?(\w+) = (\d+);")


def reference() -> str:
    told = document()
    parts = [HEAD, "## REST operations\n", "| | query | body | |\n|---|---|---|---|"]
    parts += _operations(told["paths"])
    parts.append("\n## REST bodies\n\nA field in bold must be given.\n")
    parts += (_schema(name, one) for name, one in told["components"]["schemas"].items())
    parts.append("## gRPC messages\n")
    parts += _messages(PROTO.read_text())
    parts += ["## Metrics\n", "| name | kind | labels | |\n|---|---|---|---|", *_metrics(), ""]
    return "\n".join(parts)


def _operations(paths: dict[str, Any]) -> Iterator[str]:
    for path, verbs in paths.items():
        for verb, one in verbs.items():
            asked = [p["name"] for p in one.get("parameters", ()) if p["in"] == "query"]
            query = ", ".join(f"`{name}`" for name in asked)
            body = ""
            for content in one.get("requestBody", {}).get("content", {}).values():
                body = _type(content["schema"])
            yield f"| `{verb.upper()} {path}` | {query} | {body} | {one['summary']} |"


def _schema(name: str, schema: dict[str, Any]) -> str:
    lines = [f"### {name}\n"]
    fields = schema.get("properties", {})
    if not fields:
        return f"### {name}\n\n{_type(schema)}\n"
    lines.append("| field | |\n|---|---|")
    required = set(schema.get("required", ()))
    for field, one in fields.items():
        shown = f"**`{field}`**" if field in required else f"`{field}`"
        lines.append(f"| {shown} | {_type(one)} |")
    return "\n".join(lines) + "\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[word]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "anything")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}{_bounds(schema, 'Items')}"
    return kind + _bounds(schema, "Length") + _range(schema)


def _bounds(schema: dict[str, Any], what: str) -> str:
    most = schema.get(f"max{what}")
    return "" if most is None else f", at most {most}"


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return ""
    return f", {low} to {high}" if high is not None else f", from {low}"


def _messages(text: str) -> Iterator[str]:
    for name, inner in _MESSAGE.findall(text):
        rows, note = [], []
        for line in inner.splitlines():
            field = _FIELD.match(line)
            if line.strip().startswith("//"):
                note.append(line.strip(" /"))
            elif field:
                kind = " ".join(part for part in field.groups()[:2] if part) or "a value"
                number = field[4]
                rows.append(f"| `{field[3]}` | {number} | `{kind}` | {' '.join(note)} |")
                note = []
        table = "\n".join(["| field | | | |\n|---|---|---|---|", *rows]) if rows else "No fields."
        yield f"### {name} (gRPC)\n\n{table}\n"


def _metrics() -> Iterator[str]:
    for one in (*ServiceMetrics().families, worker_deaths()):
        labels = ", ".join(f"`{label}`" for label in getattr(one, "labels", ()))
        yield f"| `{one.name}` | {one.kind} | {labels} | {one.help_text} |"


def main() -> int:
    text = reference()
    if "--check" in sys.argv:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
