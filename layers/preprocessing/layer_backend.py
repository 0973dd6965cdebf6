"""`LayerBackend`: ops under the names of the modules that Keras's backends have."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.ops.random import samplers


class LayerBackend:
    """Names ops as `self.backend` of Keras's preprocessing layers does: ``self.backend.numpy.where``, and their like.

    What Keras's backends have outside of a module, such as ``cast`` and ``convert_to_tensor``, are attributes.

    >>> import anabranch as ab
    >>> layer = ab.layers.RandomFlip()
    >>> layer.backend.cast(layer.backend.numpy.maximum([1, 5], 3), "float32")
    Tensor([3., 5.], dtype=float32)
    """

    name: str = "anabranch"
    core: ModuleType = ops
    image: ModuleType = ops.image
    linalg: ModuleType = ops
    math: ModuleType = ops
    nn: ModuleType = ops
    numpy: ModuleType = ops
    random: ModuleType = samplers

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        return getattr(ops, name)
