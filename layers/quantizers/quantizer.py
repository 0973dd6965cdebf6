"""Quantizers: how numbers are rounded, as objects that configs name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

from ...engine.objects.arguments import check_numbers, refused
from .rounding import EPSILON, abs_max_quantize

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ...engine.ops.base import TensorLike


class Quantizer:
    """Base: a function from numbers to rounded ones.

    Args:
        output_dtype: of what it gives.

    >>> import anabranch as ab
    >>> class Signs(ab.quantizers.Quantizer):
    ...     def __call__(self, x):
    ...         return ab.ops.cast(ab.ops.sign(x), self.output_dtype)
    >>> Signs()([-0.5, 2.0])
    Tensor([-1,  1], dtype=int8)
    """

    def __init__(self, output_dtype: str = "int8") -> None:
        self.output_dtype = output_dtype

    def __call__(self, x: TensorLike) -> Any:
        """Return `x` as it is; subclasses round it."""
        return x

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor; subclasses define it."""
        raise NotImplementedError(f"{self} does not implement get_config()")

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a quantizer from what `get_config` gave."""
        return cls(**config)


class AbsMaxQuantizer(Quantizer):
    """Round by a scale that takes the largest absolute value to the end of a range; see `abs_max_quantize`.

    Args:
        axis: the axes that share a scale, where a call names none.
        value_range: the smallest and the largest integer.
        epsilon: is added to the largest value.
        output_dtype: of the integers.

    Raises:
        ValueError: int8 can't hold the range, or an argument is no number.

    >>> import anabranch as ab
    >>> quantized, scale = ab.quantizers.AbsMaxQuantizer()([[0.4, -1.0]])
    >>> quantized.numpy().tolist()
    [[51, -127]]
    """

    def __init__(
        self,
        axis: int | Sequence[int] | None = None,
        value_range: Sequence[int] = (-127, 127),
        epsilon: float = EPSILON,
        output_dtype: str = "int8",
    ) -> None:
        super().__init__(output_dtype)
        self.axis = (axis,) if isinstance(axis, int) else None if axis is None else tuple(axis)
        numbers = tuple(value_range) if isinstance(value_range, Iterable) else ()
        if len(numbers) != 2 or not all(isinstance(each, Real) for each in numbers):
            raise refused(type(self).__name__, "value_range", value_range, "two numbers")
        check_numbers(type(self).__name__, epsilon=epsilon)
        low, high = numbers
        self.value_range = (low, high)
        self.epsilon = epsilon
        if output_dtype == "int8" and not (low >= -128 and high <= 127):
            raise ValueError(
                "Quantizer with output_dtype='int8' requires value_range to be within the interval [-128, 127]. "
                f"Received: value_range={value_range}"
            )

    def __call__(
        self, x: TensorLike, axis: int | Sequence[int] | None = None, to_numpy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the integers and their scales.

        Args:
            x: floating.
            axis: the axes that share a scale; by default those of the constructor, else the last one.
            to_numpy: see `abs_max_quantize`.
        """
        axes = self.axis if axis is None else axis
        return abs_max_quantize(
            x, -1 if axes is None else axes, self.value_range, self.output_dtype, self.epsilon, to_numpy
        )

    def get_config(self) -> dict[str, Any]:
        config: dict[str, object] = {
            "value_range": self.value_range,
            "epsilon": self.epsilon,
            "output_dtype": self.output_dtype,
        }
        return config if self.axis is None else {**config, "axis": self.axis}
