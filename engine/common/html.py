"""Tables and pages of HTML, for what notebooks show and what is written as a page of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

# Colours follow the page around: a notebook may be dark. Notebooks have rules of their own for cells of tables, which
# put text on the right.
STYLE = """
.ab-view {font: 13px/1.5 system-ui, sans-serif; color: inherit; max-width: 100%; overflow-x: auto}
.ab-view h1 {font-size: 20px; margin: 0 0 8px} .ab-view h2 {font-size: 15px; margin: 16px 0 4px}
.ab-view p {margin: 4px 0} .ab-view pre, .ab-view code {font: 12px/1.45 ui-monospace, monospace}
.ab-view table {font: inherit; border-collapse: collapse; margin: 6px 0; font-variant-numeric: tabular-nums}
.ab-view th {text-align: left !important; border-bottom: 1px solid #8888; padding: 2px 10px 2px 2px; font-weight: 600}
.ab-view td {text-align: left !important; padding: 2px 10px 2px 2px; border-bottom: 1px solid #8883; white-space: pre}
.ab-view td.n, .ab-view th.n {text-align: right !important} .ab-view .warn {color: #b45309; font-weight: 600}
.ab-view .bar {display: inline-block; height: 9px; background: #2563eb; border-radius: 1px}
"""
_PAGE_STYLE = (
    "html {color-scheme: light dark} body {margin: 16px; font-family: system-ui, sans-serif} "
    ".ab-view a {color: inherit} "
)
_NARROWEST = 0.002  # of a flame graph's width: what is narrower is left out


def escape(text: object) -> str:
    """Return text that shows as it is in HTML.

    >>> escape("a < b")
    'a &lt; b'
    """
    import html  # only notebooks and pages need it

    return html.escape(str(text))


def view(*parts: str) -> str:
    """Return parts of HTML as one block with its style, for ``_repr_html_``."""
    return f'<style>{STYLE}</style><div class="ab-view">{"".join(parts)}</div>'


def shortened(text: str, width: int) -> str:
    """Return text of at most `width` characters; dots stand for what was left out at its end.

    >>> shortened("fused (add, tanh)", 12)
    'fused (ad...'
    """
    return text if len(text) <= width else f"{text[: width - 3]}..."


def page(title: str, *parts: str, style: str = "") -> str:
    """Return a whole page that needs no other file.

    Args:
        title: of the page, plain text.
        parts: of the body, HTML.
        style: rules of CSS beside the common ones.
    """
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_PAGE_STYLE}{style}</style></head>\n<body>{view(f'<h1>{escape(title)}</h1>', *parts)}</body></html>\n"
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], numbers: int = 0) -> str:
    """Return a table.

    Args:
        titles: of the columns.
        rows: the cells, plain text.
        numbers: how many of the last columns hold numbers, which are aligned on the right.

    >>> table(["layer", "ms"], [["a<b", 1.5]], numbers=1)
    '<table><tr><th>layer</th><th class="n">ms</th></tr><tr><td>a&lt;b</td><td class="n">1.5</td></tr></table>'
    """
    first = len(titles) - numbers
    head = "".join(f"<th{_side(k >= first)}>{escape(title)}</th>" for k, title in enumerate(titles))
    body = "".join(
        "<tr>" + "".join(f"<td{_side(k >= first)}>{escape(cell)}</td>" for k, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _side(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


FLAME_STYLE = """
.flame {position: relative; width: 100%; font: 11px ui-monospace, monospace; margin: 6px 0}
.flame div {position: absolute; height: 17px; overflow: hidden; white-space: nowrap; box-sizing: border-box;
  border: 1px solid #fff8; padding: 0 3px; color: #111; border-radius: 2px}
"""
_COLOURS = ("#fbbf24", "#fb923c", "#f87171", "#facc15", "#fdba74", "#fca5a5")


def flame_graph(stacks: Iterable[tuple[Sequence[str], float]], unit: float = 1e-3, suffix: str = " ms") -> str:
    """Return a flame graph: a row of boxes for each depth, as wide as their share.

    Args:
        stacks: the names from the outermost to the innermost, each with what it takes.
        unit, suffix: in which amounts are printed.
    """
    root: dict[str, _Box] = {}
    for names, amount in stacks:
        level = root
        for name in names:
            box = level.setdefault(name, _Box())
            box.amount += amount
            level = box.inside
    total = sum(box.amount for box in root.values()) or 1.0
    boxes, depth = _boxes(root, 0.0, 0, total)
    pieces: list[str] = []
    for name, left, width, level, amount in boxes:
        text = f"{name}: {amount / unit:.3f}{suffix}, {amount / total:.1%}"
        place = f"left:{left:.3%};width:{width:.3%};top:{level * 18}px;background:{_COLOURS[hash_of(name)]}"
        pieces.append(f'<div style="{place}" title="{escape(text)}">{escape(name)}</div>')
    return f'<div class="flame" style="height:{depth * 18}px">{"".join(pieces)}</div>'


def hash_of(name: str) -> int:
    """Return the number of a name's colour, the same in every process."""
    return sum(map(ord, name)) % len(_COLOURS)


class _Box:
    """A box of a flame graph, as it is summed up."""

    def __init__(self) -> None:
        self.amount = 0.0
        self.inside: dict[str, _Box] = {}


def _boxes(
    level: dict[str, _Box], left: float, depth: int, total: float
) -> tuple[list[tuple[str, float, float, int, float]], int]:
    found: list[tuple[str, float, float, int, float]] = []
    deepest = depth
    for name, box in level.items():
        width = box.amount / total
        if width >= _NARROWEST:
            found.append((name, left, width, depth, box.amount))
            inner, below = _boxes(box.inside, left, depth + 1, total)
            found += inner
            deepest = max(deepest, below, depth + 1)
        left += width
    return found, deepest


_MOST_ROWS, _MOST_COLUMNS = 10, 12  # of an array that are shown


def array_view(title: str, array: Any = None) -> str:
    """Return a title, and the elements of an array as a table: of more than two axes the first part of two.

    Args:
        title: plain text.
        array: an array; None for none.
    """
    head = f"<p><b>{escape(title)}</b></p>"
    values = None if array is None else np.asarray(array)
    if values is None or values.dtype.names is not None:
        return view(head)
    if values.ndim == 0 or not values.size:
        return view(head, f"<code>{escape(values[()] if values.ndim == 0 else values)}</code>")
    note = ""
    if values.ndim > 2:
        note = f"<p>of which [{'0, ' * (values.ndim - 2)}:, :]</p>"
        values = values[(0,) * (values.ndim - 2)]
    rows = values.reshape((1, -1)) if values.ndim == 1 else values
    columns = min(rows.shape[1], _MOST_COLUMNS)
    wide, long = rows.shape[1] > columns, len(rows) > _MOST_ROWS
    shown = [[*[_cell(value) for value in row[:columns]], *(["..."] if wide else [])] for row in rows[:_MOST_ROWS]]
    shown += [["..."] * (columns + wide)] if long else []
    titles = [*map(str, range(columns)), *(["..."] if wide else [])]
    return view(head, note, table(titles, shown, numbers=len(titles)))


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)
