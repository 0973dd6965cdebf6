"""`ElementCount`: what `size` gives, with an error for those who call it as in PyTorch."""

from __future__ import annotations

from typing import Any, Never


class ElementCount(int):
    """The number of elements of a tensor or variable: an int, which can't be called."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Never:
        """Name what to use.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"size is the number of elements here, {int(self)}, as in NumPy, and no method as in PyTorch. Use x.shape, "
            "or x.shape[axis]; of sizes that are not known while a graph is built, ab.ops.shape(x)."
        )
