"""Elementwise operations on the tiles of products: which are joined, and the values, bit by bit and against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.machine_figures import assume
from shared.symbols import symbols_of

import anabranch as ab
from anabranch.engine.codegen.elementwise import open_sizes
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import gemm_bind
from anabranch.engine.codegen.rule import fusion_rule
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.internal.fused import Fused
from anabranch.engine.ops.internal.packed import PackedMatMul
from anabranch.engine.ops.internal.product_then import ProductThen
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.ops.math.elementwise import Add, Multiply
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
pytestmark = [needs_kernels, pytest.mark.usefixtures("loops_stay")]

ops = ab.ops
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _own_graph() -> Any:
    with ab.Graph().as_default():
        yield


@pytest.fixture
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are joined with what follows."""
    assume(monkeypatch, epilogue_work=-1, epilogue_elements=0)
    monkeypatch.setattr(gemm_bind, "_LEAST_WORK", -1)


any_size = pytest.mark.usefixtures("_any_size")


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(dtype)


def feed(*shape: int, dtype: str = "float32", seed: int = 0, given: Any = None) -> tuple[Any, Array]:
    """A placeholder and its value; `given` is what is known of the shape, if that is not all."""
    return ab.placeholder(shape if given is None else given, dtype), draw(*shape, dtype=dtype, seed=seed)


def joined(targets: Sequence[Any], feeds: Sequence[Any], **options: Any) -> list[ProductThen]:
    """The products of a step that something follows."""
    step = prepare(ab.get_default_graph(), targets, feeds, rule=fusion_rule(), **options)
    found = [operation.op for operation in all_operations(step.operations)]
    return [op for op in found if isinstance(op, ProductThen)]


def names(op: ProductThen) -> list[str]:
    return [step.type_name for step, _ in op.then.steps]


def run(targets: Sequence[Any], feeds: dict[Any, Any]) -> list[Any]:
    return list(Program(ab.get_default_graph(), targets, list(feeds))(*feeds.values()))


def check(targets: Sequence[Any], feeds: dict[Any, Any], count: int = 1) -> list[Any]:
    """`count` products are joined with what follows, and every bit is that of the two kernels by themselves."""
    assert len(joined(targets, list(feeds))) == count
    found = run(targets, feeds)
    with without("epilogues"):
        assert not joined(targets, list(feeds))
        expected = run(targets, feeds)
    exact = Program(ab.get_default_graph(), targets, list(feeds), exact=True)(*feeds.values())
    for value, wanted, right in zip(found, expected, exact, strict=True):
        assert value.dtype == wanted.dtype
        assert value.shape == wanted.shape
        assert value.tobytes() == wanted.tobytes()
        tolerance = 1e-11 if right.dtype == "float64" else 1e-4
        np.testing.assert_allclose(value, right, rtol=tolerance, atol=tolerance)
    return found


# --- structure ------------------------------------------------------------------------------------------------------


def test_bias_and_activation_follow_the_product():
    (x, x_value), (w, w_value), (b, b_value) = feed(64, 256), feed(256, 192), feed(192)
    y = ops.relu(x @ w + b)
    (op,) = joined([y], [x, w, b])
    assert (op.product, op.taken, op.keeps, names(op)) == (MatMul(), 2, False, ["add", "relu"])
    (found,) = check([y], {x: x_value, w: w_value, b: b_value})
    np.testing.assert_allclose(found, np.maximum(x_value @ w_value + b_value, 0), rtol=1e-4, atol=1e-5)


def test_single_operation_follows_where_its_kernel_has_numpys_bits():
    (x, x_value), (w, w_value) = feed(64, 256), feed(256, 192)
    check([ops.relu(x @ w)], {x: x_value, w: w_value})


def test_small_products_stay():
    (x, _), (w, _) = feed(16, 16), feed(16, 16)
    y = ops.relu(x @ w + 1)
    with recording() as log:
        assert not joined([y], [x, w])
    _, kept = log.of("epilogues")
    assert [note.text for note in kept] == ["there is no kernel for it and 'relu', or none that is faster"]


def test_pass_tells_what_it_joined():
    (x, _), (w, _) = feed(64, 256), feed(256, 192)
    y = ops.tanh(x @ w * 2)
    with recording() as log:
        joined([y], [x, w])
    changes, kept = log.of("epilogues")
    assert [note.text for note in changes] == ["is computed on tiles of 'matmul': multiply, tanh"]
    assert not kept


