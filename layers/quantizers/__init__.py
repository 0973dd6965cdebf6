"""Quantisation of weights and activations, with the names and numbers of ``keras.quantizers``.

The file of a name is imported when the name is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.objects.on_demand import modules_by_name, on_demand
from ...engine.objects.registry import register_builtins_to_come

if TYPE_CHECKING:
    from .base_config import QuantizationConfig
    from .configs import (
        Float8QuantizationConfig,
        Int4QuantizationConfig,
        Int8QuantizationConfig,
        deserialize,
        get,
        serialize,
    )
    from .data_configs import AWQConfig, GPTQConfig
    from .fake_quantizing import fake_quant_with_min_max_vars
    from .float8 import compute_float8_amax_history, compute_float8_scale, quantize_and_dequantize
    from .observing import calibrate, report
    from .packing import pack_int4, unpack_int4
    from .quantizer import AbsMaxQuantizer, Quantizer
    from .rounding import abs_max_quantize, abs_max_quantize_grouped_with_zero_point

_MODULES = modules_by_name(
    __name__,
    {
        "base_config": "QuantizationConfig",
        "configs": "Float8QuantizationConfig Int4QuantizationConfig Int8QuantizationConfig deserialize get serialize",
        "data_configs": "AWQConfig GPTQConfig",
        "fake_quantizing": "fake_quant_with_min_max_vars",
        "float8": "compute_float8_amax_history compute_float8_scale quantize_and_dequantize",
        "observing": "calibrate report",
        "packing": "pack_int4 unpack_int4",
        "quantizer": "AbsMaxQuantizer Quantizer",
        "rounding": "abs_max_quantize abs_max_quantize_grouped_with_zero_point",
    },
)
_CLASSES = (
    "AWQConfig",
    "AbsMaxQuantizer",
    "Float8QuantizationConfig",
    "GPTQConfig",
    "Int4QuantizationConfig",
    "Int8QuantizationConfig",
    "QuantizationConfig",
    "Quantizer",
)
register_builtins_to_come("keras.quantizers", {name: _MODULES[name] for name in _CLASSES})
_INSTEAD = {
    "QuantizationReport": "It is what Keras's model.quantize returns. Here model.quantize returns a dict: by the path "
    "of each layer its mode, or why it stays as it is.",
}
__getattr__, __dir__ = on_demand(globals(), _MODULES, _INSTEAD)

__all__ = [
    "AWQConfig",
    "AbsMaxQuantizer",
    "Float8QuantizationConfig",
    "GPTQConfig",
    "Int4QuantizationConfig",
    "Int8QuantizationConfig",
    "QuantizationConfig",
    "Quantizer",
    "abs_max_quantize",
    "abs_max_quantize_grouped_with_zero_point",
    "calibrate",
    "compute_float8_amax_history",
    "compute_float8_scale",
    "deserialize",
    "fake_quant_with_min_max_vars",
    "get",
    "pack_int4",
    "quantize_and_dequantize",
    "report",
    "serialize",
    "unpack_int4",
]
