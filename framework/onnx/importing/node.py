"""`Node`: an ONNX node for the rule that computes it, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import OnnxError
from ..protos import load_onnx
from .values import dims_of, known

if TYPE_CHECKING:
    from onnx import NodeProto

    from .runner import InnerRunner
    from .values import NodeValue

Rule = Callable[..., Any]  # (node, *inputs) -> a value, or a list of them; inputs that are left out are None

RULES: dict[tuple[str, str], Rule] = {}
TAKES_DIMS: set[tuple[str, str]] = set()
TAKES_WEIGHTS: set[tuple[str, str]] = set()


def imports(*op_types: str, domain: str = "", dims: bool = False, weights: bool = False) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators.

    Args:
        *op_types: the operators.
        domain: of the operators.
        dims: the rule takes `Dims` as they are.
        weights: the rule takes weights as they are, not their values: quantised ones are multiplied as integers.
    """

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            RULES[domain, op_type] = rule
            if dims:
                TAKES_DIMS.add((domain, op_type))
            if weights:
                TAKES_WEIGHTS.add((domain, op_type))
        return rule

    return register


class Node:
    """One node.

    Attributes:
        proto: the NodeProto.
        op_type, name: of the node.
        domain: of the operator, "" for ONNX's own.
        version: the opset since which the operator is as it is here.
        runner: runs the graphs inside of the node.
    """

    def __init__(self, proto: NodeProto, version: int, runner: InnerRunner) -> None:
        self.proto = proto
        self.op_type: str = proto.op_type
        self.domain = normal_domain(proto.domain)
        self.name: str = proto.name or next(iter(proto.output), "")
        self.version = version
        self.runner = runner
        self._attributes: dict[str, object] | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes as Python values; texts as str."""
        if self._attributes is None:
            get = load_onnx().helper.get_attribute_value
            self._attributes = {each.name: _as_text(get(each)) for each in self.proto.attribute}
        return self._attributes

    def get(self, name: str, default: object = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    @property
    def outputs(self) -> int:
        """The number of outputs that are named."""
        return len(self.proto.output)

    def wants(self, position: int) -> bool:
        """Test whether an output is used."""
        return position < self.outputs and bool(self.proto.output[position])

    def ints(self, value: NodeValue, what: str) -> list[int]:
        """Return integers that must be known when the model is called.

        Raises:
            OnnxError: they are computed from the model's inputs.
        """
        array = known(value)
        if array is None:
            found = dims_of(value)
            if all(isinstance(each, int) for each in found):
                return [int(each) for each in found]
            raise self.error(f"its {what} must be known when the model is called, and depends on the model's inputs")
        return [int(each) for each in array.reshape(-1)]

    def floats(self, value: object, what: str) -> list[float]:
        """Return numbers that must be known when the model is called; see `ints`."""
        array = known(value)
        if array is None:
            raise self.error(f"its {what} must be known when the model is called, and depends on the model's inputs")
        return [float(each) for each in array.reshape(-1)]

    def error(self, message: str) -> OnnxError:
        """Return an error that names the node."""
        return OnnxError(f"Node {self.name!r} ({self.op_type}): {message}.")


def normal_domain(domain: str) -> str:
    """Return a domain, with "" for ONNX's own."""
    return "" if domain == "ai.onnx" else domain


def _as_text(value: Any) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], bytes):
        return [each.decode("utf-8", "replace") for each in value]
    return list(value) if hasattr(value, "__iter__") and not isinstance(value, str) and _is_plain(value) else value


def _is_plain(value: object) -> bool:
    return type(value).__name__ in ("list", "tuple", "RepeatedScalarContainer", "RepeatedCompositeContainer")
