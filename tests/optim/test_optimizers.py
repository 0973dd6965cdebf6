"""Optimizers: Keras's numbers in plain Python and in graphs, their variables, options, errors and configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import optim
from golden.loader import OptimizerCase, load_cases

CASES = load_cases("optimizers")
PLAIN = [case for case in CASES if case.name.endswith(("/plain", "/defaults"))]
CLASSES = ["SGD", "Momentum", "RMSprop", "Adam", "AdamW", "Nadam", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Lamb"]


def prepare(case: OptimizerCase):
    optimizer = case.build(optim, optim.schedules)
    variables = {name: ab.Variable(value, name=name) for name, value in case.initial.items()}
    if case.exclude_from_weight_decay:
        optimizer.exclude_from_weight_decay(var_names=case.exclude_from_weight_decay)
    return optimizer, variables


def check(case: OptimizerCase, optimizer, variables, values):
    # In float32, 1 - 0.999**step has four digits in the first steps, and here nothing divides the error out again.
    rtol, atol = (1e-4, 2e-5) if case.target == "ScheduleFreeAdamW" else (1e-5, 2e-6)
    for name, expected in case.values.items():
        np.testing.assert_allclose(np.stack(values[name]), expected, rtol=rtol, atol=atol, err_msg=name)
    assert len(optimizer.variables) == len(case.variables)
    for variable, expected, name in zip(optimizer.variables, case.variables, case.variable_names, strict=True):
        np.testing.assert_allclose(variable.numpy(), expected, rtol=rtol, atol=atol, err_msg=name)
        assert variable.dtype == expected.dtype
    optimizer.finalize_variable_values(list(variables.values()))
    for name, expected in case.finalized.items():
        np.testing.assert_allclose(variables[name].numpy(), expected, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_at_once_give_keras_numbers(case: OptimizerCase):
    optimizer, variables = prepare(case)
    values = {name: [] for name in variables}
    for step in range(len(case.gradients["kernel"])):
        assert optimizer.apply([case.gradients[name][step] for name in variables], list(variables.values())) is None
        for name, variable in variables.items():
            values[name].append(variable.numpy())
    check(case, optimizer, variables, values)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_of_a_graph_give_keras_numbers(case: OptimizerCase):
    optimizer, variables = prepare(case)
    values = {name: [] for name in variables}
    with ab.Graph().as_default():
        feeds = {name: ab.placeholder(variable.shape) for name, variable in variables.items()}
        step = optimizer.apply([feeds[name] for name in variables], list(variables.values()))
        run = ab.Session().make_callable(step, [feeds[name] for name in variables])
    for number in range(len(case.gradients["kernel"])):
        run(*[case.gradients[name][number] for name in variables])
        for name, variable in variables.items():
            values[name].append(variable.numpy())
    check(case, optimizer, variables, values)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_variables_have_keras_names(case: OptimizerCase):
    optimizer, variables = prepare(case)
    optimizer.build(list(variables.values()))
    found = [variable.name.partition("/")[2] for variable in optimizer.variables]
    # Some variables have no path in Keras: Nadam's product, and what Adafactor keeps in place of a vector's rows.
    assert [name.partition("/")[2] for name in case.variable_names] == [
        "" if name in ("u_product", "bias") else name for name in found
    ]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_config_rebuilds_the_optimizer(case: OptimizerCase):
    optimizer = case.build(optim, optim.schedules)
    config = optim.serialize(optimizer)
    again = optim.deserialize(config)
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
    assert config["module"] == "keras.optimizers"


@pytest.mark.parametrize("name", [*CLASSES, "Lion"])
def test_every_optimizer_finds_the_minimum(name: str):
    target, w = np.array([1.0, -2.0], "float32"), ab.Variable([3.0, 3.0])
    rate = {"Adadelta": 100.0, "Adagrad": 1.0, "Ftrl": 1.0, "Lion": 0.03, "Lamb": 0.03}.get(name, 0.1)
    with ab.Graph().as_default():
        loss = ab.ops.sum(ab.ops.square(w - target))
        step = getattr(optim, name)(learning_rate=rate, weight_decay=0.0).minimize(loss, [w])
        run = ab.Session().make_callable(step)
    for _ in range(300):
        run()
    np.testing.assert_allclose(w.numpy(), target, atol=0.1)


@pytest.mark.parametrize("name", CLASSES)
def test_saved_state_continues_the_same_way(name: str):
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(6, 3)).astype("float32")

    def trained(steps, optimizer, w):
        for gradient in steps:
            optimizer.apply([gradient], [w])
        return w.numpy()

    first, w = getattr(optim, name)(), ab.Variable([1.0, 2.0, 3.0])
    halfway, store = trained(gradients[:3], first, w), {}
    first.save_own_variables(store)
    second, v = getattr(optim, name)(), ab.Variable(halfway)
    second.build([v])
    second.load_own_variables(store)
    np.testing.assert_array_equal(trained(gradients[3:], second, v), trained(gradients[3:], first, w))


# --- the learning rate ----------------------------------------------------------------------------------------------


def test_learning_rate_can_be_set_between_steps():
    w, optimizer = ab.Variable([0.0]), optim.SGD(learning_rate=1.0)
    optimizer.apply([[1.0]], [w])
    optimizer.learning_rate = 0.5
    optimizer.apply([[1.0]], [w])
    assert float(optimizer.learning_rate) == 0.5
    assert w.numpy() == [-1.5]
    assert optimizer.get_config()["learning_rate"] == 0.5


def test_schedule_counts_steps_and_can_replace_a_number():
    w, optimizer = ab.Variable([0.0]), optim.SGD(learning_rate=1.0)
    optimizer.apply([[1.0]], [w])
    optimizer.learning_rate = optim.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    assert optimizer.learning_rate == 0.5
    optimizer.apply([[1.0]], [w])
    optimizer.apply([[1.0]], [w])
    assert w.numpy() == [-1.75]
    assert [variable.name.partition("/")[2] for variable in optimizer.variables] == ["iteration"]
    with pytest.raises(TypeError, match=r"comes from .*PiecewiseConstantDecay.* can't be set to 0.1"):
        optimizer.learning_rate = 0.1


def test_learning_rate_may_be_a_function():
    rate = ab.Variable(1.0)
    w, optimizer = ab.Variable([0.0]), optim.SGD(learning_rate=lambda: rate * 2.0)
    optimizer.apply([[1.0]], [w])
    rate.assign(0.5)
    optimizer.apply([[1.0]], [w])
    assert w.numpy() == [-3]
    assert optimizer.learning_rate == 1


def test_own_schedule():
    class Halving(optim.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 1.0 / ab.ops.power(2.0, ab.ops.cast(step, "float32"))

    w, optimizer = ab.Variable([0.0]), optim.SGD(Halving())
    for _ in range(3):
        optimizer.apply([[1.0]], [w])
    assert w.numpy() == [-1.75]
    assert Halving()(2) == 0.25


# --- options --------------------------------------------------------------------------------------------------------


def test_momentum_is_sgd_with_momentum():
    assert optim.Momentum().momentum == 0.9
    w, v = ab.Variable([1.0]), ab.Variable([1.0])
    for optimizer, variable in ((optim.Momentum(0.1), w), (optim.SGD(0.1, momentum=0.9), v)):
        for _ in range(3):
            optimizer.apply([[1.0]], [variable])
    assert w.numpy() == v.numpy()


def test_loss_scale_factor_is_undone():
    w = ab.Variable(4.0)
    with ab.Graph().as_default():
        step = optim.SGD(0.25, loss_scale_factor=1024.0).minimize(w * w, [w])
        ab.Session().run(step)
    assert float(w) == 2.0


def test_global_clipping_keeps_the_direction():
    a, b = ab.Variable([0.0, 0.0]), ab.Variable([0.0])
    optim.SGD(1.0, global_clipnorm=1.0).apply([[2.0, 4.0], [4.0]], [a, b])
    np.testing.assert_allclose([*a.numpy(), *b.numpy()], [-1 / 3, -2 / 3, -2 / 3], rtol=1e-6)


def test_gradients_within_the_norm_are_left_alone():
    w = ab.Variable([0.0, 0.0])
    optim.SGD(1.0, clipnorm=10.0).apply([[3.0, 4.0]], [w])
    np.testing.assert_array_equal(w.numpy(), [-3, -4])
    optim.SGD(1.0, clipnorm=10.0).apply([[0.0, 0.0]], [w])
    np.testing.assert_array_equal(w.numpy(), [-3, -4])


def test_constraints_are_applied_after_the_step():
    class Weight(ab.Variable):
        constraint = staticmethod(lambda w: ab.ops.maximum(w, 0.0))

    w = Weight([1.0, 1.0])
    optim.SGD(1.0).apply([[0.5, 3.0]], [w])
    np.testing.assert_array_equal(w.numpy(), [0.5, 0.0])


def test_weight_decay_can_leave_variables_alone():
    w, v, u = ab.Variable([1.0], name="kernel"), ab.Variable([1.0], name="bias"), ab.Variable([1.0], name="gamma")
    optimizer = optim.SGD(0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[u], var_names=["bias"])
    optimizer.apply([[0.0], [0.0], [0.0]], [w, v, u])
    assert [float(variable.numpy()[0]) for variable in (w, v, u)] == [0.75, 1.0, 1.0]
    with pytest.raises(ValueError, match=r"before the first step"):
        optimizer.exclude_from_weight_decay(var_names=["kernel"])


def test_other_float_types_keep_theirs():
    for dtype in ("float64", "float16"):
        w, optimizer = ab.Variable(np.ones(2, dtype)), optim.Adam(0.1)
        optimizer.apply([np.ones(2, dtype)], [w])
        assert w.numpy().dtype == dtype
        np.testing.assert_allclose(w.numpy(), 0.9, rtol=1e-3)


def test_iterations_count_updates_when_gradients_are_accumulated():
    w, optimizer = ab.Variable([0.0]), optim.SGD(1.0, gradient_accumulation_steps=2)
    seen = []
    for gradient in (1.0, 3.0, 5.0):
        optimizer.apply([[gradient]], [w])
        seen.append((int(optimizer.iterations), float(w.numpy()[0])))
    assert seen == [(0, 0.0), (1, -2.0), (1, -2.0)]


# --- in graphs ------------------------------------------------------------------------------------------------------


def test_step_in_a_function_and_apply_gradients():
    w, optimizer = ab.Variable([1.0, 2.0]), optim.SGD(0.5)

    @ab.function
    def step(x):
        loss = ab.ops.sum(w * x)
        optimizer.apply_gradients(zip(ab.gradients(loss, [w]), [w], strict=True))
        return loss

    assert [float(step(np.ones(2, "float32"))) for _ in range(2)] == [3.0, 2.0]
    assert int(optimizer.iterations) == 2


def test_minimize_in_a_graph_builds_only():
    w = ab.Variable(4.0)
    with ab.Graph().as_default():
        step = optim.SGD(0.25).minimize(w * w, [w])
        assert float(w) == 4.0
        ab.Session().run(step)
    assert float(w) == 2.0


def test_minimize_of_values_needs_a_tape():
    w, optimizer = ab.Variable(4.0), optim.SGD(0.25)
    with ab.GradientTape() as tape:
        loss = w * w
    optimizer.minimize(loss, [w], tape)
    assert float(w) == 2.0
    with pytest.raises(ValueError, match="no tape has recorded"):
        optimizer.minimize(w * w, [w])


def test_scalars_are_computed_once_a_step():
    def powers(count: int) -> int:
        variables = [ab.Variable([1.0], name=f"w{position}") for position in range(count)]
        with ab.Graph().as_default() as graph:
            optim.Adam().apply([ab.placeholder((1,)) for _ in variables], variables)
        return sum(operation.type in ("power", "cast") for operation in graph.get_operations())

    assert powers(4) == powers(1)


def test_missing_gradients_are_skipped_with_a_warning():
    w, v = ab.Variable([1.0], name="used"), ab.Variable([1.0], name="unused")
    with pytest.warns(UserWarning, match=r"Gradients do not exist for the variables \['unused'\]"):
        optim.SGD(1.0).apply([[1.0], None], [w, v])
    assert (w.numpy(), v.numpy()) == ([0], [1])


# --- errors ---------------------------------------------------------------------------------------------------------


def test_no_gradients_at_all_is_an_error():
    w = ab.Variable([1.0])
    with pytest.raises(ValueError, match="No gradients: each of them is None"):
        optim.SGD().apply([None], [w])
    with ab.Graph().as_default(), pytest.raises(ValueError, match="No gradients: each of them is None"):
        optim.SGD().minimize(ab.constant(1.0), [w])


def test_unknown_and_repeated_variables():
    w, v = ab.Variable([1.0], name="w"), ab.Variable([1.0], name="v")
    optimizer = optim.SGD()
    optimizer.build([w])
    with pytest.raises(ValueError, match=r"has no state for the variables \['v'\]: it was built for \['w'\]"):
        optimizer.apply([[1.0]], [v])
    with pytest.raises(ValueError, match=r"made trainable, call model\.compile\(\) again with a new optimizer"):
        optimizer.apply([[1.0]], [v])
    with pytest.raises(ValueError, match="variable 'w' was given twice"):
        optim.SGD().apply([[1.0], [1.0]], [w, w])
    with pytest.raises(ValueError, match="2 gradients were given for 1 variables"):
        optimizer.apply([[1.0], [1.0]], [w])
    with pytest.raises(ValueError, match="was not built"):
        optim.SGD().apply([[1.0]])


def test_gradient_of_another_shape():
    with pytest.raises(ValueError, match=r"gradient for variable 'w' has shape \[3\], the variable \[2,3\]"):
        optim.SGD().apply([[1.0, 2.0, 3.0]], [ab.Variable(np.zeros((2, 3), "float32"), name="w")])


@pytest.mark.parametrize("scalar", [np.array(0.5), ab.ops.full((), 0.5), np.float32(0.5)], ids=repr)
@pytest.mark.parametrize("name", ["weight_decay", "clipnorm", "clipvalue"])
def test_options_are_scalar_arrays_and_tensors_too(name: str, scalar: Any) -> None:
    found: list[Any] = []
    for value in (0.5, scalar):
        variable = ab.Variable([1.0, 2.0])
        options: dict[str, Any] = {name: value}
        ab.optim.SGD(0.1, **options).apply([np.full(2, 3, "float32")], [variable])
        found.append(variable.numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "Only one of clipnorm, clipvalue and global_clipnorm"),
        ({"clipnorm": -1.0}, "clipnorm must not be negative"),
        ({"learning_rate": "fast"}, "learning_rate must be a number.*'fast' of type str"),
        (
            {"learning_rate": [ab.Variable(1.0, name="w")]},
            r"got \[.*\] of type list. Variables are given to each step: \w+\(learning_rate=0.001\), then apply",
        ),
        ({"weight_decay": "x"}, "weight_decay must be a number, or None; got 'x' of type str"),
        ({"clipnorm": "x"}, "clipnorm must be a number, or None; got 'x' of type str"),
        ({"gradient_accumulation_steps": "x"}, "gradient_accumulation_steps must be a number, or None; got 'x'"),
        ({"gradient_accumulation_steps": 1}, "gradient_accumulation_steps must be at least 2, or None; got 1"),
        ({"ema_momentum": 2.0}, r"ema_momentum must be in \[0, 1\]"),
        ({"ema_overwrite_frequency": 0}, "ema_overwrite_frequency must be a positive integer"),
        ({"momentum": 2.0}, r"momentum must be in \[0, 1\]"),
    ],
)
def test_bad_options(kwargs, message: str):
    with pytest.raises(ValueError, match=message):
        optim.SGD(**kwargs)


def test_unknown_option():
    with pytest.raises(TypeError, match=r"Adam\(\) got an unexpected keyword argument 'lr'"):
        optim.Adam(lr=0.1)  # pyright: ignore[reportCallIssue]


def test_loading_what_does_not_fit_changes_nothing():
    w, optimizer = ab.Variable([1.0, 2.0]), optim.Adam()
    optimizer.build([w])
    before = [variable.numpy() for variable in optimizer.variables]
    with pytest.raises(ValueError, match="has 4 variables, but 2 values were given"):
        optimizer.load_own_variables({"0": 5, "1": 0.1})
    with pytest.raises(ValueError, match=r"variable_momentum' has shape \[2\]; a value of shape \[3\]"):
        optimizer.set_weights([np.int32(5), np.float32(0.1), np.zeros(3), np.zeros(2)])
    for variable, value in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("identifier", ["adam", "Adam", optim.Adam, {"class_name": "adam", "config": {"beta_1": 0.9}}])
def test_get(identifier):
    assert isinstance(optim.get(identifier), optim.Adam)
    optimizer = optim.Adam()
    assert optim.get(optimizer) is optimizer
    assert optim.get(None) is None


def test_get_of_nothing_known():
    with pytest.raises(ValueError, match=r"Unknown optimizer 'adm'. Did you mean 'adam'"):
        optim.get("adm")
    with pytest.raises(ValueError, match="3 of type int is no optimizer"):
        optim.get(3)


def test_an_optimizer_is_built_once() -> None:
    """As in Keras, `build` of a subclass need not look whether it ran before: what it makes stays from step to step."""

    class HeavyBall(optim.Optimizer):
        def build(self, variables: Any) -> None:
            super().build(variables)
            self.velocities = self.add_optimizer_variables(variables, "velocity")

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            velocity = self.velocities[self._get_variable_index(variable)]
            velocity.assign(0.5 * velocity - learning_rate * gradient)
            variable.assign(variable + velocity)

    optimizer, weight = HeavyBall(1.0), ab.Variable([0.0])
    for _ in range(3):
        optimizer.apply([np.array([1.0], "float32")], [weight])

    assert weight.numpy().tolist() == [-1.0 - 1.5 - 1.75]
    assert len(optimizer.variables) == 3  # iterations, learning rate, velocity


@pytest.mark.parametrize("name", [*CLASSES, "Adafactor", "Lion", "Muon", "ScheduleFreeAdamW"])
def test_a_subclass_scales_the_learning_rate_of_some_variables(name: str) -> None:
    """As scripts for Keras do, by giving `update_step` of the base another learning rate."""
    base: Any = getattr(optim, name)
    decay = {"weight_decay": 0.0} if "W" in name or name == "Muon" else {}
    decay |= {"adam_weight_decay": 0.0} if name == "Muon" else {}

    class Slower(base):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            slower = learning_rate / 4.0 if variable.name == "bias" else 0.5 * learning_rate
            super().update_step(gradient, variable, slower)

    def trained(cls: Any, rates: tuple[float, float]) -> list[Any]:
        kernel = ab.Variable(np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3), name="kernel")
        bias = ab.Variable([0.5, -0.25, 0.125], name="bias")
        for variable, rate in zip((kernel, bias), rates, strict=True):
            optimizer = cls(learning_rate=rate, **decay)
            for step in range(3):
                optimizer.apply([np.sin(variable.numpy() * 3 + step).astype("float32")], [variable])
        return [kernel.numpy(), bias.numpy()]

    for found, expected in zip(trained(Slower, (0.08, 0.08)), trained(base, (0.04, 0.02)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.Adam(0.125, epsilon=0.0),
        lambda: optim.AdamW(0.125, epsilon=0.0, weight_decay=0.0),
        lambda: optim.Adamax(0.125, epsilon=0.0),
        lambda: optim.Muon(0.125, epsilon=0.0, adam_lr_ratio=1.0, adam_weight_decay=0.0),
    ],
    ids=["Adam", "AdamW", "Adamax", "Muon"],
)
def test_bias_corrections_have_the_accuracy_of_float64(make: Callable[[], optim.Optimizer]) -> None:
    """With the same gradient in each step, each step has the length of the learning rate, which is exact here."""
    optimizer, w = make(), ab.Variable([1.0, -2.0], dtype="float64")
    for _ in range(5):
        optimizer.apply([np.array([3.0, -0.5])], [w])
    np.testing.assert_allclose(w.numpy(), [1.0 - 5 * 0.125, -2.0 + 5 * 0.125], rtol=1e-12, atol=0)


def test_averages_have_the_accuracy_of_float64() -> None:
    optimizer, w = optim.SGD(1.0, use_ema=True, ema_momentum=0.9), ab.Variable([0.0], dtype="float64")
    for _ in range(3):
        optimizer.apply([np.array([-1.0])], [w])
    optimizer.finalize_variable_values([w])
    np.testing.assert_allclose(w.numpy(), [(1.0 * 0.9 + 2.0 * 0.1) * 0.9 + 3.0 * 0.1], rtol=1e-14, atol=0)
