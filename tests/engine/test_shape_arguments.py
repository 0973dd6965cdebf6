"""Shapes as arguments: what may stand for the size of an axis, and the errors about the rest."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops


def test_sizes_are_numbers_or_scalars_of_integers() -> None:
    with ab.Graph().as_default() as graph:
        n, wide = ab.placeholder((), "int32"), ab.placeholder((), "int64")
        unknown = ab.placeholder(None, "int32")
        made = [ops.zeros((n, 2)), ops.zeros(wide), ops.eye(unknown), ops.ones((np.int64(3), ab.Variable(2)))]
        assert [value.shape for value in made] == [(None, 2), (None,), (None, None), (3, None)]
    found = ab.Session(graph).run(made[:3], {n: 3, wide: 4, unknown: 2})
    assert [value.shape for value in found] == [(3, 2), (4,), (2, 2)]


zeros: Any = ops.zeros  # its types would refuse what the errors are about


def x() -> Any:
    return ab.placeholder((3, 2), "float32", "x")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: ops.identity(x()),
            r"Tensor x\S* float32\[3,2\]> has shape \(3, 2\), where the size of an axis is one",
        ),
        (lambda: ops.zeros((ab.Variable([1, 2], name="v"), 3)), r"Variable v\S* int32\[2\]> has shape \(2,\)"),
        (lambda: ops.reshape(x(), (x()[0, 0], 3)), r"is of float32, where sizes are integers. Use ops.cast"),
        (lambda: ops.zeros((ab.placeholder((), "bool"),)), r"is of bool, where sizes are integers"),
        (lambda: zeros(2.0), r"2.0 is neither an integer nor a tensor"),
        (lambda: zeros((2, "3")), r"'3' is neither an integer nor a tensor"),
        (lambda: zeros((2, np.float32(3))), r"3.0\S* is neither an integer nor a tensor"),
    ],
)
def test_what_is_no_size_is_told_while_building(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()
