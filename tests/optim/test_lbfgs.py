"""`LBFGS`: known minima, a reference in NumPy, the history, models, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops, optim
from anabranch.optim.lbfgs import LINE_SEARCHES

searches = pytest.mark.parametrize("line_search", LINE_SEARCHES)


def run(optimizer: Any, loss: Any, variables: Any, times: int = 1) -> None:
    with ab.Graph().as_default():
        step = ab.Session().make_callable(optimizer.minimize(loss, variables))
    for _ in range(times):
        step()


def quadratic(size: int, seed: int = 0) -> tuple[Any, Any]:
    """A positive definite matrix and a vector."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(size, size))
    return factor @ factor.T + np.eye(size), rng.normal(size=size)


def quadratic_loss(x: Any, matrix: Any, vector: Any) -> Any:
    return 0.5 * ops.sum(x * ops.dot(matrix, x)) - ops.sum(vector * x)


@pytest.mark.parametrize(("line_search", "size"), [("strong_wolfe", 2), ("backtracking", 2), ("strong_wolfe", 5)])
def test_rosenbrock(line_search: str, size: int) -> None:
    x = ab.Variable(np.tile([-1.2, 1.0], size)[:size])

    def loss() -> Any:
        return ops.sum((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2)

    optimizer = optim.LBFGS(max_iterations=100, line_search=line_search)
    run(optimizer, loss, [x])
    np.testing.assert_allclose(x.numpy(), np.ones(size), atol=1e-6)
    assert int(optimizer.iterations) < 80
    assert float(optimizer.loss.numpy()) < 1e-12


def test_first_steps_against_numpy() -> None:
    """The iterates are those of the dense BFGS formula if the first trial step is always taken."""
    matrix, vector = np.diag([1.0, 1.5, 2.0]), np.array([1.0, -2.0, 0.5])
    x = ab.Variable(np.zeros(3))
    optimizer = optim.LBFGS(max_iterations=1, line_search="backtracking", tolerance_gradient=0.0)
    with ab.Graph().as_default():
        step = ab.Session().make_callable(optimizer.minimize(lambda: quadratic_loss(x, matrix, vector), [x]))
    point, gradient, pairs = np.zeros(3), -vector, []
    for _ in range(4):
        step()
        if pairs:
            s, y = pairs[-1]
            inverse = np.eye(3) * (s @ y) / (y @ y)
            for s, y in pairs:
                left = np.eye(3) - np.outer(s, y) / (s @ y)
                inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
            direction, length = -inverse @ gradient, 1.0
        else:
            direction, length = -gradient, min(1.0, 1 / np.abs(gradient).sum())
        following = point + length * direction
        pairs.append((following - point, matrix @ following - vector - gradient))
        point, gradient = following, matrix @ following - vector
        np.testing.assert_allclose(x.numpy(), point, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("line_search", "history_size"), [("strong_wolfe", 3), ("backtracking", 20)])
def test_a_quadratic_in_several_variables_and_runs(line_search: str, history_size: int) -> None:
    """The history goes on from run to run, and round the buffer: many short runs do what a long one does."""
    matrix, vector = quadratic(8)
    found: list[Any] = []
    for times, iterations in ((1, 60), (60, 1)):
        first, second = ab.Variable(np.zeros((2, 3))), ab.Variable(np.zeros(2))
        optimizer = optim.LBFGS(
            history_size=history_size, max_iterations=iterations, line_search=line_search, tolerance_change=0.0
        )

        def loss(first: Any = first, second: Any = second) -> Any:
            return quadratic_loss(ops.concatenate([ops.reshape(first, (-1,)), second]), matrix, vector)

        run(optimizer, loss, [first, second], times)
        found.append((np.concatenate([first.numpy().ravel(), second.numpy()]), int(optimizer.iterations)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found[0][0], np.linalg.solve(matrix, vector), rtol=1e-4, atol=1e-5)
    assert abs(found[0][1] - found[1][1]) <= 3


def test_a_full_history_needs_about_as_many_steps_as_there_are_dimensions() -> None:
    """With exact line searches n steps are enough (Nocedal and Wright, theorem 6.4); these are nearly exact."""
    matrix, vector = quadratic(6)
    x, optimizer = ab.Variable(np.zeros(6)), optim.LBFGS(max_iterations=30, history_size=12, tolerance_gradient=1e-6)
    run(optimizer, lambda: quadratic_loss(x, matrix, vector), [x])
    assert int(optimizer.iterations) <= 18
    np.testing.assert_allclose(x.numpy(), np.linalg.solve(matrix, vector), rtol=1e-5, atol=1e-6)


@searches
def test_logistic_regression_reaches_the_optimum_of_newtons_method(line_search: str) -> None:
    rng = np.random.default_rng(1)
    x = np.hstack([rng.normal(size=(80, 4)), np.ones((80, 1))])
    y = (x @ rng.normal(size=5) + rng.normal(size=80) > 0).astype("float64")
    best = np.zeros(5)
    for _ in range(30):
        chance = 1 / (1 + np.exp(-x @ best))
        slope = x.T @ (chance - y) + 0.1 * best
        best -= np.linalg.solve((x.T * (chance * (1 - chance))) @ x + 0.1 * np.eye(5), slope)
    w = ab.Variable(np.zeros(5))

    def loss() -> Any:
        logits = ops.dot(x, w)
        return ops.sum(ops.softplus(logits) - y * logits) + 0.05 * ops.sum(w * w)

    run(optim.LBFGS(max_iterations=60, line_search=line_search), loss, [w])
    np.testing.assert_allclose(w.numpy(), best, rtol=1e-5, atol=1e-6)


@searches
def test_losses_that_are_not_finite_somewhere(line_search: str) -> None:
    """log(x) beyond 0 is NaN: the search comes back from there."""
    x, optimizer = ab.Variable(np.array([0.05])), optim.LBFGS(learning_rate=50.0, line_search=line_search)
    run(optimizer, lambda: ops.sum(x - ops.log(x)), [x])
    np.testing.assert_allclose(x.numpy(), [1.0], atol=1e-5)


def test_at_a_minimum_nothing_happens() -> None:
    x, optimizer = ab.Variable(np.zeros(3)), optim.LBFGS()
    run(optimizer, lambda: ops.sum(x**4), [x], times=2)
    assert int(optimizer.iterations) == 0
    np.testing.assert_array_equal(x.numpy(), np.zeros(3))


def test_where_no_step_helps_it_ends() -> None:
    """The loss rises in the direction in which its gradient says that it falls."""
    x, optimizer = ab.Variable(np.ones(2)), optim.LBFGS(max_iterations=9, max_line_search_steps=4)
    run(optimizer, lambda: ops.sum(2 * ops.stop_gradient(x) - x), [x])
    np.testing.assert_array_equal(x.numpy(), np.ones(2))
    assert int(optimizer.iterations) == 1


def test_negative_curvature_does_not_enter_the_history() -> None:
    x, optimizer = ab.Variable(np.array([0.3])), optim.LBFGS(max_iterations=50)
    run(optimizer, lambda: ops.sum(ops.cos(x)), [x])  # concave at the start
    np.testing.assert_allclose(np.cos(x.numpy()), [-1.0], atol=1e-9)


def test_saved_history_goes_on() -> None:
    matrix, vector = quadratic(5)
    values: list[Any] = []
    x, optimizer = ab.Variable(np.zeros(5)), optim.LBFGS(max_iterations=3)
    run(optimizer, lambda: quadratic_loss(x, matrix, vector), [x])
    y, again = ab.Variable(x.numpy()), optim.deserialize(optim.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    again.build([y])
    stored: dict[str, Any] = {}
    optimizer.save_own_variables(stored)
    again.load_own_variables(stored)
    for each, variable in ((optimizer, x), (again, y)):
        run(each, lambda variable=variable: quadratic_loss(variable, matrix, vector), [variable])
        values.append(variable.numpy())
    np.testing.assert_array_equal(values[0], values[1])


def test_fit_of_a_model_with_a_step_of_its_own() -> None:
    class FullBatch(ab.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = layers.Dense(6, "tanh"), layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

        def train_step(self, data: Any) -> Any:
            x, y = data
            self.optimizer.minimize(lambda: self.compute_loss(x, y, self(x, training=True)), self.trainable_variables)
            return {"loss": self.optimizer.loss}

    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2)).astype("float32")
    model = FullBatch()
    model(x)
    for position, weight in enumerate(model.weights):
        weight.assign(np.random.default_rng(position).normal(size=weight.shape))
    model.compile(optim.LBFGS(max_iterations=30), "mse")
    losses = model.fit(x, np.sin(x[:, :1]) * x[:, 1:], batch_size=50, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[1] < losses[0] < 0.1
    np.testing.assert_allclose(
        losses[2], np.mean((model.predict(x, verbose=0) - np.sin(x[:, :1]) * x[:, 1:]) ** 2), rtol=1e-3
    )


def test_constraints_and_variables_that_do_not_matter() -> None:
    class Bounded(ab.Variable):
        constraint = staticmethod(lambda w: ops.minimum(w, 0.5))

    w, v = Bounded(0.0, dtype="float64"), ab.Variable(1.5, dtype="float64")
    run(optim.LBFGS(), lambda: (w - 1.0) ** 2, [w, v])
    assert (float(w), float(v)) == (0.5, 1.5)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"history_size": 0}, "LBFGS: history_size must be at least 1; got 0"),
        ({"max_iterations": 0}, "max_iterations must be at least 1"),
        ({"max_line_search_steps": 0}, "max_line_search_steps must be at least 1"),
        ({"line_search": "exact"}, r"line_search must be one of \('strong_wolfe', 'backtracking'\); got 'exact'"),
    ],
)
def test_bad_arguments(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optim.LBFGS(**options)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "LBFGS does not accumulate gradients.* sum up the loss over all batches"),
        ({"weight_decay": 0.1}, "LBFGS does not take weight_decay: .* a penalty in place of weight_decay"),
        ({"clipnorm": 1.0}, "LBFGS does not take clipnorm: "),
        ({"use_ema": True}, "LBFGS does not take use_ema: "),
    ],
)
def test_options_of_other_optimizers(option: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optim.LBFGS(**option)


def test_options_of_no_optimizer() -> None:
    with pytest.raises(TypeError, match=r"LBFGS\(\) got an unexpected keyword argument 'history'"):
        optim.LBFGS(history=3)


def test_it_needs_a_function_of_variables_of_one_dtype() -> None:
    w = ab.Variable(1.0, name="w")
    with ab.Graph().as_default():
        with pytest.raises(
            TypeError, match=r"takes a function that computes the loss.* got Symbol. Write minimize\(lambda"
        ):
            optim.LBFGS().minimize(w * w, [w])
        with pytest.raises(ValueError, match=r"the loss depends on none of the variables \['w'\]"):
            optim.LBFGS().minimize(lambda: ab.constant(1.0), [w])
        with pytest.raises(ValueError, match=r"the loss must be a scalar; got float32\[2\]"):
            optim.LBFGS().minimize(lambda: w * [1.0, 2.0], [w])
        with pytest.raises(ValueError, match=r"of one float dtype; got \['float32', 'float64'\]"):
            optim.LBFGS().minimize(lambda: w * w, [w, ab.Variable(np.ones(2))])
    with pytest.raises(TypeError, match=r"gradients at one are not enough. Call minimize\(loss_function, variables\)"):
        optim.LBFGS().apply([1.0], [w])
