"""Random numbers drawn by native code: the bits that NumPy draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.codegen.llvm.library import library
from anabranch.engine.codegen.natives import bind_native
from anabranch.engine.common.dtypes import as_dtype
from anabranch.engine.graph.tensor import Symbol
from anabranch.engine.ops.base import apply
from anabranch.engine.ops.math.bits import RandomOp
from anabranch.engine.ops.random.samplers import RandomKeep, RandomNormal, RandomUniform

pytestmark = pytest.mark.skipif(not library.usable, reason="kernels are off")
_LARGEST = 1 << 15  # elements, of which parts are drawn by several threads
_words = st.integers(-(2**63), 2**63 - 1)


def _check(op: RandomOp, key: list[int], *dynamic: int) -> None:
    with ab.Graph().as_default():
        inputs = [ab.placeholder((2,), "int64"), *[ab.placeholder((), "int32") for _ in dynamic]]
        drawn = apply(op, *inputs)
        assert isinstance(drawn, Symbol)
        run = bind_native(drawn.operation)
    assert callable(run)
    given = [np.array(key, "int64"), *map(np.int32, dynamic)]
    found, expected = run(*given), op.run(np, *given)
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=examples(40, 2000), deadline=None)
@given(
    key=st.tuples(_words, _words),
    shape=st.one_of(
        st.lists(st.integers(0, 9), max_size=3), st.lists(st.integers(_LARGEST - 9, _LARGEST + 9), max_size=1)
    ),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    rate=st.one_of(st.sampled_from([0.0, 1e-12, 0.5]), st.floats(0, 0.999)),
    low=st.floats(-3, 3, width=32),
    width=st.floats(0, 3, width=32),
)
def test_bits(key: tuple[int, int], shape: list[int], dtype: str, rate: float, low: float, width: float) -> None:
    sizes, kind = tuple(shape), as_dtype(dtype)
    _check(RandomKeep(sizes, kind, rate), [*key])
    _check(RandomUniform(sizes, kind), [*key])
    _check(RandomUniform(sizes, kind, low, low + width), [*key])
    _check(RandomNormal(sizes, kind, low, width), [*key])


def test_sizes_known_at_run_time() -> None:
    for rows in (0, 1, 5, _LARGEST):
        _check(RandomKeep((None, 3), as_dtype("float32"), 0.25), [1, 2], rows)
        _check(RandomNormal((2, None), as_dtype("float32")), [1, 2], rows)


def test_double_precision_is_numpys() -> None:
    """Half words have too few bits."""
    with ab.Graph().as_default():
        key = ab.placeholder((2,), "int64")
        drawn = apply(RandomUniform((4,), as_dtype("float64")), key)
        assert isinstance(drawn, Symbol)
        assert bind_native(drawn.operation) is None
    _check(RandomKeep((20,), as_dtype("float64"), 0.4), [3, 4])
