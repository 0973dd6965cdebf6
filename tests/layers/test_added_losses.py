"""Losses that layers add inside loops and branches: readable there, and outside as what they come to."""

from typing import Any

import numpy as np
import pytest
from shared.layer_gradients import check_layer_gradients

import anabranch as ab
from anabranch import layers, ops

X = np.random.default_rng(0).normal(size=(4, 3))


class Charged(layers.Layer):
    """Adds the sum of its output, which is its input times a weight."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dtype="float64", **kwargs)
        self.factor = self.add_weight(shape=(), initializer="ones", name="factor")

    def call(self, inputs: Any) -> Any:
        outputs = inputs * self.factor
        self.add_loss(ops.sum(outputs))
        return outputs


def charged(value: float = 2.0) -> Any:
    layer = Charged()
    layer.factor.assign(value)
    return layer


class Around(layers.Layer):
    """A layer that calls others in a function of its own."""

    def __init__(self, function: Any, *inner: Any) -> None:
        super().__init__(dtype="float64")
        self.inner, self.function = list(inner), function

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def called(model: Any, x: Any, is_traced: bool) -> tuple[Any, list[Any]]:
    """Outputs and losses of a call: of values, op by op, or traced, where loops and branches are those of the graph."""

    def call(x: Any) -> tuple[Any, list[Any]]:
        return model(x), model.losses

    return (ab.function(call) if is_traced else call)(x)


# --- outside ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_loop_adds_up_its_iterations(steps: int) -> None:
    layer = charged()

    @ab.function
    def run(count: Any) -> Any:
        start = (0, ops.ones((), "float64"))
        _, product = ab.while_loop(lambda i, _: i < count, lambda i, x: (i + 1, layer(x)), start)
        (loss,) = layer.losses
        return product, loss, ab.gradients(loss, [layer.factor])[0]

    product, loss, slope = run(np.int32(steps))
    assert product == 2.0**steps
    assert loss == sum(2.0**k for k in range(1, steps + 1))  # w + w**2 + ...
    assert slope == sum(k * 2.0 ** (k - 1) for k in range(1, steps + 1))


@pytest.mark.parametrize(("taken", "loss", "slope"), [(True, 6.0, 3.0), (False, 0.0, 0.0)])
def test_a_branch_counts_if_it_is_taken(taken: bool, loss: float, slope: float) -> None:
    layer = charged()

    @ab.function
    def run(flag: Any, x: Any) -> Any:
        ab.cond(flag, lambda: layer(x), lambda: x)
        total = sum(layer.losses)
        return total, ab.gradients(total, [layer.factor])[0]

    assert run(np.array(taken), np.ones(3)) == (loss, slope)


@pytest.mark.parametrize(("index", "loss"), [(-3, 0.0), (0, 0.0), (1, 6.0), (2, 30.0), (9, 30.0)])
def test_a_switch_counts_the_branch_that_runs(index: int, loss: float) -> None:
    layer, number = charged(), np.int32(index)
    branches = [lambda x: x, layer, lambda x: layer(5 * x)]
    model = Around(lambda x: ab.switch(ab.constant(number), branches, x), layer)
    model(np.ones(3))
    assert sum(model.losses) == loss


@pytest.mark.parametrize("is_traced", [False, True])
def test_loops_in_branches_in_loops(is_traced: bool) -> None:
    """Two iterations of three take the branch, which calls the layer twice: on 1 and 2, then on 4 and 8."""

    layer = charged()

    def twice(value: Any) -> Any:
        return ab.while_loop(lambda k, _: k < 2, lambda k, v: (k + 1, layer(v)), (0, value))[1]

    def body(i: Any, value: Any) -> Any:
        return i + 1, ab.cond(ops.not_equal(i, 1), lambda: twice(value), lambda: value)

    model = Around(lambda x: ab.while_loop(lambda i, _: i < 3, body, (0, x))[1], layer)
    outputs, found = called(model, np.ones(1), is_traced)
    assert outputs == [16]
    assert found == ([2 + 4 + 8 + 16] if is_traced else [2, 4, 8, 16])
    check_layer_gradients(model, np.full(1, 1.5), rtol=1e-6)


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_loop_whose_body_is_traced_again_counts_once(is_traced: bool) -> None:
    """The shape grows, so that the first trace is thrown away."""
    layer = charged(1.0)
    grown = lambda i, v: (i + 1, ops.concatenate([layer(v), v]))  # noqa: E731
    model = Around(lambda x: ab.while_loop(lambda i, _: i < 3, grown, (0, x))[1], layer)
    outputs, found = called(model, np.ones(1), is_traced)
    assert len(outputs) == 8
    assert found == ([1 + 2 + 4] if is_traced else [1, 2, 4])


def test_map_fn_and_scan_add_up_and_several_losses_are_summed() -> None:
    layer = charged()

    @ab.function
    def run(x: Any) -> Any:
        ab.map_fn(layer, x)
        mapped = sum(layer.losses)
        ab.scan(lambda carry, row: (layer(carry + row), row), ops.zeros(3, "float64"), x)
        return mapped, sum(layer.losses)

    mapped, scanned = run(X)
    carry, total = np.zeros(3), 0.0
    for row in X:
        carry = 2 * (carry + row)
        total += carry.sum()
    np.testing.assert_allclose([mapped, scanned], [2 * X.sum(), total], rtol=1e-12)


@pytest.mark.parametrize("is_traced", [False, True])
def test_numbers_and_vectors_of_a_loop(is_traced: bool) -> None:
    class Model(layers.Layer):
        def call(self, x: Any) -> Any:
            def body(i: Any, value: Any) -> Any:
                self.add_loss([0.5, value])
                return i + 1, value * 2

            return ab.while_loop(lambda i, _: i < 3, body, (0, x))[1]

    _, found = called(Model(), np.ones(2), is_traced)
    assert [float(ops.sum(loss)) for loss in found] == ([1.5, 14.0] if is_traced else [0.5, 2, 0.5, 4, 0.5, 8])


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("taken", [True, False])
def test_a_mixture_in_a_branch_is_trained_with_its_losses(taken: bool, is_traced: bool) -> None:
    mixture = layers.MixtureOfExperts(3, lambda: layers.Dense(3, dtype="float64"), k=2, noisy=False, dtype="float64")
    mixture.dropped_metric = ab.metrics.Sum("dropped")
    model = Around(lambda x: ab.cond(ab.constant(taken), lambda: mixture(x), lambda: x), mixture)
    gradients = check_layer_gradients(model, X, rtol=1e-5, atol=1e-9, known=X.shape)
    assert any(np.abs(gradient).max() > 0 for gradient in gradients[1:]) == taken
    mixture(X)
    alone = mixture.losses
    _, found = called(model, X, is_traced)
    nothing = [0.0, 0.0] if is_traced else []
    np.testing.assert_allclose([float(loss) for loss in found], alone if taken else nothing, rtol=1e-12)


def test_a_branch_inside_the_step_of_a_cell() -> None:
    """The steps with a positive input, of five, add a loss."""

    class Cell(layers.Layer):
        state_size = 1

        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.inner = charged()

        def call(self, x: Any, states: Any) -> Any:
            return ab.cond(ops.sum(x) > 0, lambda: self.inner(x), lambda: x), states

    layer = layers.RNN(Cell(), dtype="float64")
    layer(np.array([1.0, -2.0, 3.0, -4.0, 5.0]).reshape(1, 5, 1))
    assert layer.losses == [18.0]


def test_out_of_a_vectorized_function_no_loss_comes_in_silence() -> None:
    layer = Charged(name="inner")
    layer.factor.assign(2.0)
    model = Around(lambda x: ab.vectorized_map(layer, x), layer)
    np.testing.assert_allclose(model(X), 2 * X)  # nobody has asked for losses
    with pytest.raises(ValueError, match=r"'inner' added a loss \(defined at .*test_added_losses.py:\d+\) inside a .*"):
        model.losses  # noqa: B018
    trained = ab.Sequential([ab.Input((3,), dtype="float64"), model])
    trained.compile("sgd", "mse")
    assert trained.predict(X, verbose=0).shape == (4, 3)
    with pytest.raises(ValueError, match="Return it as a result of that function and add it up outside"):
        trained.fit(X, X, verbose=0)


@pytest.mark.parametrize("kind", ["recursive", "scheduled"])
def test_nor_out_of_functions_that_call_themselves_or_are_scheduled(kind: str) -> None:
    layer = charged()

    @ab.function
    def recursive(x: Any) -> Any:
        return ab.cond(ops.sum(x) > 100, lambda: x, lambda: recursive(layer(x)))

    def scheduled(x: Any) -> Any:
        return ab.dynamic_schedule(layer, [x])

    model = Around(recursive if kind == "recursive" else scheduled, layer)
    assert model(np.ones(2)).tolist() == ([64.0, 64.0] if kind == "recursive" else [2.0, 2.0])
    if kind == "scheduled":  # values are computed at once, so that the loss is there
        assert model.losses == [4.0]
    else:
        with pytest.raises(ValueError, match="added a loss"):
            model.losses  # noqa: B018
    with pytest.raises(ValueError, match="added a loss"):
        called(model, np.ones(2), is_traced=True)


# --- inside -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["adaptive", "mixture"])
def test_a_training_loop_by_hand_reads_losses_in_its_body(kind: str) -> None:
    """Three steps in one loop of the graph, with the bits of three calls."""

    def trained(together: bool) -> Any:
        ab.utils.set_random_seed(3)
        inner = {
            "adaptive": lambda: layers.RNN(layers.AdaptiveComputationTime(layers.GRUCell(4), ponder_cost=0.3)),
            "mixture": lambda: layers.MixtureOfExperts(3, lambda: layers.Dense(3, activity_regularizer="l2"), k=1),
        }[kind]()
        model = ab.Sequential([inner, layers.Dense(1)])
        x = np.random.default_rng(1).normal(size=(6, 5, 3)).astype("float32")
        model.build(x.shape)
        optimizer = ab.optim.SGD(0.1)
        optimizer.build(model.trainable_variables)

        def step(values: Any) -> Any:
            loss = ops.mean(ops.square(model(values, training=True))) + sum(model.losses)
            optimizer.apply(ab.gradients(loss, model.trainable_variables), model.trainable_variables)
            return loss

        def loop(values: Any) -> Any:
            losses = ab.TensorArray("float32", size=3)
            start = (0, losses)
            return ab.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a.write(i, step(values))), start)[1].stack()

        run = ab.function(loop if together else step)
        return np.array(run(x) if together else [run(x) for _ in range(3)]), model.get_weights()

    (found, weights), (wanted, others) = trained(together=True), trained(together=False)
    for one, other in zip([found, *weights], [wanted, *others], strict=True):
        np.testing.assert_array_equal(one, other)


def test_in_a_branch_losses_are_those_of_the_branch() -> None:
    layer = charged()

    @ab.function
    def run(flag: Any, x: Any) -> Any:
        def with_losses(value: Any) -> Any:
            layer(value)
            return sum(layer.losses)

        return ab.cond(flag, lambda: with_losses(x), lambda: with_losses(-x))

    assert [float(run(np.array(flag), np.ones(3))) for flag in (True, False)] == [6.0, -6.0]


def test_another_branch_sees_what_a_finished_loop_comes_to() -> None:
    layer = charged(1.0)

    @ab.function
    def run(flag: Any) -> Any:
        start = (0, ops.ones((), "float64"))
        ab.while_loop(lambda i, _: i < 4, lambda i, x: (i + 1, layer(x)), start)
        return ab.cond(flag, lambda: sum(layer.losses), lambda: ops.zeros((), "float64"))

    assert [float(run(np.array(flag))) for flag in (True, False)] == [4.0, 0.0]


# --- arrays -----------------------------------------------------------------------------------------------------------


def test_losses_of_symbols_of_a_build_are_no_losses() -> None:
    """A `Sequential` inside builds its layers on symbols."""
    expert = lambda: ab.Sequential([layers.Dense(3, activity_regularizer="l2")])  # noqa: E731
    mixture = layers.MixtureOfExperts(1, expert, k=1, importance_loss=0, load_loss=0, noisy=False, dtype="float64")
    mixture.build(X.shape)
    assert mixture.losses == []
    outputs = mixture(X)
    (loss,) = mixture.losses
    kernel = mixture.experts[0].weights[0].numpy()
    assert float(loss) == pytest.approx(0.01 * np.sum((X @ kernel) ** 2) / len(X), rel=1e-5)
    assert outputs.shape == X.shape


def test_asking_for_shapes_leaves_losses_alone() -> None:
    layer = charged()
    layer(X)
    before = list(layer.losses)
    layer.compute_output_shape((None, 3))
    layer.symbolic_call(X)
    assert layer.losses == before


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "Dense"])
def test_each_call_of_a_layer_within_one_call_adds_its_penalty(kind: str) -> None:
    """Recurrent layers run compiled on values, and must not drop what their calls before have added."""
    options = {"return_sequences": True} if kind != "Dense" else {}
    shared = getattr(ab.layers, kind)(3, activity_regularizer="l2", **options)
    inputs = ab.Input((4, 3))
    model = ab.Model(inputs, shared(shared(shared(inputs))))
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    expected, first = [], x
    for _ in range(3):
        first = np.asarray(shared(first))
        expected.append(0.01 * np.sum(first**2) / 2)  # of each of 2 rows
        assert len(shared.losses) == 1
    for _ in range(2):  # the second call finds what is compiled
        with ab.GradientTape() as tape:
            model(x)
            total = sum(model.losses)
        np.testing.assert_allclose([float(loss) for loss in model.losses], expected, 1e-5)
        found = tape.gradient(total, model.trainable_variables)

    @ab.function
    def compiled(x: ab.Tensor) -> list[ab.Tensor]:
        model(x)
        return ab.gradients(sum(model.losses), model.trainable_variables)

    for one, other in zip(found, compiled(x), strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-6)
