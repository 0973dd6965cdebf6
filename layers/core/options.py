"""The arguments that all layers have, for their `**kwargs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ...engine.objects.identifiers import PolicyLike, RegularizerLike


class ShapeOptions(TypedDict, total=False):
    """Arguments by which the first layer of a `Sequential` says what its input is; see `Layer`."""

    input_shape: Sequence[int | None] | None
    batch_shape: Sequence[int | None] | None
    batch_input_shape: Sequence[int | None] | None
    input_dim: int | None
    batch_size: int | None


class CommonOptions(ShapeOptions, total=False):
    """Arguments of all layers, for classes that have `activity_regularizer` as an argument of their own."""

    trainable: bool
    dtype: PolicyLike
    autocast: bool
    name: str | None


class LayerOptions(CommonOptions, total=False):
    """Arguments of all layers; see `Layer`."""

    activity_regularizer: RegularizerLike
