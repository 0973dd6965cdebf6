"""A program as an anabranch graph."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import anabranch as ab

from .primitives import PRIMITIVES
from .syntax import (
    INT,
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
    assigned_names,
)

Scope = dict[str, Any]


@dataclass
class Built:
    """The graph of a program.

    Attributes:
        inputs: name -> placeholder.
        effects: the operations of the outermost graph that write variables; they run only if they are fetched.
        loss: the weighted sum of the outputs, plus half its square, so that it is curved.
    """

    graph: ab.Graph
    inputs: dict[str, ab.Tensor]
    variables: dict[str, ab.Variable]
    outputs: dict[str, ab.Tensor]
    loss: ab.Tensor
    effects: list[ab.Operation] = field(default_factory=list)

    def feeds(self, program: Program) -> dict[ab.Tensor, Any]:
        return {tensor: np.asarray(program.inputs[name], tensor.dtype)[()] for name, tensor in self.inputs.items()}

    def reset(self, program: Program) -> None:
        """Give the variables their first values again."""
        for name, variable in self.variables.items():
            variable.assign(program.variables[name])


def build(program: Program) -> Built:
    """The graph of `program`, with its loss."""
    graph = ab.Graph()
    builder = _Builder(program)
    with graph.as_default():
        inputs = {name: builder.placeholder(name, value) for name, value in program.inputs.items()}
        scope: Scope = dict(inputs)
        builder.block(program.body, scope)
        outputs = {name: scope[name] for name in program.outputs}
        loss = ab.constant(0.0, program.precision)
        for name, weight in program.weights.items():
            loss = loss + ab.ops.sum(outputs[name] * np.asarray(weight, program.precision))
        loss = loss + 0.5 * loss * loss
    effects = [operation for operation in graph.operations if operation.writes]
    return Built(graph, inputs, builder.variables, outputs, loss, effects)


class _Builder:
    def __init__(self, program: Program) -> None:
        self.precision = program.precision
        self.open_shapes = program.open_shapes
        self.variables = {
            name: ab.Variable(value, dtype=program.precision, name=name) for name, value in program.variables.items()
        }

    def placeholder(self, name: str, value: Any) -> ab.Tensor:
        if isinstance(value, bool | int):
            return ab.placeholder((), "bool" if isinstance(value, bool) else "int32", name)
        shape = np.shape(value)
        return ab.placeholder((None,) * len(shape) if self.open_shapes else shape, self.precision, name)

    # --- expressions ----------------------------------------------------------------------------------------

    def value(self, expression: Expression, scope: Scope) -> Any:
        match expression:
            case Name(name=name):
                return scope[name]
            case Literal(value=value):
                return value if isinstance(value, bool | int) else ab.constant(value, self.precision)
            case Read(variable=variable):
                return self.variables[variable].value()
            case Call(primitive=primitive, arguments=arguments):
                values = [self._tensor(self.value(argument, scope)) for argument in arguments]
                result = PRIMITIVES[primitive].build(*values)
                return ab.ops.cast(result, self.precision) if primitive == "float_of" else result

    @staticmethod
    def _tensor(value: Any) -> Any:
        return ab.convert_to_tensor(value) if isinstance(value, bool | int) else value

    # --- statements -----------------------------------------------------------------------------------------

    def block(self, block: Block, scope: Scope) -> None:
        for statement in block:
            self._statement(statement, scope)

    def _statement(self, statement: Statement, scope: Scope) -> None:
        match statement:
            case Let(name, value):
                scope[name] = self._tensor(self.value(value, scope))
            case Loop():
                self._loop(statement, scope)
            case Choose():
                self._choose(statement, scope)
            case Scan():
                self._scan(statement, scope)
            case NewArray(name, rows):
                scope[name] = ab.TensorArray(self.precision, 0, dynamic_size=True).unstack(self.value(rows, scope))
            case FillArray():
                self._fill(statement, scope)
            case Write(array, index, value, size):
                position = self._tensor(self.value(index, scope)) % size
                scope[array] = scope[array].write(position, self.value(value, scope))
            case SetVariable(variable, value, result, add):
                target = self.variables[variable]
                tensor = self.value(value, scope)
                scope[result] = target.assign_add(tensor) if add else target.assign(tensor)
            case Gradient(name, source, inner, body, y):
                point = scope[source] * 1.0
                within = {**scope, inner: point}
                self.block(body, within)
                target = self.value(y, within)
                (scope[name],) = ab.gradients(target, [point], unconnected_gradients="zero")
            case Grow():
                self._grow(statement, scope)

    def _loop(self, loop: Loop, scope: Scope) -> None:
        limit = self._tensor(self.value(loop.limit, {**scope, loop.counter: 0}))
        carried = sorted(({*assigned_names(loop.body), *loop.through} & set(scope)) - {loop.counter})

        def inside(i: Any, values: dict[str, Any]) -> Scope:
            return {**scope, loop.counter: i, **values}

        def condition(i: Any, values: dict[str, Any]) -> Any:
            going = i < limit
            if loop.also is None:
                return going
            return ab.ops.logical_and(going, self._tensor(self.value(loop.also, inside(i, values))))

        def body(i: Any, values: dict[str, Any]) -> Any:
            within = inside(i, values)
            self.block(loop.body, within)
            return i + 1, {name: within[name] for name in carried}

        start = {name: scope[name] for name in carried}
        counter, final = ab.while_loop(
            condition, body, (0, start), maximum_iterations=loop.maximum, parallel_iterations=loop.parallel
        )
        scope.update(final)
        scope[loop.counter] = counter

    def _choose(self, choose: Choose, scope: Scope) -> None:
        changed = sorted({name for branch in choose.branches for name in assigned_names(branch)} & set(scope))

        def run(branch: Block) -> Any:
            within = dict(scope)
            self.block(branch, within)
            return {name: within[name] for name in changed}

        choice = self._tensor(self.value(choose.choice, scope))
        functions = [functools.partial(run, branch) for branch in choose.branches]
        if choose.choice.type == INT:
            result = ab.switch(choice, functions)
        else:
            result = ab.cond(choice, functions[0], functions[1])
        scope.update(result)

    def _scan(self, scan: Scan, scope: Scope) -> None:
        xs = self.value(scan.xs, scope)

        def step(carry: Any, element: Any) -> Any:
            within = {**scope, scan.element: element}
            if scan.carry is not None:
                within[scan.carry] = carry
            self.block(scan.body, within)
            return within.get(scan.carry or ""), self.value(scan.y, within)

        if scan.carry is None:
            scope[scan.ys] = ab.map_fn(lambda element: step(None, element)[1], xs, reverse=scan.reverse)
            return
        scope[scan.carry], scope[scan.ys] = ab.scan(step, scope[scan.carry], xs, reverse=scan.reverse)

    def _fill(self, fill: FillArray, scope: Scope) -> None:
        empty = ab.TensorArray(self.precision, 0 if fill.dynamic else fill.type.size, dynamic_size=fill.dynamic)

        def body(i: Any, array: Any) -> Any:
            return i + 1, array.write(i, self.value(fill.value, {**scope, fill.counter: i}))

        _, scope[fill.name] = ab.while_loop(lambda i, _: i < fill.type.size, body, (0, empty))

    def _grow(self, grow: Grow, scope: Scope) -> None:
        limit = self._tensor(self.value(grow.limit, scope))

        def body(i: Any, grown: Any) -> Any:
            piece = self.value(grow.piece, {**scope, grow.head: grown[-3:]})
            return i + 1, ab.ops.concatenate([grown, piece])

        _, grown = ab.while_loop(lambda i, _: i < limit, body, (0, self.value(grow.start, scope)))
        scope[grow.name] = ab.ops.sum(ab.ops.sin(grown) * grown)
