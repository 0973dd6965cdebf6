"""Reports on a model's compiled step and on its time by layer: `Model.explain` and `Model.profile`.

While a step is traced, each operation notes the part of the model that it is built for: the layer whose call is
running, the loss, the optimizer, the metrics; and of an operation of the gradient, the layer whose operation it is the
gradient of (`engine.graph.provenance`). Passes keep that. Of a kernel that computes several operations, each of them
counts for an equal share of its time and bytes.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.common.html import FLAME_STYLE, escape, page, table, view
from ...engine.graph import in_explicit_graph
from ...engine.graph.provenance import Part
from ...engine.graph.state.aligned import own_copy
from ...engine.ops.random.keys import SeedGenerator
from ...engine.passes.framework.log import recording
from ...engine.runtime.program import Program
from ...engine.session.explanation import llvm_of, side_by_side, summary_of
from ...engine.session.pass_report import format_pass_log
from ...engine.session.profile import KernelTime, Profile, ProfiledLine, UserLine, profile_program
from ...engine.session.speedscope import Stack, write_speedscope
from ..data.adapters import Batch, as_data
from ..saving.checkpointing import random_state, set_random_state, stateful_parts
from .fit_data import without_targets

if TYPE_CHECKING:
    from ...engine.graph import Variable
    from ..model_types import ModelData
    from ..structures import Rows
    from .base_model import BaseModel


_KINDS = ("train", "test", "predict")
_OTHERS = ("loss", "optimizer", "metrics")
_ELSEWHERE = "elsewhere"
_BETWEEN = "between operations"
_WIDTH = 56  # of a line of the program in a listing
_TITLES = ("layer", "forward ms", "backward ms", "share", "bytes")
_BATCHES = 5  # that are waited for, to find what a batch takes


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The time of a layer in a step, with the layers inside it.

    Attributes:
        name: the layer's name; "loss", "optimizer", "metrics", or "elsewhere" for what a step of your own computes.
        class_name: the layer's class; "" for what is not a layer.
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


@dataclass(frozen=True, slots=True, repr=False)
class ModelProfile:
    """The time of a step by layer: `str` of it is a table.

    Attributes:
        model: the model's name.
        kind: "train", "test" or "predict".
        seconds: what a step takes without clocks around its operations; the median.
        layers: the layers in the order of the step, then loss, optimizer and metrics. With `between` they add up to
            `seconds`.
        between: what is between the operations of a step.
        steps: the same by operation, by kernel and by your lines.
        data: seconds that the loop waits for a batch, beside the step.
        weights_bytes: of the model's weights.
        optimizer_bytes: of the optimizer's variables.
    """

    model: str
    kind: str
    seconds: float
    layers: tuple[LayerTime, ...]
    between: float
    steps: Profile
    data: float = 0.0
    weights_bytes: int = 0
    optimizer_bytes: int = 0

    def __repr__(self) -> str:
        return str(self)

    @property
    def total(self) -> float:
        """The seconds of layers, loss, optimizer, metrics and `between` together."""
        return sum(line.seconds for line in self.layers) + self.between

    @property
    def warning(self) -> str:
        """A note that clocks more than double a step; "" where they do not."""
        return self.steps.warning

    def phases(self) -> dict[str, float]:
        """Return the seconds of forward, backward, optimizer, metrics, the rest of a step, and the wait for data.

        The loss is part of forward and backward.
        """
        own = {line.name: line for line in self.layers if line.name in (*_OTHERS, _ELSEWHERE) and not line.class_name}
        computing = [line for line in self.layers if line.name not in own or line.name in ("loss", _ELSEWHERE)]
        found = {
            "forward": sum(line.forward for line in computing),
            "backward": sum(line.backward for line in computing),
            **{name: own[name].seconds for name in ("optimizer", "metrics") if name in own},
            _BETWEEN: self.between,
            "data": self.data,
        }
        return {name: seconds for name, seconds in found.items() if seconds or name == "forward"}

    def by_user_line(self) -> list[UserLine]:
        """Return the profile by the lines that built the operations, what took longest first."""
        return self.steps.by_user_line()

    def by_kernel(self) -> list[KernelTime]:
        """Return the profile by kind of kernel, what took longest first."""
        return self.steps.by_kernel()

    def stacks(self) -> list[Stack]:
        """Return the profile as parts of a flame graph: phase, layers, your line, and the operation in it."""
        found: list[Stack] = []
        for line in self.steps.lines:
            parts = line.parts or (Part(""),)
            for part in parts:
                names = _names_of(self.model, part.path) if part.kind == "layer" else [part.kind or _ELSEWHERE]
                phase = part.kind if part.kind in ("optimizer", "metrics") else ""
                phase = phase or ("backward" if part.is_backward else "forward")
                frames = (
                    phase,
                    *[name for name in names if name != phase],
                    line.location or _ELSEWHERE,
                    line.operation,
                )
                found.append(Stack(frames, line.seconds / len(parts), line.bytes / len(parts)))
        return [*found, Stack((_BETWEEN,), self.between, 0), Stack(("data",), self.data, 0)]

    def to_speedscope(self, path: str | os.PathLike[str]) -> None:
        """Write flame graphs of time and bytes that https://www.speedscope.app shows.

        Args:
            path: of the file; the name usually ends with ``.speedscope.json``.
        """
        write_speedscope(path, f"{self.kind} step of {self.model}", self.stacks())

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page with the flame graph and the tables, and write it where a path is given."""
        title = f"One {self.kind} step of {self.model!r}"
        tables = self.steps.html_tables(self.stacks())
        text = page(title, *self._html(), "<h2>By layer</h2>", self._layer_table(), *tables, style=FLAME_STYLE)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _html(self) -> list[str]:
        warning = f'<p class="warn">{escape(self.warning)}</p>' if self.warning else ""
        whole = sum(self.phases().values()) or 1.0
        phases = "".join(
            f'<tr><td>{escape(name)}</td><td class="n">{_ms(seconds)} ms</td>'
            f'<td><span class="bar" style="width:{200 * seconds / whole:.0f}px"></span></td></tr>'
            for name, seconds in self.phases().items()
        )
        return [f"<p>{escape(self._describe())}<br>{escape(self._memory())}</p>{warning}", f"<table>{phases}</table>"]

    def _layer_table(self) -> str:
        return table(_TITLES, _rows(self.layers, self.total or 1.0, 0), numbers=4)

    def _repr_html_(self) -> str:
        return view(*self._html(), self._layer_table())

    def _describe(self) -> str:
        return (
            f"One {self.kind} step of {self.model!r}: {_ms(self.seconds)} ms (median of {self.steps.runs}); "
            f"with clocks {_ms(self.steps.clocked + self.steps.clocks)} ms"
        )

    def _memory(self) -> str:
        held = f"weights {self.weights_bytes:,} bytes, optimizer {self.optimizer_bytes:,} bytes"
        return f"{self.steps.describe_memory()}; {held}"

    def __str__(self) -> str:
        total = self.total or 1.0
        rows = [*_rows(self.layers, total, 0), (_BETWEEN, "", "", f"{self.between / total:.1%}", "")]
        titles = _TITLES
        widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
        lines = [f"{row[0]:<{widths[0]}}" + "".join(f"  {row[k]:>{widths[k]}}" for k in range(1, 5)) for row in rows]
        title = f"{titles[0]:<{widths[0]}}" + "".join(f"  {titles[k]:>{widths[k]}}" for k in range(1, 5))
        phases = ", ".join(f"{name} {_ms(seconds)}" for name, seconds in self.phases().items())
        warning = [self.warning] if self.warning else []
        ends = [f"in ms: {phases}", self._memory()]
        return "\n".join([f"{self._describe()}:", *warning, title, *lines, *ends]) + "\n"


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


