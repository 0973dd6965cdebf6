"""`SpatialDropout2D` and `SpatialDropout3D`: whole channels dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from ...engine.graph import Tensor
from ...engine.ops.data_format import check_data_format
from ..core.input_spec import InputSpec
from .dropout import Dropout, Rate

if TYPE_CHECKING:
    from ...engine.objects.identifiers import PolicyLike
    from ..core.options import OtherOptions


class _SpatialDropout(Dropout):
    """The base of the layers that drop whole channels; see `SpatialDropout2D`."""

    rank: ClassVar[int]

    def __init__(
        self,
        rate: Rate,
        data_format: str | None = None,
        seed: int | None = None,
        name: str | None = None,
        dtype: PolicyLike = None,
        **kwargs: Unpack[OtherOptions],
    ) -> None:
        super().__init__(rate, seed=seed, name=name, dtype=dtype, **kwargs)
        self.data_format = check_data_format(type(self).__name__, data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def _noise_shape(self, inputs: Tensor) -> tuple[int | None, ...]:
        ones = [1] * self.rank
        return (None, *ones, None) if self.data_format == "channels_last" else (None, None, *ones)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("noise_shape")
        config.pop("trainable")  # Keras's constructors do not take it
        return {**config, "data_format": self.data_format}


class SpatialDropout2D(_SpatialDropout):
    """In training, drops whole channels of images, as neighbouring cells are too alike (Tompson et al., 2014).

    Args:
        rate: the part of the channels to drop, from 0 to 1.
        data_format: ``"channels_last"`` or ``"channels_first"``; by default `config.image_data_format()`.
        seed: an integer, so that a new process draws the same masks.
        **kwargs: see `Layer`.

    Raises:
        ValueError: an argument is not one of those above.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> dropped = ab.layers.SpatialDropout2D(0.5, seed=1)(np.ones((4, 8, 6, 3), "float32"), training=True)
    >>> bool((dropped == dropped[:, :1, :1]).all())
    True
    """

    rank = 2


class SpatialDropout3D(_SpatialDropout):
    """In training, drops whole channels of volumes.

    Args:
        rate, data_format, seed: see `SpatialDropout2D`.
        **kwargs: see `Layer`.

    Raises:
        ValueError: see `SpatialDropout2D`.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> dropped = ab.layers.SpatialDropout3D(0.5, seed=1)(np.ones((4, 2, 8, 6, 3), "float32"), training=True)
    >>> bool((dropped == dropped[:, :1, :1, :1]).all())
    True
    """

    rank = 3
