"""Passes of `evaluate` and `predict` that workers share: which ones, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from shared.members import addresses, all_at_once, each, made
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch import layers, ops
from anabranch.distribute import ParameterServer, Server
from anabranch.engine.queues.errors import CancelledError, TaskFailedError
from anabranch.framework.data.adapters import batch_of
from anabranch.framework.replicas.passes import can_be_split
from anabranch.framework.replicas.single_steps import _check_alike  # pyright: ignore[reportPrivateUsage]
from anabranch.framework.replicas.ways import GroupWay, OfOneGroup, TaskWay, packed, unpacked

pytestmark = pytest.mark.xdist_group("tasks")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(44, 3)).astype("float32"), RNG.normal(size=(44, 1)).astype("float32")

# --- ways -----------------------------------------------------------------------------------------------------------


def test_arrays_travel_as_bytes() -> None:
    given = [np.zeros((0, 3), "float32"), np.array(["a", "ü"]), np.float64(np.nan), ops.cast([1.5], "bfloat16").numpy()]
    for value, found in zip(given, unpacked(packed(given)), strict=True):
        assert found.shape == value.shape
        np.testing.assert_equal(found.tolist(), value.tolist())
    assert unpacked(packed([])) == []


def test_members_compute_a_part_each() -> None:
    group = made(3, shares_memory=False)
    for parts in (2, 3):
        found = each(
            group,
            lambda member, p=parts: GroupWay(OfOneGroup(member), 3).results(p, lambda part: [np.full(part, part)]),
        )
        assert [[array.tolist() for (array,) in one] for one in found] == [[[], [1], [2, 2]][:parts]] * 3
    for member in group:
        member.close()


def test_a_member_that_fails_is_named_and_the_group_goes_on() -> None:
    group = made(2, shares_memory=False)

    def compute(part: int) -> list[Any]:
        return [np.ones(1) / (np.ones(1) if part else np.array(None))]

    one, other = all_at_once(*[lambda m=member: GroupWay(OfOneGroup(m), 2).results(2, compute) for member in group])
    assert isinstance(one, TypeError)
    assert isinstance(other, CancelledError)
    assert "/job:worker/task:0 could not compute its part: unsupported operand" in str(other)
    assert [found.tolist() for found in each(group, lambda member: member.all_reduce(np.ones(1), "sum"))] == [[2], [2]]
    for member in group:
        member.close()


@pytest.fixture(scope="module")
def workers() -> Generator[list[ParameterServer]]:
    """Two workers of a cluster, and its ps task, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
        with Server({"ps": ["localhost:0"]}, "ps", 0) as ps:
            cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": addresses(2)}
            found = [ParameterServer(cluster=cluster, job_name="worker", task_index=index) for index in range(2)]
            yield found
            for strategy in found:
                strategy.close()


def test_workers_take_parts_from_a_ps_task(workers: list[ParameterServer]) -> None:
    both_are_here = threading.Barrier(2)
    computed: dict[int, list[int]] = {0: [], 1: []}

    def run(index: int) -> list[int]:
        way = TaskWay.joined(workers[index], "a key", 6)
        assert way is not None
        both_are_here.wait(PATIENCE)

        def compute(part: int) -> list[Any]:
            if not computed[index]:
                both_are_here.wait(PATIENCE)
            computed[index].append(part)
            return [np.full(2, part)]

        return [int(array[0]) for (array,) in way.results(6, compute)]

    assert all_at_once(lambda: run(0), lambda: run(1)) == [[0, 1, 2, 3, 4, 5]] * 2
    assert {*computed[0], *computed[1]} == {0, 1, 2, 3, 4, 5}
    assert computed[0]
    assert computed[1]
    assert TaskWay.joined(workers[0], "a key", 6, may_begin=False) is None, "it is over"


def compiled(strategy: Any, *given: Any, **options: Any) -> ab.Sequential:
    ab.utils.set_random_seed(1)
    with strategy.scope():
        model = ab.Sequential([ab.Input((3,)), *(given or [layers.Dense(1, name="dense")])], name="model")
        model.compile(None, "mse", **{"metrics": ["mae"], **options})
    return model


def test_workers_with_the_same_call_share_it(workers: list[ParameterServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both join before either computes; each has the metrics and the predictions of all rows."""
    models = [compiled(strategy) for strategy in workers]
    alone = compiled(ParameterServer())
    expected = [np.asarray(alone.evaluate(X, Y, batch_size=5, verbose=0)), alone.predict(X, batch_size=5, verbose=0)]
    join, both = TaskWay.joined, threading.Barrier(2)

    def joined(*given: Any) -> Any:
        found = join(*given)
        both.wait(PATIENCE)
        return found

    monkeypatch.setattr(TaskWay, "joined", joined)
    rows = [0, 0]

    def run(index: int) -> list[Any]:
        model = models[index]
        steps = model._steps
        for mode in ("test", "predict"):

            def counted(batch: Any, run: Any = steps[mode].run) -> Any:
                rows[index] += batch.size
                return run(batch)

            monkeypatch.setattr(steps[mode], "run", counted)
        return [
            np.asarray(model.evaluate(X, Y, batch_size=5, verbose=0)),
            model.predict(X, batch_size=5, verbose=0),
        ]

    for found in all_at_once(lambda: run(0), lambda: run(1)):
        assert not isinstance(found, Exception), found
        for value, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, other, 1e-5, 1e-6)
    assert 88 <= sum(rows) < 4 * 44, "neither has computed all"


def test_a_worker_without_a_part_has_the_metrics_of_all_rows(
    workers: list[ParameterServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In validation there may be fewer batches than workers; compiled metrics of this worker have no variables yet."""
    computed: list[Any] = []

    class AllHere:
        most = 2

        def results(self, parts: int, compute: Any) -> list[Any]:
            computed[:] = [compute(part) for part in range(parts)]
            return computed

    class Elsewhere(AllHere):
        def results(self, parts: int, compute: Any) -> list[Any]:
            return computed

    found = []
    for strategy, way in zip(workers, (AllHere(), Elsewhere()), strict=True):
        model = compiled(strategy)
        monkeypatch.setattr(strategy, "running", SimpleNamespace(is_validating=True, way=way))
        found.append(model.evaluate(X, Y, batch_size=22, verbose=0))
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], compiled(ParameterServer()).evaluate(X, Y, verbose=0), 1e-5)


