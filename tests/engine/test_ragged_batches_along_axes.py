"""Loops over sequences with ops along one axis: those along another axis than that of the rows leave out rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume
from shared.ragged_batches_checks import ROWS, STEPS, check, draw, lengths_of, loops, why_not

import anabranch as ab
from anabranch.engine.ops.arrays.creation import Diagonal
from anabranch.engine.ops.arrays.gathering import AddRows
from anabranch.engine.ops.arrays.joining import Unstack
from anabranch.engine.ops.base import apply, apply_multi
from anabranch.engine.ops.math.running import LinearScan, Shift

ops = ab.ops
UNITS = 4
PLACES = (2, 0)


@pytest.fixture(autouse=True)
def small_loops_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assume(monkeypatch, ragged_work=0, ragged_steps=0)
    with ab.Graph().as_default():
        yield


def _diagonal(h: Any, axis: int) -> Any:
    planes = ops.stack([h, h * 0.5, h * h, -h], 2)
    return h + ops.expand_dims(apply(Diagonal(0, axis, 2), planes), axis)[..., 0]


def _unstacked(h: Any, axis: int) -> Any:
    return ops.stack(apply_multi(Unstack(axis, h.shape[axis]), h)[::-1], axis)


def _added(h: Any, axis: int) -> Any:
    values = h[:2] if axis == 0 else h[:, :2]
    return apply(AddRows(axis, True), h, values, ops.convert_to_tensor(np.array(PLACES, "int32")))


_OPS: dict[str, Callable[[Any, int], Any]] = {
    "flip": ops.flip,
    "roll": lambda h, axis: ops.roll(h, 1, axis),
    "sort": ops.sort,
    "shift": lambda h, axis: apply(Shift(axis), h),
    "linear_scan": lambda h, axis: apply(LinearScan(axis), h * 0.1, h),
    "diagonal": _diagonal,
    "unstack": _unstacked,
    "add_rows": _added,
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", _OPS)
def test_rows_are_left_out_where_an_op_keeps_them_apart(op: str, axis: int) -> None:
    x, w = ab.placeholder((STEPS, ROWS, UNITS), "float32"), ab.placeholder((UNITS, UNITS), "float32")
    lengths = ab.placeholder((ROWS,), "int32")

    def body(t: Any, h: Any) -> Any:
        new = ops.tanh(x[t] @ w + _OPS[op](h @ w, axis))
        return t + 1, ops.where((t < lengths)[:, None], new, h)

    final = ab.while_loop(lambda t, h: t < STEPS, body, (0, ops.ones((ROWS, UNITS)) * 0.1))[1]
    fetches = [final, *ab.gradients(ops.sum(final**2), [w])]
    feeds = {x: draw(STEPS, ROWS, UNITS), w: draw(UNITS, UNITS), lengths: lengths_of("various")}
    if axis == 0:
        assert "does not treat rows one by one" in why_not(fetches, feeds)
    else:
        assert len(loops(fetches, feeds)) == 4
    check(fetches, feeds)
