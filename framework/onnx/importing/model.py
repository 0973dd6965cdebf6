"""Shared by layers and the backend: a model's functions and opsets, operators that are missing, values of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..protos import load_onnx
from . import detection, elementwise, images, mathematics, recurrent, shapes, structures  # noqa: F401 - they register rules
from .node import RULES, normal_domain
from .reading import initializer_array
from .runner import Runner
from .values import INT4, UINT4, FourBits, Optional, check_computed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from onnx import FunctionProto, ModelProto, NodeProto


def runner_of(model: ModelProto) -> Runner:
    """Return what runs a model's graph."""
    opsets = {normal_domain(each.domain): each.version for each in model.opset_import}
    functions = {(normal_domain(each.domain), each.name): each for each in model.functions}
    return Runner(opsets, functions)


def missing_ops(model: ModelProto) -> list[str]:
    """Return the operators of a model that have neither a rule nor a function's body."""
    runner = runner_of(model)
    found: dict[str, None] = {}
    _collect(model.graph.node, runner.opsets, runner.functions, found)
    for function in model.functions:
        _collect(function.node, runner.opsets, runner.functions, found)
    return list(found)


def _collect(
    nodes: Iterable[NodeProto],
    opsets: Mapping[str, int],
    functions: Mapping[tuple[str, str], FunctionProto],
    found: dict[str, None],
) -> None:
    for node in nodes:
        key = (normal_domain(node.domain), node.op_type)
        if key not in RULES and key not in functions and not _has_body(key, opsets.get(key[0], 1)):
            found[f"{key[0]}.{key[1]}" if key[0] else key[1]] = None
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _collect(attribute.g.node, opsets, functions, found)


def _has_body(key: tuple[str, str], opset: int) -> bool:
    onnx = load_onnx()
    try:
        schema = onnx.defs.get_schema(key[1], opset, key[0])
    except onnx.defs.SchemaError:
        return False
    return schema.has_function or schema.has_context_dependent_function


def as_value(value: Any) -> Any:
    """Return an input (an array, a TensorProto, a list of them, or None) as what rules take.

    Raises:
        NotImplementedError: it is of a type that is not computed with here.
    """
    if value is None:
        return Optional(None)
    if isinstance(value, load_onnx().TensorProto):
        return initializer_array(value)
    if isinstance(value, list) and not (value and isinstance(value[0], (int, float, str))):
        return [as_value(each) for each in value]
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return np.array([_text(each) for each in array.reshape(-1)], np.dtype("T")).reshape(array.shape)
    if array.dtype in (INT4, UINT4):
        return FourBits.of_array(array)
    check_computed(array.dtype)
    return array


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
