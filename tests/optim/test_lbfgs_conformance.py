"""`LBFGS`: the tests of the table of optimizers (`test_conformance.py`) that do without given gradients and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops, optim
from anabranch.engine.runtime.program import Program

ROWS, WIDTH = 5, 3
IDS = np.array([3, 0, 3], "int32")  # one row twice, two rows never
Loss = Callable[[], Any]


def weights(dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        ab.Variable(rng.normal(size=(ROWS, WIDTH)).astype(dtype), name="kernel"),
        ab.Variable(rng.normal(size=WIDTH).astype(dtype), name="bias"),
    ]


def loss_of(kernel: Any, bias: Any) -> Any:
    """A loss whose gradient is rows of the kernel and all of the bias; not quadratic, so that steps differ."""
    rows = ops.take(kernel, IDS, axis=0) + bias
    return ops.sum(rows**4) + ops.sum((bias - 1.0) ** 2)


def run(optimizer: Any, loss: Loss, variables: Any, times: int = 1) -> list[Any]:
    """So many runs; variables and state after them."""
    with ab.Graph().as_default():
        step = ab.Session().make_callable(optimizer.minimize(loss, variables))
    for _ in range(times):
        step()
    return state(optimizer, variables)


def state(optimizer: Any, variables: Any) -> list[Any]:
    return [variable.numpy() for variable in (*variables, *optimizer.variables)]


def check_close(first: Any, second: Any, atol: float = 1e-5) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * atol, atol=atol)


@pytest.mark.usefixtures("without_kernels")
def test_state_of_a_run_is_saved_whole() -> None:
    """Interrupted after two runs, and continued by an optimizer made from the config, nothing is different."""
    variables = weights()
    optimizer = optim.LBFGS(max_iterations=2, history_size=3)
    run(optimizer, lambda: loss_of(*variables), variables, 2)
    stored: dict[str, Any] = {}
    optimizer.save_own_variables(stored)
    other = optim.deserialize(optim.serialize(optimizer))
    assert other.get_config() == optimizer.get_config()
    others = [ab.Variable(variable.numpy(), name=variable.name) for variable in variables]
    other.build(others)
    other.load_own_variables(stored)
    expected = run(optimizer, lambda: loss_of(*variables), variables, 2)
    check_close(run(other, lambda: loss_of(*others), others, 2), expected, 0.0)


def test_rows_of_tables_are_dense_gradients() -> None:
    """A gradient of some rows, one of them twice, is the dense gradient that has them."""
    found: list[Any] = []
    dense = np.eye(ROWS, dtype="float64")[IDS]
    for is_dense in (False, True):
        kernel, bias = variables = weights("float64")

        def loss(kernel: Any = kernel, bias: Any = bias, is_dense: bool = is_dense) -> Any:
            if not is_dense:
                return loss_of(kernel, bias)
            return ops.sum((ops.dot(dense, kernel) + bias) ** 4) + ops.sum((bias - 1.0) ** 2)

        found.append(run(optim.LBFGS(max_iterations=4), loss, variables))
    check_close(found[0], found[1], 1e-9)
    assert not np.array_equal(found[0][0], weights("float64")[0].numpy())
    np.testing.assert_array_equal(found[0][0][[1, 2, 4]], weights("float64")[0].numpy()[[1, 2, 4]])


def test_compiled_runs_are_the_interpreters() -> None:
    """A run of a program with kernels, and with exact operations only."""
    results: list[Any] = []
    for exact in (False, True):
        optimizer, variables = optim.LBFGS(max_iterations=4), weights("float64")
        with ab.Graph().as_default() as graph:
            step = optimizer.minimize(lambda variables=variables: loss_of(*variables), variables)
            Program(graph, [step], [], exact=exact)()
        results.append(state(optimizer, variables))
    check_close(results[0], results[1], 1e-9)


@pytest.fixture
def _simulated() -> Any:
    ab.config.set_devices(sim=2)
    yield
    ab.config.set_devices()


@pytest.mark.slow
@pytest.mark.usefixtures("_simulated")
def test_variables_on_another_device_get_the_same_steps() -> None:
    results: list[Any] = []
    for device in ("cpu:0", "sim:1"):
        with ab.device(device):
            variables = weights("float64")
        found = run(optim.LBFGS(max_iterations=3), lambda variables=variables: loss_of(*variables), variables)
        results.append(found)
    check_close(results[0], results[1], 1e-9)


def test_slots() -> None:
    """The history of all weights together: steps and changes of the gradient, of their dtype."""
    optimizer, variables = optim.LBFGS(history_size=4), weights("float64")
    optimizer.build(variables)
    wide = [variable for variable in optimizer.variables if variable.numpy().ndim == 2]
    assert [variable.numpy().shape for variable in wide] == [(4, ROWS * WIDTH + WIDTH)] * 2
    assert all(variable.dtype == "float64" and not variable.trainable for variable in wide)
    assert len({variable.name for variable in optimizer.variables}) == len(optimizer.variables)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes(dtype: str) -> None:
    """Weights and history keep their dtype, and float64 steps are those of float32, but for rounding."""
    optimizer, variables = optim.LBFGS(max_iterations=2), weights(dtype)
    found = run(optimizer, lambda: loss_of(*variables), variables)
    assert all(variable.numpy().dtype == dtype for variable in variables)
    assert all(np.isfinite(value).all() for value in found)
    if dtype == "float64":
        others = weights()
        check_close(found[:2], run(optim.LBFGS(max_iterations=2), lambda: loss_of(*others), others)[:2], 1e-4)


def test_no_variables() -> None:
    with (
        ab.Graph().as_default(),
        pytest.raises(ValueError, match=r"all variables must be of one float dtype; got \[\]"),
    ):
        optim.LBFGS().minimize(lambda: ab.constant(1.0), [])


# --- in fit ---------------------------------------------------------------------------------------------------------


@ab.saving.register_keras_serializable(package="test_lbfgs_conformance")
class FullBatch(ab.Sequential):
    def train_step(self, data: Any) -> Any:
        x, y = data
        self.optimizer.minimize(lambda: self.compute_loss(x, y, self(x, training=True)), self.trainable_variables)
        return {"loss": self.optimizer.loss}


def model_and_data() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = x @ rng.normal(size=(4, 2)).astype("float32")
    model = FullBatch([ab.Input((4,)), layers.Dense(8, "tanh", name="first"), layers.Dense(2)])
    for position, weight in enumerate(model.weights):
        weight.assign(np.random.default_rng(position).normal(scale=0.5, size=weight.shape))
    return model, x, y


def test_fit_lowers_the_loss_and_saves_its_state(tmp_path: Any) -> None:
    model, x, y = model_and_data()
    model.compile(optim.LBFGS(max_iterations=3), "mse")
    losses = model.fit(x, y, epochs=4, batch_size=64, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    model.save(tmp_path / "model.keras")
    again = ab.models.load_model(tmp_path / "model.keras")
    check_close(state(again.optimizer, []), state(model.optimizer, []), 0.0)
    assert again.optimizer.get_config() == model.optimizer.get_config()


def test_a_frozen_layer_stays() -> None:
    model, x, y = model_and_data()
    frozen = model.get_layer("first")
    frozen.trainable = False
    before, others = frozen.get_weights(), model.layers[-1].get_weights()
    model.compile(optim.LBFGS(max_iterations=3), "mse")
    model.fit(x, y, batch_size=64, verbose=0)
    for one, other in zip(frozen.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(model.layers[-1].get_weights()[0], others[0])


def test_several_steps_in_one_execution() -> None:
    """A loop over runs in the graph gives what single runs do."""
    found: list[Any] = []
    for number in (1, 2):
        model, x, y = model_and_data()
        model.compile(optim.LBFGS(max_iterations=2), "mse", steps_per_execution=number)
        model.fit(x, y, batch_size=32, shuffle=False, verbose=0)
        found.append(state(model.optimizer, model.weights))
    check_close(found[0], found[1])
