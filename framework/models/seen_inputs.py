"""Inputs that a model was first called on: shapes to build it again from a file, and a signature for exports."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...engine.common.dtypes import DTypeLike, is_floating
from ...engine.common.nest import is_mapping, is_sequence
from ...engine.graph import Tensor
from ...layers.core.calling import map_leaves, shapes_of, tensors_in
from ...layers.core.input_spec import InputSpec

if TYPE_CHECKING:
    from ..structures import InputSpecs
    from ..training.base_model import BaseModel


def call_takes_more_than(model: BaseModel, count: int) -> bool:
    """Test whether the `call` of a model needs more arguments than `count`, beside masks and `training`."""
    needed = [name for name in model._call_signature.required if name not in ("training", "mask")]
    return len(needed) > count


def note_inputs(model: BaseModel, arguments: Mapping[str, object]) -> None:
    """Note the shapes, with batches of any size, and the dtypes of the tensors among a call's arguments."""
    given = {name: value for name, value in arguments.items() if tensors_in(value)}
    names = {name: "input_shape" if len(given) == 1 else f"{name}_shape" for name in given}
    model._build_shapes = {names[name]: _any_batch(shapes_of(value)) for name, value in given.items()}
    note_dtypes(model, arguments)


def note_dtypes(model: BaseModel, arguments: Mapping[str, object]) -> None:
    """Note the dtypes of the tensors among a call's arguments, where a `build` of the model's own notes the shapes."""
    model._seen_dtypes = {
        f"{name}_shape": map_leaves(_dtype_of, value) for name, value in arguments.items() if tensors_in(value)
    }


def _any_batch(shapes: Any) -> object:
    """Return shapes, in their structure, with the size of the batch unknown."""
    if is_mapping(shapes):
        return {name: _any_batch(shape) for name, shape in shapes.items()}
    if isinstance(shapes, list) or (is_sequence(shapes) and not _is_shape(shapes)):
        return [_any_batch(shape) for shape in shapes]
    return (None, *shapes[1:]) if shapes else shapes


def _dtype_of(leaf: object) -> DTypeLike:
    return leaf.dtype if isinstance(leaf, Tensor) else None


def seen_signature(model: BaseModel) -> list[InputSpecs] | None:
    """Return an `InputSpec`, or a structure of them, for each argument that a model was called on.

    Numbers with fractions have the dtype of the model's weights. So have those whose dtype was not noted, as of a model
    that a file described.

    Returns:
        The specs, or None where they are not known: the model was never called, or with arguments that are not the
        first ones of its `call`; or an example built it, whose sizes say nothing.
    """
    shapes = model._build_shapes
    if not model.built or not shapes or not model._exports_what_was_seen:
        return None
    seen = model._seen_dtypes or {}
    if len(shapes) == 1:
        return [_specs(model, next(iter(shapes.values())), next(iter(seen.values()), None))]
    names = list(inspect.signature(model.call).parameters)[: len(shapes)]  # a build may have another order
    places = [f"{name}_shape" for name in names]
    if {*places} != shapes.keys():
        return None
    return [_specs(model, shapes[place], seen.get(place), name) for place, name in zip(places, names, strict=True)]


def _specs(model: BaseModel, shape: Any, dtype: Any, name: str | None = None) -> Any:
    if is_mapping(shape):
        return {key: _specs(model, each, dtype[key] if is_mapping(dtype) else None) for key, each in shape.items()}
    if not _is_shape(shape):
        dtypes = dtype if is_sequence(dtype) else [None] * len(shape)
        return [_specs(model, each, one) for each, one in zip(shape, dtypes, strict=True)]
    is_number = dtype is None or is_floating(dtype)
    return InputSpec(shape=(None, *shape[1:]), dtype=model.variable_dtype if is_number else dtype, name=name)


def _is_shape(shape: Any) -> bool:
    """Test whether a sequence is one shape, of integers and None, and not several."""
    return is_sequence(shape) and all(size is None or isinstance(size, int) for size in shape)
