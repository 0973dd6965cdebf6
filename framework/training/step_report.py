"""Reports on a model's compiled step and on its time by layer: `Model.explain` and `Model.profile`.

While a step is traced, each operation notes the part of the model that it is built for: the layer whose call is
running, the loss, the optimizer, the metrics; and of an operation of the gradient, the layer whose operation it is the
gradient of (`engine.graph.provenance`). Passes keep that. Of a kernel that computes several operations, each of them
counts for an equal share of its time and bytes.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...engine.graph import in_explicit_graph
from ...engine.graph.provenance import Part
from ...engine.ops.random.keys import SeedGenerator
from ...engine.passes.framework.log import recording
from ...engine.session.explain import format_pass_log
from ...engine.session.profile import Profile, ProfiledLine, profile_program
from ..data.adapters import Batch, as_data
from ..saving.checkpointing import random_state, set_random_state, stateful_parts
from .fit_data import without_targets

_KINDS = ("train", "test", "predict")
_OTHERS = ("loss", "optimizer", "metrics")
_ELSEWHERE = "elsewhere"
_BETWEEN = "between operations"
_WIDTH = 56  # of a line of the program in a listing


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The time of a layer in a step, with the layers inside it.

    Attributes:
        name: the layer's name; "loss", "optimizer", "metrics", or "elsewhere" for what a step of your own computes.
        class_name: the layer's class; "" for what is no layer.
        forward: seconds of its operations.
        backward: seconds of the operations of their gradients.
        bytes: of the values that both take and give.
        inside: the same for the layers that it calls, which is part of its own.
    """

    name: str
    class_name: str
    forward: float
    backward: float
    bytes: int
    inside: tuple[LayerTime, ...] = ()

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The time of a step by layer: `str` of it is a table.

    Attributes:
        model: the model's name.
        kind: "train", "test" or "predict".
        seconds: what a step takes without clocks around its operations; the median.
        layers: the layers in the order of the step, then loss, optimizer and metrics. With `between` they add up to
            what a step takes with clocks, which is somewhat more than `seconds`.
        between: what a step with clocks takes between its operations.
        steps: the same by operation and by your lines.
    """

    model: str
    kind: str
    seconds: float
    layers: tuple[LayerTime, ...]
    between: float
    steps: Profile

    @property
    def total(self) -> float:
        """The seconds that a step takes with clocks around its operations."""
        return sum(line.seconds for line in self.layers) + self.between

    def __str__(self) -> str:
        total = self.total or 1.0
        rows = [*_rows(self.layers, total, 0), (_BETWEEN, "", "", f"{self.between / total:.1%}", "")]
        titles = ("layer", "forward ms", "backward ms", "share", "bytes")
        widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
        told = (
            f"One {self.kind} step of {self.model!r}: {_ms(self.seconds)} ms (median of {self.steps.runs}); "
            f"with clocks {_ms(self.total)} ms, of which:"
        )
        lines = [f"{row[0]:<{widths[0]}}" + "".join(f"  {row[k]:>{widths[k]}}" for k in range(1, 5)) for row in rows]
        title = f"{titles[0]:<{widths[0]}}" + "".join(f"  {titles[k]:>{widths[k]}}" for k in range(1, 5))
        return "\n".join([told, title, *lines]) + "\n"


@dataclass(frozen=True, slots=True)
class ExplainedLine:
    """A line of a compiled step.

    Attributes:
        number: of the line, from 1.
        text: the line.
        operation: the operation that it computes; "" for lines that compute none.
        layers: whom that belongs to: "hidden", "hidden, backward", "loss"; several for a kernel of several operations.
        location: the line of yours that built it, ``file.py:12``; "" if it is not known.
    """

    number: int
    text: str
    operation: str = ""
    layers: tuple[str, ...] = ()
    location: str = ""

    def __str__(self) -> str:
        if not self.operation:
            return self.text
        whose = " + ".join(self.layers)
        where = ", ".join(part for part in (self.operation, os.path.basename(self.location)) if part)
        return f"{self.text:<{_WIDTH}}  # {f'{whose}: ' if whose else ''}{where}"


@dataclass(frozen=True, slots=True)
class ModelExplanation:
    """A compiled step: `str` of it is the program with the layers, or what the passes did if that was asked for.

    Attributes:
        model: the model's name.
        kind: "train", "test" or "predict".
        source: the program.
        lines: its lines.
        passes: what each pass of the compiler did; "" unless that was asked for.
    """

    model: str
    kind: str
    source: str
    lines: tuple[ExplainedLine, ...]
    passes: str = ""

    def __str__(self) -> str:
        return self.passes or "\n".join(str(line) for line in self.lines) + "\n"


# --- what `Model` calls ---------------------------------------------------------------------------------------------


def profile_step(model: Any, data: Sequence[Any], kind: str, batch_size: int | None, runs: int) -> ModelProfile:
    """`Model.profile`."""
    if data[0] is None:
        raise ValueError(
            f"profile() runs steps of model {model.name!r}: give it data, x and y as for fit(); got x=None."
        )
    batch = _first_batch(model, data, kind, batch_size, "profile")
    program = model._steps[kind].prepare(batch)
    with _state_kept(model):
        found = profile_program(program, lambda: program(*batch.leaves), runs)
    return ModelProfile(model.name, kind, found.seconds, layer_times(model, found.lines), found.between, found)


def explain_step(model: Any, data: Sequence[Any], kind: str, batch_size: int | None, passes: bool) -> ModelExplanation:
    """`Model.explain`."""
    if data[0] is None and not passes:
        _check(model, kind, "explain")
        program, log = model._steps[kind].latest, None
        if program is None:
            raise ValueError(
                f"explain(): model {model.name!r} has no compiled {kind} step yet. Give data, x and y as for fit(), or "
                "call fit(), evaluate() or predict() first."
            )
    elif data[0] is None:
        raise ValueError("explain(passes=True) compiles a step anew: give data, x and y as for fit(); got x=None.")
    else:
        batch = _first_batch(model, data, kind, batch_size, "explain")
        program = model._steps[kind].prepare(batch)
        log = None
        if passes:
            with recording() as log:
                program = model._steps[kind].build_anew(batch)
    told = "" if log is None else format_pass_log(log)
    return ModelExplanation(model.name, kind, program.source, tuple(_explained(model, program)), told)


def _check(model: Any, kind: str, what: str) -> None:
    if kind not in _KINDS:
        raise ValueError(f"{what}(): kind must be 'train', 'test' or 'predict', got {kind!r}.")
    if kind != "predict":
        model._prepare(what)
    elif in_explicit_graph():
        raise RuntimeError(f"{what}() runs at once, but a graph is being built here. Call it outside of that.")


def _first_batch(model: Any, data: Sequence[Any], kind: str, batch_size: int | None, what: str) -> Batch:
    _check(model, kind, what)
    x, y, sample_weight = data
    batch = next(iter(as_data(x, y, sample_weight, batch_size=batch_size, shuffle=False).epoch()), None)
    if batch is None:
        raise ValueError(f"{what}(): the data gave no batch.")
    if kind == "predict":
        return without_targets(batch)
    if not model._checked_batch:
        model._check_batch(batch)
    return batch


@contextmanager
def _state_kept(model: Any) -> Generator[None]:
    """Whatever is run inside, the model's variables and the random state are as before behind it."""
    parts, random = stateful_parts(model), random_state()
    before = {
        path: part.state if isinstance(part, SeedGenerator) else np.array(part.read_value())
        for path, part in parts.items()
    }
    try:
        yield
    finally:
        for path, part in parts.items():
            if isinstance(part, SeedGenerator):
                part.state = before[path]
            else:
                part.write_value(before[path][()] if before[path].ndim == 0 else before[path])
        set_random_state(random)


