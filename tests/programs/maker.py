"""Draw names and expressions of random programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from .primitives import PRIMITIVES
from .syntax import (
    BOOL,
    FLOATS,
    INDICES,
    INT,
    LETTERS,
    MATRIX,
    ROWS,
    SCALAR,
    SCALARS,
    VECTOR,
    VECTORS,
    Call,
    Expression,
    Literal,
    Name,
    Read,
    Type,
)

INPUTS = {"s": SCALAR, "x": VECTOR, "m": MATRIX, "q": ROWS, "n": INT, "p": BOOL}
VARIABLES = {"v": SCALAR, "w": VECTOR, "table": MATRIX}


class Maker:
    """Draws expressions over the names in scope.

    Attributes:
        scope: the names, the newest last.
        variables: those that may be read and written here.
        made: the variables that the program makes itself.
        protected: names that statements may use but not assign.
        notes: what the coverage table says of the program.
        without: kinds of statements, and starts of names of constructs, that do not occur.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.scope: dict[str, Type] = dict(INPUTS)
        self.variables: dict[str, Type] = dict(VARIABLES)
        self.made: dict[str, Type] = {}
        self.protected: frozenset[str] = frozenset()
        self.notes: set[str] = set()
        self.effects_allowed = True
        self.without: tuple[str, ...] = ()
        self._counters: set[str] = set()
        self._count = 0

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))] if len(options) > 1 else options[0]

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def names(self, *types: Type) -> list[str]:
        return [name for name, type_ in self.scope.items() if type_ in types]

    def assignable(self, *types: Type) -> list[str]:
        """The names of these types that a statement may assign, the newest first."""
        kept_out = self.protected | self._counters
        return [name for name in reversed(self.names(*types)) if name not in kept_out]

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
        leaves += [Read(variable, type_) for variable, held in self.variables.items() if held == type_]
        if type_ == SCALAR:
            leaves += [Literal(0.5, SCALAR), Literal(-1.25, SCALAR)]
        if type_ == INT:
            leaves += [Literal(0, INT), Literal(1, INT), Literal(2, INT)]
        if type_ == INDICES:
            leaves += [Literal((2, -1, 2), INDICES), Literal((0, 0, -3), INDICES)]
        return leaves

    def _calls(self, type_: Type) -> list[str]:
        available = {*self.scope.values(), *FLOATS, INT, BOOL, INDICES}
        return [
            name
            for name, primitive in PRIMITIVES.items()
            if primitive.result == type_ and all(argument in available for argument in primitive.arguments)
            if not (primitive.construct or "").startswith(self.without)
        ]

    def trips(self) -> Expression:
        """A number of iterations: 0 to 3, often depending on data or on an outer counter."""
        options: list[Expression] = [Literal(2, INT), Literal(3, INT), Literal(1, INT), Literal(0, INT)]
        options += [Name(name, INT) for name in reversed(self.names(INT))][:3]
        count = Call("count_positive", (self.expression(VECTOR, 0),), INT)
        return self.choice([*options, count])

    def number_of(self, name: str) -> Expression:
        """A number that depends on all of a name's value."""
        type_ = self.scope[name]
        named: Expression = Name(name, type_)
        if type_ == INDICES:
            named = Call("position", (named, Literal(1, INT)), INT)
        if named.type == INT:
            return Call("float_of", (named,), SCALAR)
        if type_ == BOOL:
            return Call("select_s", (named, Literal(0.5, SCALAR), Literal(-1.25, SCALAR)), SCALAR)
        if type_ == SCALAR:
            return named
        if type_ == SCALARS:
            named = Call("stack_numbers", (named,), VECTOR)
        elif type_ == VECTORS:
            named = Call("stack_array", (named,), ROWS)
        elif type_.kind == "array":
            named = Call("concat_pieces", (named,), VECTOR)
        return Call(f"sum_{LETTERS[named.type]}", (named,), SCALAR)

    def scaled(self, number: Expression, type_: Type, depth: int = 0) -> Expression:
        """Something of `type_`, times `number`."""
        other = self.expression(type_, depth)
        return Call("mul_s" if type_ == SCALAR else f"scale_{LETTERS[type_]}", (number, other), type_)
