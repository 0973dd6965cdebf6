"""Loop-invariant code motion: which operations leave a loop, what they cost, and what is logged."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine import ops as modules
from anabranch.engine.graph import Graph, TensorSpec
from anabranch.engine.graph.op import Sample
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.loops.view import building, is_static, size_of
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program
from anabranch.engine.testing.op_check import all_samples

ops = ab.ops

for _module in pkgutil.iter_modules(modules.__path__):  # every op is registered when its module is imported
    importlib.import_module(f"{modules.__name__}.{_module.name}")


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph, np.errstate(all="ignore"):  # as in a session
        yield graph


# --- what ops say of themselves -------------------------------------------------------------------------------------

_ODD = {
    "f": [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -1e-45, 1.5],
    "c": [complex(np.nan, 1), complex(np.inf, -np.inf), 0, 1j],
    "i": [-(2**31), 2**31 - 1, 0, -1, 7],
    "u": [0, 255, 1],
    "b": [True, False],
}


# The shapes that these take are those of arrays of the same step: gradients put them in.
_OF_SHAPES = {"sum_to_shape", "broadcast_to_shape", "broadcast_reduced", "reshape_to_shape", "zeros_of_shape"}


def _is_safe(sample: Sample) -> bool:
    """Test whether an op says that it can't fail for the shapes of a sample, as before a loop that has no iteration."""
    arrays = [np.asarray(value) for value in sample.inputs]
    if not arrays or sample.op.type_name in _OF_SHAPES or any(array.dtype.kind not in (*_ODD, "V") for array in arrays):
        return False
    with Graph().as_default():
        inputs = [ab.placeholder(array.shape, array.dtype) for array in arrays]
        found = sample.op.infer(*[tensor.spec for tensor in inputs])
        specs = found if isinstance(found, tuple) and not isinstance(found, TensorSpec) else (found,)
        is_known = all(isinstance(spec, TensorSpec) and spec.is_static for spec in specs)
        return is_known and is_static(*inputs) and all(map(size_of, inputs)) and sample.op.cannot_fail(*inputs)


_NAMED = [(name, sample) for name, sample in all_samples() if _is_safe(sample)]
SAFE = [pytest.param(sample, id=name) for name, sample in _NAMED]


@pytest.mark.parametrize("sample", SAFE)
def test_what_cannot_fail_gives_a_result_for_any_values(sample: Any):
    arrays = [np.asarray(value) for value in sample.inputs]
    shapes = [getattr(part, "shape", ()) for part in _parts(sample.op.run(np, *sample.inputs))]
    for turn in range(len(_ODD["f"])):
        odd = [_odd(array, turn + number) for number, array in enumerate(arrays)]
        found = _parts(sample.op.run(np, *[value if value.ndim else value[()] for value in odd]))
        assert [getattr(part, "shape", ()) for part in found] == shapes


