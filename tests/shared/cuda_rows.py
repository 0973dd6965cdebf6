"""Row kernels printed as CUDA, of reductions, softmax and normalisation with their gradients: with values to run on."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from shared.fusion_checks import prepared

import anabranch as ab
from anabranch.engine.codegen.cuda.launches import Launches, launches_of
from anabranch.engine.codegen.expression.expression import UnsupportedError
from anabranch.engine.ops.internal.fused import Fused

ops = ab.ops
Build = Callable[..., Any]


def normalised(x: Any, axis: Any = -1) -> Any:
    centred = x - ops.mean(x, axis=axis, keepdims=True)
    return centred / ops.sqrt(ops.mean(centred * centred, axis=axis, keepdims=True) + 1e-3)


def gradient_of(build: Build) -> Build:
    def built(*inputs: Any) -> Any:
        result = build(*inputs)
        return [result, *ab.gradients(ops.sum(result * result * 0.5), list(inputs))]

    return built


BUILDS: dict[str, Build] = {
    "sum of rows": lambda x: ops.sum(x * x + 1, axis=-1),
    "sum of columns": lambda x: ops.sum(x * x + 1, axis=0),
    "sum of all": lambda x: ops.sum(x * x - x),
    "sum of outer and inner axes": lambda x: ops.sum(x * 2 + 1, axis=(0, -1)),
    "means": lambda x: [ops.mean(x * 3, axis=-1), ops.mean(x * 3, axis=0), ops.mean(x * 3)],
    "extrema": lambda x: [ops.max(x + x, axis=-1), ops.min(x + x, axis=0), ops.max(x + x)],
    "softmax": lambda x: ops.softmax(x * 2),
    "log softmax": lambda x: ops.log_softmax(x * 2),
    "logsumexp": lambda x: ops.logsumexp(x * 2, axis=-1),
    "centred": lambda x: (x - ops.mean(x, axis=-1, keepdims=True)) * 2,
}
GRADIENTS: dict[str, Build] = {
    "normalisation of rows": lambda x, g: normalised(x) * ops.sum(g * 2, axis=0),
    "normalisation of columns": lambda x, g: normalised(x, 0) + g,
    "softmax": lambda x, g: ops.softmax(x) * g,
    "cross entropy": lambda x, g: -ops.sum(ops.log_softmax(x) * g, axis=-1),
}
SHAPES = [(5, 7), (70, 33), (3, 1025), (1, 5000), (1, 9), (500, 3), (4, 6, 5), (2, 70, 40)]


class Case(NamedTuple):
    """A fused operation with values for its inputs."""

    op: Fused
    inputs: list[Any]
    launches: Launches | None


def groups(build: Build, shapes: list[tuple[int, ...]], dtype: str) -> list[tuple[Fused, list[Any], list[Any]]]:
    """The fused operations of a step, with the specs of what they read and write."""
    with ab.Graph().as_default():
        inputs = [ab.placeholder(shape, dtype) for shape in shapes]
        built = build(*inputs)
        targets = list(built) if isinstance(built, list) else [built]
        step = prepared(targets, inputs)
    return [
        (o.op, [t.spec for t in o.inputs], [t.spec for t in o.outputs])
        for o in step.operations
        if isinstance(o.op, Fused)
    ]


def cases(builds: dict[str, Build], shapes: list[tuple[int, ...]], dtype: str, inputs: int) -> list[Case]:
    random = np.random.default_rng(0)
    found: dict[Any, Case] = {}
    for build, shape in itertools.product(builds.values(), shapes):
        for op, specs, outputs in groups(build, [shape] * inputs, dtype):
            key = (op, *specs)
            if key in found:
                continue
            values = [np.asarray(random.normal(size=spec.shape) * 2).astype(spec.dtype) for spec in specs]
            by_value = [k for k, value in enumerate(values) if not value.ndim]
            values = [value if value.ndim else value[()] for value in values]
            try:
                found[key] = Case(op, values, launches_of(op, specs, outputs, by_value))
            except UnsupportedError:
                found[key] = Case(op, values, None)
    return list(found.values())


CHEAP = SHAPES[:5]


def of_gradients(shapes: list[tuple[int, ...]], dtype: str = "float32") -> list[Case]:
    return cases({name: gradient_of(build) for name, build in GRADIENTS.items()}, shapes, dtype, 2)


def of_type(dtype: str) -> list[Case]:
    builds = dict(itertools.islice(BUILDS.items(), 6))
    if dtype[0] == "i":
        builds = {name: build for name, build in builds.items() if name != "means"}
    return cases(builds, SHAPES[:2] if dtype in ("int64", "float16") else SHAPES[1:2], dtype, 1)


TYPES = ("float64", "int32", "int64", "float16", "bfloat16")


def row_sources() -> list[str]:
    """The sources of all builds, for float32 and for other types."""
    found = [*cases(BUILDS, SHAPES, "float32", 1), *of_gradients(SHAPES), *itertools.chain(*map(of_type, TYPES))]
    return list(dict.fromkeys(case.launches.source for case in found if case.launches is not None))
