"""The figures of the examples: well-formed SVG that shows the numbers it was given."""

import doctest
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples


def parts(svg: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg).findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=7)


def test_lines_run_between_the_axes(example: ModuleType) -> None:
    lines = {"a & b": ([0, 5, 10], [2.0, -1.0, 4.0]), "the < c": ([10, 0], [0.0, 3.0])}
    svg = example.line_chart("title", "x", "y", lines, spans=[(5, 10)])
    first, second = parts(svg, "polyline")
    points = [tuple(map(float, point.split(","))) for point in first.attrib["points"].split()]
    left, right, bottom = example.LEFT, example.WIDTH - example.RIGHT, example.HEIGHT - example.BOTTOM
    assert [x for x, _ in points] == [left, (left + right) / 2, right]
    assert points[2] == (right, example.TOP)  # 4 is the highest, -1 the lowest
    assert points[1][1] == bottom
    assert points[0][1] == pytest.approx(bottom - (bottom - example.TOP) * 3 / 5, abs=0.1)
    assert "stroke-dasharray" not in first.attrib
    assert "stroke-dasharray" in second.attrib
    assert {"title", "x", "y", "a & b", "the < c"} <= {each.text for each in parts(svg, "text")}
    shaded = parts(svg, "rect")[1]
    assert float(shaded.attrib["x"]) == (left + right) / 2


def test_logarithms_of_values_are_drawn(example: ModuleType) -> None:
    svg = example.line_chart("", "", "", {"a": ([0, 1, 2, 3], [0.01, 1.0, 0.1, 100.0])}, logarithmic=True)
    (line,) = parts(svg, "polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    bottom, top = example.HEIGHT - example.BOTTOM, example.TOP
    np.testing.assert_allclose(heights, [bottom - (bottom - top) * share for share in (0, 0.5, 0.25, 1)], atol=0.1)
    assert {"0.01", "0.1", "1", "10", "100"} <= {each.text for each in parts(svg, "text")}


def test_cells_are_as_dark_as_their_values(example: ModuleType) -> None:
    svg = example.table("t", ["one", "two"], ["a", "b"], [[0.25, 0.0], [1.0, 0.5]])
    cells = parts(svg, "rect")[1:]
    assert [float(cell.attrib["fill-opacity"]) for cell in cells] == [0.25, 1.0, 0.5]
    assert cells[1].attrib["x"] == cells[0].attrib["x"]
    assert float(cells[1].attrib["y"]) > float(cells[0].attrib["y"])
    assert [each.text for each in parts(svg, "text")] == ["t", "one", "two", "a", "b"]


def test_pictures_have_a_square_for_each_dark_pixel(example: ModuleType) -> None:
    svg = example.pictures("t", ["1", "2", "3"], [[[0, 0.5]], [[1, 0]], [[0, 0]]], across=2)
    assert len(parts(svg, "rect")) == 3
    captions = parts(svg, "text")[1:]
    assert captions[0].attrib["y"] == captions[1].attrib["y"] < captions[2].attrib["y"]


@settings(max_examples=examples(50, 200), deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e6, 1e6, width=32).map(lambda x: round(x, 3)), min_size=1, max_size=5))
def test_round_numbers_enclose_values(example: ModuleType, values: list[float]) -> None:
    ticks = example.round_numbers(values)
    assert ticks[0] <= min(values) + 1e-9
    assert ticks[-1] >= max(values) - 1e-9
    assert 3 <= len(ticks) <= 9
