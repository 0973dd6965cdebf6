"""Sparse tensors and matrices, where dense ones are expected: the error names the layer and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops

TENSOR = ops.SparseTensor([[0, 0]], [1.0], (2, 3))
MATRIX: Any = pytest.importorskip("scipy.sparse").csr_matrix(np.eye(3, dtype="float32"))

NO_NUMBER: Any = object()

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "convert_to_tensor": ops.convert_to_tensor,
    "constant": ab.constant,
    "add": lambda x: ops.add(x, 1.0),
    "matmul": lambda x: ops.matmul(x, np.ones((3, 1), "float32")),
    "operator": lambda x: ops.ones((3, 3)) + x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_dense_tensors_name_the_remedy(name: str) -> None:
    with pytest.raises(TypeError, match=r"^A SparseTensor can't become a dense tensor.*ops\.sparse\.to_dense\(x\)"):
        FUNCTIONS[name](TENSOR)
    with pytest.raises(TypeError, match=r"^A csr_matrix can't become a dense tensor.*x\.toarray\(\)"):
        FUNCTIONS[name](MATRIX)
    FUNCTIONS[name](MATRIX.toarray())


def test_nested_data_that_is_not_sparse_is_refused_as_before() -> None:
    with pytest.raises(TypeError, match="its rows differ in length"):
        ops.convert_to_tensor([[1.0], [1.0, 2.0]])
    with pytest.raises(TypeError, match="its elements are no numbers"):
        ops.convert_to_tensor(NO_NUMBER)


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("data", [TENSOR, MATRIX], ids=["SparseTensor", "csr_matrix"])
def test_layers_of_dense_tensors_name_themselves(data: Any, is_built: bool) -> None:
    layer = layers.Dense(2, name="head")
    if is_built:
        layer.build((None, 3))
    kind = type(data).__name__
    with pytest.raises(TypeError, match=rf"^Layer 'head' expects dense tensors, got a {kind}\. Give "):
        layer(data)
    with pytest.raises(TypeError, match=rf"^Layer 'head' expects dense tensors, got a {kind}\. Give "):
        ab.Sequential([layer])(data)


def test_one_of_several_inputs() -> None:
    class Both(layers.Layer):
        def __init__(self) -> None:
            super().__init__(name="both")
            self.input_spec = [ab.layers.InputSpec(ndim=2), ab.layers.InputSpec(ndim=2)]

        def call(self, inputs: Any) -> Any:
            return inputs[0] + inputs[1]

    with pytest.raises(TypeError, match="Layer 'both' expects dense tensors, got a SparseTensor"):
        Both()([np.ones((2, 3), "float32"), TENSOR])


def test_layers_without_a_spec_take_sparse_tensors() -> None:
    dense = layers.Lambda(ops.sparse.to_dense)(TENSOR)
    assert dense.numpy().tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
