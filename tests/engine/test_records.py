"""Results written where they are gathered: rows of histories, slots of TensorArrays; and what must not share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.runtime.program import Program
from anabranch.engine.runtime.records import Record

STEPS, ROWS, UNITS = 5, 8, 64


def row(number: float) -> np.ndarray:
    return np.full((ROWS, UNITS), number, "float32")


# --- the parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [0, 1, 3, 100])
def test_records_hold_copies_and_slots_in_order(expected: int):
    record = Record((ROWS, UNITS), np.dtype("float32"), expected)
    assert record.rows().shape == (0, ROWS, UNITS)
    for number in range(40):
        if number % 2:
            slot = record.slot()
            slot[...] = number
            record.append(slot)
        else:
            value = row(number)
            record.append(value)
            value[...] = -1
    assert record.rows()[:, 0, 0].tolist() == list(range(40))
    assert record.nbytes == 40 * ROWS * UNITS * 4


def test_what_was_not_appended_is_overwritten():
    record = Record((ROWS, UNITS), np.dtype("float32"))
    record.slot()[...] = 7
    record.append(row(1))
    assert record.rows()[:, 0, 0].tolist() == [1]


def test_a_slot_is_the_memory_of_the_array():
    array = ArrayValue.empty(3)
    slot = array.slot(1, (ROWS, UNITS), np.dtype("float32"))
    slot[...] = 5
    written = array.write(1, slot)
    assert written.read(1) is not None
    assert np.shares_memory(written.read(1), slot)
    assert not array.has(1)
    assert not written.has(0)


def test_values_of_an_array_keep_what_they_show():
    array = ArrayValue.empty(2).write(0, row(1))
    slot = array.slot(0, (ROWS, UNITS), np.dtype("float32"))  # taken: new memory
    slot[...] = 2
    later = array.write(0, slot)
    assert (array.read(0) == 1).all()
    assert (later.read(0) == 2).all()


@pytest.mark.parametrize(
    ("index", "shape", "dtype"),
    [(2, (8, 64), "float32"), (-1, (8, 64), "float32"), (0, (4, 64), "float32"), (0, (8, 64), "float64")],
)
def test_what_does_not_fit_is_new_memory(index: int, shape: tuple[int, ...], dtype: str):
    array = ArrayValue.empty(2).write(1, row(1))
    slot = array.slot(index, shape, np.dtype(dtype))
    assert (slot.shape, slot.dtype.name) == (shape, dtype)
    assert not np.shares_memory(slot, array.read(1))


def test_a_slot_of_one_index_is_copied_to_another():
    array = ArrayValue.empty(2)
    slot = array.slot(0, (ROWS, UNITS), np.dtype("float32"))
    slot[...] = 3
    assert (array.write(1, slot).read(1) == 3).all()


def test_the_second_stack_is_free():
    array = ArrayValue.from_list([row(1), row(2)])
    first, second = array.stack(None, "float32"), array.stack(None, "float32")
    assert np.shares_memory(first, second)
    assert (array.read(1) == 2).all()


# --- programs -------------------------------------------------------------------------------------------------------


def recurrent(x: Any, w: Any) -> tuple[Any, Any]:
    inputs = ab.TensorArray("float32", size=STEPS).unstack(x)
    outputs = ab.TensorArray("float32", size=STEPS, element_shape=(ROWS, UNITS))

    def body(t: Any, h: Any, outputs: Any) -> tuple[Any, ...]:
        h = ops.tanh(inputs.read(t) + h @ w)
        return t + 1, h, outputs.write(t, h)

    last = ab.while_loop(lambda t, *_: t < STEPS, body, (0, ops.zeros((ROWS, UNITS)), outputs))
    return last[1], last[2].stack()


def fed() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((STEPS, ROWS, UNITS)).astype("float32")
    return x, (rng.standard_normal((UNITS, UNITS)) / 8).astype("float32")


def test_loops_write_results_into_slots():
    with ab.Graph().as_default():
        x, w = (ab.placeholder(value.shape, "float32", name) for value, name in zip(fed(), "xw", strict=True))
        _, outputs = recurrent(x, w)
        slopes = ab.gradients(ops.sum(outputs**2), [x, w])
        session = ab.Session()
        values = session.run([outputs, *slopes], dict(zip((x, w), fed(), strict=True)))
        source = session.program([outputs, *slopes], [x, w]).source
        ab.config.set_passes(memory=False)
        try:
            plain = session.run([outputs, *slopes], dict(zip((x, w), fed(), strict=True)))
        finally:
            ab.config.set_passes(memory=True)
    assert ".slot(" in source
    for value, wanted in zip(values, plain, strict=True):
        assert value.tobytes() == wanted.tobytes()


@pytest.mark.usefixtures("loops_stay")
def test_a_slot_whose_number_is_a_constant():
    """The constant stands after the operation that writes into the slot."""
    with ab.Graph().as_default() as graph:
        x, count = ab.placeholder((4, 300), "float64"), ab.placeholder((), "int32")

        def body(i: Any, array: Any, value: Any) -> Any:
            value = ops.tanh(value * 1.1 + x)
            return i + 1, array.write(1, value), value

        array = ab.TensorArray("float64", 2).unstack([x, x])
        _, array, _ = ab.while_loop(lambda i, *_: i < count, body, (0, array, x))
        program, exact = (Program(graph, [array.stack()], [x, count], exact=exact) for exact in (False, True))
    assert ".slot(" in program.source
    given = np.linspace(-1, 1, 1200).reshape(4, 300)
    for number in range(3):
        np.testing.assert_allclose(program(given, np.int32(number)), exact(given, np.int32(number)), rtol=1e-12)


def test_fetches_share_no_memory():
    with ab.Graph().as_default():
        x, w = (ab.placeholder(value.shape, "float32", name) for value, name in zip(fed(), "xw", strict=True))
        last, outputs = recurrent(x, w)
        value, stacked = ab.Session().run([last, outputs], dict(zip((x, w), fed(), strict=True)))
    assert not np.shares_memory(value, stacked)
    np.testing.assert_array_equal(value, stacked[-1])


def test_variables_share_no_memory_with_arrays():
    """A value that a variable takes over must not be written over when the variable is updated, nor the array."""
    with ab.Graph().as_default():
        held = ab.Variable(row(0), name="held")
        outputs = ab.TensorArray("float32", size=STEPS, element_shape=(ROWS, UNITS))

        def body(t: Any, outputs: Any) -> tuple[Any, ...]:
            value = held * 2.0 + 1.0
            written = outputs.write(t, value)
            held.assign(value)
            return t + 1, written

        stacked = ab.while_loop(lambda t, _: t < STEPS, body, (0, outputs))[1].stack()
        found = ab.Session().run(stacked)
    assert found[:, 0, 0].tolist() == [1, 3, 7, 15, 31]
    assert (held.numpy() == 31).all()
