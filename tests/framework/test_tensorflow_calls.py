"""Functions of `anabranch.tf` give what TensorFlow 2.21 gives for the same calls, in value, shape and dtype."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anabranch import tf
from golden import tensorflow_calls


@cache
def expected() -> dict[str, Any]:
    with np.load(Path(tensorflow_calls.__file__).with_suffix(".npz")) as file:
        return dict(file)


@pytest.mark.parametrize(
    "number", range(len(tensorflow_calls.CALLS)), ids=lambda number: tensorflow_calls.CALLS[number]
)
def test_a_call_gives_what_tensorflow_gives(number: int) -> None:
    found = tensorflow_calls.compute(tf, tensorflow_calls.CALLS[number])

    assert len(found) == sum(name.startswith(f"{number}_") for name in expected())
    for place, array in enumerate(found):
        wanted = expected()[f"{number}_{place}"]
        assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype)
        exact = "complex128" if wanted.dtype.kind == "c" else "float64"
        np.testing.assert_allclose(array.astype(exact), wanted.astype(exact), rtol=2e-4, atol=2e-5)
