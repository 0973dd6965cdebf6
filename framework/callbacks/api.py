"""Callbacks of `fit`, `evaluate` and `predict`: what ``anabranch.callbacks`` is, with the names of Keras."""

from __future__ import annotations

from ..event_file import EventWriter
from ..serving.exporting.callback import ExportServable
from .base import Callback, CallbackList, CSVLogger, History, LambdaCallback, TerminateOnNaN
from .checkpoint import BackupAndRestore, ModelCheckpoint
from .every import Every
from .monitor import EarlyStopping, LearningRateScheduler, MonitorCallback, ReduceLROnPlateau
from .others import ProgbarLogger, RemoteMonitor, SwapEMAWeights
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
