"""Memory that loops hold: which values are in shared memory, are computed again, or stay where they are used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.host import memory
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.ops.containers.array_value import ArrayValue
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.loops import before
from anabranch.engine.passes.memory import cheap
from anabranch.engine.runtime.records import RecordBeside

needs_kernels = pytest.mark.skipif(not library.usable, reason="needs compiled kernels")
needs_allocator = pytest.mark.skipif(memory._allocator.capsule() is None, reason="needs the engine's allocator")

STEPS, UNITS = 5, 16
FLOAT32 = np.dtype("float32")


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype("float32") * np.float32(0.5)


# --- a variable beside an array --------------------------------------------------------------------------------------


def fill(record: RecordBeside, array: ArrayValue, first: Any, values: Any) -> ArrayValue:
    """Record `first` and all `values` but the last, each of which is written into the array before."""
    carried = first
    for index, value in enumerate(values):
        slot = array.slot(index, value.shape, value.dtype)
        slot[...] = value
        record.append(carried)
        array, carried = array.write(index, slot), slot
    return array


def test_a_variable_that_an_array_gathers_has_its_memory():
    array, values = ArrayValue.empty(4), draw(4, 3)
    record = RecordBeside((3,), FLOAT32, array, 4)
    first = draw(3, seed=1)
    array = fill(record, array, first, values)
    stacked = array.stack((3,), FLOAT32)
    np.testing.assert_array_equal(stacked, values)
    np.testing.assert_array_equal(record.rows(), np.stack([first, *values[:-1]]))
    assert record.nbytes == 4 * 3 * 4
    assert np.shares_memory(record.rows(), stacked)


def test_another_value_moves_the_rows():
    array, values = ArrayValue.empty(4), draw(4, 3)
    record = RecordBeside((3,), FLOAT32, array, 2)
    array = fill(record, array, values[3], values[:2])
    for other in (values[0], array.read(0), values[2]):  # equal to a slot, another slot, and neither
        record.append(other)
    wanted = np.stack([values[3], values[0], values[0], values[0], values[2]])
    np.testing.assert_array_equal(record.rows(), wanted)
    assert not np.shares_memory(record.rows(), array.read(0))
    np.testing.assert_array_equal(array.read(1), values[1])


def test_an_array_that_holds_something_keeps_its_memory_to_itself():
    array = ArrayValue.empty(3).write(0, draw(2))
    record = RecordBeside((2,), FLOAT32, array, 3)
    array = fill(record, array, draw(2, seed=1), [])
    record.append(array.read(0))
    assert not np.shares_memory(record.rows(), array.read(0))
    np.testing.assert_array_equal(record.rows(), array.read(0)[None])


@pytest.mark.parametrize("size", [0, 1, 2])
def test_more_values_than_slots(size: int):
    record = RecordBeside((2,), FLOAT32, ArrayValue.empty(size), size)
    values = draw(4, 2)
    for value in values:
        record.append(value)
    np.testing.assert_array_equal(record.rows(), values)


# --- loops -----------------------------------------------------------------------------------------------------------


class Cell:
    """Gradients of a gated recurrence over `STEPS` steps, with the text of the step."""

    def __init__(self, rows: int = 16) -> None:
        with ab.Graph().as_default():
            x = ab.placeholder((STEPS, rows, UNITS), "float32", "x")
            weights = [ab.Variable(draw(UNITS, 3 * UNITS, seed=k), name=f"w{k}") for k in (1, 2)]
            self.fetches = [*self._build(x, weights, rows)]
            self.feed = {x: draw(STEPS, rows, UNITS)}
            self.text = ab.explain(self.fetches, lines=False)
            self.values = ab.Session().run(self.fetches, self.feed)

    def _build(self, x: Any, weights: list[Any], rows: int) -> Iterator[Any]:
        inputs = ab.TensorArray("float32", size=STEPS).unstack(x)
        outputs = ab.TensorArray("float32", size=STEPS, element_shape=(rows, UNITS))
        zeros = ops.zeros((rows, UNITS))

        def body(t: Any, h: Any, c: Any, outputs: Any) -> tuple[Any, ...]:
            z = inputs.read(t) @ weights[0] + h @ weights[1]
            keep, take, give = ops.split(z, 3, axis=-1)
            c = ops.sigmoid(keep) * c + ops.sigmoid(take)
            h = ops.sigmoid(give) * ops.tanh(c)
            return t + 1, h, c, outputs.write(t, h)

        result = ab.while_loop(lambda t, *_: t < STEPS, body, (0, zeros, zeros, outputs))[3].stack()
        yield result
        yield from ab.gradients(ops.sum(result * result), [x, *weights])


def assert_same(found: Cell, wanted: Cell) -> None:
    for one, other in zip(found.values, wanted.values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def loops_of(text: str) -> list[str]:
    """The text of each loop, and of what comes before the next."""
    return text.split("while ")[1:]


def test_outputs_and_the_operand_of_the_weight_gradient_share_memory():
    with without("memory"):
        plain = Cell()
    shared = Cell()
    assert "RecordBeside(" in shared.text
    assert "RecordBeside(" not in plain.text
    for one, other in zip(shared.values, plain.values, strict=True):
        np.testing.assert_array_equal(one, other)


@needs_kernels
def test_what_is_cheap_is_computed_again(monkeypatch: pytest.MonkeyPatch):
    usual = Cell()
    monkeypatch.setattr(cheap, "_LARGE", 1)
    less = Cell()
    assert less.text.count("saved_") < usual.text.count("saved_")
    assert_same(less, usual)
    with without("memory"):
        assert Cell().text.count("= []") > less.text.count("= []")


@needs_kernels
def test_a_step_that_is_exact_saves_what_it_used_to(monkeypatch: pytest.MonkeyPatch):
    with without("fuse"):
        usual = Cell()
        monkeypatch.setattr(cheap, "_LARGE", 1)
        assert Cell().text == usual.text


@needs_kernels
def test_second_order_with_values_computed_again(monkeypatch: pytest.MonkeyPatch):
    def slopes() -> list[Any]:
        with ab.Graph().as_default():
            x = ab.placeholder((4, 4), "float64", "x")
            y = ab.while_loop(lambda t, h: t < 4, lambda t, h: (t + 1, ops.tanh(h * h + ops.sin(h)) + 0.5 * h), (0, x))[
                1
            ]
            first = ab.gradients(ops.sum(y), [x])[0]
            second = ab.gradients(ops.sum(first * first), [x])[0]
            return ab.Session().run([y, first, second], {x: draw(4, 4).astype("float64")})

    usual = slopes()
    monkeypatch.setattr(cheap, "_LARGE", 1)
    for found, wanted in zip(slopes(), usual, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_large_products_of_many_rows_stay_in_the_loop(monkeypatch: pytest.MonkeyPatch):
    usual = Cell()
    monkeypatch.setattr(before, "_LARGE", 1)
    few = Cell()  # of few rows: one product of all is faster
    assert few.text == usual.text
    assume(monkeypatch, full_speed_rows=16)
    many = Cell()
    assert many.text != usual.text
    assert_same(many, usual)
    with without("memory"):
        hoisted = Cell()
    assert "flatten_rows" in hoisted.text.split("while ")[0]
    assert "flatten_rows" not in many.text.split("while ")[0]


# --- kept memory -----------------------------------------------------------------------------------------------------


LARGE_AND_SMALL = """
import numpy as np
from anabranch.engine.codegen.host import memory

