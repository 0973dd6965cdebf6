"""A byte budget on devices with memory of their own: what loops save moves to the host; and transfers of 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops

STEPS = 60


@pytest.fixture(autouse=True)
def _devices() -> Iterator[None]:
    ab.config.set_devices(cpu=2, sim={"count": 1, "memory_limit": 8_000_000})
    yield
    ab.config.set_devices()


def slopes() -> tuple[list[Any], dict[Any, Any]]:
    x, n = ab.placeholder((64, 64), "float32", "x"), ab.placeholder((), "int32", "n")
    with ab.device("sim:0"):
        w = ab.Variable(np.eye(64, dtype="float32") * 0.9, name="w")
        last = ab.while_loop(lambda i, h: i < n, lambda i, h: (i + 1, ops.tanh(h @ w)), (0, x))[1]
        found = [ab.convert_to_tensor(slope) for slope in ab.gradients(ops.sum(last), [x, w])]
    fed = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    return found, {x: fed, n: STEPS}


def test_a_budget_moves_what_loops_save_to_the_host():
    with ab.Graph().as_default():
        tensors, fed = slopes()
        session = ab.Session()
        expected = session.run(tensors, fed)
        kept = session.statistics().devices["sim:0"]
        values = session.run(tensors, fed, memory_budget=200_000)
        moved = session.statistics().devices["sim:0"]
        for value, wanted in zip(values, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
    assert (kept.swapped_out_bytes, kept.swapped_in_bytes) == (0, 0)
    one = 64 * 64 * 4
    assert moved.swapped_out_bytes >= STEPS // 2 * one
    assert moved.swapped_out_bytes >= moved.swapped_in_bytes > 0


def test_a_budget_that_suffices_moves_nothing():
    with ab.Graph().as_default():
        tensors, fed = slopes()
        session = ab.Session()
        session.run(tensors, fed, memory_budget=10**9)
        assert session.statistics().devices["sim:0"].swapped_out_bytes == 0


def test_declared_pairs_of_devices_transfer_16_bits():
    ab.config.set_devices(cpu=2, lossy=[("cpu:0", "/device:CPU:1")])
    with ab.Graph().as_default():
        x = ab.placeholder((2,), "float32", "x")
        with ab.device("cpu:0"):
            y = x * 1.0
        with ab.device("cpu:1"):
            z = y * 1.0
        with ab.device("cpu:0"):
            back = z * 1.0
        there, again = ab.Session().run([z, back], {x: [1.2345678, 0.1]})
    cut = (np.array([1.2345678, 0.1], "float32").view("uint32") & 0xFFFF0000).view("float32")
    np.testing.assert_array_equal(there, cut)
    np.testing.assert_array_equal(again, cut)


@pytest.mark.parametrize("name", ["gpu:0", "cpu"])
def test_pairs_name_one_device_each(name: str):
    with pytest.raises(ValueError, match=f"lossy names {name!r}.*expected one of cpu:0, cpu:1"):
        ab.config.set_devices(cpu=2, lossy=[("cpu:0", name)])
    assert [device.name for device in ab.config.list_devices()] == ["cpu:0", "cpu:1", "sim:0"]
