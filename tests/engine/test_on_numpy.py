"""Steps of fused operations as one function on NumPy: the same bits as step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anabranch.engine.codegen.elementwise.on_numpy import on_numpy
from anabranch.engine.graph.op import Op
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.math.comparison import Greater, Where
from anabranch.engine.ops.math.elementwise import Add, Multiply, Subtract
from anabranch.engine.ops.math.trigonometry import Tanh


class Half(Op):
    """An op that is not printed."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] * 0.5


def bits(values: Any) -> list[tuple[Any, bytes]]:
    return [(value.dtype, np.asarray(value).tobytes()) for value in values]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shapes", [((4, 3), (4, 1), ()), ((0, 3), (3,), (1, 1)), ((), (), ())])
def test_it_has_the_bits_of_the_steps(dtype: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    steps = (
        (Subtract(), (0, 1)),
        (Greater(), (3, 2)),
        (Where(), (4, 3, 2)),
        (Half(), (5,)),
        (Tanh(), (6,)),
        (Multiply(), (5, 0)),
        (Add(), (8, 8)),
    )
    op = Fused(3, steps, (7, 9, 4))
    rng = np.random.default_rng(0)
    values = [np.asarray(rng.uniform(-9, 9, shape)).astype(dtype)[()] for shape in shapes]
    assert bits(on_numpy(op)(*values)) == bits(op.run(np, *values))


def test_what_does_not_fit_is_told_by_numpy() -> None:
    with pytest.raises(ValueError, match="could not be broadcast"):
        on_numpy(Fused(2, ((Add(), (0, 1)),), (2,)))(np.zeros(2), np.zeros(3))
