"""`ProgramsBySize`: the programs of a step, where shapes alone decide which one computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.graph import Graph, Operation
from ..graph.spec import TensorSpec
from ..graph.tensor import Symbol
from ..place.devices import devices_version
from .programs import make_program

_MOST_PROGRAMS = 256
_ALL_UP_TO = (64, 32)  # sizes of axis 0, of others: larger ones are known to a program where they are powers of two


class ProgramsBySize:
    """Compiles a graph for the shapes that are fed; how numbers are rounded depends on the program.

    A program for exactly some sizes takes a half to a tenth of the time of one for all, and from 10 milliseconds on to
    be compiled. So sizes that come often, or that a server makes, are known to a program of their own: up to 64 rows,
    up to 32 along other axes, and powers of two. Other sizes stay open. Which requests came before makes no difference
    to that. Where there are too many programs, the one that was not used for the longest time goes, and is compiled
    again when it is needed.

    Args:
        graph: the graph.
        targets: what is fetched, and operations to run.
        feeds: the tensors that are fed.
    """

    def __init__(self, graph: Graph, targets: Sequence[Symbol | Operation], feeds: Sequence[Symbol]) -> None:
        self._graph, self._targets, self._feeds = graph, targets, feeds
        self._devices = devices_version()
        self._programs: dict[Any, Any] = {}  # by sizes, the latest last

    def get(self, arrays: Sequence[Any]) -> Any:
        """The program for arrays of these shapes."""
        if self._devices != devices_version():  # others have been declared
            self._devices = devices_version()
            self._programs.clear()
        sizes: Any = tuple([array.shape for array in arrays])
        if sizes not in self._programs:
            sizes = tuple(map(self._known, self._feeds, sizes))
        program = self._programs.pop(sizes, None)
        if program is None:
            specs = [TensorSpec(known, feed.dtype) for known, feed in zip(sizes, self._feeds, strict=True)]
            program = make_program(self._graph, self._targets, self._feeds, specs)
        self._programs[sizes] = program
        if len(self._programs) > _MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program

    @staticmethod
    def _known(feed: Symbol, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return the sizes that are known to a program for a shape, None for those that stay open."""
        declared = feed.shape or (None,) * len(shape)
        return tuple(
            size if own is not None or size <= _ALL_UP_TO[axis > 0] or size.bit_count() == 1 else None
            for axis, (size, own) in enumerate(zip(shape, declared, strict=True))
        )