def _parts(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _odd(array: np.ndarray, turn: int) -> np.ndarray:
    values = _ODD["f" if array.dtype.kind == "V" else array.dtype.kind]
    chosen = [values[(turn + place * (turn % 3)) % len(values)] for place in range(array.size)]
    with np.errstate(all="ignore"):
        return np.array(chosen).astype(array.dtype).reshape(array.shape)


def test_many_ops_say_that_they_cannot_fail():
    names = {sample.op.type_name for _, sample in _NAMED}
    assert len(names) > 130
    assert {"sort", "cum_sum", "flip", "roll", "prod", "one_hot", "softmax", "conv", "arg_max"} <= names
    assert not names & {
        "take",
        "floor_divide",
        "mod",
        "inverse",
        "cholesky",
        "solve",
        "qr",
        "put_rows",
        "take_along_axis",
    }


def test_a_position_that_is_known_cannot_fail():
    x = ab.placeholder((3, 4), "float32")
    inside, outside = (
        symbol_of(ops.take(x, [2, 0, -3], axis=0)).operation,
        symbol_of(ops.take(x, ab.constant([2, 3]), axis=0)).operation,
    )
    assert inside.op.cannot_fail(*inside.inputs)
    assert not outside.op.cannot_fail(*outside.inputs)
    rows, open_rows = symbol_of(x[ab.constant([1, 0])]).operation, symbol_of(x[ab.placeholder((2,), "int32")]).operation
    assert rows.op.cannot_fail(*rows.inputs)
    assert not open_rows.op.cannot_fail(*open_rows.inputs)


@pytest.mark.parametrize(("dtype", "expected"), [("float32", True), ("int32", False)])
def test_of_integers_there_are_no_negative_powers(dtype, expected):
    x = ab.placeholder((3,), dtype)
    power = symbol_of(x**x).operation
    assert power.op.cannot_fail(*power.inputs) is expected


# --- loops ----------------------------------------------------------------------------------------------------------

OF_WEIGHTS = {
    "sort": lambda w: ops.sort(w, axis=0),
    "cumsum": lambda w: ops.cumsum(w, axis=0),
    "flip": lambda w: ops.flip(w, axis=0),
    "roll": lambda w: ops.roll(w, 1, axis=0),
    "tril": ops.tril,
    "tile": lambda w: ops.tile(w, (1, 2))[:, 2:7],
    "pad": lambda w: ops.pad(w, ((1, 0), (0, 0)))[:-1],
    "prod": lambda w: w * ops.prod(w),
    "take": lambda w: ops.take(w, [1, 0, 2, 4, 3], axis=0),
    "diag": lambda w: w * ops.diag(ops.diag(w)),
    "one_hot": lambda w: w * ops.one_hot(ops.argmax(w, axis=-1), 5),
}


def _loop(of_weights, trips):
    w = ab.placeholder((5, 5), "float64", "w")
    h0 = ab.placeholder((2, 5), "float64", "h")

    def body(t, h):
        return t + 1, ops.tanh(h @ of_weights(w))

    _, h = ab.while_loop(lambda t, h: t < trips, body, (0, h0))
    return w, h0, h


def _body(fetch: Any) -> str:
    """The loop of a program, as it is printed where nothing else is done to it."""
    with without("native", "fuse", "unroll"):
        source = ab.explain(fetch, lines=False)
    return source[source.index("while ") :]


@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_what_is_made_of_weights_alone_is_made_once(name):
    n = ab.placeholder((), "int32", "n")
    w, h0, h = _loop(OF_WEIGHTS[name], n)
    loss = ops.sum(h * h)
    fetches, fed = [h, loss, *ab.gradients(loss, [w])], [w, h0, n]
    body = _body(h)
    assert [line.split(" = ")[1] for line in body.splitlines() if "run_" in line or "np." in line] == [
        "np.tanh(matmul)"
    ]
    rng = np.random.default_rng(0)
    for trips in (3, 0):
        values = [rng.normal(size=(5, 5)), rng.normal(size=(2, 5)), np.int32(trips)]
        expected = Interpreter().run(h.graph, fetches, dict(zip(fed, values, strict=True)))
        for got, value in zip(Program(h.graph, fetches, fed)(*values), expected, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-10, atol=1e-12)


def test_what_may_fail_stays_in_a_loop_that_may_not_run():
    n = ab.placeholder((), "int32", "n")
    w, h0, h = _loop(ops.inv, n)
    told = ab.explain(h, passes=True).split("invariants: ")[1].split("\nfission")[0]
    assert "inverse (test_invariants.py:" in told
    assert "is the same in each iteration, but may fail, and the loop may not run" in told
    program = Program(h.graph, [h], [w, h0, n])
    start = np.ones((2, 5))
    np.testing.assert_array_equal(program(np.zeros((5, 5)), start, np.int32(0))[0], start)
    with pytest.raises(Exception, match=r"[Ss]ingular"):
        program(np.zeros((5, 5)), start, np.int32(1))


def test_what_may_fail_leaves_a_loop_that_runs_at_any_rate():
    w, h0, h = _loop(ops.inv, 4)
    assert "run_inv" not in _body(h)
    value, start = np.random.default_rng(0).normal(size=(5, 5)), np.ones((2, 5))
    expected = start
    for _ in range(4):
        expected = np.tanh(expected @ np.linalg.inv(value))
    np.testing.assert_allclose(Program(h.graph, [h], [w, h0])(value, start)[0], expected, rtol=1e-8)


def test_what_may_fail_stays_behind_what_a_loop_writes():
    count = ab.Variable(0, name="count")
    w = ab.placeholder((5, 5), "float64", "w")

    def body(t, h):
        count.assign_add(1)
        return t + 1, h @ ops.inv(w)

    _, h = ab.while_loop(lambda t, h: t < 3, body, (0, ab.constant(np.ones((2, 5)))))
    assert "run_inv" in _body(h)


def test_what_passes_capture_is_on_the_device_of_what_it_stands_for() -> None:
    with ab.Graph().as_default() as graph:
        n = ab.placeholder((), "int32")
        total = ab.while_loop(lambda i: i < n, lambda i: (i + 1,), (0,))[0]
        outer = symbol_of(n * 2)
    loop = total.operation
    body = loop.op.body
    for operation in (*graph.operations, *body.operations):
        operation.device = "/device:CPU:0"
    outer.operation.device = "/device:CPU:1"
    body.is_built = False
    with building(body, loop):
        found = body.parameters[0] + outer
    body.is_built = True
    captured = found.operation.inputs[1].operation
    assert (found.operation.device, captured.device) == ("/device:CPU:0", "/device:CPU:1")
