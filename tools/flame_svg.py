"""`python -m tools.flame_svg STACKS PICTURE TITLE`: a flame graph as SVG, from lines `a;b;c 12`.

A box is a function, as wide as its share of the samples, on top of the one that called it; its
tooltip says how much that is. Boxes are sorted by name, not by the order of calls. The first line
of the file, `# 74.0 us a take, …`, turns shares into microseconds. The legend adds up what each
kind of work spends itself, without what it calls. Follows the reader's light or dark scheme.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, MARGIN, ROW, TOP, FOOT = 1200, 12, 19, 64, 44
LETTER = 6.3  # a letter's width, about
WIDTH_MIN = 0.6  # a narrower box is left out: it cannot be seen

# The kinds of work, by what a function's name begins with; the first that fits. What is no kind
# of its own is of the kind of whom called it.
KINDS: Mapping[str, tuple[str, ...]] = {
    "system": ("socket.", "epoll_wait"),
    "tls": ("SSLObject",),
    "asyncio": (
        "the event loop", "BaseEventLoop", "BaseSelectorEventLoop", "EpollSelector", "Handle.",
        "_SelectorSocketTransport", "SSLProtocol", "_SSLProtocolTransport", "current_task",
        "TimerHandle", "_BaseSelectorImpl",
    ),
    "wire": (
        "AsyncHttp", "PendingCall", "ResponseReader", "framing_of", "DynamoClient", "Signer",
        "ServiceClock.observe", "ReusedBufferProtocol", "CredentialProvider", "PerOwner",
    ),
    "store": (
        "DynamoStore", "run_flow", "Taker", "fast_take", "BucketView", "state_from_item",
        "TakenVerdict", "SingleWriteTake", "ServiceClock.now_ms", "EncodedRequest",
    ),
    "limiter": (
        "the task", "RateLimiter", "finish", "Engine", "Rejections", "Breaker", "RequestPlan",
        "Cache", "steady_clock", "is_cancelling", "join_parts",
    ),
}  # fmt: skip
LEGEND = {
    "limiter": "limiter and layers", "store": "DynamoDB's protocol", "wire": "signing and HTTP",
    "asyncio": "asyncio", "tls": "TLS records", "system": "system calls",
}  # fmt: skip

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .soft { fill: #59636e; }
  rect.box { stroke: #ffffff; stroke-width: 0.6; }
  .limiter { fill: #b7d3f8; } .store { fill: #b5e3bf; } .wire { fill: #f6dd9b; }
  .asyncio { fill: #dcd3f2; } .tls { fill: #f8c3b0; } .system { fill: #d5d9de; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d; }
    text { fill: #e6edf3; }
    .soft { fill: #9198a1; }
    rect.box { stroke: #0d1117; }
    .limiter { fill: #1f4b82; } .store { fill: #1f5c31; } .wire { fill: #6b5110; }
    .asyncio { fill: #4a3b78; } .tls { fill: #7d3a22; } .system { fill: #444c56; }
  }
"""


@dataclass(slots=True)
class Node:
    name: str
    kind: str
    count: int = 0
    above: dict[str, Node] = field(default_factory=dict)


def read_stacks(lines: Iterable[str]) -> tuple[Node, str]:
    """All stacks as one tree, and what the first line says of them."""
    root, about = Node("", "limiter"), ""
    for line in lines:
        if line.startswith("#"):
            about = line.removeprefix("#").strip()
            continue
        stack, _, count = line.rpartition(" ")
        node = root
        node.count += int(count)
        for name in stack.split(";"):
            node = node.above.setdefault(name, Node(name, kind_of(name, node.kind)))
            node.count += int(count)
    return root, about


def kind_of(name: str, below: str) -> str:
    return next((kind for kind, begins in KINDS.items() if name.startswith(begins)), below)


def depth_of(node: Node) -> int:
    return 1 + max(map(depth_of, node.above.values()), default=0)


def own_counts(node: Node) -> Counter[str]:
    """By kind, the samples that were taken in functions of that kind themselves."""
    above = node.above.values()
    found = Counter({node.kind: node.count - sum(child.count for child in above)})
    for child in above:
        found += own_counts(child)
    return found


def picture(root: Node, about: str, title: str) -> str:
    levels = depth_of(root) - 1
    height = TOP + levels * ROW + FOOT
    whole_us = float(about.split(maxsplit=1)[0]) if about else 0.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="{MARGIN}" y="28">{escape(title)}</text>',
        f'<text class="soft" x="{MARGIN}" y="48">{escape(about)}; {root.count} samples</text>',
    ]
    scale = (WIDTH - 2 * MARGIN) / root.count
    bottom = TOP + (levels - 1) * ROW
    parts += _boxes(root, MARGIN, bottom, scale, whole_us / root.count)
    parts += _legend(height - 16, own_counts(root), whole_us / root.count)
    return "\n".join([*parts, "</svg>", ""])


def _boxes(node: Node, x: float, y: int, scale: float, sample_us: float) -> Iterator[str]:
    for child in sorted(node.above.values(), key=lambda each: each.name):
        width = child.count * scale
        if width >= WIDTH_MIN:
            told = f"{child.name}: {child.count * sample_us:.1f} us"
            room = int((width - 6) / LETTER)
            name = child.name if len(child.name) <= room else child.name.rpartition(".")[2]
            label = name if len(name) <= room else f"{name[: room - 1]}…" if room > 4 else ""
            yield (
                f'<g><title>{escape(told)}</title><rect class="box {child.kind}" x="{x:.1f}" '
                f'y="{y}" width="{width:.1f}" height="{ROW}"/>'
                + (f'<text x="{x + 3:.1f}" y="{y + 14}">{escape(label)}</text>' if label else "")
                + "</g>"
            )
            yield from _boxes(child, x, y - ROW, scale, sample_us)
        x += width


def _legend(y: int, counts: Mapping[str, int], sample_us: float) -> Iterator[str]:
    x = MARGIN
    for kind, name in LEGEND.items():
        text = f"{name} {counts[kind] * sample_us:.0f} us"
        yield f'<rect class="{kind}" x="{x}" y="{y - 11}" width="14" height="14" rx="3"/>'
        yield f'<text x="{x + 20}" y="{y}">{escape(text)}</text>'
        x += 44 + int(len(text) * LETTER)


def main() -> None:
    stacks, drawn, title = sys.argv[1:4]
    root, about = read_stacks(Path(stacks).read_text(encoding="utf-8").splitlines())
    Path(drawn).write_text(picture(root, about, title), encoding="utf-8")


if __name__ == "__main__":
    main()
