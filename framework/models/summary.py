"""The table that `Model.summary` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...engine.common.html import escape, table, view
from ...engine.common.identity import is_same
from ...engine.graph import Variable
from ...layers.core.calling import shapes_of
from ...layers.core.layer import Layer
from .layer_graph import LayerGraph
from .model import Model
from .raw_ops import RawOp
from .sequential import Sequential

_PARAMETERS = "Param #"


class _Row(NamedTuple):
    name: str
    shape: str
    parameters: str
    connected: str
    trained: str


def summary_text(
    model: Model,
    line_length: int | None = None,
    expand_nested: bool = False,
    show_trainable: bool = False,
    layer_range: tuple[str, str] | None = None,
) -> str:
    """Return the summary of a model as text; for the arguments see `Model.summary`."""
    cells = _cells(model, expand_nested, show_trainable, layer_range)
    return "\n".join([f'Model: "{model.name}"', *_table(cells, line_length), *_totals(model)])


def summary_html(model: Model) -> str:
    """Return the summary of a model as notebooks show it."""
    titles, *rows = _cells(model)
    totals = "<br>".join(map(escape, _totals(model)))
    return view(f"<p><b>{escape(type(model).__name__)} {model.name!r}</b></p>", table(titles, rows), f"<p>{totals}</p>")


def _cells(
    model: Model,
    expand_nested: bool = False,
    show_trainable: bool = False,
    layer_range: tuple[str, str] | None = None,
) -> list[list[str]]:
    """Return the titles of the columns, and the cells of each row."""
    _note_shapes(model)
    graph = model._layer_graph
    operations: Sequence[Layer | RawOp] = _operations(model, graph)
    if layer_range is not None:
        operations = _between(operations, layer_range)
    rows = [row for operation in operations for row in _rows(operation, graph, expand_nested, 0)]
    show_connected = graph is not None and not _is_row_of_layers(graph)
    columns = [("Layer (type)", 0), ("Output Shape", 1), (_PARAMETERS, 2)]
    columns += [("Connected to", 3)] if show_connected else []
    columns += [("Trainable", 4)] if show_trainable else []
    return [[title for title, _ in columns], *[[row[field] for _, field in columns] for row in rows]]


def _operations(model: Model, graph: LayerGraph | None) -> Sequence[Layer | RawOp]:
    if isinstance(model, Sequential) or graph is None:
        return model.layers
    return graph.operations


def _between(operations: Sequence[Layer | RawOp], layer_range: tuple[str, str]) -> Sequence[Layer | RawOp]:
    names = [operation.name for operation in operations]
    for name in layer_range:
        if name not in names:
            raise ValueError(f"summary(layer_range={layer_range}): there is no layer {name!r}; there are {names}.")
    first, last = sorted(names.index(name) for name in layer_range)
    return operations[first : last + 1]


def _rows(operation: Layer | RawOp, graph: LayerGraph | None, expand: bool, depth: int) -> Iterator[_Row]:
    indent = "  " * depth
    if isinstance(operation, RawOp):
        shape = _shape_text(operation.inbound_nodes[0].output_tensors[0].shape)
        yield _Row(
            f"{indent}{operation.name} ({type(operation.op).__name__})", shape, "0", _sources(operation, graph), "-"
        )
        return
    parameters = f"{_count(operation.weights):,}" if operation.built else "0 (unbuilt)"
    trained = "-" if not operation.weights else "Y" if operation.trainable_weights else "N"
    title = f"{indent}{operation.name} ({type(operation).__name__})"
    yield _Row(title, _output_shape(operation), parameters, _sources(operation, graph), trained)
    if expand and isinstance(operation, Model):
        inner = operation._layer_graph
        for inside in _operations(operation, inner):
            yield from _rows(inside, inner, expand, depth + 1)


def _note_shapes(model: Model) -> None:
    """Call a model that is Python code on symbols of any batch, so that its layers record their shapes."""
    built_for = model.get_build_config() if model.built and model._layer_graph is None else None
    if built_for:
        shapes = built_for["shapes_dict"] if "shapes_dict" in built_for else {"input_shape": built_for["input_shape"]}
        with suppress(Exception):  # it may need integers, or a known batch size
            Layer.compute_output_shape(model, **{name: _open_batch(shape) for name, shape in shapes.items()})
            return
    for layer in model._flatten_layers():
        layer._latest_output_shapes = _open_batch(layer._latest_output_shapes)  # what was seen, in a batch of any size


def _output_shape(layer: Layer) -> str:
    if isinstance(layer, Model) and layer._layer_graph is not None:
        return _shape_text(layer.output_shape)
    if layer.inbound_nodes:
        return _shape_text(shapes_of(layer.inbound_nodes[0].outputs))
    if layer._latest_output_shapes is not None:
        return _shape_text(layer._latest_output_shapes)
    built_for = layer.get_build_config() if layer.built else None
    if not built_for:
        return "?"
    shapes = built_for["shapes_dict"] if "shapes_dict" in built_for else {"input_shape": built_for["input_shape"]}
    try:
        if len(shapes) == 1:
            return _shape_text(layer.compute_output_shape(_open_batch(next(iter(shapes.values())))))
        return _shape_text(layer.compute_output_shape(**{name: _open_batch(shape) for name, shape in shapes.items()}))
    except (TypeError, ValueError, NotImplementedError):
        return "?"  # the layer needs more than shapes to be called


def _open_batch(shape: Any) -> object:
    """Return a shape that a layer was built for, with the size of that batch left open."""
    if isinstance(shape, dict):
        return {name: _open_batch(item) for name, item in shape.items()}
    if isinstance(shape, list) and any(isinstance(item, (list, tuple)) for item in shape):
        return [_open_batch(item) for item in shape]
    return (None, *shape[1:]) if shape else shape


def _shape_text(shape: Any) -> str:
    if isinstance(shape, dict):
        return ", ".join(f"{name}: {_shape_text(item)}" for name, item in shape.items())
    if isinstance(shape, list) or (isinstance(shape, tuple) and any(isinstance(item, (tuple, list)) for item in shape)):
        return ", ".join(_shape_text(item) for item in shape)
    return "?" if shape is None else str(tuple(shape))


def _sources(operation: Layer | RawOp, graph: LayerGraph | None) -> str:
    """Return the names of the layers whose outputs an operation takes in this model."""
    if graph is None:
        return "-"
    inside = set(graph.nodes)
    names: list[str] = []
    for node in operation.inbound_nodes:
        if node in inside:
            histories = [tensor.annotations.get("history") for tensor in node.input_tensors]
            names += [found.layer.name for found in histories if found is not None]
    return ", ".join(dict.fromkeys(names)) or "-"


def _is_row_of_layers(graph: LayerGraph) -> bool:
    """Test whether each call takes what the one before it gave, so that connections need not be shown."""
    return all(
        is_same(tuple(node.input_tensors), tuple(before.output_tensors))
        for before, node in zip(graph.nodes, graph.nodes[1:], strict=False)
    )


def _table(rows: list[list[str]], line_length: int | None) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if line_length is not None:
        spare = line_length - sum(widths) - 3 * len(widths) - 1
        widths[0] += max(spare, 0)

    def line(cells: Sequence[str]) -> str:
        aligned = [  # numbers to the right, as in Keras
            cell.rjust(width) if title == _PARAMETERS else cell.ljust(width)
            for title, cell, width in zip(rows[0], cells, widths, strict=True)
        ]
        return "│ " + " │ ".join(aligned) + " │"

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    body = [line(row) for row in rows[1:]]
    return [rule("┌", "┬", "┐"), line(rows[0]), rule("├", "┼", "┤"), *body, rule("└", "┴", "┘")]


def _totals(model: Model) -> list[str]:
    trained = model.trainable_weights
    frozen = model.non_trainable_weights
    optimizer: list[Variable] = list(model.optimizer.variables) if model.optimizer is not None else []
    lines = [("Total", [*trained, *frozen, *optimizer]), ("Trainable", trained), ("Non-trainable", frozen)]
    lines += [("Optimizer", optimizer)] if optimizer else []
    return [f" {title} params: {_count(variables):,} ({_size(variables)})" for title, variables in lines]


def _count(variables: Sequence[Variable]) -> int:
    return sum(math.prod(size or 0 for size in variable.shape or ()) for variable in variables)


def _size(variables: Sequence[Variable]) -> str:
    size = float(sum(variable.nbytes for variable in variables))
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("the loop above returns")
