"""Mixed precision: layers compute in half precision, with weights in float32.

>>> import anabranch as ab
>>> ab.mixed_precision.set_global_policy("mixed_bfloat16")
>>> layer = ab.layers.Dense(2)
>>> layer.compute_dtype, layer.variable_dtype
('bfloat16', 'float32')
>>> ab.mixed_precision.set_global_policy("float32")
"""

from __future__ import annotations

from ..engine.objects.policies import DTypePolicy, dtype_policy, set_dtype_policy
from ..optim import LossScaleOptimizer

Policy = DTypePolicy
global_policy = dtype_policy
set_global_policy = set_dtype_policy

__all__ = [
    "DTypePolicy",
    "LossScaleOptimizer",
    "Policy",
    "dtype_policy",
    "global_policy",
    "set_dtype_policy",
    "set_global_policy",
]
