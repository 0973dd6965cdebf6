"""Line charts as SVG, written by hand: a few series over one axis, with a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 24, 60, 52
_COLOURS = ("#1f6fb4", "#d1602c", "#3a8f4d", "#7a4fa3")
_COMPUTED = ("a host that takes no time", "kernels alone", "kernels that wait for nothing else", "equal")
Points = Sequence[tuple[float, float]]


def chart(
    title: str, x_label: str, y_label: str, series: Mapping[str, Points], log: bool = False, log_x: bool = False
) -> str:
    """An SVG with a line for each series; those that were not measured but computed are dashed.

    Args:
        title, x_label, y_label: texts.
        series: points by name.
        log: whether the y axis is logarithmic; otherwise it begins at 0.
        log_x: whether the x axis is logarithmic, with a tick at each value; otherwise it begins at 0.
    """
    xs = sorted({x for points in series.values() for x, _ in points})
    heights = [y for points in series.values() for _, y in points]
    ticks = _log_ticks(heights) if log else _ticks(max(heights))
    x_ticks = xs if log_x else _ticks(max(xs))
    first, last = (log10(xs[0]), log10(xs[-1])) if log_x else (0.0, x_ticks[-1])

    def across(x: float) -> float:
        place = log10(x) if log_x else x
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (place - first) / ((last - first) or 1.0)

    def up(y: float) -> float:
        low, high = ticks[0], ticks[-1]
        share = (log10(y) - log10(low)) / (log10(high) - log10(low)) if log else (y - low) / (high - low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 20, title, "middle", 14),
        _text(_WIDTH / 2, _HEIGHT - 10, x_label, "middle"),
        f'<g transform="rotate(-90 16 {_HEIGHT / 2})">{_text(16, _HEIGHT / 2, y_label, "middle")}</g>',
    ]
    for tick in ticks:
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(_LEFT - 6, up(tick) + 4, f"{tick:,g}", "end"))
    for x in x_ticks:
        left, low = across(x), _HEIGHT - _BOTTOM
        parts.append(f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{low}" y2="{low + 5}" stroke="#888"/>')
        parts.append(_text(left, low + 18, f"{x:g}", "middle"))
    legend = _LEFT
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        dashes = ' stroke-dasharray="5 4"' if name.endswith(_COMPUTED) else ""
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.extend(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>' for x, y in points)
        parts.append(
            f'<line x1="{legend}" x2="{legend + 24}" y1="38" y2="38" stroke="{colour}" stroke-width="2"{dashes}/>'
        )
        parts.append(_text(legend + 30, 42, name))
        legend += 48 + round(6.5 * len(name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _ticks(highest: float) -> list[float]:
    """0 and up to six round numbers, the last of them not below `highest`."""
    scale = 10 ** floor(log10(highest))
    step = next(each * scale for each in (0.2, 0.5, 1, 2) if highest / (each * scale) <= 6)
    return [number * step for number in range(ceil(highest / step) + 1)]


def _log_ticks(heights: Sequence[float]) -> list[float]:
    low, high = floor(log10(min(heights))), ceil(log10(max(heights)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]
