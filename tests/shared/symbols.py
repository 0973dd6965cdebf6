"""Tensors of graphs as what they are: what ops return is annotated as `Tensor`, and the engine takes `Symbol`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from anabranch.engine.graph import Operation, Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of

AnyTensor = TypeVar("AnyTensor", bound=Tensor)  # keys of mappings are invariant


def symbols_of(tensors: Iterable[Tensor]) -> list[Symbol]:
    return [symbol_of(tensor) for tensor in tensors]


def targets_of(targets: Iterable[Tensor | Operation]) -> list[Symbol | Operation]:
    return [target if isinstance(target, Operation) else symbol_of(target) for target in targets]


def feeds_of(feeds: Mapping[AnyTensor, Any]) -> dict[Symbol, Any]:
    return {symbol_of(tensor): value for tensor, value in feeds.items()}
