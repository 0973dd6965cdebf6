"""`EinsumDense`: any product of the inputs and a kernel that subscripts can say."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Tensor
from ...engine.objects import activations, constraints, initializers, regularizers
from ...engine.objects.arguments import check_optional_numbers, listed, refused
from ...engine.objects.identifiers import ActivationLike, ConstraintLike, InitializerLike, RegularizerLike
from ...engine.ops.base import TensorLike
from ..quantizers.contractions import Subscripts, int8_contraction
from ..quantizers.kernels import QuantizableKernel
from .input_spec import InputSpec, known_shape
from .layer_config import config_from_signature
from .weight import Weight, WeightSpec

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ..quantizers.base_config import QuantizationConfig
    from .options import LayerOptions

Sizes = tuple[int | None, ...]

_EQUATION = re.compile(r"(\.\.\.)?([a-zA-Z]+)(\.\.\.)?,([a-zA-Z]+)->(\.\.\.)?([a-zA-Z]+)(\.\.\.)?")


@config_from_signature(
    output_shape="partial_output_shape", activity_regularizer="activity_regularizer", gptq_unpacked_column_size=""
)
class EinsumDense(QuantizableKernel):
    """``activation(einsum(equation, inputs, kernel) + bias)``.

    Args:
        equation: subscripts of the inputs, the kernel and the outputs: ``"abc,cd->abd"``. An ellipsis on the left of
            inputs and outputs, or on the right, stands for axes that the kernel does not see.
        output_shape: the outputs' shape without the batch and without what an ellipsis stands for; an int for one
            axis; None in it for sizes that are the input's.
        activation: a name or function; None for none.
        bias_axes: the subscripts of the outputs that the bias has; None for no bias.
        kernel_initializer, bias_initializer: first values.
        kernel_regularizer, bias_regularizer: penalties.
        kernel_constraint, bias_constraint: projections after each update.
        lora_rank, lora_alpha, quantization_config: see `enable_lora` and `quantize`.

    Weights: ``kernel``, of the sizes that its subscripts say, and ``bias``.

    Raises:
        ValueError: the equation is malformed, or at the first call it does not fit the input's shape.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> layer = ab.layers.EinsumDense("abc,cde->abde", output_shape=(None, 2, 4), bias_axes="de")
    >>> layer(np.ones((5, 3, 8), "float32")).shape
    (5, 3, 2, 4)
    >>> layer.kernel.shape, layer.bias.shape
    ((8, 2, 4), (2, 4))
    """

    bias: Weight | None

    def __init__(
        self,
        equation: str,
        output_shape: int | Sequence[int | None],
        activation: ActivationLike = None,
        bias_axes: str | None = None,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        kernel_constraint: ConstraintLike = None,
        bias_constraint: ConstraintLike = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        gptq_unpacked_column_size: int | None = None,
        quantization_config: QuantizationConfig | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(quantization_config=quantization_config, lora_rank=lora_rank, lora_alpha=lora_alpha, **kwargs)
        check_optional_numbers("EinsumDense", gptq_unpacked_column_size=gptq_unpacked_column_size)
        if not isinstance(equation, str):
            raise refused("EinsumDense", "equation", equation, "a string")
        _parse(equation)
        self.equation = equation
        self.partial_output_shape: Sizes = tuple(
            [output_shape]
            if isinstance(output_shape, int)
            else listed("EinsumDense", "output_shape", output_shape, "a size or several")
        )
        self.activation = activations.get(activation)
        self.bias_axes = bias_axes
        self.kernel_initializer = initializers.get(kernel_initializer, "kernel_initializer")
        self.bias_initializer = initializers.get(bias_initializer, "bias_initializer")
        self.kernel_regularizer = regularizers.get(kernel_regularizer, "kernel_regularizer")
        self.bias_regularizer = regularizers.get(bias_regularizer, "bias_regularizer")
        self.kernel_constraint = constraints.get(kernel_constraint, "kernel_constraint")
        self.bias_constraint = constraints.get(bias_constraint, "bias_constraint")

    def weight_specs(self, input_shape: Sequence[int | None]) -> Sequence[WeightSpec]:
        try:
            shapes = _WeightShapes.of(self.equation, self.bias_axes, tuple(input_shape), self.partial_output_shape)
        except ValueError as error:
            raise ValueError(f"Layer {self.name!r} (EinsumDense): {error}") from None
        return (
            WeightSpec("kernel", shapes.kernel, shapes.kernel_initializer(self.kernel_initializer)),
            WeightSpec("bias", shapes.bias or (), present=shapes.bias is not None),
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        specs = self.weight_specs(input_shape)
        self.input_spec = InputSpec(ndim=len(input_shape))
        self.build_weights(specs)
        self._enable_given_lora()

    @property
    def _subscripts(self) -> Subscripts:
        return Subscripts.of(_without_ellipsis(self.equation, self.input_spec.ndim))

    def _reduced_axes(self) -> tuple[int, ...]:
        names = self._subscripts
        return tuple(axis for axis, label in enumerate(names.kernel) if label not in names.outputs)

    @property
    def takes_inputs_scale(self) -> bool:
        return self.built and self._subscripts.is_product

    def _scale_shape(self) -> tuple[int, ...]:
        return self._subscripts.scale_shape(self.kernel_shape)

    def _scales_along_kernel(self, scale: Tensor | Variable) -> Tensor | Variable:
        return self._subscripts.scales_along_kernel(scale)

    def _scales_as_saved(self, scale: np.ndarray) -> np.ndarray:
        names = self._subscripts
        others = [axis for axis in range(scale.ndim) if axis not in names.scale_order()]
        return scale.transpose(*others, *names.scale_order()).reshape(self._scale_shape())

    def _product(self, inputs: Tensor, kernel: TensorLike) -> Tensor:
        return ops.einsum(_without_ellipsis(self.equation, len(known_shape(inputs.shape))), inputs, kernel)

    def _kernel_axes(self, rank: int) -> list[tuple[int | None, int | None]]:
        names = Subscripts.of(_without_ellipsis(self.equation, rank))
        return [(_from_the_end(names.inputs, label), _from_the_end(names.outputs, label)) for label in names.kernel]

    def _int8_product(self, inputs: Tensor) -> Tensor:
        equation = _without_ellipsis(self.equation, len(known_shape(inputs.shape)))
        return int8_contraction(self, equation, inputs, self._kernel, self.kernel_scale)

    def _adapted(self, inputs: Tensor, a: Tensor, b: Tensor) -> Tensor:
        names = self._subscripts
        if names.kernel[-1] == names.outputs[-1]:
            return super()._adapted(inputs, a, b)
        return self._product(inputs, ops.matmul(a, b))

    def call(self, inputs: Tensor) -> Tensor:
        outputs = self._biased(inputs)
        return outputs if self.activation is None else self.activation(outputs)


def _from_the_end(labels: str, label: str) -> int | None:
    return labels.index(label) - len(labels) if label in labels else None


@dataclass(frozen=True)
class _Equation:
    """An equation taken apart: the subscripts, and on which side of them an ellipsis stands."""

    inputs: str
    kernel: str
    outputs: str
    left: bool
    right: bool


def _parse(equation: str) -> _Equation:
    """Return the parts of an equation.

    Raises:
        ValueError: it has none of the three forms.
    """
    found = _EQUATION.fullmatch(equation.replace(" ", ""))
    if found is not None:
        left, inputs, right, kernel, left_out, outputs, right_out = found.groups()
        if left == left_out and right == right_out and not (left and right):
            return _Equation(inputs, kernel, outputs, left is not None, right is not None)
    raise ValueError(
        f"EinsumDense: equation {equation!r} can't be read. Expected 'X,Y->Z', '...X,Y->...Z' or 'X...,Y->Z...', with "
        "letters for X, Y and Z, such as 'abc,cd->abd'."
    )


def _without_ellipsis(equation: str, rank: int) -> str:
    """Return the equation for inputs of that rank, with letters in the place of the ellipsis."""
    parts = _parse(equation)
    taken = {*parts.inputs, *parts.kernel, *parts.outputs}
    free = [letter for letter in string.ascii_letters if letter not in taken]
    elided = "".join(free[: rank - len(parts.inputs)])
    left, right = (elided, "") if parts.left else ("", elided)
    return f"{left}{parts.inputs}{right},{parts.kernel}->{left}{parts.outputs}{right}"


@dataclass(frozen=True)
class _WeightShapes:
    """Shapes of the weights, by an equation and an input's shape."""

    kernel: Sizes
    bias: Sizes | None
    input_axes: tuple[int, ...]
    output_axes: tuple[int, ...]

    @classmethod
    def of(cls, equation: str, bias_axes: str | None, input_shape: Sizes, output_shape: Sizes) -> _WeightShapes:
        """Return the shapes.

        Raises:
            ValueError: equation, input and output do not fit together.
        """
        parts = _parse(equation)
        elided = len(input_shape) - len(parts.inputs)
        if elided < 0 or (elided > 0 and not (parts.left or parts.right)):
            raise ValueError(
                f"the inputs of equation {equation!r} have {len(parts.inputs)} axes, got input shape {input_shape}."
            )
        seen = input_shape[elided:] if parts.left else input_shape[: len(parts.inputs)]
        inputs = dict(zip(parts.inputs, seen, strict=True))
        outputs = _output_sizes(parts, equation, inputs, input_shape, output_shape, elided)
        unknown = [label for label in parts.kernel if label not in inputs and label not in outputs]
        if unknown:
            raise ValueError(
                f"subscript {unknown[0]!r} of the kernel in equation {equation!r} is neither one of the inputs nor one "
                "of the outputs, so that its size is not known."
            )
        return cls(
            tuple(outputs[label] if label in outputs else inputs[label] for label in parts.kernel),
            _bias_shape(parts, equation, bias_axes, outputs, elided),
            tuple(axis for axis, label in enumerate(parts.kernel) if label not in outputs),
            tuple(axis for axis, label in enumerate(parts.kernel) if label in outputs),
        )

    def kernel_initializer(self, initializer: InitializerLike) -> InitializerLike:
        """Return `initializer`, with the numbers of inputs and outputs that this kernel has."""
        if not isinstance(initializer, initializers.VarianceScaling) or initializer.input_axes is not None:
            return initializer
        order = (*self.input_axes, *self.output_axes)

        def draw(shape: Sequence[int], dtype: DTypeLike = None) -> np.ndarray:
            sizes = [math.prod(shape[axis] for axis in axes) for axes in (self.input_axes, self.output_axes)]
            matrix = np.asarray(initializer(tuple(sizes), dtype=dtype))
            return matrix.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))

        return draw


