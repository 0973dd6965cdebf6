"""Operators, NumPy and Python on values. Each holds for Keras, too, where it has the names."""

import copy
import gc
import pickle  # noqa: TID251 - values are pickled by users
import threading
import tracemalloc
import weakref
from collections import deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.values import dtype_name_of, refused, same

import anabranch as k


def test_arithmetic() -> None:
    x = k.ops.array([1.0, 2.0, 3.0])
    same(x * 2 + 1, [3.0, 5.0, 7.0])
    same(10 - x, [9.0, 8.0, 7.0])
    same(6 / x, [6.0, 3.0, 2.0])
    same(x // 2, [0.0, 1.0, 1.0])
    same(x % 2, [1.0, 0.0, 1.0])
    same(x**2, [1.0, 4.0, 9.0])
    same(-x + abs(-x), [0.0, 0.0, 0.0])
    same(k.ops.reshape(x, (1, 3)) @ k.ops.reshape(x, (3, 1)), [[14.0]])


def test_dtypes_of_results() -> None:
    names = {
        "int + int": k.ops.array([1]) + 1,
        "int + float": k.ops.add(k.ops.array([1]), 1.5),
        "int / int": k.ops.true_divide(k.ops.array([1]), 2),
        "float32 + int32": k.ops.add(k.ops.array([1.0]), k.ops.array([1])),
        "float16 + float": k.ops.array([1.0], "float16") + 1.5,
        "float16 + float32": k.ops.add(k.ops.array([1.0], "float16"), k.ops.array([1.0], "float32")),
        "uint8 + int8": k.ops.add(k.ops.array([1], "uint8"), k.ops.array([1], "int8")),
        "bool + int": k.ops.add(k.ops.array([True]), 1),
        "less": k.ops.array([1.0]) < 2,
        "mean of ints": k.ops.mean(k.ops.array([1, 2])),
        "sum of bools": k.ops.sum(k.ops.array([True, True])),
        "exp of ints": k.ops.exp(k.ops.array([1])),
    }
    want = {
        "int + int": "int32",
        "int + float": "float32",
        "int / int": "float32",
        "float32 + int32": "float32",
        "float16 + float": "float16",
        "float16 + float32": "float32",
        "uint8 + int8": "int16",
        "bool + int": "int32",
        "less": "bool",
        "mean of ints": "float32",
        "sum of bools": "int32",
        "exp of ints": "float32",
    }
    got = {name: dtype_name_of(value) for name, value in names.items()}
    assert got == want, {name: (got[name], want[name]) for name in want if got[name] != want[name]}


def test_numpy_on_the_left() -> None:
    x = k.ops.array([1.0, 2.0])
    same(np.float32(2) * x, [2.0, 4.0])
    same(np.array([1.0, 1.0], "float32") + x, [2.0, 3.0])
    same(k.ops.sum(np.array([1.0, 1.0], "float32") - x), -1.0)


def test_comparisons() -> None:
    x = k.ops.array([1.0, 2.0, 3.0])
    same(x < 2, [True, False, False])
    same(x >= 2, [False, True, True])
    same(x > 2, [False, False, True])
    same(k.ops.where(x > 1.5, x, -x), [-1.0, 2.0, 3.0])


def test_equality_is_elementwise() -> None:
    x = k.ops.array([1.0, 2.0, 1.0])
    same(x == 1, [True, False, True])
    same(x != 1, [False, True, False])
    same(1 == x, [True, False, True])  # noqa: SIM300 - the reflected form
    same(x == k.ops.array([1.0, 1.0, 1.0]), [True, False, True])
    same(k.ops.array([1, 2]) == k.ops.array([1, 3]), [True, False])


def test_equality_counts_in_sums() -> None:
    labels, found = k.ops.array([0, 1, 2, 1]), k.ops.array([0, 1, 1, 1])
    assert float(k.ops.mean(k.ops.cast(labels == found, "float32"))) == 0.75


def test_masks_are_logical() -> None:
    x = k.ops.array([1.0, 2.0, 3.0])
    same((x > 1) & (x < 3), [False, True, False])
    same((x < 2) | (x == 3), [True, False, True])
    same(~(x > 1), [True, False, False])


def test_in_place_operators_make_new_values() -> None:
    x = k.ops.array([1.0, 2.0])
    before = x
    x += 1
    x *= 2
    same(x, [4.0, 6.0])
    same(before, [1.0, 2.0])


def test_indexing() -> None:
    x = k.ops.reshape(k.ops.arange(6, dtype="float32"), (2, 3))
    same(x[0], [0.0, 1.0, 2.0])
    same(x[-1, 1:], [4.0, 5.0])
    same(x[:, None, 0], [[0.0], [3.0]])
    same(x[..., -1], [2.0, 5.0])
    assert float(x[1, 2]) == 5.0


def test_indexing_by_masks_and_positions() -> None:
    x = k.ops.array([1.0, 2.0, 3.0])
    same(x[x > 1], [2.0, 3.0])
    same(x[np.array([0, 2])], [1.0, 3.0])
    same(x[k.ops.array([2, 0])], [3.0, 1.0])


KEYS_WITH_MASKS: dict[str, Callable[[Any], Any]] = {
    "x[mask]": lambda mask: mask,
    "x[:, mask]": lambda mask: (slice(None), mask),
    "x[..., mask]": lambda mask: (..., mask),
    "x[None, mask]": lambda mask: (None, mask),
    "x[0, mask]": lambda mask: (0, mask),
    "x[mask, 0]": lambda mask: (mask, 0),
    "x[..., mask, 0]": lambda mask: (..., mask, 0),
    "x[:1, ..., mask]": lambda mask: (slice(0, 1), ..., mask),
}


@pytest.mark.parametrize("key", KEYS_WITH_MASKS)
@pytest.mark.parametrize("size", [(5,), (4,), (1,), (0,), (3,), (5, 3), (5, 1), (1, 3), (3, 4), (5, 3, 4)])
def test_masks_have_to_fit(size: tuple[int, ...], key: str) -> None:
    numbers, key_of = np.arange(60.0).reshape(5, 3, 4), KEYS_WITH_MASKS[key]
    mask = np.arange(np.prod(size)).reshape(size) % 2 == 0
    try:
        expected = numbers[key_of(mask)]
    except IndexError:
        for given in (mask, k.ops.array(mask)):
            with pytest.raises(
                IndexError, match=r"does not fit float64\[5,3,4\]: axis \d has|Too many indices|broadcast"
            ):
                k.ops.array(numbers)[key_of(given)]
    else:
        same(k.ops.array(numbers)[key_of(k.ops.array(mask))], expected)


def test_iteration_and_unpacking() -> None:
    assert [float(item) for item in k.ops.array([1.0, 2.0])] == [1.0, 2.0]
    first, second = k.ops.array([[1.0, 2.0], [3.0, 4.0]])
    same(first + second, [4.0, 6.0])
    assert len(k.ops.array([[1.0], [2.0], [3.0]])) == 3
    assert [float(a * b) for a, b in zip(k.ops.array([1.0, 2.0]), k.ops.array([3.0, 4.0]), strict=True)] == [3.0, 8.0]


def test_python_numbers() -> None:
    total = k.ops.sum(k.ops.array([1.0, 2.5]))
    assert float(total) == 3.5
    assert int(total) == 3
    assert list(range(k.ops.array(3))) == [0, 1, 2]
    assert ["a", "b", "c"][k.ops.array(1)] == "b"
    assert isinstance(float(total), float)
    assert isinstance(int(total), int)


def test_truth() -> None:
    x = k.ops.array([1.0, -2.0])
    assert ("more" if k.ops.sum(x) > 0 else "less") == "less"
    assert bool(k.ops.array(1.0))
    assert not bool(k.ops.array(0))
    refused(lambda: bool(x > 0))


def test_text_shows_the_numbers() -> None:
    x = k.ops.array([1.5, 2.5])
    assert repr(x) == "Tensor([1.5, 2.5], dtype=float32)"
    assert str(x) == "[1.5 2.5]"
    assert "4." in str(x[0] + x[1]), str(x[0] + x[1])


def test_format_specifications() -> None:
    loss = k.ops.mean(k.ops.array([1.0, 1.5]))
    assert f"{loss:.2f}" == "1.25"
    assert f"{float(loss):8.3f}" == "   1.250"


def test_numpy_takes_values_in_any_sequence() -> None:
    """Those in named tuples, such as states of cells, in deques and in arrays of objects made NumPy call itself."""
    x, y = k.ops.array([1.0, 2.0]), k.ops.array([3.0, 4.0])
    objects = np.empty(2, object)
    objects[:] = x, y
    for pair in (namedtuple("Pair", "first second")(x, y), deque([x, y]), objects, [x, y]):
        same(np.hstack(pair), [1.0, 2.0, 3.0, 4.0])


def test_numpy_takes_values() -> None:
    x = k.ops.array([1.0, 2.0]) * 2
    same(np.asarray(x), [2.0, 4.0])
    assert np.asarray(x).dtype == np.float32
    assert np.array(x, dtype="float64").dtype == np.float64
    same(np.stack([x, x]), [[2.0, 4.0], [2.0, 4.0]])
    same(np.concatenate([x, np.ones(1, "float32")]), [2.0, 4.0, 1.0])
    np.testing.assert_allclose(x, [2.0, 4.0])
    assert np.array_equal(x, [2.0, 4.0])
    target = np.zeros(2, "float32")
    target[:] = x
    same(target, [2.0, 4.0])


def test_numpy_functions() -> None:
    x = k.ops.array([1.0, 3.0]) + 0
    assert float(np.sum(x)) == 4.0
    assert float(np.mean(x)) == 2.0
    assert float(np.max(x)) == 3.0
    same(np.exp(x), np.exp([1.0, 3.0]))
    same(np.where(np.asarray(x) > 2, x, 0.0), [0.0, 3.0])
    same(np.clip(x, 0, 2), [1.0, 2.0])
    same(np.dot(x, x), 10.0)


def test_convert_to_numpy() -> None:
    got = k.ops.convert_to_numpy(k.ops.array([1.0, 2.0]) * 2)
    assert type(got) is np.ndarray
    same(got, [2.0, 4.0])
    assert k.ops.is_tensor(k.ops.array([1.0]) + 1)
    same(k.ops.convert_to_tensor(k.ops.array([1.0]) + 1, "int32"), np.array([2], "int32"))


def test_shapes_are_known() -> None:
    x = k.ops.matmul(k.ops.ones((2, 3)), k.ops.ones((3, 4)))
    assert x.shape == (2, 4)
    assert x.ndim == 2
    assert tuple(k.ops.shape(x)) == (2, 4)
    chosen = k.ops.nonzero(k.ops.array([0.0, 1.0, 2.0]))[0]  # a shape that follows from the numbers
    assert chosen.shape == (2,)


def test_methods_of_arrays() -> None:
    x = k.ops.array([[1.25, 2.5], [3.0, 4.0]])
    assert float(x.sum()) == 10.75
    assert float(x.mean()) == 2.6875
    assert float(x.max()) == 4.0
    same(x.reshape((4,)), [1.25, 2.5, 3.0, 4.0])
    same(x.T, [[1.25, 3.0], [2.5, 4.0]])
    same(x.astype("int32"), np.array([[1, 2], [3, 4]], "int32"))
    same(round(x[0, 0], 1), 1.2)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "float16", "int64"])
