"""`Winograd`: a convolution that is computed with fewer multiplications. Made by a pass, never by users."""

from __future__ import annotations

from typing import Any, ClassVar

from ...common.quick_dataclass import dataclass
from ...graph.op import Cost
from ..base import Op
from ..neural.convolution import Conv, ConvFilterGrad, ConvInputGrad


@dataclass(frozen=True)
class Winograd(Op):
    """A convolution with 3 x 3 taps, or its gradient in one operand, by transforms of tiles.

    Inputs and output are those of the convolution. The results of a kernel differ from it by rounding; where no kernel
    can be compiled, the convolution runs.

    Attributes:
        convolution: what is computed.
        tile: results of a tile along each axis.
    """

    no_samples: ClassVar[str] = "is made by a pass out of convolutions: test_winograd"
    cost: ClassVar[Cost] = Cost.CONVOLUTION
    convolution: Conv | ConvInputGrad | ConvFilterGrad
    tile: int

    def infer(self, *inputs: Any) -> Any:
        return self.convolution.infer(*inputs)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.convolution.run(xp, *inputs)
