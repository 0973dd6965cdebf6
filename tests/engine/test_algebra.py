"""The algebra of steps: each rule by the operations that are left and by its values, on special values bit for bit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from shared.examples import examples

import anabranch as ab
from anabranch.engine.graph import Graph, TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import only, without
from anabranch.engine.passes.rewrites import algebra, algebra_shapes
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
FLOATS = ("float16", "float32", "float64")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -3.0, np.inf, -np.inf, np.nan, 1e-7, 6e4, -5e-8]
INTEGERS = [0, 1, -1, 2, 127, -128, 100, -7, 64, 3, 5, -64]


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def special(dtype: str, shape: tuple[int, ...] = (12,)) -> Any:
    kind = np.dtype(dtype).kind
    values = SPECIAL if kind == "f" else INTEGERS
    with np.errstate(all="ignore"):
        return np.resize(np.array(values), shape).astype(dtype)[()]


def types_of(targets: Any, feeds: Any, exact: bool = True) -> Counter[str]:
    """Count the operations of each type in a step, but for placeholders and constants."""
    step = prepare(targets[0].graph, targets, feeds, reassociate=not exact)
    found = [operation.type for operation in all_operations(step.operations)]
    return Counter(name for name in found if name not in ("placeholder", "constant", "parameter"))


def same_bits(value: Any, other: Any) -> bool:
    """Test whether two values are the same, signs of zeros included; of NaN it is enough to be NaN."""
    value, other = np.asarray(value), np.asarray(other)
    if value.dtype != other.dtype or value.shape != other.shape:
        return False
    if value.dtype.kind != "f":
        return bool(np.all(value == other))
    both_nan = np.isnan(value) & np.isnan(other)
    return bool(np.all(both_nan | ((value == other) & (np.signbit(value) == np.signbit(other)))))


def agree(targets: Any, feeds: dict[Any, Any]) -> None:
    """The exact program has the interpreter's bits, with and without the rules."""
    expected = Interpreter().run(targets[0].graph, targets, feeds)
    fed = list(feeds.values())
    for value, other in zip(Program(targets[0].graph, targets, list(feeds), exact=True)(*fed), expected, strict=True):
        assert same_bits(value, other), (value, other)
    with without("simplify", "fold"):
        plain = Program(targets[0].graph, targets, list(feeds), exact=True)(*fed)
    assert all(same_bits(value, other) for value, other in zip(plain, expected, strict=True))


# --- arithmetic -----------------------------------------------------------------------------------------------------