@pytest.mark.parametrize("method", ["sum", "prod"])
def test_reductions_have_the_dtype_that_is_asked_for(method: str, dtype: str) -> None:
    x = np.array([200, 100, 3], "uint8")
    found, expected = getattr(k.ops.array(x), method)(dtype=dtype), getattr(x, method)(dtype=dtype)
    assert found.dtype == expected.dtype
    assert found == expected


def test_scalars_have_no_axes() -> None:
    x = k.ops.array(2.5)
    for index in (0, slice(None), (..., 0)):
        with pytest.raises(IndexError, match=r"Too many indices for float32\[\]: it has 0 axes, but 1 were indexed"):
            x[index]
    same(x[...], 2.5)
    same(x[None], [2.5])
    for misplaced in (lambda: k.ops.flip(x, 0), lambda: k.ops.argsort(x, 1)):
        with pytest.raises(ValueError, match="is out of range for an input of rank"):
            misplaced()


def test_items_and_lists() -> None:
    assert k.ops.sum(k.ops.array([1.0, 2.0])).item() == 3.0
    assert (k.ops.array([1, 2]) + 1).tolist() == [2, 3]
    assert k.ops.array([1.0, 2.0]).item(1) == 2.0
    with pytest.raises(TypeError, match=r"A tensor of shape \[2\] can't become a Python number: expected one element"):
        k.ops.array([1.0, 2.0]).item()


