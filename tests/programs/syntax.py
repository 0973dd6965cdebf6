"""The syntax of structured random programs: typed expressions and statements that print as pseudocode.

A program has a few float inputs, one integer and one bool input, and variables. Names are assigned again and again, as
in Python: names of the scope around that a loop body or branch assigns are carried. `building` makes an anabranch
graph of a program, `meaning` evaluates it with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Type:
    """``kind`` is "float", "int", "bool" or "array" (a TensorArray with `size` float elements of `shape`).

    None in a shape: a dimension that depends on the run.
    """

    kind: str
    shape: tuple[int | None, ...] = ()
    size: int = 0


SCALAR, VECTOR = Type("float"), Type("float", (3,))
MATRIX, ROWS = Type("float", (3, 3)), Type("float", (2, 3))
INT, BOOL = Type("int"), Type("bool")
INDICES = Type("int", (3,))  # from -3 to 2
PART, NUMBERS = Type("float", (None, 3)), Type("float", (None,))  # some rows of a matrix, some numbers of a vector
PIECE, PIECES = Type("piece", (None,)), Type("array", (None,), 3)  # vectors whose lengths vary
SCALARS, VECTORS = Type("array", (), 3), Type("array", (3,), 2)  # they stack to VECTOR and ROWS
FLOATS = (SCALAR, VECTOR, MATRIX, ROWS)
PARTS = (PART, NUMBERS)
LETTERS = {SCALAR: "s", VECTOR: "v", MATRIX: "m", ROWS: "r", PART: "p", NUMBERS: "n"}


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
        return f"{self.variable}.value"


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
    """The branch that a bool (true, false) or an integer chooses, clamped; with two bools the first true one."""

    choice: Expression
    branches: tuple[Block, ...]
    second: Expression | None = None


@dataclass(frozen=True)
class ByRow:
    """Each row of `operand` takes the branch that its own entry of `choice` names.

    `choice` is a VECTOR (positive ones take the first branch) or INDICES (modulo the number of branches). A branch is a
    block in which `rows` stands for the rows that take it, and its result for these.
    """

    name: str
    choice: Expression
    operand: Expression
    rows: str
    branches: tuple[tuple[Block, Expression], ...]


@dataclass(frozen=True)
class Scan:
    """Over the rows of `xs`, `carry` is carried, and `ys` gets the stacked values of `y`; either may be missing.

    `how` is the name of the function: "scan", "map_fn", "vectorized_map", "foldl" or "foldr".
    """

    carry: str | None
    element: str
    xs: Expression
    body: Block
    y: Expression
    ys: str | None
    reverse: bool = False
    how: str = "scan"


@dataclass(frozen=True)
class NewArray:
    """A TensorArray of the rows of `rows`."""

    name: str
    rows: Expression


@dataclass(frozen=True)
class Split:
    """A TensorArray of three pieces of the vector `value`; two numbers say where it is cut, pieces may be empty."""

    name: str
    value: Expression
    first: Expression
    second: Expression


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
class MakeVariable:
    """A variable that is made where this stands, inside a loop or branch; it exists once."""

    variable: str
    type: Type


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


@dataclass(frozen=True)
class Recurse:
    """``name = f(limit, start)`` of a function that calls itself.

    ``f(level, value)`` is `base` at level 0 and below. Else it runs `body`, which may assign `value`, and gives
    `result`, in which `deeper` stands for ``f(level - 1, value)`` (or, `twice`, for that plus ``f(level - 2, value)``).
    """

    name: str
    limit: Expression
    start: Expression
    level: str
    value: str
    body: Block
    base: Expression
    deeper: str
    result: Expression
    twice: bool = False


Statement = (
    Let
    | Loop
    | Choose
    | ByRow
    | Scan
    | NewArray
    | Split
    | FillArray
    | Write
    | MakeVariable
    | SetVariable
    | Gradient
    | Grow
    | Recurse
)


@dataclass
class Program:
    """A whole program with the values of its inputs.

    Attributes:
        inputs: name -> value; floats are multiples of 2**-12, so that float32 holds them exactly.
        variables: name -> first value.
        made: the same of the variables that the program makes itself.
        weights: output name -> weights with which the loss sums it.
        directions: two directions in the space of inputs and variables, for derivatives.
        precision: "float32" or "float64", the dtype of the graph.
        open_shapes: placeholders do not give their sizes.
        kernels: the program is also run with fused kernels, which takes long to compile.
        waits: a seed by which statements wait for operations before them (control dependencies); 0: none does.
        notes: what the coverage table says of the program that is not seen in its statements.
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
    made: dict[str, Any] = field(default_factory=dict)
    waits: int = 0
    notes: set[str] = field(default_factory=set)

    def statements(self) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
        """Every statement with those around it."""
        yield from _walk(self.body, ())

    def written_inside(self) -> set[str]:
        """The variables that a loop or branch writes, with respect to which no gradient is defined."""
        return {s.variable for s, around in self.statements() if isinstance(s, SetVariable) and around}

    def calls(self) -> Iterator[tuple[str, tuple[Statement, ...]]]:
        """Every use of a primitive, with the statements around it."""
        for statement, around in self.statements():
            for expression in own_expressions(statement):
                for primitive in primitives_of(expression):
                    yield primitive, around

    def __repr__(self) -> str:
        from .text import block_text, value_text

        lines = [f"# {self.precision}, open shapes: {self.open_shapes}, kernels: {self.kernels}, waits: {self.waits}"]
        lines += [f"{name} = {value_text(value)}" for name, value in self.inputs.items()]
        variables = {**self.variables, **self.made}
        lines += [f"{name} = Variable({value_text(value)})" for name, value in variables.items()]
        lines += block_text(self.body)
        lines.append(f"return {', '.join(self.outputs)}")
        return "\n" + "\n".join("    " + line for line in lines) + "\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # else Hypothesis prints the fields of every node


def inner_blocks(statement: Statement) -> tuple[Block, ...]:
    if isinstance(statement, Choose):
        return statement.branches
    if isinstance(statement, ByRow):
        return tuple(block for block, _ in statement.branches)
    return (statement.body,) if isinstance(statement, Loop | Scan | Gradient | Recurse) else ()


def own_expressions(statement: Statement) -> Iterator[Expression]:
    """The expressions of a statement itself, without those of the blocks in it."""
    for part in fields(statement):
        value = getattr(statement, part.name)
        if isinstance(value, Name | Literal | Read | Call):
            yield value
    if isinstance(statement, ByRow):
        yield from [result for _, result in statement.branches]


def primitives_of(expression: Expression) -> Iterator[str]:
    if isinstance(expression, Call):
        yield expression.primitive
        for argument in expression.arguments:
            yield from primitives_of(argument)


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
            case Let(name=name) | Gradient(name=name) | Grow(name=name) | ByRow(name=name) | Recurse(name=name):
                names.add(name)
            case NewArray(name=name) | Split(name=name) | FillArray(name=name):
                names.add(name)
            case Write(array=array):
                names.add(array)
            case SetVariable(result=result):
                names.add(result)
            case Scan(carry=carry, ys=ys):
                names.update(name for name in (carry, ys) if name is not None)
            case Loop(counter=counter, body=body):
                names.update({counter}, assigned_names(body))
            case Choose(branches=branches):
                names.update(*[assigned_names(branch) for branch in branches])
            case MakeVariable():
                pass
    return names