F, INT = "float32", "int8"
# What is built of x (12 values) and y (12), the dtype, and the operations that are left.
ARITHMETIC = {
    "identity": (lambda x, y: ab.ops.stop_gradient(x) + y, F, {"add": 1}),
    "x - 0.0": (lambda x, y: x - 0.0, F, {}),
    "x - -0.0 stays": (lambda x, y: x - ab.constant(-0.0), F, {"subtract": 1}),
    "x + 0.0 stays": (lambda x, y: x + 0.0, F, {"add": 1}),
    "x + -0.0": (lambda x, y: x + ab.constant(-0.0), F, {}),
    "0 + x of integers": (lambda x, y: 0 + x, INT, {}),
    "x + zeros": (lambda x, y: x + np.zeros(12, "int8"), INT, {}),
    "x + zeros of more axes stays": (lambda x, y: x + np.zeros((2, 12), "int8"), INT, {"add": 1}),
    "x * 1": (lambda x, y: x * 1, F, {}),
    "1 * x of integers": (lambda x, y: 1 * x, INT, {}),
    "x * ones": (lambda x, y: x * np.ones((1,), "float32"), F, {}),
    "x * 0 of floats stays": (lambda x, y: x * 0, F, {"multiply": 1}),
    "x * 0 of integers": (lambda x, y: x * 0, INT, {"zeros_of_shape": 1}),
    "x / 1": (lambda x, y: x / 1, F, {}),
    "x / 4": (lambda x, y: x / 4, F, {"multiply": 1}),
    "x / -0.5": (lambda x, y: x / -0.5, F, {"multiply": 1}),
    "x / powers": (lambda x, y: x / np.resize([1, 2, 0.25], 12).astype(F), F, {"multiply": 1}),
    "x / 3 stays": (lambda x, y: x / 3, F, {"divide": 1}),
    "x / 0 stays": (lambda x, y: x / 0, F, {"divide": 1}),
    "x / inf stays": (lambda x, y: x / np.float32(np.inf), F, {"divide": 1}),
    "x / 2**127 stays": (lambda x, y: x / np.float32(2.0**127), F, {"divide": 1}),
    "-(-x)": (lambda x, y: ops.negative(-x), F, {}),
    "-(-x) of integers": (lambda x, y: ops.negative(-x), INT, {}),
    "-(-(-x))": (lambda x, y: ops.negative(ops.negative(-x)), F, {"negative": 1}),
    "not not": (lambda x, y: ops.logical_not(ops.logical_not(x > y)), F, {"greater": 1}),
    "abs(-x)": (lambda x, y: ops.abs(-x), F, {"absolute": 1}),
    "abs(-x) of integers": (lambda x, y: ops.abs(-x), INT, {"absolute": 1}),
    "abs(abs(x))": (lambda x, y: ops.abs(ops.abs(x)), F, {"absolute": 1}),
    "x - (-y)": (lambda x, y: x - (-y), F, {"add": 1}),
    "-x * -y": (lambda x, y: (-x) * (-y), F, {"multiply": 1}),
    "max(x, x)": (lambda x, y: ops.maximum(x, x), F, {}),
    "min(x, x)": (lambda x, y: ops.minimum(x, x), INT, {}),
    "x & x": (lambda x, y: ops.bitwise_and(x, x), INT, {}),
    "where(true)": (lambda x, y: ops.where(ab.constant(True), x, y), F, {}),
    "where(false)": (lambda x, y: ops.where(np.zeros(12, "bool"), x, y), F, {}),
    "where(true) broadcasts": (lambda x, y: ops.where(np.ones((2, 1), "bool"), x, y), F, {"broadcast_to_shape": 1}),
    "where(mixed) stays": (lambda x, y: ops.where(np.resize([True, False], 12), x, y), F, {"where": 1}),
    "where(c, x, x)": (lambda x, y: ops.where(y > 0, x, x), F, {}),
    "integer fourth power": (lambda x, y: x**4, INT, {"multiply": 2}),
    "integer cube": (lambda x, y: x**3, INT, {"multiply": 2}),
    "integer x**1": (lambda x, y: x**1, INT, {}),
    "float cube stays": (lambda x, y: x**3, F, {"power": 1}),
    "widened and back": (lambda x, y: ops.cast(ops.cast(x, "float64"), F), F, {}),
    "widened twice": (lambda x, y: ops.cast(ops.cast(x, "int32"), "int64"), INT, {"cast": 1}),
    "widened and narrowed": (lambda x, y: ops.cast(ops.cast(x, "int32"), "uint8"), INT, {"cast": 1}),
    "narrowed and back stays": (lambda x, y: ops.cast(ops.cast(x, "float16"), F), F, {"cast": 2}),
    "integers to floats to integers": (lambda x, y: ops.cast(ops.cast(x, F), "int8"), INT, {}),
    "through floats to others stays": (lambda x, y: ops.cast(ops.cast(x, F), "int16"), INT, {"cast": 2}),
}


@pytest.mark.parametrize("case", ARITHMETIC)
def test_arithmetic(case):
    build, dtype, left = ARITHMETIC[case]
    x, y = (ab.placeholder((12,), dtype, name) for name in "xy")
    target = build(x, y)
    assert types_of([target], [x, y]) == left
    agree([target], {x: special(dtype), y: special(dtype)[::-1].copy()})
    with only():
        assert types_of([target], [x, y]) != left or "stays" in case or case in ("x + zeros of more axes stays",)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float64"])
def test_arithmetic_of_other_dtypes(dtype: str) -> None:
    """Test that an exact rule is applied only to dtypes for which it holds: an unsigned -x wraps around."""
    x, y = (ab.placeholder((12,), dtype, name) for name in "xy")
    targets = []
    for build, _, _ in ARITHMETIC.values():
        with suppress(TypeError, OverflowError):  # some are for numbers alone, others for floats
            targets.append(ops.convert_to_tensor(build(x, y)))
    assert len(targets) > len(ARITHMETIC) / 2
    agree(targets, {x: special(dtype), y: special(dtype)[::-1].copy()})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [1, 3, 4, -1, -2, -3, 0.5, -0.5, 1.5, -1.5, 2.5, 3.5, -3.5])
