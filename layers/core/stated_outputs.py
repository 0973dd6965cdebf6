"""Outputs that a layer states: by a `compute_output_shape` or `compute_output_spec` that a user's class defines.

A functional model is built by calls on symbols, to find out shapes and dtypes; these calls are never computed. A `call`
may need what only a run gives, such as the number of positions in ``if x.shape[1] > 8``. If the class says by itself
what the outputs look like, that will do: the model calls the layer again when it is computed, where sizes are known.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ...engine import ops
from ...engine.graph import Graph, Placeholder, Symbol, Tensor, TensorSpec, as_dtype, flatten
from ...engine.graph.provenance import user_stacklevel
from ...engine.graph.spec import Shape, as_shape, shape_text, shapes_compatible
from .calling import map_leaves, positional, signature_of, tensors_in
from .node import is_for_shapes

if TYPE_CHECKING:
    from .layer import Layer

_STATED = "stated_by"  # the annotation of a stated output: the method that stated it
_METHODS = ("compute_output_spec", "compute_output_shape")  # Keras asks the first one that a class defines


class _Running(threading.local):
    def __init__(self) -> None:
        self.layers: list[Layer] = []


_stating = _Running()


def call_or_stated(
    layer: Layer, graph: Graph | None, arguments: Mapping[str, object], call: Callable[[], object]
) -> object:
    """Return what `call` gives; in a graph for shapes what the layer's class states, where that is more.

    Args:
        layer: whose call it is.
        graph: in which it is called; None for values.
        arguments: the arguments of the layer's `call` by name.
        call: calls it.

    Raises:
        Exception: `call` failed, and nothing is stated.
    """
    method = None if graph is None or not is_for_shapes(graph) else stating_method(type(layer))
    if graph is None or method is None or any(running is layer for running in _stating.layers):
        return call()
    losses = [(each, each._added_losses) for each in layer._flatten_layers()]
    try:
        outputs = call()
    except Exception as error:
        for each, added in losses:
            each._added_losses = added
        try:
            with _stated_by(layer):
                specs = _specs(layer, method, arguments)
        except Exception as other:
            error.add_note(f"{method}() of {type(layer).__name__} fails, too: {type(other).__name__}: {other}")
            raise error from None
        _warn_of_unbuilt(layer, error)
        return map_leaves(lambda spec: _stated_symbol(layer, graph, method, spec), specs)
    if all(_is_known(tensor) for tensor in tensors_in(outputs)):
        return outputs
    try:
        with _stated_by(layer):
            specs = _specs(layer, method, arguments)
    except Exception:
        return outputs  # what the call gives needs no statement
    return _refined(outputs, specs)


def stating_method(cls: type[Layer]) -> str | None:
    """Return the method by which a class that is not of this package states its outputs; None if there is none."""
    for name in _METHODS:
        definer = next(base for base in cls.__mro__ if name in vars(base))
        if definer.__module__.partition(".")[0] != __name__.partition(".")[0]:
            return name
    return None


def is_stated(tensor: Symbol) -> bool:
    """Test whether a tensor is a stated output, which has no value."""
    return _STATED in tensor.annotations


def check_outputs(layer: Layer, built: list[Symbol], found: list[Tensor]) -> None:
    """Compare the outputs of a call with those that a model was built with, stated ones or symbols.

    Raises:
        ValueError: they are fewer, or have other shapes. The sizes of the first axis, the batch, may differ.
    """
    fits = len(built) <= len(found) and all(
        _fits(symbol.shape, tensor.shape) for symbol, tensor in zip(built, found, strict=False)
    )
    if not fits:
        known, given = (", ".join(shape_text(tensor.shape) for tensor in tensors) for tensors in (built, found))
        method = built[0].annotations.get(_STATED)
        said = (
            f"call() of {type(layer).__name__} gave"
            if method is None
            else f"{method}() of {type(layer).__name__} stated"
        )
        raise ValueError(
            f"Layer {layer.name!r}: {said} outputs of shape {known} when the model was built, but call() gives "
            f"{given or 'none'}. Correct the one or the other."
        )


def _fits(stated: Shape, found: Shape) -> bool:
    if stated is None or found is None:
        return True
    return len(stated) == len(found) and shapes_compatible(stated[1:], found[1:])


@contextmanager
def _stated_by(layer: Layer) -> Generator[None]:
    """Let calls of `layer` inside of the block, as by ``super().compute_output_shape()``, be real ones."""
    _stating.layers.append(layer)
    try:
        yield
    finally:
        _stating.layers.pop()


def _specs(layer: Layer, method: str, arguments: Mapping[str, object]) -> object:
    """Return the specs of the outputs that a class states, in their structure."""
    own = getattr(layer, method)
    signature = signature_of(getattr(type(layer), method))
    if method == "compute_output_shape":
        shapes = layer._shapes_for(method, {name: value for name, value in arguments.items() if name != "mask"})
        return _specs_of_shapes(own(**shapes), layer.compute_dtype)
    first, *others = arguments
    by_position = positional(arguments) or [arguments[first]]
    names = [name for name in others if signature.takes(name) or signature.takes_anything]
    by_name = {name: arguments[name] for name in names if arguments[name] is not None and not name.startswith("*")}
    stated = own(*by_position, **by_name)
    return map_leaves(lambda leaf: TensorSpec(as_shape(leaf.shape), as_dtype(leaf.dtype)), stated)


def _specs_of_shapes(stated: object, dtype: str) -> object:
    """Return specs in the structure of shapes: lists, tuples and dicts of them."""
    if isinstance(stated, dict):
        return {name: _specs_of_shapes(shape, dtype) for name, shape in stated.items()}
    if not isinstance(stated, Iterable) or isinstance(stated, str):
        raise TypeError(f"compute_output_shape() must return a shape, or a structure of shapes, got {stated!r}.")
    items = list(stated)
    if all(item is None or isinstance(item, (int, np.integer)) for item in items):
        return TensorSpec(as_shape(items), as_dtype(dtype))
    specs = [_specs_of_shapes(item, dtype) for item in items]
    return specs if isinstance(stated, list) else tuple(specs)


def _stated_symbol(layer: Layer, graph: Graph, method: str, spec: TensorSpec) -> Symbol:
    symbol = graph.add(Placeholder(spec), (), f"output_stated_by_{method}").outputs[0]
    symbol.annotations[_STATED] = method
    return symbol


def _warn_of_unbuilt(layer: Layer, error: Exception) -> None:
    unbuilt = [inner.name for inner in layer._flatten_layers() if not inner.built]
    if unbuilt:
        warnings.warn(
            f"Layer {layer.name!r} ({type(layer).__name__}): call() can't be run on symbols ({type(error).__name__}: "
            f"{error}), so the layers {', '.join(unbuilt)} inside it have no weights until the model is computed. "
            "Define build(input_shape), and build them there.",
            stacklevel=user_stacklevel(),
        )


# --- outputs of which more is known than the call says --------------------------------------------------------------


def _is_known(tensor: Tensor) -> bool:
    """Test whether the sizes of all axes but the batch are known."""
    return not isinstance(tensor.spec, TensorSpec) or (tensor.shape is not None and None not in tensor.shape[1:])


def _refined(outputs: object, specs: object) -> object:
    """Return the outputs with the sizes that were stated, where these are not known and the statement fits."""
    leaves, stated = flatten(outputs), iter(flatten(specs))
    wanted = {id(leaf): next(stated, None) for leaf in leaves if isinstance(leaf, Tensor)}
    return map_leaves(lambda leaf: _with_sizes(leaf, wanted.get(id(leaf))), outputs)


def _with_sizes(leaf: object, spec: object) -> object:
    if not isinstance(leaf, Tensor) or not isinstance(spec, TensorSpec) or _is_known(leaf) or spec.shape is None:
        return leaf
    given = (None,) * len(spec.shape) if leaf.shape is None else leaf.shape
    if len(given) != len(spec.shape) or not shapes_compatible(given, spec.shape):
        return leaf
    joined = [size if known is None else known for known, size in zip(given, spec.shape, strict=True)]
    if tuple(joined) == leaf.shape:
        return leaf
    sizes = ops.shape(leaf)
    made = ops.reshape(leaf, [sizes[axis] if size is None else size for axis, size in enumerate(joined)])
    if "mask" in leaf.annotations:
        made.annotations["mask"] = leaf.annotations["mask"]
    return made
