"""Saving and loading models and weights in Keras's formats, and the registry of custom objects.

A ``.keras`` file holds everything: configuration, weights, optimizer state. A ``.weights.h5`` file holds arrays only.
Files are replaced atomically. They are checked completely before anything is taken from them: after an error a model is
what it was. Nothing is unpickled, no code is imported because a file asks for it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ... import __version__
from ...engine.common.paths import local_path
from ...engine.objects.registry import (
    custom_object_scope,
    deserialize_keras_object,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    own_names_scope,
    register_keras_serializable,
    serialize_keras_object,
    shared_writing_scope,
)
from . import own_classes  # noqa: F401 - it announces classes
from .archive import (
    Archive,
    SavedFileError,
    atomic_write,
    check_overwrite,
    check_readable,
    is_hdf5,
    later_version,
    read_archive,
    read_archive_stream,
    write_archive,
)
from .assets import collect_assets, give_assets
from .file_editor import KerasFileEditor
from .not_in_keras import check_for_keras
from .rebuilding import open_weights, rebuild
from .safetensors_files import read_safetensors, write_safetensors
from .shards import INDEX_SUFFIX, SUFFIX
from .weights_file import WeightsReader, check_seal, seal, write_weights

if TYPE_CHECKING:
    from ..models.model import Model
    from ..structures import PathLike

LEGACY_SUFFIXES = (".h5", ".hdf5")


def save_model(
    model: Model,
    filepath: PathLike,
    overwrite: bool = True,
    zipped: bool | None = None,
    *,
    for_keras: bool = False,
    save_format: str | None = None,
    include_optimizer: bool = True,
) -> None:
    """Save a model: its configuration, weights and optimizer state.

    Args:
        model: the model; what `load_model` gives goes on training as if nothing had happened.
        filepath: a name that ends in ``.keras``; or in ``.h5`` or ``.hdf5``, Keras's old format, which holds less.
        overwrite: whether an existing file is replaced.
        zipped: as in Keras, where False writes a folder, which is not done here.
        for_keras: whether to refuse a model with layers, ops or optimizers that Keras lacks, as Keras can't open it.
        save_format: as in Keras 3, it has no effect but a warning: the name of the file says what is written.
        include_optimizer: as in Keras, whether an ``.h5`` file holds the optimizer; a ``.keras`` file always does.

    Raises:
        ValueError: the name ends otherwise, the model can't be written as a config, or not as one that Keras can read.
        FileExistsError: the file exists and `overwrite` is False.

    >>> import anabranch as ab, tempfile, pathlib
    >>> model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(pathlib.Path(folder, "model.keras"))
    ...     again = ab.load_model(pathlib.Path(folder, "model.keras"))
    >>> bool((again.get_weights()[0] == model.get_weights()[0]).all())
    True
    """
    path = local_path(filepath, "Model.save")
    is_legacy = path.suffix in LEGACY_SUFFIXES and not path.name.endswith(".weights.h5")
    if path.suffix != ".keras" and not is_legacy:
        unused = f", with save_format={save_format!r}, which Keras 3 does not heed" if save_format else ""
        raise ValueError(
            f"A model is saved to a file that ends in .keras, or in .h5 for Keras's old format; got {str(path)!r}"
            f"{unused}. Weights alone are saved with save_weights, to a file that ends in .weights.h5."
        )
    if save_format:
        warnings.warn(
            f"save_format={save_format!r} has no effect, as in Keras 3: {path.name!r} is written as its suffix says. "
            "Leave the argument out.",
            stacklevel=2,
        )
    if zipped is False:
        raise ValueError(
            f"save_model writes {str(path)!r} as one file, not as a folder. Leave zipped=False out; zipfile unpacks a "
            ".keras file."
        )
    check_overwrite(path, overwrite)
    if not model.built:
        warnings.warn(
            f"Model {model.name!r} is saved before it is built, so without weights. Call it on data first.",
            stacklevel=2,
        )
    if for_keras:
        check_for_keras(serialize_keras_object(model))
    if is_legacy:
        from .legacy_h5_writing import write_legacy_model

        path.parent.mkdir(parents=True, exist_ok=True)  # as Keras does for files of this kind
        with atomic_write(path) as stream:
            write_legacy_model(model, stream, include_optimizer)
        return
    write = _written(model)
    with atomic_write(path) as stream:
        write(stream)


def _written(model: Model) -> Callable[[BinaryIO], None]:
    """Collect all of a model, and then write it as a ``.keras`` file."""
    with shared_writing_scope():
        config = serialize_keras_object(model)
    weights = io.BytesIO()
    _write_weights(model, weights)
    assets = collect_assets(model)
    return lambda stream: write_archive(stream, config, weights.getvalue(), __version__, assets)


def reduce_model(model: Model) -> tuple[Callable[..., Model], tuple[object, ...]]:
    """Describe a model for `copy.deepcopy` and pickling: what `save_model` writes, and the user's objects."""
    stream = io.BytesIO()
    with own_names_scope() as objects:
        _written(model)(stream)
    return _restored, (stream.getvalue(), objects)


