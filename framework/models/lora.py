"""Adapters of low rank (LoRA) for whole models, and their files in the form of PEFT.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021; huggingface.co/docs/peft.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.dtypes import is_floating
from ...engine.graph import Variable
from ...layers.attention.positions import ReversibleEmbedding
from ...layers.convolution.base import Convolution
from ...layers.core.layer_state import assign_values
from ...layers.quantizers.adapters import AdaptableLayer
from ...layers.quantizers.kernels import QuantizableKernel
from ...layers.quantizers.tables import QuantizableTable
from ...layers.quantizers.whole_models import Filters, check_filters, is_wanted
from ..saving.archive import SavedFileError, atomic_write
from ..saving.safetensors_files import read_safetensors, write_safetensors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..structures import Array
    from .model import Model

_CONFIG = "adapter_config.json"
_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_SHOWN = 12


def enable(model: Model, rank: int, *, alpha: float | None = None, filters: Filters = None) -> list[str]:
    """Give layers adapters, and freeze everything else.

    Args:
        model: a model that is built, quantised or not.
        rank: of the adapters.
        alpha: they are multiplied by ``alpha / rank``; by default by 1.
        filters: which layers: a pattern of their names, a list of patterns, or a function of the layer; by default all
            `Dense` and `EinsumDense` layers. `Embedding`, `Conv1D`, `Conv2D` and `Conv3D` can have adapters, too.

    Returns:
        The paths of the layers that have adapters now.

    Raises:
        ValueError: no layer is left by the filters, or one has adapters already.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")])
    >>> enable(model, 2)
    ['head']
    >>> sorted(weight.name for weight in model.trainable_weights)
    ['lora_kernel_a', 'lora_kernel_b']
    """
    check_filters(filters)
    kind = QuantizableKernel if filters is None else AdaptableLayer
    wanted: list[AdaptableLayer] = [
        layer for layer in model._flatten_layers() if isinstance(layer, kind) and is_wanted(layer, filters)
    ]
    if not wanted:
        raise ValueError(
            f"lora.enable: model {model.name!r} has no layer that can have adapters and passes the filters."
        )
    for layer in wanted:
        layer.enable_lora(rank, lora_alpha=alpha)
    factors = {id(factor) for layer in wanted for factor in layer._lora_factors()}
    for weight in model.weights:
        if id(weight) not in factors:
            weight.trainable = False
    model._forget_programs()
    model._renew_optimizer()
    return [layer.path for layer in wanted]


def merge(model: Model) -> list[str]:
    """Add adapters to the weights that they adapt, and take them away.

    Args:
        model: a model with adapters.

    Returns:
        The paths of the layers that had some.

    Raises:
        ValueError: none has.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")])
    >>> ab.lora.enable(model, 2)
    ['head']
    >>> ab.lora.merge(model)
    ['head']
    >>> [weight.name for weight in model.weights]
    ['kernel', 'bias']
    """
    found = _adapted(model)
    for layer in found:
        layer.merge_lora()
    model._forget_programs()
    model._renew_optimizer()
    return [layer.path for layer in found]


def save(model: Model, folder: str | os.PathLike[str]) -> None:
    """Save the adapters of a model, without the model: ``adapter_config.json`` and ``adapter_model.safetensors``.

    Args:
        model: a model with adapters. Those of public architectures are loaded by PEFT.
        folder: is made if it is not there.

    Raises:
        ValueError: the model has no adapters.

    >>> import anabranch as ab
    >>> import os
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")])
    >>> ab.lora.enable(model, 2)
    ['head']
    >>> ab.lora.save(model, "saved_adapters")
    >>> sorted(os.listdir("saved_adapters"))
    ['adapter_config.json', 'adapter_model.safetensors']
    """
    found = _adapted(model)
    modules = {id(layer): name for name, layer in _modules(model).items()}
    arrays: dict[str, Array] = {}
    for layer in found:
        for key, factor in zip(_keys(layer, modules[id(layer)]), layer._lora_factors(), strict=True):
            arrays[key] = np.ascontiguousarray(_as_in_file(layer, factor.numpy()))
    names = [modules[id(layer)] for layer in found]
    (rank, alpha), _ = Counter((layer.lora_rank, layer.lora_alpha) for layer in found).most_common(1)[0]
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": type(model).__name__ == "GPT2LMHeadModel",
        "target_modules": names,
        "rank_pattern": {n: one.lora_rank for n, one in zip(names, found, strict=True) if one.lora_rank != rank},
        "alpha_pattern": {n: one.lora_alpha for n, one in zip(names, found, strict=True) if one.lora_alpha != alpha},
        "ensure_weight_tying": any(_is_tied(layer) for layer in found),
        "inference_mode": True,
    }
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    write_safetensors(path / _FILE, arrays, {"format": "pt"})
    with atomic_write(path / _CONFIG) as stream:
        stream.write((json.dumps(config, indent=2) + "\n").encode("utf-8"))


def load(model: Model, folder: str | os.PathLike[str]) -> list[str]:
    """Give a model the adapters of a folder, and freeze everything else.

    Layers that the folder holds as a whole (``modules_to_save``, among them the heads of PEFT's classifiers) replace
    those of the model. They are part of it from then on: `save` writes adapters alone.

    Args:
        model: the model that they were trained for, built.
        folder: what `save` or PEFT wrote.

    Returns:
        The paths of the layers that have adapters now.

    Raises:
        FileNotFoundError: there are no such files.
        SavedFileError: (a ValueError) a file is damaged, of another kind, or does not fit; the message lists all
            differences. Then the model is as it was.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(3, name="head")])
    >>> ab.lora.enable(model, 2)
    ['head']
    >>> ab.lora.save(model, "adapters")
    >>> ab.lora.merge(model)
    ['head']
    >>> ab.lora.load(model, "adapters")
    ['head']
    """
    path = Path(folder)
    if not (path / _CONFIG).exists():
        raise FileNotFoundError(f"The folder {str(path)!r} has no {_CONFIG}, which says what adapters it holds.")
    try:
        config = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
        kind = config["peft_type"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SavedFileError(f"{str(path / _CONFIG)!r} is no config of adapters: {error!r}.") from None
    refused = {"peft_type": kind != "LORA", "bias": config.get("bias", "none") != "none"}
    refused |= {name: bool(config.get(name)) for name in ("use_dora", "use_rslora")}
    wrong = [name for name, is_refused in refused.items() if is_refused]
    if wrong:
        raise SavedFileError(
            f"{str(path)!r} has {wrong[0]}={config.get(wrong[0])!r}, which is not available here. Expected plain LoRA."
        )
    return _load_adapters(model, path, config, read_safetensors(path / _FILE))


def _load_adapters(model: Model, path: Path, config: Mapping[str, Any], arrays: Mapping[str, Array]) -> list[str]:
    """Compare, then enable and assign. PEFT writes whole tables, too, beside the adapters of embeddings."""
    modules, found, tables, differences, used = _modules(model), [], [], [], set()
    for name, layer in modules.items():
        keys = _keys(layer, name)
        if keys[0] not in arrays or keys[1] not in arrays:
            continue
        used.update(keys)
        a, b = arrays[keys[0]], arrays[keys[1]]
        rank = a.shape[0] if a.ndim else 0
        shapes = [_as_in_file(layer, np.empty(shape)).shape for shape in layer._lora_shapes(rank)]
        if [tuple(a.shape), tuple(b.shape)] != shapes:
            differences.append(
                f"{name}: shapes {a.shape} and {b.shape} in the file, expected {shapes[0]} and {shapes[1]}"
            )
        elif _is_tied(layer) and not config.get("ensure_weight_tying"):
            differences.append(
                f"{name}: the model's logits come from this table, too, and would get the adapter, which the file "
                f"(ensure_weight_tying=False) has for the embedding alone"
            )
        elif layer.lora_enabled and layer.lora_rank != rank:
            differences.append(f"{name}: rank {rank} in the file, {layer.lora_rank} in the model")
        else:
            found.append((layer, rank, _alpha(config, name), _from_file(layer, a, 0), _from_file(layer, b, 1)))
        table = f"{_PREFIX}{name}.base_layer.weight"
        if table in arrays and isinstance(layer, QuantizableTable) and layer.quantization_mode is None:
            used.add(table)
            tables.append((layer, np.array(arrays[table])))
            if tables[-1][1].shape != layer._embeddings.shape:
                differences.append(
                    f"{table}: shape {arrays[table].shape} in the file, {layer._embeddings.shape} in the model"
                )
    whole = _whole_weights(model, config.get("modules_to_save") or (), arrays)
    for key, (weight, array) in whole.items():
        if not is_floating(weight.dtype):
            differences.append(f"{key}: its layer is quantised; leave it out of quantize, by filters")
        elif array.shape != weight.shape:
            differences.append(f"{key}: shape {array.shape} as the model has it, expected {weight.shape}")
    differences += [f"unknown: {key}" for key in arrays if key not in used and key not in whole]
    if differences or not found:
        text = "".join(f"\n  {line}" for line in differences[:_SHOWN]) or " it holds no adapters."
        raise SavedFileError(f"{str(path)!r} does not fit model {model.name!r}:{text}")
    for layer, table in tables:
        assign_values(layer.name, [layer._embeddings], [table])
    for weight, array in whole.values():
        assign_values(model.name, [weight], [array])
    for layer, rank, alpha, a, b in found:
        if not layer.lora_enabled:
            layer.enable_lora(rank, lora_alpha=alpha)
        layer.lora_alpha = alpha
        assign_values(layer.name, layer._lora_factors(), [a, b])
        layer._weights_changed()
    factors = {id(factor) for layer, *_ in found for factor in layer._lora_factors()}
    for weight in model.weights:
        if id(weight) not in factors:
            weight.trainable = False
    model._forget_programs()
    model._renew_optimizer()
    return [layer.path for layer, *_ in found]


def _alpha(config: Mapping[str, Any], name: str) -> float:
    pattern = config.get("alpha_pattern") or {}
    return next(
        (value for key, value in pattern.items() if name == key or name.endswith(f".{key}")), config["lora_alpha"]
    )


def _adapted(model: Model) -> list[AdaptableLayer]:
    found = [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]
    if not found:
        raise ValueError(
            f"Model {model.name!r} has no adapters of low rank: enable them with ab.lora.enable(model, rank)."
        )
    return found


def _is_tied(layer: AdaptableLayer) -> bool:
    """Test whether the way back of an embedding takes its adapter, too."""
    return isinstance(layer, ReversibleEmbedding) and layer.tie_weights


def _modules(model: Model) -> dict[str, AdaptableLayer]:
    """Return the layers that may have adapters, by the names that files have for them.

    Models of public architectures have those of their tables; in others paths stand for modules.
    """
    table = getattr(model, "names", None)
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, AdaptableLayer)]
    if table is None:
        prefix = f"{model.name}/"
        return {layer.path.removeprefix(prefix).replace("/", "."): layer for layer in layers}
    from ..pretrained.names import weight_at

    found: dict[str, AdaptableLayer] = {}
    for name in table():
        place, _, attribute = name.place.rpartition(".")
        if attribute in ("_kernel", "_embeddings"):
            layer = weight_at(model, place)
            if isinstance(layer, AdaptableLayer):
                found[name.file.removesuffix(".weight")] = layer
    return found


def _whole_weights(
    model: Model, modules: Iterable[str], arrays: Mapping[str, Array]
) -> dict[str, tuple[Variable, Array]]:
    """Return the weights of a public architecture that a file holds as they are, and their values; by the file's names.

    Args:
        model: any model; others than those have none.
        modules: the names of the modules that they are in, or the last parts of these.
        arrays: the file.
    """
    from ..pretrained.names import weight_at

    table = getattr(model, "names", list)
    ends = tuple(f".{module}" for module in modules)
    found: dict[str, tuple[Variable, Array]] = {}
    for name in table():
        key = f"{_PREFIX}{name.file}"
        if key in arrays and f".{name.file.rpartition('.')[0]}".endswith(ends):
            found[key] = weight_at(model, name.place), name.from_file(np.asarray(arrays[key]))
    return found


def _keys(layer: AdaptableLayer, name: str) -> tuple[str, str]:
    """Return the names of the two factors in a file."""
    if layer.main_weight == "kernel":
        return f"{_PREFIX}{name}.lora_A.weight", f"{_PREFIX}{name}.lora_B.weight"
    return f"{_PREFIX}{name}.lora_embedding_A", f"{_PREFIX}{name}.lora_embedding_B"


def _as_in_file(layer: AdaptableLayer, factor: Array) -> Array:
    """Return a factor with its axes as PyTorch has them: the outputs first, of convolutions the windows last."""
    if not isinstance(layer, Convolution):
        return factor.T
    ordered = np.moveaxis(factor, (-1, -2), (0, 1))
    return ordered.reshape(*ordered.shape, *[1] * (layer.rank + 2 - ordered.ndim))


def _from_file(layer: AdaptableLayer, array: ArrayLike, place: int) -> Array:
    """Return the first or second factor, which `_as_in_file` ordered."""
    array = np.asarray(array)
    if not isinstance(layer, Convolution):
        return np.array(array.T)
    if place == 1:
        return np.array(array.reshape(array.shape[:2]).T)
    return np.array(np.moveaxis(array, (0, 1), (-1, -2)))


__all__ = ["enable", "load", "merge", "save"]
