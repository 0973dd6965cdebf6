"""Ops that were applied to a model's symbolic tensors without a layer (``x + 1.0``), as parts of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine import ops
from ...engine.control_flow.call import Call, Recorded, Recursion
from ...engine.control_flow.frames import History, Saved, TripCount
from ...engine.control_flow.region_op import RegionOp
from ...engine.graph import (
    Op,
    Operation,
    Parameter,
    Placeholder,
    ReadVariable,
    Symbol,
    Tensor,
    as_dtype,
    graph_for,
)
from ...engine.objects.names import to_snake_case, unique_name
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ...engine.ops.arrays.indexing import GetItem, Place, SliceItem
from ...engine.ops.base import Constant, apply_multi, convert_to_tensor, runs_now
from ...engine.passes.framework.again import computed, copied
from ...engine.passes.framework.prune import all_operations
from ...layers.core.node import Node
from ...layers.core.placed import place_of_call
from ..saving.keras_ops import PACKAGE, KerasOp, apply_keras_op, constant_value, fold, keras_op

if TYPE_CHECKING:
    from ...engine.ops.base import TensorLike

OWN_OPS = "anabranch.engine.ops"
_OF_ANOTHER = (History, Saved, TripCount, Recorded, Call, Recursion)  # refer to the inside of other operations
_SLICE, _PLACE = "__slice_item__", "__place__"


class RawOp:
    """An op of a functional model: like a layer without weights.

    Attributes:
        op: the op's definition.
        keras: the operation of Keras that computes the same, if there is one.
        made: a loop or branch as the model was made with it, which other inputs get a copy of; else None.
        name: from the class of the op: ``add``, ``add_1``.
    """

    def __init__(self, op: Op, keras: KerasOp | None = None, made: Operation | None = None) -> None:
        self.op = op
        self.keras = keras
        self.made = made
        self.name = unique_name(to_snake_case(type(op).__name__))
        self.inbound_nodes: list[Node] = []

    def __call__(self, *args: TensorLike) -> tuple[Tensor, ...]:
        """Return the op once more, on other inputs: tensors, variables, arrays."""
        if self.made is not None:
            return built_again(self.made, args)
        tensors = [convert_to_tensor(arg) for arg in args]
        with place_of_call(self):
            return apply_multi(self.op, *tensors, name=self.name)

    @property
    def is_of_keras(self) -> bool:
        """Test whether Keras has an operation that computes the same."""
        return self.keras is not None or self.key is not None

    @property
    def key(self) -> list[object] | None:
        """The key between the brackets of ``x[...]``, as slices and integers, if no tensor is part of it."""
        items = self.op.items if isinstance(self.op, GetItem) else (Place.INPUT,)
        bounds = [b for item in items if isinstance(item, SliceItem) for b in (item.start, item.stop, item.step)]
        if Place.INPUT in items or Place.INPUT in bounds:
            return None
        return [slice(item.start, item.stop, item.step) if isinstance(item, SliceItem) else item for item in items]

    def serialize(self, name: str | None = None) -> dict[str, object]:
        """Return the op in a model's config, called `name` there; by default as it is here.

        Raises:
            ValueError: the op has attributes that can't be written.
        """
        class_name = type(self.op).__name__
        if self.key is not None:
            return op_entry(f"numpy.{class_name}", name or self.name, {})
        if self.keras is not None:
            return op_entry(self.keras.name, name or self.name, self.keras.config)
        if self.made is not None:
            raise ValueError(
                f"Op {self.name!r} of the model, defined at {self.made.location}, is a loop or branch, whose functions "
                "no file can hold. Put it into the call() of a Layer of your own."
            )
        try:
            config = {f.name: _write(getattr(self.op, f.name)) for f in _fields(self.op)}
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Op {self.name!r} ({class_name}) of the model can't be saved: {error}. Put the computation into the "
                "call() of a Layer of your own."
            ) from error
        return _entry(OWN_OPS, class_name, name or self.name, config)

    def written_arguments(self, args: Sequence[object]) -> list[object]:
        """Return the arguments of a call as a file holds them."""
        if self.key is not None:
            return [*args, self.key]
        return list(args) if self.keras is None else self.keras.arguments(args)

    def __repr__(self) -> str:
        return f"<RawOp {self.name} ({type(self.op).__name__})>"


def op_entry(keras_name: str, name: str, config: Mapping[str, object]) -> dict[str, object]:
    """Return the entry of an operation of Keras among a model's layers."""
    module, _, class_name = keras_name.partition(".")
    return _entry(f"{PACKAGE}.{module}", class_name, name, config)


