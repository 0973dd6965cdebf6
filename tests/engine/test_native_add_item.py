"""Native code for what is added to a part of an array, or to one element: gradients of slices and elements in loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.ops.arrays.indexing import AddItem, SliceItem
from anabranch.engine.ops.base import apply
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")

KEYS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "an element": ((1, -1), ()),
    "an element of a vector of rows": ((-3,), (4,)),
    "a part": ((SliceItem(0, 2, None), SliceItem(1, None, 2)), (2, 2)),
    "every other row, backward": ((SliceItem(None, None, -2),), (2, 4)),
    "one number to a part": ((SliceItem(0, 2, None),), ()),
    "one row to each of a part": ((SliceItem(1, 3, None),), (4,)),
    "one column to each of a part": ((SliceItem(1, 3, None),), (2, 1)),
    "a part with an axis more": ((None, 2, SliceItem(1, 3, None)), (1, 2)),
    "no element": ((SliceItem(2, 2, None),), (0, 4)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("name", KEYS)
def test_what_is_added_in_a_loop(name: str, dtype: str):
    items, shape = KEYS[name]
    rng = np.random.default_rng(0)
    base, value = (rng.integers(-5, 5, each).astype(dtype) for each in ((3, 4), shape))
    with ab.Graph().as_default() as graph:
        x, v = ab.placeholder((3, 4), dtype), ab.placeholder(shape, dtype)

        def body(i: Any, x: Any) -> Any:
            return i + 1, apply(AddItem(items, repeats=False), x, v * ab.ops.cast(i, dtype)) * 2

        _, y = ab.while_loop(lambda i, _: i < 3, body, (0, x))
        program, exact = Program(graph, [y], [x, v]), Program(graph, [y], [x, v], exact=True)
    assert program.source.count("# native: ") == 1
    np.testing.assert_array_equal(program(base, value)[0], exact(base, value)[0])


def test_gradients_of_elements_read_by_each_iteration():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((3, 3), "float64")

        def body(i: Any, c: Any) -> Any:
            return i + 1, ab.ops.tanh(c * c[0, 1] + c[-1, 0] * c[:, :1])

        _, y = ab.while_loop(lambda i, _: i < 4, body, (0, x))
        (dx,) = ab.gradients(ab.ops.sum(y), [x])
        program, exact = Program(graph, [y, dx], [x]), Program(graph, [y, dx], [x], exact=True)
    assert program.source.count("# native: ") == 2
    value = np.random.default_rng(0).normal(size=(3, 3))
    for found, wanted in zip(program(value), exact(value), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
