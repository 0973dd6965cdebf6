"""Copies of transposed arrays that are made behind loops: values of variables, and how many bytes are there at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab

ops = ab.ops
SHAPE = (64, 128, 32)


def _looped(x: Any) -> Any:
    """The last state of a loop that takes each row of x."""
    zeros = ops.zeros(SHAPE[1:])
    return ab.while_loop(lambda t, _: t < SHAPE[0], lambda t, h: (t + 1, ops.tanh(h + x[t])), (0, zeros))[1]


def _described(fetches: Any) -> str:
    return str(ab.explain(fetches, passes=True))


@pytest.mark.parametrize("is_written", [False, True], ids=["kept", "written"])
def test_a_copy_of_a_variable_is_of_its_value_before_the_write(is_written: bool) -> None:
    value = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    x = ab.Variable(value)
    with ab.Graph().as_default():
        read = ab.convert_to_tensor(x)
        total = ops.sum(ops.exp(ops.transpose(read, (1, 0, 2))))
        written = [x.assign(ops.zeros(SHAPE))] if is_written else []
        last = _looped(ab.convert_to_tensor(x) if is_written else read)
        fetches = [total, last, *written]
        assert ("not before it" in _described(fetches)) is not is_written
        with ab.Session() as session:
            found_total, found_last, *_ = session.run(fetches)
    np.testing.assert_allclose(found_total, np.exp(value.astype("float64")).sum(), rtol=1e-5)
    state = np.zeros(SHAPE[1:], "float32")
    for row in value if not is_written else np.zeros_like(value):
        state = np.tanh(state + row)
    np.testing.assert_allclose(found_last, state, rtol=1e-5, atol=1e-6)


def test_small_arrays_stay_where_they_were() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((4, 8, 2), "float32")
        total = ops.sum(ops.exp(ops.transpose(x, (1, 0, 2))))
        last = ab.while_loop(lambda t, _: t < 4, lambda t, h: (t + 1, ops.tanh(h + x[t])), (0, ops.zeros((8, 2))))[1]
        assert "not before it" not in _described([total, last])


def test_arrays_of_unknown_rank() -> None:
    value = np.random.default_rng(0).standard_normal((40, 80, 320)).astype("float32")
    with ab.Graph().as_default():
        x, sizes = ab.placeholder(value.shape, "float32"), ab.placeholder((None,), "int32")
        y = ops.reshape(x, ops.boolean_mask(sizes, sizes > 0))
        turned = ops.reshape(ops.transpose(y, (1, 0, 2)), (-1, 320))
        last = ab.while_loop(lambda t, _: t < 40, lambda t, h: (t + 1, ops.tanh(h + x[t])), (0, ops.zeros((80, 320))))[
            1
        ]
        fetches = [ops.exp(turned) * 2 + 1, last, ops.exp(ops.transpose(y)) + 1]
        found = ab.Session().run(fetches, {x: value, sizes: np.array([40, 0, 80, 320], "int32")})
    np.testing.assert_allclose(found[0], np.exp(value.transpose(1, 0, 2).reshape(-1, 320)) * 2 + 1, rtol=1e-6)
    np.testing.assert_allclose(found[2], np.exp(value.transpose()) + 1, rtol=1e-6)


def test_what_waits_for_a_copy_comes_behind_it() -> None:
    """The loop waits for the sum, though it does not take it."""
    with ab.Graph().as_default():
        x = ab.placeholder(SHAPE, "float32")
        total = ops.sum(ops.exp(ops.transpose(x, (1, 0, 2))))
        with ab.control_dependencies([total]):
            last = _looped(x)
        assert "not before it" not in _described([total, last])
