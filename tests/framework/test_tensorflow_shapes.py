"""`tf.shape` and `tf.size` compute as TensorFlow's tensors do, and keep the sizes that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import tf

X = np.ones((2, 3), "float32")
ADDED = [1, 0]
CASES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "times": (lambda s: s * 2, [4, 6]),
    "times from the left": (lambda s: 2 * s, [4, 6]),
    "part": (lambda s: s[1:] * 2, [6]),
    "plus a list": (lambda s: s + ADDED, [3, 3]),
    "a list plus": (lambda s: ADDED + s, [3, 3]),
    "an array plus": (lambda s: np.array([1, 0]) + s, [3, 3]),
    "plus itself": (lambda s: s + s, [4, 6]),
    "minus": (lambda s: s - 1, [1, 2]),
    "from": (lambda s: 5 - s, [3, 2]),
    "floor": (lambda s: s // 2, [1, 1]),
    "rest": (lambda s: s % 2, [0, 1]),
    "over": (lambda s: s / 2, [1.0, 1.5]),
    "times a real number": (lambda s: s * 0.5, [1.0, 1.5]),
    "times a tensor": (lambda s: s * tf.constant([1, 2]), [2, 6]),
    "one size": (lambda s: s[0] + 1, 3),
    "joined": (lambda s: tf.concat([s[:1], [5]], 0), [2, 5]),
}


def computed(x: Any) -> dict[str, Any]:
    return {name: tf.convert_to_tensor(compute(tf.shape(x))) for name, (compute, _) in CASES.items()}


def test_sizes_compute_by_element() -> None:
    expected = {name: value for name, (_, value) in CASES.items()}
    for found in (computed(X), ab.function(computed)(X)):
        assert {name: np.asarray(value).tolist() for name, value in found.items()} == expected
    with ab.Graph().as_default():
        x = ab.placeholder((None, 3))
        run = ab.Session().run(computed(x), {x: X})
    assert {name: value.tolist() for name, value in run.items()} == expected


def test_known_sizes_stay_known() -> None:
    with ab.Graph().as_default():
        x = ab.placeholder((None, 3))
        assert tf.zeros(tf.shape(x)[1:] * 2).shape == (6,)
        assert tf.reshape(x, tf.shape(x)[::-1]).shape == (3, None)


def test_shapes_and_sizes_are_read_as_arrays() -> None:
    sizes = tf.shape(X)
    assert (sizes.numpy().tolist(), str(sizes.numpy().dtype), sizes.shape, len(sizes)) == ([2, 3], "int32", (2,), 2)
    assert tf.shape(np.float32(1)).numpy().shape == (0,)
    assert (int(tf.size(X).numpy()), str(tf.size(X, out_type="int64").dtype)) == (6, "int64")
    with ab.Graph().as_default():
        symbolic = tf.shape(ab.placeholder((None, 3)), out_type="int64")
        assert str(symbolic.dtype) == "int64"
        with pytest.raises(TypeError, match="has no value while the graph is built"):
            symbolic.numpy()


def test_more_elements_than_the_dtype_holds_are_refused() -> None:
    with ab.Graph().as_default():
        many = ab.placeholder((1 << 16, 1 << 15), "int8")
        with pytest.raises(OverflowError, match=r"2147483648 elements are more than int32 can hold.*out_type=tf.int64"):
            tf.size(many)
        assert int(ab.Session().run(tf.size(many, out_type=tf.int64))) == 2**31
