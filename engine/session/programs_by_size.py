"""`ProgramsBySize`: the programs of a step, where shapes alone decide which one computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ..graph.graph import Graph, Operation
from ..graph.spec import Shape, TensorSpec
from ..graph.tensor import Symbol
from ..place.devices import devices_version
from .programs import make_program

if TYPE_CHECKING:
    from ..machine.gpu.program import GpuProgram
    from ..machine.program import MachineProgram
    from ..runtime.program import Program

_MOST_PROGRAMS, _MOST_SHAPES = 256, 4096  # that are remembered
_ALL_UP_TO = (64, 32)  # sizes of axis 0, of others: larger ones are known to a program where they are powers of two


class ProgramsBySize:
    """Compiles a graph for the shapes that are fed; how numbers are rounded depends on the program.

    A program for exactly some sizes takes a half to a tenth of the time of one for all, and from 10 milliseconds on to
    be compiled. So sizes that come often, or that a server makes, are known to a program of their own: up to 64 rows,
    up to 32 along other axes, and powers of two. Other sizes stay open. Which requests came before makes no difference
    to that, unless `get` is asked to count them. Where there are too many programs, the one that was not used for the
    longest time goes, and is compiled again when it is needed.

    Args:
        graph: the graph.
        targets: what is fetched, and operations to run.
        feeds: the tensors that are fed.
    """

    def __init__(self, graph: Graph, targets: Sequence[Symbol | Operation], feeds: Sequence[Symbol]) -> None:
        self._devices = devices_version()
        self._sizes = lru_cache(_MOST_SHAPES)(partial(_known, [feed.shape for feed in feeds]))
        self._program = lru_cache(_MOST_PROGRAMS)(partial(_made, graph, targets, feeds))
        self._first: set[tuple[Shape, ...]] = set()

    def get(self, arrays: Sequence[Any], first: int = 0) -> Any:
        """Return the program for arrays of these shapes.

        Args:
            arrays: what is fed.
            first: so many shapes of sizes that would stay open have programs of their own, too: those that came first
                in calls with this argument.
        """
        if self._devices != devices_version():  # others have been declared
            self._devices = devices_version()
            self._program.cache_clear()
        shapes = tuple([array.shape for array in arrays])
        sizes = self._sizes(shapes)
        if first and sizes != shapes and (shapes in self._first or len(self._first) < first):
            self._first.add(shapes)
            sizes = shapes
        return self._program(sizes)


def _known(declared: Sequence[Shape], shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int | None, ...], ...]:
    """Return the sizes that are known to a program for arrays of these shapes, None for those that stay open."""
    return tuple(
        tuple(
            size if own is not None or size <= _ALL_UP_TO[axis > 0] or size.bit_count() == 1 else None
            for axis, (size, own) in enumerate(zip(shape, sizes or (None,) * len(shape), strict=True))
        )
        for shape, sizes in zip(shapes, declared, strict=True)
    )


def _made(
    graph: Graph, targets: Sequence[Symbol | Operation], feeds: Sequence[Symbol], sizes: Sequence[Shape]
) -> Program | MachineProgram | GpuProgram:
    specs = [TensorSpec(known, feed.dtype) for known, feed in zip(sizes, feeds, strict=True)]
    return make_program(graph, targets, feeds, specs)
