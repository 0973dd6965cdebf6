"""Hypothesis strategies for structured random programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from .maker import INPUTS, VARIABLES
from .structures import INNER_KINDS, Structures
from .syntax import BOOL, FLOATS, INT, Block, Program, Statement, Type, assigned_names

# What a program is about: the statement that its first loop or branch is sure to hold.
FOCUSES = (
    "update",
    "loop",
    "choose",
    "write",
    "set",
    "write",
    "set",
    "gradient",
    "scan",
    "grow",
    "lazy",
    "lazy",
    "lazy",
    "by_row",
    "by_row",
    "rows",
    "variable",
    "pieces",
    "examples",
    "recurse",
)


@st.composite
def programs(
    draw: Callable[[st.SearchStrategy[Any]], Any],
    depths: Sequence[int] = (2, 3, 3),
    more: Sequence[int] = (1, 2, 0),
    without: tuple[str, ...] = (),
) -> Program:
    """Programs of one to four statements, of which the first is a loop or branch over what the program is about.

    Args:
        depths: how deep loops and branches may be in each other, to choose from.
        more: how many statements come after the first, to choose from.
        without: kinds of statements, and starts of names of constructs, that do not occur.
    """
    maker = Structures(draw)
    maker.without = without
    maker.open_shapes = maker.choice((False, False, True))
    focus = maker.choice(FOCUSES)
    head: list[Statement] = []
    if focus == "write":
        head.extend(maker.statement("array", 1))
    around = maker.choice(("loop", "loop", "loop", "choose", "scan" if focus not in ("write", "set") else "loop"))
    depth = maker.choice(depths)
    head.extend(maker.statement(around, depth, [focus]))
    kinds = [maker.choice(INNER_KINDS) for _ in range(maker.choice(more))]
    body = (*head, *[statement for kind in kinds for statement in maker.statement(kind, 1)])
    outputs = _outputs(maker.scope, body)
    rng = np.random.default_rng(draw(st.integers(0, 9999)))

    def values(types: dict[str, Type]) -> dict[str, Any]:
        return {name: _input_value(rng, type_) for name, type_ in types.items()}

    differentiable = {**{k: v for k, v in INPUTS.items() if v in FLOATS}, **VARIABLES}
    drawn = Program(
        body,
        inputs=values(INPUTS),
        variables=values(VARIABLES),
        outputs=outputs,
        weights=values({name: type_ for name, type_ in outputs.items() if type_ in FLOATS}),
        directions=[values(differentiable) for _ in range(2)],
        precision=maker.choice(("float64", "float64", "float32")),
        open_shapes=maker.open_shapes,
        kernels=maker.choice((False, False, False, False, True)),
        made=values(maker.made),
        notes=maker.notes,
    )
    return replace(drawn, waits=int(rng.choice([0, 0, 1])) * int(rng.integers(1, 10_000)))


def _outputs(scope: dict[str, Type], body: Block) -> dict[str, Type]:
    """The names that the program changed or made, without TensorArrays; of many, the last ones."""
    names = [name for name in scope if name in assigned_names(body) and scope[name].kind != "array"]
    floats = [name for name in names if scope[name] in FLOATS]
    kept = {*floats[-4:], *[name for name in names if name not in floats][-2:]}
    if not floats:
        kept.add("s")
    return {name: scope[name] for name in scope if name in kept}


def _input_value(rng: np.random.Generator, type_: Type) -> Any:
    if type_ == INT:
        return int(rng.choice([0, 1, 2, 3, 2, 3]))
    if type_ == BOOL:
        return bool(rng.integers(0, 2))
    shape: Any = type_.shape
    return np.round(rng.uniform(-1.5, 1.5, shape) * 4096) / 4096
