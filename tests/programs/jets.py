"""Exact derivatives by nilpotent numbers: the algebra over e1, e2, ... with ei * ei = 0.

A `Jet` holds an array for each product of some of the e's (a bit mask). Evaluating a program at ``x + e1*u + e2*v``
gives its value, its derivatives along u and v, and (under e1*e2) its second derivative along both: forward mode, which
shares nothing with the engine's reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


class Jet:
    """An array plus its nilpotent parts; parts that are missing are zero."""

    __slots__ = ("parts",)

    def __init__(self, parts: dict[int, Array]) -> None:
        self.parts = parts

    @property
    def value(self) -> Array:
        return self.parts[0]

    def part(self, mask: int) -> Array:
        return self.parts.get(mask, np.zeros_like(self.value))

    def along(self, bit: int) -> Jet:
        """Return what stands beside `bit`: the derivative along it, with all other parts."""
        found = {mask ^ bit: part for mask, part in self.parts.items() if mask & bit}
        return Jet({0: np.zeros_like(self.value), **found})

    def without(self, bit: int) -> Jet:
        return Jet({mask: part for mask, part in self.parts.items() if not mask & bit})

    def plus(self, bit: int, direction: Array) -> Jet:
        return Jet({**self.parts, bit: np.asarray(direction, "float64")})


def constant(value: Any) -> Jet:
    return Jet({0: np.asarray(value, "float64")})


def linear(function: Callable[..., Array], *jets: Jet) -> Jet:
    """A function linear in all its arguments together, such as a concatenation."""
    masks = {mask for jet in jets for mask in jet.parts}
    return Jet({mask: function(*[jet.part(mask) for jet in jets]) for mask in sorted(masks)})


def product(function: Callable[[Array, Array], Array], a: Jet, b: Jet) -> Jet:
    """A function linear in each of its two arguments, such as a matrix product."""
    parts: dict[int, Array] = {}
    for mask_a, part_a in a.parts.items():
        for mask_b, part_b in b.parts.items():
            if mask_a & mask_b:
                continue
            mask, value = mask_a | mask_b, function(part_a, part_b)
            parts[mask] = parts[mask] + value if mask in parts else value
    return Jet(parts)


def multiply(a: Jet, b: Jet) -> Jet:
    return product(np.multiply, a, b)


def add(a: Jet, b: Jet) -> Jet:
    return linear(np.add, a, b)


def smooth(function: Callable[[Array], Array], derivative: Callable[[Jet], Jet], x: Jet) -> Jet:
    """An elementwise function: ``f(u + e*v) = f(u) + e * f'(u) * v``, one e at a time."""
    highest = max(x.parts)
    if highest == 0:
        return Jet({0: function(x.value)})
    bit = 1 << (highest.bit_length() - 1)
    base = x.without(bit)
    slope = multiply(derivative(base), x.along(bit))
    lifted = {mask | bit: part for mask, part in slope.parts.items()}
    return Jet({**smooth(function, derivative, base).parts, **lifted})


def sin(x: Jet) -> Jet:
    return smooth(np.sin, cos, x)


def cos(x: Jet) -> Jet:
    return smooth(np.cos, lambda u: linear(np.negative, sin(u)), x)


def exp(x: Jet) -> Jet:
    return smooth(np.exp, exp, x)


def tanh(x: Jet) -> Jet:
    return smooth(np.tanh, lambda u: add(constant(1.0), linear(np.negative, multiply(tanh(u), tanh(u)))), x)


def reciprocal(x: Jet) -> Jet:
    return smooth(np.reciprocal, lambda u: linear(np.negative, multiply(reciprocal(u), reciprocal(u))), x)


def log(x: Jet) -> Jet:
    return smooth(np.log, reciprocal, x)


def rsqrt(x: Jet) -> Jet:
    return smooth(lambda u: u**-0.5, lambda u: multiply(constant(-0.5), multiply(rsqrt(u), reciprocal(u))), x)