def _entry(module: str, class_name: str, name: str, config: Mapping[str, object]) -> dict[str, object]:
    config = {"name": name, **config}
    return {"module": module, "class_name": class_name, "config": config, "registered_name": class_name}


def _write(value: object) -> object:
    """Return an attribute of an op as JSON; those of an index hold values of classes of their own."""
    if isinstance(value, tuple):
        return [_write(item) for item in value]
    if isinstance(value, SliceItem):
        return {_SLICE: [_write(value.start), _write(value.stop), _write(value.step)]}
    return {_PLACE: value.name} if isinstance(value, Place) else serialize_keras_object(value)


def _read(value: object) -> Any:
    """Return the reverse of `_write`. JSON has no tuples; the attributes of ops have no lists."""
    if isinstance(value, list):
        return tuple(_read(item) for item in value)
    if isinstance(value, dict) and _SLICE in value:
        return SliceItem(*map(_read, value[_SLICE]))
    return Place[value[_PLACE]] if isinstance(value, dict) and _PLACE in value else deserialize_keras_object(value)


def _with_dtypes(cls: type[Op], arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes of an op, with names of dtypes (as Keras writes them) read as dtypes."""
    annotations = (
        {field.name: str(field.type) for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    )
    return {
        name: as_dtype(value) if isinstance(value, str) and "DType" in annotations.get(name, "") else value
        for name, value in arguments.items()
    }


def _fields(op: Op) -> tuple[dataclasses.Field[object], ...]:
    return dataclasses.fields(op) if dataclasses.is_dataclass(op) else ()


def is_serialized_op(config: Mapping[str, Any]) -> bool:
    """Test whether an entry among a saved model's layers is an op, ours or Keras's."""
    module = config.get("module") or ""
    return module == OWN_OPS or module.startswith(("keras.src.ops", "keras.ops"))


def built_again(made: Operation, args: Sequence[TensorLike]) -> tuple[Tensor, ...]:
    """Return the results of a loop or branch on other inputs: a copy of it, which runs at once on values."""
    tensors = [convert_to_tensor(arg) for arg in args]
    if runs_now(tensors):
        return tuple(computed(made, tensors))
    graph = graph_for(tensors)
    with graph.entered():
        return copied(made, [graph.capture(tensor) for tensor in tensors], graph).outputs[:-1]


class SavedOp:
    """An op of a saved model, which can be called to have its effect on tensors."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.class_name: str = config["class_name"]
        self.module: str = config.get("module") or ""
        self.ours = self.module == OWN_OPS
        given = {name: value for name, value in config["config"].items() if name != "name"}
        self.arguments = {n: _read(v) if self.ours else deserialize_keras_object(v) for n, v in given.items()}

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Apply the op.

        Raises:
            ValueError: there is none of that name here.
        """
        if self.ours:
            return self._apply_own(args)
        if self.class_name == "GetItem":
            x, key = args
            return x[tuple(key) if isinstance(key, list) else key]
        result = apply_keras_op(self.class_name, self.module, self.arguments, args, kwargs)
        return ops.convert_to_tensor(result) if isinstance(result, (int, np.generic, np.ndarray)) else result

    def _apply_own(self, args: tuple[Any, ...]) -> Tensor | tuple[Tensor, ...]:
        found = next((cls for cls in ops.registered_ops().values() if cls.__name__ == self.class_name), None)
        if found is None:
            raise ValueError(f"The saved model contains the op {self.class_name!r}, which this version does not have.")
        outputs = RawOp(found(**_with_dtypes(found, self.arguments)))(*args)
        return outputs[0] if len(outputs) == 1 else outputs


def as_nodes(outputs: Iterable[Symbol], inputs: Iterable[Symbol]) -> None:
    """Give every op between `outputs` and tensors made by layers a node, as if it were a layer.

    Raises:
        ValueError: an op can't be run again on other tensors, or a value comes from a plain placeholder.
    """
    known = set(inputs)
    pending = [tensor for tensor in outputs if tensor not in known]
    raw: dict[Operation, None] = {}
    seen: set[Symbol] = set()
    while pending:
        tensor = pending.pop()
        if tensor in seen or tensor in known:
            continue
        seen.add(tensor)
        found = tensor.annotations.get("history")
        if found is not None:
            pending.extend(found.layer.inbound_nodes[found.node_index].input_tensors)
            continue
        _check_repeatable(tensor.operation)
        raw[tensor.operation] = None
        pending.extend(source for source in tensor.operation.inputs if not is_literal(source))
    for operation in sorted(raw, key=lambda operation: operation.index):
        if fold(operation):
            continue
        keras = keras_op(operation.op, operation.inputs, operation.outputs)
        if keras is not None and keras.given is not None:
            keras = dataclasses.replace(keras, given=tuple(map(literal_of, keras.given)))
        made = RawOp(operation.op, keras, operation if isinstance(operation.op, RegionOp) else None)
        outputs = operation.outputs if made.made is None else operation.outputs[:-1]  # without the frame
        Node(made, (tuple(map(literal_of, operation.inputs)), {}), outputs)  # pyrefly: ignore[bad-argument-type] - as a layer


def _check_repeatable(operation: Operation) -> None:
    if isinstance(operation.op, Placeholder):
        raise ValueError(
            f"The model's outputs depend on the placeholder {operation.name!r}, defined at {operation.location}, which "
            "is no ab.Input. Make it with ab.Input and add it to the model's inputs."
        )
    if isinstance(operation.op, _OF_ANOTHER):
        raise _not_by_itself(operation)
    if isinstance(operation.op, RegionOp):
        _check_inside(operation)


def _not_by_itself(operation: Operation) -> ValueError:
    return ValueError(
        f"{operation.name!r}, defined at {operation.location}, takes part in the gradient of a loop or branch, or in a "
        "function that calls itself, which can't be a part of a functional model by itself. Put it into the call() of "
        "a Layer of your own."
    )


def _check_inside(operation: Operation) -> None:
    """Look for layers: they belong to a model, and do something else in training, but a copy of a loop does neither."""
    for inner in all_operations([operation]):
        if inner is not operation and isinstance(inner.op, _OF_ANOTHER):
            raise _not_by_itself(inner)
        if inner is operation or inner.location is None or isinstance(inner.op, Parameter):
            continue  # parameters are for what comes from around
        paths = [part.path for part in inner.location.parts if part.kind == "layer"]
        if paths:
            raise ValueError(
                f"Layer {paths[0]!r} is called inside {operation.name!r}, defined at {operation.location}, a loop or "
                "branch applied directly to the symbolic tensors of a functional model, which would not train it. Put "
                "the loop or branch into the call() of a Layer of your own."
            )


def is_literal(tensor: Symbol) -> bool:
    """Test whether a tensor needs no node of its own: a constant, or the value of a variable."""
    if "history" in tensor.annotations:
        return False
    return isinstance(tensor.operation.op, (Constant, ReadVariable)) or constant_value(tensor) is not None


def literal_of(tensor: object) -> object:
    """Return the argument of an op's call: the tensor itself, or the constant or variable that it stands for."""
    if not isinstance(tensor, Symbol) or not is_literal(tensor):
        return tensor
    op = tensor.operation.op
    return op.variable if isinstance(op, ReadVariable) else constant_value(tensor)
