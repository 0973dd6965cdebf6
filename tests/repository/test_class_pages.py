"""docs/layers.md and docs/losses.md list every public layer and loss with the first line of its docstring.

Optimizers, examples: each is on its page, too. After a change of a docstring or a new class:
``ANABRANCH_WRITE_GOLDEN=1 pytest tests/repository/test_class_pages.py``.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from anabranch import layers, losses, optim

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LAYERS_HEAD = """# Layers

`anabranch.layers` has {count} layers. Wherever Keras has a layer, the name, the arguments, the defaults and the numbers
are Keras's. The docstring of each layer gives its arguments, shapes and errors, and an example.

```pycon
>>> import numpy as np
>>> from anabranch import layers
>>> layer = layers.Dense(8, activation="relu")
>>> layer(np.ones((2, 4), "float32")).shape
(2, 8)

```

To write your own layer, subclass `Layer`. A recurrent cell is any layer with a `state_size`.

`tests/repository/test_class_pages.py` writes this page from the docstrings.
"""
LOSSES_HEAD = """# Losses

`anabranch.losses` has {count} losses as classes, whose instances can be configured. Most of them are functions, too,
with names like `mean_squared_error`; a function returns one value per example. `compile(loss=)` takes an instance of a
class, a function, or the name of either. The docstring of each loss gives its arguments and examples.

`tests/repository/test_class_pages.py` writes this page from the docstrings.