def test_small_powers_of_floats_are_products_unless_every_bit_is_to_stay(exponent, dtype):
    x = ab.placeholder((12,), dtype, "x")
    target = x**exponent
    assert types_of([target], [x]) == {"power": 1}
    is_rounded_often = dtype == "float16" and exponent not in (1, 3, 4, -1)
    assert types_of([target], [x], exact=False)["power"] == is_rounded_often
    value = special(dtype)
    with np.errstate(all="ignore"):
        expected = np.power(value, np.full(value.shape, exponent, dtype))  # of one exponent 0.5 NumPy takes the root
    (found,) = Program(target.graph, [target], [x])(value)
    np.testing.assert_allclose(found, expected, rtol=4e-3 if dtype == "float16" else 1e-6)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected) | np.isnan(expected) & np.signbit(found))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_reductions_over_no_axis_are_their_operand_unless_every_bit_is_to_stay(name: str):
    x, y = ab.placeholder((), F, "x"), ab.placeholder((3,), INT, "y")
    targets = [getattr(ops, name)(x), getattr(ops, name)(x, keepdims=True), getattr(ops, name)(y, axis=())]
    is_widened = name in ("sum", "mean", "prod")  # of int8, to another dtype
    assert sum(types_of(targets, [x, y]).values()) >= 2
    assert sum(types_of(targets, [x, y], exact=False).values()) == is_widened
    agree(targets, {x: np.float32(-0.0), y: np.array([3, -4, 0], INT)})
    found = Program(x.graph, targets, [x, y])(np.float32(-0.0), np.array([3, -4, 0], INT))
    assert [np.asarray(value).tolist() for value in found] == [0.0, 0.0, [3, -4, 0]]


def test_extrema_over_no_axis_are_not_beyond_their_initial_value():
    x = ab.placeholder((3,), F, "x")
    targets = [ops.max(x, axis=(), initial=1.0), ops.min(x, axis=(), initial=1.0)]
    found = Program(x.graph, targets, [x])(np.array([0, 1, 2], F))
    assert [value.tolist() for value in found] == [[1, 1, 2], [0, 1, 1]]


def test_products_by_repeated_ones():
    """The gradient of a sum repeats a one, of many elements without making a constant of them."""
    x, row, n = (
        ab.placeholder(shape, "float32", name) for shape, name in (((30, 40), "x"), (40, "r"), ((None, 40), "n"))
    )
    weights = np.resize(special("float32"), (30, 40))
    (slope,) = ab.gradients(ops.sum(ops.sin(x) * weights), [x])
    assert types_of([slope], [x]) == {"cos": 1, "multiply": 1}
    ones, open_ones = ops.broadcast_to(ab.constant(np.float32(1)), (30, 40)), ops.broadcast_to(1.0, ops.shape(n))
    assert types_of([ones * x, x * ones], [x]) == {}
    agree([slope, ones * x, x * ones], {x: weights[::-1].copy()})
    assert types_of([row * ones], [row]) == {"multiply": 1, "broadcast_to": 1}
    assert types_of([x * ops.broadcast_to(ab.constant(np.float32(2)), (30, 40))], [x])["multiply"] == 1
    assert types_of([n * open_ones], [n])["multiply"] == 1


def test_powers_of_more_factors_stay():
    x = ab.placeholder((12,), "float32", "x")
    for exponent in (0, 0.3, 5, 4.5, -5):
        assert types_of([x**exponent], [x], exact=False)["power"] == 1


def test_scalars_and_unknown_shapes():
    x, n = ab.placeholder((), "float32", "x"), ab.placeholder((None, 3), "float32", "n")
    assert types_of([x * 1, ops.negative(-x)], [x]) == {}
    assert types_of([n * 1, n - 0.0, n * np.ones((1, 3), "float32")], [n]) == {}
    assert types_of([n * np.ones((2, 3), "float32")], [n]) == {"multiply": 1}
    unknown = ab.placeholder(None, "float32", "u")
    assert types_of([unknown * 1], [unknown]) == {}
    assert types_of([unknown * np.ones(1, "float32")], [unknown]) == {"multiply": 1}


# --- shapes ---------------------------------------------------------------------------------------------------------

