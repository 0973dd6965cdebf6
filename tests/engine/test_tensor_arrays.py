"""TensorArrays: every method, on both roads and to second order, in loops and branches, and the values behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.loops import assert_same, derivatives, repeat, run, unrolled
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.runtime.interpreter import Interpreter

X = np.array([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5], [1.0, 3.0]])


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def x(graph: ab.Graph) -> ab.Tensor:
    return ab.placeholder((4, 2), "float64", "x")


def fails(error: type[Exception], match: str, fetch: Any, feeds: Any = None) -> None:
    """Both roads raise."""
    with pytest.raises(error, match=match):
        ab.Session().run(fetch, feeds)
    with pytest.raises(error, match=match):
        Interpreter().run(ab.get_default_graph(), [fetch], feeds)


def compare(found: ab.Tensor, plain: ab.Tensor, x: ab.Tensor, at: np.ndarray = X) -> None:
    """Values and two orders of derivatives of something that is not linear in `x`."""
    assert_same(derivatives(found * found * found, [x], 2), derivatives(plain * plain * plain, [x], 2), {x: at})


def growing(value: ab.Tensor, lengths: list[int]) -> ab.TensorArray:
    """An array whose elements are as many first rows of `value` as `lengths` says."""
    array = ab.TensorArray("float64", len(lengths), element_shape=(None, 2))
    for index, length in enumerate(lengths):
        array = array.write(index, value[:length] * (index + 1.0))
    return array


# --- concat ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[2, 2, 2], [1, 3, 0, 2], [4], [0, 0]], ids=str)
def test_concat(x: ab.Tensor, lengths: list[int]):
    plain = ops.concatenate([x[:length] * (index + 1.0) for index, length in enumerate(lengths)], axis=0)
    compare(growing(x, lengths).concat(), plain, x)


def test_concat_knows_its_shape(x: ab.Tensor):
    equal = ab.TensorArray("float64", 2).write(0, x).write(1, x * x)
    assert equal.concat().shape == (8, 2)
    assert growing(x, [1, 3]).concat().shape == (None, 2)
    assert ab.TensorArray("float64", dynamic_size=True).write(0, x).concat().shape == (None, 2)
    compare(equal.concat(), ops.concatenate([x, x * x], axis=0), x)


def test_concat_of_an_array_that_a_loop_writes(x: ab.Tensor):
    n = ab.placeholder((), "int32", "n")
    array = ab.TensorArray("float64", n, element_shape=(None, 2))
    array = repeat(n, lambda i, array: array.write(i, x[: i + 1] * x[i]), array)
    for count in range(4):
        plain = ops.concatenate([x[:0], *[x[: i + 1] * x[i] for i in range(count)]], axis=0)
        found = derivatives(array.concat() * array.concat(), [x], 2)
        assert_same(found, derivatives(plain * plain, [x], 2), {x: X, n: count})


def test_concat_inside_a_loop(x: ab.Tensor):
    def step(i: Any, h: Any) -> Any:
        both = ab.TensorArray("float64", 2, element_shape=(None, 2)).write(0, h[: i + 1]).write(1, x[i + 1 :])
        return ops.sin(both.concat()) * x

    def plain(i: int, h: Any) -> Any:
        return ops.sin(ops.concatenate([h[: i + 1], x[i + 1 :]], axis=0)) * x

    assert_same(derivatives(repeat(3, step, x), [x], 2), derivatives(unrolled(3, plain, x), [x], 2), {x: X})


@pytest.mark.parametrize("on", [True, False])
def test_concat_and_split_in_branches(x: ab.Tensor, on: bool):
    flag = ab.placeholder((), "bool")
    joined = ab.cond(flag, lambda: growing(x, [2, 1]).concat(), lambda: x * x)
    part = ab.cond(
        flag,
        lambda: ab.TensorArray("float64", 2).split(x, [1, 3]).read(1),
        lambda: ab.TensorArray("float64", 2).split(x * x, [2, 2]).read(0),
    )
    plain = (ops.concatenate([x[:2], x[:1] * 2.0], axis=0), x[1:]) if on else (x * x, (x * x)[:2])
    for found, wanted in zip((joined, part), plain, strict=True):
        values = derivatives(found * found * found, [x], 2)
        assert_same(values, derivatives(wanted * wanted * wanted, [x], 2), {x: X, flag: on})


def test_concat_of_an_empty_array():
    known = ab.TensorArray("float32", 0, element_shape=(None, 3)).concat()
    vectors = ab.TensorArray("int64", 0, element_shape=(None,)).concat()
    values = run([known, vectors])
    assert [(value.shape, value.dtype.name) for value in values] == [((0, 3), "float32"), ((0,), "int64")]


@pytest.mark.parametrize(("shape", "text"), [(None, r"\[\.\.\.\]"), ((2, None), r"\[2,\?\]")])
def test_concat_of_an_empty_array_of_unknown_shape(shape: Any, text: str):
    array = ab.TensorArray("float32", 0, element_shape=shape)
    fails(
        ValueError,
        rf"the array is empty, .* known as {text} only\. Give the TensorArray an element_shape",
        array.concat(),
    )


def test_concat_of_elements_that_were_never_written(x: ab.Tensor):
    array = ab.TensorArray("float64", 3).write(0, x).write(2, x)
    fails(IndexError, r"element 1 is read but was never written \(size 3\)", array.concat(), {x: X})


def test_concat_of_scalars():
    with pytest.raises(ValueError, match=r"concat: the elements are scalars, which have no axis; use stack\(\)"):
        ab.TensorArray("float32", 1).write(0, 1.0).concat()


def test_concat_of_elements_that_do_not_fit(x: ab.Tensor):
    array = ab.TensorArray("float64", 2, element_shape=(None, None)).write(0, x).write(1, ops.transpose(x))
    fails(ValueError, r"dimension", array.concat(), {x: X})


# --- split ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[1, 3], [4], [2, 0, 2], [0, 4, 0]], ids=str)
def test_split(x: ab.Tensor, lengths: list[int]):
    array = ab.TensorArray("float64", len(lengths)).split(x, lengths)
    starts = np.cumsum([0, *lengths])
    for index, length in enumerate(lengths):
        compare(array.read(index), x[starts[index] : starts[index] + length], x)
    compare(array.concat(), x, x)
    assert run([array.size()], {x: X}) == [len(lengths)]


def test_split_with_lengths_that_are_fed(x: ab.Tensor):
    lengths = ab.placeholder((None,), "int32")
    array = ab.TensorArray("float64", dynamic_size=True).split(x, lengths)
    total = repeat(
        ops.size(lengths),
        lambda i, total: total + ops.sum(array.read(i) ** 3.0) * (total + 1.0),
        ops.zeros((), "float64"),
    )
    for sizes in ([4], [1, 1, 2], [0, 3, 1]):
        parts = np.split(np.arange(4), np.cumsum(sizes)[:-1])
        plain: Any = ops.zeros((), "float64")
        for rows in parts:
            plain = plain + ops.sum(x[rows[0] : rows[-1] + 1] ** 3.0 if len(rows) else x[:0]) * (plain + 1.0)
        assert_same(derivatives(total, [x], 2), derivatives(plain, [x], 2), {x: X, lengths: sizes})


def test_split_of_nothing(x: ab.Tensor):
    empty = ab.placeholder((0, 2), "float64")
    array = ab.TensorArray("float64", 2).split(empty, [0, 0])
    (slope,) = ab.gradients(ops.sum(array.read(1)), [empty])
    assert [value.shape for value in run([array.read(0), array.concat(), slope], {empty: X[:0]})] == [(0, 2)] * 3


def test_split_leaves_unused_pieces_without_gradient(x: ab.Tensor):
    array = ab.TensorArray("float64", 3).split(x, [1, 2, 1])
    (slope,) = ab.gradients(ops.sum(array.read(1)), [x])
    np.testing.assert_array_equal(run([slope], {x: X})[0], [[0, 0], [1, 1], [1, 1], [0, 0]])


@pytest.mark.parametrize("lengths", [[1, 2], [5], [], [-1, 5]], ids=str)
def test_split_with_lengths_that_do_not_add_up(x: ab.Tensor, lengths: list[int]):
    array = ab.TensorArray("float64", len(lengths)).split(x, np.array(lengths, "int32"))
    listed = ", ".join(map(str, lengths))
    message = rf"the lengths \[{listed}\] must not be negative and add up to the first axis .* \[4,2\]"
    fails(ValueError, message, array.size() + array.size(), {x: X})


def test_split_misused(x: ab.Tensor):
    with pytest.raises(ValueError, match=r"split needs a value with at least one axis; got a scalar"):
        ab.TensorArray("float64", 1).split(ops.sum(x), [1])
    with pytest.raises(ValueError, match=r"lengths must be a vector; got shape \[1,1\]"):
        ab.TensorArray("float64", 1).split(x, [[4]])
    declared = ab.TensorArray("float64", 1, element_shape=(None, 3))
    with pytest.raises(ValueError, match=r"split: the elements were declared as \[\?,3\], but .* \[\?,2\]"):
        declared.split(x, [4])


# --- stack, unstack, gather, scatter --------------------------------------------------------------------------------


def test_unstack_and_stack(x: ab.Tensor):
    array = ab.TensorArray("float64", 4).unstack(x * x)
    assert array.element_shape == (2,)
    compare(array.stack(), x * x, x)
    compare(array.read(2), x[2] * x[2], x)
    declared = ab.TensorArray("float64", 4, element_shape=(3,))
    with pytest.raises(ValueError, match=r"unstack: the elements were declared as \[3\], but .* \[2\]"):
        declared.unstack(x)
    with pytest.raises(ValueError, match=r"unstack needs a value with at least one axis; got a scalar"):
        ab.TensorArray("float64", 4).unstack(1.0)


def test_stack_of_what_cannot_be_stacked(x: ab.Tensor):
    fails(
        ValueError,
        r"stack needs elements of one shape; got \[1, 2\], \[3, 2\]\. Use concat",
        growing(x, [1, 3]).stack(),
        {x: X},
    )
    fails(IndexError, r"element 0 is read but was never written", ab.TensorArray("float32", 2).write(1, 1.0).stack())


def test_empty_arrays_stack_to_no_rows():
    assert run([ab.TensorArray("float32", 0, element_shape=(3,)).stack()])[0].shape == (0, 3)


@pytest.mark.parametrize("indices", [[2, 0, 2], [3], [], [1, 1, 1]], ids=str)
def test_gather(x: ab.Tensor, indices: list[int]):
    array = ab.TensorArray("float64", 4).unstack(ops.sin(x))
    compare(array.gather(np.array(indices, "int32")), ops.take(ops.sin(x), np.array(indices, "int32"), axis=0), x)


@pytest.mark.parametrize("indices", [[2, 0, 1, 3], [1, 3, 1, 0]], ids=str)
def test_scatter(x: ab.Tensor, indices: list[int]):
    array = ab.TensorArray("float64", 4).unstack(x * 0.5).scatter(indices, x * x)
    rows = [x[k] * 0.5 for k in range(4)]
    for position, index in enumerate(indices):
        rows[index] = x[position] * x[position]
    compare(array.stack(), ops.stack(rows), x)


def test_scatter_grows_and_counts(x: ab.Tensor):
    grown = ab.TensorArray("float64", dynamic_size=True).scatter([3, 1], x[:2]).scatter([0, 2], x[2:])
    compare(grown.stack(), ops.stack([x[2], x[1], x[3], x[0]]), x)
    n = ab.placeholder((None,), "int32")
    wrong = ab.TensorArray("float64", 4).scatter(n, x)
    fails(ValueError, r"scatter: 2 indices for 4 values", wrong.size(), {x: X, n: [0, 1]})
    fails(IndexError, r"index 4 is out of range for size 4", wrong.size(), {x: X, n: [0, 1, 2, 4]})
    with pytest.raises(TypeError, match=r"of float32 elements: float64 values were written"):
        ab.TensorArray("float32", 4).scatter([0, 1, 2, 3], x)


# --- writing and reading --------------------------------------------------------------------------------------------


def test_growing_in_a_loop(x: ab.Tensor):
    n = ab.placeholder((), "int32", "n")
    empty = ab.TensorArray("float64", dynamic_size=True, element_shape=(2,))
    grown = repeat(n, lambda i, array: array.write(array.size(), x[i] * x[i]), empty)
    for count in range(5):
        values = derivatives(grown.stack(), [x], 2)
        assert_same(values, derivatives((x * x)[:count], [x], 2), {x: X, n: count})
        assert run([grown.size()], {x: X, n: count}) == [count]


def test_varying_shapes(x: ab.Tensor):
    array = growing(x, [3, 1, 4])
    assert array.element_shape == (None, 2)
    total = ops.sum(array.read(0) ** 3.0) + ops.sum(array.read(2)) * ops.sum(array.read(1) * array.read(1))
    plain = ops.sum(x[:3] ** 3.0) + ops.sum(x * 3.0) * ops.sum((x[:1] * 2.0) ** 2.0)
    assert_same(derivatives(total, [x], 2), derivatives(plain, [x], 2), {x: X})


def test_a_slot_written_again_and_again(x: ab.Tensor):
    array = ab.TensorArray("float64", 2).write(0, x[0]).write(1, x[1])
    kept = [array]
    for row in (2, 3):
        kept.append(kept[-1].write(0, kept[-1].read(0) * x[row]).write(1, kept[-1].read(0)))
    plain = [(x[0], x[1]), (x[0] * x[2], x[0]), (x[0] * x[2] * x[3], x[0] * x[2])]
    for version, (first, second) in zip(kept, plain, strict=True):
        compare(version.stack(), ops.stack([first, second]), x)
    total = sum(ops.sum(version.read(0) * version.read(1)) for version in kept)
    wanted = sum(ops.sum(first * second) for first, second in plain)
    assert_same(derivatives(total, [x], 2), derivatives(wanted, [x], 2), {x: X})


def test_two_arrays_grow_out_of_one(x: ab.Tensor):
    start = ab.TensorArray("float64", 2).write(0, x[0])
    left, right = start.write(1, x[1] * x[1]), start.write(1, x[2])
    compare(left.stack() * right.stack(), ops.stack([x[0] * x[0], x[1] * x[1] * x[2]]), x)


def test_one_element_read_in_every_iteration(x: ab.Tensor):
    array = ab.TensorArray("float64", 4).unstack(x)

    def step(i: Any, h: Any) -> Any:
        return ops.sin(h * array.read(0)) + array.read(i) * array.read(ops.mod(i + 1, 4))

    def plain(i: int, h: Any) -> Any:
        return ops.sin(h * x[0]) + x[i] * x[(i + 1) % 4]

    assert_same(derivatives(repeat(4, step, x[1]), [x], 2), derivatives(unrolled(4, plain, x[1]), [x], 2), {x: X})


def test_elements_overwritten_in_a_loop(x: ab.Tensor):
    array = ab.TensorArray("float64", 4).unstack(x)

    def step(i: Any, array: Any) -> Any:
        return array.write(ops.mod(i * 3, 4), array.read(ops.mod(i, 4)) * 0.5 + array.read(0)).write(
            0, ops.sin(array.read(1))
        )

    def plain(i: int, rows: list[Any]) -> list[Any]:
        changed = list(rows)
        changed[i * 3 % 4] = rows[i % 4] * 0.5 + rows[0]
        changed[0] = ops.sin(rows[1])
        return changed

    loop = derivatives(repeat(7, step, array).stack(), [x], 2)
    straight = derivatives(ops.stack(unrolled(7, plain, [x[k] for k in range(4)])), [x], 2)
    assert_same(loop, straight, {x: X})


def test_elements_of_several_shapes_do_not_share_memory_with_what_was_written():
    x = ab.placeholder((4,), "float32", "x")
    wave = ops.sin(x)
    array = ab.TensorArray("float32", 2, element_shape=(None,)).write(0, x[:2]).write(1, wave)
    other = ops.relu(wave * 2 - 1) + 3  # may be written over `wave`
    at = np.arange(4, dtype="float32")
    read, _ = run([ops.concatenate([array.read(1), ops.flip(other, 0)]), other], {x: at})
    np.testing.assert_allclose(read[:4], np.sin(at), rtol=1e-6)

    v = ab.Variable(at)
    array = ab.TensorArray("float32", 2, element_shape=(None,)).write(0, x[:2]).write(1, v.value)
    write = v.assign(v * 2 + 1)
    read, _ = ab.Session().run([array.read(1) * 1, write], {x: at})
    np.testing.assert_array_equal(read, at)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda a: a.write(4, [1.0, 2.0]).size(), IndexError, r"index 4 is out of range for size 2.*dynamic_size=True"),
        (lambda a: a.write(-1, [1.0, 2.0]).size(), IndexError, r"index -1 is out of range for size 2"),
        (lambda a: a.read(1), IndexError, r"element 1 is read but was never written"),
        (lambda a: a.read(7), IndexError, r"index 7 is out of range for size 2"),
    ],
)
def test_errors_at_run_time(make: Callable[[ab.TensorArray], Any], error: type[Exception], message: str):
    fails(error, message, make(ab.TensorArray("float32", 2)))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ab.TensorArray("float32"), ValueError, r"needs a size, or dynamic_size=True"),
        (lambda: ab.TensorArray("float32", 2).write(0.5, 1.0), TypeError, r"index must be an integer, got float32"),
        (
            lambda: ab.TensorArray("float32", 2).read([0, 1]),
            ValueError,
            r"must be a scalar, got shape \[2\]\. See gather",
        ),
        (lambda: ab.TensorArray("float32", 2).write(0, np.int8(1)), TypeError, r"of float32 elements: a int8 value"),
        (lambda: ab.TensorArray("float32", 2).write(0, "a"), TypeError, r"of float32 elements: a string value"),
        (
            lambda: ab.TensorArray("float32", 2, element_shape=(3,)).write(0, [1.0]),
            ValueError,
            r"write: the elements were declared as \[3\], but the value has shape \[1\]",
        ),
    ],
)
def test_misuse(make: Callable[[], Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()


def test_settings_and_texts():
    array = ab.TensorArray("float32", 2, element_shape=(None, 3), name="rows")
    assert (array.dtype, array.element_shape, array.identity().flow) == ("float32", (None, 3), array.flow)
    assert repr(array).startswith("<TensorArray rows:0 ")
    assert run([array.size(), ab.TensorArray("int8", dynamic_size=True).size()]) == [2, 0]


# --- the values behind them -----------------------------------------------------------------------------------------


def contents(value: ArrayValue) -> list[Any]:
    return [None if value.read_or_none(k) is None else value.read_or_none(k).tolist() for k in range(value.size)]


@settings(max_examples=examples(50, 200), deadline=None)
@given(st.integers(0, 4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 5)), max_size=25))
def test_values_never_change(size: int, steps: list[tuple[int, int, int]]):
    """Any history of writes to any earlier value, against lists."""
    values = [ArrayValue.empty(size)]
    wanted: list[list[Any]] = [[None] * size]
    for number, (kind, source, index) in enumerate(steps):
        value, before = values[source % len(values)], wanted[source % len(values)]
        row = np.full(2 if number % 5 else 3, float(number))
        after: list[Any] = [*before, *[None] * (index + 1 - len(before))]
        if kind == 0:
            values.append(value.write(index, row, dynamic_size=True))
            after[index] = row.tolist()
        elif kind == 1:
            row = row if after[index] is None else np.ones(len(after[index]))
            values.append(value.add_at(index, row))
            after[index] = (row + (after[index] or 0)).tolist()
        else:
            values.append(value.clear(index))
            after = [None if k == index else item for k, item in enumerate(before)]
        wanted.append(after)
        row[:] = -1  # what was written is not looked at again
        assert [contents(value) for value in values] == wanted
    for value, rows in zip(values, wanted, strict=True):
        assert value.nbytes == sum(8 * len(row) for row in rows if row is not None)
        if rows and None not in rows and len({len(row) for row in rows}) == 1:
            assert value.stack(None, "float64").tolist() == rows
            assert value.stack_like((len(rows), len(rows[0])), "float64").tolist() == rows


def test_views_that_were_handed_out_never_change():
    value = ArrayValue.from_stacked(np.arange(6.0).reshape(3, 2))
    stacked, row = value.stack((2,), "float64"), value.read(1)
    changed = value
    for number in range(10):
        changed = changed.add_at(1, np.ones(2)).write(0, np.full(2, float(number)))
    np.testing.assert_array_equal(stacked, np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(row, [2, 3])
    np.testing.assert_array_equal(changed.stack((2,), "float64"), [[9, 9], [12, 13], [4, 5]])


def test_rows_are_given_only_where_all_are_there():
    """Memory of slots that were added or handed out holds nothing yet."""
    value = ArrayValue.from_stacked(np.ones((3, 2)))
    assert value.rows().tolist() == [[1, 1]] * 3
    longer = value.grown(5)
    handed_out = ArrayValue.empty(2)
    handed_out.slot(0, (2,), np.dtype("float64"))
    for unwritten in (longer, handed_out):
        assert unwritten.rows() is None
        assert not unwritten.is_dense
        with pytest.raises(IndexError, match="never written"):
            unwritten.stack((2,), "float64")
    assert (ArrayValue.empty(2).is_unwritten, handed_out.is_unwritten, value.is_unwritten) == (True, False, False)


def test_writing_over_elements_copies_seldom(monkeypatch: pytest.MonkeyPatch):
    copies = 0
    original = ArrayValue._copy

    def counted(self: ArrayValue) -> ArrayValue:
        nonlocal copies
        copies += 1
        return original(self)

    monkeypatch.setattr(ArrayValue, "_copy", counted)
    value = ArrayValue.from_stacked(np.zeros((100, 2)))
    for number in range(1000):
        value = value.add_at(number * 7 % 100 if number % 2 else 0, np.ones(2))
    assert copies <= 1000 / 100
    assert value.stack((2,), "float64").sum() == 2000


def test_gradients_of_reads_add_no_whole_arrays(x: ab.Tensor):
    """Contributions of single elements wait for the cotangent of the rest: they are added to that one in place."""
    array = ab.TensorArray("float64", 4).unstack(x)

    def step(i: Any, array: Any) -> Any:
        return array.write(i, array.read(0) * array.read(i))

    (slope,) = ab.gradients(ops.sum(repeat(4, step, array).stack()), [x])
    assert "array_sum" not in ab.explain(slope, [x])


def test_arrays_of_numpy_become_of_the_dtype_as_for_variables():
    wide = np.array([[1.5, 2.5], [3.5, 4.5]])
    array = ab.TensorArray("float32", 2).unstack(wide).write(0, wide[1]).scatter([1], wide[:1])
    found = ab.Session().run(array.stack())
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wide[::-1])
    assert ab.Session().run(ab.TensorArray("int32", 1).write(0, np.int64(3)).read(0)).dtype == np.int32
    with pytest.raises(TypeError, match=r"TensorArray of int32 elements: a float64 value was written"):
        ab.TensorArray("int32", 1).write(0, np.array([3.5]))
    with pytest.raises(TypeError, match=r"TensorArray of float32 elements: a float64 value was written"):
        ab.TensorArray("float32", 1).write(0, ab.constant(wide))


def test_scalars_of_unknown_rank_are_not_concatenated():
    x = ab.placeholder(None, "float32")
    whole = ab.TensorArray("float32", 1).write(0, x).concat()
    fails(ValueError, r"concat: the elements are scalars, which have no axis; use stack\(\)", whole, {x: 1.0})
