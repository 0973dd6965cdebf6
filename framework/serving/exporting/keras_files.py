"""Files of models (``.keras``) as servables: loaded with their classes, exported, and again when they change."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....distribute.checkpoints import CheckpointManager
from ....engine.checkpoint.folders import folder_of
from ....engine.objects.registry import UnknownObjectError
from ....engine.ops.random.keys import SeedGenerator
from ...saving.run_files import is_backup
from ..storage import ServableError

if TYPE_CHECKING:
    from ....engine.graph import ShardedVariable, Variable
    from ...models.model import Model


def import_modules(names: Sequence[str]) -> None:
    """Import modules that register the classes of models, from the current folder, too.

    Raises:
        ValueError: one can't be imported.
    """
    if names and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ValueError(f"--import {name}: {type(error).__name__}: {error}") from error


def load_with_weights(path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> Model:
    """Load a model, and other weights into it.

    Args:
        path: a ``.keras`` file.
        weights: a weights file, or a checkpoint ``step-N`` of `CheckpointManager` or `BackupAndRestore`; None for those
            of the model.

    Raises:
        ValueError: the model or the weights can't be loaded.
    """
    from ...models.api import load_model

    try:
        model = load_model(path, compile=False)
    except (TypeError, ValueError) as error:
        unknown = _unknown_object(error)
        if unknown is None:
            raise
        module = unknown.module if unknown.module not in (None, "__main__", "builtins") else "MODULE"
        raise ValueError(
            f"{str(path)!r} has {unknown.object_name!r}, which is not known in this process. Name the module that "
            f"defines it with --import {module}; there it is decorated with @ab.saving.register_keras_serializable()."
        ) from error
    if weights is None:
        return model
    if not Path(weights).is_dir():
        model.load_weights(weights)
        return model
    folder = Path(weights)
    step = re.fullmatch("step-([0-9]+)", folder.name)
    if step is None:
        raise ValueError(f"{str(weights)!r} is a folder, but no checkpoint, whose name is step-N.")
    items: Model | dict[str, Variable | ShardedVariable] = model
    if is_backup(folder_of(folder)):
        items = {
            f"variables/{path}": part
            for path, part in model.checkpoint_items().items()
            if not isinstance(part, SeedGenerator)
        }
    with CheckpointManager(folder.parent, items) as manager:
        try:
            manager.restore(int(step[1]))
        except KeyError as error:
            raise ValueError(error.args[0]) from error
    return model


def _unknown_object(error: BaseException | None) -> UnknownObjectError | None:
    """Return the error on an object that is not known, if that is what `error` comes from."""
    while error is not None and not isinstance(error, UnknownObjectError):
        error = error.__cause__
    return error


class KerasFile:
    """A ``.keras`` file that is served: a folder of versions, one for each state in which the file was found.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._holder = tempfile.TemporaryDirectory(prefix="anabranch-serve-")
        self.folder = self._holder.name
        self._stamp: object = None

    def refresh(self) -> None:
        """Export the file again if it has changed; the folder has the next version then.

        Raises:
            ServableError: it is not there, or can't be exported.
        """
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp == self._stamp:
                return
            load_with_weights(self._path).export(self.folder, verbose=False)
        except (OSError, ValueError, TypeError, ImportError) as error:
            raise ServableError(f"{str(self._path)!r} can't be served: {error}") from error
        self._stamp = stamp

    def close(self) -> None:
        """Remove the folder."""
        self._holder.cleanup()