@dataclass(frozen=True, slots=True, repr=False)
class ModelExplanation:
    """A compiled step: `str` of it is a summary, and then the program with the layers.

    Attributes:
        model: the model's name.
        kind: "train", "test" or "predict".
        source: the program.
        lines: its lines.
        passes: what each pass of the compiler did; `str` gives it instead if that was asked for.
        summary: loops, what was moved out of them, kernels, products, and what stayed where it was and why.
    """

    model: str
    kind: str
    source: str
    lines: tuple[ExplainedLine, ...]
    passes: str
    summary: str
    _program: Any
    _gives_passes: bool = False

    def __repr__(self) -> str:
        return str(self)

    @property
    def llvm(self) -> str:
        """The kernels and native regions of the step, as LLVM IR; "" where it has none."""
        return llvm_of(self._program)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page with your lines, the program and its kernels side by side, and write it where a path is given.

        A click on a line marks what was built from it, and leads there.
        """
        title = f"The {self.kind} step of {self.model!r}"
        text = side_by_side(title, self.summary, self._program, self.llvm)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _repr_html_(self) -> str:
        listing = "\n".join(str(line) for line in self.lines)
        return view(
            f"<pre>{escape(self.summary)}</pre>",
            f"<details><summary>the program</summary><pre>{escape(listing)}</pre></details>",
        )

    def __str__(self) -> str:
        if self._gives_passes:
            return self.passes
        return self.summary + "\n" + "\n".join(str(line) for line in self.lines) + "\n"


# --- what `Model` calls ---------------------------------------------------------------------------------------------


def profile_step(
    model: BaseModel,
    data: tuple[ModelData | None, Rows | None, Rows | None],
    kind: str | None,
    batch_size: int | None,
    runs: int | None,
) -> ModelProfile:
    """Profile a model; see `Model.profile`."""
    if data[0] is None:
        raise ValueError(
            f"profile() runs steps of model {model.name!r}: give it data, x and y as for fit(); got x=None."
        )
    kind = kind or _kind_for(model, data)
    batch, waited = _first_batch(model, data, kind, batch_size, "profile")
    program = model._steps[kind].prepare(batch)
    with _state_kept(model):
        found = profile_program(program, lambda: program(*batch.leaves), runs)
    optimizer = getattr(model, "optimizer", None) if kind == "train" else None
    sizes = _bytes_of(model.weights), _bytes_of(() if optimizer is None else optimizer.variables)
    layers = layer_times(model, found.lines)
    return ModelProfile(model.name, kind, found.seconds, layers, found.between, found, waited, *sizes)


def _kind_for(model: BaseModel, data: tuple[ModelData | None, Rows | None, Rows | None]) -> str:
    """Return the step that data are for: arrays without targets are predicted from, for no loss could be computed."""
    x, y, _ = data
    is_arrays = hasattr(x, "__array__") or isinstance(x, (list, tuple, dict))
    return "predict" if y is None and (not model.compiled or (is_arrays and _holds_arrays(x))) else "train"


def _holds_arrays(x: object) -> bool:
    """Test whether `x` holds the inputs of a model, and not batches of inputs and targets."""
    leaves: list[object] = list(x.values() if isinstance(x, dict) else x) if isinstance(x, (list, tuple, dict)) else [x]
    return not any(isinstance(leaf, tuple) for leaf in leaves)


def _bytes_of(variables: Iterable[Variable]) -> int:
    return sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables if v.shape is not None)


def explain_step(
    model: BaseModel,
    data: tuple[ModelData | None, Rows | None, Rows | None],
    kind: str,
    batch_size: int | None,
    passes: bool,
) -> ModelExplanation:
    """Explain a model; see `Model.explain`."""
    batch: Batch | None = None
    if data[0] is None:
        _check(model, kind, "explain")
        latest = model._steps[kind].latest
        if latest is None:
            raise ValueError(
                f"explain(): model {model.name!r} has no compiled {kind} step yet. Give data, x and y as for fit(), or "
                "call fit(), evaluate() or predict() first."
            )
        with recording() as log:
            program = latest.anew() if isinstance(latest, Program) else latest
    else:
        batch, _ = _first_batch(model, data, kind, batch_size, "explain")
        model._steps[kind].prepare(batch)
        with recording() as log:
            program = model._steps[kind].build_anew(batch)
    lines = tuple(_explained(model, program))
    rows = model._steps[kind].describe_rows(batch) if kind == "predict" else []
    report, summary = format_pass_log(log), summary_of(program, log, rows)
    # pyrefly: ignore[missing-attribute] - set on the function
    return ModelExplanation(model.name, kind, program.source, lines, report, summary, program, passes)


def _check(model: BaseModel, kind: str, what: str) -> None:
    if kind not in _KINDS:
        raise ValueError(f"{what}(): kind must be 'train', 'test' or 'predict', got {kind!r}.")
    if kind != "predict":
        model._prepare(what)
    elif in_explicit_graph():
        raise RuntimeError(f"{what}() runs at once, but a graph is being built here. Call it outside of that.")


def _first_batch(
    model: BaseModel,
    data: tuple[ModelData | None, Rows | None, Rows | None],
    kind: str,
    batch_size: int | None,
    what: str,
) -> tuple[Batch, float]:
    """Return the first batch of the data, and how long a batch is waited for."""
    _check(model, kind, what)
    x, y, sample_weight = data
    batches = iter(as_data(x, y, sample_weight, batch_size=batch_size, shuffle=False).epoch())
    batch, *waits = _timed_next(batches)
    if what == "profile" and batch is not None and not isinstance(x, Iterator):  # which would be used up
        for _ in range(_BATCHES - 1):
            other, seconds = _timed_next(batches)
            waits += [seconds] if other is not None else []
    if batch is None:
        raise ValueError(f"{what}(): the data gave no batch.")
    waited = statistics.median(waits)
    if kind == "predict":
        return without_targets(batch), waited
    if not model._checked_batch:
        model._check_batch(batch)
    return batch, waited


def _timed_next(batches: Iterator[Batch]) -> tuple[Batch | None, float]:
    began = time.perf_counter()
    found = next(batches, None)
    return found, time.perf_counter() - began


@contextmanager
def _state_kept(model: BaseModel) -> Generator[None]:
    """Restore the model's variables and the random state after the block, whatever is run inside."""
    parts, random = stateful_parts(model), random_state()
    before = {
        path: part.state if isinstance(part, SeedGenerator) else own_copy(part.stored_value())
        for path, part in parts.items()
    }
    try:
        yield
    finally:
        for path, part in parts.items():
            if isinstance(part, SeedGenerator):
                part.state = before[path]
            else:
                part.write_value(before[path])
        set_random_state(random)


