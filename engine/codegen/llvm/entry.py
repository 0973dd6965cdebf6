"""The entry of a kernel: it takes the addresses of NumPy objects, checks them, and hands on pointers to their data.

In a few nanoseconds it makes sure that the objects are what the program was compiled for (type, contiguity, shape); if
they are not it returns 1, and the caller converts them and tries again. What it compares with, and the sizes for which
it is called, are read from a table, so one kernel serves all batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ...common.quick_dataclass import dataclass
from ..host import scratch
from .builder import BYTES
from .compiler import Effort

# Offsets in CPython's and NumPy's objects; part of NumPy's stable ABI, and checked when kernels are first used.
TYPE_OFFSET = 8
DATA_OFFSET = 16
RANK_OFFSET = 24
DIMENSIONS_OFFSET = 32
STRIDES_OFFSET = 40
DESCRIPTOR_OFFSET = 56
FLAGS_OFFSET = 64
ALIGNED = 0x0100
C_CONTIGUOUS_ALIGNED = 0x0001 | ALIGNED
WRITEABLE = 0x0400

_MEMORY = {"i1": "i8", "bfloat": "i16"}


@dataclass(frozen=True)
class Operand:
    """The form in which a kernel takes one operand.

    Attributes:
        type: the LLVM type of an element; "bfloat" is kept as its bits.
        rank: the rank of the array, or None for a NumPy scalar.
        steps: for each loop, whether the operand advances (True) or is broadcast (False).
        is_written: whether it is an output.
        is_strided: its rows may be anywhere: instead of contiguity, its strides have to be those in the table.
        has_step: it is a matrix whose rows are contiguous, and any distance apart, such as columns of a wider one. The
            run function gets that distance, in elements: ``i64 %r{k}`` for operand k, behind all pointers.
    """

    type: str
    rank: int | None
    steps: tuple[bool, ...] = ()
    is_written: bool = False
    is_strided: bool = False
    has_step: bool = False

    @property
    def memory(self) -> str:
        """The LLVM type of an element in memory."""
        return _MEMORY.get(self.type, self.type)

    @property
    def itemsize(self) -> int:
        """The bytes of an element in memory."""
        return BYTES[self.memory]


class Kernel(Protocol):
    """The unit that the library compiles: hashable, and equal to a kernel that prints the same code.

    `print_run(name)` gives the IR of ``void @{name}_run(ptr %d0, ..., ptr %numbers)``, one pointer for each of
    `operands` (and the steps of those that have one); the numbers are those that the caller bound, `number_count` of
    them.
    """

    @property
    def operands(self) -> tuple[Operand, ...]: ...

    @property
    def number_count(self) -> int: ...

    def print_run(self, name: str) -> str: ...


class Functions(Protocol):
    """Functions that kernels of several modules call by name: a module of its own, compiled once and hashable.

    A kernel names them in its attribute `calls`. `repr` stands for the text that is printed.
    """

    @property
    def effort(self) -> Effort: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def print_declarations(self) -> str: ...

    def print_functions(self) -> str: ...


@dataclass(frozen=True)
class PrintedKernel:
    """A kernel whose code is given as text.

    Attributes:
        operands: inputs first, then outputs.
        number_count: how many numbers it reads.
        text: the IR of its run function (see `Kernel`) and of what that calls; ``@NAME`` stands for its name.
    """

    operands: tuple[Operand, ...]
    number_count: int
    text: str

    def print_run(self, name: str) -> str:
        return self.text.replace("@NAME", f"@{name}")


def effort_of(kernel: Kernel) -> Effort:
    """Return the effort that the compiler makes for a kernel."""
    return getattr(kernel, "effort", Effort.FULL)


def scratch_of(kernel: Kernel) -> tuple[int, ...]:
    """Return the places, among a kernel's numbers, of addresses in scratch memory (see `host.scratch`)."""
    return getattr(kernel, "scratch", ())


def functions_of(kernels: Iterable[Kernel]) -> list[Functions]:
    """Return the functions that some kernels call, each once."""
    return list(dict.fromkeys(functions for kernel in kernels for functions in getattr(kernel, "calls", ())))


class KernelWithEntry:
    """A kernel that has an entry of its own instead of the usual one."""

    def print_entry(self, name: str) -> str:
        """Print the IR of ``i32 @{name}(i64 %table, ptr %objects)``: these are the addresses of operands' objects."""
        raise NotImplementedError


