"""Golden optimizer cases: five steps of fixed gradients, and learning-rate schedules."""

from __future__ import annotations

from typing import Any

import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from loader import resolve
from pack import Pack, normal, seeded, spec

STEPS = 5
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"learning_rate": 0.1}),
    "SGD_momentum": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}),
    "SGD_nesterov": ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "RMSprop": ("RMSprop", {"learning_rate": 0.01}),
    "RMSprop_momentum": ("RMSprop", {"learning_rate": 0.01, "momentum": 0.5}),
    "RMSprop_centered": ("RMSprop", {"learning_rate": 0.01, "rho": 0.8, "centered": True}),
    "RMSprop_momentum_centered": ("RMSprop", {"learning_rate": 0.01, "momentum": 0.5, "centered": True}),
    "Adam": ("Adam", {"learning_rate": 0.01}),
    "Adam_amsgrad": ("Adam", {"learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.9, "amsgrad": True}),
    "AdamW": ("AdamW", {"learning_rate": 0.01}),
    "Nadam": ("Nadam", {"learning_rate": 0.01}),
    "Adagrad": ("Adagrad", {"learning_rate": 0.1}),
    "Adafactor": ("Adafactor", {"learning_rate": 0.1}),
    "Muon": ("Muon", {"learning_rate": 0.1}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.3},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "use_ema": {"use_ema": True, "ema_momentum": 0.8},
    "use_ema_overwrite": {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2},
    "schedule": {"learning_rate": spec("ExponentialDecay", initial_learning_rate=0.1, decay_steps=2, decay_rate=0.5)},
    "accumulation": {"gradient_accumulation_steps": 2},
}
# All at once, for the optimizers whose options are not tried one by one.
COMBINED = {"weight_decay": 0.1, "clipnorm": 0.5, "use_ema": True, "ema_momentum": 0.8}
DEFAULTS = (
    *("SGD", "RMSprop", "Adam", "AdamW", "Nadam", "Adagrad", "Adadelta", "Adamax", "Lion", "Ftrl", "Lamb"),
    *("Adafactor", "Muon"),
)
SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "ExponentialDecay": ("ExponentialDecay", {"decay_steps": 4, "decay_rate": 0.5}),
    "ExponentialDecay/staircase": ("ExponentialDecay", {"decay_steps": 4, "decay_rate": 0.5, "staircase": True}),
    "InverseTimeDecay": ("InverseTimeDecay", {"decay_steps": 4, "decay_rate": 0.5}),
    "InverseTimeDecay/staircase": ("InverseTimeDecay", {"decay_steps": 4, "decay_rate": 0.5, "staircase": True}),
    "PolynomialDecay": ("PolynomialDecay", {"decay_steps": 10, "end_learning_rate": 0.01, "power": 2.0}),
    "PolynomialDecay/cycle": ("PolynomialDecay", {"decay_steps": 5, "end_learning_rate": 0.01, "cycle": True}),
    "CosineDecay": ("CosineDecay", {"decay_steps": 10}),
    "CosineDecay/alpha": ("CosineDecay", {"decay_steps": 10, "alpha": 0.2}),
    "CosineDecay/warmup": ("CosineDecay", {"decay_steps": 10, "warmup_target": 0.5, "warmup_steps": 4}),
    "CosineDecayRestarts": ("CosineDecayRestarts", {"first_decay_steps": 4, "t_mul": 2.0, "m_mul": 0.5, "alpha": 0.1}),
}


def make(versions: dict[str, str]) -> None:
    """Writes ``optimizers`` and ``schedules``."""
    pack = Pack("optimizers", versions)
    for name, (target, kwargs) in OPTIMIZERS.items():
        for option, extra in OPTIONS.items():
            add(pack, f"{name}/{option}", target, {**kwargs, **extra}, [])
    for target in DEFAULTS:
        add(pack, f"{target}/defaults", target, {}, [])
    for target in ("Adadelta", "Adamax", "Lion", "Ftrl", "Lamb"):
        add(pack, f"{target}/combined", target, COMBINED, [])
        add(pack, f"{target}/accumulation", target, {"clipvalue": 0.3, "gradient_accumulation_steps": 2}, [])
    add(pack, "SGD/loss_scale_factor", "SGD", {"learning_rate": 0.1, "loss_scale_factor": 8.0}, [])
    for name, inner in (
        ("Adam", spec("Adam", learning_rate=0.01, clipnorm=0.5)),
        ("SGD", spec("SGD", learning_rate=8.0, momentum=0.9, use_ema=True)),
    ):
        scaled = {"inner_optimizer": inner, "initial_scale": 16.0, "dynamic_growth_steps": 2}
        add(pack, f"LossScaleOptimizer/{name}", "LossScaleOptimizer", scaled, [])
        add(pack, f"LossScaleOptimizer/{name}/overflow", "LossScaleOptimizer", scaled, [], overflow=2)
    fixed = {"learning_rate": 2.0, "relative_step": False, "clip_threshold": 0.5, "beta_2_decay": -0.5}
    add(pack, "Adafactor/options", "Adafactor", fixed, [])
    plain = {"rms_rate": None, "nesterov": False, "ns_steps": 3, "momentum": 0.5, "adam_lr_ratio": 0.5}
    add(pack, "Muon/options", "Muon", {**plain, "adam_weight_decay": None, "weight_decay": 0.1}, [])
    add(pack, "Muon/exclude_layers", "Muon", {"exclude_layers": ["ker"], "adam_weight_decay": 0.1}, [])
    decay = {"learning_rate": 0.01, "weight_decay": 0.1}
    add(pack, "AdamW/exclude_bias", "AdamW", decay, ["bias"])
    both = {"learning_rate": 0.01, "use_ema": True, "ema_momentum": 0.8, "gradient_accumulation_steps": 2}
    add(pack, "Adam/use_ema_accumulation", "Adam", both, [])
    clipped = {"learning_rate": 0.1, "clipnorm": 0.5, "gradient_accumulation_steps": 2}
    add(pack, "SGD/clipnorm_accumulation", "SGD", clipped, [])
    overwritten = {**both, "ema_overwrite_frequency": 2}
    add(pack, "Adam/use_ema_overwrite_accumulation", "Adam", overwritten, [])
    later(pack)
    pack.write()
    make_schedules(versions)