def kept_of_four_blocks():
    blocks = [np.empty(1 << 24, "uint8") for _ in range(4)]
    del blocks
    return memory.kept_bytes()

with memory.KeptMemory():
    used = np.empty(memory._MOST_IN_ALL + (1 << 20), "uint8")  # never touched: the system gives no page
    assert kept_of_four_blocks() <= memory._ALWAYS_KEPT
    del used
    assert kept_of_four_blocks() >= 1 << 26
memory.release_memory()
assert memory.kept_bytes() == 0
"""


@needs_allocator
def test_little_is_kept_beside_much_that_is_used():
    """Run in a process of its own: what other tests use counts, too."""
    done = subprocess.run([sys.executable, "-c", LARGE_AND_SMALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- transposed operands ---------------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 1, 5), (0, 4, 5)])
def test_a_transposed_operand_is_laid_out_in_the_memory_of_the_result(shape: tuple[int, ...]):
    def losses() -> tuple[list[Any], str]:
        with ab.Graph().as_default():
            x, y = ab.placeholder(shape, "float32", "x"), ab.placeholder((shape[1], shape[0], shape[2]), "float32", "y")
            difference = ops.transpose(x, (1, 0, 2)) - y
            fetches = [ops.sum(difference**2), ops.exp(difference) * difference]
            fed = {x: draw(*shape), y: draw(shape[1], shape[0], shape[2], seed=1)}
            return ab.Session().run(fetches, fed), ab.explain(fetches, lines=False)

    found, text = losses()
    with without("memory"):
        plain, without_memory = losses()
    assert "lay_out(" not in without_memory
    assert ("lay_out(" in text) == (shape == (3, 4, 5))
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
