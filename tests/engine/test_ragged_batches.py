"""Loops over sequences of various lengths: which compute only rows that are live, in what loops, and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume

import anabranch as ab
from anabranch.engine.control_flow.while_loop import While
from anabranch.engine.graph.graph import Operation
from anabranch.engine.graph.spec import ArraySpec
from anabranch.engine.ops.internal.ragged_batches import (
    JoinSegments,
    RowPlan,
    SpansOfMask,
    SplitSegments,
    SumOfDead,
)
from anabranch.engine.passes.framework.log import recording
from anabranch.engine.passes.framework.prepare import prepare
from anabranch.engine.passes.framework.switches import without
from anabranch.engine.passes.loops.ragged_batches import sizes_of
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.runtime.program import Program

ops = ab.ops
ROWS, STEPS, FEATURES, UNITS = 20, 17, 3, 5


@pytest.fixture(autouse=True)
def small_loops_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assume(monkeypatch, ragged_work=0)
    with ab.Graph().as_default():
        yield


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).uniform(-0.9, 0.9, shape).astype("float32")


def gradients(loss: Any, sources: Sequence[Any]) -> list[Any]:
    """Gradients, dense ones."""
    return [ops.convert_to_tensor(gradient) for gradient in ab.gradients(loss, sources)]


def lengths_of(kind: str, rows: int = ROWS, steps: int = STEPS) -> Any:
    generator = np.random.default_rng(3)
    found = {
        "various": generator.integers(0, steps + 1, rows),
        "none": np.zeros(rows),
        "all": np.full(rows, steps),
        "equal": np.full(rows, 7),
        "one": np.where(np.arange(rows) == 5, steps, 0),
        "short": generator.integers(1, 4, rows),
        "too long": generator.integers(-3, 2 * steps, rows),
    }
    return found[kind].astype("int32")


def mask_of(kind: str) -> Any:
    generator = np.random.default_rng(4)
    ends = lengths_of("various")[:, None]
    places = np.arange(STEPS)[None]
    found = {
        "padded behind": places < ends,
        "padded in front": places >= STEPS - ends,
        "holes": (places < ends) & (generator.random((ROWS, STEPS)) < 0.7),
        "anything": generator.random((ROWS, STEPS)) < 0.5,
        "nothing": np.zeros((ROWS, STEPS), bool),
        "everything": np.ones((ROWS, STEPS), bool),
    }
    return found[kind]


def loops(fetches: Sequence[Any], feeds: Sequence[Any], **options: Any) -> list[Operation]:
    """The loops of a prepared step."""
    step = prepare(ab.get_default_graph(), fetches, feeds, **options)
    return [operation for operation in step.operations if isinstance(operation.op, While)]


def why_not(fetches: Sequence[Any], feeds: Sequence[Any]) -> str:
    """Return why a loop was left as it is."""
    with recording() as log:
        prepare(ab.get_default_graph(), fetches, feeds)
    changes, kept = log.of("ragged_batches")
    assert not changes
    return "\n".join(note.text for note in kept)


def check(fetches: Sequence[Any], feeds: dict[Any, Any], tolerance: float = 1e-9) -> None:
    """The rewritten step means what the graph does, in float64."""
    expected = Interpreter(True).run(ab.get_default_graph(), fetches, feeds)
    step = prepare(ab.get_default_graph(), fetches, list(feeds))
    found = Interpreter(True).run(
        step.fetches[0].operation.graph, step.fetches, dict(zip(step.feeds, feeds.values(), strict=True))
    )
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, reference, tolerance, tolerance)


def check_program(fetches: Sequence[Any], feeds: dict[Any, Any], tolerance: float = 2e-5) -> None:
    """The compiled step agrees with that of all rows."""
    inputs, values = list(feeds), list(feeds.values())
    found = Program(ab.get_default_graph(), fetches, inputs)(*values)
    with without("ragged_batches"):
        expected = Program(ab.get_default_graph(), fetches, inputs)(*values)
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, reference, tolerance, tolerance)
        assert result.dtype == reference.dtype


def cell(x: Any, h: Any, kernel: Any, recurrent: Any) -> Any:
    return ops.tanh(ops.matmul(x, kernel) + ops.matmul(h, recurrent))


def masked_loop(
    x: Any, lengths: Any, weights: Sequence[Any], step: Callable[..., Any] = cell, steps: Any = STEPS, zero: bool = True
) -> tuple[Any, Any]:
    """Outputs (steps, rows, units) and the final state of a loop as users write it, for x (steps, rows, features)."""
    inputs = ab.TensorArray("float32", size=steps).unstack(x[:steps])
    outputs = ab.TensorArray("float32", size=steps, element_shape=(x.shape[1], UNITS))
    zeros = ops.zeros((x.shape[1], UNITS))

    def body(t: Any, h: Any, outputs: Any) -> Any:
        new = step(inputs.read(t), h, *weights)
        counts = ops.expand_dims(t < lengths, -1)
        kept = ops.where(counts, new, h)
        return t + 1, kept, outputs.write(t, ops.where(counts, new, zeros) if zero else kept)

    _, final, outputs = ab.while_loop(lambda t, *_: t < steps, body, (0, zeros + 0.5, outputs))
    return outputs.stack(), final


def problem(kind: str = "various", **options: Any) -> tuple[list[Any], dict[Any, Any]]:
    """Results and gradients of `masked_loop`, with what to feed."""
    feeds = {
        ab.placeholder(value.shape, value.dtype): value
        for value in (
            draw(STEPS, ROWS, FEATURES), lengths_of(kind), draw(FEATURES, UNITS), draw(UNITS, UNITS, seed=1),
        )
    }  # fmt: skip
    x, lengths, *weights = feeds
    outputs, final = masked_loop(x, lengths, weights, **options)
    loss = ops.sum(ops.sin(outputs)) + ops.sum(final**2)
    return [loss, outputs, final, *gradients(loss, [x, *weights])], feeds


# --- structure ------------------------------------------------------------------------------------------------------


def test_one_loop_becomes_several_of_fewer_and_fewer_rows() -> None:
    fetches, feeds = problem()
    found = loops(fetches, list(feeds))
    forward = [
        loop for loop in found if any(output.shape == (size, UNITS) for size in (20, 8) for output in loop.outputs)
    ]
    assert len(found) == 4  # two forward, two backward
    assert forward == found
    assert [loop.outputs[1].shape for loop in found[:2]] == [(20, UNITS), (8, UNITS)]


def test_the_gradient_of_the_whole_loop_is_gone() -> None:
    fetches, feeds = problem()
    with without("ragged_batches"):
        assert len(loops(fetches, list(feeds))) == 2
    found = [loop.op for loop in loops(fetches, list(feeds)) if isinstance(loop.op, While)]
    assert [bool(op.cotangents) for op in found] == [False, False, True, True]


def test_explain_tells_what_was_done() -> None:
    fetches, feeds = problem()
    with recording() as log:
        prepare(ab.get_default_graph(), fetches, list(feeds))
    changes, kept = log.of("ragged_batches")
    assert [note.text for note in changes] == ["is 2 loops over the rows that are live: 20, 8 of them"]
    assert not kept


@pytest.mark.parametrize(
    ("rows", "sizes"), [(8, (8,)), (16, (16, 8)), (64, (64, 32, 16, 8)), (100, (100, 56, 32, 16, 8))]
)
def test_sizes(rows: int, sizes: tuple[int, ...]) -> None:
    assert sizes_of(rows, begins=False) == sizes
    assert sizes_of(rows, begins=True) == sizes[::-1]


def test_no_more_steps_run_than_the_longest_row_has_and_few_dead_rows() -> None:
    ends = np.array([30, 3, 3, 2] * 16, "int32")
    starts = np.zeros_like(ends)
    sizes = sizes_of(64, begins=False)
    plan = RowPlan(sizes).run(np, starts, ends, np.int32(50))
    lengths = [int(length) for length in plan[3 + len(sizes) :]]
    assert sum(lengths) == 30
    assert sum(size * length for size, length in zip(sizes, lengths, strict=True)) == 64 * 3 + 16 * 27


@pytest.mark.parametrize("seed", range(5))
def test_computed_rows_are_near_the_sum_of_lengths(seed: int) -> None:
    ends = np.clip(10 + np.random.default_rng(seed).exponential(50, 64), 10, 200).astype("int32")
    sizes = sizes_of(64, begins=False)
    plan = RowPlan(sizes).run(np, np.zeros_like(ends), ends, np.int32(200))
    computed = sum(size * int(length) for size, length in zip(sizes, plan[3 + len(sizes) :], strict=True))
    assert ends.sum() <= computed <= 1.45 * ends.sum()


def test_exact_programs_and_programs_without_the_pass_keep_the_loop() -> None:
    fetches, feeds = problem()
    assert len(loops(fetches, list(feeds), reassociate=False)) == 2
    with without("ragged_batches"):
        assert len(loops(fetches, list(feeds))) == 2


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["various", "none", "all", "equal", "one", "short", "too long"])
@pytest.mark.parametrize("zero", [True, False], ids=["zeros", "last"])
def test_values_and_gradients(kind: str, zero: bool) -> None:
    fetches, feeds = problem(kind, zero=zero)
    assert len(loops(fetches, list(feeds))) == 4
    check(fetches, feeds)


@pytest.mark.parametrize("zero", [True, False], ids=["zeros", "last"])
def test_compiled_programs(zero: bool) -> None:
    check_program(*problem(zero=zero))


def test_values_against_numpy() -> None:
    fetches, feeds = problem()
    x, lengths, kernel, recurrent = feeds.values()
    outputs, final = Program(ab.get_default_graph(), fetches[1:3], list(feeds))(x, lengths, kernel, recurrent)
    for row, length in enumerate(lengths):
        h = np.full(UNITS, 0.5)
        for t in range(STEPS):
            expected = np.zeros(UNITS)
            if t < length:
                expected = h = np.tanh(x[t, row] @ kernel + h @ recurrent)
            np.testing.assert_allclose(outputs[t, row], expected, 1e-4, 1e-5)
        np.testing.assert_allclose(final[row], h, 1e-4, 1e-5)


def test_gradients_against_finite_differences() -> None:
    fetches, feeds = problem(zero=False)
    names, values = list(feeds), list(feeds.values())
    found = Program(ab.get_default_graph(), fetches[3:], names)(*values)
    generator = np.random.default_rng(5)
    for position, gradient in zip((0, 2, 3), found, strict=True):
        direction = generator.normal(size=values[position].shape)
        moved = []
        for sign in (1, -1):
            changed = [value.astype("float64") if value.dtype.kind == "f" else value for value in values]
            changed[position] = changed[position] + sign * 1e-5 * direction
            fed = dict(zip(names, changed, strict=True))
            moved.append(float(Interpreter(True).run(ab.get_default_graph(), fetches[:1], fed)[0]))
        np.testing.assert_allclose(np.vdot(gradient, direction), (moved[0] - moved[1]) / 2e-5, 2e-3, 2e-3)


@pytest.mark.parametrize("longest", [0, 1, STEPS])
def test_number_of_steps_known_at_run_time(longest: int) -> None:
    x, lengths = ab.placeholder((STEPS, ROWS, FEATURES), "float32"), ab.placeholder((ROWS,), "int32")
    weights = [ops.convert_to_tensor(draw(FEATURES, UNITS)), ops.convert_to_tensor(draw(UNITS, UNITS))]
    outputs, final = masked_loop(x, lengths, weights, steps=ops.max(lengths))
    loss = ops.sum(final**2) + ops.sum(ops.reshape(outputs, (-1,)) ** 2)
    fetches = [loss, final, *gradients(loss, [x, *weights])]
    feeds = {x: draw(STEPS, ROWS, FEATURES), lengths: np.minimum(lengths_of("various"), longest)}
    assert len(loops(fetches, list(feeds))) == 4
    check(fetches, feeds)


@pytest.mark.parametrize("kind", ["padded behind", "padded in front", "holes", "anything", "nothing", "everything"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_layers_with_masks(kind: str, backward: bool) -> None:
    layer = ab.layers.LSTM(UNITS, return_sequences=True, return_state=True, go_backwards=backward)
    x, mask = ab.placeholder((ROWS, STEPS, FEATURES), "float32"), ab.placeholder((ROWS, STEPS), "bool")
    first = [ab.placeholder((ROWS, UNITS), "float32") for _ in range(2)]
    results = layer(x, mask=mask, initial_state=first)
    layer.set_weights([draw(*weight.shape) for weight in layer.get_weights()])
    loss = sum((ops.sum(ops.sin(result)) for result in results), ops.sum(results[0] ** 2))
    fetches = [*results, *gradients(loss, [x, *first, *layer.trainable_variables])]
    feeds = {x: draw(ROWS, STEPS, FEATURES), mask: mask_of(kind)}
    feeds |= {state: draw(ROWS, UNITS, seed=k) for k, state in enumerate(first)}
    assert len(loops(fetches, list(feeds))) == 4
    check(fetches, feeds)


@pytest.mark.parametrize("kind", ["GRU", "SimpleRNN"])
@pytest.mark.parametrize("all_outputs", [False, True])
def test_other_layers(kind: str, all_outputs: bool) -> None:
    layer = getattr(ab.layers, kind)(UNITS, return_sequences=all_outputs, zero_output_for_mask=all_outputs)
    x, mask = ab.placeholder((ROWS, STEPS, FEATURES), "float32"), ab.placeholder((ROWS, STEPS), "bool")
    result = layer(x, mask=mask)
    layer.set_weights([draw(*weight.shape) for weight in layer.get_weights()])
    fetches = [result, *gradients(ops.sum(ops.sin(result)), [x, *layer.trainable_variables])]
    assert len(loops(fetches, [x, mask])) == 4
    check(fetches, {x: draw(ROWS, STEPS, FEATURES), mask: mask_of("padded behind")})


def test_layers_over_each_other_and_in_both_directions() -> None:
    layers = [ab.layers.Bidirectional(ab.layers.GRU(UNITS, return_sequences=True)), ab.layers.LSTM(UNITS)]
    x, mask = ab.placeholder((ROWS, STEPS, FEATURES), "float32"), ab.placeholder((ROWS, STEPS), "bool")
    result = layers[1](layers[0](x, mask=mask), mask=mask)
    weights = [weight for layer in layers for weight in layer.trainable_variables]
    for layer in layers:
        layer.set_weights([draw(*weight.shape) for weight in layer.get_weights()])
    fetches = [result, *gradients(ops.sum(ops.sin(result)), [x, *weights])]
    assert len(loops(fetches, [x, mask])) == 12
    check(fetches, {x: draw(ROWS, STEPS, FEATURES), mask: mask_of("padded behind")})


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_what_padding_holds_takes_no_part(backward: bool) -> None:
    layer = ab.layers.LSTM(UNITS, return_sequences=True, go_backwards=backward)
    x, mask = ab.placeholder((ROWS, STEPS, FEATURES), "float32"), ab.placeholder((ROWS, STEPS), "bool")
    result = layer(x, mask=mask)
    layer.set_weights([draw(*weight.shape) for weight in layer.get_weights()])
    fetches = [result, *gradients(ops.sum(result**2), [x, *layer.trainable_variables])]
    program = Program(ab.get_default_graph(), fetches, [x, mask])
    live, values = mask_of("padded behind"), draw(ROWS, STEPS, FEATURES)
    expected = program(values, live)
    for padding in (np.nan, np.inf, 1e30):
        found = program(np.where(live[..., None], values, np.float32(padding)), live)
        for result, reference in zip(found, expected, strict=True):
            np.testing.assert_array_equal(result, reference)


def test_captured_rows_and_weights_that_look_like_rows() -> None:
    rows = UNITS * 4  # as many rows as there are units: only the use of a matrix shows which is meant
    square, scale = draw(rows, rows), draw(rows, rows, seed=1)
    x, lengths = ab.placeholder((STEPS, rows, rows), "float32"), ab.placeholder((rows,), "int32")
    weight, factor = ops.convert_to_tensor(square) * 0.2, ops.convert_to_tensor(scale)
    inputs = ab.TensorArray("float32", size=STEPS).unstack(x)

    def body(t: Any, h: Any) -> Any:
        new = ops.tanh(ops.matmul(h * factor, weight) + inputs.read(t))
        return t + 1, ops.where(ops.expand_dims(lengths > t, 1), new, h)

    final = ab.while_loop(lambda t, h: t < STEPS, body, (0, ops.zeros((rows, rows))))[1]
    fetches = [final, *gradients(ops.sum(ops.sin(final)), [x, weight, factor])]
    feeds = {x: draw(STEPS, rows, rows), lengths: lengths_of("various", rows)}
    assert len(loops(fetches, list(feeds))) == 4
    check(fetches, feeds)


def normalised_cell(x: Any, h: Any, kernel: Any, recurrent: Any) -> Any:
    z = ops.matmul(ops.concatenate([x, h], axis=-1), ops.concatenate([kernel, recurrent], axis=0))
    centred = z - ops.mean(z, axis=-1, keepdims=True)
    a, b = ops.split(centred / ops.sqrt(ops.mean(centred**2, axis=1, keepdims=True) + 0.1), [2], axis=1)
    return ops.softmax(ops.concatenate([ops.relu(a), b * 2.0], axis=1)) + h[:, ::-1]


def test_a_cell_with_sums_over_its_columns() -> None:
    fetches, feeds = problem(step=normalised_cell)
    assert len(loops(fetches, list(feeds))) == 4
    check(fetches, feeds)


_PIECES: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, h, w: ops.tanh(x + h),
    lambda x, h, w: ops.matmul(h, w) * 0.3,
    lambda x, h, w: ops.where(x > 0, h, x * 0.5),
    lambda x, h, w: ops.sigmoid(x) * h,
    lambda x, h, w: h - ops.max(x, axis=1, keepdims=True),
    lambda x, h, w: ops.concatenate([x[:, 2:], h[:, :2]], axis=1),
    lambda x, h, w: ops.softmax(x + 0.1 * h),
    lambda x, h, w: ops.matmul(ops.minimum(x, h), ops.transpose(w)) * 0.3,
    lambda x, h, w: ops.squeeze(ops.expand_dims(ops.cos(x), 1), 1) * h,
]


@pytest.mark.parametrize("seed", range(8))
def test_random_cells(seed: int) -> None:
    picks = np.random.default_rng(seed).integers(0, len(_PIECES), 6)

    def step(x: Any, h: Any, kernel: Any, recurrent: Any) -> Any:
        values = [ops.matmul(x, kernel), h]
        for pick in picks:
            values.append(_PIECES[pick](values[-1], values[-2], recurrent))
        return ops.tanh(values[-1] + 0.1 * values[0] + ops.matmul(h, recurrent))

    fetches, feeds = problem(("various", "too long")[seed % 2], step=step, zero=bool(seed // 2 % 2))
    assert len(loops(fetches, list(feeds))) == 4
    check(fetches, feeds)


def test_gradients_of_outputs_that_nothing_takes() -> None:
    x, lengths = ab.placeholder((STEPS, ROWS, FEATURES), "float32"), ab.placeholder((ROWS,), "int32")
    weights = [ops.convert_to_tensor(draw(FEATURES, UNITS)), ops.convert_to_tensor(draw(UNITS, UNITS))]
    outputs, _ = masked_loop(x, lengths, weights)
    fetches = gradients(ops.sum(outputs * draw(STEPS, ROWS, UNITS)), [x, *weights])
    found = loops(fetches, [x, lengths])
    assert len(found) == 4
    assert not any(isinstance(output.spec, ArraySpec) for loop in found[:2] for output in loop.outputs)
    check(fetches, {x: draw(STEPS, ROWS, FEATURES), lengths: lengths_of("various")})


def test_a_loop_that_stays_keeps_nothing_for_its_gradient() -> None:
    x, lengths = ab.placeholder((STEPS, 12, FEATURES), "float32"), ab.placeholder((12,), "int32")
    weights = [ops.convert_to_tensor(draw(FEATURES, UNITS)), ops.convert_to_tensor(draw(UNITS, UNITS))]
    outputs, _ = masked_loop(x, lengths, weights)
    fetches = gradients(ops.sum(outputs), weights)
    forward, _ = loops(fetches, [x, lengths])
    with without("ragged_batches"):
        reference, _ = loops(fetches, [x, lengths])
    assert [output.spec for output in forward.outputs] == [output.spec for output in reference.outputs]


def test_second_order_gradients_are_as_before() -> None:
    fetches, feeds = problem()
    x, *_ = feeds
    (second,) = ab.gradients(ops.sum(fetches[3] ** 2), [x])
    check([fetches[0], second], feeds)


def test_double_precision_and_large_lengths() -> None:
    x, lengths = ab.placeholder((STEPS, ROWS, UNITS), "float64"), ab.placeholder((ROWS,), "int64")
    weight = ops.convert_to_tensor(draw(UNITS, UNITS).astype("float64"))
    inputs = ab.TensorArray("float64", size=STEPS).unstack(x)

    def body(t: Any, h: Any) -> Any:
        new = ops.sin(ops.matmul(h, weight) + inputs.read(t))
        return t + 1, ops.where(ops.expand_dims(ops.cast(t, "int64") < lengths, -1), new, h)

    final = ab.while_loop(lambda t, h: t < STEPS, body, (0, ops.zeros((ROWS, UNITS), "float64")))[1]
    fetches = [final, *gradients(ops.sum(final**2), [x])]
    feeds = {x: draw(STEPS, ROWS, UNITS).astype("float64"), lengths: lengths_of("various").astype("int64")}
    feeds[lengths][0] = 1 << 40
    assert len(loops(fetches, list(feeds))) == 4
    check(fetches, feeds)


# --- what is left alone ---------------------------------------------------------------------------------------------


def _loop_of(change: Callable[..., Any], rows: int = ROWS) -> tuple[list[Any], list[Any]]:
    """A masked loop whose new state is `change(h, x, t)`."""
    x, lengths = ab.placeholder((STEPS, rows, UNITS), "float32"), ab.placeholder((rows,), "int32")
    weight = ops.convert_to_tensor(draw(UNITS, UNITS))
    inputs = ab.TensorArray("float32", size=STEPS).unstack(x)

    def body(t: Any, h: Any) -> Any:
        new = change(ops.matmul(h, weight), inputs.read(t), t)
        return t + 1, ops.where(ops.expand_dims(t < lengths, -1), new, h)

    final = ab.while_loop(lambda t, h: t < STEPS, body, (0, ops.ones((rows, UNITS))))[1]
    return [final], [x, lengths]


_MIXED: dict[str, Callable[..., Any]] = {
    "sum": lambda h, x, t: h - ops.sum(h, axis=0, keepdims=True),
    "reverse": lambda h, x, t: h + x[::-1],
    "transpose": lambda h, x, t: ops.matmul(ops.matmul(h, ops.transpose(x)), h),
    "cumsum": lambda h, x, t: ops.cumsum(h, axis=0),
    "softmax": lambda h, x, t: ops.softmax(h + x, axis=0),
    "roll": lambda h, x, t: ops.roll(h, 1, axis=0),
}


@pytest.mark.parametrize("kind", list(_MIXED))
def test_rows_that_take_part_in_each_other(kind: str) -> None:
    fetches, feeds = _loop_of(_MIXED[kind])
    assert "does not treat rows one by one" in why_not(fetches, feeds)
    check(fetches, {feeds[0]: draw(*feeds[0].shape), feeds[1]: lengths_of("various")})


def test_few_rows() -> None:
    assert "there are 12 rows, and 16 are the fewest that pay" in why_not(*_loop_of(lambda h, x, t: h + x, 12))


def test_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assume(monkeypatch, ragged_work=1 << 19)
    assert "products of a step take 1000 operations" in why_not(*_loop_of(lambda h, x, t: h + x))


def test_effects() -> None:
    def drawn(h: Any, x: Any, t: Any) -> Any:
        return h + ab.random.normal(h.shape, seed=ab.random.SeedGenerator(1))

    assert "does more than compute" in why_not(*_loop_of(drawn))


def test_states_that_go_on() -> None:
    lengths, weight = ab.placeholder((ROWS,), "int32"), ops.convert_to_tensor(draw(UNITS, UNITS))

    def body(t: Any, h: Any, g: Any) -> Any:
        kept = ops.where(ops.expand_dims(t < lengths, -1), ops.matmul(h, weight), h)
        return t + 1, kept, g + h

    ones = ops.ones((ROWS, UNITS))
    results = ab.while_loop(lambda t, *_: t < STEPS, body, (0, ones, ones))
    assert "loop variable 'g' is not kept where rows are not live" in why_not(results[1:], [lengths])


def test_values_of_iterations_that_are_taken() -> None:
    inner: list[Any] = []

    def kept(h: Any, x: Any, t: Any) -> Any:
        inner.append(h + x)
        return inner[-1]

    fetches, feeds = _loop_of(kept)
    values = {feeds[0]: draw(*feeds[0].shape), feeds[1]: lengths_of("various")}
    with recording() as log:
        found = ab.Session().run([fetches[0], inner[-1]], values)
    assert any("are fetched" in note.text for note in log.of("ragged_batches")[1])
    with without("ragged_batches"):
        expected = ab.Session().run([fetches[0], inner[-1]], values)
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result, reference)


# --- operations -----------------------------------------------------------------------------------------------------


def _pieces(flips: bool, begins: bool) -> tuple[Any, ...]:
    mask = mask_of("padded behind" if flips == begins else "padded in front").T
    starts, ends = SpansOfMask(begins).run(np, mask[::-1] if flips else mask)
    sizes = sizes_of(ROWS, begins)
    order, inverse, bounds, *_ = RowPlan(sizes).run(np, starts, ends, np.int32(STEPS))
    np.testing.assert_array_equal(order[inverse], np.arange(ROWS))
    return mask, sizes, order, bounds, starts, ends


@pytest.mark.parametrize(("flips", "begins"), [(False, False), (True, True), (True, False), (False, True)])
def test_splitting_and_joining_are_inverse_where_rows_are_live(flips: bool, begins: bool) -> None:
    mask, sizes, order, bounds, starts, ends = _pieces(flips, begins)
    x, rest = draw(STEPS, ROWS, 2), draw(ROWS, 2)
    parts = SplitSegments(sizes, flips, "zero").run(np, x, order, bounds, starts, ends)
    assert [part.shape[1] for part in parts] == list(sizes)
    steps = np.int32(STEPS)
    joined = JoinSegments(sizes, flips, True, STEPS).run(np, order, bounds, starts, ends, steps, *parts, rest)
    np.testing.assert_array_equal(joined, np.where(mask[..., None], x, rest))
    zeros = JoinSegments(sizes, flips, False, None).run(np, order, bounds, starts, ends, steps, *parts)
    np.testing.assert_array_equal(zeros, np.where(mask[..., None], x, 0))
    dead = SumOfDead().run(np, x[::-1] if flips else x, starts, ends)
    np.testing.assert_allclose(dead, np.where(mask[..., None], 0, x).sum(0), 1e-5, 1e-6)


def test_what_stands_for_steps_that_do_not_count() -> None:
    _, sizes, order, bounds, starts, ends = _pieces(False, False)
    x = draw(STEPS, ROWS, 2)
    own = SplitSegments(sizes, False, "own").run(np, x, order, bounds, starts, ends)
    first = SplitSegments(sizes, False, "first").run(np, x, order, bounds, starts, ends)
    for number, size in enumerate(sizes):
        for place, row in enumerate(order[:size]):
            for t in range(bounds[number], bounds[number + 1]):
                k = t - bounds[number]
                np.testing.assert_array_equal(own[number][k, place], x[t, row])
                np.testing.assert_array_equal(first[number][k, place], x[t, row if t < ends[row] else order[0]])


def test_spans_of_a_mask_of_no_steps() -> None:
    for begins in (False, True):
        starts, ends = SpansOfMask(begins).run(np, np.zeros((0, 3), bool))
        np.testing.assert_array_equal([starts, ends], np.zeros((2, 3)))
