"""Tests for what users add: ops, functions, layers, optimizers, callbacks.

Each takes what is to be tested and raises an AssertionError that lists all that is wrong. To make an op of your own:
subclass `anabranch.ops.Op` as a frozen dataclass with `infer`, `run`, `grad` and `samples` (its name is registered by
that), build it with `anabranch.ops.apply(MyOp(), x)`, and test it by `anabranch.testing.check_op(MyOp)`.

>>> from dataclasses import dataclass
>>> import numpy as np
>>> import anabranch as ab
>>> @dataclass(frozen=True)
... class Cubed(ab.ops.Op):
...     def infer(self, x):
...         return x
...     def run(self, xp, x):
...         return x * x * x
...     def grad(self, node, dy):
...         return (3 * node.inputs[0] * node.inputs[0] * dy,)
...     @classmethod
...     def samples(cls):
...         for x in (np.array([[1, -2]], "float32"), np.float32(3), np.zeros((0, 2), "float32")):
...             yield ab.ops.Sample(cls(), [x], np.power(x, 3))
>>> counts = ab.testing.check_op(Cubed, verbose=False)
>>> ab.ops.apply(Cubed(), ab.constant(2.0))
Tensor(8., dtype=float32)
"""

from ...engine.testing import Blame, bisect, check_gradients, check_op
from .callback_check import check_callback
from .layer_check import check_layer
from .optimizer_check import check_optimizer

__all__ = ["Blame", "bisect", "check_callback", "check_gradients", "check_layer", "check_op", "check_optimizer"]
