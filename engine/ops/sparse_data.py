"""Find sparse tensors and matrices where dense tensors are expected, and say how they become dense."""

from __future__ import annotations


def refuse_sparse(value: object, message: str) -> None:
    """Raise an error with the remedy if `value` is sparse.

    Args:
        value: anything.
        message: the beginning of the error's text: what was expected and got.

    Raises:
        TypeError: it is a `SparseTensor`, or a matrix of SciPy's.
    """
    from .containers.sparse import SparseTensor  # above what converts values

    if isinstance(value, SparseTensor):
        raise TypeError(f"{message} Give ops.sparse.to_dense(x), or use the functions of ops.sparse, such as matmul.")
    if type(value).__module__.startswith("scipy.sparse"):
        raise TypeError(f"{message} Give x.toarray(). fit, evaluate and predict take it as it is.")
