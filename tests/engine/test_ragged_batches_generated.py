"""Loops over sequences of various lengths, generated: values and gradients are those of loops over all rows.

Cells, layers around them, masks, losses and loops around are drawn; so are lengths, with 0 and none at all among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shared.examples import examples
from shared.machine_figures import assume

import anabranch as ab
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph.graph import Operation
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import Step, prepare
from anabranch.engine.passes.framework.prune import all_operations
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.loops import ragged_batches
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
STEPS, PARTS, FEATURES, UNITS = 6, 5, 3, 4


@pytest.fixture(autouse=True, scope="module")
def small_loops_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged_batches, "_ALIGNED", 1)
        assume(patch, ragged_work=0, ragged_rows=1, ragged_steps=0)
        yield


class Halved(ab.layers.Layer):
    """A cell whose output is none of its states, over normalised sums."""

    state_size = UNITS

    def __init__(self) -> None:
        super().__init__()
        self.norm = ab.layers.LayerNormalization()

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], UNITS), name="kernel")
        self.recurrent = self.add_weight(shape=(UNITS, UNITS), name="recurrent")
        self.norm.build((shape[0], UNITS))

    def call(self, x: Any, states: Any) -> Any:
        new = ops.tanh(self.norm(ops.matmul(x, self.kernel) + ops.matmul(states[0], self.recurrent)))
        return new * 0.5 + 0.1, [new]


def stacked() -> list[Any]:
    return [ab.layers.LSTMCell(UNITS), ab.layers.GRUCell(UNITS)]


@dataclass(frozen=True)
class Case:
    """A generated case: what is computed, and from what.

    Attributes:
        cell: which cell.
        lengths: how many steps of each row count.
        padding: where the steps are that do not count; "lengths": `sequence_length` says how many do.
        loss: "linear", which needs no values but gradients, or "squares".
    """

    cell: str
    lengths: tuple[int, ...]
    padding: str = "behind"
    all_outputs: bool = False
    zero: bool = False
    backward: bool = False
    both: bool = False
    loss: str = "linear"
    nested: bool = False

    def layer(self) -> Any:
        options: dict[str, Any] = {
            "return_sequences": self.all_outputs, "zero_output_for_mask": self.zero, "go_backwards": self.backward,
        }  # fmt: skip
        if self.cell in ("halved", "stacked"):
            layer = ab.layers.RNN(Halved() if self.cell == "halved" else stacked(), **options)
        else:
            layer = getattr(ab.layers, self.cell)(UNITS, **options)
        return ab.layers.Bidirectional(layer) if self.both else layer

    def mask(self) -> Any:
        ends, places = np.array(self.lengths, "int32")[:, None], np.arange(STEPS)[None]
        if self.padding == "front":
            return places >= STEPS - ends
        holes = np.random.default_rng(1).random((len(ends), STEPS)) < (0.6 if self.padding == "holes" else 1.0)
        return (places < ends) & holes


def random(*shape: int) -> Any:
    return np.random.default_rng((7, *shape)).uniform(-0.9, 0.9, shape).astype("float32")


def gradients(loss: Any, sources: list[Any]) -> list[Any]:
    """Gradients, dense ones."""
    return [ops.convert_to_tensor(gradient) for gradient in ab.gradients(loss, sources)]


def in_parts(layer: Any, x: Any, mask: Any) -> Any:
    """A loop over parts (parts, rows, steps, features), in whose steps the layer runs over the steps of one part."""
    parts, masks = (ab.TensorArray(value.dtype, PARTS).unstack(value) for value in (x, mask))

    def body(k: Any, total: Any) -> Any:
        found = layer(parts.read(k) * (1.0 + ops.mean(total)), mask=masks.read(k))
        last = ops.sum(found, axis=1) if len(found.shape) == 3 else found
        return k + 1, ops.tanh(total * 0.5 + last)

    width = 2 * UNITS if isinstance(layer, ab.layers.Bidirectional) else UNITS
    return ab.while_loop(lambda k, _: k < PARTS, body, (0, ops.zeros((x.shape[1], width))))[1]


def build(case: Case, order: int = 1) -> tuple[list[Any], dict[Any, Any]]:
    """Return what is fetched: gradients of a loss, and the loss if it is not linear; with what to feed."""
    layer, rows = case.layer(), len(case.lengths)
    layer.build((rows, STEPS, FEATURES))
    layer.set_weights([random(*weight.shape) for weight in layer.get_weights()])
    values, mask = random(rows, STEPS, FEATURES), case.mask()
    if case.nested:
        values = random(PARTS, rows, STEPS, FEATURES)
        mask = np.stack([np.roll(mask, k, axis=0) for k in range(PARTS)])
    x, counts = ab.placeholder(values.shape, "float32"), ab.placeholder(mask.shape, "bool")
    if case.nested:
        result = in_parts(layer, x, counts)
    elif case.padding == "lengths" and not case.both:
        result = layer(x, sequence_length=ops.sum(ops.cast(counts, "int32"), axis=-1))
    else:
        result = layer(x, mask=counts)
    weight = random(*(result.shape or ())) if None not in (result.shape or ()) else 0.7
    loss = ops.sum(result * weight) if case.loss == "linear" else ops.sum(result**2 * weight)
    sources = [x, *layer.trainable_variables]
    fetches = [] if case.loss == "linear" else [loss, result]
    found = gradients(loss, sources)
    fetches += found
    if order == 2:
        fetches += gradients(sum(ops.sum(ops.sin(gradient)) for gradient in found), sources)
    return fetches, {x: values, counts: mask}


def evaluate(step: Step, feeds: dict[Any, Any]) -> list[Any]:
    fed = dict(zip(step.feeds, feeds.values(), strict=True))
    return Interpreter(True).run(step.fetches[0].operation.graph, step.fetches, fed)


def check(case: Case, order: int = 1) -> int:
    """All is as without the pass, in float64; returns how many loops were rewritten."""
    with ab.Graph().as_default() as graph:
        fetches, feeds = build(case, order)
        with recording() as log:
            step = prepare(graph, fetches, list(feeds))
        with without("ragged_batches"):
            plain = prepare(graph, fetches, list(feeds))
        for found, expected in zip(evaluate(step, feeds), evaluate(plain, feeds), strict=True):
            np.testing.assert_allclose(found, expected, 1e-9, 1e-9)
    return len(log.of("ragged_batches")[0])


ROWS = st.lists(st.integers(0, STEPS), min_size=1, max_size=7).map(tuple)
RARELY = st.sampled_from([False, False, True])
CASES = st.builds(
    Case,
    cell=st.sampled_from(["LSTM", "GRU", "SimpleRNN", "halved", "stacked"]),
    lengths=ROWS,
    padding=st.sampled_from(["behind", "behind", "front", "holes", "lengths"]),
    all_outputs=st.booleans(),
    zero=st.booleans(),
    backward=st.booleans(),
    both=RARELY,
    loss=st.sampled_from(["linear", "squares"]),
    nested=RARELY,
)


@settings(max_examples=examples(4, 10), deadline=None, derandomize=True)
@given(CASES)
@example(Case("LSTM", (0, 0, 0, 0), all_outputs=True))
@example(Case("GRU", (4, 4, 4), zero=True, nested=True))
@example(Case("GRU", (5, 1)))  # its bias has as many rows
@example(Case("halved", (3,), zero=True))
@example(Case("halved", (0, 6, 2, 6), zero=True, backward=True))
def test_gradients_are_those_of_loops_over_all_rows(case: Case) -> None:
    assert check(case) == 1 + case.both


@settings(max_examples=3, deadline=None, derandomize=True)
@given(CASES)
def test_second_order_gradients_are_those_of_loops_over_all_rows(case: Case) -> None:
    check(case, order=2)


@pytest.mark.parametrize("nested", [False, True])
def test_no_rows(nested: bool) -> None:
    assert check(Case("LSTM", (), loss="squares", all_outputs=True, nested=nested)) == 0


# --- loops inside of loops ------------------------------------------------------------------------------------------


def inner_loops(step: Step) -> list[Operation]:
    """The loops inside of loops."""
    inside = [o for outer in step.operations for region in outer.op.regions for o in all_operations(region.operations)]
    return [operation for operation in inside if isinstance(operation.op, While)]


NESTED = Case("LSTM", (6, 1, 0, 3, 2), nested=True, loss="squares")


def test_loops_inside_of_a_loop_and_of_its_gradient() -> None:
    with ab.Graph().as_default() as graph:
        fetches, feeds = build(NESTED)
        found = inner_loops(prepare(graph, fetches, list(feeds)))
        with without("ragged_batches"):
            assert len(inner_loops(prepare(graph, fetches, list(feeds)))) == 2
    assert [output.shape for loop in found[:3] for output in loop.outputs[1:2]] == [(5, UNITS), (3, UNITS), (1, UNITS)]
    assert [bool(loop.op.cotangents) for loop in found if isinstance(loop.op, While)] == [False] * 3 + [True] * 3


def test_loops_inside_of_a_loop_without_a_gradient() -> None:
    with ab.Graph().as_default() as graph:
        fetches, feeds = build(NESTED)
        assert len(inner_loops(prepare(graph, fetches[:1], list(feeds)))) == 3


def test_compiled_programs_of_loops_inside_of_loops() -> None:
    with ab.Graph().as_default() as graph:
        fetches, feeds = build(Case("halved", (6, 1, 0, 3, 2), nested=True, loss="squares", all_outputs=True))
        found = Program(graph, fetches, list(feeds))(*feeds.values())
        with without("ragged_batches"):
            expected = Program(graph, fetches, list(feeds))(*feeds.values())
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, reference, 1e-4, 1e-4)
        assert result.dtype == reference.dtype


def test_second_order_gradients_of_loops_inside_of_loops() -> None:
    with ab.Graph().as_default() as graph:
        fetches, feeds = build(NESTED, order=2)
        with recording() as log:
            prepare(graph, fetches, list(feeds))
    changes, kept = log.of("ragged_batches")
    assert not changes
    assert any("values of" in note.text for note in kept)


def test_loops_inside_of_branches_and_deeper_loops() -> None:
    """There they are rewritten where there is no gradient; where there is one, all rows are computed."""
    case = Case("GRU", (6, 1, 0, 3, 2))
    with ab.Graph().as_default() as graph:
        layer = case.layer()
        layer.build((5, STEPS, FEATURES))
        x, mask = ab.placeholder((PARTS, 5, STEPS, FEATURES), "float32"), ab.placeholder((PARTS, 5, STEPS), "bool")
        feeds = {x: random(PARTS, 5, STEPS, FEATURES), mask: np.stack([case.mask()] * PARTS)}

        def deeper(k: Any, y: Any) -> Any:
            return k + 1, y * (1.0 + ops.mean(in_parts(layer, y, mask)))

        chosen = ab.cond(ops.mean(x) < 9.0, lambda: layer(x[0], mask=mask[0]), lambda: x[0, :, 0, :1] * ops.ones((4,)))
        deep = ab.while_loop(lambda k, _: k < PARTS, deeper, (0, x))[1]
        for result in (chosen, deep):
            fetches = [result, *gradients(ops.sum(result**2), [x])]
            for wanted, reason in ((fetches[:1], None), (fetches, "its gradient is in a loop or branch of its own")):
                with recording() as log:
                    step = prepare(graph, wanted, list(feeds))
                changes, kept = log.of("ragged_batches")
                assert len(changes) == (reason is None)
                assert reason is None or any(reason in note.text for note in kept)
                with without("ragged_batches"):
                    plain = prepare(graph, wanted, list(feeds))
                for found, expected in zip(evaluate(step, feeds), evaluate(plain, feeds), strict=True):
                    np.testing.assert_allclose(found, expected, 1e-9, 1e-9)
