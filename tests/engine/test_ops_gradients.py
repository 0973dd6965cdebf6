"""The samples of reductions, sorting, linear algebra, neural network and random ops: what infer, run and emit say, and
gradients of both orders against finite differences, with shapes known, partly known and unknown."""

import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, Placeholder, TensorSpec
from anabranch.engine.graph.op import Op
from anabranch.engine.graph.spec import shape_accepts
from anabranch.engine.ops import (
    crossentropy,
    einsum,
    keys,
    linalg,
    matrices,
    nn,
    random,
    reduced,
    reduction,
    running,
    softmax,
    sorting,
    sum,
)
from anabranch.engine.ops.base import apply_multi, convert_to_tensor
from anabranch.engine.session import Session

MODULES = [reduced, reduction, running, sorting, linalg, einsum, matrices, softmax, crossentropy, nn, keys, random]


def classes(module: types.ModuleType) -> Iterator[type[Op]]:
    for value in vars(module).values():
        here = isinstance(value, type) and issubclass(value, Op) and value.__module__ == module.__name__
        if here and not value.__name__.startswith("_"):
            yield value


CLASSES = [cls for module in MODULES for cls in classes(module)]
NAMED = [
    (f"{cls.__name__}-{number}-{sample.label}", sample)
    for cls in CLASSES
    for number, sample in enumerate(cls.samples())
]
SAMPLES = [pytest.param(sample, id=name) for name, sample in NAMED]
KNOWN = [pytest.param(sample, id=name) for name, sample in NAMED if sample.expected is not None]
SMOOTH = [pytest.param(sample, id=name) for name, sample in NAMED if sample.differentiable]
ERRORS = [
    pytest.param(sample, id=f"{cls.__name__}-{number}-{sample.label}")
    for cls in CLASSES
    for number, sample in enumerate(cls.error_samples())
]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph, np.errstate(all="ignore"):  # as in a session
        yield graph


def leaves(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def spec_of(array: Any, known: str = "all") -> TensorSpec:
    if known == "all":
        return TensorSpec(array.shape, array.dtype)
    return TensorSpec((None,) * len(array.shape) if known == "rank" else None, array.dtype)


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5):
    assert np.shape(actual) == np.shape(expected)
    if np.asarray(expected).dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_every_op_has_samples():
    assert len(CLASSES) > 35
    for cls in CLASSES:
        assert cls is keys.TakeKey or len(list(cls.samples())) >= 3, cls


@pytest.mark.parametrize("sample", KNOWN)
def test_value(sample: Any):
    for actual, expected in zip(leaves(sample.op.run(np, *sample.inputs)), leaves(sample.expected), strict=True):
        assert_close(actual, expected, sample.tolerance)


@pytest.mark.parametrize("known", ["all", "rank", "nothing"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_inferred_spec_describes_result(sample: Any, known: str):
    specs = leaves(sample.op.infer(*[spec_of(x, known) for x in sample.inputs]))
    for result, spec in zip(leaves(sample.op.run(np, *sample.inputs)), specs, strict=True):
        assert isinstance(result, np.ndarray if result.shape else np.generic)
        assert result.dtype == spec.dtype
        assert shape_accepts(spec.shape, result.shape), (spec, result.shape)


@pytest.mark.parametrize("sample", SAMPLES)
def test_emitted_source_equals_run(sample: Any):
    names = [f"x{place}" for place in range(len(sample.inputs))]
    values = dict(zip(names, sample.inputs, strict=True))
    expected = sample.op.run(np, *sample.inputs)
    source = sample.op.emit(names)
    if source is not None:
        result = eval(source, {"np": np}, values)
        assert type(result) is type(expected)
        assert result.dtype == expected.dtype
        assert result.tobytes() == expected.tobytes()
    if not isinstance(expected, np.ndarray):
        return
    out = np.empty_like(expected)
    source = sample.op.emit_out(names, "out")
    if source is not None:
        eval(source, {"np": np}, {**values, "out": out})
        assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("sample", ERRORS)
def test_errors(sample: Any):
    with pytest.raises(sample.error, match=sample.match):
        sample.call()


# --- gradients ------------------------------------------------------------------------------------------------------


def probe(value: Any, seed: int) -> Any:
    """Weights of a shape, by which a value becomes a number that depends on each of its elements."""
    return np.random.default_rng(seed).uniform(0.5, 1.5, np.shape(value))


def weighted_sum(tensors: Any, weights: Any) -> Any:
    total = convert_to_tensor(0.0, "float64")
    for tensor, weight in zip(tensors, weights, strict=True):
        if tensor.spec.differentiable:
            total = total + sum(tensor * convert_to_tensor(weight, "float64"))
    return total


def numeric_derivative(function: Any, x: Any) -> Any:
    """Central differences of a function of one array that returns a number."""
    derivative = np.zeros(np.shape(x))
    step = 1e-5
    for place in np.ndindex(derivative.shape):
        difference = []
        for sign in (1, -1):
            moved = np.array(x)
            moved[place] += sign * step
            difference.append(sign * float(function(moved[()])))
        derivative[place] = (difference[0] + difference[1]) / (2 * step)
    return derivative


@pytest.mark.parametrize("known", ["all", "rank", "nothing"])
@pytest.mark.parametrize("sample", SMOOTH)
def test_gradients_of_both_orders(sample: Any, known: str):
    positions = sample.differentiable
    values = [x.astype("float64") if x.dtype.kind == "f" else x for x in sample.inputs]
    xs = [Graph.add(graph_now(), Placeholder(spec_of(value, known)), (), "x").outputs[0] for value in values]
    feeds = dict(zip(xs, values, strict=True))
    session = Session()
    ys = apply_multi(sample.op, *xs)
    loss = weighted_sum(ys, [probe(y, 1) for y in leaves(session.run(tuple(ys), feeds))])
    wanted = [xs[p] for p in positions]
    first = gradients(loss, wanted)
    slope = weighted_sum(first, [probe(values[p], 2 + p) for p in positions])
    second = gradients(slope, wanted, unconnected_gradients="zero")
    for function, derivatives in ((loss, first), (slope, second)):
        for place, derivative in zip(positions, derivatives, strict=True):

            def at(x: Any, function: Any = function, place: int = place) -> Any:
                return session.run(function, {**feeds, xs[place]: x})

            assert derivative.dtype == xs[place].dtype
            assert_close(session.run(derivative, feeds), numeric_derivative(at, values[place]), 2e-4)


def graph_now() -> Graph:
    return convert_to_tensor(0).graph
