"""The operations left in loops: gate by gate cells, masks, lengths, directions and nestings included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from shared.growing_programs import loops_in_a_row

import anabranch as ab
from anabranch.engine.control_flow.frames import History
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph.graph import Operation
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.graph.tensor import Tensor
from anabranch.engine.ops.arrays.joining import Concatenate
from anabranch.engine.ops.containers.tensor_arrays import ArrayRead
from anabranch.engine.ops.linear_algebra.products import MatMul
from anabranch.engine.ops.run_time_shapes import SumToShape
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import Step, prepare
from anabranch.engine.passes.framework.prune import all_operations, needed_in_region
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.runtime.program import Program


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    """Loops over constants are operations, too: outside of a graph they would run in Python."""
    with ab.Graph().as_default() as graph:
        yield graph


ops = ab.ops
ROWS, UNITS, STEPS = 8, 3, 5


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-0.5, 0.5, shape).astype("float32")


def fed(*shape: int) -> Any:
    return ab.placeholder(shape, "float32")


class Case:
    """Fetches over fed values."""

    def __init__(self, fetches: Sequence[Any], feeds: dict[Any, Any]) -> None:
        self.fetches = list(fetches)
        self.feeds = feeds

    def prepared(self) -> Step:
        specs = [TensorSpec(value.shape, value.dtype) for value in self.feeds.values()]
        return prepare(self.fetches[0].graph, self.fetches, list(self.feeds), specs)

    def check(self) -> None:
        """Values are those of the program that is not rewritten."""
        values = list(self.feeds.values())
        found = Program(self.fetches[0].graph, self.fetches, list(self.feeds))(*values)
        wanted = Program(self.fetches[0].graph, self.fetches, list(self.feeds), exact=True)(*values)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def loops(step: Step) -> list[Operation]:
    return [operation for operation in step.operations if isinstance(operation.op, While)]


def within(step: Step, loop: Operation, kind: type[Any]) -> list[Operation]:
    """The operations of a kind that each iteration runs."""
    assert isinstance(loop.op, While)
    frame = loop.outputs[-1]
    recorded = [
        o.op.inner for o in step.operations if isinstance(o.op, History) and any(each is frame for each in o.inputs)
    ]
    return [operation for operation in needed_in_region(loop.op.body, recorded) if isinstance(operation.op, kind)]


def outside(step: Step, kind: type[Any]) -> list[Operation]:
    return [operation for operation in step.operations if isinstance(operation.op, kind)]


def records(step: Step) -> list[Operation]:
    return outside(step, History)


# --- cells ----------------------------------------------------------------------------------------------------------


def run(
    x: Any,
    cell: Callable[[Any, Any], Any],
    count: Any = STEPS,
    place: Callable[[Any], Any] = lambda t: t,
    keep: Callable[[Any, Any, Any], Any] = lambda t, new, old: new,
) -> Any:
    """The outputs of a cell over x (steps, rows, units), from zeros on."""
    inputs = ab.TensorArray("float32", ops.shape(x)[0]).unstack(x)
    outputs = ab.TensorArray("float32", count, element_shape=(ROWS, UNITS))

    def body(t: Any, h: Any, outputs: Any) -> Any:
        new = keep(t, cell(inputs.read(place(t)), h), h)
        return t + 1, new, outputs.write(place(t), new)

    zeros = ops.zeros((ROWS, UNITS))
    return ab.while_loop(lambda t, *_: t < count, body, (0, zeros, outputs))[2].stack()


class Gates:
    """A cell that is written gate by gate."""

    def __init__(self, count: int = 2) -> None:
        self.w = {fed(UNITS, UNITS): draw(UNITS, UNITS) * (k + 1) for k in range(count)}
        self.u = {fed(UNITS, UNITS): draw(UNITS, UNITS) * (k + 2) for k in range(count)}
        self.b = {fed(UNITS): draw(UNITS) * (k + 1) for k in range(count)}

    @property
    def feeds(self) -> dict[Any, Any]:
        return {**self.w, **self.u, **self.b}

    def __call__(self, x: Any, h: Any) -> Any:
        value = h
        for w, u, b in zip(self.w, self.u, self.b, strict=True):
            value = value * ops.sigmoid(x @ w + h @ u + b) + ops.tanh(value)
        return value


def trained(outputs: Any, feeds: dict[Any, Any], sources: Sequence[Any] | None = None) -> Case:
    loss = ops.sum(outputs**2)
    return Case([loss, *ab.gradients(loss, list(feeds) if sources is None else list(sources))], feeds)


# --- structure ------------------------------------------------------------------------------------------------------


def check_cell(case: Case) -> None:
    """One product in each loop, none of weights' gradients, no sums over rows, no record of inputs and counters."""
    step = case.prepared()
    forward, backward = loops(step)
    assert len(within(step, forward, MatMul)) == len(within(step, backward, MatMul)) == 1
    assert not within(step, backward, SumToShape)
    recorded = [o.op.inner for o in records(step) if isinstance(o.op, History)]
    assert all(tensor.shape and not isinstance(tensor.operation.op, ArrayRead) for tensor in recorded)


