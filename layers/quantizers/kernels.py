"""`QuantizableKernel`: what Dense and EinsumDense share, a kernel that may be of int8, of int4 or of floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ..core.cut_weights import cut_of, product_in_parts
from ..core.input_spec import known_shape
from ..core.weight import Weight, WeightSpec
from .quantizable import Array, QuantizableLayer

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ...engine.ops.base import TensorLike
    from .base_config import QuantizationConfig


INT4_RANGE = (-8, 7)


class QuantizableKernel(QuantizableLayer):
    """Base of layers with a `kernel` that inputs are multiplied by.

    A class defines the shape of the kernel as a matrix, the place of the scales of int8, and the product.

    Attributes:
        kernel_shape: of the float kernel.
    """

    quantization_modes = ("int8", "int4", "gptq", "awq")
    untracked = QuantizableLayer.untracked | {"kernel"}  # what it comes to is no part of the layer
    kernel_shape: tuple[int, ...]
    bias: Weight | None
    _kernel: Any = None

    # --- what classes define --------------------------------------------------------------------------------

    def _reduced_axes(self) -> tuple[int, ...]:
        """Return the axes of the kernel that are summed over."""
        raise NotImplementedError

    def _scale_shape(self) -> tuple[int, ...]:
        """Return the shape in which files hold the scales of an int8 kernel, which has one for each output."""
        raise NotImplementedError

    def _product(self, inputs: Tensor, kernel: TensorLike) -> Tensor:
        """Return the product of floats."""
        raise NotImplementedError

    def _kernel_axes(self, rank: int) -> list[tuple[int | None, int | None]]:
        """Return for each axis of the kernel the same one of inputs of that rank, and of outputs; None if they lack it.

        Both are counted from the last one, -1.
        """
        raise NotImplementedError

    def _int8_product(self, inputs: Tensor) -> Tensor:
        """Return the product of the inputs, rounded, and the int8 kernel, divided by its scales."""
        raise NotImplementedError

    def _scales_along_kernel(self, scale: Tensor | Variable) -> Tensor | Variable:
        """Return the scales of an int8 kernel in the order of its axes, with 1 for those that are summed over."""
        raise NotImplementedError

    @property
    def takes_inputs_scale(self) -> bool:
        return True

    # --- building -------------------------------------------------------------------------------------------

    @property
    def kernel(self) -> Weight:
        """The kernel: a weight; with adapters, or of int4, the tensor that they come to."""
        kernel: Any = self._kernel
        if self.quantization_mode in ("gptq", "awq") or (self.quantization_mode is not None and self.lora_enabled):
            kernel = self._dequantized()
        elif self.quantization_mode == "int4":
            kernel = self._unpacked()
        if self.lora_enabled:
            a, b = self._lora_factors()
            kernel = ops.cast(kernel + ops.matmul(a, b) * self._lora_scale, self.compute_dtype)
        return kernel

    @kernel.setter
    def kernel(self, value: Weight) -> None:
        self._kernel = value

    def _make_weight(self, spec: WeightSpec) -> Weight:
        """Make a weight; the kernel as the dtype policy has it."""
        if spec.name != "kernel":
            return super()._make_weight(spec)
        mode = self.quantization_mode
        self.kernel_shape = tuple([size for size in spec.shape if size is not None])
        if mode is None or len(self.kernel_shape) != len(spec.shape):
            return super()._make_weight(spec)
        self._int4_block_size = self._block_size()
        self._build_quantized(mode)
        return self._kernel

    def _matrix_sizes(self) -> tuple[int, int]:
        """Return the kernel as a matrix: how many terms, and how many outputs."""
        reduced = self._reduced_axes()
        terms = math.prod(self.kernel_shape[axis] for axis in reduced)
        return terms, math.prod(self.kernel_shape) // terms if terms else 0

    def _build_quantized(self, mode: str) -> None:
        if mode == "int8":
            from .quantizer import AbsMaxQuantizer

            self.inputs_quantizer = self._activation_quantizer(AbsMaxQuantizer())
            self._kernel = self._frozen_weight("kernel", self.kernel_shape, "int8")
            self.kernel_scale = self._frozen_weight("kernel_scale", self._scale_shape(), initializer="ones")
        elif mode == "int4":
            self._build_int4()
        else:
            self._build_by_data(mode)

    def _build_int4(self) -> None:
        self.inputs_quantizer = self._activation_quantizer(None)
        terms, outputs = self._matrix_sizes()
        block = self._int4_block_size
        self._kernel = self._frozen_weight("kernel", (terms, (outputs + 1) // 2), "int8")
        scales = (outputs,) if block is None else (-(-terms // block), outputs)
        self.kernel_scale = self._frozen_weight("kernel_scale", scales, initializer="ones")
        self.kernel_zero, self.g_idx = None, None
        if block is not None:
            self.kernel_zero = self._frozen_weight("kernel_zero", scales, "int8")
            self.g_idx = self._frozen_weight("g_idx", (terms,), "float32")
            self.g_idx.assign(np.arange(terms) // block)

    def _build_by_data(self, mode: str) -> None:
        """Make the weights of GPTQ and AWQ: a scale and a zero point for each group of terms of an output."""
        terms, outputs = self._matrix_sizes()
        from ...engine.objects.quantized_policies import GPTQDTypePolicy

        policy = self._own_policy
        assert isinstance(policy, GPTQDTypePolicy)  # or of AWQ, which is one
        group, bits = policy.group_size, policy.weight_bits
        rows = (outputs + 1) // 2 if bits == 4 else outputs
        groups = 1 if group == -1 else -(-terms // group)
        self.quantized_kernel = self._frozen_weight("kernel", (rows, terms), "uint8")
        self.kernel_scale = self._frozen_weight("kernel_scale", (outputs, groups), initializer="ones")
        self.kernel_zero = self._frozen_weight("kernel_zero", (outputs, groups), "uint8")
        if mode == "awq":
            self.awq_scales = self._frozen_weight("awq_scales", (terms,), initializer="ones")
        self.g_idx = self._frozen_weight("g_idx", (terms,), "float32")

    def _saved_names(self, mode: str | None) -> list[str]:
        if mode == "gptq":
            return ["bias", "quantized_kernel", "kernel_scale", "kernel_zero", "g_idx"]
        if mode == "awq":
            return ["bias", "quantized_kernel", "kernel_scale", "kernel_zero", "awq_scales", "g_idx"]
        own = {"int8": ["kernel_scale"], "int4": ["kernel_scale", "kernel_zero", "g_idx"]}
        return ["_kernel", "bias", *own.get(mode or "", [])]

    # --- values ---------------------------------------------------------------------------------------------

    def _quantized_values(self, mode: str, config: QuantizationConfig) -> dict[str, Array]:
        if mode in ("gptq", "awq"):
            raise ValueError(
                f"Mode {mode!r} looks at what the model computes of data: call model.quantize({mode!r}, config=...)."
            )
        return self._round(mode, self._kernel.numpy(), config)

    def _round(self, mode: str, weight: Array, config: QuantizationConfig | None = None) -> dict[str, Array]:
        from .packing import packed_array
        from .rounding import abs_max_arrays, grouped_arrays

        quantizer = getattr(config or self.quantization_config, "weight_quantizer", None)
        if mode == "int8":
            axes = self._reduced_axes()
            if quantizer is not None:
                kernel, scale = [part.numpy() for part in quantizer(weight, to_numpy=True)]
            else:
                kernel, scale = abs_max_arrays(weight, axes)
            return {"_kernel": kernel, "kernel_scale": self._scales_as_saved(scale)}
        matrix = weight.reshape(self._matrix_sizes())
        if self._int4_block_size is None:
            if quantizer is not None:
                kernel, scale = [part.numpy() for part in quantizer(matrix, axis=0, to_numpy=True)]
            else:
                kernel, scale = abs_max_arrays(matrix, 0, INT4_RANGE)
            return {"_kernel": packed_array(kernel), "kernel_scale": scale.reshape(-1)}
        kernel, scale, zero = grouped_arrays(matrix, self._int4_block_size)
        return {"_kernel": packed_array(kernel), "kernel_scale": scale, "kernel_zero": zero}

    def _scales_as_saved(self, scale: Array) -> Array:
        """Return the scales of an int8 kernel, from the order of its axes."""
        return scale.reshape(self._scale_shape())

    def _float_weight(self) -> Array:
        if self.quantization_mode is None:
            return self._kernel.numpy()
        with ops_now():
            return np.asarray(self._dequantized(), "float32")

    def _lora_shapes(self, rank: int) -> tuple[Sequence[int], Sequence[int]]:
        return (*self.kernel_shape[:-1], rank), (rank, self.kernel_shape[-1])

    # --- computing ------------------------------------------------------------------------------------------

    def _unpacked(self) -> Tensor:
        """Return the integers of an int4 kernel, as a matrix."""
        from .packing import unpack_int4

        return unpack_int4(self._kernel, self._matrix_sizes()[1], axis=-1)

    def _dequantized(self) -> Tensor:
        """Return the quantised kernel as floats."""
        mode, dtype = self.quantization_mode, self.compute_dtype
        if mode == "int8":
            return ops.cast(self._kernel, dtype) / ops.cast(self._scales_along_kernel(self.kernel_scale), dtype)
        if mode == "int4":
            matrix = self._dequantized_int4()
        else:
            matrix = self._dequantized_by_data()
        return ops.reshape(ops.cast(matrix, dtype), self.kernel_shape)

    def _dequantized_int4(self) -> Tensor:
        from ...engine.ops.neural.int4 import dequantize_int4

        columns = self._matrix_sizes()[1]
        if self._int4_block_size is None:
            return ops.cast(self._unpacked(), self.variable_dtype) / self.kernel_scale
        assert self.kernel_zero is not None, "groups of values have zero points"
        assert self.g_idx is not None, "groups of values have their numbers"
        return dequantize_int4(self._kernel, self.kernel_scale, self.kernel_zero, self.g_idx, columns)

    def _dequantized_by_data(self) -> Tensor:
        from .packing import unpack_int4

        bits = getattr(self._own_policy, "weight_bits", 4)
        matrix = self.quantized_kernel
        if bits == 4:
            matrix = unpack_int4(matrix, self._matrix_sizes()[1], axis=0, dtype="uint8")
        assert self.kernel_zero is not None, "kernels that are rounded by data have zero points"
        assert self.g_idx is not None, "kernels that are rounded by data are in groups"
        groups = ops.cast(self.g_idx, "int32")
        scale = ops.take(self.kernel_scale, groups, axis=-1)
        zero = ops.take(ops.cast(self.kernel_zero, scale.dtype), groups, axis=-1)
        found = ops.transpose((ops.cast(matrix, scale.dtype) - zero) * scale)
        if self.quantization_mode == "awq":
            found = found / ops.expand_dims(self.awq_scales, -1)
        return found

    def _adapted(self, inputs: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return the product of the inputs and the product of two factors."""
        return ops.matmul(self._product(inputs, a), b)

    def _biased(self, inputs: Tensor) -> Tensor:
        """Return the product of the inputs and the kernel, what adapters add to it, and the bias."""
        cut = None if self.quantization_mode is not None else cut_of(self._kernel)
        if cut is not None:
            axes = self._kernel_axes(len(known_shape(inputs.shape)))
            outputs = product_in_parts(cut, inputs, self._kernel, self.bias, self._product, axes)
            return self._with_adapters(inputs, outputs)
        outputs = self._weighted(inputs)
        return outputs if self.bias is None else outputs + self.bias

    def _weighted(self, inputs: Tensor) -> Tensor:
        """Return the product of the inputs and the kernel, and what adapters add to it."""
        mode = self.quantization_mode
        if mode is None:
            outputs = self._product(inputs, self._kernel)
        elif mode == "int8" and self.inputs_quantizer is not None:
            outputs = self._int8_product(inputs)
        else:
            outputs = self._product(inputs, ops.stop_gradient(self._dequantized()))
        return self._with_adapters(inputs, outputs)

    def _with_adapters(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        if not self.lora_enabled:
            return outputs
        a, b = self._lora_factors()
        adapted = self._adapted(inputs, ops.cast(a, inputs.dtype), ops.cast(b, inputs.dtype))
        return ops.cast(outputs + adapted * self._lora_scale, self.compute_dtype)


def ops_now() -> AbstractContextManager[None]:
    """Compute at once, whatever graph is being built."""
    from ...engine.graph import eagerly

    return eagerly()
