"""Keras 3's `distribution` module: meshes, layouts, strategies of the process, replicas on devices of one process."""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shared.members import addresses
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch import distribution, layers
from anabranch.distribute import DataParallel
from anabranch.distribute.strategies.mesh import DeviceMesh, LayoutMap, TensorLayout

RNG = np.random.default_rng(0)
X, IDS, Y = RNG.normal(size=(11, 4)), RNG.integers(0, 7, size=(11, 4)), RNG.normal(size=(11, 3))


@pytest.fixture(autouse=True)
def doubles(without_kernels: None) -> Iterator[None]:
    ab.config.set_floatx("float64")
    yield
    ab.config.set_devices()
    distribution.set_distribution(None)


def test_arguments_are_those_of_keras() -> None:
    """As Keras 3.15 has them; ours follow as keywords."""
    expected = {
        "initialize": ["job_addresses", "num_processes", "process_id"],
        "list_devices": ["device_type"],
        "get_device_count": ["device_type"],
        "DeviceMesh": ["shape", "axis_names", "devices"],
        "TensorLayout": ["axes", "device_mesh"],
        "LayoutMap": ["device_mesh"],
        "DataParallel": ["device_mesh", "devices", "auto_shard_dataset"],
        "set_distribution": ["value"],
        "distribute_tensor": ["tensor", "layout"],
        "distribution": [],
    }
    for name, arguments in expected.items():
        found = inspect.signature(getattr(distribution, name)).parameters.values()
        assert [each.name for each in found if each.kind is not each.KEYWORD_ONLY] == arguments
    assert distribution.DataParallel is DataParallel


# --- devices, meshes, layouts ---------------------------------------------------------------------------------------


def test_devices_are_those_that_were_declared() -> None:
    assert (distribution.list_devices(), distribution.get_device_count("gpu")) == (["cpu:0"], 0)
    ab.config.set_devices(cpu=2, sim=3)
    assert distribution.list_devices() == ["sim:0", "sim:1", "sim:2"]
    assert (distribution.list_devices("CPU"), distribution.get_device_count()) == (["cpu:0", "cpu:1"], 3)
    with pytest.raises(ValueError, match="must be 'cpu', 'gpu', 'tpu' or 'sim'; got 'abacus'"):
        distribution.list_devices("abacus")


def test_a_mesh_is_an_array_of_devices() -> None:
    ab.config.set_devices(cpu=4)
    mesh = DeviceMesh((2, 2), ("batch", "model"))
    assert mesh.devices.tolist() == [["cpu:0", "cpu:1"], ["cpu:2", "cpu:3"]]
    assert (mesh.shape, mesh.axis_names, mesh.size_of("model")) == ((2, 2), ["batch", "model"], 2)
    with pytest.raises(ValueError, match="takes 6 devices, but there are 4"):
        DeviceMesh((3, 2), ("a", "b"))
    with pytest.raises(ValueError, match="must be of the same length"):
        DeviceMesh((4,), ("a", "b"))
    with pytest.raises(ValueError, match="a name twice"):
        DeviceMesh((2, 2), ("a", "a"))
    with pytest.raises(ValueError, match=r"shape=\(-1, 4\) must have sizes of at least 1"):
        DeviceMesh((-1, 4), ("a", "b"))
    one: Any = 4
    with pytest.raises(TypeError, match=r"must be a tuple of sizes .*: DeviceMesh\(\(4,\), \['model'\]\)"):
        DeviceMesh(one, ["a"])
    with pytest.raises(TypeError, match="shape=\\(4,\\) and axis_names='batch' must be"):
        DeviceMesh((4,), "batch")


def test_layouts_name_axes_of_their_mesh() -> None:
    mesh = DeviceMesh((2,), ("model",), ["cpu:0", "cpu:1"])
    layout = TensorLayout((None, "model"))
    layout.device_mesh = mesh
    with pytest.raises(ValueError, match="has a mesh already"):
        layout.device_mesh = mesh
    with pytest.raises(ValueError, match=r"names \['rows'\]; the mesh has \['model'\]"):
        TensorLayout(("rows",), mesh)
    with pytest.raises(TypeError, match=r"got 'model'\. That of one axis has a comma: \('model',\)"):
        TensorLayout("model", mesh)
    with pytest.raises(ValueError, match="names an axis of the mesh twice"):
        TensorLayout(("model", "model"), mesh)
    value = distribution.distribute_tensor([[1.0, 2.0]], layout)
    assert value.numpy().tolist() == [[1.0, 2.0]]
    with pytest.raises(ValueError, match="2 devices, which do not divide 3"):
        distribution.distribute_tensor(np.zeros((2, 3)), layout)
    with pytest.raises(ValueError, match="is for 2 axes"):
        distribution.distribute_tensor(np.zeros(3), layout)
    with pytest.raises(TypeError, match="must be a TensorLayout"):
        distribution.distribute_tensor(np.zeros(3), ("model",))  # pyright: ignore[reportArgumentType]