A, B = (3, 4), (5, 3)
SHAPES = {
    "transposed left operand": (lambda a, b: ops.transpose(a) @ ops.transpose(b), {"matmul": 1}),
    "transposed stacks": (
        lambda a, b: ops.matmul(ops.transpose(ops.stack([a] * 2), (0, 2, 1)), ops.stack([ops.transpose(b)] * 2)),
        {"batch_matmul": 1, "stack": 2, "transpose": 1},
    ),
    "transpose twice": (lambda a, b: ops.transpose(ops.transpose(a)), {}),
    "transposes": (
        lambda a, b: ops.transpose(ops.transpose(a[None], (1, 2, 0)), (1, 0, 2)), {"expand_dims": 1, "transpose": 1}
    ),
    "transpose of nothing": (lambda a, b: ops.transpose(a, (0, 1)), {}),
    "reshape twice": (lambda a, b: ops.reshape(ops.reshape(a, (2, 6)), (12,)), {"reshape": 1}),
    "reshape and back": (lambda a, b: ops.reshape(ops.reshape(a, (-1,)), A), {}),
    "expand and squeeze": (lambda a, b: ops.squeeze(ops.expand_dims(a, 1), 1), {}),
    "expand and reshape": (lambda a, b: ops.reshape(ops.expand_dims(a, 0), (4, 3)), {"reshape": 1}),
    "new axes": (lambda a, b: a[:, None] + 1, {"expand_dims": 1, "add": 1}),
    "new axes twice": (lambda a, b: a[None][:, None] + 1, {"reshape": 1, "add": 1}),
    "new axes and back": (lambda a, b: ops.squeeze(a[:, None, :, None], (1, 3)) + 1, {"add": 1}),
    "new axes of a part stay": (lambda a, b: a[1:, None] + 1, {"get_item": 1, "add": 1}),
    "gradient of new axes": (
        lambda a, b: ab.gradients(ops.sum(ops.sin(a[:, None])), [a])[0], {"expand_dims": 1, "cos": 1, "squeeze": 1}
    ),
    "column of one": (lambda a, b: ops.expand_dims(a, 2)[:, :, 0] + 1, {"add": 1}),
    "column of one, from the end": (lambda a, b: a[:, :1][..., -1] + 1, {"get_item": 1, "squeeze": 1, "add": 1}),
    "column of several stays": (lambda a, b: a[:, :2][:, 0] + 1, {"get_item": 2, "add": 1}),
    "column of one, new axes": (
        lambda a, b: ops.exp(a[:, :1])[None, :, 0, None] + 1, {"get_item": 1, "exp": 1, "reshape": 1, "add": 1}
    ),
    "gradient of a column of one": (
        lambda a, b: ab.gradients(ops.sum(ops.sin(ops.exp(a[:, :1])[:, 0])), [a])[0],
        {"get_item": 1, "exp": 1, "squeeze": 1, "cos": 1, "expand_dims": 1, "multiply": 1, "put_item": 1},
    ),
    "gradient of a column of one, new axes": (
        lambda a, b: ab.gradients(ops.sum(ops.sin(ops.reshape(a, (1, 12))[None, 0, None])), [a])[0],
        {"reshape": 2, "cos": 1},
    ),
    "broadcast twice": (
        lambda a, b: ops.broadcast_to(ops.broadcast_to(a[:1], (3, 4)), (2, 3, 4)), {"broadcast_to": 1, "get_item": 1}
    ),
    "split of concatenated": (lambda a, b: ops.split(ops.concatenate([a, a + 1]), 2)[1], {"add": 1}),
    "split elsewhere stays": (
        lambda a, b: ops.split(ops.concatenate([a, a + 1]), 3)[1], {"add": 1, "concatenate": 1, "split": 1}
    ),
    "concatenated split": (lambda a, b: ops.concatenate(ops.split(a, 2, axis=1), axis=1), {}),
    "other order stays": (
        lambda a, b: ops.concatenate(ops.split(a, 2, axis=1)[::-1], axis=1), {"split": 1, "concatenate": 1}
    ),
    "unstacked stack": (lambda a, b: ops.unstack(ops.stack([a, a + 1], 1), axis=1)[1], {"add": 1}),
    "stacked unstack": (lambda a, b: ops.stack(ops.unstack(a, axis=1), 1), {}),
    "element of a stack": (lambda a, b: ops.stack([a, a + 1])[1], {"add": 1}),
    "element from the end": (lambda a, b: ops.stack([a, a + 1])[-1, 2], {"add": 1, "get_item": 1}),
    "slice of one part": (lambda a, b: ops.concatenate([a, a + 1])[3:6], {"add": 1}),
    "slice in one part": (lambda a, b: ops.concatenate([a, a + 1], 1)[:, 5:7], {"add": 1, "get_item": 1}),
    "row of one part": (lambda a, b: ops.concatenate([a, a + 1])[-1], {"add": 1, "get_item": 1}),
    "slice of two parts stays": (
        lambda a, b: ops.concatenate([a, a + 1])[2:4], {"add": 1, "concatenate": 1, "get_item": 1}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case):
    build, left = SHAPES[case]
    a, b = ab.placeholder(A, "float32", "a"), ab.placeholder(B, "float32", "b")
    target = build(a, b)
    assert types_of([target], [a, b]) == left
    agree([target], {a: special("float32", A), b: special("float32", B)})


def test_columns_of_one_in_batches_of_any_size():
    x = ab.placeholder((None, 1), "float32", "x")
    target = ops.sin(x[:, 0])
    (slope,) = ab.gradients(ops.sum(target), [x])
    assert types_of([target], [x]) == {"squeeze": 1, "sin": 1}
    agree([target, slope], {x: special("float32", (12, 1))})


def test_the_same_inside_a_branch_and_a_loop():
    a = ab.placeholder(A, "float32", "a")

    def body(i, m):
        part = ops.split(ops.concatenate([m, m + 1]), 2)[1]
        return i + 1, ops.transpose(ops.transpose(part)) * 1

    _, m = ab.while_loop(lambda i, m: i < 3, body, (0, a))
    y = ab.cond(ops.sum(a) > 0, lambda: ops.negative(-m), lambda: m - 0.0)
    left = types_of([y], [a])
    assert not left.keys() & {"split", "concatenate", "transpose", "multiply", "negative"}
    agree([y], {a: np.arange(12, dtype="float32").reshape(A)})


def test_the_transpose_of_a_product_is_a_product_if_nothing_else_takes_it():
    a, b = ab.placeholder(A, "float32", "a"), ab.placeholder(B, "float32", "b")
    product = b @ a
    turned = ops.transpose(product)
    assert types_of([turned], [a, b], exact=False) == {"matmul": 1}
    assert types_of([turned], [a, b]) == {"matmul": 1, "transpose": 1}
    assert types_of([turned, product], [a, b], exact=False) == {"matmul": 1, "transpose": 1}
    values = {a: np.arange(12, dtype="float32").reshape(A), b: np.arange(15, dtype="float32").reshape(B)}
    (found,) = Program(a.graph, [symbol_of(turned)], [a, b])(*values.values())
    np.testing.assert_allclose(found, (values[b] @ values[a]).T)


def test_gradients_of_transposed_weights_leave_the_loop():
    x = ab.placeholder((6, 3, 4), "float32", "x")
    w = ab.placeholder((4, 4), "float32", "w")
    _, h = ab.while_loop(
        lambda i, h: i < 6, lambda i, h: (i + 1, ops.tanh(x[i] + h @ ops.transpose(w))), (0, ops.zeros((3, 4)))
    )
    (slope,) = ab.gradients(ops.sum(h), [w])
    with recording() as log:
        prepare(w.graph, [slope], [x, w])
    assert any("after the loop" in note.text for note in log.of("fission")[0])
    rng = np.random.default_rng(0)
    fed = {x: rng.normal(size=(6, 3, 4)).astype("float32"), w: rng.normal(size=(4, 4)).astype("float32")}
    (expected,) = Interpreter().run(w.graph, [slope], fed)
    np.testing.assert_allclose(ab.Session().run(slope, fed), expected, rtol=2e-5, atol=1e-6)


def test_reshapes_that_may_fail_stay():
    n = ab.placeholder((None,), "float32", "n")
    target = ops.reshape(ops.reshape(n, (-1, 4)), (-1,))
    assert types_of([target], [n]) == {"reshape": 2}
    with pytest.raises(ValueError, match="reshape"):
        ab.Session().program(target, [n])(np.zeros(6, "float32"))


def test_shapes_that_are_known_are_computed_while_the_step_is_prepared():
    n = ab.placeholder((None, 3), "float32", "n")
    rows, size = ops.shape(n)[0], ops.size(n)
    target = ops.reshape(n, (rows * 3 // 2, 2)) * ops.cast(size, "float32")
    step = prepare(n.graph, [symbol_of(target)], [n], [TensorSpec((4, 3), n.dtype)], reassociate=False)
    assert [o.type for o in step.operations if o.type not in ("constant", "placeholder")] == ["reshape", "multiply"]
    assert step.fetches[0].shape == (6, 2)
    value = np.arange(12, dtype="float32").reshape(4, 3)
    np.testing.assert_array_equal(ab.Session().run(target, {n: value}), value.reshape(6, 2) * 12)


def test_rows_under_sizes_that_are_known_when_the_step_is_prepared_are_reshapes():
    x, w = ab.placeholder((None, None, 4), "float32", "x"), np.resize([1.5, -2], (4, 5)).astype("float32")
    target = ops.tanh(ops.matmul(x, w))
    for shape, left in (((2, 3, 4), ["reshape", "matmul", "reshape"]), ((None, 3, 4), None)):
        step = prepare(x.graph, [symbol_of(target)], [x], [TensorSpec(shape, x.dtype)], reassociate=False)
        types = [o.type for o in step.operations if o.type not in ("constant", "placeholder", "shape_of")]
        assert types == [*(left or ["flatten_rows", "matmul", "unflatten_rows"]), "tanh"]
    assert prepare(x.graph, [symbol_of(target)], [x], [TensorSpec((2, 3, 4), x.dtype)]).fetches[0].shape == (2, 3, 5)
    for shape in ((2, 3, 4), (0, 3, 4)):
        agree([target], {x: np.resize([1, 0.5, -1], shape).astype("float32")})


# --- folding --------------------------------------------------------------------------------------------------------


def test_operations_over_constants_are_computed_once():
    x = ab.placeholder((3,), "float32", "x")
    c = ops.sqrt(ops.exp(ab.constant([1.0, 2.0, 3.0])) + 1)
    assert types_of([x * c], [x]) == {"multiply": 1}
    agree([x * c], {x: np.ones(3, "float32")})
    with without("fold"):
        assert types_of([x * c], [x]) == {"multiply": 1, "sqrt": 1, "exp": 1, "add": 1}


def test_constants_are_seen_through_loops_and_branches():
    x = ab.placeholder((), "float32", "x")
    c = ab.constant(2.0)
    _, y = ab.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * ab.cond(i > 1, lambda: ops.exp(c), lambda: c)),
                         (0, x))  # fmt: skip
    assert types_of([y], [x])["exp"] == 0
    agree([y], {x: np.float32(1.5)})


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda: ops.log(ab.constant(-1.0)), "log"),  # the NaN guard reports it
        (lambda: ops.log(ab.constant([0.0, 1.0])), "log"),
        (lambda: ops.repeat(ab.constant(1.0), 1000) * 2, "multiply"),
        (lambda: ops.broadcast_to(ab.constant(2.0), (30,)), "broadcast_to"),
        (lambda: ab.random.normal((2,)) * 2, "multiply"),
    ],
    ids=["NaN", "infinity", "large", "filled", "random"],
)
def test_what_is_not_folded(build, kind):
    target = build()
    left = types_of([target], [])
    assert left[kind] == 1


