"""Layers."""

from .layer import Layer
