"""Hypothesis strategies for structured random programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from .primitives import PRIMITIVES
from .syntax import (
    BOOL,
    FLOATS,
    INT,
    MATRIX,
    ROWS,
    SCALAR,
    SCALARS,
    VECTOR,
    VECTORS,
    Block,
    Call,
    Choose,
    Expression,
    FillArray,
    Gradient,
    Grow,
    Let,
    Literal,
    Loop,
    Name,
    NewArray,
    Program,
    Read,
    Scan,
    SetVariable,
    Statement,
    Type,
    Write,
)

INPUTS = {"s": SCALAR, "x": VECTOR, "m": MATRIX, "q": ROWS, "n": INT, "p": BOOL}
VARIABLES = {"v": SCALAR, "w": VECTOR}
_LETTERS = {SCALAR: "s", VECTOR: "v", MATRIX: "m", ROWS: "r"}
# What a program is about: the statement that its first loop or branch is sure to hold.
FOCUSES = ("update", "loop", "choose", "write", "set", "write", "set", "gradient", "scan", "grow", "loop")
_INNER_KINDS = (
    "let",
    "update",
    "loop",
    "choose",
    "write",
    "set",
    "scan",
    "gradient",
    "grow",
    "array",
    "loop",
    "choose",
)
_SIMPLE_KINDS = ("let", "update", "update", "write", "set")


class _Maker:
    """Draws statements and expressions over the names in scope."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.scope: dict[str, Type] = dict(INPUTS)
        self.effects_allowed = True
        self._counters: set[str] = set()
        self._count = 0

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))] if len(options) > 1 else options[0]

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def names(self, *types: Type) -> list[str]:
        return [name for name, type_ in self.scope.items() if type_ in types]

    # --- expressions ----------------------------------------------------------------------------------------

    def expression(self, type_: Type, depth: int = 2) -> Expression:
        leaves = self._leaves(type_)
        calls = self._calls(type_) if depth else []
        picked = self.choice([*leaves, *calls])  # the newest name first: what is simplest for a program to shrink to
        if not isinstance(picked, str):
            return picked
        arguments = tuple(self.expression(argument, depth - 1) for argument in PRIMITIVES[picked].arguments)
        return Call(picked, arguments, type_)

    def _leaves(self, type_: Type) -> list[Expression]:
        leaves: list[Expression] = [*[Name(name, type_) for name in reversed(self.names(type_))][:4]]
        leaves += [Read(variable, type_) for variable, held in VARIABLES.items() if held == type_]
        if type_ == SCALAR:
            leaves += [Literal(0.5, SCALAR), Literal(-1.25, SCALAR)]
        if type_ == INT:
            leaves += [Literal(0, INT), Literal(1, INT), Literal(2, INT)]
        return leaves

    def _calls(self, type_: Type) -> list[str]:
        available = {*self.scope.values(), *FLOATS, INT, BOOL}
        return [
            name
            for name, primitive in PRIMITIVES.items()
            if primitive.result == type_ and all(argument in available for argument in primitive.arguments)
        ]

    def trips(self) -> Expression:
        """A number of iterations: 0 to 3, often depending on data or on an outer counter."""
        options: list[Expression] = [Literal(2, INT), Literal(3, INT), Literal(1, INT), Literal(0, INT)]
        options += [Name(name, INT) for name in reversed(self.names(INT))][:3]
        count = Call("count_positive", (self.expression(VECTOR, 0),), INT)
        return self.choice([*options, count])

    # --- statements -----------------------------------------------------------------------------------------

    def block(self, size: int, depth: int, kinds: Sequence[str], sure: Sequence[str] = ()) -> Block:
        """Statements in a scope of their own."""
        before = dict(self.scope)
        chosen = [*sure, *[self.choice(kinds) for _ in range(size)]]
        statements = tuple(self.statement(kind, depth) for kind in chosen)
        self.scope = before
        return statements

    def statement(self, kind: str, depth: int, sure: Sequence[str] = ()) -> Statement:
        if kind in ("loop", "choose", "scan", "gradient") and depth == 0:
            kind = "update"
        if kind == "set" and not self.effects_allowed:
            kind = "update"
        if kind == "write" and not self.names(SCALARS, VECTORS):
            kind = "array"
        return getattr(self, f"_{kind}")(depth, sure)

    def _inner_kinds(self, depth: int) -> Sequence[str]:
        return _INNER_KINDS if depth > 1 else _SIMPLE_KINDS

    def _let(self, depth: int, sure: Sequence[str]) -> Let:
        type_ = self.choice([*FLOATS, INT, BOOL])
        value = self.expression(type_)
        name = self.fresh("a")
        self.scope[name] = type_
        return Let(name, value)

    def _update(self, depth: int, sure: Sequence[str]) -> Let:
        """A name becomes a function of itself: ``acc = acc * x``."""
        name = self.choice([n for n in reversed(self.names(*FLOATS, INT)) if n not in self._counters][:6])
        type_ = self.scope[name]
        if type_ == INT:
            return Let(name, Call(self.choice(["add_i", "mul_i"]), (Name(name, INT), self.expression(INT, 1)), INT))
        letter = _LETTERS[type_]
        binaries = [f"mul_{letter}", f"add_{letter}", f"sub_{letter}", f"soft_divide_{letter}"]
        binaries += {MATRIX: ["matmul"] * 3, ROWS: ["rows_matmul"] * 3}.get(type_, [])
        picked = self.choice(binaries)
        other = self.expression(PRIMITIVES[picked].arguments[1], 1)
        arguments: tuple[Expression, ...] = (Name(name, type_), other)
        if picked == "matmul" and self.draw(st.booleans()):
            arguments = (other, Name(name, type_))
        value: Expression = Call(picked, arguments, type_)
        wrap = self.choice([f"tanh_{letter}", f"sin_{letter}", ""])
        return Let(name, Call(wrap, (value,), type_) if wrap else value)

    def _loop(self, depth: int, sure: Sequence[str]) -> Loop:
        limit = self.trips()
        also = self.expression(BOOL, 2) if self.choice([0, 0, 1]) else None
        maximum = self.choice([None, None, None, 2])
        counter = self.fresh("i")
        self.scope[counter] = INT
        self._counters.add(counter)
        body = self.block(self.choice([1, 2]), depth - 1, self._inner_kinds(depth), ["update", *sure])
        through = tuple(self.choice([[], [], self.names(*FLOATS)[-1:]]))
        return Loop(counter, limit, also, body, through, maximum, self.choice([32, 1]))

    def _choose(self, depth: int, sure: Sequence[str]) -> Choose:
        choice = self.expression(self.choice([BOOL, BOOL, INT]), 2)
        count = 2 if choice.type == BOOL else 3
        sure = ["update", *sure]
        branches = [
            self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth), sure if k == 0 else ["update"])
            for k in range(count - 1)
        ]
        last = self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth))  # may do nothing at all
        return Choose(choice, (*branches, last))

    def _scan(self, depth: int, sure: Sequence[str]) -> Scan:
        xs_type, element_type, y_type, ys_type = self.choice(
            [
                (ROWS, VECTOR, VECTOR, ROWS),
                (VECTOR, SCALAR, SCALAR, VECTOR),
                (MATRIX, VECTOR, SCALAR, VECTOR),
                (MATRIX, VECTOR, VECTOR, MATRIX),
            ]
        )
        xs = self.expression(xs_type, 1)
        carry = self.choice([*reversed(self.names(*FLOATS)[-3:]), None])
        before = dict(self.scope)
        element = self.fresh("e")
        self.scope[element] = element_type
        inside = [] if carry is None else [Let(carry, self._step(carry, element))]
        body = (*inside, *self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth), sure))
        y = self.expression(y_type, 1)
        self.scope = before
        ys = self.fresh("y")
        self.scope[ys] = ys_type
        return Scan(carry, element, xs, body, y, ys, self.draw(st.booleans()))

    def _step(self, carry: str, element: str) -> Expression:
        """The next carry, out of the carry and the element."""
        letter = _LETTERS[self.scope[carry]]
        type_ = self.scope[carry]
        scaled = (
            Name(element, SCALAR) if self.scope[element] == SCALAR else Call("sum_v", (Name(element, VECTOR),), SCALAR)
        )
        other = scaled if type_ == SCALAR else Call(f"scale_{letter}", (scaled, self.expression(type_, 0)), type_)
        return Call(f"tanh_{letter}", (Call(f"mul_{letter}", (Name(carry, type_), other), type_),), type_)

    def _array(self, depth: int, sure: Sequence[str]) -> NewArray | FillArray:
        type_ = self.choice([VECTORS, SCALARS])
        name = self.fresh("t")
        element, stacked = (SCALAR, VECTOR) if type_ == SCALARS else (VECTOR, ROWS)
        if self.draw(st.booleans()):
            statement: NewArray | FillArray = NewArray(name, self.expression(stacked, 1))
        else:
            counter = self.fresh("k")
            before = dict(self.scope)
            self.scope[counter] = INT
            value = self.expression(element, 2)
            self.scope = before
            statement = FillArray(name, type_, counter, value, self.draw(st.booleans()))
        self.scope[name] = type_
        return statement

    def _write(self, depth: int, sure: Sequence[str]) -> Write:
        array = self.choice(self.names(SCALARS, VECTORS))
        type_ = self.scope[array]
        index = self.choice([*[Name(name, INT) for name in self.names(INT)][-2:], Literal(1, INT), Literal(0, INT)])
        if type_ == SCALARS:
            old: Expression = Call("number", (Name(array, SCALARS), self.expression(INT, 0)), SCALAR)
            return Write(array, index, self.choice([Call("mul_s", (old, self.expression(SCALAR, 1)), SCALAR), old]), 3)
        old = Call("element", (Name(array, VECTORS), self.expression(INT, 0)), VECTOR)
        return Write(array, index, self.choice([Call("mul_v", (old, self.expression(VECTOR, 1)), VECTOR), old]), 2)

    def _set(self, depth: int, sure: Sequence[str]) -> SetVariable:
        variable = self.choice(list(VARIABLES))
        type_ = VARIABLES[variable]
        letter = _LETTERS[type_]
        mixed = Call(f"add_{letter}", (Read(variable, type_), self.expression(type_, 1)), type_)
        value = Call(f"tanh_{letter}", (mixed,), type_) if self.draw(st.booleans()) else self.expression(type_, 1)
        result = self.choice([self.fresh("u"), *self.names(type_)[-1:]])
        self.scope[result] = type_
        return SetVariable(variable, value, result, self.draw(st.booleans()))

    def _gradient(self, depth: int, sure: Sequence[str]) -> Gradient:
        source = self.choice(list(reversed(self.names(SCALAR, VECTOR)))[:4])
        type_ = self.scope[source]
        before, allowed = dict(self.scope), self.effects_allowed
        self.effects_allowed = False
        inner = self.fresh("z")
        self.scope[inner] = type_
        body = self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth), ["update"])
        letter = _LETTERS[type_]
        shaped = Call(
            f"sin_{letter}", (Call(f"mul_{letter}", (Name(inner, type_), self.expression(type_, 1)), type_),), type_
        )
        y: Expression = shaped if type_ == SCALAR else Call(f"sum_{letter}", (shaped,), SCALAR)
        y = Call("add_s", (y, self.expression(SCALAR, 1)), SCALAR)
        self.scope, self.effects_allowed = before, allowed
        name = self.choice([self.fresh("g"), *self.names(type_)[-1:]])
        self.scope[name] = type_
        return Gradient(name, source, inner, body, y)

    def _grow(self, depth: int, sure: Sequence[str]) -> Grow:
        start, limit = self.expression(VECTOR, 1), self.trips()
        before = dict(self.scope)
        head = self.fresh("h")
        self.scope[head] = VECTOR
        piece = Call("mul_v", (Name(head, VECTOR), self.expression(VECTOR, 1)), VECTOR)
        self.scope = before
        name = self.fresh("l")
        self.scope[name] = SCALAR
        return Grow(name, start, head, piece, limit)


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    """Programs of one to four statements, of which the first is a loop or branch over what the program is about."""
    maker = _Maker(draw)
    focus = maker.choice(FOCUSES)
    head: list[Statement] = []
    if focus == "write":
        head.append(maker.statement("array", 1))
    around = maker.choice(("loop", "loop", "loop", "choose", "scan" if focus not in ("write", "set") else "loop"))
    depth = maker.choice((2, 3, 3))
    head.append(maker.statement(around, depth, [focus]))
    rest = [maker.statement(maker.choice(_INNER_KINDS), 1) for _ in range(maker.choice((1, 2, 0)))]
    body = (*head, *rest)
    outputs = _outputs(maker.scope, body)
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    inputs = {name: _input_value(rng, type_) for name, type_ in INPUTS.items()}
    variables = {name: _input_value(rng, type_) for name, type_ in VARIABLES.items()}
    weights = {name: _input_value(rng, type_) for name, type_ in outputs.items() if type_ in FLOATS}
    differentiable = {**{k: v for k, v in INPUTS.items() if v in FLOATS}, **VARIABLES}
    directions = [{name: _input_value(rng, type_) for name, type_ in differentiable.items()} for _ in range(2)]
    precision = maker.choice(("float64", "float64", "float32"))
    open_shapes, kernels = maker.choice((False, False, True)), maker.choice((False, False, False, False, True))
    return Program(body, inputs, variables, outputs, weights, directions, precision, open_shapes, kernels)


def _outputs(scope: dict[str, Type], body: Block) -> dict[str, Type]:
    """The names that the program changed or made, without TensorArrays; of many, the last ones."""
    from .syntax import assigned_names

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
    return np.round(rng.uniform(-1.5, 1.5, type_.shape) * 4096) / 4096
