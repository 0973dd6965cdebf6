"""Rewrites of operations that have no kernel as several that have one: both give the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.loops import check
from shared.examples import examples

import anabranch as ab
from anabranch.engine.common.dtypes import as_dtype
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.ops.neural.softmax import PlaceClass, SelectClass
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program
from anabranch.engine.testing.control_flow import check_control_flow

_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-13}


def _run(fetches: Any, feeds: dict[Any, Any]) -> tuple[list[np.ndarray], int]:
    """The values of fetches, and how many operations the pass has rewritten."""
    with recording() as log, ab.Session() as session:
        values = session.run(fetches, feeds)
    return [np.asarray(value, "float64") for value in values], len(log.of("decompose")[0])


def _reference(scores: np.ndarray, labels: np.ndarray, from_logits: bool) -> np.ndarray:
    at_label = np.take_along_axis(scores, labels[..., None], -1)[..., 0]
    if not from_logits:
        return -np.log(np.clip(at_label / scores.sum(-1), 1e-7, 1 - 1e-7))
    top = scores.max(-1, keepdims=True)
    return np.log(np.exp(scores - top).sum(-1)) + top[..., 0] - at_label


@settings(max_examples=examples(15, 500), deadline=None)
@given(
    rows=st.lists(st.integers(0, 4), max_size=2),
    classes=st.integers(1, 40),
    dtype=st.sampled_from(sorted(_TOLERANCE)),
    label_dtype=st.sampled_from(["int8", "uint8", "int32", "int64"]),
    is_open=st.booleans(),
    from_logits=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_results_and_gradients(
    rows: list[int], classes: int, dtype: str, label_dtype: str, is_open: bool, from_logits: bool, seed: int
) -> None:
    """Gradients of first and second order are those without the pass; the loss is NumPy's in float64."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(*rows, classes)) if from_logits else rng.uniform(0.1, 1, (*rows, classes))
    scores = scores.astype(as_dtype(dtype))
    labels = rng.integers(0, classes, rows).astype(label_dtype)
    shape = [None] * len(rows) if is_open else rows
    with ab.Graph().as_default():
        x, y = ab.placeholder((*shape, classes), dtype, "x"), ab.placeholder(shape, label_dtype, "y")
        loss = ab.ops.sparse_categorical_crossentropy(y, x, from_logits=from_logits)
        (first,) = ab.gradients(ab.ops.sum(loss * loss), [x])
        (second,) = ab.gradients(ab.ops.sum(ab.ops.sin(first)), [x])
        fetches, feeds = [loss, first, second], {x: scores, y: labels}
        found, rewritten = _run(fetches, feeds)
        with without("decompose"):
            expected, none = _run(fetches, feeds)
    assert rewritten >= 2
    assert none == 0
    bound = _TOLERANCE[dtype]
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=bound, atol=bound * (1 + np.abs(other).max(initial=0)))
    exact = _reference(scores.astype("float64"), labels.astype("int64"), from_logits)
    np.testing.assert_allclose(found[0], exact, rtol=bound, atol=2 * bound * (1 + np.abs(exact).max(initial=0)))


def test_extremes() -> None:
    scores = np.array([[1000, 0], [0, -1000], [-np.inf, 0], [0, -np.inf], [np.nan, 0], [np.inf, 0]], "float32")
    labels = np.array([1, 0, 0, 0, 1, 1], "int32")
    with ab.Graph().as_default():
        x, y = ab.placeholder(scores.shape, "float32"), ab.placeholder(labels.shape, "int32")
        loss = ab.ops.sparse_categorical_crossentropy(y, x, from_logits=True)
        fetches, feeds = [loss, *ab.gradients(loss, [x])], {x: scores, y: labels}
        with np.errstate(invalid="ignore"):
            (found, gradient), rewritten = _run(fetches, feeds)
    assert rewritten == 2
    np.testing.assert_array_equal(found, [1000, 0, np.inf, 0, np.nan, np.nan])
    np.testing.assert_array_equal(gradient, [[1, -1], [0, 0], [-1, 1], [0, 0], [np.nan] * 2, [np.nan] * 2])


