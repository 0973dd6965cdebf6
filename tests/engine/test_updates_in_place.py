"""Updates of arrays in the memory of what they update, and where something else needs the old value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared.fusion_checks import Check, X, variable

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, Tensor

STEPS = 3  # as many as X has rows


@pytest.fixture(autouse=True)
def in_python():
    """Build in a graph of its own, whose loops stay in Python: regions of machine code find places by themselves."""
    before = ab.config.get_passes()
    ab.config.set_passes(native=False, unroll=False)
    with Graph().as_default():
        yield
    ab.config.set_passes(**before)


def updates_of(source: str) -> int:
    """Count the updates of a program that make no copy."""
    return source.count("= update_")


def looped(body: Callable[..., Any], *initial: Any) -> Any:
    """Run a body over `STEPS` iterations; it gets the number of the iteration and the variables."""
    return ab.while_loop(lambda i, *_: i < STEPS, lambda i, *values: (i + 1, *body(i, *values)), (0, *initial))[1:]


def written(x: Tensor, i: Any, value: Any) -> Tensor:
    return ops.slice_update(x, (i, 0), ops.reshape(value, (1, 4)))


@pytest.fixture
def x() -> Tensor:
    return ab.placeholder((3, 4), "float32", "x")


# --- without a copy ---------------------------------------------------------------------------------------------------

UPDATES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "slice_update": lambda x, i: written(x, i, ops.ones(4) * 7),
    "scatter_update": lambda x, i: ops.scatter_update(x, [[i]], ops.ones((1, 4)) * 7),
    "scatter_add": lambda x, i: ab.tf.tensor_scatter_nd_add(x, [[i]], ops.ones((1, 4)) * 7),
}


@pytest.mark.parametrize("name", UPDATES)
def test_a_loop_variable_is_updated_in_its_memory(x: Tensor, name: str):
    (found,) = looped(lambda i, kept: (UPDATES[name](kept, i),), x)
    check = Check([found, x * 1], {x: X})
    assert updates_of(check.program.source) == 1
    assert "np.array(" in check.program.source


def test_the_first_value_may_be_a_constant_of_the_graph():
    (found,) = looped(lambda i, kept: (written(kept, i, ops.ones(4)),), ops.zeros((3, 4)))
    assert updates_of(Check([found]).program.source) == 1


def test_the_new_value_may_be_read_through_views(x: Tensor):
    def body(i: Any, kept: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        kept = written(kept, i, ops.ones(4))
        return kept, ops.tanh(total + ops.sum(ops.transpose(kept) @ kept))

    check = Check(looped(body, x, ops.constant(0.0)), {x: X})
    assert updates_of(check.program.source) == 1


@pytest.mark.parametrize("is_fetched", [False, True])
def test_sums_over_processes_are_in_the_memory_of_what_nothing_else_needs(x: Tensor, is_fetched: bool):
    y = ops.tanh(x)
    total = ab.distribute.all_reduce(ab.distribute.all_reduce(y)) * 1
    check = Check([total, y] if is_fetched else [total], {x: X})
    assert updates_of(check.program.source) == (1 if is_fetched else 2)


def test_several_updates_of_one_array(x: Tensor):
    def body(i: Any, kept: Tensor) -> tuple[Tensor]:
        return (written(written(kept, i, ops.ones(4)), 2 - i, ops.zeros(4)),)

    assert updates_of(Check(looped(body, x), {x: X}).program.source) == 2


def test_the_old_value_may_be_read_before(x: Tensor):
    def body(i: Any, kept: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        total = ops.tanh(total + ops.sum(ops.transpose(kept) @ kept))
        with ab.control_dependencies([total]):
            return written(kept, i, ops.ones(4)), total

    check = Check(looped(body, x, ops.constant(0.0)), {x: X})
    assert updates_of(check.program.source) == 1


def test_an_array_that_was_computed_is_updated_in_its_memory(x: Tensor):
    check = Check([ops.scatter_update(ops.sort(x), [[1]], ops.ones((1, 4)))], {x: X})
    assert updates_of(check.program.source) == 1


def test_variables_that_change_places(x: Tensor):
    def body(i: Any, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return written(other, i, ops.ones(4)), written(one, i, ops.zeros(4))

    assert updates_of(Check(looped(body, x, x), {x: X}).program.source) == 2


def test_an_array_that_is_laid_out_otherwise_is_copied():
    x = ab.placeholder((4, 3), "float32", "x")
    (found,) = looped(lambda i, kept: (ops.transpose(ops.sort(ops.transpose(written(kept, i, ops.ones(4))))),), x.T)
    Check([found], {x: X.T.copy()})


# --- with a copy ------------------------------------------------------------------------------------------------------


def old_is_a_result(i: Any, kept: Tensor, other: Tensor) -> Any:
    return written(kept, i, ops.ones(4)), kept


def old_view_is_a_result(i: Any, kept: Tensor, other: Tensor) -> Any:
    return written(kept, i, ops.ones(4)), ops.reshape(ops.reshape(kept, (4, 3)), (3, 4))


def new_is_two_results(i: Any, kept: Tensor, other: Tensor) -> Any:
    new = written(kept, i, ops.ones(4))
    return new, new


def new_view_is_a_result(i: Any, kept: Tensor, other: Tensor) -> Any:
    new = written(kept, i, ops.ones(4))
    return new, ops.flip(new, 0)


def old_is_read_behind(i: Any, kept: Tensor, other: Tensor) -> Any:
    new = written(kept, i, ops.ones(4))
    with ab.control_dependencies([new]):
        return new, ops.sort(kept)


def the_values_are_a_part_of_the_array(i: Any, kept: Tensor, other: Tensor) -> Any:
    return ops.slice_update(kept, (0, 0), ops.flip(kept, 0)), other


def another_variable_goes_on(i: Any, kept: Tensor, other: Tensor) -> Any:
    return other, written(kept, i, ops.ones(4))


def inside_a_branch(i: Any, kept: Tensor, other: Tensor) -> Any:
    return ab.cond(i < 1, lambda: written(kept, i, ops.ones(4)), lambda: kept), ops.sort(kept)


@pytest.mark.parametrize(
    "body",
    [
        old_is_a_result,
        old_view_is_a_result,
        new_is_two_results,
        new_view_is_a_result,
        old_is_read_behind,
        the_values_are_a_part_of_the_array,
        another_variable_goes_on,
        inside_a_branch,
    ],
    ids=lambda body: body.__name__,
)
def test_what_something_else_needs_is_copied(x: Tensor, body: Callable[..., Any]):
    Check(looped(body, x, x), {x: X})


def test_values_that_the_gradient_needs_are_copied(x: Tensor):
    (found,) = looped(lambda i, kept: (written(kept, i, ops.sum(kept**2, axis=0)),), x)
    Check([*ab.gradients(ops.sum(found**3), [x]), found], {x: X / 12}, tolerance=1e-5)


def test_values_that_a_variable_holds_are_copied(x: Tensor):
    v = variable(1)
    made = ops.sort(x)
    assigned = v.assign(made)
    with ab.control_dependencies([assigned]):
        found = written(made, 1, ops.zeros(4))
    Check([found, assigned], {x: X}, [v])


def test_values_of_arrays_of_tensors_are_copied(x: Tensor):
    def body(i: Any, kept: Tensor, array: Any) -> Any:
        return written(kept, i, ops.ones(4)), array.write(i, kept)

    kept, array = looped(body, x, ab.TensorArray("float32", STEPS))
    Check([kept, array.stack()], {x: X})


def test_a_fed_array_is_not_changed(x: Tensor):
    check = Check([written(x, 1, ops.ones(4))], {x: X})
    assert updates_of(check.program.source) == 0


# --- generated --------------------------------------------------------------------------------------------------------

MOVES: tuple[Callable[[Any, Any, Tensor, Tensor], Tensor], ...] = (
    lambda d, i, one, other: one,
    lambda d, i, one, other: written(one, i, other[i]),
    lambda d, i, one, other: written(one, 2 - i, other[0] + 1),
    lambda d, i, one, other: ops.scatter_update(one, [[i], [0]], other[:2]),
    lambda d, i, one, other: ab.tf.tensor_scatter_nd_add(one, [[i], [i]], other[1:]),
    lambda d, i, one, other: ops.flip(one, 0),
    lambda d, i, one, other: ops.reshape(ops.reshape(one, (12,)), (3, 4)),
    lambda d, i, one, other: one * 0.5 + other,
    lambda d, i, one, other: ops.sort(one),
    lambda d, i, one, other: ab.cond(i < 1, lambda: one, lambda: written(other, i, one[0])),
    lambda d, i, one, other: ops.slice_update(one, (0, 0), ops.flip(other, 0)),
    lambda d, i, one, other: ops.concatenate([one[1:], other[:1]], axis=0),
)
VALUES = 3


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], list[int], bool]:
    """Draw moves over values by number, the values that are the loop's results, and whether gradients are taken."""
    moves = []
    for count in range(draw(st.integers(1, 6))):
        number = st.integers(0, VALUES + count - 1)
        moves.append((draw(st.integers(0, len(MOVES) - 1)), draw(number), draw(number)))
    number = st.integers(0, VALUES + len(moves) - 1)
    return moves, [draw(number) for _ in range(VALUES)], draw(st.booleans())


@given(bodies())
def test_random_loops_equal_the_interpreter(drawn: tuple[list[tuple[int, int, int]], list[int], bool]):
    moves, results, differentiates = drawn

    def body(i: Any, *values: Tensor) -> list[Tensor]:
        known = list(values)
        for move, one, other in moves:
            known.append(MOVES[move](None, i, known[one], known[other]))
        return [known[result] for result in results]

    with Graph().as_default():
        x = ab.placeholder((3, 4), "float32", "x")
        found = looped(body, x, x, ops.sort(x * 2))
        targets = [*found]
        if differentiates:
            total = sum(ops.sum(value * value) for value in found)
            targets += [each for each in ab.gradients(total, [x]) if each is not None]
        Check(targets, {x: X / 12}, tolerance=1e-4)
