"""`Runner`: computes the nodes of a graph by the rules, or by the function that an operator is defined as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engine.graph import Readable, Variable
from ....engine.graph.graph import eagerly
from ....engine.graph.value import Value
from ..errors import OnnxError
from ..protos import load_onnx
from .node import RULES, TAKES_DIMS, TAKES_WEIGHTS, Node, normal_domain
from .values import Dims, Optional, as_array, plain, tensor

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TypeProto

    from ...structures import Array
    from .values import NodeValue

# Whatever a node that makes no sense leads to, in a rule or in an op.
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError, AssertionError)
_MOST_DEPTH = 64  # of functions in functions and graphs in graphs


class Runner:
    """Computes graphs of one model.

    Attributes:
        opsets: versions by domain.
        functions: the model's own, by domain and name.
    """

    def __init__(
        self, opsets: Mapping[str, int], functions: Mapping[tuple[str, str], FunctionProto] | None = None
    ) -> None:
        self.opsets = dict(opsets)
        self.functions = dict(functions or {})
        self._depth = 0

    def run_graph(
        self, graph: GraphProto, values: dict[str, NodeValue], outer: _Scope | None = None
    ) -> list[NodeValue]:
        """Return the outputs of a GraphProto.

        Args:
            graph: the graph.
            values: its inputs (and weights) by name; what is computed is added.
            outer: what graphs around it have computed.
        """
        from .reading import initializer_array

        for each in graph.initializer:
            if each.name not in values:
                values[each.name] = initializer_array(each)
        for each in graph.sparse_initializer:
            values.setdefault(each.values.name, dense_array(each))
        scope = _Scope(values, outer)
        for proto in graph.node:
            self.run_node(proto, scope)
        return [_as_read(scope[output.name]) for output in graph.output]

    def run_node(self, proto: NodeProto, scope: _Scope | dict[str, NodeValue]) -> None:
        """Compute one node and add its outputs to a mapping of values by name.

        Raises:
            OnnxError: the node can't be computed; the message names it.
        """
        domain = normal_domain(proto.domain)
        inputs = [scope[name] if name else None for name in proto.input]
        runner = InnerRunner(self, scope)
        node = Node(proto, self._since(domain, proto.op_type), runner)
        self._depth += 1
        try:
            if self._depth > _MOST_DEPTH:
                raise node.error(f"functions and graphs are nested more than {_MOST_DEPTH} deep")
            results = self._computed(node, inputs)
        except (OnnxError, NotImplementedError):
            raise
        except DAMAGED as error:
            raise node.error(str(error).rstrip(".") or type(error).__name__) from error
        finally:
            self._depth -= 1
        for name, value in zip(proto.output, results, strict=False):
            if name:
                scope[name] = value

    def _since(self, domain: str, op_type: str) -> int:
        opset = self.opsets.get(domain, 1)
        try:
            return load_onnx().defs.get_schema(op_type, opset, domain).since_version
        except Exception:  # an operator of another domain, whose schema is not registered
            return opset

    def _computed(self, node: Node, inputs: Sequence[NodeValue]) -> list[NodeValue]:
        key = (node.domain, node.op_type)
        if key in self.functions:
            return self._call(self.functions[key], node, inputs)
        rule = RULES.get(key)
        if rule is None:
            return self._expanded(node, inputs)
        takes_dims = key in TAKES_DIMS
        if key not in TAKES_WEIGHTS:
            inputs = [_as_read(each) for each in inputs]
        if not takes_dims:
            inputs = [plain(each) for each in inputs]
        if not any(each.HasField("g") for each in node.proto.attribute) and all(map(_is_known, inputs)):
            with eagerly():  # what is known now is computed now, and not in the graph that is being built
                given = inputs if takes_dims else [_as_tensor(each) for each in inputs]
                return [_as_known(each) for each in _as_list(rule(node, *given))]
        return _as_list(rule(node, *(inputs if takes_dims else [_as_tensor(each) for each in inputs])))

    # --- functions ------------------------------------------------------------------------------------------

    def _call(
        self,
        function: FunctionProto,
        node: Node,
        inputs: Sequence[NodeValue],
        defaults: Mapping[str, AttributeProto] = {},
    ) -> list[NodeValue]:
        """Compute a FunctionProto; its attributes stand in its nodes by reference."""
        opsets = {normal_domain(each.domain): each.version for each in function.opset_import}
        inner = Runner({**self.opsets, **opsets}, self.functions)
        inner._depth = self._depth
        values: dict[str, NodeValue] = dict(zip(function.input, inputs, strict=False))
        for name in function.input[len(inputs) :]:
            values[name] = None
        given = {each.name: each for each in node.proto.attribute}
        defaults = {**defaults, **{each.name: each for each in function.attribute_proto}}
        for proto in function.node:
            inner.run_node(_bound(proto, {**defaults, **given}), values)
        wanted = node.proto.output  # what is not asked for may not be there: bodies depend on the call
        outputs = enumerate(function.output[: len(wanted)])
        return [values[name] if name in values or node.wants(k) else None for k, name in outputs]

    def _expanded(self, node: Node, inputs: Sequence[NodeValue]) -> list[NodeValue]:
        """Compute an operator without a rule by the body in its schema.

        Raises:
            NotImplementedError: it has none.
        """
        onnx = load_onnx()
        opset = self.opsets.get(node.domain, 1)
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        except onnx.defs.SchemaError:
            where = f"domain {node.domain!r}" if node.domain else "ONNX"
            raise NotImplementedError(f"operator {node.op_type} of {where}, opset {opset}") from None
        function = self._body(schema, node, inputs, opset)
        if function is None:
            raise NotImplementedError(f"operator {node.op_type}, opset {opset}")
        defaults = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.type}
        return self._call(function, node, inputs, defaults)

    def _body(self, schema: Any, node: Node, inputs: Sequence[NodeValue], opset: int) -> FunctionProto | None:
        onnx = load_onnx()
        if schema.has_context_dependent_function:
            types = [b"" if value is None else type_of(value).SerializeToString() for value in inputs]
            versions = [each for each in schema.context_dependent_function_opset_versions if each <= opset]
            for version in reversed(versions):
                body = schema.get_context_dependent_function_with_opset_version(
                    version, node.proto.SerializeToString(), types
                )
                if body:
                    return onnx.FunctionProto.FromString(body)
        return schema.function_body if schema.has_function else None


class _Scope:
    """Values by name, with those of the graphs around."""

    def __init__(self, own: dict[str, NodeValue], outer: _Scope | None) -> None:
        self.own, self.outer = own, outer

    def __getitem__(self, name: str) -> NodeValue:
        if name in self.own:
            return self.own[name]
        if self.outer is not None:
            return self.outer[name]
        raise OnnxError(f"Value {name!r} is used before anything computes it: the graph has a cycle or lacks a node.")

    def __setitem__(self, name: str, value: NodeValue) -> None:
        self.own[name] = value


class InnerRunner:
    """Runs the graphs inside of a node, which see the values around it."""

    def __init__(self, runner: Runner, scope: _Scope | dict[str, NodeValue]) -> None:
        self.runner, self.scope = runner, scope

    def run(self, graph: GraphProto, inputs: Sequence[NodeValue]) -> list[NodeValue]:
        """Return the outputs of a graph for these inputs."""
        values = dict(zip([each.name for each in graph.input], inputs, strict=False))
        scope = self.scope if isinstance(self.scope, _Scope) else _Scope(self.scope, None)
        return self.runner.run_graph(graph, values, scope)


def dense_array(sparse: SparseTensorProto) -> Array:
    """Return a SparseTensorProto as an array."""
    from .reading import initializer_array

    shape = tuple(sparse.dims)
    values, places = initializer_array(sparse.values), initializer_array(sparse.indices)
    found = np.zeros(shape, values.dtype)
    index = np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)
    found[index] = values
    return found


def type_of(value: Any) -> TypeProto:
    """Return the TypeProto of a value."""
    helper = load_onnx().helper
    from ..protos import element_type

    if isinstance(value, Optional):
        return helper.make_optional_type_proto(type_of(value.value))
    if isinstance(value, list):
        return helper.make_sequence_type_proto(type_of(value[0]))
    value = plain(value)
    kind = element_type(np.dtype("T") if value.dtype.kind in "OU" else value.dtype)
    return helper.make_tensor_type_proto(kind, value.shape)


def _bound(proto: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a node of a function's body with the attributes that it takes from the call."""
    if not _has_references(proto):
        return proto
    bound = type(proto)()
    bound.CopyFrom(proto)
    _bind(bound, given)
    return bound


