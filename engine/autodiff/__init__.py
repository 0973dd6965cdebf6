"""Reverse-mode differentiation over structured graphs, to any order."""

from .backpropagate import backpropagate
from .custom_gradient import custom_gradient
from .derivatives import jvp, vjp
from .gradients import gradients

__all__ = ["backpropagate", "custom_gradient", "gradients", "jvp", "vjp"]