@any_size
def test_product_that_is_needed_besides_is_an_output():
    (x, x_value), (w, w_value) = feed(9, 5), feed(5, 21)
    product = x @ w
    y = ops.tanh(product * 2)
    (op,) = joined([y, ops.sum(product)], [x, w])
    assert op.keeps
    check([y, product], {x: x_value, w: w_value})


@any_size
def test_several_results_of_several_dtypes():
    (x, x_value), (w, w_value), (r, r_value) = feed(9, 5), feed(5, 21), feed(9, 21)
    z = x @ w + r
    targets = [z > 0, ops.tanh(z), ops.cast(z * 3, "int32")]
    (op,) = joined(targets, [x, w, r])
    assert len(op.then.results) == 3
    check(targets, {x: x_value, w: w_value, r: r_value})


@any_size
def test_no_memory_for_the_product():
    (x, x_value), (w, w_value) = feed(9, 5), feed(5, 21)
    check([(x @ w + 1) > 0], {x: x_value, w: w_value}, count=0)


@any_size
def test_results_that_are_written_into_variables_stay_in_place():
    (x, x_value), (w, w_value) = feed(9, 5), feed(5, 21)
    held = ab.Variable(draw(9, 21))
    update = held.assign_sub((x @ w) * 0.5)
    with recording() as log:
        assert not joined([update.operation], [x, w])
    assert any("is written into a variable in place" in note.text for note in log.of("epilogues")[1])
    before = held.numpy()
    run([update.operation], {x: x_value, w: w_value})
    np.testing.assert_allclose(held.numpy(), before - x_value @ w_value * np.float32(0.5), rtol=1e-5, atol=1e-6)


@any_size
def test_sums_and_moved_elements_stay_by_themselves():
    (x, _), (w, _) = feed(9, 5), feed(5, 21)
    with recording() as log:
        assert not joined([ops.softmax(x @ w)], [x, w])
    assert [note.text for note in log.of("epilogues")[1]] == ["'softmax' adds up, or moves elements"]


@any_size
def test_transposed_operand_is_laid_out_by_itself():
    (x, x_value), (w, w_value), (r, r_value) = feed(9, 5), feed(5, 21), feed(21, 9)
    check([ops.tanh(x @ w + ops.transpose(r))], {x: x_value, w: w_value, r: r_value}, count=0)


@any_size
def test_broadcast_product_stays():
    (x, x_value), (w, w_value), (r, r_value) = feed(9, 5), feed(5, 21), feed(3, 9, 21)
    check([ops.tanh(x @ w + r)], {x: x_value, w: w_value, r: r_value}, count=0)


@any_size
def test_write_between_keeps_them_apart():
    """The product would have to wait behind a write of its weight, which then could not be done in place."""
    x, _ = feed(9, 5)
    w = ab.Variable(draw(5, 21))
    product = x @ w
    update = w.assign_add(w + 1)
    with ab.control_dependencies([update.operation]):
        late = w.assign_add(1.0)
    y = ops.tanh(product + late[:1])
    with recording() as log:
        assert not joined([y, update.operation], [x])
    told = [note.text for note in log.of("epilogues")[1]]
    assert any(text.startswith("variables are written before the operands of") for text in told)


@any_size
def test_product_for_which_others_wait_stays():
    """An operation that waits for the product may give an operand of the next: joined, both would wait."""
    (x, x_value), (w, w_value) = feed(9, 5), feed(5, 21)
    product = x @ w
    counter = ab.Variable(np.float32(1))
    with ab.control_dependencies([product.operation]):
        count = counter.assign_add(1.0)
    y = ops.tanh(product + count)
    assert not joined([y], [x, w])
    np.testing.assert_allclose(run([y], {x: x_value, w: w_value})[0], np.tanh(x_value @ w_value + 2), rtol=1e-5)


def test_without_kernels_and_in_exact_programs_nothing_is_joined():
    (x, _), (w, _) = feed(64, 256), feed(256, 192)
    y = ops.tanh(x @ w + 1)
    assert not joined([y], [x, w], reassociate=False)
    step = prepare(ab.get_default_graph(), [symbol_of(y)], [x, w])
    assert not any(isinstance(operation.op, ProductThen) for operation in step.operations)
    for name in ("epilogues", "fuse"):
        with without(name):
            assert not joined([y], [x, w])


