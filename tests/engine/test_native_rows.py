"""Native code for rows: taking, writing and adding up, against NumPy's road, and what it leaves to that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natives.comparing import check_against_numpy, kernel_types
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.gather import rows as row_code
from anabranch.engine.codegen.gather.columns import are_pieces, columns_in_pieces
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.arrays.gathering import checked_positions
from anabranch.engine.ops.arrays.sorting import UniquePositions
from anabranch.engine.runtime.program import Program

needs_kernels = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


def _step(width: int, dtype: str, ids_dtype: str, segments: int = 7) -> tuple[Any, ...]:
    """Rows of a table, and sums of rows: graph, fetches and feeds, of which no number of rows is known."""
    with ab.Graph().as_default() as graph:
        table, rows = (ab.placeholder((None, width), dtype) for _ in range(2))
        ids = ab.placeholder((None,), ids_dtype)
        fetches = [ab.ops.take(table, ids, axis=0), ab.ops.segment_sum(rows, ids, segments)]
    return graph, fetches, [table, rows, ids]


@needs_kernels
@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(
    size=st.integers(1, 40),
    count=st.sampled_from([0, 1, 13, 300, 2000]),
    width=st.sampled_from([1, 16, 37, 64]),
    dtype=st.sampled_from(["float32", "float64"]),
    ids_dtype=st.sampled_from(["int32", "int64"]),
)
def test_taking_and_adding_up(size: int, count: int, width: int, dtype: str, ids_dtype: str) -> None:
    rng = np.random.default_rng(1)
    graph, fetches, feeds = _step(width, dtype, ids_dtype)
    assert kernel_types(graph) >= {"take", "segment_sum"}
    table, rows = (rng.uniform(-1, 1, (n, width)).astype(dtype) for n in (size, count))
    table.flat[::17], rows.flat[::19] = np.nan, np.inf
    ids = rng.integers(-size, size, count).astype(ids_dtype)
    taken, sums = check_against_numpy(graph, fetches, feeds, [table, np.nan_to_num(rows, posinf=2), ids], 1e-5)
    np.testing.assert_array_equal(taken, table[ids])
    assert sums.shape == (7, width)


@needs_kernels
def test_positions_out_of_bounds() -> None:
    graph, fetches, feeds = _step(64, "float32", "int32")
    ids = np.arange(100, dtype="int32")
    rows = np.zeros((100, 64), "float32")
    with pytest.raises(IndexError, match="index 99 is out of bounds for axis 0 with size 99"):
        Program(graph, fetches, feeds)(rows[:99], rows, ids)


@needs_kernels
def test_tables_in_other_layouts() -> None:
    graph, fetches, feeds = _step(64, "float32", "int32")
    rng = np.random.default_rng(0)
    table, rows = (rng.uniform(-1, 1, (64, 100)).astype("f").T for _ in range(2))
    check_against_numpy(graph, fetches, feeds, [table, rows, rng.integers(0, 100, 100).astype("int32")], 1e-5)


@needs_kernels
@settings(max_examples=examples(6, 25), deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(["float32", "int64", "float16", "uint8", "bool"]),
    row=st.sampled_from([(4,), (37, 4), (2, 3, 8)]),
    places=st.sampled_from([(700,), (9, 70), (3, 2, 150), (0, 5)]),
    seed=st.integers(0, 1000),
)
def test_rows_of_any_rank_and_dtype(dtype: str, row: tuple[int, ...], places: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 2 if dtype == "bool" else 100, (11, *row)).astype(dtype)
    positions = rng.integers(-11, 11, places).astype("int32")
    with ab.Graph().as_default() as graph:
        feeds = [ab.placeholder((None, *row), dtype), ab.placeholder((None,) * len(places), "int32")]
        taken = ab.ops.take(*feeds, axis=0)
    assert "take" in kernel_types(graph)
    program = Program(graph, [symbol_of(taken)], feeds)
    (found,) = program(table, positions)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, table[positions])
    for layout in (table[::-1], np.asfortranarray(table)):  # which the kernel leaves to NumPy
        np.testing.assert_array_equal(program(layout, positions)[0], layout[positions])
    np.testing.assert_array_equal(program(table, positions[..., ::-1])[0], table[positions[..., ::-1]])


@needs_kernels
def test_no_rows_to_take_from() -> None:
    graph, fetches, feeds = _step(64, "float32", "int32")
    with pytest.raises(IndexError):
        Program(graph, fetches[:1], feeds)(np.zeros((0, 64), "f"), np.zeros((0, 64), "f"), np.zeros(100, "int32"))


def _written(start: Any, positions: Any, rows: Any) -> Any:
    """A variable after its rows were written in a step."""
    with ab.Graph().as_default():
        variable = ab.Variable(start)
        places, fed = ab.placeholder((None,), str(positions.dtype)), ab.placeholder((None, *start.shape[1:]), "float32")
        update = variable.scatter_update(ab.IndexedSlices(fed, places, start.shape))
        ab.Session().run(update.operation, {places: positions, fed: rows})
    return variable.numpy()


@pytest.mark.parametrize("is_sorted", [True, False])
def test_writing_rows(is_sorted: bool) -> None:
    """The last one counts of rows that are named twice; those in order are written by several threads."""
    rng = np.random.default_rng(0)
    start, rows = rng.uniform(-1, 1, (3000, 48)).astype("f"), rng.uniform(-1, 1, (1500, 48)).astype("f")
    positions = rng.permutation(3000)[:1500] if is_sorted else rng.integers(-3000, 3000, 1500)
    positions = np.sort(positions) if is_sorted else positions
    expected = start.copy()
    expected[positions] = rows
    np.testing.assert_array_equal(_written(start.copy(), positions, rows), expected)


def test_writing_rows_out_of_bounds() -> None:
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        _written(np.zeros((3, 4), "float32"), np.array([0, 3]), np.ones((2, 4), "float32"))


def test_writing_no_rows() -> None:
    found = _written(np.ones((3, 4), "float32"), np.zeros(0, "int64"), np.ones((0, 4), "float32"))
    np.testing.assert_array_equal(found, np.ones((3, 4)))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_unique_integers(dtype: str, count: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0 if dtype[0] == "u" else -100, 100, count).astype(dtype)
    for values in (x, x * 0, np.where(x == x[0], np.iinfo(dtype).max, x).astype(dtype)):
        first, inverse, counts = UniquePositions().run(np, values)
        wanted = np.unique(values, return_index=True, return_inverse=True, return_counts=True)[1:]
        for found, expected in zip((first, inverse, counts), wanted, strict=True):
            assert found.dtype == np.int32
            np.testing.assert_array_equal(found, expected)


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_putting_rows(dtype: str) -> None:
    """The dense gradient of a table whose rows were taken, several of them more than once."""
    rng = np.random.default_rng(0)
    with ab.Graph().as_default() as graph:
        table, dy = ab.placeholder((50, 48), dtype), ab.placeholder((400, 48), dtype)
        ids = ab.placeholder((400,), "int32")
        (gradient,) = ab.gradients(ab.ops.take(table, ids, axis=0), [table], dy)
        fetches = [symbol_of(ab.convert_to_tensor(gradient))]
    assert "put_rows" in kernel_types(graph)
    values = [rng.uniform(-1, 1, shape).astype(dtype) for shape in ((50, 48), (400, 48))]
    places = rng.integers(-50, 50, 400).astype("int32")
    (found,) = check_against_numpy(graph, fetches, [table, dy, ids], [*values, places], 1e-5)
    expected = np.zeros((50, 48), dtype)
    np.add.at(expected, places, values[1])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(IndexError, match="index 99 is out of bounds for axis 0 with size 50"):
        Program(graph, fetches, [table, dy, ids])(*values, places + 50)


LATER = {
    "last but one": ((6, 50, 64), 1, (400,)),
    "of three": ((3, 2, 20, 80), -2, (100, 3)),
    "narrow": ((4, 300, 3), 1, (900,)),
    "last": ((40, 30), 1, (77,)),
    "first, by a matrix": ((50, 48), 0, (20, 30)),
    "first, numbers": ((50,), 0, (700,)),
}


@needs_kernels
@pytest.mark.parametrize(("shape", "axis", "places"), LATER.values(), ids=LATER)
def test_taking_and_putting_rows_along_any_axis(shape: tuple[int, ...], axis: int, places: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    first, last = shape[: axis % len(shape)], shape[axis % len(shape) + 1 :]
    with ab.Graph().as_default() as graph:
        table = ab.placeholder((None, *shape[1:]) if axis % len(shape) else shape, "float32")
        dy, ids = ab.placeholder((*first, *places, *last), "float32"), ab.placeholder(places, "int32")
        taken = ab.ops.take(table, ids, axis=axis)
        fetches = [symbol_of(taken), symbol_of(ab.convert_to_tensor(ab.gradients(taken, [table], dy)[0]))]
    values = [rng.uniform(-1, 1, tensor).astype("float32") for tensor in (shape, (*first, *places, *last))]
    size = shape[axis]
    chosen = rng.integers(-size, size, places).astype("int32")
    found, gradient = check_against_numpy(graph, fetches, [table, dy, ids], [*values, chosen], 1e-5)
    np.testing.assert_array_equal(found, values[0].take(chosen, axis))
    expected = np.zeros(shape, "float32")
    everywhere: Any = (*[slice(None)] * len(first), chosen)
    np.add.at(expected, everywhere, values[1])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-4)
    with pytest.raises(IndexError, match=f"index {size} is out of bounds for axis .* with size {size}"):
        Program(graph, fetches, [table, dy, ids])(*values, np.full_like(chosen, size))
    none = [value[:0] if first else value for value in values]
    if first:  # no places before the axis
        assert [result.shape for result in Program(graph, fetches, [table, dy, ids])(*none, chosen)] == [
            (0, *first[1:], *chosen.shape, *last),
            (0, *shape[1:]),
        ]


@needs_kernels
@pytest.mark.parametrize(("dtype", "index"), [("float32", "int32"), ("float64", "int64")])
@pytest.mark.parametrize("places", [(0,), (351,), (40, 30)])
def test_columns_of_parts_of_wider_rows(dtype: str, index: str, places: tuple[int, ...]) -> None:
    """Sums are taken in the order of the positions: those of NumPy in that order have the same bits."""
    rng = np.random.default_rng(0)
    with ab.Graph().as_default() as graph:
        x, dy = ab.placeholder((None, 90), dtype), ab.placeholder((None, *places), dtype)
        ids = ab.placeholder(places, index)
        taken = ab.ops.take(x, ids, axis=1)
        fetches = [symbol_of(taken), symbol_of(ab.convert_to_tensor(ab.gradients(taken, [x], dy)[0]))]
    program = Program(graph, fetches, [x, dy, ids])
    wide = rng.uniform(-1, 1, (96, 100)).astype(dtype)
    values = rng.uniform(-1, 1, (96, *places[:-1], places[-1] + 7)).astype(dtype)
    wide[3, 20], values[5, ..., -1] = np.nan, np.inf
    chosen = rng.integers(-90, 90, places).astype(index)
    for rows in (slice(None), slice(None, None, 2), slice(None, None, -1), slice(0)):
        fed, cotangents = wide[rows, 10:], values[rows, ..., 7:]
        found, gradient = program(fed, cotangents, chosen)
        np.testing.assert_array_equal(found, fed.take(chosen, 1))
        expected = np.zeros(fed.shape, dtype)
        for place, column in zip(chosen.reshape(-1), cotangents.reshape(len(fed), chosen.size).T, strict=True):
            expected[:, place] += column
        np.testing.assert_array_equal(gradient, expected)


@needs_kernels
@pytest.mark.parametrize("places", [(351,), (40, 30)])
def test_columns_at_constant_places(places: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at once for each width of rows, whichever widths come in turn."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(-90, 90, places).astype("int32")
    with ab.Graph().as_default() as graph:
        x, dy = ab.placeholder((None, None), "float32"), ab.placeholder((None, *places), "float32")
        taken = ab.ops.take(x, ab.constant(chosen), axis=1)
        fetches = [symbol_of(taken), symbol_of(ab.convert_to_tensor(ab.gradients(taken, [x], dy)[0]))]
    program = Program(graph, fetches, [x, dy])
    looks: list[int] = []

    def look(xp: Any, indices: Any, size: int, axis: int, wrap: bool) -> Any:
        looks.append(size)
        return checked_positions(xp, indices, size, axis, wrap)

    monkeypatch.setattr(row_code, "checked_positions", look)
    cotangents = rng.uniform(-1, 1, (96, *places)).astype("float32")
    for size in (90, 90, 120, 90):
        fed = rng.uniform(-1, 1, (96, size)).astype("float32")
        found, gradient = program(fed, cotangents)
        np.testing.assert_array_equal(found, fed.take(chosen, 1))
        expected = np.zeros(fed.shape, "float32")
        np.add.at(expected.T, chosen.reshape(-1), cotangents.reshape(96, -1).T)
        np.testing.assert_array_equal(gradient, expected)
    assert looks == [90, 90, 120, 120, 90, 90]  # taking and putting
    for _ in range(2):
        with pytest.raises(IndexError, match=r"out of bounds for axis 1 with size 60"):
            program(rng.uniform(-1, 1, (96, 60)).astype("float32"), cotangents)


def _triangle(size: int) -> Any:
    return np.flatnonzero(np.tri(size, k=-1, dtype=bool))


RUNS = {
    "triangle": _triangle(27),
    "one run": np.arange(5, 705),
    "from the end": np.arange(-700, -20),
    "one by one": np.arange(0, 729, 3),
    "descending": np.arange(700, 5, -1),
    "twice": np.concatenate([np.arange(100, 200), np.arange(150, 250)]),
    "through zero": np.arange(-40, 40),
}


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("places", RUNS.values(), ids=RUNS)
def test_constant_columns_that_follow_each_other(dtype: str, places: Any) -> None:
    """They are moved as vectors where none occurs twice, with the bits of sums in NumPy's order."""
    rng = np.random.default_rng(0)
    with ab.Graph().as_default() as graph:
        x, dy = ab.placeholder((None, 729), dtype), ab.placeholder((None, len(places)), dtype)
        taken = ab.ops.take(x, ab.constant(places.astype("int32")), axis=1)
        fetches = [symbol_of(taken), symbol_of(ab.convert_to_tensor(ab.gradients(taken, [x], dy)[0]))]
    program = Program(graph, fetches, [x, dy])
    values, wide = rng.uniform(-1, 1, (50, 729)).astype(dtype), rng.uniform(-1, 1, (50, len(places) + 5)).astype(dtype)
    wide[3, 7], wide[4, 8], wide[5, 9] = -0.0, np.nan, np.inf
    for rows in (slice(None), slice(None, None, 2), slice(20)):
        fed, cotangents = values[rows], wide[rows, 5:]
        found, gradient = program(fed, cotangents)
        np.testing.assert_array_equal(found, fed[:, places])
        expected = np.zeros(fed.shape, dtype)
        np.add.at(expected.T, places, cotangents.T)
        assert gradient.tobytes() == expected.tobytes()


@needs_kernels
def test_only_columns_that_ascend_are_moved_as_vectors() -> None:
    assert library.usable
    chosen = {name: are_pieces(places, np.dtype("float32")) for name, places in RUNS.items()}
    expected = dict.fromkeys(RUNS, False) | dict.fromkeys(["triangle", "one run", "from the end"], True)
    assert chosen == expected
    for places in (_triangle(27), np.arange(-40, 0)):
        pieces = columns_in_pieces(places, np.dtype("float32")).pieces
        moved = [np.add.outer([position, number], np.arange(length)) for position, number, length in pieces]
        np.testing.assert_array_equal(np.concatenate(moved, 1), [places, np.arange(len(places))])
