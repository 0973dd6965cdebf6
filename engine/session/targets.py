"""Runners of the steps of a session that has a target: found by its scheme, and imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from ..common.nest import is_text
from ..graph.graph import Graph, Operation
from ..graph.spec import Spec
from ..graph.tensor import Tensor
from ..place.placement import Placement


class Remote(Protocol):
    """A connection to what runs the steps of a graph elsewhere."""

    def program(
        self,
        graph: Graph,
        targets: Sequence[Tensor | Operation],
        feeds: Sequence[Tensor],
        specs: Sequence[Spec] | None,
        placement: Placement | None,
        lossy: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """Return what runs one step: called with values of `feeds`, it gives those of the tensors among `targets`."""
        ...

    def place(self, resources: Sequence[Any]) -> None:
        """Choose the places of state that has none, as `program` does for that of its graph."""
        ...

    def reset(self, containers: Sequence[str] | None) -> None:
        """Give up what containers hold there, or all of them."""
        ...

    def close(self) -> None:
        """Give the connection up; steps that are under way end."""
        ...


_schemes: dict[str, str] = {}


def register_scheme(scheme: str, module: str) -> None:
    """Name the module that runs sessions whose target is ``scheme://...``: its function ``connect(target)`` does."""
    _schemes[scheme] = module


def connect(target: str) -> Remote:
    """Connect to a target.

    Raises:
        TypeError: it is not a string.
        ValueError: its scheme is not known.
    """
    if not is_text(target):
        raise TypeError(
            f"target={target!r} ({type(target).__name__}): expected a string such as 'grpc://localhost:2203'."
        )
    scheme, separator, _ = target.partition("://")
    if not separator or scheme not in _schemes:
        known = ", ".join(f"'{name}://host:port'" for name in _schemes) or "none"
        raise ValueError(f"target={target!r}: expected the address of a task, {known}, or None for this process.")
    return importlib.import_module(_schemes[scheme]).connect(target)


__all__ = ["Remote", "connect", "register_scheme"]
