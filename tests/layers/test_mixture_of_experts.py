"""`MixtureOfExperts` against all experts on all tokens in NumPy, and its gradients against finite differences."""

import math
from typing import Any

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers

EXPERTS, FEATURES, UNITS = 5, 4, 3


def data(*shape: int, dtype: str = "float64", seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def variation(x: Any) -> float:
    return float(x.var() / x.mean() ** 2)


def mixture(**kwargs: Any) -> Any:
    """A layer whose gate prefers some experts."""
    layer = layers.MixtureOfExperts(
        EXPERTS, lambda: layers.Dense(UNITS, activation="tanh", dtype="float64"), dtype="float64", **kwargs
    )
    layer.build((None, FEATURES))
    layer.set_weights([data(*weight.shape, seed=10 + i) for i, weight in enumerate(layer.weights)])
    return layer


class Reference:
    """Outputs, losses, dropped and taken tokens, with loops over tokens and choices."""

    def __init__(self, layer: Any, x: Any, live: Any = None) -> None:
        gate, *rest = layer.get_weights()
        noise = rest.pop(0) if layer.noisy else None
        experts = list(zip(rest[::2], rest[1::2], strict=True))
        tokens = x.reshape(-1, FEATURES)
        live = np.ones(len(tokens), bool) if live is None else live.reshape(-1)
        logits = tokens @ gate
        order = np.argsort(-logits, axis=1)[:, : layer.k]
        kept = softmax(np.take_along_axis(logits, order, 1))
        gates = kept if layer.k > 1 else np.take_along_axis(softmax(logits), order, 1)
        capacity = math.inf
        if layer.capacity_factor is not None:
            capacity = math.ceil(layer.capacity_factor * live.sum() * layer.k / EXPERTS)
        self.taken, self.dropped = np.zeros(EXPERTS, int), 0
        outputs, importance = np.zeros((len(tokens), UNITS)), np.zeros(EXPERTS)
        for choice in range(layer.k):
            for token in np.flatnonzero(live):
                expert = order[token, choice]
                importance[expert] += gates[token, choice]
                if self.taken[expert] >= capacity:
                    self.dropped += 1
                    continue
                self.taken[expert] += 1
                kernel, bias = experts[expert]
                outputs[token] += gates[token, choice] * np.tanh(tokens[token] @ kernel + bias)
        self.outputs = outputs.reshape(*x.shape[:-1], UNITS)
        self.losses = [layer.importance_loss * variation(importance)]
        if noise is None:
            counts = np.bincount(order[live].ravel(), minlength=EXPERTS)
            means = softmax(logits)[live].mean(0)
            self.losses.append(layer.load_loss * EXPERTS * float(counts / counts.sum() @ means))
        elif layer.k < EXPERTS:
            self.losses.append(layer.load_loss * variation(self.load(tokens, logits, noise, layer.k)[live].sum(0)))

    def load(self, tokens: Any, logits: Any, noise: Any, k: int) -> Any:
        scale = np.log1p(np.exp(tokens @ noise)) + 0.01
        chances = np.zeros_like(logits)
        for token, expert in np.ndindex(*logits.shape):
            others = np.sort(np.delete(logits[token], expert))[::-1]
            z = (logits[token, expert] - others[k - 1]) / scale[token, expert]
            chances[token, expert] = (1 + math.erf(z / math.sqrt(2))) / 2
        return chances


def check(layer: Any, x: Any, live: Any = None) -> Reference:
    expected = Reference(layer, x, live)
    outputs = layer(x) if live is None else layer(x, mask=live)
    np.testing.assert_allclose(outputs, expected.outputs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(layer.losses, expected.losses, rtol=1e-9)
    assert layer.dropped_tokens.numpy() == expected.dropped
    np.testing.assert_array_equal(layer.expert_tokens.numpy(), expected.taken)
    return expected


@pytest.mark.parametrize("capacity_factor", [None, 0.5, 1.25])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("k", [1, 2, EXPERTS])
def test_against_all_experts_in_numpy(k: int, noisy: bool, capacity_factor: Any) -> None:
    expected = check(mixture(k=k, noisy=noisy, capacity_factor=capacity_factor), data(3, 7, FEATURES))
    assert capacity_factor == 1.25 or (expected.dropped > 0) == (capacity_factor == 0.5)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 2, 2)])
