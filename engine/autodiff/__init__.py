"""Reverse-mode differentiation over structured graphs, to any order."""

from .backpropagate import backpropagate
from .gradients import gradients

__all__ = ["backpropagate", "gradients"]
