"""`plot_model`: a model as a drawing. DOT text and SVG are written without other programs; the rest is Graphviz's."""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import warnings
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Symbol, flatten
from ...layers.core.layer import Layer
from ...layers.core.node import Node
from .layer_graph import LayerGraph
from .model import Model
from .raw_ops import RawOp

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHARACTER, _LINE, _PADDING = 7.2, 17.0, 10.0  # sizes in an SVG: of letters of 12 px, of lines, around the text
_GAP, _LEVEL_GAP, _MARGIN = 24.0, 36.0, 12.0


@dataclass(eq=False)
class Box:
    """A layer (or an op, or a call of a shared layer's model) in a drawing."""

    key: str
    lines: list[str]
    group: tuple[str, ...] = ()  # the names of the models around it
    parents: list[Box] = field(default_factory=list)
    level: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _CHARACTER + 2 * _PADDING

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PADDING


@dataclass(frozen=True)
class Drawing:
    """A drawn model; notebooks show it."""

    svg: str

    def __repr__(self) -> str:
        return f"<Drawing of a model: {len(self.svg):,} characters of SVG>"

    def _repr_svg_(self) -> str:
        return self.svg


def plot_model(
    model: Model,
    to_file: str | os.PathLike[str] | None = "model.png",
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = False,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: int = 200,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
    splines: str = "ortho",
) -> Drawing:
    """Draw a model: its layers, and which takes what from which.

    Args:
        model: a built model. Of a subclass, whose calls are Python code, one box is drawn.
        to_file: ``.svg`` and ``.dot`` are always written; ``.png``, ``.pdf`` and others where Graphviz's program `dot`
            is installed. Where it is not, an ``.svg`` is written in the place of these, with a warning. None writes
            nothing.
        show_shapes, show_dtype, show_layer_names, show_layer_activations, show_trainable: what boxes say.
        rankdir: "TB" goes down, "LR" to the right (SVG goes down always).
        expand_nested: draw the layers of models inside.
        dpi: the resolution of images.
        splines: how Graphviz draws edges: "ortho", "curved", "polyline", "spline" or "line".

    Returns:
        The drawing, which notebooks show.

    Raises:
        ValueError: the model is not built, or `dot` does not write that kind of file.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(3)])
    >>> drawing = ab.utils.plot_model(model, to_file=None, show_shapes=True)
    >>> "Output shape: (None, 3)" in drawing.svg
    True
    """
    shown = _Shown(show_shapes, show_dtype, show_layer_names, show_layer_activations, show_trainable)
    boxes = _boxes(model, shown, expand_nested)
    drawing = Drawing(_svg(boxes))
    if to_file is not None:
        _write(Path(to_file), _dot(boxes, model.name, rankdir, dpi, splines), drawing.svg)
    return drawing


def model_to_dot(
    model: Model,
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = True,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: int = 200,
    subgraph: bool = False,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
    splines: str = "ortho",
) -> str:
    """Return a model in Graphviz's DOT language; for the arguments see `plot_model`.

    Args:
        subgraph: give a cluster, to be put into another graph, in place of a whole graph.

    >>> import anabranch as ab
    >>> model = ab.Sequential([ab.Input((2,)), ab.layers.Dense(3, name="head")])
    >>> "head" in ab.utils.model_to_dot(model)
    True
    """
    shown = _Shown(show_shapes, show_dtype, show_layer_names, show_layer_activations, show_trainable)
    boxes = _boxes(model, shown, expand_nested)
    return _cluster(boxes, model.name) if subgraph else _dot(boxes, model.name, rankdir, dpi, splines)


# --- boxes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shown:
    """The text of a box."""

    shapes: bool
    dtype: bool
    names: bool
    activations: bool
    trainable: bool

    def lines(self, operation: Layer | RawOp, inputs: list[Symbol], outputs: list[Symbol]) -> list[str]:
        kind = type(operation.op).__name__ if isinstance(operation, RawOp) else type(operation).__name__
        lines = [f"{operation.name} ({kind})" if self.names else kind]
        activation: object = getattr(operation, "activation", None)
        if self.activations and activation is not None:
            lines.append(f"Activation: {getattr(activation, '__name__', type(activation).__name__)}")
        if self.shapes and inputs:
            lines.append(f"Input shape: {_joined(tensor.shape for tensor in inputs)}")
        if self.shapes and outputs:
            lines.append(f"Output shape: {_joined(tensor.shape for tensor in outputs)}")
        if self.dtype and outputs:
            lines.append(f"Output dtype: {_joined(tensor.dtype for tensor in outputs)}")
        if self.trainable and isinstance(operation, Layer):
            lines.append("Trainable" if operation.trainable else "Non-trainable")
        return lines


