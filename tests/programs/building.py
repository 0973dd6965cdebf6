"""A program as an anabranch graph."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import anabranch as ab
from anabranch.engine.graph import Symbol, in_explicit_graph
from anabranch.engine.graph.graph import get_default_graph

from .primitives import PRIMITIVES
from .syntax import (
    INDICES,
    INT,
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
    inputs: dict[str, Symbol]
    variables: dict[str, ab.Variable]
    outputs: dict[str, Symbol]
    loss: Symbol
    effects: list[ab.Operation] = field(default_factory=list)

    def feeds(self, program: Program) -> dict[Symbol, Any]:
        return {tensor: np.asarray(program.inputs[name], tensor.dtype)[()] for name, tensor in self.inputs.items()}

    def reset(self, program: Program) -> None:
        """Give the variables their first values again."""
        for name, variable in self.variables.items():
            variable.assign(program.variables[name] if name in program.variables else program.made[name])


def build(program: Program) -> Built:
    """The graph of `program`, with its loss."""
    graph = ab.Graph()
    builder = _Builder(program)
    with graph.as_default():
        inputs = {name: builder.placeholder(name, value) for name, value in program.inputs.items()}
        scope: Scope = dict(inputs)
        builder.block(program.body, scope)
        outputs = {name: scope[name] for name in program.outputs}
        loss = _loss(program, scope)
    effects = [operation for operation in graph.operations if operation.writes]
    return Built(graph, inputs, builder.variables, outputs, loss, effects)


@dataclass
class Computed:
    """The results of a program that is run op by op, without a graph.

    Attributes:
        sources: the float inputs, and the variables for which a gradient is defined, by name.
        first, second: the gradients of the loss, and of its derivative along the program's first direction, by them.
    """

    outputs: dict[str, Any]
    variables: dict[str, ab.Variable]
    sources: dict[str, Any]
    first: list[ab.Tensor]
    second: list[ab.Tensor]


def compute(program: Program) -> Computed:
    """Run `program` on values under two tapes."""
    builder = _Computer(program)
    inputs = {name: builder.input(value) for name, value in program.inputs.items()}
    free = {name: builder.variables[name] for name in program.variables if name not in program.written_inside()}
    sources = {**{name: x for name, x in inputs.items() if ab.convert_to_tensor(x).dtype.kind == "f"}, **free}
    xs = list(sources.values())
    with ab.GradientTape() as outer:
        with ab.GradientTape() as inner:
            for tape in (outer, inner):
                tape.watch(xs)
            scope: Scope = dict(inputs)
            builder.block(program.body, scope)
            loss = _loss(program, scope)
        first = _dense(inner.gradient(loss, xs, unconnected_gradients="zero"))
        slope = ab.constant(0.0, program.precision)
        for name, part in zip(sources, first, strict=True):
            slope = slope + ab.ops.sum(part * program.directions[0][name].astype(program.precision))
    second = _dense(outer.gradient(slope, xs, unconnected_gradients="zero"))
    return Computed({name: scope[name] for name in program.outputs}, builder.variables, sources, first, second)


def _dense(gradients: Any) -> list[ab.Tensor]:
    return [ab.convert_to_tensor(gradient) for gradient in gradients]


def _loss(program: Program, scope: Scope) -> Any:
    """The weighted sum of the outputs, plus half its square."""
    loss = ab.constant(0.0, program.precision)
    for name, weight in program.weights.items():
        loss = loss + ab.ops.sum(scope[name] * np.asarray(weight, program.precision))
    return loss + 0.5 * loss * loss


class _Builder:
    def __init__(self, program: Program) -> None:
        self.precision = program.precision
        self.open_shapes = program.open_shapes
        self.made = program.made
        self._waits = Random(program.waits) if program.waits else None
        self.variables = {
            name: ab.Variable(value, dtype=program.precision, name=name) for name, value in program.variables.items()
        }

    def placeholder(self, name: str, value: Any) -> Symbol:
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
                if isinstance(value, tuple):
                    return ab.constant(value, "int32")
                return value if isinstance(value, bool | int) else ab.constant(value, self.precision)
            case Read(variable=variable):
                return self.variables[variable].value
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
            with self._waiting():
                self._statement(statement, scope)

    def _waiting(self) -> AbstractContextManager[None]:
        """Return a context in which operations wait for some of those that the present graph has, or for none."""
        built = [operation for operation in get_default_graph().operations if operation.outputs] if self._waits else []
        if self._waits is None or not built or self._waits.random() < 0.5:
            return nullcontext()
        return ab.control_dependencies(self._waits.sample(built, min(len(built), self._waits.randint(1, 2))))

    def _statement(self, statement: Statement, scope: Scope) -> None:
        match statement:
            case Let(name, value):
                scope[name] = self._tensor(self.value(value, scope))
            case Loop():
                self._loop(statement, scope)
            case Choose():
                self._choose(statement, scope)
            case ByRow():
                self._by_row(statement, scope)
            case Scan():
                self._scan(statement, scope)
            case Split():
                self._split(statement, scope)
            case MakeVariable(variable):
                self._make(variable)
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
                scope[name] = self._slope(scope[source] * 1.0, inner, body, y, scope)
            case Grow():
                self._grow(statement, scope)
            case Recurse():
                self._recurse(statement, scope)

    def _make(self, variable: str) -> None:
        self.variables[variable] = ab.Variable(self.made[variable], dtype=self.precision, name=variable)

    def _slope(self, point: Any, inner: str, body: Block, y: Expression, scope: Scope) -> Any:
        within = {**scope, inner: point}
        self.block(body, within)
        (found,) = ab.gradients(self.value(y, within), [point], unconnected_gradients="zero")
        return found

    def _recursive(self, function: Any) -> Any:
        return ab.function(function)

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
        elif choose.second is not None:
            second = self._tensor(self.value(choose.second, scope))
            result = ab.case([(choice, functions[0]), (second, functions[1])], default=functions[2])
        else:
            result = ab.cond(choice, functions[0], functions[1])
        scope.update(result)

    def _by_row(self, statement: ByRow, scope: Scope) -> None:
        operand, choice = self.value(statement.operand, scope), self.value(statement.choice, scope)
        count = statement.operand.type.shape[0]

        def run(branch: tuple[Block, Expression], rows: Any) -> Any:
            within = {**scope, statement.rows: rows}
            self.block(branch[0], within)
            return self.value(branch[1], within)

        functions = [functools.partial(run, branch) for branch in statement.branches]
        if statement.choice.type == INDICES:
            scope[statement.name] = ab.batched_switch(choice[:count] % len(functions), functions, operand)
        else:
            scope[statement.name] = ab.batched_cond(choice[:count] > 0, functions[0], functions[1], operand)

    def _scan(self, scan: Scan, scope: Scope) -> None:
        xs = self.value(scan.xs, scope)

        def step(carry: Any, element: Any) -> Any:
            within = {**scope, scan.element: element}
            if scan.carry is not None:
                within[scan.carry] = carry
            self.block(scan.body, within)
            return within.get(scan.carry or ""), self.value(scan.y, within)

        if scan.carry is None:
            options = {} if scan.how == "vectorized_map" else {"reverse": scan.reverse}
            scope[scan.ys or ""] = getattr(ab, scan.how)(lambda element: step(None, element)[1], xs, **options)
        elif scan.ys is None:
            fold = getattr(ab, scan.how)
            scope[scan.carry] = fold(lambda carry, element: step(carry, element)[0], xs, scope[scan.carry])
        else:
            scope[scan.carry], scope[scan.ys] = ab.scan(step, scope[scan.carry], xs, reverse=scan.reverse)

    def _split(self, statement: Split, scope: Scope) -> None:
        first, second = (self._tensor(self.value(cut, scope)) for cut in (statement.first, statement.second))
        start = first % 4
        length = second % (4 - start)
        lengths = ab.ops.stack([start, length, 3 - start - length])
        array = ab.TensorArray(self.precision, 3, element_shape=(None,))
        scope[statement.name] = array.split(self.value(statement.value, scope), lengths)

    def _fill(self, fill: FillArray, scope: Scope) -> None:
        empty = ab.TensorArray(self.precision, 0 if fill.dynamic else fill.type.size, dynamic_size=fill.dynamic)

        def body(i: Any, array: Any) -> Any:
            return i + 1, array.write(i, self.value(fill.value, {**scope, fill.counter: i}))

        _, scope[fill.name] = ab.while_loop(lambda i, _: i < fill.type.size, body, (0, empty))

    def _recurse(self, statement: Recurse, scope: Scope) -> None:
        def run(level: Any, value: Any) -> Any:
            start = {**scope, statement.level: level, statement.value: value}

            def more() -> Any:
                within = dict(start)
                self.block(statement.body, within)
                deeper = call(level - 1, within[statement.value])
                if statement.twice:
                    deeper = deeper + call(level - 2, within[statement.value])
                return self.value(statement.result, {**within, statement.deeper: deeper})

            return ab.cond(level > 0, more, lambda: self.value(statement.base, dict(start)))

        call = self._recursive(run)
        limit = self._tensor(self.value(statement.limit, scope))
        scope[statement.name] = call(limit, self.value(statement.start, scope))

    def _grow(self, grow: Grow, scope: Scope) -> None:
        limit = self._tensor(self.value(grow.limit, scope))

        def body(i: Any, grown: Any) -> Any:
            piece = self.value(grow.piece, {**scope, grow.head: grown[-3:]})
            return i + 1, ab.ops.concatenate([grown, piece])

        _, grown = ab.while_loop(lambda i, _: i < limit, body, (0, self.value(grow.start, scope)))
        scope[grow.name] = ab.ops.sum(ab.ops.sin(grown) * grown)


class _Computer(_Builder):
    """Runs the statements on values, which wait for nothing."""

    def _waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def input(self, value: Any) -> Any:
        return value if isinstance(value, bool | int) else ab.convert_to_tensor(value, self.precision)

    def _make(self, variable: str) -> None:
        if variable not in self.variables:  # a body that is run again
            super()._make(variable)

    def _slope(self, point: Any, inner: str, body: Block, y: Expression, scope: Scope) -> Any:
        with ab.GradientTape() as tape:
            tape.watch(point)
            within = {**scope, inner: point}
            self.block(body, within)
            target = self.value(y, within)
        return tape.gradient(target, point, unconnected_gradients="zero")

    def _recursive(self, function: Any) -> Any:
        traced = super()._recursive(function)
        return lambda *given: (traced if in_explicit_graph() else function)(*given)
