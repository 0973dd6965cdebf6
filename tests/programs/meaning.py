"""What a program means: a naive evaluator over NumPy float64 jets. It knows nothing of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import jets
from .jets import Jet
from .primitives import PRIMITIVES, bounded
from .syntax import (
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
    Write,
)

Scope = dict[str, Any]


class Evaluation:
    """One run of a program at ``inputs + sum of e_k * directions[k]``.

    A read of a variable is where derivatives end (and, for the variable itself, begin): what was assigned to it is a
    plain value. `replay` gives the values of reads, in order, that another run found, so that finite differences see
    the same.

    Attributes:
        loss: the weighted sum of the outputs, plus half its square, as a jet.
        variables: their values at the end.
        decisions: the trip counts and branches taken, in order.
        reads: the values of variables read, in order.
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
        self.variables = {name: np.asarray(value, "float64") for name, value in program.variables.items()}
        self.decisions: list[int] = []
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
                return value if isinstance(value, bool | int) else jets.constant(value)
            case Read(variable=variable):
                return self._read(variable)
            case Call(primitive=primitive, arguments=arguments):
                values = [self._value(argument, scope) for argument in arguments]
                result = PRIMITIVES[primitive].evaluate(*values)
                return bounded(result) if isinstance(result, Jet) else result

    def _read(self, variable: str) -> Jet:
        value = self.variables[variable] if self._replay is None else self._replay[len(self.reads)]
        self.reads.append(value)
        return self._started(variable, value)

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
            case Choose(choice, branches):
                position = self._position(self._value(choice, scope), len(branches))
                self.decisions.append(position)
                self._inside(branches[position], scope)
            case Scan():
                self._scan(statement, scope)
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

    def _inside(self, block: Block, scope: Scope) -> None:
        """Run `block` in a scope of its own; what it assigns and `scope` knows is changed there too."""
        inner = dict(scope)
        self._block(block, inner)
        scope.update({name: inner[name] for name in scope})

    @staticmethod
    def _position(choice: Any, count: int) -> int:
        return (0 if choice else 1) if isinstance(choice, bool) else min(max(choice, 0), count - 1)

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
        scope[scan.ys] = jets.linear(lambda *xs: np.stack(xs), *ordered)

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

    def _grow(self, statement: Grow, scope: Scope) -> None:
        grown = self._value(statement.start, scope)
        for _ in range(self._value(statement.limit, scope)):
            inner = {**scope, statement.head: jets.linear(lambda x: x[-3:], grown)}
            grown = jets.linear(lambda a, b: np.concatenate([a, b]), grown, self._value(statement.piece, inner))
        scope[statement.name] = jets.linear(np.sum, jets.multiply(jets.sin(grown), grown))


def _rows(stacked: Jet) -> tuple[Jet, ...]:
    return tuple(jets.linear(lambda x, i=i: x[i], stacked) for i in range(len(stacked.value)))
