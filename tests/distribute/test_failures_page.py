"""The table of docs/failures.md has the rows that tests of failures show.

After a change: ``ANABRANCH_WRITE_GOLDEN=1 pytest tests/distribute/test_failures_page.py``.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
FILES = ("test_failures.py", "test_straight.py", "test_failures_of_storage.py")
PAGE = Path(__file__).parents[2] / "docs" / "failures.md"
PARTS = ("master", "worker", "ps", "client", "storage")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


class Row(NamedTuple):
    """One row of the table: what a test shows."""

    fault: str
    part: str
    happens: str
    error: str
    kept: str


def rows_of(source: str) -> list[Row]:
    """The rows of the tests in a file: what their decorators `shows` have."""
    found: list[Row] = []
    for test in ast.parse(source).body:
        for decorator in test.decorator_list if isinstance(test, ast.FunctionDef) else []:
            if (
                isinstance(decorator, ast.Call)
                and isinstance(decorator.func, ast.Name)
                and decorator.func.id == "shows"
            ):
                fault, parts, *rest = [ast.literal_eval(argument) for argument in decorator.args]
                found += [Row(fault, part, *rest) for part in parts.split(", ")]
    return found


def table() -> str:
    """The table as Markdown: rows that say the same have one line."""
    rows_of_all = [row for name in FILES for row in rows_of((FOLDER / name).read_text())]
    lines = ["| Fault | Part | What happens | Error | Kept |", "|---|---|---|---|---|"]
    for fault in dict.fromkeys(row.fault for row in rows_of_all):
        rows = [row for part in PARTS for row in rows_of_all if (row.fault, row.part) == (fault, part)]
        for what in dict.fromkeys(row[2:] for row in rows):
            parts = ", ".join(row.part for row in rows if row[2:] == what)
            lines.append(f"| {fault} | {parts} | {' | '.join(what)} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_these_rows():
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{table()}{END}{after}"
    if os.environ.get("ANABRANCH_WRITE_GOLDEN"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted
