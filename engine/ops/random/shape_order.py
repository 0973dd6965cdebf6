"""The shape argument of random functions, with an error for the orders of arguments that JAX and NumPy have."""

from __future__ import annotations

from typing import Any

from ...common.nest import is_integer
from ...graph import Tensor
from ..arrays.shape_arguments import ShapeLike
from ..arrays.shaping import resolve_shape
from .keys import SeedGenerator


def shape_before(name: str, shape: ShapeLike, *others: Any) -> tuple[tuple[int | None, ...], list[Tensor]]:
    """Return `resolve_shape` for the random function `name`, which takes the shape before `others`.

    Raises:
        TypeError: `shape` is a number and one of `others` looks like a shape: they are in another order.
    """
    if isinstance(shape, (int, float, SeedGenerator)):
        given: Any
        for given in others:
            if type(given) in (tuple, list) and given and all(map(is_integer, given)):
                raise TypeError(
                    f"random.{name} takes the shape first; got shape={shape!r}, and {given!r} behind it. JAX has a key "
                    f"before the shape, and NumPy the numbers: write random.{name}({tuple(given)}, ...), with seed= "
                    "for a seed. If these are numbers of the distribution, give the shape as a tuple."
                )
    return resolve_shape(shape)