def _restored(content: bytes, objects: Mapping[str, object]) -> Model:
    """Restore what `reduce_model` took apart. Trusted: it is part of what runs code anyway, a pickle."""
    path = Path("a pickled model")
    return _load(path, read_archive_stream(io.BytesIO(content), path, True), objects, compile=True, safe_mode=False)


def save_weights(
    model: Model,
    filepath: PathLike,
    overwrite: bool = True,
    max_shard_size: str | float | None = None,
    objects_to_skip: Collection[object] | None = None,
) -> None:
    """Save the weights of a model; in a ``.weights.h5`` file also its optimizer's state if it is compiled.

    Args:
        model: a model that is built.
        filepath: a name that ends in ``.weights.h5``, or in ``.safetensors``, where weights are called by their paths.
        overwrite: whether an existing file is replaced.
        max_shard_size: of safetensors files, such as "5GB": larger models are written as several, with an index.
        objects_to_skip: layers, or an optimizer, that a ``.weights.h5`` file is not to have.

    Raises:
        ValueError: the name ends otherwise, or the model is not built.
        FileExistsError: the file exists and `overwrite` is False.

    >>> import anabranch as ab
    >>> import os
    >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1)])
    >>> ab.saving.save_weights(model, "saved.weights.h5")
    >>> os.path.exists("saved.weights.h5")
    True
    """
    path = local_path(filepath, "Model.save_weights")
    if path.suffix == SUFFIX:
        from .named_weights import save_named_weights

        _check_skips_none(path, objects_to_skip)
        _check_built(model, "saved")
        save_named_weights(model, path, max_shard_size, overwrite)
        return
    if not path.name.endswith(".weights.h5"):
        raise ValueError(
            f"Weights are saved to a file that ends in .weights.h5, or in .safetensors; got {str(path)!r}. "
            "A whole model is saved with model.save, to a file that ends in .keras."
        )
    if max_shard_size is not None:
        raise ValueError("max_shard_size is for files that end in .safetensors; a .weights.h5 file is one file.")
    check_overwrite(path, overwrite)
    _check_built(model, "saved")
    with atomic_write(path) as stream:
        _write_weights(model, stream, objects_to_skip or ())
        seal(stream)


def load_model(
    filepath: PathLike,
    custom_objects: Mapping[str, object] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
) -> Model:
    """Load a model as it was saved, by anabranch or by Keras.

    Args:
        filepath: a ``.keras`` file, or one in Keras's old format (``.h5``, ``.hdf5``).
        custom_objects: classes and functions of yours by name, beside those that are registered.
        compile: whether to compile the model as it was, and take over the optimizer's state.
        safe_mode: refuse what a file could do harm with: code (lambdas), vocabularies in other files, classes that are
            neither registered nor Keras's own nor in `custom_objects`, and more memory than the file accounts for. Turn
            it off for files that you trust.

    Raises:
        SavedFileError: (a ValueError) the file is damaged, needs classes that are not here, or was refused.
        FileNotFoundError: there is no such file.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(1)])
    >>> model.save("whole.keras")
    >>> ab.models.load_model("whole.keras").output_shape
    (None, 1)
    """
    path = local_path(filepath, "load_model")
    if path.suffix in LEGACY_SUFFIXES or is_hdf5(path):
        from .legacy_h5 import load_legacy_model

        return load_legacy_model(path, custom_objects, compile, safe_mode)
    return _load(path, read_archive(path, is_trusted=not safe_mode), custom_objects, compile, safe_mode)


def _load(
    path: Path, archive: Archive, custom_objects: Mapping[str, object] | None, compile: bool, safe_mode: bool
) -> Model:
    """Return the model of an archive; see `load_model`."""
    config = archive.config if compile else {**archive.config, "compile_config": None}
    try:
        with open_weights(path, archive.weights, safe_mode) as reader:
            model = rebuild(reader, config, custom_objects, safe_mode, archive.keras_version)
            _load_weights(model, reader, is_new=True)
    except SavedFileError as error:
        remark = later_version(archive)
        if not remark:
            raise
        raise SavedFileError(f"{error}{remark}") from error
    give_assets(model, archive.assets, path)
    return model


