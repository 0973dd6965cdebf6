"""The start of a native region: whether the objects that were passed are what it was compiled for."""

from __future__ import annotations

import numpy as np

from ...common.quick_dataclass import dataclass
from ..llvm.entry import (
    DATA_OFFSET,
    DESCRIPTOR_OFFSET,
    DIMENSIONS_OFFSET,
    FLAGS_OFFSET,
    RANK_OFFSET,
    TYPE_OFFSET,
)
from .scalars import type_of

_CONTIGUOUS_ALIGNED = 0x0001 | 0x0100
_WRITEABLE = 0x0400


@dataclass(frozen=True)
class Operand:
    """An input or output of a native region.

    Attributes:
        dtype: of its elements.
        shape: of the array, None for a NumPy scalar; the first dimension is None where there are any number of rows.
        is_written: whether it is an output.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int | None, ...] | None
    is_written: bool = False


class Checks:
    """Lines that check operands one after the other, and give names to their contents.

    The addresses of the operands begin at ``%operands``. Of operand k, ``%dk`` is the address of the
    data, ``%rowsk`` the number of rows where that is open, and ``%xk`` the value of a scalar.
    """

    def __init__(self) -> None:
        self._globals: list[str] = []
        self._lines: list[str] = []

    def add(self, position: int, operand: Operand) -> None:
        """Check operand `position`."""
        self._lines += [
            f"  %pt{position} = getelementptr i64, ptr %table_p, i64 {position + 1}",
            f"  %t{position} = load i64, ptr %pt{position}",
            f"  %po{position} = getelementptr i64, ptr %operands, i64 {position}",
            f"  %o{position} = load i64, ptr %po{position}",
        ]
        if operand.shape is None:
            self._add_scalar(position, type_of(operand.dtype))
            return
        dims = ", ".join(f"i64 {-1 if dim is None else dim}" for dim in operand.shape)
        rank = len(operand.shape)
        self._globals.append(f"@NAME_dims{position} = internal constant [{rank} x i64] [{dims}]")
        flags = _CONTIGUOUS_ALIGNED | (_WRITEABLE if operand.is_written else 0)
        listed = f"i64 %o{position}, i64 %array, i64 %t{position}, i32 {rank}, i32 {flags}, ptr @NAME_dims{position}"
        self._lines.append(f"  %is{position} = call i1 @anabranch_is_array({listed})")
        self._branch(position)
        self._field(position, "d", DATA_OFFSET, "ptr", f"%d{position}")
        if operand.shape and operand.shape[0] is None:
            dims_at = self._field(position, "dims", DIMENSIONS_OFFSET, "ptr")
            self._lines.append(f"  %rows{position} = load i64, ptr {dims_at}")

    def _add_scalar(self, position: int, kind: str) -> None:
        found = self._field(position, "kind", TYPE_OFFSET, "i64")
        self._lines.append(f"  %is{position} = icmp eq i64 {found}, %t{position}")
        self._branch(position)
        self._lines.append(f"  %a{position} = add i64 %o{position}, {DATA_OFFSET}")
        self._lines.append(f"  %d{position} = inttoptr i64 %a{position} to ptr")
        if kind == "i1":
            self._lines.append(f"  %b{position} = load i8, ptr %d{position}")
            self._lines.append(f"  %x{position} = icmp ne i8 %b{position}, 0")
        else:
            self._lines.append(f"  %x{position} = load {kind}, ptr %d{position}")

    def _branch(self, position: int) -> None:
        self._lines.append(f"  br i1 %is{position}, label %checked{position}, label %refuse")
        self._lines.append(f"checked{position}:")

    def _field(self, position: int, label: str, offset: int, kind: str, name: str | None = None) -> str:
        name = name or f"%{label}_{position}"
        self._lines.append(f"  %a{label}_{position} = add i64 %o{position}, {offset}")
        self._lines.append(f"  %q{label}_{position} = inttoptr i64 %a{label}_{position} to ptr")
        self._lines.append(f"  {name} = load {kind}, ptr %q{label}_{position}")
        return name

    def globals_text(self) -> list[str]:
        """Return the lines that stand before the function."""
        return self._globals

    def text(self) -> list[str]:
        """Return the lines at the function's start."""
        lines = [
            "  %table_p = inttoptr i64 %table to ptr",
            "  %array = load i64, ptr %table_p",
        ]
        return [*lines, *self._lines]


# Nothing is read of an object before it is known what it is. A dimension of -1 may be any.
IS_ARRAY = f"""
define internal i1 @anabranch_is_array(i64 %object, i64 %array, i64 %dtype, i32 %rank, i32 %flags, ptr %dims)
    noinline {{
start:
  %o = inttoptr i64 %object to ptr
  %type_at = getelementptr i8, ptr %o, i64 {TYPE_OFFSET}
  %type = load i64, ptr %type_at
  %is_array = icmp eq i64 %type, %array
  br i1 %is_array, label %header, label %no
header:
  %dtype_at = getelementptr i8, ptr %o, i64 {DESCRIPTOR_OFFSET}
  %found_dtype = load i64, ptr %dtype_at
  %same_dtype = icmp eq i64 %found_dtype, %dtype
  %rank_at = getelementptr i8, ptr %o, i64 {RANK_OFFSET}
  %found_rank = load i32, ptr %rank_at
  %same_rank = icmp eq i32 %found_rank, %rank
  %flags_at = getelementptr i8, ptr %o, i64 {FLAGS_OFFSET}
  %found_flags = load i32, ptr %flags_at
  %wanted_flags = and i32 %found_flags, %flags
  %has_flags = icmp eq i32 %wanted_flags, %flags
  %same = and i1 %same_dtype, %same_rank
  %fits = and i1 %same, %has_flags
  br i1 %fits, label %shape, label %no
shape:
  %dims_at = getelementptr i8, ptr %o, i64 {DIMENSIONS_OFFSET}
  %found_dims = load ptr, ptr %dims_at
  br label %head
head:
  %axis = phi i32 [0, %shape], [%next, %on]
  %more = icmp slt i32 %axis, %rank
  br i1 %more, label %dim, label %yes
dim:
  %found_at = getelementptr i64, ptr %found_dims, i32 %axis
  %found = load i64, ptr %found_at
  %wanted_at = getelementptr i64, ptr %dims, i32 %axis
  %wanted = load i64, ptr %wanted_at
  %equal = icmp eq i64 %found, %wanted
  %open = icmp eq i64 %wanted, -1
  %ok = or i1 %equal, %open
  br i1 %ok, label %on, label %no
on:
  %next = add i32 %axis, 1
  br label %head
yes:
  ret i1 true
no:
  ret i1 false
}}
"""
