"""One table of all optimizers and wrappers: a row buys an optimizer the tests below it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, optim
from anabranch.engine.graph import IndexedSlices
from anabranch.engine.runtime.program import Program

SGD, Adam = optim.SGD, optim.Adam
ROWS, WIDTH = 5, 3


@dataclass(frozen=True)
class Row:
    """An optimizer, and what is true of it.

    Args:
        name: the test's id.
        make: makes one; takes the options of `Optimizer`, which a wrapper hands to the inner one.
        rate: a learning rate at which it fits a small model in a few steps.
        slots: variables for a weight, beside those for the whole.
        atol: how far its steps in another order of sums may differ.
    """

    name: str
    make: Callable[..., Any]
    rate: float = 0.05
    slots: int = 1
    atol: float = 1e-6

    def __str__(self) -> str:
        return self.name


def wrapped(cls: Any, *arguments: Any, inner: Any = SGD, **settings: Any) -> Callable[..., Any]:
    """Makes the wrapper around an optimizer that gets the options."""
    return lambda *rate, **options: cls(inner(*rate, **options), *arguments, **settings)


TABLE = [
    Row("SGD", SGD, slots=0),
    Row("Momentum", optim.Momentum),
    Row("RMSprop", optim.RMSprop),
    Row("Adagrad", optim.Adagrad, 0.3),
    Row("Adadelta", optim.Adadelta, 30.0, slots=2),
    Row("Adafactor", optim.Adafactor, 0.3, slots=3, atol=1e-5),
    Row("Adam", Adam, slots=2),
    Row("AdamW", optim.AdamW, slots=2),
    Row("Adamax", optim.Adamax, slots=2),
    Row("Nadam", optim.Nadam, slots=2),
    Row("Ftrl", optim.Ftrl, 0.5, slots=2),
    Row("Lion", optim.Lion, 0.02),
    Row("Lamb", optim.Lamb, slots=2),
    Row("Muon", optim.Muon, atol=1e-3),  # its polynomial is steep at 0, so that rounding grows
    Row("ScheduleFreeAdamW", optim.ScheduleFreeAdamW, slots=2, atol=1e-5),
    Row("LossScaleOptimizer", wrapped(optim.LossScaleOptimizer, 8.0), slots=0),
    Row("Lookahead", wrapped(optim.Lookahead, 2)),
    Row("MovingAverage", wrapped(optim.MovingAverage, 0.5)),
    Row("SWA", wrapped(optim.SWA, 1, 2)),
    Row("Selective", wrapped(optim.Selective, 1e-3), slots=0),
    Row("Selective by variable", wrapped(optim.Selective, 1e-3, per_variable=True), slots=0),
    Row("Frozen", wrapped(optim.Frozen, {"": (0, 1)}), slots=0),
    Row(
        "Lookahead of Frozen Adam", lambda *a, **o: optim.Lookahead(optim.Frozen(Adam(*a, **o), {"": (0, 1)})), slots=3
    ),
    Row("LossScale of SWA", lambda *a, **o: optim.LossScaleOptimizer(optim.SWA(SGD(*a, **o), 1, 1), 4.0)),
]
every = pytest.mark.parametrize("row", TABLE, ids=str)
TOGETHER = {"gradient_accumulation_steps": 2, "clipnorm": 0.5, "weight_decay": 0.1, "use_ema": True}
with_options = pytest.mark.parametrize("options", [{}, TOGETHER], ids=["plain", "together"])


def weights(dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        ab.Variable(rng.normal(size=(ROWS, WIDTH)).astype(dtype), name="kernel"),
        ab.Variable(rng.normal(size=WIDTH).astype(dtype), name="bias"),
    ]


def gradients(steps: int = 4, dtype: str = "float32") -> list[list[Any]]:
    rng = np.random.default_rng(1)
    return [[rng.normal(size=(ROWS, WIDTH)).astype(dtype), rng.normal(size=WIDTH).astype(dtype)] for _ in range(steps)]


def state(optimizer: Any, variables: Any) -> list[Any]:
    return [variable.numpy() for variable in (*variables, *optimizer.variables)]


def taken(optimizer: Any, variables: Any, steps: Any) -> list[Any]:
    for step in steps:
        optimizer.apply(step, variables)
    return state(optimizer, variables)


def check_close(first: Any, second: Any, atol: float = 1e-6) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * atol, atol=atol)


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_kernels")
@every
@with_options
def test_state_of_a_run_is_saved_whole(row: Row, options: Any) -> None:
    """Interrupted after two steps, and continued by an optimizer made from the config, nothing is different."""
    first, variables, steps = row.make(row.rate, **options), weights(), gradients()
    taken(first, variables, steps[:2])
    stored: dict[str, Any] = {}
    first.save_own_variables(stored)
    again = optim.deserialize(optim.serialize(first))
    assert again.get_config() == first.get_config()
    others = [ab.Variable(variable.numpy(), name=variable.name) for variable in variables]
    again.build(others)
    again.load_own_variables(stored)
    before = [variable.numpy() for variable in variables]
    for one, other in zip(taken(first, variables, steps[2:]), taken(again, others, steps[2:]), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(before[0], variables[0].numpy())


@pytest.mark.usefixtures("without_kernels")
@every
@with_options
def test_rows_of_tables_are_dense_gradients(row: Row, options: Any) -> None:
    """A gradient of some rows, one of them twice, is the dense gradient that has them."""
    sparse, dense = (row.make(row.rate, **options) for _ in range(2))
    variables, others = weights(), weights()
    for step in gradients():
        indices, values = np.array([3, 0, 3], "int32"), step[0][:3]
        whole = np.zeros((ROWS, WIDTH), "float32")
        np.add.at(whole, indices, values)
        sparse.apply([IndexedSlices(values, indices, (ROWS, WIDTH)), step[1]], variables)
        dense.apply([whole, step[1]], others)
    check_close(state(sparse, variables), state(dense, others), row.atol)


@every
@with_options
def test_compiled_steps_are_the_interpreters(row: Row, options: Any) -> None:
    """Steps of a program with fused updates, with exact operations only, and one at once."""
    results: list[Any] = []
    for exact in (False, True):
        optimizer, variables = row.make(row.rate, **options), weights()
        with ab.Graph().as_default() as graph:
            feeds = [ab.placeholder(variable.shape) for variable in variables]
            step = optimizer.apply(feeds, variables)
            program = Program(graph, [step], feeds, exact=exact)
        for values in gradients():
            program(*values)
        results.append(state(optimizer, variables))
    optimizer, variables = row.make(row.rate, **options), weights()
    results.append(taken(optimizer, variables, gradients()))
    for other in results[1:]:
        check_close(results[0], other, row.atol)


# Nothing happens in the first step of what is frozen then; Muon decays vectors by another share, and ScheduleFreeAdamW
# remembers the weights from before the decay: test_optimizers.py.
OTHERWISE = ("Muon", "ScheduleFreeAdamW")


@pytest.mark.parametrize(
    "row", [row for row in TABLE if "Frozen" not in row.name and row.name not in OTHERWISE], ids=str
)
def test_weight_decay_comes_before_the_step(row: Row) -> None:
    """A step with decay is one without from weights that have shrunk."""
    optimizer, variables, plain, shrunk = row.make(row.rate, weight_decay=0.5), weights(), none(row), weights()
    for variable in shrunk:
        variable.assign(variable.numpy() * np.float32(1 - 0.5 * row.rate))
    check_close(
        [value for value, _ in zip(taken(optimizer, variables, gradients(1)), variables, strict=False)],
        [value for value, _ in zip(taken(plain, shrunk, gradients(1)), shrunk, strict=False)],
        row.atol,
    )


def none(row: Row) -> Any:
    """Without weight decay, which some have by default."""
    return row.make(row.rate, weight_decay=0.0)


@pytest.mark.usefixtures("without_kernels")
@every
def test_clipping_is_clipping_of_the_gradients(row: Row) -> None:
    first, second = row.make(row.rate, clipvalue=0.25), row.make(row.rate)
    most = 0.25 * first.scale_loss(1.0)  # gradients come scaled, and are clipped when they no longer are
    clipped = [[np.clip(gradient, -most, most) for gradient in step] for step in gradients()]
    check_close(taken(first, weights(), gradients()), taken(second, weights(), clipped), row.atol)


@pytest.mark.usefixtures("without_kernels")
@every
def test_accumulated_gradients_make_one_step_with_their_mean(row: Row) -> None:
    first, second = row.make(row.rate, gradient_accumulation_steps=2), row.make(row.rate)
    variables, others = weights(), weights()
    steps = gradients()
    taken(first, variables, steps)
    taken(second, others, [[(a + b) / 2 for a, b in zip(*steps[i : i + 2], strict=True)] for i in (0, 2)])
    check_close([v.numpy() for v in variables], [v.numpy() for v in others], row.atol)
    assert int(first.iterations) == int(second.iterations) == 2


# Those of optimizers inside these are of the weights before the wrapper's own change, or before the first step.
@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("row", [row for row in TABLE if not row.name.startswith(("Lookahead", "Frozen"))], ids=str)
def test_moving_averages_are_those_of_the_weights(row: Row) -> None:
    optimizer, variables = row.make(row.rate, use_ema=True, ema_momentum=0.5), weights()
    mean: Any = None
    for step in gradients():
        optimizer.apply(step, variables)
        mean = variables[0].numpy() if mean is None else 0.5 * mean + 0.5 * variables[0].numpy()
    optimizer.finalize_variable_values(variables)
    np.testing.assert_allclose(variables[0].numpy(), mean, rtol=1e-5)


@pytest.mark.usefixtures("without_kernels")
@every
def test_loss_scale_is_undone(row: Row) -> None:
    scaled = [[8.0 * gradient for gradient in step] for step in gradients()]
    first, second = row.make(row.rate, loss_scale_factor=8.0), row.make(row.rate)
    if isinstance(first, optim.LossScaleOptimizer):
        scaled = gradients()  # it has a scale of its own
    check_close(taken(first, weights(), scaled), taken(second, weights(), gradients()), 10 * row.atol)


# --- devices --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _simulated() -> Any:
    ab.config.set_devices(sim=2)
    yield
    ab.config.set_devices()


# What optimizers do on devices differs in what they hold: slots (Adam below), matrices, weights beside the weights.
DIFFERENT = {"Muon", "Lookahead"}


@pytest.mark.parametrize(
    ("row", "options"),
    [
        *[pytest.param(row, {}, marks=[] if row.name in DIFFERENT else pytest.mark.slow) for row in TABLE],
        *[
            pytest.param(row, TOGETHER, marks=[] if row.name == "Adam" else pytest.mark.slow)
            for row in TABLE
            if row.name in ("SGD", "Adagrad", "Adam")
        ],
    ],
    ids=lambda value: str(value) if isinstance(value, Row) else "together" if value else "plain",
)
@pytest.mark.usefixtures("_simulated")
def test_variables_on_another_device_get_the_same_steps(row: Row, options: Any) -> None:
    """Rows of a table and a dense gradient, in one program; shapes and counters stay in the host's memory."""
    results: list[Any] = []
    ids = np.array([3, 0, 3], "int32")
    for device in ("cpu:0", "sim:1"):
        with ab.device(device):
            variables = weights()
        optimizer = row.make(row.rate, **options)
        with ab.Graph().as_default():
            rows = [ab.placeholder(variable.shape) for variable in variables]
            taken_rows = ab.ops.take(variables[0], ids, axis=0) * ab.ops.take(rows[0], ids, axis=0)
            loss = ab.ops.sum(ab.ops.square(taken_rows)) + ab.ops.sum(variables[1] * rows[1])
            session = ab.Session()
            step = optimizer.minimize(loss, variables)
            for values in gradients(3):
                session.run(step, dict(zip(rows, values, strict=True)))
        results.append(state(optimizer, variables))
        assert all(device in slot.device.lower() for slot in optimizer.variables if slot.shape)
    check_close(results[0], results[1], row.atol)


