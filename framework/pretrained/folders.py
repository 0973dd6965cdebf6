"""Loading and saving models of public architectures: ``config.json`` beside safetensors files."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from ...engine.common.claims import PER_ARRAY, memory_budget
from ...engine.common.dtypes import is_floating
from ...engine.graph import as_dtype
from ...engine.objects import policies
from ...layers.core.layer_state import assign_values
from ..saving.archive import SavedFileError, atomic_write
from ..saving.shards import open_arrays, write_arrays
from ..structures import Array
from .base import Config, PretrainedModel
from .names import Name, differences, weight_at

_FILE = "model.safetensors"
# By the name that config.json gives under "architectures": the module here, and the class in it.
_ARCHITECTURES = {
    "BertForMaskedLM": ("bert", "BertForMaskedLM"),
    "BertForSequenceClassification": ("bert", "BertForSequenceClassification"),
    "BertModel": ("bert", "BertModel"),
    "GPT2LMHeadModel": ("gpt2", "GPT2LMHeadModel"),
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("llama", "MistralForCausalLM"),
    "Qwen2ForCausalLM": ("llama", "Qwen2ForCausalLM"),
    "ResNetForImageClassification": ("resnet", "ResNetForImageClassification"),
    "ViTForImageClassification": ("vit", "ViTForImageClassification"),
}
_SHOWN = 12
_SLACK = 1 << 24  # bytes that a model may take beside its weights


def architectures() -> list[str]:
    """Return the names of the architectures that there are, as ``config.json`` gives them.

    >>> "GPT2LMHeadModel" in architectures()
    True
    """
    return sorted(_ARCHITECTURES)


def build(config: Mapping[str, object], *, dtype: str = "float32") -> PretrainedModel:
    """Make a model with random weights.

    Args:
        config: as ``config.json`` holds it, "architectures" among it.
        dtype: of weights and computation, or the name of a dtype policy.

    Returns:
        The model, built. Language models take int tokens (batch, length), or ``{"tokens", "mask"}``; those of images
        (batch, height, width, 3). They give logits.

    Raises:
        ValueError: the architecture, or a setting of it, is not available.

    >>> config = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 9, "n_positions": 8, "n_embd": 6, "n_head": 2,
    ...           "n_layer": 1}
    >>> build(config)(np.array([[1, 2, 3]])).shape
    (1, 3, 9)
    """
    return _made(config, dtype, zeros=False)


def load(folder: str | os.PathLike[str], *, dtype: str = "float32", quantize: str | None = None) -> PretrainedModel:
    """Load a model from a folder.

    Args:
        folder: holds ``config.json``, and ``model.safetensors`` or ``model.safetensors.index.json`` with its shards.
            Nothing is downloaded, and nothing in it is run.
        dtype: of weights and computation, or the name of a dtype policy.
        quantize: "int8" or "int4": quantise the model when it is loaded.

    Returns:
        The model; see `build`.

    Raises:
        FileNotFoundError: there is no such folder, or a file is missing.
        SavedFileError: (a ValueError) a file is damaged, or does not hold the weights of the architecture; the message
            lists what is missing, and what is not known.
        ValueError: the architecture, or a setting of it, is not available.

    >>> import anabranch as ab
    >>> config = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 9, "n_positions": 8, "n_embd": 6, "n_head": 2,
    ...           "n_layer": 1}
    >>> ab.pretrained.save(ab.pretrained.build(config), "small_gpt2")
    >>> type(ab.pretrained.load("small_gpt2")).__name__
    'GPT2LMHeadModel'
    """
    path = Path(folder)
    config = _read_config(path)
    _check_no_pickle(path)
    arrays = open_arrays(path / _FILE)
    try:
        with _budget(arrays):
            model = _made(config, dtype, zeros=True, names=arrays)
    except MemoryError as error:
        raise SavedFileError(f"{str(path / 'config.json')!r}: the model can't be made: {error}") from error
    _assign(model, _with_prefix(model, arrays), path)
    if quantize is not None:
        model.quantize(quantize)
    return model


def save(model: PretrainedModel, folder: str | os.PathLike[str], *, max_shard_size: str | float | None = "5GB") -> None:
    """Save a model as other libraries load it.

    Args:
        model: what `load` or `build` gave.
        folder: is made if it is not there; files in it are replaced.
        max_shard_size: larger models are written as several files, with an index.

    Raises:
        TypeError: the model is of no public architecture.
        ValueError: it is quantised.

    >>> import anabranch as ab
    >>> import os
    >>> config = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 9, "n_positions": 8, "n_embd": 6, "n_head": 2,
    ...           "n_layer": 1}
    >>> ab.pretrained.save(ab.pretrained.build(config), "saved_gpt2")
    >>> sorted(os.listdir("saved_gpt2"))
    ['config.json', 'model.safetensors']
    """
    if not isinstance(model, PretrainedModel):
        raise TypeError(
            f"pretrained.save takes a model that pretrained.load or pretrained.build gave, got {model!r}. Other models "
            "are saved with model.save or model.save_weights."
        )
    quantised = [layer.path for layer in model._flatten_layers() if layer.quantization_mode is not None]
    if quantised:
        raise ValueError(
            f"pretrained.save: {quantised[0]!r} and {len(quantised) - 1} others are quantised, which the format has no "
            "names for. Save the model with model.save, or before it is quantised."
        )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    names, values = model.names(), _stored_values(model)
    arrays = {}
    for name in names:
        weight = weight_at(model, name.place)
        arrays[name.file] = name.to_file(np.asarray(values.get(id(weight), weight.stored_value())))
    write_arrays(path / _FILE, arrays, {"format": "pt"}, max_shard_size)
    with atomic_write(path / "config.json") as stream:
        stream.write((json.dumps(model.config, indent=2) + "\n").encode("utf-8"))


def _check_no_pickle(folder: Path) -> None:
    """Raise a `FileNotFoundError` where a folder has its weights in PyTorch's files only."""
    pickles = sorted(file.name for file in folder.glob("pytorch_model*.bin"))
    if pickles and not any((folder / name).exists() for name in (_FILE, f"{_FILE}.index.json")):
        raise FileNotFoundError(
            f"{str(folder)!r} has its weights in {pickles[0]!r}, a pickle, which is not read; expected {_FILE!r}. With "
            "transformers, model.save_pretrained(folder) writes it."
        )