def test_layouts_are_found_by_regular_expressions() -> None:
    mesh = DeviceMesh((2,), ("model",), ["cpu:0", "cpu:1"])
    layouts = LayoutMap(mesh)
    layouts["dense.*kernel"] = (None, "model")
    layouts["dense.*bias"] = TensorLayout(("model",))
    found = layouts["net/dense_1/kernel"]
    assert found is not None
    assert (found.axes, found.device_mesh) == ((None, "model"), mesh)
    assert layouts["net/conv/kernel"] is None
    assert list(layouts) == ["dense.*kernel", "dense.*bias"]
    with pytest.raises(ValueError, match="already"):
        layouts["dense.*bias"] = ("model",)
    layouts["kernel$"] = (None, None)
    with pytest.raises(ValueError, match="matches several keys"):
        layouts["dense/kernel"]
    del layouts["kernel$"]
    assert len(layouts) == 2
    with pytest.raises(ValueError, match="expected a TensorLayout"):
        layouts["x"] = "model"
    with pytest.raises(ValueError, match=r"'x\(' is no regular expression: missing \)"):
        layouts["x("] = ("model",)


# --- the strategy of the process ------------------------------------------------------------------------------------


def test_models_are_compiled_under_the_strategy_of_the_process_or_of_a_scope() -> None:
    ab.config.set_devices(cpu=2)
    default, other = DataParallel(), DataParallel(devices=["cpu:1"])
    distribution.set_distribution(default)
    model = ab.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    assert model.distribute_strategy is default
    with other.scope():
        assert distribution.distribution() is other
    assert distribution.distribution() is default
    distribution.set_distribution(None)
    assert distribution.distribution() is None
    with pytest.raises(ValueError, match="expected a strategy"):
        distribution.set_distribution("data")  # pyright: ignore[reportArgumentType]


def test_a_model_is_trained_under_the_strategy_in_whose_scope_it_was_made() -> None:
    """A `compile` outside of the scope, such as for fine-tuning, doesn't have each worker train by itself."""
    first, second = DataParallel(), DataParallel()
    with first.scope():
        model = ab.Sequential([layers.Dense(1)])
        model.compile("sgd", "mse")
    model.compile("adam", "mse")
    assert model.distribute_strategy is first
    with second.scope():
        model.compile("sgd", "mse")
    assert model.distribute_strategy is second
    copy = ab.models.clone_model(model)
    copy.compile("sgd", "mse")
    assert copy.distribute_strategy is None


def test_layouts_of_data_parallel_spread_rows_alone() -> None:
    ab.config.set_devices(cpu=2)
    strategy = DataParallel()
    assert strategy.get_data_layout((None, 3, 2)).axes == ("batch", None, None)
    assert strategy.get_variable_layout(ab.Variable(np.zeros((2, 2)))).axes == (None, None)
    assert strategy.get_tensor_layout("dense/output") is None
    assert (strategy.batch_dim_name, strategy.auto_shard_dataset) == ("batch", True)
    with pytest.warns(UserWarning, match="over the first alone"):
        found = DataParallel(DeviceMesh((2, 1), ("rows", "model"))).devices
    assert found == ["cpu:0", "cpu:1"]
    with pytest.raises(TypeError, match="must be a DeviceMesh"):
        DataParallel("cpu:0")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="devices must be a list of names"):
        DataParallel(devices="cpu:0")
    with pytest.raises(ValueError, match="devices must be a list of names"):
        ab.distribute.Pipeline(5, 2, devices="cpu:0")


# --- replicas on devices of one process -----------------------------------------------------------------------------


def dense() -> Any:
    return ab.Sequential([ab.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(3)])


def table() -> Any:
    return ab.Sequential([ab.Input((4,), dtype="int32"), layers.Embedding(7, 3), layers.Flatten(), layers.Dense(3)])


