"""`vectorized_map` against `map_fn`: every op over its samples, loops and branches, gradients inside and outside."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from programs import building
from programs.generator import programs
from programs.loops import repeat, run
from programs.syntax import ByRow, Grow, Program, SetVariable, Split, Write
from shared.examples import examples

import anabranch as ab
from anabranch.engine import control_flow
from anabranch.engine import ops as engine_ops
from anabranch.engine.common.nest import flatten, pack_as
from anabranch.engine.control_flow.batching_rules import RULES
from anabranch.engine.control_flow.vectorized_map import batched_map
from anabranch.engine.graph.op import Sample
from anabranch.engine.ops.text.hashing import AllKnown
from anabranch.engine.runtime.interpreter import Interpreter, as_outputs
from anabranch.engine.testing import op_check

ops = ab.ops

for _package in (engine_ops, control_flow):
    for _module in pkgutil.iter_modules(_package.__path__):
        importlib.import_module(f"{_package.__name__}.{_module.name}")


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph, np.errstate(all="ignore"):
        yield graph


# --- every op, over its samples -------------------------------------------------------------------------------------

FACTORS = (1.0, 0.9, 0.8)  # what the examples are multiplied by


def _numeric(sample: Sample) -> bool:
    return all(np.asarray(value).dtype.kind in "biufcV" for value in sample.inputs)


def _samples() -> list[Any]:
    classes = op_check.op_classes().values()
    return [cls for cls in classes if any(sample.inputs and _numeric(sample) for sample in cls.samples())]


def _scaled(value: Any, factor: float) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        return array
    return (array * np.asarray(factor, array.dtype)).astype(array.dtype)


@pytest.mark.parametrize("cls", _samples(), ids=lambda cls: cls.type_name)
def test_op(cls: Any, cases: Callable[[int], None]):
    """All inputs differ between the examples, or only one of them."""
    count = 0
    for sample in cls.samples():
        positions = range(len(sample.inputs))
        choices = [list(positions)] + [[k] for k in positions if len(positions) > 1]
        for choice in choices if _numeric(sample) and sample.inputs else []:
            # Of no rows the sizes are found by running the function, which is refused where it has effects.
            sizes = (3,) if any(sample.op.effects()) else (3, 0)
            count += sum(_check_op(sample, choice, FACTORS[:size]) for size in sizes)
    cases(count)


def _check_op(sample: Sample, batched: list[int], factors: tuple[float, ...]) -> int:
    inputs = [np.asarray(value) for value in sample.inputs]
    rows = [[_scaled(x, f) if k in batched else x for k, x in enumerate(inputs)] for f in factors]
    expected = _each(sample, rows)
    if expected is None:
        return 0
    with ab.Graph().as_default() as graph:
        same = [ab.placeholder(x.shape, x.dtype) for x in inputs]
        differing = [ab.placeholder((len(factors), *inputs[k].shape), inputs[k].dtype) for k in batched]

        def one(elements: list[Any]) -> list[Any]:
            given = {**dict(enumerate(same)), **dict(zip(batched, elements, strict=True))}
            return list(ab.get_default_graph().add(sample.op, [given[k] for k in range(len(inputs))]).outputs)

        found, _ = batched_map(one, differing)
        feeds = dict(zip(same, inputs, strict=True))
        for k, tensor in zip(batched, differing, strict=True):
            feeds[tensor] = np.array([row[k] for row in rows], inputs[k].dtype).reshape(len(rows), *inputs[k].shape)
        values = Interpreter().run(graph, found, feeds)
    for position, value in enumerate(values):
        assert len(value) == len(factors)
        for example, results in zip(value, expected, strict=True):
            _assert_like(example, results[position])
    return 1


def _each(sample: Sample, rows: list[list[Any]]) -> list[Any] | None:
    """The op on each example by itself; None where it can't be done, or gives shapes that can't be stacked."""
    try:
        found = [as_outputs(sample.op.run(np, *[x if x.ndim else x[()] for x in row])) for row in rows]
    except (ValueError, ArithmeticError, IndexError, np.linalg.LinAlgError):
        return None
    shapes = {tuple(np.shape(result) for result in results) for results in found}
    return found if len(shapes) <= 1 else None


def _assert_like(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind not in "biufcV":  # texts
        assert found.tolist() == expected.tolist()
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found.astype("complex128"), expected.astype("complex128"), rtol=1e-4, atol=1e-5)


def test_every_rule_is_for_an_op():
    """A rule of a base class is for the ops below it."""
    known = tuple(op_check.op_classes().values())
    assert [rule for rule in RULES if not any(issubclass(op, rule) for op in known)] == []


# --- functions ------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(2)
X = RNG.normal(size=(5, 3))
M = RNG.normal(size=(5, 3, 3))
N = np.array([3, 0, 2, 5, 1], "int32")
W = RNG.normal(size=(3, 4))
K = RNG.normal(size=(2, 2, 1, 2))


def _slope(y: Any, x: Any) -> Any:
    return ab.gradients(y, [x])[0]


def _own_branch(h: Any) -> Any:
    return ab.cond(ops.sum(h) > 0, lambda: ops.sin(h) * h, lambda: ops.exp(h) * 0.5)


def _own_loop(h: Any, n: Any) -> Any:
    return repeat(n, lambda i, g: ops.sin(g * h) * ops.sum(g), h)


def _table_gradient(row: Any, n: Any) -> Any:
    table = ab.constant(W)
    y = repeat(n, lambda i, h: ops.tanh(h @ table)[:3] + row, row)
    return ab.gradients(y, [table])[0]


def _descent(row: Any) -> Any:
    def step(i: Any, h: Any) -> Any:
        return h - 0.1 * ab.gradients(ops.sum(ops.sin(h * row) * h), [h])[0]

    return repeat(3, step, row)


def _scan_gradient(row: Any) -> Any:
    last, all_of_them = ab.scan(lambda c, v: (c * v + 1.0, c), row[0], row)
    return ab.gradients(ops.sum(all_of_them * all_of_them) + last, [row])[0]


def _nested_loops(row: Any) -> Any:
    return repeat(2, lambda i, h: repeat(i + 1, lambda j, g: ops.sin(g * row) + h, h), row)


def _array_in_a_loop(row: Any) -> Any:
    array = ab.TensorArray("float64", 3)
    array = repeat(3, lambda i, a: a.write(i, row[i] * ops.sum(row)), array)
    return array.stack()[::-1]


def _conv_gradient(m: Any) -> Any:
    kernel = ab.constant(K)
    y = ops.max_pool(ops.conv(m[None, ..., None], kernel), 2, strides=1)
    return ab.gradients(ops.sum(ops.tanh(y)), [kernel])[0]


# Functions of one example that are batched throughout, and their elements.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "product": (lambda row: ops.tanh(row @ W), X),
    "own matrix": (lambda e: e[0] @ e[1], (M, X)),
    "transposed": (lambda m: ops.transpose(m) @ m, M),
    "einsum": (lambda e: ops.einsum("ij,j,jk->ki", e[0], e[1], W), (M, X)),
    "softmax": (lambda row: ops.softmax(row) * ops.mean(row), X),
    "broadcast": (lambda e: e[1] + e[0] * W[0, 0], (X, M)),
    "solve": (lambda e: ops.solve(e[0] + 4 * np.eye(3), e[1]), (M, X)),
    "element": (lambda e: e[0][e[1] % 3], (X, N)),
    "column": (lambda e: e[0][:, e[1] % 3], (M, N)),
    "elements apart": (lambda m: ops.stack([m, 2 * m])[[0, 1], :, [2, 0]], M),
    "own elements apart": (lambda e: ops.stack([e[0], 2 * e[0]])[ops.stack([e[1] % 2, 0]), :, [2, 0]], (M, N)),
    "own columns": (lambda e: e[0][:, ops.stack([e[1] % 3, 0, 0])], (M, N)),
    "own element of all": (lambda n: ab.constant(W)[n % 3, 1:], N),
    "rows of a table": (lambda n: ops.take(W, n % 3, axis=0) * 2.0, N),
    "columns of a table": (lambda n: ops.take(W, ops.stack([n % 3, n % 2]), axis=1), N),
    "own rows": (lambda e: ops.take(e[0], ops.stack([e[1] % 3, 0]), axis=1), (M, N)),
    "reshape": (lambda m: ops.reshape(m, (-1,))[2:7], M),
    "concatenate": (lambda row: ops.concatenate([row, W[:, 0], row[:1]]), X),
    "stack": (lambda row: ops.stack([row, W[:, 0]], axis=-1), X),
    "sort": (lambda row: ops.sort(row)[::-1], X),
    "unused": (lambda row: ab.constant(W) * 2.0, X),
    "shape": (lambda row: row * ops.cast(ops.shape(row)[0], "float64"), X),
    "captured": (lambda row: row * ab.constant(X)[0] + ops.sum(ab.constant(X)), X),
    "branch": (lambda row: ab.cond(row[0] > 0, lambda: ops.sqrt(row[0]) * row, lambda: ops.exp(row)), X),
    "branch for all": (
        lambda row: ab.cond(ab.constant(W)[0, 0] > 0, lambda: row * 2.0, lambda: ab.constant(W[:, 0])),
        X,
    ),
    "switch": (lambda e: ab.switch(e[1] - 1, [lambda: e[0], lambda: e[0] * 2.0, lambda: e[0] * W[:, 0]]), (X, N)),
    "loop": (lambda row: repeat(3, lambda i, h: ops.sin(h * row), row), X),
    "loop of own length": (lambda e: repeat(e[1], lambda i, h: ops.sin(h * e[0]), e[0]), (X, N)),
    "loop over own rows": (lambda e: repeat(e[1] % 4, lambda i, h: h + e[0][i], e[0][0]), (M, N)),
    "loop until": (lambda row: ab.while_loop(lambda h: ops.sum(h * h) < 50.0, lambda h: h * 1.5 + 0.1, row), X),
    "loop that becomes different": (lambda row: repeat(3, lambda i, h: h + row, ops.zeros((3,), "float64")), X),
    "branch in a loop": (
        lambda row: repeat(4, lambda i, h: ab.cond(ops.sum(h) > 0, lambda: h * row, lambda: h + row), row),
        X,
    ),
    "loop in a branch": (
        lambda e: ab.cond(e[0][0] > 0, lambda: repeat(e[1], lambda i, h: h * e[0], e[0]), lambda: e[0] * 2.0),
        (X, N),
    ),
    "nested loops": (_nested_loops, X),
    "scan": (lambda row: ab.scan(lambda c, v: (c * v + 1.0, c), row[0], row)[1], X),
    "array": (_array_in_a_loop, X),
    "gradient": (lambda row: ab.gradients(ops.sum(ops.tanh(row @ W) ** 2), [row])[0], X),
    "gradient by what is captured": (lambda row: _weight_gradient(row), X),
    "gradient of a loop": (lambda row: ab.gradients(ops.sum(FUNCTIONS["loop"][0](row)), [row])[0], X),
    "gradient of a scan": (_scan_gradient, X),
    "gradient in a loop": (_descent, X),
    "gradient of a convolution": (_conv_gradient, M),
    "gradient of own branches": (lambda row: _slope(_own_branch(row), row), X),
    "gradient of own branches in a loop": (
        lambda row: _slope(repeat(4, lambda i, h: _own_branch(h * row), row), row),
        X,
    ),
    "second gradient of own branches": (lambda row: _slope(_slope(_own_branch(row * row), row) ** 2, row), X),
    "gradient of a loop of own length": (lambda e: _slope(_own_loop(*e), e[0]), (X, N)),
    "gradient of a loop of own length by a table": (lambda e: _table_gradient(*e), (X, N)),
    "gradient of a loop until": (
        lambda row: _slope(ab.while_loop(lambda h: ops.sum(h * h) < 50.0, lambda h: h * 1.5 + ops.exp(row), row), row),
        X,
    ),
    "gradient of a loop of own length in a branch": (
        lambda e: _slope(ab.cond(e[0][0] > 0, lambda: _own_loop(*e), lambda: ops.sin(e[0])), e[0]),
        (X, N),
    ),
    "gradient of a loop of own length in a loop": (
        lambda e: _slope(repeat(2, lambda i, h: _own_loop(h, e[1]) + e[0], e[0]), e[0]),
        (X, N),
    ),
    "map in a map": (lambda m: ab.vectorized_map(lambda row: ops.sum(row * row) + m[0, 0], m), M),
    "jacobian": (lambda row: ab.jacobian(ops.tanh(row @ W), row), X),
    "structure": (lambda e: {"y": e["a"] * 2.0, "z": [e["b"] @ e["a"]]}, {"a": X, "b": M}),
}


def _weight_gradient(row: Any) -> Any:
    weights = ab.constant(W)
    return ab.gradients(ops.sum(ops.tanh(row @ weights)), [weights])[0]


def _feeds(elements: Any, known: bool, size: int = 5) -> tuple[Any, dict[Any, Any]]:
    leaves = flatten(elements)
    fed = {ab.placeholder((size if known else None, *leaf.shape[1:]), leaf.dtype): leaf[:size] for leaf in leaves}
    return pack_as(elements, list(fed)), fed


def _slopes(results: Any, fed: dict[Any, Any], order: int = 2) -> list[Any]:
    """The results, and the first and second derivatives of a sum of them."""
    leaves = flatten(results)
    sources = [tensor for tensor in fed if tensor.dtype.kind == "f"]
    if not sources:
        return leaves
    total = sum(ops.sum(ops.sin(leaf)) for leaf in leaves)
    first = ab.gradients(total, sources, unconnected_gradients="zero")
    if order == 1:
        return [*leaves, *first]
    second = ab.gradients(sum(ops.sum(g * g) for g in first), sources, unconnected_gradients="zero")
    return [*leaves, *first, *second]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, known: bool):
    """Values and derivatives of two orders are those of a loop; nothing is looped over."""
    function, example = FUNCTIONS[name]
    elements, fed = _feeds(example, known)
    found, looped = batched_map(function, elements)
    expected = ab.map_fn(function, elements)

    assert looped == []
    order = 1 if known else 2
    values = run([*_slopes(found, fed, order), *_slopes(expected, fed, order)], fed)
    half = len(values) // 2
    for value, wanted in zip(values[:half], values[half:], strict=True):
        assert value.dtype == wanted.dtype
        np.testing.assert_allclose(value, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_few_elements(name: str, size: int, graph: ab.Graph):
    function, example = FUNCTIONS[name]
    elements, fed = _feeds(example, size % 2 == 0, size)
    found = flatten(ab.vectorized_map(function, elements))
    values = Interpreter().run(graph, found, fed)
    for tensor, value in zip(found, values, strict=True):
        assert value.shape == (size, *tensor.shape[1:])


# --- differing ways -------------------------------------------------------------------------------------------------


def test_gradients_do_not_see_ways_not_taken():
    """Both branches computed for all would multiply an infinite slope by zero."""
    x = ab.placeholder((None,), "float64")
    y = ab.vectorized_map(lambda e: ab.cond(e > 0, lambda: ops.sqrt(e), lambda: ops.zeros_like(e)), x)
    np.testing.assert_array_equal(run([ab.gradients(y, [x])[0]], {x: [4.0, 0.0, -1.0]})[0], [0.25, 0, 0])


def test_examples_that_have_finished_are_left_alone():
    """A further iteration would read behind the end."""
    rows = ab.constant(X)
    n = ab.placeholder((None,), "int32")
    total = ab.vectorized_map(lambda k: repeat(k, lambda i, h: h + rows[i, 0], ab.constant(0.0, "float64")), n)
    np.testing.assert_allclose(run([total], {n: [0, 5, 2]})[0], [0, X[:, 0].sum(), X[:2, 0].sum()])


def test_branches_and_loops_that_no_example_takes():
    x = ab.placeholder((None,), "float64")
    y = ab.vectorized_map(lambda e: ab.cond(e > 0, lambda: repeat(3, lambda i, h: h * e, e), lambda: e * 2), x)
    for at, expected in (([-1.0, -2.0], [-2.0, -4.0]), ([2.0], [16.0]), ([], [])):
        np.testing.assert_array_equal(run([y], {x: np.array(at)})[0], expected)


@given(st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 4)), max_size=6))
@settings(max_examples=examples(8, 25), deadline=None)
def test_any_examples(examples: list[tuple[float, int]]):
    def function(e: Any) -> Any:
        x, n = e

        def step(i: Any, h: Any) -> Any:
            return ab.switch(ops.cast(h, "int32"), [lambda: h * 0.5 + x, lambda: h - 1.5, lambda: ops.sin(h)])

        return ab.while_loop(lambda i, h: ops.logical_and(i < n, h < 3.0), lambda i, h: (i + 1, step(i, h)), (0, x))[1]

    with ab.Graph().as_default():
        x, n = ab.placeholder((None,), "float64"), ab.placeholder((None,), "int32")
        found, looped = batched_map(function, (x, n))
        assert looped == []
        expected = ab.map_fn(function, (x, n))
        slopes = [ab.gradients(y, [x])[0] for y in (found, expected)]
        fed = {x: np.array([e[0] for e in examples]), n: np.array([e[1] for e in examples], "int32")}
        values = run([found, expected, *slopes], fed)
    np.testing.assert_allclose(values[0], values[1], rtol=1e-9)
    np.testing.assert_allclose(values[2], values[3], rtol=1e-9)


# --- random numbers, variables, own gradients -----------------------------------------------------------------------


def test_random_numbers_differ_between_examples():
    generator = ab.random.SeedGenerator(3)
    x = ab.placeholder((None, 2), "float32")

    def noisy(row: Any) -> Any:
        keep = ab.cond(row[0] > 0, lambda: ab.random.uniform((2,), seed=generator), lambda: row)
        return ab.random.normal((2,), seed=generator) + 0 * row, keep

    (noise, keep), looped = batched_map(noisy, x)
    assert looped == []
    at = np.array([[1, 0], [-1, 5], [2, 0], [3, 0]], "float32")
    values, kept = ab.Session().run([noise, keep], {x: at})
    assert len(np.unique(values)) == 8
    np.testing.assert_array_equal(kept[1], at[1])
    assert len(np.unique(kept[[0, 2, 3]])) == 6


def test_random_numbers_from_a_key_of_outside_are_the_same():
    x = ab.placeholder((3,), "float32")
    found = ab.vectorized_map(lambda e: ab.random.normal((2,), seed=7) + 0 * e, x)
    (values,) = run([found], {x: np.zeros(3)})
    np.testing.assert_array_equal(values[1:], values[:-1])


def test_key_of_which_no_batch_can_be_made():
    generator = ab.random.SeedGenerator(3)
    x = ab.placeholder((3,), "float32")
    found, looped = batched_map(lambda e: ab.random.shuffle(ab.constant(np.arange(20)), seed=generator), x)
    assert "it takes a random key, and would give all examples the same" in looped[0]
    values = ab.Session().run(found, {x: np.zeros(3)})
    assert len({tuple(row) for row in values}) == 3


def test_variables_are_read_once_and_have_gradients():
    v = ab.Variable(W, name="v")
    x = ab.placeholder((None, 3), "float64")
    found = ab.vectorized_map(lambda row: ops.sum(ops.tanh(row @ v)), x)
    (slope,) = ab.gradients(found, [v])
    expected = X.T @ (1 - np.tanh(X @ W) ** 2)
    np.testing.assert_allclose(run([slope], {x: X})[0], expected)


def test_gradients_by_a_table_of_which_each_example_takes_rows():
    table = ab.Variable(W, name="table")
    n = ab.placeholder((None, 2), "int32")
    found, looped = batched_map(lambda e: ab.gradients(ops.take(table, e, axis=0) ** 2, [table])[0], n)
    assert looped == []
    at = np.array([[0, 2], [1, 1]])
    expected = np.zeros((2, 3, 4))
    for example, rows in enumerate(at):
        np.add.at(expected[example], rows, 2 * W[rows])
    np.testing.assert_allclose(run([found], {n: at})[0], expected)


def test_writes_are_made_once_for_each_example():
    v = ab.Variable(0.0, dtype="float64")
    x = ab.placeholder((3,), "float64")

    def counted(e: Any) -> Any:
        v.assign_add(e)
        return e * 2

    found, looped = batched_map(counted, x)
    assert "once for each example" in looped[0]
    ab.Session().run(found, {x: [1.0, 2.0, 3.0]})
    assert v.numpy() == 6.0


@ab.custom_gradient
def _own_gradient(x: Any) -> Any:
    e = ops.exp(x)
    return ops.sum(e), lambda upstream: upstream * e * 3 * ops.cast(ops.shape(x)[0], "float64")


OWN_GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda row: _own_gradient(row) * row,
    "of a captured value": lambda row: _own_gradient(ab.constant(W[:, 0])) * row,
    "in a loop": lambda row: repeat(3, lambda i, h: _own_gradient(h) * row * 0.1, row),
    "in a branch": lambda row: ab.cond(row[0] > 0, lambda: _own_gradient(row) * row, lambda: row),
    "inside": lambda row: ab.gradients(_own_gradient(row) * row[0], [row])[0],
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", OWN_GRADIENTS)
def test_functions_with_their_own_gradient(name: str, known: bool):
    elements, fed = _feeds(X, known)
    found, looped = batched_map(OWN_GRADIENTS[name], elements)
    assert looped == []
    values = run([*_slopes(found, fed), *_slopes(ab.map_fn(OWN_GRADIENTS[name], elements), fed)], fed)
    for value, wanted in zip(values[:3], values[3:], strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9)


# --- what can't be batched ------------------------------------------------------------------------------------------


def _counted(row: Any) -> Any:
    return ops.bincount(ops.cast(ops.abs(row), "int32"), minlength=9)[:3]


def test_operations_without_a_rule_are_looped_over(caplog: pytest.LogCaptureFixture):
    x = ab.placeholder((None, 3), "float64")
    with caplog.at_level(logging.WARNING):
        found = ab.vectorized_map(_counted, x)
    assert "loops over what it can't batch" in caplog.text
    assert "(bin_count, defined at" in caplog.text
    expected = [np.bincount(np.abs(row).astype(int), minlength=9)[:3] for row in X * 3]
    np.testing.assert_array_equal(run([found], {x: X * 3})[0], expected)


def test_fallbacks_may_be_errors():
    x = ab.placeholder((None, 3), "float64")
    with pytest.raises(ValueError, match=r"fallback_to_while_loop is False:\n'.*' \(bin_count, defined at"):
        ab.vectorized_map(_counted, x, fallback_to_while_loop=False)


def test_complex_numbers_of_parts_are_batched():
    x, real = ab.placeholder((None, 3), "float64"), ab.placeholder((None,), "float64")

    def spectrum(given: Any) -> Any:
        return ops.abs(ops.fft((given[0], given[1] * given[0]))[0]) + ops.imag(ops.complex(given[1], given[0]))

    found = ab.vectorized_map(spectrum, (x, real), fallback_to_while_loop=False)
    fed = {x: X, real: X[:, 0]}
    values = run([*_slopes(found, fed), *_slopes(ab.map_fn(spectrum, (x, real)), fed)], fed)
    np.testing.assert_allclose(values[0], np.abs(np.fft.fft(X + 1j * X[:, :1] * X).real) + X, rtol=1e-9)
    for value, wanted in zip(values[:5], values[5:], strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9)


def test_nothing_is_said_where_all_is_batched(caplog: pytest.LogCaptureFixture):
    x = ab.placeholder((None, 3), "float64")
    ab.vectorized_map(lambda row: row * 2, x, fallback_to_while_loop=False)
    assert not caplog.text


WHOLE_LOOPS: dict[str, Callable[[Any], Any]] = {
    "gradient of own branches inside each other": lambda e: _slope(
        ab.cond(e[0][1] > 0, lambda: e[0] * e[0], lambda: _own_branch(e[0])), e[0]
    ),
    "gradient of own branches in a loop of own length": lambda e: _slope(
        repeat(e[1], lambda i, h: _own_branch(h) * e[0], e[0]), e[0]
    ),
    "gradient of a loop in a loop of own length": lambda e: _slope(
        repeat(e[1], lambda i, h: repeat(2, lambda j, g: ops.sin(g * e[0]), h), e[0]), e[0]
    ),
    "array in a loop of own length": lambda e: repeat(
        e[1] % 3, lambda i, a: a.write(i, e[0]), ab.TensorArray("float64", 3).unstack(ops.zeros((3, 3), "float64"))
    ).stack(),
    "second gradient of a loop of own length": lambda e: _second(
        repeat(e[1], lambda i, h: ops.sin(h * e[0]), e[0]), e[0]
    ),
}


def _second(y: Any, x: Any) -> Any:
    return ab.gradients(ops.sum(ab.gradients(y, [x])[0] ** 2), [x])[0]


@pytest.mark.parametrize("name", WHOLE_LOOPS)
def test_functions_that_are_looped_over_as_a_whole(name: str):
    elements, fed = _feeds((X, N), known=False)
    found, looped = batched_map(WHOLE_LOOPS[name], elements)
    assert len(looped) == 1
    values = run([found, ab.map_fn(WHOLE_LOOPS[name], elements)], fed)
    np.testing.assert_allclose(*values, rtol=1e-12)


# Results inside of these have sizes of their own in each example.
SIZES_OF_THEIR_OWN: dict[str, Callable[[Any], Any]] = {
    "branches by row": lambda e: ab.batched_cond(e[0] > 0, lambda v: v * 2, lambda v: -v, e[0]),
    "range": lambda e: ops.sum(ops.cast(ops.arange(e[1]), "float64")) * e[0],
    "window": lambda e: ops.sum(e[0][: e[1]] ** 2),
    "padding": lambda e: ops.sum(ops.pad(e[0], [[e[1], 0]])),
    "positions": lambda e: ops.sum(ops.cast(ops.nonzero(e[0] > 0)[0], "float64")) * e[0],
    "repetition": lambda e: ops.sum(ops.repeat(e[0], e[1]) ** 2),
}


@pytest.mark.parametrize("inner", [3, None])
@pytest.mark.parametrize("name", SIZES_OF_THEIR_OWN)
def test_sizes_that_follow_from_values(name: str, inner: int | None):
    x, n = ab.placeholder((None, inner), "float64"), ab.placeholder((None,), "int32")
    function = SIZES_OF_THEIR_OWN[name]
    found, looped = batched_map(function, (x, n))
    assert len(looped) == 1
    assert "the sizes of its results may differ between examples" in looped[0]
    expected = ab.map_fn(function, (x, n))
    values = run([found, expected, _slope(found, x), _slope(expected, x)], {x: X, n: N})
    for one, other in (values[:2], values[2:]):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_one_operation_is_one_for_all_where_nothing_differs(graph: ab.Graph):
    x, n = ab.placeholder((None, 3), "float64"), ab.placeholder((), "int32")
    before = len(graph.operations)
    ab.vectorized_map(lambda row: row * repeat(n, lambda i, h: h * 2.0, ab.constant(1.0, "float64")), x)
    loops = [operation for operation in graph.operations[before:] if operation.type == "while"]
    assert [loop.outputs[1].shape for loop in loops] == [()]


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ((), "elements holds no tensors"),
        (1.0, "runs over the first axis of elements, but .* is a scalar"),
        ((np.ones(2), np.ones((3, 1))), r"differ in their first axis: their shapes are \[2\], \[3,1\]"),
    ],
)
def test_errors(elements: Any, message: str):
    with pytest.raises(ValueError, match=message):
        ab.vectorized_map(lambda e: e, elements)


def test_lengths_that_only_the_run_knows():
    a, b = ab.placeholder((3,), "float64"), ab.placeholder((None,), "float64")
    found = ab.vectorized_map(lambda e: e[0] + e[1], (a, b))
    with pytest.raises(ValueError, match=r"one is 3, but a sequence has shape \[1\]"):
        ab.Session().run(found, {a: np.ones(3), b: np.ones(1)})


# --- random programs ------------------------------------------------------------------------------------------------


def _outputs_and_slopes(program: Program, inputs: dict[str, Any]) -> list[Any]:
    """The outputs of a program, and the derivatives of their weighted sum by its floating-point inputs."""
    builder, scope = building._Builder(program), dict(inputs)
    builder.block(program.body, scope)
    outputs = [scope[name] for name in program.outputs]
    loss = sum(ops.sum(scope[name] * np.asarray(w, "float64")) for name, w in program.weights.items())
    sources = [x for x in inputs.values() if x.dtype.kind == "f"]
    return [
        *outputs,
        *(ab.gradients(loss, sources, unconnected_gradients="zero") if sources and program.weights else []),
    ]


LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def _varied(value: Any, example: int) -> Any:
    if isinstance(value, bool):
        return value != (example == 1)
    if isinstance(value, int):
        return max(value - example, 0)
    return np.asarray(value) * (1.0, 0.75, -0.5)[example]


@pytest.mark.parametrize("chunk", [0, *[pytest.param(chunk, marks=pytest.mark.slow) for chunk in (1, 2, 3)]])
def test_random_programs(chunk: int):
    """Each program, over examples that take different ways, gives what it gives for each example alone."""
    vectorized: list[bool] = []

    @seed(chunk)
    @settings(max_examples=10, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=LARGE)
    @given(programs())
    def check(program: Program) -> None:
        assume(program.precision == "float64" and program.inputs)
        kinds = {type(statement) for statement, _ in program.statements()}
        assume(SetVariable not in kinds)
        lengths_differ = kinds & {ByRow, Grow, Split, Write}
        assume(not (program.open_shapes and lengths_differ))  # which is not known before the run
        examples = [{name: _varied(value, k) for name, value in program.inputs.items()} for k in range(3)]
        with ab.Graph().as_default() as graph:
            single = {name: building._Builder(program).placeholder(name, v) for name, v in program.inputs.items()}
            fetches = _outputs_and_slopes(program, single)
            try:
                expected = [
                    Interpreter().run(graph, fetches, {t: np.asarray(e[n], t.dtype)[()] for n, t in single.items()})
                    for e in examples
                ]
            except (ValueError, IndexError):
                assume(False)
        assume(len({tuple(np.shape(value) for value in results) for results in expected}) == 1)
        stacked = {name: np.stack([np.asarray(e[name], single[name].dtype) for e in examples]) for name in single}
        with ab.Graph().as_default() as graph:
            fed = {n: ab.placeholder((None, *x.shape[1:]), x.dtype, n) for n, x in stacked.items()}
            found, looped = batched_map(lambda inputs: _outputs_and_slopes(program, inputs), fed)
            values = Interpreter().run(graph, found, {t: stacked[n] for n, t in fed.items()})
        vectorized.append(not looped)
        for position, value in enumerate(values):
            for example, results in zip(value, expected, strict=True):
                np.testing.assert_allclose(example, results[position], rtol=1e-6, atol=1e-8)

    check()
    assert any(vectorized)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x * 2, (0, 3, 4)),
        (lambda x: ops.sum(x, axis=-1), (0, 3)),
        (lambda x: ops.concatenate([x, x], 0), (0, 6, 4)),
        (lambda x: ops.cast(x, "int32") + 1, (0, 3, 4)),
    ],
)
def test_no_elements_of_unknown_rank_have_the_shape_of_their_results(function: Any, shape: tuple[int, ...]):
    with ab.Graph().as_default():
        x = ab.placeholder(None)
        found = ab.vectorized_map(function, x)
        assert ab.Session().run(found, {x: np.zeros((0, 3, 4), "float32")}).shape == shape
        assert ab.Session().run(found, {x: np.zeros((2, 3, 4), "float32")}).shape == (2, *shape[1:])


def test_places_that_all_examples_share_are_those_of_each():
    (sample,) = [each for each in AllKnown.samples() if each.label == "0-d"]
    assert _check_op(sample, [1], FACTORS[:3])