def test_a_cell_gate_by_gate():
    gates, x = Gates(4), fed(STEPS, ROWS, UNITS)
    case = trained(run(x, gates), {x: draw(STEPS, ROWS, UNITS), **gates.feeds})
    check_cell(case)
    step = case.prepared()
    # x @ w, x.T @ dz, h.T @ dz and dz @ w.T: each is one product, of all gates and steps
    assert len(outside(step, MatMul)) == 4
    assert len(outside(step, Concatenate)) == 2  # backward takes the same matrices as forward
    case.check()


def test_backward_in_time():
    gates, x = Gates(), fed(STEPS, ROWS, UNITS)
    case = trained(run(x, gates, place=lambda t: STEPS - 1 - t), {x: draw(STEPS, ROWS, UNITS), **gates.feeds})
    check_cell(case)
    case.check()


@pytest.mark.parametrize("lengths", [(2, 5), (1, 1), (0, 0), (4, 0)])
def test_lengths(lengths: tuple[int, ...]):
    gates, x, n = Gates(), fed(STEPS, ROWS, UNITS), ab.placeholder((ROWS,), "int32")

    def keep(t: Any, new: Any, old: Any) -> Any:
        return ops.where(ops.expand_dims(t < n, 1), new, old)

    outputs = run(x, gates, ops.max(n), keep=keep)
    feeds = {x: draw(STEPS, ROWS, UNITS), n: np.array([*lengths, *[min(lengths)] * 6], "int32"), **gates.feeds}
    case = trained(outputs, feeds, [x, *gates.feeds])
    check_cell(case)
    case.check()


def test_the_longest_length_in_the_condition_is_taken_once():
    n, x = ab.placeholder((ROWS,), "int32"), fed(STEPS, ROWS, UNITS)
    w = draw(UNITS, UNITS)
    inputs = ab.TensorArray("float32", STEPS).unstack(x)
    h = ab.while_loop(
        lambda t, h: t < ops.max(n),
        lambda t, h: (t + 1, h + ops.tanh(inputs.read(t) @ w)),
        (0, ops.zeros((ROWS, UNITS))),
    )[1]
    case = Case([h], {n: np.array([3, 1] * 4, "int32"), x: draw(STEPS, ROWS, UNITS)})
    step = case.prepared()
    (loop,) = loops(step)
    assert not within(step, loop, MatMul)
    assert len([o for o in loop.op.regions[0].operations if o.type == "less"]) == 1
    assert len(loop.op.regions[0].operations) <= 4  # two parameters at most, the bound, and the comparison
    case.check()


def test_masked_steps_of_a_layer():
    layer = ab.layers.LSTM(UNITS, return_sequences=True)
    x, mask = fed(ROWS, STEPS, UNITS), ab.placeholder((ROWS, STEPS), "bool")
    layer.build((ROWS, STEPS, UNITS))
    with x.graph.as_default():
        y = layer(x, mask=mask)
        loss = ops.sum(y**2)
        gradients = ab.gradients(loss, [x])
    case = Case([loss, *gradients], {x: draw(ROWS, STEPS, UNITS), mask: np.array([[1, 0, 1, 1, 0], [1] * 5] * 4, bool)})
    step = case.prepared()
    forward, backward = loops(step)
    assert len(within(step, forward, MatMul)) == len(within(step, backward, MatMul)) == 1
    case.check()