# --- by layer -------------------------------------------------------------------------------------------------------


@dataclass
class _Sum:
    """The time of a layer, as it is summed up: of its own operations, and by name of the layers inside."""

    forward: float = 0.0
    backward: float = 0.0
    bytes: float = 0.0
    inside: dict[str, _Sum] = field(default_factory=dict)

    def told(self, name: str, classes: Mapping[str, str]) -> LayerTime:
        inner = tuple([own.told(each, classes) for each, own in _in_order(self.inside, classes)])
        forward = self.forward + sum(each.forward for each in inner)
        backward = self.backward + sum(each.backward for each in inner)
        size = round(self.bytes) + sum(each.bytes for each in inner)
        return LayerTime(name, classes.get(name, ""), forward, backward, size, inner)


def layer_times(model: Any, lines: Iterable[ProfiledLine]) -> tuple[LayerTime, ...]:
    """Return the time of each layer, from those of its operations.

    Args:
        model: the model.
        lines: the operations of a step.

    Returns:
        The layers that have operations, in their order in the step; then loss, optimizer, metrics, and the rest.
    """
    layers, others = _Sum(), {name: _Sum() for name in (*_OTHERS, _ELSEWHERE)}
    met: set[str] = set()
    for line in lines:
        parts = line.parts or (Part(""),)
        for part in parts:
            own = _layer(layers, model, part.path) if part.kind == "layer" else others[part.kind or _ELSEWHERE]
            met.add(part.kind or _ELSEWHERE)
            share = line.seconds / len(parts)
            own.backward += share if part.is_backward else 0.0
            own.forward += 0.0 if part.is_backward else share
            own.bytes += line.bytes / len(parts)
    classes = _classes(model)
    found = [own.told(name, classes) for name, own in _in_order(layers.inside, classes)]
    return (*found, *[own.told(name, {}) for name, own in others.items() if name in met])


