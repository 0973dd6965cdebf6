"""Matrix products of the engine's own: values for all shapes and forms, threads, and which programs use them."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.gemm_calls import PACKED, ROWS, TRANSPOSED, address, packed, product

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.elementwise.bound import BoundKernel, KernelOrNumPy
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.matmul import gemm, gemm_bind
from anabranch.engine.codegen.matmul.gemm_driver import print_products
from anabranch.engine.codegen.matmul.gemm_tile import tiles_of
from anabranch.engine.graph import TensorSpec
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.internal.packed import Layout, Pack, PackedMatMul
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")

TOLERANCES = {"float32": 2e-5, "float64": 1e-13}
DIMS = st.one_of(st.integers(0, 9), st.integers(0, 100), st.sampled_from([0, 1, 48, 256, 257, 300]))


def draw(rng: np.random.Generator, dtype: str, *shape: int) -> Any:
    return rng.uniform(-1, 1, shape).astype(dtype)


def check_close(got: Any, wanted: Any, terms: int) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCES[got.dtype.name] * (1 + terms**0.5))


@settings(max_examples=examples(37, 150), deadline=None)
@given(
    DIMS, DIMS, DIMS, st.booleans(), st.sampled_from([ROWS, TRANSPOSED, PACKED]), st.sampled_from(sorted(TOLERANCES)),
    st.lists(st.booleans(), max_size=2), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_product(
    rows: int, columns: int, terms: int, transpose_a: bool, form: int, dtype: str, addends: list[bool], seed: int
):
    rng = np.random.default_rng(seed)
    a = draw(rng, dtype, *((terms, rows) if transpose_a else (rows, terms)))
    b = draw(rng, dtype, *((columns, terms) if form == TRANSPOSED else (terms, columns)))
    added = [draw(rng, dtype, rows, columns) if is_matrix else draw(rng, dtype, columns) for is_matrix in addends]
    wide_a, wide_b = a.astype("float64"), b.astype("float64")
    wanted = (wide_a.T if transpose_a else wide_a) @ (wide_b.T if form == TRANSPOSED else wide_b)
    wanted = wanted + sum((addend.astype("float64") for addend in added), np.zeros(columns))

    check_close(product(a, b, transpose_a, form, added), wanted, terms)


LARGE = [  # rows, columns, terms, A and B transposed: most have one operand laid out once for all parts
    (1030, 333, 300, False, False),  # B, in one block of terms
    (1030, 60, 1300, False, False),  # in three
    (270, 1030, 700, True, False),  # A, while parts lay out B
    (270, 1030, 700, True, True),
    (4100, 1025, 17, True, False),  # more rows than are laid out at a time
    (1025, 4100, 30, False, False),  # more columns
    (131, 530, 800, False, False),  # the fewest rows
    (131, 530, 800, False, True),  # B, turned over
    (530, 131, 1100, False, True),  # in three blocks
    (60, 700, 500, True, False),  # A by each of four parts: of columns,
    (700, 60, 500, True, True),  # of rows,
    (200, 190, 700, True, False),  # of both
    (600, 70, 12, True, False),  # parts of rows that one thread computes all of
    (600, 70, 12, True, True),
]


@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
@pytest.mark.parametrize(("rows", "columns", "terms", "transpose_a", "transpose_b"), LARGE)
def test_large_products(rows: int, columns: int, terms: int, transpose_a: bool, transpose_b: bool, dtype: str):
    rng = np.random.default_rng(3)
    a, b = draw(rng, dtype, rows, terms), draw(rng, dtype, terms, columns)
    addends = [draw(rng, dtype, rows, columns), draw(rng, dtype, columns)]
    a_given, b_given = (
        np.ascontiguousarray(x.T) if is_turned else x for x, is_turned in ((a, transpose_a), (b, transpose_b))
    )
    wanted = a.astype("float64") @ b.astype("float64")

    given = product(a_given, b_given, transpose_a, TRANSPOSED if transpose_b else ROWS, addends)
    check_close(given, wanted + addends[0] + addends[1], terms)
    in_place = product(
        a_given, b_given, transpose_a, TRANSPOSED if transpose_b else ROWS, [addends[0]], addends[0].copy()
    )
    check_close(in_place, wanted + addends[0], terms)


@pytest.mark.parametrize("rows", [256, 300, 508, 512])
@pytest.mark.parametrize("columns", [20, 300])
@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
def test_parts_of_more_rows_than_are_laid_out_at_a_time(rows: int, columns: int, dtype: str):
    """Rows of A are laid out in two goes: a part has 258 where tiles have 6, of which 252 are laid out at once."""
    rng = np.random.default_rng(14)
    a, b = draw(rng, dtype, 600, rows), draw(rng, dtype, 600, columns)
    tolerance = TOLERANCES[dtype] * 10
    np.testing.assert_allclose(product(a, b, transpose_a=True), a.T @ b, rtol=tolerance, atol=tolerance)


def test_large_products_at_the_same_time():
    """Only one of them finds the memory that is kept; the others have their own."""
    rng = np.random.default_rng(4)
    a, b = draw(rng, "float32", 1100, 300), draw(rng, "float32", 300, 400)
    wanted = product(a, b)
    with ThreadPoolExecutor(4) as threads:
        for given in threads.map(lambda _: product(a, b, release=True), range(12)):
            np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("form", [ROWS, TRANSPOSED, PACKED])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_products_of_many_parts_and_blocks(form: int, transpose_a: bool):
    rng = np.random.default_rng(1)
    a, b = draw(rng, "float32", 531, 700), draw(rng, "float32", 700, 333)
    given = product(
        np.ascontiguousarray(a.T) if transpose_a else a,
        np.ascontiguousarray(b.T) if form == TRANSPOSED else b,
        transpose_a,
        form,
    )
    check_close(given, a.astype("float64") @ b, 700)


def test_the_order_of_terms_depends_on_sizes_and_forms_only():
    rng = np.random.default_rng(2)
    a, b = draw(rng, "float32", 67, 1300), draw(rng, "float32", 1300, 101)
    forms = [(lie, form) for lie in (False, True) for form in (ROWS, TRANSPOSED, PACKED)]
    for transpose_a, form in forms:
        left = np.ascontiguousarray(a.T) if transpose_a else a
        right = np.ascontiguousarray(b.T) if form == TRANSPOSED else b
        whole = product(left, right, transpose_a, form)
        np.testing.assert_array_equal(product(left, right, transpose_a, form), whole)
        np.testing.assert_allclose(whole, a.astype("float64") @ b, rtol=0, atol=1e-4)


def test_up_to_the_least_block_all_forms_give_the_same_bits():
    rng = np.random.default_rng(2)
    a, b = draw(rng, "float32", 67, 250), draw(rng, "float32", 250, 101)
    first = product(a, b)
    for transpose_a in (False, True):
        left = np.ascontiguousarray(a.T) if transpose_a else a
        for form in (ROWS, TRANSPOSED, PACKED):
            right = np.ascontiguousarray(b.T) if form == TRANSPOSED else b
            np.testing.assert_array_equal(product(left, right, transpose_a, form), first)


def test_without_terms_the_addends_remain():
    a, b = np.zeros((3, 0), "float32"), np.zeros((0, 5), "float32")
    np.testing.assert_array_equal(product(a, b), np.zeros((3, 5)))
    row = np.arange(5, dtype="float32")
    np.testing.assert_array_equal(product(a, b, addends=[row]), np.broadcast_to(row, (3, 5)))


def test_adds_in_place():
    rng = np.random.default_rng(3)
    a, b, c = draw(rng, "float64", 30, 600), draw(rng, "float64", 600, 50), draw(rng, "float64", 30, 50)
    wanted = c + a @ b
    product(a, b, addends=[c], out=c)
    check_close(c, wanted, 600)


def heights(rows: int, form: int, transpose_a: bool = False) -> list[int]:
    """The heights of the tiles under the first panel of a product of so many rows, from the top."""
    found: list[int] = []

    def note(context: int, row: int, row_end: int, column: int, column_end: int, is_early: int) -> None:
        del context, column_end
        if column == 0 and not is_early:
            assert row == sum(found)
            found.append(row_end - row)

    then = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_ssize_t] * 5)(note)
    a, b, c = (draw(np.random.default_rng(0), "float32", *shape) for shape in ((rows, 5), (5, 40), (rows, 40)))
    laid = packed(b, False, 5) if form == PACKED else b
    function = ctypes.PYFUNCTYPE(None, *[ctypes.c_size_t] * 17)(gemm.then_address("float32"))
    step, b_step = rows if transpose_a else 5, 5 if form == PACKED else 40
    function(
        *(rows, 40, 5, address(a), step, int(transpose_a), address(laid), b_step, form),
        *(address(c), 40, 0, 0, 0, 0, ctypes.cast(then, ctypes.c_void_p).value, 0),
    )
    return found


@pytest.mark.parametrize("form", [ROWS, PACKED])
def test_tiles_of_one_or_two_rows_are_few(form: int):
    highest = gemm.tiles("float32").rows
    for rows in range(1, 130):
        found = heights(rows, form)
        assert sum(found) == rows
        if highest == 6:  # which goes into all but the smallest numbers with tiles of 6, 4 and 3
            assert rows in (1, 2, 5) or min(found) >= 3, (rows, found)
        assert max(found) <= highest
        assert found.count(highest) >= rows // highest - 1


def test_where_the_first_operand_is_laid_out_tiles_are_its_panels():
    highest = gemm.tiles("float32").rows
    for rows in (7, 8, 20, 32):
        assert heights(rows, ROWS, transpose_a=True)[: rows // highest] == [highest] * (rows // highest)


@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
@pytest.mark.parametrize("form", [ROWS, TRANSPOSED, PACKED])
def test_the_bits_of_a_row_do_not_depend_on_the_height_of_its_tile(form: int, dtype: str):
    rng = np.random.default_rng(1)
    a, b = draw(rng, dtype, 63, 37), draw(rng, dtype, *((51, 37) if form == TRANSPOSED else (37, 51)))
    added = draw(rng, dtype, 51)
    wanted = product(a, b, form=form, addends=[added])
    for rows in range(1, 63):
        assert np.array_equal(product(a[:rows], b, form=form, addends=[added]), wanted[:rows])


@pytest.mark.parametrize("form", [ROWS, TRANSPOSED, PACKED])
def test_nan_and_infinity_stay_in_their_rows_and_columns(form: int):
    rng = np.random.default_rng(4)
    a, b = draw(rng, "float32", 21, 70), draw(rng, "float32", 70, 53)
    a[3, 5], b[7, 52] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        wanted = a @ b
        found = product(a, np.ascontiguousarray(b.T) if form == TRANSPOSED else b, form=form)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    np.testing.assert_allclose(found[np.isfinite(wanted)], wanted[np.isfinite(wanted)], rtol=0, atol=1e-4)


def test_writes_nothing_beside_the_result():
    rng = np.random.default_rng(5)
    for rows, columns in [(1, 1), (5, 47), (13, 50), (8, 16)]:
        around = np.full(rows * columns + 128, 7.0, "float32")
        inside = around[64:-64].reshape(rows, columns)
        product(draw(rng, "float32", rows, 30), draw(rng, "float32", 30, columns), out=inside)
        assert (around[:64] == 7).all()
        assert (around[-64:] == 7).all()


@settings(max_examples=examples(15, 60), deadline=None)
@given(st.integers(1, 600), st.integers(1, 120), st.booleans(), st.sampled_from(sorted(TOLERANCES)), st.integers(1, 99))
def test_packing_is_what_its_op_says(terms: int, columns: int, transpose: bool, dtype: str, rows: int):
    matrix = np.arange(1, terms * columns + 1, dtype=dtype).reshape((columns, terms) if transpose else (terms, columns))
    layout = gemm_bind.layout_of(terms, columns, dtype, rows)
    found, wanted = packed(matrix, transpose, layout.block), Pack(layout, transpose).run(np, matrix)
    used = Pack(layout).run(np, np.ones((terms, columns), dtype)) != 0  # kernels may leave out what is never used
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found[used], wanted[used])


def test_ops_of_packed_matrices_have_a_meaning_of_their_own():
    rng = np.random.default_rng(6)
    a, w, d = draw(rng, "float64", 4, 7), draw(rng, "float64", 7, 5), draw(rng, "float64", 5)
    layout = Layout(7, 5, 3, 2)
    flat = Pack(layout).run(np, w)
    assert flat.shape == Pack(layout).infer(TensorSpec((7, 5), np.dtype("float64"))).shape
    np.testing.assert_array_equal(layout.unpacked(np, flat), w)
    np.testing.assert_array_equal(Pack(layout, True).run(np, w.T.copy()), flat)
    np.testing.assert_allclose(PackedMatMul(layout).run(np, a, flat, d, d), a @ w + d + d)


# --- programs --------------------------------------------------------------------------------------------------------


def compiled(
    a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, exact: bool = False, is_open: bool = False
) -> Program:
    graph = ab.Graph()
    with graph.as_default():
        shapes = [(None, None) if is_open else value.shape for value in (a, b)]
        x, y = (ab.placeholder(shape, value.dtype) for shape, value in zip(shapes, (a, b), strict=True))
        result = apply(MatMul(transpose_a, transpose_b), x, y)
    return Program(graph, [symbol_of(result)], [x, y], exact=exact)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
@pytest.mark.parametrize("transposes", [(False, False), (True, False), (False, True), (True, True)])
def test_programs_use_it(dtype: str, transposes: tuple[bool, bool], is_open: bool):
    rng = np.random.default_rng(7)
    a, b = draw(rng, dtype, 70, 90), draw(rng, dtype, 90, 80)
    wanted = a.astype("float64") @ b
    a, b = (np.ascontiguousarray(value.T) if t else value for value, t in zip((a, b), transposes, strict=True))
    program = compiled(a, b, *transposes, is_open=is_open)

    assert ("run_matmul(" if is_open else "kernel(") in program.source
    for _ in range(2):
        check_close(program(a, b)[0], wanted, 90)


def test_open_programs_take_any_shape():
    rng = np.random.default_rng(8)
    program = compiled(np.zeros((1, 1), "float32"), np.zeros((1, 1), "float32"), is_open=True)
    for rows, terms, columns in [
        (3, 4, 5),
        (100, 90, 80),
        (0, 3, 4),
        (2, 0, 3),
        (1, 700, 900),
        *[(k, 99, 99) for k in range(70)],
    ]:
        a, b = draw(rng, "float32", rows, terms), draw(rng, "float32", terms, columns)
        check_close(program(a, b)[0], a.astype("float64") @ b, terms)


def test_shapes_that_do_not_fit_are_refused_at_run_time():
    program = compiled(np.zeros((1, 1), "float32"), np.zeros((1, 1), "float32"), is_open=True)
    with pytest.raises(ValueError, match="do not fit"):
        program(np.zeros((80, 70), "float32"), np.zeros((80, 90), "float32"))


@pytest.mark.parametrize("is_open", [False, True])
def test_operands_that_are_views_are_left_to_numpy(is_open: bool):
    rng = np.random.default_rng(9)
    a, b = draw(rng, "float32", 90, 140).T[::2], draw(rng, "float32", 80, 90).T
    program = compiled(a, b, is_open=is_open)
    np.testing.assert_array_equal(program(a, b)[0], a @ b)


@pytest.fixture
def no_refits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take all operands in their own layout."""

    def refuse(kernel: BoundKernel, *given: Any) -> None:
        raise AssertionError(f"{kernel.spec.operands} were copied to another layout")

    for kind in (BoundKernel, KernelOrNumPy):
        monkeypatch.setattr(kind, "refit", refuse)


