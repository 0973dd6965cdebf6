"""The syntax of structured random programs: typed expressions and statements that print as pseudocode.

A program has a few float inputs, one integer and one bool input, and variables. Names are assigned again and again, as
in Python: what a loop body or branch assigns and the scope around it knows is carried. `building` makes an anabranch
graph of a program, `meaning` evaluates it with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Type:
    """``kind`` is "float", "int", "bool" or "array" (a TensorArray with `size` float elements of `shape`)."""

    kind: str
    shape: tuple[int, ...] = ()
    size: int = 0


SCALAR, VECTOR = Type("float"), Type("float", (3,))
MATRIX, ROWS = Type("float", (3, 3)), Type("float", (2, 3))
INT, BOOL = Type("int"), Type("bool")
SCALARS, VECTORS = Type("array", (), 3), Type("array", (3,), 2)  # they stack to VECTOR and ROWS
FLOATS = (SCALAR, VECTOR, MATRIX, ROWS)


@dataclass(frozen=True)
class Name:
    name: str
    type: Type

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Literal:
    value: Any
    type: Type

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Read:
    """The value of a variable at this place of the program."""

    variable: str
    type: Type

    def __str__(self) -> str:
        return f"{self.variable}.value()"


@dataclass(frozen=True)
class Call:
    primitive: str
    arguments: tuple[Expression, ...]
    type: Type

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(map(str, self.arguments))})"


Expression = Name | Literal | Read | Call
Block = tuple["Statement", ...]


@dataclass(frozen=True)
class Let:
    name: str
    value: Expression


@dataclass(frozen=True)
class Loop:
    """``for counter in range(limit)``, which also ends when `also` is false; the counter is visible afterwards."""

    counter: str
    limit: Expression
    also: Expression | None
    body: Block
    through: tuple[str, ...] = ()  # names that are carried though the body does not assign them
    maximum: int | None = None
    parallel: int = 32


@dataclass(frozen=True)
class Choose:
    """The branch that a bool (true, false) or an integer chooses, clamped."""

    choice: Expression
    branches: tuple[Block, ...]


@dataclass(frozen=True)
class Scan:
    """`scan` over the rows of `xs`: `carry` is carried, `ys` gets the stacked values of `y`; `map_fn` without carry."""

    carry: str | None
    element: str
    xs: Expression
    body: Block
    y: Expression
    ys: str
    reverse: bool = False


@dataclass(frozen=True)
class NewArray:
    """A TensorArray of the rows of `rows`."""

    name: str
    rows: Expression


@dataclass(frozen=True)
class FillArray:
    """A new TensorArray of which a loop writes each element."""

    name: str
    type: Type
    counter: str
    value: Expression
    dynamic: bool


@dataclass(frozen=True)
class Write:
    """Write over an element; the index is taken modulo the size."""

    array: str
    index: Expression
    value: Expression
    size: int


@dataclass(frozen=True)
class SetVariable:
    """Assign a variable; the value assigned is `result`."""

    variable: str
    value: Expression
    result: str
    add: bool = False


@dataclass(frozen=True)
class Gradient:
    """``name = d y / d source`` where `y` comes out of `body`, in which `inner` stands for the value of `source`."""

    name: str
    source: str
    inner: str
    body: Block
    y: Expression


@dataclass(frozen=True)
class Grow:
    """A loop whose carried vector gets longer each iteration: `name` is a number computed from all of it."""

    name: str
    start: Expression
    head: str
    piece: Expression
    limit: Expression


Statement = Let | Loop | Choose | Scan | NewArray | FillArray | Write | SetVariable | Gradient | Grow


@dataclass
class Program:
    """A whole program with the values of its inputs.

    Attributes:
        inputs: name -> value; floats are multiples of 2**-12, so that float32 holds them exactly.
        variables: name -> first value.
        weights: output name -> weights with which the loss sums it.
        directions: two directions in the space of inputs and variables, for derivatives.
        precision: "float32" or "float64", the dtype of the graph.
        open_shapes: placeholders do not tell their sizes.
        kernels: the program is also run with fused kernels, which takes long to compile.
    """

    body: Block
    inputs: dict[str, Any]
    variables: dict[str, Any]
    outputs: dict[str, Type]
    weights: dict[str, Any]
    directions: list[dict[str, Any]]
    precision: str = "float64"
    open_shapes: bool = False
    kernels: bool = False
    notes: set[str] = field(default_factory=set)

    def statements(self) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
        """Every statement with those around it."""
        yield from _walk(self.body, ())

    def written_inside(self) -> set[str]:
        """The variables that a loop or branch writes, with respect to which no gradient is defined."""
        return {s.variable for s, around in self.statements() if isinstance(s, SetVariable) and around}

    def __repr__(self) -> str:
        lines = [f"# {self.precision}, open shapes: {self.open_shapes}, kernels: {self.kernels}"]
        lines += [f"{name} = {_value_text(value)}" for name, value in self.inputs.items()]
        lines += [f"{name} = Variable({_value_text(value)})" for name, value in self.variables.items()]
        lines += block_text(self.body)
        lines.append(f"return {', '.join(self.outputs)}")
        return "\n" + "\n".join("    " + line for line in lines) + "\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # else Hypothesis prints the fields of every node


def inner_blocks(statement: Statement) -> tuple[Block, ...]:
    if isinstance(statement, Choose):
        return statement.branches
    return (statement.body,) if isinstance(statement, Loop | Scan | Gradient) else ()


def _walk(block: Block, around: tuple[Statement, ...]) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
    for statement in block:
        yield statement, around
        for inner in inner_blocks(statement):
            yield from _walk(inner, (*around, statement))


def assigned_names(block: Block) -> set[str]:
    """The names that running `block` binds, in its own scope."""
    names: set[str] = set()
    for statement in block:
        match statement:
            case Let(name=name) | NewArray(name=name) | FillArray(name=name) | Gradient(name=name) | Grow(name=name):
                names.add(name)
            case Write(array=array):
                names.add(array)
            case SetVariable(result=result):
                names.add(result)
            case Scan(carry=carry, ys=ys):
                names.update([ys] if carry is None else [ys, carry])
            case Loop(counter=counter, body=body):
                names.update({counter}, assigned_names(body))
            case Choose(branches=branches):
                names.update(*[assigned_names(branch) for branch in branches])
    return names


# --- text -----------------------------------------------------------------------------------------------------------


def block_text(block: Block) -> list[str]:
    return [line for statement in block for line in _statement_text(statement)] or ["pass"]


def _indented(block: Block) -> list[str]:
    return ["    " + line for line in block_text(block)]


def _statement_text(statement: Statement) -> list[str]:
    match statement:
        case Let(name, value):
            return [f"{name} = {value}"]
        case Loop():
            condition = f"{statement.counter} < {statement.limit}"
            condition += "" if statement.also is None else f" and {statement.also}"
            options = f"  # carries {', '.join(statement.through)}" if statement.through else ""
            options += f"  # maximum_iterations={statement.maximum}" if statement.maximum is not None else ""
            end = f"    {statement.counter} += 1"
            return [f"{statement.counter} = 0", f"while {condition}:{options}", *_indented(statement.body), end]
        case Choose(choice, branches):
            lines = [f"match {choice}:"]
            for position, branch in enumerate(branches):
                label = str(position) if choice.type == INT else ("true", "false")[position]
                lines += [f"  case {label}:", *_indented(branch)]
            return lines
        case Scan():
            head = f"{statement.ys} = stack over {'reversed ' if statement.reverse else ''}{statement.xs}"
            carry = "" if statement.carry is None else f", carrying {statement.carry}"
            return [f"{head}{carry}: {statement.element} =>", *_indented(statement.body), f"    yield {statement.y}"]
        case NewArray(name, rows):
            return [f"{name} = TensorArray.unstack({rows})"]
        case FillArray():
            kind = "growing " if statement.dynamic else ""
            each = f"[{statement.value} for {statement.counter} in range({statement.type.size})]"
            return [f"{statement.name} = {kind}TensorArray of {each}"]
        case Write(array, index, value, size):
            return [f"{array} = {array}.write({index} % {size}, {value})"]
        case SetVariable(variable, value, result, add):
            return [f"{result} = {variable}.assign{'_add' if add else ''}({value})"]
        case Gradient(name, source, inner, body, y):
            return [f"{name} = gradient at {inner} = {source} of:", *_indented(body), f"    yield {y}"]
        case Grow():
            step = f"concat([acc, {statement.piece} at {statement.head} = acc[-3:]])"
            return [f"{statement.name} = grow acc = {statement.start} {statement.limit} times by {step}"]


def _value_text(value: Any) -> str:
    return str(np.asarray(value).tolist())