def _layer(layers: _Sum, model: Any, path: str) -> _Sum:
    found = layers
    for name in _names(model, path):
        found = found.inside.setdefault(name, _Sum())
    return found


def _names(model: Any, path: str) -> list[str]:
    """The names on the way to a layer. The model is on all of them, and named only where it computes by itself."""
    first, *names = path.split("/")
    return names if names and first == model.name else [first, *names]


def _in_order(inside: Mapping[str, _Sum], classes: Mapping[str, str]) -> list[tuple[str, _Sum]]:
    """The layers in the order in which the model has them; others behind."""
    order = {name: number for number, name in enumerate(classes)}
    return sorted(inside.items(), key=lambda item: order.get(item[0], len(order)))


def _classes(model: Any) -> dict[str, str]:
    """The classes of all layers by name, in the order of the layers."""
    return {layer.name: type(layer).__name__ for layer in model._flatten_layers()}


def _explained(model: Any, program: Any) -> Generator[ExplainedLine]:
    for number, text in enumerate(program.source.splitlines(), 1):
        origin = program.origins.get(number)
        if origin is None:
            yield ExplainedLine(number, text)
            continue
        operation = origin.operation
        location = operation.location
        parts = () if location is None else location.parts
        whose = tuple(dict.fromkeys(told for told in (_told(model, part) for part in parts) if told))
        yield ExplainedLine(number, text, operation.name, whose, "" if location is None else str(location))


def _told(model: Any, part: Part) -> str:
    name = "/".join(_names(model, part.path)) if part.kind == "layer" else part.kind
    return f"{name}, backward" if name and part.is_backward else name


def _rows(layers: Iterable[LayerTime], total: float, depth: int) -> Generator[tuple[str, ...]]:
    for line in layers:
        name = "  " * depth + line.name + (f" ({line.class_name})" if line.class_name else "")
        share = f"{line.seconds / total:.1%}"
        yield name, _ms(line.forward), _ms(line.backward) if line.backward else "", share, f"{line.bytes:,}"
        yield from _rows(line.inside, total, depth + 1)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