@pytest.mark.parametrize("wrong", [-1, 3])
@pytest.mark.parametrize("from_logits", [False, True])
def test_a_class_number_out_of_range(wrong: int, from_logits: bool) -> None:
    """The error has the line of the loss."""
    with ab.Graph().as_default(), ab.Session() as session:
        x, y = ab.placeholder((2, 3), "float32"), ab.placeholder((2,), "int64")
        loss = ab.ops.sparse_categorical_crossentropy(y, x, from_logits=from_logits)
        with pytest.raises(
            ValueError, match=rf"Class number {wrong} is out of range: the scores have 3 classes"
        ) as error:
            session.run(loss, {x: np.ones((2, 3), "float32"), y: [0, wrong]})
    assert "test_decompose.py" in "".join(error.value.__notes__)


def test_a_class_number_of_a_branch_that_is_not_taken() -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        choice, x = ab.placeholder((), "bool"), ab.placeholder((1, 3), "float32")
        y = ab.placeholder((1,), "int32")
        loss = ab.cond(
            choice, lambda: ab.ops.sum(ab.ops.sparse_categorical_crossentropy(y, x, from_logits=True)), lambda: 0.0
        )
        feeds = {x: np.zeros((1, 3), "float32"), y: [7]}
        assert session.run(loss, {choice: False, **feeds}) == 0
        with pytest.raises(ValueError, match=r"Class number 7 is out of range"):
            session.run(loss, {choice: True, **feeds})


def test_a_loss_in_each_iteration_of_a_loop() -> None:
    """The gradient is a loop again, over what the first one has saved."""
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(5, 4, 6)).astype("float32"), rng.integers(0, 6, (5, 4)).astype("int32")
    with ab.Graph().as_default():
        x, y = ab.placeholder((5, 4, 6), "float32"), ab.placeholder((5, 4), "int32")

        def body(i: Any, total: Any) -> Any:
            row = ab.ops.sparse_categorical_crossentropy(y[i], ab.ops.tanh(total) + x[i], from_logits=True)
            return i + 1, total + ab.ops.sum(row)

        _, total = ab.while_loop(lambda i, _: i < 5, body, (0, ab.ops.sum(x[0, 0, 0])))
        fetches, feeds = [total, *ab.gradients(total, [x])], {x: scores, y: labels}
        found, rewritten = _run(fetches, feeds)
        with without("decompose"):
            expected, _ = _run(fetches, feeds)
    assert rewritten
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("loops_stay", "native_whatever_the_size")
def test_a_loss_of_what_a_loop_computed_before_is_native() -> None:
    """The gradient is a native loop, too; class numbers out of range are the same error."""
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(3, 4)).astype("float32"), np.array([0, 3, 1], "int32")

    def build(x: Any, y: Any) -> list[Any]:
        def body(i: Any, x: Any) -> Any:
            loss = ab.ops.sparse_categorical_crossentropy(y, x, from_logits=True)
            return i + 1, ab.ops.tanh(x) + ab.ops.expand_dims(loss, -1)

        _, result = ab.while_loop(lambda i, _: i < 3, body, (0, x))
        return [result, *ab.gradients(ab.ops.sum(result), [x])]

    program = check(build, scores, labels, native=2)
    with pytest.raises(ValueError, match=r"Class number 4 is out of range"):
        program(scores, labels + 1)


def test_one_element_of_each_row_is_read_alone() -> None:
    """A kernel over all classes would be slower where nothing else reads the scores."""
    with ab.Graph().as_default():
        x, y = ab.placeholder((4, 6), "float32"), ab.placeholder((4,), "int32")
        chosen = apply(SelectClass(), x, y)
        feeds = {x: np.arange(24, dtype="float32").reshape(4, 6), y: [0, 1, 2, 5]}
        (found,), rewritten = _run([chosen], feeds)
    assert rewritten == 0
    np.testing.assert_array_equal(found, [0, 7, 14, 23])


def test_a_loss_and_its_gradient_are_one_kernel() -> None:
    with ab.Graph().as_default():
        x, y = ab.placeholder((8, 10), "float32", "x"), ab.placeholder((8,), "int32", "y")
        loss = ab.ops.mean(ab.ops.sparse_categorical_crossentropy(y, x, from_logits=True))
        explanation = ab.explain([loss, *ab.gradients(loss, [x])])
    assert explanation.source.count("kernel") == 1


