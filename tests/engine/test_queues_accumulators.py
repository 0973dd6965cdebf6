"""Conditional accumulators as operations and from plain Python. (How they add up: test_queues_state.)"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.waiting import PATIENCE, Waiting

import anabranch as ab
from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.graph import Graph, IndexedSlices, Variable
from anabranch.engine.queues import ConditionalAccumulator, DeadlineExceededError, SparseConditionalAccumulator
from anabranch.engine.session import Session, placeholder


@pytest.fixture(params=[True, False], ids=["graph", "at once"])
def do(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    """Does what a method call asks for: in a graph that is run, or at once."""

    def in_graph(call: Callable[[], Any]) -> Any:
        with Graph().as_default() as graph:
            return Session(graph).run(call(), timeout=PATIENCE)

    return in_graph if request.param else lambda call: call()


def test_the_mean_of_what_came_in(do: Any):
    accumulator = ConditionalAccumulator("float32", (2,))
    for gradient in ([1.0, 2.0], [2.0, 4.0], [6.0, 0.0]):
        do(lambda gradient=gradient: accumulator.apply_grad(gradient))
    assert do(accumulator.num_accumulated) == 3

    found = do(lambda: accumulator.take_grad(2))

    assert (found.dtype, found.tolist()) == (np.float32, [3.0, 2.0])
    assert do(accumulator.num_accumulated) == 0


def test_the_sum_of_scalars(do: Any):
    accumulator = ConditionalAccumulator("float64", (), reduction_type="SUM")
    for gradient in (0.1, 0.2):
        do(lambda gradient=gradient: accumulator.apply_grad(gradient))

    assert do(lambda: accumulator.take_grad(1)) == 0.1 + 0.2


def test_late_gradients_are_dropped(do: Any):
    accumulator = ConditionalAccumulator("float32", ())
    do(lambda: accumulator.apply_grad(1.0, local_step=0))
    do(lambda: accumulator.take_grad(1))
    do(lambda: accumulator.apply_grad(100.0, local_step=0))
    do(lambda: accumulator.apply_grad(2.0, local_step=1))
    assert do(lambda: accumulator.take_grad(1)) == 2.0

    do(lambda: accumulator.set_global_step(7))
    do(lambda: accumulator.apply_grad(3.0, local_step=6))

    assert accumulator.statistics()._asdict() == {
        "accumulated": 0,
        "applied": 2,
        "dropped": 2,
        "taken": 2,
        "global_step": 7,
        "pending": 0,
    }


def test_rows(do: Any):
    accumulator = SparseConditionalAccumulator("float32", (5, 2))
    do(lambda: accumulator.apply_grad([-1, 0], [[1.0, 2.0], [3.0, 4.0]], grad_shape=(5, 2)))
    do(lambda: accumulator.apply_indexed_slices_grad(IndexedSlices([[4.0, 4.0]] * 2, [4, 4], [5, 2])))

    indices, values, shape = do(lambda: accumulator.take_grad(2))

    assert (indices.tolist(), values.tolist(), shape.tolist()) == ([0, 4], [[1.5, 2], [4.5, 5]], [5, 2])


def test_values_and_variables_act_at_once():
    dense, slope, step = ConditionalAccumulator("float32", (2,)), ops.convert_to_tensor([1.0, 2.0]), Variable(0)
    assert dense.apply_grad(slope, step) is None
    assert dense.apply_grad(Variable([3.0, 4.0]), ops.convert_to_tensor(0)) is None
    assert dense.take_grad(ops.convert_to_tensor(2)).tolist() == [2, 3]
    assert dense.set_global_step(ops.convert_to_tensor(5)) is None
    dense.apply_grad(slope, 4)
    assert dense.num_accumulated() == 0

    sparse, table = SparseConditionalAccumulator("float32"), Variable(np.zeros((4, 2), "float32"))
    with ab.GradientTape() as tape:
        loss = ops.sum(ops.take(table, [1, 3], axis=0) * 3)
    rows = tape.gradient(loss, table)
    assert isinstance(rows, IndexedSlices)
    sparse.apply_indexed_slices_grad(rows)
    indices, values, shape = sparse.take_grad(1)
    assert (indices.tolist(), values.tolist(), shape.tolist()) == ([1, 3], [[3, 3], [3, 3]], [4, 2])


def test_gradients_of_a_table_go_through_as_rows():
    table = Variable(np.zeros((4, 2), "float32"))
    accumulator = SparseConditionalAccumulator("float32", (4, 2), reduction_type="SUM")
    with Graph().as_default():
        ids = placeholder((None,), "int32")
        (slope,) = gradients(ops.sum(ops.take(table, ids, axis=0)), [table])
        apply, taken = accumulator.apply_indexed_slices_grad(slope), accumulator.take_indexed_slices_grad(2)
        session = Session()
        for rows in ([1, 1], [3, 1]):
            session.run(apply, {ids: rows})

        found = session.run(taken, timeout=PATIENCE)

    assert isinstance(found, IndexedSlices)
    assert (found.indices.tolist(), found.values.tolist()) == ([1, 3], [[3, 3], [1, 1]])


@pytest.mark.parametrize("shape", [None, (None, 2), (4, None), (None, None)])
@pytest.mark.parametrize("told", [None, (4, 2)])
def test_rows_of_a_table_of_open_shape(do: Any, shape: Any, told: Any):
    """TensorFlow's take gives -1 for an unknown number of rows."""
    accumulator = SparseConditionalAccumulator("float32", shape, reduction_type="SUM")
    do(lambda: accumulator.apply_grad([3, 1], [[1.0, 2.0], [3.0, 4.0]], grad_shape=told))
    do(lambda: accumulator.apply_grad([3], [[1.0, 1.0]]))

    indices, values, whole = do(lambda: accumulator.take_grad(2))

    assert (indices.tolist(), values.tolist()) == ([1, 3], [[3, 4], [2, 3]])
    assert whole.tolist() == [4 if told or shape == (4, None) else -1, 2]
    assert whole.dtype == np.int32


