"""Python integers beyond int32 keep their value: on values, in graphs, in functions."""

import numpy as np
import pytest

import anabranch as ab


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 2**31, 2**40 + 5, -(2**31) - 1, 2**63 - 1])
def test_integers_beyond_int32_are_int64(value: int) -> None:
    wanted = np.int32 if -(2**31) <= value < 2**31 else np.int64
    assert ab.ops.full((2,), value, wanted).numpy().tolist() == [value, value]
    assert ab.ops.convert_to_tensor(value).dtype == wanted
    with ab.Graph().as_default():
        found = ab.Session().run(ab.ops.full((2,), value, wanted))
    assert (found.dtype, found.tolist()) == (wanted, [value, value])
    assert int(ab.function(lambda: ab.ops.broadcast_to(value, ()))()) == value


def test_integers_that_do_not_fit_are_refused() -> None:
    for add in (lambda: ab.ops.add(np.int32(1), 2**31), lambda: ab.function(lambda x: x + 2**31)(np.int32(1))):
        with pytest.raises(OverflowError, match="2147483648 does not fit int32, the dtype of what it is used with"):
            add()
    assert int(ab.ops.add(np.int64(1), 2**31)) == 2**31 + 1
    assert int(ab.ops.bitwise_and(np.uint8(7), -2)) == 6
