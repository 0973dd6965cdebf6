"""Callbacks of `fit`, `evaluate` and `predict`: what ``anabranch.callbacks`` is, with the names of Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ...engine.objects.on_demand import no_attribute
from ..event_file import EventWriter
from ..models.fit_callbacks import Callback, CallbackList, History, ProgbarLogger
from ..serving.exporting.callback import ExportServable
from .checkpoint import BackupAndRestore, ModelCheckpoint
from .every import Every
from .loggers import CSVLogger, RemoteMonitor
from .monitor import EarlyStopping, LearningRateScheduler, MonitorCallback, ReduceLROnPlateau
from .others import LambdaCallback, SwapEMAWeights, TerminateOnNaN
from .tensorboard import TensorBoard

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "EventWriter",
    "Every",
    "ExportServable",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "MonitorCallback",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "SwapEMAWeights",
    "TensorBoard",
    "TerminateOnNaN",
]

_INSTEAD = {
    "OrbaxCheckpoint": "It writes checkpoints by Orbax. Use BackupAndRestore to go on after an interruption, "
    "ModelCheckpoint for files of models, or ab.distribute.CheckpointManager for checkpoints of any state.",
}


def _look_up(name: str) -> NoReturn:
    raise no_attribute(__name__, name, _INSTEAD)


if not TYPE_CHECKING:  # type checkers would take any name for a public one
    __getattr__ = _look_up
