"""What can't be trained by microbatches, and why."""

from __future__ import annotations

from typing import Any

from ...engine.graph.nest import flatten


def check(model: Any) -> None:
    """Check that the step of a model may be cut into microbatches.

    Args:
        model: a model that is compiled; layers that it does not have yet are not looked at.

    Raises:
        ValueError: results would not be those of the whole batch; the message says why.
    """
    layers = model._flatten_layers()
    stateful = [layer.name for layer in layers if getattr(layer, "stateful", False)]
    if stateful:
        raise ValueError(
            f"Pipeline: the layers {stateful} of model {model.name!r} are stateful, and each row of their state "
            "belongs to a row of the batch; a microbatch has fewer rows. Make them with stateful=False, or train "
            "without Pipeline."
        )
    synchronized = [layer.name for layer in layers if getattr(layer, "synchronized", False)]
    if synchronized:
        raise ValueError(
            f"Pipeline: the layers {synchronized} of model {model.name!r} are synchronized, but microbatches of a "
            "pipeline do not wait for each other: each has statistics of its own. Use synchronized=False."
        )
    for loss in flatten(model.loss):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        if reduction not in ("sum_over_batch_size", "mean", "auto"):
            raise ValueError(
                f"Pipeline: loss {getattr(loss, 'name', loss)!r} of model {model.name!r} has reduction={reduction!r}. "
                "The gradient of a batch is the mean of those of its microbatches, weighted by rows, which is right "
                "for losses that are means over rows: use reduction='sum_over_batch_size', with another learning rate "
                "if need be."
            )


__all__ = ["check"]
