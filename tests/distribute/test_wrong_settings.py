"""Settings of tasks and clusters that can't be: the errors name what was given, what was expected, and the remedy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from shared.members import made

import anabranch as ab
from anabranch.distribute import DataParallel, ParameterServer, Pipeline
from anabranch.distribute.strategies.mesh import DeviceMesh
from anabranch.engine.ops.collectives import set_group
from anabranch.engine.place.constraints import PlacementError

CLUSTER = {"worker": ["localhost:0"]}
TASK = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"devices": ["cpu"]}, TypeError, r"Server: devices=\['cpu'\]: expected a dict such as \{'cpu': 2\}\."),
        ({"devices": {"cpu": 0}}, ValueError, r"Server: devices=\{'cpu': 0\}: expected at least 1"),
        ({"devices": {"cpu": "2"}}, TypeError, r"Server: devices=\{'cpu': '2'\}: expected how many"),
        ({"token": b"a token of bytes, which is long"}, TypeError, r"token=: expected a str, got bytes\."),
        ({"token": "short"}, ValueError, r"\(token=\) has 5 characters; expected at least 16"),
        ({"bind": "192.0.2.7"}, OSError, r"Can't listen at bind='192\.0\.2\.7': .*This machine has no such address"),
        ({"bind": "no host"}, OSError, r"Can't listen at bind='no host': The host 'no host' can't be found"),
    ],
)
def test_a_server_names_the_setting_that_is_wrong(settings: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        ab.distribute.Server(CLUSTER, **{"token": "a token that is long enough", **settings})


def test_a_server_that_was_stopped_is_not_started_again():
    server = ab.distribute.Server(CLUSTER, token="a token that is long enough", start=False)
    server.stop()
    with pytest.raises(RuntimeError, match=r"/job:worker/task:0 has been stopped\. Make another Server\."):
        server.start()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"heartbeat_timeout": "8"}, TypeError, "heartbeat_timeout='8': expected a number of seconds, got a str"),
        ({"connect_timeout": None}, TypeError, "connect_timeout=None: expected a number of seconds, got a NoneType"),
        ({"kernel_timeout": "1"}, TypeError, "kernel_timeout='1': expected a number of seconds, or None, got a str"),
        ({"bytes_in_flight": "1"}, TypeError, "bytes_in_flight='1': expected a number of bytes, got a str"),
        ({"shared_memory_bytes": "1"}, TypeError, "shared_memory_bytes='1': expected a number of bytes, or None, got"),
        (
            {"plane": {"ps": "tcp"}},
            ValueError,
            r"plane=\{'ps': \.\.\.\}: 'ps' names no task and no job\. Write '/job:ps'",
        ),
        ({"plane": 3}, ValueError, "plane=3: expected one of auto"),
    ],
)
def test_a_config_names_the_setting_that_is_wrong(settings: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        ab.distribute.ServerConfig(**settings)


def test_a_plane_of_the_environment_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANABRANCH_PLANE", "udp")
    with pytest.raises(ValueError, match="ANABRANCH_PLANE='udp': expected one of auto, sockets, shared_memory"):
        ab.distribute.ServerConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", r"it is a list, expected an object with 'cluster' and 'task'\. Write"),
        (
            json.dumps({"cluster": CLUSTER, "task": 0}),
            r"'task' is 0, expected an object with 'type' and 'index'\. Write",
        ),
        (json.dumps({"cluster": CLUSTER}), r"'task' is missing\. Write"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "worker"}}), r"'index' is missing\. Write"),
        (json.dumps({"cluster": CLUSTER, "task": {**TASK, "index": 1}}), r"it has /job:worker/task:0\. Write"),
        (json.dumps({"cluster": [], "task": TASK}), r"expected a dict such as .*\. Write"),
        ("{worker", r"Expecting property name .*\. Write"),
    ],
)
def test_a_tf_config_that_can_not_be_read_is_named(text: str, message: str):
    with pytest.raises(ValueError, match=message) as caught:
        ab.distribute.cluster_from_environment({"TF_CONFIG": text})
    assert ".." not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (Pipeline, {"stages": 2.5}, "stages must be a whole number, or lists of layers; got 2.5 of type float"),
        (Pipeline, {"devices": [0, "cpu:1"]}, r"Pipeline: devices must be a list of names.*; got \[0\] in it"),
        (Pipeline, {"devices": "cpu:0"}, r"Pipeline: devices must be a list of names.*; got 'cpu:0' of type str"),
        (DataParallel, {"devices": [None]}, r"DataParallel: devices must be a list of names.*; got \[None\] in it"),
        (DataParallel, {"bucket_bytes": "1MB"}, "bucket_bytes must be a whole number, or None; got '1MB' of type str"),
        (DeviceMesh, {"devices": [0, 1]}, r"DeviceMesh: devices must be a list of names.*; got \[0, 1\] in it"),
        (ParameterServer, {"sync": "no"}, "ParameterServer: sync must be True or False; got 'no' of type str"),
        (ParameterServer, {"backup_workers": "1"}, "backup_workers must be a whole number; got '1' of type str"),
        (ParameterServer, {"sync": False, "max_staleness": 1.5}, "must be a whole number, or None; got 1.5 of type fl"),
    ],
)
def test_strategies_name_the_argument_of_a_wrong_type(make: Any, settings: dict[str, Any], message: str):
    """They had errors of Python's own, or were taken for something else."""
    more = {Pipeline: {"stages": 2, "microbatches": 2}, DeviceMesh: {"shape": (2,), "axis_names": ["model"]}}
    with pytest.raises((TypeError, ValueError), match=message):
        make(**{**more.get(make, {}), **settings})


