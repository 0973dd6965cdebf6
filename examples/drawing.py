"""Figures of the examples, as SVG: lines over a numeric axis, and tables of shaded cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 56, 44
COLOURS = ("#1f6fb4", "#d1602c", "#3a8f4d", "#7a4fa3")


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    spans: Sequence[tuple[float, float]] = (),
    logarithmic: bool = False,
) -> str:
    """An SVG of lines with a legend.

    Args:
        title, x_label, y_label: texts.
        lines: x and y values, by name. Those whose names begin with "the " are dashed.
        spans: parts of the x axis, from and to, that are shaded.
        logarithmic: draw y values, all of them above 0, by their logarithms.

    >>> line_chart("", "", "", {"a": ([0, 1], [0, 1])}).count("<polyline")
    1
    """
    x_ticks = round_numbers([x for xs, _ in lines.values() for x in xs])
    y_ticks = (powers_of_ten if logarithmic else round_numbers)([y for _, ys in lines.values() for y in ys])
    x_low, x_high = (function(x for xs, _ in lines.values() for x in xs) for function in (min, max))
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - x_low) / ((x_high - x_low) or 1)

    def up(y: float) -> float:
        share = log10(y / y_low) / log10(y_high / y_low) if logarithmic else (y - y_low) / (y_high - y_low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [text(WIDTH / 2, HEIGHT - 8, x_label, "middle")]
    parts.append(f'<g transform="rotate(-90 14 {HEIGHT / 2})">{text(14, HEIGHT / 2, y_label, "middle")}</g>')
    for begin, end in spans:
        size = f'width="{across(end) - across(begin):.1f}" height="{HEIGHT - TOP - BOTTOM}"'
        parts.append(f'<rect x="{across(begin):.1f}" y="{TOP}" {size} fill="#eef3f8"/>')
    for tick in y_ticks:
        place = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"'
        parts += [f'<line {place} stroke="#ddd"/>', text(LEFT - 6, up(tick) + 4, f"{tick:,g}", "end")]
    for tick in x_ticks:
        if x_low <= tick <= x_high:
            parts.append(text(across(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "middle"))
    beside = LEFT
    for number, (name, (xs, ys)) in enumerate(lines.items()):
        style = f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.6"'
        style += ' stroke-dasharray="6 4"' if name.startswith("the ") else ""
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(xs, ys, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" {style}/>')
        parts.append(f'<line x1="{beside}" x2="{beside + 24}" y1="40" y2="40" {style}/>')
        parts.append(text(beside + 30, 44, name))
        beside += 52 + 7 * len(name)
    return page(title, WIDTH, HEIGHT, parts)


def table(title: str, rows: Sequence[str], columns: Sequence[str], values: Any, aside: int = 110) -> str:
    """An SVG of a table whose cells are the darker, the nearer their values are to 1.

    Args:
        title: a text.
        rows, columns: the names beside and above.
        values: from 0 to 1, [rows, columns].
        aside: how much room the names get.

    >>> table("", ["a"], ["b", "c"], [[0.0, 1.0]]).count("<rect")  # one of them is the background
    2
    """
    side, top = 26, 30 + aside
    parts = []
    for row, name in enumerate(rows):
        parts.append(text(aside - 6, top + side * row + 17, name, "end"))
        for column, value in enumerate(values[row]):
            if value >= 0.005:
                place = f'x="{aside + side * column}" y="{top + side * row}" width="{side - 1}" height="{side - 1}"'
                parts.append(f'<rect {place} fill="{COLOURS[0]}" fill-opacity="{min(1.0, value):.2f}"/>')
    for column, name in enumerate(columns):
        x = aside + side * column + 17
        parts.append(f'<g transform="rotate(-60 {x} {top - 6})">{text(x, top - 6, name)}</g>')
    return page(title, aside + side * len(columns) + 60, top + side * len(rows) + 12, parts)


def pictures(title: str, captions: Sequence[str], images: Sequence[Any], across: int = 8) -> str:
    """An SVG of small grey images with captions below them.

    Args:
        title: a text.
        captions: one for each image.
        images: pixels from 0 (paper) to 1 (ink), [height, width] each.
        across: images in a row.

    >>> pictures("", ["one"], [[[0.0, 1.0]]]).count("<rect")
    2
    """
    pixel, side = 9, 88
    parts = []
    for number, (caption, image) in enumerate(zip(captions, images, strict=True)):
        left, top = 16 + side * (number % across), 40 + (side + 18) * (number // across)
        for y, row in enumerate(image):
            for x, ink in enumerate(row):
                if ink > 0:
                    place = f'x="{left + pixel * x}" y="{top + pixel * y}" width="{pixel}" height="{pixel}"'
                    parts.append(f'<rect {place} fill-opacity="{ink:.2g}"/>')
        parts.append(text(left + 4 * pixel, top + 8 * pixel + 16, caption, "middle"))
    lines = -(-len(captions) // across)
    return page(title, max(420, 16 + side * min(across, len(captions))), 44 + (side + 18) * lines, parts)


def round_numbers(values: Sequence[float]) -> list[float]:
    """Three to eight round numbers, evenly spaced, that have all values between them.

    >>> round_numbers([0.2, 6.9])
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    >>> round_numbers([3.0])
    [2.0, 2.5, 3.0, 3.5, 4.0]
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1.0, high + 1.0
    scale = 10.0 ** floor(log10(high - low))
    step = next(each * scale for each in (0.2, 0.5, 1.0, 2.0) if (high - low) / (each * scale) <= 7)
    return [round(number * step, 10) for number in range(floor(low / step), ceil(high / step) + 1)]


def powers_of_ten(values: Sequence[float]) -> list[float]:
    """Two or more powers of ten that have all values, which are above 0, between them.

    >>> powers_of_ten([0.2, 30.0])
    [0.1, 1.0, 10.0, 100.0]
    >>> powers_of_ten([1.0])
    [1.0, 10.0]
    """
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return [10.0**exponent for exponent in range(low, max(high, low + 1) + 1)]


def page(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """An SVG of so many pixels, with a title above its parts."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">'
    background = f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
    return "\n".join([head, background, text(width / 2, 20, title, "middle", 14), *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    """An SVG element of words."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
