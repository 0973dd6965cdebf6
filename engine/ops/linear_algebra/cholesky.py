"""The Cholesky factor; its gradient is that of I. Murray, "Differentiation of the Cholesky decomposition" (2016)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ..base import (
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    cast,
)
from ..math.complex_numbers import conjugated
from .matrices import Inverse, LowerHalf, adjoint, check_factorised, hermitian_part, matrix_product, widened
from .triangular import CholeskyGradient


@dataclass(frozen=True)
class Cholesky(Op):
    """The lower triangular L with L L^H = A for Hermitian, positive definite A (of which the Hermitian part counts)."""

    last_axes: ClassVar[int | tuple[int, ...] | None] = 2
    cost: ClassVar[Cost] = Cost.FACTORISATION

    def infer(self, *inputs: Any) -> TensorSpec:
        check_factorised(self, "cholesky", inputs[0])
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        return xp.linalg.cholesky(hermitian_part(x))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        lower = node.outputs[0]
        assert dy is not None
        if lower.dtype.kind != "c":
            return (apply(CholeskyGradient(), lower, dy),)
        inverse = apply(Inverse(), lower)
        middle = apply(LowerHalf(), matrix_product(conjugated(lower), conjugated(dy), transpose_a=True))
        da = matrix_product(matrix_product(conjugated(inverse), middle, transpose_a=True), inverse)
        return (conjugated((da + adjoint(da)) * 0.5),)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        lower = np.array([[2, 0, 0], [1, 1, 0], [3, -1, 2]], "float32")
        yield Sample(cls(), [lower @ lower.T], lower, (0,), label="matrix")
        yield Sample(cls(), [np.stack([np.eye(3, dtype="float32"), lower @ lower.T])], None, (0,), label="stack")
        yield Sample(cls(), [np.zeros((0, 2, 2), "float32")], np.zeros((0, 2, 2), "float32"), (0,), label="empty")
        lower = np.array([[2, 0, 0], [1 - 1j, 1, 0], [3j, -1 + 2j, 2]], "complex64")
        yield Sample(cls(), [lower @ lower.conj().T], lower, (0,), label="complex")


def cholesky(x: TensorLike, upper: bool = False) -> Tensor:
    """Return the Cholesky factors of Hermitian (if real, symmetric), positive definite matrices in the last two axes.

    Args:
        upper: the upper factor U with U^H U = A instead of the lower L with L L^H = A.

    Raises:
        ValueError: the matrices are not square.
        numpy.linalg.LinAlgError: (at run time) one of them is not positive definite.
    """
    (tensor,), dtype = widened(x)
    lower = cast(apply(Cholesky(), tensor), dtype)
    return adjoint(lower) if upper else lower


__all__ = ["cholesky"]