def table_layout(operands: tuple[Operand, ...]) -> list[tuple[str, int, int]]:
    """Return the start of a kernel's table, in order: (kind, operand, axis). The numbers follow.

    Kinds: "array" (address of NumPy's array type), "type" (address of the dtype or scalar type) of an operand, "dim" of
    an operand, and "step" (bytes) of one that `is_strided`.
    """
    layout = [("array", 0, 0)]
    for position, operand in enumerate(operands):
        layout.append(("type", position, 0))
        layout.extend(("dim", position, axis) for axis in range(operand.rank or 0))
        if operand.is_strided:
            layout.extend(("step", position, axis) for axis in range(operand.rank or 0))
    return layout


def print_kernel(kernel: Kernel, name: str) -> str:
    """Print the LLVM IR of a kernel and its entry."""
    entry = kernel.print_entry(name) if isinstance(kernel, KernelWithEntry) else _print_entry(kernel, name)
    return kernel.print_run(name) + entry


def begin_entry(name: str, count: int) -> list[str]:
    """Return the first lines of an entry of so many operands: the table is ``%t``, the objects are ``%o{k}``."""
    lines = [f"define i32 @{name}(i64 %table, ptr %objects) {{", "  %t = inttoptr i64 %table to ptr"]
    for k in range(count):
        lines.append(f"  %object_{k} = getelementptr i64, ptr %objects, i64 {k}")
        lines.append(f"  %o{k} = load i64, ptr %object_{k}")
    return lines


def _print_entry(kernel: Kernel, name: str) -> str:
    operands = kernel.operands
    lines = begin_entry(name, len(operands))
    places = scratch_of(kernel)
    lines += [f"  %own = alloca [{kernel.number_count} x i64]"] if places else []
    layout = table_layout(operands)
    for position, entry in enumerate(layout):
        label = "_".join(map(str, entry))
        lines.append(f"  %p_{label} = getelementptr i64, ptr %t, i64 {position}")
        lines.append(f"  %{label} = load i64, ptr %p_{label}")
    # One after the other, because nothing may be read of an object before it is known to be an array, and no dimension
    # before the rank is known.
    for number, stage in enumerate((_print_type, _print_header, _print_dimensions)):
        checks = [check for k, operand in enumerate(operands) for check in stage(lines, k, operand)]
        _print_checks(lines, checks, number)
    lines.append("  br label %run")
    lines.append("refuse:\n  ret i32 1")
    lines.append("run:")
    lines.append(f"  %numbers = getelementptr i64, ptr %t, i64 {len(layout)}")
    arguments = [f"ptr %d{k}" for k in range(len(operands))]
    arguments += [f"i64 %r{k}" for k, operand in enumerate(operands) if operand.has_step]
    call = f"  call void @{name}_run({', '.join([*arguments, 'ptr NUMBERS'])})"
    lines += _print_with_scratch(call, kernel.number_count, places) if places else [call.replace("NUMBERS", "%numbers")]
    lines.append("  ret i32 0\n}\n")
    return "\n".join(lines)


def _print_with_scratch(call: str, count: int, places: tuple[int, ...]) -> list[str]:
    """Print the call of a run function with scratch memory, if it needs any: its numbers at `places` are addresses."""
    lines = [f"  %bytes_at = getelementptr i64, ptr %numbers, i64 {count - 1}", "  %bytes = load i64, ptr %bytes_at"]
    lines += ["  %needs = icmp sgt i64 %bytes, 0", "  br i1 %needs, label %take, label %call", "take:"]
    lines += [f"  %memory = call ptr @{scratch.TAKE}(i64 %bytes)", "  %lacks = icmp eq ptr %memory, null"]
    lines += ["  br i1 %lacks, label %refuse, label %place", "place:", "  %start = ptrtoint ptr %memory to i64"]
    lines.append(f"  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr %numbers, i64 {8 * count}, i1 false)")
    for place in places:
        lines.append(f"  %place_{place} = getelementptr i64, ptr %own, i64 {place}")
        lines.append(f"  %from_{place} = load i64, ptr %place_{place}")
        lines.append(f"  %to_{place} = add i64 %from_{place}, %start")
        lines.append(f"  store i64 %to_{place}, ptr %place_{place}")
    lines += ["  br label %call", "call:", "  %given = phi ptr [%numbers, %run], [%own, %place]"]
    lines += ["  %held = phi ptr [null, %run], [%memory, %place]", call.replace("NUMBERS", "%given")]
    lines += ["  br i1 %needs, label %give, label %done", "give:", f"  call void @{scratch.GIVE}(ptr %held)"]
    return [*lines, "  br label %done", "done:"]


