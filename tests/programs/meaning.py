"""The meaning of a program: a naive evaluator over NumPy float64 jets, which uses no graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import jets
from .jets import Jet
from .primitives import PRIMITIVES, above, bounded
from .syntax import (
    Block,
    ByRow,
    Call,
    Choose,
    Expression,
    FillArray,
    Gradient,
    Grow,
    Let,
    Literal,
    Loop,
    MakeVariable,
    Name,
    NewArray,
    Program,
    Read,
    Recurse,
    Scan,
    SetVariable,
    Split,
    Statement,
    Write,
)

Scope = dict[str, Any]


class Evaluation:
    """One run of a program at ``inputs + sum of e_k * directions[k]``.

    A read of a variable is where derivatives end (and, for the variable itself, begin): what was assigned to it is a
    plain value. So is what `stop_gradient` gives, and the difference between a function and the one from which its
    derivatives are taken. `replay` gives these values, in order, that another run found, so that finite differences see
    the same.

    Attributes:
        loss: the weighted sum of the outputs, plus half its square, as a jet.
        variables: their values at the end.
        decisions: the trip counts and branches taken, in order.
        reads: the plain values, in order.
    """

    def __init__(
        self,
        program: Program,
        directions: Sequence[Mapping[str, Any]] = (),
        shift: tuple[float, Mapping[str, Any]] | None = None,
        replay: list[Any] | None = None,
    ) -> None:
        self.program = program
        self.directions = directions
        self.shift = shift
        first = {**program.variables, **program.made}
        self.variables = {name: np.asarray(value, "float64") for name, value in first.items()}
        self.decisions: list[Any] = []
        self.reads: list[Any] = []
        self._replay = list(replay) if replay is not None else None
        self._next_bit = 1 << len(directions)
        self.scope: Scope = {name: self._input(name, value) for name, value in program.inputs.items()}
        with np.errstate(all="ignore"):
            self._block(program.body, self.scope)
            self.outputs = {name: self.scope[name] for name in program.outputs}
            self.loss = self._loss()

    def _loss(self) -> Jet:
        total = jets.constant(0.0)
        for name, weight in self.program.weights.items():
            total = jets.add(total, jets.linear(lambda x, w=weight: np.sum(w * x), self.outputs[name]))
        half = jets.multiply(jets.constant(0.5), total)
        return bounded(jets.add(total, jets.multiply(half, total)))

    def _input(self, name: str, value: Any) -> Any:
        return value if isinstance(value, bool | int) else self._started(name, np.asarray(value, "float64"))

    def _started(self, name: str, value: Any) -> Jet:
        """`value` with the directions of derivatives in which it takes part."""
        if self.shift is not None and name in self.shift[1]:
            value = value + self.shift[0] * self.shift[1][name]
        jet = jets.constant(value)
        for position, direction in enumerate(self.directions):
            if name in direction:
                jet = jet.plus(1 << position, direction[name])
        return jet

    # --- expressions ----------------------------------------------------------------------------------------

    def _value(self, expression: Expression, scope: Scope) -> Any:
        match expression:
            case Name(name=name):
                return scope[name]
            case Literal(value=value):
                if isinstance(value, tuple):
                    return np.array(value)
                return value if isinstance(value, bool | int) else jets.constant(value)
            case Read(variable=variable):
                return self._read(variable)
            case Call(primitive=primitive, arguments=arguments):
                values = [self._value(argument, scope) for argument in arguments]
                definition = PRIMITIVES[primitive]
                result = definition.evaluate(*values)
                if definition.offset is not None:
                    result = jets.add(result, jets.constant(self._remembered(definition.offset(*values))))
                return bounded(result) if isinstance(result, Jet) else result

    def _read(self, variable: str) -> Jet:
        return self._started(variable, self._remembered(self.variables[variable]))

    def _remembered(self, value: Any) -> Any:
        """`value`, or what it was in the run that is replayed: a plain value here, whatever it is computed from."""
        value = value if self._replay is None else self._replay[len(self.reads)]
        self.reads.append(value)
        return value

    # --- statements -----------------------------------------------------------------------------------------

    def _block(self, block: Block, scope: Scope) -> None:
        for statement in block:
            self._statement(statement, scope)

    def _statement(self, statement: Statement, scope: Scope) -> None:
        match statement:
            case Let(name, value):
                scope[name] = self._value(value, scope)
            case Loop():
                self._loop(statement, scope)
            case Choose():
                position = self._position(statement, scope)
                self.decisions.append(position)
                self._inside(statement.branches[position], scope)
            case ByRow():
                self._by_row(statement, scope)
            case Scan():
                self._scan(statement, scope)
            case Split():
                self._split(statement, scope)
            case MakeVariable():
                pass
            case NewArray(name, rows):
                scope[name] = _rows(self._value(rows, scope))
            case FillArray():
                counts = range(statement.type.size)
                scope[statement.name] = tuple(
                    self._value(statement.value, {**scope, statement.counter: i}) for i in counts
                )
            case Write(array, index, value, size):
                elements = list(scope[array])
                elements[self._value(index, scope) % size] = self._value(value, scope)
                scope[array] = tuple(elements)
            case SetVariable():
                self._set_variable(statement, scope)
            case Gradient():
                self._gradient(statement, scope)
            case Grow():
                self._grow(statement, scope)
            case Recurse():
                limit = self._value(statement.limit, scope)
                self.decisions.append(limit)
                scope[statement.name] = self._call(statement, limit, self._value(statement.start, scope), scope)

    def _inside(self, block: Block, scope: Scope) -> None:
        """Run `block` in a scope of its own; names of `scope` that it assigns are changed there, too."""
        inner = dict(scope)
        self._block(block, inner)
        scope.update({name: inner[name] for name in scope})

    def _position(self, choose: Choose, scope: Scope) -> int:
        choice, last = self._value(choose.choice, scope), len(choose.branches) - 1
        if not isinstance(choice, bool):
            return min(max(choice, 0), last)
        if choose.second is None:
            return 0 if choice else 1
        return 0 if choice else 1 if self._value(choose.second, scope) else 2

    def _by_row(self, statement: ByRow, scope: Scope) -> None:
        operand, choice = self._value(statement.operand, scope), self._value(statement.choice, scope)
        count = len(operand.value)
        if isinstance(choice, Jet):
            taken = np.where(above(choice, 0.0), 0, 1)[:count]
        else:
            taken = choice[:count] % len(statement.branches)
        self.decisions.append(tuple(taken.tolist()))
        places: list[Any] = []
        parts: list[Jet] = []
        for number, (block, result) in enumerate(statement.branches):
            here = np.flatnonzero(taken == number)
            if not here.size:
                self.program.notes.add("batched branch without rows")
                continue
            inner = {**scope, statement.rows: jets.linear(lambda x, rows=here: x[rows], operand)}
            self._block(block, inner)
            places.append(here)
            parts.append(self._value(result, inner))
        order = np.argsort(np.concatenate(places))
        scope[statement.name] = jets.linear(lambda *xs: np.concatenate(xs)[order], *parts)

    def _loop(self, loop: Loop, scope: Scope) -> None:
        counter = 0
        scope[loop.counter] = counter
        limit = self._value(loop.limit, scope)
        while counter < limit and (loop.maximum is None or counter < loop.maximum):
            if loop.also is not None and not self._value(loop.also, scope):
                break
            self._inside(loop.body, scope)
            counter += 1
            scope[loop.counter] = counter
        self.decisions.append(counter)
        if counter == 0:
            self.program.notes.add("loop without iterations")

    def _scan(self, scan: Scan, scope: Scope) -> None:
        rows = _rows(self._value(scan.xs, scope))
        carry = None if scan.carry is None else scope[scan.carry]
        ys: list[Jet] = []
        for row in reversed(rows) if scan.reverse else rows:
            inner = {**scope, scan.element: row}
            if scan.carry is not None:
                inner[scan.carry] = carry
            self._block(scan.body, inner)
            ys.append(self._value(scan.y, inner))
            carry = None if scan.carry is None else inner[scan.carry]
        ordered = reversed(ys) if scan.reverse else ys
        if scan.carry is not None:
            scope[scan.carry] = carry
        if scan.ys is not None:
            scope[scan.ys] = jets.linear(lambda *xs: np.stack(xs), *ordered)

    def _split(self, statement: Split, scope: Scope) -> None:
        vector = self._value(statement.value, scope)
        first, second = (self._value(cut, scope) for cut in (statement.first, statement.second))
        start = first % 4
        stop = start + second % (4 - start)
        slices = (slice(0, start), slice(start, stop), slice(stop, 3))
        scope[statement.name] = tuple(jets.linear(lambda x, s=s: x[s], vector) for s in slices)

    def _set_variable(self, statement: SetVariable, scope: Scope) -> None:
        value = self._value(statement.value, scope)
        if statement.add:
            value = jets.add(self._read(statement.variable), value)
        stored = value.value
        if self.program.precision == "float32":  # a float32 variable keeps no more, however it is computed
            stored = stored.astype("float32").astype("float64")
            value = Jet({**value.parts, 0: stored})
        self.variables[statement.variable] = stored
        scope[statement.result] = value

    def _gradient(self, statement: Gradient, scope: Scope) -> None:
        source = scope[statement.source]
        bit, self._next_bit = self._next_bit, self._next_bit << 1
        columns: list[Jet] = []
        for position in range(source.value.size):
            direction = np.zeros(source.value.size)
            direction[position] = 1.0
            inner = {**scope, statement.inner: source.plus(bit, direction.reshape(source.value.shape))}
            self._block(statement.body, inner)
            columns.append(self._value(statement.y, inner).along(bit))
        self._next_bit = bit
        shape = source.value.shape
        scope[statement.name] = bounded(jets.linear(lambda *xs: np.reshape(np.stack(xs), shape), *columns))

    def _call(self, statement: Recurse, level: int, value: Any, scope: Scope) -> Any:
        inner = {**scope, statement.level: level, statement.value: value}
        if level <= 0:
            return self._value(statement.base, inner)
        self._block(statement.body, inner)
        deeper = self._call(statement, level - 1, inner[statement.value], scope)
        if statement.twice:
            self.program.notes.update(["recursion twice inside"] if level > 1 else [])
            deeper = jets.add(deeper, self._call(statement, level - 2, inner[statement.value], scope))
        return self._value(statement.result, {**inner, statement.deeper: deeper})

    def _grow(self, statement: Grow, scope: Scope) -> None:
        grown = self._value(statement.start, scope)
        for _ in range(self._value(statement.limit, scope)):
            inner = {**scope, statement.head: jets.linear(lambda x: x[-3:], grown)}
            grown = jets.linear(lambda a, b: np.concatenate([a, b]), grown, self._value(statement.piece, inner))
            if any(mask.bit_count() > 1 and np.any(part) for mask, part in grown.parts.items()):
                self.program.notes.add("growing carry, second order")
        scope[statement.name] = jets.linear(np.sum, jets.multiply(jets.sin(grown), grown))


def _rows(stacked: Jet) -> tuple[Jet, ...]:
    return tuple(jets.linear(lambda x, i=i: x[i], stacked) for i in range(len(stacked.value)))