def _stored_values(model: PretrainedModel) -> dict[int, Array]:
    """Return the values of weights that files hold, by the weights' ids: adapters are added to what they adapt."""
    found: dict[int, Array] = {}
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            variables, values = layer._stored_variables(), layer._stored_values()
            found.update({id(variable): value for variable, value in zip(variables, values, strict=True)})
    return found


def _made(
    config: Mapping[str, object], dtype: str, zeros: bool, names: Collection[str] | None = None
) -> PretrainedModel:
    """Make a model, for files with arrays of these names if there are any."""
    wanted = config.get("architectures") or [None]
    name = wanted[0] if isinstance(wanted, (list, tuple)) else wanted
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        raise ValueError(
            f"config: architectures={wanted!r} is not available. Expected one of {', '.join(architectures())}."
        )
    policy = policies.get(dtype)
    if policy.quantization_mode is not None or not is_floating(as_dtype(policy.variable_dtype)):
        raise ValueError(
            f"pretrained: dtype={dtype!r} must be a floating-point dtype, or a policy of such, such as 'bfloat16'. "
            "For weights of integers pass quantize='int8' to load, or call model.quantize."
        )
    module, own = _ARCHITECTURES[name]
    cls: type[PretrainedModel] = getattr(importlib.import_module(f".{module}", __package__), own)
    settings = dict(config) if names is None else cls.config_for(dict(config), names)
    try:
        model = cls(settings, zeros=zeros, dtype=dtype)
        model(model.example())
    except (TypeError, AttributeError, ArithmeticError, LookupError) as error:
        raise ValueError(
            f"config: no {name} can be made of it, a setting is of another type or size than expected: "
            f"{type(error).__name__}: {error}. Compare it with the config.json that came with the model."
        ) from error
    return model


def _budget(arrays: Mapping[str, Array]) -> AbstractContextManager[None]:
    """Let a model have the memory that the arrays of its files need: twice, in a dtype of 8 bytes."""
    elements = sum(math.prod(array.shape) for array in arrays.values())
    return memory_budget(
        2 * (8 * elements + PER_ARRAY * len(arrays)) + _SLACK,
        f"but all arrays of the files have {elements:,} elements. Take the config.json that belongs to the weights.",
    )


def _read_config(path: Path) -> Config:
    if not path.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(path)!r} (looked in {str(Path.cwd())!r}). Nothing is downloaded: fetch the "
            "model's files first, config.json and its safetensors files."
        )
    file = path / "config.json"
    if not file.exists():
        raise FileNotFoundError(f"The folder {str(path)!r} has no config.json, which says what its weights are.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SavedFileError(f"{str(file)!r} is no JSON: {error}.") from None
    if not isinstance(config, dict):
        raise SavedFileError(f"{str(file)!r} holds no JSON object.")
    return config


class _Prefixed(Mapping[str, Array]):
    """Arrays whose names get a prefix."""

    def __init__(self, arrays: Mapping[str, Array], prefix: str) -> None:
        self._arrays, self._prefix = arrays, prefix

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name.removeprefix(self._prefix)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._prefix + name for name in self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _with_prefix(model: PretrainedModel, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the arrays by the names of the table: files of a model without its head have no prefix."""
    if not model.prefix or any(name.startswith(model.prefix) for name in arrays):
        return arrays
    return _Prefixed(arrays, model.prefix)


def _assign(model: PretrainedModel, arrays: Mapping[str, Array], path: Path) -> None:
    """Compare, then give each weight its value."""
    names = model.names()
    shapes = {name.file: _shape_in_file(model, name) for name in names}

    def is_ignored(name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in model.ignored)

    found = differences(names, shapes, arrays, is_ignored)
    if found:
        more = f"\n  ... and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise SavedFileError(
            f"{str(path)!r} does not hold the weights of {type(model).__name__} as its config.json describes it:"
            + "".join(f"\n  {text}" for text in found[:_SHOWN])
            + more
        )
    for name in names:
        assign_values(model.name, [weight_at(model, name.place)], [name.from_file(arrays[name.file])])


def _shape_in_file(model: PretrainedModel, name: Name) -> tuple[int, ...]:
    shape = [int(size or 0) for size in weight_at(model, name.place).shape or ()]
    return tuple(shape) if name.axes is None else tuple([shape[axis] for axis in name.axes])
