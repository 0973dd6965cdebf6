"""Calls of `Model` that ask for a functional one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ...layers.core.calling import tensors_in

if TYPE_CHECKING:
    from ..structures import Tensors


def is_functional_call(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Test whether the arguments of a constructor are the inputs and outputs of a functional model."""
    given = len(args) + ("inputs" in kwargs) + ("outputs" in kwargs)
    if given < 2 or len(args) > 3:
        return False
    inputs, outputs = inputs_and_outputs(args, kwargs)
    return (bool(tensors_in(inputs)) and bool(tensors_in(outputs))) or ("inputs" in kwargs and "outputs" in kwargs)


def inputs_and_outputs(args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[Tensors, Tensors]:
    """Return what a functional model is made of; None for what is not given."""
    positional = [*args, None, None]
    outputs = kwargs.get("outputs", positional[0] if "inputs" in kwargs else positional[1])
    return cast("tuple[Tensors, Tensors]", (kwargs.get("inputs", positional[0]), outputs))
