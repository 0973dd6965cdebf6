"""Functions with the derivatives of other functions, and prefixes under associative operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab

from . import jets
from .definitions import above, define
from .jets import Jet
from .syntax import (
    LETTERS,
    ROWS,
    SCALAR,
    VECTOR,
)


@ab.custom_gradient
def _sin_like_tanh(x: Any) -> Any:
    slope = 1.0 - ab.ops.square(ab.ops.tanh(x))
    return ab.ops.sin(x), lambda upstream: upstream * slope


@ab.custom_gradient
def _difference_like_product(a: Any, b: Any) -> Any:
    return a - b, lambda upstream: (upstream * ab.ops.cos(a) * b, upstream * ab.ops.sin(a))


def _sin_times(a: Jet, b: Jet) -> Jet:
    return jets.multiply(jets.sin(a), b)


@ab.custom_gradient
def _branches_like_others(x: Any) -> Any:
    def grad(upstream: Any) -> Any:
        return ab.cond(x > 0, lambda: upstream * ab.ops.cos(x), lambda: upstream * x)

    return ab.cond(x > 0, lambda: x * x, lambda: -x), grad


def _sin_or_square(x: Jet) -> Jet:
    return jets.sin(x) if above(x, 0.0) else jets.multiply(jets.constant(0.5), jets.multiply(x, x))


@ab.custom_gradient
def _loop_like_another(x: Any) -> Any:
    def grad(upstream: Any) -> Any:
        return ab.ops.fori_loop(0, 2, lambda _, dy: dy * ab.ops.cos(x), upstream)

    return ab.ops.fori_loop(0, 2, lambda _, y: ab.ops.tanh(x * y), x), grad


def _integral_of_squared_cos(x: Jet) -> Jet:
    return jets.multiply(jets.constant(0.5), jets.add(x, jets.multiply(jets.sin(x), jets.cos(x))))


def _zero(x: Jet) -> Jet:
    return jets.constant(np.zeros_like(x.value))


for _type, _letter in LETTERS.items():
    _one, _two = (_type,), (_type, _type)
    define(
        f"custom_{_letter}",
        _type,
        _one,
        _sin_like_tanh,
        jets.tanh,
        offset=lambda x: np.sin(x.value) - np.tanh(x.value),
        construct="custom_gradient",
    )
    define(
        f"custom_two_{_letter}",
        _type,
        _two,
        _difference_like_product,
        _sin_times,
        offset=lambda a, b: a.value - b.value - np.sin(a.value) * b.value,
        construct="custom_gradient",
    )
    define(
        f"stopped_{_letter}",
        _type,
        _one,
        lambda x: ab.ops.stop_gradient(x),
        _zero,
        offset=lambda x: x.value,
        construct="stop_gradient",
    )

define(
    "custom_branches",
    SCALAR,
    (SCALAR,),
    _branches_like_others,
    _sin_or_square,
    offset=lambda x: (x.value**2 if x.value > 0 else -x.value) - _sin_or_square(x).value,
    construct="custom_gradient with branches or a loop",
)
define(
    "custom_loop",
    VECTOR,
    (VECTOR,),
    _loop_like_another,
    _integral_of_squared_cos,
    offset=lambda x: np.tanh(x.value * np.tanh(x.value * x.value)) - _integral_of_squared_cos(x).value,
    construct="custom_gradient with branches or a loop",
)

# Prefixes
_PREFIXES = "associative_scan"


def _prefixes(combine: Callable[..., Any], elements: list[Any]) -> list[Any]:
    found = elements[:1]
    for element in elements[1:]:
        found.append(combine(found[-1], element))
    return found


def _prefix_products(x: Jet, factor: Jet) -> Jet:
    elements = [jets.linear(lambda u, k=k: u[k], x) for k in range(3)]
    found = _prefixes(lambda a, b: jets.multiply(jets.multiply(a, b), factor), elements)
    return jets.linear(lambda *xs: np.stack(xs), *found)


def _last_states(x: Jet, y: Jet) -> Jet:
    """Compute ``h = x[k] * h + y[k]`` from k = 2 down to 0, in each of two rows."""
    columns = [[jets.linear(lambda u, k=k: u[:, k], jet) for jet in (x, y)] for k in (2, 1, 0)]
    found = _prefixes(lambda a, b: (jets.multiply(a[0], b[0]), jets.add(jets.multiply(b[0], a[1]), b[1])), columns)
    return jets.linear(lambda *xs: np.stack(xs, 1), *[state for _, state in reversed(found)])


def _affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], b[0] * a[1] + b[1]


define(
    "prefix_products",
    VECTOR,
    (VECTOR, SCALAR),
    lambda x, c: ab.ops.associative_scan(lambda a, b: a * b * c, x),
    _prefix_products,
    construct=_PREFIXES,
)
define(
    "last_states",
    ROWS,
    (ROWS, ROWS),
    lambda x, y: ab.ops.associative_scan(_affine, (x, y), reverse=True, axis=1)[1],
    _last_states,
    construct=_PREFIXES,
)
