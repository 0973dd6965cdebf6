"""LSTM variants and cells around cells: against plain NumPy and PyTorch, in each loop, and their statistics."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers

CELLS: dict[str, Callable[..., Any]] = {
    "peephole": lambda **kw: layers.PeepholeLSTMCell(3, **kw),
    "peephole, clipped": lambda **kw: layers.PeepholeLSTMCell(3, cell_clip=0.1, unit_forget_bias=False, **kw),
    "projected": lambda **kw: layers.ProjectedLSTMCell(4, num_proj=3, **kw),
    "projected, clipped": lambda **kw: layers.ProjectedLSTMCell(
        4, num_proj=3, use_peepholes=True, cell_clip=0.3, proj_clip=0.05, use_bias=False, **kw
    ),
    "layer norm": lambda **kw: layers.LayerNormLSTMCell(3, norm_epsilon=1e-2, **kw),
    "zoneout": lambda **kw: layers.ZoneoutCell(layers.LSTMCell(3, **kw), rate=(0.1, 0.5), **kw),
    "zoneout of a stack": lambda **kw: layers.ZoneoutCell(
        layers.StackedRNNCells([layers.LSTMCell(3, **kw), layers.GRUCell(3, **kw)], **kw), rate=0.5, **kw
    ),
    "dropout": lambda **kw: layers.DropoutCell(layers.GRUCell(3, **kw), 0.5, 0.5, 0.5, **kw),
    "variational": lambda **kw: layers.DropoutCell(
        layers.GRUCell(3, **kw), 0.5, 0.5, [0.5], variational=True, seed=1, **kw
    ),
    "dropout of its own": lambda **kw: layers.LSTMCell(3, dropout=0.3, recurrent_dropout=0.3, **kw),
    "residual": lambda **kw: layers.ResidualCell(layers.LSTMCell(3, **kw), **kw),
    "device": lambda **kw: layers.DeviceCell(layers.GRUCell(3, **kw), "cpu:0", **kw),
}
each_cell = pytest.mark.parametrize("name", [name for name in CELLS if name not in ("peephole, clipped", "projected")])


def data(*shape: int, dtype: str = "float64", seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def randomised(layer: Any, x: Any) -> Any:
    """The layer with other weights than the first ones, so that each has a part in the result."""
    layer.build(x.shape)
    layer.set_weights([0.7 * data(*np.shape(w), seed=i) for i, w in enumerate(layer.get_weights())])
    return layer


def weights_of(cell: Any) -> dict[str, Any]:
    return {weight.path.split(cell.name + "/")[-1]: weight.numpy() for weight in cell.weights}


# --- numbers --------------------------------------------------------------------------------------------------------


def normalised(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def lstm_reference(cell: Any, x: Any) -> tuple[Any, Any]:
    """Outputs of all steps and the last memory, by the equations of the papers."""
    w = weights_of(cell)
    hidden = np.zeros((len(x), cell.output_size))
    memory = np.zeros((len(x), cell.units))
    limit = getattr(cell, "cell_clip", None) or np.inf
    peepholes = w.get("peephole_kernel", np.zeros((3, cell.units)))
    bias = w.get("bias", 0.0)
    outputs = []
    for step in range(x.shape[1]):
        from_input, from_state = x[:, step] @ w["kernel"], hidden @ w["recurrent_kernel"]
        if "kernel_norm/gamma" in w:
            epsilon = cell.norm_epsilon
            from_input = normalised(from_input, w["kernel_norm/gamma"], w["kernel_norm/beta"], epsilon)
            from_state = normalised(from_state, w["recurrent_norm/gamma"], w["recurrent_norm/beta"], epsilon)
        i, f, g, o = np.split(from_input + from_state + bias, 4, axis=1)
        before = memory
        memory = sigmoid(f + peepholes[1] * before) * before + sigmoid(i + peepholes[0] * before) * np.tanh(g)
        memory = np.clip(memory, -limit, limit)
        read = memory
        if "state_norm/gamma" in w:
            read = normalised(memory, w["state_norm/gamma"], w["state_norm/beta"], cell.norm_epsilon)
        hidden = sigmoid(o + peepholes[2] * memory) * np.tanh(read)
        if "projection_kernel" in w:
            bound = cell.proj_clip or np.inf
            hidden = np.clip(hidden @ w["projection_kernel"], -bound, bound)
        outputs.append(hidden)
    return np.stack(outputs, 1), memory


@pytest.mark.parametrize("name", ["peephole", "peephole, clipped", "projected", "projected, clipped", "layer norm"])
def test_against_numpy(name: str) -> None:
    x = data(4, 5, 2)
    layer = layers.RNN(CELLS[name](dtype="float64"), return_sequences=True, return_state=True, dtype="float64")
    outputs, hidden, memory = randomised(layer, x)(x)
    expected, wanted = lstm_reference(layer.cell, x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(hidden, expected[:, -1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(memory, wanted, rtol=1e-9, atol=1e-12)
    if "clipped" in name:
        assert np.abs(memory).max() == layer.cell.cell_clip


TORCH_OUTPUTS = [
    [[0.301999162, -0.262545688], [0.269722658, -0.258003805], [0.165709711, -0.111181915]],
    [[0.315362317, -0.270078353], [0.264802611, -0.252307889], [0.180124170, -0.132071570]],
]
TORCH_MEMORY = [[0.851092238, 0.626419478, 0.520069471], [0.790867933, 0.483918786, 0.744951818]]


def test_projection_against_pytorch() -> None:
    """``torch.nn.LSTM(2, 3, proj_size=2)`` with weights ``sin(0, 1, 2, ...)`` on ``cos(0, 1, 2, ...)``."""
    cell = layers.ProjectedLSTMCell(3, num_proj=2, dtype="float64")
    layer = layers.RNN(cell, return_sequences=True, return_state=True, dtype="float64")
    layer.build((None, None, 2))

    def sines(*shape: int) -> Any:
        return np.sin(np.arange(np.prod(shape))).reshape(shape)

    bias = sines(12) + np.cos(np.arange(12))
    cell.set_weights([sines(12, 2).T, sines(12, 2)[::-1].T, bias, sines(2, 3).T])
    x = np.cos(np.arange(2 * 3 * 2)).reshape(2, 3, 2)
    outputs, _, memory = layer(x)
    np.testing.assert_allclose(outputs, TORCH_OUTPUTS, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(memory, TORCH_MEMORY, rtol=1e-6)


def test_zoneout_expects_outside_training() -> None:
    """By the weights of the cell: ``state = rate * old + (1 - rate) * new``, and the output is the first state."""
    x = data(4, 5, 2)
    cell = CELLS["zoneout"](dtype="float64")
    layer = randomised(layers.RNN(cell, return_sequences=True, return_state=True, dtype="float64"), x)
    outputs, hidden, memory = layer(x)
    states: list[Any] = [np.zeros((4, 3)), np.zeros((4, 3))]
    for step in range(5):
        _, new = cell.cell(x[:, step], states)
        states = [rate * old + (1 - rate) * n for rate, old, n in zip((0.1, 0.5), states, new, strict=True)]
        np.testing.assert_allclose(outputs[:, step], states[0], rtol=1e-9)
    np.testing.assert_allclose(hidden, states[0], rtol=1e-9)
    np.testing.assert_allclose(memory, states[1], rtol=1e-9)


def test_a_residual_adds_the_input() -> None:
    x = data(4, 5, 3)
    inner = layers.RNN(layers.LSTMCell(3, dtype="float64"), return_sequences=True, dtype="float64")
    outer = layers.RNN(layers.ResidualCell(inner.cell, dtype="float64"), return_sequences=True, dtype="float64")
    np.testing.assert_allclose(outer(x), inner(x) + x, rtol=1e-9)


# --- chance ---------------------------------------------------------------------------------------------------------


class Adding(layers.Layer):
    """The output is the sum of the inputs so far, which is the only state."""

    state_size = 200

    def call(self, x: Any, states: Any) -> Any:
        total = states[0] + x
        return total, [total]


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_zoneout_keeps_its_part_anew_at_each_step(rate: float) -> None:
    layer = layers.RNN(layers.ZoneoutCell(Adding(), rate, seed=1), return_sequences=True)
    outputs = layer(np.ones((20, 6, 200), "float32"), training=True)
    moved = np.diff(outputs, axis=1, prepend=0)
    assert set(np.unique(moved)) <= {0.0, 1.0}
    assert abs((moved == 0).mean() - rate) < 0.02
    assert rate in (0.0, 1.0) or not np.array_equal(moved[:, 0], moved[:, 1])
    np.testing.assert_allclose(layer(np.ones((2, 6, 200), "float32"))[:, -1], 6 * (1 - rate), rtol=1e-5, atol=1e-6)


class Echo(layers.Layer):
    """The output is the input beside the state, which stays 1."""

    state_size = 100
    output_size = 200

    def get_initial_state(self, batch_size: Any = None) -> Any:
        return [ab.ops.ones((batch_size, 100))]

    def call(self, x: Any, states: Any) -> Any:
        return ab.ops.concatenate([x, states[0]], axis=1), [ab.ops.ones_like(states[0])]


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_of_inputs_outputs_and_states(variational: bool) -> None:
    """Parts, scales, and whether masks are those of the step before."""
    x = np.ones((20, 6, 100), "float32")
    for rates, dropped in (
        ((0.25, 0, 0), slice(0, 100)),
        ((0, 0, 0.25), slice(100, 200)),
        ((0, 0.25, 0), slice(0, 200)),
    ):
        cell = layers.DropoutCell(Echo(), *rates, variational=variational, seed=2)
        layer = layers.RNN(cell, return_sequences=True)
        outputs = np.asarray(layer(x, training=True))
        part = outputs[..., dropped]
        np.testing.assert_allclose(np.unique(part), [0, 4 / 3], rtol=1e-6)
        assert abs((part == 0).mean() - 0.25) < 0.03
        assert np.array_equal(part[:, 0], part[:, 5]) == variational
        assert not np.array_equal(outputs, layer(x, training=True))
        np.testing.assert_allclose(outputs.sum() - part.sum(), outputs.size - part.size, rtol=1e-5)
        np.testing.assert_array_equal(layer(x), np.ones_like(outputs))


@pytest.mark.usefixtures("without_kernels")
@each_cell
def test_a_seed_fixes_what_is_drawn(name: str) -> None:
    """And it is drawn in training only."""
    x = data(8, 5, 3, dtype="float32")
    found = []
    for _ in range(2):
        cell = CELLS[name]()
        config = cell.get_config()
        if "seed" in config:
            config["seed"] = 7
        layer = layers.RNN(type(cell).from_config(config))
        found.append(randomised(layer, x)(x, training=True))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.array_equal(found[0], layer(x)) == (not any(word in name for word in ("zoneout", "drop", "vari")))


def test_masks_of_cells_inside_are_drawn_once_a_sequence() -> None:
    """Through wrappers and stacks, and through `AdaptiveComputationTime`."""

    class Shown(layers.SimpleRNNCell):
        def call(self, inputs: Any, states: Any, training: Any = False) -> Any:
            inputs, _ = self.dropped(inputs, states[0], training)
            return inputs[:, :8], [inputs[:, :8]]

    x = np.ones((2, 5, 8), "float32")
    for wrap in (
        lambda cell: layers.DropoutCell(cell),
        lambda cell: layers.StackedRNNCells([layers.ResidualCell(layers.DeviceCell(cell, "cpu:0"))]),
    ):
        outputs = layers.RNN(wrap(Shown(8, dropout=0.5, seed=3)), return_sequences=True)(x, training=True)
        assert len(np.unique(outputs)) == 2
        np.testing.assert_array_equal(outputs, np.repeat(outputs[:, :1], 5, axis=1))
    cell = layers.AdaptiveComputationTime(Shown(8, dropout=0.5, seed=3), max_steps=2)
    outputs = layers.RNN(cell, return_sequences=True)(x, training=True)
    assert (outputs == 0).any()
    np.testing.assert_array_equal(outputs == 0, np.repeat(outputs[:, :1] == 0, 5, axis=1))


# --- where cells go -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_kernels")
@each_cell
def test_gradients_against_finite_differences(name: str) -> None:
    x = data(3, 4, 3)
    layer = layers.RNN(CELLS[name](dtype="float64"), return_sequences=True, dtype="float64")
    randomised(layer, x)
    mask = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]], bool)

    check_layer_gradients(layer, x, lambda value: layer(value, mask=mask), rtol=1e-5, atol=1e-8)


@pytest.mark.usefixtures("without_kernels")
@each_cell
def test_in_stacks_both_directions_attention_and_pondering(name: str) -> None:
    x, memory = data(2, 4, 3, dtype="float32"), data(2, 5, 6, dtype="float32")
    stacked = layers.RNN([layers.GRUCell(3), CELLS[name](), layers.LSTMCell(2)])
    assert stacked(x, training=True).shape == (2, 2)
    both = layers.Bidirectional(layers.RNN(CELLS[name](), return_sequences=True))
    assert both(x, training=True).shape == (2, 4, 6)
    if name != "residual":  # their cells see more features than they give
        attended = layers.AttentionRNN(layers.AttentionCell(CELLS[name](), units=4), return_sequences=True)
        assert attended(x, memory, training=True).shape == (2, 4, 4)
        pondering = layers.RNN(layers.AdaptiveComputationTime(CELLS[name](), max_steps=2))
        assert pondering(x, training=True).shape == (2, 3)


@each_cell
def test_masked_steps_change_nothing(name: str) -> None:
    x = data(2, 6, 3, dtype="float32")
    layer = layers.RNN(CELLS[name](), return_sequences=True, return_state=True)
    mask = np.array([[1, 0, 1, 0, 0, 1], [0, 0, 1, 1, 0, 0]], bool)
    outputs, *states = randomised(layer, x)(x, mask=mask)
    for row in range(2):
        wanted, *final = layer(x[row : row + 1, mask[row]])
        np.testing.assert_allclose(outputs[row, mask[row]], wanted[0], rtol=1e-5, atol=1e-6)
        for state, other in zip(ab_leaves(states), ab_leaves(final), strict=True):
            np.testing.assert_allclose(state[row], other[0], rtol=1e-5, atol=1e-6)


def ab_leaves(states: Any) -> list[Any]:
    """The arrays of nested states."""
    return [leaf for state in states for leaf in (ab_leaves(state) if isinstance(state, list) else [state])]


@pytest.mark.usefixtures("without_kernels")
@each_cell
def test_saved_and_loaded(name: str, tmp_path: Any) -> None:
    x = data(3, 4, 3, dtype="float32")
    model = ab.Sequential([ab.Input((None, 3)), layers.Masking(), layers.RNN(CELLS[name]())])
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    assert loaded.layers[-1].cell.get_config() == model.layers[-1].cell.get_config()


@pytest.mark.usefixtures("without_kernels")
@each_cell
def test_half_precision_and_unknown_sizes(name: str) -> None:
    layer = layers.RNN(CELLS[name](dtype="mixed_float16"), dtype="mixed_float16", return_sequences=True)
    with ab.Graph().as_default():
        symbol = ab.placeholder((None, None, 3), "float32")
        output = layer(symbol, training=True)
        assert output.shape == (None, None, 3)
        found = ab.Session().run(output, {symbol: data(2, 4, 3, dtype="float32")})
    assert found.dtype == "float16"
    assert np.isfinite(found).all()


def test_weights_have_their_options() -> None:
    cell = layers.ProjectedLSTMCell(
        4,
        num_proj=2,
        use_peepholes=True,
        peephole_initializer="ones",
        projection_initializer="ones",
        projection_regularizer="l2",
        peephole_constraint="non_neg",
    )
    layer = layers.RNN(cell)
    layer(data(1, 2, 3, dtype="float32"))
    assert {name: value.shape for name, value in weights_of(cell).items()} == {
        "kernel": (3, 16),
        "recurrent_kernel": (2, 16),
        "bias": (16,),
        "peephole_kernel": (3, 4),
        "projection_kernel": (4, 2),
    }
    np.testing.assert_allclose(layer.losses, [0.01 * 8], rtol=1e-5)
    assert cell.peephole_kernel.constraint is not None
    recurrent = layers.ProjectedLSTMCell(4, num_proj=2, dropout=0.5, recurrent_dropout=0.5)
    x = data(2, 3, 3, dtype="float32")
    assert not np.allclose(layers.RNN(recurrent)(x, training=True), layers.RNN(recurrent)(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: layers.ZoneoutCell(layers.GRUCell(2), 1.5),
            r"ZoneoutCell: rate must be within \[0, 1\], got rate=1.5",
        ),
        (lambda: layers.ZoneoutCell(layers.Dense(2)), "is no cell: it has no state_size"),
        (lambda: layers.DropoutCell(layers.GRUCell(2), state_rate=[-1.0]), r"state_rate must be within \[0, 1\]"),
        (lambda: layers.DropoutCell(layers.GRUCell(2), output_rate=cast(Any, "x")), "output_rate must be within"),
        (lambda: layers.PeepholeLSTMCell(2, cell_clip=0.0), "PeepholeLSTMCell: cell_clip must be a positive number"),
        (
            lambda: layers.ProjectedLSTMCell(2, 1, proj_clip=-1),
            "ProjectedLSTMCell: proj_clip must be a positive number",
        ),
        (lambda: layers.ProjectedLSTMCell(2, 0), "num_proj must be a positive integer, got num_proj=0"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            lambda: layers.ZoneoutCell(layers.LSTMCell(2), (0.1, 0.1, 0.1), name="z"),
            "'z' .*: rate must be a number, or a",
        ),
        (lambda: layers.DropoutCell(layers.GRUCell(2), state_rate=[0.1] * 2, name="d"), "'d' .*: state_rate must be"),
        (
            lambda: layers.ResidualCell(layers.GRUCell(2), name="r"),
            r"'r' \(ResidualCell\) adds .* got \(3,\) and \(2,\)",
        ),
    ],
)
def test_what_does_not_fit_the_cell(cell: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layers.RNN(cell()).build((None, None, 3))


def test_a_cell_that_forgets_the_constructor_of_layer() -> None:
    class Forgetful(layers.Layer):
        state_size = 3

        def __init__(self) -> None:
            self.units = 3

        def call(self, inputs: Any, states: Any) -> Any:
            return inputs, states

    for cell in (Forgetful(), [layers.GRUCell(3), Forgetful()]):
        with pytest.raises(RuntimeError, match=r"Forgetful\.__init__\(\) did not call super"):
            layers.RNN(cell)