def print_open_entry(operands: tuple[Operand, ...], name: str) -> str:
    """Print the IR of an entry that compares no sizes: the run function gets them.

    The table is laid out by `open_table_layout`. The run function is ``void @{name}_run(ptr %d0, ..., ptr
    %sizes)``, where the dimensions of all operands stand one after the other; behind those of an operand that
    `is_strided` are its strides, in bytes. Behind all it puts another number than 0 if it could not do its work: the
    entry returns that.
    """
    lines = begin_entry(name, len(operands))
    for position, (kind, operand) in enumerate(open_table_layout(operands)):
        lines.append(f"  %p_{kind}_{operand} = getelementptr i64, ptr %t, i64 {position}")
        lines.append(f"  %{kind}_{operand}_0 = load i64, ptr %p_{kind}_{operand}")
    for number, stage in enumerate((_print_type, _print_header)):
        checks = [check for k, operand in enumerate(operands) for check in stage(lines, k, operand)]
        _print_checks(lines, checks, number)
    lines.append("  br label %run\nrefuse:\n  ret i32 1\nrun:")
    kinds = {"dims": DIMENSIONS_OFFSET, "strides": STRIDES_OFFSET}
    places = [
        (k, kind, axis)
        for k, operand in enumerate(operands)
        for kind in (kinds if operand.is_strided else ("dims",))
        for axis in range(operand.rank or 0)
    ]
    count = len(places)
    lines.append(f"  %sizes = alloca [{count + 1} x i64]")
    for place, (k, kind, axis) in enumerate(places):
        if not axis:
            address = _print_field(lines, k, kind, kinds[kind], "i64")
            lines.append(f"  %base_{kind}_{k} = inttoptr i64 {address} to ptr")
        lines.append(f"  %from_{place} = getelementptr i64, ptr %base_{kind}_{k}, i64 {axis}")
        lines.append(f"  %size_{place} = load i64, ptr %from_{place}")
        lines.append(f"  %to_{place} = getelementptr i64, ptr %sizes, i64 {place}")
        lines.append(f"  store i64 %size_{place}, ptr %to_{place}")
    lines += [f"  %end = getelementptr i64, ptr %sizes, i64 {count}", "  store i64 0, ptr %end"]
    arguments = [f"ptr %d{k}" for k in range(len(operands))]
    lines.append(f"  call void @{name}_run({', '.join([*arguments, 'ptr %sizes'])})")
    lines += ["  %failed = load i64, ptr %end", "  %code = trunc i64 %failed to i32", "  ret i32 %code\n}\n"]
    return "\n".join(lines)


def open_table_layout(operands: tuple[Operand, ...]) -> list[tuple[str, int]]:
    """Return the table's layout of a kernel for any sizes, in order: NumPy's array type, and that of each operand."""
    return [("array", 0), *[("type", position) for position in range(len(operands))]]


def _print_checks(lines: list[str], checks: list[str], stage: int) -> None:
    """Refuse unless all `checks` hold."""
    result = "true"
    for position, check in enumerate(checks):
        lines.append(f"  %ok{stage}_{position} = and i1 {result}, {check}")
        result = f"%ok{stage}_{position}"
    lines.append(f"  br i1 {result}, label %checked{stage}, label %refuse")
    lines.append(f"checked{stage}:")


def _print_field(lines: list[str], k: int, label: str, offset: int, kind: str) -> str:
    """Print a field of the object that operand `k` is."""
    lines.append(f"  %a_{label}_{k} = add i64 %o{k}, {offset}")
    lines.append(f"  %q_{label}_{k} = inttoptr i64 %a_{label}_{k} to ptr")
    lines.append(f"  %{label}_{k} = load {kind}, ptr %q_{label}_{k}")
    return f"%{label}_{k}"


def _print_equal(lines: list[str], k: int, label: str, left: str, right: str, kind: str) -> str:
    lines.append(f"  %c_{label}_{k} = icmp eq {kind} {left}, {right}")
    return f"%c_{label}_{k}"