def test_two_directions():
    one, other, x = Gates(), Gates(), fed(STEPS, ROWS, UNITS)
    outputs = run(x, one) + run(x, other, place=lambda t: STEPS - 1 - t)
    case = trained(outputs, {x: draw(STEPS, ROWS, UNITS), **one.feeds, **other.feeds})
    step = case.prepared()
    assert [len(within(step, loop, MatMul)) for loop in loops(step)] == [1, 1, 1, 1]
    case.check()


def test_what_is_projected_for_outputs_alone_is_projected_after_the_loop():
    x, u, v = fed(STEPS, ROWS, UNITS), fed(UNITS, UNITS), fed(UNITS, 7)
    inputs = ab.TensorArray("float32", STEPS).unstack(x)
    outputs = ab.TensorArray("float32", STEPS, element_shape=(ROWS, 7))

    def body(t: Any, h: Any, outputs: Any) -> Any:
        h = ops.tanh(inputs.read(t) + h @ u)
        return t + 1, h, outputs.write(t, ops.softmax(h @ v + 1.0))

    y = ab.while_loop(lambda t, *_: t < STEPS, body, (0, ops.zeros((ROWS, UNITS)), outputs))[2].stack()
    feeds = {x: draw(STEPS, ROWS, UNITS), u: draw(UNITS, UNITS), v: draw(UNITS, 7)}
    inference = Case([y], feeds)
    step = inference.prepared()
    assert len(within(step, loops(step)[0], MatMul)) == 1
    assert len(outside(step, MatMul)) == 1
    inference.check()
    case = trained(y, feeds)
    step = case.prepared()
    assert [len(within(step, loop, MatMul)) for loop in loops(step)][1] == 1
    case.check()


def test_what_is_the_same_in_each_iteration_leaves_the_loop():
    x, w = fed(ROWS, UNITS), fed(UNITS, UNITS)

    def body(t: Any, h: Any) -> Any:
        return t + 1, ops.tanh(h * 2.0 + ops.exp(x) @ ops.transpose(w))

    h = ab.while_loop(lambda t, _: t < STEPS, body, (0, ops.zeros((ROWS, UNITS))))[1]
    case = trained(h, {x: draw(ROWS, UNITS), w: draw(UNITS, UNITS)})
    step = case.prepared()
    forward = loops(step)[0]
    assert not within(step, forward, MatMul)
    assert len(outside(step, MatMul)) >= 1
    case.check()


