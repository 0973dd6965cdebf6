"""Callbacks of `fit`, `evaluate` and `predict`: what ``anabranch.callbacks`` is, with the names of Keras."""

from __future__ import annotations

from .callback import Callback, CallbackList, CSVLogger, History, LambdaCallback, TerminateOnNaN
from .callbacks_checkpoint import BackupAndRestore, ModelCheckpoint
from .callbacks_every import Every
from .callbacks_monitor import EarlyStopping, LearningRateScheduler, MonitorCallback, ReduceLROnPlateau
from .callbacks_others import ProgbarLogger, RemoteMonitor, SwapEMAWeights
from .callbacks_tensorboard import TensorBoard
from .event_file import EventWriter
from .serving.exporting.callback import ExportServable

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
