"""Weights as rows of data, and configs from the signatures of constructors: for layers of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.layers.core.layer_config import config_from_signature
from anabranch.layers.core.weight import WeightSpec


@config_from_signature()
class Scaled(ab.layers.Layer):
    """A layer without `build` and `get_config`."""

    scale: Any
    offset: Any
    calls: Any

    def __init__(self, units: int, activation: Any = None, scale_initializer: Any = "ones", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.activation = ab.activations.get(activation)
        self.scale_initializer = ab.initializers.get(scale_initializer)
        self.scale_regularizer = ab.regularizers.L2(0.5)

    def weight_specs(self, input_shape: Any) -> tuple[WeightSpec, ...]:
        return (
            WeightSpec("scale", (input_shape[-1], self.units)),
            WeightSpec("offset", (self.units,), "zeros", present=self.units > 1),
            WeightSpec("count", (), "zeros", attribute="calls", dtype="int32", trainable=False),
        )

    def call(self, inputs: Any) -> Any:
        return self.activation(ab.ops.matmul(inputs, self.scale))


def test_build_follows_from_the_rows() -> None:
    layer = Scaled(3, name="scaled")
    layer.build((None, 2))
    assert layer.built
    assert layer.get_build_config() == {"input_shape": (None, 2)}
    assert [(each.path, each.shape, each.trainable) for each in layer.weights] == [
        ("scaled/scale", (2, 3), True),
        ("scaled/offset", (3,), True),
        ("scaled/count", (), False),
    ]
    assert layer.calls is layer.weights[2]
    assert layer.calls.dtype == np.dtype("int32")
    np.testing.assert_allclose(float(layer.losses[0]), 0.5 * 6)
    one = Scaled(1)
    assert one(np.ones((4, 2), "float32")).shape == (4, 1)
    assert one.offset is None


def test_a_row_of_unknown_size_is_refused() -> None:
    with pytest.raises(ValueError, match="every dimension must be known"):
        Scaled(3).build((None, None))


def test_subclasses_add_rows_and_may_build_more() -> None:
    class More(Scaled):
        def weight_specs(self, input_shape: Any) -> tuple[WeightSpec, ...]:
            return (*super().weight_specs(input_shape), WeightSpec("more", (2,)))

    class Built(ab.layers.Dense):
        def build(self, input_shape: Any) -> None:
            super().build(input_shape)
            self.extra = self.add_weight(shape=(2,), name="extra")

    more, built = More(3), Built(4)
    more(np.ones((1, 2), "float32"))
    built(np.ones((1, 2), "float32"))
    assert [each.name for each in more.weights] == ["scale", "offset", "more", "count"]
    assert [each.name for each in built.weights] == ["kernel", "bias", "extra"]


def test_configs_follow_from_signatures() -> None:
    layer = Scaled(3, activation="relu", scale_initializer=ab.initializers.Constant(2.0), name="scaled")
    config = layer.get_config()
    assert {name: config[name] for name in ("name", "trainable", "dtype", "units", "activation")} == {
        "name": "scaled",
        "trainable": True,
        "dtype": "float32",
        "units": 3,
        "activation": "relu",
    }
    assert config["scale_initializer"]["class_name"] == "Constant"
    assert config.keys() == {"name", "trainable", "dtype", "units", "activation", "scale_initializer"}
    assert Scaled.from_config(config).get_config() == config


def test_what_is_handed_on_and_what_another_attribute_holds() -> None:
    @config_from_signature(limit="_limit", units="")
    class Limited(Scaled):
        def __init__(self, limit: tuple[int, int] = (0, 1), **kwargs: Any) -> None:
            super().__init__(3, **kwargs)
            self._limit = limit

    config = Limited((2, 3), activation="tanh").get_config()
    assert config["limit"] == (2, 3)
    assert config["activation"] == "tanh"
    assert "units" not in config


def test_a_subclass_without_the_decorator_has_the_config_of_its_base() -> None:
    class Mine(ab.layers.Dense):
        def __init__(self, units: int, extra: int = 1, **kwargs: Any) -> None:
            super().__init__(units, **kwargs)
            self.extra = extra

    class Saved(Mine):
        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "extra": self.extra}

    plain = ab.layers.Dense(2, use_bias=False).get_config()
    assert Mine(2, use_bias=False).get_config().keys() == plain.keys()
    again = Saved.from_config(Saved(2, 7, activation="relu").get_config())
    assert again.extra == 7
    assert again.activation is ab.activations.relu
