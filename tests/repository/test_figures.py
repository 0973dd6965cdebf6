"""Figures: axes are true to their numbers, each is what its table says, and each page names the command behind it."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "tests" / "benchmarks"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    found = module("figures"), module("machine_figures")
    for name in set(sys.modules) - before:  # which have names that are common
        monkeypatch.delitem(sys.modules, name, raising=False)
    return found


def circles(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)]


def ticks(svg: str) -> dict[str, float]:
    """The place of each number below the x axis."""
    return {text: float(x) for x, text in re.findall(r'<text x="([\d.]+)" y="346.0"[^>]*>([^<]+)<', svg)}


def test_points_lie_where_their_numbers_say(drawing: tuple[Any, Any]):
    figures, _ = drawing
    svg = figures.chart("t", "x", "y", {"a": [(100, 2.0), (200, 4.0), (1000, 8.0)]})
    (x1, y1), (x2, y2), (x3, y3) = circles(svg)

    assert (x3 - x1) / (x2 - x1) == pytest.approx(9, rel=0.01)
    assert (y1 - y3) / (y1 - y2) == pytest.approx(3, rel=0.01)
    places = ticks(svg)
    assert places["200"] == pytest.approx(x2, abs=0.2)
    assert "100" not in places  # ticks are round numbers of one distance
    steps = list(places.values())
    assert {round(b - a) for a, b in itertools.pairwise(steps)} == {round(steps[1] - steps[0])}


def test_logarithmic_axes(drawing: tuple[Any, Any]):
    figures, _ = drawing
    svg = figures.chart("t", "x", "y", {"a": [(1, 10.0), (4, 100.0), (32, 1000.0)]}, log=True, log_x=True)
    (x1, y1), (x2, y2), (x3, y3) = circles(svg)

    assert (x3 - x1) / (x2 - x1) == pytest.approx(2.5, rel=0.01)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)


def test_figures_of_the_machine_are_what_its_tables_say(drawing: tuple[Any, Any]):
    _, machine = drawing
    tables = machine.tables((DOCS / "machine.md").read_text(encoding="utf-8"))

    assert set(tables) == set(machine.FIGURES)
    for name, rows in tables.items():
        drawn = (DOCS / "figures" / f"machine_{name}.svg").read_text(encoding="utf-8")
        assert drawn == machine.FIGURES[name](rows), f"python tests/benchmarks/machine.py --draw: {name}"
    assert "ideal" not in (DOCS / "figures" / "machine_swapping.svg").read_text(encoding="utf-8")


def writes(command: str, name: str) -> bool:
    """Test whether a command writes a figure of docs/: it names the file, or the script that has just this one."""
    if name.startswith("machine_"):
        return command == f"python tests/benchmarks/machine.py {name.removeprefix('machine_')} --draw"
    if name == "softmax":
        return command == "python tests/benchmarks/softmax_table.py --write"
    return bool(
        re.fullmatch(rf"python examples/{name}\.py( --\S+( [\w.]+)?)* --figure docs/figures/{name}\.svg", command)
    )


def test_each_caption_has_the_command_that_writes_its_figure():
    shown: set[str] = set()
    for page in DOCS.rglob("*.md"):
        lines = page.read_text(encoding="utf-8").splitlines()
        for place, line in enumerate(lines):
            found = re.fullmatch(r"!\[[^]]*\]\((?:\.\./)?figures/(\w+)\.svg\)", line)
            if found:
                shown.add(found[1])
                caption = [below.partition("  #")[0].strip() for below in lines[place + 1 : place + 4]]
                assert [each for each in caption if writes(each, found[1])], f"{page.name}: {found[1]}: {caption}"
    assert shown == {path.stem for path in (DOCS / "figures").glob("*.svg")}


def test_figures_of_the_machine_are_drawn_by_their_names(drawing: tuple[Any, Any], tmp_path: Path):
    _, machine = drawing
    (tmp_path / "figures").mkdir()
    (tmp_path / "machine.md").write_text((DOCS / "machine.md").read_text(encoding="utf-8"), encoding="utf-8")

    machine.draw(["rate"], tmp_path)
    (drawn,) = (tmp_path / "figures").iterdir()
    assert drawn.read_bytes() == (DOCS / "figures" / "machine_rate.svg").read_bytes()
    with pytest.raises(SystemExit, match=r"dispatch has no figure; expected some of rate, chain"):
        machine.draw(["dispatch"], tmp_path)


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * {"s": 1.0, "ms": 1e-3}[unit]


def test_the_figures_of_the_readme_are_those_of_the_performance_page() -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in (DOCS / "performance.md").read_text().splitlines()
    ]
    measured = [row for row in rows if len(row) == 9 and row[0].startswith("W") and row[4].endswith((" ms", " s"))]
    table = (ROOT / "README.md").read_text().partition("## Speed")[2].partition("\n## ")[0]
    stated = [line.split("|")[1:-1] for line in table.splitlines() if re.search(r"\| \d", line)]

    assert len(stated) == 5
    for _, ours, peer, ratio in stated:
        name, _, time = peer.strip().partition(", ")
        near = [
            row
            for row in measured
            if row[5] == ratio.strip()
            and abs(seconds(row[2]) / seconds(ours.strip()) - 1) < 0.02
            and abs(seconds(row[4]) / seconds(time) - 1) < 0.02
        ]
        assert len({row[0] for row in near}) == 1, (name, near)  # both of our rows of a line may take as long
