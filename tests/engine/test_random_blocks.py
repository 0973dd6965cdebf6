"""Random blocks within each other: values, steps, functions and the interpreter agree, and so do differences.

Each is run with several numbers of rows, none among them, by one compiled step and one function. Gradients of first and
second order are compared, too.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
from programs.blocks import WIDTH, Tree, built, drawn, has

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Symbol, TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.interpreter import Interpreter

QUICK = 4  # in `make test`
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= QUICK else []) for seed in range(300)]
ROWS = (2, 0, 4, 1)
pytestmark = pytest.mark.usefixtures("without_kernels")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)  # of what `vectorized_map` loops over


def with_gradients(tree: Tree, x: Any, w: Any) -> list[Any]:
    """A block's result, a scalar of it, and first and second derivatives of that by both inputs."""
    factors = ops.convert_to_tensor(np.arange(1.0, WIDTH + 1)[None] * 0.3)
    with ab.GradientTape() as outer:
        outer.watch([x, w])
        with ab.GradientTape() as tape:
            tape.watch([x, w])
            y = built(tree)(x, w)
            loss = ops.sum(y * factors)
        first = [ops.convert_to_tensor(g) for g in tape.gradient(loss, [x, w], unconnected_gradients="zero")]
        slope = ops.sum(ops.sin(first[0])) + ops.sum(first[1] * 0.7)
    second = outer.gradient(slope, [x, w], unconnected_gradients="zero")
    return [y, loss, *first, *map(ops.convert_to_tensor, second)]


def assert_close(found: Any, expected: Any, hint: str) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype, hint
        np.testing.assert_allclose(one, other, 1e-8, 1e-8, err_msg=hint)


def assert_is_slope(tree: Tree, step: Any, gradients: Any, x: Any, w: Any, rng: np.random.Generator) -> None:
    """Compare first derivatives along a direction with differences, where these agree with each other."""
    if has(tree, "no gradient"):
        return
    for number, gradient in enumerate(gradients):
        along = [rng.normal(size=x.shape) * (number == 0), rng.normal(size=w.shape) * (number == 1)]
        found = float(np.sum(gradient * along[number]))
        slopes = [
            (step(x + e * along[0], w + e * along[1]) - step(x - e * along[0], w - e * along[1])) / (2 * e)
            for e in (1e-5, 3e-6, 1e-6)
        ]
        if max(slopes) - min(slopes) < 1e-4 * (1 + abs(found)):  # else a comparison turns nearby
            assert abs(slopes[1] - found) < 1e-3 * (1 + abs(found)), f"{tree}, by input {number}"


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = drawn(rng, 2)
    with ab.Graph().as_default() as graph:
        x, w = ab.placeholder((None, WIDTH), "float64"), ab.placeholder((WIDTH, WIDTH), "float64")
        targets = with_gradients(tree, x, w)
    session = ab.Session(graph)
    function = ab.function(lambda x, w: with_gradients(tree, x, w))
    wide: Any = rng.normal(size=(WIDTH, WIDTH)) * 0.6
    for rows in ROWS:
        value = rng.normal(size=(rows, WIDTH)) * 0.8
        given = [ab.convert_to_tensor(each) for each in (value, wide)]
        expected = with_gradients(tree, *given)
        hint = f"{tree}, {rows} rows"
        feeds = {x: value, w: wide}
        assert_close(Interpreter().run(graph, [*map(symbol_of, targets)], feeds), expected, f"interpreter: {hint}")
        assert_close(session.run(targets, feeds), expected, f"step: {hint}")
        assert_close(function(*given), expected, f"function: {hint}")
        if rows == ROWS[0]:

            def loss(value: Any, wide: Any) -> float:
                return float(session.run(targets[1], {x: value, w: wide}))

            assert_is_slope(tree, loss, [np.asarray(each) for each in expected[2:4]], value, wide, rng)


def test_sums_to_an_axis_of_one_that_was_open() -> None:
    """Check what takes the place of a sum to a shape: its spec says that an axis has one element, the sum's did not."""
    tree = ("vectorized_map over rows of w", ("case", ("where",), ("gate",)))
    rng = np.random.default_rng(0)
    with ab.Graph().as_default() as graph:
        x, w = ab.placeholder((None, WIDTH), "float64"), ab.placeholder((WIDTH, WIDTH), "float64")
        targets = with_gradients(tree, x, w)
    session = ab.Session(graph)
    for rows in ROWS:
        feeds = {x: rng.normal(size=(rows, WIDTH)), w: rng.normal(size=(WIDTH, WIDTH))}
        expected = Interpreter().run(graph, [*map(symbol_of, targets)], feeds)
        assert_close(session.run(targets, feeds), expected, f"{rows} rows")


def is_fed(tensor: Symbol) -> bool:
    return isinstance(tensor.spec, TensorSpec) and tensor.dtype.kind == "f" and not tensor.operation.writes


def is_there(value: Any, tensor: Symbol) -> bool:
    """Test whether a run computes a tensor: what a branch saves is not there where another branch was taken."""
    return value is not None and tensor.spec.accepts(TensorSpec(np.shape(value), tensor.dtype))


@pytest.mark.parametrize("seed", SEEDS)
def test_feeds_of_inner_tensors(seed: int) -> None:
    """Fed and fetched are random tensors, some by several threads at once; the interpreter has to agree."""
    rng = np.random.default_rng(seed)
    tree = drawn(rng, 2)
    with ab.Graph().as_default() as graph:
        x, w = ab.placeholder((None, WIDTH), "float64"), ab.placeholder((WIDTH, WIDTH), "float64")
        scale = ab.Variable(0.5, dtype="float64", name="scale")
        y = built(tree)(x * scale, w)
        gradients = ab.gradients(ops.sum(y * y), [x, w], unconnected_gradients="zero")
        targets = [symbol_of(ops.convert_to_tensor(each)) for each in (y, *gradients)]
    base: dict[Any, Any] = {
        x: rng.normal(size=(ROWS[seed % 4], WIDTH)),
        w: rng.normal(size=(WIDTH, WIDTH)) * 0.6,
    }
    inner = [tensor for operation in graph.operations for tensor in operation.outputs if is_fed(tensor)]
    jobs: list[tuple[Any, Any, Any]] = []
    for _ in range(6):
        feeds = dict(base)
        for number in rng.integers(len(inner), size=rng.integers(0, 4)):
            (value,) = Interpreter().run(graph, [inner[number]], base)
            if is_there(value, inner[number]):
                feeds[inner[number]] = np.asarray(value + rng.normal(size=np.shape(value)) * 0.3)
        fetches = [*targets, *[inner[number] for number in rng.integers(len(inner), size=2)]]
        fetches = [fetches[number] for number in rng.permutation(len(fetches))[: rng.integers(1, len(fetches) + 1)]]
        try:
            expected = Interpreter().run(graph, fetches, feeds)
        except ValueError:  # a value that is fed was computed of rows that another one has chosen
            continue
        if all(map(is_there, expected, map(symbol_of, fetches))):
            jobs.append((fetches, feeds, expected))
    sessions = [ab.Session(graph), ab.Session(graph, schedule_seed=seed)]
    found: list[Any] = [None] * len(jobs)

    def run(number: int) -> None:
        fetches, feeds, _ = jobs[number]
        found[number] = [session.run(fetches, feeds) for session in sessions]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (fetches, feeds, expected), values in zip(jobs, found, strict=True):
        for each in values:
            assert_close(each, expected, f"{tree}: {fetches} of {[*feeds]}")
