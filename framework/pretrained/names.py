"""Tables of names: which array of a file is which weight of a model, and how it is laid out there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ...engine.common.quick_dataclass import dataclass
from ...engine.graph.state.variable import Variable
from ..structures import Array


@dataclass(frozen=True)
class Name:
    """A weight.

    Attributes:
        file: what it is called in files.
        place: the attributes that lead to it from the model, such as ``"blocks.0.attention.query.kernel"``.
        axes: the axes of the model's weight in the order of the file's; None for the same order.
    """

    file: str
    place: str
    axes: tuple[int, ...] | None = None

    def from_file(self, array: Array) -> Array:
        """Return the model's value."""
        return array if self.axes is None else np.transpose(array, np.argsort(self.axes))

    def to_file(self, array: Array) -> Array:
        """Return the file's value."""
        return np.ascontiguousarray(array if self.axes is None else np.transpose(array, self.axes))


TURNED = (1, 0)  # (out, in) in files of PyTorch
CONVOLUTION = (3, 2, 0, 1)  # (out, in, height, width)


def linear(file: str, place: str, use_bias: bool = True) -> list[Name]:
    """Return a `Dense` that is a ``torch.nn.Linear`` in files."""
    found = [Name(f"{file}.weight", f"{place}._kernel", TURNED)]
    return [*found, Name(f"{file}.bias", f"{place}.bias")] if use_bias else found


def normalisation(file: str, place: str) -> list[Name]:
    """Return a `LayerNormalization`."""
    return [Name(f"{file}.weight", f"{place}.gamma"), Name(f"{file}.bias", f"{place}.beta")]


def weight_at(model: Any, place: str) -> Variable:
    """Return the weight that attributes lead to."""
    found = model
    for part in place.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def differences(
    names: Iterable[Name],
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Array],
    is_ignored: Callable[[str], bool],
) -> list[str]:
    """Describe the arrays that a file lacks, has in addition, or has in another shape.

    Args:
        names: the table.
        shapes: of the model's weights, by the names of files.
        arrays: the file.
        is_ignored: whether a name is passed over.
    """
    found: list[str] = []
    known = {name.file for name in names}
    for name in names:
        if name.file not in arrays:
            found.append(f"missing: {name.file} of shape {shapes[name.file]}")
        elif tuple(arrays[name.file].shape) != shapes[name.file]:
            found.append(
                f"{name.file}: shape {tuple(arrays[name.file].shape)} in the file, expected {shapes[name.file]}"
            )
    found += [f"unknown: {name}" for name in arrays if name not in known and not is_ignored(name)]
    return found
