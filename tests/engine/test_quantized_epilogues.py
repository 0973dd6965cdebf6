"""Biases, activations and sums on the panels of int8 products: which are joined, and the bits, by each instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.emulated_instructions import INSTRUCTIONS, emulate, use

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import quantized
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.ops.internal.laid_out_matmul import LaidOutMatMul
from anabranch.engine.ops.internal.product_then import ProductThen
from anabranch.engine.ops.neural.quantized import QuantizedMatMul, quantized_matmul
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels need llvmlite")
ops = ab.ops


@pytest.fixture(autouse=True)
def _own_graph() -> Any:
    with ab.Graph().as_default():
        yield


class Case:
    """A product of rows and a variable, by scales that are fixed or not."""

    def __init__(
        self, terms: int, columns: int, is_fixed: bool = False, seed: int = 0, rows: int | None = None
    ) -> None:
        rng = np.random.default_rng(seed)
        self.kernel = rng.choice(np.array([-128, -127, -1, 0, 1, 3, 127], "int8"), (terms, columns))
        self.scale = rng.uniform(0.5, 300, columns).astype("float32")
        self.fixed = np.float32(20) if is_fixed else None
        self.x: Any = ab.placeholder((rows, terms), "float32")
        constant = None if self.fixed is None else ab.constant(self.fixed)
        self.product = quantized_matmul(self.x, ab.Variable(self.kernel), ab.constant(self.scale), constant)

    def rows(self, count: int) -> Any:
        """Rows of which some elements are NaN and infinite."""
        rng = np.random.default_rng(count)
        x = rng.normal(size=(count, len(self.kernel))).astype("float32")
        x[rng.random(x.shape) < 0.01] = np.nan
        x[rng.random(x.shape) < 0.01] = np.inf
        return x

    def by_numpy(self, x: Any) -> Any:
        op = QuantizedMatMul(is_fixed=self.fixed is not None)
        return op.run(np, x, self.kernel, self.scale, *([] if self.fixed is None else [self.fixed]))


def joined(targets: list[Any], feeds: list[Any]) -> list[ProductThen]:
    """The products of a step that something follows."""
    step = prepare(ab.get_default_graph(), targets, feeds, rule=fusion_rule())
    return [each.op for each in all_operations(step.operations) if isinstance(each.op, ProductThen)]


def draw(*shape: int) -> Any:
    return np.random.default_rng([1, *shape]).uniform(-2, 2, shape).astype("float32")


# --- what is joined -------------------------------------------------------------------------------------------------


def test_bias_and_activation_follow_the_product():
    case = Case(40, 30)
    result: Any = ops.relu(case.product + draw(30))
    (found,) = joined([result], [case.x])
    assert isinstance(found.product, LaidOutMatMul)
    assert [step.type_name for step, _ in found.then.steps] == ["add", "relu"]


def test_layers_are_one_operation_each():
    x: Any = ab.placeholder((None, 24), "float32")
    hidden = ab.layers.Dense(40, "relu", dtype="int8_from_float32")(x)
    result: Any = ab.layers.Dense(16, "gelu", dtype="int8_from_float32")(hidden)
    assert len(joined([result], [x])) == 2


def test_product_that_is_needed_besides_stays():
    case = Case(8, 8)
    assert not joined([ops.relu(case.product), case.product], [case.x])


def test_results_of_another_dtype_or_shape_stay():
    case = Case(8, 8)
    for result in (ops.cast(case.product, "float64"), case.product > 0, case.product + draw(3, 1, 8)):
        assert not joined([result], [case.x])
    double: Any = ab.placeholder((2, 8), "float64")
    product = quantized_matmul(double, ab.constant(case.kernel), ab.constant(case.scale.astype("float64")))
    assert not joined([ops.relu(product)], [double])


# --- the bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_all_instructions_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch):
    emulate(monkeypatch)
    use(name, monkeypatch)
    for terms, columns, is_fixed, counts in (
        (1, 1, False, (1, 2)),
        (259, 130, True, (0, 1, 6, 35)),
        (65, 64, False, (3,)),
        (200, 192, False, (64, 97)),
    ):
        case, bias = Case(terms, columns, is_fixed), draw(columns)
        residual: Any = ab.placeholder((None, columns), "float32")
        result: Any = ops.relu(case.product + bias) * 0.5 + residual
        assert len(joined([result], [case.x, residual])) == 1
        session = ab.Session()
        for count in counts:
            x, other = case.rows(count), draw(count, columns)
            found = session.run(result, {case.x: x, residual: other})
            product = case.by_numpy(x) + bias
            expected = np.where(np.isnan(product), product, np.maximum(product, 0)) * np.float32(0.5) + other
            np.testing.assert_array_equal(found, expected, f"{terms, columns, count}")


@pytest.mark.parametrize("parts", [1, 2, 16])
def test_several_parts_and_blocks_of_terms(parts: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quantized, "parts_of", lambda *_: parts)
    case, bias = Case(1100, 300), draw(300)
    result: Any = case.product - bias
    for count in (1, 2, 9, 33):
        x = case.rows(count)
        np.testing.assert_array_equal(ab.Session().run(result, {case.x: x}), case.by_numpy(x) - bias)


FOLLOWERS: dict[str, Callable[[Any, Any], Any]] = {
    "a column": lambda product, other: product * other,
    "an activation": lambda product, other: ops.gelu(product + other),
    "the product twice": lambda product, other: ops.sigmoid(product) * product - other,
}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_the_bits_of_operations_by_themselves(name: str):
    case = Case(70, 90)
    column: Any = ab.placeholder((None, 1), "float32")
    result = FOLLOWERS[name](case.product, column)
    assert len(joined([result], [case.x, column])) == 1
    for count in (0, 1, 5):
        x, values = case.rows(count), draw(count, 1)
        feeds = {case.x: x, column: values}
        found = ab.Session().run(result, feeds)
        with without("epilogues"):
            assert not joined([result], [case.x, column])
            np.testing.assert_array_equal(found, ab.Session().run(result, feeds))
        single = ab.Session().run(result, {case.x: case.rows(3), column: draw(1, 1)})  # one row for all
        assert single.shape == (3, 90)


@pytest.mark.parametrize("count", [None, 5])
def test_views_do_not_leave_the_kernel(count: int | None, monkeypatch: pytest.MonkeyPatch):
    """Rows, and what is added, are copied where they are not contiguous: NumPy would take many times as long."""
    case = Case(70, 90, rows=count)
    other: Any = ab.placeholder((count, 90), "float32")
    result: Any = ops.gelu(case.product + other)
    assert len(joined([result], [case.x, other])) == 1
    session, x, values = ab.Session(), case.rows(5), draw(5, 90)
    expected = session.run(result, {case.x: x, other: values})
    monkeypatch.setattr(QuantizedMatMul, "run", lambda *_: pytest.fail("NumPy computes the product"))
    for rows, added in ((np.asfortranarray(x), values), (x, np.repeat(values, 2, axis=1)[:, ::2])):
        np.testing.assert_array_equal(session.run(result, {case.x: rows, other: added}), expected)


def test_more_rows_of_an_operand_than_of_the_product():
    case = Case(20, 12)
    other: Any = ab.placeholder((None, 12), "float32")
    result: Any = case.product + other
    x, values = case.rows(1), draw(4, 12)
    found = ab.Session().run(result, {case.x: x, other: values})
    np.testing.assert_array_equal(found, case.by_numpy(x) + values)
