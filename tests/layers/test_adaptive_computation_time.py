"""`AdaptiveComputationTime` against loops in plain NumPy, and its gradients against finite differences."""

from typing import Any, cast

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers


def data(*shape: int, dtype: str = "float64", seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


class Cell:
    """A cell in NumPy: a plain one, or an LSTM's."""

    def __init__(self, weights: list[Any], is_lstm: bool) -> None:
        self.kernel, self.recurrent, self.bias = weights
        self.is_lstm = is_lstm

    def __call__(self, x: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        total = x @ self.kernel + states[0] @ self.recurrent + self.bias
        if not self.is_lstm:
            return np.tanh(total), [np.tanh(total)]
        i, f, g, o = np.split(total, 4)
        carry = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(carry)
        return hidden, [hidden, carry]


def reference(act: Any, x: Any, mask: Any = None) -> tuple[Any, Any, float]:
    """Row by row and call by call: outputs (batch, steps, units), calls (batch, steps), and the ponder cost."""
    *weights, kernel, bias = [weight.astype("float64") for weight in act.get_weights()]
    cell = Cell(weights, isinstance(act.cell, layers.LSTMCell))
    units = act.cell.units
    outputs, calls, cost = np.zeros((*x.shape[:2], units)), np.zeros(x.shape[:2]), 0.0
    for row in range(x.shape[0]):
        states = [np.zeros(units) for _ in range(2 if cell.is_lstm else 1)]
        output = np.zeros(units)
        for step in range(x.shape[1]):
            if mask is not None and not mask[row, step]:
                outputs[row, step] = output
                continue
            output, mean_states, halted = np.zeros(units), [np.zeros(units) for _ in states], 0.0
            call, weight, is_last = 0, 0.0, False
            while not is_last:
                call += 1
                y, states = cell(np.append(x[row, step], float(call == 1)), states)
                chance = float(sigmoid(np.concatenate(states) @ kernel[:, 0] + bias[0]))
                is_last = halted + chance >= 1 - act.epsilon or call == act.max_steps
                weight = 1 - halted if is_last else chance
                output = output + weight * y
                mean_states = [mean + weight * state for mean, state in zip(mean_states, states, strict=True)]
                halted += chance
            states, calls[row, step] = mean_states, call
            cost += call + weight
            outputs[row, step] = output
    return outputs, calls, act.ponder_cost * cost / x.shape[0]


def built(kind: Any = layers.SimpleRNNCell, bias: float = 0.0, **kwargs: Any) -> tuple[Any, Any]:
    """A layer with such a cell whose rows halt at different calls, and an input."""
    act = layers.AdaptiveComputationTime(kind(3, dtype="float64", bias_initializer="glorot_normal"), dtype="float64")
    act = layers.AdaptiveComputationTime.from_config({**act.get_config(), **kwargs})
    layer, x = layers.RNN(act, return_sequences=True, dtype="float64"), data(4, 5, 2)
    layer.build(x.shape)
    *weights, kernel, _ = act.get_weights()
    act.set_weights([2 * data(*w.shape, seed=7) for w in weights] + [data(*kernel.shape, seed=2), np.array([bias])])
    return layer, x


@pytest.mark.parametrize("kind", [layers.SimpleRNNCell, layers.LSTMCell])
@pytest.mark.parametrize("max_steps", [1, 2, 10])
def test_against_a_loop_in_numpy(kind: Any, max_steps: int) -> None:
    layer, x = built(kind, bias=-1.0, max_steps=max_steps)
    outputs = layer(x)
    expected, calls, cost = reference(layer.cell, x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(layer.losses, [cost], rtol=1e-9)
    np.testing.assert_allclose(layer.cell.mean_ponder_steps.numpy(), calls.mean(), rtol=1e-6)
    assert max_steps < 10 or len(np.unique(calls)) >= 3


@pytest.mark.parametrize("zero_output_for_mask", [False, True])
def test_masked_steps_cost_nothing(zero_output_for_mask: bool) -> None:
    layer, x = built()
    layer.zero_output_for_mask = zero_output_for_mask
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], bool)
    outputs = layer(x, mask=mask)
    expected, calls, cost = reference(layer.cell, x, mask)
    np.testing.assert_allclose(outputs, expected * (mask[..., None] if zero_output_for_mask else 1), rtol=1e-9)
    np.testing.assert_allclose(layer.losses, [cost], rtol=1e-9)
    np.testing.assert_allclose(layer.cell.mean_ponder_steps.numpy(), calls[mask].mean(), rtol=1e-6)


def test_all_masked() -> None:
    layer, x = built()
    np.testing.assert_array_equal(layer(x, mask=np.zeros((4, 5), bool)), np.zeros((4, 5, 3)))
    assert layer.losses[0] == 0
    assert layer.cell.mean_ponder_steps.numpy() == 0


@pytest.mark.parametrize("kind", [layers.SimpleRNNCell, layers.LSTMCell])
def test_gradients_against_finite_differences(kind: Any) -> None:
    """Check gradients of outputs and ponder cost by the input and by each weight."""
    layer, x = built(kind, ponder_cost=0.5)

    for gradient in check_layer_gradients(layer, x, rtol=1e-6):
        assert np.abs(gradient).max() > 0


def test_alone_it_is_a_cell() -> None:
    """Called without an `RNN` around it, on one step."""
    layer, x = built()
    output, (state,) = layer.cell(x[:, 0], [np.zeros((4, 3))])
    expected, _, cost = reference(layer.cell, x[:, :1])
    np.testing.assert_allclose(output, expected[:, 0], rtol=1e-9)
    np.testing.assert_allclose(state, output)
    np.testing.assert_allclose(layer.cell.losses, [cost], rtol=1e-9)


def test_a_surer_cell_ponders_less() -> None:
    layer, x = built(bias=10.0)
    layer(x)
    assert layer.cell.mean_ponder_steps.numpy() == 1
    layer, _ = built(bias=-10.0, max_steps=6)
    layer(x)
    assert layer.cell.mean_ponder_steps.numpy() == 6


def test_the_halting_bias_is_1_at_first() -> None:
    act: Any = layers.AdaptiveComputationTime(layers.LSTMCell(3))
    layers.RNN(act).build((None, None, 2))
    assert act.halting.kernel.shape == (6, 1)
    np.testing.assert_array_equal(act.halting.bias.numpy(), [1.0])
    assert act.cell.kernel.shape == (3, 12)
    assert len(act.weights) == 5


def test_stacked_cells_dropout_and_rows_of_none() -> None:
    act = layers.AdaptiveComputationTime(
        layers.StackedRNNCells([layers.LSTMCell(3, dropout=0.5, seed=1), layers.GRUCell(2)])
    )
    layer = layers.RNN(act, return_state=True)
    x = data(3, 4, 2, dtype="float32")
    output, lstm_states, gru_states = layer(x)
    assert [value.shape for value in (output, *lstm_states, *gru_states)] == [(3, 2), (3, 3), (3, 3), (3, 2)]
    assert not np.allclose(layer(x, training=True)[0], output)
    assert layer(x[:0])[0].shape == (0, 2)
    assert layer(x[:, :0])[0].shape == (3, 2)


def test_a_cell_in_another() -> None:
    """The inner ponder cost comes out of both loops: rows that have halted outside pay nothing inside."""
    inner = layers.AdaptiveComputationTime(layers.SimpleRNNCell(3), ponder_cost=1.0, max_steps=1)
    outer = layers.AdaptiveComputationTime(inner, ponder_cost=0.0, max_steps=4)
    layer, x = layers.RNN(outer), data(4, 5, 2, dtype="float32")
    layer(x)
    calls = 5 * float(outer.mean_ponder_steps.numpy())
    costs = sorted(float(loss) for loss in layer.losses)
    np.testing.assert_allclose(costs, [0.0, 2 * calls], rtol=1e-5)  # one call and a remainder of 1 each time


def test_it_trains_and_logs_its_metric() -> None:
    """Fitting lowers loss and ponder cost; the metric is logged."""
    pondered = ab.metrics.Mean("ponder_steps")
    act = layers.AdaptiveComputationTime(layers.SimpleRNNCell(8), 0.5, max_steps=5, ponder_metric=pondered)
    model = ab.Sequential([ab.Input((6, 1)), layers.RNN(act), layers.Dense(1)])
    act.halting.set_weights([np.zeros((8, 1)), [-1.0]])
    model.compile(ab.optim.Adam(0.05), "mse")
    x = np.random.default_rng(0).integers(0, 2, (64, 6, 1)).astype("float32")
    history = model.fit(x, x.sum(1) % 2, epochs=6, batch_size=16, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert 1 <= history["ponder_steps"][-1] < history["ponder_steps"][0] <= 5


def test_metric_is_saved_with_the_model(tmp_path: Any) -> None:
    """Also one that was set later; in Bidirectional each copy of the cell has its own."""
    act = layers.AdaptiveComputationTime(layers.SimpleRNNCell(3))
    act.ponder_metric = ab.metrics.Mean("pondered", dtype="float64")
    model = ab.Sequential([ab.Input((4, 1)), layers.RNN(act)])
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.models.load_model(tmp_path / "model.keras")
    loaded.compile("sgd", "mse")
    x = data(5, 4, 1, dtype="float32")
    logs = loaded.evaluate(x, np.zeros((5, 3), "float32"), return_dict=True, verbose=0)
    assert logs["pondered"] == float(loaded.layers[-1].cell.mean_ponder_steps.numpy()) >= 1

    both = layers.Bidirectional(layers.RNN(act))
    both(x)
    assert [metric.name for metric in both.metrics] == ["pondered", "pondered"]
    assert act.ponder_metric not in both.metrics


def test_what_is_no_metric_is_told() -> None:
    with pytest.raises(TypeError, match=r"ponder_metric must be a metric, such as ab.metrics.Mean.*got 'ponder' \(str"):
        layers.AdaptiveComputationTime(layers.SimpleRNNCell(2), ponder_metric=cast(Any, "ponder"))


def test_saved_and_loaded(tmp_path: Any) -> None:
    act = layers.AdaptiveComputationTime(layers.GRUCell(3), ponder_cost=0.2, max_steps=4, epsilon=0.05, name="act")
    model = ab.Sequential([ab.Input((None, 2)), layers.Masking(), layers.RNN(act)])
    x = data(3, 4, 2, dtype="float32")
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    again = loaded.layers[-1].cell
    assert again.get_config() == act.get_config()
    assert (again.ponder_cost, again.max_steps, again.epsilon) == (0.2, 4, 0.05)


def test_half_precision() -> None:
    act = layers.AdaptiveComputationTime(layers.SimpleRNNCell(3, dtype="mixed_float16"), dtype="mixed_float16")
    output = layers.RNN(act, dtype="mixed_float16")(data(2, 3, 2, dtype="float32"))
    assert output.dtype == "float16"
    assert np.isfinite(output).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_steps": 0}, "max_steps must be a positive integer, got max_steps=0"),
        ({"epsilon": 1.0}, r"epsilon must be within \(0, 1\), got epsilon=1.0"),
        ({"max_steps": 2.5}, "max_steps must be a positive integer, got max_steps=2.5"),
        ({"epsilon": 0.0}, r"epsilon must be within \(0, 1\), got epsilon=0.0"),
        ({"epsilon": "a"}, r"epsilon must be within \(0, 1\), got epsilon='a'"),
        ({"ponder_cost": "a"}, "ponder_cost must be a number of at least 0, got ponder_cost='a'"),
        ({"ponder_cost": -1}, "ponder_cost must be a number of at least 0, got ponder_cost=-1"),
        ({"ponder_cost": float("nan")}, "ponder_cost must be a number of at least 0, got ponder_cost=nan"),
        ({"ponder_cost": float("inf")}, "ponder_cost must be a number of at least 0, got ponder_cost=inf"),
        ({"ponder_cost": True}, "ponder_cost must be a number of at least 0, got ponder_cost=True"),
        ({"cell": layers.Dense(2)}, "is no cell: it has no state_size"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layers.AdaptiveComputationTime(**cast(dict[str, Any], {"cell": layers.SimpleRNNCell(2), **arguments}))


@pytest.mark.parametrize("shape", [(2, 3, None), (2, 3, 4, 5)])
def test_inputs_are_vectors(shape: Any) -> None:
    act = layers.AdaptiveComputationTime(layers.SimpleRNNCell(2), name="thinker")
    with pytest.raises(ValueError, match=r"'thinker' .* takes inputs of shape \(batch, features\) at each step"):
        layers.RNN(act).build(shape)


def test_numbers_of_any_kind_are_arguments() -> None:
    act = layers.AdaptiveComputationTime(layers.SimpleRNNCell(2), ponder_cost=0, epsilon=cast(Any, np.float32(0.25)))
    assert (act.get_config()["ponder_cost"], act.get_config()["epsilon"]) == (0.0, 0.25)


def test_states_that_have_no_mean() -> None:
    decoder = layers.TransformerDecoder(intermediate_dim=4, num_heads=1)
    cell = layers.TransformerDecoderCell(decoder, max_length=3, name="writer")
    act = layers.AdaptiveComputationTime(cell, name="thinker")
    with pytest.raises(
        TypeError,
        match=r"'thinker' \(AdaptiveComputationTime\): a step's states are means over the calls of the cell, so that "
        r"they have to be floats, but states\[2\] of 'writer' \(TransformerDecoderCell\) is int32",
    ):
        layers.RNN(act)(data(2, 3, 4, dtype="float32"))
