"""`python -m tools.architecture_svg`: draws docs/images/architecture.svg, the packages as a stack.

Each row may import the rows below it. The order is the first contract of import-linter in
pyproject.toml; this picture only says it in a way people can see.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH, MARGIN, GAP = 900, 20, 12
TOP, ROW, LABEL = 74, 92, 104

# Label of the row; its boxes: name, lines of text.
ROWS: list[tuple[str, list[tuple[str, str, str]]]] = [
    ("Terminal", [("cli", "the headgate command", "one module per noun")]),
    (
        "Programs",
        [
            ("service", "REST, gRPC, Envoy,", "console, demo"),
            ("client", "talks to the service,", "async and blocking"),
            ("integrations", "ASGI, Django, Flask, gRPC,", "httpx, LLM calls"),
            ("aws", "stream aggregator,", "CloudFormation stack"),
        ],
    ),
    (
        "What you import",
        [
            ("limiter, sync", "RateLimiter and Lease,", "async and blocking"),
            ("repository", "URL to store,", "everything an operator does"),
            ("testing", "fake clock, doubles,", "the contract suite"),
        ],
    ),
    (
        "Operators",
        [
            ("admin", "entities, stored limits,", "usage, export, import"),
            ("declare", "limits in a file:", "read, compare, apply"),
        ],
    ),
    (
        "Stores",
        [
            ("stores", "memory, sqlite, redis, dynamodb:", "none knows another"),
            ("layers", "breaker, rejections, prefetch,", "shadow: a store around a store"),
        ],
    ),
    (
        "Decisions",
        [
            (
                "core",
                "bucket, limits, levels, plan, engine, lease:",
                "no I/O, no event loop",
            )
        ],
    ),
    (
        "Wires",
        [("transport", "gates to wait at, fork and loop ownership,", "a strict HTTP/1.1 reader")],
    ),
]

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  .box { fill: #f6f8fa; stroke: #3b6fb6; }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .name { font: 600 14px ui-monospace, SFMono-Regular, Menlo, monospace; }
  .soft { fill: #59636e; font-size: 12px; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d; }
    .box { fill: #161b22; stroke: #6ea8fe; }
    text { fill: #e6edf3; }
    .soft { fill: #9198a1; }
  }
"""


def text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def box(x: float, y: float, width: float, lines: tuple[str, str, str]) -> list[str]:
    name, *rest = lines
    return [
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{ROW - GAP}" rx="6"/>',
        text(x + 14, y + 26, name, "name"),
        *(text(x + 14, y + 46 + 17 * at, one, "soft") for at, one in enumerate(rest)),
    ]


def picture() -> str:
    height = TOP + ROW * len(ROWS) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title">',
        '<title id="title">The packages of headgate; imports point down</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        text(MARGIN, 34, "The packages of headgate", "title"),
        text(MARGIN, 54, "Imports point down: a row may use the rows below it.", "soft"),
    ]
    for row, (label, boxes) in enumerate(ROWS):
        y = TOP + row * ROW
        parts.append(text(MARGIN, y + 44, label, "soft"))
        left = MARGIN + LABEL
        width = (WIDTH - MARGIN - left - GAP * (len(boxes) - 1)) / len(boxes)
        for at, lines in enumerate(boxes):
            parts += box(left + at * (width + GAP), y, width, lines)
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture())
    sys.stdout.write(f"wrote {PICTURE.relative_to(ROOT)}\n")
