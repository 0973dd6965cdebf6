"""Small helpers around training: seeds, sessions, one-hot labels, padding."""

from __future__ import annotations

import collections.abc
import random
from typing import TYPE_CHECKING, overload

import numpy as np

from ..engine import ops
from ..engine.common.dtypes import DTypeLike, as_dtype, name_of
from ..engine.common.names_elsewhere import UTILS_MODULE
from ..engine.graph import Symbol, Tensor, Value
from ..engine.graph.graph import reset_default_graph
from ..engine.objects.floats import floatx
from ..engine.objects.names import reset_names
from ..engine.objects.on_demand import on_demand
from ..engine.ops.base import TensorLike
from ..engine.ops.random.keys import set_global_seed
from . import bounding_boxes
from .callbacks.progbar import Progbar
from .data.adapters import pack_x_y_sample_weight, unpack_x_y_sample_weight
from .data.audio_files import audio_dataset_from_directory
from .data.datasets import (
    Dataset,
    image_dataset_from_directory,
    text_dataset_from_directory,
    timeseries_dataset_from_array,
)
from .data.get_file import get_file
from .data.images import array_to_img, img_to_array, load_img, save_img
from .data.prefetch import Prefetch
from .data.py_dataset import PyDataset
from .data.splitting import split_dataset
from .feature_space import FeatureSpace
from .models.layer_graph import get_source_inputs
from .models.visualization import model_to_dot, plot_model
from .saving import legacy_objects as legacy
from .saving.api import (
    CustomObjectScope,
    custom_object_scope,
    deserialize_keras_object,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
    serialize_keras_object,
)
from .structures import Array
from .training.limits import disable_interactive_logging, enable_interactive_logging, is_interactive_logging_enabled
from .training.named_values import Config

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


Sequence = PyDataset  # its name before Keras 3, which Keras keeps, too


def set_random_seed(seed: int) -> None:
    """Seed everything random: Python's `random`, NumPy's global generator and the engine's.

    Weights that are drawn, dropout and the order of shuffled data then repeat exactly.

    Raises:
        ValueError: the seed is not an integer.
    """
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
        raise ValueError(f"set_random_seed expects an integer, got {seed!r}.")
    random.seed(int(seed))
    np.random.seed(int(seed) % 2**32)  # noqa: NPY002 - users' own code may draw from it
    set_global_seed(int(seed))


def clear_session(free_memory: bool = True) -> None:
    """Start afresh: default names count from the beginning, and the graph that models are built in is let go.

    Models that exist go on working; `Input` tensors made before can't be mixed with new ones.

    Args:
        free_memory: collect garbage at once.
    """
    reset_names()
    reset_default_graph()
    if free_memory:
        import gc

        gc.collect()


@overload
def to_categorical(x: Tensor, num_classes: int | None = None) -> Tensor: ...


@overload
def to_categorical(x: ArrayLike, num_classes: int | None = None) -> Array: ...


