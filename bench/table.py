"""Plain text tables: the first column to the left, figures to the right."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[object]


def show(title: str, heads: Sequence[str], rows: Sequence[Row]) -> None:
    texts = [tuple(heads), *(tuple(_text(value) for value in row) for row in rows)]
    widths = [max(len(text[column]) for text in texts) for column in range(len(heads))]
    print(f"\n{title}")
    for place, text in enumerate(texts):
        cells = [text[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(text[1:], widths[1:], strict=True)]
        print("  " + "  ".join(cells).rstrip())
        if place == 0:
            print("  " + "  ".join("-" * width for width in widths))


def show_aims(aims: Sequence[Aim]) -> None:
    print("\naims")
    for aim in aims:
        print(f"  {'met   ' if aim['met'] else 'missed'}  {aim['aim']}: {aim['measured']}")


Aim = dict[str, object]


def aim(text: str, measured: str, met: bool) -> Aim:
    return {"aim": text, "measured": measured, "met": met}


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