def _joined(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _boxes(model: Model, shown: _Shown, expand_nested: bool) -> list[Box]:
    """Return the boxes of a model, each after those that it takes something from."""
    if not model.built:
        raise ValueError(f"Model {model.name!r} is not built, so it can't be drawn. Call it once, or build it, first.")
    graph = model._layer_graph
    if graph is None:
        return [Box("0", shown.lines(model, [], []))]
    boxes: list[Box] = []
    _Drawer(shown, expand_nested, boxes).draw(graph, (), {})
    for box in boxes:
        box.level = max((parent.level + 1 for parent in box.parents), default=0)
    return boxes


class _Drawer:
    """Makes the boxes of a graph of layers, and of those inside it."""

    def __init__(self, shown: _Shown, expand_nested: bool, boxes: list[Box]) -> None:
        self.shown = shown
        self.expand_nested = expand_nested
        self.boxes = boxes

    def draw(self, graph: LayerGraph, group: tuple[str, ...], sources: dict[Symbol, Box]) -> list[Box]:
        """Draw a graph whose inputs come from `sources` (or from boxes of their own); return where outputs are made.

        Layers that are called several times get a box for each call.
        """
        made = dict(sources)
        for tensor in graph.inputs:
            if tensor not in made:
                made[tensor] = self._box(tensor.annotations["history"].layer, [], [tensor], group, {})
        for node in graph.nodes:
            if not all(tensor in made for tensor in node.output_tensors):
                made.update(self._node(node, group, made))
        return [made[tensor] for tensor in graph.outputs]

    def _node(self, node: Node, group: tuple[str, ...], made: dict[Symbol, Box]) -> dict[Symbol, Box]:
        inner = node.layer._layer_graph if self.expand_nested and isinstance(node.layer, Model) else None
        if inner is None:
            box = self._box(node.layer, node.input_tensors, node.output_tensors, group, made)
            return dict.fromkeys(node.output_tensors, box)
        sources = [made[tensor] for tensor in node.input_tensors if tensor in made]
        inside = dict(zip(inner.inputs, sources, strict=False))
        outputs = self.draw(inner, (*group, node.layer.name), inside)
        return dict(zip(node.output_tensors, outputs, strict=False))

    def _box(
        self,
        operation: Layer | RawOp,
        inputs: list[Symbol],
        outputs: list[Symbol],
        group: tuple[str, ...],
        made: dict[Symbol, Box],
    ) -> Box:
        box = Box(str(len(self.boxes)), self.shown.lines(operation, inputs, outputs), group)
        box.parents = list({made[tensor].key: made[tensor] for tensor in flatten(inputs) if tensor in made}.values())
        self.boxes.append(box)
        return box


# --- DOT ------------------------------------------------------------------------------------------------------------


def _dot(boxes: list[Box], name: str, rankdir: str, dpi: int, splines: str) -> str:
    lines = [
        f"digraph {_quoted(name)} {{",
        f"  graph [rankdir={_quoted(rankdir)}, dpi={int(dpi)}, splines={_quoted(splines)}];",
        '  node [shape=box, fontname="Helvetica"];',
        *_dot_content(boxes),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _cluster(boxes: list[Box], name: str) -> str:
    lines = [f"subgraph {_quoted(f'cluster_{name}')} {{", f"  label={_quoted(name)};", *_dot_content(boxes), "}"]
    return "\n".join(lines) + "\n"


def _dot_content(boxes: list[Box]) -> list[str]:
    edges = [f"  {parent.key} -> {box.key};" for box in boxes for parent in box.parents]
    return [*_dot_group(boxes, ()), *edges]


def _dot_group(boxes: list[Box], group: tuple[str, ...]) -> list[str]:
    """Return the boxes of a model, and its clusters."""
    depth = len(group)
    indent = "  " * (depth + 1)
    lines = [f"{indent}{box.key} [label={_quoted(chr(10).join(box.lines))}];" for box in boxes if box.group == group]
    deeper = [box.group[: depth + 1] for box in boxes if len(box.group) > depth and box.group[:depth] == group]
    for number, inner in enumerate(dict.fromkeys(deeper)):
        lines.append(f"{indent}subgraph {_quoted(f'cluster_{depth}_{number}_{inner[-1]}')} {{")
        lines += [f"{indent}  label={_quoted(inner[-1])};", *_dot_group(boxes, inner), f"{indent}}}"]
    return lines


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


# --- SVG ------------------------------------------------------------------------------------------------------------


def _svg(boxes: list[Box]) -> str:
    width, height = _lay_out(boxes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="12">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        *[_svg_edge(parent, box) for box in boxes for parent in box.parents],
        *[_svg_box(box) for box in boxes],
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lay_out(boxes: list[Box]) -> tuple[float, float]:
    """Give each box its place, level by level, near those that it takes something from; return the size of all."""
    levels: dict[int, list[Box]] = {}
    for box in boxes:
        levels.setdefault(box.level, []).append(box)
    total = max(sum(box.width for box in row) + _GAP * (len(row) - 1) for row in levels.values())
    y = _MARGIN
    for _, row in sorted(levels.items()):
        row.sort(key=lambda box: sum(p.x + p.width / 2 for p in box.parents) / max(len(box.parents), 1))
        x = _MARGIN + (total - sum(box.width for box in row) - _GAP * (len(row) - 1)) / 2
        for box in row:
            box.x, box.y = x, y
            x += box.width + _GAP
        y += max(box.height for box in row) + _LEVEL_GAP
    return total + 2 * _MARGIN, y - _LEVEL_GAP + _MARGIN


def _svg_edge(parent: Box, box: Box) -> str:
    start, end = (parent.x + parent.width / 2, parent.y + parent.height), (box.x + box.width / 2, box.y)
    bend = (end[1] - start[1]) / 2
    return (
        f'<path d="M{start[0]:.1f},{start[1]:.1f} C{start[0]:.1f},{start[1] + bend:.1f} {end[0]:.1f},'
        f'{end[1] - bend:.1f} {end[0]:.1f},{end[1]:.1f}" fill="none" stroke="black" marker-end="url(#arrow)"/>'
    )


def _svg_box(box: Box) -> str:
    title = f"<title>{html.escape('/'.join(box.group))}</title>" if box.group else ""
    fill = "#eef3fa" if box.group else "white"  # of models inside
    lines = "".join(
        f'<text x="{box.x + box.width / 2:.1f}" y="{box.y + _PADDING + _LINE * (row + 0.75):.1f}" '
        f'text-anchor="middle">{html.escape(line)}</text>'
        for row, line in enumerate(box.lines)
    )
    rectangle = f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" fill="{fill}"'
    return f'<g>{title}{rectangle} stroke="black"/>{lines}</g>'


# --- files ----------------------------------------------------------------------------------------------------------


def _write(path: Path, dot: str, svg: str) -> None:
    kind = path.suffix.lstrip(".").lower()
    if not kind:
        path, kind = path.with_suffix(".png"), "png"
    if kind in ("dot", "svg"):
        path.write_text(dot if kind == "dot" else svg, encoding="utf-8")
        return
    program = shutil.which("dot")
    if program is None:
        instead = path.with_suffix(".svg")
        instead.write_text(svg, encoding="utf-8")
        warnings.warn(
            f"plot_model: {path.name} needs Graphviz, whose program `dot` was not found; {instead} was written in its "
            "place. Install Graphviz (graphviz.org/download), or give to_file a name that ends in .svg or .dot.",
            stacklevel=3,
        )
        return
    done = subprocess.run([program, f"-T{kind}"], input=dot.encode(), capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise ValueError(f"plot_model(to_file={str(path)!r}): Graphviz's dot failed: {reason}")
    path.write_bytes(done.stdout)
