"""Shared by the tests of values."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab


def dtype_name_of(value: Any) -> str:
    """The name of a dtype, as Keras writes it."""
    return str(getattr(value.dtype, "name", value.dtype))


def plain(value: Any) -> np.ndarray:
    """A NumPy array of what was returned."""
    return np.asarray(value)


def same(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    """Fail unless the numbers and shapes are the same."""
    got, want = plain(got), np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}: {got!r}"
    if want.dtype.kind in "fc":
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


def refused(function: Callable[[], Any], *kinds: type[Exception], saying: tuple[str, ...] = ()) -> None:
    """Fail unless a call raises one of `kinds` (any, if there are none), with one of the words in its text."""
    expected = kinds or (Exception,)
    try:
        result = function()
    except expected as error:
        text = str(error).lower()
        assert not saying or any(word in text for word in saying), f"the error says {text!r}, none of {saying}"
    else:
        raise AssertionError(f"not refused; it gave {result!r}")


def is_symbolic(value: Any) -> bool:
    """Test whether `value` waits for a graph to run."""
    assert isinstance(value, ab.Tensor)
    try:
        np.asarray(value)
    except TypeError:
        return True
    return False


def descriptors() -> set[tuple[str, str]]:
    """Return the descriptors that are open, each with what it is of. What is new among them was left open.

    A count of them would differ, too, if a thread of an earlier test had closed its own meanwhile.
    """
    found: set[tuple[str, str]] = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of this list is closed
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def resident() -> int:
    """Bytes of memory in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