def test_errors_stay_at_run_time_and_in_their_branch():
    x = ab.placeholder((), "float32", "x")
    index = ab.constant(5) + 0
    y = ab.cond(x > 0, lambda: ops.take(ab.constant([1.0, 2.0]), index), lambda: x)
    program = ab.Session().program(y, [x])
    assert program(np.float32(-1)) == (-1,)
    with pytest.raises((IndexError, ValueError)):
        program(np.float32(1))


def test_what_is_fed_is_not_folded():
    c = ab.constant(2.0)
    y = ops.exp(c)
    assert ab.Session().run(y, {c: 0.0}) == 1.0


# --- common subexpressions ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("loops_stay")
def test_a_loop_takes_what_is_computed_outside_already():
    x = ab.placeholder((3,), "float32", "x")
    outside = ops.exp(x)
    _, y = ab.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * ops.exp(x)), (0, outside))
    assert types_of([y], [x])["exp"] == 1
    agree([y], {x: np.linspace(-1, 1, 3, dtype="float32")})
    with without("cse", "invariants"):
        assert types_of([y], [x])["exp"] == 2


def test_a_branch_computes_by_itself_what_another_one_does():
    x = ab.placeholder((3,), "float32", "x")
    late = ops.exp(x)
    y = ab.cond(x[0] > 0, lambda: late, lambda: x) + ab.cond(x[1] > 0, lambda: ops.exp(x), lambda: x)
    assert types_of([y], [x])["exp"] == 2
    agree([y], {x: np.ones(3, "float32")})