def test_a_table_of_open_shape_holds_what_a_step_is_worth(do: Any):
    """The next step may be about a table of other rows."""
    accumulator = SparseConditionalAccumulator("float32")
    for step, width in enumerate((2, 3)):
        values = [[1.0] * width]
        do(lambda values=values, step=step: accumulator.apply_grad([0], values, (5, len(values[0])), local_step=step))
        assert do(lambda: accumulator.take_grad(1))[2].tolist() == [5, width]


def test_gradients_tell_an_open_accumulator_the_shape():
    table = Variable(np.zeros((4, 2), "float32"))
    accumulator = SparseConditionalAccumulator("float32", reduction_type="SUM")
    with Graph().as_default():
        ids = placeholder((None,), "int32")
        (slope,) = gradients(ops.sum(ops.take(table, ids, axis=0)), [table])
        apply, taken = accumulator.apply_indexed_slices_grad(slope), accumulator.take_indexed_slices_grad(2)
        session = Session()
        for rows in ([1, -1], [3, 1]):
            session.run(apply, {ids: rows})

        found = session.run(taken, timeout=PATIENCE)

    assert np.asarray(found).tolist() == [[0, 0], [2, 2], [0, 0], [2, 2]]


def test_what_does_not_fit_an_open_shape(do: Any):
    table = SparseConditionalAccumulator("float32", (None, 2), name="table")
    with pytest.raises(ValueError, match=r"has shape \[\?,2\]; got a gradient of \(4, 3\)"):
        do(lambda: table.apply_grad([0], [[1.0, 1.0]], grad_shape=(4, 3)))
    with pytest.raises(IndexError, match="index -1 counts from the end of a table whose number of rows is not known"):
        do(lambda: table.apply_grad([0, -1], [[1.0, 1.0]] * 2))
    with pytest.raises(IndexError, match="index 4 is out of range for a table of 4 rows"):
        do(lambda: table.apply_grad([4], [[1.0, 1.0]], grad_shape=(4, 2)))
    do(lambda: table.apply_grad([0], [[1.0, 1.0]], grad_shape=(4, 2)))
    with pytest.raises(ValueError, match=r"this gradient has rows of shape .* of a whole of \[.*5.*2.*\], but those"):
        do(lambda: table.apply_grad([0], [[1.0, 1.0]], grad_shape=(5, 2)))
    rows = SparseConditionalAccumulator("float32")
    do(lambda: rows.apply_grad([0], [[1.0, 1.0]]))
    with pytest.raises(ValueError, match=r"this gradient has rows of shape \[3\]"):
        do(lambda: rows.apply_grad([0], [[1.0, 1.0, 1.0]]))


def test_specs_of_open_shapes():
    with Graph().as_default():
        known = SparseConditionalAccumulator("float32", (None, 2)).take_grad(1)
        unknown = SparseConditionalAccumulator("float32").take_grad(1)

    assert [str(part.spec) for part in known] == ["int64[?]", "float32[?,2]", "int32[2]"]
    assert [str(part.spec) for part in unknown] == ["int64[?]", "float32[...]", "int32[?]"]


