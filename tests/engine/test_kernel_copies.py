"""Copies of operands that kernels refuse as they are: by a kernel where rows are contiguous, else by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume

from anabranch.engine.codegen.elementwise.apart import copied_by_rows
from anabranch.engine.codegen.elementwise.bound import fitted
from anabranch.engine.codegen.elementwise.kernel_specs import fits, native_dtype
from anabranch.engine.codegen.llvm.library import library

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assume(monkeypatch, parallel_elements=1)


def draw(*shape: int, dtype: str = "float32") -> Any:
    """Random bits, NaNs of all kinds among those of floats, in NumPy's own object for the dtype."""
    wanted = native_dtype(np.dtype(dtype))
    bits = np.random.default_rng(0).bytes(int(np.prod(shape)) * wanted.itemsize)
    return np.frombuffer(bits, wanted).astype(wanted).reshape(shape)


BY_ROWS: dict[str, Callable[[Any], Any]] = {
    "channels of a concatenated image": lambda x: x[..., 3:19],
    "columns of a matrix": lambda x: x.reshape(-1, 40)[:, 7:],
    "a single column": lambda x: x[..., 5:6],
    "every other row": lambda x: x.reshape(-1, 40)[::2],
    "rows of a picture's middle": lambda x: x[:, 1:-1, :, 3:19],
    "rows in another order": lambda x: x.transpose(2, 0, 1, 3),
    "rows backward": lambda x: x.reshape(-1, 40)[::-1],
    "repeated rows": lambda x: np.broadcast_to(x[0, 0, 0], (50, 40)),
}
BY_NUMPY: dict[str, Callable[[Any], Any]] = {
    "axes in another order": lambda x: x.transpose(0, 3, 1, 2),
    "every other column": lambda x: x[..., ::2],
    "backward": lambda x: x[..., ::-1],
    "a vector": lambda x: x.reshape(-1)[::3],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("view", BY_ROWS)
def test_contiguous_rows_keep_every_bit(view: str, dtype: str):
    given = BY_ROWS[view](draw(2, 5, 7, 40, dtype=dtype))
    found = fitted(given, given.dtype)
    assert fits(found, given.dtype)
    assert found.tobytes() == given.tobytes()
    made = copied_by_rows(given, given.dtype)
    assert (made is None) == (view == "a single column")
    assert made is None or made.tobytes() == given.tobytes()


@pytest.mark.parametrize("view", BY_NUMPY)
def test_other_views_are_left_to_numpy(view: str):
    given = BY_NUMPY[view](draw(2, 5, 7, 40))
    assert copied_by_rows(given, given.dtype) is None
    found = fitted(given, given.dtype)
    assert fits(found, given.dtype)
    assert found.tobytes() == given.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bool", "int8", "complex64"])
def test_other_dtypes_are_left_to_numpy(dtype: str):
    given = np.zeros((9, 40), native_dtype(np.dtype(dtype)))[:, 3:19]
    assert copied_by_rows(given, given.dtype) is None
    assert fits(fitted(given, given.dtype), given.dtype)


def test_unaligned_memory_is_left_to_numpy():
    memory = np.arange(4 * 9 * 40 + 1, dtype="uint8")
    given = memory[1:].view(native_dtype(np.dtype("float32"))).reshape(9, 40)[:, 3:19]
    assert not given.flags.aligned
    assert copied_by_rows(given, given.dtype) is None
    assert fitted(given, given.dtype).tobytes() == given.tobytes()
