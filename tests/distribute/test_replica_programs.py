"""`ReplicaPrograms`: the state on ps tasks is found by every client, in whatever order it uses it first."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from shared.members import addresses

import anabranch as ab
from anabranch import layers
from anabranch.distribute import ParameterServer, Server
from anabranch.framework.data.adapters import Batch, layout_of
from anabranch.framework.replicas.plan import ReplicaPlan
from anabranch.framework.replicas.programs import ReplicaPrograms

pytestmark = pytest.mark.xdist_group("tasks")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 3)).astype("float32"), RNG.normal(size=(6, 1)).astype("float32")


def compiled(strategy: ParameterServer, frozen: int) -> ab.Sequential:
    ab.utils.set_random_seed(2)
    with strategy.scope():
        given = [layers.Dense(12, "tanh", use_bias=False), layers.Dense(1, use_bias=False)]
        given[frozen].trainable = False
        model = ab.Sequential([ab.Input((3,)), *given])
        model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_ps_task_may_have_no_variable_that_is_trained(frozen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel is on a ps task of its own, so steps of a worker do not use the gradients of one of the tasks."""
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
    batch = Batch(layout_of(X, Y), [X, Y], len(X))
    alone = compiled(ParameterServer(), frozen)
    alone.train_on_batch(X, Y)
    ps = addresses(2)
    with contextlib.ExitStack() as stack:
        for task in range(2):
            stack.enter_context(Server({"ps": ps}, "ps", task))
        cluster = {"ps": ps, "worker": addresses(1)}
        strategy = stack.enter_context(
            contextlib.closing(ParameterServer(cluster=cluster, job_name="worker", task_index=0))
        )
        model = compiled(strategy, frozen)
        plan = ReplicaPlan(model, strategy, batch)
        assert {plan.place_of(variable) for variable in model.weights} == {0, 1}
        chief, worker = [stack.enter_context(contextlib.closing(ReplicaPrograms(plan))) for _ in range(2)]
        chief.lead()
        chief.push(plan.variables, [variable.numpy() for variable in plan.variables])
        ticket = worker.take(chief.begin_epoch(1, 1))
        worker.train(ticket.number, batch, 1.0, (0, len(X), len(X)), plan.totals_of(batch))
        chief.apply(chief.choose())
        found = chief.pull(model.weights)
    for mine, other in zip(found, alone.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, 1e-5, 1e-6)
