"""Golden regularizer and constraint cases: values, and the gradients of the penalties."""

from __future__ import annotations

from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import keras  # pyright: ignore[reportMissingImports]
from pack import Pack, normal, seeded

REGULARIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "L1": ("L1", {}),
    "L1/strong": ("L1", {"l1": 0.3}),
    "L2": ("L2", {}),
    "L2/strong": ("L2", {"l2": 0.3}),
    "L1L2": ("L1L2", {"l1": 0.1, "l2": 0.2}),
    "l1_l2": ("l1_l2", {"l2": 0.2}),
    "OrthogonalRegularizer/rows": ("OrthogonalRegularizer", {}),
    "OrthogonalRegularizer/columns": ("OrthogonalRegularizer", {"factor": 0.5, "mode": "columns"}),
}
CONSTRAINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "MaxNorm": ("MaxNorm", {"max_value": 1.5}),
    "MaxNorm/rows": ("MaxNorm", {"max_value": 1, "axis": 1}),
    "MaxNorm/axes": ("MaxNorm", {"max_value": 2, "axis": [0, 1]}),
    "NonNeg": ("NonNeg", {}),
    "UnitNorm": ("UnitNorm", {}),
    "UnitNorm/rows": ("UnitNorm", {"axis": 1}),
    "MinMaxNorm": ("MinMaxNorm", {"min_value": 1.2, "max_value": 1.6}),
    "MinMaxNorm/rate": ("MinMaxNorm", {"min_value": 1.2, "max_value": 1.6, "rate": 0.25, "axis": 1}),
}


def make(versions: dict[str, str]) -> None:
    """Writes ``penalties.npz`` and ``penalties.json``."""
    pack = Pack("penalties", versions)
    x = normal(seeded("penalties"), 3, 4)
    for name, (target, kwargs) in REGULARIZERS.items():
        regularizer = getattr(keras.regularizers, target)(**kwargs)
        output, gradient = regularizer(jnp.asarray(x)), jax.grad(regularizer)(jnp.asarray(x))
        outputs = {"output": pack.array(output), "gradient": pack.array(gradient)}
        pack.add(name=name, target=target, kwargs=kwargs, x=pack.array(x), **outputs)
    for name, (target, kwargs) in CONSTRAINTS.items():
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in kwargs.items()}
        output = getattr(keras.constraints, target)(**given)(jnp.asarray(x))
        pack.add(name=name, target=target, kwargs=kwargs, x=pack.array(x), output=pack.array(output))
    pack.write()