def later(pack: Pack) -> None:
    """Cases that came later: at the end, so that the others keep their places."""
    for option in ("plain", "weight_decay", "clipnorm", "use_ema", "schedule", "accumulation"):
        kwargs = {"learning_rate": 0.1, **OPTIONS[option]}
        add(pack, f"ScheduleFreeAdamW/{option}", "ScheduleFreeAdamW", kwargs, [])
    add(pack, "ScheduleFreeAdamW/defaults", "ScheduleFreeAdamW", {}, [])
    warm = {"learning_rate": 0.1, "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-4, "warmup_steps": 3}
    add(pack, "ScheduleFreeAdamW/options", "ScheduleFreeAdamW", warm, [])
    chosen = spec("OptimizerMap", default_optimizer=spec("SGD"), optimizer_map={"bi.s": spec("Adam", clipnorm=0.5)})
    add(pack, "MultiOptimizer", "MultiOptimizer", {"optimizer_map": chosen}, [])
    add(pack, "MultiOptimizer/loss_scale", "MultiOptimizer", {"optimizer_map": chosen, "loss_scale_factor": 4.0}, [])


def add(
    pack: Pack, name: str, target: str, kwargs: dict[str, Any], exclude: list[str], overflow: int | None = None
) -> None:
    rng = seeded("optimizers")  # the same numbers in every case: the files stay small
    initial = {"kernel": normal(rng, 2, 3), "bias": normal(rng, 3)}
    keras.utils.clear_session()  # names start again at adam, not at adam_7
    gradients = {"kernel": normal(rng, STEPS, 2, 3), "bias": normal(rng, STEPS, 3)}
    if overflow is not None:
        gradients["kernel"][overflow, 0, 1] = np.inf
    namespaces = (keras.optimizers.schedules, keras.optimizers)
    optimizer = getattr(keras.optimizers, target)(**resolve(kwargs, *namespaces))
    variables = [keras.Variable(value, name=key) for key, value in initial.items()]
    if exclude:
        optimizer.exclude_from_weight_decay(var_names=exclude)
    optimizer.build(variables)
    values: dict[str, list[np.ndarray]] = {"kernel": [], "bias": []}
    for step in range(STEPS):
        apply(optimizer, [gradients[variable.name][step] for variable in variables], variables)
        for variable in variables:
            values[variable.name].append(np.array(variable))
    own = [np.array(variable) for variable in optimizer.variables]
    optimizer.finalize_variable_values(variables)
    pack.add(
        name=name,
        target=target,
        kwargs=kwargs,
        exclude_from_weight_decay=exclude or None,
        initial=pack.arrays(initial),
        gradients=pack.arrays(gradients),
        values=pack.arrays({key: np.stack(items) for key, items in values.items()}),
        finalized=pack.arrays({variable.name: np.array(variable) for variable in variables}),
        variables=pack.arrays(own),
        variable_names=[variable.path for variable in optimizer.variables],
    )


def apply(optimizer: Any, gradients: list[np.ndarray], variables: list[Any]) -> None:
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.apply(gradients, variables)
        return
    # On JAX, its branches can't assign.
    own = [variable.value for variable in optimizer.variables]
    values, own = optimizer.stateless_apply(own, gradients, [variable.value for variable in variables])
    for variable, value in zip([*variables, *optimizer.variables], [*values, *own], strict=True):
        variable.assign(value)


def make_schedules(versions: dict[str, str]) -> None:
    pack = Pack("schedules", versions)
    steps = [0, 1, 2, 3, 4, 5, 7, 10, 12, 25]
    cases = {name: (cls, {"initial_learning_rate": 0.1, **config}) for name, (cls, config) in SCHEDULES.items()}
    cases["PiecewiseConstantDecay"] = (
        "PiecewiseConstantDecay",
        {"boundaries": [2, 5, 10], "values": [1.0, 0.5, 0.1, 0.01]},
    )
    for name, (target, kwargs) in cases.items():
        schedule = getattr(keras.optimizers.schedules, target)(**kwargs)
        rates = np.array([float(schedule(step)) for step in steps], dtype=np.float32)
        pack.add(name=name, target=target, kwargs=kwargs, steps=steps, outputs=pack.array(rates))
    pack.write()