# --- what variables there are ---------------------------------------------------------------------------------------


@every
def test_slots(row: Row) -> None:
    """As many variables for each weight as the table says, of its dtype."""
    counts: list[int] = []
    for number in (1, 2):
        optimizer = row.make(row.rate)
        variables = [ab.Variable(np.zeros((4, 4)), dtype="float64", name=f"w{i}") for i in range(number)]
        optimizer.build(variables)
        counts.append(len(optimizer.variables))
        assert len({variable.name for variable in optimizer.variables}) >= counts[-1] - row.slots * number
        wide = [variable for variable in optimizer.variables if variable.shape]
        assert all(variable.dtype == "float64" and not variable.trainable for variable in wide)
    assert counts[1] - counts[0] == row.slots


@every
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes(row: Row, dtype: str) -> None:
    """Weights and slots keep their dtype, and float64 steps are those of float32, but for rounding."""
    optimizer, variables = row.make(row.rate), weights(dtype)
    found = taken(optimizer, variables, gradients(dtype=dtype))
    assert all(variable.numpy().dtype == dtype for variable in variables)
    assert all(np.isfinite(value).all() for value in found)
    if dtype == "float64":
        expected = taken(row.make(row.rate), weights(), gradients())
        check_close(found, expected, max(row.atol, 1e-5))


