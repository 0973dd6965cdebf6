"""Steps whose preparation looks for tensors among others: by identity, as ``==`` of symbols builds an operation."""

from typing import Any

import numpy as np

import anabranch as ab
from anabranch import ops
from anabranch.engine.runtime.program import Program


def test_merged_products_beside_other_joined_matrices() -> None:
    n = 16
    rng = np.random.default_rng(0)
    start, u, v = (rng.uniform(-0.25, 0.25, (n, n)) for _ in range(3))
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((n, n), "float64") for _ in range(3)]
        x, w_a, w_b = feeds

        def body(k: Any, a: Any, b: Any) -> Any:
            widest = ops.max(ops.concatenate([b * 2.0, a * 3.0], axis=1), axis=1, keepdims=True)
            return k + 1, ops.tanh(a @ w_a + b @ w_b + widest), a

        _, result, _ = ab.while_loop(lambda k, a, b: k < 5, body, (ops.convert_to_tensor(0), x, x))
    a, b = start, start
    for _ in range(5):
        a, b = np.tanh(a @ u + b @ v + np.maximum(b * 2, a * 3).max(1, keepdims=True)), a
    found = ab.Session(graph).run(result, dict(zip(feeds, (start, u, v), strict=True)))
    np.testing.assert_allclose(found, a, rtol=1e-10)


def test_a_condition_that_passes_a_variable_on_and_assigns() -> None:
    noted = ab.Variable(0.0)
    with ab.Graph().as_default() as graph:

        def test(_: Any, goes_on: Any) -> Any:
            noted.assign(1.0)
            return goes_on

        start = (ops.convert_to_tensor(0), ops.convert_to_tensor(True))
        count, _ = ab.while_loop(test, lambda k, _: (k + 1, k < 3), start)
    assert Program(graph, [count], [])() == (4,)
    assert noted.numpy() == 1.0


def test_placement_where_a_result_is_fed_beside_a_placeholder() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((4, 4), "float32", "x")
        hidden = x @ x
        found = ab.placement(hidden @ x, feeds=[x, hidden])
    assert str(found).splitlines()[1].split()[:2] == ["cpu:0", "2"]
