"""`steps_per_execution`: groups of steps as one loop in the graph, with the bits of single steps."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.framework.models.fit_callbacks import Callback, History

ROWS, FEATURES = 50, 6
_random = np.random.default_rng(0)
X = _random.normal(size=(ROWS, FEATURES)).astype("float32")
Y = _random.normal(size=(ROWS, 1)).astype("float32")
TABLE = np.eye(3, dtype="float32")
WEIGHTS = _random.uniform(size=ROWS).astype("float32")


class OwnStep(ab.Sequential):
    """A model with a step of its own, which logs what is no metric."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        loss = ops.mean((self(x, training=True) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(ab.gradients(loss, variables), variables)
        return {"own": loss, "mean": ops.mean(variables[0]), "three": 3.0}


def make_model(together: int, kind: type[ab.Sequential] = ab.Sequential, optimizer: Any = "adam") -> ab.Sequential:
    """A small model with everything that has state: moments, moving averages, random numbers, metrics."""
    ab.utils.set_random_seed(7)
    hidden = [layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    model = kind([ab.Input((FEATURES,)), *hidden])
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=together)
    return model


def fitted(together: int, *data: Any, kind: Any = ab.Sequential, optimizer: Any = "adam", **options: Any) -> Any:
    """The history and the weights after two epochs."""
    model = make_model(together, kind, optimizer)
    history = model.fit(*data, **{"epochs": 2, "verbose": 0, **options})
    return history.history, model.get_weights(), model


def assert_same(found: Any, wanted: Any) -> None:
    assert found[0] == wanted[0]
    for one, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_array_equal(one, other)


# --- the same results -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [3, 100])  # 7 batches an epoch, the last of 2 rows
def test_groups_give_the_bits_of_single_steps(together: int) -> None:
    options: dict[str, Any] = {"batch_size": 8, "validation_data": (X[:20], Y[:20])}
    assert_same(fitted(together, X, Y, **options), fitted(1, X, Y, **options))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ab.optim.SGD(0.1, momentum=0.9),
        lambda: ab.optim.AdamW(1e-2, gradient_accumulation_steps=2),
        lambda: ab.optim.RMSprop(ab.optim.schedules.ExponentialDecay(0.01, 3, 0.5)),
        lambda: ab.optim.LossScaleOptimizer(ab.optim.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=3),
    ],
    ids=["momentum", "accumulation", "schedule", "loss scale"],
)
def test_optimizers_with_state_go_on_inside_the_loop(make: Callable[[], Any]) -> None:
    found = fitted(3, X, Y, batch_size=5, optimizer=make())
    wanted = fitted(1, X, Y, batch_size=5, optimizer=make())
    assert_same(found, wanted)
    assert int(found[2].optimizer.iterations) == int(wanted[2].optimizer.iterations)


def test_steps_of_a_subclass_log_the_last_step_of_a_group() -> None:
    found, wanted = (fitted(together, X, Y, batch_size=8, kind=OwnStep) for together in (4, 1))
    assert_same(found, wanted)
    assert sorted(found[0]) == ["mean", "own", "three"]


def test_sample_weights_and_several_inputs() -> None:
    def model(together: int) -> ab.Model:
        ab.utils.set_random_seed(3)
        inputs = [ab.Input((FEATURES,), name="a"), ab.Input((FEATURES,), name="b")]
        outputs = layers.Dense(1)(ops.concatenate(inputs, -1))
        made = ab.Model(inputs, outputs)
        made.compile("adam", "mse", weighted_metrics=["mae"], steps_per_execution=together)
        return made

    first, second = model(3), model(1)
    for each in (first, second):
        each.fit({"a": X, "b": X[::-1]}, Y, sample_weight=WEIGHTS, batch_size=8, shuffle=False, verbose=0)
    assert first.history is not None
    assert second.history is not None
    assert_same((first.history.history, first.get_weights()), (second.history.history, second.get_weights()))


def test_evaluate_gives_the_same() -> None:
    many, one = make_model(4), make_model(1)
    assert many.evaluate(X, Y, batch_size=8, verbose=0) == one.evaluate(X, Y, batch_size=8, verbose=0)


def test_batches_of_several_shapes_in_one_group() -> None:
    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        begin = 0
        for rows in (4, 4, 4, 6, 6, 3, 5, 5, 7, 6):
            yield X[begin : begin + rows], Y[begin : begin + rows]
            begin += rows

    found, wanted = (fitted(together, batches(), epochs=1) for together in (8, 1))
    assert_same(found, wanted)


# --- how it is run --------------------------------------------------------------------------------------------------


def test_the_last_group_of_an_epoch_is_made_of_single_steps() -> None:
    steps = fitted(4, X[:48], Y[:48], batch_size=8)[2]._steps["train"]  # groups of 4 and 2 batches
    assert [length for length, _ in steps._loops.values()] == [4]
    assert steps.count() == 2