@pytest.mark.parametrize(("device", "count"), [("/device:CPU:0", 1), ("/device:GPU:0", 0)])
def test_products_on_gpus_stay(device: str, count: int):
    (x, _), (w, _) = feed(64, 256), feed(256, 192)
    y = ops.tanh(x @ w + 1)
    found = joined([y], [x, w], assign=lambda operations, _: dict.fromkeys(operations, device))
    assert len(found) == count


# --- values ---------------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": ops.relu,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "gelu": ops.gelu,
    "silu": ops.silu,
    "elu": ops.elu,
}


@any_size
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients(name: str, dtype: str):
    (x, x_value), (w, w_value), (b, b_value) = (feed(*s, dtype=dtype) for s in ((11, 7), (7, 53), (53,)))
    v, v_value = feed(53, 6, dtype=dtype)
    hidden = ACTIVATIONS[name](x @ w + b)
    targets = [hidden, *ab.gradients(ops.sum(ops.tanh(hidden @ v) * 0.5), [x, w])]
    values = {x: x_value, w: w_value, b: b_value, v: v_value}
    count = len(joined(targets, list(values)))
    assert count >= 2  # the activation, and its gradient's factor
    check(targets, values, count)


@any_size
@settings(deadline=None, max_examples=examples(7, 30))
@given(
    rows=st.sampled_from([0, 1, 2, 3, 8, 17, 63]),
    terms=st.sampled_from([0, 1, 5, 48, 300]),
    columns=st.sampled_from([0, 1, 3, 4, 16, 47, 48, 49, 130]),
    transposed=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(["float32", "float64"]),
    other=st.sampled_from(["matrix", "row", "column", "wide row", "scalar", "one"]),
    is_open=st.booleans(),
)
def test_shapes(
    rows: int, terms: int, columns: int, transposed: tuple[bool, bool], dtype: str, other: str, is_open: bool
) -> None:
    with ab.Graph().as_default():
        a_shape, b_shape = (rows, terms)[:: -1 if transposed[0] else 1], (terms, columns)[:: -1 if transposed[1] else 1]
        known = (None, terms) if is_open and not transposed[0] else None
        (a, a_value), (b, b_value) = feed(*a_shape, dtype=dtype, given=known), feed(*b_shape, dtype=dtype)
        shape = {"matrix": (rows, columns), "row": (columns,), "column": (rows, 1), "wide row": (1, columns)}
        c, c_value = feed(*shape.get(other, () if other == "scalar" else (1,)), dtype=dtype)
        c_value = c_value if c_value.shape else c_value[()]
        product = ops.matmul(ops.transpose(a) if transposed[0] else a, ops.transpose(b) if transposed[1] else b)
        y = ops.tanh(product + c) * c
        feeds = {a: a_value, b: b_value, c: c_value}
        assert known is not None or len(joined([y], list(feeds))) == (rows > 0 and columns > 3 and terms != 1)
        found = run([y], feeds)[0]
        z = (a_value.T if transposed[0] else a_value) @ (b_value.T if transposed[1] else b_value)
        expected = np.tanh(z + c_value) * c_value
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4 if dtype == "float32" else 1e-11, atol=1e-5)


@any_size
def test_no_terms():
    """A product of no terms is zero, and what follows is computed on that."""
    (x, x_value), (w, w_value), (b, b_value) = feed(5, 0), feed(0, 21), feed(21)
    (found,) = check([ops.exp(x @ w + b)], {x: x_value, w: w_value, b: b_value})
    np.testing.assert_allclose(found, np.tile(np.exp(b_value), (5, 1)), rtol=1e-6)


@any_size
def test_operands_that_are_not_contiguous():
    (x, _), (w, _), (r, _) = feed(9, 5), feed(5, 21), feed(9, 21)
    views = [draw(9, 10)[:, ::2], draw(21, 5).T, draw(18, 42)[::2, ::2]]
    (found,) = run([ops.tanh(x @ w + r)], dict(zip((x, w, r), views, strict=True)))
    np.testing.assert_allclose(found, np.tanh(views[0] @ views[1] + views[2]), rtol=1e-4, atol=1e-5)


