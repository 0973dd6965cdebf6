"""Long runs of operations on scalars, cut into functions of their own.

LLVM takes more than twice the time for a function of twice the length. So a loop whose body has thousands of operations
is one function that calls others, of some hundred operations each. Values that one of these gives and another takes are
in a frame, memory of the function that calls them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

from ...graph.graph import Operation, Parameter
from ...graph.tensor import Symbol
from ...ops.base import Constant
from ...ops.containers.tensor_arrays import ArrayRead
from .function import Elements, FormContext, Scalar, Value

LONG = 600  # operations in a row, from which they are cut
PIECE = 300
_PLACE = 8  # bytes

Run = tuple[bool, list[Operation]]  # whether it is cut into pieces


def runs_of(operations: Sequence[Operation], values: Mapping[Symbol, Value]) -> list[Run]:
    """Return the operations of a block, with those apart that are to be pieces.

    Args:
        operations: in order.
        values: known before them.
    """
    if sum([not isinstance(operation.op, (Constant, Parameter)) for operation in operations]) < LONG:
        return [(False, list(operations))]
    found: list[Run] = []
    for is_plain, group in groupby(operations, lambda operation: _is_plain(operation, values)):
        run = list(group)
        if is_plain and len(run) >= PIECE:
            count = -(-len(run) // PIECE)
            size = -(-len(run) // count)
            found += [(True, run[start : start + size]) for start in range(0, len(run), size)]
        else:
            found.append((False, run))
    return found


def _is_plain(operation: Operation, values: Mapping[Symbol, Value]) -> bool:
    """Test whether an operation takes registers, and gives registers, whatever else there is."""
    if operation.effects or any(tensor.shape != () for tensor in operation.outputs):
        return False
    if isinstance(operation.op, (Constant, Parameter)):
        return True
    if isinstance(operation.op, ArrayRead):
        return isinstance(values.get(operation.inputs[0]), Elements)
    return operation.op.elementwise and all(tensor.shape == () for tensor in operation.inputs)


class Pieces:
    """The pieces of a region, and the frame through which their values go.

    While a piece is printed, `reach` gives what its function calls a value that was made elsewhere; otherwise, what the
    function that calls it does.
    """

    def __init__(self, context: FormContext) -> None:
        self.context = context
        self.function = context.function
        self.given: dict[str, tuple[str, int]] = {}  # operands that are in the frame, with their types and places
        self._made: dict[str, int] = {}  # what pieces gave, with its place
        self._size = 0
        self._is_inside = False
        self._own: set[str] = set()  # registers of the piece
        self._local: dict[str, str] = {}  # what it calls others
        self._taken: list[tuple[str, str, int]] = []  # what is to be stored before it is called: type, register, place

    def slots(self) -> list[str]:
        """Return the frame, as a variable on the stack."""
        return [f"  %frame = alloca [{self._size} x i64]"] if self._size else []

    def given_lines(self, register: str) -> list[str]:
        """Return the lines that put an operand into the frame, as soon as it is known."""
        if register not in self.given:
            return []
        kind, place = self.given[register]
        at = f"%at_{register[1:]}"
        return [
            f"  {at} = getelementptr inbounds i8, ptr %frame, i64 {_PLACE * place}",
            f"  store {kind} {register}, ptr {at}",
        ]

    def reach(self, value: Value) -> Value:
        """Return a value as it is called where code is printed now."""
        if isinstance(value, Scalar):
            name = self.register(value.name, value.kind)
            return value if name == value.name else Scalar(name, value.kind)
        if isinstance(value, Elements) and self._is_inside:
            pointer, count = self.register(value.pointer, "ptr"), self.register(value.count, "i64")
            return Elements(pointer, value.kind, value.shape, count, value.of, value.buffers)
        return value

    def register(self, name: str, kind: str) -> str:
        """Return a register as it is called where code is printed now; numbers are called the same everywhere."""
        if not name.startswith("%") or name in self._own:
            return name
        if not self._is_inside:
            return self._load(kind, self._made[name]) if name in self._made else name
        known = self._local.get(name)
        if known is None:
            known = self._local[name] = self._load(kind, self._place_of(name, kind))
        return known

    def _load(self, kind: str, place: int) -> str:
        return self.function.load(kind, self._at(place))

    def _at(self, place: int) -> str:
        return self.function.let(f"getelementptr inbounds i8, ptr %frame, i64 {_PLACE * place}")

    def _new_place(self) -> int:
        self._size += 1
        return self._size - 1

    def _place_of(self, name: str, kind: str) -> int:
        if name in self._made:
            return self._made[name]
        if name.startswith(("%d", "%rows", "%x")) and kind != "i1":
            if name not in self.given:
                self.given[name] = (kind, self._new_place())
            return self.given[name][1]
        place = self._new_place()
        self._taken.append((kind, name, place))
        return place

    def note(self, value: Value) -> None:
        """Note that the piece made a value."""
        if isinstance(value, Scalar) and value.name.startswith("%"):
            self._own.add(value.name)

    @contextmanager
    def piece(self) -> Generator[None]:
        """Print the code of the block as a function of its own; its results have to be `give`n before the end."""
        function, context = self.function, self.context
        lines, block, exits = function.lines, function.block, context.exits
        function.lines, context.exits = [], []
        self._is_inside, self._own, self._local = True, set(), {}
        self._taken = []
        yield
        body, may_fail = function.lines, bool(context.exits)
        function.lines, function.block, context.exits = lines, block, exits
        self._is_inside, self._own = False, set()
        for kind, name, place in self._taken:
            function.store(kind, name, self._at(place))
        ends = ["  ret i1 true", "failed:", "  ret i1 false"] if may_fail else ["  ret void"]
        kind = "i1" if may_fail else "void"
        head = f"define internal {kind} @HELPER(ptr noalias %frame) noinline {{"
        name = function.helper("\n".join([head, "start:", *body, *ends, "}"]))
        if may_fail:
            context.fail_unless(function.let(f"call i1 {name}(ptr %frame)"))
        else:
            function.line(f"call void {name}(ptr %frame)")

    def give(self, values: Iterable[Value]) -> None:
        """Put what the piece made, and others need, into the frame."""
        for value in values:
            if isinstance(value, Scalar) and value.name in self._own and value.name not in self._made:
                place = self._new_place()
                self.function.store(value.kind, value.name, self._at(place))
                self._made[value.name] = place
