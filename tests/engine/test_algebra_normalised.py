"""Softmax and the like across rows: kernels of what they are made of, with the values of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
SHAPE = (8, 33, 65)
NORMALISED = {"softmax", "log_softmax", "log_sum_exp"}
ACROSS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: ops.softmax(x, axis=1),
    "softmax of two axes": lambda x: ops.softmax(x, axis=(0, 2)),
    "log_softmax": lambda x: ops.log_softmax(x, axis=0),
    "logsumexp": lambda x: ops.logsumexp(x, axis=1),
    "logsumexp, axes kept": lambda x: ops.logsumexp(x, axis=(0, -2), keepdims=True),
}


def normalised(build: Callable[[Any], Any], shape: tuple[int | None, ...]) -> set[str]:
    """The types of `NORMALISED` that a step has."""
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(shape, "float32")
        step = prepare(graph, [build(x)], [x])
    return {operation.type for operation in all_operations(step.operations)} & NORMALISED


@pytest.mark.parametrize("build", ACROSS.values(), ids=ACROSS)
def test_taken_apart_across_rows(build: Callable[[Any], Any]) -> None:
    assert not normalised(build, SHAPE)
    assert normalised(build, (8, 3, 5)), "few elements are one call"
    assert normalised(build, (None, 33, 65)), "kernels take known shapes"


def test_whole_along_rows() -> None:
    assert normalised(lambda x: ops.softmax(x), SHAPE) == {"softmax"}
    assert normalised(lambda x: ops.logsumexp(x, axis=(1, 2)), SHAPE) == {"log_sum_exp"}
    assert normalised(lambda x: ops.softmax(x, axis=1), (80, 65, 1)) == {"softmax"}, "nothing comes after"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("build", ACROSS.values(), ids=ACROSS)
def test_values_and_gradients(build: Callable[[Any], Any], dtype: str) -> None:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder(SHAPE, dtype)
        y = build(x)
        fetches = [y, *ab.gradients(ops.sum(ops.sin(y)), [x])]
        program, exact = Program(graph, fetches, [x]), Program(graph, fetches, [x], exact=True)
    plain = np.random.default_rng(0).normal(size=SHAPE).astype(dtype)
    special = plain.copy()
    special[0], special[1, 3], special[2], special[3, :, 5], special[4, :, 7] = -np.inf, np.nan, 1000, np.inf, -np.inf
    tolerance = 2e-6 if dtype == "float32" else 1e-12
    for value in (plain, special):
        wanted = Interpreter().run(graph, fetches, {x: value})
        for found, bits, expected in zip(program(value), exact(value), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=5 * tolerance, atol=tolerance)
            np.testing.assert_array_equal(bits, expected)


def test_a_recursion_over_logarithms_of_probabilities() -> None:
    """The forward algorithm of a hidden Markov model, against a loop over plain probabilities."""
    rows, states, steps = 4, 40, 6
    rng = np.random.default_rng(1)
    first, evidence = rng.normal(size=(rows, states)), rng.normal(size=(steps, rows, states)) / 4
    moves = rng.dirichlet(np.ones(states), states)
    with ab.Graph().as_default():
        start = ab.placeholder(first.shape, "float64")
        inputs = ab.TensorArray("float64", steps, element_shape=first.shape).unstack(ab.constant(evidence))

        def body(t: Any, alpha: Any) -> Any:
            return t + 1, ops.logsumexp(alpha[:, :, None] + np.log(moves), axis=1) + inputs.read(t)

        alpha = ab.while_loop(lambda t, _: t < steps, body, (0, start))[1]
        total = ops.sum(ops.logsumexp(alpha, axis=1))
        (gradient,) = ab.gradients(total, [start])
        found, slope = ab.Session().run([total, gradient], {start: first})
    weights = np.exp(first)
    backward = np.ones((rows, states))
    for row in evidence:
        weights = weights @ moves * np.exp(row)
    for row in evidence[::-1]:
        backward = (backward * np.exp(row)) @ moves.T
    np.testing.assert_allclose(found, np.log(weights.sum(1)).sum(), rtol=1e-12)
    np.testing.assert_allclose(slope, np.exp(first) * backward / weights.sum(1)[:, None], rtol=1e-10)