def to_categorical(x: TensorLike, num_classes: int | None = None) -> Tensor | Array:
    """Return integer labels as one-hot rows.

    Args:
        x: labels ``[...]`` or ``[..., 1]``.
        num_classes: the number of columns; by default the largest label + 1.

    Returns:
        float32 ``[..., num_classes]``: a NumPy array, or a tensor if `x` is one.

    Raises:
        ValueError: a label is negative or not below `num_classes`.

    >>> to_categorical([0, 2])
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    if isinstance(x, Value):
        return ops.convert_to_tensor(to_categorical(x.numpy(), num_classes))
    labels = np.asarray(x).astype("int64")
    if labels.ndim > 1 and labels.shape[-1] == 1:
        labels = labels[..., 0]
    classes = int(labels.max(initial=-1)) + 1 if num_classes is None else num_classes
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise ValueError(
            f"to_categorical: labels run from {labels.min()} to {labels.max()}, outside of 0 ... {classes - 1} "
            f"(num_classes={classes})."
        )
    return np.eye(classes, dtype="float32")[labels]


@overload
def normalize(x: Tensor, axis: int = -1, order: float = 2) -> Tensor: ...


@overload
def normalize(x: ArrayLike, axis: int = -1, order: float = 2) -> Array: ...


def normalize(x: TensorLike, axis: int = -1, order: float = 2) -> Tensor | Array:
    """Divide vectors by their norms; zeros stay zeros.

    Args:
        x: an array or tensor ``[...]``.
        axis: the axis along which the vectors are.
        order: of the norm, 2 for the Euclidean one.

    >>> normalize(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    if isinstance(x, Tensor):
        return ops.normalize(x, axis=axis, order=order)
    array = np.asarray(x)
    norms = np.linalg.norm(array, order, axis, keepdims=True)
    return array / np.where(norms == 0, 1, norms)


def is_keras_tensor(x: TensorLike) -> bool:
    """Test whether `x` stands for a value that is computed later: an `Input`, or what a layer or op made of tensors.

    >>> is_keras_tensor([1.0])
    False
    """
    return isinstance(x, Symbol)


def standardize_dtype(dtype: DTypeLike) -> str:
    """Return the name of a dtype; None is the default float type.

    >>> standardize_dtype(None), standardize_dtype("int64")
    ('float32', 'int64')
    """
    return floatx() if dtype is None else name_of(as_dtype(dtype))


def pad_sequences(
    sequences: collections.abc.Sequence[object],
    maxlen: int | None = None,
    dtype: DTypeLike = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: object = 0.0,
) -> Array:
    """Pad sequences of different lengths to one array.

    Args:
        sequences: a list of sequences; the elements of all of them have one shape.
        maxlen: the length of the result; by default that of the longest sequence.
        dtype: the dtype of the result.
        padding: "pre" or "post": the side on which short sequences are filled up.
        truncating: "pre" or "post": the side on which long ones are cut.
        value: what fills them up.

    Returns:
        ``[len(sequences), maxlen, ...]``.

    Raises:
        ValueError: an option is neither "pre" nor "post", elements differ in shape, or `value` is text and `dtype` is
            not that of texts.

    >>> pad_sequences([[1, 2, 3], [4]], maxlen=2)
    array([[2, 3],
           [0, 4]], dtype=int32)
    """
    for name, side in (("padding", padding), ("truncating", truncating)):
        if side not in ("pre", "post"):
            raise ValueError(f"{name} must be 'pre' or 'post', got {side!r}.")
    if isinstance(value, str) and np.dtype(dtype).kind not in "OSUT":
        raise ValueError(
            f"pad_sequences: value={value!r} is text, which does not go with dtype={dtype!r}. Give dtype=object, or a "
            "dtype of texts such as '<U8', for sequences of texts, or else a number as value."
        )
    arrays = [np.asarray(sequence) for sequence in sequences]
    if any(array.ndim == 0 for array in arrays):
        raise ValueError("pad_sequences expects a list of sequences, but one of its items is a single value.")
    length = max((len(array) for array in arrays), default=0) if maxlen is None else maxlen
    element = next((array.shape[1:] for array in arrays if len(array)), ())
    padded = np.full((len(arrays), length, *element), value, dtype=dtype)
    for row, array in zip(padded, arrays, strict=True):
        if not len(array) or not length:
            continue
        if array.shape[1:] != element:
            raise ValueError(f"pad_sequences: elements have shapes {element} and {array.shape[1:]}; expected one.")
        kept = array[-length:] if truncating == "pre" else array[:length]
        start = length - len(kept) if padding == "pre" else 0
        row[start : start + len(kept)] = kept
    return padded


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__, _ = on_demand(globals(), {}, elsewhere=UTILS_MODULE)

__all__ = [
    "Config",
    "CustomObjectScope",
    "Dataset",
    "FeatureSpace",
    "Prefetch",
    "Progbar",
    "PyDataset",
    "Sequence",
    "array_to_img",
    "audio_dataset_from_directory",
    "bounding_boxes",
    "clear_session",
    "custom_object_scope",
    "deserialize_keras_object",
    "disable_interactive_logging",
    "enable_interactive_logging",
    "get_custom_objects",
    "get_file",
    "get_registered_name",
    "get_registered_object",
    "get_source_inputs",
    "image_dataset_from_directory",
    "img_to_array",
    "is_interactive_logging_enabled",
    "is_keras_tensor",
    "legacy",
    "load_img",
    "model_to_dot",
    "normalize",
    "pack_x_y_sample_weight",
    "pad_sequences",
    "plot_model",
    "register_keras_serializable",
    "save_img",
    "serialize_keras_object",
    "set_random_seed",
    "split_dataset",
    "standardize_dtype",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
    "to_categorical",
    "unpack_x_y_sample_weight",
]
