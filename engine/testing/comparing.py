"""Comparisons of values with what is expected: to the bit, within rounding, and with what was inferred of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..common.dtypes import is_floating
from ..common.nest import is_sequence
from ..graph.op import Sample
from ..graph.spec import TensorSpec, shape_accepts

KNOWN = ("static", "dims", "nothing")  # what is known of the shapes of inputs


def fail_unless(condition: Any, message: str) -> None:
    """Raise an AssertionError with `message` (also under ``python -O``, and readable without pytest's rewriting)."""
    if not condition:
        raise AssertionError(message)


def finding(where: str, error: Exception) -> str:
    """Return the line of a report that says what `error` a check raised, with its notes."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    return f"- {where}: {kind}{' '.join(f'{error}{notes}'.split())}"


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return the outputs of an op as a tuple."""
    return tuple(value) if is_sequence(value) else (value,)


def pairs(first: Any, second: Any) -> Iterable[tuple[Any, Any]]:
    """Return the outputs of an op beside what they are compared with.

    Raises:
        AssertionError: they differ in number.
    """
    left, right = as_tuple(first), as_tuple(second)
    fail_unless(len(left) == len(right), f"{len(left)} results, but {len(right)} are expected")
    return zip(left, right, strict=True)


def assert_same_form(actual: Any, expected: Any) -> None:
    """Assert one type, dtype and shape."""
    fail_unless(
        type(actual) is type(expected), f"the type is {type(actual).__name__}, expected {type(expected).__name__}"
    )
    fail_unless(actual.dtype == expected.dtype, f"the dtype is {actual.dtype}, expected {expected.dtype}")
    fail_unless(actual.shape == expected.shape, f"the shape is {actual.shape}, expected {expected.shape}")


def assert_identical(actual: Any, expected: Any) -> None:
    """Assert one type, dtype, shape, and the same bits, but that all NaNs are one."""
    assert_same_form(actual, expected)
    if actual.dtype.kind not in "biufcV":
        np.testing.assert_array_equal(actual, expected)
        return
    if actual.dtype.kind in "fcV":
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(actual), nan)
        actual, expected = np.where(nan, 0, actual), np.where(nan, 0, expected)
    if actual.tobytes() != expected.tobytes():
        np.testing.assert_array_equal(actual, expected)
        raise AssertionError(f"{actual} and {expected} are equal, but not to the bit (zeros of other signs?)")


def assert_close(actual: Any, expected: Any, tolerance: float, elementwise: bool = False) -> None:
    """Assert equal integers; floats within `tolerance` of each other or, unless `elementwise`, of the largest."""
    fail_unless(
        np.shape(actual) == np.shape(expected), f"the shape is {np.shape(actual)}, expected {np.shape(expected)}"
    )
    if np.asarray(actual).dtype.kind not in "fcV":
        np.testing.assert_array_equal(actual, expected)
        return
    actual, expected = _as_wide(actual), _as_wide(expected)
    finite = np.abs(expected[np.isfinite(expected)])
    slack = 1e-30 if elementwise else tolerance * max(1.0, finite.max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=slack)
    if elementwise and expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(np.nan_to_num(actual)), np.signbit(np.nan_to_num(expected)))


def _as_wide(value: Any) -> Any:
    array = np.asarray(value)
    return array if array.dtype.kind == "c" else array.astype("float64")


def assert_fits(value: Any, spec: Any) -> None:
    """Assert that `value` has the form of run-time values, and is what `spec` says."""
    scalar = not value.shape and value.dtype.kind != "T"  # the scalars of NumPy's strings are Python's
    fail_unless(
        isinstance(value, np.generic if scalar else np.ndarray),
        f"a result of shape {value.shape} is a {type(value).__name__}: results without axes must be NumPy scalars "
        "(see as_scalar_or_array), others arrays",
    )
    fail_unless(value.dtype == spec.dtype, f"run gives {value.dtype}, but infer says {spec}")
    fail_unless(shape_accepts(spec.shape, value.shape), f"run gives shape {value.shape}, but infer says {spec}")


def spec_of(value: Any, known: str = "static") -> TensorSpec:
    """Return the spec of a value of which the whole shape, the number of axes ("dims"), or nothing is known."""
    shapes = {"static": value.shape, "dims": (None,) * value.ndim, "nothing": None}
    return TensorSpec(shapes[known], value.dtype)


def weak_spec(sample: Sample, position: int, known: str) -> TensorSpec:
    """Return `spec_of` an input, but that what the op needs (`Op.needs_known`) stays known."""
    value, needed = sample.inputs[position], sample.op.needs_known.get(position)
    if known != "static" and needed == "last axis":
        return TensorSpec((None,) * (value.ndim - 1) + value.shape[-1:], value.dtype)
    return spec_of(value, "dims" if known == "nothing" and needed == "rank" else known)


def same_values(first: Any, second: Any) -> bool:
    """Test whether two arrays hold the same bits, or the same strings."""
    return bool(np.array_equal(first, second)) if first.dtype.kind == "T" else first.tobytes() == second.tobytes()


def all_floating(values: Sequence[Any]) -> bool:
    """Test whether all values are floating-point numbers."""
    return all(is_floating(value.dtype) for value in values)
