"""ONNX's standard interface of backends: `prepare(model).run(inputs)`, `run_model`, `run_node`, `supports_device`.

`onnx.backend.test` and other tools call a backend by these names.

Source: https://onnx.ai/onnx/repo-docs/ImplementingAnOnnxBackend.html
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.graph.graph import eagerly
from .errors import OnnxError
from .importing.model import as_value, missing_ops, runner_of
from .importing.reading import read_model
from .importing.values import as_array
from .protos import load_onnx

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from ...engine.ops.base import TensorLike
    from ..structures import Array, Arrays
    from .importing.reading import OnnxSource


def _not_supposed(message: str) -> Exception:
    from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

    return BackendIsNotSupposedToImplementIt(message)


class Prepared:
    """A model that is ready to be run on arrays."""

    def __init__(self, model: ModelProto, beside: Mapping[str, Array]) -> None:
        self._model = model
        self._beside = dict(beside)
        self._names = [each.name for each in model.graph.input]
        weights = {each.name for each in model.graph.initializer}
        self._required = [name for name in self._names if name not in weights]

    def run(self, inputs: Arrays, **kwargs: object) -> tuple[Any, ...]:
        """Return the outputs for arrays in the order of the graph's inputs, or by their names.

        Raises:
            OnnxError: a node can't be computed.
            ValueError: there are too few or too many inputs, or unknown ones.
        """
        given = dict(inputs) if isinstance(inputs, Mapping) else self._named(inputs)
        if not set(self._required) <= given.keys() <= {*self._names}:
            raise ValueError(f"The model takes {_listed(self._names)}; got {_listed(given)}.")
        try:
            values = {**self._beside, **{name: as_value(value) for name, value in given.items()}}
            with eagerly():
                return tuple([as_array(each) for each in runner_of(self._model).run_graph(self._model.graph, values)])
        except NotImplementedError as error:
            raise _not_supposed(str(error)) from error

    def _named(self, inputs: Arrays) -> dict[str, object]:
        listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        names = self._names if len(listed) == len(self._names) else self._required
        if len(listed) != len(names):
            raise ValueError(f"The model takes {_listed(names)}; {len(listed)} inputs were given.")
        return dict(zip(names, listed, strict=True))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def is_compatible(model: OnnxSource, device: str = "CPU", **kwargs: object) -> bool:
    """Test whether each operator of a model has a rule here, or a definition by others."""
    return supports_device(device) and not missing_ops(read_model(model)[0])


def prepare(model: OnnxSource, device: str = "CPU", **kwargs: object) -> Prepared:
    """Return a model that is ready to be run.

    Args:
        model: a ModelProto, the bytes of one, or a path.
        device: "CPU".

    Raises:
        BackendIsNotSupposedToImplementIt: an operator has no rule; the message names it.
        OnnxError: the model is damaged.

    >>> import anabranch as ab, numpy as np, os, tempfile
    >>> x = ab.placeholder((None,), "float32")
    >>> path = os.path.join(tempfile.mkdtemp(), "double.onnx")
    >>> ab.onnx.export_graph(path, {"x": x}, {"y": x + x})
    >>> ab.onnx.backend.prepare(path).run([np.ones(2, "float32")])
    (array([2., 2.], dtype=float32),)
    """
    if not supports_device(device):
        raise OnnxError(f"device {device!r}: models are run on 'CPU'.")
    proto, beside = read_model(model)
    missing = missing_ops(proto)
    if missing:
        raise _not_supposed(f"The model has operators without a rule and without a definition: {', '.join(missing)}.")
    return Prepared(proto, beside)


def run_model(model: OnnxSource, inputs: Arrays, device: str = "CPU", **kwargs: object) -> tuple[Any, ...]:
    """Return a model's outputs; see `prepare`."""
    return prepare(model, device).run(inputs)


def run_node(
    node: NodeProto, inputs: Sequence[TensorLike], device: str = "CPU", outputs_info: object = None, **kwargs: object
) -> Any:
    """Return the outputs of a single node, of the newest opset unless `opset_version` is given."""
    onnx = load_onnx()
    helper = onnx.helper
    names = [name for name in node.input if name]
    if len(names) != len(inputs):
        raise ValueError(f"The node takes {_listed(names)}; {len(inputs)} inputs were given.")
    infos = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(names)]
    graph = helper.make_graph(
        [node], "node", infos, [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    )
    opset = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
    return run_model(model, dict(zip(names, inputs, strict=True)), device)


def supports_device(device: str) -> bool:
    """Test whether models are run on a device: they are on "CPU"."""
    return device.split(":")[0].upper() == "CPU"