def test_hashing_is_by_identity() -> None:
    x, y = k.ops.array([1.0, 2.0]), k.ops.array([1.0, 2.0])
    names = {x: "x", y: "y"}
    assert names[x] == "x"
    assert names[y] == "y"
    assert len({x, y, x}) == 2
    assert hash(x) == hash(x)


def test_pickling_and_copies() -> None:
    x = k.ops.array([1.0, 2.0]) * 2
    same(pickle.loads(pickle.dumps(x)), [2.0, 4.0])
    same(copy.deepcopy({"x": [x]})["x"][0] + 1, [3.0, 5.0])


def test_values_do_not_change_with_their_source() -> None:
    source = np.array([1.0, 2.0], "float32")
    x = k.ops.array(source)
    source[:] = 0
    same(x, [1.0, 2.0])
    handed_out = np.array(x)
    handed_out[:] = 5
    same(x, [1.0, 2.0])
    view = np.asarray(x)
    if view.flags.writeable:
        view[:] = 5
    same(x, [1.0, 2.0])


def test_errors_come_at_once() -> None:
    refused(lambda: k.ops.matmul(k.ops.ones((2, 3)), k.ops.ones((2, 3))))
    refused(lambda: k.ops.array([1.0, 2.0]) + k.ops.array([1.0, 2.0, 3.0]))


