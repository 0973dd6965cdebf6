"""Draw statements without blocks of their own."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from .maker import Maker
from .primitives import PRIMITIVES
from .syntax import (
    BOOL,
    FLOATS,
    INDICES,
    INT,
    LETTERS,
    MATRIX,
    PART,
    PARTS,
    PIECE,
    PIECES,
    ROWS,
    SCALAR,
    SCALARS,
    VECTOR,
    VECTORS,
    Block,
    Call,
    Expression,
    FillArray,
    Grow,
    Let,
    Literal,
    MakeVariable,
    Name,
    NewArray,
    Read,
    SetVariable,
    Split,
    Statement,
    Type,
    Write,
)

_PRODUCTS = {MATRIX: ["matmul"] * 3, ROWS: ["rows_matmul"] * 3, PART: ["part_matmul", "part_add_row"]}


class Statements(Maker):
    """Each method draws one kind of statement. `depth` is how deep blocks may be nested, `sure` what they hold."""

    def _let(self, depth: int, sure: Sequence[str]) -> Let:
        type_ = self.choice([*FLOATS, INT, BOOL, INDICES])
        value = self.expression(type_)
        name = self.fresh("a")
        self.scope[name] = type_
        return Let(name, value)

    def _update(self, depth: int, sure: Sequence[str]) -> Let:
        """A name becomes a function of itself: ``acc = acc * x``."""
        names = self.assignable(*FLOATS, *PARTS, INT, INDICES)
        if not names:
            return self._let(depth, sure)
        name = self.choice(names[:6])
        type_ = self.scope[name]
        if type_ == INT:
            return Let(name, Call(self.choice(["add_i", "mul_i"]), (Name(name, INT), self.expression(INT, 1)), INT))
        if type_ == INDICES:
            return Let(name, Call("shifted", (Name(name, INDICES), self.expression(INT, 1)), INDICES))
        letter = LETTERS[type_]
        binaries = [f"mul_{letter}", f"add_{letter}", f"sub_{letter}", f"soft_divide_{letter}"]
        binaries += _PRODUCTS.get(type_, [])
        picked = self.choice(binaries)
        other = self.expression(PRIMITIVES[picked].arguments[1], 1)
        arguments: tuple[Expression, ...] = (Name(name, type_), other)
        if picked == "matmul" and self.draw(st.booleans()):
            arguments = (other, Name(name, type_))
        value: Expression = Call(picked, arguments, type_)
        wrap = self.choice([f"tanh_{letter}", f"sin_{letter}", ""])
        return Let(name, Call(wrap, (value,), type_) if wrap else value)

    def _rows(self, depth: int, sure: Sequence[str]) -> Let:
        """Rows of a table at computed indices go into a name."""
        primitive, type_ = self.choice(
            [("take_rows", MATRIX), ("rows_at", MATRIX), ("two_rows_at", ROWS), ("row_from_end", VECTOR)]
        )
        source: Expression = Read("table", MATRIX) if self.draw(st.booleans()) else self.expression(MATRIX, 0)
        position = self.expression(PRIMITIVES[primitive].arguments[1], 1)
        rows = Call(primitive, (source, position), type_)
        name = self.choice([*self.assignable(type_)[:3], self.fresh("a")])
        if name not in self.scope:
            self.scope[name] = type_
            return Let(name, rows)
        letter = LETTERS[type_]
        return Let(name, Call(f"tanh_{letter}", (Call(f"add_{letter}", (Name(name, type_), rows), type_),), type_))

    def _pieces(self, depth: int, sure: Sequence[str]) -> Block:
        """An array of elements that may vary in length is made, perhaps changed, and put together again."""
        type_ = self.choice([PIECES, PIECES, VECTORS])
        made = self._new_array(type_)
        changed = (self._write(depth, ()),) if self.draw(st.booleans()) else ()
        primitive, result = ("concat_pieces", VECTOR) if type_ == PIECES else ("concat_array", ROWS)
        joined: Expression = Call(primitive, (Name(made.name, type_),), result)
        targets = self.assignable(result)[:2]
        name = self.choice(targets) if targets else self.fresh("a")
        if targets:
            joined = Call(f"mul_{LETTERS[result]}", (Name(name, result), joined), result)
        self.scope[name] = result
        return made, *changed, Let(name, Call(f"sin_{LETTERS[result]}", (joined,), result))

    def _new_array(self, type_: Type) -> NewArray | FillArray | Split:
        name = self.fresh("t")
        element, stacked = {SCALARS: (SCALAR, VECTOR), VECTORS: (VECTOR, ROWS), PIECES: (PIECE, VECTOR)}[type_]
        if self.draw(st.booleans()):
            statement: NewArray | FillArray | Split = NewArray(name, self.expression(stacked, 1))
            if type_ == PIECES:
                statement = Split(name, self.expression(VECTOR, 1), self.expression(INT, 1), self.expression(INT, 0))
        else:
            counter = self.fresh("k")
            before = dict(self.scope)
            self.scope[counter] = INT
            piece = Call("piece_of", (self.expression(VECTOR, 1), Name(counter, INT)), PIECE)
            value = piece if type_ == PIECES else self.expression(element, 2)
            self.scope = before
            statement = FillArray(name, type_, counter, value, self.draw(st.booleans()))
        self.scope[name] = type_
        return statement

    def _write(self, depth: int, sure: Sequence[str]) -> Write:
        array = self.choice(self.assignable(SCALARS, VECTORS, PIECES)[::-1])
        type_ = self.scope[array]
        index = self.choice([*[Name(name, INT) for name in self.names(INT)][-2:], Literal(1, INT), Literal(0, INT)])
        if type_ == SCALARS:
            old: Expression = Call("number", (Name(array, SCALARS), self.expression(INT, 0)), SCALAR)
            return Write(array, index, self.choice([Call("mul_s", (old, self.expression(SCALAR, 1)), SCALAR), old]), 3)
        if type_ == PIECES:
            return Write(array, index, self._piece(array), 3)
        old = Call("element", (Name(array, VECTORS), self.expression(INT, 0)), VECTOR)
        return Write(array, index, self.choice([Call("mul_v", (old, self.expression(VECTOR, 1)), VECTOR), old]), 2)

    def _piece(self, array: str) -> Expression:
        old, number = Name(array, PIECES), self.expression(SCALAR, 1)
        picked = self.choice(["piece_longer", "piece_scaled", "piece_of"])
        if picked == "piece_of":
            return Call(picked, (self.expression(VECTOR, 1), self.expression(INT, 0)), PIECE)
        return Call(picked, (old, self.expression(INT, 0), number), PIECE)

    def _variable(self, depth: int, sure: Sequence[str]) -> tuple[Statement, ...]:
        """A variable is made, written and used."""
        name, type_ = self.fresh("made"), self.choice([SCALAR, VECTOR])
        self.variables[name] = self.made[name] = type_
        letter, result = LETTERS[type_], self.fresh("u")
        mixed = Call(f"mul_{letter}", (Read(name, type_), self.expression(type_, 1)), type_)
        set_variable = SetVariable(name, Call(f"tanh_{letter}", (mixed,), type_), result, self.draw(st.booleans()))
        targets = self.assignable(type_)[:2]
        self.scope[result] = type_
        if not targets:
            return MakeVariable(name, type_), set_variable
        target = self.choice(targets)
        used = Call(f"add_{letter}", (Name(target, type_), Name(result, type_)), type_)
        return MakeVariable(name, type_), set_variable, Let(target, used)

    def _set(self, depth: int, sure: Sequence[str]) -> SetVariable:
        variable = self.choice(list(reversed(self.variables)))
        type_ = self.variables[variable]
        letter = LETTERS[type_]
        mixed = Call(f"add_{letter}", (Read(variable, type_), self.expression(type_, 1)), type_)
        value = Call(f"tanh_{letter}", (mixed,), type_) if self.draw(st.booleans()) else self.expression(type_, 1)
        result = self.choice([self.fresh("u"), *self.assignable(type_)[:1]])
        self.scope[result] = type_
        return SetVariable(variable, value, result, self.draw(st.booleans()))

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