@pytest.mark.parametrize("change", ["data", "weights", "batch size"])
def test_other_calls_are_not_shared(workers: list[ParameterServer], change: str) -> None:
    """The key of a pass depends on the data, the weights and the size of batches."""
    digests = []
    join = TaskWay.joined

    def noted(strategy: Any, key: str, parts: int, may_begin: bool = True) -> Any:
        digests.append(key)
        return join(strategy, key, parts, may_begin)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskWay, "joined", noted)
        for index, strategy in enumerate(workers):
            model, x, size = compiled(strategy), X, 5
            for turn in range(2):
                if index and turn and change == "data":
                    x = X.copy()
                    x[0, 0] += 1
                elif index and turn and change == "weights":
                    model.set_weights([np.ones((3, 1)), np.zeros(1)])
                elif index and turn:
                    size = 6
                model.predict(x, batch_size=size, verbose=0)
    first, again, same, other = digests
    assert first == again == same != other


def test_a_process_goes_on_alone_if_the_ps_task_is_lost(
    workers: list[ParameterServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = compiled(workers[0])
    expected = compiled(ParameterServer()).predict(X, batch_size=5, verbose=0)

    def fail(*given: Any) -> Any:
        raise TaskFailedError("/job:ps/task:0 is gone")

    with monkeypatch.context() as patch:
        patch.setattr(TaskWay, "results", fail)
        np.testing.assert_allclose(model.predict(X, batch_size=5, verbose=0), expected, 1e-6)
    monkeypatch.setattr(TaskWay, "joined", fail)
    np.testing.assert_allclose(model.predict(X, batch_size=5, verbose=0), expected, 1e-6)
    assert caplog.text.count("This process computes alone: /job:ps/task:0 is gone") == 2


def test_batches_that_differ_between_workers_are_refused() -> None:
    group = made(2, shares_memory=False)
    batches = [batch_of(X[:4], Y[:4]), batch_of(X[:5], Y[:5])]
    models = [compiled(ParameterServer()) for _ in group]
    for model in models:
        model.compile("sgd", "mse")

    def check(rank: int, number: int) -> None:
        _check_alike(models[rank], SimpleNamespace(group=group[rank]), batches[number])  # type: ignore[arg-type]

    for found in all_at_once(lambda: check(0, 0), lambda: check(1, 1)):
        assert isinstance(found, ValueError)
        assert "/job:worker/task:0" in str(found)
        assert "{'rows': 5, 'shapes': [[5, 3], [5, 1]]}" in str(found)
    models[1].optimizer.learning_rate = 0.5
    assert all_at_once(lambda: check(0, 0), lambda: check(1, 0)) == [None, None], "the others get the chief's"
    for model in models:
        model._steps_on_cluster = True
    for found in all_at_once(lambda: check(0, 0), lambda: check(1, 0)):
        assert isinstance(found, ValueError)
        assert "{'learning_rate': 0.5}" in str(found)
    for member in group:
        member.close()


# --- what can be split ----------------------------------------------------------------------------------------------


class Largest(ab.metrics.Metric):
    """A metric that is no sum."""

    def __init__(self, by_adding: bool) -> None:
        super().__init__(name="largest")
        self.by_adding = by_adding
        self.value = self.add_variable(shape=(), name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        largest = ops.maximum(self.value, ops.max(y_pred))
        if self.by_adding:
            self.value.assign_add(largest - self.value)
        else:
            self.value.assign(largest)

    def result(self) -> Any:
        return self.value


class Count(ab.metrics.Metric):
    """A metric that adds twice in a step."""

    def __init__(self) -> None:
        super().__init__(name="count")
        self.value = self.add_variable(shape=(), name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign_add(ops.sum(y_pred))
        self.value.assign(1.0 + self.value)

    def result(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        ([], {}, (True, True)),
        ([layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)], {}, (True, True)),
        ([], {"metrics": [Count(), "mae", ab.metrics.AUC()]}, (True, True)),
        ([], {"metrics": [Largest(False)]}, (False, True)),
        ([], {"metrics": [Largest(True)]}, (False, True)),
        ([layers.Dense(1), layers.Lambda(lambda x: x + ops.shape(x)[0] * ab.random.normal((1,)))], {}, (False, False)),
    ],
)
def test_passes_are_split_if_their_steps_only_add(given: Any, options: Any, expected: Any) -> None:
    model = compiled(ParameterServer(), *given, **options)
    batch = batch_of(X[:4], Y[:4])
    assert (can_be_split(model, "test", batch), can_be_split(model, "predict", batch_of(X[:4]))) == expected