def _has_references(proto: NodeProto) -> bool:
    return any(
        each.ref_attr_name or (each.HasField("g") and any(_has_references(inner) for inner in each.g.node))
        for each in proto.attribute
    )


def _bind(proto: NodeProto, given: Mapping[str, AttributeProto]) -> None:
    kept: list[AttributeProto] = []
    for each in list(proto.attribute):
        if each.ref_attr_name:
            source = given.get(each.ref_attr_name)
            if source is None:
                continue
            copied = type(each)()
            copied.CopyFrom(source)
            copied.name = each.name
            kept.append(copied)
            continue
        if each.HasField("g"):
            for inner in each.g.node:
                _bind(inner, given)
        kept.append(each)
    del proto.attribute[:]
    proto.attribute.extend(kept)


def _is_known(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_known, value))
    return value is None or isinstance(value, (np.ndarray, np.generic))


def _as_tensor(value: NodeValue) -> NodeValue:
    if isinstance(value, list):
        return [_as_tensor(each) for each in value]
    return tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _as_read(value: NodeValue) -> NodeValue:
    """Return the value of a weight; everything else as it is."""
    return tensor(value) if isinstance(value, (Variable, Readable)) else value


def _as_known(value: object) -> Any:
    """Return what was computed from arrays as an array."""
    if isinstance(value, list):
        return [_as_known(each) for each in value]
    if isinstance(value, Value):
        array = as_array(value)
        return value if array.dtype == object else array
    return value


def _as_list(result: NodeValue) -> list[NodeValue]:
    return list(result) if isinstance(result, tuple) else [result]


__all__ = ["Dims", "Runner", "dense_array", "type_of"]
