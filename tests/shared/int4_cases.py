"""Products of rows and a matrix of four-bit integers: operands, and the definition of the kernels' result."""

from __future__ import annotations

from typing import Any

import numpy as np


def case(rows: int, terms: int, columns: int, block: int) -> list[Any]:
    """Rows, bytes, scales, zero points and groups."""
    rng = np.random.default_rng(rows + terms)
    x = (rng.normal(size=(rows, terms)) * rng.choice([1e-20, 1, 1e10], (rows, 1))).astype("float32")
    groups = -(-terms // block)
    packed = rng.integers(-128, 128, (terms, (columns + 1) // 2), "int8")
    scale = rng.uniform(0.01, 0.1, (groups, columns)).astype("float32")
    zero = rng.integers(-8, 8, (groups, columns), "int8")
    return [x, packed, scale, zero, (np.arange(terms) // block).astype("float32")]


def by_integers(x: Any, packed: Any, scale: Any, zero: Any, group: Any) -> Any:
    """The definition: digits of 24-bit integers, sums of groups as floats, one after the other."""
    columns = scale.shape[1]
    halves = np.stack([(packed << 4) >> 4, packed >> 4], -1).reshape(len(packed), -1)[:, :columns].astype("int32")
    factors = np.float32(1 << 22) / (np.abs(x).max(1, keepdims=True) + np.float32(1e-30))
    integers = np.rint(x * factors).astype("int32")
    digits = []
    for last in (False, False, True):
        digits.append(integers if last else integers.astype("int8").astype("int32"))
        integers = (integers - digits[-1]) >> 8
    total = np.zeros((len(x), columns), "float32")
    for number in range(len(scale)):
        own = group == number
        low, middle, high = (each[:, own] @ (halves[own] - zero[number].astype("int32")) for each in digits)
        sums = high.astype("float32") * np.float32(65536) + (middle * 256 + low).astype("float32")
        total = sums * scale[number] if number == 0 else total + sums * scale[number]
    return total / factors
