"""Keras's functions for training in float8, which is not computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike


REASON = (
    "float8 is not available: it serves to train on GPUs that compute in it. Use quantize('int8') or "
    "quantize('int4') for inference, or the dtype policy 'mixed_bfloat16' for training."
)


def compute_float8_scale(amax: TensorLike, scale: TensorLike, dtype_max: TensorLike, margin: int = 0) -> NoReturn:
    """Raise NotImplementedError: float8 is not computed here.

    >>> import anabranch as ab
    >>> ab.quantizers.compute_float8_scale(1.0, 1.0, 448.0)
    Traceback (most recent call last):
    NotImplementedError: compute_float8_scale: float8 is not available: it serves to train on GPUs ...
    """
    raise NotImplementedError(f"compute_float8_scale: {REASON}")


def compute_float8_amax_history(x: TensorLike, amax_history: TensorLike) -> NoReturn:
    """Raise NotImplementedError: float8 is not computed here.

    >>> import anabranch as ab
    >>> ab.quantizers.compute_float8_amax_history([1.0], [0.0])
    Traceback (most recent call last):
    NotImplementedError: compute_float8_amax_history: float8 is not available: it serves to train on GPUs ...
    """
    raise NotImplementedError(f"compute_float8_amax_history: {REASON}")


def quantize_and_dequantize(
    inputs: TensorLike, scale: TensorLike, quantized_dtype: str, compute_dtype: str
) -> NoReturn:
    """Raise NotImplementedError: float8 is not computed here.

    >>> import anabranch as ab
    >>> ab.quantizers.quantize_and_dequantize([1.0], 1.0, "float8_e4m3fn", "float32")
    Traceback (most recent call last):
    NotImplementedError: quantize_and_dequantize: float8 is not available: it serves to train on GPUs ...
    """
    raise NotImplementedError(f"quantize_and_dequantize: {REASON}")