def long_run(together: int, optimizer: Any = "adam", kind: Any = ab.Sequential) -> Any:
    """200 steps of a model without random numbers, which a loop can carry."""
    ab.utils.set_random_seed(2)
    model = kind([ab.Input((FEATURES,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=together)
    history = model.fit(np.tile(X, (4, 1)), np.tile(Y, (4, 1)), batch_size=2, epochs=2, verbose=0)
    return history.history, model.get_weights(), model


@pytest.mark.kernels
@pytest.mark.parametrize("kind", [ab.Sequential, OwnStep])
def test_long_groups_of_small_models_are_a_native_loop_with_the_same_results(kind: Any) -> None:
    found, wanted = long_run(50, kind=kind), long_run(1, kind=kind)
    ((_, program),) = found[2]._steps["train"]._loops.values()
    assert ".assign" not in program.source
    assert "while" in program.source.partition("def step(")[0]  # a native function, with its way out in Python
    assert found[0].keys() == wanted[0].keys()
    for name, values in wanted[0].items():
        np.testing.assert_allclose(found[0][name], values, rtol=1e-4)
    for one, other in zip(found[1], wanted[1], strict=True):
        # Adam moves by some of its rate whatever a gradient's size: where one is mere rounding, by another part of it.
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=5e-4)
    assert int(found[2].optimizer.iterations) == int(wanted[2].optimizer.iterations) == 200


def test_a_long_group_that_fails_leaves_the_weights_as_they_were() -> None:
    model = ab.Sequential([ab.Input((), dtype="int32"), layers.Lambda(lambda row: ops.take(TABLE, row, axis=0))])
    model.add(layers.Dense(1))
    model.compile("sgd", "mse", steps_per_execution=100)
    rows = np.zeros(100, "int32")
    rows[70] = 5
    before = model.get_weights()
    with pytest.raises(IndexError):
        model.fit(rows, np.ones((100, 1), "float32"), batch_size=1, shuffle=False, verbose=0)
    assert_same((0, model.get_weights()), (0, before))


def test_a_group_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(3, X[:48], Y[:48], batch_size=8)[2]
    steps, calls = model._steps["train"], []
    ((key, (length, program)),) = steps._loops.items()
    noting = lambda *leaves: calls.append(leaves[0].shape) or program(*leaves)  # noqa: E731
    monkeypatch.setitem(steps._loops, key, (length, noting))
    model.fit(X[:48], Y[:48], batch_size=8, verbose=0)
    assert calls == [(3, 8, FEATURES), (3, 8, FEATURES)]


class Batches(Callback):
    """Notes batches and losses."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.stop_at = stop_at
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.begun.append(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.ended.append(batch)
        self.losses.append((logs or {})["loss"])
        self.model.stop_training = batch == self.stop_at


def test_callbacks_hear_of_the_first_and_the_last_batch_of_a_group() -> None:
    grouped, single = Batches(), Batches()
    fitted(3, X, Y, batch_size=8, epochs=1, callbacks=[grouped])
    fitted(1, X, Y, batch_size=8, epochs=1, callbacks=[single])
    assert (grouped.begun, grouped.ended) == ([0, 3, 6], [2, 5, 6])
    assert grouped.losses == [single.losses[batch] for batch in grouped.ended]


def test_training_stops_after_the_group() -> None:
    noted = Batches(stop_at=3)
    model = fitted(2, X, Y, batch_size=8, callbacks=[noted])[2]
    assert noted.ended == [1, 3]
    assert int(model.optimizer.iterations) == 4


def test_steps_per_epoch_cut_the_last_group() -> None:
    noted = Batches()
    x, y = X[:32], Y[:32]
    history = fitted(3, x, y, batch_size=8, epochs=2, steps_per_epoch=4, shuffle=False, callbacks=[noted])[0]
    assert (noted.begun, noted.ended) == ([0, 3, 0, 3], [2, 3, 2, 3])
    assert history == fitted(1, x, y, batch_size=8, epochs=2, steps_per_epoch=4, shuffle=False)[0]


def test_generators_of_unknown_length_end_in_a_smaller_group() -> None:
    noted = Batches()
    batches = ((X[k : k + 10], Y[k : k + 10]) for k in range(0, ROWS, 10))
    fitted(2, batches, epochs=1, callbacks=[noted, History()])
    assert noted.ended == [1, 3, 4]


@pytest.mark.usefixtures("guard_off")
def test_the_guard_against_nan_tells_the_batch_inside_a_group() -> None:
    model = ab.Sequential([ab.Input((1,)), layers.Activation(ops.log, name="logarithm"), layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=4)
    x = np.array([[1.0], [2.0], [-3.0], [4.0]], "float32")
    ab.debugging.enable_check_numerics()
    with pytest.raises(FloatingPointError, match=r"layer 'logarithm'.*\n.*batch 2 \(counted from 0\), after 2 steps"):
        model.fit(x, x, batch_size=1, shuffle=False, verbose=0)


@pytest.fixture
def guard_off() -> Iterator[None]:
    """Whatever the test turns on is off behind it."""
    yield
    ab.debugging.disable_check_numerics()


def test_a_step_that_fails_names_itself() -> None:
    table = layers.Embedding(3, 2)
    model = ab.Sequential([ab.Input((), dtype="int32"), table, layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=4)
    x = np.array([0, 1, 7, 2], "int32")
    with pytest.raises(IndexError) as caught:
        model.fit(x, np.zeros((4, 1), "float32"), batch_size=1, shuffle=False, verbose=0)
    assert "iteration 2" in "\n".join([str(caught.value), *caught.value.__notes__])
