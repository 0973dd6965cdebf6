"""Functions whose parts run on the engine's threads: the numbers that they get, the share of a part, and the calls."""

from __future__ import annotations

from collections.abc import Sequence

from ..host.lock import IS_ENDED, RELEASE
from .builder import Builder, FunctionBuilder, Size, taking
from .entry import Kernel

_NO_MORE = 1 << 62  # more than there is of anything


class Fields:
    """Numbers in memory, by their names, as values in a function."""

    def __init__(self, code: Builder, numbers: str, names: tuple[str, ...]) -> None:
        self._code, self._numbers, self._names = code, numbers, names

    def __getitem__(self, name: str) -> str:
        return self._code.load("i64", self._numbers, self._names.index(name))

    def address(self, name: str) -> str:
        """Return a number as a pointer."""
        return self._code.let(f"inttoptr i64 {self[name]} to ptr")


def stored_fields(code: Builder, pointers: Sequence[str], names: tuple[str, ...]) -> tuple[str, Fields]:
    """Store pointers and then ``%numbers``, for tasks; return the address of all, and them by their names."""
    address = code.slot(f"[{len(names)} x i64]")
    for position, pointer in enumerate(pointers):
        code.store("i64", code.let(f"ptrtoint ptr {pointer} to i64"), address, position)
    for number in range(len(names) - len(pointers)):
        code.store("i64", code.load("i64", "%numbers", number), address, len(pointers) + number)
    return address, Fields(code, address, names)


def begin_run_function(kernel: Kernel, name: str, last: str = "numbers") -> FunctionBuilder:
    """Return the run function of a kernel (see `Kernel`), without its body.

    Args:
        kernel: whose operands it takes.
        name: of the kernel.
        last: the name of its last parameter: a kernel of any sizes has those there.
    """
    return FunctionBuilder(f"{name}_run", taking([*[f"d{k}" for k in range(len(kernel.operands))], last]))


def begin_task(name: str, names: tuple[str, ...], flushes: bool = False) -> tuple[FunctionBuilder, Fields]:
    """Return the function ``NAME_task(context, part)``, without its body, and the numbers that its context is."""
    code = FunctionBuilder(f"{name}_task", ["ptr %context", "i64 %part"], flushes=flushes)
    return code, Fields(code, "%context", names)


def begin_entry(name: str, names: tuple[str, ...]) -> tuple[FunctionBuilder, Fields]:
    """Return an exported function of the address of its numbers, without its body, and the numbers."""
    code = FunctionBuilder(name, ["ptr %numbers"], linkage="")
    return code, Fields(code, "%numbers", names)


def print_parallel(code: Builder, task: str, context: str, parts: Size) -> None:
    """Call a task for each part, on the engine's threads."""
    code.line(f"call void @anabranch_parallel(ptr @{task}, ptr {context}, i64 {parts})")


def print_release(code: Builder, counter: str) -> None:
    """Print a release of Python's lock, if the kernel takes long, inside of a part that is long itself.

    Args:
        code: of the part.
        counter: the address of the number from which parts take work; an ended job finds none any more.
    """
    code.line(f"call void @{RELEASE}()")
    with code.when(code.let(f"call i1 @{IS_ENDED}(ptr %context)")):
        code.line(f"store atomic i64 {_NO_MORE}, ptr {counter} monotonic, align 8")


def print_share(code: Builder, count: Size, part: Size, parts: Size) -> tuple[Size, Size]:
    """Print the first of `count` things that belong to a part, and the first that does not any more."""
    return code.div(code.mul(count, part), parts), code.div(code.mul(count, code.add(part, 1)), parts)


def print_entry(name: str, fields: tuple[str, ...], task: str = "task", parts: str = "parts") -> str:
    """Print the exported function of the address of its numbers, which runs `NAME_task` for each part.

    Args:
        name: of the function.
        fields: the names of the numbers.
        task: how the name of the function of a part ends.
        parts: the name of the number of parts.
    """
    code, numbers = begin_entry(name, fields)
    print_parallel(code, f"{name}_{task}", "%numbers", numbers[parts])
    return code.text()
