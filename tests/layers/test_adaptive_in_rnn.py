"""`AdaptiveComputationTime` under every way in which an `RNN` runs its cell, against step by step by hand."""

from typing import Any

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers, ops

BATCH, STEPS, FEATURES, UNITS = 4, 5, 2, 3
X = np.random.default_rng(1).standard_normal((BATCH, STEPS, FEATURES))


def adaptive(cell: Any = None, **options: Any) -> Any:
    """An `RNN` whose rows halt at different calls."""
    inner = layers.GRUCell(UNITS, dtype="float64") if cell is None else cell
    act = layers.AdaptiveComputationTime(inner, ponder_cost=0.5, max_steps=5, dtype="float64")
    layer = layers.RNN(act, return_sequences=True, dtype="float64", **options)
    layer.build((STEPS, BATCH, FEATURES) if options.get("time_major") else X.shape)
    act.set_weights([np.random.default_rng(7).standard_normal(w.shape) for w in act.get_weights()])
    return layer


def by_hand(cell: Any, x: Any, states: Any = None, lengths: Any = None) -> tuple[Any, Any, float, float]:
    """Outputs, last states, ponder cost and mean calls, with the cell called row by row and step by step."""
    state = np.zeros((len(x), UNITS)) if states is None else np.array(states)
    outputs, cost, calls, steps = np.zeros((*x.shape[:2], UNITS)), 0.0, 0.0, 0
    for row in range(len(x)):
        for step in range(x.shape[1] if lengths is None else lengths[row]):
            output, (new,) = cell(x[row : row + 1, step], [state[row : row + 1]])
            outputs[row, step], state[row] = output[0], new[0]
            cost += sum(float(loss) for loss in cell.losses)
            calls, steps = calls + float(cell.mean_ponder_steps.numpy()), steps + 1
    return outputs, state, cost / max(len(x), 1), calls / max(steps, 1)


def check(layer: Any, found: Any, expected: Any) -> None:
    """Compare outputs, losses and mean calls; the cell is called by `by_hand`, so what it noted comes first."""
    outputs, losses, calls = found
    np.testing.assert_allclose(outputs, expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(losses, [expected[2]], rtol=1e-9)
    np.testing.assert_allclose(calls, expected[3], rtol=1e-6)


def run(layer: Any, x: Any, **given: Any) -> Any:
    outputs = layer(x, **given)
    return outputs, layer.losses, float(layer.cell.mean_ponder_steps.numpy())


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
def test_time_major_and_unrolled(time_major: bool, unroll: bool) -> None:
    layer = adaptive(time_major=time_major, unroll=unroll)
    outputs, *noted = run(layer, X.transpose(1, 0, 2) if time_major else X)
    check(layer, (outputs.transpose(1, 0, 2) if time_major else outputs, *noted), by_hand(layer.cell, X))


def test_rows_pay_up_to_their_end() -> None:
    layer, lengths = adaptive(), np.array([5, 0, 3, 1], "int32")
    found = run(layer, X, sequence_length=lengths)
    check(layer, found, by_hand(layer.cell, X, lengths=lengths))


def test_states_go_on_from_batch_to_batch_but_for_rows_that_begin_anew() -> None:
    layer = adaptive(stateful=True)
    first = run(layer, X)
    expected = by_hand(layer.cell, X)
    check(layer, first, expected)
    second = run(layer, X[:, ::-1])
    expected = by_hand(layer.cell, X[:, ::-1], expected[1])
    check(layer, second, expected)
    reset = np.array([True, False, False, True])
    third = run(layer, X, reset=reset)
    check(layer, third, by_hand(layer.cell, X, np.where(reset[:, None], 0.0, expected[1])))


@pytest.mark.parametrize("shape", [(0, STEPS, FEATURES), (BATCH, 0, FEATURES)])
def test_no_rows_and_no_steps(shape: Any) -> None:
    layer = adaptive()
    outputs, losses, calls = run(layer, np.zeros(shape))
    assert outputs.shape == (*shape[:2], UNITS)
    assert calls == 0
    assert shape[0] == 0 or float(losses[0]) == 0  # the mean over no rows is no number


class MixtureCell(layers.Layer):
    """A cell that is a mixture of experts, of input and state."""

    state_size = UNITS

    def __init__(self) -> None:
        super().__init__(dtype="float64")
        expert = lambda: layers.Dense(UNITS, "tanh", dtype="float64")  # noqa: E731
        self.mixture = layers.MixtureOfExperts(3, expert, k=2, noisy=False, dtype="float64")

    def build(self, input_shape: Any) -> None:
        self.mixture.build((None, input_shape[-1] + UNITS))

    def call(self, x: Any, states: Any) -> Any:
        state = self.mixture(ops.concatenate([x, states[0]], axis=-1))
        return state, [state]


def test_around_a_mixture_of_experts() -> None:
    """Losses of calls within steps come out of both loops, with gradients; tokens are counted over all calls."""
    layer = adaptive(MixtureCell())
    layer(X)
    ponder, importance, load = (float(loss) for loss in layer.losses)
    assert ponder > 0.5 * STEPS  # a call and more a step
    assert importance > 0
    assert load > 0
    taken = layer.cell.cell.mixture.expert_tokens.numpy().sum()
    calls = float(layer.cell.mean_ponder_steps.numpy()) * BATCH * STEPS
    assert taken >= round(2 * calls)
    check_layer_gradients(layer, X, rtol=1e-5, atol=1e-8)


def test_around_a_cell_that_regularizes_its_activity() -> None:
    """Each call of each row costs; rows are alone here, as a loss is of all rows that a call sees."""
    inner = layers.SimpleRNNCell(UNITS, activity_regularizer="l2", dtype="float64")
    layer = adaptive(inner)
    layer(X[:1])
    found = sum(float(loss) for loss in layer.losses)
    np.testing.assert_allclose(found, by_hand(layer.cell, X[:1])[2], rtol=1e-9)
    check_layer_gradients(layer, X, rtol=1e-6, atol=1e-9)


def test_its_metric_counts_all_steps_of_all_batches() -> None:
    layer = adaptive()
    layer.cell.ponder_metric = ab.metrics.Mean("ponder_steps")
    noted = [run(layer, x)[2] for x in (X, X[:1])]
    expected = np.average(noted, weights=[BATCH * STEPS, STEPS])
    np.testing.assert_allclose(float(layer.cell.ponder_metric.result()), expected, rtol=1e-6)
