"""Products of inputs and a kernel by subscripts, as products of matrices: of rounded rows and an int8 kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...engine import ops
from ...engine.autodiff import custom_gradient
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Tensor
from ..core.input_spec import known_shape
from .products import int8_product
from .quantizable import QuantizableLayer

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike


@dataclass(frozen=True)
class Subscripts:
    """The labels of an equation without ellipsis.

    Attributes:
        inputs, kernel, outputs: a letter for each axis.
    """

    inputs: str
    kernel: str
    outputs: str

    @classmethod
    def of(cls, equation: str) -> Subscripts:
        """Return the subscripts of ``"abc,cd->abd"``."""
        operands, outputs = equation.split("->")
        inputs, kernel = operands.split(",")
        return cls(inputs, kernel, outputs)

    @property
    def terms(self) -> str:
        """The labels that are summed over, in the inputs' order."""
        return "".join(label for label in self.inputs if label not in self.outputs)

    @property
    def columns(self) -> str:
        """The kernel's labels that are in the outputs, in their order."""
        return "".join(label for label in self.outputs if label in self.kernel)

    @property
    def is_product(self) -> bool:
        """Test whether it is a product of matrices: each label of the inputs is a row's, or a term's of the kernel."""
        rows = set(self.inputs) - set(self.terms)
        return set(self.terms) == set(self.kernel) - set(self.columns) and not rows & set(self.kernel)

    def scale_shape(self, kernel_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the kernel's scales beside the outputs, with 1 for axes that the kernel lacks."""
        sizes = dict(zip(self.kernel, kernel_shape, strict=True))
        return tuple(sizes.get(label, 1) for label in self.outputs)

    def scale_order(self) -> list[int]:
        """Return the kernel's axes that are in the outputs, in their order."""
        return [self.kernel.index(label) for label in self.columns]

    def scales_along_kernel(self, scale: Tensor | Variable) -> Tensor:
        """Return scales beside the outputs in the order of the kernel's axes, with 1 for those that are summed over."""
        kept = "".join(label for label in self.kernel if label in self.outputs)
        sizes = [known_shape(scale.shape)[self.outputs.index(label)] for label in self.columns]
        plain = ops.reshape(scale, sizes)
        turned = ops.transpose(plain, [self.columns.index(label) for label in kept])
        places = {label: int(size or 0) for label, size in zip(kept, turned.shape or (), strict=True)}
        return ops.reshape(turned, [places.get(label, 1) for label in self.kernel])


def int8_contraction(
    layer: QuantizableLayer, equation: str, inputs: TensorLike, kernel: Tensor | Variable, scale: Tensor | Variable
) -> Tensor:
    """Contract inputs, rounded as the layer's quantizer says, with an int8 kernel, and divide by the scales.

    Args:
        layer: see `int8_product`.
        equation: without ellipsis.
        inputs: floating.
        kernel: int8.
        scale: beside the outputs, see `Subscripts.scale_shape`.
    """
    names = Subscripts.of(equation)
    x = ops.convert_to_tensor(inputs)
    if not names.is_product:
        return _general(layer, names, x, kernel, scale)
    rows = "".join(label for label in names.inputs if label in names.outputs)
    sizes = dict(zip(names.kernel, known_shape(kernel.shape), strict=True))
    terms, columns = [math.prod(int(sizes[label] or 0) for label in labels) for labels in (names.terms, names.columns)]
    matrix = _ordered(kernel, names.kernel, names.terms + names.columns, (terms, columns))
    x = _ordered(x, names.inputs, rows + names.terms)
    if len(names.terms) != 1:
        x = ops.reshape(x, (*_sizes(x, len(rows)), terms))
    product = int8_product(layer, x, matrix, ops.reshape(scale, (columns,)))
    if len(names.columns) != 1:
        outer = _sizes(product, len(rows))
        product = ops.reshape(product, (*outer, *[int(sizes[label] or 0) for label in names.columns]))
    return _ordered(product, rows + names.columns, names.outputs)


def _ordered(tensor: Tensor | Variable, labels: str, wanted: str, shape: tuple[int, ...] | None = None) -> Any:
    """Return a tensor with its axes in another order, and then in another shape."""
    if labels != wanted:
        tensor = ops.transpose(tensor, [labels.index(label) for label in wanted])
    return tensor if shape is None or tensor.shape == shape else ops.reshape(tensor, shape)


def _sizes(tensor: Tensor | Variable, count: int) -> list[DimLike]:
    """Return the first sizes, as tensors where they are not known."""
    shape = ops.shape(tensor)
    return [shape[axis] for axis in range(count)]


def _general(
    layer: QuantizableLayer, names: Subscripts, x: Tensor, kernel: Tensor | Variable, scale: Tensor | Variable
) -> Tensor:
    """Contract where it is not a product of matrices, as with a kernel that differs by row: integers by einsum."""
    terms = [names.inputs.index(label) for label in names.terms]
    equation = f"{names.inputs},{names.kernel}->{names.outputs}"

    @custom_gradient
    def contraction(x: Tensor, kernel: Tensor, scale: Tensor) -> tuple[Tensor, Callable[..., object]]:
        rounded, inputs_scale = layer.inputs_quantizer(x, axis=tuple(terms))
        sums = ops.einsum(equation, ops.cast(rounded, "int32"), ops.cast(kernel, "int32"))
        # The scales, summed axes taken away, beside the outputs.
        kept = [label for label in names.inputs if label in names.outputs]
        plain = ops.squeeze(inputs_scale, axis=tuple(terms)) if terms else inputs_scale
        order = [kept.index(label) for label in names.outputs if label in kept]
        turned = ops.transpose(plain, order)
        for axis, label in enumerate(names.outputs):
            if label not in kept:
                turned = ops.expand_dims(turned, axis)
        result = ops.cast(sums, x.dtype) / ops.cast(turned * scale, x.dtype)

        def gradient(dy: Tensor) -> tuple[Tensor, None, None]:
            weights = ops.cast(kernel, x.dtype) / ops.cast(names.scales_along_kernel(scale), x.dtype)
            return ops.einsum(f"{names.outputs},{names.kernel}->{names.inputs}", dy, weights), None, None

        return result, gradient

    return contraction(x, ops.convert_to_tensor(kernel), ops.convert_to_tensor(scale))