# --- extrema --------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(15, 500), deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    axis=st.integers(-1, 2),
    keepdims=st.booleans(),
    is_least=st.booleans(),
    initial=st.sampled_from([None, 0.0, 1.0]),
    dtype=st.sampled_from(sorted(_TOLERANCE)),
    is_open=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_gradients_of_extrema(
    shape: list[int],
    axis: int,
    keepdims: bool,
    is_least: bool,
    initial: float | None,
    dtype: str,
    is_open: bool,
    seed: int,
) -> None:
    """Elements that attain an extremum share its gradient, of few values with many ties."""
    rng = np.random.default_rng(seed)
    x_value = rng.integers(-1, 3, shape).astype(as_dtype(dtype))
    axes = None if axis >= len(shape) else axis
    with ab.Graph().as_default():
        x = ab.placeholder([None, *shape[1:]] if is_open else shape, dtype, "x")
        reduce = ab.ops.min if is_least else ab.ops.max
        y = reduce(x, axes, keepdims=keepdims, initial=initial)
        (gradient,) = ab.gradients(ab.ops.sum(y * y + 3 * y), [x])
        found, rewritten = _run([gradient], {x: x_value})
        with without("decompose"):
            expected, none = _run([gradient], {x: x_value})
    assert (rewritten, none) == (1, 0)
    bound = _TOLERANCE[dtype]
    np.testing.assert_allclose(found[0], expected[0], rtol=4 * bound, atol=bound)


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_gradient_of_an_extremum_of_an_unknown_number_of_axes(name: str) -> None:
    with ab.Graph().as_default():
        x = ab.placeholder(None, "float32", "x")
        (found,) = ab.gradients(getattr(ab.ops, name)(x, axis=1), [x])
        (value,) = Program(found.graph, [found], [x])(np.array([[1, 2, 2], [0, 0, 0]], "float32"))

    third = 1 / 3
    expected = {"max": [[0, 0.5, 0.5], [third] * 3], "min": [[1, 0, 0], [third] * 3]}[name]
    np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize(("label", "known"), [("rows", "dims"), ("rows", "nothing"), ("empty", "static")])
def test_scores_at_a_class_in_branches_and_loops_where_sizes_are_unknown(label: str, known: str) -> None:
    (sample,) = (each for each in PlaceClass.samples() if each.label == label)
    assert check_control_flow(sample, known, kernels=True)


def test_the_gradient_of_an_extremum_that_is_nan_is_zero() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((2, 2), "float32", "x")
        fetches = ab.gradients(ab.ops.sum(ab.ops.max(x, 1)), [x])
        (found,), rewritten = _run(fetches, {x: np.array([[np.nan, 1], [np.inf, 2]], "float32")})
    assert rewritten == 1
    np.testing.assert_array_equal(found, [[0, 0], [1, 0]])


# --- products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_product_of_one_term_is_one_multiplication(dtype: str, transpose_a: bool, transpose_b: bool) -> None:
    rng = np.random.default_rng(0)
    column, row = rng.uniform(-1, 1, (40, 1)).astype(dtype), rng.uniform(-1, 1, (1, 30)).astype(dtype)
    with ab.Graph().as_default():
        values = [column.T if transpose_a else column, row.T if transpose_b else row]
        a, b = (ab.placeholder(value.shape, dtype) for value in values)
        product = ab.ops.tanh(apply(MatMul(transpose_a, transpose_b), a, b))
        (found,), rewritten = _run([product], {a: values[0], b: values[1]})
    assert rewritten == 1
    np.testing.assert_allclose(found, np.tanh(column.astype("float64") * row), atol=_TOLERANCE[dtype])


@pytest.mark.parametrize("shapes", [((None, 1), (1, 5)), ((3, 1), (1, None)), ((3, 2), (2, 5)), ((None, None), (1, 5))])
def test_sizes_of_products_that_are_known_at_run_time(shapes: Any) -> None:
    with ab.Graph().as_default():
        a, b = (ab.placeholder(shape, "float32") for shape in shapes)
        product = ab.ops.matmul(a, b)
        values = [np.ones([size or 1 for size in shape], "float32") * (k + 2) for k, shape in enumerate(shapes)]
        (found,), _ = _run([product], {a: values[0], b: values[1]})
    np.testing.assert_array_equal(found, values[0] @ values[1])


def test_the_gradient_of_a_layer_of_one_unit_is_part_of_what_follows() -> None:
    with ab.Graph().as_default():
        x, w = ab.placeholder((64, 48), "float32", "x"), ab.placeholder((48, 1), "float32", "w")
        loss = ab.ops.sum(ab.ops.tanh(ab.ops.tanh(x) @ w))
        explanation = ab.explain(ab.gradients(loss, [x]))
    assert explanation.source.count("@") == 1  # that of the loss itself