# --- all rules together ---------------------------------------------------------------------------------------------


def _unary(build):
    return lambda stack: stack.append(build(stack.pop()))


def _binary(build):
    return lambda stack: stack.append(build(stack.pop(), stack[-1]))


STEPS = {
    "F": [
        *[_unary(lambda x, c=c: x * c) for c in (1.0, 0.0, -1.0)],
        *[_unary(lambda x, c=c: x + c) for c in (0.0, -0.0)],
        *[_unary(lambda x, c=c: x - c) for c in (0.0, -0.0)],
        *[_unary(lambda x, c=c: x / c) for c in (1.0, 8.0, -0.25, 3.0, 0.0)],
        _unary(lambda x: -x), _unary(lambda x: ops.abs(x)), _unary(lambda x: ops.transpose(x)),
        _unary(lambda x: ops.reshape(x, (2, 6))), _unary(lambda x: ops.reshape(x, (12,))),
        _unary(lambda x: ops.where(x > 0, x, x)), _unary(lambda x: ops.cast(ops.cast(x, "float64"), x.dtype)),
        _unary(lambda x: ops.concatenate(ops.split(x, 2))), _unary(lambda x: x**2),
    ],
    "I": [
        *[_unary(lambda x, c=c: x * c) for c in (0, 1, -1)],
        *[_unary(lambda x, c=c: x + c) for c in (0, 3)],
        _unary(lambda x: -x), _unary(lambda x: ops.abs(x)), _unary(lambda x: x**3), _unary(lambda x: ops.transpose(x)),
        _unary(lambda x: ops.cast(ops.cast(x, "int64"), x.dtype)), _unary(lambda x: ops.bitwise_and(x, x)),
    ],
    "2": [
        _binary(lambda x, y: x - (-ops.reshape(y, x.shape))), _binary(lambda x, y: (-x) * -ops.reshape(y, x.shape)),
        _binary(lambda x, y: ops.maximum(x, ops.reshape(y, x.shape))),
        _binary(lambda x, y: ops.stack([x, ops.reshape(y, x.shape)])[0]),
    ],
}  # fmt: skip