def test_empty_values() -> None:
    x = k.ops.zeros((0, 3))
    assert float(k.ops.sum(x)) == 0.0
    assert k.ops.sum(x, axis=0).shape == (3,)
    assert len(x) == 0
    assert not list(x)


def test_narrow_floats() -> None:
    x = k.ops.cast(k.ops.array([1.0, 2.5]), "bfloat16") * 2
    assert dtype_name_of(x) == "bfloat16"
    same(k.ops.cast(x, "float32"), [2.0, 5.0])


def test_strings() -> None:
    words = k.constant(["a", "bc"])
    same(words == "a", [True, False])
    assert [str(word) for word in np.asarray(words)] == ["a", "bc"]


def test_memory_is_released() -> None:
    x = k.ops.ones((1000,))
    y = x * 2
    seen = weakref.ref(y)
    del y
    gc.collect()
    assert seen() is None
    z = x + 0
    for _ in range(500):
        z = z * 0.5 + 1
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10_000):
            z = z * 0.5 + 1
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000, f"20,000 operations have left {grown} bytes, more than a byte each"


def test_small_values_take_few_bytes_and_give_them_back() -> None:
    x = k.ops.ones((3,))
    held: list[object] = [x + 1 for _ in range(1000)]  # what the first calls import and keep is there then
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for position in range(len(held)):
            held[position] = x + 1
        taken = tracemalloc.get_traced_memory()[0] - before
        held.clear()
        gc.collect()
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / 1000 <= 300
    assert left < 10_000  # a hundredth of a value each, of what Python itself keeps


def test_threads_compute_side_by_side() -> None:
    found, wrong = {}, []

    def work(number):
        try:
            x = k.ops.full((100,), float(number))
            for _ in range(100):
                x = x * 0.5 + number
            found[number] = float(k.ops.sum(x))
        except Exception as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong
    same(np.array([found[number] for number in range(4)], "float32"), [0.0, 200.0, 400.0, 600.0], 1e-4)


def test_checks_of_numbers_and_indices_see_ops_on_values() -> None:
    x = k.ops.convert_to_tensor([1.0, 0.0])
    with k.debugging.check_numerics(), pytest.raises(FloatingPointError, match="'log' gives an infinity in 1 of 2"):
        k.ops.log(x)
    with k.debugging.check_indices(), pytest.raises(IndexError, match="'one_hot' leaves out 1 of 2 ids"):
        k.ops.one_hot([0, 3], 3)
    same(k.ops.log(x), [0.0, -np.inf])
    same(k.ops.one_hot([0, 3], 3), [[1, 0, 0], [0, 0, 0]])


def test_a_list_with_slices_indexes_as_a_tuple() -> None:
    x = np.arange(24.0, dtype="float32").reshape(2, 3, 4)
    tensor = k.ops.convert_to_tensor(x)
    for key in ([slice(None), None, slice(1, None)], [..., 0], [None, 1]):
        same(tensor[key], x[tuple(key)])
        same(k.function(lambda given, key=key: given[key])(x), x[tuple(key)])
    same(tensor[[1, 0]], x[[1, 0]])
    with pytest.raises(IndexError, match="Too many indices"):
        tensor[[slice(None)] * 4]
