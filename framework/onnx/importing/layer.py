"""`load`: an ONNX model as a layer, whose float initialisers are weights."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.common.dtypes import is_differentiable, name_of
from ....engine.objects.registry import register_keras_serializable
from ....engine.ops.base import TensorLike
from ....layers.core.layer import Layer
from ....layers.core.quantized_form import describe_rounded, hold_as_described
from ..errors import OnnxError
from ..protos import load_onnx
from .model import as_value, missing_ops, runner_of
from .node import normal_domain
from .reading import initializer_array, read_model
from .runner import DAMAGED
from .values import Optional, plain, tensor

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

    from ...structures import Array
    from .reading import OnnxSource

# Inputs, by operator and position, that have to be known when the model is called: they are no weights.
_KNOWN = {
    ("Resize", 1), ("Resize", 2), ("Upsample", 1), ("Dropout", 1), ("Range", 0), ("Range", 1), ("Range", 2),
    ("MelWeightMatrix", 3), ("MelWeightMatrix", 4), ("OneHot", 1),
}  # fmt: skip
_RUNNING = {("BatchNormalization", 3), ("BatchNormalization", 4)}  # weights that no optimizer updates
_OUTPUTS = {"Conv": 0, "ConvTranspose": 1}  # the axes of their kernels along which the outputs are
_RECURRENT = {"RNN", "GRU", "LSTM"}
_LOOPS = {"Loop", "Scan", *_RECURRENT}


def load(source: OnnxSource, *, trainable: bool = False, name: str | None = None) -> OnnxLayer:
    """Make a layer of an ONNX model.

    Args:
        source: a path, the bytes of a file, or a ModelProto, of opset 7 to 28.
        trainable: whether optimizers update its weights, which are the model's float initialisers.
        name: of the layer; by default from the graph's name.

    Returns:
        A layer: ``layer(x)`` for one input, ``layer({"x": x, ...})`` or ``layer([x, ...])`` for several. It gives one
        tensor, or a tuple in the order of the graph's outputs. It trains, is saved, served and exported as others are.

    Raises:
        OnnxError: the model is damaged, or an operator of it is not known here; the message names the node.
        FileNotFoundError: there is no such file.

    >>> import anabranch as ab, numpy as np, os, tempfile
    >>> model = ab.Sequential([ab.Input((3,), name="x"), ab.layers.Dense(2, kernel_initializer="ones")])
    >>> path = os.path.join(tempfile.mkdtemp(), "dense.onnx")
    >>> model.export(path, "onnx", verbose=False)
    >>> layer = ab.onnx.load(path, trainable=True)
    >>> layer(np.ones((1, 3), "float32"))
    Tensor([[3., 3.]], dtype=float32)
    >>> [tuple(weight.shape) for weight in layer.trainable_weights]
    [(3, 2), (2,)]
    """
    model, beside = read_model(source)
    missing = missing_ops(model)
    if missing:
        raise OnnxError(f"The model uses operators that are not known here: {', '.join(missing)}.")
    try:
        stripped, arrays, running = _without_weights(model, beside)
    except NotImplementedError as error:
        raise OnnxError(f"The model has a weight of {error}, which is not computed with here.") from error
    described = [
        [key, [int(size) for size in array.shape], name_of(array.dtype), key not in running]
        for key, array in arrays.items()
    ]
    encoded = base64.b64encode(stripped.SerializeToString()).decode("ascii")
    layer = OnnxLayer(encoded, described, trainable=trainable, name=name)
    for weight, array in zip(layer.onnx_weights.values(), arrays.values(), strict=True):
        weight.assign(np.asarray(array))
    return layer


def _without_weights(model: ModelProto, beside: Mapping[str, Array]) -> tuple[ModelProto, dict[str, Array], set[str]]:
    """Copy a model without its weights; return these by name, too, and the names of those that no optimizer updates."""
    fixed, running = _uses(model.graph)
    stripped = load_onnx().ModelProto()
    stripped.CopyFrom(model)
    arrays: dict[str, Array] = {}
    kept: list[TensorProto] = []
    for proto in stripped.graph.initializer:
        array = beside.get(proto.name)
        array = initializer_array(proto) if array is None else array
        if is_differentiable(array.dtype) and array.dtype.kind != "c" and proto.name not in fixed:
            arrays[proto.name] = array
            continue
        if proto.name in beside:
            proto = load_onnx().numpy_helper.from_array(np.array(array), proto.name)
        kept.append(proto)
    copies = [type(each).FromString(each.SerializeToString()) for each in kept]
    del stripped.graph.initializer[:]
    stripped.graph.initializer.extend(copies)
    inputs = [each for each in stripped.graph.input if each.name not in arrays]
    kept_inputs = [type(each).FromString(each.SerializeToString()) for each in inputs]
    del stripped.graph.input[:]
    stripped.graph.input.extend(kept_inputs)
    return stripped, arrays, running


def _uses(graph: GraphProto) -> tuple[set[str], set[str]]:
    """Return names that must be known in calls, and names of running statistics."""
    fixed: set[str] = set()
    running: set[str] = set()
    for node in graph.node:
        for position, name in enumerate(node.input):
            if (node.op_type, position) in _KNOWN:
                fixed.add(name)
            if (node.op_type, position) in _RUNNING:
                running.add(name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner = _uses(attribute.g)
                fixed |= inner[0]
                running |= inner[1]
    return fixed, running


def _kernels(graph: GraphProto, ranks: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return weights that are rounded but read as floats, and the axes of their outputs, negative.

    They are kernels of convolutions, themselves or transposed, and those of recurrent operators, stored as
    (directions, outputs, terms).
    """
    axes = {key: (key, list(range(rank))) for key, rank in ranks.items() if rank > 2}
    found: dict[str, tuple[int, ...]] = {}
    for node in graph.node:
        names = list(node.input)
        if node.op_type == "Transpose" and names and names[0] in axes:
            key, before = axes[names[0]]
            places = range(ranks[key])
            order = next((list(each.ints) for each in node.attribute if each.name == "perm"), places[::-1])
            if sorted(order) == list(places):  # files are not trusted
                axes.update({output: (key, [before[axis] for axis in order]) for output in node.output})
        if node.op_type in _OUTPUTS and len(names) > 1 and names[1] in axes:
            key, before = axes[names[1]]
            found[key] = (before[_OUTPUTS[node.op_type]] - ranks[key],)
        if node.op_type in _RECURRENT:
            found.update({name: (-3, -2) for name in names[1:3] if ranks.get(name) == 3})
    return found