def test_shapes_of_inputs(shape: Any) -> None:
    check(mixture(), data(*shape, FEATURES))


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("capacity_factor", [None, 0.75])
def test_masked_tokens_go_nowhere(noisy: bool, capacity_factor: Any) -> None:
    live = np.random.default_rng(0).random((3, 7)) < 0.6
    expected = check(mixture(noisy=noisy, capacity_factor=capacity_factor), data(3, 7, FEATURES), live)
    assert not expected.outputs[~live].any()


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("live", [None, np.zeros(4, bool)])
def test_no_tokens(noisy: bool, live: Any) -> None:
    layer = mixture(noisy=noisy, capacity_factor=1.0)
    x = data(0 if live is None else 4, FEATURES)
    outputs = layer(x) if live is None else layer(x, mask=live)
    np.testing.assert_array_equal(outputs, np.zeros((len(x), UNITS)))
    assert layer.dropped_tokens.numpy() == 0
    np.testing.assert_array_equal(layer.losses, [0.0, 0.0])


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("capacity_factor", [None, 0.75])
def test_gradients_against_finite_differences(k: int, noisy: bool, capacity_factor: Any) -> None:
    """Check gradients of outputs and losses by the input and by each weight."""
    layer, x = mixture(k=k, noisy=noisy, capacity_factor=capacity_factor), data(6, FEATURES)

    found = check_layer_gradients(layer, x, rtol=1e-5, atol=1e-8)
    assert all(np.abs(gradient).max() > 0 for gradient in found[: 3 if noisy else 2])


def test_noise_is_for_training() -> None:
    layer, x = mixture(seed=3), data(50, FEATURES)
    plain = layer(x)
    np.testing.assert_array_equal(layer(x), plain)
    first, second = layer(x, training=True), layer(x, training=True)
    assert not np.allclose(first, plain)
    assert not np.allclose(first, second)
    quiet = mixture(noisy=False)
    np.testing.assert_array_equal(quiet(x, training=True), quiet(x))


def test_the_load_is_the_chance_to_be_chosen() -> None:
    """Averaged over draws of the noise, the smooth load is the number of tokens that an expert gets."""
    layer = mixture(k=2, importance_loss=0.0, load_loss=1.0)
    layer.set_weights([0.3 * layer.get_weights()[0], *layer.get_weights()[1:]])
    x = np.tile(data(1, FEATURES), (4000, 1))
    layer(x, training=True)
    shares = layer.expert_tokens.numpy()
    np.testing.assert_allclose(layer.losses, [variation(shares)], rtol=0.1)


