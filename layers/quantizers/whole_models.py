"""Quantising all layers of a model that have a quantised form."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.layer import Layer
from .configs import QuantizationConfig, resolved_config
from .quantizable import QuantizableLayer, check_not_quantized

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
    result: dict[str, str] = {}
    chosen: list[QuantizableKernel] = []
    with_weights = [layer for layer in model._flatten_layers() if layer.own_variables()]
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
    _apply_calibration(model, calibration, result)
    if all(outcome != found.mode for outcome in result.values()):
        warnings.warn(
            f"quantize({found.mode!r}): no layer of model {model.name!r} was quantised: "
            + "; ".join(f"{path}: {reason}" for path, reason in result.items()),
            stacklevel=4,
        )
    return result


def path_in(model: Layer, layer: Layer) -> str:
    """The path of a layer inside of a model, without the model's own name, in which copies differ."""
    return layer.path.removeprefix(f"{model.name}/")


def check_filters(filters: Filters) -> None:
    """Refuse what is no filter.

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
    if not isinstance(layer, QuantizableLayer) or config.mode not in layer.modes:
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
    """The weights that can be rounded of layers without a quantised form of their own; see `roundable_weights`."""
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


def _apply_calibration(
    model: Layer, calibration: Mapping[str, tuple[float, int]] | None, result: Mapping[str, str]
) -> None:
    """Fix the scales of activations.

    Raises:
        ValueError: there is no int8 layer of a path.
    """
    layers = {path_in(model, layer): layer for layer in model._flatten_layers()}
    for path, (scale, zero_point) in (calibration or {}).items():
        if result.get(path) != "int8":
            raise ValueError(
                f"quantize: calibration has a scale for {path!r}, of which no layer is quantised to int8. The layers "
                f"are: {', '.join(name for name, outcome in result.items() if outcome == 'int8') or 'none'}."
            )
        if int(zero_point) != 0:
            raise ValueError(f"quantize: calibration[{path!r}] has the zero point {zero_point}; int8 here has none.")
        layers[path].inputs_scale = float(1 / scale)
