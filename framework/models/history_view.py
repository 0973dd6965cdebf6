"""The HTML by which notebooks show what `fit` returned: the values of each epoch, and their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...engine.common.html import escape, table, view

_WIDTH, _HEIGHT = 300, 160  # of a chart
_LEFT, _TOP, _BOTTOM = 52, 30, 18  # above the curves are their names
_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
_MOST_ROWS = 20


def history_html(epochs: Sequence[int], history: Mapping[str, Sequence[float]]) -> str:
    """Return charts and a table of a history.

    Args:
        epochs: their numbers, from 0.
        history: for each quantity, its value at the end of each epoch.
    """
    if not epochs:
        return view("<p><b>History</b>: no epoch has ended yet</p>")
    charts = "".join(_chart(name, history) for name in history if not name.startswith("val_"))
    rows = [
        [str(epoch + 1), *[_number(values[place]) if place < len(values) else "" for values in history.values()]]
        for place, epoch in enumerate(epochs)
    ]
    note = f"<p>the last {_MOST_ROWS} of {len(rows)} epochs</p>" if len(rows) > _MOST_ROWS else ""
    shown = table(["epoch", *history], rows[-_MOST_ROWS:], numbers=len(history))
    return view(charts, note, shown)


def _chart(name: str, history: Mapping[str, Sequence[float]]) -> str:
    """Return a quantity over the epochs, with that of the validation data beside it."""
    curves = {each: history[each] for each in (name, f"val_{name}") if each in history}
    finite = [float(v) for values in curves.values() for v in values if math.isfinite(v)]
    if not finite or max(map(len, curves.values())) < 2:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    count = max(map(len, curves.values()))
    wide, tall = _WIDTH - _LEFT - 8, _HEIGHT - _TOP - _BOTTOM
    parts = [f'<path d="M{_LEFT} {_TOP}V{_TOP + tall}H{_WIDTH - 8}" fill="none" stroke="#8888"/>']
    for value, y in ((high, _TOP + 4), (low, _TOP + tall)):
        parts.append(_text(_LEFT - 4, y, f"{value:.4g}", "end"))
    parts += [_text(_LEFT, _HEIGHT - 4, "1", "middle"), _text(_WIDTH - 12, _HEIGHT - 4, str(count), "middle")]
    for number, (label, values) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{_LEFT + wide * place / (count - 1):.1f},{_TOP + tall * (high - value) / span:.1f}"
            for place, value in enumerate(values)
            if math.isfinite(value)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(_text(_LEFT, 10 + 12 * number, label, "start", colour))
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}" style="font: 10px sans-serif">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "currentColor") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:.4g}"
