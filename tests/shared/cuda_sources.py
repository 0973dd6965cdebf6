"""All that is printed as CUDA for the samples of ops: elementwise operations of each type, and broadcast ones."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from shared.every_op import registered_ops

from anabranch.engine.codegen.cuda.launches import Launches, launches_of
from anabranch.engine.codegen.elementwise.kernel_specs import can_fuse
from anabranch.engine.graph import as_dtype
from anabranch.engine.graph.op import Op
from anabranch.engine.graph.spec import TensorSpec
from anabranch.engine.ops.internal.fused import Fused

TYPES = ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")
ENDS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-3, -1e-3, 3.0, -7.0, 80.0, -80.0, 1e4, np.inf, -np.inf, np.nan)


class Elementwise(NamedTuple):
    """One elementwise operation over inputs of certain types, as a fused one."""

    op: Op
    dtypes: tuple[Any, ...]
    result: Any

    @property
    def fused(self) -> Fused:
        count = len(self.dtypes)
        return Fused(count, ((self.op, tuple(range(count))),), (count,))

    def launches(self, *shapes: tuple[int, ...], by_value: tuple[int, ...] = ()) -> Launches:
        """The kernel for inputs of these shapes; one shape is that of all."""
        shapes = shapes * len(self.dtypes) if len(shapes) == 1 else shapes
        inputs = [TensorSpec(shape, dtype) for shape, dtype in zip(shapes, self.dtypes, strict=True)]
        outputs: Any = self.fused.infer(*inputs)
        return launches_of(self.fused, inputs, outputs, by_value)


def elementwise() -> Iterator[Elementwise]:
    """Whatever is fused on CPUs, of each type."""
    seen: set[Any] = set()
    for name in TYPES:
        for cls in registered_ops().values():
            for sample in cls.samples() if cls.elementwise and cls.__module__.startswith("anabranch.") else ():
                given = [np.asarray(value).dtype for value in sample.inputs]
                dtypes = tuple(own if own.kind == "b" else as_dtype(name) for own in given)
                key = (sample.op, *dtypes)
                try:
                    if key in seen:
                        continue
                    result: Any = sample.op.infer(*[TensorSpec((3,), dtype) for dtype in dtypes])
                except (TypeError, ValueError):
                    continue
                seen.add(key)
                if can_fuse(sample.op, dtypes, result.dtype):
                    yield Elementwise(sample.op, dtypes, result.dtype)


def values_for(case: Elementwise, size: int) -> list[Any]:
    """Values for each input: what is special about the type, and draws of several sizes."""
    random = np.random.default_rng(size)
    found: list[Any] = []
    for position, dtype in enumerate(case.dtypes):
        drawn = random.normal(size=size) * 10.0 ** random.integers(-3, 2, size)
        ends = np.roll(ENDS, 4 * position)[:size]
        drawn[: len(ends)] = ends
        with np.errstate(all="ignore"):
            if dtype.kind in "iu":
                drawn = np.nan_to_num(drawn, posinf=2**31 - 1, neginf=-(2**31)).clip(-(2.0**31), 2.0**31 - 1)
            found.append(drawn > 0 if dtype.kind == "b" else drawn.astype(dtype))
    return found
