"""Models: what ``anabranch.models`` is, with the names of ``keras.models``."""

from __future__ import annotations

from ..layers.input_layer import Input
from .cloning import clone_model
from .functional import Functional
from .model import Model
from .saving import load_model, save_model
from .sequential import Sequential

__all__ = ["Functional", "Input", "Model", "Sequential", "clone_model", "load_model", "save_model"]
