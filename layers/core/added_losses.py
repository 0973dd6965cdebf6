"""The losses that layers add: which of them count in a graph, and what those from inside loops and branches come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...engine import ops
from ...engine.common.quick_dataclass import dataclass
from ...engine.control_flow.outside import is_within, total_outside
from ...engine.graph import Graph, Region, Symbol
from ...engine.graph.graph import get_default_graph
from ...engine.graph.provenance import Location
from ...engine.ops.base import TensorLike

if TYPE_CHECKING:
    from .layer import Layer


class _Process:
    has_losses = False  # whether any layer ever added one: until then, calls need not look through their layers


def note_losses_exist() -> None:
    """Note that a layer has added a loss."""
    _Process.has_losses = True


def losses_exist() -> bool:
    """Test whether any layer of this process has added a loss."""
    return _Process.has_losses


@dataclass(frozen=True)
class LostLoss:
    """Stands for a loss that can't be had where losses are asked for.

    Args:
        layer: the name of the layer that added it.
        place: where in the program it was computed.
    """

    layer: str
    place: Location | None

    def error(self) -> ValueError:
        """Return the error to raise where the losses are wanted."""
        return ValueError(
            f"Layer {self.layer!r} added a loss (defined at {self.place}) inside a function that runs compiled, by "
            "vectorized_map, by dynamic_schedule, or by calling itself. It can't be had outside, where `losses` was "
            "read, and would be missing. Return it as a result of that function and add it up outside, or run the "
            "function by map_fn, while_loop or cond, out of which losses come."
        )


def as_term(item: TensorLike) -> TensorLike:
    """Return a loss as it is kept: inside loops and branches as a scalar, which can be summed outside of them."""
    if not isinstance(item, Symbol):
        return ops.convert_to_tensor(item) if isinstance(get_default_graph(), Region) else item
    return ops.sum(item) if isinstance(item.graph, Region) and item.shape != () else item


def note_lost_losses(layers: Iterable[Layer]) -> None:
    """Note, after a call on values, that losses which are symbols were added inside a traced function, and are lost."""
    for layer in layers:
        if layer._added_losses:
            layer._added_losses = [
                LostLoss(layer.name, loss.operation.location) if isinstance(loss, Symbol) else loss
                for loss in layer._added_losses
            ]


def losses_within(graph: Graph, layers: Iterable[Layer]) -> list[TensorLike | LostLoss]:
    """Return the losses that the latest call of each layer added, as `graph` has them.

    What was added inside loops and branches of `graph` counts as often as it was computed: it is summed over
    iterations, and 0 where another branch was taken. Losses of other graphs, and of traces that were thrown away, do
    not count.

    Returns:
        Tensors and arrays, and a `LostLoss` for each that can't be had.
    """
    found: list[TensorLike | LostLoss] = []
    for layer in layers:
        for loss in layer._added_losses:
            if not isinstance(loss, Symbol) or graph.sees(loss):
                found.append(loss)
            elif is_within(graph, loss):
                total = total_outside(graph, loss)
                found.append(LostLoss(layer.name, loss.operation.location) if total is None else total)
    return found
