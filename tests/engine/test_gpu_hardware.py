"""Steps on a GPU that is there, beside the reference interpreter. Skipped without one; `make gpu` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shared.every_op import registered_ops
from shared.gpus import why_there_is_no_gpu
from shared.machines import run
from shared.placed_steps import Legal

import anabranch as ab
from anabranch import layers
from anabranch.engine.devices import DeviceMemoryError
from anabranch.engine.graph.op import Op
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.runtime.interpreter import Interpreter

_TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-9, "complex64": 1e-4}
_UP_TO_SIGN = ("Eigh", "Svd")  # of vectors that have none


pytestmark = pytest.mark.skipif(bool(why_there_is_no_gpu()), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _devices() -> Iterator[None]:
    ab.config.set_devices(cpu=1, gpu=1)
    yield
    ab.config.set_devices()


def place_all(operations: Any, feeds: Any) -> dict[Any, str]:
    """Place all on the GPU that a GPU can run."""
    return dict(Legal(lambda operation: "gpu:0")(operations, feeds))


def check(targets: list[Any], feeds: dict[Any, Any], exact: bool, up_to_sign: bool = False) -> None:
    """A program on the GPU gives what the interpreter gives."""
    graph = targets[0].operation.graph
    found = run(MachineProgram(graph, targets, list(feeds), exact=exact, assign=place_all), list(feeds.values()))
    for value, expected in zip(found, Interpreter().run(graph, targets, feeds), strict=True):
        wanted = np.asarray(expected)
        assert np.asarray(value).dtype == wanted.dtype
        if wanted.dtype.kind == "T":
            np.testing.assert_array_equal(value, wanted)
            continue
        if up_to_sign:
            value, wanted = abs(value), abs(wanted)
        tolerance = _TOLERANCE.get(str(wanted.dtype), 0)
        np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance)


def numeric_ops() -> list[Any]:
    found: list[Any] = []
    for name, cls in sorted(registered_ops().items()):
        own = (
            cls.__module__.startswith("anabranch.")
            and not cls.host_only
            and not name.startswith(("as_string", "random_"))
        )
        if own and any(is_numeric(sample) for sample in cls.samples()):
            found.append(pytest.param(cls, id=name))
    return found


def is_numeric(sample: Any) -> bool:
    return (
        all(np.asarray(value).dtype.kind in "biufcV" for value in sample.inputs) and sample.op.type_name != "as_string"
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cls", numeric_ops())
def test_each_op_gives_what_it_gives_on_the_cpu(cls: type[Op]) -> None:
    for sample in filter(is_numeric, cls.samples()):
        with ab.Graph().as_default() as graph:
            values = [np.asarray(value) for value in sample.inputs]
            given = [ab.placeholder(value.shape, value.dtype) for value in values]
            outputs = graph.add(sample.op, given, "sample").outputs
            targets = [output for output in outputs if isinstance(output.spec, TensorSpec)]
        if targets:
            check(targets, dict(zip(given, values, strict=True)), True, cls.__name__ in _UP_TO_SIGN)


@pytest.mark.parametrize("exact", [True, False])
def test_a_network_and_its_gradient(exact: bool) -> None:
    x = ab.placeholder((64, 33), "float32")
    w = ab.placeholder((33, 65), "float32")
    y = ab.ops.softmax(ab.ops.tanh(ab.ops.matmul(x, w) * 2.0 + 1.0))
    loss = ab.ops.mean(y * y)
    random = np.random.default_rng(0)
    feeds = {x: random.normal(size=(64, 33)).astype("float32"), w: random.normal(size=(33, 65)).astype("float32")}
    check([loss, *ab.gradients(loss, [w]), y], feeds, exact)


def trained(device: str) -> list[float]:
    ab.utils.set_random_seed(1)
    with ab.device(device):
        model = ab.Sequential([ab.Input((7, 5)), layers.LSTM(16), layers.Dense(1)])
        model.compile(ab.optim.SGD(0.1), "mse")
        x = np.random.default_rng(0).normal(size=(64, 7, 5)).astype("float32")
        return model.fit(x, x[:, 0, :1], epochs=3, batch_size=16, shuffle=False, verbose=0).history["loss"]


def test_training_gives_the_losses_of_the_cpu() -> None:
    np.testing.assert_allclose(trained("gpu:0"), trained("cpu:0"), rtol=1e-3)


@pytest.mark.parametrize("swap", [False, True])
def test_a_loop_that_does_not_fit_runs_when_its_memory_may_swap(swap: bool) -> None:
    """An LSTM whose histories take four times the memory that the device may use."""
    ab.config.set_devices(cpu=1, gpu={"count": 1, "memory_limit": 16 * 2**20})
    with ab.Graph().as_default() as graph:
        kernel = ab.placeholder((256, 512), "float32")
        n = ab.placeholder((), "int32")
        with ab.device("gpu:0"):
            x, zeros = ab.ops.ones((128, 128)), ab.ops.zeros((128, 128))

            def body(t: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
                i, f, g, o = ab.ops.split(ab.ops.concatenate([x, h], -1) @ kernel, 4, -1)
                c = ab.ops.sigmoid(f) * c + ab.ops.sigmoid(i) * ab.ops.tanh(g)
                return t + 1, ab.ops.sigmoid(o) * ab.ops.tanh(c), c

            h = ab.while_loop(lambda t, *_: t < n, body, (0, zeros, zeros), swap_memory=swap, parallel_iterations=4)[1]
            (slope,) = ab.gradients(ab.ops.mean(h), [kernel])
    feeds = {kernel: np.random.default_rng(0).normal(size=(256, 512)).astype("float32") / 16, n: np.int32(100)}
    program = MachineProgram(graph, [slope], list(feeds), exact=True)  # as tests/benchmarks/machine.py measures it
    if swap:
        assert np.isfinite(program(*feeds.values())[0]).all()
    else:
        with pytest.raises(DeviceMemoryError):
            program(*feeds.values())
