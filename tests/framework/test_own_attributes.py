"""Attributes of users' classes by names that layers and models of Keras do not have, but those here do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab

NAMES = (
    *("add_sharded_weight", "around_parts", "build_weights", "has_loops", "own_variables", "quantization_modes"),
    *(
        "rounded_kernels",
        "rounded_weights",
        "stored_values",
        "stored_variables",
        "sublayers",
        "trace_again",
        "untracked",
    ),
    *("weight_specs", "children", "modules", "parameters", "score", "train", "transform", "weight"),
)


def class_with(base: type, attribute: str) -> Any:
    """A class that keeps its layers under a name."""

    def begin(self: Any, **kwargs: Any) -> None:
        base.__init__(self, **kwargs)
        setattr(self, attribute, [ab.layers.Dense(3)])

    def call(self: Any, x: Any) -> Any:
        return getattr(self, attribute)[0](x)

    made = type("Own", (base,), {"__init__": begin, "call": call})
    return ab.saving.register_keras_serializable(f"own_{base.__name__}_{attribute}")(made)


def check(model: Any, path: Path) -> None:
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    model(x)
    assert len(model.trainable_variables) == len(model.get_weights()) == 2
    model.compile("sgd", "mse")
    model.fit(x, x, verbose=0)
    model.save(path)
    again = ab.load_model(path)
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_layers_under_any_name_are_computed_and_saved(name: str, tmp_path: Path, without_kernels: None) -> None:
    check(ab.Sequential([ab.Input((3,)), class_with(ab.Layer, name)()]), tmp_path / "m.keras")


@pytest.mark.parametrize(
    "name",
    [
        *("inputs", "outputs", "input_names", "output_names", "input_shape", "sublayers"),
        *("layer_graph", "check_saveable", "checkpoint_items", "compiled_loss", "explain", "profile"),
    ],
)
def test_models_may_have_attributes_of_the_names_of_functional_ones(
    name: str, tmp_path: Path, without_kernels: None
) -> None:
    check(class_with(ab.Model, name)(), tmp_path / "m.keras")


def test_layers_of_a_model_are_not_assigned() -> None:
    with pytest.raises(AttributeError, match=r"Own: 'layers' is computed.*Choose another name, such as 'my_layers'"):
        class_with(ab.Model, "layers")()
