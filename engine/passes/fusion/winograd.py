"""Compute convolutions with 3 x 3 taps by Winograd's minimal filtering, with fewer multiplications.

The rule sees shapes alone: the kernels say which tile pays for them, if any. What no kernel can do stays as it is.
"""

from __future__ import annotations

from ...ops.internal.winograd import Winograd
from ...ops.neural.convolution import Conv, ConvFilterGrad, ConvInputGrad
from ..framework.driver import Change, Rule
from ..framework.log import note_kept
from ..framework.patterns import Match, op
from ..framework.rewriter import Rewriter
from .fusible import FusionRule


def rules_for(kernels: FusionRule) -> tuple[Rule, ...]:
    """Return the rule for convolutions for which `kernels` has a tile."""

    def transform(match: Match, step: Rewriter) -> Change | None:
        convolution = match["convolution"]
        tile = kernels.winograd_tile(convolution)
        if not tile:
            note_kept("winograd", convolution, "its windows, channels or sizes make the direct way faster")
            return None
        step.update(convolution, Winograd(convolution.op, tile))
        return Change(convolution, f"is computed by Winograd's F({tile} x {tile}, 3 x 3)")

    pattern = op(Conv, ConvInputGrad, ConvFilterGrad, name="convolution", may_wait=True)
    return (Rule("convolutions by transforms", pattern, transform),)


__all__ = ["rules_for"]
