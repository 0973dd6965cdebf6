"""W4, our side: iterations per second of `ab.while_loop` with a scalar and with a 64x64 matrix product body, all
iterations in one call. The scalar body keeps float32 and int32 semantics, as the peers' does."""

from __future__ import annotations

from typing import Any

import w04_while_rate as peer

import anabranch as ab

Record = dict[str, Any]


def anabranch(params: dict[str, Any]) -> Record:
    start, count = peer.start(params), params["n"]
    with ab.Graph().as_default():
        x0 = ab.placeholder(start.shape, "float32", "x0")
        factor = ab.constant(peer.ortho())

        def scalar(i: Any, x: Any) -> tuple[Any, Any]:
            return i + 1, x * 0.999 + 1.0

        def matmul(i: Any, x: Any) -> tuple[Any, Any]:
            return i + 1, ab.ops.matmul(x, factor)

        body = scalar if params["body"] == "scalar" else matmul
        _, last = ab.while_loop(lambda i, x: i < count, body, (0, x0))
        with ab.Session() as session:
            run = session.make_callable(last, [x0])
            return peer.go(lambda: run(peer.start(params)), params)


OURS = {"anabranch": anabranch}
