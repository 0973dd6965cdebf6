"""`check_layer`: what every layer has to satisfy."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.control_flow import cond, while_loop
from ...engine.graph import Graph
from ...engine.objects.registry import custom_object_scope
from ...engine.session import Session
from ...engine.session.placeholder import placeholder
from ...engine.testing.comparing import fail_unless
from ...layers import Layer
from .. import tree
from ..models.api import Input, Model, load_model
from ..training.gradient_tape import GradientTape
from .findings import Findings, assert_close

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ..structures import Arrays

STEP = 1e-6  # of central differences, in float64


def check_layer(
    layer_class: type[Layer],
    init_kwargs: Mapping[str, object] | None = None,
    *,
    inputs: Arrays,
    differentiable: bool = True,
    tolerance: float = 1e-5,
    verbose: bool = True,
) -> dict[str, int]:
    """Run the checks that every layer has to pass.

    Its config makes the same layer again. `build` makes its weights. `compute_output_shape` gives the shapes of its
    outputs. Its values are the same at once, in a graph whose batch is unknown (of all rows, of one, of none), in a
    branch and in a loop. Gradients by inputs and weights agree with differences in float64. A model with it is saved
    and loaded. It computes in mixed precision.

    Args:
        layer_class: the class.
        init_kwargs: the arguments of its constructor.
        inputs: an array, or a structure of arrays, as `call` takes them; the first axis is the batch, of two rows at
            least. Choose values away from kinks.
        differentiable: compare gradients.
        tolerance: how much values may differ between these ways, relative to 1.
        verbose: print the counts.

    Returns:
        How many cases each check compared.

    Raises:
        AssertionError: something is wrong. All that is, is listed.
        TypeError: `layer_class` is not a class of layers.
        ValueError: the inputs have fewer than two rows.

    >>> import numpy as np
    >>> import anabranch as ab
    >>> x = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    >>> counts = ab.testing.check_layer(ab.layers.Dense, {"units": 2, "activation": "tanh"}, inputs=x, verbose=False)
    >>> counts["gradients"]  # by the input, the kernel and the bias
    3
    """
    if not (isinstance(layer_class, type) and issubclass(layer_class, Layer)):
        raise TypeError(f"check_layer takes a class of layers and its arguments apart, got {layer_class!r}.")
    arrays = tree.map_structure(np.asarray, inputs)
    rows = {x.shape[:1] for x in tree.flatten(arrays)}
    if len(rows) != 1 or min(rows) < (2,):
        raise ValueError(f"check_layer needs inputs of the same two rows or more; these have {sorted(rows)}.")
    check = _LayerCheck(layer_class, dict(init_kwargs or {}), arrays, tolerance)
    findings = Findings(layer_class.__name__)
    with custom_object_scope({layer_class.__name__: layer_class}):
        if findings.run("call", check.call):
            findings.run("config", check.config)
            findings.run("shapes", check.shapes)
            findings.run("graph", check.graph)
            findings.run("control flow", check.control_flow)
            if differentiable:
                findings.run("gradients", check.gradients)
            findings.run("saving", check.saving)
            findings.run("mixed precision", check.mixed_precision)
    return findings.finish(verbose)


class _LayerCheck:
    """The checks; each returns how many cases it compared."""

    def __init__(self, layer_class: type[Layer], kwargs: dict[str, Any], inputs: Arrays, tolerance: float) -> None:
        self.layer_class, self.kwargs, self.inputs, self.tolerance = layer_class, kwargs, inputs, tolerance

    def call(self) -> int:
        """Call the layer on arrays, twice: weights are made before the first call, by `build`."""
        self.layer = self.layer_class(**self.kwargs)
        self.layer.build(tree.map_structure(lambda x: tuple(x.shape), self.inputs))
        made = [weight.path for weight in self.layer.weights]
        self.outputs = self.layer(self.inputs)
        after = [weight.path for weight in self.layer.weights]
        fail_unless(made == after, f"build makes the weights {made}, after a call there are {after}")
        self._compare(self.layer(self.inputs), "a second call")
        return 2

    def config(self) -> int:
        """Make the layer from its config, and compare the configs and, with the same weights, the values."""
        config = self.layer.get_config()
        json.dumps(config, default=_refuse)
        again = self.layer_class.from_config(dict(config))
        fail_unless(
            again.get_config() == config,
            f"get_config() of the layer made from {config} gives {again.get_config()}; "
            "get_config has to return all arguments of the constructor",
        )
        self._compare(self._with_weights(again)(self.inputs), "the layer made from the config")
        return 2

    def shapes(self) -> int:
        """Compare `compute_output_shape` with the outputs."""
        given = tree.map_structure(lambda x: tuple(x.shape), self.inputs)
        stated = self.layer.compute_output_shape(given)
        found = tree.map_structure(lambda y: tuple(y.shape), self.outputs)
        stated = [tuple(shape) for shape in _shapes(stated)]
        fail_unless(
            stated == _shapes(found), f"compute_output_shape({given}) gives {stated}, outputs have {_shapes(found)}"
        )
        return len(stated)

    def graph(self) -> int:
        """Compare a graph whose batch is unknown with calls at once, for all rows, one and none."""
        graph = Graph()
        with graph.as_default():
            symbols = self._symbols()
            outputs = tree.flatten(self.layer(symbols))
        session = Session(graph)
        for rows, what in ((slice(None), "all rows"), (slice(1), "one row"), (slice(0), "no rows")):
            part = tree.map_structure(lambda x, rows=rows: x[rows], self.inputs)
            feeds = dict(zip(tree.flatten(symbols), tree.flatten(part), strict=True))
            for found, wanted in zip(session.run(outputs, feeds), tree.flatten(self.layer(part)), strict=True):
                assert_close(found, wanted, f"a graph, {what}", self.tolerance)
        return 3

    def control_flow(self) -> int:
        """Compare the layer in a branch and in a loop, whose conditions are fed, with calls at once."""
        graph = Graph()
        with graph.as_default():
            symbols, n = self._symbols(), placeholder((), "int32")
            flat = [ops.convert_to_tensor(y) for y in tree.flatten(self.layer(symbols))]
            branch = cond(n > 0, lambda: tree.flatten(self.layer(symbols)), lambda: [ops.zeros_like(y) for y in flat])

            def body(i: Tensor, *carried: object) -> Any:
                del carried
                return (i + 1, *tree.flatten(self.layer(symbols)))

            start = (ops.zeros((), "int32"), *(ops.zeros_like(y) for y in flat))
            loop = while_loop(lambda i, *_: i < n, body, start)[1:]
        feeds = {n: 2, **dict(zip(tree.flatten(symbols), tree.flatten(self.inputs), strict=True))}
        for what, targets in (("in a branch", branch), ("in a loop", loop)):
            for found, wanted in zip(Session(graph).run(list(targets), feeds), tree.flatten(self.outputs), strict=True):
                assert_close(found, wanted, what, self.tolerance)
        return 2

    def gradients(self) -> int:
        """Compare gradients by the floating inputs and by the trainable weights with differences along a direction."""
        layer = self.layer_class.from_config({**self.layer.get_config(), "dtype": "float64"})
        self._with_weights(layer)
        wide = tree.map_structure(lambda x: x.astype("float64") if x.dtype.kind == "f" else x, self.inputs)
        leaves = [np.array(x) for x in tree.flatten(wide)]
        draw = np.random.default_rng(0)
        factors: list[object] = []

        def loss(values: list[Any]) -> Tensor:
            outputs = [y for y in tree.flatten(layer(tree.pack_sequence_as(wide, values))) if _is_floating(y)]
            factors.extend(draw.uniform(0.5, 1.5, tuple(y.shape)) for y in outputs[len(factors) :])
            return sum((ops.sum(y * k) for y, k in zip(outputs, factors, strict=True)), ops.zeros((), "float64"))

        loss(leaves)
        weights = list(layer.trainable_weights)
        places = [i for i, x in enumerate(leaves) if x.dtype.kind == "f"]
        with GradientTape() as tape:
            values = [ops.convert_to_tensor(x) for x in leaves]
            for i in places:
                tape.watch(values[i])
            total = loss(values)
        sources = [*(values[i] for i in places), *weights]
        names = [*(f"input {i}" for i in places), *(weight.path for weight in weights)]
        found = tape.gradient(total, sources)
        for name, source, gradient in zip(names, sources, found, strict=True):
            fail_unless(gradient is not None, f"no gradient comes back to {name}")
            gradient = np.asarray(ops.convert_to_tensor(gradient))
            direction = draw.standard_normal(gradient.shape)
            position = places[names.index(name)] if name.startswith("input ") else None
            numeric = self._difference(loss, leaves, source, position, direction)
            assert_close(np.sum(gradient * direction), numeric, f"the derivative by {name}, beside differences", 1e-4)
        return len(names)

    def saving(self) -> int:
        """Save a functional model of the layer and load it; its predictions keep their bits."""
        symbols = tree.map_structure(lambda x: Input(x.shape[1:], dtype=x.dtype.name), self.inputs)
        layer = self._with_weights(self.layer_class.from_config(self.layer.get_config()))
        model = Model(symbols, layer(symbols))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            model.save(path)
            again = load_model(path)
        first, second = (tree.flatten(each.predict(self.inputs, verbose=0)) for each in (model, again))
        for one, other in zip(first, second, strict=True):
            fail_unless(
                np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), "the loaded model predicts other values"
            )
        return len(first)

    def mixed_precision(self) -> int:
        """Compute in bfloat16 with float32 weights, if the layer gives floats."""
        if not any(_is_floating(y) for y in tree.flatten(self.outputs)):
            return 0
        layer = self._with_weights(self.layer_class.from_config({**self.layer.get_config(), "dtype": "mixed_bfloat16"}))
        outputs = [y for y in tree.flatten(layer(self.inputs)) if _is_floating(y)]
        kinds = {np.dtype(weight.dtype).name for weight in layer.trainable_weights}
        fail_unless(kinds <= {"float32"}, f"weights are {sorted(kinds)} under mixed_bfloat16, expected float32")
        wanted = [y for y in tree.flatten(self.outputs) if _is_floating(y)]
        for found, right in zip(outputs, wanted, strict=True):
            assert_close(np.asarray(found).astype("float64"), right, "in mixed_bfloat16", 0.1)
        return len(outputs)

    def _symbols(self) -> object:
        return tree.map_structure(lambda x: placeholder((None, *x.shape[1:]), x.dtype.name), self.inputs)

    def _with_weights(self, layer: Layer) -> Layer:
        layer.build(tree.map_structure(lambda x: tuple(x.shape), self.inputs))
        layer.set_weights(self.layer.get_weights())
        return layer

    def _compare(self, outputs: object, what: str) -> None:
        for found, wanted in zip(tree.flatten(outputs), tree.flatten(self.outputs), strict=True):
            assert_close(found, wanted, what, self.tolerance)

    def _difference(
        self, loss: Callable[[list[Any]], Tensor], leaves: list[Any], source: Any, position: int | None, direction: Any
    ) -> float:
        ends: list[float] = []
        kept = None if position is not None else source.numpy()
        for sign in (1, -1):
            if position is not None:
                moved = [x + sign * STEP * direction if i == position else x for i, x in enumerate(leaves)]
                ends.append(float(loss(moved)))
            else:
                source.assign(kept + sign * STEP * direction)
                ends.append(float(loss(leaves)))
        if position is None:
            source.assign(kept)
        return (ends[0] - ends[1]) / (2 * STEP)


def _is_floating(y: Tensor) -> bool:
    return "float" in np.dtype(y.dtype).name


def _shapes(shapes: Any) -> list[tuple[object, ...]]:
    """Return the shapes in a structure, of which each is a tuple of integers."""
    if isinstance(shapes, tuple | list) and all(size is None or isinstance(size, int) for size in shapes):
        return [tuple(shapes)]
    items = shapes.values() if isinstance(shapes, Mapping) else shapes
    return [shape for item in items for shape in _shapes(item)]


def _refuse(value: object) -> object:
    raise TypeError(
        f"get_config has {value!r}, which JSON can't hold; serialize it with ab.saving.serialize_keras_object"
    )
