"""Callbacks of `fit`, `evaluate` and `predict`: what ``anabranch.callbacks`` is, with the names of Keras."""

from __future__ import annotations

from .callback import Callback, CallbackList, CSVLogger, History, LambdaCallback, TerminateOnNaN
from .callbacks_monitor import EarlyStopping, LearningRateScheduler, ModelCheckpoint, ReduceLROnPlateau

__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ReduceLROnPlateau",
    "TerminateOnNaN",
]