@any_size
def test_special_values_go_through():
    (x, x_value), (w, w_value) = feed(8, 4), feed(4, 20)
    x_value[0, 0], x_value[1, 1], x_value[2, 2] = np.nan, np.inf, -np.inf
    (found,) = run([ops.tanh(x @ w * 2)], {x: x_value, w: w_value})
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, np.tanh(x_value @ w_value * 2), rtol=1e-5, atol=1e-6)


@any_size
def test_product_taken_several_times():
    (x, x_value), (w, w_value) = feed(8, 4), feed(4, 20)
    z = x @ w
    check([z * z + ops.tanh(z) * x[:, :1]], {x: x_value, w: w_value})


@any_size
def test_products_that_follow_each_other():
    (x, x_value), (w, w_value) = feed(8, 20), feed(20, 20)
    h = x
    for _ in range(3):
        h = ops.tanh(h @ w + h)
    check([h], {x: x_value, w: w_value}, count=3)


@any_size
def test_two_products_of_one_sum():
    """The first product to be computed takes what follows; the other is an operand of that."""
    (x, x_value), (w, w_value), (v, v_value) = feed(8, 20), feed(20, 24), feed(20, 24, seed=1)
    with without("merge_products"):
        check([ops.tanh(x @ w + x @ v)], {x: x_value, w: w_value, v: v_value})


def test_many_parts_and_blocks_of_terms():
    """Sums that are put back into memory on the way are complete when what follows sees them."""
    (x, x_value), (w, w_value), (b, b_value) = feed(300, 700), feed(700, 530), feed(530)
    (found,) = check([ops.relu(x @ w + b) * 2], {x: x_value, w: w_value, b: b_value})
    np.testing.assert_allclose(found, np.maximum(x_value @ w_value + b_value, 0) * 2, rtol=1e-3, atol=1e-4)


# --- rows that are not known ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 3, 200])
def test_rows_known_at_run_time(rows: int):
    (x, x_value), (w, w_value), (b, b_value) = feed(rows, 128, given=(None, 128)), feed(128, 128), feed(128)
    (found,) = check([ops.relu(x @ w + b)], {x: x_value, w: w_value, b: b_value})
    np.testing.assert_allclose(found, np.maximum(x_value @ w_value + b_value, 0), rtol=1e-4, atol=1e-5)


def test_open_product_that_is_kept():
    (x, x_value), (w, w_value), (b, b_value) = feed(200, 128, given=(None, 128)), feed(128, 128), feed(128)
    product = x @ w
    check([ops.relu(product + b), ops.sum(product, 0)], {x: x_value, w: w_value, b: b_value})


def test_open_operands_that_turn_out_to_be_broadcast():
    """A product of one row and a matrix: the result is no longer of the product's shape."""
    (x, x_value), (w, w_value), (r, r_value) = feed(1, 128, given=(None, 128)), feed(128, 128), feed(300, 128)
    r = ab.placeholder((None, 128))
    y = ops.tanh(x @ w + r)
    (found,) = run([y], {x: x_value, w: w_value, r: r_value})
    np.testing.assert_allclose(found, np.tanh(x_value @ w_value + r_value), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"Shapes \[200,128\] and \[300,128\] do not broadcast"):
        run([y], {x: draw(200, 128), w: w_value, r: r_value})


def test_error_names_the_line_of_the_product():
    x, (w, w_value) = ab.placeholder((None, None)), feed(128, 256)
    product = x @ w
    y = ops.relu(product + 1)
    with pytest.raises(ValueError, match="matmul: shapes") as caught:
        run([y], {x: draw(200, 100), w: w_value})
    (note,) = caught.value.__notes__
    start = f"In operation {product.operation.name!r} (matmul); inputs: float32[200,100], float32[128,256]; defined at"
    assert note == f"{start} {product.operation.location}"


def test_many_shapes_of_one_open_product(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_sizes, "_MOST_KEYS", 2)
    x, (w, w_value) = ab.placeholder((None, 128)), feed(128, 256)
    program = Program(ab.get_default_graph(), [symbol_of(ops.relu(x @ w + 1))], [x, w])
    for rows in (100, 200, 300, 100):
        value = draw(rows, 128)
        np.testing.assert_allclose(program(value, w_value)[0], np.maximum(value @ w_value + 1, 0), rtol=1e-4, atol=1e-5)


