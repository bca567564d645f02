"""The chart of a store in docs/explanation: how dear a peer's decision is, headgate's being 1.

Written by hand as SVG; it follows the reader's light or dark scheme. The scale is logarithmic, so a
peer twice as cheap and one twice as dear are as far from the middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT = 860, 300, 70
TOP, LINE, HEAD, FOOT = 72, 22, 30, 66
TICKS = (0.5, 1, 2, 5, 10, 20, 50)

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .head { font-weight: 600; }
  .soft { fill: #59636e; font-size: 12px; }
  .grid { stroke: #d8dee4; }
  .one { stroke: #1f2328; stroke-width: 1.5; }
  .dear { fill: #3b6fb6; }
  .cheap { fill: #b65c16; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d; }
    text { fill: #e6edf3; }
    .soft { fill: #9198a1; }
    .grid { stroke: #2a313c; }
    .one { stroke: #e6edf3; }
    .dear { fill: #6ea8fe; }
    .cheap { fill: #f0964b; }
  }
"""

Bar = Mapping[str, Any]


def picture(store: str, bars: Sequence[Bar], load: str) -> str:
    groups = list(dict.fromkeys(bar["group"] for bar in bars))
    height = TOP + len(groups) * HEAD + len(bars) * LINE + FOOT
    bottom = height - FOOT + 6
    most = max([bar["times"] for bar in bars] + [2])
    scale = _scale(most)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title">',
        f'<title id="title">{store}: cost of a decision of others, headgate being 1</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(20, 30, f"{store}: what a decision costs, beside headgate's", "title"),
        _text(
            20, 50, "1 = as dear as headgate; right: dearer, left: cheaper. Logarithmic.", "soft"
        ),
        *_grid(scale, most, bottom),
    ]
    y = TOP
    for group in groups:
        y += HEAD
        parts.append(_text(20, y - 8, group, "head"))
        for bar in (bar for bar in bars if bar["group"] == group):
            parts += _bar(bar, y, scale)
            y += LINE
    parts.append(_text(20, height - 16, f"ratios within one run; load average {load}", "soft"))
    return "\n".join([*parts, "</svg>", ""])


def _scale(most: float) -> Any:
    low, high = math.log(0.5), math.log(max(most * 1.05, 4))

    def place(times: float) -> float:
        share = (math.log(max(times, 0.5)) - low) / (high - low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    return place


def _grid(scale: Any, most: float, bottom: int) -> list[str]:
    parts = []
    for tick in TICKS:
        if tick <= most * 1.05:
            x, kind = scale(tick), "one" if tick == 1 else "grid"
            parts += [
                f'<line class="{kind}" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}"/>',
                f'<text class="soft" x="{x}" y="{bottom + 16}" text-anchor="middle">'
                f"{tick:g} ×</text>",
            ]
    return parts


def _bar(bar: Bar, y: int, scale: Any) -> list[str]:
    times = bar["times"]
    start, end = sorted((scale(1), scale(times)))
    kind = "dear" if times >= 1 else "cheap"
    told = f"{times:.1f} ×" if times >= 1 else f"{times:.2f} ×"
    beside = end + 6 if times >= 1 else scale(1) + 6
    return [
        f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(bar["label"])}</text>',
        f'<rect class="{kind}" x="{start}" y="{y + 2}" width="{max(end - start, 1):.1f}" '
        f'height="{LINE - 7}" rx="2"/>',
        _text(beside, y + 13, told, "soft"),
    ]


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'
