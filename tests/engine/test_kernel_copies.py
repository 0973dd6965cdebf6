"""Copies of operands that kernels refuse as they are: by kernels where an axis is contiguous, else by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shared.machine_figures import assume

import anabranch as ab
from anabranch import ops
from anabranch.engine.codegen.elementwise import turned_copies
from anabranch.engine.codegen.elementwise.apart import copied_by_rows
from anabranch.engine.codegen.elementwise.bound import fitted
from anabranch.engine.codegen.elementwise.kernel_specs import fits, native_dtype
from anabranch.engine.codegen.elementwise.turned_copies import copied_by_squares
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.runtime.program import Program

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels can't be compiled here")


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assume(monkeypatch, parallel_elements=1)
    monkeypatch.setattr(turned_copies, "_FIRST", 0)
    turned_copies._copier.cache_clear()


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
    "rows backward": lambda x: x.reshape(-1, 40)[::-1],
    "repeated rows": lambda x: np.broadcast_to(x[0, 0, 0], (50, 40)),
}
BY_NUMPY: dict[str, Callable[[Any], Any]] = {
    "rows of a picture's middle": lambda x: x[:, 1:-1, :, 3:19],
    "rows in another order": lambda x: x.transpose(2, 0, 1, 3),
    "every other column": lambda x: x[..., ::2],
    "backward": lambda x: x[..., ::-1],
    "a vector": lambda x: x.reshape(-1)[::3],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("view", BY_ROWS)
def test_rows_that_are_equally_far_apart_keep_every_bit(view: str, dtype: str):
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


TURNED: dict[str, Callable[[Any], Any]] = {
    "a matrix": lambda x: x.reshape(-1, 70).T,
    "a part of a matrix": lambda x: x.reshape(-1, 70)[3:41, 5:].T,
    "channels first": lambda x: x.transpose(0, 3, 1, 2),
    "all axes": lambda x: x.transpose(3, 2, 1, 0),
    "rows backward": lambda x: x[:, ::-1].transpose(3, 0, 2, 1),
    "some rows": lambda x: x[:, 1:3].transpose(0, 3, 1, 2),
    "a repeated axis": lambda x: np.broadcast_to(x[:, :1], x.shape).transpose(3, 1, 0, 2),
    "few columns": lambda x: x[..., :9].transpose(3, 0, 1, 2),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "complex64"])
@pytest.mark.parametrize("view", TURNED)
def test_transposes_keep_every_bit(view: str, dtype: str):
    wide = (
        draw(3, 5, 7, 140).view(native_dtype(np.dtype(dtype)))
        if dtype == "complex64"
        else draw(3, 5, 7, 70, dtype=dtype)
    )
    given = TURNED[view](wide)
    found = fitted(given, given.dtype)
    assert fits(found, given.dtype)
    assert found.tobytes() == given.tobytes()
    made = copied_by_squares(given, given.dtype)
    assert made is not None
    assert made.tobytes() == given.tobytes()


def test_transposes_that_squares_do_not_copy():
    x = draw(3, 5, 7, 70)
    for given in (x, x[..., ::2], x[..., :4].transpose(0, 3, 1, 2), x[..., ::2].T, x.view("float16").T):
        assert copied_by_squares(given, given.dtype) is None
        assert fitted(given, native_dtype(given.dtype)).tobytes() == given.tobytes()
    assert fitted(x[:0].T, x.dtype).shape == (70, 7, 5, 0)


def test_the_first_copies_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turned_copies, "_FIRST", 2)
    turned_copies._copier.cache_clear()
    given = draw(40, 50).T
    assert [copied_by_squares(given, given.dtype) is None for _ in range(4)] == [True, True, False, False]


def test_a_fetched_transpose_is_contiguous_and_a_copy():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((40, 50), "float32")
        (found,) = Program(graph, [symbol_of(ops.transpose(x))], [x])(given := draw(40, 50))
    assert found.flags.c_contiguous
    assert not np.shares_memory(found, given)
    assert found.tobytes() == given.T.tobytes()


def test_fetched_transposes_of_texts_and_reshapes_of_them():
    texts = np.array([f"{k} is a number" for k in range(60)], np.dtypes.StringDType()).reshape(6, 10)
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((6, 10), "string")
        targets = [symbol_of(ops.transpose(x)), symbol_of(ops.reshape(ops.transpose(x), (60,)))]
        turned, flat = Program(graph, targets, [x])(texts)
    assert turned.tolist() == texts.T.tolist()
    assert flat.tolist() == texts.T.reshape(-1).tolist()


@pytest.mark.parametrize("shape", [(6, 5, 40), (6, 200), (-1,)])
def test_reshapes_of_transposes_and_of_repeated_rows(shape: tuple[int, ...]):
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((5, 6, 40), "float32")
        made = [
            ops.reshape(ops.transpose(x, (1, 0, 2)), shape),
            ops.reshape(ops.transpose(x, (2, 1, 0)), (40, 30)),
            ops.reshape(ops.broadcast_to(x[:, :1], (5, 6, 40)), shape),
            ops.tile(x, (2, 1, 1)),
            ops.repeat(x, 3, axis=-1),
        ]
        targets = [symbol_of(each) for each in made]
        program, exact = Program(graph, targets, [x]), Program(graph, targets, [x], exact=True)
    assert "run_reshape" in program.source
    for found, wanted in zip(program(given := draw(5, 6, 40)), exact(given), strict=True):
        assert (found.shape, found.tobytes()) == (wanted.shape, wanted.tobytes())


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