# --- loops ----------------------------------------------------------------------------------------------------------


@any_size
def test_packed_product_in_a_loop_with_its_gradient():
    (h, h_value), (w, w_value), (b, b_value) = feed(6, 40), feed(40, 40), feed(40)
    last = ab.while_loop(lambda i, _: i < 5, lambda i, s: (i + 1, ops.tanh(s @ w + b) * 0.5 + s * 0.5), (0, h))[1]
    targets = [last, *ab.gradients(ops.sum(last**2), [h, w, b])]
    values = {h: h_value, w: w_value, b: b_value}
    assert any(isinstance(op.product, PackedMatMul) for op in joined(targets, list(values)))
    check(targets, values, len(joined(targets, list(values))))


@any_size
@pytest.mark.parametrize("rows", [0, 6, 70])
def test_packed_product_and_bias_of_rows_known_at_run_time(rows: int):
    """As an expert inside a cell has them."""
    h, (w, w_value), (b, b_value) = ab.placeholder((None, 40)), feed(40, 40), feed(40)
    last = ab.while_loop(lambda i, _: i < 5, lambda i, s: (i + 1, ops.tanh(s @ w + b)), (0, h))[1]
    values = {h: draw(rows, 40), w: w_value, b: b_value}
    assert [(type(op.product), op.taken) for op in joined([last], list(values))] == [(PackedMatMul, 3)]
    expected = values[h]
    for _ in range(5):
        expected = np.tanh(expected @ w_value + b_value)
    np.testing.assert_allclose(run([last], values)[0], expected, rtol=1e-4, atol=1e-5)


@any_size
def test_result_in_the_slot_of_an_array():
    (x, x_value), (w, w_value) = feed(5, 6, 40), feed(40, 40)

    def body(h: Any, element: Any) -> tuple[Any, Any]:
        new = ops.tanh(h @ w + element) * 0.5
        return new, new

    last, stacked = ops.scan(body, ops.zeros((6, 40)), x)
    values = {x: x_value, w: w_value}
    check([last, stacked], values, len(joined([last, stacked], list(values))))
    h, rows = np.zeros((6, 40), "float32"), list[Array]()
    for element in x_value:
        h = np.tanh(h @ w_value + element) * np.float32(0.5)
        rows.append(h)
    np.testing.assert_allclose(run([stacked], values)[0], np.stack(rows), rtol=1e-4, atol=1e-5)


# --- the operation --------------------------------------------------------------------------------------------------


def test_operation_means_the_product_and_what_follows():
    then = Fused(2, ((Add(), (0, 1)), (Multiply(), (2, 0))), (3,))
    a, b, c = draw(3, 4), draw(4, 5), draw(5)
    product = a @ b
    np.testing.assert_array_equal(ProductThen(MatMul(), 2, then).run(np, a, b, c), (product + c) * product)
    kept, result = ProductThen(MatMul(), 2, then, keeps=True).run(np, a, b, c)
    np.testing.assert_array_equal(kept, product)
    np.testing.assert_array_equal(result, (product + c) * product)


@any_size
def test_interpreter_runs_what_the_pass_made():
    (x, x_value), (w, w_value) = feed(9, 5), feed(5, 21)
    product = x @ w
    step = prepare(ab.get_default_graph(), symbols_of([ops.tanh(product * 2), product]), [x, w], rule=fusion_rule())
    feeds = dict(zip(step.feeds, (x_value, w_value), strict=True))
    y, kept = Interpreter().run(step.operations[0].graph, step.fetches, feeds)
    np.testing.assert_allclose(kept, x_value @ w_value, rtol=1e-5)
    np.testing.assert_allclose(y, np.tanh(x_value @ w_value * 2), rtol=1e-5, atol=1e-6)


def test_second_order_gradients_are_right():
    (x, x_value), (w, w_value) = feed(64, 256, dtype="float64"), feed(256, 192, dtype="float64")
    loss = ops.sum(ops.tanh(x @ w * 0.05) ** 2)
    (first,) = ab.gradients(loss, [x])
    (second,) = ab.gradients(ops.sum(first * first), [x])
    check([loss, first, second], {x: x_value, w: w_value}, len(joined([loss, first, second], [x, w])))