def test_the_first_m_of_n_workers_make_a_step():
    # Each worker's gradient is for the step that it saw; two of three are enough, the third is late.
    accumulator, step = ConditionalAccumulator("float32", ()), Variable(0)
    with Graph().as_default() as graph:
        x, local = placeholder((), "float32"), placeholder((), "int32")
        apply, take = accumulator.apply_grad(x, local), accumulator.take_grad(2)
        session = Session(graph)
    early, late = threading.Barrier(3, timeout=PATIENCE), threading.Event()

    def work(number: int) -> None:
        seen = int(step)
        early.wait()
        if number == 2:
            assert late.wait(PATIENCE)
        session.run(apply, {x: float(number), local: seen})

    workers = [Waiting(lambda number=number: work(number)) for number in range(3)]
    assert session.run(take, timeout=PATIENCE) == 0.5
    late.set()
    for worker in workers:
        worker.result()

    assert accumulator.statistics()[:4] == (0, 2, 1, 1)


def test_a_take_that_waits_too_long():
    accumulator = ConditionalAccumulator("float32", (), name="slope")
    accumulator.apply_grad(1.0)
    with Graph().as_default():
        take = accumulator.take_grad(2)
        with pytest.raises(
            DeadlineExceededError, match="take_grad of 2 gradients from ConditionalAccumulator 'slope', w"
        ):
            Session().run(take, timeout=0)

    assert accumulator.statistics()[::5] == (1, 0)


def test_specs_are_known():
    with Graph().as_default():
        dense = ConditionalAccumulator("float64", (None, 3)).take_grad(1)
        rows = SparseConditionalAccumulator("float32", (4, 2)).take_grad(1)

    assert str(dense.spec) == "float64[?,3]"
    assert [str(part.spec) for part in rows] == ["int64[?]", "float32[?,2]", "int32[2]"]


DENSE, SPARSE = ConditionalAccumulator("float32", (2,)), SparseConditionalAccumulator("float32", (4, 2))
UNFIT: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ConditionalAccumulator("int32"), TypeError, "gradients are floating-point numbers; got dtype int32"),
    (lambda: ConditionalAccumulator("float32", reduction_type="MAX"), ValueError, "must be 'MEAN' or 'SUM'; got 'MAX'"),
    (lambda: SparseConditionalAccumulator("float32", ()), ValueError, r"with at least one axis; got \[\]"),
    (lambda: DENSE.apply_grad([1.0]), ValueError, r"has shape \[2\]; got a gradient float32\[1\]"),
    (lambda: DENSE.apply_grad(np.ones(2)), TypeError, r"takes float32; got a gradient float64\[2\]"),
    (lambda: DENSE.apply_grad([1.0, 2.0], local_step=0.5), TypeError, r"local_step must be an integer scalar; got fl"),
    (lambda: SPARSE.apply_grad([0], [1.0]), ValueError, r"indices of shape \[n\] and values of shape \[\?,2\]; got \["),
    (lambda: SPARSE.apply_grad([0.5], [[1.0, 1.0]]), TypeError, "takes integer indices and float32"),
    (
        lambda: SPARSE.apply_grad([0], [[1.0, 1.0]], (5, 2)),
        ValueError,
        r"has shape \[4,2\]; got a gradient of \(5, 2\)",
    ),
]


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize(("call", "error", "match"), UNFIT)
def test_what_does_not_fit(call: Callable[[], Any], error: type[Exception], match: str, in_graph: bool):
    if not in_graph:
        with pytest.raises(error, match=match):
            call()
        return
    with Graph().as_default(), pytest.raises(error, match=match):
        call()


def test_what_does_not_fit_when_it_runs(do: Any):
    accumulator, table = ConditionalAccumulator("float32"), SparseConditionalAccumulator("float32", (4,))
    do(lambda: accumulator.apply_grad([1.0, 2.0]))

    with pytest.raises(ValueError, match=r"this gradient has shape \[1\], but those before it have \[2\]"):
        do(lambda: accumulator.apply_grad([1.0]))
    with pytest.raises(IndexError, match="index 4 is out of range for a table of 4 rows"):
        do(lambda: table.apply_grad([0, 4], [1.0, 1.0]))
    with pytest.raises(ValueError, match="num_required must be at least 1; got 0"):
        do(lambda: accumulator.take_grad(0))
    assert accumulator.take_grad(1).tolist() == [1, 2]