def test_what_could_fail_stays_in_a_body_that_may_not_run():
    n, a, b = ab.placeholder((), "int32"), ab.placeholder((), "int32"), ab.placeholder((), "int32")
    total = ab.while_loop(lambda t, s: t < n, lambda t, s: (t + 1, s + a // b), (0, 0))[1]
    step = prepare(total.graph, [total], [n, a, b])
    (loop,) = loops(step)
    assert [o.type for o in loop.op.regions[1].operations].count("floor_divide") == 1


def test_loops_inside_loops():
    gates, x = Gates(), fed(4, STEPS, ROWS, UNITS)
    sequences = ab.TensorArray("float32", 4).unstack(x)

    def body(k: Any, total: Any) -> Any:
        return k + 1, total + ops.sum(run(sequences.read(k), gates) ** 2)

    total = ab.while_loop(lambda k, _: k < 4, body, (0, 0.0))[1]
    feeds = {x: draw(4, STEPS, ROWS, UNITS), **gates.feeds}
    case = Case([total, *ab.gradients(total, list(feeds))], feeds)
    step = case.prepared()
    forward = loops(step)[0]
    (inner,) = within(step, forward, While)
    assert isinstance(inner.op, While)
    assert len([o for o in needed_in_region(inner.op.body) if isinstance(o.op, MatMul)]) == 1
    case.check()


def test_a_loop_in_a_branch():
    gates, x, p = Gates(), fed(STEPS, ROWS, UNITS), ab.placeholder((), "bool")
    y = ab.cond(p, lambda: ops.sum(run(x, gates) ** 2), lambda: 0.0)
    feeds = {x: draw(STEPS, ROWS, UNITS), p: np.bool_(True), **gates.feeds}
    case = Case([y, *ab.gradients(y, [x, *gates.feeds])], feeds)
    (branch,) = [
        o for o in case.prepared().operations if o.type == "cond" and not any(t.spec is None for t in o.inputs)
    ][:1]
    (loop,) = [o for region in branch.op.regions for o in region.operations if isinstance(o.op, While)]
    assert isinstance(loop.op, While)
    assert len([o for o in needed_in_region(loop.op.body) if isinstance(o.op, MatMul)]) == 1
    case.check()
    case.feeds[p] = np.bool_(False)
    case.check()


def test_second_order():
    gates, x = Gates(), fed(STEPS, ROWS, UNITS)
    feeds = {x: draw(STEPS, ROWS, UNITS), **gates.feeds}
    first = ab.gradients(ops.sum(run(x, gates) ** 2), list(feeds))
    slope = ops.sum(ops.concatenate([ops.ravel(g) for g in first]) ** 2)
    Case([slope, *first, *ab.gradients(slope, list(feeds))], feeds).check()


# --- switches and notes ---------------------------------------------------------------------------------------------


def products_inside(case: Case) -> int:
    step = case.prepared()
    return sum(len(within(step, loop, MatMul)) for loop in loops(step))


def test_each_rewrite_has_a_switch():
    gates, x = Gates(), fed(STEPS, ROWS, UNITS)
    case = trained(run(x, gates), {x: draw(STEPS, ROWS, UNITS), **gates.feeds})
    assert products_inside(case) == 2
    for names, count in (
        (("merge_products",), 4),
        (("fission",), 8),
        (("fission", "merge_products", "invariants"), 12),
    ):
        with without(*names):
            assert products_inside(case) == count, names
            case.check()


def test_it_is_told_what_keeps_a_product_inside():
    gates, x = Gates(), fed(STEPS, ROWS, UNITS)
    case = Case([run(x, gates)], {x: draw(STEPS, ROWS, UNITS), **gates.feeds})
    with recording() as log:
        case.prepared()
    assert any("before the loop" in note.text for note in log.changes)
    (kept,) = [note for note in log.of("fission")[1] if "stays in the loop" in note.text]
    assert kept.text.startswith("stays in the loop: it takes '")
    assert kept.text.endswith("', which the iteration before makes")


def test_elements_past_the_end_of_an_array_are_still_refused():
    x, n = fed(STEPS, ROWS, UNITS), ab.placeholder((), "int32")
    w = draw(UNITS, UNITS)
    inputs = ab.TensorArray("float32", STEPS).unstack(x)
    h = ab.while_loop(lambda t, _: t < n, lambda t, h: (t + 1, h + inputs.read(t) @ w), (0, ops.zeros((ROWS, UNITS))))[
        1
    ]
    program = Program(h.graph, [h], [x, n])
    value = draw(STEPS, ROWS, UNITS)
    np.testing.assert_allclose(program(value, np.int32(2))[0], (value[:2] @ w).sum(0), rtol=1e-4, atol=1e-6)
    with pytest.raises(IndexError, match="out of range for size 5"):
        program(value, np.int32(9))


def test_tensors_of_bodies_can_be_fetched():
    gates, x = Gates(), fed(STEPS, ROWS, UNITS)
    seen: list[Tensor] = []

    def cell(x: Any, h: Any) -> Any:
        seen[:] = [h]
        return gates(x, h)

    y = run(x, cell)
    values = {x: draw(STEPS, ROWS, UNITS), **gates.feeds}
    states, outputs = ab.Session().run([seen[0], y], values)
    np.testing.assert_allclose(np.stack(list(states))[1:], outputs[:-1], rtol=1e-5)


def test_what_is_built_for_loops_is_of_the_line_of_what_it_is_built_for():
    with ab.Graph().as_default() as graph:
        fetches, x = loops_in_a_row(2)
    step = prepare(graph, fetches, [x])
    lines = {operation.location for operation in all_operations(step.operations) if operation.location is not None}
    assert {line.filename for line in lines} == {loops_in_a_row.__code__.co_filename}  # and not this one
