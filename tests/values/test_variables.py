"""Variables outside of graphs, and random numbers. Each holds for Keras, too, where it has the names."""

from typing import Any

import numpy as np
import pytest
from shared.values import dtype_name_of, plain, same

import anabranch as k


def test_assign_of_values() -> None:
    v = k.Variable([1.0, 2.0])
    v.assign(v + 1)
    same(v, [2.0, 3.0])
    v.assign(k.ops.square(v) - v)
    same(v, [2.0, 6.0])


def test_chains_of_assignments() -> None:
    v = k.Variable(1.0)
    for step in range(5):
        v.assign_add(v * 0.5)
        v.assign_sub(k.ops.array(float(step)))
    total = 1.0
    for step in range(5):
        total = total * 1.5 - step
    same(v, np.float32(total))
    v.assign(k.ops.array(3.0))
    v.assign_add(v)
    assert float(v) == 6.0


def test_values_are_snapshots() -> None:
    v = k.Variable([1.0, 2.0])
    y = v * 1
    v.assign([5.0, 5.0])
    same(y, [1.0, 2.0])
    same(v * 1, [5.0, 5.0])


def test_variables_from_values() -> None:
    v = k.Variable(k.ops.array([1.0, 2.0]) * 2)
    w = k.Variable(k.ops.ones((2,)) + v, trainable=False)
    same(v + w, [5.0, 9.0])
    assert dtype_name_of(k.Variable(k.ops.array([1, 2]), dtype="float32")) == "float32"


def test_variables_compare_elementwise() -> None:
    v = k.Variable([1.0, 2.0])
    same(v == 2, [False, True])
    same(v != 2, [True, False])
    same(v > 1, [False, True])


def test_variables_index_and_convert() -> None:
    v = k.Variable([[1.0, 2.0], [3.0, 4.0]])
    same(v[0], [1.0, 2.0])
    same(k.ops.sum(v, axis=0), [4.0, 6.0])
    same(np.asarray(v), [[1.0, 2.0], [3.0, 4.0]])
    same(k.ops.convert_to_tensor(v)[1, 1], 4.0)
    assert float(k.Variable(2.0)) == 2.0


def test_random_numbers_at_once() -> None:
    x = k.random.normal((3,))
    same(np.asarray(x), np.asarray(x))
    assert not np.allclose(plain(x), plain(k.random.normal((3,))))
    same(k.random.uniform((4,), seed=7), plain(k.random.uniform((4,), seed=7)))


def test_seed_generators_advance() -> None:
    generator = k.random.SeedGenerator(11)
    before = plain(k.ops.convert_to_numpy(generator.state)).copy()
    first = plain(k.random.normal((3,), seed=generator))
    after = plain(k.ops.convert_to_numpy(generator.state))
    assert not np.array_equal(before, after), "the state has not changed"
    assert not np.allclose(first, plain(k.random.normal((3,), seed=generator)))
    same(k.random.normal((3,), seed=k.random.SeedGenerator(11)), first)


def test_what_assign_add_returns_depends_on_what_was_there() -> None:
    v = k.Variable([1.0, 2.0])
    with k.GradientTape() as tape:
        total = v.assign_add(v.value * 3.0)
    same(tape.gradient(total, v), [4.0, 4.0])
    with k.GradientTape() as tape:
        total = v.assign_sub(v.value * 3.0)
    same(tape.gradient(total, v), [-2.0, -2.0])


def test_read_value_is_a_tensor() -> None:
    """Reads count on a tape, and in a function at each call, as in TensorFlow."""
    v = k.Variable(3.0)
    with k.GradientTape() as tape:
        y = v.read_value() * 2.0
    assert float(tape.gradient(y, v)) == 2.0
    double = k.function(lambda: v.assign_add(v.read_value()))
    assert [float(double()) for _ in range(2)] == [6.0, 12.0]


@pytest.mark.parametrize("multiply", [lambda a, b: a * b, lambda a, b: b * a, k.ops.multiply], ids=["ab", "ba", "op"])
def test_variables_beside_values(multiply: Any) -> None:
    v, x = k.Variable([1.0, 2.0]), k.ops.convert_to_tensor([3.0, 4.0])
    with k.GradientTape() as tape:
        y = multiply(x, v)
    same(y, [3.0, 8.0])
    same(tape.gradient(y, v), [3.0, 4.0])
    wide = k.Variable([1, 2], dtype="int32")
    assert multiply(x, wide).dtype == "float32"
    with k.StatelessScope(state_mapping=[(v, k.ops.convert_to_tensor([5.0, 6.0]))]):
        same(multiply(x, v), [15.0, 24.0])


@pytest.mark.parametrize("number", [2, 2.0, True])
@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "bool"])
def test_numbers_before_values(number: Any, dtype: str) -> None:
    """A Python number promotes in the same way on either side."""
    x = k.ops.cast([1, 0], dtype)
    for op in (k.ops.add, k.ops.multiply, k.ops.divide, k.ops.maximum):
        assert op(number, x).dtype == op(x, number).dtype
    same(number + x, plain(x + number))