class Slow(layers.Layer):
    """Notes how many tokens it has computed on."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seen = ab.Variable(np.zeros((), "int32"), trainable=False)

    def call(self, inputs: Any) -> Any:
        self.seen.assign(self.seen + ab.ops.shape(inputs)[0])
        return inputs


def test_experts_compute_on_their_own_tokens_only() -> None:
    layer = layers.MixtureOfExperts(EXPERTS, Slow, k=2)
    layer(data(20, FEATURES, dtype="float32"))
    seen = [int(expert.seen.numpy()) for expert in layer.experts]
    assert sum(seen) == 40
    np.testing.assert_array_equal(layer.expert_tokens.numpy(), seen)


def test_experts_of_other_kinds() -> None:
    """Whole models, layers with dropout, outputs with more axes."""

    def expert() -> Any:
        return ab.Sequential([layers.Dense(8, activation="relu"), layers.Dropout(0.5), layers.Reshape((2, 4))])

    layer = layers.MixtureOfExperts(3, expert, k=1, noisy=False)
    x = data(6, FEATURES, dtype="float32")
    plain = layer(x)
    assert plain.shape == (6, 2, 4)
    assert not np.allclose(layer(x, training=True), plain)


class Cell(layers.Layer):
    """A cell whose state goes through a mixture."""

    def __init__(self, experts: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mixture = experts
        self.state_size = UNITS

    def build(self, input_shape: Any) -> None:
        self.mixture.build((None, input_shape[-1] + UNITS))

    def call(self, x: Any, states: Any, training: Any = False) -> Any:
        state = self.mixture(ab.ops.concatenate([x, states[0]], axis=-1))
        return state, [state]


def test_in_a_cell() -> None:
    """Losses and counts are those of all steps together."""

    def expert() -> Any:
        return layers.Dense(UNITS, activation="tanh", dtype="float64")

    mixed = layers.MixtureOfExperts(EXPERTS, expert, capacity_factor=0.75, dtype="float64")
    layer, x = layers.RNN(Cell(mixed, dtype="float64"), dtype="float64"), data(6, 4, 2)
    output = layer(x)
    losses, dropped, taken = layer.losses, mixed.dropped_tokens.numpy(), mixed.expert_tokens.numpy()
    state, expected, total, counts = np.zeros((6, UNITS)), np.zeros(2), 0, np.zeros(EXPERTS, int)
    for step in range(4):
        state = mixed(np.concatenate([x[:, step], state], axis=-1))
        expected += mixed.losses
        total, counts = total + mixed.dropped_tokens.numpy(), counts + mixed.expert_tokens.numpy()
    np.testing.assert_allclose(output, state, rtol=1e-9)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    assert dropped == total > 0
    np.testing.assert_array_equal(taken, counts)


def test_it_trains_and_logs_its_metric() -> None:
    """Each sign of the first feature asks for another map, which one linear layer can't be."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 4)).astype("float32")
    y = np.where(x[:, :1] > 0, x, -x)[:, 1:2]
    mixed = layers.MixtureOfExperts(2, lambda: layers.Dense(1), k=1, capacity_factor=1.5, load_loss=0.01, seed=0)
    mixed.dropped_metric = ab.metrics.Sum("dropped")
    model = ab.Sequential([ab.Input((4,)), mixed])
    model.compile(ab.optim.Adam(0.05), "mse")
    history = model.fit(x, y, epochs=25, batch_size=64, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["dropped"][-1] < 256


def test_saved_and_loaded(tmp_path: Any) -> None:
    dropped = ab.metrics.Sum("dropped")
    mixed = layers.MixtureOfExperts(
        3, lambda: layers.Dense(2, activation="relu"), 1, 1.5, 0.3, 0.2, False, "normal", seed=4, dropped_metric=dropped
    )
    model = ab.Sequential([ab.Input((None, 4)), mixed])
    x = data(2, 5, 4, dtype="float32")
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded: Any = ab.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    again = loaded.layers[-1]
    assert again.get_config() == mixed.get_config()
    assert (again.k, again.capacity_factor, again.importance_loss, again.load_loss) == (1, 1.5, 0.3, 0.2)
    assert (again.noisy, again.seed, len(again.weights)) == (False, 4, 7)


def test_half_precision() -> None:
    layer = layers.MixtureOfExperts(3, lambda: layers.Dense(2, dtype="mixed_float16"), dtype="mixed_float16")
    output = layer(data(5, 4, dtype="float32"), training=True)
    assert output.dtype == "float16"
    assert np.isfinite(output).all()
    assert all(loss.dtype == "float32" for loss in layer.losses)


SAME = layers.Dense(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_experts": 0}, "num_experts must be a positive integer, got num_experts=0"),
        ({"k": 0}, "k must be a positive integer, got k=0"),
        ({"k": 4}, "k must be at most num_experts=3, got k=4"),
        ({"capacity_factor": 0.0}, "capacity_factor must be positive, or None to drop no token, got 0.0"),
        ({"expert": 16}, r"expert must be a function that makes a layer, or a list of layers; got expert=16"),
        ({"expert": lambda: 3}, "expert must be a function that returns a layer, got 3 from it"),
        ({"expert": lambda: SAME}, "expert must give 3 different layers, got 1. Make the layer inside the function"),
        ({"expert": [layers.Dense(2)]}, "expert must give 3 different layers, got 1"),
        (
            {"expert": layers.Dense(2, name="one")},
            r"expert must be a function that makes a layer, .* got the layer 'one' itself\. "
            r"Write expert=lambda: layers\.Dense\(\.\.\.\), or give a list of 3 layers\.",
        ),
        ({"routing": "top"}, "routing must be 'token_choice' or 'expert_choice', got 'top'"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    given: dict[str, Any] = {"num_experts": 3, "expert": lambda: layers.Dense(2)}
    with pytest.raises(ValueError, match=message):
        layers.MixtureOfExperts(**(given | arguments))


def test_wrong_mask_and_unknown_features() -> None:
    layer = layers.MixtureOfExperts(3, lambda: layers.Dense(2), name="mixed")
    with pytest.raises(ValueError, match=r"'mixed' .* mask must have the inputs' shape without the last axis, 2 axes"):
        layer(data(2, 3, 4, dtype="float32"), mask=np.ones(2, bool))
    with pytest.raises(ValueError, match="needs a known size of its input's last axis"):
        layers.MixtureOfExperts(3, lambda: layers.Dense(2)).build((None, None))


@pytest.mark.parametrize("routing", ["token_choice", "expert_choice"])
def test_experts_of_different_widths(routing: str) -> None:
    experts = [layers.Dense(3, name="narrow"), layers.Dense(4, name="wide")]
    layer = layers.MixtureOfExperts(2, experts, routing=routing, name="mixed")
    message = (
        r"Layer 'mixed' .* outputs must have one shape, but expert 0, 'narrow', gives \(tokens, 3\) and expert 1, "
        r"'wide', \(tokens, 4\)\."
    )
    with pytest.raises(ValueError, match=message):
        layer(data(2, 4, dtype="float32"))