# --- by layer -------------------------------------------------------------------------------------------------------


@dataclass
class _Sum:
    """The time of a layer, as it is summed up: of its own operations, and by name of the layers inside."""

    forward: float = 0.0
    backward: float = 0.0
    bytes: float = 0.0
    inside: dict[str, _Sum] = field(default_factory=dict)

    def layer_time(self, name: str, classes: Mapping[str, str]) -> LayerTime:
        inner = tuple([own.layer_time(each, classes) for each, own in _in_order(self.inside, classes)])
        forward = self.forward + sum(each.forward for each in inner)
        backward = self.backward + sum(each.backward for each in inner)
        size = round(self.bytes) + sum(each.bytes for each in inner)
        return LayerTime(name, classes.get(name, ""), forward, backward, size, inner)


def layer_times(model: BaseModel, lines: Iterable[ProfiledLine]) -> tuple[LayerTime, ...]:
    """Return the time of each layer, from those of its operations.

    Args:
        model: the model.
        lines: the operations of a step.

    Returns:
        The layers that have operations, in their order in the step; then loss, optimizer, metrics, and the rest.
    """
    layers, others = _Sum(), {name: _Sum() for name in (*_OTHERS, _ELSEWHERE)}
    kinds: set[str] = set()
    for line in lines:
        parts = line.parts or (Part(""),)
        for part in parts:
            own = _layer(layers, model, part.path) if part.kind == "layer" else others[part.kind or _ELSEWHERE]
            kinds.add(part.kind or _ELSEWHERE)
            share = line.seconds / len(parts)
            own.backward += share if part.is_backward else 0.0
            own.forward += 0.0 if part.is_backward else share
            own.bytes += line.bytes / len(parts)
    classes = _classes(model)
    found = [own.layer_time(name, classes) for name, own in _in_order(layers.inside, classes)]
    return (*found, *[own.layer_time(name, {}) for name, own in others.items() if name in kinds])