def columns_of(value: Any, start: int = 3, more: int = 9) -> Any:
    """The same values as columns of a wider matrix."""
    wide = np.full((len(value), value.shape[1] + more), np.nan, value.dtype)
    wide[:, start : start + value.shape[1]] = value
    return wide[:, start : start + value.shape[1]]


@pytest.mark.usefixtures("no_refits")
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("transposes", [(False, False), (True, False), (False, True), (True, True)])
def test_kernels_take_columns_of_wider_matrices(transposes: tuple[bool, bool], is_open: bool):
    rng = np.random.default_rng(11)
    a, b = draw(rng, "float32", 48, 200), draw(rng, "float32", 200, 72)
    a, b = [columns_of(value.T.copy() if turned else value) for value, turned in zip((a, b), transposes, strict=True)]
    (found,) = compiled(a, b, *transposes, is_open=is_open)(a, b)
    wanted = (a.T if transposes[0] else a) @ (b.T if transposes[1] else b)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("no_refits")
@pytest.mark.parametrize("rows", [1, 2, 48, None])
@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
def test_packed_products_take_columns_of_wider_matrices(rows: int | None, dtype: str):
    rng = np.random.default_rng(12)
    count, terms, columns = rows or 20, 300, 900
    layout = gemm_bind.layout_of(terms, columns, dtype, count)
    weight, bias, row = draw(rng, dtype, terms, columns), draw(rng, dtype, columns), draw(rng, dtype, 1, columns)
    a, addend = columns_of(draw(rng, dtype, count, terms)), columns_of(draw(rng, dtype, count, columns))
    repeated = np.broadcast_to(draw(rng, dtype, columns), addend.shape)
    flat = Pack(layout).run(np, weight)
    for addends in ([addend], [addend, addend], [bias, addend], [row, addend], [repeated]):
        graph = ab.Graph()
        with graph.as_default():
            x, packed_weight = ab.placeholder((rows, terms), dtype), ab.placeholder(flat.shape, dtype)
            taken = [
                ab.placeholder((rows, columns) if d is addend or d is repeated else d.shape, dtype) for d in addends
            ]
            result = apply(PackedMatMul(layout), x, packed_weight, *taken)
        program = Program(graph, [symbol_of(result)], [x, packed_weight, *taken])
        (found,) = program(a, flat, *addends)
        tolerance = TOLERANCES[dtype] * 50
        np.testing.assert_allclose(found, a @ weight + sum(addends), rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("no_refits")
@pytest.mark.parametrize("is_open", [False, True])
def test_a_gated_loop_lays_out_nothing_anew(is_open: bool):
    """Both inputs' products are one before the loop: what each product in the loop adds are columns of a wider row."""
    rows, steps, units = 32, 3, 96
    graph, rng = ab.Graph(), np.random.default_rng(13)
    with graph.as_default():
        x = ab.placeholder((None if is_open else rows, steps, units), "float32")
        w, v, u, r = [ab.constant(draw(rng, "float32", units, units) * 0.1) for _ in range(4)]

        def body(t: Any, h: Any) -> Any:
            forget = ops.sigmoid(x[:, t] @ w + h @ u)
            return t + 1, (1 - forget) * h + forget * ops.tanh(x[:, t] @ v + (forget * h) @ r)

        _, h = ab.while_loop(lambda t, _: t < steps, body, (0, x[:, 0] * 0.0))
        results = [symbol_of(h), *ab.gradients(ops.sum(h * h), [w, u, r])]
    value = draw(rng, "float32", rows, steps, units)
    found = Program(graph, results, [symbol_of(x)])(value)
    wanted = Program(graph, results, [symbol_of(x)], exact=True)(value)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_exact_programs_and_products_of_medium_size_or_other_dtypes_stay_with_numpy():
    big, small = np.ones((90, 90), "float32"), np.ones((40, 40), "float32")
    assert "kernel(" not in compiled(big, big, exact=True).source
    assert "kernel(" not in compiled(small, small).source
    assert "kernel(" not in compiled(np.ones((2, 1000), "float32"), np.ones((1000, 4), "float32")).source
    assert "kernel(" not in compiled(big.astype("int32"), big.astype("int32")).source
    assert "kernel(" not in compiled(np.ones((900, 900), "float32"), np.ones((900, 3), "float32")).source


@pytest.mark.parametrize(
    ("host", "lanes", "rows", "vectors"),
    [
        ("x86_64-unknown-linux-gnu skylake-avx512 +avx2,+avx512f", 16, 8, 3),
        ("x86_64-unknown-linux-gnu haswell +avx2,+fma,-avx512f", 8, 6, 2),
        ("x86_64-unknown-linux-gnu nehalem +sse2,-avx2", 4, 6, 2),
        ("aarch64-unknown-linux-gnu neoverse-n1 +neon", 4, 8, 3),
    ],
)
def test_tiles_fit_the_registers_of_a_host(host: str, lanes: int, rows: int, vectors: int):
    tiles = tiles_of(host, "float")
    assert (tiles.lanes, tiles.rows, tiles.vectors) == (lanes, rows, vectors)
    assert tiles_of(host, "double").lanes == lanes // 2
    registers = 32 if "avx512f" in host.replace("-avx512f", "") or host.startswith("aarch64") else 16
    assert rows * vectors + vectors + 1 <= registers
    assert print_products(tiles).count("define ") == print_products(tiles_of(host, "double")).count("define ")


@pytest.mark.parametrize("host", ["haswell +avx2,+fma", "nehalem +sse2"])
def test_other_tiles_compute_the_same(host: str, monkeypatch: pytest.MonkeyPatch):
    """Tiles of narrower hosts, compiled for this one."""
    rng = np.random.default_rng(10)
    a, b = draw(rng, "float64", 37, 290), draw(rng, "float64", 290, 45)
    with monkeypatch.context() as patch:
        patch.setattr(gemm, "tiles", lambda dtype: tiles_of(host, gemm.ELEMENTS[dtype]))
        gemm.start.cache_clear()
        found = [product(a, b), product(a, b, form=PACKED), product(np.ascontiguousarray(a.T), b, True)]
        found.append(product(a, np.ascontiguousarray(b.T), form=TRANSPOSED))
    gemm.start.cache_clear()
    gemm.start("float64")
    for value in found:
        check_close(value, a @ b, 290)
