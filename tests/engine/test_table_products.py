"""Products of rows that a loop takes from a table: the table is multiplied before the loop, where that pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program

RNG = np.random.default_rng(0)
VALUES = {
    "table": RNG.standard_normal((7, 3)),
    "weight": RNG.standard_normal((3, 5)),
    "state": RNG.standard_normal((2, 5)),
    "back": RNG.standard_normal((5, 7)),
}


class Decoder:
    """A loop whose next tokens are those of the largest logits: what it ends with, and gradients."""

    def __init__(self, steps: Any = 20, transpose: bool = False, rows: int | None = 2, grows: bool = False) -> None:
        with ab.Graph().as_default():
            self._build(steps, transpose, rows, grows)

    def _build(self, steps: Any, transpose: bool, rows: int | None, grows: bool) -> None:
        self.feeds = {name: ab.placeholder(value.shape, "float64", name) for name, value in VALUES.items()}
        table, weight, state, back = self.feeds.values()
        if rows is None:
            state = self.feeds["state"] = ab.placeholder((None, 5), "float64", "state")
        self.limit = ab.placeholder((), "int32", "limit")

        def body(step: Any, tokens: Any, h: Any, own: Any) -> Any:
            taken = ops.take(own if grows else table, tokens, axis=0)
            product = ops.matmul(taken, ops.transpose(weight)) if transpose else taken @ weight
            h = ops.tanh(product + h)
            tokens = ops.cast(ops.argmax(h @ back, axis=1), "int32") - 7  # the same, from the end
            return step + 1, tokens, h, own * 1.5

        bound = self.limit if steps is None else steps
        if transpose:
            weight = ops.transpose(weight)
        first = ops.zeros((ops.shape(state)[0],), "int32")
        _, _, self.end, _ = ab.while_loop(lambda step, *_: step < bound, body, (0, first, state, table))
        self.gradients = ab.gradients(ops.sum(self.end), list(self.feeds.values()))

    def products_inside(self, targets: Any = None) -> int:
        feeds = [*self.feeds.values(), self.limit]
        step = prepare(self.end.graph, targets or [self.end], feeds)
        outside = sum(isinstance(operation.op, MatMul) for operation in step.operations)
        return sum(isinstance(operation.op, MatMul) for operation in all_operations(step.operations)) - outside

    def check(self) -> None:
        feeds, targets = [*self.feeds.values(), self.limit], [self.end, *self.gradients]
        given = [*VALUES.values(), np.int32(9)]
        expected = Program(self.end.graph, targets, feeds, exact=True)(*given)
        for found, wanted in zip(Program(self.end.graph, targets, feeds)(*given), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("rows", [2, None])
def test_the_table_is_multiplied_before_the_loop(transpose: bool, rows: int | None) -> None:
    decoder = Decoder(transpose=transpose, rows=rows)
    with recording() as log:
        assert decoder.products_inside() == 1  # by which the next token is found
    assert any("is made of all of 'table' before the loop" in note.text for note in log.changes)
    with without("fission"):
        assert decoder.products_inside() == 2
    decoder.check()


def test_gradients_take_no_other_way() -> None:
    decoder = Decoder()
    with_gradients = decoder.products_inside([decoder.end, *decoder.gradients])
    with without("fission"):
        assert with_gradients < decoder.products_inside([decoder.end, *decoder.gradients])


def test_tables_of_which_few_rows_are_taken_stay() -> None:
    decoder = Decoder(steps=5)  # 10 rows at most, of 7
    with recording() as log:
        assert decoder.products_inside() == 2
    (note,) = [note for note in log.of("fission")[1] if "rows are taken" in note.text]
    assert note.text == "some 10 rows are taken of the 7 of 'table': too few"
    assert Decoder(steps=6).products_inside() == 1


def test_loops_of_which_nothing_is_known_and_tables_that_change_stay() -> None:
    for decoder in (Decoder(steps=None), Decoder(grows=True)):
        assert decoder.products_inside() == 2
        decoder.check()


@pytest.mark.parametrize("steps", [0, 1])
def test_loops_that_hardly_run(steps: int) -> None:
    Decoder(steps=steps).check()
