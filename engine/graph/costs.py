"""Kinds of ops by how much they compute, which `Op.cost` names; `passes/framework/estimates.py` has the formulas."""

from __future__ import annotations

from enum import Enum


class Cost(Enum):
    """The floating-point operations that a run takes."""

    NOTHING = "none: the op names a value that is there"
    ELEMENTS = "one for each element that is read or made"
    DEAR_ELEMENTS = "some 20 for each element that is read or made"
    PRODUCT = "twice the product of three sizes, each of which is one of two operands and the result"
    CONVOLUTION = "for each element of the images, the filters' elements of one channel"
    FACTORISATION = "the cube of the size of a matrix"


PRODUCTS = (Cost.PRODUCT, Cost.CONVOLUTION, Cost.FACTORISATION)  # of which BLAS computes some, on several cores

__all__ = ["PRODUCTS", "Cost"]
