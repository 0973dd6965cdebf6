"""Small layers: identity, masking, rescaling, any function; and the base of layers around a layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from ...engine import ops
from ...engine.graph import Tensor
from ...engine.objects.arguments import check_numbers, refused
from ...engine.objects.registry import deserialize_keras_object, is_serialized, serialize_keras_object
from ...engine.ops.base import TensorLike
from ...engine.ops.data_format import image_data_format
from .layer import Layer
from .layer_config import config_from_signature

if TYPE_CHECKING:
    from .options import LayerOptions


class Identity(Layer):
    """The inputs themselves."""

    def __init__(self, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self._build_at_init()

    def call(self, inputs: TensorLike) -> Any:
        return inputs


@config_from_signature()
class Masking(Layer):
    """Masks the steps at which all features equal `mask_value`, and sets them to 0.

    Args:
        mask_value: the value that stands for nothing.
    """

    def __init__(self, mask_value: float = 0.0, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.mask_value = deserialize_keras_object(mask_value)
        check_numbers("Masking", mask_value=self.mask_value)
        self.supports_masking = True
        self._build_at_init()

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> Tensor:
        """Return a mask over all axes but the last, True where any feature differs from `mask_value`."""
        return ops.any(ops.not_equal(inputs, self.mask_value), axis=-1)

    def call(self, inputs: Tensor) -> Tensor:
        kept = ops.any(ops.not_equal(inputs, self.mask_value), axis=-1, keepdims=True)
        return inputs * ops.cast(kept, inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return serialize_keras_object(super().get_config())  # arrays and tensors, too


@config_from_signature()
class Rescaling(Layer):
    """``inputs * scale + offset``.

    Args:
        scale: a number, or a list with one for each feature. If the default order of an image's axes
            (`config.set_image_data_format`) is "channels_first" when the layer is made, the features are the channels
            of images, ``(batch, channels, height, width)``.
        offset: as `scale`.
    """

    def __init__(self, scale: object, offset: object = 0.0, **kwargs: Unpack[LayerOptions]) -> None:
        super().__init__(**kwargs)
        self.scale = _of_channels(scale)
        self.offset = _of_channels(offset)
        self.supports_masking = True
        self._build_at_init()

    def call(self, inputs: Tensor) -> Tensor:
        dtype = self.compute_dtype
        inputs = ops.cast(inputs, dtype)
        return inputs * np.asarray(self.scale, dtype) + np.asarray(self.offset, dtype)

    def get_config(self) -> dict[str, Any]:
        return serialize_keras_object(super().get_config())  # arrays and tensors, too

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer of a config, whose lists follow the last axes whatever the default order is now."""
        layer = super().from_config(config)
        for name in ("scale", "offset"):
            if name in config and image_data_format() == "channels_first":
                setattr(layer, name, deserialize_keras_object(config[name]))
        return layer


def _of_channels(values: object) -> object:
    """Return numbers for channels in a shape that broadcasts to images in the default order of axes."""
    if image_data_format() == "channels_last":
        return values
    array = np.asarray(values)
    return values if array.ndim not in (1, 2) else array.reshape(array.shape + (1,) * (3 - array.ndim)).tolist()


@config_from_signature(output_shape="", mask="_written_mask")
class Lambda(Layer):
    """A function as a layer.

    Args:
        function: takes the inputs (and `mask` and `training`, if it has parameters so named), and returns tensors.
        output_shape: accepted for Keras's sake; shapes are found by themselves.
        mask: the mask of the output, or a function of (inputs, mask) that gives it.
        arguments: further keyword arguments for the function.

    A model with a lambda in it can be saved, but loads only with ``safe_mode=False``. Prefer a named function
    registered with `saving.register_keras_serializable`, or a `Layer` of your own.
    """

    def __init__(
        self,
        function: Callable[..., object],
        output_shape: object = None,
        mask: Callable[..., object] | TensorLike | None = None,
        arguments: Mapping[str, object] | None = None,
        **kwargs: Unpack[LayerOptions],
    ) -> None:
        super().__init__(**kwargs)
        if not callable(function):
            raise TypeError(f"Lambda takes a function, got {function!r}.")
        self.function = function
        if not isinstance(arguments or {}, dict):
            raise refused("Lambda", "arguments", arguments, "a dict, or None")
        self.arguments = dict(arguments or {})
        self.mask = mask
        self.supports_masking = mask is not None
        self._build_at_init()

    def call(self, inputs: Tensor, mask: TensorLike | None = None, training: bool | None = None) -> Any:
        given = dict(self.arguments)
        names = inspect.signature(self.function).parameters
        if "mask" in names:
            given["mask"] = mask
        if "training" in names:
            given["training"] = training
        return self.function(inputs, **given)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> Any:
        """Return what the `mask` argument gives."""
        return self.mask(inputs, mask) if callable(self.mask) else self.mask

    @property
    def _written_mask(self) -> object:
        return serialize_keras_object(self.mask)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, object] | None = None, safe_mode: bool | None = None
    ) -> Lambda:
        """Return the layer of a config.

        Raises:
            ValueError: it holds a Python lambda, which is code, and `safe_mode` is not False, here or around.
        """
        made = dict(config)
        for name in ("function", "mask", "arguments"):
            value = made.get(name)
            if isinstance(value, dict) or is_serialized(value):
                made[name] = deserialize_keras_object(value, custom_objects, safe_mode)
        made.pop("output_shape", None)
        return super().from_config(made)


@config_from_signature()
class Wrapper(Layer):
    """The base of layers that hold one layer and change how it is called: a subclass defines `call`.

    Args:
        layer: the layer inside; built with the wrapper, for the same input.

    Raises:
        ValueError: `layer` is not a layer.

    >>> import anabranch as ab
    >>> class Twice(ab.layers.Wrapper):
    ...     def call(self, inputs):
    ...         return self.layer(self.layer(inputs))
    >>> Twice(ab.layers.Rescaling(3.0))([[1.0]])
    Tensor([[9.]], dtype=float32)
    """

    def __init__(self, layer: Layer, **kwargs: Unpack[LayerOptions]) -> None:
        if not isinstance(layer, Layer):
            raise ValueError(f"{type(self).__name__} takes a layer, got {layer!r} of type {type(layer).__name__}.")
        super().__init__(**kwargs)
        self.layer: Any = layer  # of the user's class

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        if not self.layer.built:
            self.layer.build(input_shape)
            self.layer.built = True
