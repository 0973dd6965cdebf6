"""Random numbers printed as CUDA, run on the host and compared with those that hosts draw."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from shared.device_arrays import DeviceArray
from shared.fake_cupy import FakeCupy
from shared.host_cuda import compile_on_host

from anabranch.engine.codegen.cuda.draws import draw_launch
from anabranch.engine.codegen.expression.expression import UnsupportedError
from anabranch.engine.graph.op import Op
from anabranch.engine.machine.gpu.draws import draw_runner
from anabranch.engine.ops.random.samplers import (
    RandomIntegers,
    RandomKeep,
    RandomNormal,
    RandomTruncatedNormal,
    RandomUniform,
)

CUPY: Any = FakeCupy()
FLOATS = [np.dtype(each) for each in ("float32", "float64", "float16", ml_dtypes.bfloat16)]
KEYS = [[0, 0], [1, 2], [-5, 2**62 + 11]]
SHAPES = [(1,), (7,), (8,), (3, 5, 11), (2100,), (0, 4), ()]
BOUNDS = [(0.0, 1.0), (-1.0, 2.0), (1.0, 1.0078125), (3.0, 3.0)]


def cases(shape: tuple[int, ...]) -> list[Op]:
    found: list[Op] = []
    for dtype in FLOATS:
        found += [RandomUniform(shape, dtype, low, high) for low, high in BOUNDS]
        found += [RandomKeep(shape, dtype, rate) for rate in (0.0, 0.1, 0.5, 1 - 1e-12)]
    for dtype in ("int8", "int32", "int64", "uint8", "uint64"):
        wide = np.iinfo(dtype)
        found += [RandomIntegers(shape, np.dtype(dtype), low, high) for low, high in ((0, 2), (wide.min, wide.max + 1))]
    return found


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All sources in one translation unit."""
    normal = [RandomNormal((1,), dtype) for dtype in FLOATS]
    compile_on_host(draw_launch(op).source for op in [*cases((1,)), *normal])


def drawn(op: Op, key: list[int], *sizes: Any) -> np.ndarray:
    runner = draw_runner(CUPY, op)
    assert runner is not None
    return runner(np.array(key, "int64"), *sizes)._held


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("key", KEYS, ids=["zero", "small", "wide"])
def test_bits_are_those_of_the_host(key: list[int], shape: tuple[int, ...]) -> None:
    for op in cases(shape):
        wanted = np.asarray(op.run(np, np.array(key, "int64")))
        found = drawn(op, key)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes(), op


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_numbers_are_those_of_the_host(dtype: Any, shape: tuple[int, ...]) -> None:
    op = RandomNormal(shape, dtype, 1.0, 2.0)
    wanted = np.asarray(op.run(np, np.array([3, 4], "int64"))).astype("float64")
    found = drawn(op, [3, 4]).astype("float64")
    rtol = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3}.get(dtype.name, 2e-2)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)


def test_keys_and_sizes_may_be_on_the_device() -> None:
    op = RandomUniform((None, 3), np.dtype("float32"))
    wanted = op.run(np, np.array([1, 2]), np.int32(4))
    runner = draw_runner(CUPY, op)
    assert runner is not None
    found = runner(DeviceArray(np.array([1, 2])), DeviceArray(np.array(4, "int32")))
    np.testing.assert_array_equal(found._held, wanted)


def test_other_draws_have_no_kernel() -> None:
    op = RandomTruncatedNormal((3,), np.dtype("float32"))
    assert draw_runner(CUPY, op) is None
    with pytest.raises(UnsupportedError, match="random_truncated_normal"):
        draw_launch(op)


def test_a_kernel_takes_more_elements_than_threads() -> None:
    launch = draw_launch(RandomUniform((1,), np.dtype("float32")))
    assert launch.grid(1) == (1, 1)
    assert launch.grid(2**40)[0] == 1 << 16
