"""Reports of where a NaN came from: the guard of `ab.debugging`, with the layer, the epoch, the batch and the step."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...engine.runtime import numerics

if TYPE_CHECKING:
    from ...layers.core.layer import Layer
    from .base_model import BaseModel


@contextmanager
def guard_restored() -> Generator[None]:
    """Restore the guard after the block, whatever turns it on inside."""
    before = numerics.is_enabled()
    try:
        yield
    finally:
        (numerics.enable_check_numerics if before else numerics.disable_check_numerics)()


def located(error: FloatingPointError, model: BaseModel, title: str, batch: int) -> FloatingPointError:
    """Return the guard's error, with the place in the model and in the training where it happened.

    Args:
        error: what a step raised.
        model: the model.
        title: the epoch, as the progress bar names it; empty in `evaluate`.
        batch: the batch, counted from 0.
    """
    lines = [str(error)]
    named = re.search(r"'([^']+)' \(|Variable '([^']+)'", lines[0])
    layer = None if named is None else _layer_of(model, named.group(1) or named.group(2))
    if layer is not None:
        lines.append(f"This is in layer {layer.name!r} ({type(layer).__name__}).")
    optimizer = getattr(model, "optimizer", None)
    steps = "" if optimizer is None else f", after {int(optimizer.iterations)} steps of the optimizer"
    lines.append(f"It happened in {title.lower() + ', ' if title else ''}batch {batch} (counted from 0){steps}.")
    found = FloatingPointError("\n".join(lines))
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    return found


def _layer_of(model: BaseModel, name: str) -> Layer | None:
    """Return the innermost layer among the parts of an operation's name; None if there is none."""
    layers = {layer.name: layer for layer in model._flatten_layers(include_self=False)}
    found = [layers[part] for part in name.split("/") if part in layers]
    return found[-1] if found else None
