"""W5, our side: 10,000 additions of scalars in a chain, each executed: floats don't associate, so nothing may fold."""

from __future__ import annotations

from typing import Any

import numpy as np
import w05_dispatch as peer

import anabranch as ab

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    with ab.Graph().as_default():
        x, d = ab.placeholder((), "float32", "x"), ab.placeholder((), "float32", "d")
        y = x
        for _ in range(peer.N):
            y = y + d
        with ab.Session() as session:
            run = session.make_callable(y, [x, d])
            record = peer.go(lambda: run(np.float32(0), np.float32(1)))
            # 1e8 + 1 rounds back to 1e8 in float32: any folding of additions would show.
            if run(np.float32(1e8), np.float32(1)) != np.float32(1e8):
                raise AssertionError("The additions were not executed one by one.")
            return record


OURS = {"anabranch": anabranch}
