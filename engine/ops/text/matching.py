"""Questions about whole tensors: whether two are close, and which elements of one occur in another."""

from __future__ import annotations

from ..arrays.shaping import ravel
from ..arrays.sorting import searchsorted, sort
from ..base import Tensor, TensorLike, promote
from ..math.comparison import equal, logical_and, logical_not, not_equal
from ..math.floats import isclose
from ..math.reduction import all as all_true


def allclose(x1: TensorLike, x2: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Test whether ``|x1 - x2| <= atol + rtol * |x2|`` for all elements, as a scalar bool. See `isclose`.

    >>> import anabranch as ab
    >>> bool(ab.Session().run(ab.ops.allclose([1.0, 2.0], [1.0, 2.000001])))
    True
    """
    return all_true(isclose(x1, x2, rtol, atol, equal_nan))


def isin(x1: TensorLike, x2: TensorLike, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Test whether each element of `x1` occurs in `x2`, as bools of the shape of `x1`. A NaN occurs nowhere.

    Args:
        x1: elements to look for.
        x2: elements to look among, in any shape.
        assume_unique: whether no element comes twice; of no consequence.
        invert: whether to ask for the elements that do not occur.

    >>> import anabranch as ab
    >>> ab.ops.isin([0, 1, 2, 5], [0, 2])
    Tensor([ True, False,  True, False], dtype=bool)
    """
    wanted, among = promote(x1, x2)
    ordered = sort(ravel(among))
    occurs = not_equal(searchsorted(ordered, wanted, "left"), searchsorted(ordered, wanted, "right"))
    found = logical_and(occurs, equal(wanted, wanted))
    return logical_not(found) if invert else found


__all__ = ["allclose", "isin"]
