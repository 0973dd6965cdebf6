"""The common part of loops and branches: regions, captured inputs, effects, and structures of values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..autodiff.backpropagate import DifferentiatesItself
from ..common.nest import flatten_with_path, pack_as
from ..graph.graph import graph_for
from ..graph.op import Effect, Op
from ..graph.region import Region, merged_effects
from ..graph.spec import ArraySpec, Spec, StoreSpec
from ..graph.tensor import Symbol, Tensor
from ..ops.base import convert_to_tensor
from ..ops.containers.record_value import RecordSpec
from ..ops.containers.records import empty_record
from ..ops.containers.tensor_arrays import ArrayEmpty, array_spec
from ..ops.run_time_shapes import zeros_of
from .tensor_array import TensorArray
from .tensor_store import TensorStore


class RegionOp(DifferentiatesItself, Op):
    """An op that holds regions. Its inputs are its own, then the captured values of each region in turn."""

    no_samples: ClassVar[str] = "holds regions: test_control_flow_pitfalls, test_random_programs"

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = tuple(regions)
        for region in regions:
            region.is_built = True

    def effects(self) -> list[Effect]:
        return merged_effects(effect for region in self.regions for effect in region.collect_effects())

    def captured_inputs(self) -> list[Symbol]:
        """Return the outer tensors of all captures, in the order of the inputs."""
        return [outer for region in self.regions for outer, _ in region.captures]


def settle_variables(regions: Sequence[Region], repeats: bool) -> None:
    """Undo hoisted reads of variables that are written where the hoisted value would be stale.

    Args:
        repeats: the regions run many times (a loop), so each run has to read again what any of them writes.
    """
    if not repeats:
        return
    written = [effect.resource for region in regions for effect in region.collect_effects() if effect.writes]
    for region in regions:
        for resource in written:
            region.keep_reads_inside(resource)


def component(value: Any) -> Any:
    """Return a leaf as what is carried: the flow of a TensorArray or TensorStore, otherwise the value itself."""
    return value.flow if isinstance(value, (TensorArray, TensorStore)) else value


def as_component(value: Any, like: Spec | None = None, weak: bool = True) -> Tensor:
    """Return a leaf as a tensor; a Python number takes the dtype of `like`."""
    value = component(value)
    if like is not None and weak and isinstance(value, (bool, int, float)) and _fits_weakly(value, like):
        return convert_to_tensor(value, like.dtype)
    return convert_to_tensor(value)


def _fits_weakly(value: Any, like: Spec) -> bool:
    kind = like.dtype.kind
    if isinstance(value, bool):
        return kind == "b"
    if isinstance(value, int):
        return kind in "iufc" or like.dtype.name == "bfloat16"
    return kind in "fc" or like.dtype.name == "bfloat16"


def rebuild(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """Return `structure` with tensors for its leaves, in the TensorArrays and TensorStores that were there."""
    leaves = [leaf for _, leaf in flatten_with_path(structure)]
    values = [
        leaf.with_flow(tensor) if isinstance(leaf, (TensorArray, TensorStore)) else wrapped(tensor)
        for leaf, tensor in zip(leaves, tensors, strict=True)
    ]
    return pack_as(structure, values)


def wrapped(tensor: Tensor) -> Any:
    """Return a tensor as what users work with: a TensorArray or TensorStore around one that is such."""
    if isinstance(tensor.spec, StoreSpec):
        return TensorStore.from_flow(tensor)
    return TensorArray.from_flow(tensor) if isinstance(tensor.spec, ArraySpec) else tensor


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of a function's positional parameters, for messages in the user's own words."""
    fallback = [f"loop variable {position}" for position in range(count)]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return fallback
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    while len(names) < count and variadic:
        names.append(f"{variadic[0]}[{len(names)}]")
    return names[:count] if len(names) >= count else fallback


def check_takes(what: str, function: Callable[..., Any], count: int, hint: str) -> None:
    """Check that a function can be called with so many positional arguments.

    Args:
        what: whose function it is, and which, for the message.
        function: the function; one without a signature is taken as it is.
        count: the number of arguments.
        hint: how to mend it.

    Raises:
        TypeError: it takes more, or fewer.
    """
    code = getattr(function, "__code__", None)
    if code is not None and code.co_argcount == count and not code.co_kwonlyargcount and inspect.isfunction(function):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        arguments = "1 argument" if count == 1 else f"{count} arguments"
        raise TypeError(f"{what} is called with {arguments}, and takes {signature}. {hint}") from None


def zeros_cotangent(tensor: Tensor) -> Tensor:
    """Return zero, as a cotangent of `tensor`."""
    if isinstance(tensor.spec, RecordSpec):
        return empty_record()
    if isinstance(tensor.spec, ArraySpec):
        return graph_for([tensor]).add(ArrayEmpty(array_spec(tensor)), []).outputs[0]
    return zeros_of(tensor)


__all__ = [
    "RegionOp",
    "as_component",
    "check_takes",
    "component",
    "parameter_names",
    "rebuild",
    "settle_variables",
    "wrapped",
    "zeros_cotangent",
]