def load_weights(
    model: Model,
    filepath: PathLike,
    skip_mismatch: bool = False,
    objects_to_skip: Collection[object] | None = None,
    by_name: bool = False,
) -> None:
    """Give a model the weights of a file. The optimizer's state comes too if both have one.

    Args:
        model: a model that is built, as the saved one was.
        filepath: a ``.weights.h5``, ``.keras``, ``.safetensors`` or old ``.h5`` file; or a ``.safetensors.index.json``.
        skip_mismatch: load what fits and warn about the rest, where otherwise nothing is loaded.
        objects_to_skip: layers, or an optimizer, that keep their weights; of ``.weights.h5`` files.
        by_name: load the layers whose names are in the file, and leave others as they are; of old ``.h5`` files.

    Raises:
        ValueError: an argument does not go with the kind of file.
        SavedFileError: (a ValueError) the file is damaged, or does not fit the model; the message lists all
            differences.
        FileNotFoundError: there is no such file.

    >>> import anabranch as ab
    >>> model, other = [ab.Sequential([ab.Input((2,)), ab.layers.Dense(1)]) for _ in range(2)]
    >>> model.save_weights("some.weights.h5")
    >>> ab.saving.load_weights(other, "some.weights.h5")
    >>> bool((other.weights[0].numpy() == model.weights[0].numpy()).all())
    True
    """
    path = local_path(filepath, "Model.load_weights")
    _check_built(model, "loaded")
    if not path.name.endswith(".weights.h5"):
        _check_skips_none(path, objects_to_skip)
    if by_name and not is_hdf5(path):
        raise _not_by_name(path)
    if path.suffix == SUFFIX or path.name.endswith(INDEX_SUFFIX):
        from .named_weights import load_named_weights

        load_named_weights(model, path, skip_mismatch)
        return
    if path.suffix == ".keras" and not is_hdf5(path):
        archive = read_archive(path)
        with WeightsReader(archive.weights, path) as reader:
            _load_weights(model, reader, skip_mismatch=skip_mismatch)
        give_assets(model, archive.assets, path)
        return
    check_readable(path)
    with open(path, "rb") as stream:
        check_seal(stream, path)
        with WeightsReader(stream, path) as reader:
            _load_weights(model, reader, False, skip_mismatch, objects_to_skip or (), by_name)


def _not_by_name(path: Path) -> ValueError:
    return ValueError(
        f"load_weights: by_name=True is for files of Keras's old format, which end in .h5; got {str(path)!r}. Leave it "
        "out. For layers that differ give skip_mismatch=True."
    )


def _check_skips_none(path: Path, objects_to_skip: Collection[object] | None) -> None:
    if objects_to_skip is not None:
        raise ValueError(f"objects_to_skip is for files that end in .weights.h5, as in Keras; got {str(path)!r}.")


def _check_built(model: Model, what: str) -> None:
    if not model.built:
        raise ValueError(
            f"The weights of model {model.name!r} can't be {what}: it is not built and has none yet. "
            "Call it on a batch of data, or model.build(input_shape), first."
        )


def _write_weights(model: Model, stream: BinaryIO, left_out: Collection[object] = ()) -> None:
    from .state_tree import collect

    write_weights(stream, collect(model, left_out))


def _load_weights(
    model: Model,
    reader: WeightsReader,
    is_new: bool = False,
    skip_mismatch: bool = False,
    left_out: Collection[object] = (),
    by_name: bool = False,
) -> None:
    """Compare, then assign.

    Args:
        model: the model.
        reader: the file.
        is_new: whether the model was just made as the file says, so that the optimizer's state has to fit, too.
        skip_mismatch: whether to load what fits.
        left_out: what keeps its weights.
        by_name: whether to match layers by their names.
    """
    from .legacy_h5 import is_legacy, load_legacy_weights

    if is_legacy(reader):
        load_legacy_weights(model, reader, skip_mismatch, by_name)
    elif by_name:
        raise _not_by_name(Path(reader.path))
    else:
        _apply(model, reader, is_new, skip_mismatch, left_out)


def _apply(
    model: Model, reader: WeightsReader, is_new: bool, skip_mismatch: bool, left_out: Collection[object]
) -> None:
    from .state_tree import assign, describe, match

    fit = match(model, reader, is_new=is_new, left_out=left_out)
    name = f"{str(reader.path)!r} does not fit model {model.name!r}"
    if fit.differences and not skip_mismatch:
        raise SavedFileError(
            f"{name}, and nothing was loaded:{describe(fit.differences)}\n"
            "Build the model as it was when it was saved, or load what fits with "
            "model.load_weights(filepath, skip_mismatch=True)."
        )
    assign(fit.found, reader)
    skipped = fit.differences + fit.optimizer_differences
    if is_new and skipped:
        warnings.warn(
            f"{name} in places:{describe(skipped)}\n"
            "The optimizer starts without the state in the file. The trainable weights were others when it was made: "
            "call compile() again after layers are frozen, quantised or given adapters, before the model is saved.",
            stacklevel=5,
        )
    elif skipped:
        warnings.warn(f"{name} in places, which were left as they are:{describe(skipped)}", stacklevel=5)


CustomObjectScope = custom_object_scope

__all__ = [
    "CustomObjectScope",
    "KerasFileEditor",
    "SavedFileError",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "load_model",
    "load_weights",
    "read_safetensors",
    "register_keras_serializable",
    "save_model",
    "save_weights",
    "serialize_keras_object",
    "write_safetensors",
]
