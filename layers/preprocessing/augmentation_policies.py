"""`RandAugment`, `AugMix` and `Pipeline`: several augmentations, one after the other or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from ...engine import ops
from ...engine.control_flow import switch
from ...engine.control_flow.scan import fori_loop
from ...engine.graph import Tensor
from ...engine.objects.arguments import listed
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.ops.base import TensorLike
from ...engine.ops.random import samplers as random
from ..core.calling import signature_of
from ..core.layer import Layer
from ..core.layer_config import config_from_signature
from .augmentation import RandomBrightness, RandomContrast, RandomRotation, RandomTranslation
from .augmentation_colors import RandomColorDegeneration, RandomPosterization, RandomSharpness
from .augmentation_histograms import AutoContrast, Equalization, Solarization
from .augmentation_warps import RandomShear
from .box_formats import Size, moved_boxes, seen_sides, sides_of
from .image_layer import ImageLayer, RandomImageLayer, Seed, Transformation, factor_pair, value_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.options import ImageOptions, UnnamedOptions


_COLORS = ("random_brightness", "random_color_degeneration", "random_contrast", "random_sharpness")
_MOVES = ("random_shear", "random_translation", "random_rotation")
_VALUES = ("random_posterization", "solarization", "auto_contrast", "equalization")


@config_from_signature()
class _Policy(RandomImageLayer):
    """The base of layers that choose from other layers; what is chosen is chosen for a whole batch."""

    moves_boxes: ClassVar[bool] = True
    augments_boxes: ClassVar[bool] = False  # whether `augment` takes "sides", those of boxes in pixels

    def __init__(
        self,
        value_range: Sequence[float],
        factor: float | Sequence[float],
        interpolation: str,
        seed: int | None,
        data_format: str | None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(seed, data_format, **kwargs)
        self.value_range = value_pair(self, value_range)
        self.factor = factor_pair(self, factor, "factor", (0, 1))
        self.interpolation = interpolation
        self.names: tuple[str, ...] = (*_MOVES, *_COLORS, *_VALUES)  # of the layers that are drawn from
        factor = self.factor
        colors = {"value_range": self.value_range, "data_format": self.data_format, "dtype": self.dtype}
        moves = {"interpolation": interpolation, "data_format": self.data_format, "seed": seed, "dtype": self.dtype}
        drawn = {**colors, "seed": seed}
        self.random_shear = RandomShear(factor, factor, **moves)
        self.random_translation = RandomTranslation(factor, factor, **moves)
        self.random_rotation = RandomRotation(factor, **moves)
        self.random_brightness = RandomBrightness(factor, **drawn)
        self.random_color_degeneration = RandomColorDegeneration(factor, **drawn)
        self.random_contrast = RandomContrast(factor, **drawn)
        self.random_sharpness = RandomSharpness(factor, **drawn)
        self.random_posterization = RandomPosterization(max(1, int(8 * factor[1])), **drawn)
        self.solarization = Solarization(factor, factor, **drawn)
        self.auto_contrast = AutoContrast(**colors)
        self.equalization = Equalization(**colors)

    def call(self, data: object, training: bool | None = True) -> Any:
        if not isinstance(data, dict):
            return self._augmented({"images": data}, training)["images"]
        self._check_keys(data)
        return self._augmented(data, training)

    def _augmented(self, data: dict[str, Any], training: bool | None) -> dict[str, object]:
        """Return the images, and the masks with them, of a dict of data."""
        names = [name for name in ("images", "segmentation_masks") if name in data]
        given = {name: self._cast(ops.convert_to_tensor(data[name])) for name in names}
        single = self._is_single(given["images"])
        transformation = self.get_random_transformation(given["images"], training=training)
        if transformation is None:
            masks = {name: ops.convert_to_tensor(data[name]) for name in names if name != "images"}
            return {**data, **masks, "images": given["images"]}
        size = self._size(given["images"])
        has_boxes = self.augments_boxes and "bounding_boxes" in data
        if has_boxes:
            given["sides"] = sides_of(data["bounding_boxes"]["boxes"], self._box_form, size)
        batch = {name: ops.expand_dims(part, 0) if single else part for name, part in given.items()}
        made = self.augment(batch, transformation)
        done = {**data, **{name: ops.squeeze(part, 0) if single else part for name, part in made.items()}}
        if "segmentation_masks" in data:
            masks = ops.convert_to_tensor(data["segmentation_masks"])
            done["segmentation_masks"] = self._like_masks(done["segmentation_masks"], masks, training)
        if has_boxes:
            done["bounding_boxes"] = moved_boxes(data["bounding_boxes"], done.pop("sides"), self._box_form, size)
        return done

    def augment(self, batch: dict[str, Tensor], transformation: Transformation) -> dict[str, Tensor]:
        """Return a batch of images, and the masks and boxes that go with them, transformed."""
        raise NotImplementedError(f"{type(self).__name__} does not define augment().")

    def transform(self, images: Tensor, transformation: Transformation, is_mask: bool = False) -> Tensor:
        if is_mask:
            raise self._together("segmentation_masks")
        return self.augment({"images": images}, transformation)["images"]

    def transform_boxes(self, sides: Tensor, transformation: Transformation, size: Size) -> Tensor:
        raise self._together("bounding_boxes")

    def _together(self, name: str) -> NotImplementedError:
        return NotImplementedError(
            f"Layer {self.name!r} can't transform {name!r} apart from the images, since each augmentation draws when "
            f"it is applied. Call the layer on a dict of 'images' and {name!r}."
        )

    def _by_number(self, number: object, batch: dict[str, Tensor], nothing: int = 0) -> dict[str, Tensor]:
        """Return what the layer of that number makes of a batch; `nothing` further numbers leave it as it is."""
        layers = [getattr(self, name) for name in self.names]
        branches = [_applying(layer, self._size(batch["images"])) for layer in layers] + [_unchanged] * nothing
        return switch(number, branches, batch)


def _applying(layer: ImageLayer, size: Size) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def apply(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        drawn = layer.draw(batch["images"], layer.generator)
        made = {"images": _like(layer.transform(batch["images"], drawn), batch["images"])}
        if "segmentation_masks" in batch:
            masks = batch["segmentation_masks"]
            made["segmentation_masks"] = layer.transform(masks, drawn, True) if layer.moves_pixels else masks
        if "sides" in batch:
            sides = batch["sides"]
            made["sides"] = seen_sides(layer.transform_boxes(sides, drawn, size), size) if layer.moves_pixels else sides
        return made

    return apply


def _like(images: Tensor, given: Tensor) -> Tensor:
    return ops.cast(ops.reshape(images, ops.shape(given)), given.dtype)


def _unchanged(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(batch)


@config_from_signature()
class RandAugment(_Policy):
    """In training, a few augmentations in a row, drawn for each batch out of eleven (Cubuk et al., 2020).

    Args:
        value_range: the range of the pixels.
        num_ops: how many are applied.
        factor: how strong they are at most, or a range, from 0 to 1.
        interpolation: "bilinear" or "nearest", of those that move pixels.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: see `ImageLayer`.

    They are `RandomShear`, `RandomTranslation`, `RandomRotation`, `RandomBrightness`, `RandomColorDegeneration`,
    `RandomContrast`, `RandomSharpness`, `RandomPosterization`, `Solarization`, `AutoContrast` and `Equalization`. Only
    those that are drawn are computed.

    Raises:
        ValueError: the factor is outside of [0, 1], the range is not a pair, or num_ops is not an integer from 0 up.

    >>> import numpy as np
    >>> RandAugment(seed=1)(np.full((2, 8, 8, 3), 100.0)).shape
    (2, 8, 8, 3)
    """

    augments_boxes: ClassVar[bool] = True

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        num_ops: int = 2,
        factor: float | Sequence[float] = 0.5,
        interpolation: str = "bilinear",
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(value_range, factor, interpolation, seed, data_format, **kwargs)
        self.num_ops = _count(self, "num_ops", num_ops, 0)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        return {"layer_idxes": random.randint((self.num_ops,), 0, len(self.names), seed=seed)}

    def augment(self, batch: dict[str, Tensor], transformation: Transformation) -> dict[str, Tensor]:
        numbers = ops.convert_to_tensor(transformation["layer_idxes"])
        return fori_loop(0, self.num_ops, lambda place, made: self._by_number(numbers[place], made), batch)


@config_from_signature()
class AugMix(_Policy):
    """In training, a mixture of each image with what several random chains of augmentations make of it.

    Args:
        value_range: the range of the pixels, which they are clipped to.
        num_chains: how many chains.
        chain_depth: how many augmentations a chain has at most; each may also be left out.
        factor: how strong they are at most, or a range, from 0 to 1.
        alpha: the parameter of the distributions of the weights: of the chains (Dirichlet), and of the image itself
            (beta).
        all_ops: draw from all augmentations of `RandAugment`; otherwise without brightness, colours, contrast and
            sharpness, which tests of robustness use.
        interpolation: "bilinear" or "nearest", of those that move pixels.
        seed: an integer, so that a new process draws the same.
        data_format: "channels_last" or "channels_first"; by default `config.image_data_format()`.
        bounding_box_format: see `ImageLayer`. Boxes stay as they are, as a part of the image itself does.

    Raises:
        ValueError: a number is outside of what is said above.

    Source: D. Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty"
    (ICLR 2020).

    >>> import anabranch as ab
    >>> ab.layers.AugMix(seed=1)(ab.ops.ones((1, 8, 8, 3)), training=True).shape
    (1, 8, 8, 3)
    """

    blends_masks: ClassVar[bool] = True

    def __init__(
        self,
        value_range: Sequence[float] = (0, 255),
        num_chains: int = 3,
        chain_depth: int = 3,
        factor: float | Sequence[float] = 0.3,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: str = "bilinear",
        seed: int | None = None,
        data_format: str | None = None,
        **kwargs: Unpack[ImageOptions],
    ) -> None:
        super().__init__(value_range, factor, interpolation, seed, data_format, **kwargs)
        self.num_chains = _count(self, "num_chains", num_chains, 1)
        self.chain_depth = _count(self, "chain_depth", chain_depth, 0)
        if not isinstance(alpha, (int, float)) or not alpha > 0:
            raise ValueError(f"Layer {self.name!r}: alpha must be a positive number, got alpha={alpha!r}.")
        self.alpha = alpha
        self.all_ops = all_ops
        if not all_ops:
            self.names = (*_MOVES, *_VALUES)

    def draw(self, images: Tensor, seed: Seed) -> Transformation:
        shares = random.gamma((self.num_chains,), self.alpha, seed=seed)
        own = random.beta((), self.alpha, self.alpha, seed=seed)
        shape = (self.num_chains, self.chain_depth)
        return {
            "chain_mixing_weights": shares / ops.sum(shares),
            "weight_sample": own,
            "layer_idxes": random.randint(shape, 0, len(self.names) + 1, seed=seed),
        }

    def augment(self, batch: dict[str, Tensor], transformation: Transformation) -> dict[str, Tensor]:
        shares, own = transformation["chain_mixing_weights"], transformation["weight_sample"]
        numbers = transformation["layer_idxes"]

        def add_chain(chain: Tensor, mixed: dict[str, Tensor]) -> dict[str, Tensor]:
            def step(place: Tensor, made: dict[str, Tensor]) -> dict[str, Tensor]:
                return self._by_number(numbers[chain, place], made, nothing=1)

            made = fori_loop(0, self.chain_depth, step, batch)
            weight = (1.0 - own) * shares[chain]
            return {name: part + ops.cast(weight, part.dtype) * made[name] for name, part in mixed.items()}

        kept = {name: ops.cast(own, part.dtype) * part for name, part in batch.items()}
        mixed: dict[str, Tensor] = fori_loop(0, self.num_chains, add_chain, kept)
        return {**mixed, "images": ops.clip(mixed["images"], *self.value_range)}


def _count(layer: Layer, name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"Layer {layer.name!r}: {name} must be an integer from {least} up, got {name}={value!r}.")
    return value


class Pipeline(Layer):
    """Layers in a row as one layer, for data rather than tensors of one kind: the layers may take and give dicts.

    Args:
        layers: the layers; `training` and masks are handed to those that take them.
        name: a name.

    >>> import numpy as np
    >>> Pipeline([Solarization(), AutoContrast()])(np.array([[[0.0], [55.0]]]))[..., 0].tolist()
    [[255.0, 0.0]]
    """

    def __init__(self, layers: Sequence[Layer], name: str | None = None, **kwargs: Unpack[UnnamedOptions]) -> None:
        super().__init__(name=name, **kwargs)
        self._pipeline_layers = listed("Pipeline", "layers", layers, "a list of layers")
        for layer in self._pipeline_layers:
            if not isinstance(layer, Layer):
                raise ValueError(f"Pipeline takes a list of layers, got {layer!r} of type {type(layer).__name__}.")
        self.autocast = False
        self.supports_masking = True

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order in which they are called."""
        return list(self._pipeline_layers)

    def call(self, inputs: TensorLike, training: bool | None = True, mask: TensorLike | None = None) -> Any:
        for place, layer in enumerate(self._pipeline_layers):
            takes = signature_of(type(layer).call).takes
            given: dict[str, object] = {"training": training} if takes("training") else {}
            if place == 0 and mask is not None and takes("mask"):
                given["mask"] = mask
            inputs = layer(inputs, **given)
        return inputs

    def compute_mask(self, inputs: TensorLike, mask: TensorLike | None = None) -> None:
        """Return None, so that masks that the layers inside gave to the outputs stay; the pipeline itself adds none."""

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "layers": [serialize_keras_object(layer) for layer in self._pipeline_layers]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Pipeline:
        """Return a pipeline from what `get_config` gave.

        Raises:
            ValueError: the config has no list of layers.
        """
        layers = config.get("layers")
        if not isinstance(layers, (list, tuple)):
            raise ValueError(f"Pipeline.from_config: expected a list of configs under 'layers'; got {config!r}.")
        return cls([deserialize_keras_object(layer) for layer in layers], config.get("name"))
