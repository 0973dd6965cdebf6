"""Workers train together models that are compiled alike, but for their learning rates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import anabranch as ab
from anabranch.framework.replicas.alike import check_alike, facts_of_model


def in_parts(adam: ab.optimizers.Optimizer, sgd: ab.optimizers.Optimizer) -> ab.optimizers.Optimizer:
    return ab.optimizers.MultiOptimizer(ab.optimizers.OptimizerMap(adam, {".*bias": sgd}))


def scaled(adam: ab.optimizers.Optimizer, sgd: ab.optimizers.Optimizer) -> ab.optimizers.Optimizer:
    return ab.optimizers.LossScaleOptimizer(adam)


def alone(adam: ab.optimizers.Optimizer, sgd: ab.optimizers.Optimizer) -> ab.optimizers.Optimizer:
    return sgd


@pytest.mark.parametrize("make", [alone, in_parts, scaled])
def test_learning_rates_that_callbacks_have_changed_do_not_count(make: Callable[..., Any]) -> None:
    def facts(rate: float, momentum: float, beta: float) -> dict[str, str]:
        model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2)])
        optimizer = make(ab.optimizers.Adam(0.02, beta_1=beta), ab.optimizers.SGD(0.03, momentum))
        model.compile(optimizer, "mse")
        for each in getattr(optimizer, "optimizers", [optimizer]):
            each.learning_rate = rate
        found = facts_of_model(model, model.variables)
        return json.loads(json.dumps(found))

    own = facts(0.5, 0.9, 0.8)
    check_alike("worker 1", own, "worker 0", facts(0.25, 0.9, 0.8))
    with pytest.raises(ValueError, match=r"^Workers differ in what they train\. optimizer: "):
        check_alike("worker 1", own, "worker 0", facts(0.5, 0.7, 0.7))


def test_schedules_count() -> None:
    def facts(decay_steps: int) -> dict[str, str]:
        model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2)])
        rate = ab.optimizers.schedules.CosineDecay(0.1, decay_steps)
        model.compile(in_parts(ab.optimizers.Adam(rate), ab.optimizers.SGD(0.1)), "mse")
        return facts_of_model(model, model.variables)

    check_alike("worker 1", facts(10), "worker 0", facts(10))
    with pytest.raises(ValueError, match=r"\"decay_steps\": 10"):
        check_alike("worker 1", facts(10), "worker 0", facts(20))


def test_lambdas_are_compared_without_a_warning() -> None:
    """Nothing is saved. Their bytecode is not compared: it names the script's path, which may differ between hosts."""

    def facts(loss: str) -> dict[str, str]:
        model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2)])
        metric = eval(compile("lambda y, predicted: y - predicted", f"/{loss}/script.py", "eval"))
        model.compile("sgd", loss, metrics=[metric, ab.metrics.MeanMetricWrapper(metric, name="error")])
        return facts_of_model(model, model.variables)

    check_alike("worker 1", facts("mse"), "worker 0", facts("mse"))
    with pytest.raises(ValueError, match=r"^Workers differ in what they train\. loss: "):
        check_alike("worker 1", facts("mse"), "worker 0", facts("mae"))
