"""W9, our side: the peak memory of W1's training step at T=1000, by the layer and by the hand-written loop."""

from __future__ import annotations

from w01 import OURS

__all__ = ["OURS"]
