"""Count the fused operations of trainings that get CUDA kernels, and those that do not, by reason. It needs no GPU.

    python tests/benchmarks/gpu_kernels.py        prints a table

The trainings are those of `tests/engine/test_gpu_models.py`, and 37 random ones (`tests/programs/trainings.py`), by
`fit`, `evaluate` and `predict`. They run on the stand-in for cupy, each fused operation step by step: kernels are
printed for the shapes that occur, and not compiled.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from programs.trainings import RandomTraining
from shared.gpus import stand_in

import anabranch as ab
from anabranch.engine.codegen.cuda.launches import launches_of
from anabranch.engine.codegen.expression.expression import UnsupportedError
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.machine.gpu.fused import FusedRunner
from anabranch.engine.ops.internal.fused import Fused

TESTS = Path(__file__).resolve().parents[1]
RANDOM = 37
PRINTED = "one or more CUDA kernels"
ON_HOST = "on the host: all operands are numbers"


class Group(NamedTuple):
    """A fused operation over operands of certain shapes.

    Attributes:
        training: the one that it occurs in.
        op: what is computed.
        operands: shapes, dtypes, and which are numbers of the host.
        result: how it runs, or why not by a kernel.
    """

    training: str
    op: Fused
    operands: Any
    result: str


def how_it_runs(op: Fused, operands: Sequence[tuple[tuple[int, ...], Any, bool]]) -> str:
    """Return `PRINTED`, `ON_HOST`, or why no kernel can be printed."""
    by_value = [position for position, (_, _, is_number) in enumerate(operands) if is_number]
    if len(by_value) == len(operands):
        return ON_HOST
    inputs = [TensorSpec(shape, dtype) for shape, dtype, _ in operands]
    inferred: Any = op.infer(*inputs)
    try:
        launches_of(op, inputs, inferred, by_value)
    except UnsupportedError as error:
        return str(error)
    return PRINTED


def trainings(random: int) -> dict[str, Callable[[], Any]]:
    """Return what trains, by name."""
    found: dict[str, Callable[[], Any]] = {}
    models = run_path(str(TESTS / "engine" / "test_gpu_models.py"))
    for name in models["MODELS"]:
        found[name] = lambda name=name: models["trained"](name, "gpu:0")
    for number in range(random):
        found[f"random {number}"] = lambda number=number: _trained_at_random(number)
    return found


def _trained_at_random(number: int) -> None:
    training = RandomTraining(number)  # which clears the session, and so the device
    with tempfile.TemporaryDirectory() as folder, ab.device("gpu:0"):
        training.compile()
        training.results(Path(folder))


def groups(names: Sequence[str] | None = None, random: int = RANDOM) -> list[Group]:
    """Train, and return each fused operation once for a training and shapes of operands.

    Args:
        names: of trainings; all where there are none.
        random: how many random trainings there are.
    """
    found: dict[Any, Group] = {}
    current = ""

    def prepare(runner: Any, operands: Any) -> None:
        key = (current, runner._op, operands)
        if key not in found:
            found[key] = Group(*key, how_it_runs(runner._op, operands))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedRunner, "_prepare", prepare)
        with stand_in(patch):
            for name, train in trainings(random).items():
                if names is None or name in names:
                    current = name
                    train()
    return list(found.values())


def table(found: Sequence[Group]) -> str:
    """Return how many groups run in which way, and how many steps they have."""
    count: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for group in found:
        count[group.result] += 1
        steps[group.result] += len(group.op.steps)
    total, all_steps = len(found), sum(steps.values())
    lines = [
        f"{len({group.training for group in found})} trainings, {total} fused operations of {all_steps} steps.",
        "",
        "| how they run | fused operations | steps in them |",
        "|---|---|---|",
    ]
    for result, number in count.most_common():
        share = 100 * steps[result] / all_steps
        lines.append(f"| {result} | {number} ({100 * number / total:.1f}%) | {steps[result]} ({share:.1f}%) |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(groups()))