@every
def test_no_variables(row: Row) -> None:
    optimizer = row.make(row.rate)
    if isinstance(optimizer, optim.Frozen) or isinstance(getattr(optimizer, "inner_optimizer", None), optim.Frozen):
        with pytest.raises(ValueError, match="no variable's path has"):
            optimizer.build([])
        return
    optimizer.build([])
    with pytest.raises(ValueError, match=r"No gradients: the list of gradients is empty.*after build\(\)"):
        optimizer.apply([], [])


@every
def test_a_missing_gradient_leaves_the_variable(row: Row) -> None:
    optimizer, variables = row.make(row.rate), weights()
    before = variables[1].numpy()
    for step in gradients():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that there is none, which other tests look at
            optimizer.apply([step[0], None], variables)
    np.testing.assert_array_equal(variables[1].numpy(), before)


# --- in fit ---------------------------------------------------------------------------------------------------------


def model_and_data() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = x @ rng.normal(size=(4, 2)).astype("float32")
    model = ab.Sequential([ab.Input((4,)), layers.Dense(8, "tanh", name="first"), layers.Dense(2)])
    for position, weight in enumerate(model.weights):
        weight.assign(np.random.default_rng(position).normal(scale=0.5, size=weight.shape))
    return model, x, y


@every
def test_fit_lowers_the_loss_and_saves_its_state(row: Row, tmp_path: Any) -> None:
    model, x, y = model_and_data()
    model.compile(row.make(row.rate), "mse")
    losses = model.fit(x, y, epochs=8, batch_size=16, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    model.save(tmp_path / "model.keras")
    again = ab.models.load_model(tmp_path / "model.keras")
    check_close(state(again.optimizer, []), state(model.optimizer, []), 0.0)
    assert again.optimizer.get_config() == model.optimizer.get_config()


@every
def test_a_frozen_layer_stays(row: Row) -> None:
    model, x, y = model_and_data()
    frozen = model.get_layer("first")
    frozen.trainable = False
    before = frozen.get_weights()
    model.compile(row.make(row.rate), "mse")
    model.fit(x, y, batch_size=16, verbose=0)
    for one, other in zip(frozen.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


@every
def test_several_steps_in_one_execution(row: Row) -> None:
    """A loop over steps in the graph gives what single steps do."""
    found: list[Any] = []
    for number in (1, 4):
        model, x, y = model_and_data()
        model.compile(row.make(row.rate), "mse", steps_per_execution=number)
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        found.append(state(model.optimizer, model.weights))
    check_close(found[0], found[1], max(row.atol, 1e-5))


def test_every_public_optimizer_has_a_row() -> None:
    public = {name for name in optim.__all__ if isinstance(getattr(optim, name), type)}
    # The base; what holds other optimizers by variable, and has to give Keras's numbers; and `LBFGS`, which computes
    # losses at points of its own: it can't be given gradients, as the tests of a row do, nor options that change them.
    # What can be tested with loss functions is in test_lbfgs_conformance.py.
    others = {"Optimizer", "LBFGS", "OptimizerMap", "MultiOptimizer"}
    assert public - others <= {row.name for row in TABLE}
