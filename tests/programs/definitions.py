"""Primitives of random programs, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import jets
from .jets import Jet
from .syntax import Type

_CLOSEST = 1e-4  # values nearer than this to a kink or to a tie decide by rounding
_LARGEST = 1e6


class UnsuitableError(Exception):
    """The program's value or derivative is no matter of arithmetic here: a tie, a kink or an overflow."""


@dataclass(frozen=True)
class Primitive:
    """`build` works on tensors (and TensorArrays), `evaluate` on jets, ints, bools and tuples of jets.

    Attributes:
        offset: what is added to the value of `evaluate` but has no derivative: the difference between a function and
            the one from whose derivatives its own are taken.
        construct: the line of the coverage table in which it counts.
    """

    result: Type
    arguments: tuple[Type, ...]
    build: Callable[..., Any]
    evaluate: Callable[..., Any]
    offset: Callable[..., Any] | None = None
    construct: str | None = None


PRIMITIVES: dict[str, Primitive] = {}


def define(
    name: str,
    result: Type,
    arguments: tuple[Type, ...],
    build: Callable[..., Any],
    evaluate: Callable[..., Any],
    **more: Any,
) -> None:
    PRIMITIVES[name] = Primitive(result, arguments, build, evaluate, **more)


def above(x: Jet, bound: Any) -> Any:
    """``x > bound``, away from ties."""
    if np.any(np.abs(x.value - bound) < _CLOSEST):
        raise UnsuitableError("tie")
    return x.value > bound


def bounded(x: Jet) -> Jet:
    """`x`, if it is not too large for comparisons to mean something."""
    if not all(np.all(np.abs(part) < _LARGEST) for part in x.parts.values()):
        raise UnsuitableError("overflow")
    return x


def linear(function: Callable[..., Any]) -> Callable[..., Jet]:
    return lambda *arguments: jets.linear(function, *arguments)
