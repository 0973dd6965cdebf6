"""Each file of a pass's folder has a small program, and its step before and after the pass, as text.

After a change that is meant:

    .venv/bin/python tests/passes/test_before_and_after.py --update [PASS ...]

rewrites the files, of certain passes alone if any are named; what changed is read in the diff. A new file needs its
program alone: lines of Python that set `fetches` and may set `feeds` (a tuple of placeholders), `exact`, `budget`
(bytes) or `devices` (by name of operation). One that the pass leaves alone, without a note, begins with a comment that
says why.
The names of passes are those of `PIPELINE`, and "specialise" for what comes before it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import int4, nibbles
from anabranch.engine.common.nest import flatten
from anabranch.engine.graph import Graph
from anabranch.engine.graph.dump import dump_operations
from anabranch.engine.passes.framework import observe, pipeline
from anabranch.engine.passes.framework.log import PassLog, recording
from anabranch.engine.passes.framework.pipeline import PIPELINE
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.runtime.program import fusion_rule_of

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.txt"))
_FEWEST = 3  # files of each folder
_PANELS = re.compile(  # whose size is that of the host's registers, and whose order that of its instructions
    r"(?<=float32\[)\d+(?=\] = pack)|(?<=panel=)\d+"
    r"|(?<=int8\[)\d+(?=\] = read_laid_out)|(?<=, )(?:group|granule|subs|is_unsigned|line)=\w+(?=[,)])"
)
_COPYING = ("simplify", "cse", "fold")  # what is noted while the step is copied


def around(name: str, stages: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The step before a pass and after it; of one that did not run, the step as it was then."""
    order = ["graph", "specialise", *[each.name for each in PIPELINE]]
    done = [(other, text) for other, text in stages if order.index(other) <= order.index(name)]
    return (done[-2][1] if done[-1][0] == name else done[-1][1]), done[-1][1]


def program_of(text: str) -> str:
    return text.partition("\n--- ")[0].rstrip("\n")


def written(name: str, program: str) -> str:
    """The file of a program: the program, the step before and after the pass, and what the pass noted."""
    scope: dict[str, Any] = {"ab": ab, "ops": ab.ops, "np": np, "feeds": ()}
    ab.utils.clear_session(free_memory=False)  # names count from the beginning
    with Graph().as_default() as graph:
        exec(program, scope)
    targets, feeds = flatten(scope["fetches"]), list(scope["feeds"])
    graph_text = dump_operations(needed_operations(graph, targets, feeds))
    devices, exact = scope.get("devices"), scope.get("exact", False)

    def assign(operations: Any, fed: Any) -> dict[Any, str]:
        del fed
        return {operation: (devices or {}).get(operation.name, "cpu:0") for operation in operations}

    rule = None if exact else fusion_rule_of(graph)
    placed = None if devices is None else assign
    with recording() as log, observe.stages() as stages:
        prepare(graph, targets, feeds, None, rule, not exact, placed, scope.get("budget"))
    before, after = around(name, [("graph", graph_text), *stages])
    what = "left alone" if before == after else "after"
    shown = "" if before == after else _PANELS.sub("*", after)
    return f"{program}\n\n--- before\n{before}--- {what}\n{shown}--- notes\n{notes_of(name, log)}"


def notes_of(name: str, log: PassLog) -> str:
    if name in log.left_out:
        return f"left out: {log.left_out[name]}\n"
    row = next((each for each in PIPELINE if each.name == name), None)
    names = _COPYING if row is None else {name, row.switch}
    names = {*names, "invariants", "merge_products"} if name == "fission" else names
    lines = [f"{note.operation}: {note.text}" for note in log.changes if note.pass_name in names]
    lines += [f"{note.operation} stays: {note.text}" for note in log.kept if note.pass_name in names]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_pass_makes_of_a_step_what_its_file_says(path: Path):
    if path.parent.name == "lay_out_int4" and not nibbles.keeps_nibbles(int4.dot_product_of(library.host)):
        pytest.skip("no layout without AVX2 or VNNI")
    text = path.read_text()
    assert written(path.parent.name, program_of(text)) == text


def test_each_pass_has_a_folder():
    assert {path.parent.name for path in FILES} == {"specialise", *[each.name for each in pipeline.PIPELINE]}


@pytest.mark.parametrize("name", sorted({path.parent.name for path in FILES}))
def test_a_folder_has_three_programs_one_of_them_left_alone(name: str):
    texts = [path.read_text() for path in FILES if path.parent.name == name]
    assert len(texts) >= _FEWEST
    assert any("--- left alone" in text for text in texts)
    assert any("--- after" in text for text in texts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_program_that_is_left_alone_has_the_reason(path: Path):
    text = path.read_text()
    _, left_alone, notes = text.partition("--- left alone\n--- notes\n")
    assert not left_alone or notes or text.startswith("# "), "neither a note nor a comment says why"


def update(names: Sequence[str]) -> None:
    """Write the files of some passes again, or all."""
    for path in [path for path in FILES if not names or path.parent.name in names]:
        path.write_text(written(path.parent.name, program_of(path.read_text())))


if __name__ == "__main__":
    assert sys.argv[1:2] == ["--update"], __doc__
    update(sys.argv[2:])
