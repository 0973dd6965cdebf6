"""The comparison of programs between commits: it finds equal what is equal, and different whatever differs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs.chosen import CHOSEN
from programs.describe_step import described, differing
from programs.same import differences

import anabranch as ab
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph import Graph
from anabranch.engine.graph.provenance import Location
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import Constant
from anabranch.engine.ops.math.mathematics import Exp
from anabranch.engine.ops.math.trigonometry import Sin
from anabranch.engine.passes.framework.prepare import Step, prepare

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def prepared() -> Step:
    x, w = ab.placeholder((5, 3), "float32", "x"), ab.constant(np.arange(100, dtype="float32"))
    _, y = ab.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, ab.ops.sin(x[i]) + y), (0, w[:3]))
    return prepare(x.graph, [symbol_of(y)], [x])


def one(step: Step, kind: type) -> Any:
    return next(operation for operation in step.operations if isinstance(operation.op, kind))


def body(step: Step) -> Any:
    return one(step, While).op.body


def test_the_same_program_is_described_the_same():
    texts: list[str] = []
    for _ in range(2):
        with Graph().as_default():
            texts.append(described(prepared()))
    assert texts[0] == texts[1]
    assert texts[0].count("\n") > 10


def replaced_op(step: Step) -> None:
    next(o for o in body(step).operations if isinstance(o.op, Sin)).op = Exp()


def another_constant(step: Step) -> None:
    constant = one(step, Constant)
    value = np.array(constant.op.value)
    value[-1] += 1
    constant.op = Constant(value)


def another_name(step: Step) -> None:
    step.operations[-1].name = "other"


def another_device(step: Step) -> None:
    step.operations[-1].device = "cpu:1"


def another_line(step: Step) -> None:
    operation = step.operations[-1]
    assert operation.location is not None
    operation.location = Location(operation.location.filename, operation.location.line + 1)


def another_spec(step: Step) -> None:
    body(step).parameters[-1].spec = TensorSpec((None,), body(step).parameters[-1].dtype)


def a_capture_less(step: Step) -> None:
    body(step).captures.pop()


def another_order(step: Step) -> None:
    operations = body(step).operations
    operations[-1], operations[-2] = operations[-2], operations[-1]


def another_wait(step: Step) -> None:
    step.operations[-1].control_inputs = (step.operations[0],)


def another_fetch(step: Step) -> None:
    step.fetches[:] = [step.operations[0].outputs[0]]


CHANGES = (
    replaced_op,
    another_constant,
    another_name,
    another_device,
    another_line,
    another_spec,
    a_capture_less,
    another_order,
    another_wait,
    another_fetch,
)


@pytest.mark.parametrize("change", CHANGES)
def test_every_fact_of_a_step_is_described(change: Callable[[Step], None]):
    step = prepared()
    before = described(step)
    change(step)
    assert list(differing(before, described(step)))


def parts(**changed: Any) -> dict[str, Any]:
    return {"step": "a\nb\n", "source": "s", "modules": ["1", "2"], "code": ["3"], "error": "", **changed}


def test_differences_name_program_and_part_and_show_both_lines():
    assert not list(differences({"p": parts()}, {"p": parts()}))
    (found,) = differences({"p": parts(step="a\nc\n")}, {"p": parts()})
    assert found == ("p", "step", ["1 lines", "- b", "+ c"])
    (found,) = differences({"p": parts(modules=["1", "4"])}, {"p": parts()})
    assert found == ("p", "modules", ["1 of 2 are gone, 1 are new"])
    assert list(differences({"p": parts()}, {})) == [("p", "program", ["is only in this checkout"])]


def test_some_sixty_programs_are_chosen():
    assert len(CHOSEN) >= 60
    assert {name.partition(", ")[2] for name in CHOSEN} >= {"exact", "placed", "budgeted"}


@pytest.mark.slow
def test_a_checkout_has_the_programs_of_its_own_commit():
    command = [sys.executable, "tests/programs/same.py", "HEAD", "--only", "short loop"]
    clean = subprocess.run(["git", "status", "--porcelain", "--", "engine"], cwd=ROOT, capture_output=True, text=True)
    if clean.returncode or clean.stdout:
        pytest.skip("the engine differs from its commit, or this is no checkout")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 of 3 programs are equal to those of HEAD." in run.stdout
