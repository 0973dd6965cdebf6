"""Products of more than two axes: values for all forms and layouts, which kernels compute them, and where none does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.host.refits import refits
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.llvm.registers import Registers
from anabranch.engine.codegen.matmul import gemm_batch_bind
from anabranch.engine.codegen.matmul.gemm_batch import FIELDS, BatchForm, best_tile, print_batch
from anabranch.engine.codegen.matmul.gemm_batch_bind import bind_batch, product_of
from anabranch.engine.codegen.matmul.gemm_strides import Axis, strided_product
from anabranch.engine.graph import TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import Op, apply
from anabranch.engine.ops.linear_algebra.einsum import Contraction
from anabranch.engine.ops.linear_algebra.products import BatchMatMul, MatMul
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.runtime.program import Program

needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")
TOLERANCES = {"float32": 2e-5, "float64": 1e-13}
FORMS = [(False, False), (False, True), (True, False), (True, True)]


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def computed(op: Op, *arrays: Any) -> Any:
    """By the kernel that a program would use; None where it would use NumPy."""
    inputs = [ab.placeholder(array.shape, array.dtype) for array in arrays]
    output = apply(op, *inputs)
    kernel = bind_batch(symbol_of(output).operation)
    if kernel is None:
        return None
    kernel.compiled()
    result = np.full(op.run(np, *map(np.zeros_like, arrays)).shape, np.nan, arrays[0].dtype)
    if kernel.call(*arrays, result):
        kernel.refit(arrays, (result,))
    return result


def check(op: Op, *arrays: Any) -> None:
    """The kernel gives what NumPy gives in float64."""
    found = computed(op, *arrays)
    assert found is not None
    wanted = op.run(np, *[array.astype("float64") for array in arrays])
    terms = max(array.size for array in arrays) ** 0.5
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCES[arrays[0].dtype.name] * terms)


def check_in_place(op: Op, *arrays: Any) -> None:
    """The same, of operands that are not contiguous, and are not copied."""
    assert not all(array.flags.c_contiguous for array in arrays)
    before = refits.count
    check(op, *arrays)
    assert refits.count == before


def source_of(fetches: list[Any], feeds: list[Any], **options: Any) -> str:
    return Program(ab.get_default_graph(), fetches, feeds, **options).source


# --- values ---------------------------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), FORMS)
@pytest.mark.parametrize(
    ("rows", "columns", "terms"),
    [(3, 3, 3), (17, 33, 5), (2, 5, 20), (40, 1, 20), (1, 1, 9), (25, 20, 600)],
)
def test_values(dtype: str, transpose_a: bool, transpose_b: bool, rows: int, columns: int, terms: int):
    count = 4096 // (rows * columns * terms) + 2
    a = draw(count, 2, *((terms, rows) if transpose_a else (rows, terms)), dtype=dtype)
    b = draw(count, 2, *((columns, terms) if transpose_b else (terms, columns)), dtype=dtype, seed=1)
    check(BatchMatMul(transpose_a, transpose_b), a, b)


@needs_kernels
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    st.tuples(*[st.integers(1, 40)] * 3), st.sampled_from(FORMS), st.sampled_from(["float32", "float64"]),
    st.sampled_from([((6,), (6,)), ((6,), (1,)), ((1, 3), (4, 1)), ((3,), (2, 3)), ((2, 3), ()), ((), (5,))]),
)  # fmt: skip
def test_values_for_any_sizes(
    sizes: tuple[int, int, int], form: tuple[bool, bool], dtype: str, batch: tuple[tuple[int, ...], tuple[int, ...]]
):
    rows, columns, terms = sizes
    a = draw(*batch[0], *((terms, rows) if form[0] else (rows, terms)), dtype=dtype)
    b = draw(*batch[1], *((columns, terms) if form[1] else (terms, columns)), dtype=dtype, seed=1)
    if computed(BatchMatMul(*form), a, b) is not None:
        check(BatchMatMul(*form), a, b)


CONTRACTIONS = [("btnh", "bsnh", "bnts"), ("bnts", "bsnh", "btnh"), ("bnts", "btnh", "bsnh")]
SIZES = {"b": 2, "n": 3, "t": 19, "s": 21, "h": 16}


def columns_of_wider(axes: str, seed: int = 0) -> Any:
    """An array whose rows are some columns of a wider matrix, as the parts of a projection are."""
    *outer, heads, size = [SIZES[axis] for axis in axes]
    wide = draw(*outer, 3 * heads * size, seed=seed)
    return wide[..., heads * size : 2 * heads * size].reshape(*outer, heads, size)


@needs_kernels
@pytest.mark.parametrize(("a", "b", "out"), CONTRACTIONS)
@pytest.mark.parametrize("which", ["first", "second", "both"])
def test_columns_of_a_wider_matrix_are_read_in_place(a: str, b: str, out: str, which: str):
    shapes = [[SIZES[axis] for axis in axes] for axes in (a, b)]
    first = columns_of_wider(a) if which != "second" else draw(*shapes[0])
    second = columns_of_wider(b, seed=1) if which != "first" else draw(*shapes[1], seed=1)
    check_in_place(Contraction(a, b, out), first, second)


@needs_kernels
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stacks_whose_axes_were_exchanged_are_read_in_place(form: tuple[bool, bool], dtype: str):
    a = draw(4, *((20, 6, 18) if form[0] else (18, 6, 20)), dtype=dtype).swapaxes(1, 2)
    b = draw(4, *((24, 6, 20) if form[1] else (20, 6, 24)), dtype=dtype, seed=1).swapaxes(1, 2)
    check_in_place(BatchMatMul(*form), a, b)


@needs_kernels
def test_large_products_read_views_in_place():
    a, b = draw(2, 300, 3, 64).swapaxes(1, 2), draw(2, 64, 3, 1100, seed=1).swapaxes(1, 2)
    check_in_place(BatchMatMul(False, False), a, b)
    check_in_place(BatchMatMul(True, False), b.swapaxes(2, 3)[..., :64].swapaxes(2, 3), b)


@needs_kernels
@pytest.mark.parametrize("place", ["every other", "backward", "repeated", "no axis in one piece"])
def test_views_that_no_kernel_reads_are_copied(place: str):
    b = draw(4, 20, 24, seed=1)
    a = {
        "every other": lambda: draw(4, 18, 40)[..., ::2],
        "backward": lambda: draw(4, 18, 20)[..., ::-1],
        "repeated": lambda: np.broadcast_to(draw(18, 20), (4, 18, 20)),
        "no axis in one piece": lambda: draw(18, 20, 4).transpose(2, 0, 1),
    }[place]()
    before = refits.count
    check(BatchMatMul(False, False), a, b)
    assert refits.count > before


@needs_kernels
@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.permutations(range(4)), st.permutations(range(4)), st.sampled_from(CONTRACTIONS), st.integers(0, 3))
def test_values_for_views_of_any_order(
    order: list[int], other: list[int], labels: tuple[str, str, str], wider: int
) -> None:
    def view(axes: str, order: list[int], seed: int) -> Any:
        shape = [SIZES[axes[place]] for place in order]
        shape[wider] += 3
        return draw(*shape, seed=seed)[tuple(slice(SIZES[axes[place]]) for place in order)].transpose(np.argsort(order))

    check(Contraction(*labels), view(labels[0], order, 0), view(labels[1], other, 1))


@needs_kernels
def test_layouts_may_change_from_call_to_call():
    a, b = draw(6, 20, 32), draw(6, 32, 24, seed=1)
    inputs = [ab.placeholder(array.shape, array.dtype) for array in (a, b)]
    kernel = bind_batch(symbol_of(apply(BatchMatMul(), *inputs)).operation)
    assert kernel is not None
    kernel.compiled()
    wider = np.concatenate([a, a], axis=-1)[..., :32]
    turned = np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1)
    backwards = np.ascontiguousarray(a[::-1])[::-1]
    for own in (wider, turned, wider, backwards, wider, turned, turned, a):
        result = np.full((6, 20, 24), np.nan, "float32")
        if kernel.call(own, b, result):
            kernel.refit((own, b), (result,))
        np.testing.assert_allclose(result, a @ b, atol=1e-4)


@needs_kernels
def test_attention_of_parts_of_a_projection_copies_nothing():
    with ab.Graph().as_default() as graph:
        x, w = ab.placeholder((2, 64, 24)), ab.placeholder((24, 96))
        q, k, v = [ops.reshape(part, (2, 64, 2, 16)) for part in ops.split(x @ w, 3, axis=-1)]
        y = ops.dot_product_attention(q, k, v)
        program = Program(graph, [symbol_of(y)], [x, w])
    assert program.source.count("contraction") > 1
    before = refits.count
    program(draw(2, 64, 24), draw(24, 96, seed=1))
    assert refits.count == before


@needs_kernels
@pytest.mark.parametrize(
    ("a", "b", "out", "shapes"),
    [
        ("btnh", "bsnh", "bnts", ((2, 9, 3, 16), (2, 11, 3, 16))),
        ("bnts", "bsnh", "btnh", ((2, 3, 9, 11), (2, 11, 3, 16))),
        ("bnts", "btnh", "bsnh", ((2, 3, 9, 11), (2, 9, 3, 16))),
        ("btkgh", "bskh", "bkgts", ((2, 9, 2, 3, 16), (2, 11, 2, 16))),
        ("abc", "chd", "abhd", ((4, 8, 32), (32, 3, 8))),
        ("abc", "cd", "dab", ((4, 8, 32), (32, 8))),
        ("eck", "ekf", "cef", ((5, 6, 32), (5, 32, 7))),
        ("ba", "bc", "ac", ((40, 16), (40, 16))),
        ("ij", "kj", "ijk", ((30, 16), (12, 16))),
    ],
)
def test_contractions_read_operands_where_they_lie(
    a: str, b: str, out: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
):
    check(Contraction(a, b, out), draw(*shapes[0]), draw(*shapes[1], seed=1))


@needs_kernels
@pytest.mark.parametrize(
    ("op", "shape_a", "shape_b"),
    [
        (BatchMatMul(), (2, 64, 600), (2, 600, 64)),
        (BatchMatMul(True, True), (5, 600, 16), (5, 20, 600)),
        (BatchMatMul(), (4, 70, 256), (1, 256, 256)),
        (BatchMatMul(), (1, 200, 256), (1, 256, 256)),
        (Contraction("abc", "cbd", "dba"), (8, 6, 600), (600, 6, 24)),
    ],
)
def test_large_products(op: Op, shape_a: tuple[int, ...], shape_b: tuple[int, ...]):
    check(op, draw(*shape_a), draw(*shape_b, seed=1))


@needs_kernels
def test_rows_of_few_products_are_dealt_out():
    check(BatchMatMul(), draw(2, 3001, 16), draw(2, 16, 16, seed=1))
    check(BatchMatMul(False, True), draw(1, 3001, 16), draw(3, 17, 16, seed=1))


@needs_kernels
def test_nan_and_infinities_are_kept():
    a, b = draw(20, 9, 17), draw(20, 17, 19, seed=1)
    a[3, 2, 5], b[4, 1, 18], a[5, 0, 16] = np.nan, np.nan, np.inf
    with np.errstate(invalid="ignore"):
        wanted = a @ b
    found = computed(BatchMatMul(), a, b)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))


@needs_kernels
def test_nothing_is_written_or_read_beyond_operands():
    """Memory behind rows that are not whole vectors stays as it is, and a NaN there counts for nothing."""
    room = np.full((3, 600), np.nan, "float32")
    a, b = room[0, :500].reshape(20, 5, 5), room[1, :500].reshape(20, 5, 5)
    a[...], b[...] = draw(20, 5, 5), draw(20, 5, 5, seed=1)
    inputs = [ab.placeholder((40, 5, 5)) for _ in range(2)]
    kernel = bind_batch(symbol_of(apply(BatchMatMul(), *inputs)).operation)
    assert kernel is not None
    kernel.compiled()
    out = np.full(1100, np.nan, "float32")
    twice = [np.concatenate([array, array]) for array in (a, b)]
    assert not kernel.call(*twice, out[:1000].reshape(40, 5, 5))
    np.testing.assert_allclose(out[:500].reshape(20, 5, 5), a @ b, atol=1e-5)
    assert np.all(np.isnan(out[1000:]))


@needs_kernels
def test_operands_that_do_not_lie_in_order_are_laid_out():
    a, b = draw(16, 20, 16)[:, ::2], draw(16, 16, 16, seed=1).swapaxes(1, 2)
    check(BatchMatMul(), a, b)
    unaligned = np.empty(16 * 256 * 4 + 1, "uint8")[1:].view("float32").reshape(16, 16, 16)
    unaligned[...] = b
    check(BatchMatMul(), a, unaligned)


# --- which products -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "specs"),
    [
        (BatchMatMul(), [((0, 20, 20), "float32"), ((0, 20, 20), "float32")]),
        (BatchMatMul(), [((20, 20, 0), "float32"), ((20, 0, 20), "float32")]),
        (BatchMatMul(), [((2, 3, 3), "float32"), ((2, 3, 3), "float32")]),
        (BatchMatMul(), [((20, 20, 20), "int32"), ((20, 20, 20), "int32")]),
        (BatchMatMul(), [((20, 20, 20), "complex64"), ((20, 20, 20), "complex64")]),
        (BatchMatMul(), [((None, 20, 20), "float32"), ((None, 20, 20), "float32")]),
        (Contraction("ijb", "jkb", "ikb"), [((20, 20, 20), "float32"), ((20, 20, 20), "float32")]),
        (Contraction("ibj", "jkb", "bik"), [((20, 20, 20), "float32"), ((20, 20, 20), "float32")]),
    ],
    ids=["no products", "no terms", "little work", "integers", "complex", "unknown", "scattered", "scattered columns"],
)
def test_what_numpy_computes(op: Op, specs: list[tuple[Any, str]]):
    inputs = [ab.placeholder(shape, dtype) for shape, dtype in specs]
    output = apply(op, *inputs)
    assert bind_batch(symbol_of(output).operation) is None
    arrays = [np.ones([20 if dim is None else dim for dim in shape], dtype) for shape, dtype in specs]
    found = ab.Session().run(output, dict(zip(inputs, arrays, strict=True)))
    np.testing.assert_allclose(found, op.run(np, *arrays))


@needs_kernels
def test_programs_use_kernels_but_exact_ones():
    a, b = ab.placeholder((16, 20, 20)), ab.placeholder((16, 20, 20))
    y = ops.matmul(a, b)
    assert "kernel(" in source_of([y], [a, b])
    exact = Program(ab.get_default_graph(), [symbol_of(y)], [a, b], exact=True)
    assert "kernel(" not in exact.source
    feeds = {a: draw(16, 20, 20), b: draw(16, 20, 20, seed=1)}
    np.testing.assert_array_equal(exact(*feeds.values())[0], feeds[a] @ feeds[b])


def parts_of(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> int:
    """Return into how many parts a product of stacks is cut."""
    op, dtype = BatchMatMul(), np.dtype("float32")
    specs = [TensorSpec(shape_a, dtype), TensorSpec(shape_b, dtype), TensorSpec((*shape_a[:-1], shape_b[-1]), dtype)]
    product = product_of(op, specs)
    assert product is not None
    found = gemm_batch_bind._small(product, "float32")  # pyright: ignore[reportPrivateUsage]
    assert found is not None
    return found[1 + FIELDS.index("parts")]


@needs_kernels
def test_parts_depend_on_sizes_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANABRANCH_NUM_THREADS", "1")
    alone = parts_of((64, 64, 64), (64, 64, 64))
    assert alone > 1
    monkeypatch.setenv("ANABRANCH_NUM_THREADS", "7")
    assert parts_of((64, 64, 64), (64, 64, 64)) == alone


@needs_kernels
def test_products_of_few_rows_are_dealt_out_by_what_they_read():
    assert parts_of((32, 1, 64), (32, 64, 64)) > 1  # one query of attention for each head: 131,072 multiplications
    assert parts_of((4, 1, 64), (4, 64, 64)) == 1
    assert parts_of((2, 32, 32), (2, 32, 64)) == 1


@pytest.mark.parametrize(("rows", "columns", "terms"), [(64, 64, 64), (700, 33, 17), (16, 300, 700), (1, 64, 64)])
@pytest.mark.usefixtures("no_compiler")
def test_numpy_computes_them_without_kernels(rows: int, columns: int, terms: int):
    a, b = ab.placeholder((8, rows, terms)), ab.placeholder((8, columns, terms))
    feeds = {a: draw(8, rows, terms), b: draw(8, columns, terms, seed=1)}
    y = ops.matmul(a, ops.swapaxes(b, 1, 2))
    assert "kernel(" not in source_of([y], [a, b])
    np.testing.assert_allclose(ab.Session().run(y, feeds), feeds[a] @ feeds[b].swapaxes(1, 2), atol=1e-4)


# --- layouts --------------------------------------------------------------------------------------------------------


def test_axes_are_joined_where_they_lie_next_to_each_other():
    found = strided_product(("abij", "abjk", "abik"), ((2, 3, 4, 5), (2, 3, 5, 6), (2, 3, 4, 6)))
    assert found is not None
    assert found.axes == (Axis(6, 20, 30, 24),)
    assert (found.rows, found.columns, found.terms) == (Axis(4, 5, 0, 6), Axis(6, 0, 1, 1), Axis(5, 1, 6, 0))


def test_a_result_that_lies_in_columns_swaps_the_operands():
    found = strided_product(("ij", "jk", "ki"), ((4, 5), (5, 6), (6, 4)))
    assert found is None or found.is_swapped
    found = strided_product(("ij", "kj", "ki"), ((4, 5), (6, 5), (6, 4)))
    assert found is not None
    assert found.is_swapped
    assert (found.rows, found.columns) == (Axis(6, 5, 0, 4), Axis(4, 0, 5, 1))


def test_axes_of_one_operand_that_do_not_join_count_products():
    found = strided_product(("aib", "bk", "iak"), ((3, 4, 5), (5, 6), (4, 3, 6)))
    assert found is not None
    assert found.count == 3
    assert found.rows.size == 4


@pytest.mark.parametrize("registers", [Registers(8, 12, 16), Registers(4, 24), Registers(16, 26)])
@pytest.mark.parametrize(("rows", "vectors"), [(1, 1), (3, 1), (64, 4), (128, 4), (17, 3), (100, 7)])
def test_tiles_fit_into_registers(registers: Registers, rows: int, vectors: int):
    """A row of vectors, and the number that multiplies it, are in registers beside the sums."""
    height, width = best_tile(rows, vectors, registers)
    assert 1 <= height <= rows
    assert 1 <= width <= vectors
    assert height * width <= registers.sums
    assert height * width + width + 1 <= registers.count


@needs_kernels
@pytest.mark.parametrize("lanes", [2, 4, 8])
@pytest.mark.parametrize("b", [(9, 1), (1, 30)])
def test_code_for_other_hosts_compiles(lanes: int, b: tuple[int, int]):
    form = BatchForm("double", Registers(lanes, 12, 16), 5, 9, 30, (30, 1), b, 9, 2, True)
    engine = library.load(repr(form), lambda: print_batch(form, "other"))
    assert engine.get_function_address("other")


# --- structure ------------------------------------------------------------------------------------------------------


def heads(x: Any, count: int) -> Any:
    batch, length, width = x.shape
    return ops.transpose(ops.reshape(x, (batch, length, count, width // count)), (0, 2, 1, 3))


def attention(query: Any, key: Any, value: Any) -> Any:
    """By hand, over heads in an axis of their own."""
    q, k, v = (heads(x, 2) for x in (query, key, value))
    weights = ops.softmax(ops.matmul(q, ops.swapaxes(k, -1, -2)) / 4.0)
    joined = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
    return ops.reshape(joined, query.shape)


@needs_kernels
def test_attention_and_its_gradient_transpose_nothing():
    inputs = [ab.placeholder((3, 16, 32)) for _ in range(3)]
    y = attention(*inputs)
    fetches = [y, *ab.gradients(ops.sum(ops.tanh(y)), inputs)]
    source = source_of(fetches, inputs)
    assert ".transpose(" not in source
    assert ".swapaxes(" not in source
    assert "run_contraction" not in source
    arrays = [draw(3, 16, 32, seed=k) for k in range(3)]
    found = Program(ab.get_default_graph(), fetches, inputs)(*arrays)
    wanted = Program(ab.get_default_graph(), fetches, inputs, exact=True)(*arrays)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "op"),
    [
        ("abc,cd->abd", ((2, 3, 4), (4, 5)), MatMul()),
        ("abc,dc->abd", ((2, 3, 4), (5, 4)), MatMul(False, True)),
        ("cab,cd->abd", ((4, 2, 3), (4, 5)), Contraction("cab", "cd", "abd")),
        ("ij,kj->ki", ((3, 4), (5, 4)), MatMul(False, True)),
        ("abc,bcd->ad", ((2, 3, 4), (3, 4, 5)), MatMul()),
        ("abc,cbd->ad", ((2, 3, 4), (4, 3, 5)), Contraction("abc", "cbd", "ad")),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), Contraction("bij", "bjk", "bik")),
    ],
)
def test_einsum_of_matrices_is_a_product_of_matrices(
    subscripts: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], op: Op
):
    inputs = [ab.placeholder(shape) for shape in shapes]
    y = symbol_of(ops.einsum(subscripts, *inputs))
    program = Program(ab.get_default_graph(), [y], inputs)
    step = prepare(y.graph, [y], inputs, reassociate=True)
    assert [o.op for o in step.operations if isinstance(o.op, (MatMul, Contraction))] == [op]
    arrays = [draw(*shape, seed=k) for k, shape in enumerate(shapes)]
    np.testing.assert_allclose(program(*arrays)[0], np.einsum(subscripts, *arrays), atol=1e-5)


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1), (2, 1, 0)])
def test_transposes_of_operands_and_results_keep_values(axes: tuple[int, int, int]):
    a, b = ab.placeholder((4, 4, 4)), ab.placeholder((4, 4, 4))
    y = ops.transpose(ops.matmul(ops.transpose(a, axes), ops.transpose(b, axes)), axes)
    arrays = [draw(4, 4, 4), draw(4, 4, 4, seed=1)]
    found = ab.Session().run(y, dict(zip((a, b), arrays, strict=True)))
    wanted = (arrays[0].transpose(axes) @ arrays[1].transpose(axes)).transpose(axes)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_product_that_is_wanted_as_it_is_keeps_its_transpose():
    a, b = ab.placeholder((4, 5, 6)), ab.placeholder((4, 6, 7))
    y = ops.matmul(a, b)
    source = source_of([y, ops.transpose(y, (1, 0, 2))], [a, b])
    assert ".transpose(" in source


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_hand", [True, False])
def test_second_order_gradients_through_attention(by_hand: bool):
    shape = (2, 16, 16) if by_hand else (2, 16, 2, 8)
    inputs = [ab.placeholder(shape, "float64") for _ in range(3)]
    query, key, value = inputs
    y = attention(query, key, value) if by_hand else ops.dot_product_attention(query, key, value)
    first = ab.gradients(ops.sum(ops.tanh(y)), inputs)
    score = sum(ops.sum(ops.sin(g)) for g in first)
    second = ab.gradients(score, inputs)
    arrays = [draw(*shape, dtype="float64", seed=k) for k in range(3)]
    session = ab.Session()
    found = session.run([score, *second], dict(zip(inputs, arrays, strict=True)))
    for place in range(3):
        direction = draw(*shape, dtype="float64", seed=9)
        ends: list[Any] = []
        for step in (1e-5, -1e-5):
            moved = [array + step * direction * (k == place) for k, array in enumerate(arrays)]
            ends.append(session.run(score, dict(zip(inputs, moved, strict=True))))
        wanted = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(np.sum(found[1 + place] * direction), wanted, rtol=1e-5, atol=1e-8)


# --- loops ----------------------------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "subscripts", ["bij,bjk->bik", "bij,bkj->bik", "bji,bjk->bki", "bij,jk->bik", "bij,abk->bka", "bij,bij->bij"]
)
def test_a_small_loop_with_products_is_one_function(dtype: str, subscripts: str):
    """Products of stacks in a loop of little work, whatever order their axes are in."""
    left, right = subscripts.split("->")[0].split(",")
    sizes = dict(zip("abijk", (3, 3, 3, 3, 3), strict=True))
    x_shape, w_shape = ([sizes[label] for label in own] for own in (left, right))
    x, w = ab.placeholder(x_shape, dtype), ab.placeholder(w_shape, dtype)
    n = ab.placeholder((), "int32")
    _, y = ab.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, ops.tanh(ops.einsum(subscripts, y, w)) + x), (0, x))
    program = Program(ab.get_default_graph(), [y], [x, w, n])
    assert "# native: " in program.source
    a, b = draw(*x_shape, dtype=dtype), draw(*w_shape, dtype=dtype, seed=1)
    wanted = a.astype("float64")
    for _ in range(5):
        wanted = np.tanh(np.einsum(subscripts, wanted, b)) + a
    np.testing.assert_allclose(program(a, b, np.int32(5))[0], wanted, atol=1e-4 if dtype == "float32" else 1e-9)


@needs_kernels
@pytest.mark.parametrize(("transpose_a", "transpose_b"), FORMS)
def test_a_small_loop_with_broadcast_stacks_is_one_function(transpose_a: bool, transpose_b: bool):
    x, w, n = ab.placeholder((2, 3, 4, 4)), ab.placeholder((1, 3, 4, 4)), ab.placeholder((), "int32")
    op = BatchMatMul(transpose_a, transpose_b)
    _, y = ab.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, ops.tanh(apply(op, y, w)) + x), (0, x))
    program = Program(ab.get_default_graph(), [y], [x, w, n])
    assert "# native: " in program.source
    a, b = draw(2, 3, 4, 4), draw(1, 3, 4, 4, seed=1)
    wanted = a
    for _ in range(5):
        wanted = np.tanh(op.run(np, wanted, b)) + a
    np.testing.assert_allclose(program(a, b, np.int32(5))[0], wanted, atol=1e-5)