def _print_type(lines: list[str], k: int, operand: Operand) -> list[str]:
    """Print the check that operand `k` is a scalar of its type, or an array."""
    wanted = f"%type_{k}_0" if operand.rank is None else "%array_0_0"
    return [_print_equal(lines, k, "kind", _print_field(lines, k, "kind", TYPE_OFFSET, "i64"), wanted, "i64")]


def _print_header(lines: list[str], k: int, operand: Operand) -> list[str]:
    """Print the address of the data, and return the checks of dtype, rank and layout."""
    if operand.rank is None:
        lines.append(f"  %a_data_{k} = add i64 %o{k}, {DATA_OFFSET}")
        lines.append(f"  %d{k} = inttoptr i64 %a_data_{k} to ptr")
        return []
    data = _print_field(lines, k, "data", DATA_OFFSET, "i64")
    lines.append(f"  %d{k} = inttoptr i64 {data} to ptr")
    dtype = _print_field(lines, k, "descr", DESCRIPTOR_OFFSET, "i64")
    rank = _print_field(lines, k, "rank", RANK_OFFSET, "i32")
    flags = _print_field(lines, k, "flags", FLAGS_OFFSET, "i32")
    needed = ALIGNED if operand.is_strided or operand.has_step else C_CONTIGUOUS_ALIGNED
    needed |= WRITEABLE if operand.is_written else 0
    lines.append(f"  %m_flags_{k} = and i32 {flags}, {needed}")
    return [
        _print_equal(lines, k, "descr", dtype, f"%type_{k}_0", "i64"),
        _print_equal(lines, k, "rank", rank, str(operand.rank), "i32"),
        _print_equal(lines, k, "flags", f"%m_flags_{k}", str(needed), "i32"),
    ]


def _print_dimensions(lines: list[str], k: int, operand: Operand) -> list[str]:
    """Print the checks of the shape, and of the strides of what is not contiguous."""
    if not operand.rank:
        return []
    checks = _print_sizes(lines, k, operand.rank, "dim", DIMENSIONS_OFFSET)
    if operand.has_step:
        return [*checks, _print_step(lines, k, operand)]
    return checks + (_print_sizes(lines, k, operand.rank, "step", STRIDES_OFFSET) if operand.is_strided else [])


def _print_step(lines: list[str], k: int, operand: Operand) -> str:
    """Print the distance, in elements, between rows of matrix operand `k`; return the check that each is contiguous."""
    strides = _print_field(lines, k, "strides", STRIDES_OFFSET, "i64")
    lines.append(f"  %base_strides_{k} = inttoptr i64 {strides} to ptr")
    lines.append(f"  %bytes_{k} = load i64, ptr %base_strides_{k}")
    lines.append(f"  %r{k} = sdiv i64 %bytes_{k}, {operand.itemsize}")
    lines.append(f"  %inner_{k} = getelementptr i64, ptr %base_strides_{k}, i64 1")
    lines.append(f"  %stride_{k} = load i64, ptr %inner_{k}")
    whole = _print_equal(lines, k, "inner", f"%stride_{k}", str(operand.itemsize), "i64")
    lines.append(f"  %c_one_{k} = icmp sle i64 %v_dim_{k}_1, 1")
    none = _print_equal(lines, k, "none", f"%v_dim_{k}_0", "0", "i64")  # the strides of an empty array mean nothing
    lines.append(f"  %c_few_{k} = or i1 %c_one_{k}, {none}")
    lines.append(f"  %c_step_{k} = or i1 {whole}, %c_few_{k}")
    return f"%c_step_{k}"


def _print_sizes(lines: list[str], k: int, rank: int, kind: str, offset: int) -> list[str]:
    """Print the checks of the sizes of a kind, of which an array has one for each axis."""
    sizes = _print_field(lines, k, f"{kind}s", offset, "i64")
    lines.append(f"  %base_{kind}_{k} = inttoptr i64 {sizes} to ptr")
    checks: list[str] = []
    for axis in range(rank):
        lines.append(f"  %y_{kind}_{k}_{axis} = getelementptr i64, ptr %base_{kind}_{k}, i64 {axis}")
        lines.append(f"  %v_{kind}_{k}_{axis} = load i64, ptr %y_{kind}_{k}_{axis}")
        checks.append(_print_equal(lines, k, f"{kind}{axis}", f"%v_{kind}_{k}_{axis}", f"%{kind}_{k}_{axis}", "i64"))
    return checks