@register_keras_serializable(package="anabranch")
class OnnxLayer(Layer):
    """An ONNX model as a layer; `ab.onnx.load` makes it.

    Attributes:
        input_names, output_names: of the graph, in order.
        opset: the version of ONNX's operators.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,), name="x"), ab.layers.Dense(1)])
    >>> model.export("dense.onnx", "onnx", verbose=False)
    >>> layer = ab.onnx.load("dense.onnx")
    >>> isinstance(layer, ab.onnx.OnnxLayer), layer.input_names
    (True, ['x'])
    """

    def __init__(self, model: str, weights: Any, rounded: Any = None, **kwargs: object) -> None:
        """Make the layer of a model without weights.

        Args:
            model: a ModelProto in base64.
            weights: for each weight its name, shape, dtype, and whether optimizers may update it.
            rounded: which weights `quantize` has rounded, as `describe_rounded` gives it.
            **kwargs: of every layer.
        """
        try:
            proto, _ = read_model(base64.b64decode(model, validate=True), [each[0] for each in weights])
        except ValueError as error:
            raise OnnxError(f"OnnxLayer: model is no ONNX model in base64 ({error}).") from error
        kwargs["name"] = kwargs.get("name") or _layer_name(proto.graph.name)
        options: dict[str, Any] = {"autocast": False, **kwargs}
        super().__init__(**options)
        self._encoded, self._described = model, [list(each) for each in weights]
        # Each weight is an attribute, where `quantize` replaces it.
        self._attributes = {each[0]: f"onnx_weight_{place}" for place, each in enumerate(self._described)}
        self._onnx_proto = proto
        self._onnx_runner = runner_of(proto)
        given = {each.name for each in proto.graph.initializer}
        self.input_names = [each.name for each in proto.graph.input if each.name not in given]
        self.output_names = [each.name for each in proto.graph.output]
        self.opset = next((each.version for each in proto.opset_import if not normal_domain(each.domain)), 0)
        for key, shape, dtype, trains in self._described:
            weight = self.add_weight(
                shape=tuple(shape), initializer="zeros", dtype=dtype, trainable=trains, name=_weight_name(key)
            )
            setattr(self, self._attributes[key], weight)
        if any(node.op_type in _LOOPS for node in proto.graph.node):
            self.has_loops = True
        kernels = _kernels(proto.graph, {each[0]: len(each[1]) for each in self._described})
        self.rounded_kernels = {self._attributes[key]: kept for key, kept in kernels.items()}
        hold_as_described(self, rounded or {})
        self.built = True

    @property
    def onnx_weights(self) -> dict[str, Any]:
        """The weights by the names of the initialisers that they were; rounded ones after `quantize`."""
        return {key: getattr(self, attribute) for key, attribute in self._attributes.items()}

    def call(self, inputs: TensorLike) -> Any:
        values = self.onnx_weights
        for name, value in self._named(inputs).items():
            values[name] = value if hasattr(value, "spec") else as_value(value)
        try:
            found = self._onnx_runner.run_graph(self._onnx_proto.graph, values)
        except NotImplementedError as error:
            raise OnnxError(f"Layer {self.name!r}: {error} is not computed here.") from error
        results = tuple([_named_output(name, each) for name, each in zip(self.output_names, found, strict=True)])
        return results[0] if len(results) == 1 else results

    def _call_compiled(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call the layer by a compiled step; an error that its run raises becomes one that names the node.

        Raises:
            OnnxError: a node can't be computed.
        """
        try:
            return super()._call_compiled(args, kwargs)
        except OnnxError:
            raise
        except DAMAGED:
            self._called(None, args, kwargs)  # node by node: the one that fails raises its own error
            raise

    def _named(self, inputs: object) -> dict[str, object]:
        names = self.input_names
        if isinstance(inputs, Mapping):
            given = {str(key): value for key, value in inputs.items()}
            if set(given) != set(names):
                raise ValueError(
                    f"Layer {self.name!r} takes inputs {', '.join(names) or 'of no name'}; got {', '.join(given)}."
                )
            return given
        listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(listed) != len(names):
            raise ValueError(f"Layer {self.name!r} takes {len(names)} inputs ({', '.join(names)}); got {len(listed)}.")
        return dict(zip(names, listed, strict=True))

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "model": self._encoded, "weights": self._described}
        return {**config, "rounded": describe_rounded(self)}


def _named_output(name: str, value: object) -> object:
    try:
        return _as_output(value)
    except DAMAGED as error:
        raise OnnxError(f"Output {name!r} can't be returned: {error}") from error


def _as_output(value: object) -> object:
    if isinstance(value, Optional):
        value = value.value
    return [_as_output(each) for each in value] if isinstance(value, list) else tensor(plain(value))


def _layer_name(name: str) -> str | None:
    cleaned = re.sub(r"\W", "_", name).strip("_").lower()
    return cleaned or None


def _weight_name(name: str) -> str:
    return re.sub(r"[^\w.]", "_", name) or "weight"