def _output_sizes(
    parts: _Equation, equation: str, inputs: dict[str, int | None], input_shape: Sizes, output_shape: Sizes, elided: int
) -> dict[str, int | None]:
    """Return the size of each subscript of the outputs."""
    given = output_shape if parts.left and elided > 0 else (input_shape[0], *output_shape)
    if len(given) != len(parts.outputs):
        raise ValueError(
            f"output_shape={output_shape} does not fit the outputs of equation {equation!r}: expected "
            f"{len(parts.outputs) - len(given) + len(output_shape)} sizes, without the batch and the ellipsis."
        )
    sizes = dict(zip(parts.outputs, given, strict=True))
    for label, size in sizes.items():
        if label not in inputs and label not in parts.kernel:
            raise ValueError(
                f"subscript {label!r} of the outputs in equation {equation!r} is neither one of the inputs nor one of "
                "the kernel."
            )
        if label in inputs and size is None:
            sizes[label] = inputs[label]
        elif label in inputs and inputs[label] not in (None, size):
            raise ValueError(
                f"subscript {label!r} of equation {equation!r} has size {inputs[label]} in the inputs, but {size} in "
                f"output_shape={output_shape}."
            )
    return sizes


def _bias_shape(
    parts: _Equation, equation: str, bias_axes: str | None, outputs: dict[str, int | None], elided: int
) -> Sizes | None:
    """Return the shape from the first axis of the bias on: 1 for the axes that it lacks."""
    if bias_axes is None:
        return None
    for label in bias_axes:
        if label not in parts.outputs:
            raise ValueError(f"bias_axes={bias_axes!r} has {label!r}, which the outputs of equation {equation!r} lack.")
    first = min((parts.outputs.index(label) for label in bias_axes), default=len(parts.outputs))
    sizes = [outputs[label] if label in bias_axes else 1 for label in parts.outputs[first:]]
    return (*sizes, *([1] * elided if parts.right else []))