def trained(make: Any, x: Any, strategy: Any, batches: Any = (5,)) -> Any:
    ab.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = make()
        model.compile(ab.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    found = [model.train_on_batch(x[:rows], Y[:rows]) for rows in batches]
    return found, model.get_weights(), [variable.numpy() for variable in model.optimizer.variables]


@pytest.mark.parametrize(("make", "x"), [(dense, X), pytest.param(table, IDS, marks=pytest.mark.slow)])
def test_replicas_on_several_devices_find_what_one_device_finds(make: Any, x: Any) -> None:
    """One device gets 2 of 5 rows and one gets 3."""
    expected = trained(make, x, None)
    ab.config.set_devices(cpu=2)
    found = trained(make, x, DataParallel())
    for one, other in zip(ab.tree.flatten(found), ab.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_rows_whose_number_is_not_known() -> None:
    """After a few shapes of batches one program serves all; some of its replicas have no rows."""
    sizes = (11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1)
    expected = trained(dense, X, None, sizes)
    ab.config.set_devices(cpu=3)
    found = trained(dense, X, DataParallel(), sizes)
    for one, other in zip(ab.tree.flatten(found), ab.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_what_parts_of_a_batch_would_change_is_refused() -> None:
    ab.config.set_devices(cpu=2)
    with DataParallel().scope(), pytest.raises(ValueError, match="a part of a batch has fewer rows"):
        ab.Sequential([layers.GRU(2, stateful=True)]).compile("sgd", "mse")


@pytest.mark.parametrize("options", [{"shard": "optimizer"}, {"gradient_dtype": "bfloat16"}])
def test_options_for_workers_are_refused_on_devices_of_one_process(options: Any) -> None:
    ab.config.set_devices(cpu=2)
    ((name, value),) = options.items()
    match = rf"DataParallel\({name}='{value}'\) is for the workers of a cluster; here are replicas on 2 devices"
    with DataParallel(**options).scope():
        model = ab.Sequential([ab.Input((4,)), layers.Dense(1)])
        with pytest.raises(ValueError, match=match):
            model.compile("adam", "mse")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("together", [1, 2])
def test_steps_of_one_process_are_counted(devices: int, together: int) -> None:
    ab.config.set_devices(cpu=devices)
    strategy = DataParallel()
    with strategy.scope():
        model = ab.Sequential([ab.Input((4,)), layers.Dense(3)])
        model.compile("sgd", "mse", steps_per_execution=together)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    model.train_on_batch(X, Y)
    assert strategy.statistics()["step"] == 7


def test_a_replica_may_be_a_pipeline() -> None:
    """In a process alone it is that pipeline; of workers see test_replicas."""
    strategy = DataParallel(of=ab.distribute.Pipeline(2, microbatches=2))
    for one, other in zip(
        ab.tree.flatten(trained(dense, X, strategy)), ab.tree.flatten(trained(dense, X, None)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
    assert strategy.of is not None
    assert len(strategy.of.statistics()["stages"]) == 2
    with pytest.raises(TypeError, match="of must be a Pipeline; got 4"):
        DataParallel(of=4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="each pipeline has the whole optimizer"):
        DataParallel(of=ab.distribute.Pipeline(2, microbatches=2), shard="optimizer")
    with pytest.raises(ValueError, match="the devices are those of the pipeline"):
        DataParallel(devices=["cpu:0"], of=strategy.of)


# --- processes ------------------------------------------------------------------------------------------------------


def test_numbers_of_processes_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="process_id=2 must be a number from 0 to 1"):
        distribution.initialize("a:1,b:2", 2, 2)
    with pytest.raises(ValueError, match="2 addresses for num_processes=3"):
        distribution.initialize("a:1,b:2", 3, 0)
    with pytest.raises(ValueError, match="need job_addresses"):
        distribution.initialize(num_processes=2, process_id=0)
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "several")
    with pytest.raises(ValueError, match="num_processes must be a whole number, got 'several'"):
        distribution.initialize()


_SCRIPT = """
import anabranch as ab
ab.distribution.initialize()
print(ab.distribute.rank(), ab.distribution.list_devices(), ab.distribution.DataParallel().devices)
print(float(ab.distribute.all_reduce(ab.distribute.rank() + 1.0)))
"""


@pytest.mark.slow
@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize("count", [1, 2])
def test_processes_meet_at_addresses(count: int) -> None:
    """At one for each, or at that of process 0."""
    given = ",".join(addresses(count))
    names = {"JOB_ADDRESSES": given, "NUM_PROCESSES": "2"}
    common = {**os.environ, **{f"KERAS_DISTRIBUTION_{name}": value for name, value in names.items()}}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            env={**common, "KERAS_DISTRIBUTION_PROCESS_ID": str(rank), "ANABRANCH_TOKEN": "for tests, no secret"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = [process.communicate(timeout=PATIENCE)[0].splitlines() for process in processes]
    devices = [f"/job:worker/task:{rank}/device:CPU:0" for rank in range(2)]
    workers = [f"/job:worker/task:{rank}" for rank in range(2)]
    assert found == [[f"{rank} {devices} {workers}", "3.0"] for rank in range(2)]
