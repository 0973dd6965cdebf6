"""Values of variables that are computed when they are needed, beside writes by other threads at the same moment."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from shared.waiting import PATIENCE

import anabranch as ab
from anabranch.engine.common.dtypes import as_dtype
from anabranch.engine.graph.state.initial_values import Later
from anabranch.engine.graph.state.writing_rows import memory_of, write_in_memory

START = np.arange(6, dtype="float32").reshape(3, 2)


class Halves(Later):
    """The value as its halves; something happens each time that it is computed."""

    def __init__(self, value: Any = START, meanwhile: Any = lambda: None) -> None:
        self.dtype = as_dtype("float32")
        self.halves, self.meanwhile, self.computed = value / 2, meanwhile, 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.halves.shape

    def compute(self) -> Any:
        self.computed += 1
        value = self.halves * 2
        self.meanwhile()
        return value


def store(variable: ab.Variable, meanwhile: Any = lambda: None, is_taken_out: bool = True) -> Later | None:
    """Keep the value as its halves, and call a function while these are made."""

    def make(array: Any, known: Later | None) -> tuple[Later, bool]:
        form = Halves(array)
        meanwhile()
        return form, is_taken_out

    with variable.lock:
        return variable.store_as(make)


class Writer:
    """A thread that writes 9 in the first row of a variable, in its memory, until `let_end` is called."""

    def __init__(self, variable: ab.Variable) -> None:
        self._variable = variable
        self._has_begun, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=write_in_memory, args=([variable], self._write))

    def begin(self) -> None:
        self._thread.start()
        assert self._has_begun.wait(PATIENCE)

    def end(self) -> None:
        self._may_end.set()
        self._thread.join()

    def let_end(self) -> None:
        self._may_end.set()

    def _write(self) -> None:
        self._has_begun.set()
        assert self._may_end.wait(PATIENCE)
        memory_of(self._variable)[0] = 9


class Meeting:
    """The lock of a variable. Before it is taken for the first time, and after it is given back, a function is called.

    Args:
        before, after: the functions.
    """

    def __init__(self, before: Any, after: Any) -> None:
        self._lock, self._before, self._after = threading.RLock(), [before], [after]

    def __enter__(self) -> None:
        if self._before:
            self._before.pop()()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._after:
            self._after.pop()()


def test_a_form_takes_the_place_of_the_value():
    variable = ab.Variable(START)
    form = store(variable)
    assert variable.first_value is form
    np.testing.assert_array_equal(variable.numpy(), START)


def test_a_value_that_is_assigned_while_a_form_is_made_stays():
    variable = ab.Variable(START)
    form = store(variable, lambda: variable.assign(START + 1))
    assert form is not None
    np.testing.assert_array_equal(form.compute(), START)  # who asked for it had read the value before
    assert variable.first_value is None
    np.testing.assert_array_equal(variable.numpy(), START + 1)
    form = store(variable)  # the variable is free again
    assert variable.first_value is form
    np.testing.assert_array_equal(variable.numpy(), START + 1)


def test_a_value_that_is_assigned_while_the_earlier_one_is_computed_stays():
    variable = ab.Variable(Halves(meanwhile=lambda: variable.assign(START + 1)))
    assert variable.first_value is not None
    np.testing.assert_array_equal(variable.numpy(), START + 1)
    np.testing.assert_array_equal(variable.numpy(), START + 1)


def test_no_form_is_made_while_a_thread_writes_in_the_memory():
    variable = ab.Variable(START)
    writer = Writer(variable)
    writer.begin()
    assert store(variable) is None  # it does not wait: the writer may wait for the lock
    writer.end()
    np.testing.assert_array_equal(variable.numpy()[0], [9, 9])


def test_rows_that_are_written_when_another_thread_needs_the_first_value_stay():
    first = Halves()
    variable = ab.Variable(first)
    writer = Writer(variable)

    def begin() -> None:
        variable.lock = threading.RLock()
        writer.begin()

    variable.lock = Meeting(begin, writer.let_end)  # pyright: ignore[reportAttributeAccessIssue]
    found = variable.numpy()
    writer.end()
    np.testing.assert_array_equal(variable.numpy(), [[9, 9], [2, 3], [4, 5]])
    np.testing.assert_array_equal(found, variable.numpy())
    assert first.computed == 1


def test_a_failure_while_a_form_is_made_leaves_the_variable_free():
    variable = ab.Variable(START)

    def fail() -> None:
        raise ValueError("no form")

    with pytest.raises(ValueError, match="no form"):
        store(variable, fail)
    assert store(variable) is not None
    variable.scatter_update(ab.IndexedSlices([[9.0, 9.0]], [0], [3, 2]))
    np.testing.assert_array_equal(variable.numpy(), [[9, 9], [2, 3], [4, 5]])
