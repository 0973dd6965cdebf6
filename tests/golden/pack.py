"""Writing side of the golden data: many small arrays in one npz, the case list beside it in json.

One zip member an array would cost more in headers than in numbers (thousands of arrays of a dozen floats each). So
every array goes into one flat member a dtype, and the json refers to it by text such as ``float32[2,3]@120``: dtype,
shape, offset in elements. Equal contents are kept once. `loader.py` is the reading side.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent


class Pack:
    """Collects the arrays and the cases of one kind, then writes ``<kind>.npz`` and ``<kind>.json``."""

    def __init__(self, kind: str, versions: dict[str, str]) -> None:
        self.kind = kind
        self.versions = versions
        self.cases: list[dict[str, Any]] = []
        self._flat: dict[str, list[np.ndarray]] = {}
        self._sizes: dict[str, int] = {}
        self._offsets: dict[tuple[str, bytes], int] = {}

    def array(self, value: Any) -> str:
        """Stores an array (anything `numpy.asarray` takes) and returns its reference text."""
        value = np.asarray(value)
        if value.dtype == np.float64 or value.dtype == np.int64:
            raise TypeError(f"golden arrays are 32 bits wide, got {value.dtype} with shape {value.shape}")
        dtype = value.dtype.name
        key = (dtype, value.tobytes())
        if key not in self._offsets:
            self._offsets[key] = self._sizes.get(dtype, 0)
            self._flat.setdefault(dtype, []).append(value.reshape(-1))
            self._sizes[dtype] = self._offsets[key] + value.size
        shape = ",".join(str(size) for size in value.shape)
        return f"{dtype}[{shape}]@{self._offsets[key]}"

    def arrays(self, values: Any) -> Any:
        """Like `array`, over a list or a dict of arrays."""
        if isinstance(values, dict):
            return {name: self.array(value) for name, value in values.items()}
        return [self.array(value) for value in values]

    def add(self, **case: Any) -> None:
        """Adds a case; fields that are None or empty are left out of the file."""
        if any(other["name"] == case["name"] for other in self.cases):
            raise ValueError(f"{self.kind}: two cases are called {case['name']!r}")
        self.cases.append({key: value for key, value in case.items() if value is not None and value != {}})

    def write(self) -> None:
        """Writes the two files, one case a line so that a regenerated file has a readable diff."""
        flat = {dtype: np.concatenate(parts) for dtype, parts in sorted(self._flat.items())}
        np.savez_compressed(FOLDER / f"{self.kind}.npz", allow_pickle=False, **flat)
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in self.cases)
        text = f'{{"versions": {json.dumps(self.versions)},\n"cases": [\n{lines}\n]}}\n'
        (FOLDER / f"{self.kind}.json").write_text(text, encoding="utf-8")
        print(f"{self.kind}: {len(self.cases)} cases")


def spec(class_name: str, **config: Any) -> dict[str, Any]:
    """A nested object in constructor arguments, as the json holds it."""
    return {"class_name": class_name, "config": config}


def seeded(text: str) -> np.random.Generator:
    """A generator seeded by a case's name, so that adding a case leaves the numbers of the others alone."""
    return np.random.default_rng(list(text.encode()))


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal float32 numbers."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)
