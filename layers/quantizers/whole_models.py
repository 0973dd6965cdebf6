"""Quantising all layers of a model that have a quantised form."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.calling import path_in
from ..core.layer import Layer
from .base_config import QuantizationConfig
from .configs import resolved_config
from .products import rounds_by_rows
from .quantizable import QuantizableLayer, check_not_quantized, check_whole

if TYPE_CHECKING:
    from .kernels import QuantizableKernel
    from .rounded_weights import Kernels


Filters = str | Sequence[str] | Callable[[Layer], bool] | None
INCLUDE = ("keras", "all")


def quantize_layers(
    model: Layer,
    mode: str | None,
    config: QuantizationConfig | str | None,
    filters: Filters,
    verbose: bool = False,
    include: str = "keras",
    calibration: Mapping[str, tuple[float, int]] | None = None,
    type_check: bool = True,
) -> dict[str, str]:
    """Quantise the layers inside of a model; see `Model.quantize`."""
    found = resolved_config(mode, config)
    check_filters(filters)
    if include not in INCLUDE:
        raise ValueError(
            f"quantize: include={include!r} must be 'keras', for the layers that Keras quantises, or 'all', for "
            "convolutions, recurrent cells and layers of your own, too."
        )
    if not model.built:
        raise ValueError(
            f"Cannot quantize a layer that isn't yet built. Layer '{model.name}' (of type '{type(model).__name__}') "
            "is not built yet. Call it on data, or build(input_shape), first."
        )
    check_whole(layer for layer in model._flatten_layers() if is_wanted(layer, filters))
    fixed_scales = _fixed_scales(model, calibration, found, filters, type_check)
    result: dict[str, str] = {}
    chosen: list[QuantizableKernel] = []
    with_weights = [layer for layer in model._flatten_layers() if layer._own_variables()]
    others = [layer for layer in with_weights if not isinstance(layer, QuantizableLayer) and is_wanted(layer, filters)]
    kernels = _roundable(model, others) if include == "all" else {}
    for layer in with_weights:
        result[path_in(model, layer)] = _outcome(layer, found, filters, type_check, chosen)
    for layer, names in kernels.items():
        result[path_in(model, layer)] = _round_other(layer, names, found)
    if chosen:
        from .by_data import quantize_by_data

        by_data: Any = found
        quantize_by_data(model, by_data, chosen)
        result |= {path_in(model, layer): layer.quantization_mode or "is in no block" for layer in chosen}
    for layer, scale in fixed_scales.items():
        layer.inputs_scale = scale
    if all(outcome != found.mode for outcome in result.values()):
        warnings.warn(
            f"quantize({found.mode!r}): no layer of model {model.name!r} was quantised: "
            + "; ".join(f"{path}: {reason}" for path, reason in result.items()),
            stacklevel=4,
        )
    if verbose:
        lines = [f"Quantization of model {model.name!r}, mode {found.mode!r}:"]
        print("\n".join([*lines, *[f"  {path}: {outcome}" for path, outcome in result.items()]]))
    return result


def check_filters(filters: Filters) -> None:
    """Refuse what is not a filter.

    Raises:
        ValueError: `filters` is neither a pattern, nor patterns, nor a function.
    """
    if filters is not None and not isinstance(filters, (str, list, tuple)) and not callable(filters):
        raise ValueError(
            "The `filters` argument must be a regex string, a list of regex strings, or a callable. Received: "
            f"{type(filters)}"
        )


def is_wanted(layer: Layer, filters: Filters) -> bool:
    """Test whether filters let a layer through: a pattern by its name, a function by the layer."""
    if filters is None:
        return True
    if isinstance(filters, str):
        return re.search(filters, layer.name) is not None
    if callable(filters):
        return bool(filters(layer))
    return any(re.search(pattern, layer.name) for pattern in filters)


def _outcome(
    layer: Layer, config: QuantizationConfig, filters: Filters, type_check: bool, chosen: list[QuantizableKernel]
) -> str:
    """Quantise a layer; its mode, or the reason why it stays as it is. What needs data is put into `chosen`."""
    if not is_wanted(layer, filters):
        return "left out by filters"
    check_not_quantized(layer, config.mode)
    if not isinstance(layer, QuantizableLayer) or config.mode not in layer.quantization_modes:
        return f"{type(layer).__name__} has no quantised form"
    if config.mode in ("gptq", "awq"):
        from .by_data import is_supported

        if not is_supported(layer):
            return "its kernel has terms that do not come first"
        chosen.append(layer)
        return config.mode
    try:
        layer.quantize(config.mode, type_check=type_check, config=config)
    except NotImplementedError as error:
        return str(error)
    return config.mode


def _roundable(model: Layer, layers: Sequence[Layer]) -> dict[Layer, Kernels]:
    """Return the weights to round of layers without a quantised form of their own; see `roundable_weights`."""
    from .rounded_weights import roundable_weights

    return roundable_weights(model, layers)


def _round_other(layer: Layer, kernels: Kernels, config: QuantizationConfig) -> str:
    """Quantise a layer without a quantised form of its own, by its weights; its mode, or why it stays as it is."""
    from .rounded_weights import round_weights

    if not kernels:
        return "multiplies no matrix by rows"
    if config.mode != "int8":
        return f"has int8 as its only quantised form, not {config.mode}"
    if getattr(layer, "lora_enabled", False):
        return "has adapters of low rank: call merge_lora() first"
    round_weights(layer, kernels, rounds_rows=config.activation_quantizer is not None)
    return "int8"


def _fixed_scales(
    model: Layer,
    calibration: Mapping[str, tuple[float, int]] | None,
    config: QuantizationConfig,
    filters: Filters,
    type_check: bool,
) -> dict[QuantizableLayer, float]:
    """Check fixed scales of activations before any layer is changed.

    Returns:
        By the layer the number by which its rows will be multiplied.

    Raises:
        ValueError: a layer will not round its inputs by one scale, or a scale makes no sense.
    """
    layers = {path_in(model, layer): layer for layer in model._flatten_layers() if layer._own_variables()}
    found: dict[QuantizableLayer, float] = {}
    for path, entry in (calibration or {}).items():
        layer = layers.get(path)
        reason = _why_no_fixed_scale(layer, config, filters, type_check)
        if reason or not isinstance(layer, QuantizableLayer):
            raise ValueError(
                f"quantize: calibration has a scale for {path!r}, which {reason}. Leave it out of calibration; scales "
                f"are for {', '.join(_taking_scales(layers, config, filters, type_check)) or 'no layer of this model'}."
            )
        found[layer] = 1 / _checked_scale(path, entry)
    return found


def _taking_scales(
    layers: Mapping[str, Layer], config: QuantizationConfig, filters: Filters, type_check: bool
) -> list[str]:
    return [path for path, layer in layers.items() if not _why_no_fixed_scale(layer, config, filters, type_check)]


def _why_no_fixed_scale(
    layer: Layer | None, config: QuantizationConfig, filters: Filters, type_check: bool
) -> str | None:
    """Return why a layer will not round its inputs by one fixed scale; None if it will."""
    if layer is None:
        return "is no layer with weights"
    if config.mode != "int8":
        return f"does not round its inputs in mode {config.mode!r}"
    if not isinstance(layer, QuantizableLayer) or not layer.takes_inputs_scale:
        return f"takes none: {type(layer).__name__} rounds each row by a scale of its own, or none at all"
    if not is_wanted(layer, filters):
        return "is left out by filters"
    if type_check and not layer._is_own_class():
        return f"is not quantised: {type(layer).__name__} may compute something else than the layer it derives from"
    if not rounds_by_rows(config.activation_quantizer):
        return f"has inputs that activation_quantizer={config.activation_quantizer!r} does not round by one scale"
    return None


def _checked_scale(path: str, entry: object) -> float:
    """Return the scale of ``(scale, zero_point)``."""
    if not isinstance(entry, (tuple, list)) or len(entry) != 2:
        raise ValueError(
            f"quantize: calibration[{path!r}] must be (scale, zero_point), as calibrate gives; got {entry!r}."
        )
    scale, zero_point = entry
    if int(zero_point) != 0:
        raise ValueError(f"quantize: calibration[{path!r}] has the zero point {zero_point}; int8 here has none.")
    if not 0 < float(scale) < math.inf:
        raise ValueError(f"quantize: calibration[{path!r}] has the scale {scale}; it must be above 0 and finite.")
    return float(scale)