@settings(max_examples=examples(15, 60), deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([*FLOATS, "int8", "int32"]))
def test_random_chains_keep_every_bit(data, dtype):
    with Graph().as_default():
        x, y = (ab.placeholder((12,), dtype, name) for name in "xy")
        stack = [y, x]
        steps = [*STEPS["F" if np.dtype(dtype).kind == "f" else "I"], *STEPS["2"]]
        for step in data.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=8)):
            step(stack)
        agree([stack[-1]], {x: special(dtype), y: special(dtype)[::-1].copy()})


def test_every_rule_has_a_name_of_its_own():
    rules = [*algebra.RULES, *algebra_shapes.RULES]
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.pattern.kinds for rule in rules)
    assert {rule.name for rule in rules if not rule.is_exact} == {
        "single rows put in their places",
        "powers of floats by roots and quotients",
        "reductions over no axis",
        "small powers of floats as products",
        "sums of transposes",
        "transposes of products",
        "x ** -1 as 1 / x",
    }


@settings(max_examples=examples(25, 300), deadline=None)
@given(st.permutations(range(3)), st.sets(st.integers(0, 2), max_size=2), st.booleans(), st.booleans())
def test_sums_of_transposes(order: list[int], axes: set[int], is_bias: bool, is_open: bool):
    """Sums, and gradients of what was broadcast along the first axes, of transposes of known and of open sizes."""
    values = np.random.default_rng(0).normal(size=(2, 3, 4))
    with Graph().as_default():
        x = ab.placeholder((None, 3, 4) if is_open else values.shape, "float64", "x")
        turned = ops.transpose(x, order)
        if is_bias:
            b = ab.Variable(np.zeros(values.transpose(order).shape[len(axes) :]), name="b")
            summed = ab.gradients(ops.sum(turned * b), b)[0]
            wanted = values.transpose(order).sum(axis=tuple(range(len(axes))))
        else:
            summed = ops.sum(turned, axis=tuple(axes))
            wanted = values.transpose(order).sum(axis=tuple(axes))
        with ab.Session() as session:
            np.testing.assert_allclose(session.run(summed, {x: values}), wanted, rtol=1e-12)
