"""Draw loops, branches and other statements that hold blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from .statements import Statements
from .syntax import (
    BOOL,
    FLOATS,
    INDICES,
    INT,
    LETTERS,
    MATRIX,
    NUMBERS,
    PART,
    PIECES,
    ROWS,
    SCALAR,
    SCALARS,
    VECTOR,
    VECTORS,
    Block,
    ByRow,
    Call,
    Choose,
    Expression,
    Gradient,
    Let,
    Loop,
    Name,
    Recurse,
    Scan,
    Statement,
    Type,
)

# Kinds of statements inside blocks; those that are named more than once are more likely.
INNER_KINDS = (
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
    "rows",
    "by_row",
    "lazy",
    "lazy",
    "variable",
    "pieces",
    "recurse",
)
_SIMPLE_KINDS = ("let", "update", "update", "write", "set", "rows", "variable")
_BLOCK_KINDS = ("loop", "choose", "scan", "gradient", "by_row", "lazy", "examples", "recurse")
_UNUSED_KINDS = ("update", "loop", "scan", "rows", "array", "gradient", "choose", "update", "loop")


class Structures(Statements):
    """The kinds of statements that hold blocks."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        super().__init__(draw)
        self.open_shapes = False
        self._in_examples = False  # inside of a vectorized_map

    def block(self, size: int, depth: int, kinds: Sequence[str], sure: Sequence[str] = ()) -> Block:
        """Statements in a scope of their own."""
        before, variables = dict(self.scope), dict(self.variables)
        chosen = [*sure, *[self.choice(kinds) for _ in range(size)]]
        statements = tuple(statement for kind in chosen for statement in self.statement(kind, depth))
        self.scope, self.variables = before, variables
        return statements

    def statement(self, kind: str, depth: int, sure: Sequence[str] = ()) -> Block:
        """Statements of one kind: mostly one."""
        if kind in _BLOCK_KINDS and depth == 0:
            kind = "update"
        if kind in self.without:
            kind = "update"
        if kind in ("set", "variable") and not self.effects_allowed:
            kind = "update"
        if kind in ("grow", "pieces") and self._in_examples:
            kind = "update"  # examples of different lengths are no batch
        if kind == "by_row" and self._in_examples and self.open_shapes:
            kind = "update"  # before the run it is not known that lengths will differ
        if kind == "write" and not self.assignable(SCALARS, VECTORS, PIECES):
            kind = "array"
        found = getattr(self, f"_{kind}")(depth, sure)
        return found if isinstance(found, tuple) else (found,)

    def _inner_kinds(self, depth: int) -> Sequence[str]:
        return INNER_KINDS if depth > 1 else _SIMPLE_KINDS

    def _array(self, depth: int, sure: Sequence[str]) -> Statement:
        return self._new_array(self.choice([VECTORS, SCALARS, *([] if self._in_examples else [PIECES])]))

    # --- loops and branches -----------------------------------------------------------------------------------

    def _loop(self, depth: int, sure: Sequence[str]) -> Loop:
        limit = self.trips()
        also = self.expression(BOOL, 2) if self.choice([0, 0, 1]) else None
        maximum = self.choice([None, None, None, 2])
        counter = self.fresh("i")
        self.scope[counter] = INT
        self._counters.add(counter)
        body = self.block(self.choice([1, 2]), depth - 1, self._inner_kinds(depth), ["update", *sure])
        through = tuple(self.choice([[], [], self.assignable(*FLOATS)[:1]]))
        return Loop(counter, limit, also, body, through, maximum, self.choice([32, 1]))

    def _choose(self, depth: int, sure: Sequence[str]) -> Choose:
        choice = self.expression(self.choice([BOOL, BOOL, INT]), 2)
        second = self.expression(BOOL, 1) if choice.type == BOOL and self.choice([0, 0, 1]) else None
        count = 2 if choice.type == BOOL and second is None else 3
        sure = ["update", *sure]
        branches = [
            self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth), sure if k == 0 else ["update"])
            for k in range(count - 1)
        ]
        last = self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth))  # may do nothing at all
        return Choose(choice, (*branches, last), second)

    def _by_row(self, depth: int, sure: Sequence[str]) -> ByRow:
        """Two branches of rows that are positive or not, or three by index."""
        type_, part = self.choice([(MATRIX, PART), (ROWS, PART), (VECTOR, NUMBERS)])
        choice, operand = self.expression(self.choice([VECTOR, INDICES]), 1), self.expression(type_, 1)
        before, allowed = dict(self.scope), self.effects_allowed
        self.effects_allowed = False  # whether an empty branch runs depends on what is known of shapes
        rows = self.fresh("b")
        self.scope[rows] = part
        branches: list[tuple[Block, Expression]] = []
        for number in range(2 if choice.type == VECTOR else 3):
            size = self.choice([0, 1]) if number == 0 else 0
            body = self.block(size, depth - 1, self._inner_kinds(depth), [["update"], [], sure][number])
            mixed = Call(f"mul_{LETTERS[part]}", (Name(rows, part), self.expression(part, 1)), part)
            branches.append((body, Call(f"{self.choice(['sin', 'tanh'])}_{LETTERS[part]}", (mixed,), part)))
        self.scope, self.effects_allowed = before, allowed
        name = self.choice([self.fresh("c"), *self.assignable(type_)[:1]])
        self.scope[name] = type_
        return ByRow(name, choice, operand, rows, tuple(branches))

    # --- sequences ----------------------------------------------------------------------------------------------

    def _scan(self, depth: int, sure: Sequence[str]) -> Scan:
        carry = self.choice([*self.assignable(*FLOATS)[:3], None])
        hows = ("scan", "foldr", "scan", "foldl") if carry else ("map_fn", "vectorized_map")
        how = self.choice(hows)
        return self._examples(depth, sure) if how == "vectorized_map" else self._over_rows(how, carry, depth, sure)

    def _examples(self, depth: int, sure: Sequence[str]) -> Scan:
        """A `vectorized_map`, which takes no effects."""
        before, allowed, outer = dict(self.scope), self.effects_allowed, self._in_examples
        self.effects_allowed, self._in_examples = False, True
        self.scope = {name: type_ for name, type_ in before.items() if type_ != PIECES}
        scan = self._over_rows("vectorized_map", None, depth, sure)
        made = {name: self.scope[name] for name in (scan.ys,) if name is not None}
        self.scope, self.effects_allowed, self._in_examples = {**before, **made}, allowed, outer
        return scan

    def _over_rows(self, how: str, carry: str | None, depth: int, sure: Sequence[str]) -> Scan:
        xs_type, element_type, y_type, ys_type = self.choice(
            [
                (ROWS, VECTOR, VECTOR, ROWS),
                (VECTOR, SCALAR, SCALAR, VECTOR),
                (MATRIX, VECTOR, SCALAR, VECTOR),
                (MATRIX, VECTOR, VECTOR, MATRIX),
            ]
        )
        xs = self.expression(xs_type, 1)
        before = dict(self.scope)
        element = self.fresh("e")
        self.scope[element] = element_type
        inside = [] if carry is None else [Let(carry, self._step(carry, element))]
        body = (*inside, *self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth), sure))
        y = self.expression(y_type, 1)
        self.scope = before
        if how in ("foldl", "foldr"):
            return Scan(carry, element, xs, body, y, None, how == "foldr", how)
        ys = self.fresh("y")
        self.scope[ys] = ys_type
        return Scan(carry, element, xs, body, y, ys, how != "vectorized_map" and self.draw(st.booleans()), how)

    def _step(self, carry: str, element: str) -> Expression:
        """The next carry, out of the carry and the element."""
        type_ = self.scope[carry]
        letter = LETTERS[type_]
        other = self.number_of(element) if type_ == SCALAR else self.scaled(self.number_of(element), type_)
        return Call(f"tanh_{letter}", (Call(f"mul_{letter}", (Name(carry, type_), other), type_),), type_)

    def _recurse(self, depth: int, sure: Sequence[str]) -> Recurse:
        type_ = self.choice([SCALAR, VECTOR, MATRIX])
        letter = LETTERS[type_]
        limit, start = self.trips(), self.expression(type_, 1)
        before, variables = dict(self.scope), dict(self.variables)
        level, value, deeper = self.fresh("i"), self.fresh("o"), self.fresh("k")
        self._counters.add(level)
        self.scope.update({level: INT, value: type_})
        base = self.expression(type_, 1)
        protected, self.protected = self.protected, frozenset(before)
        body = self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth), ["update", *sure])
        self.scope[deeper] = type_
        result = Call(
            f"{self.choice(['add', 'mul', 'soft_divide'])}_{letter}",
            (Call(f"sin_{letter}", (Name(deeper, type_),), type_), self.expression(type_, 1)),
            type_,
        )
        self.scope, self.variables, self.protected = before, variables, protected
        name = self.fresh("f")
        self.scope[name] = type_
        return Recurse(name, limit, start, level, value, body, base, deeper, result, self.draw(st.booleans()))

    # --- gradients ----------------------------------------------------------------------------------------------

    def _gradient(self, depth: int, sure: Sequence[str]) -> Gradient:
        source = self.choice(list(reversed(self.names(SCALAR, VECTOR)))[:4])
        type_ = self.scope[source]
        before, allowed = dict(self.scope), self.effects_allowed
        self.effects_allowed = False
        inner = self.fresh("z")
        self.scope[inner] = type_
        body = self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth), ["update"])
        used, y = self._target(inner, self.choice([0, 0, 1]))
        self.scope, self.effects_allowed = before, allowed
        name = self.choice([self.fresh("g"), *self.assignable(type_)[:1]])
        self.scope[name] = type_
        return Gradient(name, source, inner, (*body, *used), y)

    def _target(self, inner: str, in_branch: int) -> tuple[Block, Expression]:
        """Return what is differentiated with respect to `inner`, and a branch before, if nothing else may use it."""
        type_, targets = self.scope[inner], [name for name in self.assignable(*FLOATS)[:4] if name != inner]
        if in_branch and targets:
            self.notes.add("gradient of what one branch uses")
            choice = self.expression(BOOL, 2)
            return (Choose(choice, (self._use([inner], targets[:1]), ())),), self.number_of(targets[0])
        letter = LETTERS[type_]
        mixed = Call(f"mul_{letter}", (Name(inner, type_), self.expression(type_, 1)), type_)
        shaped = Call(f"sin_{letter}", (mixed,), type_)
        y: Expression = shaped if type_ == SCALAR else Call(f"sum_{letter}", (shaped,), SCALAR)
        return (), Call("add_s", (y, self.expression(SCALAR, 1)), SCALAR)

    # --- what only branches use ---------------------------------------------------------------------------------

    def _lazy(self, depth: int, sure: Sequence[str]) -> Block:
        """A chain of values, and branches that use it: one of them, one of each of two choices, or both."""
        how = self.choice(("one branch", "one branch of two choices", "both branches", "branches of different choices"))
        self.notes.add(f"written before, used in {how}")
        number = self.fresh("b")
        predicate = Let(number, self.expression(BOOL, 2))
        self.scope[number] = BOOL
        outer, allowed, protected = dict(self.scope), self.effects_allowed, self.protected
        self.effects_allowed, self.protected = False, frozenset(outer)
        chain = self._chain(min(depth, 1))
        private = {name: type_ for name, type_ in self.scope.items() if name not in outer}
        self.scope, self.effects_allowed, self.protected = outer, allowed, protected | private.keys()
        first = self._using(number, private, 0 if how != "both branches" else 2, depth, sure)
        second: Block = ()
        if how == "one branch of two choices":
            second = (self._using(number, private, 0, depth, ()),)
        elif how == "branches of different choices":
            other = Let(self.fresh("b"), self.expression(BOOL, 2))
            self.scope[other.name] = BOOL
            second = (other, self._using(other.name, private, 0, depth, ()))
        self.protected = protected
        return (predicate, *chain, first, *second)

    def _chain(self, depth: int) -> Block:
        """Statements that assign nothing but names of their own."""
        type_, name = self.choice([SCALAR, VECTOR, MATRIX]), self.fresh("d")
        found: list[Statement] = [Let(name, self.expression(type_, 2))]
        self.scope[name] = type_
        for _ in range(self.choice((1, 2, 0))):
            kind = self.choice(_UNUSED_KINDS)
            self.notes.update([f"{kind} before, used in branches"] if kind in _BLOCK_KINDS and depth else [])
            found.extend(self.statement(kind, depth))
        return tuple(found)

    def _using(self, choice: str, private: dict[str, Type], users: int, depth: int, sure: Sequence[str]) -> Choose:
        """A choice whose branch number `users` (2: both) uses the private names."""
        branches: list[Block] = []
        for number in (0, 1):
            uses = users in (number, 2)
            before = self.scope
            self.scope = {**before, **private} if uses else dict(before)
            begin = self._use(list(private), self.assignable(*FLOATS)[:3]) if uses else ()
            rest = self.block(self.choice([0, 1]), depth - 1, self._inner_kinds(depth), sure if uses else ["update"])
            branches.append((*begin, *rest))
            self.scope = before
        return Choose(Name(choice, BOOL), tuple(branches))

    def _use(self, private: Sequence[str], targets: Sequence[str]) -> Block:
        """A name of `targets` gets something of the newest of the private ones, and of another one."""
        if not targets:
            return ()
        target = self.choice(targets)
        type_, number = self.scope[target], self.number_of(private[-1])
        if len(private) > 1:
            number = Call("mul_s", (number, self.number_of(self.choice(private[:-1]))), SCALAR)
        added = Call(f"add_{LETTERS[type_]}", (Name(target, type_), self.scaled(number, type_)), type_)
        return (Let(target, Call(f"tanh_{LETTERS[type_]}", (added,), type_)),)