| loss | description |
|---|---|
"""
# The sections of docs/layers.md: pages that say more, and the modules whose classes are listed, in this order.
SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "The base": ("", ("core.layer", "core.input_layer", "core.input_spec", "core.basic")),
    "Dense layers and tables": (
        "[large vocabularies](large_vocabularies.md)",
        (
            "core.dense",
            "core.einsum_dense",
            "core.embedding",
            "vocabulary.sharded_embedding",
            "vocabulary.sampled_softmax",
        ),
    ),
    "Activations, shapes, merging": ("", ("core.activation", "core.shaping", "core.merging")),
    "Convolutions": (
        "[convolutions](convolutions.md)",
        ("convolution.convolution", "convolution.depthwise", "convolution.transpose", "convolution.blocks"),
    ),
    "Pooling, padding, sizes": (
        "",
        ("convolution.pooling", "convolution.adaptive_pooling", "convolution.padding", "convolution.upsampling"),
    ),
    "Recurrent layers and cells": (
        "[recurrent networks](recurrent.md)",
        (
            *(
                "recurrent.rnn",
                "recurrent.simple_rnn",
                "recurrent.gru",
                "recurrent.lstm",
                "recurrent.lstm_variants",
                "recurrent.conv_lstm",
                "recurrent.cell_wrappers",
                "recurrent.stacked_rnn_cells",
            ),
            *("recurrent.bidirectional", "recurrent.time_distributed"),
        ),
    ),
    "Models with loops and branches": (
        "[adaptive computation time](adaptive_computation_time.md), [mixtures of experts](mixture_of_experts.md), "
        "[trees](tree_lstm.md)",
        ("recurrent.adaptive_computation_time", "mixture_of_experts", "recurrent.tree_lstm"),
    ),
    "Attention": (
        "[transformers](transformers.md), [decoders](seq2seq.md#attention)",
        (
            *(
                "attention.dot_product",
                "attention.cell",
                "attention.multi_head",
                "attention.grouped",
                "attention.cached",
            ),
            *("attention.transformer", "attention.positions"),
        ),
    ),
    "Normalisation, dropout, noise": (
        "",
        (
            "normalization.batch_and_layer",
            "normalization.scale",
            "normalization.spectral",
            "regularization.dropout",
            "regularization.spatial_dropout",
            "regularization.noise",
        ),
    ),
    "Preprocessing": (
        "",
        (
            *("preprocessing.numbers", "preprocessing.lookup", "preprocessing.hash", "preprocessing.text"),
            "preprocessing.spectrograms",
        ),
    ),
    "Images, augmentation": (
        "",
        (
            *(
                "preprocessing.boxes",
                "preprocessing.images",
                "preprocessing.augmentation",
                "preprocessing.augmentation_colors",
                "preprocessing.augmentation_histograms",
            ),
            *(
                "preprocessing.augmentation_adaptive",
                "preprocessing.augmentation_warps",
                "preprocessing.augmentation_mixing",
                "preprocessing.augmentation_policies",
            ),
        ),
    ),
}


def public_classes(module: ModuleType) -> dict[type, list[str]]:
    """The classes that a module offers to users, each with its names, its own first."""
    found: dict[type, list[str]] = {}
    for name in sorted(name for name in dir(module) if not name.startswith("_")):
        value = getattr(module, name)
        if inspect.isclass(value) and value.__module__.startswith("anabranch."):
            found.setdefault(value, []).append(name)
    return {cls: sorted(names, key=lambda name: (name != cls.__name__, name)) for cls, names in found.items()}


def row(cls: type, names: list[str]) -> str:
    text = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split("\n"))
    text = re.sub(r"``(.*?)``", r"`\1`", text).replace("|", "\\|")
    return f"| {', '.join(f'`{name}`' for name in names)} | {text} |"


def layers_page() -> str:
    classes = public_classes(layers)
    parts = [LAYERS_HEAD.format(count=len(classes))]
    for title, (links, modules) in SECTIONS.items():
        parts.append(f"## {title}\n")
        if links:
            parts.append(f"See also: {links}.\n")
        listed = [(modules.index(module_of(cls)), names, cls) for cls, names in classes.items() if is_of(cls, modules)]
        rows = [row(cls, names) for _, names, cls in sorted(listed, key=lambda each: each[:2])]
        parts.append("\n".join(["| layer | description |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def module_of(cls: type) -> str:
    return cls.__module__.partition(".layers.")[2]


def is_of(cls: type, modules: tuple[str, ...]) -> bool:
    return module_of(cls) in modules


def losses_page() -> str:
    classes = public_classes(losses)
    rows = [row(cls, names) for cls, names in classes.items()]
    return LOSSES_HEAD.format(count=len(classes)) + "\n".join(rows) + "\n"


@pytest.mark.parametrize(("name", "make"), [("layers.md", layers_page), ("losses.md", losses_page)])
def test_pages_are_up_to_date(name: str, make: Callable[[], str]) -> None:
    page = make()
    if os.environ.get("ANABRANCH_WRITE_GOLDEN"):
        (DOCS / name).write_text(page, "utf-8")
    assert (DOCS / name).read_text("utf-8") == page, "run this again with ANABRANCH_WRITE_GOLDEN=1"


def test_every_layer_is_in_one_section() -> None:
    sections = [modules for _, modules in SECTIONS.values()]
    counts = {cls.__name__: sum(is_of(cls, modules) for modules in sections) for cls in public_classes(layers)}
    assert [name for name, count in counts.items() if count != 1] == [], "give its module a place in SECTIONS"


def test_every_optimizer_is_on_its_page() -> None:
    page = (DOCS / "optimizers.md").read_text("utf-8")
    names = [name for each in public_classes(optim).values() for name in each]
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


# --- examples -------------------------------------------------------------------------------------------------------

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem not in ("beside", "drawing"))
ELSEWHERE = {  # on the page of what they show
    "cluster_training": "training_on_clusters.md",
    "experts_in_cell": "mixture_of_experts.md",
    "moe": "scheduling.md",
    "serving": "serving.md",
    "interchange": "onnx.md",
    "two_tasks": "distribute.md",
}
NO_FIGURE = (
    "character_model",
    "cluster_training",
    "moe",
    "multi30k",
    "nested_loops",
    "serving",
    "interchange",
    "two_tasks",
)  # what they write is text, a trace, and numbers


def page_of(example: str) -> str:
    return ELSEWHERE.get(example, f"examples/{example}.md")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_has_a_page_in_the_index(name: str) -> None:
    page = (DOCS / page_of(name)).read_text("utf-8")
    assert f"examples/{name}.py" in page
    assert f"]({page_of(name)}" in (DOCS / "examples.md").read_text("utf-8")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_has_tests_and_a_figure(name: str) -> None:
    assert (ROOT / "tests" / "examples" / f"test_{name}.py").exists()
    figure = f"figures/{name}.svg)"
    assert name in NO_FIGURE or figure in (DOCS / page_of(name)).read_text("utf-8")