def test_numbers_of_numpy_are_whole_numbers():
    counts: Any = np.array([3, 4])
    strategy = Pipeline(counts[0], counts[1])
    assert (strategy.num_stages, strategy.microbatches) == (3, 4)


def test_a_kind_of_device_that_there_is_not_is_named(graph: ab.Graph):
    with ab.device("first:0"):
        y = ab.constant(1.0) + 1.0
    with pytest.raises(PlacementError, match="There is no kind of device 'first': ask for one of these"):
        ab.Session(graph).run(y)


def test_stages_of_one_process_are_refused_among_several_workers(monkeypatch: pytest.MonkeyPatch):
    """Each worker trained the whole model, and each was the chief, so that all wrote the same files."""
    strategy = ab.distribute.Pipeline(2, microbatches=2)
    with strategy.scope():
        model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2), ab.layers.Dense(1)])

    def start(count: int) -> None:
        cluster = {"worker": ["localhost:0"] * count, "ps": ["localhost:0"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": TASK}))

    start(1)
    model.compile("sgd", "mse")
    start(2)
    with pytest.raises(ValueError, match=r"one of 2 workers, so each worker would train .* DataParallel\(of="):
        model.compile("sgd", "mse")


@pytest.mark.parametrize(
    ("device", "remedy"),
    [
        (
            "cpu:4",
            r"Give the task more of them \(Server\(devices=\{'cpu': n\}\), worker --cpus\), or ask for one of these",
        ),
        ("gpu:0", "Tasks have CPUs alone: ask for one of these"),
    ],
)
def test_a_device_that_a_task_does_not_have_is_named_with_a_remedy(graph: ab.Graph, device: str, remedy: str):
    with ab.device(f"/job:worker/task:0/{device}"):
        y = ab.constant(1.0) + 1.0
    token = "a token that is long enough"
    with pytest.MonkeyPatch.context() as patch, ab.distribute.Server(CLUSTER, token=token) as server:
        patch.setenv("ANABRANCH_TOKEN", token)
        with ab.Session(graph, target=server.target) as session, pytest.raises(PlacementError, match=remedy):
            session.run(y)


def test_a_scope_that_was_forgotten_is_logged(caplog: pytest.LogCaptureFixture):
    """Each process trained the whole model by itself, and said nothing."""
    members = made(2, shares_memory=False)
    model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1)], name="small")
    model.compile("sgd", "mse")
    rows = np.ones((4, 2))

    def said(strategy: DataParallel) -> str:
        assert strategy.num_workers == 2
        caplog.clear()
        model.fit(rows, rows[:, :1], verbose=0)
        return caplog.text

    set_group(members[0])
    try:
        strategy = DataParallel()
        assert "fit trains model 'small' in this process alone: DataParallel was made over several" in said(strategy)
        assert not said(strategy), "it is logged once"
        other = DataParallel()
        with other.scope():
            pass
        assert not said(other)
    finally:
        set_group(None)
        for member in members:
            member.close()