def _layer(layers: _Sum, model: BaseModel, path: str) -> _Sum:
    found = layers
    for name in _names(model, path):
        found = found.inside.setdefault(name, _Sum())
    return found


def _names(model: BaseModel, path: str) -> list[str]:
    """Return the names on the way to a layer. The model is on all of them, and named if it computes by itself."""
    return _names_of(model.name, path)


def _names_of(model: str, path: str) -> list[str]:
    first, *names = path.split("/")
    return names if names and first == model else [first, *names]


def _in_order(inside: Mapping[str, _Sum], classes: Mapping[str, str]) -> list[tuple[str, _Sum]]:
    """Return the layers in the order in which the model has them; others behind."""
    order = {name: number for number, name in enumerate(classes)}
    return sorted(inside.items(), key=lambda item: order.get(item[0], len(order)))


def _classes(model: BaseModel) -> dict[str, str]:
    """Return the classes of all layers by name, in the order of the layers."""
    return {layer.name: type(layer).__name__ for layer in model._flatten_layers()}


def _explained(model: BaseModel, program: Any) -> Generator[ExplainedLine]:
    for number, text in enumerate(program.source.splitlines(), 1):
        origin = program.origins.get(number)
        if origin is None:
            yield ExplainedLine(number, text)
            continue
        operation = origin.operation
        location = operation.location
        parts = () if location is None else location.parts
        whose = tuple(dict.fromkeys(name for name in (_describe(model, part) for part in parts) if name))
        yield ExplainedLine(number, text, operation.name, whose, "" if location is None else str(location))


def _describe(model: BaseModel, part: Part) -> str:
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
