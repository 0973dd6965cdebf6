"""Models made again from the configs and the weights of files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ...engine.common.claims import PER_ARRAY, memory_budget
from ...engine.objects.identifiers import Config
from ...engine.objects.registry import deserialize_keras_object, shared_reading_scope
from .archive import SLACK, SavedFileError
from .old_keras import modern_config
from .weights_file import WeightsReader

if TYPE_CHECKING:
    from ..models.model import Model


def open_weights(path: Path, stream: BinaryIO, safe_mode: bool) -> WeightsReader:
    """Return the weights of a file that a model is made of; in safe mode they may not claim more than the file has."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    return WeightsReader(stream, path, size + SLACK if safe_mode else None)


def _budget(reader: WeightsReader, safe_mode: bool) -> AbstractContextManager[None]:
    """Let a model have the memory that the arrays of its file need: twice, as they may be of half its precision."""
    limit = 2 * (reader.nbytes + PER_ARRAY * len(reader.datasets)) + SLACK // 2
    return memory_budget(
        limit if safe_mode else None,
        f"but all arrays of the file have {reader.nbytes:,} bytes. It is damaged, or made to do harm. "
        "If you trust it, pass safe_mode=False.",
    )


def rebuild(
    reader: WeightsReader,
    config: Config,
    custom_objects: Mapping[str, object] | None,
    safe_mode: bool,
    keras_version: str,
) -> Model:
    """Return the model that a config describes, which that version of Keras (or this framework) wrote.

    Args:
        reader: the weights of its file.
        config: the model's.
        custom_objects, safe_mode: see `load_model`.
        keras_version: which Keras wrote it, as far as that is known.

    Raises:
        SavedFileError: it describes none that can be made here.
    """
    from ..feature_space import FeatureSpace
    from ..losses import api as losses  # noqa: F401 - announce what files name
    from ..metrics import api as metrics  # noqa: F401 - announce what files name
    from ..models import layer_scale, sequential  # noqa: F401 - announce what files name
    from ..models.model import Model

    path = reader.path
    try:
        with shared_reading_scope(), _budget(reader, safe_mode):
            model = deserialize_keras_object(modern_config(config, keras_version), custom_objects, safe_mode)
    except Exception as error:
        raise SavedFileError(f"{str(path)!r}: the model can't be made from the saved configuration: {error}") from error
    if not isinstance(model, (Model, FeatureSpace)):
        raise SavedFileError(f"{str(path)!r} describes {model!r} of type {type(model).__name__}, not a model.")
    return model  # pyrefly: ignore[bad-return] - what is not a model is saved and loaded in the same way
