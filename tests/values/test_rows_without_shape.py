"""`IndexedSlices` without the shape of the whole: enough where a variable gives it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import IndexedSlices


def without_shape(rows: Any, places: Any) -> IndexedSlices:
    return IndexedSlices(rows, places)


ONES, PLACES = np.ones((2, 3), "float32"), np.array([1, -1])


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("method", ["scatter_add", "scatter_sub", "scatter_update"])
def test_rows_are_written_without_the_shape_of_the_whole(method: str, traced: bool):
    variable = ab.Variable(np.zeros((4, 3), "float32"))

    def write(rows: Any, places: Any) -> None:
        getattr(variable, method)(without_shape(rows, places))

    (ab.function(write) if traced else write)(ONES, PLACES)
    sign = -1.0 if method == "scatter_sub" else 1.0
    np.testing.assert_array_equal(variable.numpy()[:, 0], [0, sign, 0, sign])


@pytest.mark.parametrize("make", [without_shape, lambda rows, places: IndexedSlices(rows, places, (4, 3))])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])  # rows alone, and the whole
def test_optimizers_take_rows_without_the_shape_of_the_whole(kind: str, make: Any):
    found = []
    for traced in (False, True):
        variable, optimizer = ab.Variable(np.zeros((4, 3), "float32")), getattr(ab.optim, kind)(0.5)
        step = lambda rows, places, o=optimizer, v=variable: o.apply([make(rows, places)], [v])  # noqa: E731
        (ab.function(step) if traced else step)(ONES, PLACES)
        found.append(variable.numpy())
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0][:, 0], [0, -0.5, 0, -0.5], rtol=1e-5)


def test_the_whole_needs_its_shape():
    rows = without_shape(ONES, PLACES)
    assert (rows.shape, rows.ndim) == ((None, 3), 2)
    for use in (ops.convert_to_tensor, np.asarray, ops.sum):
        with pytest.raises(ValueError, match=r"has no dense_shape.*IndexedSlices\(values, indices, dense_shape\)"):
            use(rows)
